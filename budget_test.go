package httpretry_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"runtime"
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
	"github.com/seed421102f4/httpretry/strategies"
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

func TestHostBudgetRatioIsExact(t *testing.T) {
	for _, c := range []struct {
		ratio     float64
		successes int
		want      int
	}{
		{0.1, 0, 0}, {0.1, 1, 0}, {0.1, 9, 0}, {0.1, 10, 1}, {0.1, 19, 1},
		// 0.1*30 is 3.0000000000000004
		{0.1, 29, 2}, {0.1, 30, 3}, {0.1, 100, 10}, {0.1, 10_000, 1000},
		{0.2, 4, 0}, {0.2, 5, 1}, {0.2, 100, 20},
		{0.29, 100, 29}, {0.57, 100, 57}, // 0.29*100 is 28.999999999999996
		{0.4, 10, 4}, {0.4, 9, 3},
		{0.7, 10, 7},
		{1.0 / 3, 2, 0}, {1.0 / 3, 3, 1}, {1.0 / 3, 30, 10},
		{2.0 / 3, 3, 2},
		{1, 1, 1}, {1, 100, 100},
		{1.1, 10, 11},
		{2, 3, 6},
		{2.5, 1, 2}, {2.5, 2, 5},
		{0.0001, 9999, 0}, {0.0001, 10_000, 1},
		{1000, 1, 1000},
	} {
		title := strconv.FormatFloat(c.ratio, 'g', 4, 64) + " of " + strconv.Itoa(c.successes)
		contract.Bubble(t, title, func(t *testing.T) {
			b := httpretry.HostBudget{Ratio: c.ratio, Burst: -1}
			require.NoError(t, b.Validate())
			deposit(&b, budgetOrigin, c.successes)
			assert.Equal(t, c.want, contract.Balance(&b, budgetOrigin))
			assert.Equal(t, c.want, withdrawals(t, &b, budgetOrigin, c.want+1))
			assert.Zero(t, contract.Balance(&b, budgetOrigin))
		})
	}
}

func TestHostBudgetRatioStaysExactWhileItIsSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 0.4, Burst: -1}
		retries := 0
		for n := range 1000 {
			contract.Succeed(&b, budgetOrigin, false)
			retries += withdrawals(t, &b, budgetOrigin, 2)
			require.Equal(t, 4*(n+1)/10, retries, "after %d successes", n+1)
		}
	})
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

// A retry after a timeout costs 2. A balance of 1 does not allow it.
func TestHostBudgetRetryAfterATimeoutCostsTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b httpretry.HostBudget
		for _, balance := range []int{3, 1} {
			require.True(t, b.Withdraw(t.Context(), afterTimeout()))
			require.Equal(t, balance, contract.Balance(&b, budgetOrigin))
		}
		require.False(t, b.Withdraw(t.Context(), afterTimeout()))
		require.True(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)))
		b.Refund(afterTimeout())
		assert.Equal(t, 2, contract.Balance(&b, budgetOrigin))
		retrySucceeds(&b, afterTimeout())
		assert.Equal(t, 5, contract.Balance(&b, budgetOrigin), "2 of the retry, and 1 more")
	})
}

// A 504 is a timeout, too.
func TestHostBudgetOfATransportsTimeouts(t *testing.T) {
	for status, sends := range map[int]int{503: 1 + 5, 504: 1 + 2} {
		policy := contract.RetryEvery(0)
		policy.MaxAttempts, policy.Budget = 10, new(httpretry.HostBudget)
		sent := 0
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			sent++
			return answering(status)(req)
		})
		contract.Send(t, contract.With(t, base, policy), newGet(t))
		assert.Equal(t, sends, sent, status)
	}
}

// An outage of an hour leaves the balance of its first second. Afterwards, time
// counts again from the next success on.
func TestHostBudgetGainsNothingWhileTheHostFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 0.5, Burst: 2}
		deposit(&b, budgetOrigin, 8)
		for left := 6; left > 2; left-- {
			require.Equal(t, left, contract.Balance(&b, budgetOrigin))
			require.True(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)))
		}
		time.Sleep(time.Hour)
		assert.Equal(t, 2, withdrawals(t, &b, budgetOrigin, 5))
		time.Sleep(time.Hour)
		assert.Zero(t, contract.Balance(&b, budgetOrigin))
		contract.Succeed(&b, budgetOrigin, false)
		assert.Zero(t, contract.Balance(&b, budgetOrigin))
		time.Sleep(30*time.Second - 1)
		assert.Zero(t, contract.Balance(&b, budgetOrigin))
		time.Sleep(time.Nanosecond)
		assert.Equal(t, 2, contract.Balance(&b, budgetOrigin))
	})
}

