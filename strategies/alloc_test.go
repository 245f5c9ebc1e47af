package strategies_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/strategies"
)

var (
	sinkSequence strategies.Sequence
	sinkWait     time.Duration
)

// Start allocates the sequence, and the variables that it changes. Strategies
// over others allocate once more, FastFirst twice.
func TestAllocations(t *testing.T) {
	constant := strategies.Constant{Wait: time.Second}
	for _, c := range []struct {
		s      strategies.Strategy
		allocs float64
	}{
		{constant, 1},
		{strategies.Func(func(int) time.Duration { return time.Second }), 2},
		{strategies.Linear{}, 2},
		{strategies.Exponential{}, 2},
		{strategies.FullJitter{}, 2},
		{strategies.EqualJitter{}, 2},
		{strategies.Decorrelated{}, 2},
		{strategies.AWSDecorrelated{}, 2},
		{strategies.DecorrelatedV2{}, 2},
		{strategies.Jitter{}, 3},
		{strategies.Jitter{Of: constant}, 2},
		{strategies.Spread{}, 3},
		{strategies.Capped{}, 3},
		{strategies.FastFirst{}, 4},
	} {
		start := func() { sinkSequence = c.s.Start() }
		assert.Equal(t, c.allocs, testing.AllocsPerRun(100, start), "%T: Start", c.s)
		next := c.s.Start()
		assert.Zero(t, testing.AllocsPerRun(1000, func() { sinkWait = next() }), "%T", c.s)
	}
}
