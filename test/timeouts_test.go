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
	"net/url"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// Hazard K4, G4: after a panic, no goroutine waits for Request.Cancel. The
// bubble would not end with one.
func TestPanicWithCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.BaseFunc(func(*http.Request) (*http.Response, error) { panic("boom") })
		req := contract.Streamed(t, "PUT", "http://a.test/", contract.Counted("text"))
		//nolint:staticcheck // http.Client sets it
		req.Cancel = make(chan struct{})
		transport := contract.Unchecked(t, httpretry.Config{Base: base})
		assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(req) })
	})
}

// Hazard G1: the error of a canceled upload is the cancel, whatever error it
// caused.
func TestCanceledUpload(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		base, srv := contract.Serve(t, proto, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
		})
		transport := contract.With(t, base, contract.RetryEvery(0))
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
			_, err := transport.RoundTrip(contract.Streamed(t, "PUT", srv.URL, r).WithContext(ctx))
			require.ErrorIs(t, err, context.Canceled)
		}
	})
}

// The error of a canceled upload has the status of the attempt before, unless
// that had none.
func TestCanceledUploadAfterAFailure(t *testing.T) {
	for _, failed := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		attempts := 0
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			defer req.Body.Close()
			attempts++
			switch {
			case attempts == 2 && failed:
				return nil, contract.ErrReset
			case attempts == 3:
				cancel() // the server takes the bytes that have arrived for the whole body
				return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
			}
			return &http.Response{StatusCode: 503, Body: http.NoBody}, nil
		})
		req := contract.Streamed(t, "PUT", "http://a.test/", contract.Counted("text")).
			WithContext(ctx)
		req.GetBody = func() (io.ReadCloser, error) { return contract.Counted("text"), nil }
		_, err := contract.With(t, base, contract.RetryEvery(0)).RoundTrip(req)
		if failed {
			require.EqualError(t, err,
				"httpretry: gave up after 3 attempts (canceled): context canceled")
		} else {
			require.EqualError(t, err,
				"httpretry: gave up after 3 attempts (canceled): context canceled (last attempt: "+
					"status 503)")
		}
	}
}

// Hazard G1: a request that is canceled in flight ends at once with the error
// and the cause of its context, over both protocols, whether or not the attempt
// is a copy.
func TestCancelInFlight(t *testing.T) {
	cause := errors.New("cause")
	for name, tt := range map[string]struct {
		derive func(context.Context) (context.Context, context.CancelFunc)
		cancel bool // after a minute, in which a deadline passes by itself
		want   []error
	}{
		"cancel": {context.WithCancel, true, []error{context.Canceled}},
		"cause": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			return ctx, func() { cancel(cause) }
		}, true, []error{context.Canceled, cause}},
		"deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Minute)
		}, false, []error{context.DeadlineExceeded}},
		"deadline with cause": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, time.Minute, cause)
		}, false, []error{context.DeadlineExceeded, cause}},
	} {
		for _, method := range []string{"GET", "POST"} {
			for _, attempt := range []int{1, 2} {
				t.Run(fmt.Sprintf("%s/%s/%d", name, method, attempt), func(t *testing.T) {
					inVirtualTime(t,
						func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
							var requests atomic.Int32
							base := start(func(w http.ResponseWriter, r *http.Request) {
								if int(requests.Add(1)) < attempt {
									w.WriteHeader(http.StatusTooEarly)
									return
								}
								<-r.Context().Done()
							})
							ctx, cancel := tt.derive(t.Context())
							defer cancel()
							if tt.cancel {
								time.AfterFunc(time.Minute, cancel)
							}
							events, began := new(contract.Record), time.Now()
							_, err := contract.Recorded(t, base, contract.RetryEvery(0), events).
								RoundTrip(
									contract.Request(t, method, "http://a.test/", "").
										WithContext(ctx))
							assert.Equal(t, time.Minute, time.Since(began))
							for _, want := range tt.want {
								require.ErrorIs(t, err, want)
							}
							reason, status := httpretry.ReasonDeadline, "timeout"
							if tt.cancel {
								reason, status = httpretry.ReasonCanceled, "canceled"
							}
							assert.Equal(t, reason, events.Reason())
							assert.Equal(t, status, events.Events[attempt-1].Status())
							assert.EqualValues(t, attempt, requests.Load())
						})
				})
			}
		}
	}
}

