package strategies

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
)

var errNilFunc = errors.New("Func: nil: want a function")

// Validate returns the result of the Validate() error method of s, or nil if s
// has no such method. A nil s is an error, and so is a nil pointer to a type
// whose Start method would dereference it.
//
// Errors have one line per problem, in the order of the fields. Each line has
// the type and the field, the value and the allowed values:
//
//	FullJitter.Max: 1ms: want at least Base (1s), or 0 for the default (30s)
//	Capped.Of: Constant.Wait: -1s: want at least 1ms, or 0 for no wait
func Validate(s Strategy) error {
	if s == nil {
		return errors.New("nil: want a strategy")
	}
	if v := reflect.ValueOf(s); v.Kind() == reflect.Pointer && v.IsNil() &&
		v.Type().Elem().Implements(strategyType) {
		return fmt.Errorf("a nil %T: want a pointer that is not nil", s)
	}
	if v, ok := s.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}

var strategyType = reflect.TypeFor[Strategy]()

// validateOf reports the problems of a wrapped strategy. Nil means the default.
func validateOf(path string, of Strategy) error {
	if of == nil {
		return nil
	}
	if err := Validate(of); err != nil {
		return &pathError{path, err}
	}
	return nil
}

// pathError puts a path before each line of an error, so that every line names
// its field. errors.Is and errors.As find the error itself. It is a copy of
// that of internal/fielderr, because this package imports the standard library
// only.
type pathError struct {
	path string
	err  error
}

func (e *pathError) Error() string {
	return e.path + ": " + strings.ReplaceAll(e.err.Error(), "\n", "\n"+e.path+": ")
}

func (e *pathError) Unwrap() error {
	return e.err
}

// A shorter wait is most likely a number without its unit.
const minWait = time.Millisecond

// validateDuration checks a duration for which 0 means zero.
func validateDuration(path string, d time.Duration, zero string) error {
	if d != 0 && d < minWait {
		return fmt.Errorf("%s: %v: want at least %v, or 0 for %s", path, d, minWait, zero)
	}
	return nil
}

// validateMax checks the field Max of the type typ. It must not be below the
// shortest wait, which the field low holds, since that is most likely a wrong
// unit.
func validateMax(typ, low string, least, leastDefault, limit time.Duration) error {
	if err := validateDuration(typ+".Max", limit, byDefault(defaultMax)); err != nil {
		return err
	}
	lowest := cmp.Or(least, leastDefault)
	if cmp.Or(limit, defaultMax) >= lowest {
		return nil
	}
	limitNote, leastNote, alternative := "", "", ""
	if limit == 0 {
		limitNote = " (the default)"
	}
	if least == 0 {
		leastNote = ", the default"
	}
	// The default is no alternative if it is below the shortest wait, too.
	if defaultMax >= lowest {
		alternative = ", or 0 for " + byDefault(defaultMax)
	}
	return fmt.Errorf("%s.Max: %v%s: want at least %s (%v%s)%s",
		typ, cmp.Or(limit, defaultMax), limitNote, low, lowest, leastNote, alternative)
}

// validateNumber checks a number for which 0 means the default. ok is whether
// it is in its range, and want describes the range.
func validateNumber(path string, x float64, ok bool, want string, zero float64) error {
	if x == 0 || ok && !math.IsInf(x, 0) {
		return nil
	}
	return fmt.Errorf("%s: %v: want %s, or 0 for %s", path, x, want, byDefault(zero))
}

// validateGrowth checks the fields that Exponential, FullJitter and EqualJitter
// share.
func validateGrowth(typ string, base time.Duration, factor float64, limit time.Duration) error {
	return errors.Join(
		validateDuration(typ+".Base", base, byDefault(defaultBase)),
		validateNumber(typ+".Factor", factor, factor >= 1, "a finite number of at least 1",
			defaultFactor),
		validateMax(typ, "Base", base, defaultBase, limit),
	)
}

func validateFraction(path string, x, zero float64) error {
	return validateNumber(path, x, x > 0 && x <= 1, "a positive number of at most 1", zero)
}

func byDefault(value any) string { return fmt.Sprintf("the default (%v)", value) }
