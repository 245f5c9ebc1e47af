package cooldown_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/cooldown"
	"github.com/seed421102f4/httpretry/internal/hosttable"
)

const host, other = "http://a.test", "http://b.test"

// start is the time at which tests begin. Table has no clock.
var start = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

// after returns the time so many seconds after start.
func after(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// never is the limit of a request that has none.
var never = start.Add(1 << 62)

// isClosed reports whether a channel is closed. A nil channel is not.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// begin begins a cool-down of a whole origin.
func begin(t *cooldown.Table, origin string, now time.Time, length, spread time.Duration) {
	t.Begin(origin, origin, now, length, spread)
}

// generation returns the generation of host, with a new Quiet.
func generation(t *cooldown.Table) uint64 { return t.Generation(host, new(cooldown.Quiet)) }

func TestZeroTable(t *testing.T) {
	var table cooldown.Table
	assert.Zero(t, generation(&table))
	assert.False(t, table.Active(host, start))
	assert.Equal(t, cooldown.Remaining{}, table.Remaining(host, start))
	table.Clear(host, start, math.MaxUint64)
	assert.Zero(t, new(cooldown.Waiter).Turn(start))
	assert.Zero(t, generation(&table))
}

func TestBegin(t *testing.T) {
	type request struct{ at, length, spread int } // seconds
	type remaining struct{ wait, length, spread int }
	for _, tt := range []struct {
		name     string
		requests []request
		at       int
		want     remaining
	}{
		{"begins", []request{{0, 30, 7}}, 0, remaining{30, 30, 7}},
		{"goes on", []request{{0, 30, 7}}, 29, remaining{1, 30, 7}},
		{"is over", []request{{0, 30, 7}}, 30, remaining{0, 30, 7}},
		{"a longer one extends it", []request{{0, 30, 7}, {10, 40, 9}}, 10, remaining{40, 50, 9}},
		{"a shorter one does not", []request{{0, 30, 7}, {10, 10, 9}}, 10, remaining{20, 30, 7}},
		{"nor does one that ends at the same time", []request{{0, 30, 7}, {10, 20, 9}}, 10,
			remaining{20, 30, 7}},
		{"it counts from its beginning", []request{{0, 30, 7}, {20, 30, 7}, {40, 30, 7}}, 60,
			remaining{10, 70, 7}},
		{"a new one after its end", []request{{0, 30, 7}, {30, 10, 3}}, 30, remaining{10, 10, 3}},
		{"an hour", []request{{0, 3600, 30}}, 0, remaining{3600, 3600, 30}},
		{"no more than an hour", []request{{0, 3601, 30}}, 0, remaining{3600, 3600, 30}},
		{"an hour after the last request", []request{{0, 9999, 30}, {10, 9999, 30}}, 10,
			remaining{3600, 3610, 30}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var table cooldown.Table
			for i, r := range tt.requests {
				begin(&table, host, after(r.at), time.Duration(r.length)*time.Second,
					time.Duration(r.spread)*time.Second)
				assert.EqualValues(t, i+1, generation(&table))
			}
			got := table.Remaining(host, after(tt.at))
			assert.Equal(t, tt.want, remaining{
				int(got.Wait.Seconds()), int(got.Length.Seconds()), int(got.Spread.Seconds())})
			if tt.want.wait > 0 {
				assert.Equal(t, after(tt.at+tt.want.wait), got.Until)
			}
			assert.Equal(t, cooldown.Remaining{}, table.Remaining(other, after(tt.at)))
			assert.Equal(t, tt.want.wait > 0, table.Active(host, after(tt.at)))
		})
	}
}

// An absurd length does not overflow.
func TestLongestCooldown(t *testing.T) {
	var table cooldown.Table
	begin(&table, host, start, math.MaxInt64, math.MaxInt64)
	assert.Equal(t, cooldown.MaxLength, table.Remaining(host, start).Wait)
}

