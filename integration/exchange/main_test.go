package main

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A short run meets all situations. CI has a longer one, which judges growth.
func TestExchanges(t *testing.T) {
	var out strings.Builder
	s := &soak{duration: 10 * time.Second, clients: 8, seed: rand.Uint64N(1e9)}
	err := s.run(&out)
	t.Log(out.String())
	require.NoError(t, err)
}

// A series that varies as those of a busy run do is flat, also after a warm-up.
// A constant leak is noticed, also if it begins late.
func TestJudge(t *testing.T) {
	for name, tt := range map[string]struct {
		more func(i float64) sample
		want string
	}{
		"no trend": {func(float64) sample { return sample{} }, ""},
		"a warm-up": {func(i float64) sample {
			left := max(0, samplesPerRun/4-i)
			return sample{-10 * left, -1e6 * left, -5e6 * left}
		}, ""},
		"less and less":   {func(i float64) sample { return sample{-2 * i, -1e5 * i, -1e6 * i} }, ""},
		"goroutines leak": {func(i float64) sample { return sample{goroutines: 3 * i} }, "goroutines"},
		"the heap leaks":  {func(i float64) sample { return sample{heap: 300e3 * i} }, "heap after GC"},
		"the RSS leaks":   {func(i float64) sample { return sample{rss: 1.5e6 * i} }, "RSS"},
		"a late leak":     {func(i float64) sample { return sample{goroutines: 10 * max(0, i-samplesPerRun/2)} }, "goroutines"},
	} {
		rnd := rand.New(rand.NewPCG(1, 2))
		var samples []sample
		for i := range samplesPerRun {
			m := tt.more(float64(i))
			samples = append(samples, sample{280 + 6*rnd.NormFloat64() + m.goroutines,
				10<<20 + 700e3*rnd.NormFloat64() + m.heap, 30<<20 + 1.2e6*rnd.NormFloat64() + m.rss})
		}
		var growing strings.Builder
		for _, v := range judge(samples) {
			if !v.flat() {
				growing.WriteString(v.name)
			}
		}
		assert.Equal(t, tt.want, growing.String(), name)
	}
}
