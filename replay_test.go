package httpretry_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// Hazard B1 to B5: a body is the same on every attempt, or is sent once.
func TestReplay(t *testing.T) {
	const text = "the quick brown fox"
	stream := func(s string) io.ReadCloser { return io.NopCloser(iotest.OneByteReader(strings.NewReader(s))) }
	tests := []struct {
		name     string
		body     func() io.ReadCloser
		getBody  func() (io.ReadCloser, error)
		buffer   int64
		steps    []step
		attempts int
		reason   httpretry.Reason
	}{
		{name: "no body", body: func() io.ReadCloser { return nil }, attempts: 3, reason: httpretry.ReasonFinal},
		{name: "http.NoBody", body: func() io.ReadCloser { return http.NoBody }, attempts: 3, reason: httpretry.ReasonFinal},
		{name: "stream", body: func() io.ReadCloser { return stream(text) }, attempts: 3, reason: httpretry.ReasonFinal},
		{name: "stream that just fits", body: func() io.ReadCloser { return stream(text) }, buffer: int64(len(text)), attempts: 3, reason: httpretry.ReasonFinal},
		{name: "stream too long by one", body: func() io.ReadCloser { return stream(text) }, buffer: int64(len(text)) - 1, attempts: 1, reason: httpretry.ReasonNotReplayable},
		{name: "stream not kept", body: func() io.ReadCloser { return stream(text) }, buffer: -1, attempts: 1, reason: httpretry.ReasonNotReplayable},
		{name: "stream not kept but not read", body: func() io.ReadCloser { return stream(text) }, buffer: -1, attempts: 3, reason: httpretry.ReasonFinal,
			steps: []step{{status: 503, unread: true}, {status: 503, unread: true}, status(200)}},
		{name: "stream not kept, error", body: func() io.ReadCloser { return stream(text) }, buffer: -1, attempts: 1, reason: httpretry.ReasonNotReplayable,
			steps: []step{fails(errReset)}},
		{name: "GetBody", body: func() io.ReadCloser { return stream(text) }, attempts: 3, reason: httpretry.ReasonFinal, buffer: -1,
			getBody: func() (io.ReadCloser, error) { return stream(text), nil }},
		{name: "GetBody in memory", body: func() io.ReadCloser { return stream(text) }, attempts: 3, reason: httpretry.ReasonFinal, buffer: -1,
			getBody: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewBufferString(text)), nil }},
		{name: "stream not read, error", body: func() io.ReadCloser { return stream(text) }, attempts: 2, reason: httpretry.ReasonFinal,
			steps: []step{{err: errReset, unread: true}, {err: &net.DNSError{IsNotFound: true}, unread: true}}},
		{name: "GetBody fails", body: func() io.ReadCloser { return stream(text) }, attempts: 1, reason: httpretry.ReasonNotReplayable,
			getBody: func() (io.ReadCloser, error) { return nil, errors.New("no more") }},
		{name: "GetBody returns nothing", body: func() io.ReadCloser { return stream(text) }, attempts: 1, reason: httpretry.ReasonNotReplayable,
			getBody: func() (io.ReadCloser, error) { return nil, nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			steps := tt.steps
			if steps == nil {
				steps = []step{status(503), status(503), status(200)}
			}
			base, events := play(steps...), new(record)
			policy := every(0)
			policy.ReplayBuffer = tt.buffer
			req := streamed(t, "PUT", "http://a.test/", tt.body())
			var body *contract.Body
			want := text
			if req.Body == nil || req.Body == http.NoBody {
				want = ""
			} else {
				body = &contract.Body{ReadCloser: req.Body}
				req.Body = body
			}
			req.GetBody = tt.getBody

			resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: events.observe}).RoundTrip(req)

			assert.Len(t, base.attempts(), tt.attempts)
			assert.Equal(t, tt.reason.String(), events.reason().String())
			if last := steps[tt.attempts-1]; last.err != nil {
				require.ErrorIs(t, err, last.err)
			} else {
				require.NoError(t, err)
				assert.Equal(t, last.body, finish(t, resp))
			}
			for i, a := range base.attempts() {
				if !steps[i].unread {
					assert.Equal(t, want, a.body, "attempt %d", i+1)
				}
			}
			if body != nil {
				assert.EqualValues(t, 1, body.Closes(), "closes of the request's body")
			}
		})
	}
}

