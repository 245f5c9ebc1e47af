package strategies_test

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/strategies"
)

const (
	sequences = 100_000
	waitsEach = 8
)

// source returns a Rand for one goroutine. Its numbers are the same in every
// run, so a test that passes once passes always. It is SplitMix64, which is
// faster than PCG under the race detector.
func source(seed uint64) strategies.Rand {
	return func() float64 {
		seed += 0x9e3779b97f4a7c15
		z := (seed ^ seed>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return float64((z^z>>31)>>11) / (1 << 53)
	}
}

// eachOf starts s for each sequence.
func eachOf(s strategies.Strategy) func(int) strategies.Sequence {
	return func(int) strategies.Sequence { return s.Start() }
}

// sampleOf draws waits of a model.
func sampleOf(m model, b, c time.Duration) sample {
	laws, serial := m.laws(float64(b), float64(c), waitsEach)
	waits := collect(sequences, waitsEach, eachOf(m.make(b, c, source(uint64(b)))))
	return sample{waits, laws, serial}
}

func forModels(t *testing.T, test func(t *testing.T, m model)) {
	for _, m := range models {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			test(t, m)
		})
	}
}

// unseeded checks first waits from the shared source. Together, its checks
// reject a correct strategy with a probability below 10⁻⁸.
func unseeded(t *testing.T, m model, waits []int64) {
	t.Helper()
	laws, _ := m.laws(1*second, 30*second, 1)
	assert.NoError(t,
		sample{[][]int64{waits}, laws, nil}.against("bound", "ks", "mult", "parallel"))
}

func TestRandomStrategiesFollowTheirFormulas(t *testing.T) {
	forModels(t, func(t *testing.T, m model) {
		long := sampleOf(m, time.Second, 30*time.Second)
		assert.NoError(t, long.against())
		assert.NoError(t, sampleOf(m, 100*time.Millisecond, 10*time.Second).against())

		short := m.make(7*time.Millisecond, 210*time.Millisecond, source(uint64(time.Second)))
		waits := collect(sequences/10, waitsEach, eachOf(short))
		assert.NoError(t, checkScale(waits, long.waits, 1000.0/7))

		assert.NoError(t, checkPeak(long.waits[:5], 10*time.Millisecond, m.peak))
		assert.NoError(t, checkPeak(long.waits[:5], 100*time.Millisecond, m.peak))

		if m.top != nil {
			assert.NoError(t, checkConditional(long.waits, 1*second, m.top))
		}
	})
}

func TestDecorrelatedV2FillsOneWindowPerRetry(t *testing.T) {
	t.Parallel()
	s := strategies.DecorrelatedV2{Median: time.Second, Max: math.MaxInt64, Rand: source(1)}
	u, err := windows(collect(sequences, waitsEach, eachOf(s)), 1*second)
	require.NoError(t, err)
	for k := range len(u) - 1 {
		assert.LessOrEqual(t, math.Abs(pearson(u[k], u[k+1], 1)), sigmas/math.Sqrt(sequences),
			"retries %d and %d", k, k+1)
	}
	for k := range u {
		assert.NoError(t, checkUniform(u[k]), "retry %d", k)
	}
}

// TestDecorrelatedV2Medians checks the medians in the documentation of
// DecorrelatedV2.
func TestDecorrelatedV2Medians(t *testing.T) {
	t.Parallel()
	s := strategies.DecorrelatedV2{Median: time.Second, Rand: func() float64 { return 0.5 }}
	at := time.Duration(0)
	for k, wait := range strategies.Take(s, 4) {
		at += wait
		assert.InDelta(t, []float64{0.897, 1.990, 4.026, 8.072}[k], at.Seconds(), 0.0006)
	}
}

func TestAWSDecorrelatedPilesUpAtALowMax(t *testing.T) {
	t.Parallel()
	s := strategies.AWSDecorrelated{Base: time.Second, Max: 2 * time.Second, Rand: source(1)}
	laws, _ := chain(1*second, 2*second, false, 1)
	require.InDelta(t, 0.5, laws[0].atom(), 1e-12)
	assert.NoError(t, sample{collect(sequences, 1, eachOf(s)), laws, nil}.against())
}

