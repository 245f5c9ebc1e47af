package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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
	"github.com/seed421102f4/httpretry/internal/errno"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/strategies"
)

// Hazard A6, B12: a body whose Read blocks forever does not hold up RoundTrip,
// over either protocol, and is closed.
func TestBlockedReader(t *testing.T) {
	cause := errors.New("cause")
	for _, tt := range []struct {
		name     string
		answer   int           // the status of a server that does not read; 0: it reads
		deadline time.Duration // of the request
		timeout  time.Duration // of an attempt, whose Read begins in this time
		want     error
		reason   httpretry.Reason
	}{
		{"cancel", 0, 0, 0, cause, httpretry.ReasonCanceled},
		{"deadline", 0, 30 * time.Millisecond, 0, context.DeadlineExceeded,
			httpretry.ReasonDeadline},
		{"attempt timeout", 0, 0, 100 * time.Millisecond, context.DeadlineExceeded,
			httpretry.ReasonNotReplayable},
		// Each retry inherits the Read of the first attempt.
		{"early answer", 503, 0, 0, nil, httpretry.ReasonAttempts},
		{"early answer that is final", 403, 0, 0, nil, httpretry.ReasonPermanent},
	} {
		contract.ForProtocols(t, func(t *testing.T, proto string) {
			t.Run(tt.name, func(t *testing.T) {
				handler := func(w http.ResponseWriter, r *http.Request) {
					if tt.answer > 0 {
						answerEarly(w, r, tt.answer)
					} else {
						_, _ = io.Copy(io.Discard, r.Body)
					}
				}
				base, srv := contract.Serve(t, proto, handler)
				body, events := newBlockedBody(), new(contract.Record)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				switch {
				case tt.want == cause:
					go func() { <-body.reading; cancel(cause) }()
				case tt.deadline > 0:
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ctx, tt.deadline)
					defer stop()
				}
				policy := contract.RetryEvery(0)
				policy.AttemptTimeout = tt.timeout
				req := contract.Streamed(t, "PUT", srv.URL, body).WithContext(ctx)
				req.ContentLength = 10 // otherwise net/http waits for the first byte
				transport := contract.Recorded(t, base, policy, events)
				waitFor(t, "the end of the request", func() {
					resp, err := transport.RoundTrip(req)
					if tt.want != nil {
						assert.ErrorIs(t, err, tt.want)
					} else if assert.NoError(t, err) {
						assert.Equal(t, tt.answer, resp.StatusCode)
						assert.NoError(t, resp.Body.Close())
					}
				})
				assert.Equal(t, tt.reason, events.Reason())
				waitFor(t, "the closing of the body", func() { <-body.closed })
				assert.EqualValues(t, 1, body.Closes())
			})
		})
	}
}

