package strategies_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/strategies"
)

func TestValidate(t *testing.T) {
	const (
		wait     = ": want at least 1ms, or 0 for no wait"
		base     = ": want at least 1ms, or 0 for the default (100ms)"
		median   = ": want at least 1ms, or 0 for the default (500ms)"
		limit    = ": want at least 1ms, or 0 for the default (30s)"
		slope    = ": want a positive finite number, or 0 for the default (1)"
		factor   = ": want a finite number of at least 1, or 0 for the default (2)"
		jitter   = ": want a positive number of at most 1, or 0 for the default (1)"
		spread   = ": want a positive number of at most 1, or 0 for the default (0.25)"
		orBase   = ", or 0 for the default (30s)"
		function = "Func: nil: want a function"
		pointer  = ": want a pointer that is not nil"
	)
	nan, inf := math.NaN(), math.Inf(1)
	for _, tt := range []struct {
		s    strategies.Strategy
		want string // of several lines; "" if s is fine
	}{
		{nil, "nil: want a strategy"},
		{(*strategies.Exponential)(nil), "a nil *strategies.Exponential" + pointer},
		{(*ptr)(nil), ""},
		{strategies.Func(nil), function},
		{strategies.Func(func(int) time.Duration { return -1 }), ""},
		{lazy{}, ""},

		{strategies.Constant{Wait: time.Hour}, ""},
		{strategies.Constant{Wait: -time.Second}, "Constant.Wait: -1s" + wait},

		{strategies.Linear{Factor: 0.1}, ""},
		{strategies.Linear{Base: -ms, Factor: -1, Max: -time.Second},
			"Linear.Base: -1ms" + base + "\nLinear.Factor: -1" + slope +
				"\nLinear.Max: -1s" + limit},
		{strategies.Linear{Base: time.Second, Factor: nan, Max: ms},
			"Linear.Factor: NaN" + slope + "\nLinear.Max: 1ms: want at least Base (1s)" + orBase},
		{strategies.Linear{Factor: inf}, "Linear.Factor: +Inf" + slope},

		{strategies.Exponential{Base: time.Second, Factor: 1, Max: time.Second}, ""},
		{strategies.Exponential{Base: -ms, Factor: 0.5, Max: ms},
			"Exponential.Base: -1ms" + base + "\nExponential.Factor: 0.5" + factor},
		{strategies.Exponential{Factor: -inf}, "Exponential.Factor: -Inf" + factor},
		{strategies.Exponential{Base: time.Minute},
			"Exponential.Max: 30s (the default): want at least Base (1m0s)"},
		{strategies.Exponential{Base: 30 * time.Second, Max: ms},
			"Exponential.Max: 1ms: want at least Base (30s)" + orBase},
		{strategies.Exponential{Base: 30*time.Second + 1, Max: ms},
			"Exponential.Max: 1ms: want at least Base (30.000000001s)"},
		{&strategies.Exponential{Max: ms},
			"Exponential.Max: 1ms: want at least Base (100ms, the default)" + orBase},

		{strategies.FullJitter{Base: 100 * ms, Max: ms},
			"FullJitter.Max: 1ms: want at least Base (100ms)" + orBase},
		{strategies.FullJitter{Base: -1, Factor: nan, Max: -1}, "FullJitter.Base: -1ns" + base +
			"\nFullJitter.Factor: NaN" + factor + "\nFullJitter.Max: -1ns" + limit},
		{strategies.EqualJitter{Base: -1, Factor: 0.99, Max: -1}, "EqualJitter.Base: -1ns" + base +
			"\nEqualJitter.Factor: 0.99" + factor + "\nEqualJitter.Max: -1ns" + limit},
		{strategies.EqualJitter{Base: time.Second, Max: ms},
			"EqualJitter.Max: 1ms: want at least Base (1s)" + orBase},

		{strategies.Decorrelated{Base: time.Second, Max: time.Second}, ""},
		{strategies.Decorrelated{Base: -1, Max: -1},
			"Decorrelated.Base: -1ns" + base + "\nDecorrelated.Max: -1ns" + limit},
		{strategies.Decorrelated{Max: ms},
			"Decorrelated.Max: 1ms: want at least Base (100ms, the default)" + orBase},
		{strategies.AWSDecorrelated{Base: time.Second, Max: 2 * time.Second}, ""},
		{strategies.AWSDecorrelated{Base: -1, Max: -1},
			"AWSDecorrelated.Base: -1ns" + base + "\nAWSDecorrelated.Max: -1ns" + limit},
		{strategies.AWSDecorrelated{Base: time.Hour},
			"AWSDecorrelated.Max: 30s (the default): want at least Base (1h0m0s)"},

		{strategies.DecorrelatedV2{Median: time.Second, Max: time.Second}, ""},
		{strategies.DecorrelatedV2{Median: -1, Max: -1},
			"DecorrelatedV2.Median: -1ns" + median + "\nDecorrelatedV2.Max: -1ns" + limit},
		{strategies.DecorrelatedV2{Max: 100 * ms},
			"DecorrelatedV2.Max: 100ms: want at least Median (500ms, the default)" + orBase},

		{strategies.Jitter{Of: lazy{}, Fraction: 1}, ""},
		{strategies.Jitter{Of: strategies.Func(nil), Fraction: -0.1},
			"Jitter.Of: " + function + "\nJitter.Fraction: -0.1" + jitter},
		{strategies.Jitter{Fraction: inf}, "Jitter.Fraction: +Inf" + jitter},
		{strategies.Spread{Fraction: 1}, ""},
		{strategies.Spread{Of: strategies.Constant{Wait: -1}, Fraction: 1.5},
			"Spread.Of: Constant.Wait: -1ns" + wait + "\nSpread.Fraction: 1.5" + spread},
		{strategies.Spread{Fraction: nan}, "Spread.Fraction: NaN" + spread},
		{strategies.Capped{Of: (*strategies.Linear)(nil), Max: -1},
			"Capped.Of: a nil *strategies.Linear" + pointer + "\nCapped.Max: -1ns" + limit},
		{strategies.FastFirst{
			Of: strategies.Capped{Of: strategies.FullJitter{Base: -1, Max: -1}, Max: -1},
		}, "FastFirst.Of: Capped.Of: FullJitter.Base: -1ns" + base +
			"\nFastFirst.Of: Capped.Of: FullJitter.Max: -1ns" + limit +
			"\nFastFirst.Of: Capped.Max: -1ns" + limit},
	} {
		if err := strategies.Validate(tt.s); tt.want == "" {
			assert.NoError(t, err, "%+v", tt.s)
		} else {
			assert.EqualError(t, err, tt.want)
		}
	}
}

// A duration of less than a millisecond is most likely a number without its
// unit. Each field rejects it.
func TestValidateRejectsTinyDurations(t *testing.T) {
	found := 0
	for _, s := range []strategies.Strategy{
		strategies.Constant{}, strategies.Linear{}, strategies.Exponential{},
		strategies.FullJitter{}, strategies.EqualJitter{}, strategies.Decorrelated{},
		strategies.AWSDecorrelated{}, strategies.DecorrelatedV2{}, strategies.Jitter{},
		strategies.Spread{}, strategies.Capped{}, strategies.FastFirst{},
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
