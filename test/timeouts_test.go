package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"runtime"
	"strings"
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
		transport := retrying(t, base)
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
			err := sendFails(t, transport, contract.Streamed(t, "PUT", srv.URL, r).WithContext(ctx))
			require.ErrorIs(t, err, context.Canceled)
		}
	})
}

// The error of a canceled upload has the status of the attempt before, unless
// that had none.
func TestCanceledUploadAfterAFailure(t *testing.T) {
	for _, tt := range []struct {
		second contract.Step
		last   string
	}{{s503, " (last attempt: status 503)"}, {reset, ""}} {
		ctx, cancel := context.WithCancel(t.Context())
		script := contract.Play(s503, tt.second)
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			if httpretry.Attempt(req.Context()) == 3 {
				_ = req.Body.Close()
				cancel() // the server takes the bytes that have arrived for the whole body
				return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
			}
			return script.RoundTrip(req)
		})
		err := sendFails(t, retrying(t, base), newUpload(
			t, uploadGetBody, "http://a.test/", []byte("text")).WithContext(ctx))
		require.EqualError(t, err,
			"httpretry: gave up after 3 attempts (canceled): context canceled"+tt.last)
	}
}

var errCause = errors.New("cause")

// contextEnds are ways in which a context ends after a time.
var contextEnds = map[string]struct {
	of     func(context.Context, time.Duration) (context.Context, context.CancelFunc)
	is     []error // errors that errors.Is finds
	reason httpretry.Reason
	status string
}{
	"cancel": {cancelAfter(nil),
		[]error{context.Canceled}, httpretry.ReasonCanceled, "canceled"},
	"cancel with cause": {cancelAfter(errCause),
		[]error{context.Canceled, errCause}, httpretry.ReasonCanceled, "canceled"},
	"deadline": {context.WithTimeout,
		[]error{context.DeadlineExceeded}, httpretry.ReasonDeadline, "timeout"},
	"deadline with cause": {func(ctx context.Context, after time.Duration) (
		context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(ctx, after, errCause)
	}, []error{context.DeadlineExceeded, errCause}, httpretry.ReasonDeadline, "timeout"},
}

// cancelAfter cancels a context after a time, or at once if that is negative.
func cancelAfter(cause error) func(context.Context, time.Duration) (
	context.Context, context.CancelFunc) {
	return func(ctx context.Context, after time.Duration) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		if after < 0 {
			cancel(cause)
		} else {
			time.AfterFunc(after, func() { cancel(cause) })
		}
		return ctx, func() { cancel(nil) }
	}
}

// Hazard G1, G4: a request that is canceled in flight ends at once with the error
// and the cause of its context, over both protocols, whether or not the attempt
// is a copy.
func TestCancelInFlight(t *testing.T) {
	ends := maps.Clone(contextEnds)
	channel := ends["cancel"]
	channel.is = nil
	ends["Request.Cancel"] = channel
	for name, end := range ends {
		for _, method := range []string{"GET", "POST"} {
			for _, attempt := range []int{1, 2} {
				inVirtualTimeAs(t, fmt.Sprintf("%s/%s/%d", name, method, attempt),
					func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
						var requests atomic.Int32
						base := start(func(w http.ResponseWriter, r *http.Request) {
							if int(requests.Add(1)) < attempt {
								w.WriteHeader(http.StatusTooEarly)
								return
							}
							<-r.Context().Done()
						})
						ctx, cancel := end.of(t.Context(), time.Minute)
						defer cancel()
						req := newRequest(t, method, "")
						if name == "Request.Cancel" {
							//nolint:staticcheck // http.Client sets it
							req.Cancel = ctx.Done()
						} else {
							req = req.WithContext(ctx)
						}
						began := time.Now()
						transport, events := recorded(t, base)
						err := sendFails(t, transport, req)
						assert.Equal(t, time.Minute, time.Since(began))
						for _, want := range end.is {
							require.ErrorIs(t, err, want)
						}
						assert.Equal(t, end.reason, events.Reason())
						assert.Equal(t, end.status, events.Events[attempt-1].Status())
						assert.EqualValues(t, attempt, requests.Load())
					})
			}
		}
	}
}

// Hazard G4: Request.Cancel may be closed before the first attempt.
func TestRequestCancel(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		base, req := contract.Play(s200), newRequest(t, method, "")
		ch := make(chan struct{})
		//nolint:staticcheck // http.Client sets it
		req.Cancel = ch
		close(ch)
		err := sendFails(t, retrying(t, base), req)
		require.EqualError(t, err, "httpretry: not sent: request canceled")
		assert.Empty(t, base.Attempts())
	}
}

// Hazard G2, G6: a deadline at the zero time has passed, even if the context
// does not report that yet.
func TestZeroDeadline(t *testing.T) {
	base := contract.Play(s503)
	transport, events := recorded(t, base)
	resp := contract.Send(t, transport, newGet(t).WithContext(zeroDeadline{t.Context()}))
	assert.Equal(t, 503, resp.StatusCode)
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
}