func TestHostBudgetBurstIsBackAWindowAfterASuccess(t *testing.T) {
	for _, c := range []struct {
		name string
		wait time.Duration
		want int
	}{
		{"not at once", 0, 0},
		{"not early", time.Second - 1, 0},
		{"in a window", time.Second, 3},
		{"not beyond", time.Hour, 3},
		{"not ever", 100 * 365 * 24 * time.Hour, 3},
	} {
		contract.Bubble(t, c.name, func(t *testing.T) {
			b := httpretry.HostBudget{Burst: 3, Window: time.Second}
			require.Equal(t, 3, withdrawals(t, &b, budgetOrigin, 4))
			contract.Succeed(&b, budgetOrigin, false)
			time.Sleep(c.wait)
			assert.Equal(t, c.want, contract.Balance(&b, budgetOrigin))
			assert.Equal(t, c.want, withdrawals(t, &b, budgetOrigin, 4))
		})
	}
}

// The times between a success and the next failure add up to a Window.
func TestHostBudgetTimeStandsStillWhileTheHostFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 0.001, Burst: 4, Window: time.Second}
		require.Equal(t, 4, withdrawals(t, &b, budgetOrigin, 5))
		time.Sleep(time.Hour)
		for range 20 {
			require.False(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)))
			time.Sleep(time.Hour)
			contract.Succeed(&b, budgetOrigin, false)
			time.Sleep(50 * time.Millisecond)
		}
		assert.Equal(t, 4, contract.Balance(&b, budgetOrigin))
	})
}

// After a retry that succeeds, too, time goes on.
func TestHostBudgetTimeGoesOnAfterARetryThatSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b httpretry.HostBudget
		require.Equal(t, 5, withdrawals(t, &b, budgetOrigin, 6))
		contract.Succeed(&b, budgetOrigin, true)
		require.Equal(t, 2, contract.Balance(&b, budgetOrigin), "its own, and that of another one")
		time.Sleep(30 * time.Second)
		assert.Equal(t, 5, contract.Balance(&b, budgetOrigin))
	})
}

func TestHostBudgetRefusedWithdrawalShowsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Burst: 1, Window: time.Second}
		require.Equal(t, 1, withdrawals(t, &b, budgetOrigin, 1))
		contract.Succeed(&b, budgetOrigin, false)
		require.False(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)))
		time.Sleep(time.Hour)
		assert.Zero(t, contract.Balance(&b, budgetOrigin))
	})
}

