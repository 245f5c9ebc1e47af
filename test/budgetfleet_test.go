package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/errno"
)

// The tests in this file simulate clients of one host in virtual time. The
// clients are RetryTransports, and the host is a simulatedHost.

// A simulatedHost answers requests one after another, in their order. It works
// off requests whose clients have given up, as servers do.
type simulatedHost struct {
	service time.Duration // that one request takes
	latency time.Duration // of the network, added to each answer

	// Requests that would wait for longer than queue are refused with 503. A
	// refusal takes the share refusal of a service. 0: none are.
	queue   time.Duration
	refusal float64

	failures func() bool // tells whether the next request fails with 503; nil: none does

	mu       sync.Mutex
	free     time.Time // when the host has worked off all requests so far
	attempts int
}

func (h *simulatedHost) RoundTrip(req *http.Request) (*http.Response, error) {
	wait, status := h.admit(time.Now())
	// With Go 1.26, the race detector crashes if goroutines of a bubble run timers that
	// are due at once (runtime.timer.maybeRunChan).
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-req.Context().Done():
			return nil, context.Cause(req.Context())
		}
	}
	resp := &http.Response{
		StatusCode: status,
		ProtoMajor: 1,
		Header:     http.Header{},
		Body:       io.NopCloser(strings.NewReader("")),
		Request:    req,
	}
	return resp, nil
}

// admit returns when and how a request that arrives now is answered.
func (h *simulatedHost) admit(now time.Time) (wait time.Duration, status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempts++
	if h.free.Before(now) {
		h.free = now
	}
	status = http.StatusOK
	switch waiting := h.free.Sub(now); {
	case h.failures != nil && h.failures():
		status = http.StatusServiceUnavailable
	case h.queue > 0 && waiting > h.queue:
		h.free = h.free.Add(time.Duration(h.refusal * float64(h.service)))
		return h.latency, http.StatusServiceUnavailable
	}
	h.free = h.free.Add(h.service)
	return h.free.Sub(now) + h.latency, status
}

// A fleet is processes that send requests to one host at random times.
type fleet struct {
	processes int
	rate      float64 // of requests per second, of all processes together
	strict    bool    // each process has the classic budget of a tenth of all requests

	mu       sync.Mutex
	requests []simulatedRequest
}

type simulatedRequest struct {
	began, ended time.Duration
	ok           bool
}

// run sends requests until the time is over, and waits for their answers.
func (f *fleet) run(t *testing.T, base http.RoundTripper, policy httpretry.Policy,
	length time.Duration) {
	t.Helper()
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range f.processes {
		policy := policy
		if f.strict {
			policy.Budget = &httpretry.HostBudget{Strict: true, Ratio: 0.1}
		}
		transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy})
		require.NoError(t, err)
		r := rand.New(rand.NewPCG(0, uint64(i)))
		gap := func() time.Duration {
			return time.Duration(
				r.ExpFloat64() * float64(f.processes) / f.rate * float64(time.Second))
		}
		wg.Go(func() {
			for time.Sleep(gap()); time.Since(begin) < length; time.Sleep(gap()) {
				wg.Go(func() {
					began := time.Since(begin)
					ok := fetch(t, transport) == nil
					f.mu.Lock()
					defer f.mu.Unlock()
					f.requests = append(f.requests, simulatedRequest{began, time.Since(begin), ok})
				})
			}
		})
	}
	wg.Wait()
}

// success returns the share of the requests that began in some time and
// succeeded.
func (f *fleet) success(from, to time.Duration) float64 {
	var all, ok float64
	for _, r := range f.requests {
		if r.began >= from && r.began < to {
			all++
			if r.ok {
				ok++
			}
		}
	}
	return ok / max(all, 1)
}

var errStatus = errors.New("not 200")

// fetch sends one request and returns an error if it did not succeed.
func fetch(t *testing.T, transport http.RoundTripper) error {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://host.test/", nil)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errStatus
	}
	return nil
}

