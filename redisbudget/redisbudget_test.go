package redisbudget_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/redisbudget"
	"github.com/seed421102f4/httpretry/strategies"
)

// The defaults are those of a HostBudget: it allows as many retries, and forgets
// successes as early.
func TestDefaultsAreThoseOfAHostBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, redisbudget.Config{Client: newFarServer(t, 0).client(t)})
		var core httpretry.HostBudget
		for _, c := range []struct {
			successes int
			age       time.Duration
		}{{0, 0}, {1000, time.Second}, {1000, 26 * time.Second}, {1000, 31 * time.Second}} {
			host := fmt.Sprintf("https://%d.%d.test", c.successes, c.age)
			succeed(b, host, c.successes)
			succeed(&core, host, c.successes)
			time.Sleep(c.age)
			want := 0
			for core.Withdraw(t.Context(), failed(host)) {
				want++
			}
			assert.Equal(t, want, withdrawn(t, b, host, want+1), "%d successes, %v ago", c.successes, c.age)
		}
		require.NoError(t, b.Close())
	})
}

func TestNewReportsAllProblems(t *testing.T) {
	client := newClient(t, "127.0.0.1:1")
	_, err := redisbudget.New(redisbudget.Config{
		Client:        (*redis.Client)(nil),
		Namespace:     "a b",
		Ratio:         math.NaN(),
		Burst:         1 << 30,
		Window:        time.Microsecond,
		FlushInterval: 1,
		FlushSize:     -1,
		Lease:         1001,
		Timeout:       -time.Second,
	})
	assert.EqualError(t, err, `redisbudget: Config.Client: a nil *redis.Client: want a usable client
redisbudget: Config.Namespace: "a b": want "" (the default, "httpretry") or up to 64 of A-Z a-z 0-9 . _ / -
redisbudget: Config.Ratio: NaN: want 0 (the default, 0.2) or a number from 0.000001 to 1000000
redisbudget: Config.Burst: 1073741824: want 0 (the default, 5), a negative number (none) or at most 1000000
redisbudget: Config.Window: 1µs: want 0 (the default, 30s) or a duration from 1ms to 8760h0m0s
redisbudget: Config.FlushInterval: 1ns: want 0 (the default, 100ms) or at least 1ms
redisbudget: Config.FlushSize: -1: want 0 (the default, 1000) or at least 1
redisbudget: Config.Lease: 1001: want 0 (the default, 8) or a number from 1 to 1000
redisbudget: Config.Timeout: -1s: want 0 (the default, 50ms) or a duration from 1ms to 1m0s`)

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
	f := newFake(t)
	cfg := redisbudget.Config{
		Client: newClient(t, f.Addr()), Ratio: 0.1, Burst: -1, Window: 20 * time.Second, Timeout: patient}
	a, b := newBudget(t, cfg), newBudget(t, cfg)
	succeed(a, target, 1000) // for 100 retries
	require.Eventually(t, func() bool { return a.Withdraw(t.Context(), failed(target)) }, 20*time.Second, 10*time.Millisecond)
	before := f.withdrawals.Load()
	assert.Equal(t, 63, withdrawn(t, a, target, 63))
	assert.LessOrEqual(t, f.withdrawals.Load()-before, int64(63/8+2), "a lease may have ended meanwhile")

	// A lease ends. Then others may have the rest.
	assert.Equal(t, 1, withdrawn(t, a, target, 1))
	others := 0
	require.Eventually(t, func() bool {
		others += withdrawn(t, b, target, 40)
		return others >= 35
	}, 20*time.Second, 10*time.Millisecond)
	assert.Equal(t, 35, others)
	assert.Zero(t, withdrawn(t, a, target, 1))
}

