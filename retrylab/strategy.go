package main

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/strategies"
)

// A named is a strategy with the text that it was parsed from.
type named struct {
	Name     string
	Strategy strategies.Strategy
}

// maxDuration is the longest duration that commands accept. A thousand attempts
// and waits of that length are far from the end of a time.Duration.
const maxDuration = 100 * time.Hour

// standIn is the strategy of the library that has the fields of Clamp.
const standIn = "AWSDecorrelated"

var ofs = regexp.MustCompile(`(?i) of=`)

// parseStrategy parses a strategy, in the form of strategies.Parse. It adds Clamp,
// which is not in the library. Fields that it has and the text does not set have
// the values in defaults, by their names.
func parseStrategy(text string, random strategies.Rand, defaults map[string]time.Duration) (named, error) {
	name := strings.Join(strings.Fields(text), " ")
	parts, clamped := ofs.Split(name, -1), false
	for i, part := range parts {
		typ, fields, _ := strings.Cut(part, " ")
		if strings.EqualFold(typ, "Clamp") {
			typ, clamped = standIn, true
		}
		parts[i] = typ + " " + fields
		zero, err := strategies.Parse(typ)
		if err != nil {
			continue // Parse of all parts reports it
		}
		for field, value := range defaults {
			_, has := reflect.TypeOf(zero).FieldByName(field)
			isSet := strings.Contains(" "+strings.ToLower(fields), " "+strings.ToLower(field)+"=")
			if has && !isSet && value > 0 {
				parts[i] += " " + field + "=" + value.String()
			}
		}
	}
	s, err := strategies.Parse(strings.Join(parts, " Of="))
	if err == nil {
		s, err = withRand(s, random, clamped)
	}
	if err != nil {
		return named{}, firstProblem(err, clamped)
	}
	return named{name, s}, nil
}

// firstProblem returns the first problem of err, since one at a time fits on a line.
func firstProblem(err error, clamped bool) error {
	first, _, _ := strings.Cut(err.Error(), "\n")
	switch {
	case strings.HasPrefix(first, "strategy "):
		first += ", Clamp"
	case clamped:
		first = strings.ReplaceAll(first, standIn, "Clamp")
	}
	return errors.New(first)
}

func withRand(s strategies.Strategy, random strategies.Rand, clamped bool) (strategies.Strategy, error) {
	v := reflect.New(reflect.TypeOf(s)).Elem()
	v.Set(reflect.ValueOf(s))
	for f, field := range v.Fields() {
		switch x := field.Interface().(type) {
		case time.Duration:
			if x > maxDuration {
				return nil, fmt.Errorf("%s.%s: %v: want at most %v", v.Type().Name(), f.Name, x, maxDuration)
			}
		case strategies.Rand:
			field.Set(reflect.ValueOf(random))
		case strategies.Strategy:
			of, err := withRand(x, random, clamped)
			if err != nil {
				return nil, err
			}
			field.Set(reflect.ValueOf(of))
		}
	}
	if aws, ok := v.Interface().(strategies.AWSDecorrelated); ok && clamped {
		return clamp(aws), nil
	}
	return v.Interface().(strategies.Strategy), nil
}

// clamp is the flawed decorrelated jitter of an early draft. It waits min(Max,
// max(Base, uniform(0, 3·p))), where p is the wait before, and Base for the
// first. A third of the first waits are exactly Base, so the clients that have
// these retry at the same moment. It is for contrast.
type clamp struct {
	Base time.Duration // 0: 100ms
	Max  time.Duration // 0: 30s
	Rand strategies.Rand
}

func (c clamp) Start() strategies.Sequence {
	base, limit := cmp.Or(c.Base, 100*time.Millisecond), cmp.Or(c.Max, 30*time.Second)
	prev := base
	return func() time.Duration {
		prev = min(limit, max(base, time.Duration(c.Rand()*3*float64(prev))))
		return prev
	}
}
