package strategies_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/strategies"
)

func TestValidate(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	tests := []struct {
		s    strategies.Strategy
		want []string // the lines; none if s is fine
	}{
		{nil, []string{"nil is not a strategy"}},
		{(*strategies.Exponential)(nil), []string{"nil *strategies.Exponential is not a strategy"}},
		{strategies.Func(nil), []string{"Func: nil is not a function"}},
		{strategies.Func(func(int) time.Duration { return -1 }), nil},
		{lazy{}, nil},

		{strategies.Constant{Wait: time.Hour}, nil},
		{strategies.Constant{Wait: -time.Second}, []string{"Constant.Wait: -1s is negative"}},

		{strategies.Linear{Factor: 0.1}, nil},
		{strategies.Linear{Base: -ms, Factor: -1, Max: -time.Second}, []string{
			"Linear.Base: -1ms is negative", "Linear.Factor: -1 is negative", "Linear.Max: -1s is negative",
		}},
		{strategies.Linear{Base: time.Second, Factor: nan, Max: ms}, []string{
			"Linear.Factor: NaN is not a number", "Linear.Max: 1ms is below Base (1s)",
		}},
		{strategies.Linear{Factor: inf}, []string{"Linear.Factor: +Inf is not finite"}},

		{strategies.Exponential{Base: time.Second, Factor: 1, Max: time.Second}, nil},
		{strategies.Exponential{Base: -ms, Factor: 0.5, Max: -ms}, []string{
			"Exponential.Base: -1ms is negative", "Exponential.Factor: 0.5 is below 1", "Exponential.Max: -1ms is negative",
		}},
		{strategies.Exponential{Factor: -1}, []string{"Exponential.Factor: -1 is below 1"}},
		{strategies.Exponential{Factor: -inf}, []string{"Exponential.Factor: -Inf is not finite"}},
		{strategies.Exponential{Base: time.Minute}, []string{"Exponential.Max: 30s (the default) is below Base (1m0s)"}},
		{&strategies.Exponential{Max: ms}, []string{"Exponential.Max: 1ms is below Base (100ms, the default)"}},
		{strategies.Exponential{Base: -ms, Max: ms}, []string{"Exponential.Base: -1ms is negative"}},

		{strategies.FullJitter{Base: 100 * ms, Max: ms}, []string{"FullJitter.Max: 1ms is below Base (100ms)"}},
		{strategies.FullJitter{Base: -1, Factor: nan, Max: -1}, []string{
			"FullJitter.Base: -1ns is negative", "FullJitter.Factor: NaN is not a number", "FullJitter.Max: -1ns is negative",
		}},
		{strategies.EqualJitter{Base: -1, Factor: 0.99, Max: -1}, []string{
			"EqualJitter.Base: -1ns is negative", "EqualJitter.Factor: 0.99 is below 1", "EqualJitter.Max: -1ns is negative",
		}},
		{strategies.EqualJitter{Base: time.Second, Max: ms}, []string{"EqualJitter.Max: 1ms is below Base (1s)"}},

		{strategies.Decorrelated{Base: time.Second, Max: time.Second}, nil},
		{strategies.Decorrelated{Base: -1, Max: -1}, []string{
			"Decorrelated.Base: -1ns is negative", "Decorrelated.Max: -1ns is negative",
		}},
		{strategies.Decorrelated{Max: ms}, []string{"Decorrelated.Max: 1ms is below Base (100ms, the default)"}},
		{strategies.AWSDecorrelated{Base: time.Second, Max: 2 * time.Second}, nil},
		{strategies.AWSDecorrelated{Base: -1, Max: -1}, []string{
			"AWSDecorrelated.Base: -1ns is negative", "AWSDecorrelated.Max: -1ns is negative",
		}},
		{strategies.AWSDecorrelated{Base: time.Hour}, []string{
			"AWSDecorrelated.Max: 30s (the default) is below Base (1h0m0s)",
		}},

		{strategies.DecorrelatedV2{Median: time.Second, Max: time.Second}, nil},
		{strategies.DecorrelatedV2{Median: -1, Max: -1}, []string{
			"DecorrelatedV2.Median: -1ns is negative", "DecorrelatedV2.Max: -1ns is negative",
		}},
		{strategies.DecorrelatedV2{Max: 100 * ms}, []string{
			"DecorrelatedV2.Max: 100ms is below Median (500ms, the default)",
		}},

		{strategies.Jitter{Of: lazy{}, Fraction: 1}, nil},
		{strategies.Jitter{Of: strategies.Func(nil), Fraction: -0.1}, []string{
			"Jitter.Of: Func: nil is not a function", "Jitter.Fraction: -0.1 is outside [0, 1]",
		}},
		{strategies.Jitter{Fraction: inf}, []string{"Jitter.Fraction: +Inf is outside [0, 1]"}},
		{strategies.Spread{Fraction: 1}, nil},
		{strategies.Spread{Of: strategies.Constant{Wait: -1}, Fraction: 1.5}, []string{
			"Spread.Of: Constant.Wait: -1ns is negative", "Spread.Fraction: 1.5 is outside [0, 1]",
		}},
		{strategies.Spread{Fraction: nan}, []string{"Spread.Fraction: NaN is not a number"}},
		{strategies.Capped{Of: (*strategies.Linear)(nil), Max: -1}, []string{
			"Capped.Of: nil *strategies.Linear is not a strategy", "Capped.Max: -1ns is negative",
		}},
		{strategies.FastFirst{Of: strategies.Capped{
			Of:  strategies.FullJitter{Base: -1, Max: -1},
			Max: -1,
		}}, []string{
			"FastFirst.Of: Capped.Of: FullJitter.Base: -1ns is negative",
			"FastFirst.Of: Capped.Of: FullJitter.Max: -1ns is negative",
			"FastFirst.Of: Capped.Max: -1ns is negative",
		}},
	}
	for _, test := range tests {
		err := strategies.Validate(test.s)
		if test.want == nil {
			assert.NoError(t, err, "%+v", test.s)
			continue
		}
		assert.EqualError(t, err, strings.Join(test.want, "\n"))
	}
}

var errPicky = errors.New("not today")

// picky is a strategy of another package that knows when it is invalid.
type picky struct{ lazy }

func (picky) Validate() error { return errPicky }

func TestValidateAsksStrategiesOfOthers(t *testing.T) {
	assert.Equal(t, errPicky, strategies.Validate(picky{}))
	err := strategies.FastFirst{Of: strategies.Jitter{Of: picky{}}}.Validate()
	assert.EqualError(t, err, "FastFirst.Of: Jitter.Of: not today")
	assert.ErrorIs(t, err, errPicky)
}

// ptr works with a nil pointer, which is its own business.
type ptr struct{}

func (*ptr) Start() strategies.Sequence { return strategies.Constant{}.Start() }

func TestValidateAcceptsPointersThatMayBeNil(t *testing.T) {
	assert.NoError(t, strategies.Validate((*ptr)(nil)))
}
