package restart_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/outage"
	"github.com/seed421102f4/httpretry/retrylab/internal/restart"
	"github.com/seed421102f4/httpretry/retrylab/internal/virtual"
	"github.com/seed421102f4/httpretry/strategies"
)

// scenario is a restart of three seconds, after which a minute passes.
func scenario(kind string) restart.Scenario {
	return restart.Scenario{
		Processes: 2, Rate: 50, Latency: 10 * time.Millisecond, Kind: kind, Replicas: 1, Restarting: 1,
		Up: 5 * time.Second, Down: 3 * time.Second, After: time.Minute, Seed: 1,
	}
}

func run(t *testing.T, s restart.Scenario, policy httpretry.Policy) *outage.Result {
	t.Helper()
	var r *outage.Result
	virtual.New(t)(func() {
		var err error
		r, err = s.Run(func(int) httpretry.Policy { return policy })
		require.NoError(t, err)
	})
	return r
}

// failed returns the share of the requests of some time that fail.
func failed(r *outage.Result, from, to time.Duration) float64 {
	begun, ok := r.Total(from, to)
	return 1 - float64(ok)/float64(begun)
}

// Without retries, all requests of the restart fail, and no others.
func TestKinds(t *testing.T) {
	once := httpretry.Policy{MaxAttempts: 1, AttemptTimeout: time.Second}
	for _, kind := range []string{"503", "refused", "reset", "timeout"} {
		s := scenario(kind)
		r := run(t, s, once)
		assert.Zero(t, failed(r, 0, s.Up), kind)
		assert.Equal(t, 1.0, failed(r, s.Up, s.Up+s.Down), kind)
		assert.Zero(t, failed(r, s.Up+s.Down, s.Up+s.Down+s.After), kind)
		assert.Equal(t, 1.0, r.Load(s.Up, s.Up+s.Down), kind)
	}
	// A stall is over before a timeout of a second for the last third of them.
	s := scenario("stall")
	r := run(t, s, once)
	assert.Equal(t, 1.0, failed(r, s.Up, s.Up+2*time.Second))
	assert.Zero(t, failed(r, s.Up+2*time.Second+outage.Bucket, s.Up+s.Down))
}

// A request with enough attempts and time outlasts the restart, also of a host
// that was never up before.
func TestAttemptsOutlastTheRestart(t *testing.T) {
	policy := httpretry.Policy{
		MaxAttempts: 5, Budget: httpretry.Unlimited{}, Backoff: strategies.Constant{Wait: time.Second},
	}
	s := scenario("refused")
	s.Up = 0
	r := run(t, s, policy)
	assert.Zero(t, failed(r, 0, s.Down+s.After))
	assert.InDelta(t, 2, r.Load(0, s.Down), 0.1, "they wait for a second after each of up to three")
	s.Deadline = time.Second
	assert.Equal(t, 1.0, failed(run(t, s, policy), 0, s.Down-s.Deadline))
}

// Only the replicas that restart fail.
func TestReplicas(t *testing.T) {
	s := scenario("503")
	s.Replicas, s.Restarting, s.Down = 10, 3, time.Minute
	n := 60 * 100.0
	got := failed(run(t, s, httpretry.Policy{MaxAttempts: 1}), s.Up, s.Up+s.Down)
	assert.InDelta(t, 0.3, got, 5*math.Sqrt(0.3*0.7/n))
}

// After the restart, a cold host is slower than its load for a while.
func TestColdHost(t *testing.T) {
	s := scenario("503")
	s.Load = 0.5
	policy := httpretry.Policy{MaxAttempts: 1, AttemptTimeout: time.Second}
	end := s.Up + s.Down
	assert.Zero(t, failed(run(t, s, policy), end, end+s.After))
	s.Cold = 20 * time.Second
	r := run(t, s, policy)
	// It has a half of its capacity after nine seconds.
	assert.Greater(t, failed(r, end+2*time.Second, end+9*time.Second), 0.9)
	assert.Zero(t, failed(r, 0, s.Up))
	back, ok := r.Recovered()
	assert.True(t, ok)
	assert.Greater(t, back, 9*time.Second)
}
