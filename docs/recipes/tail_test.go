package recipes_test

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/strategies"
)

// impatient does not wait for an attempt that takes longer than almost all do.
func impatient() httpretry.Policy {
	return httpretry.Policy{
		AttemptTimeout: 60 * time.Millisecond, // a little above the 95th percentile
		Backoff:        strategies.FastFirst{},
	}
}

// TestTailLatency checks the table of the page. It sends 20,000 requests, one
// after the other, to a server that takes 10 to 50 ms for most, and two seconds
// for one in fifty.
func TestTailLatency(t *testing.T) {
	page, err := os.ReadFile("../recipes.md")
	require.NoError(t, err)
	for _, tt := range []struct {
		name   string
		policy httpretry.Policy
	}{
		{"the default policy", httpretry.Policy{}},
		{"`impatient`", impatient()},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			const requests = 20_000
			random, sends := strategies.Seeded(1), 0
			client := newClient(t, httpretry.Config{
				Policy: tt.policy,
				Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
					sends++
					wait := 10*time.Millisecond + time.Duration(random()*float64(40*time.Millisecond))
					if random() < 0.02 {
						wait = 2 * time.Second
					}
					return contract.Play(contract.Step{Takes: wait}).RoundTrip(req)
				}),
			})
			var times []time.Duration
			for range requests {
				start := time.Now()
				assert.Equal(t, http.StatusOK, status(t, client, request(t, "GET", "")))
				times = append(times, time.Since(start))
			}
			slices.Sort(times)
			at := func(share float64) int64 {
				return times[int(share*requests)].Milliseconds()
			}
			row := fmt.Sprintf("| %s | %d ms | %d ms | %d ms | %.2f |", tt.name,
				at(0.5), at(0.99), at(0.999), float64(sends)/requests)
			assert.True(t, strings.Contains(string(page), row), "want this row: %s", row)
		})
	}
}
