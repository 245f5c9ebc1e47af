package test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
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

// Hazard A3: trailers that are set while the body is read are sent with every
// attempt.
func TestTrailersOfEveryAttempt(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		for _, withGetBody := range []bool{false, true} {
			t.Run(fmt.Sprintf("GetBody=%v", withGetBody), func(t *testing.T) {
				var mu sync.Mutex
				var got []string
				handler := func(w http.ResponseWriter, r *http.Request) {
					_, err := io.Copy(io.Discard, r.Body)
					assert.NoError(t, err)
					mu.Lock()
					defer mu.Unlock()
					got = append(got, r.Trailer.Get("X-Sum"))
					if len(got) < 3 {
						w.WriteHeader(http.StatusServiceUnavailable)
					}
				}
				base, srv := contract.Serve(t, proto, handler)
				req := contract.Streamed(t, "PUT", srv.URL, nil)
				req.Trailer = http.Header{"X-Sum": nil}
				open := func() (io.ReadCloser, error) {
					return io.NopCloser(
						io.MultiReader(
							strings.NewReader("text"),
							contract.ReaderFunc(func([]byte) (int, error) {
								req.Trailer.Set("X-Sum", "42")
								return 0, io.EOF
							}))), nil
				}
				req.Body, _ = open()
				if withGetBody {
					req.GetBody = open
				}
				contract.Send(t, contract.New(t,
					httpretry.Config{Base: base, Policy: contract.RetryEvery(0)}), req)
				assert.Equal(t, []string{"42", "42", "42"}, got)
			})
		}
	})
}

// Hazard B5: a file that changes between attempts is sent as it is at the time,
// from its original offset. If it no longer has the stated length, the request
// fails. It is not sent again, unless net/http returns the error of reading
// from the connection that it has closed because of the length. Which of the
// two errors persistConn.roundTrip returns is chance.
func TestFileChanges(t *testing.T) {
	for _, tt := range []struct {
		name    string
		change  func(name string) error
		removes bool   // the file, while it is open
		length  int64  // stated
		want    string // the body that is accepted; "": an error
		err     string
	}{
		{"grows", appendTo("more"), false, 0, "3456789more", ""},
		{"shrinks", func(name string) error { return os.Truncate(name, 5) }, false, 0, "34", ""},
		{"is removed", os.Remove, true, 7, "3456789", ""},
		{"is replaced", func(name string) error {
			_ = os.Remove(name)
			return os.WriteFile(name, []byte("other"), 0o600)
		}, true, 7, "3456789", ""},
		{"grows past its length", appendTo("more"), false, 7, "",
			"http: ContentLength=7 with Body length"},
		{"shrinks below its length", func(name string) error { return os.Truncate(name, 5) }, false,
			7, "", "http: ContentLength=7 with Body length 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.removes && runtime.GOOS == "windows" {
				t.Skip("Windows does not remove a file that package os has opened")
			}
			name := filepath.Join(t.TempDir(), "file")
			require.NoError(t, os.WriteFile(name, []byte("0123456789"), 0o600))
			base := faults.Base(t, nil)
			var requests atomic.Int32
			var accepted string
			srv := contract.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				body, err := io.ReadAll(r.Body)
				if err == nil && attemptOf(r) == 1 {
					assert.Equal(t, "3456789", string(body))
					assert.NoError(t, tt.change(name))
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				if err == nil {
					accepted = string(body)
				}
			})
			file, err := os.Open(name)
			require.NoError(t, err)
			_, err = file.Seek(3, io.SeekStart)
			require.NoError(t, err)
			req := contract.Streamed(t, "PUT", srv.URL, file)
			req.ContentLength = tt.length
			observe := func(_ context.Context, e httpretry.Event) {
				if e.Reason == httpretry.ReasonNone && e.Err != nil {
					assert.NotContains(t, e.Err.Error(), "with Body length", "but sent again")
				}
			}
			resp, err := contract.New(t, httpretry.Config{
				Base: base, Policy: contract.RetryEvery(0), Observe: observe,
			}).RoundTrip(req)
			if tt.err == "" {
				require.NoError(t, err)
				assert.Equal(t, int32(2), requests.Load())
				contract.ReadBody(t, resp)
				assert.Equal(t, tt.want, accepted)
			} else if err != nil { // if the file is too long, the response may come first
				require.ErrorContains(t, err, tt.err)
			}
			require.ErrorIs(t, file.Close(), os.ErrClosed)
		})
	}
}

