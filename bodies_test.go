package httpretry_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
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

// patience is how long a test waits for what must happen: far longer than it
// takes, and over before the test binary is.
const patience = 20 * time.Second

const (
	http1 = "HTTP/1.1"
	http2 = "HTTP/2.0"
)

// forProtocols runs a test over both protocols.
func forProtocols(t *testing.T, test func(t *testing.T, proto string)) {
	t.Helper()
	for _, proto := range []string{http1, http2} {
		t.Run(proto, func(t *testing.T) { test(t, proto) })
	}
}

// serve starts a server for a protocol, without TLS, and returns a transport
// that speaks no other.
func serve(t testing.TB, proto string, handler http.HandlerFunc) (*http.Transport, *httptest.Server) {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, proto, r.Proto)
		handler(w, r)
	}))
	base := faults.Base(t, nil)
	if proto == http2 {
		srv.Config.Protocols = new(http.Protocols)
		srv.Config.Protocols.SetUnencryptedHTTP2(true)
		base = faults.HTTP2Base(t)
	}
	srv.Start()
	t.Cleanup(srv.Close)
	return base, srv
}

// answerEarly answers while the request is still being sent. Over HTTP/1 it
// also gives up the connection, on which nothing else could follow.
func answerEarly(w http.ResponseWriter, r *http.Request, code int) {
	if r.ProtoMajor < 2 {
		_ = http.NewResponseController(w).EnableFullDuplex() // or the server reads on first
		w.Header().Set("Connection", "close")
	}
	w.WriteHeader(code)
}

// soon fails the test if f does not return.
func soon(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s: not within %v", what, patience)
	}
}

// pattern is a body of size bytes that no other seed has anywhere.
func pattern(seed uint64, size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(data)
	return data
}

// Hazard 0.4, A5, A10, B11: uploads that are answered early, many at once.
// Every byte that a server gets, of refused attempts too, is of the request it
// belongs to, in its place, and what it accepts is the whole body.
func TestEarlyAnswersToMany(t *testing.T) {
	const requests, size = 3, 4 << 20
	for _, kind := range []string{"stream", "GetBody", "file"} {
		forProtocols(t, func(t *testing.T, proto string) {
			t.Run(kind, func(t *testing.T) {
				bodies := make([][]byte, requests)
				for i := range bodies {
					bodies[i] = pattern(uint64(i), size-i)
				}
				var accepted atomic.Int32
				base, srv := serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
					var number int
					_, _ = fmt.Sscan(r.Header.Get("X-Body"), &number)
					want := bodies[number]
					if httpretryAttempt(r) < 4 {
						part, _ := io.ReadAll(io.LimitReader(r.Body, rand.Int64N(size/4)))
						assert.True(t, bytes.HasPrefix(want, part), "a refused part of body %d", number)
						answerEarly(w, r, http.StatusServiceUnavailable)
						return
					}
					body, err := io.ReadAll(r.Body)
					if assert.NoError(t, err) && assert.True(t, bytes.Equal(want, body), "body %d", number) {
						accepted.Add(1)
					}
				})
				policy := every(0)
				policy.MaxAttempts, policy.ReplayBuffer = 8, 2*size
				transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
				var wg sync.WaitGroup
				for i, body := range bodies {
					wg.Go(func() {
						req := upload(t, kind, srv.URL, body)
						req.Header.Set("X-Body", fmt.Sprint(i))
						resp, err := transport.RoundTrip(req)
						if assert.NoError(t, err) {
							assert.Equal(t, 200, resp.StatusCode)
							assert.NoError(t, resp.Body.Close())
						}
					})
				}
				wg.Wait()
				assert.EqualValues(t, requests, accepted.Load())
			})
		})
	}
}

// upload returns a PUT of data, as a stream, as a file, or with GetBody.
func upload(t testing.TB, kind, url string, data []byte) *http.Request {
	t.Helper()
	req := streamed(t, "PUT", url, nil)
	open := func() (io.ReadCloser, error) {
		return &contract.Body{ReadCloser: io.NopCloser(struct{ io.Reader }{bytes.NewReader(data)})}, nil
	}
	req.Body, _ = open()
	switch kind {
	case "GetBody":
		req.GetBody = open
		req.ContentLength = int64(len(data))
	case "file":
		name := filepath.Join(t.TempDir(), "file")
		assert.NoError(t, os.WriteFile(name, data, 0o600))
		file, err := os.Open(name)
		assert.NoError(t, err)
		req.Body = file
	}
	return req
}

// Nothing is read ahead: Hazard B4. On the first attempt, and on the one after
// a 503, the server has the first byte before the caller's reader has more.
func TestStreamingFirstByte(t *testing.T) {
	forProtocols(t, func(t *testing.T, proto string) {
		for _, timeout := range []time.Duration{0, time.Hour} {
			for _, refusals := range []int{0, 1} {
				t.Run(fmt.Sprintf("timeout=%v/refusals=%d", timeout, refusals), func(t *testing.T) {
					first := make(chan struct{})
					base, srv := serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
						assert.Equal(t, "1", read(t, r.Body, 1))
						if httpretryAttempt(r) <= refusals {
							answerEarly(w, r, http.StatusServiceUnavailable)
							return
						}
						close(first)
						rest, err := io.ReadAll(r.Body)
						assert.NoError(t, err)
						assert.Equal(t, "234", string(rest))
					})
					r, w := io.Pipe()
					go func() {
						_, _ = io.WriteString(w, "1")
						<-first
						_, _ = io.WriteString(w, "234")
						_ = w.Close()
					}()
					policy := every(0)
					policy.AttemptTimeout = timeout
					transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
					soon(t, "the response", func() {
						resp, err := transport.RoundTrip(streamed(t, "PUT", srv.URL, r))
						if assert.NoError(t, err) {
							finish(t, resp)
						}
					})
				})
			}
		}
	})
}

