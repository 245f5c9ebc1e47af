package testutil

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
)

// Step is the reaction of a Script to one attempt.
type Step struct {
	Status int               // of the response; 0: RoundTrip returns Err
	Header map[string]string // of the response
	Body   string            // of the response
	Err    error
	Takes  time.Duration // time until RoundTrip returns
	Unread bool          // close the request's body without reading it
}

// Status returns a Step that answers with a status and a body that names it.
// The header is given as pairs of a name and a value.
func Status(code int, header ...string) Step {
	s := Step{Status: code, Body: fmt.Sprintf("body of %d", code)}
	if len(header) > 0 {
		s.Header = map[string]string{}
	}
	for i := 0; i < len(header); i += 2 {
		s.Header[header[i]] = header[i+1]
	}
	return s
}

// Fails returns a Step that returns err.
func Fails(err error) Step { return Step{Err: err} }

// Sent is one attempt as a Script received it.
type Sent struct {
	Request *http.Request
	Header  http.Header // a copy
	Body    string
	At      time.Duration // since Script.Start
	Attempt int           // httpretry.Attempt of the request's context
}

// Script is a base transport that plays one Step for each attempt. After the
// last Step it repeats that one. It is safe for concurrent use.
type Script struct {
	Start time.Time // when the Script was made

	steps []Step
	mu    sync.Mutex
	sent  []Sent
}

// Play returns a Script of steps.
func Play(steps ...Step) *Script { return &Script{steps: steps, Start: time.Now()} }

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

// RoundTrip implements http.RoundTripper. Like net/http, it closes the
// request's body.
func (s *Script) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	n := len(s.sent)
	s.sent = append(s.sent, Sent{
		Request: req,
		Header:  req.Header.Clone(),
		At:      time.Since(s.Start),
		Attempt: httpretry.Attempt(req.Context()),
	})
	s.mu.Unlock()
	step := s.steps[min(n, len(s.steps)-1)]

	if req.Body != nil {
		if err := s.readBody(n, req.Body, step.Unread); err != nil {
			return nil, err
		}
	}
	if step.Takes > 0 {
		select {
		case <-time.After(step.Takes):
		case <-req.Context().Done():
			return nil, context.Cause(req.Context()) // as net/http does over HTTP/1
		}
	}
	if step.Status == 0 {
		return nil, step.Err
	}
	return step.response(req), nil
}

// readBody reads, unless unread is true, and closes the body of attempt n.
func (s *Script) readBody(n int, body io.ReadCloser, unread bool) error {
	if !unread {
		text, err := io.ReadAll(body)
		if err != nil {
			_ = body.Close()
			return err
		}
		s.mu.Lock()
		s.sent[n].Body = string(text)
		s.mu.Unlock()
	}
	return body.Close()
}

func (s Step) response(req *http.Request) *http.Response {
	resp := &http.Response{
		StatusCode:    s.Status,
		Status:        fmt.Sprintf("%d %s", s.Status, http.StatusText(s.Status)),
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        http.Header{},
		Body:          io.NopCloser(strings.NewReader(s.Body)),
		ContentLength: int64(len(s.Body)),
		Request:       req,
	}
	for name, value := range s.Header {
		resp.Header.Set(name, value)
	}
	return resp
}

// Attempts returns the attempts so far.
func (s *Script) Attempts() []Sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

// Waits returns the times between the attempts.
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