// Generation counts requests for a pause by all hosts, but is 0 for a host that
// has no cool-down and no sleeping request.
func TestGeneration(t *testing.T) {
	var table cooldown.Table
	var quiet cooldown.Quiet // of host
	ofHost := func() uint64 {
		if table.IsQuiet(&quiet) {
			assert.Zero(t, generation(&table))
			return 0
		}
		got := table.Generation(host, &quiet)
		assert.Equal(t, got == 0, table.IsQuiet(&quiet))
		assert.Equal(t, generation(&table), got)
		return got
	}
	assert.Zero(t, ofHost())
	begin(&table, other, start, time.Hour, 0)
	assert.Zero(t, ofHost(), "another host")
	begin(&table, host, start, 30*time.Second, 0)
	assert.EqualValues(t, 2, ofHost())
	begin(&table, other, after(10), 10*time.Second, 0)
	assert.EqualValues(t, 3, ofHost())

	assert.True(t, table.Active(host, after(29)))
	assert.EqualValues(t, 3, ofHost())
	assert.False(t, table.Active(host, after(30)))
	assert.Zero(t, ofHost())
	assert.False(t, table.Active(host, after(30)))

	begin(&table, host, after(40), time.Hour, 0)
	assert.EqualValues(t, 4, ofHost(), "no number is used twice")
	table.Clear(host, start, 4)
	assert.Zero(t, ofHost())

	var here, elsewhere cooldown.Sleeper
	table.Sleep(&elsewhere, other, other)
	assert.Zero(t, ofHost())
	table.Sleep(&here, host, "a part")
	assert.EqualValues(t, 6, ofHost())
	elsewhere.Leave()
	assert.EqualValues(t, 6, ofHost())
	here.Leave()
	assert.Zero(t, ofHost())
}

// The cool-down of a part is active for its origin, and for no other one.
func TestParts(t *testing.T) {
	var table cooldown.Table
	table.Begin(host, "one", start, 30*time.Second, 0)
	table.Begin(host, "two", start, 20*time.Second, 0)
	assert.EqualValues(t, 2, generation(&table))
	assert.True(t, table.Active(host, after(29)))
	assert.False(t, table.Active(other, after(29)))
	assert.Zero(t, table.Remaining(host, start).Wait, "the origin itself has none")
	table.Clear("one", start, 2)
	assert.True(t, table.Active(host, after(19)))
	begin(&table, host, after(19), time.Second, 0)
	table.Clear(host, start, 3)
	assert.True(t, table.Active(host, after(19)), "two")
	assert.False(t, table.Active(host, after(30)))
	assert.Zero(t, generation(&table))
	for key, end := range table.Ends(start) {
		assert.Equal(t, "two", key)
		assert.Equal(t, after(20), end)
	}
}

// Requests to more hosts than a hosttable.Table has entries sleep. Each of them
// is woken, and nothing of them remains.
func TestManyHostsSleep(t *testing.T) {
	var table cooldown.Table
	const hosts = hosttable.MaxEntries + 100
	sleepers, awake := make([]cooldown.Sleeper, hosts), make([]<-chan struct{}, hosts)
	for i := range sleepers {
		awake[i] = table.Sleep(&sleepers[i], fmt.Sprint(i), fmt.Sprint("key ", i))
	}
	for i := range sleepers {
		assert.True(t, table.AnySleeps(fmt.Sprint(i)))
		table.Wake(fmt.Sprint("key ", i), math.MaxUint64)
		assert.True(t, isClosed(awake[i]), i)
		assert.False(t, table.AnySleeps(fmt.Sprint(i)))
		sleepers[i].Leave()
	}
}

func TestClear(t *testing.T) {
	var table cooldown.Table
	var first, second, elsewhere cooldown.Waiter
	begin(&table, host, start, 30*time.Second, time.Second)
	begin(&table, other, start, 30*time.Second, time.Second)
	cleared := table.Join(&first, host, start, start, never, true).Cleared
	defer first.Leave()

	// The attempt that succeeds may have been sent before the host asked. Then
	// it does not end the cool-down.
	table.Clear(host, start, 0)
	assert.Equal(t, 30*time.Second, table.Remaining(host, start).Wait)
	assert.False(t, isClosed(cleared))

	table.Clear(host, start, 1)
	assert.Zero(t, table.Remaining(host, after(1)).Wait)
	assert.True(t, isClosed(cleared))
	r := table.Join(&elsewhere, other, after(1), after(1), never, true)
	assert.Equal(t, 29*time.Second, r.Wait)
	assert.False(t, isClosed(r.Cleared))
	elsewhere.Leave()
	table.Clear(host, start, 2) // is not cooling down

	begin(&table, host, after(2), 10*time.Second, time.Second)
	r = table.Join(&second, host, after(2), after(2), never, false)
	assert.Equal(t, []time.Duration{10 * time.Second, 10 * time.Second},
		[]time.Duration{r.Wait, r.Length})
	assert.False(t, isClosed(r.Cleared), "a cool-down of its own")
	table.Clear(host, start, 2)
	assert.Equal(t, 10*time.Second, table.Remaining(host, after(2)).Wait,
		"the host has asked again since")
	table.Clear(host, start, 3)
	assert.True(t, isClosed(r.Cleared))
	second.Leave()
}