// Hazard B4: full duplex, on an attempt that follows a 503, whose reader the
// first attempt still waits in.
func TestFullDuplexOnRetry(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Hour} {
		base, srv := serve(t, http2, func(w http.ResponseWriter, r *http.Request) {
			if httpretryAttempt(r) == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			rc := http.NewResponseController(w)
			_ = rc.Flush()
			lines := bufio.NewScanner(r.Body)
			for lines.Scan() {
				_, _ = fmt.Fprintln(w, lines.Text())
				_ = rc.Flush()
			}
		})
		r, w := io.Pipe()
		policy := every(0)
		policy.AttemptTimeout = timeout
		soon(t, "the dialogue", func() {
			resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).
				RoundTrip(streamed(t, "PUT", srv.URL, &contract.Body{ReadCloser: r}))
			if !assert.NoError(t, err) || !assert.Equal(t, 200, resp.StatusCode) {
				return
			}
			echo := bufio.NewReader(resp.Body)
			for i := range 20 {
				line := fmt.Sprintf("line %d %s\n", i, strings.Repeat("-", 10_000))
				_, err := io.WriteString(w, line)
				assert.NoError(t, err)
				got, err := echo.ReadString('\n')
				assert.NoError(t, err)
				assert.Equal(t, line, got)
			}
			assert.NoError(t, w.Close())
			finish(t, resp)
		})
	}
}

// Hazard A6, B12: a reader that blocks for ever holds nobody, over either
// protocol, and is closed.
func TestBlockedReader(t *testing.T) {
	cause := errors.New("cause")
	for name, tt := range map[string]struct {
		prepare func(*blocked, *http.Request, *httpretry.Policy) *http.Request
		status  int // of the response, 0: an error
		want    error
	}{
		"cancel": {func(b *blocked, req *http.Request, _ *httpretry.Policy) *http.Request {
			ctx, cancel := context.WithCancelCause(req.Context())
			go func() { <-b.begun; cancel(cause) }()
			return req.WithContext(ctx)
		}, 0, cause},
		"deadline": {func(_ *blocked, req *http.Request, _ *httpretry.Policy) *http.Request {
			ctx, cancel := context.WithTimeout(req.Context(), 30*time.Millisecond)
			time.AfterFunc(2*patience, cancel) // which vet wants to see
			return req.WithContext(ctx)
		}, 0, context.DeadlineExceeded},
		"attempt timeout": {func(_ *blocked, req *http.Request, p *httpretry.Policy) *http.Request {
			p.AttemptTimeout = 30 * time.Millisecond
			return req
		}, 0, context.DeadlineExceeded},
		"Request.Cancel": {func(b *blocked, req *http.Request, _ *httpretry.Policy) *http.Request {
			ch := make(chan struct{})
			//lint:ignore SA1019 http.Client sets it
			req.Cancel = ch
			go func() { <-b.begun; close(ch) }()
			return req
		}, 0, nil},
		"early answer": {func(_ *blocked, req *http.Request, _ *httpretry.Policy) *http.Request {
			req.Header.Set("X-Answer", "early")
			return req
		}, 503, nil},
		"early answer that is final": {func(_ *blocked, req *http.Request, _ *httpretry.Policy) *http.Request {
			req.Header.Set("X-Answer", "final")
			return req
		}, 403, nil},
	} {
		forProtocols(t, func(t *testing.T, proto string) {
			t.Run(name, func(t *testing.T) {
				base, srv := serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
					switch r.Header.Get("X-Answer") {
					case "early":
						answerEarly(w, r, http.StatusServiceUnavailable)
					case "final":
						answerEarly(w, r, http.StatusForbidden)
					default:
						_, _ = io.Copy(io.Discard, r.Body)
					}
				})
				body, policy := newBlocked(), every(0)
				req := streamed(t, "PUT", srv.URL, body)
				req.ContentLength = 10 // or net/http waits for the first byte before it sends anything
				req = tt.prepare(body, req, &policy)
				transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
				soon(t, "the end of the request", func() {
					resp, err := transport.RoundTrip(req)
					if tt.status == 0 {
						assert.Error(t, err)
						assert.True(t, tt.want == nil || errors.Is(err, tt.want), "%v", err)
						return
					}
					if assert.NoError(t, err) {
						assert.Equal(t, tt.status, resp.StatusCode)
						assert.NoError(t, resp.Body.Close())
					}
				})
				soon(t, "the closing of the body", func() { <-body.closed })
				assert.EqualValues(t, 1, body.Closes())
			})
		})
	}
}

// Hazard B7: the caller's reader fails, over either protocol, on the first
// attempt or, after GetBody, on the second: that error is returned, whatever
// it looks like, and nothing is sent again.
func TestReaderFailsAnywhere(t *testing.T) {
	failures := []error{
		syscall.ECONNRESET, io.ErrUnexpectedEOF, context.DeadlineExceeded, context.Canceled, errRefused,
		fmt.Errorf("disk: %w", io.EOF), errors.New("http: server closed idle connection"),
	}
	forProtocols(t, func(t *testing.T, proto string) {
		for _, failure := range failures {
			for _, attempt := range []int{1, 2} {
				t.Run(fmt.Sprintf("%v/%d", failure, attempt), func(t *testing.T) {
					var requests, accepted atomic.Int32
					base, srv := serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
						requests.Add(1)
						if _, err := io.Copy(io.Discard, r.Body); err != nil {
							return
						}
						if httpretryAttempt(r) < attempt {
							w.WriteHeader(http.StatusServiceUnavailable)
							return
						}
						accepted.Add(1)
					})
					failing := func() io.ReadCloser {
						return &contract.Body{ReadCloser: io.NopCloser(io.MultiReader(strings.NewReader("some"), iotest.ErrReader(failure)))}
					}
					req := streamed(t, "PUT", srv.URL, failing())
					if attempt == 2 {
						req.Body = contract.Counted("some more")
						req.GetBody = func() (io.ReadCloser, error) { return failing(), nil }
					}
					events := new(record)
					_, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0), Observe: events.observe}).RoundTrip(req)
					var all *httpretry.Error
					if attempt == 1 {
						assert.True(t, err == failure, "the very error: %v", err)
					} else if assert.ErrorAs(t, err, &all) {
						assert.True(t, all.Err == failure, "the very error: %v", err)
					}
					assert.Equal(t, httpretry.ReasonFinal, events.reason())
					assert.LessOrEqual(t, requests.Load(), int32(attempt))
					assert.Zero(t, accepted.Load(), "half a body is none")
				})
			}
		}
	})
}