// Hazard B2: an error of GetBody is told, beside the attempt's own.
func TestGetBodyError(t *testing.T) {
	gone := errors.New("the file is gone")
	req := request(t, "PUT", "http://a.test/", "text")
	req.GetBody = func() (io.ReadCloser, error) { return nil, gone }
	events := new(record)
	_, err := contract.New(t, httpretry.Config{Base: play(fails(errReset)), Policy: every(0), Observe: events.observe}).RoundTrip(req)
	require.ErrorIs(t, err, gone)
	require.ErrorIs(t, err, errReset)
	require.EqualError(t, err, "httpretry: gave up after 1 attempt (body not replayable): read tcp: connection reset by peer; the body cannot be sent again: the file is gone")
	assert.Equal(t, gone, events.events[0].Err)
}

// Hazard B2: a body that was made for a retry that does not come is closed.
func TestGetBodyUnused(t *testing.T) {
	for name, use := range map[string]func(*httpretry.Policy, context.CancelFunc){
		"budget": func(p *httpretry.Policy, _ context.CancelFunc) { p.Budget = &httpretry.HostBudget{Floor: -1} },
		"cancel": func(_ *httpretry.Policy, cancel context.CancelFunc) { time.AfterFunc(time.Second, cancel) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				policy := every(time.Hour)
				use(&policy, cancel)
				body := contract.Counted("text")
				req := request(t, "PUT", "http://a.test/", "text").WithContext(ctx)
				req.GetBody = func() (io.ReadCloser, error) { return body, nil }
				resp, err := contract.New(t, httpretry.Config{Base: play(status(503)), Policy: policy}).RoundTrip(req)
				if err == nil {
					finish(t, resp)
				}
				assert.EqualValues(t, 1, body.Closes())
			})
		})
	}
}

// Hazard B5: a file is sent again from where it stood, and closed once.
func TestFileReplay(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	text := strings.Repeat("0123456789", 20_000) // more than the replay buffer holds
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	var bodies []string
	srv := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		bodies = append(bodies, string(body))
		if len(bodies) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	file, err := os.Open(name)
	require.NoError(t, err)
	_, err = file.Seek(7, io.SeekStart)
	require.NoError(t, err)
	resp, err := contract.New(t, httpretry.Config{Policy: every(0)}).RoundTrip(streamed(t, "PUT", srv.URL, file))
	require.NoError(t, err)
	finish(t, resp)
	require.Len(t, bodies, 3)
	for _, body := range bodies {
		assert.True(t, body == text[7:])
	}
	_, err = file.Stat()
	require.ErrorIs(t, err, os.ErrClosed)
}

// Hazard B7: a file that cannot be read is the caller's failure.
func TestFileFails(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	require.NoError(t, err)
	srv := newServer(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	events := new(record)
	_, err = contract.New(t, httpretry.Config{Policy: every(0), Observe: events.observe}).RoundTrip(streamed(t, "PUT", srv.URL, dir))
	require.ErrorIs(t, err, syscall.EISDIR)
	assert.Equal(t, httpretry.ReasonFinal, events.reason())
	_, err = dir.Stat()
	require.ErrorIs(t, err, os.ErrClosed)
}

// Hazard B5: what is a file by type but has no offset is recorded.
func TestPipeReplay(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	_, err = w.WriteString("from a pipe")
	require.NoError(t, err)
	require.NoError(t, w.Close())
	base := play(status(503), status(503), status(200))
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(streamed(t, "PUT", "http://a.test/", r))
	require.NoError(t, err)
	finish(t, resp)
	for _, a := range base.attempts() {
		assert.Equal(t, "from a pipe", a.body)
	}
}

// Hazard B7: the error of the caller's reader is the caller's, whatever it
// looks like, and ends the request.
func TestReaderFails(t *testing.T) {
	for _, failure := range []error{syscall.ECONNRESET, io.ErrUnexpectedEOF, context.DeadlineExceeded, errRefused, errors.New("disk")} {
		for _, withGetBody := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/GetBody=%v", failure, withGetBody), func(t *testing.T) {
				var requests atomic.Int32
				srv := newServer(t, func(_ http.ResponseWriter, r *http.Request) {
					requests.Add(1)
					_, _ = io.Copy(io.Discard, r.Body)
				})
				body := &contract.Body{ReadCloser: io.NopCloser(io.MultiReader(strings.NewReader("some"), iotest.ErrReader(failure)))}
				req := streamed(t, "PUT", srv.URL, body)
				if withGetBody {
					req.GetBody = func() (io.ReadCloser, error) { t.Error("GetBody was called"); return nil, nil }
				}
				events := new(record)
				_, err := contract.New(t, httpretry.Config{Policy: every(0), Observe: events.observe}).RoundTrip(req)
				assert.True(t, err == failure, "the very error: %v", err)
				assert.Equal(t, httpretry.ReasonFinal, events.reason())
				assert.LessOrEqual(t, requests.Load(), int32(1))
			})
		}
	}
}

