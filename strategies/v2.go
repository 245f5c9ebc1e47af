package strategies

import (
	"cmp"
	"errors"
	"math"
	"time"
)

// DecorrelatedV2 spreads the retries of many clients smoothly over time. Before
// retry k, which counts from 0, it waits
//
//	Median/1.4 · (H(k + U_k) − H(k−1 + U_(k−1)))
//
// where each U_k is uniform in [0, 1), H(t) is 2^t · tanh(2·√t), and the second
// term is 0 for the first retry. The sum of the waits up to retry k is thus
// Median/1.4 · H(k + U_k):
//
//   - Each retry is in a time window of its own, independently of the retries
//     before.
//   - The windows follow one another without gaps or overlaps, and each is
//     about twice as long as the one before.
//   - The density of retries over time is continuous and has one maximum, just
//     before Median.
//
// A wait that would be Max or longer is drawn from uniform(Max/2, Max) instead,
// so that clients stay spread out. The waits are in [0, Max), and the first one
// is below 1.3773·Median. Consecutive waits are negatively correlated.
//
// Median is not exactly the median of the first wait, because the divisor 1.4
// is rounded. The true median is 0.897 of Median. The medians of the times from
// the first failure to the second, third and fourth retry are 1.990, 4.026 and
// 8.072 of Median, if attempts take no time and all waits are below Max.
//
// The formula is DecorrelatedJitterBackoffV2 of Polly.Contrib.WaitAndRetry, by
// George Polevoy. Polly v8 uses it for exponential backoff with jitter, too.
// There, waits have no maximum, or all waits above the maximum are equal.
type DecorrelatedV2 struct {
	Median time.Duration // roughly the median of the first wait; 0: 500ms
	Max    time.Duration // no wait is longer; 0: 30s
	Rand   Rand          // nil: the shared source of math/rand/v2
}

// lastV2 is the last retry whose wait is computed. From retry 64 on, all waits
// are longer than any Max. From 1024 on, H is infinite, and the difference of
// two of its values is NaN.
const lastV2 = 1000

// Start implements [Strategy].
func (s DecorrelatedV2) Start() Sequence {
	return s.from(0)
}

func (s DecorrelatedV2) from(k int) Sequence {
	scale := float64(cmp.Or(s.Median, defaultMedian)) / 1.4
	limit := max(0, cmp.Or(s.Max, defaultMax))
	r := s.Rand
	// One variable, so that the sequence costs one allocation.
	state := struct {
		n counter
		h float64 // H of the retry before
	}{n: counter(k)}
	return func() time.Duration {
		if k := state.n.next(); k <= lastV2 {
			before := state.h
			state.h = softExp(float64(k) + r.draw())
			if ns := scale * (state.h - before); ns < float64(limit) {
				return time.Duration(max(0, ns)) // below 0 only if Median is
			}
		}
		return uniform(upperHalf(limit), limit, r.draw())
	}
}

// softExp is H: exponential growth that starts softly, at 0.
func softExp(t float64) float64 {
	// The conversion forbids fusing the product with the subtraction, which
	// would round differently on other processors.
	return float64(math.Exp2(t) * math.Tanh(2*math.Sqrt(t)))
}

// Validate reports durations below a millisecond that are not 0, and a Max
// below Median.
func (s DecorrelatedV2) Validate() error {
	return errors.Join(
		validateDuration("DecorrelatedV2.Median", s.Median, byDefault(defaultMedian)),
		validateMax("DecorrelatedV2", "Median", s.Median, defaultMedian, s.Max),
	)
}