func TestSleep(t *testing.T) {
	var table cooldown.Table
	var first, second, third, elsewhere cooldown.Sleeper
	assert.Zero(t, generation(&table))
	before := generation(&table)
	one := table.Sleep(&first, host, host)
	between := generation(&table)
	assert.Positive(t, between, "a success calls Wake")
	assert.False(t, table.Active(host, start), "no host is cooling down")
	two, three := table.Sleep(&second, host, host), table.Sleep(&third, host, host)
	other := table.Sleep(&elsewhere, other, other)

	table.Wake(host, before)
	assert.False(t, isClosed(one), "the success was sent before")
	table.Wake(host, between)
	assert.Equal(t, []bool{true, false, false, false},
		[]bool{isClosed(one), isClosed(two), isClosed(three), isClosed(other)})
	table.Wake(host, between)
	assert.False(t, isClosed(two), "the success was sent before")
	second.Leave()
	table.Wake(host, generation(&table))
	assert.Equal(t, []bool{false, true, false},
		[]bool{isClosed(two), isClosed(three), isClosed(other)})

	for _, s := range []*cooldown.Sleeper{&first, &third, &elsewhere} {
		assert.NotPanics(t, func() { table.Wake(host, 1<<63) })
		s.Leave()
	}
	assert.Zero(t, generation(&table), "nobody sleeps any more")
}

// Extending a cool-down keeps the channel on which requests wait. The last of
// them drops it.
func TestExtendedCooldownIsCleared(t *testing.T) {
	var table cooldown.Table
	var first, second cooldown.Waiter
	begin(&table, host, start, 30*time.Second, 0)
	cleared := table.Join(&first, host, start, start, never, true).Cleared
	begin(&table, host, after(10), time.Minute, 0)
	assert.Equal(t, cleared, table.Join(&first, host, after(10), start, never, true).Cleared)
	assert.Equal(t, cleared, table.Join(&second, host, after(11), after(11), never, true).Cleared)
	first.Leave()
	first.Leave() // without effect
	table.Clear(host, start, 1)
	assert.False(t, isClosed(cleared))
	table.Clear(host, start, 2)
	assert.True(t, isClosed(cleared))

	begin(&table, host, after(12), time.Minute, 0)
	dropped := table.Join(&second, host, after(12), after(11), never, true).Cleared
	second.Leave()
	table.Clear(host, start, 3)
	assert.False(t, isClosed(dropped), "nobody waits")
}

// If a host is evicted, a request that waits for it keeps its turn. If the host
// asks for a pause again, the request waits for the new cool-down.
func TestWaiterOfAnEvictedHost(t *testing.T) {
	for _, between := range []bool{false, true} { // it looks while the host is unknown
		var table cooldown.Table
		var first, second cooldown.Waiter
		begin(&table, host, start, 10*time.Second, 0)
		table.Join(&first, host, after(1), after(1), never, true)
		for i := range hosttable.MaxEntries {
			begin(&table, fmt.Sprint(i), after(2), time.Minute, 0)
		}
		turn := first.Turn(after(10))
		assert.True(t, turn > 0 && turn <= 9*time.Second, "%v", turn)
		if between {
			assert.Zero(t, table.Join(&first, host, after(11), after(1), never, true).Wait)
			assert.Zero(t, first.Turn(after(11)), "it waits for nothing")
		}
		begin(&table, host, after(12), time.Minute, 0)
		r := table.Join(&first, host, after(12), after(1), never, true)
		assert.Equal(t, time.Minute, r.Wait)
		table.Join(&second, host, after(13), after(13), never, true)
		assert.Zero(t, first.Turn(after(14)), "the host is cooling down")
		table.Clear(host, after(14), math.MaxUint64)
		assert.True(t, isClosed(r.Cleared))
		assert.LessOrEqual(t, second.Turn(after(14)), time.Second)
		assert.Greater(t, first.Turn(after(14)), time.Duration(0))
		first.Leave()
		second.Leave()
	}
}

// crowd returns the turns of requests that have waited for the given times when
// a cool-down of an hour ends. The turns are in the order of the waits.
func crowd(waits []time.Duration) (turns []time.Duration) {
	var table cooldown.Table
	begin(&table, host, start, time.Hour, 0)
	end := start.Add(time.Hour)
	waiters := make([]cooldown.Waiter, len(waits))
	for i, wait := range waits {
		arrived := end.Add(-wait)
		table.Join(&waiters[i], host, end.Add(-time.Nanosecond), arrived, never, true)
	}
	for i := range waiters {
		turns = append(turns, waiters[i].Turn(end))
	}
	return turns
}