// A lease ends after a tenth of the Window, even if no report is due.
func TestLeaseEnds(t *testing.T) {
	f := newFake(t)
	b := newBudget(t, redisbudget.Config{
		Client: newClient(t, f.Addr()), Window: 18 * time.Second, FlushInterval: 5 * time.Second, Timeout: patient})
	succeed(b, target, 999)
	for range 3 {
		before := f.withdrawals.Load()
		require.True(t, b.Withdraw(t.Context(), failed(target)))
		assert.Equal(t, before+1, f.withdrawals.Load())
		time.Sleep(1850 * time.Millisecond)
	}
}

// All retries of a budget are used, no more and no less, however many processes
// want them at once. At first, some are in leases of processes that do not want
// them, so the processes ask until all are used.
func TestConcurrentWithdrawals(t *testing.T) {
	f := newFake(t)
	var budgets []*redisbudget.Budget
	for range 5 {
		b := newBudget(t, redisbudget.Config{Client: newClient(t, f.Addr()), Window: year, Timeout: patient})
		succeed(b, target, 100)
		budgets = append(budgets, b)
	}
	// Until Redis knows of all successes, it may refuse retries.
	require.Eventually(t, func() bool {
		return strings.HasSuffix(f.HGet(budgets[0].Key(target), "slots"), ":500:0")
	}, time.Minute, time.Millisecond)

	const want = 500/5 + 5
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for _, b := range budgets {
		for range 20 {
			wg.Go(func() {
				allowed.Add(int64(withdrawn(t, b, target, 5)))
			})
		}
	}
	wg.Wait()
	require.Eventually(t, func() bool {
		for _, b := range budgets {
			allowed.Add(int64(withdrawn(t, b, target, 1)))
		}
		return allowed.Load() >= want
	}, time.Minute, time.Millisecond)
	for _, b := range budgets {
		allowed.Add(int64(withdrawn(t, b, target, 5)))
	}
	assert.EqualValues(t, want, allowed.Load())
}

func TestRefundsGoToTheLease(t *testing.T) {
	f := newFake(t)
	// There is no report that the first withdrawal could overtake.
	b := newBudget(t, redisbudget.Config{
		Client: newClient(t, f.Addr()), Window: year, FlushInterval: time.Minute, Timeout: patient})
	succeed(b, target, 500)
	require.Equal(t, 2, withdrawn(t, b, target, 2)) // and six more in a lease
	for range 50 {
		b.Refund(failed(target))
		require.True(t, b.Withdraw(t.Context(), failed(target)))
	}
	assert.EqualValues(t, 1, f.withdrawals.Load())
}

// For a short time after a refusal, retries are refused without a round trip.
func TestRefusalsNeedFewRoundTrips(t *testing.T) {
	f := newFake(t)
	b := newBudget(t, redisbudget.Config{
		Client: newClient(t, f.Addr()), Burst: -1, Window: year, FlushInterval: time.Minute, Timeout: patient})
	assert.Zero(t, withdrawn(t, b, target, 1000))
	assert.EqualValues(t, 1, f.withdrawals.Load())
}

// A refusal ends by itself, and the successes of another process count.
func TestSuccessesOfOthersCount(t *testing.T) {
	f := newFake(t)
	cfg := redisbudget.Config{
		Client: newClient(t, f.Addr()), Burst: -1, FlushInterval: 10 * time.Millisecond, Timeout: patient}
	a, b := newBudget(t, cfg), newBudget(t, cfg)
	require.False(t, a.Withdraw(t.Context(), failed(target)))
	succeed(b, target, 10)
	assert.Eventually(t, func() bool { return a.Withdraw(t.Context(), failed(target)) }, 20*time.Second, 5*time.Millisecond)
}

