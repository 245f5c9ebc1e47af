package httpretry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/strategies"
)

// exchange sends req, and reads and closes its response, if it gets one.
func exchange(t testing.TB, rt http.RoundTripper, req *http.Request) error {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	if err == nil {
		contract.ReadBody(t, resp)
	}
	return err
}

// getOnce is exchange for a GET whose error does not matter.
func getOnce(t *testing.T, rt http.RoundTripper, url string) {
	t.Helper()
	_ = exchange(t, rt, contract.Request(t, "GET", url, ""))
}

// failingHosts is a base whose hosts fail if their names begin with "fail".
var failingHosts = contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
	if strings.HasPrefix(req.URL.Host, "fail") {
		return answering(503)(req)
	}
	return answering(200)(req)
})

func TestOrigins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := contract.RetryEvery(time.Minute)
		policy.Budget = nil
		own := policy
		own.Budget = &httpretry.HostBudget{Burst: 2}
		unlimited := policy
		unlimited.Budget = httpretry.Unlimited{}
		scripts := map[string]*contract.Script{
			"a.test": contract.Play(s200, s200, s200, s503),
			"b.test": contract.Play(s503),
			"c.test": contract.Play(contract.Status(429, "Retry-After", "600")),
		}
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			return scripts[strings.ToLower(req.URL.Hostname())].RoundTrip(req)
		})
		transport := contract.Unchecked(t, httpretry.Config{
			Base: base, Policy: policy,
			Policies: map[string]httpretry.Policy{
				"b.test": own, "*.test:8080": unlimited,
				"POST a.test/{id}": own, "DELETE a.test/{id}": own,
			},
		})
		assert.Empty(t, transport.Origins())

		getOnce(t, transport, "https://a.test/?secret=1")
		getOnce(t, transport, "https://A.test:443/")
		contract.Send(t, transport, contract.Request(t, "POST", "https://a.test/1", ""))
		go getOnce(t, transport, "https://user:secret@a.test/secret")
		go getOnce(t, transport, "http://b.test/")
		go getOnce(t, transport, "http://b.test/")
		getOnce(t, transport, "http://c.test:8080/")
		synctest.Wait()
		now := time.Now()
		assert.Equal(t, []httpretry.OriginStatus{
			{Origin: "http://b.test", Waiting: 2,
				LastFailure: "503 Service Unavailable", LastFailureAt: now,
				Budgets: []httpretry.BudgetStatus{
					{Key: "b.test", BalanceKnown: true, FailedRetries: 2, RecentFailures: 2}}},
			{Origin: "http://c.test:8080", CooldownUntil: now.Add(600 * time.Second),
				LastFailure: "429 Too Many Requests", LastFailureAt: now, FailedWithoutRetry: 1,
				Budgets: []httpretry.BudgetStatus{{Key: "*.test:8080"}}},
			{Origin: "https://a.test", Waiting: 1,
				LastFailure: "503 Service Unavailable", LastFailureAt: now,
				Budgets: []httpretry.BudgetStatus{
					{Balance: 4, BalanceKnown: true, Successes: 2, FailedRetries: 1,
						RecentSuccesses: 2, RecentFailures: 1},
					{Key: "DELETE a.test/{id}", Balance: 2, BalanceKnown: true, Successes: 1,
						RecentSuccesses: 1},
				}},
		}, transport.Origins())

		// The waits are over, and the successes are longer ago than the Window.
		// The time of a host whose retries fail stands still.
		time.Sleep(time.Hour)
		synctest.Wait()
		for _, status := range transport.Origins() {
			assert.Zero(t, status.Waiting, status)
			assert.Zero(t, status.CooldownUntil, status)
			for _, budget := range status.Budgets {
				fails := status.Origin == "https://a.test" && budget.Key == ""
				assert.Equal(t, fails, budget.Successes > 0, status)
			}
		}
	})
}

func TestOriginsAfterSetPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := contract.RetryEvery(time.Minute)
		policy.Budget = nil
		transport := contract.Unchecked(t, httpretry.Config{
			Base:   contract.Play(s200, s200, contract.Status(503, "Retry-After", "30")),
			Policy: policy,
		})
		getOnce(t, transport, "http://a.test/")
		getOnce(t, transport, "http://A.test/")
		go getOnce(t, transport, "https://b.test/")
		synctest.Wait()
		before := transport.Origins()
		assert.Equal(t, "http://a.test", before[0].Origin)
		assert.Equal(t, 1, before[1].Waiting)
		assert.NotZero(t, before[1].CooldownUntil)

		other := map[string]httpretry.Policy{"a.test": policy, "b.test": policy}
		assert.NoError(t, transport.SetPolicies(policy, other))
		before[0].Budgets[0].Key = "a.test"
		before[1].Budgets[0].Key = "b.test"
		assert.Equal(t, before, transport.Origins())
	})
}

