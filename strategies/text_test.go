package strategies_test

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/strategies"
)

// texts are strategies with their texts, as Format writes them.
func texts() map[string]strategies.Strategy {
	return map[string]strategies.Strategy{
		"Constant":                        strategies.Constant{},
		"Constant Wait=1.5s":              strategies.Constant{Wait: 1500 * time.Millisecond},
		"Linear Base=10ms Factor=0.5":     strategies.Linear{Base: 10 * ms, Factor: 0.5},
		"Exponential Factor=3 Max=1h0m0s": strategies.Exponential{Factor: 3, Max: time.Hour},
		"FullJitter Base=100ms Max=2s":    strategies.FullJitter{Base: 100 * ms, Max: 2000 * ms},
		"EqualJitter Base=1.000001ms":     strategies.EqualJitter{Base: ms + 1},
		"Decorrelated Base=2s":            strategies.Decorrelated{Base: 2 * time.Second},
		"AWSDecorrelated":                 strategies.AWSDecorrelated{},
		"DecorrelatedV2 Median=1s":        strategies.DecorrelatedV2{Median: time.Second},
		"Jitter Fraction=0.1":             strategies.Jitter{Fraction: 0.1},
		"Spread Fraction=0.2 Of=Exponential Base=1s": strategies.Spread{
			Fraction: 0.2, Of: strategies.Exponential{Base: time.Second},
		},
		"FastFirst": strategies.FastFirst{},
		"Capped Max=1s Of=FastFirst Of=Jitter Of=Constant Wait=3s": strategies.Capped{
			Max: time.Second, Of: strategies.FastFirst{
				Of: strategies.Jitter{Of: strategies.Constant{Wait: 3 * time.Second}},
			},
		},
	}
}