// Hazard B7: an error of the caller's body is returned as it is, whatever it
// looks like, and the request is not sent again. That holds for both protocols,
// on the first attempt, whether or not there is a GetBody, and on one whose
// body came from GetBody.
func TestReaderFailsAnywhere(t *testing.T) {
	failures := []error{
		errno.ConnReset, io.ErrUnexpectedEOF, context.DeadlineExceeded, context.Canceled,
		contract.ErrRefused,
		fmt.Errorf("disk: %w", io.EOF), errors.New("http: server closed idle connection"),
	}
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		for _, failure := range failures {
			for _, tt := range []struct {
				attempt     int // the one whose body fails
				withGetBody bool
			}{{1, false}, {1, true}, {2, true}} {
				t.Run(fmt.Sprintf("%v/%v", failure, tt), func(t *testing.T) {
					var requests, accepted atomic.Int32
					handler := func(w http.ResponseWriter, r *http.Request) {
						requests.Add(1)
						if _, err := io.Copy(io.Discard, r.Body); err != nil {
							return
						}
						if attemptOf(r) < tt.attempt {
							w.WriteHeader(http.StatusServiceUnavailable)
							return
						}
						accepted.Add(1)
					}
					base, srv := contract.Serve(t, proto, handler)
					failing := func() io.ReadCloser {
						r := io.MultiReader(strings.NewReader("some"), iotest.ErrReader(failure))
						return &contract.Body{ReadCloser: io.NopCloser(r)}
					}
					req := contract.Streamed(t, "PUT", srv.URL, failing())
					if tt.attempt == 2 {
						req.Body = contract.Counted("some more")
					}
					calls := 0
					if tt.withGetBody {
						req.GetBody = func() (io.ReadCloser, error) {
							calls++
							return failing(), nil
						}
					}
					events := new(contract.Record)
					_, err := contract.Recorded(t, base, contract.RetryEvery(0), events).
						RoundTrip(req)
					var all *httpretry.Error
					if tt.attempt == 1 {
						assert.True(t, err == failure, "the very error: %v", err)
					} else if assert.ErrorAs(t, err, &all) {
						assert.True(t, all.Err == failure, "the very error: %v", err)
					}
					assert.Equal(t, tt.attempt-1, calls, "of GetBody")
					assert.Equal(t, httpretry.ReasonPermanent, events.Reason())
					assert.LessOrEqual(t, requests.Load(), int32(tt.attempt))
					assert.Zero(t, accepted.Load(), "half a body is none")
				})
			}
		}
	})
}

// Hazard B3: a body that does not have the stated length is not sent again once
// that is known.
func TestWrongContentLength(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		for _, length := range []int64{1, 10} {
			for _, withGetBody := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d/GetBody=%v", length, withGetBody), func(t *testing.T) {
					var requests atomic.Int32
					handler := func(_ http.ResponseWriter, r *http.Request) {
						requests.Add(1)
						_, _ = io.Copy(io.Discard, r.Body)
					}
					base, srv := contract.Serve(t, proto, handler)
					req := contract.Streamed(t, "PUT", srv.URL, contract.Counted("text"))
					req.ContentLength = length
					if withGetBody {
						req.GetBody = func() (io.ReadCloser, error) {
							return contract.Counted("text"), nil
						}
					}
					events := new(contract.Record)
					resp, err := contract.Recorded(t, base, contract.RetryEvery(0), events).
						RoundTrip(req)
					if err == nil { // the server may respond to the part that it got
						assert.True(t, length == 1 || proto == contract.HTTP2)
						contract.ReadBody(t, resp)
					}
					for _, e := range events.Events { // over HTTP/1 another error may come first
						switch {
						case e.Err == nil:
							assert.Equal(t, httpretry.ReasonSuccess, e.Reason)
						case strings.Contains(strings.ToLower(e.Err.Error()), "length"):
							assert.Equal(t, httpretry.ReasonPermanent, e.Reason, "%v", e.Err)
						}
					}
					assert.LessOrEqual(t, int(requests.Load()), len(events.Events))
				})
			}
		}
	})
}