func appendTo(text string) func(name string) error {
	return func(name string) error {
		f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(text)
		return errors.Join(err, f.Close())
	}
}

// Hazard B1, B3: every attempt has the Content-Length or Transfer-Encoding that
// the caller chose.
func TestFraming(t *testing.T) {
	stream := func() io.ReadCloser {
		return io.NopCloser(struct{ io.Reader }{strings.NewReader("text")})
	}
	for _, tt := range []struct {
		name   string
		body   func() io.ReadCloser
		length int64
		want   string
	}{
		{"nil", func() io.ReadCloser { return nil }, 0, "Content-Length: 0"},
		{"http.NoBody", func() io.ReadCloser { return http.NoBody }, 0, "Content-Length: 0"},
		{"known length", stream, 4, "Content-Length: 4"},
		{"unknown length", stream, -1, "Transfer-Encoding: chunked"},
		{"length not stated", stream, 0, "Transfer-Encoding: chunked"},
		{"unknown length, empty", func() io.ReadCloser {
			return io.NopCloser(struct{ io.Reader }{strings.NewReader("")})
		}, -1, "Transfer-Encoding: chunked"},
	} {
		for _, withGetBody := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/GetBody=%v", tt.name, withGetBody), func(t *testing.T) {
				var got []string
				srv := faults.Listen(t, func(c *faults.Conn) {
					for {
						lines, err := framingOf(c.Reader)
						if err != nil {
							return
						}
						got = append(got, lines)
						if strings.Contains(lines, "chunked") {
							_, err = io.Copy(io.Discard, httputil.NewChunkedReader(c.Reader))
							assert.NoError(t, err)
							_, _ = c.Reader.ReadString('\n') // the line after the last chunk
						} else {
							_, _ = io.CopyN(io.Discard, c.Reader, tt.length)
						}
						status := 200
						if len(got) < 3 {
							status = 503
						}
						c.Respond(status, "")
					}
				})
				req := contract.Streamed(t, "POST", srv.URL(), tt.body())
				req.Header.Set("Idempotency-Key", "k")
				req.ContentLength = tt.length
				if withGetBody {
					req.GetBody = func() (io.ReadCloser, error) { return tt.body(), nil }
				}
				contract.Send(t, contract.New(t, httpretry.Config{Policy: contract.RetryEvery(0)}),
					req)
				assert.Equal(t, []string{tt.want, tt.want, tt.want}, got)
			})
		}
	}
}

// framingOf reads the header of a request and returns its Content-Length and
// Transfer-Encoding lines.
func framingOf(r *bufio.Reader) (string, error) {
	var found []string
	for {
		line, err := r.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		if err != nil || line == "" {
			return strings.Join(found, ", "), err
		}
		if name, _, _ := strings.Cut(line, ":"); name == "Content-Length" ||
			name == "Transfer-Encoding" {
			found = append(found, line)
		}
	}
}