// The law of the turns, for random arrivals: no request waits for longer than
// it has waited already, the order is that of these times, the rate never
// rises, and no lower rate is possible.
func TestTurns(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed ", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		waits := make([]time.Duration, 1+random.IntN(200))
		for i := range waits {
			switch random.IntN(3) {
			case 0:
				waits[i] = time.Duration(random.Int64N(int64(time.Minute)))
			case 1:
				waits[i] = 40*time.Second + time.Duration(random.Int64N(int64(time.Second)))
			default:
				waits[i] = time.Duration(random.ExpFloat64() * float64(time.Second))
			}
		}
		slices.Sort(waits)
		turns := crowd(waits)
		// The highest rate at which the requests arrived, seen from the end.
		rate := 0.0
		for i, wait := range waits {
			rate = max(rate, float64(i+1)/float64(wait))
		}
		gap := 1 / rate
		for i, turn := range turns {
			require.LessOrEqual(t, turn, waits[i])
			if i > 0 {
				next := float64(turn - turns[i-1])
				require.GreaterOrEqual(t, next, gap-2, "%d of %d: the rate rises", i, len(turns))
				gap = next
			}
		}
	}
}

// Requests that arrived together return evenly over as long as they have
// waited.
func TestTurnsOfABurst(t *testing.T) {
	waits := slices.Repeat([]time.Duration{30 * time.Second}, 3000)
	turns := crowd(waits)
	for i, turn := range turns {
		assert.InDelta(t, float64(i)*1e7, turn, 1e7+2)
	}
	assert.InDelta(t, 2999*1e7, turns[2999]-turns[0], 2)
}

// The limit of a request brings its turn forward, and leaves the others more
// time.
func TestTurnsBeforeLimits(t *testing.T) {
	for range 100 {
		var table cooldown.Table
		begin(&table, host, start, 30*time.Second, 0)
		limits := []time.Time{never, after(31), after(30), after(29)}
		waiters := make([]cooldown.Waiter, len(limits))
		for i, latest := range limits {
			table.Join(&waiters[i], host, start, start, latest, true)
		}
		for i, most := range []time.Duration{30 * time.Second, time.Second, 0, 0} {
			turn := waiters[i].Turn(after(30))
			assert.LessOrEqual(t, turn, most)
			assert.GreaterOrEqual(t, turn, most-29*time.Second)
			waiters[i].Leave()
		}
	}
}

// Turns count from the end of the cool-down, however late a request asks.
func TestTurnsCountFromTheEnd(t *testing.T) {
	for _, cleared := range []bool{false, true} {
		var table cooldown.Table
		var w cooldown.Waiter
		begin(&table, host, start, 10*time.Second, 0)
		table.Join(&w, host, start, start, never, true)
		latest := 20 * time.Second
		if cleared {
			table.Clear(host, after(8), math.MaxUint64)
			latest = 16 * time.Second
		}
		table.Clear(host, after(11), math.MaxUint64) // nothing is left to end
		assert.LessOrEqual(t, w.Turn(start.Add(latest-time.Second)), time.Second)
		assert.Zero(t, w.Turn(start.Add(latest)))
		w.Leave()
	}
}

// The first turn is random, so that requests of several processes do not return
// together.
func TestFirstTurnIsRandom(t *testing.T) {
	var halves [2]int
	for range 1000 {
		halves[crowd([]time.Duration{2 * time.Second})[0]/time.Second]++
	}
	// The probability that one side of a fair coin comes up fewer than 350
	// times in 1000 is below 1e-20.
	assert.Greater(t, min(halves[0], halves[1]), 350)
}