// Hazard A3: trailers whose values are set while the body is read arrive with
// every attempt, over HTTP/2 as over HTTP/1, with GetBody or without.
func TestTrailersOfEveryAttempt(t *testing.T) {
	forProtocols(t, func(t *testing.T, proto string) {
		for _, withGetBody := range []bool{false, true} {
			t.Run(fmt.Sprintf("GetBody=%v", withGetBody), func(t *testing.T) {
				var mu sync.Mutex
				var got []string
				base, srv := serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
					_, err := io.Copy(io.Discard, r.Body)
					assert.NoError(t, err)
					mu.Lock()
					defer mu.Unlock()
					got = append(got, r.Trailer.Get("X-Sum"))
					if len(got) < 3 {
						w.WriteHeader(http.StatusServiceUnavailable)
					}
				})
				req := streamed(t, "PUT", srv.URL, nil)
				req.Trailer = http.Header{"X-Sum": nil}
				open := func() (io.ReadCloser, error) {
					return io.NopCloser(io.MultiReader(strings.NewReader("text"), readerFunc(func([]byte) (int, error) {
						req.Trailer.Set("X-Sum", "42")
						return 0, io.EOF
					}))), nil
				}
				req.Body, _ = open()
				if withGetBody {
					req.GetBody = open
				}
				resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(req)
				require.NoError(t, err)
				finish(t, resp)
				assert.Equal(t, []string{"42", "42", "42"}, got)
			})
		}
	})
}

// Hazard B5: a file that changes between attempts is sent as it is then, from
// where it stood. One that no longer has the stated length is the caller's
// failure, and is not sent a third time.
func TestFileChanges(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(name string) error
		length int64  // stated
		want   string // what is accepted, "": an error
		err    string
	}{
		{"grows", appendTo("more"), 0, "3456789more", ""},
		{"shrinks", func(name string) error { return os.Truncate(name, 5) }, 0, "34", ""},
		{"is removed", os.Remove, 7, "3456789", ""},
		{"is replaced", func(name string) error { _ = os.Remove(name); return os.WriteFile(name, []byte("other"), 0o600) }, 7, "3456789", ""},
		{"grows past its length", appendTo("more"), 7, "", "http: ContentLength=7 with Body length"},
		{"shrinks below its length", func(name string) error { return os.Truncate(name, 5) }, 7, "", "http: ContentLength=7 with Body length 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "file")
			require.NoError(t, os.WriteFile(name, []byte("0123456789"), 0o600))
			base := faults.Base(t, nil)
			var requests atomic.Int32
			var accepted string
			srv := newServer(t, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				body, err := io.ReadAll(r.Body)
				if err == nil && httpretryAttempt(r) == 1 {
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
			req := streamed(t, "PUT", srv.URL, file)
			req.ContentLength = tt.length
			resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(req)
			if tt.err == "" {
				require.NoError(t, err)
				finish(t, resp)
				assert.Equal(t, tt.want, accepted)
			} else if err != nil { // where the file is too long, the answer may come first
				require.ErrorContains(t, err, tt.err)
			}
			assert.LessOrEqual(t, requests.Load(), int32(2))
			_, err = file.Stat()
			require.ErrorIs(t, err, os.ErrClosed)
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

// Hazard B4: what many requests hold is ReplayBuffer each while they are within
// it, and nothing once they are past it.
func TestMemoryOfManyStreams(t *testing.T) {
	const requests, buffer = 100, 256 << 10
	const overhead = requests * (16 << 10)
	var full, past, end sync.WaitGroup
	goOn, goOut := make(chan struct{}), make(chan struct{})
	base := answering(func(body io.ReadCloser, _ int) int {
		defer body.Close()
		_, err := io.CopyN(io.Discard, body, buffer)
		assert.NoError(t, err)
		full.Done()
		<-goOn
		_, err = io.Copy(io.Discard, body)
		assert.NoError(t, err)
		past.Done()
		<-goOut
		return 200
	})
	policy := every(0)
	policy.ReplayBuffer = buffer
	transport := contractless(t, httpretry.Config{Base: base, Policy: policy})
	before := heap()
	full.Add(requests)
	past.Add(requests)
	for range requests {
		end.Go(func() {
			resp, err := transport.RoundTrip(streamed(t, "PUT", "http://a.test/", io.NopCloser(io.LimitReader(zeros{}, 16*buffer))))
			if assert.NoError(t, err) {
				assert.Equal(t, 200, resp.StatusCode)
			}
		})
	}
	full.Wait()
	held := heap() - before
	assert.LessOrEqual(t, held, int64(requests*buffer+overhead), "with all records full")
	close(goOn)
	past.Wait()
	left := heap() - before
	assert.LessOrEqual(t, left, int64(overhead), "with all records given up")
	assert.GreaterOrEqual(t, held-left, int64(requests*buffer-overhead), "or else this measures nothing")
	close(goOut)
	end.Wait()
}

// Hazard B6: whoever writes a multipart form into a pipe comes to an end,
// however the request does.
func TestMultipartPipe(t *testing.T) {
	forProtocols(t, func(t *testing.T, proto string) {
		for name, tt := range map[string]struct {
			size    int
			handler http.HandlerFunc
			told    bool // that nobody reads any more
		}{
			"accepted": {1000, func(w http.ResponseWriter, r *http.Request) {
				file, _, err := r.FormFile("file")
				if assert.NoError(t, err) {
					body, _ := io.ReadAll(file)
					assert.Equal(t, strings.Repeat("x", 1000), string(body))
				}
				if httpretryAttempt(r) < 3 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}, false},
			"refused early": {64 << 20, func(w http.ResponseWriter, r *http.Request) {
				answerEarly(w, r, http.StatusForbidden)
			}, true},
			"too busy, and too large to repeat": {64 << 20, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
				answerEarly(w, r, http.StatusServiceUnavailable)
			}, true},
			"broken off": {64 << 20, func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
				panic(http.ErrAbortHandler)
			}, true},
		} {
			t.Run(name, func(t *testing.T) {
				base, srv := serve(t, proto, tt.handler)
				r, w := io.Pipe()
				form := multipart.NewWriter(w)
				written := make(chan error, 1)
				go func() { written <- writeForm(form, w, tt.size) }()
				req := streamed(t, "PUT", srv.URL, &contract.Body{ReadCloser: r})
				req.Header.Set("Content-Type", form.FormDataContentType())
				resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(req)
				if err == nil {
					finish(t, resp)
				}
				soon(t, "the end of the writer", func() {
					if err := <-written; tt.told {
						assert.Error(t, err)
					} else {
						assert.NoError(t, err)
					}
				})
			})
		}
	})
}

// writeForm writes a form with a file of size bytes.
func writeForm(form *multipart.Writer, w *io.PipeWriter, size int) error {
	part, err := form.CreateFormFile("file", "name")
	if err != nil {
		return err
	}
	chunk := []byte(strings.Repeat("x", 1000))
	for range size / len(chunk) {
		if _, err := part.Write(chunk); err != nil {
			return err
		}
	}
	return errors.Join(form.Close(), w.Close())
}

// Hazard B2: a GetBody that panics leaves nothing behind.
func TestGetBodyPanics(t *testing.T) {
	body := contract.Counted("text")
	req := streamed(t, "PUT", "http://a.test/", body)
	req.GetBody = func() (io.ReadCloser, error) { panic("boom") }
	answer := contract.Counted("later")
	inner := play(status(503))
	base := baseFunc(func(req *http.Request) (*http.Response, error) {
		resp, err := inner.RoundTrip(req)
		resp.Body = answer
		return resp, err
	})
	transport := contractless(t, httpretry.Config{Base: base, Policy: every(0)})
	assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(req) })
	assert.Equal(t, 1, body.Closes())
	assert.Equal(t, 1, answer.Closes())
}

