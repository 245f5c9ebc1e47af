package redisbudget_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/redisbudget"
	"github.com/seed421102f4/httpretry/retrytest"
)

// The defaults are those of a HostBudget: it allows as many retries, and forgets
// successes as early.
func TestDefaultsAreThoseOfAHostBudget(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		b := s.watch(t, redisbudget.Config{})
		var core httpretry.HostBudget
		for _, c := range []struct {
			successes int
			age       time.Duration
		}{{0, 0}, {1000, time.Second}, {1000, 26 * time.Second}, {1000, 31 * time.Second}} {
			host := fmt.Sprintf("https://%d.%d.test", c.successes, c.age)
			succeed(b, host, c.successes)
			succeed(&core, host, c.successes)
			time.Sleep(c.age)
			want := withdrawn(t, &core, host, 1000)
			assert.Equal(t, want, withdrawn(t, b, host, 1000), c)
		}
	})(t)
}

func TestNewReportsAllProblems(t *testing.T) {
	client := newClient(t, "127.0.0.1:1")
	_, err := redisbudget.New(redisbudget.Config{
		Client: (*redis.Client)(nil), Namespace: "a b", Ratio: math.NaN(), Burst: 1 << 30,
		Window: time.Microsecond, FlushInterval: 1, FlushSize: -1, Lease: 1001, Timeout: -1,
	})
	assert.EqualError(t, err, `redisbudget: Config.Client: a nil *redis.Client: want a usable client
redisbudget: Config.Namespace: "a b": want "" (the default, "httpretry") or up to 64 of A-Z a-z 0-9 . _ / -
redisbudget: Config.Ratio: NaN: want 0 (the default, 0.2) or a number from 0.000001 to 1000000
redisbudget: Config.Burst: 1073741824: want 0 (the default, 5), a negative number (none) or at most 1000000
redisbudget: Config.Window: 1µs: want 0 (the default, 30s) or a duration from 1ms to 8760h0m0s
redisbudget: Config.FlushInterval: 1ns: want 0 (the default, 100ms) or at least 1ms
redisbudget: Config.FlushSize: -1: want 0 (the default, 1000) or at least 1
redisbudget: Config.Lease: 1001: want 0 (the default, 8) or a number from 1 to 1000
redisbudget: Config.Timeout: -1ns: want 0 (the default, 50ms) or a duration from 1ms to 1m0s`)

	for _, c := range []struct {
		cfg  redisbudget.Config
		want string
	}{
		{redisbudget.Config{}, "redisbudget: Config.Client: nil: want a usable client"},
		{redisbudget.Config{Client: client, Window: 299 * time.Millisecond},
			"redisbudget: Config.Window: 299ms: want at least 300ms, twice FlushInterval and Timeout together"},
		{redisbudget.Config{Client: client, FlushInterval: 15 * time.Second},
			"redisbudget: Config.Window: 30s: want at least 30.1s, twice FlushInterval and Timeout together"},
		{redisbudget.Config{Client: client, FlushInterval: math.MaxInt64},
			"redisbudget: Config.Window: 30s: want at least 1281023h53m38.527387902s, twice FlushInterval and Timeout together"},
	} {
		_, err := redisbudget.New(c.cfg)
		assert.EqualError(t, err, c.want)
	}
}

// Names of any bytes have keys of their own, which are bounded and printable.
func TestKeys(t *testing.T) {
	b := newBudget(t, redisbudget.Config{Client: newClient(t, "127.0.0.1:1"), Namespace: "shop"})
	assert.Equal(t, "{shop:v1:30000000:host:https://a.test:8443}", b.Key("https://a.test:8443"))
	seen := map[string]string{}
	long := strings.Repeat("x", 128)
	sum := sha256.Sum256([]byte(strings.Repeat(long, 5)))
	for _, name := range []string{
		"", " ", "a", "A", "a}", "{a", "}{", "a\x00", "a\n", "\xff", "ä", long, long + "x", long + "y",
		strings.Repeat(long, 4), strings.Repeat(long, 5), strings.Repeat(long, 5) + "y", "sha256:" + long,
		"\x00sha256:" + hex.EncodeToString(sum[:]), "\x00sha256:" + strings.Repeat("0", 64), "sha256:" + strings.Repeat("0", 64), strings.Repeat("0", 64),
	} {
		key := b.Key(name)
		assert.Regexp(t, `^\{shop:v1:30000000:(host:[!-z]{1,128}|sha256:[0-9a-f]{64})\}$`, key)
		assert.Equal(t, key, b.Key(name))
		assert.NotContains(t, seen, key, "%q and %q", name, seen[key])
		seen[key] = name
	}
}

