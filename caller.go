package httpretry

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry/internal/bounded"
	"github.com/seed421102f4/httpretry/internal/origintable"
)

// caller has the request of RoundTrip's caller, the values of its context, and
// how long the caller has waited.
type caller struct {
	req     *http.Request // never modified
	values  contextValues
	created *time.Time         // engine.created
	start   time.Duration      // since created; 0 unless Observe or MaxElapsed needs it
	waited  time.Duration      // since the last Event
	left    bool               // ended has shown that the caller does not wait
	origins *origintable.Table // of the transport
	origin  string             // of req.URL
}

// If another RetryTransport is sending the request, outer returns the attempt
// of that transport. Otherwise it returns nil. A context that outlives its
// attempt, such as that of a Response's Request, does not count.
func (c *caller) outer() *attemptContext {
	if a := c.values.attempt; a != nil && a.inRoundTrip.Load() {
		return a
	}
	return nil
}

// priorAttempts returns how often the inbound request of a Middleware was sent
// before, if c belongs to one that is still being handled. Otherwise it is 0.
func (c *caller) priorAttempts() int {
	if c.values.inbound.isOpen() {
		return c.values.inbound.priorAttempts
	}
	return 0
}

// retries reports whether a retry is left to a caller: an outer RetryTransport,
// or the client that has retried the inbound request. An Unprocessed request is
// retried here even if the client of the inbound request retries, because that
// would repeat the whole inbound request.
func (c *caller) retries(outcome Outcome) bool {
	return c.outer() != nil || outcome != Unprocessed && c.priorAttempts() > 0
}

// showsAttempt reports whether Base may get the request with its own context and
// header. For that, the function Attempt must return the right number for the
// context, and the header named attemptHeader must have the right value.
func (c *caller) showsAttempt(attemptHeader string) bool {
	// The context of an earlier Response has the number of that request.
	if c.values.attempt != nil {
		return c.outer() != nil
	}
	prior := c.priorAttempts()
	return prior == 0 || attemptHeader == "" || maxCount(c.req.Header[attemptHeader]) == prior
}

// ended is the result of end. It records in left that the caller does not wait
// any more.
func (c *caller) ended() Reason {
	reason := c.end()
	c.left = c.left || reason != ReasonNone
	return reason
}

// end returns ReasonNone while the caller is waiting, ReasonDeadline once its
// deadline has passed, and ReasonCanceled if it has left. The error of an
// attempt does not show that, because a timeout inside net/http looks like one
// of the caller's.
func (c *caller) end() Reason {
	if err := c.req.Context().Err(); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return ReasonDeadline
		}
		return ReasonCanceled
	}
	cancel := cancelChannel(c.req)
	// Most requests have no Cancel channel.
	if cancel == nil {
		return ReasonNone
	}
	select {
	case <-cancel:
		// For its Timeout, http.Client closes the channel at the deadline of the
		// context.
		if deadline, ok := c.req.Context().Deadline(); ok && !time.Now().Before(deadline) {
			return ReasonDeadline
		}
		return ReasonCanceled
	default:
		return ReasonNone
	}
}

// hasEnded reports whether the caller is not waiting any more.
func (c *caller) hasEnded() bool { return c.ended() != ReasonNone }

// untilDeadline returns the longest wait that ends before the deadline of the
// caller's context.
func (c *caller) untilDeadline(now time.Time) time.Duration {
	deadline, ok := c.req.Context().Deadline()
	if !ok {
		return math.MaxInt64
	}
	// At the deadline itself, there is no time for an attempt.
	return deadline.Add(-1).Sub(now)
}

// cancelChannel returns the request's Cancel channel. http.Client sets it for
// its Timeout if it does not know the transport (setRequestCancel).
func cancelChannel(req *http.Request) <-chan struct{} {
	//nolint:staticcheck // net/http uses it
	return req.Cancel
}

// cancelSignal is set when req is canceled, in either way.
func cancelSignal(req *http.Request) bounded.Signal {
	return bounded.Signal{req.Context().Done(), cancelChannel(req)}
}

// known returns the state of the origin.
func (c *caller) known() *origintable.Origin { return c.origins.Get(c.origin, c.req.URL) }

// sleep waits, at most until early is closed, and reports whether the caller is
// still waiting.
func (c *caller) sleep(wait time.Duration, early <-chan struct{}) bool {
	if wait > 0 {
		// The caller's context may panic, so its method comes first.
		done := c.req.Context().Done()
		c.origins.BeginWait(c.origin, c.req.URL)
		begun := time.Now()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-early:
		case <-done:
		case <-cancelChannel(c.req):
		}
		timer.Stop()
		c.origins.EndWait(c.origin)
		c.waited += time.Since(begun)
	}
	return !c.hasEnded()
}

// hidesEnd reports whether err, of a request that ended with reason, does not
// show the end of the context that caused it. net/http returns the context's
// error or its cause, never both, or the failure that the end led to.
func (c *caller) hidesEnd(err error, reason Reason) bool {
	ctx := c.req.Context()
	return isOfCaller(reason) && c.left && ctx.Err() != nil &&
		!(errors.Is(err, ctx.Err()) && errors.Is(err, context.Cause(ctx)))
}

// isOfCaller reports whether a request that ended with reason may have ended
// because its caller does not wait any more.
func isOfCaller(reason Reason) bool {
	return reason == ReasonCanceled || reason == ReasonDeadline
}

// attemptContext returns the parent of the contexts of c's attempts. If the
// caller uses the context of an earlier Response's Request, it returns the
// parent of that context. Otherwise a chain of such requests would keep all
// earlier ones in memory.
func (c *caller) attemptContext() context.Context {
	ctx := c.req.Context()
	if earlier, ok := ctx.(*attemptContext); ok {
		return earlier.Context
	}
	return ctx
}