// Hazard B2: a body from GetBody is closed, whatever keeps it from being sent,
// and Hazard D3: the response it was to follow is the caller's, unread.
func TestGetBodyNeverSent(t *testing.T) {
	for name, prepare := range map[string]func(context.Context, *httpretry.Policy, *step) (context.Context, context.CancelFunc){
		"Retry-After too long": func(ctx context.Context, _ *httpretry.Policy, s *step) (context.Context, context.CancelFunc) {
			s.header["Retry-After"] = "3600"
			return ctx, func() {}
		},
		"deadline too near": func(ctx context.Context, _ *httpretry.Policy, _ *step) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		},
		"too long in all": func(ctx context.Context, p *httpretry.Policy, _ *step) (context.Context, context.CancelFunc) {
			p.MaxElapsed = time.Second
			return ctx, func() {}
		},
		"budget empty": func(ctx context.Context, p *httpretry.Policy, _ *step) (context.Context, context.CancelFunc) {
			p.Budget = refusing(func() {})
			return ctx, func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy, answer := every(time.Minute), status(503)
				ctx, cancel := prepare(t.Context(), &policy, &answer)
				defer cancel()
				var made []*contract.Body
				req := streamed(t, "PUT", "http://a.test/", contract.Counted("text")).WithContext(ctx)
				req.GetBody = func() (io.ReadCloser, error) {
					made = append(made, contract.Counted("text"))
					return made[len(made)-1], nil
				}
				resp, err := contract.New(t, httpretry.Config{Base: play(answer), Policy: policy}).RoundTrip(req)
				require.NoError(t, err)
				assert.Equal(t, "body of 503", finish(t, resp))
				require.Len(t, made, 1)
				assert.Equal(t, 1, made[0].Closes())
			})
		})
	}
}

// Hazard B1, B3: how a body's end is told is the caller's choice, and the same
// on every attempt, byte for byte.
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
		{"unknown length, empty", func() io.ReadCloser { return io.NopCloser(struct{ io.Reader }{strings.NewReader("")}) }, -1, "Transfer-Encoding: chunked"},
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
						c.Respond(map[bool]int{true: 503, false: 200}[len(got) < 3], "")
					}
				})
				req := streamed(t, "POST", srv.URL(), tt.body())
				req.Header.Set("Idempotency-Key", "k")
				req.ContentLength = tt.length
				if withGetBody {
					req.GetBody = func() (io.ReadCloser, error) { return tt.body(), nil }
				}
				resp, err := contract.New(t, httpretry.Config{Policy: every(0)}).RoundTrip(req)
				require.NoError(t, err)
				finish(t, resp)
				assert.Equal(t, []string{tt.want, tt.want, tt.want}, got)
			})
		}
	}
}