// FlushSize successes are reported at once.
func TestFlushSize(t *testing.T) {
	f := newFake(t)
	b := newBudget(t, redisbudget.Config{
		Client: newClient(t, f.Addr()), Window: year, FlushInterval: time.Minute, FlushSize: 10, Timeout: patient})
	succeed(b, target, 9)
	time.Sleep(20 * time.Millisecond) // nothing happens, however long this is
	assert.Zero(t, f.reports.Load())
	succeed(b, target, 1)
	assert.Eventually(t, func() bool { return f.reports.Load() == 1 }, 20*time.Second, time.Millisecond)
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
	b := watch(t, redisbudget.Config{Client: newClient(t, f.Addr()), Window: year, FlushInterval: time.Minute, Timeout: patient})
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

// Probes do not wait for the FlushInterval.
func TestProbesWithALongFlushInterval(t *testing.T) {
	f := newFake(t)
	f.fail(func(p *server.Peer) { p.WriteError("LOADING") })
	b := watch(t, redisbudget.Config{
		Client: newClient(t, f.Addr()), Window: year, FlushInterval: time.Minute, Timeout: patient})
	b.requireDecidedBy(t, local)
	f.fail(nil)
	b.requireDecidedBy(t, shared)
}

func TestCloseReturnsEverything(t *testing.T) {
	f := newFake(t)
	before := runtime.NumGoroutine()
	cfg := redisbudget.Config{
		Client: newClient(t, f.Addr()), Ratio: 0.1, Burst: -1, Window: year, FlushInterval: time.Minute, Timeout: patient}
	var decisions []redisbudget.Decision
	cfg.Observe = func(_ context.Context, d redisbudget.Decision) { decisions = append(decisions, d) }
	a := newBudget(t, cfg)
	succeed(a, target, 990)
	require.Equal(t, 1, withdrawn(t, a, target, 1)) // and seven in a lease
	succeed(a, "https://b.test", 10)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() { assert.NoError(t, a.Close()) })
	}
	wg.Wait()

	// The HostBudget has no Burst, and knows of the successes.
	assert.True(t, a.Withdraw(t.Context(), failed("https://b.test")))
	assert.False(t, a.Withdraw(t.Context(), failed("https://b.test")))
	assert.False(t, a.Withdraw(t.Context(), failed("https://c.test")))
	a.Refund(failed("https://b.test"))
	assert.True(t, a.Withdraw(t.Context(), failed("https://b.test")))
	assert.Equal(t, []redisbudget.Decision{
		{Origin: target, Allowed: true, Shared: true},
		{Origin: "https://b.test", Allowed: true},
		{Origin: "https://b.test"},
		{Origin: "https://c.test"},
		{Origin: "https://b.test", Allowed: true},
	}, decisions)
	requireGoroutines(t, before+5) // miniredis has one for each connection of the client

	cfg.Observe = nil
	b := newBudget(t, cfg)
	assert.Equal(t, 98, withdrawn(t, b, target, 200))
	assert.True(t, b.Withdraw(t.Context(), failed("https://b.test")))
	assert.NoError(t, b.Close())
}

// Close also sends what was counted just before it, although that has woken up
// the goroutine.
func TestCloseSendsTheLastCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFarServer(t, 0)
		for i := range 30 {
			b := newBudget(t, redisbudget.Config{Client: s.client(t), Window: year, FlushInterval: time.Hour})
			time.Sleep(time.Second) // so that a probe would be due
			succeed(b, target, 1)
			require.NoError(t, b.Close())
			require.Regexp(t, fmt.Sprintf("^[0-9]+:%d:0$", i+1), s.HGet(b.Key(target), "slots"))
		}
	})
}

// After Close, hosts are not remembered for a report.
func TestSuccessesAfterClose(t *testing.T) {
	b := newBudget(t, redisbudget.Config{Client: newClient(t, newFake(t).Addr()), Timeout: patient})
	require.NoError(t, b.Close())
	for i := range 100 {
		succeed(b, fmt.Sprintf("https://%d.test", i), 1)
	}
	assert.Zero(t, b.Listed())
}