func TestLeasesNeedFewRoundTrips(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		cfg := redisbudget.Config{Ratio: 0.1, Burst: -1, Window: 20 * time.Second}
		a, b := s.watch(t, cfg), s.watch(t, cfg)
		succeed(a, target, 1000)     // for 100 retries
		time.Sleep(11 * time.Second) // until the host rests
		assert.Equal(t, 64, withdrawn(t, a, target, 64))
		assert.EqualValues(t, 64/8, s.withdrawals.Load())

		// A lease ends. Then others may have the rest.
		assert.Equal(t, 1, withdrawn(t, a, target, 1))
		time.Sleep(3 * time.Second)
		assert.Equal(t, 35, withdrawn(t, b, target, 40))
		assert.Zero(t, withdrawn(t, a, target, 1))
	})(t)
}

// Retries that wait for a call take from the lease of the one before. What is left
// of a lease that is too small is given back.
func TestLeaseOfTheCallBefore(t *testing.T) {
	far(time.Millisecond, func(t *testing.T, s *farServer) {
		b := s.watch(t, quiet)
		time.Sleep(time.Second) // until it is connected
		succeed(b, target, 500)
		var wg sync.WaitGroup
		for range 5 { // the first takes a lease of seven more
			wg.Go(func() { assert.True(t, b.Withdraw(t.Context(), failed(target))) })
			synctest.Wait()
		}
		wg.Wait()
		assert.Equal(t, 3, withdrawn(t, b, target, 3))
		assert.EqualValues(t, 1, s.withdrawals.Load())
		assert.Equal(t, 7, withdrawn(t, b, target, 7)) // and one more in a lease
		assert.True(t, b.Withdraw(t.Context(), timedOut(target)))
		assert.EqualValues(t, 3, s.withdrawals.Load())
		require.NoError(t, b.Close())
		_, charges := counts(t, s.client(t), b.Key(target))
		assert.Equal(t, 5+3+7+2, charges)
	})(t)
}

// A lease ends after a tenth of the Window, even if no report is due.
func TestLeaseEnds(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		const interval = 5 * time.Second
		b := s.watch(t, redisbudget.Config{Window: 20 * time.Second, FlushInterval: interval})
		succeed(b, target, 999)
		for n := range int64(3) {
			require.Equal(t, 2, withdrawn(t, b, target, 2))
			assert.Equal(t, n+1, s.withdrawals.Load())
			time.Sleep(2 * time.Second)
		}
	})(t)
}

// All retries of a budget are used, no more and no less, however many processes
// want them at once. At first, some are in leases of processes that do not want
// them, so the processes ask until all are used.
func TestConcurrentWithdrawals(t *testing.T) {
	f := newFake(t)
	var budgets []*redisbudget.Budget
	for range 5 {
		b := f.budget(t, redisbudget.Config{Window: year})
		succeed(b, target, 100)
		budgets = append(budgets, b)
	}
	// Until Redis knows of all successes, it may refuse retries.
	require.Eventually(t, func() bool {
		return strings.HasSuffix(f.HGet(budgets[0].Key(target), "slots"), ":500:0")
	}, time.Minute, time.Millisecond)

	const want = 500/5 + 5
	var allowed atomic.Int64
	withdraw := func(goroutines, n int) {
		var wg sync.WaitGroup
		for _, b := range budgets {
			for range goroutines {
				wg.Go(func() { allowed.Add(int64(withdrawn(t, b, target, n))) })
			}
		}
		wg.Wait()
	}
	withdraw(20, 5)
	require.Eventually(t, func() bool {
		withdraw(1, 1)
		return allowed.Load() >= want
	}, time.Minute, time.Millisecond)
	withdraw(1, 5)
	assert.EqualValues(t, want, allowed.Load())
}

func TestRefundsGoToTheLease(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		b := s.watch(t, quiet) // There is no report that the first withdrawal could overtake.
		succeed(b, target, 500)
		require.Equal(t, 2, withdrawn(t, b, target, 2)) // and six more in a lease
		for range 50 {
			b.Refund(failed(target))
			require.True(t, b.Withdraw(t.Context(), failed(target)))
		}
		assert.EqualValues(t, 1, s.withdrawals.Load())
	})(t)
}

