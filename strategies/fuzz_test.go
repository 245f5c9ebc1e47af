package strategies_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/seed421102f4/httpretry/strategies"
)

// FuzzWaits makes every strategy from the same fields, valid or not, and looks
// for waits outside [0, Max].
func FuzzWaits(f *testing.F) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, u := range []float64{0, 0.5, belowOne, 1, -1, nan, inf} {
		f.Add(int64(0), int64(0), 0.0, 0.0, u, 0)
		f.Add(int64(time.Second), int64(30*time.Second), 2.0, 0.5, u, 1000)
		f.Add(int64(1), int64(1), 1.0, 1.0, u, 1001)
		f.Add(int64(math.MaxInt64), int64(math.MaxInt64), 3.0, 1e-300, u, math.MaxInt)
		f.Add(int64(math.MinInt64), int64(math.MinInt64), -inf, -inf, u, math.MaxInt)
		f.Add(-int64(time.Second), int64(time.Second), 2.0, 0.5, u, 3)
		f.Add(int64(-1), int64(5), nan, nan, u, 3)
		f.Add(int64(time.Hour), int64(ms), inf, inf, u, 2)
		f.Add(int64(time.Hour), int64(-1), 0.5, 1.5, u, 1022)
		f.Add(int64(1), int64(math.MaxInt64), math.MaxFloat64, -0.5, u, 1)
		f.Add(int64(5), int64(math.MaxInt64), -3.0, math.SmallestNonzeroFloat64, u, 7)
	}
	f.Fuzz(func(t *testing.T, base, limit int64, factor, fraction, u float64, k int) {
		b, c, r, k := time.Duration(base), time.Duration(limit), always(u), max(0, k)
		bound := max(0, c)
		if c == 0 {
			bound = 30 * time.Second
		}
		raw := strategies.Func(func(int) time.Duration { return b })
		for _, s := range boundedBy(b, c, factor, fraction, r, k, raw) {
			for i, w := range unclamped(s, 12) {
				if w < 0 || w > bound {
					t.Errorf("%+v: wait %d is %v", s, i, w)
				}
			}
			checkErrorLines(t, s)
		}
		for _, s := range []strategies.Strategy{
			raw, startAt{raw, k}, strategies.Constant{Wait: b},
			strategies.Spread{Of: raw, Fraction: fraction, Rand: r},
		} {
			if w := s.Start()(); w < 0 {
				t.Errorf("%+v: %v", s, w)
			}
		}
		exponential := strategies.Exponential{Base: b, Factor: factor, Max: c}
		if exponential.Validate() != nil {
			return
		}
		least := exponential.Start()()
		for _, s := range []strategies.Strategy{
			startAt{exponential, k},
			strategies.Linear{Base: b, Factor: factor, Max: c},
			strategies.Decorrelated{Base: b, Max: c, Rand: r},
			strategies.AWSDecorrelated{Base: b, Max: c, Rand: r},
		} {
			if w := s.Start()(); w < least-least/1e15-1 {
				t.Errorf("%+v: %v is less than Base", s, w)
			}
		}
	})
}

// boundedBy returns strategies of all kinds whose longest wait is c. Those that
// count retries appear a second time, counting from k.
func boundedBy(
	b, c time.Duration, factor, fraction float64, r strategies.Rand, k int, raw strategies.Strategy,
) []strategies.Strategy {
	linear := strategies.Linear{Base: b, Factor: factor, Max: c}
	exponential := strategies.Exponential{Base: b, Factor: factor, Max: c}
	counting := []strategies.Strategy{
		linear, exponential,
		strategies.FullJitter{Base: b, Factor: factor, Max: c, Rand: r},
		strategies.EqualJitter{Base: b, Factor: factor, Max: c, Rand: r},
		strategies.DecorrelatedV2{Median: b, Max: c, Rand: r},
	}
	all := append([]strategies.Strategy{
		strategies.Decorrelated{Base: b, Max: c, Rand: r},
		strategies.AWSDecorrelated{Base: b, Max: c, Rand: r},
		strategies.Jitter{Of: exponential, Fraction: fraction, Rand: r},
		strategies.Capped{Of: strategies.Spread{Of: linear, Fraction: fraction, Rand: r}, Max: c},
		strategies.Capped{Of: strategies.Jitter{Of: raw, Fraction: fraction, Rand: r}, Max: c},
		strategies.Capped{Of: raw, Max: c},
		strategies.FastFirst{Of: exponential},
	}, counting...)
	for _, s := range counting {
		all = append(all, startAt{s, k})
	}
	return all
}

// unclamped returns the first n waits as they are. Take would hide negative
// ones.
func unclamped(s strategies.Strategy, n int) []time.Duration {
	waits, next := make([]time.Duration, n), s.Start()
	for i := range waits {
		waits[i] = next()
	}
	return waits
}

// checkErrorLines asserts that each line of an error names its field.
func checkErrorLines(t *testing.T, s strategies.Strategy) {
	t.Helper()
	err := strategies.Validate(s)
	if err == nil {
		return
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if field, _, ok := strings.Cut(line, ": "); !ok || !strings.Contains(field, ".") {
			t.Errorf("%+v: %q", s, line)
		}
	}
}