// talkative is a budget with a balance.
type talkative struct{ httpretry.Unlimited }

func (talkative) Balance(origin string) (int, bool) { return len(origin), true }

func TestOriginsWaiting(t *testing.T) {
	hour := strategies.Constant{Wait: time.Hour}
	for name, change := range map[string]func(*httpretry.Policy){
		"for a retry":           func(p *httpretry.Policy) { p.Backoff = hour },
		"for a retry, for ever": func(p *httpretry.Policy) { p.Backoff, p.MaxAttempts = hour, -1 },
		"for its first attempt": func(p *httpretry.Policy) {
			p.MaxAttempts, p.Cooldown = 1, httpretry.CooldownWait
		},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			policy := contract.RetryEvery(time.Minute)
			change(&policy)
			transport := contract.Unchecked(t, httpretry.Config{
				Base:   contract.Play(contract.Status(503, "Retry-After", "60"), s200),
				Policy: policy,
			})
			if policy.MaxAttempts == 1 {
				getOnce(t, transport, "http://a.test/")
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() { _ = exchange(t, transport, newGet(t).WithContext(ctx)) }()
			synctest.Wait()
			assert.Equal(t, 1, transport.Origins()[0].Waiting)
			cancel()
			synctest.Wait()
			assert.Zero(t, transport.Origins()[0].Waiting)
		})
	}
}

// Requests that wait are counted however many origins are used, and whatever
// the policies are.
func TestOriginsOfManyHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := contract.RetryEvery(time.Hour)
		transport := contract.Unchecked(t, httpretry.Config{Base: failingHosts, Policy: policy})
		ctx, cancel := context.WithCancel(t.Context())
		send := func(url string) {
			_ = exchange(t, transport, contract.Request(t, "GET", url, "").WithContext(ctx))
		}
		send("http://early.test/")
		go send("https://fail.test/")
		go send("https://fail.test:443/")
		synctest.Wait()
		for _, name := range hostNames(1024) {
			send("https://" + name)
		}
		for i := range 600 {
			go send(fmt.Sprintf("http://fail%d.test/", i))
			go send(fmt.Sprintf("https://fail%d.test/", i))
		}
		synctest.Wait()
		check := func(fail, sum int) {
			t.Helper()
			byOrigin := make(map[string]int)
			for _, status := range transport.Origins() {
				assert.NotContains(t, byOrigin, status.Origin)
				byOrigin[status.Origin] = status.Waiting
				sum -= status.Waiting
			}
			assert.Zero(t, sum)
			// Of the origins that were used long ago, only those with waiting
			// requests are known.
			waiting, ok := byOrigin["https://fail.test"]
			assert.Equal(t, fail, waiting)
			assert.Equal(t, fail > 0, ok)
			assert.GreaterOrEqual(t, len(byOrigin), 1024)
			assert.Less(t, len(byOrigin), 4000)
		}
		check(2, 1202)
		require.NoError(t, transport.SetPolicies(policy, nil))
		check(2, 1202)
		cancel()
		synctest.Wait()
		check(0, 0)
	})
}

func TestOriginsConcurrently(t *testing.T) {
	transport := contract.Unchecked(t, httpretry.Config{Base: contract.Play(s200)})
	routes := map[string]httpretry.Policy{"*.com/{path}": {}}
	var wg sync.WaitGroup
	for _, scheme := range []string{"http", "https"} {
		wg.Go(func() {
			for _, name := range hostNames(1500) {
				getOnce(t, transport, scheme+"://"+name+"/path")
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			for _, status := range transport.Origins() {
				assert.NotEmpty(t, status.Origin)
			}
			assert.NoError(t, transport.SetPolicies(httpretry.Policy{}, routes))
		}
	})
	wg.Wait()
}

// Of the cool-downs of an origin's parts, the latest is shown. The policy of the
// host may have no CooldownKey.
func TestOriginsOfPartialCooldowns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := contract.RetryEvery(0)
		policy.CooldownKey = func(req *http.Request) string { return req.URL.Path }
		transport := contract.Unchecked(t, httpretry.Config{
			Base: contract.Play(asksFor(900), asksFor(1200), asksFor(600), s200), Policy: policy,
			Policies: map[string]httpretry.Policy{"a.test/x": contract.RetryEvery(0)},
		})
		for _, path := range []string{"a", "b", "c", "x"} {
			getOnce(t, transport, "http://a.test/"+path)
		}
		status := transport.Origins()
		require.Len(t, status, 1)
		assert.Equal(t, time.Now().Add(1200*time.Second), status[0].CooldownUntil)
		assert.Len(t, status[0].Budgets, 1)
	})
}

