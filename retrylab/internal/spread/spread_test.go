package spread_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/retrylab/internal/spec"
	"github.com/seed421102f4/httpretry/retrylab/internal/spread"
)

func sample(t *testing.T, text string, clients int) *spread.Sample {
	t.Helper()
	s, err := spec.Parse(text, rand.New(rand.NewPCG(1, 2)).Float64, map[string]time.Duration{"Base": time.Second, "Median": time.Second})
	require.NoError(t, err)
	return spread.Take(s.Strategy, clients, 5)
}

// The peaks of Polly's issue 530. 400,000 clients give them within 5 %.
func TestPeaksAsPublished(t *testing.T) {
	for _, c := range []struct {
		strategy string
		peak     float64
	}{
		{"Exponential", 1}, {"Clamp", 0.336}, {"EqualJitter", 0.02}, {"FullJitter", 0.0156},
		{"DecorrelatedV2", 0.0109}, {"AWSDecorrelated", 0.0065},
	} {
		got := sample(t, c.strategy, 400_000).Peaks(10 * time.Millisecond)[0]
		t.Logf("%s: %.2f %%, published %.2f %%", c.strategy, 100*got, 100*c.peak)
		assert.InEpsilon(t, c.peak, got, 0.05, c.strategy)
	}
}

// A peak is that of any interval, wherever it begins, and each client counts
// once.
func TestPeaksOfAnyInterval(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		strategy string
		width    time.Duration
		want     float64
	}{
		// 998 to 1002 ms, on both sides of a multiple of 10 ms.
		{"Spread Fraction=0.002 Of=Constant Wait=1s", 10 * ms, 1},
		{"Spread Fraction=0.002 Of=Constant Wait=1s", 2 * ms, 0.5},
		{"Constant Wait=0", 10 * ms, 1},
		// Uniform, with a retry of each client in each second.
		{"Spread Fraction=0.1 Of=Constant Wait=1s", 10 * ms, 0.05},
	} {
		got := sample(t, c.strategy, 50_000).Peaks(c.width)[0]
		assert.InDelta(t, c.want, got, 0.05*c.want, "%s, %v", c.strategy, c.width)
		assert.LessOrEqual(t, got, 1.0, c.strategy)
	}
}

// The shares of all buckets add up to the retries.
func TestDensities(t *testing.T) {
	s := sample(t, "EqualJitter", 100_000)
	sum := 0.0
	x, y := s.Arriving(100*time.Millisecond, time.Minute)
	assert.Len(t, y, 600)
	assert.InDelta(t, 0.05, x[0], 1e-9)
	for _, v := range y {
		sum += v
	}
	assert.InDelta(t, 5, sum, 1e-6)
	// The first retries are uniform in half a second.
	assert.InDelta(t, 0.2, y[6], 0.007)
}