// For a short time after a refusal, retries are refused without a round trip.
// Then the successes of another process count.
func TestRefusals(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		a, b := s.watch(t, redisbudget.Config{Burst: -1}), s.watch(t, redisbudget.Config{Burst: -1})
		assert.Zero(t, withdrawn(t, a, target, 1000))
		assert.EqualValues(t, 1, s.withdrawals.Load())
		succeed(b, target, 10)
		time.Sleep(2 * flushInterval)
		assert.Equal(t, 2, withdrawn(t, a, target, 9))
	})(t)
}

// FlushSize successes are reported at once.
func TestFlushSize(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		b := s.watch(t, redisbudget.Config{Window: year, FlushInterval: time.Minute, FlushSize: 10})
		succeed(b, target, 9)
		time.Sleep(time.Second)
		assert.Zero(t, s.reports.Load())
		succeed(b, target, 1)
		synctest.Wait()
		assert.EqualValues(t, 1, s.reports.Load())
	})(t)
}

// The first successes after a rest are reported together, a FlushInterval later.
func TestFirstReportAfterARest(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		b := s.watch(t, redisbudget.Config{Window: year})
		time.Sleep(5 * flushInterval / 2)
		for range 3 {
			succeed(b, target, 1)
			synctest.Wait()
			assert.Zero(t, s.reports.Load())
		}
		time.Sleep(flushInterval)
		synctest.Wait()
		assert.EqualValues(t, 1, s.reports.Load())
		assert.Regexp(t, "^[0-9]+:3:0$", s.HGet(b.Key(target), "slots"))
	})(t)
}

// Hosts are reported again after they have rested, and nothing is sent while
// they rest.
func TestReports(t *testing.T) {
	f := newFake(t)
	b := newBudget(t, redisbudget.Config{
		Client: newClient(t, f.Addr()), Burst: -1, FlushInterval: time.Millisecond, Window: year, Timeout: time.Minute})
	for round := range 3 {
		for i := range 300 {
			succeed(b, fmt.Sprintf("https://%d.test", i), 10)
		}
		require.Eventually(t, func() bool { return f.reports.Load() >= int64(300*(round+1)) }, time.Minute, time.Millisecond)
		time.Sleep(150 * time.Millisecond) // about as long as it takes until they rest
	}
	require.Eventually(t, func() bool {
		before := f.commands.Load()
		time.Sleep(300 * time.Millisecond)
		return f.commands.Load() == before
	}, 10*time.Second, time.Millisecond)
	for i := range 300 {
		require.True(t, b.Withdraw(t.Context(), failed(fmt.Sprintf("https://%d.test", i))))
	}
}

// Many hosts are reported without waiting for the FlushInterval.
func TestManyHostsAreReportedAtOnce(t *testing.T) {
	f := newFake(t)
	b := newBudget(t, redisbudget.Config{
		Client: newClient(t, f.Addr()), Window: year, FlushInterval: time.Minute, Timeout: time.Minute})
	for i := range 1024 {
		succeed(b, fmt.Sprintf("https://%d.test", i), 1)
	}
	assert.Eventually(t, func() bool { return f.reports.Load() >= 1024 }, time.Minute, 10*time.Millisecond)
}

// Hosts that were used once take no memory for long, even while Redis is down.
func TestManyHostsAreForgotten(t *testing.T) {
	f := newFake(t)
	var probes atomic.Int64
	f.fail(func(p *server.Peer) { probes.Add(1); p.WriteError("LOADING") })
	b := watch(t, redisbudget.Config{
		Client: newClient(t, f.Addr()), Window: year, FlushInterval: time.Minute, Timeout: patient})
	b.requireDecidedBy(t, local)
	for i := range 20_000 {
		succeed(b, fmt.Sprintf("https://%d.test", i), 1)
	}
	// A turn ends with a probe, if one is due. The first turn may have begun
	// before the last success, and the second finds that a host rests.
	turns := probes.Load() + 3
	require.Eventually(t, func() bool { return probes.Load() >= turns }, time.Minute, 10*time.Millisecond)
	require.NoError(t, b.Close())
	assert.LessOrEqual(t, b.Listed(), 1024)
}

