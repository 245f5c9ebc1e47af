package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/strategies"
)

// waitOnBudget returns a policy whose budget refuses every retry, with
// WaitOnBudget.
func waitOnBudget(wait time.Duration) httpretry.Policy {
	policy := contract.RetryEvery(wait)
	policy.Budget, policy.WaitOnBudget = contract.UsedUp{}, true
	return policy
}

// Hazard I7: RoundTrip returns after the policy's backoff, and not after the
// wait that the server asked for, if the budget refused the retry. The Event
// comes before that wait and contains it. No other Reason has a wait.
func TestWaitOnBudget(t *testing.T) {
	const wait = 10 * time.Second
	boom := errors.New("boom")
	copied := func(p *httpretry.Policy) { p.AttemptTimeout = time.Second }
	for _, tt := range []struct {
		name     string
		method   string // "": GET
		policy   func(*httpretry.Policy)
		step     contract.Step
		deadline time.Duration
		wait     time.Duration
		reason   httpretry.Reason
	}{
		{name: "503", step: s503, wait: wait, reason: httpretry.ReasonBudget},
		{name: "503, copied", policy: copied, step: s503, wait: wait,
			reason: httpretry.ReasonBudget},
		{name: "error", step: contract.Fails(boom), wait: wait, reason: httpretry.ReasonBudget},
		{name: "error, copied", policy: copied, step: contract.Fails(boom), wait: wait,
			reason: httpretry.ReasonBudget},
		{name: "POST", method: "POST", step: s425, wait: wait, reason: httpretry.ReasonBudget},
		{name: "asked for more", step: contract.Status(503, "Retry-After", "30"), wait: wait,
			reason: httpretry.ReasonBudget},
		{name: "asked for too much", step: contract.Status(503, "Retry-After", "61"),
			reason: httpretry.ReasonRetryAfter},
		{name: "just before the deadline", step: s503, deadline: wait + 1, wait: wait,
			reason: httpretry.ReasonBudget},
		{name: "at the deadline", step: s503, deadline: wait, reason: httpretry.ReasonDeadline},
		{name: "negative backoff", policy: func(p *httpretry.Policy) {
			p.Backoff = strategies.Func(func(int) time.Duration { return -time.Hour })
		}, step: s503, reason: httpretry.ReasonBudget},
		{name: "off", policy: func(p *httpretry.Policy) { p.WaitOnBudget = false }, step: s503,
			reason: httpretry.ReasonBudget},
		{name: "off, error", policy: func(p *httpretry.Policy) { p.WaitOnBudget = false },
			step: contract.Fails(boom), reason: httpretry.ReasonBudget},
		{name: "one attempt", policy: func(p *httpretry.Policy) { p.MaxAttempts = 1 }, step: s503,
			reason: httpretry.ReasonDisabled},
		{name: "not idempotent", method: "POST", step: s503, reason: httpretry.ReasonNotIdempotent},
		{name: "permanent", step: s404, reason: httpretry.ReasonPermanent},
		{name: "success", step: s200, reason: httpretry.ReasonSuccess},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := waitOnBudget(wait)
				if tt.policy != nil {
					tt.policy(&policy)
				}
				base, events, start := contract.Play(tt.step), new(contract.Record), time.Now()
				observe := func(ctx context.Context, e httpretry.Event) {
					assert.Zero(t, time.Since(start))
					events.Observe(ctx, e)
				}
				transport := contract.New(t,
					httpretry.Config{Base: base, Policy: policy, Observe: observe})
				req := contract.Request(t, tt.method, "http://a.test/", "")
				if tt.deadline > 0 {
					ctx, cancel := context.WithTimeout(t.Context(), tt.deadline)
					defer cancel()
					req = req.WithContext(ctx)
				}
				resp, err := transport.RoundTrip(req)
				assert.Equal(t, tt.wait, time.Since(start))
				assert.Len(t, base.Attempts(), 1)
				require.Len(t, events.Events, 1)
				assert.Equal(t, tt.reason, events.Reason())
				assert.Equal(t, tt.wait, events.Events[0].Wait)
				require.ErrorIs(t, err, tt.step.Err)
				if err == nil {
					assert.Equal(t, tt.step.Body, contract.ReadBody(t, resp))
				}
			})
		})
	}
}