// Hazard A4: however RoundTrip ends, it closes the body once. The checks of
// contract count that.
func TestBodyIsClosedOnEveryExit(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	closed := make(chan struct{})
	close(closed)
	in := func(r *http.Request, ctx context.Context) { *r = *r.WithContext(ctx) }
	type policy = *httpretry.Policy
	for name, change := range map[string]func(*http.Request, policy){
		"context over": func(r *http.Request, _ policy) { in(r, over) },
		//nolint:staticcheck // http.Client sets it
		"Request.Cancel closed": func(r *http.Request, _ policy) { r.Cancel = closed },
		"invalid policy": func(r *http.Request, _ policy) {
			in(r, httpretry.WithPolicy(r.Context(), httpretry.Policy{MaxElapsed: -1}))
		},
		"invalid key": func(r *http.Request, p policy) {
			r.Method, p.NewIdempotencyKey = "POST", func(*http.Request) string { return "\n" }
		},
		"no URL":                    func(r *http.Request, _ policy) { r.URL = nil },
		"no host":                   func(r *http.Request, _ policy) { r.URL.Host = "" },
		"invalid method":            func(r *http.Request, _ policy) { r.Method = "A B" },
		"invalid header":            func(r *http.Request, _ policy) { r.Header["A"] = []string{"\n"} },
		"no header":                 func(r *http.Request, _ policy) { r.Header = nil },
		"refused connections":       func(*http.Request, policy) {},
		"refused connections, once": func(_ *http.Request, p policy) { p.MaxAttempts = 1 },
		"no budget":                 func(_ *http.Request, p policy) { p.Budget = contract.UsedUp{} },
		"nothing kept":              func(_ *http.Request, p policy) { p.ReplayBuffer = -1 },
		"GetBody fails": func(r *http.Request, _ policy) {
			r.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
		},
		"GetBody works": func(r *http.Request, _ policy) {
			r.GetBody = func() (io.ReadCloser, error) { return contract.Counted("text"), nil }
		},
		"deadline too near": func(_ *http.Request, p policy) {
			p.Backoff, p.MaxElapsed = strategies.Constant{Wait: time.Hour}, time.Minute
		},
	} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprintf("%s/%v", name, timeout), func(t *testing.T) {
				policy := contract.RetryEvery(0)
				policy.AttemptTimeout = timeout
				req := contract.Streamed(t, "PUT", "http://"+faults.Refused(t),
					contract.Counted("text"))
				change(req, &policy)
				_, err := contract.New(t, httpretry.Config{Policy: policy}).RoundTrip(req)
				require.Error(t, err)
			})
		}
	}
}

// Hazard 1.1: a failing Close of the body is the caller's error. net/http
// reports it over HTTP/1, where it would fail each attempt, and ignores it over
// HTTP/2.
func TestCloseFails(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		for _, withGetBody := range []bool{false, true} {
			t.Run(fmt.Sprintf("GetBody=%v", withGetBody), func(t *testing.T) {
				var requests atomic.Int32
				handler := func(_ http.ResponseWriter, r *http.Request) {
					requests.Add(1)
					_, _ = io.Copy(io.Discard, r.Body)
				}
				base, srv := contract.Serve(t, proto, handler)
				failure := errors.New("close failed")
				req := contract.Streamed(t, "PUT", srv.URL, &contract.Body{
					ReadCloser: &failingBody{strings.NewReader("text"), failure}})
				if withGetBody {
					req.GetBody = func() (io.ReadCloser, error) {
						t.Error("GetBody was called")
						return nil, failure
					}
				}
				events := new(contract.Record)
				resp, err := contract.Recorded(t, base, contract.RetryEvery(0), events).
					RoundTrip(req)
				if proto == contract.HTTP2 {
					require.NoError(t, err)
					contract.ReadBody(t, resp)
					assert.Equal(t, httpretry.ReasonSuccess, events.Reason())
				} else {
					require.ErrorIs(t, err, failure)
					assert.Equal(t, httpretry.ReasonPermanent, events.Reason())
				}
				assert.LessOrEqual(t, requests.Load(), int32(1))
			})
		}
	})
}

// Hazard A4: the body of a request that is not sent is closed, and the error of
// its Close is returned.
func TestCloseFailsOfARefusedRequest(t *testing.T) {
	failure := errors.New("close failed")
	body := &contract.Body{ReadCloser: &failingBody{strings.NewReader("text"), failure}}
	req := contract.Streamed(t, "PUT", "http://a.test/", body)
	req = req.WithContext(httpretry.WithPolicy(req.Context(), httpretry.Policy{MaxElapsed: -1}))
	_, err := contract.New(t, httpretry.Config{Base: contract.Play(s200)}).RoundTrip(req)
	require.ErrorIs(t, err, failure)
	require.ErrorContains(t, err, "MaxElapsed: -1ns: want at least 1ms")
	assert.Equal(t, 1, body.Closes())
}