// A retry that succeeds cancels its charge, and 1 more. With Strict, it cancels
// nothing. That is true for either budget.
func TestRetriesThatSucceed(t *testing.T) {
	for _, c := range []struct {
		name                string
		strict, redisIsDown bool
		want                int
	}{
		{"shared", false, false, 4},
		{"strict", true, false, 0},
		{"Redis is down", false, true, 4},
		{"strict, Redis is down", true, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFarServer(t, 0)
				if c.redisIsDown {
					s.hold = func(context.Context) error { return syscall.ECONNREFUSED }
				}
				b := watch(t, redisbudget.Config{Client: s.client(t), Strict: c.strict})
				require.Equal(t, 5, withdrawn(t, b.Budget, target, 10))
				time.Sleep(4 * time.Second) // longer than a slot
				for range 2 {
					succeedAfter(b, failed(target))
				}
				time.Sleep(2 * flushInterval)
				assert.Equal(t, c.want, withdrawn(t, b.Budget, target, 10))
				assert.Equal(t, c.redisIsDown, b.decidedBy.Load() == local)
				require.NoError(t, b.Close())
			})
		})
	}
}

// A retry after a timeout costs 2, whichever budget decides.
func TestRetriesAfterTimeouts(t *testing.T) {
	for _, redisIsDown := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newFarServer(t, 0)
			if redisIsDown {
				s.hold = func(context.Context) error { return syscall.ECONNREFUSED }
			}
			b := watch(t, redisbudget.Config{Client: s.client(t), Strict: true})
			withdrawal := func(last httpretry.AttemptResult) bool { return b.Withdraw(t.Context(), last) }
			require.True(t, withdrawal(timedOut(target)))
			require.True(t, withdrawal(timedOut(target)))
			require.False(t, withdrawal(timedOut(target)))
			time.Sleep(2 * flushInterval)
			require.True(t, withdrawal(failed(target)), "1 is left")
			b.Refund(timedOut(target))
			time.Sleep(2 * flushInterval)
			require.Equal(t, 2, withdrawn(t, b.Budget, target, 9))
			assert.Equal(t, redisIsDown, b.decidedBy.Load() == local)
			require.NoError(t, b.Close())
		})
	}
}

// A retry that succeeds cancels what it has cost, and a lease pays for any
// retries.
func TestRetriesAfterTimeoutsOfALease(t *testing.T) {
	f := newFake(t)
	// There is no report that the first withdrawal could overtake.
	b := newBudget(t, redisbudget.Config{
		Client: newClient(t, f.Addr()), Window: year, FlushInterval: time.Minute, Timeout: patient})
	succeed(b, target, 500)
	require.True(t, b.Withdraw(t.Context(), timedOut(target))) // and a lease of six
	for range 3 {
		require.True(t, b.Withdraw(t.Context(), timedOut(target)))
	}
	assert.EqualValues(t, 1, f.withdrawals.Load())
	for range 4 {
		succeedAfter(b, timedOut(target))
	}
	require.NoError(t, b.Close())
	client := newClient(t, f.Addr())
	successes, charges := counts(t, client, b.Key(target))
	assert.Equal(t, 504, successes)
	assert.Zero(t, charges)
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
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFarServer(t, 0)
				f := fakeOf(s.Miniredis)
				loading := func(p *server.Peer) { p.WriteError("LOADING Redis is loading the dataset in memory") }
				b := watch(t, redisbudget.Config{Client: s.client(t), Window: year, Ratio: 0.001})
				other := newBudget(t, redisbudget.Config{Client: s.client(t), Window: year, Ratio: 0.001})
				end := func(all ends) {
					for _, f := range all {
						for range 5 {
							f(b)
						}
					}
				}
				require.Equal(t, 2, withdrawn(t, b.Budget, target, 2)) // which end at once
				help(b)
				help(b)
				time.Sleep(2 * flushInterval)
				f.fail(loading)
				require.Equal(t, 5, withdrawn(t, b.Budget, target, 9))
				end(c.before)
				for i := range 1100 {
					if c.forgotten {
						succeed(b.Budget, fmt.Sprintf("http://%d.test", i), 1)
					}
				}
				f.fail(nil)
				time.Sleep(time.Second) // for a probe
				require.Len(t, b.log.lines(), 2)
				charging := other
				if c.own {
					charging = b.Budget
				}
				require.Equal(t, 5, withdrawn(t, charging, target, 9))
				end(c.after)
				time.Sleep(2 * flushInterval)
				assert.Equal(t, c.shared, withdrawn(t, other, target, 9)+withdrawn(t, b.Budget, target, 9))
				f.fail(loading)
				time.Sleep(2 * flushInterval) // until then, refusals need no Redis
				assert.Equal(t, c.local, withdrawn(t, b.Budget, target, 9))
				require.NoError(t, b.Close())
				_ = other.Close() // Redis fails
			})
		})
	}
}