// All tests in virtual time show that the goroutine ends.
func TestCloseReturnsEverything(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		cfg := redisbudget.Config{Ratio: 0.1, Burst: -1, Window: year, FlushInterval: time.Minute}
		a := s.watch(t, cfg)
		succeed(a, target, 990)
		require.Equal(t, 1, withdrawn(t, a, target, 1)) // and seven in a lease
		succeed(a, "https://b.test", 10)
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { assert.NoError(t, a.Close()) })
		}
		wg.Wait()

		// The HostBudget has no Burst, and knows of the successes.
		withdrawn(t, a, "https://b.test", 2)
		withdrawn(t, a, "https://c.test", 1)
		a.Refund(failed("https://b.test"))
		withdrawn(t, a, "https://b.test", 1)
		assert.Equal(t, []redisbudget.Decision{
			{Origin: target, Allowed: true, Shared: true},
			{Origin: "https://b.test", Allowed: true},
			{Origin: "https://b.test"},
			{Origin: "https://c.test"},
			{Origin: "https://b.test", Allowed: true},
		}, a.decisions)
		listed := a.Listed()
		for i := range 100 {
			succeed(a, fmt.Sprintf("https://%d.test", i), 1)
		}
		assert.Equal(t, listed, a.Listed(), "hosts to report")

		b := s.watch(t, cfg)
		assert.Equal(t, 98, withdrawn(t, b, target, 200))
		assert.Equal(t, 1, withdrawn(t, b, "https://b.test", 1))
	})(t)
}

// Close also sends what was counted just before it, although that has woken up
// the goroutine.
func TestCloseSendsTheLastCounts(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		for i := range 30 {
			b := s.watch(t, redisbudget.Config{Window: year, FlushInterval: time.Hour})
			time.Sleep(time.Second) // so that a probe would be due
			succeed(b, target, 1)
			require.NoError(t, b.Close())
			require.Regexp(t, fmt.Sprintf("^[0-9]+:%d:0$", i+1), s.HGet(b.Key(target), "slots"))
		}
	})(t)
}

// A process that is killed loses its counts since the last report. Its lease
// remains charged.
func TestCrash(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		b := watch(t, redisbudget.Config{Client: s.client(t), Window: year})
		succeed(b, target, 500)
		require.Equal(t, 1, withdrawn(t, b, target, 1)) // and seven in a lease
		succeed(b, target, 100)
		s.fail(func(p *server.Peer) { p.Close() })
		require.Error(t, b.Close())
		successes, charges := counts(t, s.client(t), b.Key(target))
		assert.Equal(t, 500, successes)
		assert.Equal(t, 8, charges)
	})(t)
}

// A retry that succeeds cancels its charge, and 1 more. With Strict, it cancels
// nothing. That is true for either budget.
func TestRetriesThatSucceed(t *testing.T) {
	for strict, want := range map[bool]int{false: 4, true: 0} {
		t.Run(fmt.Sprintf("strict=%v", strict), func(t *testing.T) {
			forBothBudgets(t, func(t *testing.T, s *farServer, by string) {
				b := s.watch(t, redisbudget.Config{Strict: strict})
				require.Equal(t, 5, withdrawn(t, b, target, 10))
				time.Sleep(4 * time.Second) // longer than a slot
				for range 2 {
					succeedAfter(b, failed(target))
				}
				time.Sleep(2 * flushInterval)
				assert.Equal(t, want, withdrawn(t, b, target, 10))
				assert.Equal(t, 5+want, b.allowed(by))
			})
		})
	}
}

// A retry after a timeout costs 2, whichever budget decides.
func TestRetriesAfterTimeouts(t *testing.T) {
	forBothBudgets(t, func(t *testing.T, s *farServer, by string) {
		b := s.watch(t, redisbudget.Config{Strict: true})
		for _, want := range []bool{true, true, false} {
			require.Equal(t, want, b.Withdraw(t.Context(), timedOut(target)))
		}
		time.Sleep(2 * flushInterval)
		require.Equal(t, 1, withdrawn(t, b, target, 1), "1 is left")
		b.Refund(timedOut(target))
		time.Sleep(2 * flushInterval)
		require.Equal(t, 2, withdrawn(t, b, target, 9))
		assert.Equal(t, 2+1+2, b.allowed(by))
	})
}

// A retry that succeeds cancels what it has cost, and a lease pays for any
// retries.
func TestRetriesAfterTimeoutsOfALease(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		b := s.watch(t, quiet) // There is no report that the first withdrawal could overtake.
		succeed(b, target, 500)
		for range 4 { // the first takes a lease of six
			require.True(t, b.Withdraw(t.Context(), timedOut(target)))
		}
		assert.EqualValues(t, 1, s.withdrawals.Load())
		for range 4 {
			succeedAfter(b, timedOut(target))
		}
		require.NoError(t, b.Close())
		successes, charges := counts(t, s.client(t), b.Key(target))
		assert.Equal(t, 504, successes)
		assert.Zero(t, charges)
	})(t)
}

