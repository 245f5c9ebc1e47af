package cooldown_test

import (
	"fmt"
	"math"
	"math/rand/v2"
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

// generation returns the generation of host, with a new Quiet.
func generation(t *cooldown.Table) uint64 { return t.Generation(host, new(cooldown.Quiet)) }

func TestZeroTable(t *testing.T) {
	var table cooldown.Table
	assert.Zero(t, generation(&table))
	assert.False(t, table.Active(host, start))
	assert.Equal(t, cooldown.Remaining{}, table.Remaining(host, start))
	table.Clear(host, math.MaxUint64)
	var w cooldown.Waiter
	assert.Equal(t, cooldown.Remaining{}, table.Join(&w, host, start))
	w.Leave()
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
// has no cool-down.
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

// A success ends a cool-down only if it was sent after the host had last asked.
func TestClear(t *testing.T) {
	var table cooldown.Table
	var here, elsewhere cooldown.Waiter
	begin(&table, host, start, 30*time.Second, time.Second)
	begin(&table, other, start, 30*time.Second, time.Second)
	cleared := table.Join(&here, host, start).Cleared
	unaffected := table.Join(&elsewhere, other, start).Cleared
	table.Clear(host, 0)
	assert.Equal(t, 30*time.Second, table.Remaining(host, start).Wait)
	assert.False(t, isClosed(cleared))
	table.Clear(host, 1)
	assert.Zero(t, table.Remaining(host, after(1)).Wait)
	assert.True(t, isClosed(cleared))
	table.Clear(host, 2) // is not cooling down
	assert.Equal(t, 29*time.Second, table.Remaining(other, after(1)).Wait)
	assert.False(t, isClosed(unaffected))
	elsewhere.Leave()

	// The next cool-down is a new one, which the same request may wait for.
	begin(&table, host, after(2), 10*time.Second, time.Second)
	r := table.Join(&here, host, after(2))
	assert.Equal(t, []time.Duration{10 * time.Second, 10 * time.Second},
		[]time.Duration{r.Wait, r.Length})
	assert.False(t, isClosed(r.Cleared))
	table.Clear(host, 2)
	assert.Equal(t, 10*time.Second, table.Remaining(host, after(2)).Wait)
	table.Clear(host, 3)
	assert.True(t, isClosed(r.Cleared))
	here.Leave()
}

// Responses begin and end cool-downs in random order. At any time, the rest of
// the cool-down agrees with a model of a few lines.
func TestModel(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed ", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var table cooldown.Table
	var until, last int // of the model: when the cool-down ends, and was last asked for
	sent, ended := map[int]uint64{}, 0
	for now := range 10_000 {
		sent[now] = generation(&table)
		switch random.IntN(8) {
		case 0:
			length := 1 + random.IntN(60)
			begin(&table, host, after(now), time.Duration(length)*time.Second, 0)
			until, last = max(until, now+length), now
		case 1:
			// As in a RetryTransport, a success ends nothing if it was sent while
			// no host was cooling down.
			at := now - random.IntN(min(now+1, 20))
			if sent[at] > 0 && table.Active(host, after(now)) {
				table.Clear(host, sent[at])
			}
			if at > last && until > now {
				until, ended = now, ended+1
			}
		}
		want := time.Duration(max(until-now, 0)) * time.Second
		require.Equal(t, want, table.Remaining(host, after(now)).Wait)
		require.Equal(t, want > 0, table.Active(host, after(now)))
	}
	assert.Greater(t, ended, 100)
}

// Extending a cool-down keeps the channel on which requests wait. The last of
// them drops it.
func TestExtendedCooldownIsCleared(t *testing.T) {
	var table cooldown.Table
	var first, second cooldown.Waiter
	begin(&table, host, start, 30*time.Second, 0)
	cleared := table.Join(&first, host, start).Cleared
	begin(&table, host, after(10), time.Minute, 0)
	assert.Equal(t, cleared, table.Join(&first, host, after(10)).Cleared)
	assert.Equal(t, cleared, table.Join(&second, host, after(11)).Cleared)
	first.Leave()
	first.Leave() // without effect
	table.Clear(host, 1)
	assert.False(t, isClosed(cleared))
	table.Clear(host, 2)
	assert.True(t, isClosed(cleared))

	begin(&table, host, after(12), time.Minute, 0)
	dropped := table.Join(&second, host, after(12)).Cleared
	second.Leave()
	table.Clear(host, 3)
	assert.False(t, isClosed(dropped), "nobody waits")
}

// If a host is evicted and asks for a pause again, a request that
// waits for it waits for the new cool-down.
func TestWaiterOfAnEvictedHost(t *testing.T) {
	for _, between := range []bool{false, true} { // it looks while the host is unknown
		var table cooldown.Table
		var first, second cooldown.Waiter
		begin(&table, host, start, 10*time.Second, 0)
		evicted := table.Join(&first, host, after(1)).Cleared
		for i := range hosttable.MaxEntries {
			begin(&table, fmt.Sprint(i), after(2), time.Minute, 0)
		}
		if between {
			assert.Zero(t, table.Join(&first, host, after(11)).Wait)
		}
		begin(&table, host, after(12), time.Minute, 0)
		r := table.Join(&first, host, after(12))
		assert.Equal(t, time.Minute, r.Wait)
		table.Join(&second, host, after(13))
		second.Leave()
		table.Clear(host, math.MaxUint64)
		assert.True(t, isClosed(r.Cleared))
		assert.False(t, isClosed(evicted))
		first.Leave()
	}
}

// Hazard H4: only the hosts that asked last are remembered.
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

// Hazard A8: hosts begin and end cool-downs concurrently. Afterward, the table works as
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
					r := table.Join(&w, key, now)
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
		r := table.Join(&w, key, after(10))
		assert.Equal(t, time.Second, r.Wait)
		table.Clear(key, math.MaxUint64)
		assert.Zero(t, table.Remaining(key, after(10)).Wait)
		assert.True(t, isClosed(r.Cleared))
	}
	assert.False(t, table.Active(host, after(11)))
	assert.Zero(t, generation(&table))
}

// A request allocates nothing here, whether or not its host is cooling down.
func TestAllocations(t *testing.T) {
	for _, cooling := range []string{host, other} {
		var table cooldown.Table
		begin(&table, cooling, start, time.Hour, time.Second)
		// On 386, a Quiet on the stack would escape to the atomic functions.
		quiet := new(cooldown.Quiet)
		assert.Zero(t, testing.AllocsPerRun(1000, func() {
			table.Generation(host, quiet)
			table.Active(host, start)
		}), cooling)
	}
}