func TestHostBudgetRefund(t *testing.T) {
	const window = 10 * time.Second
	for _, c := range []struct {
		name  string
		burst int
		play  func(t *testing.T, b *httpretry.HostBudget)
		want  int // the balance in the end
	}{
		{"of a charge by the ratio", -1, func(t *testing.T, b *httpretry.HostBudget) {
			deposit(b, budgetOrigin, 2)
			require.Equal(t, 2, withdrawals(t, b, budgetOrigin, 3))
			b.Refund(contract.Failure(budgetOrigin))
		}, 1},
		{"of a charge by the burst", 3, func(t *testing.T, b *httpretry.HostBudget) {
			require.Equal(t, 3, withdrawals(t, b, budgetOrigin, 4))
			b.Refund(contract.Failure(budgetOrigin))
			b.Refund(contract.Failure(budgetOrigin))
		}, 2},
		{"to the burst and to the ratio", 3, func(t *testing.T, b *httpretry.HostBudget) {
			deposit(b, budgetOrigin, 2)
			require.Equal(t, 5, withdrawals(t, b, budgetOrigin, 6))
			for range 5 {
				b.Refund(contract.Failure(budgetOrigin))
			}
		}, 5},
		{"by deposits", 3, func(t *testing.T, b *httpretry.HostBudget) {
			require.Equal(t, 2, withdrawals(t, b, budgetOrigin, 2))
			contract.Succeed(b, budgetOrigin, true)
			deposit(b, budgetOrigin, 3)
			contract.Succeed(b, budgetOrigin, true) // in the middle of a batch
		}, 8},
		{"without a charge", 3, func(t *testing.T, b *httpretry.HostBudget) {
			deposit(b, budgetOrigin, 2)
			for range 10 {
				b.Refund(contract.Failure(budgetOrigin))
			}
		}, 5},
		{"more often than charged", 3, func(t *testing.T, b *httpretry.HostBudget) {
			require.Equal(t, 2, withdrawals(t, b, budgetOrigin, 2))
			for range 10 {
				b.Refund(contract.Failure(budgetOrigin))
			}
		}, 3},
		{"for a host that is not known", 3, func(t *testing.T, b *httpretry.HostBudget) {
			b.Refund(contract.Failure(budgetOrigin))
			b.Refund(contract.Failure(otherOrigin))
		}, 3},
		{"for another host", 3, func(t *testing.T, b *httpretry.HostBudget) {
			require.Equal(t, 2, withdrawals(t, b, budgetOrigin, 2))
			contract.Succeed(b, otherOrigin, false)
			b.Refund(contract.Failure(otherOrigin))
		}, 1},
		{"late", 3, func(t *testing.T, b *httpretry.HostBudget) {
			require.Equal(t, 1, withdrawals(t, b, budgetOrigin, 1))
			contract.Succeed(b, budgetOrigin, false)
			time.Sleep(window * 9 / 10)
			b.Refund(contract.Failure(budgetOrigin))
		}, 3 + 1},
		{"while the host fails", 3, func(t *testing.T, b *httpretry.HostBudget) {
			require.Equal(t, 2, withdrawals(t, b, budgetOrigin, 2))
			time.Sleep(window)
			b.Refund(contract.Failure(budgetOrigin))
		}, 2},
		{"after the charge has expired", 3, func(t *testing.T, b *httpretry.HostBudget) {
			require.Equal(t, 2, withdrawals(t, b, budgetOrigin, 2))
			contract.Succeed(b, budgetOrigin, false)
			time.Sleep(window)
			b.Refund(contract.Failure(budgetOrigin))
		}, 3},
		{"of the latest charge", -1, func(t *testing.T, b *httpretry.HostBudget) {
			deposit(b, budgetOrigin, 1)
			require.Equal(t, 1, withdrawals(t, b, budgetOrigin, 1))
			deposit(b, budgetOrigin, 1)
			time.Sleep(window / 2)
			require.Equal(t, 1, withdrawals(t, b, budgetOrigin, 1))
			b.Refund(contract.Failure(budgetOrigin))
			deposit(b, budgetOrigin, 1)
			time.Sleep(window / 2) // now no charge and one success are left
		}, 1},
	} {
		contract.Bubble(t, c.name, func(t *testing.T) {
			b := &httpretry.HostBudget{Ratio: 1, Burst: c.burst, Window: window}
			c.play(t, b)
			assert.Equal(t, c.want, contract.Balance(b, budgetOrigin))
			assert.Equal(t, c.want, withdrawals(t, b, budgetOrigin, c.want+1))
		})
	}
}

// A client whose retries all succeed gets any number of them.
func TestHostBudgetBoundsOnlyFailedRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Burst: 1}
		for range 1000 {
			require.True(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)))
			contract.Succeed(&b, budgetOrigin, true)
		}
	})
}

// A retry that succeeds cancels what other retries have cost, but saves nothing
// for later ones.
func TestHostBudgetBonusPaysForFailedRetriesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 0.5}
		for n := range 100 {
			contract.Succeed(&b, budgetOrigin, true)
			require.Equal(t, 5+(n+1)/2, contract.Balance(&b, budgetOrigin))
		}
	})
}

// Refunds do not keep charges that stand from expiring.
func TestHostBudgetFailedRetriesExpireAmongRefunds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 0.1, Burst: -1, Window: 10 * time.Second}
		deposit(&b, budgetOrigin, 100)
		for tick := range 1000 { // 100 successes and 5 failed retries in each window
			require.True(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)), tick)
			contract.Succeed(&b, budgetOrigin, false)
			time.Sleep(50 * time.Millisecond)
			if tick%20 > 0 {
				b.Refund(contract.Failure(budgetOrigin))
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
}