// Hazard B7: the same on a retry, whose body came from GetBody.
func TestReaderFailsLater(t *testing.T) {
	failure := errors.New("disk")
	base := play(status(503), status(200))
	req := request(t, "PUT", "http://a.test/", "text")
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(iotest.ErrReader(failure)), nil }
	_, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(req)
	require.ErrorIs(t, err, failure)
	require.EqualError(t, err, "httpretry: gave up after 2 attempts (final): disk")
	assert.Len(t, base.attempts(), 2)
}

// Hazard 0.4, A5, A10: after an early answer net/http may still be reading.
// The next attempt neither races it nor loses what it reads.
func TestEarlyAnswer(t *testing.T) {
	for _, size := range []int{60_000, 4 << 20} {
		for _, kind := range []string{"stream", "GetBody", "file"} {
			t.Run(fmt.Sprintf("%s/%d", kind, size), func(t *testing.T) {
				data := make([]byte, size)
				for i := range data {
					data[i] = byte(rand.Uint32())
				}
				var accepted [][sha256.Size]byte
				url := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
					if c.Number < 4 {
						_, _ = io.CopyN(io.Discard, req.Body, int64(rand.IntN(64)))
						c.Respond(503, "later", "Connection: close")
						c.Drain() // so that the upload goes on
						return false
					}
					body, err := io.ReadAll(req.Body)
					assert.NoError(t, err)
					accepted = append(accepted, sha256.Sum256(body))
					c.Respond(200, "")
					return false
				}).URL()
				req := streamed(t, "PUT", url, nil)
				policy := every(0)
				policy.ReplayBuffer = 8 << 20
				switch kind {
				case "stream":
					req.Body = &contract.Body{ReadCloser: io.NopCloser(struct{ io.Reader }{bytes.NewReader(data)})}
				case "GetBody":
					req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
					req.Body, _ = req.GetBody()
				case "file":
					name := filepath.Join(t.TempDir(), "file")
					require.NoError(t, os.WriteFile(name, data, 0o600))
					file, err := os.Open(name)
					require.NoError(t, err)
					req.Body = file
				}
				req.ContentLength = int64(size)
				resp, err := contract.New(t, httpretry.Config{Policy: policy}).RoundTrip(req)
				require.NoError(t, err)
				finish(t, resp)
				require.Equal(t, 200, resp.StatusCode)
				require.Equal(t, [][sha256.Size]byte{sha256.Sum256(data)}, accepted)
			})
		}
	}
}

// A response that ends the retries is handed over while its request's body is
// still being sent, and the sending goes on: Hazard B4.
func TestFullDuplex(t *testing.T) {
	for _, buffer := range []int64{0, -1} {
		t.Run(fmt.Sprint(buffer), func(t *testing.T) {
			srv := newDuplexServer(t)
			r, w := io.Pipe()
			policy := every(0)
			policy.ReplayBuffer = buffer
			body := &contract.Body{ReadCloser: r}
			resp, err := contract.New(t, httpretry.Config{Base: srv.Client().Transport, Policy: policy}).
				RoundTrip(streamed(t, "POST", srv.URL, body))
			require.NoError(t, err)
			echo := bufio.NewReader(resp.Body)
			for i := range 20 {
				line := fmt.Sprintf("line %d%s\n", i, strings.Repeat("-", 10_000))
				_, err := io.WriteString(w, line)
				require.NoError(t, err)
				got, err := echo.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, line, got)
			}
			require.NoError(t, w.Close())
			_, err = io.Copy(io.Discard, echo)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		})
	}
}

