package httpretry_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// routedAttempts sends a request and returns the number of its attempts.
func routedAttempts(t *testing.T, rt http.RoundTripper, method, url string) int {
	t.Helper()
	req := contract.Request(t, method, url, "")
	resp := contract.Send(t, rt, req)
	attempts := httpretry.ResultOf(resp).Attempts
	return attempts
}

// A key with a method or a path has the policy of the requests that it matches.
// All others have the policy of the next key that matches.
func TestPoliciesOfMethodsAndPaths(t *testing.T) {
	attempts := func(n int) httpretry.Policy {
		p := contract.RetryEvery(0)
		p.MaxAttempts = n
		p.Idempotent = func(*http.Request) bool { return true }
		return p
	}
	for _, observed := range []bool{false, true} {
		cfg := httpretry.Config{
			Policy: contract.RetryEvery(0),
			Policies: map[string]httpretry.Policy{
				"POST api.test/v1/search":   attempts(2),
				"api.test/v1/exports/{id}":  attempts(3),
				"*.test":                    attempts(4),
				"*.test/batch/":             attempts(6),
				"GET other.example/x/":      contract.RetryEvery(0),
				"plain.example":             attempts(8),
				"PUT plain.example:81/{$}":  {MaxAttempts: 1},
				"HEAD plain.example/a/{b}/": attempts(9),
			},
		}
		if observed {
			cfg.Observe = new(contract.Record).Observe
		}
		for line, want := range map[string]int{
			"POST http://api.test/v1/search":      2,
			"POST http://api.test/v1/search?q=a":  2,
			"GET http://api.test/v1/search":       4,
			"POST http://api.test/v1/other":       4,
			"GET https://api.test/v1/exports/1":   3,
			"GET https://api.test/v1/exports/1/2": 4,
			"GET http://api.test/batch/1":         6,
			"GET http://b.api.test:81/batch/1":    6,
			"GET http://b.api.test:81/batch":      4,
			"GET http://other.example/x/y":        5,
			"GET http://other.example/y":          5,
			"PUT http://plain.example:81/":        1,
			"PUT http://plain.example/":           8,
			"HEAD http://plain.example/a/b/c":     9,
			"GET http://plain.example/a/b/c":      8,
		} {
			method, url, _ := strings.Cut(line, " ")
			cfg.Base = contract.Play(s503)
			assert.Equal(t, want, routedAttempts(t, contract.New(t, cfg), method, url), line)
		}
	}
}

// Budgets and cool-downs are of the origin, whatever the key.
func TestRoutesShareBudgetAndCooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := make(script, 7, 9)
		for i := range steps {
			steps[i] = s503
		}
		base := contract.Play(append(steps, contract.Status(429, "Retry-After", "30"), s200)...)
		policy := contract.RetryEvery(0)
		policy.Budget = nil
		waits := policy
		waits.Cooldown = httpretry.CooldownFail
		once := policy
		once.MaxAttempts = 1
		transport := contract.New(t, httpretry.Config{Base: base, Policy: policy,
			Policies: map[string]httpretry.Policy{
				"a.test/x": policy, "a.test/wait": waits, "a.test/once": once}})
		assert.Equal(t, 5, routedAttempts(t, transport, "GET", "http://a.test/x"))
		assert.Equal(t, 2, routedAttempts(t, transport, "GET", "http://a.test/y"),
			"the Burst is used up")
		assert.Equal(t, 1, routedAttempts(t, transport, "GET", "http://a.test/once"))
		_, err := transport.RoundTrip(contract.Request(t, "GET", "http://a.test/wait", ""))
		var cooling *httpretry.CooldownError
		require.ErrorAs(t, err, &cooling)
		assert.Equal(t, "http://a.test", cooling.Origin)
	})
}

// Contexts change the policy of the key that matches.
func TestContextsChangePoliciesOfRoutes(t *testing.T) {
	cfg := httpretry.Config{
		Base:     contract.Play(s503),
		Policies: map[string]httpretry.Policy{"a.test/x": contract.RetryEvery(0)},
	}
	ctx := httpretry.WithPolicyFunc(t.Context(),
		func(p httpretry.Policy) httpretry.Policy { p.MaxAttempts++; return p })
	req := contract.Request(t, "GET", "http://a.test/x", "")
	resp := contract.Send(t, contract.New(t, cfg), req.WithContext(ctx))
	attempts := httpretry.ResultOf(resp).Attempts
	assert.Equal(t, 6, attempts)
}

func TestNewReportsErrorsOfRoutes(t *testing.T) {
	policies := map[string]httpretry.Policy{
		"GET a.test/{id}": {}, "a.test/1": {MaxElapsed: -time.Hour}, "POST b.test": {}}
	_, err := httpretry.New(httpretry.Config{Policies: policies})
	want := `httpretry: Config.Policies["POST b.test"]: has a method and no path: ` +
		`want "POST b.test/" for all paths
httpretry: Config.Policies["a.test/1"]: conflicts with "GET a.test/{id}", because ` +
		`some requests match both and neither is more specific: want keys of which at most one ` +
		`matches a request, or one that matches only requests that the other matches, too
httpretry: Config.Policies["a.test/1"].MaxElapsed: -1h0m0s: want at least 1ms, or 0 for no limit`
	require.EqualError(t, err, want)
	err = new(httpretry.RetryTransport).SetPolicies(httpretry.Policy{}, policies)
	require.EqualError(t, err, strings.ReplaceAll(want, "Config.Policies", "policies"))
}

// Each key counts in its own budget, even if several have one.
func TestBudgetsOfRoutes(t *testing.T) {
	budgets := make([]httpretry.HostBudget, 2)
	transport := contract.Unchecked(t, httpretry.Config{
		Base: contract.Play(s200),
		Policies: map[string]httpretry.Policy{
			"a.test":   {Budget: &budgets[0]},
			"a.test/x": {Budget: &budgets[1]},
			"a.test/y": {Budget: &budgets[0]},
			"a.test/z": {},
		},
	})
	for _, path := range []string{"", "x", "y", "z", "", "x"} {
		routedAttempts(t, transport, "GET", "http://a.test/"+path)
	}
	successes := make(map[string]int)
	for _, budget := range transport.Origins()[0].Budgets {
		successes[budget.Key] = budget.Successes
	}
	assert.Equal(t, map[string]int{"a.test": 3, "a.test/x": 2, "a.test/z": 1}, successes)
}

// A host costs little, however many keys with a path it has, also after requests
// that match many of them.
func TestHostsOfManyRoutesAreSmall(t *testing.T) {
	const keys, hosts = 1000, 100
	policies := make(map[string]httpretry.Policy)
	for i := range keys {
		policies[fmt.Sprintf("*.w.test/%05d", i)] = httpretry.Policy{}
	}
	ok := newInstant().ok
	base := contract.BaseFunc(func(*http.Request) (*http.Response, error) { return ok, nil })
	transport := contract.Unchecked(t, httpretry.Config{Base: base, Policies: policies})
	var requests []*http.Request
	for i := range hosts {
		for j := range 10 {
			url := fmt.Sprintf("http://h%d.w.test/%05d", i, j*99)
			requests = append(requests, contract.Request(t, "GET", url, ""))
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, req := range requests {
		_, err := transport.RoundTrip(req)
		require.NoError(t, err)
	}
	runtime.ReadMemStats(&after)
	assert.Less(t, (after.TotalAlloc-before.TotalAlloc)/hosts, uint64(2*keys))
}