// A retry that succeeds gives its charge back. With Strict, it does not.
func TestHostBudgetOfRetriesThatSucceed(t *testing.T) {
	for strict, want := range map[bool]int{false: 8, true: 5} {
		synctest.Test(t, func(t *testing.T) {
			b := httpretry.HostBudget{Ratio: 1, Strict: strict}
			require.Equal(t, 3, withdrawals(t, &b, budgetOrigin, 3))
			for range 3 {
				contract.Succeed(&b, budgetOrigin, true)
			}
			assert.Equal(t, want, contract.Balance(&b, budgetOrigin))
		})
	}
}

// The successes of a transport's retries count as such, and no others do.
func TestHostBudgetOfATransportsRetriesThatSucceed(t *testing.T) {
	for _, c := range []struct {
		strict bool
		base   http.RoundTripper
		before int // retries that failed before
		want   int
	}{
		{false, failingFirst(), 0, 8},
		{true, failingFirst(), 0, 5},
		{false, answering(200), 3, 5},
		{true, answering(200), 3, 5},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &httpretry.HostBudget{Ratio: 1, Strict: c.strict}
			require.Equal(t, c.before, withdrawals(t, b, "http://a.test", c.before))
			transport := contract.New(t, httpretry.Config{
				Base: c.base, Policy: httpretry.Policy{Budget: b, Backoff: strategies.Constant{}}})
			for range 3 {
				contract.Send(t, transport, contract.Request(t, "GET", "http://a.test/", ""))
			}
			assert.Equal(t, c.want, contract.Balance(b, "http://a.test"), "%+v", c)
		})
	}
}

// failingFirst returns a base that answers every other request with a 503.
func failingFirst() contract.BaseFunc {
	failed := false
	return func(req *http.Request) (*http.Response, error) {
		failed = !failed
		if failed {
			return answering(503)(req)
		}
		return answering(200)(req)
	}
}

func TestHostBudgetRefusalsCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 0.0001, Burst: 1, Window: time.Second}
		require.True(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)))
		for range 999 {
			contract.Succeed(&b, budgetOrigin, false)
			time.Sleep(time.Millisecond)
			require.False(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)))
		}
		contract.Succeed(&b, budgetOrigin, false)
		time.Sleep(time.Millisecond)
		assert.True(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)))
	})
}

func TestHostBudgetWindowExpires(t *testing.T) {
	for _, c := range []struct {
		name  string
		first time.Duration // from the window's beginning to the successes
		wait  time.Duration // from the successes to the retries
		want  int
	}{
		{"at once", 0, 0, 10},
		{"for nine tenths of a window at least", time.Second - 1, 9 * time.Second, 10},
		{"for a window at most", 0, 10*time.Second - 1, 10},
		{"not longer", 0, 10 * time.Second, 0},
		{"nor from the middle of a step", 1500 * time.Millisecond, 10 * time.Second, 0},
		{"nor after a second round", 0, 20 * time.Second, 0},
		{"nor ever", 3 * time.Second, 1000 * time.Hour, 0},
	} {
		contract.Bubble(t, c.name, func(t *testing.T) {
			b := httpretry.HostBudget{Ratio: 0.1, Burst: -1, Window: 10 * time.Second}
			contract.Succeed(&b, budgetOrigin, false) // This begins the window.
			time.Sleep(c.first)
			deposit(&b, budgetOrigin, 100)
			// from here on their time is known
			require.Equal(t, 10, contract.Balance(&b, budgetOrigin))
			time.Sleep(c.wait)
			assert.Equal(t, c.want, withdrawals(t, &b, budgetOrigin, 11))
		})
	}
}

func TestHostBudgetRetriesExpireLikeSuccesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 0.5, Burst: -1, Window: time.Second}
		retries := 0
		// two successes each 10 ms: after any number of windows, one retry for
		// both and no more
		for range 1000 {
			contract.Succeed(&b, budgetOrigin, false)
			retries += withdrawals(t, &b, budgetOrigin, 2)
			contract.Succeed(&b, budgetOrigin, false)
			time.Sleep(10 * time.Millisecond)
		}
		// One tick of each window has a single success before its retry.
		assert.Equal(t, 1000-10, retries)
	})
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 1, Burst: -1, Window: time.Second}
		deposit(&b, budgetOrigin, 5)
		require.Equal(t, 5, contract.Balance(&b, budgetOrigin))
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, 5, withdrawals(t, &b, budgetOrigin, 6))
		contract.Succeed(&b, budgetOrigin, false)
		time.Sleep(500 * time.Millisecond)
		assert.False(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)),
			"five retries and one success in the window")
		contract.Succeed(&b, budgetOrigin, false)
		time.Sleep(500 * time.Millisecond)
		assert.Equal(t, 1, withdrawals(t, &b, budgetOrigin, 2),
			"no retry and one success in the window")
	})
}

