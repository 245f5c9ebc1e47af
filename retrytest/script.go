package retrytest

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
)

// T is the part of [testing.TB] that a [Script] uses. It does not end the test,
// so requests may be sent by any goroutine.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Cleanup(f func())
}

// Script is a base transport that plays steps. [Base] returns one. It is safe
// for concurrent use.
type Script struct {
	steps []Step
	start time.Time

	mu   sync.Mutex
	t    T // nil once the test has ended, when it must not be used any more
	sent []Sent
}

// Sent is a request as a [Script] got it.
type Sent struct {
	_ [0]func() // no unkeyed literals, no comparison

	Method  string
	URL     string
	Header  http.Header // a copy
	Body    string
	At      time.Duration // since Base was called
	Attempt int           // the result of httpretry.Attempt

	// Request is the request itself. Its Body has been closed.
	Request *http.Request
}

// Base returns a [Script] that plays each step once, in order. It fails the
// test in these cases:
//
//   - A request has no step. RoundTrip returns an error for it, which is Final,
//     so that it is not retried.
//   - A step was not played when the test ends, unless it is of [Always].
//   - A step follows one of Always.
func Base(t T, steps ...Step) *Script {
	t.Helper()
	s := &Script{steps: slices.Clone(steps), start: time.Now(), t: t}
	for i, step := range steps {
		if step.always && i < len(steps)-1 {
			t.Errorf("retrytest: step %d is of Always, so the steps after it are never played", i+1)
		}
	}
	t.Cleanup(s.checkPlayed)
	return s
}

// checkPlayed checks that all steps were played.
func (s *Script) checkPlayed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.t.Helper()
	played := min(len(s.sent), len(s.steps))
	left := len(s.steps) - played
	if left > 0 && !s.steps[played].always {
		s.t.Errorf("retrytest: %d of %d steps were not played", left, len(s.steps))
	}
	s.t = nil
}

// RoundTrip implements [http.RoundTripper]. It reads the request's body, unless
// the step is Unread, and closes it. It returns when the step has been played or
// the context is done.
func (s *Script) RoundTrip(req *http.Request) (*http.Response, error) {
	n, step, err := s.record(req)
	if err != nil {
		step.Unread = true
	}
	body, bodyErr := s.readBody(n, req, step.Unread)
	switch {
	case err != nil:
		return nil, err
	case bodyErr != nil:
		return nil, bodyErr
	}
	if err := step.await(req); err != nil {
		return nil, err
	}
	return step.answer(req, body)
}

// record records a request, and returns its number, from 0, and its step.
func (s *Script) record(req *http.Request) (n int, step Step, err error) {
	sent := Sent{
		Method:  cmp.Or(req.Method, http.MethodGet),
		Header:  req.Header.Clone(),
		Attempt: httpretry.Attempt(req.Context()),
		Request: req,
	}
	if req.URL != nil {
		sent.URL = req.URL.String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sent.At = time.Since(s.start)
	n = len(s.sent)
	s.sent = append(s.sent, sent)
	last := len(s.steps) - 1
	switch {
	case n <= last:
		return n, s.steps[n], nil
	case last >= 0 && s.steps[last].always:
		return n, s.steps[last], nil
	}
	err = fmt.Errorf("retrytest: request %d, %s %s, has no step", n+1, sent.Method, sent.URL)
	if s.t != nil {
		s.t.Helper()
		s.t.Errorf("%v", err)
	}
	return n, Step{}, httpretry.WithOutcome(err, httpretry.Final)
}

// readBody reads, unless unread is true, and closes the body of request n.
func (s *Script) readBody(n int, req *http.Request, unread bool) (string, error) {
	if req.Body == nil {
		return "", nil
	}
	if unread {
		return "", req.Body.Close()
	}
	body, err := io.ReadAll(req.Body)
	s.mu.Lock()
	s.sent[n].Body = string(body)
	s.mu.Unlock()
	if closeErr := req.Body.Close(); err == nil {
		err = closeErr
	}
	return string(body), err
}

// Attempts returns the requests so far, in the order in which they arrived.
func (s *Script) Attempts() []Sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

// Waits returns the times from each request to the next, which include the
// Takes of the steps.
func (s *Script) Waits() []time.Duration {
	var waits []time.Duration
	attempts := s.Attempts()
	for i, a := range attempts {
		if i > 0 {
			waits = append(waits, a.At-attempts[i-1].At)
		}
	}
	return waits
}
