package httpretry_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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

// coolBroke is a policy whose failures are held for a while.
func coolBroke(wait time.Duration) httpretry.Policy {
	return httpretry.Policy{Backoff: strategies.Constant{Wait: wait}, Budget: usedUp{}, BudgetBackoff: true}
}

// coolRate returns the requests per second that 256 workers send which ask again
// as soon as they have failed, between from and until.
func coolRate(t *testing.T, policy httpretry.Policy, fail func() (*http.Response, error), from, until time.Duration) (rate float64) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		start := time.Now()
		transport := contractless(t, httpretry.Config{Policy: policy, Base: baseFunc(func(*http.Request) (*http.Response, error) {
			if at := time.Since(start); at >= from && at < until {
				sent.Add(1)
			}
			time.Sleep(10 * time.Millisecond)
			return fail()
		})})
		var wg sync.WaitGroup
		for range 256 {
			wg.Go(func() {
				req := request(t, "GET", "http://a.test/", "")
				for time.Since(start) < until {
					if resp, err := transport.RoundTrip(req); err == nil {
						assert.NoError(t, resp.Body.Close())
					}
				}
			})
		}
		wg.Wait()
		rate = float64(sent.Load()) / (until - from).Seconds()
	})
	return rate
}

// Hazard I9: workers that loop against a dead host send about as much as they would with
// retries, once the budget is empty. Without BudgetBackoff they spin.
func TestBudgetBackoffMeasured(t *testing.T) {
	for name, fail := range map[string]func() (*http.Response, error){
		"503":    func() (*http.Response, error) { return coolAnswer(503, nil), nil },
		"errors": func() (*http.Response, error) { return nil, &netOpError{syscall.ECONNREFUSED} },
	} {
		t.Run(name, func(t *testing.T) {
			from, until := 10*time.Second, 70*time.Second
			if raceEnabled {
				from, until = 5*time.Second, 15*time.Second
			}
			plain := coolRate(t, httpretry.Policy{Budget: httpretry.Unlimited{}}, fail, from, until)
			spinning := coolRate(t, httpretry.Policy{}, fail, 500*time.Millisecond, time.Second)
			held := coolRate(t, httpretry.Policy{BudgetBackoff: true}, fail, from, until)
			t.Logf("requests a second: %.0f with plain backoff, %.0f with an empty budget (%.0f times), %.0f with BudgetBackoff (%.2f times)",
				plain, spinning, spinning/plain, held, held/plain)
			assert.Greater(t, spinning/plain, 25.0)
			assert.Less(t, held/plain, 2.0)
			assert.Greater(t, held/plain, 0.5)
		})
	}
}

// netOpError is not the type of an error of package net, but wraps what those do.
type netOpError struct{ errno syscall.Errno }

func (e *netOpError) Error() string { return "dial: " + e.errno.Error() }
func (e *netOpError) Unwrap() error { return e.errno }

// coolSized answers with a body of some length, which is told before or not.
func coolSized(size int, known bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if known {
			w.Header().Set("Content-Length", fmt.Sprint(size))
		}
		w.WriteHeader(503)
		if !known {
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = w.Write(pattern(1, size))
	}
}

// coolFailures are answers whose end comes in all kinds of ways.
func coolFailures() map[string]http.HandlerFunc {
	all := map[string]http.HandlerFunc{
		"drips": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			for i := range 20 {
				send(w, fmt.Sprint("piece ", i, "\n"))
				time.Sleep(time.Second)
			}
		},
		"trailers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Announced")
			w.WriteHeader(503)
			send(w, "text")
			time.Sleep(10 * time.Second)
			w.Header().Set("Announced", "1")
			w.Header().Set(http.TrailerPrefix+"Surprise", "2")
		},
		"trailers that nobody announced": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			send(w, "text")
			w.Header().Set(http.TrailerPrefix+"Surprise", "2")
		},
		"gzip": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(503)
			z := gzip.NewWriter(w)
			_, _ = z.Write(bytes.Repeat([]byte("text"), 50_000))
			_ = z.Close()
		},
		"broken gzip": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(503)
			send(w, strings.Repeat("no gzip", 10))
		},
	}
	for _, size := range []int{0, 5, 64 << 10, 64<<10 + 1, 1 << 20} {
		all[fmt.Sprint(size, " bytes")] = coolSized(size, true)
		all[fmt.Sprint(size, " bytes, length unknown")] = coolSized(size, false)
		all[fmt.Sprint("breaks after ", size)] = func(w http.ResponseWriter, r *http.Request) {
			coolSized(size, false)(w, r)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	return all
}

// coolWhole is all that can be seen of a response.
func coolWhole(t *testing.T, resp *http.Response) []any {
	announced := len(resp.Trailer)
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		err = errors.New(err.Error()) // of another connection
	}
	_, again := resp.Body.Read(make([]byte, 1))
	assert.NoError(t, resp.Body.Close())
	resp.Header.Del("Date")
	return []any{resp.Status, resp.Proto, resp.Header, resp.ContentLength, resp.TransferEncoding, resp.Uncompressed, resp.Close,
		announced, string(body), err, again.Error(), resp.Trailer}
}