// Most deposits do not read the clock. They count as made when it was last
// read, so none counts for too long.
func TestHostBudgetSuccessesOfUnknownAgeDoNotCountForTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 1, Burst: -1, Window: 10 * time.Second}
		for range 100 {
			deposit(&b, budgetOrigin, 99)
			time.Sleep(10 * time.Second)
			require.Zero(t, contract.Balance(&b, budgetOrigin))
		}
	})
}

// Nor is any of them lost.
func TestHostBudgetSuccessesOfUnknownAgeCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 1, Burst: -1, Window: 10 * time.Second}
		deposit(&b, budgetOrigin, 8) // the last three do not read the clock
		time.Sleep(3 * time.Second)
		assert.Equal(t, 8, contract.Balance(&b, budgetOrigin))
	})
}

// The age of at most 31 successes is unknown.
func TestHostBudgetBatchesAreSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 1, Burst: -1, Window: 10 * time.Second}
		deposit(&b, budgetOrigin, 10_000)
		time.Sleep(5 * time.Second)
		deposit(&b, budgetOrigin, 100)
		time.Sleep(6 * time.Second)
		assert.GreaterOrEqual(t, contract.Balance(&b, budgetOrigin), 100-31)
	})
}

// A retry that succeeds reads the clock.
func TestHostBudgetRetryCountsAtItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 1, Burst: -1, Window: 10 * time.Second}
		deposit(&b, budgetOrigin, 100) // grows the batch
		time.Sleep(9 * time.Second)
		contract.Succeed(&b, budgetOrigin, true)
		time.Sleep(2 * time.Second)
		assert.Equal(t, 1, contract.Balance(&b, budgetOrigin))
	})
}

func TestHostBudgetCountsFewSuccessesAtTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 1, Burst: -1, Window: 10 * time.Second}
		deposit(&b, budgetOrigin, 100) // grows the batch
		time.Sleep(time.Hour)
		for range 100 {
			contract.Succeed(&b, budgetOrigin, false)
			time.Sleep(time.Second)
		}
		assert.Equal(t, 9, contract.Balance(&b, budgetOrigin),
			"a step has passed since the last one")
	})
}

