package strategies_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/strategies"
)

func TestDeterministicSeries(t *testing.T) {
	for _, tt := range []struct {
		s    strategies.Strategy
		want []time.Duration
	}{
		{strategies.Constant{Wait: 100 * ms}, milli(100, 100, 100, 100, 100)},
		{strategies.Constant{}, milli(0, 0, 0)},
		{strategies.Linear{Base: 100 * ms}, milli(100, 200, 300, 400, 500)},
		{strategies.Linear{Base: 100 * ms, Factor: 2}, milli(100, 300, 500, 700, 900)},
		{strategies.Linear{Base: 100 * ms, Factor: 0.1},
			milli(100, 110, 120, 130, 140, 150, 160, 170)},
		{strategies.Linear{Base: 100 * ms, Max: 250 * ms}, milli(100, 200, 250, 250)},
		{strategies.Exponential{Base: 100 * ms}, milli(100, 200, 400, 800, 1600)},
		{strategies.Exponential{Base: 100 * ms, Factor: 4}, milli(100, 400, 1600, 6400, 25600)},
		{strategies.Exponential{Base: 100 * ms, Factor: 1}, milli(100, 100, 100)},
		{strategies.Exponential{Base: 1000 * ms, Factor: 1.1}, milli(1000, 1100, 1210, 1331)},
		{strategies.Exponential{Base: 100 * ms, Max: 500 * ms}, milli(100, 200, 400, 500, 500)},
		{strategies.Exponential{Base: 100 * ms, Max: 400 * ms}, milli(100, 200, 400, 400)},
		{strategies.Exponential{Base: 100 * ms, Factor: 3, Max: 500 * ms},
			milli(100, 300, 500, 500)},
		{strategies.Exponential{Base: 100 * ms, Max: 100 * ms}, milli(100, 100)},
		{strategies.Exponential{Base: 20 * time.Second}, milli(20_000, 30_000, 30_000)},
		{strategies.Linear{Base: 20 * time.Second}, milli(20_000, 30_000, 30_000)},
		// Beyond 2^53ns float64 would round.
		{strategies.Exponential{Base: 1<<53 + 1, Max: math.MaxInt64}, []time.Duration{
			1<<53 + 1, 1<<54 + 2, 1<<55 + 4, 1<<56 + 8, 1<<57 + 16, 1<<58 + 32}},
	} {
		assert.NoError(t, strategies.Validate(tt.s), "%+v", tt.s)
		assert.Equal(t, tt.want, strategies.Take(tt.s, len(tt.want)), "%+v", tt.s)
	}
}
