// Package strategies computes how long to wait between the attempts of a request.
//
// A [Strategy] is a value that any number of requests share. Its Start method opens a [Sequence], the waits of one
// request: the wait before the first retry, before the second, and so on without end. How many retries there are is
// not a strategy's business, nor does it sleep.
//
//	for _, wait := range strategies.Take(strategies.Exponential{Base: time.Second}, 4) {
//		fmt.Println(wait) // 1s, 2s, 4s, 8s
//	}
//
// # Which one
//
// Clients that failed together come back together, unless chance sets them apart. [DecorrelatedV2] is the one to
// take if nothing speaks for another: it spreads a crowd most evenly. In the table k counts retries from 0, b is Base
// (in DecorrelatedV2 Median), f is Factor, p is the wait before (at first b), and uniform(x, y) is a random number
// from x up to, but not including, y.
//
//	Constant         Wait                                    for tests, and for one lone client
//	Linear           min(Max, b·(1 + f·k))                   the same
//	Exponential      min(Max, b·f^k)                         the same, and as the Of of Jitter and Spread
//	FullJitter       uniform(0, min(Max, b·f^k))             few calls, some of them after hardly any wait
//	EqualJitter      uniform(½, 1) · min(Max, b·f^k)         never less than half of the wait; less spread
//	Decorrelated     uniform(b, min(Max, 3·p))               each wait grows from the one before
//	AWSDecorrelated  min(Max, uniform(b, 3·p))               the same as AWS published it; piles up at Max
//	DecorrelatedV2   see there                               smooth: neither peaks nor gaps, and waits near 0 are rare
//
// These change what another strategy, their Of, says:
//
//	Jitter           w · uniform(1−Fraction, 1)
//	Spread           w · uniform(1−Fraction, 1+Fraction)
//	Capped           min(Max, w)
//	FastFirst        0 first, then Of from its start
//
// [Func] makes a strategy of a function. A type of your own needs nothing but a Start method.
//
// # Values
//
// Strategies are plain structs to be written as literals and copied freely. A zero field means the default that its
// comment names: Base 100ms, Max 30s, Factor 2 (in Linear 1), Median 500ms. The zero value of every struct here is
// usable.
//
// Values out of range are never corrected silently: the Validate method of each type, and the function [Validate],
// report all of them, one per line. A strategy that does not validate does not panic either; its waits are then
// unspecified, but still between 0 and Max.
//
// Waits are in whole nanoseconds, never negative, and never overflow, however large the fields and however many the
// retries.
//
// # Chance
//
// Random strategies draw from the shared source of [math/rand/v2], which differs from process to process and needs no
// seed. Set their Rand field to [Seeded] where runs must be repeatable.
//
// # Concurrency
//
// Strategies are safe for concurrent use, provided that the functions in them are. A Sequence belongs to one request
// and must not be called concurrently.
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
	defaultSlope  = 1.0 // Linear's Factor
)

// A Strategy decides how long to wait before each retry of a request.
//
// Start opens the waits of one request, independent of those of every other. It must be safe for concurrent use.
type Strategy interface {
	Start() Sequence
}

// A Sequence returns the wait before the first retry of a request when it is called for the first time, the wait before
// the second retry when it is called again, and so on. It never ends. A negative result counts as 0. It is used by one
// goroutine at a time.
//
// The sequences of this package allocate nothing when they are called, and their results are never negative.
type Sequence func() time.Duration

// wait is how strategies read a sequence that may not be of this package.
func (s Sequence) wait() time.Duration {
	return max(0, s())
}

// Func is a [Strategy] whose wait depends on nothing but the number of the retry, which counts from 0. A negative
// result counts as 0. The function must be safe for concurrent use; a nil one does not validate.
type Func func(retry int) time.Duration

// Start implements [Strategy]. The count of its sequence stops at [math.MaxInt].
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

// Take returns the first n waits of a new sequence of s, negative ones as 0: for documentation, tests and plots. It
// panics if n is negative.
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

// counter numbers retries. It saturates: a number that wrapped around would begin the sequence anew, with the shortest
// waits of all.
type counter int

func (c *counter) next() int {
	k := *c
	if k < math.MaxInt {
		*c++
	}
	return int(k)
}