// What was charged locally is given back locally, even if Redis works again by
// then. So the charges of other processes remain.
func TestLocalChargesAreGivenBackLocally(t *testing.T) {
	refund := func(b httpretry.Budget) { b.Refund(failed(target)) }
	help := func(b httpretry.Budget) { succeedAfter(b, failed(target)) }
	fail := func(b httpretry.Budget) { failAfter(b, failed(target)) }
	otherCost := func(b httpretry.Budget) { b.Refund(timedOut(target)) } // none was charged
	type ends []func(httpretry.Budget)                                   // of five retries each
	for _, c := range []struct {
		name          string
		own           bool // the process itself has made the shared charges
		forgotten     bool // the host is, while Redis fails
		before, after ends // Redis works again
		shared, local int  // retries that are allowed in the end
	}{
		{"canceled", false, false, nil, ends{refund}, 0, 5},
		{"succeeded", false, false, nil, ends{help}, 0, 5},
		{"canceled, of another cost", false, false, nil, ends{otherCost}, 0, 0},
		{"all canceled", true, false, nil, ends{refund, refund}, 5, 5},
		{"shared ones may have failed", true, false, nil, ends{fail, refund}, 0, 5},
		{"failed before", true, false, ends{fail}, ends{refund}, 5, 0},
		{"canceled, host forgotten", false, true, nil, ends{refund}, 0, 5},
		{"succeeded, host forgotten", false, true, nil, ends{help}, 0, 5},
	} {
		t.Run(c.name, far(0, func(t *testing.T, s *farServer) {
			cfg := redisbudget.Config{Client: s.client(t), Window: year, Ratio: 0.001}
			b, other := closing(t, watch(t, cfg)), newBudget(t, cfg)
			end := func(all ends) {
				for _, f := range all {
					for range 5 {
						f(b)
					}
				}
			}
			require.Equal(t, 2, withdrawn(t, b, target, 2)) // which end at once
			help(b)
			help(b)
			time.Sleep(2 * flushInterval)
			s.fail(loading)
			require.Equal(t, 5, withdrawn(t, b, target, 9))
			end(c.before)
			for i := range 1100 {
				if c.forgotten {
					succeed(b, fmt.Sprintf("http://%d.test", i), 1)
				}
			}
			s.fail(nil)
			time.Sleep(time.Second) // for a probe
			require.Len(t, b.log.lines(), 2)
			charging := other
			if c.own {
				charging = b.Budget
			}
			require.Equal(t, 5, withdrawn(t, charging, target, 9))
			end(c.after)
			time.Sleep(2 * flushInterval)
			assert.Equal(t, c.shared, withdrawn(t, other, target, 9)+withdrawn(t, b, target, 9))
			s.fail(loading)
			time.Sleep(2 * flushInterval) // until then, refusals need no Redis
			assert.Equal(t, c.local, withdrawn(t, b, target, 9))
		}))
	}
}

// The success of a retry from a lease cancels its charge, and 1 more, for all
// processes.
func TestRetriesOfALeaseThatSucceed(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		cfg := redisbudget.Config{Ratio: 0.1}
		a, b := s.watch(t, cfg), s.watch(t, cfg)
		require.Equal(t, 5, withdrawn(t, a, target, 5))
		time.Sleep(4 * time.Second) // longer than a slot
		succeed(a, target, 100)
		time.Sleep(2 * flushInterval)

		// The first of the ten retries left takes one more for later.
		require.True(t, a.Withdraw(t.Context(), failed(target)))
		before := s.withdrawals.Load()
		require.True(t, a.Withdraw(t.Context(), failed(target)))
		require.Equal(t, before, s.withdrawals.Load())
		succeedAfter(a, failed(target))

		time.Sleep(2 * flushInterval)
		assert.Equal(t, 8+1+1, withdrawn(t, b, target, 20), "with the charge and 1 more")
	})(t)
}

