package httpretry_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/strategies"
)

// getOnce sends a GET and reads its response, if it gets one.
func getOnce(t *testing.T, rt http.RoundTripper, url string) {
	t.Helper()
	if resp, err := rt.RoundTrip(contract.Request(t, "GET", url, "")); err == nil {
		contract.ReadBody(t, resp)
	}
}

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
		resp, err := transport.RoundTrip(contract.Request(t, "POST", "https://a.test/1", ""))
		require.NoError(t, err)
		contract.ReadBody(t, resp)
		go getOnce(t, transport, "https://user:secret@a.test/secret")
		go getOnce(t, transport, "http://b.test/")
		go getOnce(t, transport, "http://b.test/")
		getOnce(t, transport, "http://c.test:8080/")
		synctest.Wait()
		end := time.Now().Add(600 * time.Second)
		assert.Equal(t, []httpretry.OriginStatus{
			{Origin: "http://b.test", Key: "b.test", FailedRetries: 2, Waiting: 2},
			{Origin: "http://c.test:8080", Key: "*.test:8080", Balance: -1, CooldownUntil: end},
			{Origin: "https://a.test", Balance: 4, Successes: 2, FailedRetries: 1, Waiting: 1},
			{Origin: "https://a.test", Key: "POST a.test/{id}", Balance: 2, Successes: 1, Waiting: 1},
		}, transport.Origins())

		// The waits are over, and the successes are longer ago than the Window.
		time.Sleep(time.Hour)
		synctest.Wait()
		for _, status := range transport.Origins() {
			assert.Zero(t, status.Waiting, status)
			assert.Zero(t, status.CooldownUntil, status)
			assert.Zero(t, status.Successes, status)
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

		other := map[string]httpretry.Policy{"b.test": policy}
		assert.NoError(t, transport.SetPolicies(policy, other))
		before[1].Key = "b.test"
		assert.Equal(t, before, transport.Origins())
	})
}

// talkative is a budget with a balance.
type talkative struct{ httpretry.Unlimited }

func (talkative) Balance(origin string) (int, bool) { return len(origin), true }

func TestOriginsOfABudgetWithBalance(t *testing.T) {
	policy := contract.RetryEvery(0)
	policy.Budget = talkative{}
	transport := contract.Unchecked(t, httpretry.Config{Base: contract.Play(s200), Policy: policy})
	getOnce(t, transport, "http://a.test/")
	assert.Equal(t, []httpretry.OriginStatus{
		{Origin: "http://a.test", Balance: len("http://a.test")},
	}, transport.Origins())
}

func TestOriginsOfCooldownKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := contract.RetryEvery(0)
		policy.CooldownKey = func(req *http.Request) string { return req.URL.Path }
		transport := contract.Unchecked(t, httpretry.Config{
			Base: contract.Play(
				contract.Status(429, "Retry-After", "900"),
				contract.Status(429, "Retry-After", "1200"),
				contract.Status(429, "Retry-After", "600"),
			),
			Policy: policy,
		})
		for _, path := range []string{"a", "b", "c"} {
			getOnce(t, transport, "http://a.test/"+path)
		}
		status := transport.Origins()
		assert.Len(t, status, 1)
		assert.Equal(t, time.Now().Add(1200*time.Second), status[0].CooldownUntil)
	})
}

func TestOriginsWaiting(t *testing.T) {
	hour := strategies.Constant{Wait: time.Hour}
	for name, change := range map[string]func(*httpretry.Policy){
		"for a retry":           func(p *httpretry.Policy) { p.Backoff = hour },
		"for a retry, for ever": func(p *httpretry.Policy) { p.Backoff, p.MaxAttempts = hour, -1 },
		"because of the budget": func(p *httpretry.Policy) {
			p.Budget, p.WaitOnBudget = contract.UsedUp{}, true
		},
		"for its first attempt": func(p *httpretry.Policy) {
			p.MaxAttempts, p.Cooldown = 1, httpretry.CooldownWait
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				send := func() {
					req := contract.Request(t, "GET", "http://a.test/", "").WithContext(ctx)
					if resp, err := transport.RoundTrip(req); err == nil {
						contract.ReadBody(t, resp)
					}
				}
				go send()
				synctest.Wait()
				assert.Equal(t, 1, transport.Origins()[0].Waiting)
				cancel()
				synctest.Wait()
				assert.Zero(t, transport.Origins()[0].Waiting)
			})
		})
	}
}

// Requests that wait are counted however many origins are used, and whatever
// the policies are.
func TestOriginsOfManyHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			if strings.HasPrefix(req.URL.Host, "fail") {
				return contract.Play(s503).RoundTrip(req)
			}
			return contract.Play(s200).RoundTrip(req)
		})
		policy := contract.RetryEvery(time.Hour)
		transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
		ctx, cancel := context.WithCancel(t.Context())
		send := func(url string) {
			req := contract.Request(t, "GET", url, "").WithContext(ctx)
			if resp, err := transport.RoundTrip(req); err == nil {
				contract.ReadBody(t, resp)
			}
		}
		send("http://early.test/")
		go send("https://fail.test/")
		go send("https://fail.test:443/")
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

// A cool-down for a part of an origin does not concern policies without a
// CooldownKey.
func TestOriginsOfOtherCooldowns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := contract.RetryEvery(0)
		policy.CooldownKey = func(req *http.Request) string { return req.URL.Path }
		transport := contract.Unchecked(t, httpretry.Config{
			Base: contract.Play(contract.Status(429, "Retry-After", "600"), s200), Policy: policy,
			Policies: map[string]httpretry.Policy{"a.test/x": contract.RetryEvery(0)},
		})
		getOnce(t, transport, "http://a.test/y")
		getOnce(t, transport, "http://a.test/x")
		status := transport.Origins()
		require.Len(t, status, 2)
		assert.NotZero(t, status[0].CooldownUntil)
		assert.Equal(t, "a.test/x", status[1].Key)
		assert.Zero(t, status[1].CooldownUntil)
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
		req := contract.Request(t, "GET", "http://a.test/", "")
		req.URL.Host = host
		if resp, err := transport.RoundTrip(req); err == nil {
			contract.ReadBody(t, resp)
		}
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

// noDone is a context whose method Done panics from the nth call on.
type noDone struct {
	context.Context
	calls *int
	n     int
}

func (c noDone) Done() <-chan struct{} {
	if *c.calls++; *c.calls >= c.n {
		panic("Done")
	}
	return c.Context.Done()
}

func TestOriginsAfterAPanic(t *testing.T) {
	for n := range 10 {
		synctest.Test(t, func(t *testing.T) {
			transport := contract.Unchecked(t, httpretry.Config{
				Base: contract.Play(s503, s200), Policy: contract.RetryEvery(time.Second),
			})
			defer func() {
				_ = recover() // of Done
				for _, status := range transport.Origins() {
					assert.Zero(t, status.Waiting, n)
				}
			}()
			ctx := noDone{t.Context(), new(int), n}
			req := contract.Request(t, "GET", "http://a.test/", "").WithContext(ctx)
			if resp, err := transport.RoundTrip(req); err == nil {
				contract.ReadBody(t, resp)
			}
		})
	}
}
