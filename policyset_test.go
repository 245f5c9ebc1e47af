package httpretry_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strconv"
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
)

// attemptsPolicy allows n attempts, a minute apart.
func attemptsPolicy(n int) httpretry.Policy {
	p := contract.RetryEvery(time.Minute)
	p.MaxAttempts = n
	return p
}

// attemptsOf sends a request and returns the number of its attempts.
func attemptsOf(t *testing.T, rt http.RoundTripper, method, url string) int {
	t.Helper()
	return httpretry.ResultOf(contract.Send(t, rt, contract.Request(t, method, url, ""))).Attempts
}

func TestSetPoliciesAppliesToRequestsThatBeginLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.Play(s503)
		transport := contract.Unchecked(t, httpretry.Config{
			Base: base, Policy: attemptsPolicy(2),
			Policies: map[string]httpretry.Policy{"a.test": attemptsPolicy(4)},
		})
		underWay := make(chan int)
		go func() { underWay <- attemptsOf(t, transport, "GET", "http://a.test/") }()
		synctest.Wait() // it waits for its second attempt

		require.NoError(t, transport.SetPolicies(attemptsPolicy(3),
			map[string]httpretry.Policy{"b.test": attemptsPolicy(5)}))
		assert.Equal(t, 3, attemptsOf(t, transport, "GET", "http://a.test/"))
		assert.Equal(t, 5, attemptsOf(t, transport, "GET", "http://b.test/"))
		assert.Equal(t, 4, <-underWay)

		require.NoError(t, transport.SetPolicies(attemptsPolicy(1), nil))
		assert.Equal(t, 1, attemptsOf(t, transport, "GET", "http://b.test/"))
		assert.Same(t, base, transport.Unwrap())
	})
}

// The zero RetryTransport accepts policies before its first request.
func TestSetPoliciesOfZeroTransport(t *testing.T) {
	server := contract.NewServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	var transport httpretry.RetryTransport
	require.Error(t, transport.SetPolicies(httpretry.Policy{MaxElapsed: -1}, nil))
	require.NoError(t, transport.SetPolicies(contract.RetryEvery(0), nil))
	assert.Equal(t, 5, attemptsOf(t, &transport, "GET", server.URL))
	transport.CloseIdleConnections()
}

func TestSetPoliciesKeepsBudgetsAndCooldowns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.Play(append(slices.Repeat(script{s503}, 8), asksFor(30), s200)...)
		policy := contract.RetryEvery(0)
		policy.Budget = nil
		transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
		assert.Equal(t, 5, attemptsOf(t, transport, "GET", "http://a.test/"))
		require.NoError(t, transport.SetPolicies(policy, nil))
		assert.Equal(t, 2, attemptsOf(t, transport, "GET", "http://a.test/"),
			"the Burst is used up")
		policy.MaxAttempts, policy.Cooldown = 1, httpretry.CooldownFail
		require.NoError(t, transport.SetPolicies(policy, nil))
		assert.Equal(t, 1, attemptsOf(t, transport, "GET", "http://a.test/"))
		assert.Equal(t, 1, attemptsOf(t, transport, "GET", "http://a.test/"))
		require.NoError(t, transport.SetPolicies(policy,
			map[string]httpretry.Policy{"a.test": policy}))
		_, err := transport.RoundTrip(newGet(t))
		requireError(t, err, 0, httpretry.ReasonCooldown)
		assert.Len(t, base.Attempts(), 9)
	})
}

func TestSetPoliciesKeepsObserverAndAttemptHeader(t *testing.T) {
	base, record := contract.Play(s503, s200), new(contract.Record)
	transport := contract.Unchecked(t, httpretry.Config{
		Base: base, Observe: record.Observe, AttemptHeader: "X-Try"})
	require.NoError(t, transport.SetPolicies(contract.RetryEvery(0), nil))
	assert.Equal(t, 2, attemptsOf(t, transport, "GET", "http://a.test/"))
	assert.Len(t, record.Events, 2)
	assert.Equal(t, "1", base.Attempts()[1].Header.Get("X-Try"))
}

// Errors are those of New, with the names of the arguments, and change nothing.
func TestSetPoliciesReportsEverything(t *testing.T) {
	base := contract.Play(s503)
	transport := contract.Unchecked(t,
		httpretry.Config{Base: base, Policy: contract.RetryEvery(0), AttemptHeader: "x-try"})
	err := transport.SetPolicies(
		httpretry.Policy{IdempotencyHeader: "X-Try", MaxElapsed: -1},
		map[string]httpretry.Policy{
			"*":          {},
			"b.test":     {IdempotencyHeader: "x-TRY"},
			"B.test":     {},
			"a.test":     {AttemptTimeout: 30},
			"valid.test": {MaxAttempts: 1},
		})
	require.EqualError(t, err, `httpretry: policy.MaxElapsed: -1ns: want at least 1ms, or 0 for no limit
httpretry: policy.IdempotencyHeader: "X-Try": want another header than Config.AttemptHeader
httpretry: policies["*"]: matches every host: use policy for that
httpretry: policies["a.test"].AttemptTimeout: 30ns: want at least 1ms, or 0 for no timeout
httpretry: policies["b.test"]: means the same as "B.test": want only one of them
httpretry: policies["b.test"].IdempotencyHeader: "X-Try": want another header than Config.AttemptHeader`)
	assert.Equal(t, 5, attemptsOf(t, transport, "GET", "http://valid.test/"))

	none := contract.Unchecked(t, httpretry.Config{Base: base, AttemptHeader: "-"})
	require.NoError(t, none.SetPolicies(httpretry.Policy{IdempotencyHeader: "Retry-Attempt"}, nil))
}

