package httpretry_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"reflect"
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
	"github.com/seed421102f4/httpretry/internal/wire"
)

const (
	budgetOrigin = "https://api.example.com"
	otherOrigin  = "https://api.example.com:8443"
)

func deposit(b httpretry.Budget, origin string, n int) {
	for range n {
		contract.Succeed(b, origin, false)
	}
}

// withdrawals returns how many retries b allows origin, and gives up counting
// at most.
func withdrawals(t testing.TB, b httpretry.Budget, origin string, most int) int {
	t.Helper()
	for n := range most {
		if !b.Withdraw(t.Context(), contract.Failure(origin)) {
			return n
		}
	}
	return most
}

// Hazard I4: the first failure of a new process gets its retry.
func TestHostBudgetDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b httpretry.HostBudget
		assert.Equal(t, 5, withdrawals(t, &b, budgetOrigin, 10), "the burst")
		deposit(&b, budgetOrigin, 4)
		assert.Zero(t, contract.Balance(&b, budgetOrigin))
		contract.Succeed(&b, budgetOrigin, false)
		assert.Equal(t, 1, contract.Balance(&b, budgetOrigin), "a fifth of the successes")
		time.Sleep(30*time.Second - 1)
		assert.Equal(t, 1, contract.Balance(&b, budgetOrigin))
		time.Sleep(time.Nanosecond)
		assert.Equal(t, 5, contract.Balance(&b, budgetOrigin), "the burst alone, in a new window")
	})
}

// A 504 is a timeout, too.
func TestHostBudgetOfATransportsTimeouts(t *testing.T) {
	for status, sends := range map[int]int{503: 1 + 5, 504: 1 + 2} {
		policy, base := contract.RetryEvery(0), contract.Play(contract.Status(status))
		policy.MaxAttempts, policy.Budget = 10, new(httpretry.HostBudget)
		contract.Send(t, contract.With(t, base, policy), newGet(t))
		assert.Len(t, base.Attempts(), sends, status)
	}
}

// A refund is of the origin that it names, even if that is not known.
func TestHostBudgetRefundOfAnotherHost(t *testing.T) {
	b := &httpretry.HostBudget{Burst: 3}
	b.Refund(contract.Failure(budgetOrigin))
	require.Equal(t, 2, withdrawals(t, b, budgetOrigin, 2))
	contract.Succeed(b, otherOrigin, false)
	b.Refund(contract.Failure(otherOrigin))
	assert.Equal(t, 1, contract.Balance(b, budgetOrigin))
}

// The successes of a transport's retries count as such, and no others do.
func TestHostBudgetOfATransportsRetriesThatSucceed(t *testing.T) {
	const origin = "http://a.test"
	everyOther := []contract.Step{s503, s200, s503, s200, s503, s200}
	for _, c := range []struct {
		strict bool
		steps  script
		before int // retries that failed before
		want   int
	}{
		{false, everyOther, 0, 8},
		{true, everyOther, 0, 5},
		{false, script{s200}, 3, 5},
		{true, script{s200}, 3, 5},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &httpretry.HostBudget{Ratio: 1, Strict: c.strict}
			require.Equal(t, c.before, withdrawals(t, b, origin, c.before))
			policy := contract.RetryEvery(0)
			policy.Budget = b
			transport := contract.With(t, contract.Play(c.steps...), policy)
			for range 3 {
				contract.Send(t, transport, newGet(t))
			}
			assert.Equal(t, c.want, contract.Balance(b, origin), "%+v", c)
		})
	}
}

// A refund cancels the latest charge, so the others expire in time.
func TestHostBudgetRefundsTheLatestCharge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &httpretry.HostBudget{Ratio: 1, Burst: -1, Window: 10 * time.Second}
		deposit(b, budgetOrigin, 1)
		require.Equal(t, 1, withdrawals(t, b, budgetOrigin, 1))
		deposit(b, budgetOrigin, 1)
		time.Sleep(5 * time.Second)
		require.Equal(t, 1, withdrawals(t, b, budgetOrigin, 1))
		b.Refund(contract.Failure(budgetOrigin))
		deposit(b, budgetOrigin, 1)
		time.Sleep(5 * time.Second) // now no charge and one success are left
		assert.Equal(t, 1, contract.Balance(b, budgetOrigin))
	})
}