// framingOf reads a request's header and returns those of its lines that say
// how its body ends.
func framingOf(r *bufio.Reader) (string, error) {
	var found []string
	for {
		line, err := r.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		if err != nil || line == "" {
			return strings.Join(found, ", "), err
		}
		if name, _, _ := strings.Cut(line, ":"); name == "Content-Length" || name == "Transfer-Encoding" {
			found = append(found, line)
		}
	}
}

// Hazard B9: a body that waits for a 100 is not touched by a 503 before it, is
// sent again after one that follows it, and a 417 is final.
func TestExpectContinue(t *testing.T) {
	for _, tt := range []struct {
		name     string
		steps    []int // of each attempt: a status before the body, or after it if negative
		close    bool  // the connection, which saves the sending of an unwanted body
		want     int
		requests int32
	}{
		{"503 before 100", []int{503, 503, -200}, false, 200, 3},
		{"503 before 100, and close", []int{503, 503, -200}, true, 200, 3},
		{"503 after 100", []int{-503, -503, -200}, false, 200, 3},
		{"503 before and after 100", []int{503, -503, 503, -503, -200}, true, 200, 5},
		{"417", []int{417}, true, 417, 1},
	} {
		for _, kind := range []string{"stream", "GetBody", "file"} {
			t.Run(tt.name+"/"+kind, func(t *testing.T) {
				data := pattern(1, 50_000) // within the replay buffer
				srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
					assert.Equal(t, "100-continue", req.Header.Get("Expect"))
					code := tt.steps[min(httpretryAttempt(req), len(tt.steps))-1]
					if code < 0 {
						c.Respond(100, "")
						body, err := io.ReadAll(req.Body)
						assert.NoError(t, err)
						assert.Equal(t, sha256.Sum256(data), sha256.Sum256(body))
						c.Respond(-code, "")
						return true
					}
					if tt.close {
						c.Respond(code, "", "Connection: close")
						return false
					}
					c.Respond(code, "")
					return true
				})
				base := faults.Base(t, nil)
				base.ExpectContinueTimeout = time.Hour
				req := upload(t, kind, srv.URL(), data)
				req.Header.Set("Expect", "100-continue")
				soon(t, "the response", func() {
					resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(req)
					if assert.NoError(t, err) {
						finish(t, resp)
						assert.Equal(t, tt.want, resp.StatusCode)
					}
				})
				assert.Equal(t, tt.requests, srv.Requests.Load())
			})
		}
	}
}

// Hazard B13: behind a reverse proxy, a body is not the transport's any more
// when the handler has returned, and the connection it came on stays sound.
func TestReverseProxyBody(t *testing.T) {
	forProtocols(t, func(t *testing.T, proto string) {
		const size = 1 << 20
		data := pattern(7, size)
		base, backend := serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/early" {
				part, _ := io.ReadAll(io.LimitReader(r.Body, rand.Int64N(100_000)))
				assert.True(t, bytes.HasPrefix(data, part))
				answerEarly(w, r, http.StatusServiceUnavailable)
				return
			}
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(data, body))
		})
		target, err := url.Parse(backend.URL)
		require.NoError(t, err)
		proxy := &httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
			Transport: contract.New(t, httpretry.Config{Base: base, Policy: every(0)}),
		}
		var late atomic.Int64
		front := newServer(t, func(w http.ResponseWriter, r *http.Request) {
			var over atomic.Bool
			body := r.Body
			r.Body = &struct { // a pointer: net/http may compare bodies
				io.Reader
				io.Closer
			}{readerFunc(func(p []byte) (int, error) {
				after := over.Load()
				n, err := body.Read(p)
				if after {
					late.Add(int64(n))
				}
				return n, err
			}), body}
			proxy.ServeHTTP(w, r)
			over.Store(true)
		})
		client := faults.Base(t, nil)
		for i := range 10 {
			path, want := "/whole", 200
			if i%2 == 0 {
				path, want = "/early", 503
			}
			resp, err := client.RoundTrip(request(t, "PUT", front.URL+path, string(data)))
			if err != nil { // the front server ended a connection that was still uploading
				assert.Equal(t, "/early", path, "%v", err)
				continue
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if path == "/whole" {
				assert.Equal(t, want, resp.StatusCode)
			} else {
				assert.GreaterOrEqual(t, resp.StatusCode, 502)
			}
		}
		assert.Zero(t, late.Load(), "bytes read after the handler returned")
	})
}

// Hazard B10: a client that follows 307 and 308 finds GetBody as it was, and
// each hop has attempts of its own.
func TestRedirectsWithBody(t *testing.T) {
	for _, code := range []int{http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		for _, kind := range []string{"GetBody", "in memory", "stream"} {
			t.Run(fmt.Sprintf("%d/%s", code, kind), func(t *testing.T) {
				var got []string
				srv := newServer(t, func(w http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					assert.NoError(t, err)
					got = append(got, fmt.Sprintf("%s %d %s", r.URL.Path, httpretryAttempt(r), body))
					switch {
					case httpretryAttempt(r) < 3:
						w.WriteHeader(http.StatusServiceUnavailable)
					case r.URL.Path == "/a":
						http.Redirect(w, r, "/b", code)
					}
				})
				req := request(t, "PUT", srv.URL+"/a", "text")
				switch kind {
				case "GetBody":
					// Uncounted: when it redirects, a client closes a body once more.
					req.GetBody = func() (io.ReadCloser, error) {
						return io.NopCloser(iotest.OneByteReader(strings.NewReader("text"))), nil
					}
					req.Body, _ = req.GetBody()
				case "stream":
					req.GetBody = nil
					req.Body = contract.Counted("text")
				}
				client := &http.Client{Transport: contract.New(t, httpretry.Config{Policy: every(0)})}
				resp, err := client.Do(req)
				require.NoError(t, err)
				finish(t, resp)
				want := []string{"/a 1 text", "/a 2 text", "/a 3 text", "/b 1 text", "/b 2 text", "/b 3 text"}
				if kind == "stream" { // which a client cannot redirect
					assert.Equal(t, code, resp.StatusCode)
					want = want[:3]
				}
				assert.Equal(t, want, got)
			})
		}
	}
}