// The success of a retry from a lease cancels its charge, and 1 more, for all
// processes.
func TestRetriesOfALeaseThatSucceed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFarServer(t, 0)
		f := fakeOf(s.Miniredis)
		a := newBudget(t, redisbudget.Config{Client: s.client(t), Ratio: 0.1})
		b := newBudget(t, redisbudget.Config{Client: s.client(t), Ratio: 0.1})
		require.Equal(t, 5, withdrawn(t, a, target, 5))
		time.Sleep(4 * time.Second) // longer than a slot
		succeed(a, target, 100)
		time.Sleep(2 * flushInterval)

		// The first of the ten retries left takes one more for later.
		require.True(t, a.Withdraw(t.Context(), failed(target)))
		before := f.withdrawals.Load()
		require.True(t, a.Withdraw(t.Context(), failed(target)))
		require.Equal(t, before, f.withdrawals.Load())
		succeedAfter(a, failed(target))

		time.Sleep(2 * flushInterval)
		assert.Equal(t, 8+1+1, withdrawn(t, b, target, 20), "with the charge and 1 more")
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

// A retry after a 429 whose wait it obeys is allowed without a charge and
// without Redis, and is no Decision. It gives nothing back, whichever budget
// decides.
func TestFreeRetries(t *testing.T) {
	for _, by := range []string{shared, local} {
		t.Run(by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFarServer(t, 0)
				f := fakeOf(s.Miniredis)
				if by == local {
					s.hold = func(context.Context) error { return syscall.ECONNREFUSED }
				}
				decisions := 0
				b := newBudget(t, redisbudget.Config{
					Client: s.client(t), Logger: new(logBuffer).logger(),
					Observe: func(_ context.Context, d redisbudget.Decision) {
						assert.Equal(t, by, decidedBy(d))
						decisions++
					},
				})
				require.Equal(t, 5, withdrawn(t, b, target, 6))
				require.Equal(t, 6, decisions)
				time.Sleep(time.Second)
				synctest.Wait() // for the report that is due now

				before := f.commands.Load()
				for range 100 {
					assert.True(t, b.Withdraw(t.Context(), throttled(target)))
					assert.True(t, b.Withdraw(t.Context(), throttled(target)))
					b.Refund(throttled(target))
					succeedAfter(b, throttled(target))
				}
				assert.Equal(t, 6, decisions)
				assert.Equal(t, before, f.commands.Load())

				// The successes are like any others, and the five charges remain.
				time.Sleep(2 * flushInterval)
				assert.Equal(t, 100/5, withdrawn(t, b, target, 30))
				require.NoError(t, b.Close())
				assert.True(t, b.Withdraw(t.Context(), throttled(target)))
			})
		})
	}
}

