// Package fielderr puts the paths of fields before errors that list one
// problem per line.
package fielderr

import "strings"

// At returns err with path and a colon before each of its lines, or nil if err
// is nil. errors.Is and errors.As find err and the errors that it wraps.
func At(path string, err error) error {
	if err == nil {
		return nil
	}
	return &pathError{path, err}
}

type pathError struct {
	path string
	err  error
}

func (e *pathError) Error() string {
	prefix := e.path + ": "
	return prefix + strings.ReplaceAll(e.err.Error(), "\n", "\n"+prefix)
}

func (e *pathError) Unwrap() error { return e.err }
