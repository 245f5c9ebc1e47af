package sim

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/seed421102f4/httpretry"
)

// Statuses that stand for errors.
const (
	// Refused is a connection that the server refuses.
	Refused = -1
	// TimedOut is an attempt that Policy.AttemptTimeout ended.
	TimedOut = -2
)

// An Answer is a server's answer to a request.
type Answer struct {
	After      time.Duration // until it arrives
	Status     int           // of HTTP, or Refused
	RetryAfter time.Duration // that the answer asks for; 0: it asks for none
}

// A Server answers the attempts of requests, which are numbered from 0 and
// from 1. Its methods are called in the order of time.
type Server interface {
	Answer(now time.Duration, request, attempt int) Answer
}

// outcomes has the Outcome of each status, from the library's own Classify.
type outcomes map[int]httpretry.Outcome

func (o outcomes) of(status int) httpretry.Outcome {
	outcome, ok := o[status]
	if !ok {
		outcome = classify(status)
		o[status] = outcome
	}
	return outcome
}

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

func classify(status int) httpretry.Outcome {
	req := &http.Request{Method: http.MethodGet}
	switch status {
	case Refused:
		return httpretry.Classify(req, nil, errRefused)
	case TimedOut:
		return httpretry.Classify(req, nil, errAttemptTimeout)
	}
	return httpretry.Classify(req, &http.Response{StatusCode: status, Header: http.Header{}}, nil)
}

// errAttemptTimeout is classified as the library's own error is.
var errAttemptTimeout = errors.Join(errors.New("no response within AttemptTimeout"), context.DeadlineExceeded)

// endless is when a Queue is done that is never done. Later times would
// overflow.
const endless = 100 * 365 * 24 * time.Hour

// A Queue is a Server that works off one request after another. It goes on
// with requests whose clients have given up, as servers do.
type Queue struct {
	Service time.Duration // of one request
	Latency time.Duration // of the network, added to each answer

	// Requests that would wait for longer than Limit are refused with 503. A
	// refusal takes the share Refusal of a Service. 0: none are.
	Limit   time.Duration
	Refusal float64

	// Fault returns the answer to a request that fails, if it does.
	Fault func(now time.Duration) (Answer, bool)

	// The server does not work from StallFrom to StallTo.
	StallFrom, StallTo time.Duration

	free time.Duration // when all requests so far are done
}

// Answer implements Server.
func (q *Queue) Answer(now time.Duration, _, _ int) Answer {
	if q.Fault != nil {
		if a, failed := q.Fault(now); failed {
			a.After += q.Latency
			return a
		}
	}
	q.free = max(q.free, now)
	if q.free >= q.StallFrom {
		q.free = max(q.free, q.StallTo)
	}
	if q.Limit > 0 && q.free-now > q.Limit {
		q.free += time.Duration(q.Refusal * float64(q.Service))
		return Answer{After: q.Latency, Status: http.StatusServiceUnavailable}
	}
	// Work that the stall interrupts goes on after it.
	if q.free < q.StallFrom && q.free+q.Service > q.StallFrom {
		q.free += q.StallTo - q.StallFrom
	}
	q.free = min(q.free+q.Service, endless)
	return Answer{After: q.free - now + q.Latency, Status: http.StatusOK}
}
