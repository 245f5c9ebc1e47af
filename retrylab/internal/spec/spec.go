// Package spec parses strategies from text, such as
//
//	FullJitter Base=100ms Max=10s
//	Spread Fraction=0.2 Of=Exponential Base=1s
//
// Names are those of package strategies. The fields of a strategy that is
// wrapped follow its Of.
package spec

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/strategies"
)

// A Named is a strategy with the text that it was parsed from.
type Named struct {
	Name     string
	Strategy strategies.Strategy
}

// MaxDuration is the longest duration that commands accept. A thousand attempts
// and waits of that length are far from the end of a time.Duration.
const MaxDuration = 100 * time.Hour

// types returns the strategies by their names. Clamp is not in the library.
func types() map[string]strategies.Strategy {
	return map[string]strategies.Strategy{
		"Constant":        strategies.Constant{},
		"Linear":          strategies.Linear{},
		"Exponential":     strategies.Exponential{},
		"FullJitter":      strategies.FullJitter{},
		"EqualJitter":     strategies.EqualJitter{},
		"Decorrelated":    strategies.Decorrelated{},
		"AWSDecorrelated": strategies.AWSDecorrelated{},
		"DecorrelatedV2":  strategies.DecorrelatedV2{},
		"Jitter":          strategies.Jitter{},
		"Spread":          strategies.Spread{},
		"Capped":          strategies.Capped{},
		"FastFirst":       strategies.FastFirst{},
		"Clamp":           Clamp{},
	}
}

// Parse parses a strategy. Fields that it has and the text does not set have
// the values in defaults, by their names.
func Parse(text string, random strategies.Rand, defaults map[string]time.Duration) (Named, error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return Named{}, fmt.Errorf("an empty strategy: want one of %s", names())
	}
	s, err := parse(words, random, defaults)
	if err != nil {
		return Named{}, err
	}
	if err := strategies.Validate(s); err != nil {
		// One problem at a time fits on a line.
		first, _, _ := strings.Cut(err.Error(), "\n")
		return Named{}, fmt.Errorf("%s", first)
	}
	return Named{strings.Join(words, " "), s}, nil
}

func names() string { return strings.Join(slices.Sorted(maps.Keys(types())), ", ") }

func parse(words []string, random strategies.Rand, defaults map[string]time.Duration) (strategies.Strategy, error) {
	zero := lookUp(words[0])
	if zero == nil {
		return nil, fmt.Errorf("strategy %q: want one of %s", words[0], names())
	}
	v := reflect.New(reflect.TypeOf(zero)).Elem()
	for name, d := range defaults {
		if field := v.FieldByName(name); field.IsValid() && d > 0 {
			field.SetInt(int64(d))
		}
	}
	if field := v.FieldByName("Rand"); field.IsValid() {
		field.Set(reflect.ValueOf(random))
	}
	for i, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		field := fieldNamed(v, name)
		if !field.IsValid() {
			return nil, fmt.Errorf("%s: %q: want %s", v.Type().Name(), word, fieldsOf(v))
		}
		// The rest of the words belong to the strategy that is wrapped.
		if field.Type() == reflect.TypeFor[strategies.Strategy]() {
			of, err := parse(append([]string{value}, words[i+2:]...), random, defaults)
			if err != nil {
				return nil, err
			}
			field.Set(reflect.ValueOf(of))
			break
		}
		if err := set(field, value); err != nil {
			return nil, fmt.Errorf("%s: %s=%q: %w", v.Type().Name(), name, value, err)
		}
	}
	return v.Interface().(strategies.Strategy), nil
}

func lookUp(name string) strategies.Strategy {
	for n, s := range types() {
		if strings.EqualFold(n, name) {
			return s
		}
	}
	return nil
}

func fieldNamed(v reflect.Value, name string) reflect.Value {
	for f, field := range v.Fields() {
		if strings.EqualFold(f.Name, name) && f.Name != "Rand" {
			return field
		}
	}
	return reflect.Value{}
}

func fieldsOf(v reflect.Value) string {
	var list []string
	for f := range v.Fields() {
		if f.Name != "Rand" {
			list = append(list, f.Name+"=")
		}
	}
	return strings.Join(list, ", ")
}

func set(field reflect.Value, value string) error {
	switch field.Interface().(type) {
	case time.Duration:
		d, err := time.ParseDuration(value)
		if err != nil {
			return fmt.Errorf("want a duration such as 100ms or 2s")
		}
		if d > MaxDuration {
			return fmt.Errorf("want at most %v", MaxDuration)
		}
		field.SetInt(int64(d))
	case float64:
		x, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return fmt.Errorf("want a number")
		}
		field.SetFloat(x)
	}
	return nil
}

// Clamp is the flawed decorrelated jitter of an early draft. It waits min(Max,
// max(Base, uniform(0, 3·p))), where p is the wait before, and Base for the
// first. A third of the first waits are exactly Base, so the clients that have
// these retry at the same moment. It is for contrast.
type Clamp struct {
	Base time.Duration // 0: 100ms
	Max  time.Duration // 0: 30s
	Rand strategies.Rand
}

// Start implements strategies.Strategy.
func (c Clamp) Start() strategies.Sequence {
	base, limit := c.Base, c.Max
	if base == 0 {
		base = 100 * time.Millisecond
	}
	if limit == 0 {
		limit = 30 * time.Second
	}
	prev := base
	return func() time.Duration {
		prev = min(limit, max(base, time.Duration(c.Rand()*3*float64(prev))))
		return prev
	}
}

// Validate reports fields that are out of range, with the rules of
// AWSDecorrelated.
func (c Clamp) Validate() error {
	err := strategies.AWSDecorrelated{Base: c.Base, Max: c.Max}.Validate()
	if err != nil {
		return fmt.Errorf("%s", strings.ReplaceAll(err.Error(), "AWSDecorrelated", "Clamp"))
	}
	return nil
}
