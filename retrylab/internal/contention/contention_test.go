package contention_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/retrylab/internal/contention"
	"github.com/seed421102f4/httpretry/retrylab/internal/virtual"
	"github.com/seed421102f4/httpretry/strategies"
)

func run(t *testing.T, clients int, s strategies.Strategy, n contention.Network, random *rand.Rand) (r contention.Result) {
	t.Helper()
	virtual.New(t)(func() { r = contention.Run(clients, s, n, random) })
	return r
}

// The blog's simulation with 100 clients, a base of 5 ms and a cap of 2 s. It
// counts retries from 1, so its first ceilings are twice the base. The figures
// are those that were published with it, and for V2 with Polly's issue 530.
func TestCallsAsPublished(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	random := strategies.Rand(r.Float64)
	const base, limit = 5 * time.Millisecond, 2 * time.Second
	for _, c := range []struct {
		name     string
		strategy strategies.Strategy
		calls    float64
	}{
		{"none", nil, 2418},
		{"exponential", strategies.Exponential{Base: 2 * base, Max: limit}, 1859},
		{"AWS", strategies.AWSDecorrelated{Base: base, Max: limit, Rand: random}, 1003},
		{"equal", strategies.EqualJitter{Base: 2 * base, Max: limit, Rand: random}, 812},
		{"V2", strategies.DecorrelatedV2{Median: 2 * base, Max: limit, Rand: random}, 799},
		{"full", strategies.FullJitter{Base: 2 * base, Max: limit, Rand: random}, 795},
	} {
		const runs = 60
		calls := 0.0
		for range runs {
			result := run(t, 100, c.strategy, contention.Network{Mean: 10 * time.Millisecond, Deviation: 2 * time.Millisecond}, r)
			calls += float64(result.Calls) / runs
		}
		t.Logf("%s: %.0f calls, published %.0f", c.name, calls, c.calls)
		assert.InEpsilon(t, c.calls, calls, 0.02, c.name)
	}
}

// If all messages take the same time, one write of each round is accepted.
func TestCallsInLockstep(t *testing.T) {
	const clients, hop = 20, time.Millisecond
	r := run(t, clients, nil, contention.Network{Mean: hop}, rand.New(rand.NewPCG(1, 2)))
	assert.Equal(t, clients*(clients+1)/2, r.Calls)
	assert.Equal(t, 4*clients*hop, r.Time.Truncate(hop))
}
