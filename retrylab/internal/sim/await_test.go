package sim_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/sim"
	"github.com/seed421102f4/httpretry/retrylab/internal/virtual"
	"github.com/seed421102f4/httpretry/strategies"
)

type script [][]sim.Answer

func (s script) Answer(_ time.Duration, request, attempt int) sim.Answer {
	return s[request][attempt-1]
}

// A success ends the cool-down before a retry has waited for its end. Few
// random histories have that.
func TestRetriesReturnSoonerAfterAnEarlyEnd(t *testing.T) {
	const second = time.Second
	ok := sim.Answer{After: second, Status: http.StatusOK}
	arrivals := []time.Duration{0, 0, 4 * second}
	next := 0
	var at, width time.Duration
	f := &sim.Fleet{
		Policy: httpretry.Policy{Backoff: strategies.Constant{Wait: 3 * second}},
		Arrival: func() (time.Duration, int, bool) {
			next++
			return arrivals[min(next, len(arrivals))-1], 0, next <= len(arrivals)
		},
		Server: script{
			// The retry is at 4 s, in the cool-down from 3.5 s to 11.5 s.
			{{After: second, Status: http.StatusBadGateway}, ok},
			{{After: 3500 * time.Millisecond, Status: http.StatusServiceUnavailable, RetryAfter: 8 * second}, ok},
			{ok}, // ends it at 5 s
		},
		Spread: func(request int, now, from, to time.Duration) time.Duration {
			assert.Zero(t, request)
			assert.Zero(t, from)
			at, width = now, to
			return 0
		},
	}
	virtual.New(t)(func() { require.NoError(t, f.Run()) })
	assert.Equal(t, 5*second, at)
	assert.Equal(t, 1500*time.Millisecond, width, "the range is 2 s after the whole cool-down")
}
