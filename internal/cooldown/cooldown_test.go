package cooldown_test

import (
	"fmt"
	"math"
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

// generation returns the generation of host without what a Quiet remembers.
func generation(t *cooldown.Table) uint64 { return t.Generation(host, new(cooldown.Quiet)) }

func TestZeroTable(t *testing.T) {
	var table cooldown.Table
	assert.Zero(t, generation(&table))
	assert.False(t, table.Active(host, start))
	assert.Equal(t, cooldown.Remaining{}, table.Remaining(host, start))
	table.Clear(host, math.MaxUint64)
	place := table.Place(host)
	assert.True(t, place >= 0 && place < 1, "%v", place)
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
	table.Clear(host, 4)
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
	table.Clear("one", 2)
	assert.True(t, table.Active(host, after(19)))
	begin(&table, host, after(19), time.Second, 0)
	table.Clear(host, 3)
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
	cleared := table.Join(&first, host, start, start, true).Cleared
	defer first.Leave()

	// The attempt that succeeds may have been sent before the host asked. Then
	// it does not end the cool-down.
	table.Clear(host, 0)
	assert.Equal(t, 30*time.Second, table.Remaining(host, start).Wait)
	assert.False(t, isClosed(cleared))

	table.Clear(host, 1)
	assert.Zero(t, table.Remaining(host, after(1)).Wait)
	assert.True(t, isClosed(cleared))
	r := table.Join(&elsewhere, other, after(1), after(1), true)
	assert.Equal(t, 29*time.Second, r.Wait)
	assert.False(t, isClosed(r.Cleared))
	elsewhere.Leave()
	table.Clear(host, 2) // is not cooling down

	begin(&table, host, after(2), 10*time.Second, time.Second)
	r = table.Join(&second, host, after(2), after(2), false)
	assert.Equal(t, []time.Duration{10 * time.Second, 10 * time.Second},
		[]time.Duration{r.Wait, r.Length})
	assert.False(t, isClosed(r.Cleared), "a cool-down of its own")
	table.Clear(host, 2)
	assert.Equal(t, 10*time.Second, table.Remaining(host, after(2)).Wait,
		"the host has asked again since")
	table.Clear(host, 3)
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
	cleared := table.Join(&first, host, start, start, true).Cleared
	begin(&table, host, after(10), time.Minute, 0)
	assert.Equal(t, cleared, table.Join(&first, host, after(10), start, true).Cleared)
	assert.Equal(t, cleared, table.Join(&second, host, after(11), after(11), true).Cleared)
	first.Leave()
	first.Leave() // without effect
	table.Clear(host, 1)
	assert.False(t, isClosed(cleared))
	table.Clear(host, 2)
	assert.True(t, isClosed(cleared))

	begin(&table, host, after(12), time.Minute, 0)
	dropped := table.Join(&second, host, after(12), after(11), true).Cleared
	second.Leave()
	table.Clear(host, 3)
	assert.False(t, isClosed(dropped), "nobody waits")
}

// Arrived returns the arrival of the oldest first attempt that still waits.
func TestArrived(t *testing.T) {
	var table cooldown.Table
	var nobody, retry, first, second cooldown.Waiter
	assert.Equal(t, after(1), nobody.Arrived(after(1)))
	assert.Zero(t, table.Join(&nobody, host, start, start, true).Wait, "nothing to wait for")
	begin(&table, host, start, time.Hour, 0)
	table.Join(&retry, host, after(2), after(2), false)
	assert.Equal(t, after(3), retry.Arrived(after(3)), "retries do not count")
	table.Join(&first, host, after(4), after(4), true)
	table.Join(&second, host, after(5), after(5), true)
	table.Join(&first, host, after(6), after(4), true)
	assert.Equal(t, after(4), second.Arrived(after(7)))
	first.Leave()
	assert.Equal(t, after(5), retry.Arrived(after(7)))
	second.Leave()
	assert.Equal(t, after(7), retry.Arrived(after(7)))

	// The host is evicted, and asks again.
	for i := range hosttable.MaxEntries {
		begin(&table, fmt.Sprint(i), after(8), time.Minute, 0)
	}
	assert.Zero(t, table.Join(&retry, host, after(8), after(2), false).Wait)
	begin(&table, host, after(8), time.Minute, 0)
	r := table.Join(&retry, host, after(8), after(2), false)
	assert.Equal(t, time.Minute, r.Wait)
	table.Clear(host, generation(&table))
	assert.True(t, isClosed(r.Cleared))
	retry.Leave()
}

// If a host is evicted and then asks for a pause again, a first attempt that
// waits for it waits for the new cool-down.
func TestWaiterOfAnEvictedHost(t *testing.T) {
	for _, between := range []bool{false, true} { // it looks while the host is unknown
		var table cooldown.Table
		var first, second cooldown.Waiter
		begin(&table, host, start, time.Hour, 0)
		table.Join(&first, host, after(1), after(1), true)
		for i := range hosttable.MaxEntries {
			begin(&table, fmt.Sprint(i), after(2), time.Minute, 0)
		}
		if between {
			assert.Zero(t, table.Join(&first, host, after(2), after(1), true).Wait)
			assert.Equal(t, after(2), first.Arrived(after(2)), "it waits for nothing")
		}
		begin(&table, host, after(3), time.Minute, 0)
		table.Join(&first, host, after(3), after(1), true)
		table.Join(&second, host, after(4), after(4), true)
		assert.Equal(t, after(1), second.Arrived(after(5)))
		first.Leave()
		assert.Equal(t, after(4), second.Arrived(after(5)))
		second.Leave()
	}
}

// Each part of the time after a cool-down gets the same number of requests,
// give or take three. Independent random places would differ by the square root
// of that number, which is 60 of 400.
func TestPlacesAreEven(t *testing.T) {
	for _, requests := range []int{10, 100, 3000, 12_000} {
		for _, buckets := range []int{2, 7, 30} {
			t.Run(fmt.Sprintf("%d/%d", requests, buckets), func(t *testing.T) {
				for range 20 { // starts are random
					var table cooldown.Table
					begin(&table, host, start, time.Minute, 0)
					counts := make([]int, buckets)
					for range requests {
						// panics unless it is in [0, 1)
						counts[int(table.Place(host)*float64(buckets))]++
					}
					for _, n := range counts {
						assert.InDelta(t, float64(requests)/float64(buckets), n, 3)
					}
				}
			})
		}
	}
}

// Requests that arrive one after the other are spread as evenly as all
// requests. So places do not ascend with the time of arrival.
func TestPlacesOfARunAreEven(t *testing.T) {
	var table cooldown.Table
	begin(&table, host, start, time.Minute, 0)
	for range 100 {
		var counts [10]int
		for range 100 {
			counts[int(table.Place(host)*10)]++
		}
		for _, n := range counts {
			assert.InDelta(t, 10, n, 3)
		}
	}
}

// The first place is random, so that requests of several processes do not
// return together.
func TestFirstPlaceIsRandom(t *testing.T) {
	var halves [2]int
	for range 1000 {
		var table cooldown.Table
		begin(&table, host, start, time.Minute, 0)
		halves[int(table.Place(host)*2)]++
	}
	// The probability that one side of a fair coin comes up fewer than 350
	// times in 1000 is below 1e-20.
	assert.Greater(t, min(halves[0], halves[1]), 350)
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
					table.Clear(key, math.MaxUint64)
				case 2:
					var w cooldown.Waiter
					r := table.Join(&w, key, now, now, j%2 == 0)
					w.Arrived(now)
					w.Leave()
					if r.Wait < 0 || r.Wait > 2*time.Second+10*time.Millisecond {
						t.Errorf("a wait of %v", r.Wait)
					}
				default:
					table.Active(key, now)
					if p := table.Place(key); p < 0 || p >= 1 {
						t.Errorf("place %v", p)
					}
				}
			}
		})
	}
	running.Wait()
	for _, key := range []string{host, other} {
		begin(&table, key, after(10), time.Second, 0)
		require.True(t, table.Active(key, after(10)))
		var w cooldown.Waiter
		r := table.Join(&w, key, after(10), after(10), true)
		assert.Equal(t, after(10), w.Arrived(after(11)), "all others have left")
		assert.Equal(t, time.Second, r.Wait)
		table.Clear(key, math.MaxUint64)
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
		assert.Zero(t, testing.AllocsPerRun(1000, func() {
			if generation(&table) > 0 && table.Active(host, start) {
				table.Remaining(host, start)
				table.Place(host)
				table.Clear(host, 0)
			}
		}), cooling)
	}
}
