package strategies_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/strategies"
)

func TestJitterIsTheGeneralFormOfFullAndEqualJitter(t *testing.T) {
	for _, c := range []time.Duration{7 * time.Second, math.MaxInt64 / 8} {
		const b, f = 100 * ms, 1.7
		of := strategies.Exponential{Base: b, Factor: f, Max: c}
		full := strategies.FullJitter{Base: b, Factor: f, Max: c, Rand: source(1)}
		equal := strategies.EqualJitter{Base: b, Factor: f, Max: c, Rand: source(1)}
		half := strategies.Jitter{Of: of, Fraction: 0.5, Rand: source(1)}
		assert.Equal(t, strategies.Take(full, 60),
			strategies.Take(strategies.Jitter{Of: of, Rand: source(1)}, 60))
		want := strategies.Take(equal, 60)
		for k, w := range strategies.Take(half, 60) {
			assert.InDelta(t, want[k], w, max(1, 1e-15*float64(c)), "wait %d", k)
		}
	}
}

func TestFractionOutOfRangeIsNoReasonToLeaveTheInterval(t *testing.T) {
	for _, tt := range []struct {
		fraction       float64
		jitter, spread time.Duration // where a quarter is drawn
	}{
		{math.NaN(), 1000 * ms, 1000 * ms},
		{-0.5, 1000 * ms, 1000 * ms},
		{math.Inf(-1), 1000 * ms, 1000 * ms},
		{1.5, 250 * ms, 500 * ms},
		{math.Inf(1), 250 * ms, 500 * ms},
	} {
		of, r := strategies.Constant{Wait: time.Second}, always(0.25)
		jitter := strategies.Jitter{Of: of, Fraction: tt.fraction, Rand: r}
		spread := strategies.Spread{Of: of, Fraction: tt.fraction, Rand: r}
		assert.Equal(t, tt.jitter, jitter.Start()(), "%v", tt.fraction)
		assert.Equal(t, tt.spread, spread.Start()(), "%v", tt.fraction)
	}
}

func TestSpreadSaturates(t *testing.T) {
	longest := strategies.Constant{Wait: math.MaxInt64}
	spread := func(u float64) time.Duration {
		return strategies.Spread{Of: longest, Fraction: 1, Rand: always(u)}.Start()()
	}
	assert.InEpsilon(t, time.Duration(math.MaxInt64), spread(belowOne), 1e-15)
	assert.Zero(t, spread(0))
	// Without jitter, no wait is rounded.
	for _, s := range []strategies.Strategy{
		strategies.Jitter{Of: longest, Fraction: 1e-300, Rand: always(0.5)},
		strategies.Spread{Of: longest, Fraction: 1e-300, Rand: always(0.5)},
	} {
		assert.Equal(t, time.Duration(math.MaxInt64), s.Start()())
	}
}

func TestCapped(t *testing.T) {
	minute := strategies.Constant{Wait: time.Minute}
	for limit, want := range map[time.Duration]time.Duration{0: 30 * time.Second, -1: 0,
		time.Minute - 1: time.Minute - 1, time.Minute + 1: time.Minute} {
		assert.Equal(t, want, strategies.Capped{Of: minute, Max: limit}.Start()(), "%v", limit)
	}
}

func TestFastFirst(t *testing.T) {
	for _, m := range models {
		of := func() strategies.Strategy { return m.make(time.Second, 30*time.Second, source(1)) }
		waits := strategies.Take(strategies.FastFirst{Of: of()}, 10)
		assert.Zero(t, waits[0], m.name)
		assert.Equal(t, strategies.Take(of(), 9), waits[1:], "%s from its start", m.name)
	}
}

func TestNegativeWaitsOfOthersCountAsZero(t *testing.T) {
	of := lazy{[]time.Duration{-time.Second, time.Second, math.MinInt64}}
	r := always(0.5)
	for _, s := range []strategies.Strategy{
		strategies.Jitter{Of: of, Fraction: 1e-300, Rand: r},
		strategies.Spread{Of: of, Rand: r},
		strategies.Capped{Of: of},
	} {
		assert.Equal(t, milli(0, 1000, 0), unclamped(s, 3), "%T", s)
	}
	assert.Equal(t, milli(0, 0, 1000, 0), unclamped(strategies.FastFirst{Of: of}, 4))
}
