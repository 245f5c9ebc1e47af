package httpretry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry/strategies"
)

// call is one request on its way through RoundTrip. It lives on RoundTrip's
// stack: nothing may keep a pointer to it.
type call struct {
	settings *settings
	marks    marks // of the request's context
	policy   *policy
	req      *http.Request // the caller's, never modified
	host     string        // key of what is kept per host
	key      string        // the idempotency key that was made, if any
	safe     bool          // to repeat
	body     payload
	inbound  *inbound // what the request is sent on behalf of, nil if that is nothing
	above    *attempt // of a RetryTransport that has this one below it, nil without
	before   int      // copies of the request that were sent before its first attempt
	foreign  bool     // the context is that of another request's attempt

	attempts   int       // begun so far
	began      time.Time // zero unless somebody asks
	attempt    *attempt  // the current one, nil while it is the caller's own request
	resp       *http.Response
	dropped    bool // the last attempt is over, and another was to follow
	lastStatus int  // of the response that was dropped, 0 if there was none
	misdirect  bool // a 421 was retried
	backoff    strategies.Sequence
	throttled  strategies.Sequence
	bodyFailed bool   // the last error is the request body's own
	turn       uint64 // of the cooldowns, before the last attempt
	coolKey    string // of what is said of all requests, once it matters
	over       bool
}

// begin asks what does not depend on an attempt. An error ends the request
// before anything is sent.
func (c *call) begin() *Error {
	c.marks = marksOf(c.req.Context())
	c.policy = c.marks.policy
	if c.policy == nil {
		c.policy = c.settings.policyFor(c.req)
	}
	p := c.policy
	if p.err != nil {
		return &Error{Reason: ReasonFinal, Err: p.err}
	}
	if c.gone() {
		return &Error{Reason: ReasonCanceled, Err: c.canceled(nil)}
	}
	c.link()
	c.safe = p.Idempotent(c.req) || hasKey(c.req.Header, p.KeyHeader) || c.marks.idempotent
	if !c.safe && p.NewKey != nil {
		c.key = p.NewKey(c.req)
		if err := checkKey(c.key); err != nil {
			return &Error{Reason: ReasonFinal, Err: fmt.Errorf("Policy.NewKey: %w", err)}
		}
		c.safe = c.key != ""
	}
	c.body.prepare(c.req, max(p.ReplayBuffer, 0))
	c.host = canonicalHost(c.req.URL)
	if c.settings.observe != nil || p.MaxElapsed > 0 {
		c.began = time.Now()
	}
	if p.Cooldown == CooldownOff {
		return nil
	}
	return c.admit()
}

// refuse ends a request that was never sent.
func (c *call) refuse(e *Error) (*http.Response, error) {
	c.tellInbound(nil, e, e.Reason)
	c.over = true
	if err := closeBody(c.req.Body); err != nil {
		return nil, errors.Join(e, err)
	}
	return nil, e
}

// gone reports whether the caller has given up. The error of an attempt does
// not tell: a timeout inside net/http looks like one of the caller's.
func (c *call) gone() bool {
	if c.req.Context().Err() != nil {
		return true
	}
	cancel := legacyCancel(c.req)
	if cancel == nil {
		return false
	}
	select {
	case <-cancel:
		return true
	default:
		return false
	}
}

// legacyCancel returns the request's Cancel channel, which http.Client still
// sets for its Timeout.
func legacyCancel(req *http.Request) <-chan struct{} {
	//lint:ignore SA1019 net/http uses it
	return req.Cancel
}

// classify asks the policy what an attempt's result means, and adds what only
// this call knows.
func (c *call) classify(resp *http.Response, err error) Outcome {
	if err == nil && resp.StatusCode < 400 && c.policy.Classify == nil {
		return Final // as classify says, at less cost
	}
	if c.bodyFailed || (c.misdirect && statusIs(resp, http.StatusMisdirectedRequest)) {
		return Final
	}
	return c.policy.outcome(c.attempt, resp, err, c.keyed)
}

// keyed reports whether the request has an idempotency key.
func (c *call) keyed() bool { return c.key != "" || c.policy.keyed(c.req.Header) }

// nextBackoff returns the policy's wait before the next attempt. A negative one
// is none to those who compare it with what the server asked for.
func (c *call) nextBackoff(resp *http.Response) time.Duration {
	strategy, sequence := c.policy.Backoff, &c.backoff
	if c.policy.Throttled != nil && statusIs(resp, http.StatusTooManyRequests) {
		strategy, sequence = c.policy.Throttled, &c.throttled
	}
	if *sequence == nil {
		*sequence = strategy.Start()
	}
	return (*sequence)()
}

// left returns the longest wait after which an attempt may still begin.
func (c *call) left(now time.Time) time.Duration {
	left := time.Duration(maxDuration)
	if deadline, ok := c.req.Context().Deadline(); ok {
		left = deadline.Add(-1).Sub(now) // at the deadline itself there is no time for an attempt
	}
	if c.policy.MaxElapsed > 0 {
		left = min(left, c.policy.MaxElapsed-now.Sub(c.began))
	}
	return left
}