// Hosts that no URL of a server has, but that a redirect or a program can make.
func TestOriginsOfStrangeHosts(t *testing.T) {
	transport := contract.Unchecked(t, httpretry.Config{
		Base:   contract.Play(contract.Status(503, "Retry-After", "600")),
		Policy: contract.RetryEvery(0),
	})
	zone := "[fe80::1%eth0 " + strings.Repeat("x", 31) + "]"
	victim := "victim.test " + strings.Repeat("x", 32)
	for _, host := range []string{zone, victim, "a.test\n\x1b[31m"} {
		req := newGet(t)
		req.URL.Host = host
		contract.Send(t, transport, req)
	}
	var origins []string
	for _, status := range transport.Origins() {
		origins = append(origins, status.Origin)
		assert.NotZero(t, status.CooldownUntil, status.Origin)
	}
	assert.Equal(t, []string{
		"http://" + zone, `http://a.test\n\x1b[31m`, "http://" + victim,
	}, origins)
}

// A program can put the rest of a URL into URL.Host. Nothing shows it, as in
// logs.
func TestOriginsOfHostsWithSecrets(t *testing.T) {
	for _, host := range []string{
		"user:secret@a.test", "a.test/secret", "a.test?secret", "a.test#secret", `a.test\secret`,
	} {
		var log strings.Builder
		policy := contract.RetryEvery(0)
		policy.Cooldown = httpretry.CooldownFail
		transport := contract.Unchecked(t, httpretry.Config{
			Base:    contract.Play(contract.Status(503, "Retry-After", "600")),
			Policy:  policy,
			Observe: httpretry.LogEvents(slog.New(slog.NewTextHandler(&log, nil))),
		})
		req := newGet(t)
		req.URL.Host = host
		contract.Send(t, transport, req)
		_, err := transport.RoundTrip(req)
		assert.ErrorContains(t, err, "http://REDACTED asked for a pause")
		assert.NotContains(t, err.Error(), "secret")
		assert.Equal(t, "http://REDACTED", transport.Origins()[0].Origin, host)
		assert.Contains(t, log.String(), "http://REDACTED/")
		assert.NotContains(t, log.String(), "secret")
	}
}

// A failure is that of an attempt. The policy decides what a failure is.
func TestOriginsOfFailures(t *testing.T) {
	const unavailable = "503 Service Unavailable"
	classify := func(o httpretry.Outcome) func(*httpretry.Policy) {
		return func(p *httpretry.Policy) {
			p.MaxAttempts = 1
			p.Classify = func(*http.Request, *http.Response, error) httpretry.Outcome { return o }
		}
	}
	for name, tt := range map[string]struct {
		method       string // "" is GET
		steps        script
		change       func(*httpretry.Policy)
		last         string
		after        time.Duration
		withoutRetry int
	}{
		"success":        {steps: script{s200}},
		"permanent":      {steps: script{s404}},
		"retry succeeds": {steps: script{s503, s200}, last: unavailable},
		"retry fails": {steps: script{s503, contract.Status(502)},
			last: "502 Bad Gateway", after: time.Second},
		"not idempotent": {method: "POST", steps: script{s503}, last: unavailable, withoutRetry: 1},
		"no budget": {steps: script{s503}, last: unavailable, withoutRetry: 1,
			change: func(p *httpretry.Policy) { p.Budget = contract.UsedUp{} }},
		"permanent error": {steps: script{reset}, change: classify(final),
			last: "connection broken", withoutRetry: 1},
		"permanent by the policy": {steps: script{s503}, change: classify(final)},
		"failure by the policy": {steps: script{s200}, change: classify(transient),
			last: "200 OK", withoutRetry: 1},
		"invalid status": {steps: script{contract.Status(1200)},
			change: classify(transient), last: "invalid status", withoutRetry: 1},
		"forbidden": {steps: script{refuses(503)}, last: unavailable, withoutRetry: 1},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			policy := contract.RetryEvery(time.Second)
			policy.MaxAttempts = 2
			if tt.change != nil {
				tt.change(&policy)
			}
			transport := contract.Unchecked(t, httpretry.Config{
				Base: contract.Play(tt.steps...), Policy: policy})
			at := time.Time{}
			if tt.last != "" {
				at = time.Now().Add(tt.after)
			}
			_ = exchange(t, transport, contract.Request(t, tt.method, "http://a.test/", ""))
			// SetPolicies keeps the failures of the host.
			for range 2 {
				status := transport.Origins()[0]
				assert.Equal(t, tt.last, status.LastFailure)
				assert.Equal(t, at, status.LastFailureAt)
				assert.Equal(t, tt.withoutRetry, status.FailedWithoutRetry)
				require.NoError(t, transport.SetPolicies(policy, nil))
			}
		})
	}
}