// Most deposits do not read the clock. They count as made when it was last
// read, so none counts for too long, and none is lost. The age of at most 31
// successes is unknown.
func TestHostBudgetBatches(t *testing.T) {
	for name, tt := range map[string]struct {
		play        func(b *httpretry.HostBudget)
		least, most int // the balance
	}{
		"not for too long": {func(b *httpretry.HostBudget) {
			for range 100 {
				deposit(b, budgetOrigin, 99)
				time.Sleep(10 * time.Second)
			}
		}, 0, 0},
		"the last ones of a batch": {func(b *httpretry.HostBudget) {
			deposit(b, budgetOrigin, 8) // the last three do not read the clock
			time.Sleep(3 * time.Second)
		}, 8, 8},
		"batches are small": {func(b *httpretry.HostBudget) {
			deposit(b, budgetOrigin, 10_000)
			time.Sleep(5 * time.Second)
			deposit(b, budgetOrigin, 100)
			time.Sleep(6 * time.Second)
		}, 100 - 31, 100},
		"a retry reads the clock": {func(b *httpretry.HostBudget) {
			deposit(b, budgetOrigin, 100) // grows the batch
			time.Sleep(9 * time.Second)
			contract.Succeed(b, budgetOrigin, true)
			time.Sleep(2 * time.Second)
		}, 1, 1},
		"few successes": {func(b *httpretry.HostBudget) {
			deposit(b, budgetOrigin, 100)
			time.Sleep(time.Hour)
			for range 100 {
				contract.Succeed(b, budgetOrigin, false)
				time.Sleep(time.Second)
			}
		}, 9, 9}, // a step has passed since the last one
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			b := &httpretry.HostBudget{Ratio: 1, Burst: -1, Window: 10 * time.Second}
			tt.play(b)
			balance := contract.Balance(b, budgetOrigin)
			assert.GreaterOrEqual(t, balance, tt.least)
			assert.LessOrEqual(t, balance, tt.most)
		})
	}
}

// Hazard I1: no goroutine can come between the check of the balance and the
// charge.
func TestHostBudgetNeverOvershootsUnderConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &httpretry.HostBudget{Burst: 4}
		deposit(b, budgetOrigin, 30)
		var wg sync.WaitGroup
		var cost atomic.Int64
		barrier := make(chan struct{})
		after := []httpretry.AttemptResult{contract.Failure(budgetOrigin), afterTimeout()}
		for i := range 1000 {
			wg.Go(func() {
				<-barrier
				if b.Withdraw(t.Context(), after[i%2]) {
					cost.Add(int64(1 + i%2))
				}
			})
		}
		synctest.Wait()
		close(barrier)
		wg.Wait()
		assert.EqualValues(t, 4+30/5, cost.Load())
	})
}

func TestHostBudgetLosesNoDepositUnderConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 0.5, Burst: -1}
		var wg sync.WaitGroup
		var retries atomic.Int64
		for range 8 {
			wg.Go(func() { deposit(&b, budgetOrigin, 1001) })
			wg.Go(func() { retries.Add(int64(withdrawals(t, &b, budgetOrigin, 300))) })
			wg.Go(func() {
				for range 100 {
					assert.GreaterOrEqual(t, contract.Balance(&b, budgetOrigin), 0)
				}
			})
		}
		wg.Wait()
		retries.Add(int64(withdrawals(t, &b, budgetOrigin, 5000)))
		assert.EqualValues(t, 8*1001/2, retries.Load())
	})
}

// Hazard I5.
func TestHostBudgetKeepsHostsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b httpretry.HostBudget
		deposit(&b, otherOrigin, 50)
		assert.Equal(t, 5, withdrawals(t, &b, budgetOrigin, 20), "others' successes do not count")
		assert.Equal(t, 15, withdrawals(t, &b, otherOrigin, 20), "others' retries do not count")
		assert.Equal(t, 5, contract.Balance(&b, ""))
	})
}

// Hazard H4.
func TestHostBudgetForgetsTheHostLeastRecentlyUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Burst: 1}
		hosts := hostNames(1024 + 512)
		for _, h := range hosts[:1024] {
			require.True(t, b.Withdraw(t.Context(), contract.Failure(h)))
		}
		for i, h := range hosts { // Balance is no use of them
			retries, known := b.Balance(h)
			require.Equal(t, i < 1024, known, "1024 hosts are remembered")
			require.Equal(t, i >= 1024, retries == 1, "others have the Burst")
		}
		contract.Succeed(&b, hosts[0], false) // but this is
		for _, h := range hosts[1024:] {
			contract.Succeed(&b, h, false)
		}
		assert.Zero(t, contract.Balance(&b, hosts[0]))
		assert.Zero(t, contract.Balance(&b, hosts[1023]))
		assert.Equal(t, 1, contract.Balance(&b, hosts[1]), "it starts afresh")
		assert.True(t, b.Withdraw(t.Context(), contract.Failure(hosts[1])))
		b.Refund(contract.Failure(hosts[2])) // forgotten, too, so that there is no charge
		assert.Equal(t, 1, contract.Balance(&b, hosts[2]))
	})
}

