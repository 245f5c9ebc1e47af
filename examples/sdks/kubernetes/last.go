package main

import (
	"errors"
	"net/http"
	"strings"
	"syscall"

	"github.com/seed421102f4/httpretry"
)

// last turns client-go's retries off, for which rest.Config has no setting (a
// rest.Request has: MaxRetries(0)). client-go repeats, up to ten times, what is
// answered by a 429 or 5xx with a Retry-After, whatever the method, and GETs
// whose connection broke. What comes out here has been repeated as it should.
type last struct{ *httpretry.RetryTransport }

// RoundTrip hides what client-go looks for.
func (l last) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.RetryTransport.RoundTrip(req)
	if err != nil {
		return nil, finalError{err}
	}
	if resp.StatusCode >= 400 {
		resp.Header.Del("Retry-After") // the Status in the body says it as well
	}
	return resp, nil
}

// finalError has neither the errno nor the texts by which client-go knows a
// connection that broke. Is and As see the rest of the error inside.
type finalError struct{ err error }

func (e finalError) Error() string { return strings.ReplaceAll(e.err.Error(), "connection", "conn") }

func (e finalError) Is(target error) bool {
	_, errno := target.(syscall.Errno)
	return !errno && errors.Is(e.err, target)
}

func (e finalError) As(target any) bool {
	_, errno := target.(*syscall.Errno)
	return !errno && errors.As(e.err, target)
}

// Timeout is asked for by a type assertion.
func (e finalError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.err, &t) && t.Timeout()
}