// Hazard G1, G4: a cancel ends the wait. RoundTrip then returns the response or
// the error that it has, and the bytes read of the body are still there.
func TestCancelDuringWaitOnBudget(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprintf("Request.Cancel=%t/error=%t", legacy, fails), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
					var base http.RoundTripper = start(
						func(w http.ResponseWriter, _ *http.Request) {
							w.WriteHeader(http.StatusServiceUnavailable)
							_, _ = io.WriteString(w, "text")
						})
					if fails {
						base = contract.Play(reset)
					}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					req := newGet(t).WithContext(ctx)
					if legacy {
						canceled := make(chan struct{})
						//nolint:staticcheck // http.Client sets it
						req.Cancel = canceled
						cancel = func() { close(canceled) }
					}
					time.AfterFunc(time.Second, cancel)
					began := time.Now()
					resp, err := contract.New(t, httpretry.Config{
						Base: base, Policy: waitOnBudget(time.Hour)}).RoundTrip(req)
					assert.Equal(t, time.Second, time.Since(began))
					if fails {
						require.ErrorIs(t, err, contract.ErrReset)
						return
					}
					require.NoError(t, err)
					body, err := io.ReadAll(resp.Body)
					require.NoError(t, err)
					assert.Equal(t, "text", string(body))
					// Over HTTP/2, net/http may return the context's error.
					_ = resp.Body.Close()
				})
			})
		}
	}
}

// Hazard A4, E6: during the wait after an error, the attempt's context has
// ended and the request's body is closed.
func TestWaitOnBudgetHoldsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent context.Context
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			sent = req.Context()
			return nil, contract.ErrReset
		})
		transport := contract.New(t, httpretry.Config{Base: base, Policy: waitOnBudget(time.Hour)})
		body, done := contract.Counted("text"), make(chan error)
		go func() {
			_, err := transport.RoundTrip(contract.Streamed(t, "PUT", "http://a.test/", body))
			done <- err
		}()
		synctest.Wait()
		assert.ErrorIs(t, sent.Err(), context.Canceled)
		assert.Equal(t, 1, body.Closes())
		start := time.Now()
		require.ErrorIs(t, <-done, contract.ErrReset)
		assert.Equal(t, time.Hour, time.Since(start))
	})
}

// sized returns a handler that sends a body of that many bytes with a 503, with
// a Content-Length or without.
func sized(size int, known bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if known {
			w.Header().Set("Content-Length", fmt.Sprint(size))
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		if !known {
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = w.Write(randomBytes(1, size))
	}
}

// Hazard D5: another request can use the connection of a response of up to 64
// KiB while RoundTrip waits with it.
func TestWaitOnBudgetHoldsNoConnection(t *testing.T) {
	for _, size := range []int{0, 5, 64 << 10} {
		for _, known := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d bytes, length known=%t", size, known), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					base := faults.Pipe(t, func(w http.ResponseWriter, r *http.Request) {
						if r.URL.Path == "/failing" {
							sized(size, known)(w, r)
						}
					})
					base.MaxConnsPerHost = 1
					var conns atomic.Int32
					countDials(base, &conns)
					transport := contract.New(t,
						httpretry.Config{Base: base, Policy: waitOnBudget(time.Hour)})
					start := time.Now()
					var failing sync.WaitGroup
					failing.Go(func() {
						resp, err := transport.RoundTrip(
							contract.Request(t, "GET", "http://a.test/failing", ""))
						if assert.NoError(t, err) {
							assert.Equal(t, time.Hour, time.Since(start))
							assert.Len(t, contract.ReadBody(t, resp), size)
						}
					})
					time.Sleep(time.Minute)
					resp, err := transport.RoundTrip(newGet(t))
					require.NoError(t, err)
					assert.Equal(t, time.Minute, time.Since(start))
					contract.ReadBody(t, resp)
					failing.Wait()
					assert.EqualValues(t, 1, conns.Load())
				})
			})
		}
	}
}

// Hazard A9: after the wait, the response is the one that the server sent,
// however it ends, also if it is that of a copied attempt, whose context its
// body needs.
func TestWaitOnBudgetKeepsResponses(t *testing.T) {
	const wait = 5 * time.Second
	for name, handler := range map[string]http.HandlerFunc{
		"empty":             sized(0, true),
		"short":             sized(5, true),
		"short, chunked":    sized(5, false),
		"64 KiB":            sized(64<<10, true),
		"64 KiB and a byte": sized(64<<10+1, false),
		"1 MiB":             sized(1<<20, true),
		"pieces with trailers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			w.WriteHeader(http.StatusServiceUnavailable)
			for range 20 {
				writeAndFlush(w, "piece")
				time.Sleep(time.Second)
			}
			w.Header().Set("X-Sum", "42")
		},
		"breaks off": func(w http.ResponseWriter, r *http.Request) {
			sized(100, false)(w, r)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
				// get returns all that a caller sees of the response.
				get := func(rt http.RoundTripper) []any {
					resp, err := rt.RoundTrip(newGet(t))
					require.NoError(t, err)
					resp.Header.Del("Date")
					body, err := io.ReadAll(resp.Body)
					_ = resp.Body.Close()
					return []any{resp.Status, resp.Header, resp.ContentLength, string(body),
						fmt.Sprintf("%T %[1]v", err), resp.Trailer}
				}
				want := get(start(handler))
				policy := waitOnBudget(wait)
				policy.AttemptTimeout = time.Second
				began := time.Now()
				assert.Equal(t, want,
					get(contract.New(t, httpretry.Config{Base: start(handler), Policy: policy})))
				assert.GreaterOrEqual(t, time.Since(began), wait)
			})
		})
	}
}