// A retry after a 429 whose wait it obeys is allowed without a charge and
// without Redis, and is no Decision. It gives nothing back, whichever budget
// decides.
func TestFreeRetries(t *testing.T) {
	forBothBudgets(t, func(t *testing.T, s *farServer, by string) {
		b := s.watch(t, redisbudget.Config{})
		require.Equal(t, 5, withdrawn(t, b, target, 6))
		assert.Equal(t, 5, b.allowed(by))
		time.Sleep(time.Second)
		synctest.Wait() // for the report that is due now

		before := s.commands.Load()
		for range 100 {
			assert.True(t, b.Withdraw(t.Context(), throttled(target)))
			assert.True(t, b.Withdraw(t.Context(), throttled(target)))
			b.Refund(throttled(target))
			succeedAfter(b, throttled(target))
		}
		assert.Len(t, b.decisions, 6)
		assert.Equal(t, before, s.commands.Load())

		// The successes are like any others, and the five charges remain.
		time.Sleep(2 * flushInterval)
		assert.Equal(t, 100/5, withdrawn(t, b, target, 30))
		require.NoError(t, b.Close())
		assert.True(t, b.Withdraw(t.Context(), throttled(target)))
	})
}

// An attempt that failed changes nothing in either budget, and takes no memory.
func TestFailuresAreNotRecorded(t *testing.T) {
	f := newFake(t)
	b := f.budget(t, redisbudget.Config{Burst: -1, Window: year, FlushInterval: time.Minute})
	unanswered := httpretry.AttemptResult{Origin: target, Number: 1}
	record := func() {
		b.Record(failed(target), httpretry.AttemptResult{})
		failAfter(b, failed(target))
		b.Record(unanswered, httpretry.AttemptResult{})
	}
	assert.Zero(t, testing.AllocsPerRun(1000, record))
	assert.Zero(t, b.Listed())
	assert.Zero(t, withdrawn(t, b, target, 1))
	require.NoError(t, b.Close())
	assert.Zero(t, withdrawn(t, b, target, 1), "by the HostBudget")
}

func TestPathOfASuccessAllocatesNothing(t *testing.T) {
	f := newFake(t)
	// A report would allocate meanwhile.
	b := f.budget(t, redisbudget.Config{
		Window: year, FlushInterval: time.Minute, FlushSize: 1_000_000})
	succeed(b, target, 10)
	require.True(t, b.Withdraw(t.Context(), failed(target)))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { succeed(b, target, 1) }))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { succeedAfter(b, failed(target)) }))
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		if b.Withdraw(t.Context(), failed(target)) {
			b.Refund(failed(target))
		}
	}), "from a lease")
	assert.Zero(t, testing.AllocsPerRun(1000, func() { b.Withdraw(t.Context(), throttled(target)) }), "free")
}

// Each of these failures makes the local budget decide, without a round trip,
// until Redis works again.
func TestRedisFails(t *testing.T) {
	failures := map[string]func(*server.Peer){
		"out of memory": func(p *server.Peer) { p.WriteError("OOM command not allowed when used memory > 'maxmemory'.") },
		"loading":       loading,
		"read only":     func(p *server.Peer) { p.WriteError("READONLY You can't write against a read only replica.") },
		"busy":          func(p *server.Peer) { p.WriteError("BUSY Redis is busy running a script.") },
		"no script":     func(p *server.Peer) { p.WriteError("NOSCRIPT No matching script.") },
		"a word":        func(p *server.Peer) { p.WriteInline("OK") },
		"one number":    func(p *server.Peer) { p.WriteInt(1) },
		"three numbers": func(p *server.Peer) { p.WriteLen(3); p.WriteInt(1); p.WriteInt(1); p.WriteInt(1) },
		"too many":      func(p *server.Peer) { p.WriteLen(2); p.WriteInt(1_000_000); p.WriteInt(1) },
		"too few":       func(p *server.Peer) { p.WriteLen(2); p.WriteInt(-1); p.WriteInt(1) },
		"too long":      func(p *server.Peer) { p.WriteLen(2); p.WriteInt(1); p.WriteInt(1 << 60) },
		"garbage":       func(p *server.Peer) { p.WriteRaw("\x00\xff<html>\r\n") },
		"closes":        func(p *server.Peer) { p.Close() },
		"hangs":         func(*server.Peer) {},
		"slow":          func(p *server.Peer) { time.Sleep(2 * defaultTimeout); p.WriteInt(1) },
	}
	for name, failure := range failures {
		t.Run(name, far(0, func(t *testing.T, s *farServer) {
			b := s.watch(t, redisbudget.Config{Lease: 1, Window: year})
			s.fail(failure)
			succeed(b, target, 50)
			assert.Equal(t, 15, withdrawn(t, b, target, 1000), "as HostBudget: 10 of 50 successes, and the burst")
			for _, d := range b.decisions {
				require.False(t, d.Shared)
			}
			assert.Less(t, s.commands.Load(), int64(200), "of which some greet")
			s.fail(nil)
			time.Sleep(10 * time.Second)
			lines := b.log.requireLines(t, 2)
			assert.Contains(t, lines[0],
				`level=WARN msg="redisbudget: Redis failed, so the local budget decides" error=`)
			assert.Contains(t, lines[1],
				`level=INFO msg="redisbudget: Redis works again, so the shared budget decides"`)
		}))
	}
}