// A transport keeps the place of each host in its HostBudget. Its successes
// still count for the budget of the request, and where the budget has the host
// now.
func TestHostBudgetGetsTheSuccessesOfTransports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newBudget := func() *httpretry.HostBudget {
			return &httpretry.HostBudget{Ratio: 1, Burst: -1}
		}
		shared, other := newBudget(), newBudget()
		cfg := httpretry.Config{Base: answering(200), Policy: httpretry.Policy{Budget: shared}}
		first, second := contract.New(t, cfg), contract.New(t, cfg)
		send := func(transport http.RoundTripper, ctx context.Context, url string) {
			contract.Send(t, transport, contract.Request(t, "GET", url, "").WithContext(ctx))
		}
		const url = "http://a.test/"
		withOther := httpretry.WithPolicy(t.Context(), httpretry.Policy{Budget: other})
		withShared := httpretry.WithPolicy(t.Context(), httpretry.Policy{Budget: shared})
		for range 2 {
			send(first, t.Context(), url)
			send(first, t.Context(), "http://A.test:80/")
			send(second, t.Context(), url)
			send(second, withOther, url)
			send(second, withShared, url)
		}
		assert.Equal(t, 8, contract.Balance(shared, "http://a.test"))
		assert.Equal(t, 2, contract.Balance(other, "http://a.test"))

		for _, host := range hostNames(1024) {
			contract.Succeed(shared, host, false)
		}
		require.Zero(t, contract.Balance(shared, "http://a.test"), "evicted")
		send(first, t.Context(), url)
		send(second, t.Context(), url)
		send(first, t.Context(), url)
		assert.Equal(t, 3, contract.Balance(shared, "http://a.test"))
	})
}

// answering returns a base that may be used concurrently.
func answering(status int) contract.BaseFunc {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Body: http.NoBody}, nil
	}
}

// A Budget gets the request's own context, whose end is that of the request and
// not of an attempt.
func TestWithdrawGetsTheRequestsContext(t *testing.T) {
	budget := new(listener)
	policy := contract.RetryEvery(0)
	policy.AttemptTimeout, policy.Budget = time.Hour, budget
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "value")
	contract.Send(t, contract.With(t, answering(503), policy), newGet(t).WithContext(ctx))
	assert.Equal(t, []context.Context{ctx, ctx, ctx, ctx}, budget.contexts)
}

// A retry after a 429 that asks for a wait is free. Nothing is charged for it,
// so nothing is given back.
func TestHostBudgetFreeRetries(t *testing.T) {
	throttled := contract.Failure(budgetOrigin)
	throttled.Status, throttled.Throttled = http.StatusTooManyRequests, true
	b := &httpretry.HostBudget{Ratio: 1, Burst: 2, Window: time.Hour}
	for range 10 {
		require.True(t, b.Withdraw(t.Context(), throttled))
	}
	assert.Equal(t, 2, contract.Balance(b, budgetOrigin))

	require.True(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)))
	b.Refund(throttled)
	assert.Equal(t, 1, contract.Balance(b, budgetOrigin), "the charge of the other retry")
	retrySucceeds(b, throttled)
	assert.Equal(t, 2, contract.Balance(b, budgetOrigin), "a success, which cancels no charge")

	used := &httpretry.HostBudget{Burst: -1}
	base := contract.Play(contract.Status(429, "Retry-After", "0.001"), s200)
	policy := contract.RetryEvery(0)
	policy.Budget = used
	contract.Send(t, contract.With(t, base, policy), newGet(t))
	assert.Len(t, base.Attempts(), 2)
}

// Hosts may be evicted at any time.
func TestHostBudgetSharedByTransports(t *testing.T) {
	budget := &httpretry.HostBudget{Ratio: 1, Burst: -1, Window: time.Hour}
	cfg := httpretry.Config{Base: answering(200), Policy: httpretry.Policy{Budget: budget}}
	var wg sync.WaitGroup
	for range 2 {
		transport := contract.Unchecked(t, cfg)
		for range 2 {
			wg.Go(func() {
				for i, host := range hostNames(3000) {
					for _, h := range []string{host, fmt.Sprintf("often-%d.test", i%3)} {
						req := contract.Request(t, "GET", "http://"+h+"/", "")
						assert.NoError(t, exchange(t, transport, req))
					}
				}
			})
		}
	}
	wg.Wait()
	for i := range 3 {
		assert.Equal(t, 4*1000, contract.Balance(budget, fmt.Sprintf("http://often-%d.test", i)),
			"never evicted, and no success is lost")
	}
}

// Balance reports whether an origin is remembered. The origin is that of a URL
// in any spelling, and not its host alone.
func TestBalanceOfAnOrigin(t *testing.T) {
	b := httpretry.HostBudget{Burst: 3, Window: time.Hour}
	policy := contract.RetryEvery(0)
	policy.Budget = &b
	contract.Send(t, contract.With(t, contract.Play(s503), policy),
		contract.Request(t, "GET", "HTTP://A.test.:080/path?query", ""))
	for raw, isKnown := range map[string]bool{
		"http://a.test":           true,
		"HTTP://A.TEST.:80/other": true,
		"https://a.test":          false,
		"http://a.test:81":        false,
		"//a.test":                false,
	} {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		retries, known := b.Balance(httpretry.Origin(u))
		assert.Equal(t, isKnown, known, raw)
		assert.Equal(t, isKnown, retries == 0, raw)
	}
	for _, notAnOrigin := range []string{"", "a.test", "a.test:80", "http://a.test/"} {
		retries, known := b.Balance(notAnOrigin)
		assert.False(t, known, notAnOrigin)
		assert.Equal(t, 3, retries, "the Burst, with which each starts")
	}
}

