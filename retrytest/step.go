package retrytest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/internal/errno"
)

// Step is the reaction of a [Script] to one request. The zero Step answers with
// status 200 and an empty body.
type Step struct {
	// Status is the status of the response. 0 means 200.
	Status int

	// Header is the header of the response. Nil means an empty one.
	Header http.Header

	// Body is the body of the response. As in net/http, a response to HEAD, or
	// with the status 204 or 304, has none.
	Body string

	// Err is returned instead of a response, if it is not nil.
	Err error

	// Func makes the response or the error, if it is not nil. Then Status,
	// Header, Body and Err are ignored. See [Func].
	Func func(*http.Request) (*http.Response, error)

	// Takes is the time until RoundTrip returns. If the request's context is
	// done before, RoundTrip returns the cause of that. 0 means no delay.
	Takes time.Duration

	// Unread closes the request's body without reading it.
	Unread bool

	hangs, always bool
}

// Status returns a Step that answers with a status. header has pairs of a name
// and a value. Status panics if a value is missing.
func Status(code int, header ...string) Step {
	if len(header)%2 != 0 {
		panic(fmt.Sprintf("retrytest: Status: header %q has no value", header[len(header)-1]))
	}
	s := Step{Status: code, Header: http.Header{}}
	for i := 0; i < len(header); i += 2 {
		s.Header.Add(header[i], header[i+1])
	}
	return s
}

// RetryAfter returns a Step that answers with 429 (Too Many Requests) and the
// given Retry-After. For a 503, use Status(503, "Retry-After", value).
func RetryAfter(value string) Step {
	return Status(http.StatusTooManyRequests, "Retry-After", value)
}

// Fails returns a Step that returns err. Fails panics if err is nil.
func Fails(err error) Step {
	if err == nil {
		panic("retrytest: Fails: nil error")
	}
	return Step{Err: err}
}

// Reset returns a Step that returns net/http's error for a connection that the
// server has reset after it got the request. The error is Transient, so only an
// idempotent request is retried.
func Reset() Step {
	return Fails(&net.OpError{Op: "read", Net: "tcp", Err: errno.ConnReset})
}

// Refused returns a Step that returns net/http's error for a connection that
// the server has refused. The error is Unprocessed, so any request is retried.
func Refused() Step {
	return Fails(&net.OpError{Op: "dial", Net: "tcp", Err: errno.ConnRefused})
}

// Hang returns a Step that never answers. It returns the cause of the request's
// context when that is done, such as after [httpretry.Policy.AttemptTimeout].
// Without such an end, testing/synctest reports a deadlock.
func Hang() Step { return Step{hangs: true} }

// Func returns a Step that calls f. f gets a copy of the request, with a body
// of the same content. If the response has no Body, it gets an empty one, and
// if it has no Request, that of the attempt. Func panics if f is nil.
func Func(f func(*http.Request) (*http.Response, error)) Step {
	if f == nil {
		panic("retrytest: Func: nil function")
	}
	return Step{Func: f}
}

// Always returns a Step that plays s for all further requests, of which there
// may be none. It must be the last one. A Func in s may be called
// concurrently.
func Always(s Step) Step {
	s.always = true
	return s
}

// await waits until the step is to answer.
func (s Step) await(req *http.Request) error {
	var over <-chan time.Time
	switch {
	case s.hangs: // a nil channel
	case s.Takes <= 0:
		return nil
	default:
		timer := time.NewTimer(s.Takes)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
		return nil
	case <-req.Context().Done():
		return context.Cause(req.Context()) // as net/http does over HTTP/1
	}
}

// answer returns the response or error of the step to req, which had that body.
func (s Step) answer(req *http.Request, body string) (*http.Response, error) {
	switch {
	case s.Func != nil:
		return s.call(req, body)
	case s.Err != nil:
		return nil, s.Err
	}
	code := cmp.Or(s.Status, http.StatusOK)
	resp := &http.Response{
		StatusCode:    code,
		Status:        strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code))),
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        s.Header.Clone(), // the receiver may change it
		Body:          io.NopCloser(strings.NewReader(s.Body)),
		ContentLength: int64(len(s.Body)),
		Request:       req,
		Close:         strings.EqualFold(s.Header.Get("Connection"), "close"), // as net/http
	}
	isHead := req.Method == http.MethodHead
	isEmpty := code == http.StatusNoContent || code == http.StatusNotModified
	if isHead || isEmpty {
		resp.Body = http.NoBody
	}
	switch {
	case isEmpty && isHead:
		resp.ContentLength = -1 // net/http expects a Content-Length, but there is none
	case isEmpty:
		resp.ContentLength = 0
	}
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	return resp, nil
}

func (s Step) call(req *http.Request, body string) (*http.Response, error) {
	sent := req.WithContext(req.Context())
	if req.Body != nil {
		sent.Body = io.NopCloser(strings.NewReader(body))
	}
	resp, err := s.Func(sent)
	if resp != nil {
		if resp.Body == nil {
			resp.Body = http.NoBody
		}
		if resp.Request == nil {
			resp.Request = req
		}
	}
	return resp, err
}
