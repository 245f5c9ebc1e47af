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

var errNilFunc = errors.New("Func: nil is not a function")

// Validate returns what the Validate() error method of s returns, or nil if s has none. A nil s is an error, and so is a
// nil pointer to a type that cannot be used through one.
//
// Errors hold one problem per line, in the order of the fields, each beginning with the type and the field:
//
//	FullJitter.Max: 1ms is below Base (100ms)
//	Capped.Of: Linear.Factor: -1 is negative
func Validate(s Strategy) error {
	if s == nil {
		return errors.New("nil is not a strategy")
	}
	if v := reflect.ValueOf(s); v.Kind() == reflect.Pointer && v.IsNil() && v.Type().Elem().Implements(strategyType) {
		return fmt.Errorf("nil %T is not a strategy", s)
	}
	if v, ok := s.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}

var strategyType = reflect.TypeFor[Strategy]()

// validateOf reports the problems of a wrapped strategy. Nil is none: it means the default.
func validateOf(path string, of Strategy) error {
	if of == nil {
		return nil
	}
	if err := Validate(of); err != nil {
		return &pathError{path, err}
	}
	return nil
}

// pathError puts a path before each line of an error, so that a line says by itself which field it is about, and leaves
// the error for errors.Is and errors.As to find.
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

func validateNotNegative(path string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("%s: %v is negative", path, d)
	}
	return nil
}

// validateMax checks the field Max of the type typ, and that it is not below the shortest wait, which the field low holds.
// A limit that contradicts the rest is more likely a slip of units than an intention.
func validateMax(typ, low string, least, leastDefault, limit time.Duration) error {
	if err := validateNotNegative(typ+".Max", limit); err != nil {
		return err
	}
	if cmp.Or(limit, defaultMax) >= cmp.Or(least, leastDefault) {
		return nil
	}
	limitNote, leastNote := "", ""
	if limit == 0 {
		limitNote = " (the default)"
	}
	if least == 0 {
		leastNote = ", the default"
	}
	return fmt.Errorf("%s.Max: %v%s is below %s (%v%s)",
		typ, cmp.Or(limit, defaultMax), limitNote, low, cmp.Or(least, leastDefault), leastNote)
}

func validateFinite(path string, x float64) error {
	switch {
	case math.IsNaN(x):
		return fmt.Errorf("%s: %v is not a number", path, x)
	case math.IsInf(x, 0):
		return fmt.Errorf("%s: %v is not finite", path, x)
	}
	return nil
}

// validateGrowth checks the fields that Exponential, FullJitter and EqualJitter share.
func validateGrowth(typ string, base time.Duration, factor float64, limit time.Duration) error {
	factorErr := validateFinite(typ+".Factor", factor)
	if factorErr == nil && factor != 0 && factor < 1 {
		factorErr = fmt.Errorf("%s.Factor: %v is below 1", typ, factor)
	}
	return errors.Join(
		validateNotNegative(typ+".Base", base),
		factorErr,
		validateMax(typ, "Base", base, defaultBase, limit),
	)
}

func validateFraction(path string, x float64) error {
	switch {
	case math.IsNaN(x):
		return fmt.Errorf("%s: %v is not a number", path, x)
	case x < 0 || x > 1:
		return fmt.Errorf("%s: %v is outside [0, 1]", path, x)
	}
	return nil
}
