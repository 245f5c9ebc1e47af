package strategies_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/strategies"
)

// costs lists the allocations of Start: the sequence, and the variables that it
// changes. Strategies over others allocate once more, FastFirst twice.
var costs = []struct {
	name   string
	s      strategies.Strategy
	allocs float64
}{
	{"Constant", strategies.Constant{Wait: time.Second}, 1},
	{"Func", strategies.Func(func(int) time.Duration { return time.Second }), 2},
	{"Linear", strategies.Linear{}, 2},
	{"Exponential", strategies.Exponential{}, 2},
	{"FullJitter", strategies.FullJitter{}, 2},
	{"EqualJitter", strategies.EqualJitter{}, 2},
	{"Decorrelated", strategies.Decorrelated{}, 2},
	{"AWSDecorrelated", strategies.AWSDecorrelated{}, 2},
	{"DecorrelatedV2", strategies.DecorrelatedV2{}, 2},
	{"Jitter", strategies.Jitter{}, 3},
	{"Jitter of Constant", strategies.Jitter{Of: strategies.Constant{Wait: time.Second}}, 2},
	{"Spread", strategies.Spread{}, 3},
	{"Capped", strategies.Capped{}, 3},
	{"FastFirst", strategies.FastFirst{}, 4},
}

var (
	sinkSequence strategies.Sequence
	sinkWait     time.Duration
)

func TestAllocations(t *testing.T) {
	for _, c := range costs {
		assert.Equal(t, c.allocs, testing.AllocsPerRun(100, func() { sinkSequence = c.s.Start() }),
			"%s: Start", c.name)
		next := c.s.Start()
		assert.Zero(t, testing.AllocsPerRun(1000, func() { sinkWait = next() }),
			"%s: a wait", c.name)
	}
}

// BenchmarkStart measures the first retry of a request: a sequence and its
// first wait.
func BenchmarkStart(b *testing.B) {
	for _, c := range costs {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sinkWait = c.s.Start()()
			}
		})
	}
}

// BenchmarkWait measures each further retry.
func BenchmarkWait(b *testing.B) {
	for _, c := range costs {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			next := c.s.Start()
			for b.Loop() {
				sinkWait = next()
			}
		})
	}
}
