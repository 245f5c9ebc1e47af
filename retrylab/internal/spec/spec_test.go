package spec_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/retrylab/internal/spec"
	"github.com/seed421102f4/httpretry/strategies"
)

func half() float64 { return 0.5 }

func TestParse(t *testing.T) {
	defaults := map[string]time.Duration{"Base": time.Second, "Median": 2 * time.Second, "Wait": 3 * time.Second}
	for _, c := range []struct {
		text string
		want []time.Duration // in milliseconds
	}{
		{"exponential base=10ms factor=3", []time.Duration{10, 30, 90}},
		{"FastFirst Of=Exponential Base=10ms", []time.Duration{0, 10, 20}},
		{"Capped Max=15ms Of=Jitter Of=Exponential Base=10ms", []time.Duration{5, 10, 15}},
		{"Clamp Base=10ms Max=1s", []time.Duration{15, 22, 33}},
		{"FastFirst Of=clamp Base=10ms", []time.Duration{0, 15, 22}},
		{"Constant Wait=0", []time.Duration{0, 0, 0}},
		{"Jitter Of=Linear Max=2s", []time.Duration{500, 1000, 1000}},
	} {
		s, err := spec.Parse(c.text, half, defaults)
		require.NoError(t, err, c.text)
		assert.Equal(t, c.text, s.Name)
		for i, wait := range strategies.Take(s.Strategy, 3) {
			assert.Equal(t, c.want[i], wait.Truncate(time.Millisecond)/time.Millisecond, "%s: %d", c.text, i)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                            `strategy "": want one of Constant, `,
		"FastFirst Of=Constant Wat=1": `Constant: "Wat=1": want Wait=`,
		"Jitter Fraction=2":           "Jitter.Fraction: 2: want a positive number of at most 1",
		"FastFirst Of=Clamp Base=-1s": "FastFirst.Of: Clamp.Base: -1s: want at least 1ms",
		"Capped Of=Clamp Max=101h":    "Clamp.Max: 101h0m0s: want at most 100h0m0s",
	} {
		_, err := spec.Parse(text, half, nil)
		assert.ErrorContains(t, err, want, text)
	}
}

// A third of the first waits of the flawed strategy are exactly its Base.
func TestClamp(t *testing.T) {
	const n = 100_000
	c := spec.Clamp{Rand: rand.New(rand.NewPCG(1, 2)).Float64}
	exact := 0
	for range n {
		if c.Start()() == 100*time.Millisecond {
			exact++
		}
	}
	assert.InDelta(t, 1.0/3, float64(exact)/n, 0.008)
}