// Hazard G4: Request.Cancel is closed before the first attempt, and in flight.
func TestRequestCancel(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		for _, after := range []time.Duration{0, time.Minute} {
			inVirtualTimeAs(t, fmt.Sprintf("%s/%v", method, after),
				func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
					var requests atomic.Int32
					base := start(func(_ http.ResponseWriter, r *http.Request) {
						requests.Add(1)
						<-r.Context().Done()
					})
					ch := make(chan struct{})
					req := contract.Request(t, method, "http://a.test/", "")
					//nolint:staticcheck // http.Client sets it
					req.Cancel = ch
					if after == 0 {
						close(ch)
					} else {
						time.AfterFunc(after, func() { close(ch) })
					}
					events, began := new(contract.Record), time.Now()
					_, err := contract.Recorded(t, base, contract.RetryEvery(0), events).
						RoundTrip(req)
					require.Error(t, err)
					assert.Equal(t, after, time.Since(began))
					if after == 0 {
						assert.Zero(t, requests.Load())
						assert.EqualError(t, err, "httpretry: not sent: request canceled")
						return
					}
					assert.EqualValues(t, 1, requests.Load())
					assert.Equal(t, httpretry.ReasonCanceled, events.Reason())
				})
		}
	}
}

// Hazard G2, G6: a deadline at the zero time has passed, even if the context
// does not report that yet.
func TestZeroDeadline(t *testing.T) {
	base, events := contract.Play(s503), new(contract.Record)
	resp, err := contract.Recorded(t, base, contract.RetryEvery(0), events).
		RoundTrip(newGet(t).WithContext(zeroDeadline{t.Context()}))
	require.NoError(t, err)
	assert.Equal(t, "body of 503", contract.ReadBody(t, resp))
	assert.Len(t, base.Attempts(), 1)
	assert.Equal(t, httpretry.ReasonDeadline, events.Reason())
}

// zeroDeadline is a context whose deadline is the zero time and that is not
// done.
type zeroDeadline struct{ context.Context }

func (zeroDeadline) Deadline() (time.Time, bool) { return time.Time{}, true }

// Hazard G5: http.Client's Timeout bounds all attempts together, and its error
// is a timeout.
func TestClientTimeoutOverAll(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Second} { // the third attempt would begin at 4 s
		inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
			base := start(func(w http.ResponseWriter, r *http.Request) {
				if attemptOf(r) > 1 {
					<-r.Context().Done()
					return
				}
				time.Sleep(time.Second)
				w.WriteHeader(http.StatusServiceUnavailable)
			})
			client := &http.Client{Transport: contract.With(t, base, contract.RetryEvery(wait)),
				Timeout: 3500 * time.Millisecond}
			began := time.Now()
			_, err := client.Get("http://a.test/")
			assert.Equal(t, client.Timeout, time.Since(began))
			var clients *url.Error
			require.ErrorAs(t, err, &clients)
			assert.True(t, clients.Timeout())
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Regexp(t,
				`^Get "http://a\.test/": .*(context deadline exceeded|request canceled)`,
				err.Error())
		})
	}
	_, can := any(new(httpretry.RetryTransport)).(interface{ CancelRequest(*http.Request) })
	assert.False(t, can, "http.Client would call it")
}

// Hazard G3: every attempt has the values of the caller's context, and the
// context's httptrace hooks are called once for each event.
func TestContextReachesEveryAttempt(t *testing.T) {
	type key struct{}
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		for _, method := range []string{"GET", "POST"} {
			for _, timeout := range []time.Duration{0, time.Hour} {
				t.Run(fmt.Sprintf("%s/%v", method, timeout), func(t *testing.T) {
					handler := func(w http.ResponseWriter, r *http.Request) {
						_, _ = io.Copy(io.Discard, r.Body)
						if attemptOf(r) < 3 {
							// after which a POST may be sent again
							w.WriteHeader(http.StatusTooEarly)
						}
					}
					base, srv := contract.Serve(t, proto, handler)
					var values []any
					seen := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
						values = append(values, req.Context().Value(key{}))
						return base.RoundTrip(req)
					})
					var gotConn, wroteHeaders, firstByte atomic.Int32
					// over HTTP/2 possibly after the response
					wroteRequest := make(chan struct{}, 10)
					ctx := httptrace.WithClientTrace(
						context.WithValue(t.Context(), key{}, "v"), &httptrace.ClientTrace{
							GotConn:      func(httptrace.GotConnInfo) { gotConn.Add(1) },
							WroteHeaders: func() { wroteHeaders.Add(1) },
							WroteRequest: func(httptrace.WroteRequestInfo) {
								wroteRequest <- struct{}{}
							},
							GotFirstResponseByte: func() { firstByte.Add(1) },
						})
					policy := contract.RetryEvery(0)
					policy.AttemptTimeout = timeout
					contract.Send(t, contract.With(t, seen, policy),
						contract.Request(t, method, srv.URL, "text").WithContext(ctx))
					assert.Equal(t, []any{"v", "v", "v"}, values)
					for name, n := range map[string]*atomic.Int32{
						"GotConn": &gotConn, "WroteHeaders": &wroteHeaders,
						"GotFirstResponseByte": &firstByte,
					} {
						assert.EqualValues(t, 3, n.Load(), name)
					}
					waitFor(t, "WroteRequest",
						func() { <-wroteRequest; <-wroteRequest; <-wroteRequest })
					assert.Empty(t, wroteRequest)
				})
			}
		}
	})
}

