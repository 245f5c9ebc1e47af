package strategies_test

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/strategies"
)

const belowOne = 1 - 1.0/(1<<53)

func always(u float64) strategies.Rand {
	return func() float64 { return u }
}

// retries returns numbers at which shifts, products or powers overflow.
func retries() []int {
	ks := []int{1000, 1001, 1022, 1023, 1024, 1025, 1026, math.MaxInt32, math.MaxInt}
	for k := range 131 {
		ks = append(ks, k)
	}
	return ks
}

// forExtremes calls f for bases and maxima from a nanosecond to the longest
// duration.
func forExtremes(f func(b, c time.Duration)) {
	for _, b := range []time.Duration{
		1, ms, 100 * ms, time.Second, 30 * time.Second, time.Hour, math.MaxInt64} {
		twice := time.Duration(math.MaxInt64)
		if b < math.MaxInt64/2 {
			twice = 2 * b
		}
		for _, c := range []time.Duration{b, twice, 30 * time.Second, time.Hour, math.MaxInt64} {
			f(b, c)
		}
	}
}

// Hazard K5.
func TestDeterministicWaitsAreExactAndNeverOverflow(t *testing.T) {
	forExtremes(func(b, c time.Duration) {
		for _, k := range retries() {
			base := big.NewInt(int64(b))
			few := big.NewInt(int64(min(k, 200))) // 2^200 is above any c
			power := func(factor int64) *big.Int {
				x := new(big.Int).Exp(big.NewInt(factor), few, nil)
				return x.Mul(x, base)
			}
			times := new(big.Int).Add(big.NewInt(int64(k)), big.NewInt(1))
			for _, tt := range []struct {
				s     strategies.Strategy
				wait  *big.Int
				exact bool
			}{
				{strategies.Exponential{Base: b, Max: c}, power(2), true},
				{strategies.Exponential{Base: b, Factor: 3, Max: c}, power(3), false},
				{strategies.Linear{Base: b, Max: c}, times.Mul(times, base), false},
			} {
				want, got := c, strategies.StartAt(tt.s, k)()
				if tt.wait.Cmp(big.NewInt(int64(c))) < 0 {
					want = time.Duration(tt.wait.Int64())
				}
				if tt.exact {
					require.Equal(t, want, got, "%+v, wait %d", tt.s, k)
				}
				require.InEpsilon(t, want, got, 1e-13, "%+v, wait %d", tt.s, k)
				require.LessOrEqual(t, got, c, "%+v, wait %d", tt.s, k)
			}
		}
	})
}

func TestRandomWaitsNeverOverflow(t *testing.T) {
	type bounds struct {
		s      strategies.Strategy
		lo, hi time.Duration
	}
	forExtremes(func(b, c time.Duration) {
		floor := min(b, c)
		for _, u := range []float64{0, 0.5, belowOne} {
			r := always(u)
			v2 := strategies.DecorrelatedV2{Median: b, Max: c, Rand: r}
			check := func(of bounds, waits, k int) {
				t.Helper()
				next := of.s.Start()
				for i := range waits {
					if w := next(); w < of.lo || w > of.hi {
						t.Fatalf("%+v, u %v: wait %d is %v, not in [%v, %v]",
							of.s, u, k+i, w, of.lo, of.hi)
					}
				}
			}
			for _, k := range retries() {
				exponential := startAt{strategies.Exponential{Base: b, Max: c}, k}
				spread := strategies.Spread{Of: exponential, Rand: r}
				for _, of := range []bounds{
					{startAt{strategies.FullJitter{Base: b, Max: c, Rand: r}, k}, 0, c},
					{startAt{strategies.EqualJitter{Base: b, Max: c, Rand: r}, k},
						floor - floor/2, c},
					{startAt{v2, k}, 0, c},
					{strategies.Jitter{Of: exponential, Rand: r}, 0, c},
					{strategies.Jitter{Of: exponential, Fraction: 1e-9, Rand: r},
						floor - floor/1e8, c},
					{spread, floor / 2, math.MaxInt64},
					{strategies.Capped{Of: spread, Max: c}, 0, c},
				} {
					check(of, 1, k)
				}
			}
			check(bounds{strategies.Decorrelated{Base: b, Max: c, Rand: r}, floor, c}, 1100, 0)
			check(bounds{strategies.AWSDecorrelated{Base: b, Max: c, Rand: r}, floor, c}, 1100, 0)
			check(bounds{v2, 0, c}, 1100, 0)
		}
	})
}

