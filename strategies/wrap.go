package strategies

import (
	"cmp"
	"errors"
	"math"
	"time"
)

// Jitter waits w·uniform(1−Fraction, 1), where w is the wait of Of. It never
// waits longer than Of. With a Fraction of 1, the default, it is "full jitter"
// over any strategy; with a Fraction of 0.5 it is "equal jitter".
//
// It has no maximum of its own. Over an [Exponential] with a Max, waits do not
// accumulate at Max. In httpx-retries with its backoff_jitter, they accumulate
// there. To compute the same, give the Exponential a huge Max and put [Capped]
// around the Jitter.
type Jitter struct {
	Of       Strategy // nil: Exponential{}
	Fraction float64  // the random share of the wait, up to 1; 0: 1
	Rand     Rand     // nil: the shared source of math/rand/v2
}

// Start implements [Strategy].
func (s Jitter) Start() Sequence {
	of := startOr(s.Of, Exponential{})
	share := fraction(s.Fraction, defaultJitter)
	r := s.Rand
	return func() time.Duration {
		w := of.wait()
		return uniform(bounded(float64(w)*(1-share), w), w, r.draw())
	}
}

// Validate reports the problems of Of, and a Fraction outside [0, 1].
func (s Jitter) Validate() error {
	return errors.Join(
		validateOf("Jitter.Of", s.Of),
		validateFraction("Jitter.Fraction", s.Fraction, defaultJitter),
	)
}

// Spread waits w·uniform(1−Fraction, 1+Fraction), where w is the wait of Of.
// The mean is w. A Fraction of 0.25, the default, is the jitter of Polly v8 for
// constant and linear backoff. gRPC uses 0.2.
//
// It has no maximum of its own, except the longest [time.Duration]. Waits
// exceed those of Of by up to Fraction. Put [Capped] around it for an exact
// limit.
type Spread struct {
	Of       Strategy // nil: Exponential{}
	Fraction float64  // how far a wait may be from that of Of, as a share of it, up to 1; 0: 0.25
	Rand     Rand     // nil: the shared source of math/rand/v2
}

// Start implements [Strategy].
func (s Spread) Start() Sequence {
	of := startOr(s.Of, Exponential{})
	share := fraction(s.Fraction, defaultSpread)
	r := s.Rand
	return func() time.Duration {
		w := of.wait()
		lo := bounded(float64(w)*(1-share), math.MaxInt64)
		hi := bounded(float64(w)*(1+share), math.MaxInt64)
		return uniform(lo, hi, r.draw())
	}
}

// Validate reports the problems of Of, and a Fraction outside [0, 1].
func (s Spread) Validate() error {
	return errors.Join(
		validateOf("Spread.Of", s.Of),
		validateFraction("Spread.Fraction", s.Fraction, defaultSpread),
	)
}

// Capped waits as long as Of, but no longer than Max. If Of is random, all
// waits above Max become equal. If Of has a Max of its own, use that instead.
type Capped struct {
	Of  Strategy      // nil: DecorrelatedV2{}
	Max time.Duration // the longest wait; 0: 30s
}

// Start implements [Strategy].
func (s Capped) Start() Sequence {
	of := startOr(s.Of, DecorrelatedV2{})
	limit := max(0, cmp.Or(s.Max, defaultMax))
	return func() time.Duration {
		return min(of.wait(), limit)
	}
}

// Validate reports the problems of Of, and a Max below a millisecond that is
// not 0.
func (s Capped) Validate() error {
	return errors.Join(
		validateOf("Capped.Of", s.Of),
		validateDuration("Capped.Max", s.Max, byDefault(defaultMax)),
	)
}

// FastFirst does not wait before the first retry. Before the second it waits as
// Of does before its first, and so on. Over Exponential{} the waits are 0,
// 100ms, 200ms, 400ms and so on. MaxAttempts of a policy counts the first
// retry, too.
//
// It suits failures of a single connection, where a second attempt succeeds.
// When a server fails for all clients, all of them retry at once.
type FastFirst struct {
	Of Strategy // nil: DecorrelatedV2{}
}

// Start implements [Strategy].
func (s FastFirst) Start() Sequence {
	// Of starts here and not after the first wait: sequences do not allocate.
	of := startOr(s.Of, DecorrelatedV2{})
	first := true
	return func() time.Duration {
		if first {
			first = false
			return 0
		}
		return of.wait()
	}
}

// Validate reports the problems of Of.
func (s FastFirst) Validate() error {
	return validateOf("FastFirst.Of", s.Of)
}

// startOr starts of, or fallback if of is nil. The type parameter saves the
// allocation of fallback as a Strategy.
func startOr[S Strategy](of Strategy, fallback S) Sequence {
	if of == nil {
		return fallback.Start()
	}
	return of.Start()
}

// fraction returns x, or zero if x is 0, or the nearest number in [0, 1] if x
// is outside. NaN counts as 0.
func fraction(x, zero float64) float64 {
	switch {
	case x == 0:
		return zero
	case x > 0:
		return min(x, 1)
	default:
		return 0
	}
}
