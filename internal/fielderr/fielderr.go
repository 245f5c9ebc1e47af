// Package fielderr has errors about fields. An error lists one problem per
// line: the path of a field, its value, and the allowed values. [Problems]
// returns them as values.
package fielderr

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// A Problem is one problem of an error.
type Problem struct {
	Path  string // such as `httpretry: Config.Policies["a.test"].MaxElapsed`
	Key   string // the first key in Path, such as "a.test", or ""
	Field string // the first field in Path, such as "MaxElapsed", or ""
	Value string // the value, or the text of an error that is not of this package
	Want  string // the allowed values, or "" if Value has them
}

// Text returns the value and the allowed values.
func (p Problem) Text() string {
	if p.Want == "" {
		return p.Value
	}
	return p.Value + ": want " + p.Want
}

// String returns the path and the text. Each line of the text has the path.
func (p Problem) String() string {
	if p.Path == "" {
		return p.Text()
	}
	prefix := p.Path + ": "
	return prefix + strings.ReplaceAll(p.Text(), "\n", "\n"+prefix)
}

// New returns an error about a value, without a path.
func New(value any, want string) error { return &valueError{fmt.Sprint(value), want} }

type valueError struct{ value, want string }

func (e *valueError) Error() string { return Problem{Value: e.value, Want: e.want}.Text() }

// At returns err with path before the paths of its problems, or nil if err is
// nil. errors.Is and errors.As find err and the errors that it wraps.
func At(path string, err error) error { return below(root, path, err) }

// AtField is At for a field of the struct that the path before it leads to.
func AtField(name string, err error) error { return below(field, name, err) }

// AtKey is At for a key of the map that the path before it leads to.
func AtKey(key string, err error) error { return below(mapKey, key, err) }

// A stepKind is a kind of parts of a path.
type stepKind int

const (
	root stepKind = iota
	field
	mapKey
)

func below(kind stepKind, name string, err error) error {
	if err == nil {
		return nil
	}
	return &pathError{kind, name, err}
}

type pathError struct {
	kind stepKind
	name string
	err  error
}

func (e *pathError) Error() string { return text(e) }

func (e *pathError) Unwrap() error { return e.err }

// Join returns an error with the problems of those errs that are not nil, or
// nil if all are. Problems takes it apart. It does not take the result of
// errors.Join apart, which has no type of its own.
func Join(errs ...error) error {
	var all joinedError
	for _, err := range errs {
		if err != nil {
			all = append(all, err)
		}
	}
	if all == nil {
		return nil
	}
	return &all
}

type joinedError []error

func (e *joinedError) Error() string { return text(e) }

func (e *joinedError) Unwrap() []error { return *e }

// text returns the problems of err, one per line.
func text(err error) string {
	var lines []string
	for _, p := range Problems(err) {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// Problems returns the problems of err. An error that is not of this package is
// one problem, whatever it wraps.
func Problems(err error) []Problem {
	if err == nil {
		return nil
	}
	return Problem{}.with(nil, err)
}

// with appends the problems of err, below the path of p, to all.
func (p Problem) with(all []Problem, err error) []Problem {
	switch err := err.(type) {
	case *pathError:
		return p.at(err.kind, err.name).with(all, err.err)
	case *joinedError:
		for _, err := range *err {
			all = p.with(all, err)
		}
		return all
	case *valueError:
		p.Value, p.Want = err.value, err.want
	default:
		p.Value = err.Error()
	}
	return append(all, p)
}

// at returns p with one more step in its path.
func (p Problem) at(kind stepKind, name string) Problem {
	separator := ": "
	switch kind {
	case mapKey:
		p.Key = cmp.Or(p.Key, name)
		separator, name = "", "["+strconv.Quote(name)+"]"
	case field:
		p.Field = cmp.Or(p.Field, name)
		separator = "."
	}
	if p.Path != "" {
		p.Path += separator
	}
	p.Path += name
	return p
}
