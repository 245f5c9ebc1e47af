package strategies

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxNesting is the number of strategies that a text may contain, each in the
// field Of of the one before.
const maxNesting = 16

// textual returns the zero values of the strategies that have a text.
func textual() []Strategy {
	return []Strategy{
		Constant{}, Linear{}, Exponential{}, FullJitter{}, EqualJitter{}, Decorrelated{},
		AWSDecorrelated{}, DecorrelatedV2{}, Jitter{}, Spread{}, Capped{}, FastFirst{},
	}
}

// Parse returns the strategy that a text describes. A text has the name of a
// type of this package and the values of its fields, with spaces between them:
//
//	DecorrelatedV2
//	FullJitter Base=100ms Max=10s
//	Spread Fraction=0.2 Of=Exponential Base=1s Factor=3
//
// Durations have units, as in [time.ParseDuration]. A field that is missing has
// its default. Of is the last field of a strategy, because all words after it
// are fields of the strategy that it names. The case of names does not matter.
// A text contains at most 16 strategies, and no Rand.
//
// An error has one line for each problem: the type and the field, the value and
// the allowed values. A strategy that [Validate] rejects is an error, too.
func Parse(text string) (Strategy, error) {
	var r textReader
	words := strings.Fields(text)
	if len(words) == 0 {
		r.begin("")
	}
	for i, word := range words {
		switch {
		case r.stopped:
		case i == 0:
			r.begin(word)
		default:
			r.read(word)
		}
	}
	if err := errors.Join(r.problems...); err != nil {
		return nil, err
	}
	s := r.strategy()
	if err := Validate(s); err != nil {
		return nil, err
	}
	return s, nil
}

// A textReader reads the words of a text.
type textReader struct {
	chain    []reflect.Value // the strategies so far, each in the Of of the one before
	fields   map[string]bool // those of the last strategy that the text sets
	problems []error
	stopped  bool // the type of the next words is not known
}

// begin begins a strategy of the type name.
func (r *textReader) begin(name string) {
	var names []string
	for _, zero := range textual() {
		t := reflect.TypeOf(zero)
		if strings.EqualFold(t.Name(), name) {
			r.chain = append(r.chain, reflect.New(t).Elem())
			r.fields = map[string]bool{}
			return
		}
		names = append(names, t.Name())
	}
	r.stopped = true
	r.problem("strategy %q: want one of %s", name, strings.Join(names, ", "))
}

// read reads one field.
func (r *textReader) read(word string) {
	v := r.chain[len(r.chain)-1]
	typ := v.Type().Name()
	name, value, _ := strings.Cut(word, "=")
	var names []string
	for f, field := range v.Fields() {
		if f.Name == "Rand" {
			continue
		}
		names = append(names, f.Name+"=")
		if !strings.EqualFold(f.Name, name) {
			continue
		}
		if r.fields[f.Name] {
			r.problem("%s.%s: %q is the second value: want one", typ, f.Name, value)
		}
		r.fields[f.Name] = true
		r.set(typ+"."+f.Name, field, value)
		return
	}
	// The words after an Of are fields of another strategy.
	r.stopped = strings.EqualFold(name, "Of")
	r.problem("%s: %q: want %s", typ, word, strings.Join(names, ", "))
}

// set sets a field, which has the given path.
func (r *textReader) set(path string, field reflect.Value, value string) {
	switch field.Interface().(type) {
	case time.Duration:
		d, err := time.ParseDuration(value)
		if err != nil {
			r.problem("%s: %q: want a duration with its unit, such as 100ms or 2s", path, value)
		}
		field.SetInt(int64(d))
	case float64:
		x, err := strconv.ParseFloat(value, 64)
		if err != nil {
			r.problem("%s: %q: want a number", path, value)
		}
		field.SetFloat(x)
	default: // Of
		if len(r.chain) == maxNesting {
			r.stopped = true
			r.problem("%s: %q: want at most %d strategies", path, value, maxNesting)
			return
		}
		r.begin(value)
	}
}

func (r *textReader) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Errorf(format, args...))
}

// strategy puts the strategies of the chain into one another.
func (r *textReader) strategy() Strategy {
	var s Strategy
	for i := len(r.chain) - 1; i >= 0; i-- {
		if s != nil {
			r.chain[i].FieldByName("Of").Set(reflect.ValueOf(s))
		}
		s = r.chain[i].Interface().(Strategy)
	}
	return s
}

// Format returns the text from which [Parse] makes a strategy equal to s. The
// text omits fields that are zero. Format returns an error for some strategies:
//
//   - It is of another type, such as [Func], a pointer, or a type of another
//     package.
//   - Its Rand is not nil.
//   - It is not valid, or contains more than 16 strategies.
//
// The same holds for strategies in the field Of.
func Format(s Strategy) (string, error) {
	if err := Validate(s); err != nil {
		return "", err
	}
	var words []string
	for n := 1; s != nil; n++ {
		v := reflect.ValueOf(s)
		if !isTextual(v.Type()) || n > maxNesting {
			return "", fmt.Errorf("a %T: want a struct of package strategies, and at most %d of them",
				s, maxNesting)
		}
		name, of := v.Type().Name(), Strategy(nil)
		if n > 1 {
			name = "Of=" + name
		}
		words = append(words, name)
		for f, field := range v.Fields() {
			if field.IsZero() {
				continue
			}
			switch x := field.Interface().(type) {
			case time.Duration:
				words = append(words, f.Name+"="+x.String())
			case float64:
				words = append(words, f.Name+"="+strconv.FormatFloat(x, 'g', -1, 64))
			case Strategy:
				of = x
			default:
				return "", fmt.Errorf("%s.%s: a function: want nil", v.Type().Name(), f.Name)
			}
		}
		s = of
	}
	return strings.Join(words, " "), nil
}

func isTextual(t reflect.Type) bool {
	return slices.ContainsFunc(textual(), func(zero Strategy) bool {
		return reflect.TypeOf(zero) == t
	})
}