// A key with another type does not stop a process.
func TestKeyOfAnotherType(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		b := s.watch(t, redisbudget.Config{})
		require.NoError(t, s.Set(b.Key(target), "something"))
		assert.Equal(t, 5, withdrawn(t, b, target, 50))
		time.Sleep(10 * time.Second) // for some probes
		b.log.requireLines(t, 1)
		s.Del(b.Key(target))
		time.Sleep(10 * time.Second)
		b.log.requireLines(t, 2)
	})(t)
}

// While Redis hangs, a retry waits for the Timeout once, and probes are rare.
func TestWaitIsBounded(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		ctx, cancel := context.WithCancel(t.Context())
		s.fail(func(*server.Peer) { cancel() })
		b := s.watch(t, redisbudget.Config{})
		assert.False(t, b.Withdraw(ctx, failed(target)))
		assert.Empty(t, b.decisions, "the context is done first")

		began := time.Now()
		assert.Equal(t, 5, withdrawn(t, b, target, 1000))
		assert.LessOrEqual(t, time.Since(began), defaultTimeout)
		time.Sleep(time.Second)
		assert.LessOrEqual(t, s.commands.Load(), int64(100), "requests and greetings")
		b.log.requireLines(t, 1)
	})(t)
}

// A retry that is canceled while it waits for Redis gives back what it is charged,
// whether it has the call for itself or shares it.
func TestCanceledWhileItWaits(t *testing.T) {
	far(time.Millisecond, func(t *testing.T, s *farServer) {
		a, b := s.watch(t, redisbudget.Config{Burst: 3}), s.watch(t, redisbudget.Config{Burst: 3})
		time.Sleep(time.Second) // until they are connected
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.False(t, a.Withdraw(ctx, failed(target))) })
		synctest.Wait()
		wg.Go(func() { assert.False(t, a.Withdraw(ctx, failed(target))) })
		wg.Go(func() { assert.True(t, a.Withdraw(t.Context(), failed(target))) })
		synctest.Wait()
		cancel()
		wg.Wait()
		assert.EqualValues(t, 2, s.withdrawals.Load())
		time.Sleep(2 * flushInterval)
		assert.Equal(t, 2, withdrawn(t, b, target, 10))
		assert.Equal(t, 1, a.allowed(shared))
	})(t)
}

// Redis is not asked for retries that are canceled before it is their turn.
func TestCanceledBeforeItsTurn(t *testing.T) {
	far(time.Millisecond, func(t *testing.T, s *farServer) {
		b := s.watch(t, redisbudget.Config{})
		time.Sleep(time.Second) // until it is connected
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.True(t, b.Withdraw(t.Context(), failed(target))) })
		synctest.Wait()
		for range 5 {
			wg.Go(func() { assert.False(t, b.Withdraw(ctx, failed(target))) })
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		time.Sleep(10 * time.Millisecond)
		assert.EqualValues(t, 1, s.withdrawals.Load())
		assert.Zero(t, s.reports.Load())
		assert.Equal(t, 4, withdrawn(t, b, target, 10))
	})(t)
}

// A retry that is canceled just when Redis answers is either allowed or gives back
// its charge.
func TestCanceledWithTheAnswer(t *testing.T) {
	far(time.Millisecond, func(t *testing.T, s *farServer) {
		b := s.watch(t, redisbudget.Config{Burst: 10_000, Window: year})
		require.True(t, b.Withdraw(t.Context(), failed(target))) // and connected
		for range 50 {
			// The second call is for all but the first.
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { b.Withdraw(ctx, failed(target)) })
			}
			wg.Wait()
			cancel()
			time.Sleep(time.Second)
		}
		require.NoError(t, b.Close())
		_, charges := counts(t, s.client(t), b.Key(target))
		assert.Equal(t, b.allowed(shared), charges)
	})(t)
}