// After many retries, the waits no longer depend on the first. 40 are enough,
// as TestLaws shows.
func TestDecorrelatedInTheLongRun(t *testing.T) {
	for _, tt := range []struct {
		s          strategies.Strategy
		mean, mass float64
	}{
		{strategies.AWSDecorrelated{Base: time.Second, Rand: source(3)}, 18.5806, 0.381123},
		{strategies.Decorrelated{Base: time.Second, Rand: source(3)}, 11.5481, 0},
	} {
		t.Run(fmt.Sprintf("%T", tt.s), func(t *testing.T) {
			t.Parallel()
			last := collect(sequences, 1, func(int) strategies.Sequence {
				next := tt.s.Start()
				for range 39 {
					next()
				}
				return next
			})[0]
			sum, square, capped := 0.0, 0.0, 0.0
			for _, w := range last {
				x := time.Duration(w).Seconds()
				sum += x
				square += x * x
				if w == 30*second {
					capped++
				}
			}
			n := float64(len(last))
			sd := math.Sqrt(square/n - sum/n*sum/n)
			assert.InDelta(t, tt.mean, sum/n, sigmas*sd/math.Sqrt(n)+0.0001)
			assert.InDelta(t, tt.mass*n, capped, sigmas*math.Sqrt(n*tt.mass*(1-tt.mass))+0.1)
		})
	}
}

func TestOneStrategyManyGoroutines(t *testing.T) {
	forModels(t, func(t *testing.T, m model) {
		const goroutines, each = 64, 2000
		s := m.make(time.Second, 30*time.Second, nil)
		first := make([]int64, goroutines*each)
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				for i := range each {
					next := s.Start()
					first[g*each+i] = int64(next())
					next()
				}
			})
		}
		wg.Wait()
		unseeded(t, m, first)
	})
}

func TestStrategiesMadeInALoop(t *testing.T) {
	forModels(t, func(t *testing.T, m model) {
		unseeded(t, m, collect(sequences, 1, func(int) strategies.Sequence {
			return m.make(time.Second, 30*time.Second, nil).Start()
		})[0])
	})
}

func TestConsecutiveSeedsAreUnrelated(t *testing.T) {
	forModels(t, func(t *testing.T, m model) {
		laws, serial := m.laws(1*second, 30*second, 2)
		assert.NoError(t, sample{collect(sequences, 2, func(i int) strategies.Sequence {
			return m.make(time.Second, 30*time.Second, strategies.Seeded(uint64(i))).Start()
		}), laws, serial}.against())
	})
}

// A starter starts sequence i. Base, or Median, is 1s, and Max is 30s.
type starter func(r strategies.Rand) func(i int) strategies.Sequence

// A control is a flawed strategy that the checks must distinguish from a model.
type control struct {
	name  string
	poses string // the model
	start starter
	waits int      // to look at
	fails []string // checks that must reject it, each by itself
}

// startEach starts one strategy for all sequences.
func startEach(s func(r strategies.Rand) strategies.Strategy) starter {
	return func(r strategies.Rand) func(int) strategies.Sequence {
		return eachOf(s(r))
	}
}

// startWith starts a FullJitter with a Rand for each sequence.
func startWith(rand func(r strategies.Rand, i int) strategies.Rand) starter {
	return func(r strategies.Rand) func(int) strategies.Sequence {
		return func(i int) strategies.Sequence {
			return strategies.FullJitter{Base: time.Second, Rand: rand(r, i)}.Start()
		}
	}
}

// wikiClamp is a decorrelated jitter that a wiki once recommended. Draws below
// Base become Base, so a third of all clients retry at the same moment.
func wikiClamp(r strategies.Rand) func(int) strategies.Sequence {
	return func(int) strategies.Sequence {
		p := 1.0 * second
		return func() time.Duration {
			p = min(30*second, max(1*second, 3*p*r()))
			return time.Duration(p)
		}
	}
}

// firstUndrawn is Decorrelated, but its first wait is not random.
func firstUndrawn(r strategies.Rand) func(int) strategies.Sequence {
	return func(int) strategies.Sequence {
		of, first := strategies.Decorrelated{Base: time.Second, Rand: r}.Start(), true
		return func() time.Duration {
			if first {
				first = false
				return time.Second
			}
			return of()
		}
	}
}

func milliseconds(r strategies.Rand) func(int) strategies.Sequence {
	return func(int) strategies.Sequence {
		of := strategies.FullJitter{Base: time.Second, Rand: r}.Start()
		return func() time.Duration { return of().Truncate(time.Millisecond) }
	}
}

func spreadBy(fraction float64) starter {
	return startEach(func(r strategies.Rand) strategies.Strategy {
		return strategies.Spread{
			Of: strategies.Linear{Base: time.Second}, Fraction: fraction, Rand: r}
	})
}

