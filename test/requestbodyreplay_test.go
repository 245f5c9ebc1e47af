package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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

// thirdAccepted returns a handler that calls got with each attempt and its
// body, and accepts the third one.
func thirdAccepted(t *testing.T, got func(r *http.Request, body string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		got(r, string(body))
		if attemptOf(r) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
}

// Hazard A3: trailers that are set while the body is read are sent with every
// attempt.
func TestTrailersOfEveryAttempt(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		for _, withGetBody := range []bool{false, true} {
			t.Run(fmt.Sprintf("GetBody=%v", withGetBody), func(t *testing.T) {
				var got []string
				add := func(r *http.Request, _ string) { got = append(got, r.Trailer.Get("X-Sum")) }
				base, srv := contract.Serve(t, proto, thirdAccepted(t, add))
				req := contract.Streamed(t, "PUT", srv.URL, nil)
				req.Trailer = http.Header{"X-Sum": nil}
				end := contract.ReaderFunc(func([]byte) (int, error) {
					req.Trailer.Set("X-Sum", "42")
					return 0, io.EOF
				})
				open := func() (io.ReadCloser, error) {
					return io.NopCloser(io.MultiReader(strings.NewReader("text"), end)), nil
				}
				req.Body, _ = open()
				if withGetBody {
					req.GetBody = open
				}
				contract.Send(t, contract.With(t, base, contract.RetryEvery(0)), req)
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
	truncate := func(name string) error { return os.Truncate(name, 5) }
	for _, tt := range []struct {
		name    string
		change  func(name string) error
		removes bool   // the file, while it is open
		length  int64  // stated
		want    string // the body that is accepted; "": an error
	}{
		{"grows", appendTo("more"), false, 0, "3456789more"},
		{"shrinks", truncate, false, 0, "34"},
		{"is replaced", func(name string) error {
			_ = os.Remove(name)
			return os.WriteFile(name, []byte("other"), 0o600)
		}, true, 7, "3456789"},
		{"grows past its length", appendTo("more"), false, 7, ""},
		{"shrinks below its length", truncate, false, 7, ""},
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
			if tt.want != "" {
				require.NoError(t, err)
				assert.Equal(t, int32(2), requests.Load())
				contract.ReadBody(t, resp)
				assert.Equal(t, tt.want, accepted)
			} else if err != nil { // if the file is too long, the response may come first
				require.ErrorContains(t, err, "http: ContentLength=7 with Body length")
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
		{"nil", func() io.ReadCloser { return nil }, 0, "[0] [] "},
		{"http.NoBody", func() io.ReadCloser { return http.NoBody }, 0, "[0] [] "},
		{"known length", stream, 4, "[4] [] text"},
		{"unknown length", stream, -1, "[] [chunked] text"},
		{"length not stated", stream, 0, "[] [chunked] text"},
		{"unknown length, empty", func() io.ReadCloser {
			return io.NopCloser(struct{ io.Reader }{strings.NewReader("")})
		}, -1, "[] [chunked] "},
	} {
		for _, withGetBody := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/GetBody=%v", tt.name, withGetBody), func(t *testing.T) {
				var got []string
				base, srv := contract.Serve(t, contract.HTTP1,
					thirdAccepted(t, func(r *http.Request, body string) {
						got = append(got, fmt.Sprintf("%v %v %s",
							r.Header["Content-Length"], r.TransferEncoding, body))
					}))
				req := contract.Streamed(t, "POST", srv.URL, tt.body())
				req.Header.Set("Idempotency-Key", "k")
				req.ContentLength = tt.length
				if withGetBody {
					req.GetBody = func() (io.ReadCloser, error) { return tt.body(), nil }
				}
				contract.Send(t, contract.With(t, base, contract.RetryEvery(0)), req)
				assert.Equal(t, []string{tt.want, tt.want, tt.want}, got)
			})
		}
	}
}

// Hazard B1, B3, B5: a body of any type is sent three times without changes.
// That includes a file with a Read of its own, which is the one that counts.
func TestBodyTypes(t *testing.T) {
	const text = "the quick brown fox"
	type byValue struct {
		io.ReadCloser
		_ [1]int
	}
	type incomparable struct { // panics if it is compared
		io.ReadCloser
		_ []int
	}
	for name, body := range map[string]func() io.ReadCloser{
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
			r, reads := strings.NewReader(text), 0
			return io.NopCloser(contract.ReaderFunc(func(p []byte) (int, error) {
				if reads++; reads%2 == 1 {
					return 0, nil
				}
				return r.Read(p)
			}))
		},
		"by value": func() io.ReadCloser {
			return byValue{ReadCloser: io.NopCloser(strings.NewReader(text))}
		},
		"cannot be compared": func() io.ReadCloser {
			return incomparable{ReadCloser: io.NopCloser(strings.NewReader(text))}
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
				var got []string
				add := func(_ *http.Request, body string) { got = append(got, body) }
				base, srv := contract.Serve(t, proto, thirdAccepted(t, add))
				// Unchecked, since the checks compare bodies.
				transport := contract.Unchecked(t,
					httpretry.Config{Base: base, Policy: contract.RetryEvery(0)})
				contract.Send(t, transport, contract.Streamed(t, "PUT", srv.URL, body()))
				assert.Equal(t, []string{text, text, text}, got)
			})
		})
	}
}

// writerToFails has a WriteTo that disagrees with its Read.
type writerToFails struct{ io.Reader }

func (writerToFails) WriteTo(io.Writer) (int64, error) { return 0, errors.New("nobody asked") }

// lowerCaseFile is a file with a Read of its own.
type lowerCaseFile struct{ *os.File }

