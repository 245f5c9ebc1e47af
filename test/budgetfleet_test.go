package test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/time/rate"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// The tests in this file simulate clients of one host in virtual time. retrylab
// has tests of more such fleets.

// sendTo sends one request and reports whether it succeeded.
func sendTo(t *testing.T, transport http.RoundTripper) bool {
	resp, err := transport.RoundTrip(contract.Request(t, "GET", "https://host.test/", ""))
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// A busyHost answers 100 requests a second, one after another. It refuses
// requests that would wait for longer than a second with 503, and a refusal
// costs it half as much as an answer.
type busyHost struct {
	mu   sync.Mutex
	free time.Time // when it has worked off all requests so far
}

func (h *busyHost) RoundTrip(req *http.Request) (*http.Response, error) {
	wait, status := h.admit(time.Now())
	time.Sleep(wait)
	return contract.Play(contract.Status(status)).RoundTrip(req)
}

// admit returns when and how a request that arrives now is answered.
func (h *busyHost) admit(now time.Time) (wait time.Duration, status int) {
	const service = 10 * time.Millisecond
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.free.Before(now) {
		h.free = now
	}
	if h.free.Sub(now) > time.Second {
		h.free = h.free.Add(service / 2)
		return 0, http.StatusServiceUnavailable
	}
	h.free = h.free.Add(service)
	return h.free.Sub(now), http.StatusOK
}

// A host that can answer 100 requests a second gets 150, from processes that
// send them at random times.
func TestFleetGoodputAtOverload(t *testing.T) {
	const length = 120 * time.Second
	for _, c := range []struct {
		processes int
		attempts  int
		want      float64
	}{{20, 1, 0.5}, {1, 3, 0.38}, {5, 3, 0.38}, {20, 3, 0.38}} {
		synctest.Test(t, func(t *testing.T) {
			begin, host := time.Now(), new(busyHost)
			var served atomic.Int64
			var wg sync.WaitGroup
			for i := range c.processes {
				transport := contract.Unchecked(t, httpretry.Config{
					Base: host, Policy: httpretry.Policy{MaxAttempts: c.attempts}})
				r := rand.New(rand.NewPCG(0, uint64(i)))
				gap := func() time.Duration {
					seconds := r.ExpFloat64() * float64(c.processes) / 150
					return time.Duration(seconds * float64(time.Second))
				}
				wg.Go(func() {
					for time.Sleep(gap()); time.Since(begin) < length; time.Sleep(gap()) {
						wg.Go(func() {
							if sendTo(t, transport) && time.Since(begin) < length {
								served.Add(1)
							}
						})
					}
				})
			}
			wg.Wait()
			goodput := float64(served.Load()) / (100 * length.Seconds())
			t.Logf("%+v: %.3g", c, goodput)
			assert.InEpsilon(t, c.want, goodput, 0.2, "%+v", c)
		})
	}
}

// 200 jobs for an API that takes ten a second, and answers 429 to more. Retries
// after a 429 are not charged, so that each job gets all its attempts.
func TestJobsForALimitedAPI(t *testing.T) {
	for _, workers := range []int{8, 200} {
		for _, attempts := range []int{3, 10} {
			synctest.Test(t, func(t *testing.T) {
				limit := rate.NewLimiter(10, 10)
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					time.Sleep(50 * time.Millisecond)
					step := s200
					if !limit.Allow() {
						step = contract.Status(429, "Retry-After", "1")
					}
					return contract.Play(step).RoundTrip(req)
				})
				var ok, exhausted atomic.Int64
				transport := contract.Unchecked(t, httpretry.Config{
					Base:   base,
					Policy: httpretry.Policy{MaxAttempts: attempts},
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
				var wg sync.WaitGroup
				for range workers {
					wg.Go(func() {
						for range 200 / workers {
							if sendTo(t, transport) {
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
func failedOf100(t *testing.T, pause time.Duration, fails func() bool) (failed int) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			time.Sleep(50 * time.Millisecond)
			if fails() {
				return contract.Play(s503).RoundTrip(req)
			}
			return contract.Play(s200).RoundTrip(req)
		})
		transport := contract.Unchecked(t, httpretry.Config{Base: base})
		for range 100 {
			if !sendTo(t, transport) {
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
			sum := 0
			for seed := range uint64(seeds) {
				r := rand.New(rand.NewPCG(seed, 8))
				sum += failedOf100(t, pause, func() bool { return r.IntN(c.oneIn) == 0 })
			}
			assert.LessOrEqual(t, float64(sum)/seeds, float64(c.most), "1 in %d, pause %v",
				c.oneIn, pause)
		}
	}
}