// Requests that still wait for their turns after one cool-down get new ones
// after the next. Retries, and requests that have left, get none.
func TestTurnsAfterAnotherCooldown(t *testing.T) {
	var table cooldown.Table
	var retry, left, first, second cooldown.Waiter
	begin(&table, host, start, 10*time.Second, 0)
	table.Join(&retry, host, start, start, never, false)
	table.Join(&left, host, start, start, never, true)
	table.Join(&first, host, start, start, never, true)
	left.Leave()
	before := first.Turn(after(10))
	assert.LessOrEqual(t, before, 10*time.Second)
	assert.Equal(t, before, first.Turn(after(10)))
	assert.Equal(t, max(before-time.Second, 0), first.Turn(after(11)))

	begin(&table, host, after(11), 10*time.Second, 0)
	assert.Zero(t, first.Turn(after(12)))
	r := table.Join(&first, host, after(12), start, never, true)
	assert.Equal(t, 9*time.Second, r.Wait)
	table.Join(&second, host, after(20), after(20), never, true)
	assert.LessOrEqual(t, second.Turn(after(21)), time.Second)
	turn := first.Turn(after(21))
	assert.True(t, turn > time.Second && turn <= 21*time.Second, "%v", turn)
	for _, w := range []*cooldown.Waiter{&retry, &first, &second} {
		w.Leave()
		assert.Zero(t, w.Turn(after(21)))
	}
}

// The clock of a Begin may have been read before the turns were planned. Then
// the requests that arrive later have turns all the same.
func TestTurnsAfterALateBegin(t *testing.T) {
	var table cooldown.Table
	var first cooldown.Waiter
	begin(&table, host, start, 10*time.Second, 0)
	table.Join(&first, host, after(1), after(1), never, true)
	first.Turn(after(10))
	begin(&table, host, after(10).Add(-1), 20*time.Second, 0)
	late, atOnce := make([]cooldown.Waiter, 20), 0
	for i := range late {
		require.NotZero(t, table.Join(&late[i], host, after(15), after(15), never, true).Wait)
	}
	for i := range late {
		if late[i].Turn(after(30)) == 0 {
			atOnce++
		}
	}
	assert.LessOrEqual(t, atOnce, 1)
}

// Only the hosts that asked last are remembered.
func TestHostsAreBounded(t *testing.T) {
	var table cooldown.Table
	for i := range 2 * hosttable.MaxEntries {
		begin(&table, fmt.Sprint(i), start, time.Minute, 0)
	}
	cooling := 0
	for i := range 2 * hosttable.MaxEntries {
		if table.Remaining(fmt.Sprint(i), start).Wait > 0 {
			cooling++
		}
	}
	assert.Equal(t, hosttable.MaxEntries, cooling)
	assert.Equal(t, time.Minute, table.Remaining(fmt.Sprint(2*hosttable.MaxEntries-1), start).Wait)
}

// Hosts begin and end cool-downs concurrently. Afterward, the table works as
// before.
func TestRace(t *testing.T) {
	var table cooldown.Table
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			key := []string{host, other}[i%2]
			for j := range 2000 {
				now := start.Add(time.Duration(j) * time.Millisecond)
				switch i / 2 {
				case 0:
					begin(&table, key, now, 10*time.Millisecond, time.Millisecond)
				case 1:
					table.Clear(key, start, math.MaxUint64)
				case 2:
					var w cooldown.Waiter
					r := table.Join(&w, key, now, now, never, j%2 == 0)
					w.Turn(now.Add(time.Minute))
					w.Leave()
					if r.Wait < 0 || r.Wait > 2*time.Second+10*time.Millisecond {
						t.Errorf("a wait of %v", r.Wait)
					}
				default:
					table.Active(key, now)
				}
			}
		})
	}
	running.Wait()
	for _, key := range []string{host, other} {
		begin(&table, key, after(10), time.Second, 0)
		require.True(t, table.Active(key, after(10)))
		var w cooldown.Waiter
		r := table.Join(&w, key, after(10), after(10), never, true)
		assert.LessOrEqual(t, w.Turn(after(11)), time.Second, "all others have left")
		assert.Equal(t, time.Second, r.Wait)
		table.Clear(key, start, math.MaxUint64)
		assert.Zero(t, table.Remaining(key, after(10)).Wait)
		assert.True(t, isClosed(r.Cleared))
	}
	assert.False(t, table.Active(host, after(11)))
	assert.Zero(t, generation(&table))
}

// A successful request allocates nothing here, whether or not a host is cooling
// down.
func TestAllocations(t *testing.T) {
	for _, cooling := range []string{"", host, other} {
		var table cooldown.Table
		if cooling != "" {
			begin(&table, cooling, start, time.Hour, time.Second)
		}
		// On 386, a Quiet on the stack would escape to the atomic functions.
		quiet := new(cooldown.Quiet)
		assert.Zero(t, testing.AllocsPerRun(1000, func() {
			if table.Generation(host, quiet) > 0 && table.Active(host, start) {
				table.Remaining(host, start)
				table.Clear(host, start, 0)
			}
		}), cooling)
	}
}