var controls = []control{
	{"draws clamped to Base", "AWSDecorrelated", wikiClamp, 4,
		[]string{"mean", "quantile", "ks", "atom", "mult", "serial"}},
	{"jitter before the cap", "FullJitter", startEach(func(r strategies.Rand) strategies.Strategy {
		return jitterAfterCap(time.Second, 30*time.Second, r)
	}), 7, []string{"mean", "ks", "mult"}},
	{"the ceiling first", "AWSDecorrelated", startEach(func(r strategies.Rand) strategies.Strategy {
		return strategies.Decorrelated{Base: time.Second, Rand: r}
	}), 4, []string{"mean", "ks", "atom"}},
	{"the cap last", "Decorrelated", startEach(func(r strategies.Rand) strategies.Strategy {
		return strategies.AWSDecorrelated{Base: time.Second, Rand: r}
	}), 5, []string{"mean", "ks", "mult"}},
	{"a cut to Max", "DecorrelatedV2", startEach(func(r strategies.Rand) strategies.Strategy {
		return strategies.Capped{
			Of: strategies.DecorrelatedV2{Median: time.Second, Max: time.Hour, Rand: r}}
	}), 8, []string{"mean", "ks", "mult"}},
	{"the first wait is Base", "Decorrelated", firstUndrawn, 2,
		[]string{"mean", "ks", "mult", "reach", "parallel", "serial"}},
	{"milliseconds", "FullJitter", milliseconds, 1, []string{"mult"}},
	{"short of both ends", "Spread", spreadBy(0.249), 1, []string{"reach"}},
	{"past both ends", "Spread", spreadBy(0.251), 1, []string{"bound"}},
	{"one draw per sequence", "FullJitter",
		startWith(func(r strategies.Rand, _ int) strategies.Rand {
			u := r()
			return func() float64 { return u }
		}), 2, []string{"serial"}},
	{"one seed for all", "FullJitter", startWith(func(strategies.Rand, int) strategies.Rand {
		return strategies.Seeded(1)
	}), 1, []string{"ks", "mult", "parallel"}},
	{"one seed for two", "FullJitter", startWith(func(_ strategies.Rand, i int) strategies.Rand {
		return strategies.Seeded(uint64(i / 2))
	}), 1, []string{"parallel"}},
	{"16 random bits", "FullJitter", startWith(func(r strategies.Rand, _ int) strategies.Rand {
		return func() float64 { return math.Floor(r()*(1<<16)) / (1 << 16) }
	}), 1, []string{"mult"}},
}

// A check that accepts everything proves nothing.
func TestChecksRejectFlawedStrategies(t *testing.T) {
	for _, c := range controls {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			laws, serial := modelOf(t, c.poses).laws(1*second, 30*second, c.waits)
			errs := sample{
				collect(sequences, c.waits, c.start(source(1))), laws, serial}.verdicts(c.fails...)
			for _, name := range c.fails {
				assert.Error(t, errs[name], name)
			}
		})
	}
}

func modelOf(t *testing.T, name string) model {
	t.Helper()
	i := slices.IndexFunc(models, func(m model) bool { return m.name == name })
	require.GreaterOrEqual(t, i, 0, "no model %s", name)
	return models[i]
}

func TestSpecialChecksRejectFlawedStrategies(t *testing.T) {
	t.Parallel()
	r := source(1)
	wiki := collect(sequences, 5, wikiClamp(r))
	aws := modelOf(t, "AWSDecorrelated")
	assert.Error(t, checkConditional(wiki, 1*second, aws.top))
	assert.Error(t, checkPeak(wiki, 10*time.Millisecond, aws.peak))
	assert.Error(t, checkPeak(wiki, 100*time.Millisecond, aws.peak))

	exact := strategies.DecorrelatedV2{Median: time.Second, Max: math.MaxInt64, Rand: r}
	waits := collect(sequences, 3, eachOf(exact))
	for _, wrong := range []float64{1.39, 1.41} {
		_, err := windows(waits, second*1.4/wrong)
		assert.Error(t, err, "a divisor of %v", wrong)
	}
	// A wrong scale shows in the distribution within the windows, too, although
	// single waits may not show it.
	u, err := windows(waits, 1*second)
	require.NoError(t, err)
	table := newSoftTable(4)
	for i := range u[0] {
		u[0][i] = table.inverse(soft(u[0][i]) * 1.4 / 1.45)
	}
	assert.Error(t, checkUniform(u[0]))

	short := strategies.FullJitter{Base: 7 * time.Millisecond, Rand: source(1)}
	long := strategies.FullJitter{Base: time.Second, Max: time.Minute, Rand: source(1)}
	shortWaits := collect(1000, waitsEach, eachOf(short))
	longWaits := collect(1000, waitsEach, eachOf(long))
	assert.Error(t, checkScale(shortWaits, longWaits, 1000.0/7), "a Max that does not scale")
}