// requireNear requires a figure within 20 % of another.
func requireNear(t *testing.T, want, got float64, what string) {
	t.Helper()
	t.Logf("%s: %.3g, want about %.3g", what, got, want)
	assert.InEpsilon(t, want, got, 0.2, what)
}

// Attempts fail at random. The shares are those of this simulation.
// docs/choosing.md has retrylab's.
func TestFleetRandomFailures(t *testing.T) {
	for _, c := range []struct {
		failures, rate, success, strict float64
	}{
		{0.1, 50, 0.999, 0.988},
		{0.2, 50, 0.992, 0.88},
		{0.3, 50, 0.972, 0.76},
		{0.3, 100, 0.972, 0.76},
	} {
		for _, strict := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				want := c.success
				if strict {
					want = c.strict
				}
				r := rand.New(rand.NewPCG(1, 2))
				host := &simulatedHost{
					latency:  50 * time.Millisecond,
					failures: func() bool { return r.Float64() < c.failures },
				}
				f := &fleet{processes: 10, rate: c.rate, strict: strict}
				f.run(t, host, httpretry.Policy{}, 300*time.Second)
				got := f.success(0, time.Hour)
				t.Logf(
					"%.0f %% fail, strict %v: success %.4f, load %.3f", 100*c.failures, strict, got,
					float64(host.attempts)/float64(len(f.requests)))
				// The fewer fail, the less chance matters.
				assert.InDelta(t, want, got, min(0.003+0.17*(1-want), 0.02))
			})
		}
	}
}

// One process of 20 requests a second survives a restart of its host. Few of the
// requests that begin meanwhile fail.
func TestFleetSurvivesARestart(t *testing.T) {
	const from = 40 * time.Second
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errno.ConnRefused}
	reset := &net.OpError{Op: "read", Net: "tcp", Err: errno.ConnReset}
	for _, c := range []struct {
		length time.Duration
		most   int
	}{{time.Second, 1}, {3 * time.Second, 13}} {
		for what, fail := range map[string]error{"503": nil, "refused": refused, "reset": reset} {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				down := func() bool {
					at := time.Since(begin)
					return at > from && at <= from+c.length
				}
				host := &simulatedHost{latency: 50 * time.Millisecond, failures: down}
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					if fail != nil && down() {
						return nil, fail
					}
					return host.RoundTrip(req)
				})
				f := &fleet{processes: 1, rate: 20}
				f.run(t, base, httpretry.Policy{}, from+c.length)
				failed, all := 0, 0
				for _, r := range f.requests {
					if r.began > from {
						all++
						if !r.ok {
							failed++
						}
					}
				}
				t.Logf("%s for %v: %d of %d fail", what, c.length, failed, all)
				assert.LessOrEqual(t, failed, c.most, "%s for %v", what, c.length)
			})
		}
	}
}

// A host that can answer 100 requests a second gets 150. It refuses the rest
// with 503, and a refusal costs it half as much as an answer.
func TestFleetGoodputAtOverload(t *testing.T) {
	const length = 120 * time.Second
	for _, c := range []struct {
		processes int
		attempts  int
		want      float64
	}{{20, 1, 0.5}, {1, 3, 0.38}, {5, 3, 0.38}, {20, 3, 0.38}} {
		synctest.Test(t, func(t *testing.T) {
			host := &simulatedHost{service: 10 * time.Millisecond, queue: time.Second, refusal: 0.5}
			f := &fleet{processes: c.processes, rate: 150}
			f.run(t, host,
				httpretry.Policy{AttemptTimeout: 2 * time.Second, MaxAttempts: c.attempts}, length)
			served := 0
			for _, r := range f.requests {
				if r.ok && r.ended < length {
					served++
				}
			}
			requireNear(t, c.want, float64(served)/(100*length.Seconds()),
				fmt.Sprintf("goodput of %d processes with %d attempts", c.processes, c.attempts))
		})
	}
}

