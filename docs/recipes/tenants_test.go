package recipes_test

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

	"github.com/seed421102f4/httpretry"
)

// tenants has a budget for each tenant, so that the failures of one do not use
// up the retries of another.
type tenants struct{ budgets sync.Map }

// with returns a context for the requests of a tenant. They follow the policy
// of their host, but for the budget.
func (t *tenants) with(ctx context.Context, tenant string) context.Context {
	budget, _ := t.budgets.LoadOrStore(tenant, &httpretry.HostBudget{Burst: 2})
	return httpretry.WithPolicyFunc(ctx, func(p httpretry.Policy) httpretry.Policy {
		p.Budget = budget.(*httpretry.HostBudget)
		return p
	})
}

// perTenant lets a 429 with Retry-After delay only the tenant that got it. The
// key here is the credential of the tenant.
func perTenant() httpretry.Policy {
	return httpretry.Policy{
		CooldownKey: func(req *http.Request) string { return req.Header.Get("Authorization") },
	}
}

// attempts returns a base transport that answers each attempt with the status
// that next returns. A 429 has a Retry-After of 30 seconds.
func attempts(next func(*http.Request) int) roundTripFunc {
	return func(req *http.Request) (*http.Response, error) {
		if status := next(req); status != http.StatusTooManyRequests {
			return respond(req, status)
		}
		return respond(req, http.StatusTooManyRequests, "Retry-After", "30")
	}
}

// get returns a request for a path.
func get(t *testing.T, path string) *http.Request {
	t.Helper()
	req := request(t, "GET", "")
	req.URL.Path = path
	return req
}

// TestBadEndpoint checks that the policy of choosing.md keeps a path that fails
// from delaying the other paths of its host.
func TestBadEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t, httpretry.Config{
			Base: attempts(func(req *http.Request) int {
				switch {
				case req.URL.Path == "/search":
					return http.StatusTooManyRequests
				case httpretry.Attempt(req.Context()) == 1:
					return http.StatusServiceUnavailable
				}
				return http.StatusOK
			}),
			Policies: map[string]httpretry.Policy{
				"api.example.com/search": {
					Budget:      new(httpretry.HostBudget),
					CooldownKey: func(*http.Request) string { return "search" },
				},
			},
		})
		var wg sync.WaitGroup
		wg.Go(func() { assert.Equal(t, 429, status(t, client, get(t, "/search"))) })
		synctest.Wait()
		start := time.Now()
		assert.Equal(t, 200, status(t, client, get(t, "/items")))
		assert.Less(t, time.Since(start), 10*time.Second)
		wg.Wait()
	})
}

// otherPaths returns the share of the requests to /items that succeed while half
// of the requests to the host are to /search and fail. A tenth of the attempts
// on /items fail at random.
func otherPaths(t *testing.T, policies map[string]httpretry.Policy) (share float64) {
	synctest.Test(t, func(t *testing.T) {
		base := attempts(func(req *http.Request) int {
			if req.URL.Path == "/search" || rand.IntN(10) == 0 {
				return http.StatusServiceUnavailable
			}
			return http.StatusOK
		})
		client := newClient(t, httpretry.Config{Base: base, Policies: policies})
		const seconds, perSecond = 300, 10
		var all sync.WaitGroup
		var ok atomic.Int64
		for range seconds * perSecond {
			for _, path := range []string{"/search", "/items"} {
				all.Go(func() {
					if status(t, client, get(t, path)) == http.StatusOK {
						ok.Add(1)
					}
				})
				time.Sleep(time.Second / perSecond / 2)
			}
		}
		all.Wait()
		share = float64(ok.Load()) / (seconds * perSecond)
	})
	return share
}

// TestOtherPaths checks the figures of choosing.md: a path with a budget of its
// own does not use up the retries of the others.
func TestOtherPaths(t *testing.T) {
	one, own := otherPaths(t, nil), otherPaths(t, map[string]httpretry.Policy{
		"api.example.com/search": {Budget: new(httpretry.HostBudget)}})
	t.Logf("one budget: %.3f, a budget of its own: %.4f", one, own)
	assert.InDelta(t, 0.9, one, 0.025)
	assert.InDelta(t, 0.999, own, 0.003)
}

// TestTenants checks that a tenant whose requests fail, or that has reached its
// limit, does not delay another one.
func TestTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := map[string][]int{}
		base := attempts(func(req *http.Request) int {
			tenant := req.Header.Get("Authorization")
			answer := answers[tenant][0]
			answers[tenant] = answers[tenant][1:]
			return answer
		})
		client := newClient(t, httpretry.Config{Base: base, Policy: perTenant()})
		all := new(tenants)
		send := func(tenant string, statuses ...int) (*http.Response, time.Duration) {
			answers[tenant] = statuses
			req := request(t, "PUT", "data").WithContext(all.with(t.Context(), tenant))
			req.Header.Set("Authorization", tenant)
			start := time.Now()
			resp, err := client.Do(req)
			assert.NoError(t, err)
			return resp, time.Since(start)
		}

		resp, _ := send("a", 503, 503, 503)
		assert.Equal(t, 503, resp.StatusCode)
		resp, _ = send("a", 503, 503)
		assert.Equal(t, httpretry.ReasonBudget, httpretry.ResultOf(resp).Reason)
		resp, _ = send("b", 503, 200)
		assert.Equal(t, 200, resp.StatusCode)

		var wg sync.WaitGroup
		wg.Go(func() {
			_, took := send("c", 429, 200)
			assert.GreaterOrEqual(t, took, 30*time.Second)
		})
		synctest.Wait()
		_, took := send("d", 503, 200)
		assert.Less(t, took, 10*time.Second)
		wg.Wait()
	})
}