// newDuplexServer echoes over HTTP/2 as the request comes in.
func newDuplexServer(t *testing.T) *httptest.Server {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.Flush()
		buf := make([]byte, 32<<10)
		for {
			n, err := r.Body.Read(buf)
			_, _ = w.Write(buf[:n])
			_ = rc.Flush()
			if err != nil {
				return
			}
		}
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// blocked is a body whose Read blocks until it is closed.
type blocked struct {
	begun, closed chan struct{}
	begin, end    sync.Once
	closes        atomic.Int32
}

func newBlocked() *blocked {
	return &blocked{begun: make(chan struct{}), closed: make(chan struct{})}
}

func (b *blocked) Read([]byte) (int, error) {
	b.begin.Do(func() { close(b.begun) })
	<-b.closed
	return 0, errors.New("read of a closed body")
}

func (b *blocked) Close() error {
	b.closes.Add(1)
	b.end.Do(func() { close(b.closed) })
	return nil
}

func (b *blocked) Closes() int { return int(b.closes.Load()) }

// Hazard A6, B12: a body whose Read blocks for ever does not hold the caller.
func TestBlockedBody(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }
	t.Run("cancel", func(t *testing.T) {
		srv := newServer(t, slow)
		cause := errors.New("cause")
		ctx, cancel := context.WithCancelCause(t.Context())
		body := newBlocked()
		go func() { <-body.begun; cancel(cause) }()
		_, err := contract.New(t, httpretry.Config{Policy: every(0)}).RoundTrip(streamed(t, "PUT", srv.URL, body).WithContext(ctx))
		require.ErrorIs(t, err, cause)
		assert.EqualValues(t, 1, body.Closes())
	})
	t.Run("Request.Cancel", func(t *testing.T) {
		srv := newServer(t, slow)
		body := newBlocked()
		cancel := make(chan struct{})
		go func() { <-body.begun; close(cancel) }()
		req := streamed(t, "PUT", srv.URL, body)
		//lint:ignore SA1019 http.Client sets it
		req.Cancel = cancel
		_, err := contract.New(t, httpretry.Config{Policy: every(0)}).RoundTrip(req)
		require.Error(t, err)
		assert.EqualValues(t, 1, body.Closes())
	})
	t.Run("attempt timeout", func(t *testing.T) {
		srv := newServer(t, slow)
		body, events := newBlocked(), new(record)
		policy := every(0)
		policy.AttemptTimeout = 20 * time.Millisecond
		_, err := contract.New(t, httpretry.Config{Policy: policy, Observe: events.observe}).RoundTrip(streamed(t, "PUT", srv.URL, body))
		require.EqualError(t, err, "httpretry: gave up after 1 attempt (body not replayable): attempt timed out after 20ms")
		assert.EqualValues(t, 1, body.Closes())
	})
	t.Run("early answer", func(t *testing.T) {
		url := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool {
			c.Respond(503, "later")
			c.Drain()
			return false
		}).URL()
		body, events := newBlocked(), new(record)
		req := streamed(t, "PUT", url, body)
		req.ContentLength = 10 // or net/http waits for the first byte before it sends anything
		resp, err := contract.New(t, httpretry.Config{Policy: every(0), Observe: events.observe}).RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, "later", finish(t, resp))
		assert.Len(t, events.events, 5, "the second attempt inherits the Read of the first")
		<-body.closed
	})
}

// Hazard B6: the writer of a pipe learns that nobody reads any more.
func TestPipeWriterIsToldTheEnd(t *testing.T) {
	r, w := io.Pipe()
	base := baseFunc(func(req *http.Request) (*http.Response, error) {
		_, _ = io.ReadFull(req.Body, make([]byte, 4))
		_ = req.Body.Close()
		return nil, errReset
	})
	written := make(chan error)
	go func() {
		for {
			if _, err := io.WriteString(w, "some more"); err != nil {
				written <- err
				return
			}
		}
	}()
	policy := every(0)
	policy.ReplayBuffer = 2
	_, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(streamed(t, "PUT", "http://a.test/", r))
	require.ErrorIs(t, err, errReset)
	require.ErrorIs(t, <-written, io.ErrClosedPipe)
}

