// Package strategies computes how long to wait between the attempts of a
// request.
//
// A [Strategy] is a value that any number of requests share. Its Start method
// returns a [Sequence]: a function that returns the waits of one request, one
// after the other. A strategy does not limit the number of retries, and it does
// not sleep. It does not see responses. If one asks for a longer wait than the
// strategy's, httpretry waits for that time.
//
//	s := strategies.Exponential{Base: time.Second}
//	for _, wait := range strategies.Take(s, 4) {
//		fmt.Println(wait) // 1s, 2s, 4s, 8s
//	}
//
// # Which one
//
// Clients that failed at the same moment retry at the same moment, unless their
// waits are random. Use [DecorrelatedV2] if you have no reason to prefer
// another. It spreads clients smoothly over time. In the tables, k is the
// number of the retry, from 0; b is Base; f is Factor; p is the wait before, at
// first b; and uniform(x, y) is a random number from x up to, but not
// including, y.
//
//	Constant         Wait                             not random
//	Linear           min(Max, b·(1 + f·k))            not random
//	Exponential      min(Max, b·f^k)                  not random
//	FullJitter       uniform(0, min(Max, b·f^k))      few calls, waits near 0
//	EqualJitter      uniform(½, 1) · min(Max, b·f^k)  no waits near 0
//	Decorrelated     uniform(b, min(Max, 3·p))        waits grow on average
//	AWSDecorrelated  min(Max, uniform(b, 3·p))        for comparison
//	DecorrelatedV2   see its documentation            the default of httpretry
//
// The following strategies change the wait w of another one, their field Of:
//
//	Jitter           w · uniform(1−Fraction, 1)
//	Spread           w · uniform(1−Fraction, 1+Fraction)
//	Capped           min(Max, w)
//	FastFirst        0 first, then the waits of Of
//
// The file docs/choosing.md in the repository shows how the strategies spread
// clients, and says when to use which.
//
// [Func] makes a strategy of a function. Any type with a Start method is a
// strategy.
//
// # Values
//
// Strategies are plain structs. Write them with the names of their fields,
// because a later version may add fields. Their zero values are usable. A zero
// field means the default that its comment names. Base is 100ms by default, Max
// 30s, Factor 2 (1 in Linear), and Median 500ms.
//
// The Validate method of each type, and the function [Validate], report all
// fields that are out of range, one per line. A positive duration of less than a
// millisecond is out of range, because it is most likely a number without its
// unit. A strategy that is not valid does not panic. Its waits are unspecified,
// but between 0 and Max.
//
// Waits are whole nanoseconds. They are never negative and never overflow.
//
// [Parse] reads a strategy from text, such as "FullJitter Base=100ms Max=10s",
// and [Format] writes it.
//
// # Randomness
//
// Random strategies use the shared source of [math/rand/v2], which differs from
// process to process and needs no seed. Set their Rand field to [Seeded] where
// runs must be repeatable.
//
// # Concurrency
//
// Strategies are safe for concurrent use, provided that the functions in them
// are. A Sequence belongs to one request and must not be called concurrently.
package strategies

import (
	"math"
	"time"
)

// The defaults of zero fields.
const (
	defaultBase   = 100 * time.Millisecond
	defaultMax    = 30 * time.Second
	defaultMedian = 500 * time.Millisecond
	defaultFactor = 2.0
	defaultSlope  = 1.0  // Linear's Factor
	defaultJitter = 1.0  // Jitter's Fraction
	defaultSpread = 0.25 // Spread's Fraction
)

// A Strategy determines how long to wait before each retry of a request.
//
// Start returns the waits of one request, independent of those of any other.
// It must be safe for concurrent use.
type Strategy interface {
	Start() Sequence
}

// A Sequence returns the wait before the first retry of a request when it is
// called for the first time, the wait before the second retry when it is called
// again, and so on. It never ends. A negative result counts as 0. It is used by
// one goroutine at a time.
//
// The sequences of this package do not allocate when they are called, and their
// results are never negative.
type Sequence func() time.Duration

// wait reads a sequence that may be of another package.
func (s Sequence) wait() time.Duration {
	return max(0, s())
}

// Func is a [Strategy] whose wait depends only on the number of the retry, from
// 0. So retry 0 is the second attempt of a request. A negative result counts as
// 0. The function must be safe for concurrent use. A nil Func is not valid.
type Func func(retry int) time.Duration

// Start implements [Strategy]. The count of its sequence stops at
// [math.MaxInt].
func (f Func) Start() Sequence {
	return f.from(0)
}

func (f Func) from(k int) Sequence {
	if f == nil {
		return Constant{}.Start()
	}
	n := counter(k)
	return func() time.Duration {
		return max(0, f(n.next()))
	}
}

// Validate reports whether f is nil.
func (f Func) Validate() error {
	if f == nil {
		return errNilFunc
	}
	return nil
}

// Take returns the first n waits of a new sequence of s, with 0 for those that
// are negative. It is for documentation, tests and plots. It panics if n is
// negative.
func Take(s Strategy, n int) []time.Duration {
	if n < 0 {
		panic("strategies: Take: negative number of waits")
	}
	waits := make([]time.Duration, n)
	next := s.Start()
	for i := range waits {
		waits[i] = next.wait()
	}
	return waits
}

// counter numbers retries. It saturates, since after an overflow the sequence
// would start again with its shortest waits.
type counter int

func (c *counter) next() int {
	k := *c
	if k < math.MaxInt {
		*c++
	}
	return int(k)
}
