package strategies_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/strategies"
)

func TestDeterministicSeries(t *testing.T) {
	tests := map[string]struct {
		s    strategies.Strategy
		want []time.Duration
	}{
		"constant":   {strategies.Constant{Wait: 100 * ms}, milli(100, 100, 100, 100, 100)},
		"constant 0": {strategies.Constant{}, milli(0, 0, 0)},
		"linear":     {strategies.Linear{Base: 100 * ms}, milli(100, 200, 300, 400, 500)},
		"linear 2": {
			strategies.Linear{Base: 100 * ms, Factor: 2}, milli(100, 300, 500, 700, 900)},
		"linear 0.1": {strategies.Linear{Base: 100 * ms, Factor: 0.1},
			milli(100, 110, 120, 130, 140, 150, 160, 170)},
		"linear capped": {
			strategies.Linear{Base: 100 * ms, Max: 250 * ms}, milli(100, 200, 250, 250)},
		"exponential": {strategies.Exponential{Base: 100 * ms}, milli(100, 200, 400, 800, 1600)},
		"exponential 4": {
			strategies.Exponential{Base: 100 * ms, Factor: 4}, milli(100, 400, 1600, 6400, 25600)},
		"exponential 1": {strategies.Exponential{Base: 100 * ms, Factor: 1}, milli(100, 100, 100)},
		"exponential 1.1": {
			strategies.Exponential{Base: 1000 * ms, Factor: 1.1}, milli(1000, 1100, 1210, 1331)},
		"exponential 1.5": {strategies.Exponential{Base: 800 * ms, Factor: 1.5},
			milli(800, 1200, 1800, 2700, 4050)},
		"exponential max": {
			strategies.Exponential{Base: 100 * ms, Max: 500 * ms}, milli(100, 200, 400, 500, 500)},
		"at max exactly": {
			strategies.Exponential{Base: 100 * ms, Max: 400 * ms}, milli(100, 200, 400, 400)},
		"3, max": {strategies.Exponential{Base: 100 * ms, Factor: 3, Max: 500 * ms},
			milli(100, 300, 500, 500)},
		"base is max": {strategies.Exponential{Base: 100 * ms, Max: 100 * ms}, milli(100, 100)},
		"default max": {
			strategies.Exponential{Base: 20 * time.Second}, milli(20_000, 30_000, 30_000)},
		"default max, lin": {
			strategies.Linear{Base: 20 * time.Second}, milli(20_000, 30_000, 30_000)},
		// Beyond 2^53ns float64 would round.
		"exact": {
			strategies.Exponential{Base: 1<<53 + 1, Max: math.MaxInt64},
			[]time.Duration{1<<53 + 1, 1<<54 + 2, 1<<55 + 4, 1<<56 + 8, 1<<57 + 16, 1<<58 + 32,
				1<<59 + 64, 1<<60 + 128},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			assert.NoError(t, strategies.Validate(test.s))
			assert.Equal(t, test.want, strategies.Take(test.s, len(test.want)))
		})
	}
}
