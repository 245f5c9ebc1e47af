// Package virtual runs functions on virtual time in a program that is not a
// test. The library reads the clock with time.Now and has no other clock, so
// virtual time is that of a bubble of package testing/synctest.
package virtual

import (
	"flag"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed421102f4/httpretry/strategies"
)

// A Clock runs a function in a bubble of its own, in which time passes only
// while all goroutines of the bubble wait. It returns when they have ended.
// Functions in different bubbles may run at the same time.
type Clock func(f func())

// New returns a Clock for a test.
func New(t *testing.T) Clock {
	return func(f func()) {
		t.Run("bubble", func(t *testing.T) {
			synctest.Test(t, func(*testing.T) { f() })
		})
	}
}

// Main calls run with a Clock and exits with the status that run returns. It
// does not return.
//
// A bubble needs a testing.T. Only testing.Main makes one outside of go test.
// It is exported for "other systems that simulate go test".
func Main(run func(Clock) int) {
	testing.Init()
	// The program's arguments are its own, not those of package testing.
	if err := flag.CommandLine.Parse(nil); err != nil {
		panic(err) // without arguments, there is nothing to fail on
	}
	match := func(string, string) (bool, error) { return true, nil }
	program := testing.InternalTest{Name: "retrylab", F: func(t *testing.T) {
		// testing.Main would print PASS.
		os.Exit(run(New(t)))
	}}
	testing.Main(match, []testing.InternalTest{program}, nil, nil)
}

// Ticking is a strategy whose waits are multiples of Tick. If all times of a
// simulation are multiples, and each of its clients is a number of nanoseconds
// below Tick late, no two of them wake up at the same time. The order of their
// goroutines would not be determined.
type Ticking struct {
	strategies.Strategy
	Tick time.Duration
}

func (t Ticking) Start() strategies.Sequence {
	next := t.Strategy.Start()
	return func() time.Duration { return next().Round(t.Tick) }
}