// The ceiling of Decorrelated is exactly three times the wait before, also just
// below Max.
func TestDecorrelatedJustBelowMax(t *testing.T) {
	// the longest in [1, 3)
	for limit, want := range map[time.Duration]time.Duration{3: 2, 4: 2, 5: 2} {
		assert.Equal(t, want,
			strategies.Decorrelated{Base: 1, Max: limit, Rand: always(belowOne)}.Start()(), limit)
	}
}

// The distance from Base to Max, as a float64, may be greater than the distance
// from Base to the longest duration.
func TestAWSDecorrelatedAtTheLongestDuration(t *testing.T) {
	s := strategies.AWSDecorrelated{Base: 1 << 62, Max: math.MaxInt64, Rand: always(0.5)}
	assert.Equal(t, time.Duration(math.MaxInt64), s.Start()())
}

// TestIntervals shows the ends of each formula's interval, where the random
// number is 0 or almost 1.
func TestIntervals(t *testing.T) {
	const s = time.Second
	var u float64
	r := func() float64 { return u }
	linear := strategies.Linear{Base: s}
	for _, tt := range []struct {
		s      strategies.Strategy
		lo, hi []time.Duration
	}{
		{strategies.FullJitter{Base: s, Max: 3 * s, Rand: r},
			milli(0, 0, 0, 0), []time.Duration{s - 1, 2*s - 1, 3*s - 1, 3*s - 1}},
		{strategies.FullJitter{Base: s, Factor: 3, Rand: r},
			milli(0, 0, 0, 0), []time.Duration{s - 1, 3*s - 1, 9*s - 1, 27*s - 1}},
		{strategies.EqualJitter{Base: s, Max: 3 * s, Rand: r},
			milli(500, 1000, 1500), []time.Duration{s - 1, 2*s - 1, 3*s - 1}},
		{strategies.Decorrelated{Base: s, Max: 20 * s, Rand: r},
			milli(1000, 1000), []time.Duration{3*s - 1, 9*s - 4, 20*s - 1, 20*s - 1}},
		{strategies.AWSDecorrelated{Base: s, Max: 20 * s, Rand: r},
			milli(1000, 1000), []time.Duration{3*s - 1, 9*s - 4, 20 * s, 20 * s}},
		{strategies.Jitter{Of: linear, Fraction: 0.2, Rand: r},
			milli(800, 1600), []time.Duration{s - 1, 2*s - 1}},
		{strategies.Spread{Of: linear, Fraction: 0.2, Rand: r},
			milli(800, 1600), []time.Duration{1200*ms - 1, 2400*ms - 1}},
		{strategies.Spread{Of: linear, Fraction: 1, Rand: r},
			milli(0, 0), []time.Duration{2*s - 1, 4*s - 1}},
	} {
		u = 0
		assert.Equal(t, tt.lo, strategies.Take(tt.s, len(tt.lo)), "%T", tt.s)
		u = belowOne
		assert.Equal(t, tt.hi, strategies.Take(tt.s, len(tt.hi)), "%T", tt.s)
	}
}