func (c *call) budget() Budget {
	if c.policy.Budget != nil {
		return c.policy.Budget
	}
	return c.settings.budget
}

// report tells the observer what was decided.
func (c *call) report(resp *http.Response, err error, wait time.Duration, reason Reason) {
	if c.settings.observe == nil {
		return
	}
	if reason == ReasonNotReplayable && c.body.err != nil {
		err = c.body.err
	}
	c.settings.observe(c.req.Context(), Event{
		Request:  c.req,
		Response: resp,
		Err:      err,
		Attempt:  c.attempts,
		Elapsed:  time.Since(c.began),
		Wait:     wait,
		Reason:   reason,
	})
}

// finish hands the last attempt's result to the caller, after a wait that holds
// nothing either.
func (c *call) finish(resp *http.Response, err error, wait time.Duration, reason Reason) (*http.Response, error) {
	c.tellInbound(resp, err, reason)
	if err != nil {
		err = c.fail(err, reason)
		c.sleep(wait, nil)
		return nil, err
	}
	if reason == ReasonFinal {
		c.succeeded(resp)
	}
	c.body.release()
	c.body.finish()
	c.handOver(resp)
	c.over = true
	if wait > 0 {
		resp = setAside(resp)
		c.sleep(wait, nil)
	}
	return resp, nil
}

// fail ends the request with an error: the attempt's own if there was just one
// and nothing is to be added.
func (c *call) fail(err error, reason Reason) error {
	c.letGo()
	c.over = true

	single := c.attempts == 1 && !c.dropped && !ours(err) && !c.hidesCancel(err, reason)
	switch {
	case reason == ReasonNotReplayable && c.body.err != nil:
		err = fmt.Errorf("%w; the body cannot be sent again: %w", err, c.body.err)
	case single:
		return err
	case reason == ReasonCanceled:
		err = c.canceled(err)
	}
	return &Error{Attempts: c.attempts, Reason: reason, Err: err}
}

// hidesCancel reports whether err does not show the cancel that it came of:
// net/http returns the context's error or its cause, never both, or what broke
// first.
func (c *call) hidesCancel(err error, reason Reason) bool {
	ctx := c.req.Context()
	return reason == ReasonCanceled && ctx.Err() != nil &&
		!(errors.Is(err, ctx.Err()) && errors.Is(err, context.Cause(ctx)))
}

// pause waits before the next attempt, and until its host has cooled down. If
// none follows after all, it returns the reason and the error that the request
// ends with; last is the error of the attempt before.
func (c *call) pause(wait time.Duration, last error) (Reason, error) {
	if !c.sleep(wait, nil) {
		return ReasonCanceled, c.canceled(last)
	}
	return c.cool(last)
}

// sleep waits, or until early is closed, and reports whether the caller is
// still there.
func (c *call) sleep(wait time.Duration, early <-chan struct{}) bool {
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-early:
		case <-c.req.Context().Done():
		case <-legacyCancel(c.req):
		}
	}
	return !c.gone()
}

// canceled returns the error of a caller that gave up: it satisfies errors.Is
// for the context's error and for its cause, of which net/http returns one or
// the other, and for last, the error of the last attempt.
func (c *call) canceled(last error) error {
	ctx := c.req.Context()
	gaveUp, cause := ctx.Err(), context.Cause(ctx)
	if gaveUp == nil {
		gaveUp, cause = errRequestCanceled, errRequestCanceled
	}
	if errors.Is(last, gaveUp) && errors.Is(last, cause) && !ours(last) {
		return last
	}
	err := gaveUp
	if !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", gaveUp, cause)
	}
	return c.after(last, err)
}

// after adds what the last attempt ended with to err, which came later.
func (c *call) after(last, err error) error {
	switch {
	case last != nil && !errors.Is(err, last):
		return fmt.Errorf("%w (last attempt: %w)", err, last)
	case last == nil && c.lastStatus != 0:
		return fmt.Errorf("%w (last attempt: status %d)", err, c.lastStatus)
	}
	return err
}

// drop lets go of an attempt that is followed by another, so that nothing of
// it is held while the request waits.
func (c *call) drop(resp *http.Response) {
	c.dropped, c.lastStatus = true, 0
	if resp != nil {
		c.lastStatus = resp.StatusCode
		c.discard(resp)
	}
	c.resp = nil
	c.attempt.release()
}

// abandon runs last. It does nothing unless a panic in Base, a callback or a
// body's reader is on its way to the caller: then it lets go of everything.
func (c *call) abandon() {
	if c.over {
		return
	}
	closeResponse(c.resp)
	c.letGo()
	if c.attempts == 0 && c.body.direct() {
		_ = closeBody(c.req.Body)
	}
}

// letGo ends the attempt, and then what waits for the body.
func (c *call) letGo() {
	c.attempt.release()
	c.body.abort()
	c.body.release()
}

func closeBody(body io.Closer) error {
	if body == nil {
		return nil
	}
	return body.Close()
}