func TestOrigin(t *testing.T) {
	for raw, want := range map[string]string{
		"https://a.test:443/path?q#f":        "https://a.test",
		"http://u:p@A.test:8080":             "http://a.test:8080",
		"https://[0:0::1]:8443":              "https://[::1]:8443",
		"http://" + strings.Repeat("a", 256): "http://(name too long)",
	} {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		assert.Equal(t, want, httpretry.Origin(u))
	}
	assert.Empty(t, httpretry.Origin(nil))
}

func TestHostBudgetAnswersWhenTheContextIsDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := httpretry.HostBudget{Burst: 1}
	assert.True(t, b.Withdraw(ctx, contract.Failure(budgetOrigin)))
	assert.False(t, b.Withdraw(ctx, contract.Failure(budgetOrigin)))
}

// Each bubble's clock begins at the same time, so the second one seems to go
// back. Hazard I3.
func TestHostBudgetSurvivesAClockThatGoesBack(t *testing.T) {
	b := httpretry.HostBudget{Ratio: 0.1, Burst: 1, Window: 10 * time.Second}
	synctest.Test(t, func(t *testing.T) {
		deposit(&b, budgetOrigin, 100)
		require.Equal(t, 11, contract.Balance(&b, budgetOrigin))
		time.Sleep(5 * time.Second)
		require.Equal(t, 11, withdrawals(t, &b, budgetOrigin, 20))
	})
	synctest.Test(t, func(t *testing.T) {
		assert.Zero(t, contract.Balance(&b, budgetOrigin), "nothing gained")
		deposit(&b, budgetOrigin, 20)
		assert.Equal(t, 2, withdrawals(t, &b, budgetOrigin, 10), "12 of 120, nothing lost")
		time.Sleep(5 * time.Second)
		contract.Succeed(&b, budgetOrigin, false)
		assert.Zero(t, contract.Balance(&b, budgetOrigin), "no time has passed yet")
		time.Sleep(10 * time.Second)
		assert.Equal(t, 1, contract.Balance(&b, budgetOrigin), "now it has")
	})
}

func TestHostBudgetValidate(t *testing.T) {
	type budget = httpretry.HostBudget
	const (
		ratio  = ": want 0 (the default, 0.2) or a number from 0.000001 to 1000000"
		burst  = ": want 0 (the default, 5), a negative number (none) or at most 1000000"
		window = ": want 0 (the default, 30s) or a duration from 1ms to 8760h0m0s"
	)
	for _, c := range []struct {
		budget *httpretry.HostBudget
		want   string
	}{
		{&budget{}, ""},
		{&budget{Ratio: 0.000001, Burst: 1_000_000, Window: time.Millisecond, Strict: true}, ""},
		{&budget{Ratio: 1_000_000, Burst: math.MinInt, Window: 365 * 24 * time.Hour}, ""},
		{nil, "HostBudget: nil: want a usable HostBudget, or no Budget for the default"},
		{&budget{Ratio: -0.1}, "HostBudget.Ratio: -0.1" + ratio},
		{&budget{Ratio: math.NaN()}, "HostBudget.Ratio: NaN" + ratio},
		{&budget{Ratio: math.Inf(1)}, "HostBudget.Ratio: +Inf" + ratio},
		{&budget{Ratio: 1_000_001}, "HostBudget.Ratio: 1.000001e+06" + ratio},
		{&budget{Ratio: 9e-7}, "HostBudget.Ratio: 9e-07" + ratio},
		{&budget{Burst: 1_000_001}, "HostBudget.Burst: 1000001" + burst},
		{&budget{Window: -time.Second}, "HostBudget.Window: -1s" + window},
		{&budget{Window: 10}, "HostBudget.Window: 10ns" + window},
		{&budget{Window: math.MaxInt64}, "HostBudget.Window: 2562047h47m16.854775807s" + window},
		{&budget{Ratio: -1, Burst: math.MaxInt32, Window: math.MinInt64},
			"HostBudget.Ratio: -1" + ratio + "\n" +
				"HostBudget.Burst: 2147483647" + burst + "\n" +
				"HostBudget.Window: -2562047h47m16.854775808s" + window},
	} {
		if c.want == "" {
			assert.NoError(t, c.budget.Validate())
			continue
		}
		require.EqualError(t, c.budget.Validate(), c.want)
		if c.budget != nil { // used all the same
			assert.Zero(t, contract.Balance(c.budget, budgetOrigin), "not known")
			deposit(c.budget, budgetOrigin, 1000)
			assert.False(t, c.budget.Withdraw(t.Context(), contract.Failure(budgetOrigin)), c.want)
			assert.Zero(t, contract.Balance(c.budget, budgetOrigin), "known")
		}
	}
}

func TestHostBudgetBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Burst: 1_000_000, Window: time.Millisecond}
		assert.Equal(t, 1_000_000, contract.Balance(&b, budgetOrigin))
		for range 1000 {
			require.True(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)))
		}
		assert.Equal(t, 999_000, contract.Balance(&b, budgetOrigin))
	})
	synctest.Test(t, func(t *testing.T) {
		const year = 365 * 24 * time.Hour
		b := httpretry.HostBudget{Ratio: 0.5, Burst: 1, Window: year}
		deposit(&b, budgetOrigin, 4)
		assert.Equal(t, 3, withdrawals(t, &b, budgetOrigin, 5))
		contract.Succeed(&b, budgetOrigin, false)
		time.Sleep(year - time.Hour)
		assert.Zero(t, contract.Balance(&b, budgetOrigin))
		time.Sleep(time.Hour)
		assert.Equal(t, 1, withdrawals(t, &b, budgetOrigin, 5))
		contract.Succeed(&b, budgetOrigin, false)
		time.Sleep(200 * year)
		assert.Equal(t, 1, withdrawals(t, &b, budgetOrigin, 5))
	})
}

func TestUnlimitedNeverRefuses(t *testing.T) {
	assert.Equal(t, 1000, withdrawals(t, httpretry.Unlimited{}, budgetOrigin, 1000))
}

func TestHostBudgetAllocatesNothingForAKnownHost(t *testing.T) {
	b := httpretry.HostBudget{Burst: 500, Ratio: 0.5}
	ctx := t.Context()
	failure := contract.Failure(budgetOrigin)
	deposit(&b, budgetOrigin, 1000)
	for name, call := range map[string]func(){
		"Record":   func() { contract.Succeed(&b, budgetOrigin, false) },
		"Withdraw": func() { b.Withdraw(ctx, failure) }, // allowed by both, then refused
		"Refund":   func() { b.Refund(failure) },
		"Balance":  func() { contract.Balance(&b, budgetOrigin) },
	} {
		assert.Zero(t, testing.AllocsPerRun(2000, call), name)
	}
}

// listener is a budget that keeps its arguments, and allows every retry.
type listener struct {
	httpretry.Unlimited
	ended, charged []httpretry.AttemptResult // of Record
	asked          []httpretry.AttemptResult // of Withdraw
	contexts       []context.Context         // of Withdraw
}

func (l *listener) Record(ended, charged httpretry.AttemptResult) {
	l.ended, l.charged = append(l.ended, ended), append(l.charged, charged)
}

func (l *listener) Withdraw(ctx context.Context, last httpretry.AttemptResult) bool {
	l.asked, l.contexts = append(l.asked, last), append(l.contexts, ctx)
	return true
}

