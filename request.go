package httpretry

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry/internal/bounded"
	"github.com/seed421102f4/httpretry/internal/respbody"
	"github.com/seed421102f4/httpretry/internal/wire"
)

// begin prepares c before its first attempt. An error ends the request before
// anything is sent.
func (c *call) begin(to target) error {
	req := c.caller.req
	if v := fromContext(req.Context()); v != nil {
		c.caller.values = *v
	}
	p := c.caller.values.policyFor(to.policy)
	c.adopt(p, to)
	// Most requests need no clock. time.Since is faster than time.Now.
	if c.engine.observe != nil || p.MaxElapsed > 0 {
		c.caller.start = time.Since(c.engine.created)
	}
	// New has not checked the policies of contexts.
	if p != to.policy {
		if err := p.contextProblemsIn(c.engine); err != nil {
			return c.reject(err)
		}
	}
	if reason := c.caller.ended(); reason != ReasonNone {
		// If the context is done, its own error is returned, as net/http does.
		if req.Context().Err() != nil {
			return c.canceled(nil)
		}
		return &Error{Reason: reason, Err: c.canceled(nil), Unprocessed: true}
	}
	c.idempotent = p.isIdempotent(req) || c.caller.values.idempotent
	// Without a header map, there is no place for a key. net/http fails such a
	// request.
	if !c.idempotent && p.NewIdempotencyKey != nil && req.Header != nil {
		key, err := p.newKey(req)
		if err != nil {
			return c.reject(err)
		}
		c.key, c.idempotent = key, key != ""
	}
	c.body.Prepare(req, max(p.ReplayBuffer, 0))
	if p.Cooldown == CooldownSend {
		return nil
	}
	return c.awaitFirstAttempt()
}

// reject reports a request that fails because a value of its policy is not
// valid, and returns its error.
func (c *call) reject(err error) error {
	c.report(result{err: err, isOfWait: true}, 0, ReasonPermanent)
	return &Error{Reason: ReasonPermanent, Err: err, Unprocessed: true}
}

// adopt sets the policy of c to p, which is that of to or of a context, and
// prepares the charge and the waits.
func (c *call) adopt(p *resolvedPolicy, to target) {
	c.policy, c.aheadLimit = p, p.ReadAhead
	c.caller.created, c.caller.origins = &c.engine.created, &c.engine.origins
	c.caller.origin = to.host.origin
	c.charge.budget = c.engine.budgetOf(p)
	// The policy of a context may have another budget.
	if p == to.policy {
		c.charge.window = to.window
	}
	c.waits.policy, c.waits.failing, c.protocol = p, &to.host.failing, &to.host.protocol
	cooldown := &c.waits.cooldown
	cooldown.table, cooldown.origin = &c.engine.cooldowns, to.host.origin
	cooldown.quiet, cooldown.req, cooldown.partOf = &to.host.quiet, c.caller.req, p.CooldownKey
}

// failUnsent ends a request of which nothing was sent. It returns err and
// closes the body.
func (c *call) failUnsent(err error) (*http.Response, error) {
	c.done = true
	if c.caller.req.Body == nil {
		return nil, err
	}
	// A RoundTripper closes the body even if it fails. Close may block.
	if closeErr := bounded.Close(bounded.MaxTime, c.caller.req.Body); closeErr != nil {
		err = errors.Join(err, closeErr)
	}
	return nil, err
}

// withdraw asks the budget for a retry after wait. If none may follow, it
// returns the Reason, and nothing is charged. Withdraw may take long, such as if
// it asks another process.
func (c *call) withdraw(wait time.Duration) Reason {
	reason := ReasonBudget
	if c.charge.withdraw(c.caller.req.Context()) {
		reason = c.waits.lateReason(&c.caller, wait, time.Now())
	}
	// A budget may refuse the retry because the caller does not wait any more.
	if ended := c.caller.ended(); ended != ReasonNone {
		reason = ended
	}
	if reason != ReasonNone {
		c.charge.refundUnsent()
	}
	return reason
}

// mayResend reports whether the last attempt met a connection that was at its
// end, so that the server has not begun it, and another connection will take it.
func (c *call) mayResend() bool { return c.connEnded && c.resends < maxResends }

// maxResends bounds resend. A server that ends each connection after ten requests
// excludes most of 64 that are sent at once, again and again. The waits add up to
// less than the minute after which net/http alone gives up
// (http2Transport.RoundTripOpt).
const maxResends = 30

// resend prepares the retry that mayResend allows. net/http alone sends such a
// request again at once, too. So the retry is not counted or charged. The first
// three follow at once, since each may meet a connection that has been open for
// as long.
func (c *call) resend() (time.Duration, Reason) {
	var wait time.Duration
	if c.resends >= 3 {
		wait = uniform(min(100*time.Millisecond<<(c.resends-3), 2*time.Second))
	}
	reason := c.waits.lateReason(&c.caller, wait, time.Now())
	if reason == ReasonNone {
		reason = c.rewindBody(wait)
	}
	if reason != ReasonNone {
		return 0, reason
	}
	c.resends, c.uncounted = c.resends+1, c.uncounted+1
	return wait, ReasonNone
}