// Hazard B4: what is kept for replay never exceeds ReplayBuffer, not even for a
// moment.
func TestReplayBufferIsABound(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const buffer = 1 << 20
	base := baseFunc(func(req *http.Request) (*http.Response, error) {
		_, err := io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
		return &http.Response{StatusCode: 200, Body: http.NoBody}, err
	})
	policy := every(0)
	policy.ReplayBuffer = buffer
	transport := contractless(t, httpretry.Config{Base: base, Policy: policy})
	result := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			resp, err := transport.RoundTrip(streamed(b, "PUT", "http://a.test/", io.NopCloser(io.LimitReader(zeros{}, 10*buffer))))
			if err != nil || resp.StatusCode != 200 {
				b.Fatal(resp, err)
			}
		}
	})
	assert.Less(t, result.AllocedBytesPerOp(), int64(2*buffer+16<<10), "all that was ever allocated while the record grew")
}

// Hazard B8: a body that panics while Base reads it in the request's own
// goroutine. In one of net/http's, nothing can keep the process from its end.
func TestBodyPanics(t *testing.T) {
	body := &contract.Body{ReadCloser: io.NopCloser(readerFunc(func([]byte) (int, error) { panic("boom") }))}
	transport := contractless(t, httpretry.Config{Base: play(status(200))})
	assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(streamed(t, "PUT", "http://a.test/", body)) })
	assert.EqualValues(t, 1, body.Closes())
}

// Where net/http could have a body again by itself, past the recorder, it does
// not get to know how; where there is no recorder, it does.
func TestGetBodyIsHidden(t *testing.T) {
	for _, tt := range []struct {
		method string
		body   io.Reader
		want   bool
	}{
		{"PUT", strings.NewReader("text"), true},
		{"PUT", iotest.OneByteReader(strings.NewReader("text")), false},
		{"POST", strings.NewReader("text"), false},
	} {
		base := play(fails(errRefused), status(200))
		req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://a.test/", tt.body)
		require.NoError(t, err)
		req.GetBody = func() (io.ReadCloser, error) {
			if tt.want || tt.method == "POST" {
				return io.NopCloser(strings.NewReader("text")), nil
			}
			return io.NopCloser(iotest.OneByteReader(strings.NewReader("text"))), nil
		}
		resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(req)
		require.NoError(t, err)
		finish(t, resp)
		require.Len(t, base.attempts(), 2)
		for _, a := range base.attempts() {
			assert.Equal(t, "text", a.body)
			assert.Equal(t, tt.want, a.req.GetBody != nil)
		}
	}
}

// answering is a base that hands each attempt's body and number to f, which
// may keep the body and use it later, and answers with the status f returns.
func answering(f func(body io.ReadCloser, attempt int) int) baseFunc {
	return func(req *http.Request) (*http.Response, error) {
		status := f(req.Body, httpretry.Attempt(req.Context()))
		return &http.Response{StatusCode: status, Body: http.NoBody}, nil
	}
}

func read(t testing.TB, r io.Reader, n int) string {
	t.Helper()
	p := make([]byte, n)
	_, err := io.ReadFull(r, p)
	require.NoError(t, err)
	return string(p)
}

// A body that failed is not sent again, not even if its server answered.
func TestReaderFailsBeforeAnswer(t *testing.T) {
	events := new(record)
	base := answering(func(body io.ReadCloser, _ int) int {
		_, err := io.ReadAll(body)
		assert.Error(t, err)
		assert.NoError(t, body.Close())
		return 503
	})
	for _, withGetBody := range []bool{false, true} {
		req := streamed(t, "PUT", "http://a.test/", &contract.Body{ReadCloser: io.NopCloser(iotest.ErrReader(errors.New("disk")))})
		if withGetBody {
			req.GetBody = func() (io.ReadCloser, error) { t.Error("GetBody was called"); return nil, nil }
		}
		resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0), Observe: events.observe}).RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, httpretry.ReasonNotReplayable, events.reason())
	}
	assert.Len(t, events.events, 2)
}

