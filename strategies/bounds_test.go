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
	var ks []int
	for k := range 131 {
		ks = append(ks, k)
	}
	return append(ks, 1000, 1001, 1022, 1023, 1024, 1025, 1026, math.MaxInt32, math.MaxInt)
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
	// capped returns min(c, x) for a k that is small enough to compute x, else
	// c.
	capped := func(x *big.Int, c time.Duration) float64 {
		if x.Cmp(big.NewInt(int64(c))) > 0 {
			x = big.NewInt(int64(c))
		}
		f, _ := new(big.Float).SetInt(x).Float64()
		return f
	}
	forExtremes(func(b, c time.Duration) {
		for _, k := range retries() {
			at := func(s strategies.Strategy) time.Duration { return strategies.StartAt(s, k)() }
			base := big.NewInt(int64(b))

			double := at(strategies.Exponential{Base: b, Max: c})
			want := c
			if x := new(big.Int).Lsh(base, uint(min(k, 200))); x.Cmp(big.NewInt(int64(c))) < 0 {
				want = time.Duration(x.Int64())
			}
			require.Equal(t, want, double, "%v doubled %d times, capped at %v", b, k, c)

			triple := at(strategies.Exponential{Base: b, Factor: 3, Max: c})
			pow := new(big.Int).Exp(big.NewInt(3), big.NewInt(int64(min(k, 200))), nil)
			require.InEpsilon(t, capped(pow.Mul(pow, base), c), float64(triple), 1e-13,
				"%v tripled %d times, capped at %v", b, k, c)
			require.LessOrEqual(t, triple, c)

			linear := at(strategies.Linear{Base: b, Max: c})
			times := new(big.Int).Add(big.NewInt(int64(k)), big.NewInt(1))
			require.InEpsilon(t, capped(times.Mul(times, base), c), float64(linear), 1e-13,
				"%v times %d, capped at %v", b, k, c)
			require.LessOrEqual(t, linear, c)
		}
	})
}

