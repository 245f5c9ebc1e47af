package httpretry

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/seed421102f4/httpretry/internal/replay"
)

// call is one request on its way through RoundTrip. It lives on RoundTrip's
// stack, from the first retry on as a copy (endOrKeep), or as one in a
// resumingBody. Nothing else may keep a pointer to it.
// Only the goroutine of RoundTrip uses it. Only the goroutine in Read uses the
// copy, except that Close may settle it (see resumingBody.unsettled).
//
// Its own methods decide whether an attempt follows.
type call struct {
	sending
	charge charge
	waits  waits

	uncounted  int     // the attempts that do not count toward MaxAttempts
	processed  bool    // the last attempt may have been; only one that is idempotent follows it
	connEnded  bool    // the last attempt failed because its connection was at its end
	retried421 bool    // a 421 was retried
	done       bool    // no clean-up is left to cleanUpAfterPanic
	partial    partial // whose rest is requested; nil in RoundTrip
}

// partial is the body of a response that broke off (resumingBody).
type partial interface {
	// count counts an attempt that is about to be made.
	count()
	// accepts reports whether r has the rest. It is called for a response that
	// is a success of its host.
	accepts(r result) bool
	// obstacle returns the error of a body that cannot be resumed after err, or
	// nil if it can.
	obstacle(err error) error
	// describe returns the Event e with what it has of the body. With a pointer,
	// each Event would cost an allocation.
	describe(e Event) Event
	// finish ends the attempts. It returns a response with the rest, or an error.
	finish(r result, reason Reason) (*http.Response, error)
}

// sending sends the request of a call, attempt by attempt. It decides nothing.
type sending struct {
	engine *engine
	caller caller
	policy *resolvedPolicy
	body   replay.Body

	protocol   *hostProtocol // nil if it is not needed any more
	key        string        // from NewIdempotencyKey, or ""
	idempotent bool          // the request is safe to send twice
	aheadLimit int64         // Policy.ReadAhead, or 0 while a body is resumed

	attempts   int            // started so far
	resends    int            // those that call.resend has allowed
	last       bool           // no other attempt may follow the current one
	begun      bool           // Base has got an attempt whose end the budget does not know
	attempt    *attempt       // the current one, nil if it sent the caller's own request
	resp       *http.Response // of the current attempt
	cut        *http.Response // the same, if the attempt failed because its body broke off
	lastStatus int            // of the response that was discarded last, or 0
}

// maxAttempts returns how many attempts the request may have.
func (c *call) maxAttempts() int {
	if c.caller.values.withoutRetries {
		return 1
	}
	return c.policy.MaxAttempts
}

// isLast reports whether MaxAttempts allows no attempt after the current one.
func (c *call) isLast() bool { return c.attempts-c.uncounted >= c.maxAttempts() }

// limitReason returns why a request that has had maxAttempts ends.
func (c *call) limitReason() Reason {
	if c.maxAttempts() == 1 {
		return ReasonDisabled
	}
	return ReasonAttempts
}

// sentRequest returns the request as the last attempt sent it.
func (s *sending) sentRequest() *http.Request {
	if s.attempt != nil {
		return &s.attempt.req
	}
	return s.caller.req
}

// canceled returns the error of a request that its caller has canceled or whose
// deadline has passed. It satisfies errors.Is for the context's error and for
// its cause, of which net/http returns one or the other. The error of the
// attempt before is only in its text. Otherwise Timeout would be true if the
// caller left after an attempt that had timed out.
func (s *sending) canceled(last error) error {
	ctx := s.caller.req.Context()
	ctxErr, cause := ctx.Err(), context.Cause(ctx)
	if ctxErr == nil {
		ctxErr = errRequestCanceled
		if s.caller.ended() == ReasonDeadline {
			ctxErr = context.DeadlineExceeded
		}
		cause = ctxErr
	}
	// The error of an AttemptTimeout is a context.DeadlineExceeded, too.
	_, timedOut := errors.AsType[*attemptTimeout](last)
	if errors.Is(last, ctxErr) && errors.Is(last, cause) && !timedOut {
		return last
	}
	err := ctxErr
	if !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", ctxErr, cause)
	}
	if last != nil {
		return fmt.Errorf("%w (last attempt: %v)", err, last)
	}
	return s.afterAttempt(nil, err)
}

// afterAttempt adds the result of the last attempt to err, which occurred
// later.
func (s *sending) afterAttempt(last, err error) error {
	switch {
	case last != nil && !errors.Is(err, last):
		return fmt.Errorf("%w (last attempt: %w)", err, last)
	case last == nil && s.lastStatus != 0:
		return fmt.Errorf("%w (last attempt: status %d)", err, s.lastStatus)
	}
	return err
}