// Hazard B3: a body that is not as long as stated is not sent again once that
// is known.
func TestWrongContentLength(t *testing.T) {
	forProtocols(t, func(t *testing.T, proto string) {
		for _, length := range []int64{1, 10} {
			for _, withGetBody := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d/GetBody=%v", length, withGetBody), func(t *testing.T) {
					var requests atomic.Int32
					base, srv := serve(t, proto, func(_ http.ResponseWriter, r *http.Request) {
						requests.Add(1)
						_, _ = io.Copy(io.Discard, r.Body)
					})
					req := streamed(t, "PUT", srv.URL, contract.Counted("text"))
					req.ContentLength = length
					if withGetBody {
						req.GetBody = func() (io.ReadCloser, error) { return contract.Counted("text"), nil }
					}
					events := new(record)
					resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0), Observe: events.observe}).RoundTrip(req)
					if err == nil { // the server may answer first, or to what it got
						assert.True(t, length == 1 || proto == http2)
						finish(t, resp)
					}
					for _, e := range events.events { // over HTTP/1 another error may come of it first
						if e.Err == nil || strings.Contains(strings.ToLower(e.Err.Error()), "length") {
							assert.Equal(t, httpretry.ReasonFinal, e.Reason, "%v", e.Err)
						}
					}
					assert.LessOrEqual(t, int(requests.Load()), len(events.events))
				})
			}
		}
	})
}

// Hazard B1, B3: whatever type a body has, it is sent three times alike.
func TestBodyTypes(t *testing.T) {
	const text = "the quick brown fox"
	for name, body := range map[string]func() io.ReadCloser{
		"limited":            func() io.ReadCloser { return http.MaxBytesReader(nil, io.NopCloser(strings.NewReader(text)), 100) },
		"buffered":           func() io.ReadCloser { return io.NopCloser(bufio.NewReader(strings.NewReader(text))) },
		"section":            func() io.ReadCloser { return io.NopCloser(io.NewSectionReader(strings.NewReader(text), 0, 100)) },
		"half used":          func() io.ReadCloser { r := strings.NewReader("---" + text); read(t, r, 3); return io.NopCloser(r) },
		"writes itself":      func() io.ReadCloser { return io.NopCloser(selfWriter{strings.NewReader(text)}) },
		"data with the end":  func() io.ReadCloser { return io.NopCloser(iotest.DataErrReader(strings.NewReader(text))) },
		"byte by byte":       func() io.ReadCloser { return io.NopCloser(iotest.OneByteReader(strings.NewReader(text))) },
		"empty reads":        func() io.ReadCloser { return io.NopCloser(&hesitant{r: strings.NewReader(text)}) },
		"by value":           func() io.ReadCloser { return byValue{strings.NewReader(text), [1]int{}} },
		"cannot be compared": func() io.ReadCloser { return incomparable{strings.NewReader(text), nil} },
		"tee":                func() io.ReadCloser { return io.NopCloser(io.TeeReader(strings.NewReader(text), io.Discard)) },
	} {
		forProtocols(t, func(t *testing.T, proto string) {
			t.Run(name, func(t *testing.T) {
				var mu sync.Mutex
				var got []string
				base, srv := serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					assert.NoError(t, err)
					mu.Lock()
					defer mu.Unlock()
					got = append(got, string(body))
					if len(got) < 3 {
						w.WriteHeader(http.StatusServiceUnavailable)
					}
				})
				// Without the contract, which compares bodies.
				resp, err := contractless(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(streamed(t, "PUT", srv.URL, body()))
				require.NoError(t, err)
				finish(t, resp)
				assert.Equal(t, []string{text, text, text}, got)
			})
		})
	}
}

// selfWriter has a WriteTo that is not what its Read says.
type selfWriter struct{ io.Reader }

func (selfWriter) WriteTo(io.Writer) (int64, error) { return 0, errors.New("nobody asked") }

// hesitant returns nothing every other time.
type hesitant struct {
	r     io.Reader
	reads int
}

func (h *hesitant) Read(p []byte) (int, error) {
	if h.reads++; h.reads%2 == 1 {
		return 0, nil
	}
	return h.r.Read(p)
}

type byValue struct {
	io.Reader
	_ [1]int
}

func (byValue) Close() error { return nil }

type incomparable struct {
	io.Reader
	_ []int
}

func (incomparable) Close() error { return nil }

