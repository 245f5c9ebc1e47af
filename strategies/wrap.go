package strategies

import (
	"cmp"
	"errors"
	"math"
	"time"
)

// Jitter waits w·uniform(1−Fraction, 1), w being what Of waits: never longer than Of, and with a Fraction of 1, the
// default, anything from no wait to Of's. It is "full jitter" over any strategy, with a Fraction of 0.5 "equal jitter".
//
// It has no cap of its own. Over an [Exponential] with its own Max, waits do not pile up at the cap. To have what
// httpx-retries computes with its backoff_jitter, where they do, give the Exponential a huge Max and put [Capped] around
// the Jitter.
type Jitter struct {
	Of       Strategy // nil: Exponential{}
	Fraction float64  // the share of the wait that is left to chance, up to 1; 0: 1
	Rand     Rand     // nil: the shared source of math/rand/v2
}

// Start implements [Strategy].
func (s Jitter) Start() Sequence {
	of := startOr(s.Of, Exponential{})
	share := fraction(s.Fraction, 1)
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
		validateFraction("Jitter.Fraction", s.Fraction),
	)
}

// Spread waits w·uniform(1−Fraction, 1+Fraction), w being what Of waits, so that the mean is Of's. A Fraction of 0.25, the
// default, is the jitter of Polly v8 for constant and linear backoff; gRPC has 0.2.
//
// It has no cap of its own: waits exceed Of's by up to Fraction, and the longest [time.Duration] never. Put [Capped]
// around it to keep a limit exactly.
type Spread struct {
	Of       Strategy // nil: Exponential{}
	Fraction float64  // how far a wait may be from Of's, as a share of it, up to 1; 0: 0.25
	Rand     Rand     // nil: the shared source of math/rand/v2
}

// Start implements [Strategy].
func (s Spread) Start() Sequence {
	of := startOr(s.Of, Exponential{})
	share := fraction(s.Fraction, 0.25)
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
		validateFraction("Spread.Fraction", s.Fraction),
	)
}

// Capped waits as Of does, but no longer than Max. Where Of is random, all waits over Max become equal; a Max of Of's own
// is better if it has one.
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

// Validate reports the problems of Of, and a negative Max.
func (s Capped) Validate() error {
	return errors.Join(
		validateOf("Capped.Of", s.Of),
		validateNotNegative("Capped.Max", s.Max),
	)
}

// FastFirst does not wait before the first retry, and from the second on waits as Of does from its start: over
// Exponential{} 0, 100ms, 200ms, 400ms and so on. The first retry counts as any other.
//
// It suits failures of one connection, which a second attempt gets past. When a server fails for all, the whole crowd is
// back at once.
type FastFirst struct {
	Of Strategy // nil: DecorrelatedV2{}
}

// Start implements [Strategy].
func (s FastFirst) Start() Sequence {
	// Not when the first wait is over: sequences allocate nothing.
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

// startOr starts of, or a fallback if it is nil. The type parameter spares the fallback an allocation.
func startOr[S Strategy](of Strategy, fallback S) Sequence {
	if of == nil {
		return fallback.Start()
	}
	return of.Start()
}

// fraction returns x, or what it means when it is 0, or the nearest number in [0, 1] when it is outside, where NaN counts
// as 0.
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