// Hazard B1, B3, B5: a body of any type is sent three times without changes.
// That includes a file with a Read of its own, which is the one that counts.
func TestBodyTypes(t *testing.T) {
	const text = "the quick brown fox"
	for name, body := range map[string]func() io.ReadCloser{
		"limited": func() io.ReadCloser {
			return http.MaxBytesReader(nil, io.NopCloser(strings.NewReader(text)), 100)
		},
		"buffered": func() io.ReadCloser {
			return io.NopCloser(bufio.NewReader(strings.NewReader(text)))
		},
		"section": func() io.ReadCloser {
			return io.NopCloser(io.NewSectionReader(strings.NewReader(text), 0, 100))
		},
		"half used": func() io.ReadCloser {
			r := strings.NewReader("---" + text)
			readN(t, r, 3)
			return io.NopCloser(r)
		},
		"writes itself": func() io.ReadCloser {
			return io.NopCloser(writerToFails{strings.NewReader(text)})
		},
		"data with the end": func() io.ReadCloser {
			return io.NopCloser(iotest.DataErrReader(strings.NewReader(text)))
		},
		"byte by byte": func() io.ReadCloser {
			return io.NopCloser(iotest.OneByteReader(strings.NewReader(text)))
		},
		"empty reads": func() io.ReadCloser {
			return io.NopCloser(&emptyReads{r: strings.NewReader(text)})
		},
		"by value": func() io.ReadCloser { return bodyByValue{strings.NewReader(text), [1]int{}} },
		"cannot be compared": func() io.ReadCloser {
			return incomparableBody{strings.NewReader(text), nil}
		},
		"tee": func() io.ReadCloser {
			return io.NopCloser(io.TeeReader(strings.NewReader(text), io.Discard))
		},
		"file with a Read": func() io.ReadCloser {
			name := filepath.Join(t.TempDir(), "file")
			require.NoError(t, os.WriteFile(name, []byte(strings.ToUpper(text)), 0o600))
			file, err := os.Open(name)
			require.NoError(t, err)
			return lowerCaseFile{file}
		},
	} {
		contract.ForProtocols(t, func(t *testing.T, proto string) {
			t.Run(name, func(t *testing.T) {
				var mu sync.Mutex
				var got []string
				handler := func(w http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					assert.NoError(t, err)
					mu.Lock()
					defer mu.Unlock()
					got = append(got, string(body))
					if len(got) < 3 {
						w.WriteHeader(http.StatusServiceUnavailable)
					}
				}
				base, srv := contract.Serve(t, proto, handler)
				// Unchecked, since the checks compare bodies.
				contract.Send(t, contract.Unchecked(t,
					httpretry.Config{Base: base, Policy: contract.RetryEvery(0)}),
					contract.Streamed(t, "PUT", srv.URL, body()))
				assert.Equal(t, []string{text, text, text}, got)
			})
		})
	}
}

// writerToFails has a WriteTo that disagrees with its Read.
type writerToFails struct{ io.Reader }

func (writerToFails) WriteTo(io.Writer) (int64, error) { return 0, errors.New("nobody asked") }

// emptyReads returns 0 bytes from every other Read.
type emptyReads struct {
	r     io.Reader
	reads int
}

func (h *emptyReads) Read(p []byte) (int, error) {
	if h.reads++; h.reads%2 == 1 {
		return 0, nil
	}
	return h.r.Read(p)
}

// lowerCaseFile is a file with a Read of its own.
type lowerCaseFile struct{ *os.File }

func (f lowerCaseFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	copy(p, bytes.ToLower(p[:n]))
	return n, err
}

// bodyByValue is a body whose type is no pointer.
type bodyByValue struct {
	io.Reader
	_ [1]int
}

func (bodyByValue) Close() error { return nil }

// incomparableBody is a body that panics if it is compared.
type incomparableBody struct {
	io.Reader
	_ []int
}

func (incomparableBody) Close() error { return nil }