// No retry starts later than MaxElapsed. One that starts exactly then is made.
func TestMaxElapsedEdges(t *testing.T) {
	for _, tt := range []struct {
		max      time.Duration
		attempts int
	}{{time.Millisecond, 1}, {3*time.Second - 1, 1}, {3 * time.Second, 2}, {3*time.Second + 1, 2},
		{6*time.Second - 1, 2}, {6 * time.Second, 3}} {
		contract.Bubble(t, tt.max.String(), func(t *testing.T) {
			base, events := contract.Play(contract.Step{Status: 503, Takes: time.Second}),
				new(contract.Record)
			policy := contract.RetryEvery(2 * time.Second)
			policy.MaxElapsed = tt.max
			contract.Send(t, contract.Recorded(t, base, policy, events), newGet(t))
			assert.Len(t, base.Attempts(), tt.attempts)
			assert.Equal(t, httpretry.ReasonMaxElapsed, events.Reason())
		})
	}
}

// hiddenContext hides its type from package context, so each context that is
// derived from it costs a goroutine until it is canceled. A bubble does not end
// with such a goroutine.
type hiddenContext struct{ context.Context }

func (o hiddenContext) Value(key any) any {
	if _, ours := key.(fmt.Stringer); ours {
		return o.Context.Value(key)
	}
	return nil
}

// Hazard E6, K6: the context of every attempt is canceled in the end.
func TestNoContextIsLost(t *testing.T) {
	for _, steps := range []script{
		{s200}, {s503}, {s425, s204}, {refused, s200}, {reset}, {{Status: 200, Takes: time.Hour}},
	} {
		for _, method := range []string{"GET", "POST", "HEAD"} {
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := context.WithCancel(context.Background())
				policy := contract.RetryEvery(time.Second)
				policy.AttemptTimeout = time.Minute
				resp, err := contract.With(t, contract.Play(steps...), policy).
					RoundTrip(contract.Request(t, method, "http://a.test/", "text").
						WithContext(hiddenContext{parent}))
				if err == nil && method != "HEAD" {
					contract.ReadBody(t, resp)
				} else if err == nil {
					require.NoError(t, resp.Body.Close())
				}
				t.Cleanup(cancel) // after the bubble has ended
			})
		}
	}
}

// Hazard E7: no timer keeps a request in memory after it has ended.
func TestTimersAreStopped(t *testing.T) {
	for name, run := range map[string]func(http.RoundTripper, *http.Request, context.CancelFunc){
		"answered": func(rt http.RoundTripper, req *http.Request, _ context.CancelFunc) {
			if resp, err := rt.RoundTrip(req); err == nil {
				_ = resp.Body.Close()
			}
		},
		"canceled": func(rt http.RoundTripper, req *http.Request, cancel context.CancelFunc) {
			req.Header.Set("X-Want", "nothing")
			time.AfterFunc(20*time.Millisecond, cancel)
			_, _ = rt.RoundTrip(req)
		},
		"canceled while waiting": func(rt http.RoundTripper, req *http.Request,
			cancel context.CancelFunc) {
			req.Header.Set("X-Want", "503")
			time.AfterFunc(20*time.Millisecond, cancel)
			_, _ = rt.RoundTrip(req)
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				switch req.Header.Get("X-Want") {
				case "nothing":
					<-req.Context().Done()
					return nil, req.Context().Err()
				case "503":
					return &http.Response{
						StatusCode: 503, Body: io.NopCloser(bytes.NewReader(nil))}, nil
				}
				return &http.Response{StatusCode: 200, Body: io.NopCloser(bytes.NewReader(nil))},
					nil
			})
			policy := contract.RetryEvery(time.Hour)
			policy.AttemptTimeout = time.Hour
			transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
			kept := func() weak.Pointer[http.Request] {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, "GET", "http://a.test/", nil)
				require.NoError(t, err)
				run(transport, req, cancel)
				return weak.Make(req)
			}()
			waitFor(t, "the collection of the request", func() {
				for kept.Value() != nil {
					runtime.GC()
				}
			})
		})
	}
}