// Hazard I1: no goroutine can come between the check of the balance and the
// charge.
func TestHostBudgetNeverOvershootsUnderConcurrency(t *testing.T) {
	for _, c := range []struct {
		name   string
		budget *httpretry.HostBudget
		known  int // successes beforehand
	}{
		{"ratio", &httpretry.HostBudget{Burst: -1}, 50},
		{"burst", &httpretry.HostBudget{Burst: 10}, 0},
		{"both", &httpretry.HostBudget{Burst: 4}, 30},
	} {
		contract.Bubble(t, c.name, func(t *testing.T) {
			deposit(c.budget, budgetOrigin, c.known)
			var wg sync.WaitGroup
			var cost atomic.Int64
			barrier := make(chan struct{})
			after := []httpretry.AttemptResult{contract.Failure(budgetOrigin), afterTimeout()}
			for i := range 1000 {
				wg.Go(func() {
					<-barrier
					if c.budget.Withdraw(t.Context(), after[i%2]) {
						cost.Add(int64(1 + i%2))
					}
				})
			}
			synctest.Wait()
			close(barrier)
			wg.Wait()
			assert.EqualValues(t, 10, cost.Load())
		})
	}
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

func TestHostBudgetWithdrawSeesAllDepositsBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Ratio: 1, Burst: -1}
		for n := range 100 { // each from another goroutine
			var wg sync.WaitGroup
			wg.Go(func() { contract.Succeed(&b, budgetOrigin, false) })
			wg.Wait()
			require.True(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)), n)
		}
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
		for _, h := range hosts[:1024] {
			// and this is no use of them
			require.Zero(t, contract.Balance(&b, h), "1024 hosts are remembered")
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

// Hosts may be evicted at any time.
// contextBudget records the contexts of withdrawals.
type contextBudget struct {
	contract.Ledger
	got []context.Context
}

func (b *contextBudget) Withdraw(ctx context.Context, last httpretry.AttemptResult) bool {
	b.got = append(b.got, ctx)
	return b.Ledger.Withdraw(ctx, last)
}

// A Budget gets the request's own context, whose end is that of the request and
// not of an attempt.
func TestWithdrawGetsTheRequestsContext(t *testing.T) {
	budget := new(contextBudget)
	policy := contract.RetryEvery(0)
	policy.AttemptTimeout, policy.Budget = time.Hour, budget
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "value")
	contract.Send(t, contract.With(t, answering(503), policy), newGet(t).WithContext(ctx))
	assert.Equal(t, []context.Context{ctx, ctx, ctx, ctx}, budget.got)
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

func TestHostBudgetSharedByTransports(t *testing.T) {
	budget := &httpretry.HostBudget{Ratio: 1, Burst: -1, Window: time.Hour}
	cfg := httpretry.Config{
		Base:   answering(200),
		Policy: httpretry.Policy{Budget: budget},
	}
	var wg sync.WaitGroup
	for range 2 {
		transport := contract.Unchecked(t, cfg)
		for range 2 {
			wg.Go(func() {
				for i, host := range hostNames(3000) {
					for _, h := range []string{host, fmt.Sprintf("often-%d.test", i%3)} {
						_, err := transport.RoundTrip(
							contract.Request(t, "GET", "http://"+h+"/", ""))
						assert.NoError(t, err)
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

func TestHostBudgetBalanceLeavesNoTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := httpretry.HostBudget{Burst: 5}
		require.True(t, b.Withdraw(t.Context(), contract.Failure(budgetOrigin)))
		for _, h := range hostNames(2000) {
			require.Equal(t, 5, contract.Balance(&b, h), "the balance of a new host")
		}
		assert.Equal(t, 4, contract.Balance(&b, budgetOrigin), "remembered")
		assert.Equal(t, 4, contract.Balance(&b, budgetOrigin), "and not spent")
	})
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
		{&budget{Ratio: math.Inf(-1)}, "HostBudget.Ratio: -Inf" + ratio},
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
	var b httpretry.Unlimited
	contract.Succeed(b, budgetOrigin, false)
	b.Refund(contract.Failure(budgetOrigin))
	assert.Equal(t, 1000, withdrawals(t, b, budgetOrigin, 1000))
}

func TestHostBudgetAllocatesNothingForAKnownHost(t *testing.T) {
	b := httpretry.HostBudget{Burst: 500, Ratio: 0.5}
	ctx := t.Context()
	contract.Succeed(&b, budgetOrigin, false)
	assert.Zero(t, testing.AllocsPerRun(1000, func() { contract.Succeed(&b, budgetOrigin, false) }))
	// allowed by both, then refused
	failure := contract.Failure(budgetOrigin)
	assert.Zero(t, testing.AllocsPerRun(2000, func() { b.Withdraw(ctx, failure) }))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { b.Refund(contract.Failure(budgetOrigin)) }))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { contract.Balance(&b, budgetOrigin) }))
}

// Goroutines that use one host. More than there are cores share them.
func BenchmarkHostBudgetContention(b *testing.B) {
	for _, c := range []struct {
		name     string
		failures int // one in so many requests has a retry, which succeeds; 0: none
	}{
		{"all succeed", 0},
		{"1 in 100 retried", 100},
		{"1 in 10 retried", 10},
	} {
		for _, goroutines := range []int{1, 2, 4, 8, 16} {
			b.Run(fmt.Sprintf("%s/goroutines=%d", c.name, goroutines), func(b *testing.B) {
				var budget httpretry.HostBudget
				procs := min(runtime.GOMAXPROCS(0), goroutines)
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				b.SetParallelism(goroutines / procs)
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for i := 1; pb.Next(); i++ {
						if c.failures == 0 || i%c.failures > 0 {
							contract.Succeed(&budget, budgetOrigin, false)
							continue
						}
						contract.Succeed(&budget, budgetOrigin,
							budget.Withdraw(b.Context(), contract.Failure(budgetOrigin)))
					}
				})
			})
		}
	}
}