// Hazard A4: on every way out, a body is closed once, which the contract
// counts.
func TestBodyIsClosedOnEveryExit(t *testing.T) {
	canceled := func(req *http.Request) *http.Request {
		ctx, cancel := context.WithCancel(req.Context())
		cancel()
		return req.WithContext(ctx)
	}
	for _, tt := range []struct {
		name   string
		change func(*http.Request, *httpretry.Policy) *http.Request
	}{
		{"context over", func(r *http.Request, _ *httpretry.Policy) *http.Request { return canceled(r) }},
		{"Request.Cancel closed", func(r *http.Request, _ *httpretry.Policy) *http.Request {
			ch := make(chan struct{})
			close(ch)
			//lint:ignore SA1019 http.Client sets it
			r.Cancel = ch
			return r
		}},
		{"invalid policy", func(r *http.Request, _ *httpretry.Policy) *http.Request {
			return r.WithContext(httpretry.WithPolicy(r.Context(), httpretry.Policy{MaxAttempts: -1}))
		}},
		{"invalid key", func(r *http.Request, p *httpretry.Policy) *http.Request {
			r.Method = "POST"
			p.NewKey = func(*http.Request) string { return "\n" }
			return r
		}},
		{"no URL", func(r *http.Request, _ *httpretry.Policy) *http.Request { r.URL = nil; return r }},
		{"no host", func(r *http.Request, _ *httpretry.Policy) *http.Request { r.URL.Host = ""; return r }},
		{"invalid method", func(r *http.Request, _ *httpretry.Policy) *http.Request { r.Method = "A B"; return r }},
		{"invalid header", func(r *http.Request, _ *httpretry.Policy) *http.Request { r.Header["A"] = []string{"\n"}; return r }},
		{"no header", func(r *http.Request, _ *httpretry.Policy) *http.Request { r.Header = nil; return r }},
		{"refused connections", func(r *http.Request, _ *httpretry.Policy) *http.Request { return r }},
		{"refused connections, once", func(r *http.Request, p *httpretry.Policy) *http.Request { p.MaxAttempts = 1; return r }},
		{"no budget", func(r *http.Request, p *httpretry.Policy) *http.Request { p.Budget = refusing(func() {}); return r }},
		{"nothing kept", func(r *http.Request, p *httpretry.Policy) *http.Request { p.ReplayBuffer = -1; return r }},
		{"GetBody fails", func(r *http.Request, _ *httpretry.Policy) *http.Request {
			r.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
			return r
		}},
		{"GetBody works", func(r *http.Request, _ *httpretry.Policy) *http.Request {
			r.GetBody = func() (io.ReadCloser, error) { return contract.Counted("text"), nil }
			return r
		}},
		{"deadline too near", func(r *http.Request, p *httpretry.Policy) *http.Request {
			p.MaxElapsed = 1
			return r
		}},
	} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprintf("%s/%v", tt.name, timeout), func(t *testing.T) {
				policy := every(0)
				policy.AttemptTimeout = timeout
				req := tt.change(streamed(t, "PUT", "http://"+faults.Refused(t), contract.Counted("text")), &policy)
				_, err := contract.New(t, httpretry.Config{Policy: policy}).RoundTrip(req)
				require.Error(t, err)
			})
		}
	}
}

// Hazard 1.1: a body whose Close fails is the caller's failure too. HTTP/1
// reports it, and would each time; HTTP/2 does not care.
func TestCloseFails(t *testing.T) {
	forProtocols(t, func(t *testing.T, proto string) {
		for _, method := range []string{"PUT", "POST"} {
			for _, withGetBody := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/GetBody=%v", method, withGetBody), func(t *testing.T) {
					var requests atomic.Int32
					base, srv := serve(t, proto, func(_ http.ResponseWriter, r *http.Request) {
						requests.Add(1)
						_, _ = io.Copy(io.Discard, r.Body)
					})
					failure := errors.New("close failed")
					body := func() io.ReadCloser { return &contract.Body{ReadCloser: badCloser{strings.NewReader("text"), failure}} }
					req := streamed(t, method, srv.URL, body())
					if withGetBody {
						req.GetBody = func() (io.ReadCloser, error) { t.Error("GetBody was called"); return body(), nil }
					}
					events := new(record)
					resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0), Observe: events.observe}).RoundTrip(req)
					if proto == http2 {
						require.NoError(t, err)
						finish(t, resp)
					} else {
						require.ErrorIs(t, err, failure)
					}
					assert.Equal(t, httpretry.ReasonFinal, events.reason())
					assert.LessOrEqual(t, requests.Load(), int32(1))
				})
			}
		}
	})
}

// Hazard A4: a request that is refused before it is sent has its body closed,
// and says how that went.
func TestCloseFailsOfARefusedRequest(t *testing.T) {
	failure := errors.New("close failed")
	body := &contract.Body{ReadCloser: badCloser{strings.NewReader("text"), failure}}
	req := streamed(t, "PUT", "http://a.test/", body)
	req = req.WithContext(httpretry.WithPolicy(req.Context(), httpretry.Policy{MaxAttempts: -1}))
	_, err := contract.New(t, httpretry.Config{Base: play(status(200))}).RoundTrip(req)
	require.ErrorIs(t, err, failure)
	require.ErrorContains(t, err, "MaxAttempts: -1 is negative")
	assert.Equal(t, 1, body.Closes())
}

type badCloser struct {
	io.Reader
	err error
}

func (b badCloser) Close() error { return b.err }

// Hazard A9: the response that comes after retries is what the base alone would
// have returned.
func TestResponseIsUntouched(t *testing.T) {
	for _, proto := range []string{http1, http2} {
		for _, packed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/gzip=%v", proto, packed), func(t *testing.T) {
				srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Retry-Attempt") == "" && r.Header.Get("X-Plain") == "" {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					w.Header()["Date"] = nil
					w.Header()["X-Many"] = []string{"b", "a", ""}
					w.Header().Set("Trailer", "X-Sum")
					var body io.Writer = w
					if packed {
						w.Header().Set("Content-Encoding", "gzip")
						z := gzip.NewWriter(w)
						defer func() { _ = z.Close(); w.Header().Set("X-Sum", "42") }()
						body = z
					}
					w.WriteHeader(http.StatusPartialContent)
					_, _ = body.Write(pattern(1, 100_000))
					w.Header().Set("X-Sum", "42")
				}))
				srv.EnableHTTP2 = proto == http2
				srv.StartTLS()
				t.Cleanup(srv.Close)
				base := srv.Client().Transport
				plain := request(t, "GET", srv.URL, "")
				plain.Header.Set("X-Plain", "1")
				want, err := base.RoundTrip(plain)
				require.NoError(t, err)
				wantBody := finish(t, want)

				got, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(request(t, "GET", srv.URL, ""))
				require.NoError(t, err)
				assert.True(t, wantBody == finish(t, got), "the body")
				assert.Equal(t, packed, got.Uncompressed)
				assert.NotNil(t, got.TLS)
				assert.Equal(t, "42", got.Trailer.Get("X-Sum"))
				for _, r := range []*http.Response{want, got} {
					r.Body, r.Request, r.TLS = nil, nil, nil
				}
				assert.Equal(t, want, got)
			})
		}
	}
}

