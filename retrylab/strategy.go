package main

import (
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

var ofs = regexp.MustCompile(`(?i) of=`)

// parseStrategy parses the strategy of a flag, in the form of strategies.Parse.
// Fields that it has and the text does not set have the values in defaults, by
// their names.
func parseStrategy(flag, text string, random strategies.Rand, defaults map[string]time.Duration) (named, error) {
	name := strings.Join(strings.Fields(text), " ")
	parts := ofs.Split(name, -1)
	for i, part := range parts {
		typ, fields, _ := strings.Cut(part, " ")
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
		s, err = withRand(s, random)
	}
	if err != nil {
		// One problem at a time fits on a line.
		first, _, _ := strings.Cut(err.Error(), "\n")
		return named{}, fmt.Errorf("-%s: %s", flag, first)
	}
	return named{name, s}, nil
}

func withRand(s strategies.Strategy, random strategies.Rand) (strategies.Strategy, error) {
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
			of, err := withRand(x, random)
			if err != nil {
				return nil, err
			}
			field.Set(reflect.ValueOf(of))
		}
	}
	return v.Interface().(strategies.Strategy), nil
}