// Hazard G3: every attempt has the values of the caller's context, and the
// context's httptrace hooks are called once for each event.
func TestContextReachesEveryAttempt(t *testing.T) {
	type key struct{}
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		for _, method := range []string{"GET", "POST"} {
			for _, timeout := range []time.Duration{0, time.Hour} {
				t.Run(fmt.Sprintf("%s/%v", method, timeout), func(t *testing.T) {
					base, srv := contract.Serve(t, proto, func(
						w http.ResponseWriter, r *http.Request) {
						_, _ = io.Copy(io.Discard, r.Body)
						if attemptOf(r) < 3 {
							// after which a POST may be sent again
							w.WriteHeader(http.StatusTooEarly)
						}
					})
					var values []any
					seen := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
						values = append(values, req.Context().Value(key{}))
						return base.RoundTrip(req)
					})
					got := make(chan string, 20)
					ctx := httptrace.WithClientTrace(
						context.WithValue(t.Context(), key{}, "v"), &httptrace.ClientTrace{
							GotConn:      func(httptrace.GotConnInfo) { got <- "conn" },
							WroteHeaders: func() { got <- "header" },
							WroteRequest: func(httptrace.WroteRequestInfo) {
								got <- "body"
							},
							GotFirstResponseByte: func() { got <- "response" },
						})
					policy := withTimeout(timeout)
					contract.Send(t, contract.With(t, seen, policy),
						contract.Request(t, method, srv.URL, "text").WithContext(ctx))
					assert.Equal(t, []any{"v", "v", "v"}, values)
					times := map[string]int{}
					waitFor(t, "the hooks, over HTTP/2 possibly after the response", func() {
						for range 12 {
							times[<-got]++
						}
					})
					assert.Equal(t, map[string]int{
						"conn": 3, "header": 3, "body": 3, "response": 3}, times)
					assert.Empty(t, got)
				})
			}
		}
	})
}

// No retry starts later than MaxElapsed. One that starts exactly then is made.
func TestMaxElapsedEdges(t *testing.T) {
	for most, attempts := range map[time.Duration]int{
		time.Millisecond: 1, 3*time.Second - 1: 1, 3 * time.Second: 2, 3*time.Second + 1: 2,
		6*time.Second - 1: 2, 6 * time.Second: 3,
	} {
		contract.Bubble(t, most.String(), func(t *testing.T) {
			base, events := contract.Play(contract.Step{Status: 503, Takes: time.Second}),
				new(contract.Record)
			policy := contract.RetryEvery(2 * time.Second)
			policy.MaxElapsed = most
			contract.Send(t, contract.Recorded(t, base, policy, events), newGet(t))
			assert.Len(t, base.Attempts(), attempts)
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
					RoundTrip(newRequest(t, method, "text").
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
	for name, status := range map[string]int{
		"answered": 200, "canceled": 0, "canceled while waiting": 503,
	} {
		t.Run(name, func(t *testing.T) {
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				if status == 0 {
					<-req.Context().Done()
					return nil, req.Context().Err()
				}
				return &http.Response{
					StatusCode: status, Body: io.NopCloser(strings.NewReader(""))}, nil
			})
			policy := contract.RetryEvery(time.Hour)
			policy.AttemptTimeout = time.Hour
			transport := unchecked(t, base, policy)
			kept := func() weak.Pointer[http.Request] {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, "GET", "http://a.test/", nil)
				require.NoError(t, err)
				if status != 200 {
					time.AfterFunc(20*time.Millisecond, cancel)
				}
				if resp, err := transport.RoundTrip(req); err == nil {
					_ = resp.Body.Close()
				}
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
	for name, end := range contextEnds {
		for _, method := range []string{"GET", "POST"} {
			t.Run(name+"/"+method, func(t *testing.T) {
				ctx, cancel := end.of(t.Context(), -1)
				defer cancel()
				base, body := faults.Base(t, nil), contract.Counted("text")
				req := contract.Streamed(t, method, "http://a.test/", body).WithContext(ctx)
				policy := httpretry.Policy{AttemptTimeout: time.Minute}
				err := sendFails(t, contract.With(t, base, policy), req)
				for _, want := range end.is {
					assert.ErrorIs(t, err, want)
				}
				if len(end.is) == 1 { // unless there is a cause as well
					assert.True(t, err == end.is[0], "the very error: %#v", err)
				}
				var all *httpretry.Error
				assert.False(t, errors.As(err, &all), "%v", err)
				plain := sendFails(t, base, newRequest(t, method, "").WithContext(ctx))
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
			err := sendFails(t, contract.With(t, base, policy), newGet(t).WithContext(ctx))
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
		err := sendFails(t, contract.With(t, base, contract.RetryEvery(time.Minute)),
			newGet(t).WithContext(ctx))
		var all *httpretry.Error
		require.ErrorAs(t, err, &all)
		assert.True(t, all.Timeout(), "as the cause of the cancel is")
		assert.NotErrorIs(t, err, contract.ErrReset)
		assert.ErrorContains(t, err, contract.ErrReset.Error())
	})
}