// A budget gets the result of each attempt, and an observer gets the same.
func TestAttemptResult(t *testing.T) {
	type result = httpretry.AttemptResult
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Now())
	defer cancelLate()
	unsent := httpretry.WithOutcome(errors.New("breaker"), httpretry.Unprocessed)
	expired := contract.Fails(context.DeadlineExceeded)
	queued := httpretry.WithOutcome(context.DeadlineExceeded, httpretry.Final)
	failure := result{Outcome: httpretry.Transient}
	unprocessed := result{Outcome: httpretry.Unprocessed}
	timeout := result{Outcome: httpretry.Transient, Timeout: true}
	status := func(code int) result { return result{Status: code, Outcome: httpretry.Transient} }
	for name, tt := range map[string]struct {
		ctx  context.Context
		step contract.Step
		want result
	}{
		"success": {nil, s200, result{Status: 200}},
		"refusal": {nil, s404, result{Status: 404}},
		"failure": {nil, s503, status(503)},
		"425":     {nil, s425, result{Status: 425, Outcome: httpretry.Unprocessed}},
		"gateway timeout": {nil, contract.Status(504),
			result{Status: 504, Outcome: httpretry.Transient, Timeout: true}},
		"429 that asks for a wait": {nil, asksFor(1),
			result{Status: 429, Outcome: httpretry.Transient, Throttled: true}},
		"429":                       {nil, s429, status(429)},
		"503 that asks for a wait":  {nil, contract.Status(503, "Retry-After", "1"), status(503)},
		"503 that forbids a retry":  {nil, refuses(503), status(503)},
		"402 that forbids a retry":  {nil, refuses(402), result{Status: 402}},
		"reset":                     {nil, reset, failure},
		"breaker":                   {nil, contract.Fails(unsent), unprocessed},
		"timeout":                   {nil, contract.Fails(os.ErrDeadlineExceeded), timeout},
		"AttemptTimeout":            {nil, contract.Step{Takes: time.Hour}, timeout},
		"unknown host":              {nil, contract.Fails(unknownHost), result{}},
		"too many sends":            {nil, contract.Fails(wire.ErrTooManySends), failure},
		"canceled":                  {canceled, reset, result{}},
		"canceled after a timeout":  {canceled, expired, result{Timeout: true}},
		"canceled, with a response": {canceled, s503, status(503)},
		"after the deadline":        {late, expired, timeout},
		"late, another error":       {late, contract.Fails(unknownHost), timeout},
		"late, unsent":              {late, contract.Fails(unsent), unprocessed},
		"late, in a queue":          {late, contract.Fails(queued), result{Timeout: true}},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			budget, events := new(listener), new(contract.Record)
			policy := contract.RetryEvery(time.Second)
			policy.Budget, policy.MaxAttempts, policy.AttemptTimeout = budget, 1, time.Minute
			base := contract.Play(tt.step)
			req := newGet(t)
			// Only while the attempt is under way.
			during := contract.BaseFunc(func(r *http.Request) (*http.Response, error) {
				resp, err := base.RoundTrip(r)
				if tt.ctx != nil {
					*req = *req.WithContext(tt.ctx)
				}
				return resp, err
			})
			resp, err := contract.Unchecked(t, httpretry.Config{
				Base: during, Observe: events.Observe,
				Policies: map[string]httpretry.Policy{"a.test": policy},
			}).RoundTrip(req)
			if err == nil {
				contract.ReadBody(t, resp)
			}
			want := tt.want
			want.Origin, want.PolicyKey, want.Number = "http://a.test", "a.test", 1
			assert.Equal(t, []result{want}, budget.ended)
			assert.Equal(t, []result{{}}, budget.charged)
			assert.Equal(t, want.Status != 0 && want.Outcome == httpretry.Final,
				budget.ended[0].Succeeded())
			require.Len(t, events.Events, 1)
			assert.Equal(t, want, events.Events[0].Attempt)
		})
	}
}

// resultOf is the result of an attempt to a.test.
func resultOf(attempt, status int, outcome httpretry.Outcome) httpretry.AttemptResult {
	return httpretry.AttemptResult{
		Origin: "http://a.test", Number: attempt, Status: status, Outcome: outcome}
}

// The result of a retry comes with that of the attempt which it follows, the
// argument of Withdraw.
func TestAttemptResultsOfRetries(t *testing.T) {
	budget := new(listener)
	policy := contract.RetryEvery(0)
	policy.Budget = budget
	contract.Send(t, contract.With(t, contract.Play(s503, reset, s200), policy), newGet(t))
	first := resultOf(1, 503, httpretry.Transient)
	second := resultOf(2, 0, httpretry.Transient)
	third := resultOf(3, 200, httpretry.Final)
	assert.Equal(t, []httpretry.AttemptResult{first, second, third}, budget.ended)
	assert.Equal(t, []httpretry.AttemptResult{first, second}, budget.asked)
	assert.Equal(t, []httpretry.AttemptResult{{}, first, second}, budget.charged)
}

// A body that breaks off is followed by a Withdraw, also if its attempt was
// recorded as a success.
func TestAttemptResultsOfResumes(t *testing.T) {
	o := newOrigin(1<<20, 10, 20, 100_000)
	budget := new(listener)
	policy := resuming()
	policy.Budget = budget
	resp := get(t, contract.With(t, o, policy))
	_, err := readAll(t, o, resp)
	require.NoError(t, err)
	breaks := []httpretry.AttemptResult{resultOf(1, 0, httpretry.Transient),
		resultOf(2, 0, httpretry.Transient), resultOf(3, 0, httpretry.Transient)}
	assert.Equal(t, breaks, budget.asked)
	assert.Equal(t, []httpretry.AttemptResult{resultOf(1, 200, httpretry.Final), breaks[1],
		resultOf(3, 206, httpretry.Final), resultOf(4, 206, httpretry.Final)}, budget.ended)
	assert.Equal(t, append([]httpretry.AttemptResult{{}}, breaks...), budget.charged)
}

// A layer may return a response with a status that is none.
func TestStatusZero(t *testing.T) {
	events := new(contract.Record)
	transport := contract.Unchecked(t, httpretry.Config{
		Base: answering(0), Observe: events.Observe})
	contract.ReadBody(t, contract.Send(t, transport, newGet(t)))
	assert.Equal(t, httpretry.ReasonSuccess, events.Reason())
	assert.Empty(t, transport.Origins()[0].LastFailure)
}