// Hazard A9, D3: what a failure is handed back with, after a wait, is what the server sent:
// whatever its length, and however it ends.
func TestBudgetBackoffKeepsResponses(t *testing.T) {
	for name, handler := range coolFailures() {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
				get := func(rt http.RoundTripper) []any {
					resp, err := rt.RoundTrip(request(t, "GET", "http://a.test/", ""))
					require.NoError(t, err)
					return coolWhole(t, resp)
				}
				want := get(start(handler))
				began := time.Now()
				assert.Equal(t, want, get(contract.New(t, httpretry.Config{Base: start(handler), Policy: coolBroke(5 * time.Second)})))
				assert.GreaterOrEqual(t, time.Since(began), 5*time.Second)
			})
		})
	}
}

// A response that is still on its way when the wait is over can be read as it
// comes, and is not touched until then.
func TestBudgetBackoffKeepsStreams(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
		transport := contract.New(t, httpretry.Config{Base: start(coolFailures()["drips"]), Policy: coolBroke(4500 * time.Millisecond)})
		began := time.Now()
		resp, err := transport.RoundTrip(request(t, "GET", "http://a.test/", ""))
		require.NoError(t, err)
		for i := range 20 {
			assert.Equal(t, fmt.Sprint("piece ", i, "\n"), read(t, resp.Body, len(fmt.Sprint("piece ", i, "\n"))))
			assert.Equal(t, max(4500*time.Millisecond, time.Duration(i)*time.Second), time.Since(began))
		}
		finish(t, resp)
	})
	t.Run("trailers", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
			transport := contract.New(t, httpretry.Config{Base: start(coolFailures()["trailers"]), Policy: coolBroke(5 * time.Second)})
			resp, err := transport.RoundTrip(request(t, "GET", "http://a.test/", ""))
			require.NoError(t, err)
			for range 10 { // they come meanwhile
				assert.Equal(t, http.Header{"Announced": nil}, resp.Trailer)
				time.Sleep(time.Second)
			}
			finish(t, resp)
			assert.Equal(t, http.Header{"Announced": {"1"}, "Surprise": {"2"}}, resp.Trailer)
		})
	})
}

// Hazard D5: a small failure that is held, holds no connection.
func TestBudgetBackoffHoldsNothing(t *testing.T) {
	for _, name := range []string{"0 bytes", "5 bytes", "5 bytes, length unknown", "65536 bytes", "65536 bytes, length unknown"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := faults.Pipe(t, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/200" {
						coolFailures()[name](w, r)
					}
				})
				var dials atomic.Int32
				countDials(base, &dials)
				base.MaxConnsPerHost = 1
				transport := contract.New(t, httpretry.Config{Base: base, Policy: coolBroke(10 * time.Second)})
				var wg sync.WaitGroup
				began := time.Now()
				wg.Go(func() {
					resp, err := transport.RoundTrip(request(t, "GET", "http://a.test/", ""))
					if assert.NoError(t, err) {
						assert.Equal(t, 10*time.Second, time.Since(began))
						finish(t, resp)
					}
				})
				time.Sleep(time.Second)
				assertSuccess(t, transport, request(t, "GET", "http://a.test/200", ""))
				assert.Equal(t, time.Second, time.Since(began))
				wg.Wait()
				assert.EqualValues(t, 1, dials.Load())
			})
		})
	}
}

// Hazard A4, E6: a failed attempt whose error is held has ended, and the request's body is
// closed.
func TestBudgetBackoffHoldsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := coolBroke(10 * time.Second)
		policy.AttemptTimeout = time.Hour
		body := contract.Counted("body")
		transport := contract.New(t, httpretry.Config{Policy: policy, Base: baseFunc(func(req *http.Request) (*http.Response, error) {
			time.AfterFunc(time.Second, func() {
				assert.Error(t, req.Context().Err())
				assert.Equal(t, 1, body.Closes())
			})
			return nil, errCoolBase
		})})
		began := time.Now()
		_, err := transport.RoundTrip(streamed(t, "PUT", "http://a.test/", body))
		assert.Equal(t, errCoolBase, err)
		assert.Equal(t, 10*time.Second, time.Since(began))
	})
}

