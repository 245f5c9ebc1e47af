package layers_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/layers"
	"github.com/seed421102f4/httpretry/retrylab/internal/virtual"
	"github.com/seed421102f4/httpretry/strategies"
)

func unlimited() httpretry.Budget { return httpretry.Unlimited{} }

func run(t *testing.T, s layers.Scenario, c layers.Client) *layers.Result {
	t.Helper()
	s.Latency, s.Seed = time.Millisecond, 1
	if s.Rate == 0 {
		s.Rate = 5
	}
	c.Policy.Backoff = strategies.DecorrelatedV2{Rand: strategies.Seeded(1)}
	var r *layers.Result
	virtual.New(t)(func() {
		var err error
		r, err = s.Run(c)
		require.NoError(t, err)
	})
	return r
}

// Retries multiply without Middleware and add up with it.
func TestServerIsDown(t *testing.T) {
	for _, c := range []struct {
		services, attempts int
		middleware         bool
		want               float64
	}{
		{3, 3, false, 27}, {5, 3, false, 243}, {2, 4, false, 16},
		{3, 3, true, 7}, {5, 3, true, 11}, {2, 4, true, 7},
	} {
		s := layers.Scenario{Services: c.services, Attempts: c.attempts, Users: 20, Failure: "down"}
		r := run(t, s, layers.Client{Budget: unlimited, Middleware: c.middleware})
		assert.Equal(t, c.want, r.Calls[c.services], "%+v", c)
		assert.Zero(t, r.Succeeded)
	}
}

// Without a budget and without Middleware, services fail independently.
func TestRandomFailures(t *testing.T) {
	const p, users = 0.1, 20_000
	s := layers.Scenario{Services: 3, Attempts: 3, Users: users, Failure: "random", Failing: p}
	r := run(t, s, layers.Client{Budget: unlimited})
	success := 1 - p
	for range s.Services {
		success = (1 - p) * (1 - math.Pow(1-success, 3))
	}
	// Within five standard deviations.
	assert.InDelta(t, success, r.Succeeded, 5*math.Sqrt(success*(1-success)/users))
	assert.Equal(t, 1.0, r.Calls[0])
}

// Many users are in the chain at the same time.
func TestReproducibleAtHighRate(t *testing.T) {
	s := layers.Scenario{Services: 3, Attempts: 3, Users: 10_000, Rate: 1e6, Failure: "random", Failing: 0.2}
	assert.Equal(t, run(t, s, layers.Client{Budget: unlimited}), run(t, s, layers.Client{Budget: unlimited}))
}
