package strategies

import (
	"cmp"
	"errors"
	"time"
)

// FullJitter waits uniform(0, min(Max, Base·Factor^k)) before retry k, which
// counts from 0. The waits are in [0, Max). Their mean is half of the wait of
// [Exponential]. Max is applied before the random number is drawn, so waits do
// not accumulate at Max.
//
// It is the "full jitter" of Marc Brooker, "Exponential Backoff And Jitter",
// AWS Architecture Blog, 2015. It spreads clients widely and makes few calls,
// but one retry in ten waits for less than a tenth of its maximum.
type FullJitter struct {
	Base   time.Duration // the maximum of the first wait; 0: 100ms
	Factor float64       // the ratio of one maximum to the one before, 1 or more; 0: 2
	Max    time.Duration // the maximum of all waits; 0: 30s
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

// Validate reports durations below a millisecond that are not 0, a Factor below
// 1 or not finite, and a Max below Base.
func (s FullJitter) Validate() error {
	return validateGrowth("FullJitter", s.Base, s.Factor, s.Max)
}

// EqualJitter waits w/2 + uniform(0, w/2) before retry k, which counts from 0,
// where w is min(Max, Base·Factor^k). The waits are in [Base/2, Max). Their
// mean is three quarters of the wait of [Exponential]. Max is applied before
// the random number is drawn, so waits do not accumulate at Max.
//
// It is the "equal jitter" of Marc Brooker, "Exponential Backoff And Jitter",
// AWS Architecture Blog, 2015. It has no waits near 0, but it spreads clients
// less than FullJitter does.
type EqualJitter struct {
	Base   time.Duration // the maximum of the first wait; 0: 100ms
	Factor float64       // the ratio of one maximum to the one before, 1 or more; 0: 2
	Max    time.Duration // the maximum of all waits; 0: 30s
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

// Validate reports durations below a millisecond that are not 0, a Factor below
// 1 or not finite, and a Max below Base.
func (s EqualJitter) Validate() error {
	return validateGrowth("EqualJitter", s.Base, s.Factor, s.Max)
}

// upperHalf returns the start of the upper half of [0, w]. It rounds up, so
// that a wait of 1ns does not become 0.
func upperHalf(w time.Duration) time.Duration {
	return w - w/2
}

// Decorrelated waits uniform(Base, min(Max, 3·p)) before each retry, where p is
// the wait before that, and Base for the first. The waits are in [Base, Max).
// They grow by half on average until 3·p reaches Max; from then on they are
// uniform in [Base, Max). Max is applied before the random number is drawn, so
// waits do not accumulate at Max.
//
// It is AwsDecorrelatedJitterBackoff of Polly.Contrib.WaitAndRetry, which is
// named after the formula of [AWSDecorrelated]. A Max of a few Base leaves
// little room for randomness. A Max equal to Base leaves none.
type Decorrelated struct {
	Base time.Duration // the shortest wait; 0: 100ms
	Max  time.Duration // the maximum of all waits; 0: 30s
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
		// Otherwise the product could overflow.
		if prev <= limit/3 {
			ceiling = 3 * prev
		}
		prev = uniform(base, ceiling, r.draw())
		return prev
	}
}

// Validate reports durations below a millisecond that are not 0, and a Max
// below Base.
func (s Decorrelated) Validate() error {
	return errors.Join(
		validateDuration("Decorrelated.Base", s.Base, byDefault(defaultBase)),
		validateMax("Decorrelated", "Base", s.Base, defaultBase, s.Max),
	)
}

// AWSDecorrelated is for comparison with other implementations; use
// [Decorrelated] instead. It waits min(Max, uniform(Base, 3·p)) before each
// retry, where p is the wait before that, and Base for the first. The waits are
// in [Base, Max]. Below Max the mean of wait k, counted from 0, is
// Base·(2·1.5^(k+1) − 1).
//
// It is the "decorrelated jitter" of Marc Brooker, "Exponential Backoff And
// Jitter", AWS Architecture Blog, 2015, exactly as published. Max is applied
// after the random number is drawn, so waits accumulate at Max. With a Base of
// 1s and a Max of 30s, 38 of 100 waits are exactly 30s. With a Max below 3·Base
// that happens from the first wait on, and those clients retry at the same
// moment.
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

// Validate reports durations below a millisecond that are not 0, and a Max
// below Base.
func (s AWSDecorrelated) Validate() error {
	return errors.Join(
		validateDuration("AWSDecorrelated.Base", s.Base, byDefault(defaultBase)),
		validateMax("AWSDecorrelated", "Base", s.Base, defaultBase, s.Max),
	)
}