// Hazard B8: a body panics while Base reads it in the goroutine of RoundTrip. A
// panic in a goroutine of net/http ends the process, and nothing can prevent
// that.
func TestBodyPanics(t *testing.T) {
	body := &contract.Body{
		ReadCloser: io.NopCloser(contract.ReaderFunc(func([]byte) (int, error) { panic("boom") }))}
	transport := contract.Unchecked(t, httpretry.Config{Base: contract.Play(s200)})
	assert.PanicsWithValue(t, "boom",
		func() { _, _ = transport.RoundTrip(contract.Streamed(t, "PUT", "http://a.test/", body)) })
	assert.EqualValues(t, 1, body.Closes())
}

// A request whose body failed is not sent again, even if the server responded.
func TestReaderFailsBeforeAnswer(t *testing.T) {
	events := new(contract.Record)
	base := newBodyBase(func(body io.ReadCloser, _ int) int {
		_, err := io.ReadAll(body)
		assert.Error(t, err)
		assert.NoError(t, body.Close())
		return 503
	})
	for _, withGetBody := range []bool{false, true} {
		req := contract.Streamed(t, "PUT", "http://a.test/",
			&contract.Body{ReadCloser: io.NopCloser(iotest.ErrReader(errors.New("disk")))})
		if withGetBody {
			req.GetBody = func() (io.ReadCloser, error) {
				t.Error("GetBody was called")
				return nil, nil
			}
		}
		resp, err := contract.Recorded(t, base, contract.RetryEvery(0), events).RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, httpretry.ReasonNotReplayable, events.Reason())
	}
	assert.Len(t, events.Events, 2)
}

// Hazard A5: a body that was closed because its caller canceled is not read
// again, even by an attempt that was paused until then.
func TestNoReadAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var body *contract.Body
		text := strings.NewReader("0123456789abcdef")
		body = &contract.Body{
			ReadCloser: io.NopCloser(contract.ReaderFunc(func(p []byte) (int, error) {
				assert.Zero(t, body.Closes(), "a Read after Close")
				return text.Read(p)
			}))}
		var first io.ReadCloser
		base := newBodyBase(func(b io.ReadCloser, _ int) int {
			first = b
			readN(t, b, 8)
			return 503
		})
		late := make(chan error)
		policy := contract.RetryEvery(time.Hour)
		policy.ReplayBuffer = 8
		policy.Budget = budgetFunc(func() bool {
			go func() {
				_, err := first.Read(make([]byte, 4))
				late <- err
			}()
			synctest.Wait()
			return true
		})
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Hour, io.EOF)
		time.AfterFunc(time.Minute, cancel)
		_, err := contract.With(t, base, policy).
			RoundTrip(contract.Streamed(t, "PUT", "http://a.test/", body).WithContext(ctx))
		require.ErrorIs(t, err, context.Canceled)
		require.Error(t, <-late)
	})
}

// A response is not returned if a cancel had cut off the body of its request.
func TestAnswerToCutBody(t *testing.T) {
	cause := errors.New("cause")
	for _, cut := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var body io.ReadCloser = contract.Counted("text")
		if cut {
			blocked := newBlockedBody()
			go func() { <-blocked.reading; cancel(cause) }()
			body = blocked
		}
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			_, _ = io.Copy(io.Discard, req.Body)
			cancel(cause)
			_ = req.Body.Close()
			return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
		})
		resp, err := contract.New(t, httpretry.Config{Base: base}).
			RoundTrip(contract.Streamed(t, "PUT", "http://a.test/", body).WithContext(ctx))
		if cut {
			require.ErrorIs(t, err, cause)
			require.ErrorIs(t, err, context.Canceled)
		} else {
			require.NoError(t, err)
			assert.Equal(t, 200, resp.StatusCode)
		}
	}
}