// Hazard K7: a response may be closed unread: that ends what is read ahead, too, or the
// bubble would not end. What is closed cannot be read.
func TestBudgetBackoffCloses(t *testing.T) {
	for name, handler := range coolFailures() {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
				base := start(handler)
				if base.Protocols == nil && closeDrains && name == "drips" {
					t.Skip("TestBudgetBackoffClosesAtOnce does it in real time")
				}
				transport := contract.New(t, httpretry.Config{Base: base, Policy: coolBroke(time.Second)})
				resp, err := transport.RoundTrip(request(t, "GET", "http://a.test/", ""))
				require.NoError(t, err)
				assert.NoError(t, resp.Body.Close())
				n, err := resp.Body.Read(make([]byte, 10))
				assert.Zero(t, n)
				assert.Error(t, err)
				assert.NoError(t, resp.Body.Close())
			})
		})
	}
}

// Close returns at once, whatever the server does not send, and so does a Read
// that waits for it. Nothing is left of either.
func TestBudgetBackoffClosesAtOnce(t *testing.T) {
	for name, header := range map[string]http.Header{"plain": {}, "gzip": {"Content-Encoding": {"gzip"}}} {
		for _, reads := range []bool{false, true} {
			if reads && name == "gzip" {
				continue // with net/http alone, too, Close may wait for Read
			}
			t.Run(fmt.Sprintf("%s/read %v", name, reads), func(t *testing.T) {
				forProtocols(t, func(t *testing.T, proto string) {
					ended := make(chan struct{})
					base, srv := serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
						maps.Copy(w.Header(), header)
						w.WriteHeader(503)
						_ = http.NewResponseController(w).Flush()
						<-r.Context().Done()
						close(ended)
					})
					before := leftovers()
					transport := contract.New(t, httpretry.Config{Base: base, Policy: coolBroke(time.Millisecond)})
					resp, err := transport.RoundTrip(request(t, "GET", srv.URL, ""))
					require.NoError(t, err)
					got := make(chan error, 1)
					if reads {
						go func() { _, err := resp.Body.Read(make([]byte, 1)); got <- err }()
					}
					soon(t, "Close", func() { assert.NoError(t, resp.Body.Close()) })
					if reads {
						soon(t, "Read", func() { assert.Error(t, <-got) })
					}
					soon(t, "the request", func() { <-ended })
					base.CloseIdleConnections()
					assert.Eventually(t, func() bool { return leftovers() <= before }, patience, time.Millisecond)
				})
			})
		}
	}
}

// Hazard I7: what waits after its budget refused, and what does not. The event
// comes before, and tells of it.
func TestWhatBudgetBackoffHolds(t *testing.T) {
	const wait = 10 * time.Second
	with := func(change func(*httpretry.Policy)) httpretry.Policy {
		p := coolBroke(wait)
		change(&p)
		return p
	}
	for name, tt := range map[string]coolHeld{
		"503":                      {coolBroke(wait), "GET", status(503), 0, wait, httpretry.ReasonBudget},
		"429":                      {with(func(p *httpretry.Policy) { p.Throttled = strategies.Constant{Wait: 3 * wait} }), "GET", status(429), 0, 3 * wait, httpretry.ReasonBudget},
		"asked for more":           {coolBroke(wait), "GET", status(503, "Retry-After", "30"), 0, wait, httpretry.ReasonBudget},
		"error":                    {coolBroke(wait), "GET", fails(errCoolBase), 0, wait, httpretry.ReasonBudget},
		"error, copy":              {with(func(p *httpretry.Policy) { p.AttemptTimeout = time.Second }), "GET", fails(errCoolBase), 0, wait, httpretry.ReasonBudget},
		"copy":                     {with(func(p *httpretry.Policy) { p.AttemptTimeout = time.Second }), "GET", status(503), 0, wait, httpretry.ReasonBudget},
		"POST":                     {coolBroke(wait), "POST", status(425), 0, wait, httpretry.ReasonBudget},
		"just before the deadline": {coolBroke(wait), "GET", status(503), wait + 1, wait, httpretry.ReasonBudget},
		"at the deadline":          {coolBroke(wait), "GET", status(503), wait, 0, httpretry.ReasonDeadline},
		"negative":                 {with(func(p *httpretry.Policy) { p.Backoff = coolNegative{} }), "GET", status(503), 0, 0, httpretry.ReasonBudget},
		"off":                      {with(func(p *httpretry.Policy) { p.BudgetBackoff = false }), "GET", status(503), 0, 0, httpretry.ReasonBudget},
		"off, error":               {with(func(p *httpretry.Policy) { p.BudgetBackoff = false }), "GET", fails(errCoolBase), 0, 0, httpretry.ReasonBudget},
		"one attempt":              {with(func(p *httpretry.Policy) { p.MaxAttempts = 1 }), "GET", status(503), 0, 0, httpretry.ReasonAttempts},
		"too long":                 {coolBroke(wait), "GET", status(503, "Retry-After", "61"), 0, 0, httpretry.ReasonRetryAfter},
		"not idempotent":           {coolBroke(wait), "POST", status(503), 0, 0, httpretry.ReasonNotIdempotent},
		"final":                    {coolBroke(wait), "GET", status(404), 0, 0, httpretry.ReasonFinal},
		"success":                  {coolBroke(wait), "GET", status(200), 0, 0, httpretry.ReasonFinal},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, tt.play) })
	}
}