// A wait above Max is drawn again, with another random number, between half of
// Max and Max.
func TestDecorrelatedV2RedrawsAtTheCap(t *testing.T) {
	numbers := []float64{0.5, 0.25} // the first puts the wait at 0.897s
	r := func() float64 {
		u := numbers[0]
		numbers = append(numbers[1:], u)
		return u
	}
	// invalid, but shows it at once
	low := strategies.DecorrelatedV2{Median: time.Second, Max: 800 * ms, Rand: r}
	assert.Equal(t, 500*ms, low.Start()())

	// Max itself is above the maximum. For numbers as large as this, every
	// float64 is a whole number, so a wait can equal Max exactly.
	far := strategies.DecorrelatedV2{Median: 1 << 58, Max: math.MaxInt64, Rand: always(0.5)}
	far.Max = far.Start()()
	assert.Equal(t, far.Max-far.Max/2+far.Max/4, far.Start()())

	// At the maximum, the waits stay in the upper half. The last window was
	// long before.
	s := strategies.DecorrelatedV2{Median: time.Second, Rand: source(1)}
	for _, k := range []int{20, 999, 1000, 1001, 1024, math.MaxInt} {
		next := strategies.StartAt(s, k)
		for range 1000 {
			w := next()
			require.True(t, 15*time.Second <= w && w < 30*time.Second, "k %d: %v", k, w)
		}
	}
}

// From retry 1001 on, only the second draw remains: one random number per wait,
// not two.
func TestDecorrelatedV2StopsComputing(t *testing.T) {
	draws := 0
	s := strategies.DecorrelatedV2{Rand: func() float64 { draws++; return 0.5 }}
	next := strategies.StartAt(s, 1000)
	for _, want := range []int{2, 3, 4} {
		assert.Equal(t, 22500*ms, next())
		assert.Equal(t, want, draws)
	}
}

// TestLongRun reads one sequence for a long time. The waits of DecorrelatedV2
// without a maximum stay in their windows until they exceed the longest
// duration.
func TestLongRun(t *testing.T) {
	t.Parallel()
	const b, c = time.Second, 30 * time.Second
	all := map[string]strategies.Strategy{
		"Constant":    strategies.Constant{Wait: c},
		"Linear":      strategies.Linear{Base: b},
		"Exponential": strategies.Exponential{Base: b},
		"FastFirst":   strategies.FastFirst{Of: strategies.Exponential{Base: b}},
	}
	for _, m := range models {
		all[m.name] = m.make(b, c, source(1))
	}
	for name, s := range all {
		limit := c
		if name == "Spread" {
			limit = c * 5 / 4
		}
		next := s.Start()
		for k := range 100_000 {
			if w := next(); w < 0 || w > limit {
				t.Fatalf("%s: wait %d is %v", name, k, w)
			}
		}
	}

	next := strategies.DecorrelatedV2{Median: b, Max: math.MaxInt64, Rand: source(1)}.Start()
	at := 0.0
	for k := range 2000 {
		w := float64(next())
		at += w
		switch lo, hi := second/1.4*soft(float64(k)), second/1.4*soft(float64(k+1)); {
		case k <= 31: // the longest wait that may be is 2^32.5·b/1.4
			require.True(t, lo*(1-1e-15)-float64(k+1) <= at && at <= hi*(1+1e-15),
				"retry %d at %v, not in [%v, %v)", k, at, lo, hi)
		case k >= 36:
			require.GreaterOrEqual(t, w, float64(math.MaxInt64/2), "wait %d", k)
		}
	}
}

func TestRandMayMisbehave(t *testing.T) {
	for _, m := range models {
		same := func(odd, sound float64) {
			t.Helper()
			assert.Equal(t,
				strategies.Take(m.make(time.Second, 30*time.Second, always(sound)), 10),
				strategies.Take(m.make(time.Second, 30*time.Second, always(odd)), 10),
				"%s with %v", m.name, odd)
		}
		for _, u := range []float64{
			math.NaN(), -1, -math.MaxFloat64, math.Inf(-1), math.Copysign(0, -1)} {
			same(u, 0)
		}
		for _, u := range []float64{1, 2, math.MaxFloat64, math.Inf(1)} {
			same(u, belowOne)
		}
	}
}