// An attempt that failed changes nothing in either budget, and takes no memory.
func TestFailuresAreNotRecorded(t *testing.T) {
	f := newFake(t)
	b := newBudget(t, redisbudget.Config{
		Client: newClient(t, f.Addr()), Burst: -1, Window: year, FlushInterval: time.Minute, Timeout: patient})
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
	b := newBudget(t, redisbudget.Config{
		Client: newClient(t, f.Addr()), Window: year, FlushInterval: time.Minute, FlushSize: 1_000_000, Timeout: patient})
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
		"loading":       func(p *server.Peer) { p.WriteError("LOADING Redis is loading the dataset in memory") },
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
	}
	for name, failure := range failures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			var lines logBuffer
			decisions := map[string]int{}
			b := newBudget(t, redisbudget.Config{
				Client: newClient(t, f.Addr()), Logger: lines.logger(), Timeout: 150 * time.Millisecond, Lease: 1,
				Window: year, Observe: func(_ context.Context, d redisbudget.Decision) {
					decisions[fmt.Sprint(decidedBy(d), " ", d.Allowed)]++
				},
			})
			f.fail(failure)
			succeed(b, target, 50)
			assert.Equal(t, 15, withdrawn(t, b, target, 1000), "as HostBudget: 10 of 50 successes, and the burst")
			assert.Equal(t, map[string]int{"local true": 15, "local false": 985}, decisions)
			assert.Less(t, f.commands.Load(), int64(200), "of which some greet")
			assert.Contains(t, lines.requireLines(t, 1)[0], "level=WARN msg=\"redisbudget: Redis failed, so the local budget decides\" error=")

			f.fail(nil)
			require.Eventually(t, func() bool { return len(lines.lines()) >= 2 }, time.Minute, 10*time.Millisecond)
			if len(lines.lines()) == 2 { // a busy machine may be too slow for the timeout
				assert.Contains(t, lines.lines()[1], "level=INFO msg=\"redisbudget: Redis works again, so the shared budget decides\"")
			}
		})
	}
}

// A key with another type does not stop a process.
func TestKeyOfAnotherType(t *testing.T) {
	f := newFake(t)
	var lines logBuffer
	b := newBudget(t, redisbudget.Config{Client: newClient(t, f.Addr()), Logger: lines.logger(), Timeout: patient})
	require.NoError(t, f.Set(b.Key(target), "something"))
	assert.Equal(t, 5, withdrawn(t, b, target, 50))
	time.Sleep(500 * time.Millisecond) // for some probes
	lines.requireLines(t, 1)
	f.Del(b.Key(target))
	lines.requireLines(t, 2)
}

// While Redis hangs, a retry waits for the Timeout once, and probes are rare.
func TestWaitIsBounded(t *testing.T) {
	f := newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	f.fail(func(*server.Peer) { cancel() })
	b := watch(t, redisbudget.Config{Client: newClient(t, f.Addr()), Timeout: patient})
	assert.False(t, b.Withdraw(ctx, failed(target)))
	assert.Nil(t, b.decidedBy.Load(), "the context is done first")

	began := time.Now()
	assert.Equal(t, 5, withdrawn(t, b.Budget, target, 1000))
	assert.Less(t, time.Since(began), 20*time.Second)
	time.Sleep(time.Second)
	assert.LessOrEqual(t, f.commands.Load(), int64(100), "requests and greetings")
	b.log.requireLines(t, 1)
	assert.NoError(t, b.Close(), "nothing was sent")
}

// A retry that has to wait for the call before its own waits for the Timeout
// all the same, and not once for each call.
func TestWaitBehindACall(t *testing.T) {
	f := newFake(t)
	var calls atomic.Int64
	answer := make(chan struct{})
	f.fail(func(p *server.Peer) {
		if calls.Add(1) == 1 {
			<-answer
			p.WriteLen(2)
			p.WriteInt(1)
			p.WriteInt(9_000_000) // microseconds until the end of the lease
		}
	})
	b := watch(t, redisbudget.Config{Client: newClient(t, f.Addr()), Timeout: patient})
	var first, second bool
	var wg sync.WaitGroup
	wg.Go(func() { first = b.Withdraw(t.Context(), failed(target)) })
	require.Eventually(t, func() bool { return calls.Load() == 1 }, 20*time.Second, time.Millisecond)
	wg.Go(func() { second = b.Withdraw(t.Context(), failed(target)) })
	time.Sleep(patient / 2)
	close(answer)
	wg.Wait()
	assert.True(t, first)
	assert.True(t, second)
	assert.EqualValues(t, 1, b.shared.Load())
	assert.EqualValues(t, 1, b.local.Load())
	// The second call has another error, half of the Timeout later.
	assert.Contains(t, b.log.requireLines(t, 1)[0], fmt.Sprintf(`error="no answer within %v"`, patient))
}