// rewindBody prepares the body of the attempt that follows after wait. If the
// body cannot be sent again, it refunds the charge for that attempt and returns
// the Reason. GetBody may take as long as an attempt and as is left, but always
// bounded.MaxTime.
func (c *call) rewindBody(wait time.Duration) Reason {
	limit := max(c.waits.timeLeft(&c.caller, time.Now())-wait, bounded.MaxTime)
	if timeout := c.policy.AttemptTimeout; timeout > 0 {
		limit = min(limit, timeout)
	}
	if c.body.Rewind(cancelSignal(c.caller.req), limit) {
		return ReasonNone
	}
	c.charge.refundUnsent()
	if reason := c.caller.ended(); reason != ReasonNone {
		return reason
	}
	return ReasonNotReplayable
}

// finish ends the request with r, and returns that to the caller.
func (c *call) finish(r result, reason Reason) (*http.Response, error) {
	switch {
	case c.partial != nil:
		return c.partial.finish(r, reason)
	case r.err != nil:
		err := c.fail(r, reason)
		if r.resp = c.takeCut(err); r.resp == nil {
			return nil, err
		}
	case reason == ReasonSuccess:
		c.waits.cooldown.endEarly()
	}
	if c.isOfHost(r.resp) {
		c.protocol.learnFrom(r.resp)
	}
	// The upload may continue while the caller reads the response, but nothing
	// is recorded any more.
	c.body.Finish()
	end := Result{Attempts: c.attempts, Reason: reason, Unprocessed: !c.processed}
	if mayBreakOff := c.mayBreakOff(r.resp, reason); mayBreakOff {
		c.resumeLater(r.resp, c.handOver(r.resp, end, true))
	} else {
		c.handOver(r.resp, end, false)
	}
	c.done = true
	return r.resp, nil
}

// isOfHost reports whether resp is from the host of the caller's request. A layer
// may have followed a redirect to another one.
func (s *sending) isOfHost(resp *http.Response) bool {
	u := s.caller.req.URL
	return u != nil && resp.Request != nil && resp.Request.URL != nil &&
		resp.Request.URL.Scheme == u.Scheme && resp.Request.URL.Host == u.Host
}

// fail ends the request and returns its error. That is the attempt's own error
// if there was one attempt and an Error has nothing to add.
func (c *call) fail(r result, reason Reason) error {
	c.release()
	c.done = true
	err, sentOnce := r.err, c.attempts == 1 && !r.isOfWait

	// For other reasons, the error stays as it is. Callers compare it, or read
	// its text, as connect-go does for a stream that was reset.
	adds := reason == ReasonBudget || reason == ReasonNotReplayable ||
		reason == ReasonNotResumable
	unchanged := sentOnce && !adds && !isOwnError(err) && !c.caller.hidesEnd(err, reason)
	switch {
	case reason == ReasonNotReplayable && c.body.Err() != nil:
		err = fmt.Errorf("%w; the body cannot be sent again: %w", err, c.body.Err())
	case unchanged && IsUnprocessed(err) == c.processed && !isPlainAnswer(err):
		return &markedError{err, !c.processed}
	case unchanged:
		return err
	case errors.Is(err, wire.ErrResent) && !c.engine.base.isKnown():
		err = fmt.Errorf("%w below a layer that httpretry.Through does not declare", err)
	case isOfCaller(reason) && c.caller.left:
		err = c.canceled(err)
	}
	return &Error{Attempts: c.attempts, Reason: reason, Err: err, Unprocessed: !c.processed}
}

// discard ends an attempt that is followed by another, so that nothing of it
// is held while the request waits. It returns how long that took, which is a
// part of the wait: a response that stalls must not delay the retry.
func (c *call) discard(r result) (took time.Duration) {
	c.lastStatus = 0
	if r.resp != nil {
		c.lastStatus = r.resp.StatusCode
	}
	if resp := cmp.Or(r.resp, c.cut); resp != nil {
		limit := bounded.MaxTime
		if c.policy.MaxElapsed > 0 {
			limit = min(limit, c.waits.timeLeft(&c.caller, time.Now()))
		}
		// Release ends the body, so the body is drained first.
		took = respbody.Discard(resp, c.attempt, limit, cancelSignal(c.caller.req))
		c.caller.waited += took
	}
	c.resp, c.cut = nil, nil
	c.attempt.Release()
	return took
}

// cleanUpAfterPanic is deferred. If Base, a callback or a body's reader has
// panicked, it releases the resources of the request.
func (c *call) cleanUpAfterPanic() {
	if c.done {
		return
	}
	// A budget may panic again.
	defer c.closeCharge()
	respbody.Close(c.resp)
	c.release()
	// Base has not got the body, and there is no Recorder that release would
	// close.
	if c.attempts == 0 && c.body.Recorder() == nil && c.caller.req.Body != nil {
		_ = c.caller.req.Body.Close() // the caller gets the panic
	}
}

// closeCharge tells the budget that the request has ended by a panic, in an
// attempt or before one.
func (c *call) closeCharge() {
	if c.begun {
		c.learn(result{})
	}
	c.charge.refundUnsent()
}

// release ends the attempt, and closes the body, which ends Reads of Base that
// are still waiting.
func (s *sending) release() {
	defer s.body.Abort() // even if a context that has panicked does so again
	s.attempt.Release()
}