func TestRandomWaitsNeverOverflow(t *testing.T) {
	forExtremes(func(b, c time.Duration) {
		floor := min(b, c)
		for _, u := range []float64{0, 0.5, belowOne} {
			r := always(u)
			check := func(w, lo, hi time.Duration, what string, k int) {
				t.Helper()
				if w < lo || w > hi {
					t.Fatalf("%s: Base %v, Max %v, k %d, u %v: %v is not in [%v, %v]", what, b, c,
						k, u, w, lo, hi)
				}
			}
			for _, k := range retries() {
				exponential := startAt{strategies.Exponential{Base: b, Max: c}, k}
				check(strategies.StartAt(strategies.FullJitter{Base: b, Max: c, Rand: r}, k)(), 0,
					c, "FullJitter", k)
				check(strategies.StartAt(strategies.EqualJitter{Base: b, Max: c, Rand: r}, k)(),
					floor-floor/2, c, "EqualJitter", k)
				check(
					strategies.StartAt(strategies.DecorrelatedV2{Median: b, Max: c, Rand: r}, k)(),
					0, c, "DecorrelatedV2", k)
				check(strategies.Jitter{Of: exponential, Rand: r}.Start()(), 0, c, "Jitter", k)
				check(strategies.Jitter{Of: exponential, Fraction: 1e-9, Rand: r}.Start()(),
					floor-floor/1e8, c, "Jitter", k)
				check(strategies.Spread{Of: exponential, Rand: r}.Start()(), floor/2,
					math.MaxInt64, "Spread", k)
				check(
					strategies.Capped{Of: strategies.Spread{Of: exponential, Rand: r},
						Max: c}.Start()(), 0, c, "Capped", k)
			}
			ceiling := strategies.Decorrelated{Base: b, Max: c, Rand: r}.Start()
			aws := strategies.AWSDecorrelated{Base: b, Max: c, Rand: r}.Start()
			v2 := strategies.DecorrelatedV2{Median: b, Max: c, Rand: r}.Start()
			for k := range 1100 {
				check(ceiling(), floor, c, "Decorrelated", k)
				check(aws(), floor, c, "AWSDecorrelated", k)
				check(v2(), 0, c, "DecorrelatedV2", k)
			}
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

// A wait that would be exactly Max is drawn below Max, too.
func TestDecorrelatedV2AtMax(t *testing.T) {
	s := strategies.DecorrelatedV2{Median: 1 << 60, Max: math.MaxInt64, Rand: always(0.5)}
	s.Max = s.Start()() // so long that it is not rounded
	assert.Equal(t, s.Max-s.Max/2+s.Max/4, s.Start()())
}

// The distance from Base to Max, as a float64, may be greater than the distance
// from Base to the longest duration.
func TestAWSDecorrelatedAtTheLongestDuration(t *testing.T) {
	s := strategies.AWSDecorrelated{Base: 1 << 62, Max: math.MaxInt64, Rand: always(0.5)}
	assert.Equal(t, time.Duration(math.MaxInt64), s.Start()())
}

// 1s<<55 is 0 in 64 bits, which would be a retry without a wait.
func TestWaitsDoNotVanish(t *testing.T) {
	for k := 50; k <= 70; k++ {
		for _, limit := range []time.Duration{30 * time.Second, math.MaxInt64} {
			assert.Equal(t, limit,
				strategies.StartAt(strategies.Exponential{Base: time.Second, Max: limit}, k)())
			assert.Equal(t, limit-limit/2,
				strategies.StartAt(
					strategies.EqualJitter{Base: time.Second, Max: limit, Rand: always(0)}, k)())
		}
	}
}

// TestIntervals shows the ends of each formula's interval, where the random
// number is 0 or almost 1.
func TestIntervals(t *testing.T) {
	const s = time.Second
	tests := map[string]struct {
		make func(r strategies.Rand) strategies.Strategy
		lo   []time.Duration
		hi   []time.Duration
	}{
		"FullJitter": {
			func(r strategies.Rand) strategies.Strategy {
				return strategies.FullJitter{Base: s, Max: 3 * s, Rand: r}
			},
			[]time.Duration{0, 0, 0, 0}, []time.Duration{s - 1, 2*s - 1, 3*s - 1, 3*s - 1},
		},
		"FullJitter, factor 3": {
			func(r strategies.Rand) strategies.Strategy {
				return strategies.FullJitter{Base: s, Factor: 3, Rand: r}
			},
			[]time.Duration{0, 0, 0, 0}, []time.Duration{s - 1, 3*s - 1, 9*s - 1, 27*s - 1},
		},
		"EqualJitter": {
			func(r strategies.Rand) strategies.Strategy {
				return strategies.EqualJitter{Base: s, Max: 3 * s, Rand: r}
			},
			[]time.Duration{s / 2, s, 3 * s / 2}, []time.Duration{s - 1, 2*s - 1, 3*s - 1},
		},
		"Decorrelated": {
			func(r strategies.Rand) strategies.Strategy {
				return strategies.Decorrelated{Base: s, Max: 20 * s, Rand: r}
			},
			[]time.Duration{s, s, s}, []time.Duration{3*s - 1, 9*s - 4, 20*s - 1, 20*s - 1},
		},
		"AWSDecorrelated": {
			func(r strategies.Rand) strategies.Strategy {
				return strategies.AWSDecorrelated{Base: s, Max: 20 * s, Rand: r}
			},
			[]time.Duration{s, s, s}, []time.Duration{3*s - 1, 9*s - 4, 20 * s, 20 * s},
		},
		"Jitter": {
			func(r strategies.Rand) strategies.Strategy {
				return strategies.Jitter{Of: strategies.Linear{Base: s}, Fraction: 0.2, Rand: r}
			},
			[]time.Duration{800 * ms, 1600 * ms}, []time.Duration{s - 1, 2*s - 1},
		},
		"Spread": {
			func(r strategies.Rand) strategies.Strategy {
				return strategies.Spread{Of: strategies.Linear{Base: s}, Fraction: 0.2, Rand: r}
			},
			[]time.Duration{800 * ms, 1600 * ms}, []time.Duration{1200*ms - 1, 2400*ms - 1},
		},
		"Spread, all": {
			func(r strategies.Rand) strategies.Strategy {
				return strategies.Spread{Of: strategies.Linear{Base: s}, Fraction: 1, Rand: r}
			},
			[]time.Duration{0, 0}, []time.Duration{2*s - 1, 4*s - 1},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.lo, strategies.Take(test.make(always(0)), len(test.lo)))
			assert.Equal(t, test.hi, strategies.Take(test.make(always(belowOne)), len(test.hi)))
		})
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