// limitedAPI answers ten requests a second, and 429 to more.
type limitedAPI struct{ limit *rate.Limiter }

func (a limitedAPI) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(50 * time.Millisecond)
	resp := &http.Response{
		StatusCode: 200, ProtoMajor: 1, Header: http.Header{}, Body: http.NoBody, Request: req}
	if !a.limit.Allow() {
		resp.StatusCode = http.StatusTooManyRequests
		resp.Header.Set("Retry-After", "1")
	}
	return resp, nil
}

// 200 jobs for an API that takes ten a second. Retries after a 429 are not
// charged, so that each job gets all its attempts.
func TestJobsForALimitedAPI(t *testing.T) {
	for _, workers := range []int{8, 200} {
		for _, attempts := range []int{3, 10} {
			synctest.Test(t, func(t *testing.T) {
				var ok, exhausted atomic.Int64
				policy := httpretry.Policy{MaxAttempts: attempts}
				transport, err := httpretry.New(httpretry.Config{
					Base:   limitedAPI{rate.NewLimiter(10, 10)},
					Policy: policy,
					Observe: func(_ context.Context, e httpretry.Event) {
						switch e.Reason {
						case httpretry.ReasonNone, httpretry.ReasonSuccess:
						case httpretry.ReasonAttempts:
							exhausted.Add(1)
						default:
							assert.Fail(t, "ended early", "%v", e.Reason)
						}
					},
				})
				require.NoError(t, err)
				jobs := make(chan int, 200)
				for i := range cap(jobs) {
					jobs <- i
				}
				close(jobs)
				var wg sync.WaitGroup
				for range workers {
					wg.Go(func() {
						for range jobs {
							if fetch(t, transport) == nil {
								ok.Add(1)
							}
						}
					})
				}
				wg.Wait()
				t.Logf("%d workers, %d attempts: %d of 200 succeed", workers, attempts, ok.Load())
				assert.EqualValues(t, 200, ok.Load()+exhausted.Load())
				if attempts == 10 {
					assert.EqualValues(t, 200, ok.Load())
				} else {
					assert.GreaterOrEqual(t, ok.Load(), int64(150))
				}
			})
		}
	}
}

// failedOf100 returns how many of 100 calls fail that a client makes one after
// another, with a pause between them.
func failedOf100(t *testing.T, pause time.Duration, failures func() bool) (failed int) {
	synctest.Test(t, func(t *testing.T) {
		host := &simulatedHost{latency: 50 * time.Millisecond, failures: failures}
		transport, err := httpretry.New(httpretry.Config{Base: host})
		require.NoError(t, err)
		for range 100 {
			if fetch(t, transport) != nil {
				failed++
			}
			time.Sleep(pause)
		}
	})
	return failed
}

// One client, with the default of three attempts.
func TestHundredCalls(t *testing.T) {
	const seeds = 60
	for _, c := range []struct{ oneIn, most int }{{3, 6}, {5, 1}, {10, 1}} {
		for first := range c.oneIn {
			n := first
			assert.Zero(t, failedOf100(t, 0, func() bool { n++; return n%c.oneIn == 0 }),
				"each %d. fails", c.oneIn)
		}
		for _, pause := range []time.Duration{0, 200 * time.Millisecond, time.Second} {
			sum, within := 0, 0
			for seed := range uint64(seeds) {
				r := rand.New(rand.NewPCG(seed, 8))
				failed := failedOf100(t, pause, func() bool { return r.IntN(c.oneIn) == 0 })
				sum += failed
				if failed <= c.most {
					within++
				}
			}
			t.Logf("1 in %d, pause %v: %.1f of 100 fail on average; at most %d in %d of %d cases",
				c.oneIn, pause, float64(sum)/seeds, c.most, within, seeds)
			assert.LessOrEqual(t, float64(sum)/seeds, float64(c.most))
		}
	}
}