func (f lowerCaseFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	copy(p, bytes.ToLower(p[:n]))
	return n, err
}

// Hazard B2 to B4: a body is the same on every attempt, or else it is sent only
// once.
func TestReplay(t *testing.T) {
	const text = "the quick brown fox"
	const success, notReplayable = httpretry.ReasonSuccess, httpretry.ReasonNotReplayable
	stream := func() (io.ReadCloser, error) {
		return io.NopCloser(iotest.OneByteReader(strings.NewReader(text))), nil
	}
	inMemory := func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewBufferString(text)), nil
	}
	failing := func() (io.ReadCloser, error) { return nil, errors.New("no more") }
	nothing := func() (io.ReadCloser, error) { return nil, nil }
	busy, unread := script{s503, s503, s200}, contract.Step{Status: 503, Unread: true}
	for _, tt := range []struct {
		name     string
		getBody  func() (io.ReadCloser, error)
		buffer   int64
		steps    script
		attempts int
		reason   httpretry.Reason
	}{
		{"stream", nil, 0, busy, 3, success},
		{"stream that just fits", nil, int64(len(text)), busy, 3, success},
		{"stream too long by one", nil, int64(len(text)) - 1, busy, 1, notReplayable},
		{"stream not kept", nil, -1, busy, 1, notReplayable},
		{"stream not kept but not read", nil, -1, script{unread, unread, s200}, 3, success},
		{"stream not kept, error", nil, -1, script{reset}, 1, notReplayable},
		{"stream not read, error", nil, 0, script{{Err: contract.ErrReset, Unread: true},
			{Err: &net.DNSError{IsNotFound: true}, Unread: true}}, 2, httpretry.ReasonPermanent},
		{"GetBody", stream, -1, busy, 3, success},
		{"GetBody in memory", inMemory, -1, busy, 3, success},
		{"GetBody fails", failing, 0, busy, 1, notReplayable},
		{"GetBody returns nothing", nothing, 0, busy, 1, notReplayable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base, events := contract.Play(tt.steps...), new(contract.Record)
			policy := contract.RetryEvery(0)
			policy.ReplayBuffer = tt.buffer
			body, _ := stream()
			req := contract.Streamed(t, "PUT", "http://a.test/", &contract.Body{ReadCloser: body})
			req.GetBody = tt.getBody

			resp, err := contract.Recorded(t, base, policy, events).RoundTrip(req)

			assert.Len(t, base.Attempts(), tt.attempts)
			assert.Equal(t, tt.reason.String(), events.Reason().String())
			if last := tt.steps[tt.attempts-1]; last.Err != nil {
				require.ErrorIs(t, err, last.Err)
			} else {
				require.NoError(t, err)
				assert.Equal(t, last.Body, contract.ReadBody(t, resp))
			}
			for i, a := range base.Attempts() {
				if !tt.steps[i].Unread {
					assert.Equal(t, text, a.Body, "attempt %d", i+1)
				}
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
	req := contract.Streamed(t, "PUT", "http://a.test/",
		io.NopCloser(io.LimitReader(contract.Zeros{}, 10*buffer)))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	assert.Equal(t, 200, contract.Send(t, transport, req).StatusCode)
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2*buffer+16<<10),
		"all that was ever allocated while the record grew")
}

// If no retry follows after all, the upload of a body that was reserved for one
// continues.
func TestReplayHoldIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		go func() {
			_, _ = io.WriteString(w, "1234")
			time.Sleep(time.Millisecond / 2)
			_, _ = io.WriteString(w, "5678")
			_ = w.Close()
		}()
		rest := make(chan string, 1)
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			// As net/http does. The attempt then does not end before its
			// request is sent.
			httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{})
			assert.Equal(t, "1234", readN(t, req.Body, 4))
			go func() {
				all, err := io.ReadAll(req.Body)
				assert.NoError(t, err)
				assert.NoError(t, req.Body.Close())
				rest <- string(all)
			}()
			return &http.Response{StatusCode: 503, ProtoMajor: 2, Body: http.NoBody}, nil
		})
		policy := contract.RetryEvery(0)
		policy.ReplayBuffer = 4
		policy.Budget = budgetFunc(func() bool {
			time.Sleep(time.Millisecond) // while the body is held
			return false
		})
		req := contract.Streamed(t, "PUT", "http://a.test/", r)
		assert.Equal(t, 503, contract.Send(t, contract.With(t, base, policy), req).StatusCode)
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
	for name, statuses := range map[string][]int{
		"first attempt": {200}, "retry": {503, 200}, "failure": {403}} {
		t.Run(name, func(t *testing.T) {
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				_, _ = io.Copy(io.Discard, req.Body)
				_ = req.Body.Close()
				status := statuses[httpretry.Attempt(req.Context())-1]
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
	srv := contract.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		if attemptOf(r) == 1 {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(503)
			return
		}
		answerEarly(w, r, 200)
	})
	// Without a layer above, the retry would not be watched if its body could not
	// block.
	transport := contract.Unchecked(t, httpretry.Config{
		Base: faults.Base(t, nil), Policy: contract.RetryEvery(0)})
	reader, _ := io.Pipe()
	blocking := &contract.Body{ReadCloser: reader}
	req := contract.Streamed(t, "PUT", srv.URL, io.NopCloser(strings.NewReader("hello")))
	req.ContentLength = 5
	req.GetBody = func() (io.ReadCloser, error) { return blocking, nil }
	assert.Equal(t, 200, contract.Send(t, transport, req).StatusCode)
	assert.Eventually(t, func() bool { return blocking.Closes() > 0 }, waitLimit, time.Millisecond)
}
