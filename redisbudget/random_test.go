package redisbudget_test

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/redisbudget"
)

// A flaky host fails three of ten attempts at random.
type flaky struct {
	mu       sync.Mutex
	random   *rand.Rand
	attempts int
}

func (f *flaky) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(50 * time.Millisecond)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attempts++
	resp := &http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, Header: http.Header{}, Body: http.NoBody, Request: req}
	if f.random.Float64() < 0.3 {
		resp.StatusCode = http.StatusServiceUnavailable
	}
	return resp, nil
}

// As in the simulations of the core, ten processes send five requests a second
// each. Here, they share a budget. If retries that succeed gave no tokens, 85 %
// of the requests would succeed.
func TestRandomFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFarServer(t, time.Millisecond)
		host := &flaky{random: rand.New(rand.NewPCG(1, 2))}
		arrivals := rand.New(rand.NewPCG(3, 4))
		var mu sync.Mutex
		var wg sync.WaitGroup
		requests, succeeded := 0, 0
		for range 10 {
			b := watch(t, redisbudget.Config{Client: s.client(t)})
			transport, err := httpretry.New(httpretry.Config{Base: host, Policy: httpretry.Policy{Budget: b}})
			require.NoError(t, err)
			for at := 0.0; at < 120; at += arrivals.ExpFloat64() / 5 {
				requests++
				wg.Go(func() {
					time.Sleep(time.Duration(at * float64(time.Second)))
					req, err := http.NewRequest(http.MethodGet, target, nil)
					if !assert.NoError(t, err) {
						return
					}
					resp, err := transport.RoundTrip(req)
					if !assert.NoError(t, err) {
						return
					}
					assert.NoError(t, resp.Body.Close())
					mu.Lock()
					defer mu.Unlock()
					if resp.StatusCode == http.StatusOK {
						succeeded++
					}
				})
			}
			defer func() {
				assert.Zero(t, b.local.Load())
				require.NoError(t, b.Close())
			}()
		}
		wg.Wait()
		success, load := float64(succeeded)/float64(requests), float64(host.attempts)/float64(requests)
		t.Logf("%.1f %% of %d requests succeed, %.2f attempts each", 100*success, requests, load)
		assert.Greater(t, success, 0.88)
	})
}