// A body that GetBody replaces is closed even if nobody has read it.
func TestGetBodyReplacesUnread(t *testing.T) {
	body := contract.Counted("text")
	req := streamed(t, "PUT", "http://a.test/", body)
	req.GetBody = func() (io.ReadCloser, error) { return contract.Counted("text"), nil }
	base := play(step{status: 503, unread: true}, status(200))
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(req)
	require.NoError(t, err)
	finish(t, resp)
	assert.Equal(t, "text", base.attempts()[1].body)
}

// What an attempt is about to read past the bound cannot be had again.
func TestReplayWhileReadingPastTheBound(t *testing.T) {
	source := newBlocked()
	events := new(record)
	read := make(chan error)
	base := answering(func(body io.ReadCloser, _ int) int {
		go func() {
			_, err := io.ReadAll(body)
			_ = body.Close()
			read <- err
		}()
		<-source.begun
		return 503
	})
	policy := every(0)
	policy.ReplayBuffer = 4
	body := &contract.Body{ReadCloser: struct {
		io.Reader
		io.Closer
	}{io.MultiReader(strings.NewReader("1234"), source), source}}
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: events.observe}).RoundTrip(streamed(t, "PUT", "http://a.test/", body))
	require.NoError(t, err)
	assert.Equal(t, 503, resp.StatusCode)
	assert.Equal(t, httpretry.ReasonNotReplayable, events.reason())
	require.Error(t, <-read)
}

// A body that is kept for a retry which then does not come goes on being sent.
func TestReplayHoldIsReleased(t *testing.T) {
	var rest chan string
	base := answering(func(body io.ReadCloser, _ int) int {
		assert.Equal(t, "1234", read(t, body, 4))
		go func() {
			all, err := io.ReadAll(body)
			assert.NoError(t, err)
			assert.NoError(t, body.Close())
			rest <- string(all)
		}()
		return 503
	})
	policy := every(0)
	policy.ReplayBuffer = 4
	policy.Budget = refusing(func() { time.Sleep(time.Millisecond) }) // while the body is held
	synctest.Test(t, func(t *testing.T) {
		rest = make(chan string, 1)
		r, w := io.Pipe()
		go func() {
			_, _ = io.WriteString(w, "1234")
			time.Sleep(time.Millisecond / 2)
			_, _ = io.WriteString(w, "5678")
			_ = w.Close()
		}()
		traced := baseFunc(func(req *http.Request) (*http.Response, error) {
			// As net/http does, so that the attempt does not end before its request is sent.
			httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{})
			resp, err := base.RoundTrip(req)
			resp.ProtoMajor = 2
			return resp, err
		})
		resp, err := contract.New(t, httpretry.Config{Base: traced, Policy: policy}).RoundTrip(streamed(t, "PUT", "http://a.test/", r))
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, "5678", <-rest)
	})
}

// refusing is a budget that calls f and refuses.
type refusing func()

func (refusing) Deposit(string) {}
func (f refusing) Withdraw(context.Context, string) bool {
	f()
	return false
}

// Hazard A5: an attempt that is over gets no more of the body, and its Close takes
// nothing from the one that follows.
func TestReplayOldAttempt(t *testing.T) {
	var first io.ReadCloser
	base := answering(func(body io.ReadCloser, attempt int) int {
		switch attempt {
		case 1:
			first = body
			assert.Equal(t, "12", read(t, body, 2))
			return 503
		case 2:
			_, err := first.Read(make([]byte, 1))
			assert.Error(t, err)
			assert.Equal(t, "1234", read(t, body, 4))
			assert.NoError(t, first.Close())
			assert.Equal(t, "56", read(t, body, 2))
			return 503
		}
		assert.Equal(t, "12345678", read(t, body, 8))
		_, err := body.Read(make([]byte, 1))
		assert.Equal(t, io.EOF, err)
		assert.NoError(t, body.Close())
		return 200
	})
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(streamed(t, "PUT", "http://a.test/", contract.Counted("12345678")))
	require.NoError(t, err)
	assert.Equal(t, 200, resp.StatusCode)
}