// Hazard B1 to B4: a body is the same on every attempt, or else it is sent only
// once.
func TestReplay(t *testing.T) {
	const text = "the quick brown fox"
	stream := func(s string) io.ReadCloser {
		return io.NopCloser(iotest.OneByteReader(strings.NewReader(s)))
	}
	tests := []struct {
		name     string
		body     func() io.ReadCloser
		getBody  func() (io.ReadCloser, error)
		buffer   int64
		steps    script
		attempts int
		reason   httpretry.Reason
	}{
		{name: "no body", body: func() io.ReadCloser { return nil }, attempts: 3,
			reason: httpretry.ReasonSuccess},
		{name: "http.NoBody", body: func() io.ReadCloser { return http.NoBody }, attempts: 3,
			reason: httpretry.ReasonSuccess},
		{name: "stream", body: func() io.ReadCloser { return stream(text) }, attempts: 3,
			reason: httpretry.ReasonSuccess},
		{name: "stream that just fits", body: func() io.ReadCloser { return stream(text) },
			buffer: int64(len(text)), attempts: 3, reason: httpretry.ReasonSuccess},
		{name: "stream too long by one", body: func() io.ReadCloser { return stream(text) },
			buffer: int64(len(text)) - 1, attempts: 1, reason: httpretry.ReasonNotReplayable},
		{name: "stream not kept", body: func() io.ReadCloser { return stream(text) }, buffer: -1,
			attempts: 1, reason: httpretry.ReasonNotReplayable},
		{name: "stream not kept but not read", body: func() io.ReadCloser { return stream(text) },
			buffer: -1, attempts: 3, reason: httpretry.ReasonSuccess,
			steps: script{{Status: 503, Unread: true}, {Status: 503, Unread: true}, s200}},
		{name: "stream not kept, error", body: func() io.ReadCloser { return stream(text) },
			buffer: -1, attempts: 1, reason: httpretry.ReasonNotReplayable,
			steps: script{reset}},
		{name: "GetBody", body: func() io.ReadCloser { return stream(text) }, attempts: 3,
			reason: httpretry.ReasonSuccess, buffer: -1,
			getBody: func() (io.ReadCloser, error) { return stream(text), nil }},
		{name: "GetBody in memory", body: func() io.ReadCloser { return stream(text) }, attempts: 3,
			reason: httpretry.ReasonSuccess, buffer: -1,
			getBody: func() (io.ReadCloser, error) {
				return io.NopCloser(bytes.NewBufferString(text)), nil
			}},
		{name: "stream not read, error", body: func() io.ReadCloser { return stream(text) },
			attempts: 2, reason: httpretry.ReasonPermanent,
			steps: script{{Err: contract.ErrReset, Unread: true},
				{Err: &net.DNSError{IsNotFound: true}, Unread: true}}},
		{name: "GetBody fails", body: func() io.ReadCloser { return stream(text) }, attempts: 1,
			reason:  httpretry.ReasonNotReplayable,
			getBody: func() (io.ReadCloser, error) { return nil, errors.New("no more") }},
		{name: "GetBody returns nothing", body: func() io.ReadCloser { return stream(text) },
			attempts: 1, reason: httpretry.ReasonNotReplayable,
			getBody: func() (io.ReadCloser, error) { return nil, nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			steps := tt.steps
			if steps == nil {
				steps = script{s503, s503, s200}
			}
			base, events := contract.Play(steps...), new(contract.Record)
			policy := contract.RetryEvery(0)
			policy.ReplayBuffer = tt.buffer
			req := contract.Streamed(t, "PUT", "http://a.test/", tt.body())
			var body *contract.Body
			want := text
			if req.Body == nil || req.Body == http.NoBody {
				want = ""
			} else {
				body = &contract.Body{ReadCloser: req.Body}
				req.Body = body
			}
			req.GetBody = tt.getBody

			resp, err := contract.New(t, httpretry.Config{
				Base: base, Policy: policy, Observe: events.Observe}).RoundTrip(req)

			assert.Len(t, base.Attempts(), tt.attempts)
			assert.Equal(t, tt.reason.String(), events.Reason().String())
			if last := steps[tt.attempts-1]; last.Err != nil {
				require.ErrorIs(t, err, last.Err)
			} else {
				require.NoError(t, err)
				assert.Equal(t, last.Body, contract.ReadBody(t, resp))
			}
			for i, a := range base.Attempts() {
				if !steps[i].Unread {
					assert.Equal(t, want, a.Body, "attempt %d", i+1)
				}
			}
			if body != nil {
				assert.EqualValues(t, 1, body.Closes(), "closes of the request's body")
			}
		})
	}
}

// Hazard B4: the record of a body never takes more than ReplayBuffer, not even
// while it grows.
func TestReplayBufferIsABound(t *testing.T) {
	if contract.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	const buffer = 1 << 20
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		_, err := io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
		return &http.Response{StatusCode: 200, Body: http.NoBody}, err
	})
	policy := contract.RetryEvery(0)
	policy.ReplayBuffer = buffer
	transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
	result := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			resp, err := transport.RoundTrip(
				contract.Streamed(b, "PUT", "http://a.test/",
					io.NopCloser(io.LimitReader(contract.Zeros{}, 10*buffer))))
			if err != nil || resp.StatusCode != 200 {
				b.Fatal(resp, err)
			}
		}
	})
	assert.Less(t, result.AllocedBytesPerOp(), int64(2*buffer+16<<10),
		"all that was ever allocated while the record grew")
}