// A body that breaks off is resumed as the policy of its request says.
func TestSetPoliciesDoesNotConcernResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin(300<<10, 1000, 70<<10, -1)
		policy := contract.RetryEvery(time.Second)
		policy.Resume = true
		transport := contract.Unchecked(t, httpretry.Config{Base: o, Policy: policy})
		resp, err := transport.RoundTrip(newGet(t))
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, transport.SetPolicies(attemptsPolicy(1), nil))
			_, err = io.CopyN(io.Discard, resp.Body, 100<<10)
			require.NoError(t, err)
		}
		require.NoError(t, resp.Body.Close())
		contract.HasResult(t, resp, 3, httpretry.ReasonSuccess)
	})
}

// numberedPolicy makes n attempts of each request, all with the same header,
// whose name has n in it.
func numberedPolicy(n int) httpretry.Policy {
	p := contract.RetryEvery(0)
	p.MaxAttempts = n
	p.IdempotencyHeader = "Key-" + strconv.Itoa(n)
	p.NewIdempotencyKey = func(*http.Request) string { return strconv.Itoa(n) }
	return p
}

// A request follows one policy from start to end, however often the policies
// change. Changes leave nothing behind.
func TestSetPoliciesBelowClients(t *testing.T) {
	const clients, requests, most = 64, 40, 5
	type seen struct{}
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		n := 0
		for i := 1; i <= most; i++ {
			if req.Header.Get("Key-"+strconv.Itoa(i)) != "" {
				n = n*10 + i
			}
		}
		all := req.Context().Value(seen{}).(*[]int)
		*all = append(*all, n)
		return answering(503)(req)
	})
	var events atomic.Int64
	transport := contract.Unchecked(t, httpretry.Config{
		Base:    base,
		Policy:  numberedPolicy(1),
		Observe: func(context.Context, httpretry.Event) { events.Add(1) },
	})
	set := func(n int) {
		p := numberedPolicy(1 + n%most)
		assert.NoError(t, transport.SetPolicies(p, map[string]httpretry.Policy{"*.a.test": p}))
	}
	send := func(n int) {
		var attempts []int
		req := contract.Request(t, "POST", fmt.Sprintf("http://%d.a.test/", n%16), "")
		ctx := context.WithValue(t.Context(), seen{}, &attempts)
		assert.NoError(t, exchange(t, transport, req.WithContext(ctx)))
		for _, n := range attempts {
			assert.Equal(t, len(attempts), n, "%v", attempts)
		}
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	swapped := make(chan int)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				swapped <- n
				return
			default:
				set(n)
			}
		}
	}()
	for range clients {
		wg.Go(func() {
			for n := range requests {
				send(n)
			}
		})
	}
	wg.Wait()
	close(done)
	assert.Greater(t, <-swapped, 100)
	assert.GreaterOrEqual(t, events.Load(), int64(clients*requests))

	before := contract.HeapInUse()
	for n := range 500 {
		set(n)
		send(n)
	}
	assert.Less(t, contract.HeapInUse()-before, int64(1<<20))
}

// A download that lasts keeps its policy, and not the state of all hosts that
// the policies had when it began.
func TestDownloadsDoNotKeepOldPolicies(t *testing.T) {
	const downloads = 200
	o := newOrigin(1000)
	policy := contract.RetryEvery(0)
	policy.Resume = true
	policy.Budget = nil
	transport := contract.Unchecked(t, httpretry.Config{Base: o, Policy: policy})
	bodies := make([]io.Closer, downloads)
	before := contract.HeapInUse()
	for i := range bodies {
		require.NoError(t, transport.SetPolicies(policy, nil))
		resp, err := transport.RoundTrip(newGet(t))
		require.NoError(t, err)
		bodies[i] = resp.Body
	}
	each := (contract.HeapInUse() - before) / downloads
	assert.Less(t, each, int64(8<<10), "a table of hosts has more")
	for _, body := range bodies {
		require.NoError(t, body.Close())
	}
}

// A key with a method or a path has the policy of the requests that it matches.
// All others have the policy of the next key that matches.
func TestPoliciesOfMethodsAndPaths(t *testing.T) {
	attempts := func(n int) httpretry.Policy {
		p := immediateRetries(n)
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
			assert.Equal(t, want, attemptsOf(t, contract.New(t, cfg), method, url), line)
		}
	}
}

// Budgets and cool-downs are of the origin, whatever the key.
func TestRoutesShareBudgetAndCooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.Play(append(slices.Repeat(script{s503}, 7), asksFor(30), s200)...)
		policy := contract.RetryEvery(0)
		policy.Budget = nil
		waits := policy
		waits.Cooldown = httpretry.CooldownFail
		once := policy
		once.MaxAttempts = 1
		transport := contract.New(t, httpretry.Config{Base: base, Policy: policy,
			Policies: map[string]httpretry.Policy{
				"a.test/x": policy, "a.test/wait": waits, "a.test/once": once}})
		assert.Equal(t, 5, attemptsOf(t, transport, "GET", "http://a.test/x"))
		assert.Equal(t, 2, attemptsOf(t, transport, "GET", "http://a.test/y"),
			"the Burst is used up")
		assert.Equal(t, 1, attemptsOf(t, transport, "GET", "http://a.test/once"))
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
	ctx := changed(t.Context(), func(p *httpretry.Policy) { p.MaxAttempts++ })
	req := contract.Request(t, "GET", "http://a.test/x", "")
	resp := contract.Send(t, contract.New(t, cfg), req.WithContext(ctx))
	contract.HasResult(t, resp, 6, httpretry.ReasonAttempts)
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
		attemptsOf(t, transport, "GET", "http://a.test/"+path)
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
	transport := contract.Unchecked(t, httpretry.Config{Base: newInstant(), Policies: policies})
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
