package strategies_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/strategies"
)

const ms = time.Millisecond

// milli converts the milliseconds of a table to waits.
func milli(waits ...time.Duration) []time.Duration {
	for i := range waits {
		waits[i] *= ms
	}
	return waits
}

// lazy is a strategy of another package. It has no Validate, and its waits may
// be negative.
type lazy struct{ waits []time.Duration }

func (l lazy) Start() strategies.Sequence {
	i := -1
	return func() time.Duration {
		i++
		return l.waits[i%len(l.waits)]
	}
}

// startAt starts within a sequence, for strategies that count retries.
type startAt struct {
	s strategies.Strategy
	k int
}

func (a startAt) Start() strategies.Sequence { return strategies.StartAt(a.s, a.k) }

func TestFunc(t *testing.T) {
	var retries []int
	f := strategies.Func(func(retry int) time.Duration {
		retries = append(retries, retry)
		return time.Duration(retry-1) * ms
	})
	assert.Equal(t, milli(0, 0, 1, 2), strategies.Take(f, 4), "a negative wait counts as 0")
	assert.Equal(t, milli(0, 0), strategies.Take(f, 2), "each sequence counts anew")
	strategies.Take(startAt{f, math.MaxInt - 1}, 3)
	assert.Equal(t, []int{0, 1, 2, 3, 0, 1, math.MaxInt - 1, math.MaxInt, math.MaxInt}, retries)
	assert.Equal(t, milli(0, 0, 0), strategies.Take(strategies.Func(nil), 3))
}

func TestTake(t *testing.T) {
	s := lazy{milli(3, -1, 2)}
	assert.Equal(t, milli(3, 0, 2, 3), strategies.Take(s, 4))
	assert.Equal(t, []time.Duration{}, strategies.Take(s, 0))
	assert.PanicsWithValue(t, "strategies: Take: negative number of waits",
		func() { strategies.Take(s, -1) })
}

// Capped and FastFirst are missing, because their defaults use the shared source:
// see TestDefaultOfIsDecorrelatedV2.
func TestZeroFieldsMeanTheDefaults(t *testing.T) {
	const base, median, limit = 100 * time.Millisecond, 500 * time.Millisecond, 30 * time.Second
	exponential := strategies.Exponential{Base: base, Factor: 2, Max: limit}
	r := func() strategies.Rand { return strategies.Seeded(1) }
	for _, tt := range []struct{ zero, same strategies.Strategy }{
		{strategies.Constant{}, strategies.Constant{Wait: 0}},
		{strategies.Linear{}, strategies.Linear{Base: base, Factor: 1, Max: limit}},
		{strategies.Exponential{}, exponential},
		{strategies.FullJitter{Rand: r()},
			strategies.FullJitter{Base: base, Factor: 2, Max: limit, Rand: r()}},
		{strategies.EqualJitter{Rand: r()},
			strategies.EqualJitter{Base: base, Factor: 2, Max: limit, Rand: r()}},
		{strategies.Decorrelated{Rand: r()},
			strategies.Decorrelated{Base: base, Max: limit, Rand: r()}},
		{strategies.AWSDecorrelated{Rand: r()},
			strategies.AWSDecorrelated{Base: base, Max: limit, Rand: r()}},
		{strategies.DecorrelatedV2{Rand: r()},
			strategies.DecorrelatedV2{Median: median, Max: limit, Rand: r()}},
		{strategies.Jitter{Rand: r()},
			strategies.Jitter{Of: exponential, Fraction: 1, Rand: r()}},
		{strategies.Spread{Rand: r()},
			strategies.Spread{Of: exponential, Fraction: 0.25, Rand: r()}},
	} {
		assert.NoError(t, strategies.Validate(tt.zero), "%T", tt.zero)
		assert.NoError(t, strategies.Validate(tt.same), "%T", tt.zero)
		// Enough waits to reach Max. Linear needs 300.
		assert.Equal(t, strategies.Take(tt.same, 400), strategies.Take(tt.zero, 400), "%T", tt.zero)
	}
}

// The zero Capped and FastFirst use the shared source, so their waits show
// which strategy the default is.
func TestDefaultOfIsDecorrelatedV2(t *testing.T) {
	assert.NoError(t, strategies.Validate(strategies.Capped{}))
	assert.NoError(t, strategies.Validate(strategies.FastFirst{}))
	laws, _ := v2Laws(0.5*second, 30*second, 8)
	capped := collect(10_000, 8, eachOf(strategies.Capped{}))
	assert.NoError(t, sample{capped, laws, nil}.against("bound", "ks"))
	fast := collect(10_000, 9, eachOf(strategies.FastFirst{}))
	assert.NoError(t, sample{fast[1:], laws, nil}.against("bound", "ks"))
	assert.Less(t, laws[0].sup(), 1.3773*0.5*second, "as documented")
}

func TestSequencesDoNotShareState(t *testing.T) {
	all := []strategies.Strategy{
		strategies.Linear{},
		strategies.Exponential{},
		strategies.FastFirst{Of: strategies.Exponential{}},
		strategies.Func(func(retry int) time.Duration { return time.Duration(retry) }),
	}
	for _, m := range models {
		all = append(all, m.make(time.Second, 30*time.Second, always(0.7)))
	}
	for _, s := range all {
		want := strategies.Take(s, 6)
		a, b := s.Start(), s.Start()
		for k := range 6 {
			if k >= 3 {
				assert.Equal(t, want[k-3], b(), "%#v", s)
			}
			assert.Equal(t, want[k], a(), "%#v", s)
		}
	}
}

func TestStrategiesArePlainValues(t *testing.T) {
	capped := func() strategies.Strategy {
		return strategies.Capped{Of: strategies.Exponential{Base: ms}, Max: ms}
	}
	assert.True(t, capped() == capped())
	assert.Equal(t, "{Of:{Base:1ms Factor:0 Max:0s} Max:1ms}", fmt.Sprintf("%+v", capped()))
	assert.Equal(t, "{Median:1s Max:0s Rand:<nil>}",
		fmt.Sprintf("%+v", strategies.DecorrelatedV2{Median: time.Second}))
}
