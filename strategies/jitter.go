package strategies

import (
	"cmp"
	"errors"
	"time"
)

// FullJitter waits uniform(0, min(Max, Base·Factor^k)) before retry k, which counts from 0. The waits lie in [0, Max); the
// mean is half of what [Exponential] waits. Since the ceiling is applied before the draw, waits do not pile up at Max.
//
// It is the "full jitter" of Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. It spreads
// clients wide and makes few calls; its price is that one retry in ten waits less than a tenth of the ceiling.
type FullJitter struct {
	Base   time.Duration // the ceiling of the first wait; 0: 100ms
	Factor float64       // the ratio of one ceiling to the one before, 1 or more; 0: 2
	Max    time.Duration // the highest ceiling; 0: 30s
	Rand   Rand          // nil: the shared source of math/rand/v2
}

// Start implements [Strategy].
func (s FullJitter) Start() Sequence {
	return s.from(0)
}

func (s FullJitter) from(k int) Sequence {
	g := newGrowth(s.Base, s.Factor, s.Max)
	r := s.Rand
	n := counter(k)
	return func() time.Duration {
		return uniform(0, g.at(n.next()), r.draw())
	}
}

// Validate reports negative durations, a Factor below 1 or not finite, and a Max below Base.
func (s FullJitter) Validate() error {
	return validateGrowth("FullJitter", s.Base, s.Factor, s.Max)
}

// EqualJitter waits w/2 + uniform(0, w/2) before retry k, which counts from 0, w being min(Max, Base·Factor^k). The waits lie
// in [Base/2, Max); the mean is three quarters of what [Exponential] waits. Since the ceiling is applied before the
// draw, waits do not pile up at Max.
//
// It is the "equal jitter" of Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015: for those who
// would rather have a tighter crowd than a wait near 0.
type EqualJitter struct {
	Base   time.Duration // the ceiling of the first wait; 0: 100ms
	Factor float64       // the ratio of one ceiling to the one before, 1 or more; 0: 2
	Max    time.Duration // the highest ceiling; 0: 30s
	Rand   Rand          // nil: the shared source of math/rand/v2
}

// Start implements [Strategy].
func (s EqualJitter) Start() Sequence {
	return s.from(0)
}

func (s EqualJitter) from(k int) Sequence {
	g := newGrowth(s.Base, s.Factor, s.Max)
	r := s.Rand
	n := counter(k)
	return func() time.Duration {
		w := g.at(n.next())
		return uniform(upperHalf(w), w, r.draw())
	}
}

// Validate reports negative durations, a Factor below 1 or not finite, and a Max below Base.
func (s EqualJitter) Validate() error {
	return validateGrowth("EqualJitter", s.Base, s.Factor, s.Max)
}

// upperHalf is where the upper half of [0, w] begins. It rounds up, so that a wait of 1ns does not become none.
func upperHalf(w time.Duration) time.Duration {
	return w - w/2
}

// Decorrelated waits uniform(Base, min(Max, 3·p)) before each retry, p being the wait before that, and Base for the first.
// The waits lie in [Base, Max). They grow by half on average until 3·p reaches Max; from then on they are uniform over
// the whole of [Base, Max). Since the ceiling is applied before the draw, waits do not pile up at Max.
//
// It is what AwsDecorrelatedJitterBackoff of Polly.Contrib.WaitAndRetry computes. [AWSDecorrelated] is the formula that
// it is named after. A Max of less than a few Base leaves little room for chance, a Max equal to Base none.
type Decorrelated struct {
	Base time.Duration // the shortest wait; 0: 100ms
	Max  time.Duration // the highest ceiling; 0: 30s
	Rand Rand          // nil: the shared source of math/rand/v2
}

// Start implements [Strategy].
func (s Decorrelated) Start() Sequence {
	limit := max(0, cmp.Or(s.Max, defaultMax))
	base := min(max(0, cmp.Or(s.Base, defaultBase)), limit)
	r := s.Rand
	prev := base
	return func() time.Duration {
		ceiling := limit
		if prev <= limit/3 { // the product of a longer one could overflow
			ceiling = 3 * prev
		}
		prev = uniform(base, ceiling, r.draw())
		return prev
	}
}

// Validate reports negative durations and a Max below Base.
func (s Decorrelated) Validate() error {
	return errors.Join(
		validateNotNegative("Decorrelated.Base", s.Base),
		validateMax("Decorrelated", "Base", s.Base, defaultBase, s.Max),
	)
}

// AWSDecorrelated waits min(Max, uniform(Base, 3·p)) before each retry, p being the wait before that, and Base for the first.
// The waits lie in [Base, Max]. Below Max the mean of wait k, counted from 0, is Base·(2·1.5^(k+1) − 1).
//
// It is the "decorrelated jitter" of Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015, exactly as
// published. Since the ceiling is applied after the draw, waits pile up at Max: with a Base of 1s and a Max of 30s 38 of
// 100 waits end up there. A Max below 3·Base does so with the first wait, and brings that part of a crowd back at the
// same moment. [Decorrelated] does not have this flaw.
type AWSDecorrelated struct {
	Base time.Duration // the shortest wait; 0: 100ms
	Max  time.Duration // the longest wait; 0: 30s
	Rand Rand          // nil: the shared source of math/rand/v2
}

// Start implements [Strategy].
func (s AWSDecorrelated) Start() Sequence {
	limit := max(0, cmp.Or(s.Max, defaultMax))
	base := min(max(0, cmp.Or(s.Base, defaultBase)), limit)
	r := s.Rand
	prev := base
	return func() time.Duration {
		// In floating point, where 3·prev cannot overflow.
		above := r.draw() * (3*float64(prev) - float64(base))
		if above >= float64(limit-base) {
			prev = limit
		} else {
			prev = base + time.Duration(above)
		}
		return prev
	}
}

// Validate reports negative durations and a Max below Base.
func (s AWSDecorrelated) Validate() error {
	return errors.Join(
		validateNotNegative("AWSDecorrelated.Base", s.Base),
		validateMax("AWSDecorrelated", "Base", s.Base, defaultBase, s.Max),
	)
}
