package strategies

import (
	"cmp"
	"errors"
	"math"
	"time"
)

// Constant waits the same time before every retry. All clients that failed at
// the same moment retry at the same moment, each time.
type Constant struct {
	Wait time.Duration // 0: no wait
}

// Start implements [Strategy].
func (s Constant) Start() Sequence {
	wait := max(0, s.Wait)
	return func() time.Duration {
		return wait
	}
}

// Validate reports a Wait below a millisecond that is not 0.
func (s Constant) Validate() error {
	return validateDuration("Constant.Wait", s.Wait, "no wait")
}

// Linear waits min(Max, Base·(1 + Factor·k)) before retry k, which counts from
// 0. With the defaults the waits are 100ms, 200ms, 300ms and so on, and with a
// Factor of 2 they are 100ms, 300ms, 500ms. The waits are in [Base, Max]. They
// are not random; use [Jitter] or [Spread] to make them so.
//
// It is LinearBackoff of Polly.Contrib.WaitAndRetry, with a maximum.
type Linear struct {
	Base time.Duration // the first wait; 0: 100ms
	// by how much of Base each wait exceeds the one before; 0: 1 (for no growth
	// use Constant)
	Factor float64
	Max    time.Duration // the longest wait; 0: 30s
}

// Start implements [Strategy].
func (s Linear) Start() Sequence {
	return s.from(0)
}

func (s Linear) from(k int) Sequence {
	base := float64(cmp.Or(s.Base, defaultBase))
	slope := cmp.Or(s.Factor, defaultSlope)
	limit := max(0, cmp.Or(s.Max, defaultMax))
	n := counter(k)
	return func() time.Duration {
		// The conversion forbids a fused multiply-add, which would round
		// differently on other processors.
		return bounded(base*(1+float64(slope*float64(n.next()))), limit)
	}
}

// Validate reports durations below a millisecond that are not 0, a Factor that
// is negative or not finite, and a Max below Base.
func (s Linear) Validate() error {
	return errors.Join(
		validateDuration("Linear.Base", s.Base, byDefault(defaultBase)),
		validateNumber("Linear.Factor", s.Factor, s.Factor > 0, "a positive finite number",
			defaultSlope),
		validateMax("Linear", "Base", s.Base, defaultBase, s.Max),
	)
}

// Exponential waits min(Max, Base·Factor^k) before retry k, which counts from
// 0. With the defaults the waits are 100ms, 200ms, 400ms and so on. The waits
// are in [Base, Max]. They are not random; use [Jitter] or [Spread] to make
// them so.
type Exponential struct {
	Base   time.Duration // the first wait; 0: 100ms
	Factor float64       // the ratio of one wait to the one before, 1 or more; 0: 2
	Max    time.Duration // the longest wait; 0: 30s
}

// Start implements [Strategy].
func (s Exponential) Start() Sequence {
	return s.from(0)
}

func (s Exponential) from(k int) Sequence {
	g := newGrowth(s.Base, s.Factor, s.Max)
	n := counter(k)
	return func() time.Duration {
		return g.at(n.next())
	}
}

// Validate reports durations below a millisecond that are not 0, a Factor below
// 1 or not finite, and a Max below Base.
func (s Exponential) Validate() error {
	return validateGrowth("Exponential", s.Base, s.Factor, s.Max)
}

// growth is min(limit, base·factor^k), with defaults filled in. Only factor may
// be negative.
type growth struct {
	base, limit time.Duration
	factor      float64
}

func newGrowth(base time.Duration, factor float64, limit time.Duration) growth {
	return growth{
		base:   max(0, cmp.Or(base, defaultBase)),
		limit:  max(0, cmp.Or(limit, defaultMax)),
		factor: cmp.Or(factor, defaultFactor),
	}
}

func (g growth) at(k int) time.Duration {
	if g.factor != 2 {
		return bounded(float64(g.base)*math.Pow(g.factor, float64(k)), g.limit)
	}
	// The comparison precedes the shift, whose result would not show an
	// overflow. 1s<<34 is negative, but 1s<<55 is 0, a retry without a wait.
	if g.base > g.limit>>k {
		return g.limit
	}
	return g.base << k
}

// bounded converts ns to the nearest duration in [0, limit].
func bounded(ns float64, limit time.Duration) time.Duration {
	// Go does not specify the conversion of NaN, or of a float64 beyond int64.
	// The comparison is in the form that is false for NaN.
	if !(ns < float64(limit)) {
		return limit
	}
	return time.Duration(math.Round(max(0, ns)))
}
