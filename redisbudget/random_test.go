package redisbudget_test

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/redisbudget"
	"github.com/seed421102f4/httpretry/retrytest"
)

// As in the simulations of the core, ten processes send five requests a second
// each to a host that fails three of ten attempts at random. Here, they share a
// budget. After a minute, all attempts fail.
func TestRandomFailures(t *testing.T) {
	const minute = 60.0 // seconds
	for _, cfg := range []redisbudget.Config{
		{Burst: 5}, {Burst: 50}, {Burst: 5, Window: 2 * time.Minute},
	} {
		far(time.Millisecond, func(t *testing.T, s *farServer) {
			var mu sync.Mutex
			requests, attempts, successes, inOutage := 0, 0, 0, 0
			random, arrivals := rand.New(rand.NewPCG(1, 2)), rand.New(rand.NewPCG(3, 4))
			began := time.Now()
			host := retrytest.Func(func(req *http.Request) (*http.Response, error) {
				at := time.Since(began).Seconds()
				time.Sleep(50 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				if at < minute {
					attempts++
				} else if httpretry.Attempt(req.Context()) > 1 {
					inOutage++
				}
				if at >= minute || random.Float64() < 0.3 {
					return &http.Response{StatusCode: http.StatusServiceUnavailable}, nil
				}
				successes++
				return &http.Response{StatusCode: http.StatusOK}, nil
			})
			var succeeded atomic.Int64
			var wg sync.WaitGroup
			for range 10 {
				b := s.watch(t, cfg)
				transport, err := httpretry.New(httpretry.Config{
					Policy: httpretry.Policy{Budget: b},
					Base:   retrytest.Base(t, retrytest.Always(host)),
				})
				require.NoError(t, err)
				for at := 0.0; at < minute+10; at += arrivals.ExpFloat64() / 5 {
					if at < minute {
						requests++
					}
					wg.Go(func() {
						time.Sleep(time.Duration(at * float64(time.Second)))
						resp, err := transport.RoundTrip(newRequest(t, target))
						if assert.NoError(t, err) && resp.StatusCode == http.StatusOK {
							succeeded.Add(1)
						}
						assert.NoError(t, resp.Body.Close())
					})
				}
				defer func() { assert.Zero(t, b.allowed(local)) }()
			}
			wg.Wait()
			success := float64(succeeded.Load()) / float64(requests)
			t.Logf("Burst %d: %.1f %% of %d requests succeed, %.2f attempts each",
				cfg.Burst, 100*success, requests, float64(attempts)/float64(requests))
			assert.Greater(t, success, 0.95)
			// The law of outages. The longest Window has all successes. For the others, the
			// limit is wider than it has to be.
			t.Logf("%d retries in the outage, after %d successes", inOutage, successes)
			assert.LessOrEqual(t, float64(inOutage), 0.2*float64(successes)+float64(cfg.Burst))
			assert.Greater(t, inOutage, 200, "hardly a retry is allowed")
		})(t)
	}
}