// Hazard C2: net/http may find the HTTP/2 connection that it chose unusable
// before it writes anything. It then sends the request on another, although it
// has closed the body.
func TestBodyIsSentThoughItsConnectionWasUnusable(t *testing.T) {
	var servers sync.Map
	srv := faults.HTTP2(t, func(s faults.Stream) {
		servers.Store(s.Conn.Number, s.Conn)
		s.Respond(http.StatusOK)
	})
	base := faults.HTTP2Base(t)
	clients := faults.Tell(base)
	transport := contract.New(t, httpretry.Config{Base: base, Policy: every(0)})
	warmUp(t, base, srv)

	var once sync.Once
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		once.Do(func() {
			conn, _ := servers.Load(1)
			_ = conn.(*faults.Conn).Close()
			<-(<-clients).Closed // net/http has noticed
			warmUp(t, base, srv) // and has another connection
		})
	}})
	body := contract.Counted("the whole body")
	req := streamed(t, http.MethodPost, srv.URL(), body).WithContext(ctx)
	resp, err := transport.RoundTrip(req)
	require.NoError(t, err)
	finish(t, resp)
	<-srv.Complete
	assert.EqualValues(t, len("the whole body"), srv.Received.Load())
	assert.EqualValues(t, 3, srv.Requests.Load(), "two GETs and the POST")
}

func warmUp(t testing.TB, base http.RoundTripper, srv *faults.HTTP2Server) {
	t.Helper()
	resp, err := base.RoundTrip(request(t, http.MethodGet, srv.URL(), ""))
	require.NoError(t, err)
	finish(t, resp)
	<-srv.Complete
}

// seeker is a body as the SDK of Azure makes it: there is one, GetBody seeks in
// it, and Close does nothing.
type seeker struct{ *bytes.Reader }

func (seeker) Close() error { return nil }

// Hazard A5, B2: a GetBody that seeks in the body that an attempt may still be
// sending gives each attempt all of it.
func TestGetBodySeeks(t *testing.T) {
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i >> 10)
	}
	for _, kind := range []string{"the same", "a new wrapper"} {
		for _, length := range []int64{int64(len(data)), -1} {
			t.Run(fmt.Sprintf("%s/length %d", kind, length), func(t *testing.T) {
				accepted := make(chan []byte, 1)
				url := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
					if c.Number < 4 {
						_, _ = io.CopyN(io.Discard, req.Body, 1000)
						c.Respond(503, "later", "Connection: close")
						c.Drain()
						return false
					}
					body, err := io.ReadAll(req.Body)
					assert.NoError(t, err)
					accepted <- body
					c.Respond(200, "")
					return false
				}).URL()
				body := seeker{bytes.NewReader(data)}
				req := streamed(t, "PUT", url, body)
				req.ContentLength = length
				req.GetBody = func() (io.ReadCloser, error) {
					_, err := body.Seek(0, io.SeekStart)
					if kind == "the same" {
						return body, err
					}
					return &contract.Body{ReadCloser: body}, err
				}
				resp, err := contract.New(t, httpretry.Config{Policy: every(0)}).RoundTrip(req)
				require.NoError(t, err)
				finish(t, resp)
				require.True(t, bytes.Equal(data, <-accepted))
			})
		}
	}
}

// A body that cannot be paused, because a Read of it blocks, cannot be shared.
func TestGetBodySharesABlockedBody(t *testing.T) {
	body, events := newBlocked(), new(record)
	url := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool {
		<-body.begun
		c.Respond(503, "later")
		c.Drain()
		return false
	}).URL()
	req := streamed(t, "PUT", url, body)
	req.ContentLength = 10
	req.GetBody = func() (io.ReadCloser, error) { return body, nil }
	resp, err := contract.New(t, httpretry.Config{Policy: every(0), Observe: events.observe}).RoundTrip(req)
	require.NoError(t, err)
	assert.Equal(t, "later", finish(t, resp))
	assert.Equal(t, httpretry.ReasonNotReplayable, events.reason())
	require.ErrorContains(t, events.events[0].Err, "GetBody returned a body that is still being read")
	<-body.closed
}

// An attempt that was paused for GetBody's sake ends when the next begins: the
// bubble would not end with a Read that waits for ever.
func TestGetBodyEndsWhatItPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan error, 1)
		attempts := 0
		base := baseFunc(func(req *http.Request) (*http.Response, error) {
			attempts++
			if attempts == 1 { // answers early, and reads on
				_, _ = io.ReadFull(req.Body, make([]byte, 1))
				go func() {
					time.Sleep(time.Second)
					_, err := io.Copy(io.Discard, req.Body)
					left <- err
				}()
				return &http.Response{StatusCode: 503, Body: http.NoBody}, nil
			}
			_, _ = io.Copy(io.Discard, req.Body)
			_ = req.Body.Close()
			return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
		})
		req := streamed(t, "PUT", "http://a.test/", contract.Counted("text"))
		req.GetBody = func() (io.ReadCloser, error) { return contract.Counted("text"), nil }
		_, err := contract.New(t, httpretry.Config{Base: base, Policy: every(time.Minute)}).RoundTrip(req)
		require.NoError(t, err)
		require.Error(t, <-left)
	})
}
