package main

import (
	"errors"
	"net/http"
	"strings"
	"syscall"

	"github.com/seed421102f4/httpretry"
)

// noRetries turns client-go's retries off. rest.Config has no setting for that,
// only rest.Request has: MaxRetries(0). client-go retries requests of any
// method up to ten times if they get a 429 or 5xx with a Retry-After. It also
// retries GETs whose connection broke.
type noRetries struct{ *httpretry.RetryTransport }

// RoundTrip changes responses and errors so that client-go does not retry.
func (t noRetries) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RetryTransport.RoundTrip(req)
	if err != nil {
		return nil, finalError{err}
	}
	if resp.StatusCode >= 400 {
		// The Status in the body has the value as well.
		resp.Header.Del("Retry-After")
	}
	return resp, nil
}

// finalError hides the errno and the texts by which client-go recognizes a
// connection that broke. Is and As see the rest of the wrapped error.
type finalError struct{ err error }

func (e finalError) Error() string {
	return strings.ReplaceAll(e.err.Error(), "connection", "conn")
}

func (e finalError) Is(target error) bool {
	_, errno := target.(syscall.Errno)
	return !errno && errors.Is(e.err, target)
}

func (e finalError) As(target any) bool {
	_, errno := target.(*syscall.Errno)
	return !errno && errors.As(e.err, target)
}

// Timeout reports whether the wrapped error is a timeout.
func (e finalError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.err, &t) && t.Timeout()
}