// tunnelBody is a body that can be written to, and counts its reads.
type tunnelBody struct {
	bytes.Buffer
	reads int
}

func (b *tunnelBody) Read(p []byte) (int, error) { b.reads++; return b.Buffer.Read(p) }
func (*tunnelBody) Close() error                 { return nil }

// Hazard E3: a tunnel is returned as it came, and nothing is read from it, even
// if the policy would retry its request.
func TestWaitOnBudgetSparesTunnels(t *testing.T) {
	for _, tt := range []struct {
		method string
		status int
		same   bool
	}{{"GET", 101, true}, {"CONNECT", 200, true}, {"CONNECT", 503, false}, {"GET", 200, false}} {
		for _, timeout := range []time.Duration{0, time.Minute} { // without and with a copy
			t.Run(fmt.Sprintf("%s/%d/%v", tt.method, tt.status, timeout), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					tunnel := new(tunnelBody)
					base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
						return &http.Response{StatusCode: tt.status, ProtoMajor: 1,
							ContentLength: -1, Body: tunnel}, nil
					})
					policy := waitOnBudget(time.Hour)
					policy.AttemptTimeout = timeout
					policy.Idempotent = func(*http.Request) bool { return true }
					policy.Classify = func(*http.Request, *http.Response, error) httpretry.Outcome {
						return httpretry.Transient
					}
					start := time.Now()
					resp, err := contract.Unchecked(t,
						httpretry.Config{Base: base, Policy: policy}).
						RoundTrip(contract.Request(t, tt.method, "http://a.test/", ""))
					require.NoError(t, err)
					assert.Equal(t, time.Hour, time.Since(start))
					assert.Equal(t, tt.same, resp.Body == io.ReadCloser(tunnel), "%T", resp.Body)
					assert.Equal(t, tt.same, tunnel.reads == 0)
					require.NoError(t, resp.Body.Close())
				})
			})
		}
	}
}

// panicAfter returns a body that panics once, that long after text was read.
func panicAfter(text string, wait time.Duration) *contract.Body {
	r, ended := strings.NewReader(text), false
	return &contract.Body{
		ReadCloser: io.NopCloser(contract.ReaderFunc(func(p []byte) (int, error) {
			if r.Len() > 0 || ended {
				return r.Read(p)
			}
			time.Sleep(wait)
			ended = true
			panic("boom")
		}))}
}

// Hazard K4: a panic in the body of a response reaches the caller, and the
// attempt and both bodies have ended then.
func TestPanicWhileWaitingOnBudget(t *testing.T) {
	for _, method := range []string{"GET", "PUT"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answer, upload := panicAfter("text", 0), contract.Counted("text")
				req, sent := contract.Request(t, method, "http://a.test/", ""),
					context.Background()
				if method == "PUT" {
					req.Body = upload
				}
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					sent = req.Context()
					return &http.Response{
						StatusCode: 503, ProtoMajor: 1, ContentLength: -1, Body: answer}, nil
				})
				transport := contract.Unchecked(t,
					httpretry.Config{Base: base, Policy: waitOnBudget(time.Hour)})
				assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(req) })
				assert.Equal(t, 1, answer.Closes(), "closes of the response's body")
				if method == "PUT" { // a copy
					assert.Equal(t, 1, upload.Closes(), "closes of the request's body")
					assert.ErrorIs(t, sent.Err(), context.Canceled)
				}
			})
		})
	}
}

// Hazard K4: a panic that comes when RoundTrip has stopped reading ahead is
// that of the caller's Read.
func TestPanicOfASlowBodyAfterWaitOnBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := panicAfter("text", time.Minute)
		base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 503, ProtoMajor: 1, ContentLength: -1, Body: body},
				nil
		})
		resp, err := contract.New(t,
			httpretry.Config{Base: base, Policy: waitOnBudget(time.Second)}).
			RoundTrip(newGet(t))
		require.NoError(t, err)
		assert.Equal(t, "text", readN(t, resp.Body, 4))
		for range 2 { // the body must not seem to end
			assert.PanicsWithValue(t, "boom", func() { _, _ = resp.Body.Read(make([]byte, 1)) })
		}
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, 1, body.Closes())
	})
}