// Hazard B4: a body longer than the bound can be sent again as long as no more than the
// bound was read, however much a Read asks for.
func TestReplayUpToTheBound(t *testing.T) {
	base := answering(func(body io.ReadCloser, attempt int) int {
		defer func() { assert.NoError(t, body.Close()) }()
		if attempt == 1 {
			n, err := body.Read(make([]byte, 512))
			assert.NoError(t, err)
			assert.LessOrEqual(t, n, 10)
			return 503
		}
		all, err := io.ReadAll(body)
		assert.NoError(t, err)
		assert.Equal(t, "the quick brown fox", string(all))
		return 503
	})
	policy, events := every(0), new(record)
	policy.ReplayBuffer = 10
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: events.observe}).
		RoundTrip(streamed(t, "PUT", "http://a.test/", contract.Counted("the quick brown fox")))
	require.NoError(t, err)
	assert.Equal(t, 503, resp.StatusCode)
	assert.Len(t, events.events, 2)
	assert.Equal(t, httpretry.ReasonNotReplayable, events.reason())
}

// The same once the body is longer than what is kept: then the current attempt
// reads the source without a detour, and is the only one to.
func TestReplayOldAttemptPastTheBound(t *testing.T) {
	const text = "0123456789abcdefghijklmnopqrstuvwxyz"
	var first io.ReadCloser
	base := answering(func(body io.ReadCloser, attempt int) int {
		if attempt == 1 {
			first = body
			assert.Equal(t, text[:4], read(t, body, 4))
			return 503
		}
		assert.Equal(t, text[:12], read(t, body, 12))
		n, err := first.Read(make([]byte, 5))
		assert.Zero(t, n)
		assert.Error(t, err)
		assert.NoError(t, first.Close())
		rest, err := io.ReadAll(body)
		assert.NoError(t, err)
		assert.Equal(t, text[12:], string(rest))
		assert.NoError(t, body.Close())
		return 200
	})
	policy := every(0)
	policy.ReplayBuffer = 8
	body := &contract.Body{ReadCloser: &closable{r: strings.NewReader(text)}}
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(streamed(t, "PUT", "http://a.test/", body))
	require.NoError(t, err)
	assert.Equal(t, 200, resp.StatusCode)
}

// closable is a body that cannot be read once it is closed.
type closable struct {
	r      io.Reader
	closed atomic.Bool
	late   atomic.Int32 // reads after Close
}

func (c *closable) Read(p []byte) (int, error) {
	if c.closed.Load() {
		c.late.Add(1)
		return 0, os.ErrClosed
	}
	return c.r.Read(p)
}

func (c *closable) Close() error { c.closed.Store(true); return nil }

// Hazard A5: a body that was closed because the caller left is not read again
// by an attempt that was held back until then.
func TestNoReadAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := &closable{r: strings.NewReader("0123456789abcdef")}
		var first io.ReadCloser
		base := answering(func(b io.ReadCloser, _ int) int {
			first = b
			read(t, b, 8)
			return 503
		})
		late := make(chan error)
		policy := every(time.Hour)
		policy.ReplayBuffer = 8
		policy.Budget = allowing(func() {
			go func() {
				_, err := first.Read(make([]byte, 4))
				late <- err
			}()
			synctest.Wait()
		})
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Hour, io.EOF)
		time.AfterFunc(time.Minute, cancel)
		_, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).
			RoundTrip(streamed(t, "PUT", "http://a.test/", body).WithContext(ctx))
		require.ErrorIs(t, err, context.Canceled)
		require.Error(t, <-late)
		assert.Zero(t, body.late.Load())
	})
}

// allowing is a budget that calls f and allows.
type allowing func()

func (allowing) Deposit(string) {}
func (f allowing) Withdraw(context.Context, string) bool {
	f()
	return true
}