// If no retry follows after all, the upload of a body that was reserved for one
// continues.
func TestReplayHoldIsReleased(t *testing.T) {
	var rest chan string
	base := newBodyBase(func(body io.ReadCloser, _ int) int {
		assert.Equal(t, "1234", readN(t, body, 4))
		go func() {
			all, err := io.ReadAll(body)
			assert.NoError(t, err)
			assert.NoError(t, body.Close())
			rest <- string(all)
		}()
		return 503
	})
	policy := contract.RetryEvery(0)
	policy.ReplayBuffer = 4
	// while the body is held
	policy.Budget = budgetFunc(func() bool {
		time.Sleep(time.Millisecond)
		return false
	})
	synctest.Test(t, func(t *testing.T) {
		rest = make(chan string, 1)
		r, w := io.Pipe()
		go func() {
			_, _ = io.WriteString(w, "1234")
			time.Sleep(time.Millisecond / 2)
			_, _ = io.WriteString(w, "5678")
			_ = w.Close()
		}()
		traced := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			// As net/http does. The attempt then does not end before its
			// request is sent.
			httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{})
			resp, err := base.RoundTrip(req)
			resp.ProtoMajor = 2
			return resp, err
		})
		resp, err := contract.New(t, httpretry.Config{Base: traced, Policy: policy}).
			RoundTrip(contract.Streamed(t, "PUT", "http://a.test/", r))
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, "5678", <-rest)
	})
}

// budgetFunc is a budget that allows a retry if the function returns true.
type budgetFunc func() bool

func (f budgetFunc) Withdraw(context.Context, httpretry.AttemptResult) bool { return f() }
func (budgetFunc) Refund(last httpretry.AttemptResult)                      {}
func (budgetFunc) Record(ended, charged httpretry.AttemptResult)            {}

// The record of a body is released once a response has been returned, because
// the caller may keep that open for hours.
func TestOpenResponsesKeepNoReplay(t *testing.T) {
	const size, responses = 1 << 20, 32
	for _, tt := range []struct {
		name     string
		statuses []int
	}{
		{"first attempt", []int{200}},
		{"retry", []int{503, 200}},
		{"failure", []int{403}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				_, _ = io.Copy(io.Discard, req.Body)
				_ = req.Body.Close()
				status := tt.statuses[httpretry.Attempt(req.Context())-1]
				return &http.Response{StatusCode: status, ContentLength: -1,
					Body: io.NopCloser(strings.NewReader("text"))}, nil
			})
			policy := contract.RetryEvery(0)
			policy.ReplayBuffer = 2 * size
			transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
			before := contract.HeapInUse()
			var open []*http.Response
			for range responses {
				body := io.NopCloser(io.LimitReader(contract.Zeros{}, size))
				resp, err := transport.RoundTrip(
					contract.Streamed(t, "PUT", "http://a.test/", body))
				require.NoError(t, err)
				open = append(open, resp)
			}
			assert.Less(t, contract.HeapInUse()-before, int64(responses*size/8))
			for _, resp := range open {
				contract.ReadBody(t, resp)
			}
		})
	}
}

// GetBody may return a body that blocks although the first one was in memory. It
// is closed if the server answers before the body has ended.
func TestGetBodyBlocksLater(t *testing.T) {
	var requests atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(503)
			return
		}
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Connection", "close")
		_, _ = w.Write([]byte("early"))
	}))
	t.Cleanup(srv.Close)
	// Without a layer above, the retry would not be watched if its body could not
	// block.
	transport := contract.Unchecked(t, httpretry.Config{
		Base: faults.Base(t, nil), Policy: contract.RetryEvery(0)})
	reader, _ := io.Pipe()
	blocking := &contract.Body{ReadCloser: reader}
	req := contract.Request(t, "PUT", srv.URL, "")
	req.Body, req.ContentLength = io.NopCloser(strings.NewReader("hello")), 5
	req.GetBody = func() (io.ReadCloser, error) { return blocking, nil }
	resp, err := transport.RoundTrip(req)
	require.NoError(t, err)
	assert.Equal(t, "early", contract.ReadBody(t, resp))
	assert.Eventually(t, func() bool { return blocking.Closes() > 0 }, waitLimit, time.Millisecond)
}
