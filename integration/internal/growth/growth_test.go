package growth

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A series that varies as those of a busy run do is flat, also after a warm-up.
// A constant leak is noticed, also if it begins late.
func TestJudge(t *testing.T) {
	r := NewResources()
	for _, c := range []struct {
		series                *Series
		normal, spread, leaks float64
	}{
		{&r.Goroutines, 280, 6, 3},
		{&r.Descriptors, 150, 6, 3},
		{&r.Heap, 10 << 10, 700, 300},
		{&r.RSS, 30 << 10, 1200, 1500},
	} {
		for trend, more := range map[string]func(i float64) float64{
			"no trend":      func(float64) float64 { return 0 },
			"a warm-up":     func(i float64) float64 { return min(0, i-SamplesPerRun/4) * 4 },
			"less and less": func(i float64) float64 { return -i },
			"a leak":        func(i float64) float64 { return i },
			"a late leak":   func(i float64) float64 { return 3 * max(0, i-SamplesPerRun/2) },
		} {
			rnd := rand.New(rand.NewPCG(1, 2))
			c.series.Samples = nil
			for i := range SamplesPerRun {
				c.series.Add(c.normal + c.spread*rnd.NormFloat64() + c.leaks*more(float64(i)))
			}
			want := trend != "a leak" && trend != "a late leak"
			assert.Equal(t, want, c.series.Judge().Flat(), "%s: %s", c.series.Name, trend)
		}
	}
}
