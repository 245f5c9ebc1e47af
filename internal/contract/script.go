package contract

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/seed421102f4/httpretry/retrytest"
)

// Step is the reaction of a Script to one attempt.
type Step = retrytest.Step

// Sent is one attempt as a Script received it.
type Sent = retrytest.Sent

// Status returns a Step that answers with a status and a body that names it.
// The header is given as pairs of a name and a value.
func Status(code int, header ...string) Step {
	s := retrytest.Status(code, header...)
	s.Body = fmt.Sprintf("body of %d", code)
	return s
}

// Fails returns a Step that returns err.
func Fails(err error) Step { return retrytest.Fails(err) }

// Script is a base transport that plays one Step for each attempt. After the
// last Step it repeats that one. It is safe for concurrent use.
type Script struct {
	*retrytest.Script
	Start time.Time // when the Script was made
}

// Play returns a Script of steps.
func Play(steps ...Step) *Script {
	steps = slices.Clone(steps)
	if last := len(steps) - 1; last >= 0 {
		steps[last] = retrytest.Always(steps[last])
	}
	return &Script{Script: retrytest.Base(unchecked{}, steps...), Start: time.Now()}
}

// unchecked is a test in which a Script may have more steps than requests. Most
// tests compare the number of attempts.
type unchecked struct{}

func (unchecked) Helper()               {}
func (unchecked) Errorf(string, ...any) {}
func (unchecked) Cleanup(func())        {}

// For returns req with a context that has s, for Scripts.
func (s *Script) For(req *http.Request) *http.Request {
	return req.WithContext(context.WithValue(req.Context(), scriptKey{}, s))
}

type scriptKey struct{}

// Scripts is a base transport that plays, for each request, the Script that the
// request was made for.
type Scripts struct{}

// RoundTrip implements http.RoundTripper.
func (Scripts) RoundTrip(req *http.Request) (*http.Response, error) {
	return req.Context().Value(scriptKey{}).(*Script).RoundTrip(req)
}