func TestCloseReturnsAnError(t *testing.T) {
	f := newFake(t)
	b := newBudget(t, redisbudget.Config{
		Client: newClient(t, f.Addr()), Window: year, FlushInterval: time.Minute, Timeout: patient})
	succeed(b, target, 1)
	f.SetError("OOM no memory")
	assert.ErrorContains(t, b.Close(), "redisbudget: close: OOM no memory")
	assert.ErrorContains(t, b.Close(), "redisbudget: close: OOM no memory")
}

// other is a client of a type that the package does not know.
type other struct{ redis.UniversalClient }

// A client of another type is used as it is.
func TestOtherClients(t *testing.T) {
	f := newFake(t)
	client := newClient(t, f.Addr())
	require.NoError(t, client.Ping(t.Context()).Err())
	before := runtime.NumGoroutine()
	b := newBudget(t, redisbudget.Config{Client: other{client}, Timeout: patient})
	assert.Equal(t, 5, withdrawn(t, b, target, 9))
	require.NoError(t, b.Close())
	assert.NoError(t, client.Ping(t.Context()).Err(), "Close does not close it")
	requireGoroutines(t, before+2)
}

// The client reaches Redis through the transport that asks the budget.
func TestRedisIsTheHostItself(t *testing.T) {
	var transport http.RoundTripper
	ready := make(chan struct{})
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer gateway.Close()
	get := func(ctx context.Context) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, gateway.URL, nil)
		if err != nil {
			return nil, err
		}
		return transport.RoundTrip(req)
	}
	client := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		<-ready
		resp, err := get(ctx)
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", resp.Status, resp.Body.Close())
	}})
	defer client.Close()
	var lines logBuffer
	budget := newBudget(t, redisbudget.Config{Client: client, Logger: lines.logger()})
	var err error
	transport, err = httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		Budget: budget, Backoff: strategies.Constant{Wait: time.Millisecond}}})
	require.NoError(t, err)
	close(ready)

	for range 10 {
		resp, err := get(t.Context())
		require.NoError(t, err)
		assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		require.NoError(t, resp.Body.Close())
	}
	lines.requireLines(t, 1)
	transport.(*httpretry.RetryTransport).CloseIdleConnections()
}

// The successes in a report that has to wait for another one are older when it
// is sent.
func TestLateReportsHaveTheirAge(t *testing.T) {
	f := miniredis.RunT(t)
	const wait = 300 * time.Millisecond
	var once sync.Once
	var mu sync.Mutex
	var ages []time.Duration
	f.Server().SetPreHook(func(_ *server.Peer, name string, args ...string) bool {
		if name == "EVALSHA" {
			once.Do(func() { time.Sleep(wait) })
			age, err := strconv.ParseInt(args[len(args)-6], 10, 64)
			assert.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			ages = append(ages, time.Duration(age)*time.Microsecond)
		}
		return false
	})
	b := newBudget(t, redisbudget.Config{
		Client: newClient(t, f.Addr()), Window: year, FlushInterval: time.Minute, Timeout: patient})
	for i := range 200 {
		succeed(b, fmt.Sprintf("https://%d.test", i), 1)
	}
	require.NoError(t, b.Close())
	require.Len(t, ages, 200)
	assert.GreaterOrEqual(t, slices.Max(ages)-slices.Min(ages), wait)
}
