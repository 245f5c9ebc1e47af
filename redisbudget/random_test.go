package redisbudget_test

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
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
// each. Here, they share a budget.
func TestRandomFailures(t *testing.T) {
	for _, c := range []struct {
		burst int
		least float64 // of the requests succeed
	}{{5, 0.95}, {50, 0.95}} {
		synctest.Test(t, func(t *testing.T) {
			host := &flaky{random: rand.New(rand.NewPCG(1, 2))}
			requests, succeeded := sendAtRandom(t, host, c.burst)
			success := float64(succeeded) / float64(requests)
			t.Logf("Burst %d: %.1f %% of %d requests succeed, %.2f attempts each", c.burst, 100*success,
				requests, float64(host.attempts)/float64(requests))
			assert.Greater(t, success, c.least)
		})
	}
}

// sendAtRandom sends requests to host for a minute, from ten processes with a
// shared budget.
func sendAtRandom(t *testing.T, host http.RoundTripper, burst int) (requests int, succeeded int64) {
	s := newFarServer(t, time.Millisecond)
	arrivals := rand.New(rand.NewPCG(3, 4))
	var ok atomic.Int64
	var wg sync.WaitGroup
	for range 10 {
		b := watch(t, redisbudget.Config{Client: s.client(t), Burst: burst})
		transport, err := httpretry.New(httpretry.Config{Base: host, Policy: httpretry.Policy{Budget: b}})
		require.NoError(t, err)
		for at := 0.0; at < 60; at += arrivals.ExpFloat64() / 5 {
			requests++
			wg.Go(func() {
				time.Sleep(time.Duration(at * float64(time.Second)))
				resp, err := transport.RoundTrip(newRequest(t, target))
				if assert.NoError(t, err) && resp.StatusCode == http.StatusOK {
					ok.Add(1)
				}
				assert.NoError(t, resp.Body.Close())
			})
		}
		defer func() {
			assert.Zero(t, b.local.Load())
			assert.NoError(t, b.Close())
		}()
	}
	wg.Wait()
	return requests, ok.Load()
}