// If the context is done before anything was sent, the error is that of the
// context, as from net/http.
func TestContextDoneBeforeSending(t *testing.T) {
	cause := errors.New("cause")
	for name, tt := range map[string]struct {
		end  func(context.Context) (context.Context, context.CancelFunc)
		same error   // the very error, unless there is a cause as well
		is   []error // errors that errors.Is finds
	}{
		"canceled": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		}, context.Canceled, []error{context.Canceled}},
		"canceled with a cause": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(cause)
			return ctx, func() {}
		}, nil, []error{context.Canceled, cause}},
		"too late": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, -1)
		}, context.DeadlineExceeded, []error{context.DeadlineExceeded}},
		"too late with a cause": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, -1, cause)
		}, nil, []error{context.DeadlineExceeded, cause}},
	} {
		for _, method := range []string{"GET", "POST"} {
			t.Run(name+"/"+method, func(t *testing.T) {
				ctx, cancel := tt.end(t.Context())
				defer cancel()
				base, body := faults.Base(t, nil), contract.Counted("text")
				req := contract.Streamed(t, method, "http://a.test/", body).WithContext(ctx)
				_, err := contract.New(t, httpretry.Config{Base: base,
					Policy: httpretry.Policy{AttemptTimeout: time.Minute}}).RoundTrip(req)
				require.Error(t, err)
				for _, want := range tt.is {
					assert.ErrorIs(t, err, want)
				}
				if tt.same != nil {
					assert.True(t, err == tt.same, "the very error: %#v", err)
				}
				var all *httpretry.Error
				assert.False(t, errors.As(err, &all), "%v", err)
				_, plain := base.RoundTrip(
					contract.Request(t, method, "http://a.test/", "").WithContext(ctx))
				assert.ErrorIs(t, err, plain, "what net/http returns")
			})
		}
	}
}

// A request that its caller cancels did not time out, even if the attempt
// before did. The text of that attempt's error stays.
func TestCancelAfterAttemptTimeout(t *testing.T) {
	// in the wait after the first attempt, in the second attempt
	for _, when := range []time.Duration{90 * time.Second, 150 * time.Second} {
		contract.Bubble(t, when.String(), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(when, cancel)
			policy := contract.RetryEvery(time.Minute)
			policy.AttemptTimeout = time.Minute
			base := contract.Play(contract.Step{Status: 200, Takes: time.Hour})
			_, err := contract.With(t, base, policy).RoundTrip(newGet(t).WithContext(ctx))
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			var all *httpretry.Error
			require.ErrorAs(t, err, &all)
			assert.Equal(t, httpretry.ReasonCanceled, all.Reason)
			assert.False(t, all.Timeout())
			var timeout net.Error
			assert.False(t, errors.As(all.Err, &timeout) && timeout.Timeout())
			if when < 2*time.Minute {
				assert.ErrorContains(t, err, "attempt timed out after 1m0s")
			}
		})
	}
}

// A deadline that passes during a wait is a timeout, whatever the error of the
// attempt before.
func TestDeadlineDuringWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(context.DeadlineExceeded) })
		base := contract.Play(reset)
		_, err := contract.With(t, base, contract.RetryEvery(time.Minute)).
			RoundTrip(newGet(t).WithContext(ctx))
		var all *httpretry.Error
		require.ErrorAs(t, err, &all)
		assert.True(t, all.Timeout(), "as the cause of the cancel is")
		assert.NotErrorIs(t, err, contract.ErrReset)
		assert.ErrorContains(t, err, contract.ErrReset.Error())
	})
}