// A policy from a context has the key of the policy that it is made of, if any.
func TestKeyOfAContextsPolicy(t *testing.T) {
	same := func(p httpretry.Policy) httpretry.Policy { return p }
	for want, ctxs := range map[string][]context.Context{
		"": {httpretry.WithPolicy(t.Context(), contract.RetryEvery(0))},
		"GET a.test/": {httpretry.WithPolicyFunc(t.Context(), same),
			httpretry.WithoutRetries(t.Context())},
	} {
		for i, ctx := range ctxs {
			events := new(contract.Record)
			contract.Send(t, contract.New(t, httpretry.Config{
				Base: contract.Play(s200), Observe: events.Observe,
				Policies: map[string]httpretry.Policy{"GET a.test/": {}},
			}), newGet(t).WithContext(ctx))
			require.Len(t, events.Events, 1)
			assert.Equal(t, want, events.Events[0].Attempt.PolicyKey, "context %d", i)
		}
	}
}

// The second Event of a request that ends in its wait has the result of its last
// attempt. That of a request that a cool-down ends unsent has none.
func TestAttemptResultOfOtherEvents(t *testing.T) {
	playScene(t, contract.RetryEvery(time.Hour), func(s *scene) {
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Hour)
		time.AfterFunc(time.Minute, cancel)
		s.get(ctx, reset)
		require.Len(s, s.Events, 2)
		assert.Equal(s, httpretry.ReasonCanceled, s.Reason())
		assert.Equal(s, s.Events[0].Attempt, s.Events[1].Attempt)
		assert.Equal(s, httpretry.Transient, s.Events[1].Attempt.Outcome)
	})
	policy := contract.RetryEvery(0)
	policy.Cooldown = httpretry.CooldownFail
	playScene(t, policy, func(s *scene) {
		s.sendOnce(asksFor(3600))
		s.Events = nil
		s.get(s.Context(), s200)
		require.Len(s, s.Events, 1)
		assert.Equal(s, httpretry.ReasonCooldown, s.Reason())
		assert.Equal(s, httpretry.AttemptResult{Origin: "http://a.test"}, s.Events[0].Attempt)
	})
}

// Whatever ends the requests, a budget gets each attempt once, and each
// charge is refunded or recorded once.
func TestAccountOfManyRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			sent.Add(1)
			select {
			case <-time.After(rand.N(time.Second)):
			case <-req.Context().Done():
				return nil, req.Context().Err()
			}
			if rand.N(4) == 0 {
				return nil, contract.ErrReset
			}
			status := []int{200, 404, 429, 503, 504}[rand.N(5)]
			return &http.Response{StatusCode: status, Body: http.NoBody, Request: req,
				Header: http.Header{"Retry-After": {"1"}}}, nil
		})
		budget := &contract.Audit{Budget: new(httpretry.HostBudget)}
		policy := contract.RetryEvery(100 * time.Millisecond)
		policy.Budget, policy.Cooldown = budget, httpretry.CooldownWait
		policy.AttemptTimeout = 800 * time.Millisecond
		transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
		var wg sync.WaitGroup
		for i := range 2000 {
			wg.Go(func() {
				time.Sleep(rand.N(time.Minute))
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(10*time.Second))
				defer cancel()
				method := []string{"GET", "POST"}[i%2]
				resp, err := transport.RoundTrip(
					contract.Request(t, method, "http://a.test/", "").WithContext(ctx))
				if err == nil {
					contract.ReadBody(t, resp)
				}
			})
		}
		wg.Wait()
		budget.Check(t, int(sent.Load()))
	})
}

// Structs that may grow cannot be compared, so that later versions can have
// fields of any type.
func TestStructsThatMayGrow(t *testing.T) {
	for _, v := range []any{
		httpretry.AttemptResult{}, httpretry.Config{}, httpretry.CooldownError{},
		httpretry.Error{}, httpretry.Event{}, httpretry.MiddlewareConfig{},
		httpretry.BudgetStatus{}, httpretry.OriginStatus{}, httpretry.Policy{},
	} {
		of := reflect.TypeOf(v)
		assert.Equal(t, "_", of.Field(0).Name, "%v", of)
		assert.False(t, of.Field(0).Type.Comparable(), "%v", of)
	}
}

// A response that forbids a retry has the Outcome that its policy returns
// without that header.
func TestAttemptResultOfAForbiddenRetry(t *testing.T) {
	for outcome, want := range map[httpretry.Outcome]httpretry.Outcome{
		final: final, transient: transient, unprocessed: unprocessed,
		unprocessed + 1: final, // is not an Outcome
	} {
		budget := new(listener)
		policy := contract.RetryEvery(0)
		policy.Budget = budget
		policy.Classify = func(
			req *http.Request, resp *http.Response, err error) httpretry.Outcome {
			if httpretry.Classify(req, resp, err) == final {
				return final
			}
			return outcome
		}
		transport, err := httpretry.New(httpretry.Config{
			Base: contract.Play(contract.Status(503,
				"X-Should-Retry", "false", "Stripe-Should-Retry", "false")),
			Policy: policy})
		require.NoError(t, err)
		contract.Send(t, transport, newGet(t))
		require.Len(t, budget.ended, 1)
		assert.Equal(t, want, budget.ended[0].Outcome, outcome)
		failure := transport.Origins()[0].LastFailure
		assert.Equal(t, want != final, failure != "", "Origins has %q", failure)
	}
}

