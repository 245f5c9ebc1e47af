package strategies_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
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
		{nil, []string{"nil: want a strategy"}},
		{(*strategies.Exponential)(nil),
			[]string{"a nil *strategies.Exponential: want a pointer that is not nil"}},
		{strategies.Func(nil), []string{"Func: nil: want a function"}},
		{strategies.Func(func(int) time.Duration { return -1 }), nil},
		{lazy{}, nil},

		{strategies.Constant{Wait: time.Hour}, nil},
		{strategies.Constant{Wait: -time.Second},
			[]string{"Constant.Wait: -1s: want at least 1ms, or 0 for no wait"}},

		{strategies.Linear{Factor: 0.1}, nil},
		{strategies.Linear{Base: -ms, Factor: -1, Max: -time.Second}, []string{
			"Linear.Base: -1ms: want at least 1ms, or 0 for the default (100ms)",
			"Linear.Factor: -1: want a positive finite number, or 0 for the default (1)",
			"Linear.Max: -1s: want at least 1ms, or 0 for the default (30s)",
		}},
		{strategies.Linear{Base: time.Second, Factor: nan, Max: ms}, []string{
			"Linear.Factor: NaN: want a positive finite number, or 0 for the default (1)",
			"Linear.Max: 1ms: want at least Base (1s), or 0 for the default (30s)",
		}},
		{strategies.Linear{Factor: inf}, []string{
			"Linear.Factor: +Inf: want a positive finite number, or 0 for the default (1)"}},

		{strategies.Exponential{Base: time.Second, Factor: 1, Max: time.Second}, nil},
		{strategies.Exponential{Base: -ms, Factor: 0.5, Max: -ms}, []string{
			"Exponential.Base: -1ms: want at least 1ms, or 0 for the default (100ms)",
			"Exponential.Factor: 0.5: want a finite number of at least 1, or 0 for the default (2)",
			"Exponential.Max: -1ms: want at least 1ms, or 0 for the default (30s)",
		}},
		{strategies.Exponential{Factor: -1}, []string{
			"Exponential.Factor: -1: want a finite number of at least 1, or 0 for the default (2)",
		}},
		{strategies.Exponential{Factor: -inf}, []string{
			"Exponential.Factor: -Inf: want a finite number of at least 1, or 0 for the default (2)",
		}},
		{strategies.Exponential{Base: time.Minute},
			[]string{"Exponential.Max: 30s (the default): want at least Base (1m0s)"}},
		{strategies.Exponential{Base: 30 * time.Second, Max: ms}, []string{
			"Exponential.Max: 1ms: want at least Base (30s), or 0 for the default (30s)",
		}},
		{strategies.Exponential{Base: 30*time.Second + 1, Max: ms},
			[]string{"Exponential.Max: 1ms: want at least Base (30.000000001s)"}},
		{&strategies.Exponential{Max: ms}, []string{
			"Exponential.Max: 1ms: want at least Base (100ms, the default), or 0 for the " +
				"default (30s)",
		}},
		{strategies.Exponential{Base: -ms, Max: ms}, []string{
			"Exponential.Base: -1ms: want at least 1ms, or 0 for the default (100ms)",
		}},

		{strategies.FullJitter{Base: 100 * ms, Max: ms}, []string{
			"FullJitter.Max: 1ms: want at least Base (100ms), or 0 for the default (30s)",
		}},
		{strategies.FullJitter{Base: -1, Factor: nan, Max: -1}, []string{
			"FullJitter.Base: -1ns: want at least 1ms, or 0 for the default (100ms)",
			"FullJitter.Factor: NaN: want a finite number of at least 1, or 0 for the default (2)",
			"FullJitter.Max: -1ns: want at least 1ms, or 0 for the default (30s)",
		}},
		{strategies.EqualJitter{Base: -1, Factor: 0.99, Max: -1}, []string{
			"EqualJitter.Base: -1ns: want at least 1ms, or 0 for the default (100ms)",
			"EqualJitter.Factor: 0.99: want a finite number of at least 1, or 0 for the default (2)",
			"EqualJitter.Max: -1ns: want at least 1ms, or 0 for the default (30s)",
		}},
		{strategies.EqualJitter{Base: time.Second, Max: ms}, []string{
			"EqualJitter.Max: 1ms: want at least Base (1s), or 0 for the default (30s)",
		}},

		{strategies.Decorrelated{Base: time.Second, Max: time.Second}, nil},
		{strategies.Decorrelated{Base: -1, Max: -1}, []string{
			"Decorrelated.Base: -1ns: want at least 1ms, or 0 for the default (100ms)",
			"Decorrelated.Max: -1ns: want at least 1ms, or 0 for the default (30s)",
		}},
		{strategies.Decorrelated{Max: ms}, []string{
			"Decorrelated.Max: 1ms: want at least Base (100ms, the default), or 0 for the " +
				"default (30s)",
		}},
		{strategies.AWSDecorrelated{Base: time.Second, Max: 2 * time.Second}, nil},
		{strategies.AWSDecorrelated{Base: -1, Max: -1}, []string{
			"AWSDecorrelated.Base: -1ns: want at least 1ms, or 0 for the default (100ms)",
			"AWSDecorrelated.Max: -1ns: want at least 1ms, or 0 for the default (30s)",
		}},
		{strategies.AWSDecorrelated{Base: time.Hour}, []string{
			"AWSDecorrelated.Max: 30s (the default): want at least Base (1h0m0s)",
		}},

		{strategies.DecorrelatedV2{Median: time.Second, Max: time.Second}, nil},
		{strategies.DecorrelatedV2{Median: -1, Max: -1}, []string{
			"DecorrelatedV2.Median: -1ns: want at least 1ms, or 0 for the default (500ms)",
			"DecorrelatedV2.Max: -1ns: want at least 1ms, or 0 for the default (30s)",
		}},
		{strategies.DecorrelatedV2{Max: 100 * ms}, []string{
			"DecorrelatedV2.Max: 100ms: want at least Median (500ms, the default), or 0 for the " +
				"default (30s)",
		}},

		{strategies.Jitter{Of: lazy{}, Fraction: 1}, nil},
		{strategies.Jitter{Of: strategies.Func(nil), Fraction: -0.1}, []string{
			"Jitter.Of: Func: nil: want a function",
			"Jitter.Fraction: -0.1: want a positive number of at most 1, or 0 for the default (1)",
		}},
		{strategies.Jitter{Fraction: inf}, []string{
			"Jitter.Fraction: +Inf: want a positive number of at most 1, or 0 for the default (1)",
		}},
		{strategies.Spread{Fraction: 1}, nil},
		{strategies.Spread{Of: strategies.Constant{Wait: -1}, Fraction: 1.5}, []string{
			"Spread.Of: Constant.Wait: -1ns: want at least 1ms, or 0 for no wait",
			"Spread.Fraction: 1.5: want a positive number of at most 1, or 0 for the default (0.25)",
		}},
		{strategies.Spread{Fraction: nan}, []string{
			"Spread.Fraction: NaN: want a positive number of at most 1, or 0 for the default (0.25)",
		}},
		{strategies.Capped{Of: (*strategies.Linear)(nil), Max: -1}, []string{
			"Capped.Of: a nil *strategies.Linear: want a pointer that is not nil",
			"Capped.Max: -1ns: want at least 1ms, or 0 for the default (30s)",
		}},
		{strategies.FastFirst{Of: strategies.Capped{
			Of:  strategies.FullJitter{Base: -1, Max: -1},
			Max: -1,
		}}, []string{
			"FastFirst.Of: Capped.Of: FullJitter.Base: -1ns: want at least 1ms, or 0 for " +
				"the default (100ms)",
			"FastFirst.Of: Capped.Of: FullJitter.Max: -1ns: want at least 1ms, or 0 for " +
				"the default (30s)",
			"FastFirst.Of: Capped.Max: -1ns: want at least 1ms, or 0 for the default (30s)",
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

// A duration of less than a millisecond is most likely a number without its
// unit. Each field rejects it.
func TestValidateRejectsTinyDurations(t *testing.T) {
	found := 0
	for _, s := range []strategies.Strategy{
		strategies.Constant{}, strategies.Linear{}, strategies.Exponential{},
		strategies.FullJitter{}, strategies.EqualJitter{}, strategies.Decorrelated{},
		strategies.AWSDecorrelated{},
		strategies.DecorrelatedV2{}, strategies.Jitter{}, strategies.Spread{}, strategies.Capped{},
		strategies.FastFirst{},
	} {
		assert.NoError(t, strategies.Validate(s), "%T", s)
		for _, field := range reflect.VisibleFields(reflect.TypeOf(s)) {
			if field.Type != reflect.TypeFor[time.Duration]() {
				continue
			}
			found++
			validate := func(d time.Duration) error {
				changed := reflect.New(reflect.TypeOf(s)).Elem()
				changed.FieldByIndex(field.Index).SetInt(int64(d))
				return strategies.Validate(changed.Interface().(strategies.Strategy))
			}
			for _, d := range []time.Duration{1, 100, ms - 1} {
				assert.ErrorContains(t, validate(d),
					fmt.Sprintf(".%s: %v: want at least 1ms, or 0 for ", field.Name, d), "%T", s)
			}
			if err := validate(ms); err != nil { // Max may be below the default Base
				assert.NotContains(t, err.Error(), "1ms, or 0", "%T.%s", s, field.Name)
			}
		}
	}
	assert.Equal(t, 16, found, "fields")
}

var errPicky = errors.New("not today")

// picky is a strategy of another package that has a Validate method.
type picky struct{ lazy }

func (picky) Validate() error { return errPicky }

func TestValidateOfAnotherPackage(t *testing.T) {
	assert.Equal(t, errPicky, strategies.Validate(picky{}))
	err := strategies.FastFirst{Of: strategies.Jitter{Of: picky{}}}.Validate()
	assert.EqualError(t, err, "FastFirst.Of: Jitter.Of: not today")
	assert.ErrorIs(t, err, errPicky)
}

// ptr can be used through a nil pointer.
type ptr struct{}

func (*ptr) Start() strategies.Sequence { return strategies.Constant{}.Start() }

func TestValidateAcceptsPointersThatMayBeNil(t *testing.T) {
	assert.NoError(t, strategies.Validate((*ptr)(nil)))
}