// A cancel and a request's own body are not failures of a host.
func TestOriginsOfFailuresOfTheCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	canceling := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
		cancel()
		return nil, ctx.Err()
	})
	transport := contract.Unchecked(t, httpretry.Config{Base: canceling})
	_, err := transport.RoundTrip(newGet(t).WithContext(ctx))
	require.ErrorIs(t, err, context.Canceled)

	other := contract.Unchecked(t, httpretry.Config{Base: contract.Play(s200)})
	body := io.NopCloser(iotest.ErrReader(errors.New("no disk")))
	_, err = other.RoundTrip(contract.Streamed(t, "PUT", "http://a.test/", body))
	require.ErrorContains(t, err, "no disk")

	for _, rt := range []*httpretry.RetryTransport{transport, other} {
		status := rt.Origins()[0]
		assert.Empty(t, status.LastFailure)
		assert.Zero(t, status.LastFailureAt)
		assert.Zero(t, status.FailedWithoutRetry)
	}
}

// A request whose retry is never sent ends without one, unless its caller has
// canceled it.
func TestOriginsOfRetriesNeverSent(t *testing.T) {
	for _, cancels := range []bool{false, true} {
		contract.Bubble(t, fmt.Sprintf("cancels=%v", cancels), func(t *testing.T) {
			transport := contract.Unchecked(t, httpretry.Config{
				Base: contract.Play(s503, asksFor(600)), Policy: contract.RetryEvery(time.Minute)})
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				assert.Error(t, exchange(t, transport, newGet(t).WithContext(ctx)))
			}()
			synctest.Wait()
			withoutRetry := 0
			if cancels {
				cancel()
			} else { // the host cools down
				getOnce(t, transport, "http://a.test/")
				withoutRetry = 2
			}
			time.Sleep(time.Hour)
			assert.Equal(t, withoutRetry, transport.Origins()[0].FailedWithoutRetry)
			cancel()
		})
	}
}

// A body that breaks off is a failure, if it may be resumed, and if it cannot be
// for want of a validator.
func TestOriginsOfBrokenBodies(t *testing.T) {
	for _, validated := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				if req.Header.Get("Range") != "" {
					return answering(502)(req)
				}
				resp := respond(req, 200, io.ErrUnexpectedEOF, "12345")
				resp.ContentLength = 10
				if validated {
					resp.Header.Set("Etag", `"a"`)
				}
				return resp, nil
			})
			policy := contract.RetryEvery(time.Second)
			policy.Resume, policy.MaxAttempts = true, 2
			transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
			resp := get(t, transport)
			assert.Empty(t, transport.Origins()[0].LastFailure)
			start := time.Now()
			_, err := io.ReadAll(resp.Body)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.NoError(t, resp.Body.Close())
			status := transport.Origins()[0]
			if validated {
				assert.Equal(t, "502 Bad Gateway", status.LastFailure)
				assert.Equal(t, start.Add(time.Second), status.LastFailureAt)
				assert.Zero(t, status.FailedWithoutRetry)
			} else {
				assert.Equal(t, "connection broken", status.LastFailure)
				assert.Equal(t, 1, status.FailedWithoutRetry)
			}
		})
	}
}

// The failures of a host are known for as long as it fails, however long ago
// its policy was looked up.
func TestOriginsRememberHostsThatFail(t *testing.T) {
	transport := contract.Unchecked(t, httpretry.Config{Base: failingHosts,
		Policy: httpretry.Policy{MaxAttempts: 1}})
	for i, name := range hostNames(3000) {
		getOnce(t, transport, "http://"+name)
		if i%100 == 0 {
			getOnce(t, transport, "http://fail.test/")
		}
	}
	failures := 0
	for _, status := range transport.Origins() {
		failures += status.FailedWithoutRetry
	}
	assert.Equal(t, 30, failures)
}