// coolHeld is a row of the table above.
type coolHeld struct {
	policy   httpretry.Policy
	method   string
	step     step
	deadline time.Duration
	held     time.Duration
	reason   httpretry.Reason
}

func (tt coolHeld) play(t *testing.T) {
	began := time.Now()
	base := play(tt.step)
	var events record
	transport := contract.New(t, httpretry.Config{Base: base, Policy: tt.policy, Observe: func(ctx context.Context, e httpretry.Event) {
		assert.Zero(t, time.Since(began))
		events.observe(ctx, e)
	}})
	req := request(t, tt.method, "http://a.test/", "")
	if tt.method == "POST" {
		req = streamed(t, "POST", "http://a.test/", contract.Counted("body"))
	}
	if tt.deadline > 0 {
		ctx, cancel := context.WithTimeout(t.Context(), tt.deadline)
		defer cancel()
		req = req.WithContext(ctx)
	}
	resp, err := transport.RoundTrip(req)
	assert.Equal(t, tt.held, time.Since(began))
	assert.Len(t, base.attempts(), 1)
	require.Len(t, events.events, 1)
	assert.Equal(t, []any{tt.reason, tt.held, 1}, []any{events.events[0].Reason, events.events[0].Wait, events.events[0].Attempt})
	assert.Equal(t, tt.step.err, err)
	if err == nil {
		assert.Equal(t, tt.step.status, resp.StatusCode)
		assert.Equal(t, tt.step.body, finish(t, resp))
	}
}

// coolNegative is a strategy whose waits are none.
type coolNegative struct{}

func (coolNegative) Start() strategies.Sequence { return func() time.Duration { return -time.Hour } }

// Hazard G1, G4: a cancel ends the wait, and the failure is handed back as it is: what has
// arrived of a response can be read.
func TestCancelDuringBudgetBackoff(t *testing.T) {
	for _, name := range []string{"503", "error", "Request.Cancel"} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
				var base http.RoundTripper = start(coolFailures()["5 bytes"])
				if name == "error" {
					base = play(fails(errCoolBase))
				}
				transport := contract.New(t, httpretry.Config{Base: base, Policy: coolBroke(time.Minute)})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				req := request(t, "GET", "http://a.test/", "").WithContext(ctx)
				if name == "Request.Cancel" {
					canceled := make(chan struct{})
					//lint:ignore SA1019 http.Client sets it
					req.Cancel = canceled
					time.AfterFunc(time.Second, func() { close(canceled) })
				} else {
					time.AfterFunc(time.Second, cancel)
				}
				began := time.Now()
				resp, err := transport.RoundTrip(req)
				assert.Equal(t, time.Second, time.Since(began))
				if name == "error" {
					assert.Equal(t, errCoolBase, err)
					return
				}
				require.NoError(t, err)
				assert.Equal(t, string(pattern(1, 5)), read(t, resp.Body, 5))
				n, err := resp.Body.Read(make([]byte, 1))
				assert.Equal(t, []any{0, io.EOF}, []any{n, err})
				_ = resp.Body.Close() // which may fail over HTTP/2 after a cancel, with net/http alone, too
			})
		})
	}
}