func TestParseAndFormat(t *testing.T) {
	all := texts()
	for want, s := range all {
		got, err := strategies.Format(s)
		require.NoError(t, err, want)
		assert.Equal(t, want, got)
	}
	all[" \tfulljitter\n  MAX=1m base=+.5s "] = strategies.FullJitter{Base: 500 * ms, Max: 6e4 * ms}
	all["Constant Wait=0"] = strategies.Constant{}
	all["Exponential Factor=3e0"] = strategies.Exponential{Factor: 3}
	for text, want := range all {
		got, err := strategies.Parse(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
}

// A type that was forgotten could not be written into a file.
func TestEveryStructHasAText(t *testing.T) {
	known := map[string]bool{}
	for text := range texts() {
		name, _, _ := strings.Cut(text, " ")
		known[name] = true
	}
	start := regexp.MustCompile(`(?m)^func \(s (\w+)\) Start\(\)`)
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range start.FindAllSubmatch(source, -1) {
			assert.True(t, known[string(m[1])], "%s has no text in this test", m[1])
			found++
		}
	}
	assert.Len(t, known, found)
}

func TestParseErrors(t *testing.T) {
	const names = "want one of Constant, Linear, Exponential, FullJitter, EqualJitter, Decorrelated, " +
		"AWSDecorrelated, DecorrelatedV2, Jitter, Spread, Capped, FastFirst"
	const unit = "want a duration with its unit, such as 100ms or 2s"
	const most = "want at most 16 strategies"
	const share = "want a positive number of at most 1, or 0 for the default (1)"
	for text, want := range map[string]string{
		"":                              `strategy "": ` + names,
		" \n":                           `strategy "": ` + names,
		"Full Base=x":                   `strategy "Full": ` + names,
		"Func":                          `strategy "Func": ` + names,
		"FullJitter 100ms":              `FullJitter: "100ms": want Base=, Factor=, Max=`,
		"FullJitter Base":               `FullJitter.Base: "": ` + unit,
		"FullJitter Base=1":             `FullJitter.Base: "1": ` + unit,
		"FullJitter Base=1d":            `FullJitter.Base: "1d": ` + unit,
		"FullJitter Base=99999999h":     `FullJitter.Base: "99999999h": ` + unit,
		"FullJitter Factor=2s":          `FullJitter.Factor: "2s": want a number`,
		"FullJitter Rand=1":             `FullJitter: "Rand=1": want Base=, Factor=, Max=`,
		"FullJitter Base=1s base=2s":    `FullJitter.Base: "2s" is the second value: want one`,
		"FullJitter Of=Linear Wait=2s":  `FullJitter: "Of=Linear": want Base=, Factor=, Max=`,
		"FastFirst Of=Foo Wait=1":       `strategy "Foo": ` + names,
		"FastFirst Of=Constant Wat=1":   `Constant: "Wat=1": want Wait=`,
		"Jitter Of=Linear Fraction=0.5": `Linear: "Fraction=0.5": want Base=, Factor=, Max=`,
		"Jitter Fraction=2":             "Jitter.Fraction: 2: " + share,
		"Capped Of=Jitter Fraction=NaN": "Capped.Of: Jitter.Fraction: NaN: " + share,
		"Linear Bass=1s Factor=x Max=1": `Linear: "Bass=1s": want Base=, Factor=, Max=` + "\n" +
			`Linear.Factor: "x": want a number` + "\n" + `Linear.Max: "1": ` + unit,
		strings.Repeat("Capped Of=", 16) + "Linear": `Capped.Of: "Linear": ` + most,
	} {
		s, err := strategies.Parse(text)
		require.EqualError(t, err, want, text)
		assert.Nil(t, s)
	}
}

func TestFormatErrors(t *testing.T) {
	const want = "want a struct of package strategies, and at most 16 of them"
	var deep strategies.Strategy = strategies.Linear{}
	for range 15 {
		deep = strategies.FastFirst{Of: deep}
	}
	text, err := strategies.Format(deep)
	require.NoError(t, err)
	same, err := strategies.Parse(text)
	require.NoError(t, err)
	assert.Equal(t, deep, same)
	for _, c := range []struct {
		s    strategies.Strategy
		want string
	}{
		{nil, "nil: want a strategy"},
		{&strategies.Linear{}, "a *strategies.Linear: " + want},
		{strategies.Func(func(int) time.Duration { return 0 }), "a strategies.Func: " + want},
		{strategies.Jitter{Of: startAt{}}, "a strategies_test.startAt: " + want},
		{strategies.Capped{Of: deep}, "a strategies.Linear: " + want},
		{strategies.FullJitter{Rand: always(0.5)}, "FullJitter.Rand: a function: want nil"},
		{strategies.Exponential{Factor: math.NaN()},
			"Exponential.Factor: NaN: want a finite number of at least 1, or 0 for the default (2)"},
	} {
		text, err := strategies.Format(c.s)
		require.EqualError(t, err, c.want)
		assert.Empty(t, text)
	}
}

// FuzzParse parses any text. A strategy that Parse returns is valid, and its
// text reads back equal.
func FuzzParse(f *testing.F) {
	for text := range texts() {
		f.Add(text)
	}
	f.Add("Linear Base=1µs Factor=0x1p-2")
	f.Add("Jitter Fraction=1e-320 Of=jitter OF=Constant Wait=-0h")
	f.Add(strings.Repeat("Capped Of=", 20))
	f.Fuzz(func(t *testing.T, text string) {
		s, err := strategies.Parse(text)
		if err != nil {
			require.Nil(t, s)
			require.NotContains(t, err.Error(), "\n\n")
			return
		}
		require.NoError(t, strategies.Validate(s))
		written, err := strategies.Format(s)
		require.NoError(t, err)
		same, err := strategies.Parse(written)
		require.NoError(t, err, written)
		require.Equal(t, s, same)
		again, err := strategies.Format(same)
		require.NoError(t, err)
		require.Equal(t, written, again)
	})
}
