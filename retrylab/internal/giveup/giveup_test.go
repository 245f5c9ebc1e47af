package giveup_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/retrylab/internal/giveup"
	"github.com/seed421102f4/httpretry/strategies"
)

// Waits of 1, 2, 4 … seconds.
func TestGivesUp(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name                       string
		attempts                   int
		elapsed, deadline, attempt time.Duration
		want                       time.Duration
		made                       float64
	}{
		{"all attempts", 4, 0, 0, 0, 7 * s, 4},
		{"attempts that take time", 4, 0, 0, s / 2, 9 * s, 4},
		{"one attempt", 1, 0, 0, s, s, 1},
		{"MaxElapsed before a wait ends", 4, 5 * s, 0, 0, 3 * s, 3},
		{"MaxElapsed when a wait ends", 4, 7 * s, 0, 0, 7 * s, 4},
		{"any number of attempts", -1, 7 * s, 0, 0, 7 * s, 4},
		{"deadline when a wait ends", 4, 0, 7 * s, 0, 3 * s, 3},
		{"deadline in an attempt", 4, 0, 5 * s, 2 * s, 5 * s, 2},
	} {
		p := giveup.Policy{Backoff: strategies.Exponential{Base: s}, Attempts: c.attempts, MaxElapsed: c.elapsed, Deadline: c.deadline}
		r := p.Run(1, c.attempt)
		assert.Equal(t, c.want, r.Quantile(0.5), c.name)
		assert.Equal(t, c.made, r.Attempts, c.name)
	}
}