// Hazard D2, D7: a response over HTTP/2 is dropped at once although the caller's
// body, which its stream is still waiting for, has no more to give for now.
func TestDropDuringUpload(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP/2=%v", http2), func(t *testing.T) {
			second := make(chan struct{})
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if httpretryAttempt(r) == 1 {
					_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/1 would read on first
					w.WriteHeader(http.StatusServiceUnavailable)
					_, _ = io.WriteString(w, "later")
					return
				}
				close(second)
				_, _ = io.Copy(io.Discard, r.Body)
			}))
			srv.EnableHTTP2 = http2
			srv.StartTLS()
			t.Cleanup(srv.Close)
			r, w := io.Pipe()
			go func() {
				_, _ = io.WriteString(w, "some")
				<-second // or this would be a deadlock
				_ = w.Close()
			}()
			resp, err := contract.New(t, httpretry.Config{Base: srv.Client().Transport, Policy: every(0)}).RoundTrip(streamed(t, "PUT", srv.URL, r))
			require.NoError(t, err)
			finish(t, resp)
			assert.Equal(t, 200, resp.StatusCode)
		})
	}
}

// Hazard B5: a body may be a file with a Read of its own, which is the one that counts.
func TestReadOverride(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte("hello"), 0o600))
	file, err := os.Open(name)
	require.NoError(t, err)
	base := play(status(503), status(200))
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(streamed(t, "PUT", "http://a.test/", shouting{file}))
	require.NoError(t, err)
	finish(t, resp)
	for _, a := range base.attempts() {
		assert.Equal(t, "HELLO", a.body)
	}
}

type shouting struct{ *os.File }

func (s shouting) Read(p []byte) (int, error) {
	n, err := s.File.Read(p)
	copy(p, bytes.ToUpper(p[:n]))
	return n, err
}

// Hazard G1: the error of a canceled upload is the cancel, whatever it broke.
func TestCanceledUpload(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
		srv.EnableHTTP2 = http2
		srv.StartTLS()
		t.Cleanup(srv.Close)
		transport := contract.New(t, httpretry.Config{Base: srv.Client().Transport, Policy: every(0)})
		for range 100 {
			r, w := io.Pipe()
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				for i := 0; ; i++ {
					if _, err := w.Write(make([]byte, 1000)); err != nil {
						return
					}
					if i == 3 {
						cancel()
					}
				}
			}()
			_, err := transport.RoundTrip(streamed(t, "PUT", srv.URL, r).WithContext(ctx))
			require.ErrorIs(t, err, context.Canceled)
		}
	}
}

// What ends one attempt does not reach into the body of the next.
func TestTimeoutsInARow(t *testing.T) {
	policy := every(0)
	policy.MaxAttempts = 50
	policy.AttemptTimeout = 100 * time.Microsecond
	base := baseFunc(func(req *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(req.Body)
		if err == nil && string(body) != "text" {
			t.Errorf("attempt %d read %q", httpretry.Attempt(req.Context()), body)
		}
		_ = req.Body.Close()
		if err != nil && req.Context().Err() == nil {
			t.Errorf("attempt %d: %v", httpretry.Attempt(req.Context()), err)
		}
		<-req.Context().Done()
		return nil, context.Cause(req.Context())
	})
	_, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(streamed(t, "PUT", "http://a.test/", contract.Counted("text")))
	require.ErrorContains(t, err, "after 50 attempts")
}

// An answer to a body that was cut short by a cancel is not an answer.
func TestAnswerToCutBody(t *testing.T) {
	for _, tt := range []struct {
		name string
		body io.ReadCloser
		fail bool
	}{
		{"cut", newBlocked(), true},
		{"complete", contract.Counted("text"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cause := errors.New("cause")
			base := baseFunc(func(req *http.Request) (*http.Response, error) {
				if b, ok := tt.body.(*blocked); ok {
					go func() { <-b.begun; cancel(cause) }()
				}
				_, _ = io.Copy(io.Discard, req.Body)
				cancel(cause)
				_ = req.Body.Close()
				return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
			})
			resp, err := contract.New(t, httpretry.Config{Base: base}).RoundTrip(streamed(t, "PUT", "http://a.test/", tt.body).WithContext(ctx))
			if !tt.fail {
				require.NoError(t, err)
				assert.Equal(t, 200, resp.StatusCode)
				return
			}
			require.ErrorIs(t, err, cause)
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}
