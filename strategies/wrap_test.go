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
		of := strategies.Exponential{Base: 100 * ms, Factor: 1.7, Max: c}
		assert.Equal(t,
			strategies.Take(
				strategies.FullJitter{Base: 100 * ms, Factor: 1.7, Max: c, Rand: source(1)}, 60),
			strategies.Take(strategies.Jitter{Of: of, Rand: source(1)}, 60))

		equal := strategies.Take(
			strategies.EqualJitter{Base: 100 * ms, Factor: 1.7, Max: c, Rand: source(1)}, 60)
		for k, w := range strategies.Take(
			strategies.Jitter{Of: of, Fraction: 0.5, Rand: source(1)}, 60) {
			assert.InDelta(t, equal[k], w, max(1, 1e-15*float64(c)), "wait %d", k)
		}
	}
}

func TestFractionOutOfRangeIsNoReasonToLeaveTheInterval(t *testing.T) {
	of := strategies.Constant{Wait: time.Second}
	for _, f := range []float64{math.NaN(), -0.5, math.Inf(-1)} {
		assert.Equal(t, milli(1000),
			strategies.Take(strategies.Jitter{Of: of, Fraction: f, Rand: always(0.5)}, 1))
		assert.Equal(t, milli(1000),
			strategies.Take(strategies.Spread{Of: of, Fraction: f, Rand: always(0)}, 1))
	}
	for _, f := range []float64{1.5, math.Inf(1)} {
		assert.Equal(t, milli(250),
			strategies.Take(strategies.Jitter{Of: of, Fraction: f, Rand: always(0.25)}, 1))
		assert.Equal(t, milli(500),
			strategies.Take(strategies.Spread{Of: of, Fraction: f, Rand: always(0.25)}, 1))
	}
}

func TestSpreadSaturates(t *testing.T) {
	longest := strategies.Constant{Wait: math.MaxInt64}
	top := strategies.Take(
		strategies.Spread{Of: longest, Fraction: 1, Rand: always(belowOne)}, 1)[0]
	assert.InEpsilon(t, float64(math.MaxInt64), float64(top), 1e-15)
	assert.Equal(t, milli(0),
		strategies.Take(strategies.Spread{Of: longest, Fraction: 1, Rand: always(0)}, 1))
	// Without jitter, no wait is rounded.
	for _, s := range []strategies.Strategy{
		strategies.Jitter{Of: longest, Fraction: 1e-300, Rand: always(0.5)},
		strategies.Spread{Of: longest, Fraction: 1e-300, Rand: always(0.5)},
	} {
		assert.Equal(t, []time.Duration{math.MaxInt64}, unclamped(s, 1))
	}
}

func TestCapped(t *testing.T) {
	linear := strategies.Linear{Base: 100 * ms}
	assert.Equal(t, milli(100, 200, 250, 250),
		strategies.Take(strategies.Capped{Of: linear, Max: 250 * ms}, 4))
	assert.Equal(t, milli(30_000),
		strategies.Take(strategies.Capped{Of: strategies.Constant{Wait: time.Minute}}, 1))
	assert.Equal(t, milli(0), unclamped(strategies.Capped{Of: linear, Max: -1}, 1))
}

func TestFastFirst(t *testing.T) {
	assert.Equal(t, milli(0, 100, 200, 400),
		strategies.Take(strategies.FastFirst{Of: strategies.Exponential{}}, 4))
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
	for name, s := range map[string]strategies.Strategy{
		"Jitter":    strategies.Jitter{Of: of, Fraction: 1e-300, Rand: r},
		"Spread":    strategies.Spread{Of: of, Rand: r},
		"Capped":    strategies.Capped{Of: of},
		"FastFirst": strategies.FastFirst{Of: of},
	} {
		next := s.Start()
		if name == "FastFirst" {
			next()
		}
		for _, want := range milli(0, 1000, 0) {
			assert.Equal(t, want, next(), name)
		}
	}
}