// A Budget is listed once, whatever number of keys has it, with the first of
// them. One that is of no Balancer, or that has seen no request to the origin, is
// listed only if it is that of the host.
func TestOriginsOfManyKeys(t *testing.T) {
	shared, own, unused, silent := new(httpretry.HostBudget), &httpretry.HostBudget{Burst: 2},
		&httpretry.HostBudget{Burst: -1}, httpretry.Unlimited{}
	policies := map[string]httpretry.Policy{
		"b.w.test":         {Budget: silent},
		"*.w.test/own":     {Budget: own},
		"*.w.test/unused":  {Budget: unused},
		"*.w.test/silent":  {Budget: silent},
		"*.w.test/default": {},
	}
	for i := range 100 {
		policies[fmt.Sprintf("*.w.test/%03d", i)] = httpretry.Policy{Budget: shared}
		policies[fmt.Sprintf("GET a.w.test/%03d/", i)] = httpretry.Policy{Budget: shared}
	}
	transport := contract.Unchecked(t, httpretry.Config{
		Base: contract.Play(s200), Policies: policies})
	for _, path := range []string{"/", "/default", "/007/x", "/007", "/008", "/own", "/silent"} {
		getOnce(t, transport, "http://a.w.test"+path)
	}
	getOnce(t, transport, "http://A.w.test:80/008")
	getOnce(t, transport, "http://b.w.test/")
	origins := transport.Origins()
	require.Len(t, origins, 2)
	assert.Equal(t, []httpretry.BudgetStatus{
		{Balance: 5, BalanceKnown: true, Successes: 2, RecentSuccesses: 2},
		{Key: "GET a.w.test/000/", Balance: 5, BalanceKnown: true, Successes: 4, RecentSuccesses: 4},
		{Key: "*.w.test/own", Balance: 2, BalanceKnown: true, Successes: 1, RecentSuccesses: 1},
	}, origins[0].Budgets)
	assert.Equal(t, []httpretry.BudgetStatus{{Key: "b.w.test"}}, origins[1].Budgets)
}

// listed is a budget with a balance. It must not be compared, which would panic.
type listed struct {
	talkative
	_ []string
}

func TestOriginsOfBudgetsThatDoNotCompare(t *testing.T) {
	transport := contract.Unchecked(t, httpretry.Config{
		Base: contract.Play(s200), Policy: httpretry.Policy{Budget: listed{}},
		Policies: map[string]httpretry.Policy{"a.test/x": {Budget: listed{}}}})
	getOnce(t, transport, "http://a.test/")
	assert.Equal(t, []httpretry.BudgetStatus{
		{Balance: len("http://a.test"), BalanceKnown: true},
		{Key: "a.test/x", Balance: len("http://a.test"), BalanceKnown: true},
	}, transport.Origins()[0].Budgets)
}

// The share of failures is that of the last minute by the clock, even while the
// time of the Window stands still.
func TestOriginsRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := httpretry.Policy{MaxAttempts: 1}
		transport := contract.Unchecked(t,
			httpretry.Config{Base: contract.Scripts{}, Policy: policy})
		recent := func() [2]int {
			b := transport.Origins()[0].Budgets[0]
			return [2]int{b.RecentSuccesses, b.RecentFailures}
		}
		repeat := func(n int, step contract.Step) {
			for range n {
				send(t, transport, "GET", step)
			}
		}
		repeat(495, s200)
		assert.Equal(t, [2]int{495, 0}, recent())
		repeat(5, s503)
		time.Sleep(30 * time.Second)
		repeat(100, s503)
		assert.Equal(t, [2]int{495, 105}, recent())
		time.Sleep(35 * time.Second)
		repeat(10, s503)
		assert.Equal(t, [2]int{0, 110}, recent(), "an outage is 100 %")
		time.Sleep(time.Hour)
		assert.Equal(t, [2]int{0, 0}, recent())
	})
}

// A retry that succeeds counts as a success, and what its caller cancels as
// neither.
func TestOriginsRecentRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.Play(s503, s200, contract.Step{Takes: time.Hour})
		policy := contract.RetryEvery(0)
		policy.Budget = nil
		transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
		getOnce(t, transport, "http://a.test/")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, err := transport.RoundTrip(newGet(t).WithContext(ctx))
		require.ErrorIs(t, err, context.Canceled)
		b := transport.Origins()[0].Budgets[0]
		assert.Equal(t, [2]int{1, 1}, [2]int{b.RecentSuccesses, b.RecentFailures})
	})
}