// Close gives back what Redis grants meanwhile, if nobody can use it.
func TestCloseDuringAWithdrawal(t *testing.T) {
	far(time.Millisecond, func(t *testing.T, s *farServer) {
		b := s.watch(t, redisbudget.Config{Burst: 1})
		time.Sleep(time.Second) // until it is connected
		var wg sync.WaitGroup
		// Of the cost of 2, Redis grants 1.
		wg.Go(func() { assert.False(t, b.Withdraw(t.Context(), timedOut(target))) })
		synctest.Wait()
		require.NoError(t, b.Close())
		wg.Wait()
		assert.EqualValues(t, 1, s.withdrawals.Load())
		assert.Equal(t, []redisbudget.Decision{{Origin: target, Shared: true}}, b.decisions)
		_, charges := counts(t, s.client(t), b.Key(target))
		assert.Zero(t, charges)
	})(t)
}

// A retry that has to wait for the call before its own waits for the Timeout
// all the same, and not once for each call.
func TestWaitBehindACall(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		var calls atomic.Int64
		answer := make(chan struct{})
		s.fail(func(p *server.Peer) {
			if calls.Add(1) == 1 {
				<-answer
				p.WriteLen(2)
				p.WriteInt(1)
				p.WriteInt(9_000_000) // microseconds until the end of the lease
			}
		})
		b := s.watch(t, redisbudget.Config{})
		began := time.Now()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { b.Withdraw(t.Context(), failed(target)) })
			synctest.Wait()
		}
		time.Sleep(defaultTimeout / 2)
		close(answer)
		wg.Wait()
		assert.Equal(t, defaultTimeout, time.Since(began))
		assert.Equal(t, 1, b.allowed(shared))
		assert.Equal(t, 1, b.allowed(local))
		// The second call has another error, half of the Timeout later.
		assert.Contains(t, b.log.requireLines(t, 1)[0], `error="no answer within 50ms"`)
	})(t)
}

func TestCloseReturnsAnError(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		b := newBudget(t, redisbudget.Config{Client: s.client(t)})
		succeed(b, target, 1)
		s.SetError("OOM no memory")
		for range 2 {
			assert.ErrorContains(t, b.Close(), "redisbudget: close: OOM no memory")
		}
	})(t)
}

// other is a client of a type that the package does not know.
type other struct{ redis.UniversalClient }

// A client of another type is used as it is.
func TestOtherClients(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		client := s.client(t)
		b := newBudget(t, redisbudget.Config{Client: other{client}})
		assert.Equal(t, 5, withdrawn(t, b, target, 9))
		require.NoError(t, b.Close())
		assert.NoError(t, client.Ping(t.Context()).Err(), "Close does not close it")
	})(t)
}

// The client reaches Redis through the transport that asks the budget.
func TestRedisIsTheHostItself(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		var transport http.RoundTripper
		ready := make(chan struct{})
		get := func(ctx context.Context) (*http.Response, error) {
			return transport.RoundTrip(newRequest(t, target).WithContext(ctx))
		}
		s.hold = func(ctx context.Context) error {
			<-ready
			resp, err := get(ctx)
			if err != nil {
				return err
			}
			return fmt.Errorf("%s: %w", resp.Status, resp.Body.Close())
		}
		b := s.watch(t, redisbudget.Config{})
		transport = newTransport(t, b, retrytest.Base(t, retrytest.Always(retrytest.Status(503))))
		close(ready)

		for range 10 {
			resp, err := get(t.Context())
			require.NoError(t, err)
			assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
			require.NoError(t, resp.Body.Close())
		}
		b.log.requireLines(t, 1)
	})(t)
}

// The successes in a report that has to wait for another one are older when it
// is sent.
func TestLateReportsHaveTheirAge(t *testing.T) {
	f := newFake(t)
	const wait = 300 * time.Millisecond
	var mu sync.Mutex
	var ages []time.Duration
	f.Server().SetPreHook(func(_ *server.Peer, name string, args ...string) bool {
		if name == "EVALSHA" {
			mu.Lock()
			defer mu.Unlock()
			if len(ages) == 0 {
				time.Sleep(wait)
			}
			age, err := strconv.ParseInt(args[len(args)-6], 10, 64)
			assert.NoError(t, err)
			ages = append(ages, time.Duration(age)*time.Microsecond)
		}
		return false
	})
	b := f.budget(t, quiet)
	for i := range 200 {
		succeed(b, fmt.Sprintf("https://%d.test", i), 1)
	}
	require.NoError(t, b.Close())
	require.Len(t, ages, 200)
	assert.GreaterOrEqual(t, slices.Max(ages)-slices.Min(ages), wait)
}
