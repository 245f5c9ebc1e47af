package main

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const testSamples = 40

// series returns samples that vary as those of a busy run do, plus more.
func series(rnd *rand.Rand, more func(i int) sample) []sample {
	samples := make([]sample, testSamples)
	for i := range samples {
		m := more(i)
		samples[i] = sample{
			goroutines: 280 + 6*rnd.NormFloat64() + m.goroutines,
			heap:       10<<20 + 700e3*rnd.NormFloat64() + m.heap,
			rss:        30<<20 + 1.2e6*rnd.NormFloat64() + m.rss,
		}
	}
	return samples
}

// growing returns the quantities that are not flat.
func growing(t *testing.T, samples []sample) []string {
	t.Helper()
	verdicts, err := judge(samples)
	require.NoError(t, err)
	require.Len(t, verdicts, 3)
	var names []string
	for _, v := range verdicts {
		if !v.flat() {
			names = append(names, v.name)
			assert.Contains(t, v.String(), "GROWS")
		}
	}
	return names
}

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		name string
		more func(i int) sample
		want []string
	}{
		{"no trend", func(int) sample { return sample{} }, nil},
		{"a warm-up", func(i int) sample {
			left := float64(max(0, testSamples/4-i))
			return sample{-10 * left, -1e6 * left, -5e6 * left}
		}, nil},
		{"less and less", func(i int) sample { return sample{-float64(2 * i), -1e5 * float64(i), -1e6 * float64(i)} }, nil},
		{"goroutines leak", func(i int) sample { return sample{goroutines: 3 * float64(i)} }, []string{"goroutines"}},
		{"the heap leaks", func(i int) sample { return sample{heap: 300e3 * float64(i)} }, []string{"heap after GC"}},
		{"the RSS leaks", func(i int) sample { return sample{rss: 1.5e6 * float64(i)} }, []string{"RSS"}},
		{"a leak that begins late", func(i int) sample {
			return sample{goroutines: 10 * float64(max(0, i-testSamples/2))}
		}, []string{"goroutines"}},
		{"a leak that ends before the last quarter", func(i int) sample {
			return sample{heap: 500e3 * float64(min(i, 3*testSamples/4))}
		}, []string{"heap after GC"}},
		{"all leak", func(i int) sample {
			return sample{3 * float64(i), 300e3 * float64(i), 1.5e6 * float64(i)}
		}, []string{"goroutines", "heap after GC", "RSS"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(200) {
				assert.Equal(t, tt.want, growing(t, series(rand.New(rand.NewPCG(seed, 0)), tt.more)), "seed %d", seed)
			}
		})
	}
}

// Without slack, a series without a trend still seldom seems to grow, and a
// constant leak always does.
func TestVariationExplainsNoLeak(t *testing.T) {
	noisy := func(int) sample { return sample{} }
	alarms := 0
	for seed := range uint64(2000) {
		verdicts, err := judge(series(rand.New(rand.NewPCG(seed, 1)), noisy))
		require.NoError(t, err)
		for _, v := range verdicts {
			if v.last > v.most-v.slack {
				alarms++
			}
			assert.True(t, v.flat(), "seed %d: %v", seed, v)
		}
	}
	assert.Less(t, alarms, 3*2000/20)

	samples := make([]sample, testSamples)
	for i := range samples {
		samples[i] = sample{float64(i), 80e3 * float64(i), 500e3 * float64(i)}
	}
	assert.Len(t, growing(t, samples), 3)
}

func TestJudgeWantsSamples(t *testing.T) {
	_, err := judge(make([]sample, minSamples-1))
	assert.ErrorContains(t, err, "15 samples: want 16 at least")
	_, err = judge(make([]sample, minSamples))
	assert.NoError(t, err)
}

// A sample has the goroutines and the memory of this process.
func TestTakeSample(t *testing.T) {
	before, err := takeSample()
	require.NoError(t, err)
	const size = 64 << 20
	held := make([]byte, size)
	for i := range held {
		held[i] = 1
	}
	stop := make(chan struct{})
	for range 10 {
		go func() { <-stop }()
	}
	after, err := takeSample()
	require.NoError(t, err)
	close(stop)
	runtime.KeepAlive(held)
	assert.InDelta(t, size, after.heap-before.heap, 1<<20)
	assert.Greater(t, after.rss-before.rss, 0.9*size) // with -race, the RSS grows by more
	assert.GreaterOrEqual(t, after.goroutines, before.goroutines+10)
}