// A body whose Read waits for the response, as in a full-duplex call, does not
// hold up RoundTrip if an HTTP/2 stream ends without one. net/http closes the
// body then, and waits for its Read (clientStream.cleanupWriteRequest).
func TestBlockedReaderOfABrokenStream(t *testing.T) {
	ends := map[string]func(faults.Stream){
		"INTERNAL_ERROR": func(s faults.Stream) { s.ResetStream(faults.InternalError) },
		"REFUSED_STREAM": func(s faults.Stream) { s.ResetStream(faults.RefusedStream) },
		"GOAWAY":         func(s faults.Stream) { s.GoAway(0, faults.NoError) },
		"close":          func(s faults.Stream) { _ = s.Close() },
	}
	once := contract.RetryEvery(0)
	once.MaxAttempts, once.ReplayBuffer = 1, -1
	for name, end := range ends {
		for _, method := range []string{"PUT", "POST"} {
			for _, policy := range []httpretry.Policy{contract.RetryEvery(0), once} {
				title := fmt.Sprintf("%s/%s/%d attempts", name, method, policy.MaxAttempts)
				t.Run(title, func(t *testing.T) {
					t.Parallel()
					body := newBlockedBody()
					srv := faults.HTTP2(t, func(s faults.Stream) {
						select {
						case <-body.reading:
							end(s)
						case <-t.Context().Done():
						}
					})
					req := contract.Streamed(t, method, srv.URL(), body)
					req.ContentLength = -1
					transport := contract.With(t, faults.HTTP2Base(t), policy)
					waitFor(t, "the end of the request", func() {
						_, err := transport.RoundTrip(req)
						assert.Error(t, err)
					})
					waitFor(t, "the closing of the body", func() { <-body.closed })
					assert.Equal(t, 1, body.Closes())
					assert.EqualValues(t, 1, srv.Requests.Load())
				})
			}
		}
	}
}

// A gateway forwards the body of an inbound HTTP/1 request, of which the client
// has sent a part. Close of that body waits for its Read, and Read waits for
// the client. Neither a response nor a retry waits for them.
func TestStalledInboundBody(t *testing.T) {
	for _, tt := range []struct {
		name, method string
		statuses     []int // of the upstream server, for each attempt
		withGetBody  bool
		want         int
	}{
		{"success", "PUT", []int{200}, false, 200},
		{"success of a POST", "POST", []int{200}, false, 200},
		{"permanent failure", "PUT", []int{403}, false, 403},
		{"failure without retries", "POST", []int{503}, false, 503},
		{"retry with GetBody", "PUT", []int{503, 503, 200}, true, 200},
	} {
		contract.ForProtocols(t, func(t *testing.T, proto string) {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				handler := func(w http.ResponseWriter, r *http.Request) {
					answerEarly(w, r, tt.statuses[attemptOf(r)-1])
				}
				base, upstream := contract.Serve(t, proto, handler)
				transport := contract.With(t, base, contract.RetryEvery(0))
				returned := make(chan struct{})
				gateway := contract.NewServer(t, func(_ http.ResponseWriter, r *http.Request) {
					defer close(returned)
					req := contract.Streamed(t, tt.method, upstream.URL, r.Body)
					req.ContentLength = r.ContentLength
					if tt.withGetBody {
						req.GetBody = func() (io.ReadCloser, error) {
							return io.NopCloser(strings.NewReader(strings.Repeat("a", 1000))), nil
						}
					}
					resp, err := transport.RoundTrip(req)
					if assert.NoError(t, err) {
						assert.Equal(t, tt.want, resp.StatusCode)
						assert.NoError(t, resp.Body.Close())
					}
				})
				client, err := net.Dial("tcp", gateway.Listener.Addr().String())
				require.NoError(t, err)
				t.Cleanup(func() { _ = client.Close() })
				_, err = io.WriteString(client,
					"PUT / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000\r\n\r\n0123456789")
				require.NoError(t, err)
				waitFor(t, "the response", func() { <-returned })
			})
		})
	}
}