// The response of a retry, whose context is the attempt's, is whole after the
// wait, too, and ends with its body.
func TestBudgetBackoffAfterRetries(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
		for _, size := range []int{5, 1 << 20} {
			base := start(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(501 + httpretryAttempt(r))
				if httpretryAttempt(r) < 3 {
					return
				}
				send(w, string(pattern(1, size)))
				time.Sleep(10 * time.Second)
				send(w, "end")
			})
			policy := coolBroke(5 * time.Second)
			policy.Budget = &httpretry.HostBudget{Floor: 2, Window: time.Hour}
			policy.AttemptTimeout = time.Second
			policy.MaxAttempts = 5
			transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
			began := time.Now()
			resp, err := transport.RoundTrip(request(t, "GET", "http://a.test/", ""))
			require.NoError(t, err)
			assert.Equal(t, 504, resp.StatusCode)
			assert.Equal(t, 15*time.Second, time.Since(began))
			assert.Equal(t, 3, httpretry.Attempt(resp.Request.Context()))
			assert.Equal(t, string(pattern(1, size))+"end", finish(t, resp))
			assert.NoError(t, resp.Request.Context().Err())
		}
	})
}

// coolReads is a base whose response is read by read.
func coolReads(read func([]byte) (int, error)) baseFunc {
	return func(*http.Request) (*http.Response, error) {
		resp := coolAnswer(503, nil)
		resp.Body = io.NopCloser(readerFunc(read))
		return resp, nil
	}
}

// Hazard K4: a body that panics does so where it is read, not where nobody could
// recover. An error that comes once is not lost. No more than 64 KiB and a buffer
// are read ahead.
func TestBudgetBackoffReadsAhead(t *testing.T) {
	for _, size := range []int{0, 5, 64 << 10, 100 << 10} {
		for _, late := range []time.Duration{0, time.Minute} {
			for _, end := range []string{"panic", "error"} {
				t.Run(fmt.Sprint(size, late, end), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						content, ends := bytes.NewReader(pattern(1, size)), 0
						var ahead atomic.Int64
						base := coolReads(func(p []byte) (int, error) {
							if n, err := content.Read(p); err == nil {
								ahead.Add(int64(n))
								return n, nil
							}
							time.Sleep(late)
							if ends++; ends > 1 {
								return 0, io.EOF
							}
							if end == "panic" {
								panic("boom")
							}
							return 0, errCoolBase
						})
						resp, err := contract.New(t, httpretry.Config{Base: base, Policy: coolBroke(time.Second)}).RoundTrip(request(t, "GET", "http://a.test/", ""))
						require.NoError(t, err)
						assert.LessOrEqual(t, ahead.Load(), int64(68<<10))
						assert.Equal(t, pattern(1, size), []byte(read(t, resp.Body, size)))
						if end == "panic" {
							assert.PanicsWithValue(t, "boom", func() { _, _ = resp.Body.Read(make([]byte, 1)) })
						} else {
							n, err := resp.Body.Read(make([]byte, 1))
							assert.Equal(t, []any{0, errCoolBase}, []any{n, err})
						}
						assert.NoError(t, resp.Body.Close())
					})
				})
			}
		}
	}
}

// Hazard E3: a connection that was switched to another protocol is its own, even if the
// policy finds fault with it.
func TestBudgetBackoffSparesTunnels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := coolBroke(time.Second)
		policy.Classify = func(*http.Response, error) httpretry.Outcome { return httpretry.Transient }
		tunnel := &rwc{}
		base := baseFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 101, Body: tunnel}, nil
		})
		resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "GET", "http://a.test/", ""))
		require.NoError(t, err)
		assert.Same(t, tunnel, resp.Body)
	})
}

type rwc struct{ bytes.Buffer }

func (*rwc) Close() error { return nil }

// Hazard K6: neither goroutines nor connections are left of many that were held.
func TestBudgetBackoffLeavesNothing(t *testing.T) {
	forProtocols(t, func(t *testing.T, proto string) {
		failures := coolFailures()
		base, srv := serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
			failures[strings.ReplaceAll(r.URL.Query().Get("name"), "drips", "5 bytes")](w, r)
		})
		before := leftovers()
		policy := coolBroke(time.Millisecond)
		transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
		var wg sync.WaitGroup
		for name := range failures {
			if name == "drips" || name == "trailers" {
				continue // they take their time
			}
			for i := range 4 {
				wg.Go(func() {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					req := request(t, "GET", srv.URL, "").WithContext(ctx)
					req.URL.RawQuery = "name=" + strings.ReplaceAll(name, " ", "+")
					resp, err := transport.RoundTrip(req)
					if !assert.NoError(t, err) {
						return
					}
					switch i {
					case 1:
						_, _ = resp.Body.Read(make([]byte, 1))
					case 2:
						_, _ = io.Copy(io.Discard, resp.Body)
					case 3:
						cancel()
					}
					_ = resp.Body.Close()
				})
			}
		}
		wg.Wait()
		srv.CloseClientConnections()
		base.CloseIdleConnections()
		assert.Eventually(t, func() bool { return leftovers() <= before }, patience, time.Millisecond)
	})
}