// If the deadline only leaves no time for the next wait, the error is that of the
// attempt, also if the deadline passes in Observe.
func TestErrorBeforeTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var events []httpretry.Event
		_, err := contract.New(t, httpretry.Config{
			Base: contract.Play(refused), Policy: contract.RetryEvery(time.Minute),
			Observe: func(_ context.Context, e httpretry.Event) {
				time.Sleep(time.Hour)
				events = append(events, e)
			},
		}).RoundTrip(newGet(t).WithContext(ctx))
		assert.Equal(t, contract.ErrRefused, err)
		require.Len(t, events, 1)
		assert.Equal(t, httpretry.ReasonDeadline, events[0].Reason)
		assert.Equal(t, contract.ErrRefused, events[0].Err)
		assert.Equal(t, "connection failed", events[0].Status())
	})
}

// http.Client closes the Cancel channel at its Timeout, maybe before the context
// is done. Then the deadline has passed, and the caller has not left.
func TestCancelChannelAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for after, want := range map[time.Duration]httpretry.Reason{
			time.Minute - 1: httpretry.ReasonCanceled, time.Minute: httpretry.ReasonDeadline,
		} {
			ctx := lateContext{t.Context(), time.Now().Add(time.Minute)}
			canceled, events := make(chan struct{}), new(contract.Record)
			time.AfterFunc(after, func() { close(canceled) })
			req := newGet(t).WithContext(ctx)
			req.Cancel = canceled //nolint:staticcheck // http.Client sets it
			base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
				<-canceled
				return nil, contract.ErrReset
			})
			_, err := contract.Recorded(t, base, contract.RetryEvery(0), events).RoundTrip(req)
			require.Error(t, err)
			assert.Equal(t, want, events.Reason())
			assert.Equal(t, want == httpretry.ReasonDeadline,
				errors.Is(events.Events[0].Err, context.DeadlineExceeded))
		}
	})
}

// lateContext is a context that is not done at its deadline.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// slowBudget allows retries after a time, or refuses one once the context is
// done.
type slowBudget struct {
	httpretry.Unlimited
	takes    time.Duration
	refunded int
}

func (b *slowBudget) Withdraw(ctx context.Context, _ httpretry.AttemptResult) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(b.takes):
		return true
	}
}

func (b *slowBudget) Refund(httpretry.AttemptResult) { b.refunded++ }

// If Withdraw takes long, the request ends as it would if that were a part of
// the wait.
func TestSlowWithdraw(t *testing.T) {
	for name, tt := range map[string]struct {
		takes, maxElapsed, deadline, cancel time.Duration

		reason   httpretry.Reason
		err      error
		refunded int
	}{
		"in time": {takes: time.Second, reason: httpretry.ReasonAttempts},
		"beyond MaxElapsed": {maxElapsed: 2 * time.Second, takes: 3 * time.Second,
			reason: httpretry.ReasonMaxElapsed, refunded: 1},
		"beyond the deadline": {deadline: 2 * time.Second, takes: 3 * time.Second,
			reason: httpretry.ReasonDeadline, err: context.DeadlineExceeded},
		"wait beyond MaxElapsed": {maxElapsed: 2 * time.Second, takes: 1500 * time.Millisecond,
			reason: httpretry.ReasonMaxElapsed, refunded: 1},
		"wait beyond the deadline": {deadline: 2 * time.Second, takes: 1500 * time.Millisecond,
			reason: httpretry.ReasonDeadline, refunded: 1},
		"cancel": {cancel: 2 * time.Second, takes: 3 * time.Second,
			reason: httpretry.ReasonCanceled, err: context.Canceled},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			budget, events := &slowBudget{takes: tt.takes}, new(contract.Record)
			policy := contract.RetryEvery(time.Second)
			policy.Budget, policy.MaxAttempts, policy.MaxElapsed = budget, 2, tt.maxElapsed
			ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(tt.deadline, time.Hour))
			defer cancel()
			time.AfterFunc(cmp.Or(tt.cancel, time.Hour), cancel)
			base := contract.Play(reset)
			_, err := contract.Recorded(t, base, policy, events).
				RoundTrip(newGet(t).WithContext(ctx))
			require.Error(t, err)
			if tt.err != nil {
				assert.ErrorIs(t, err, tt.err)
			}
			assert.Equal(t, tt.reason.String(), events.Reason().String())
			assert.Equal(t, tt.refunded, budget.refunded)
			assert.Equal(t, tt.reason == httpretry.ReasonAttempts, len(base.Attempts()) == 2)
		})
	}
}
