package httpretry

import (
	"cmp"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/internal/origintable"
	"github.com/seed421102f4/httpretry/internal/respbody"
	"github.com/seed421102f4/httpretry/internal/retryafter"
	"github.com/seed421102f4/httpretry/internal/wire"
)

// result is what an attempt, a body that broke off, or a wait came to.
type result struct {
	resp     *http.Response // nil if there is an error
	err      error
	outcome  Outcome
	isOfWait bool // the request ended while it waited, and nothing is known of its host
}

// resultOf returns the result of the attempt in which Base returned resp and
// err.
func (c *call) resultOf(resp *http.Response, err error) result {
	if c.cut != nil && err != nil {
		return c.resultOfCut(err)
	}
	c.resp, err = either(resp, err)
	return result{resp: c.resp, err: err, outcome: c.outcome(c.resp, err)}
}

// either returns a response or an error, as a RoundTripper must.
func either(resp *http.Response, err error) (*http.Response, error) {
	switch {
	case err != nil && resp != nil:
		respbody.Close(resp)
		return nil, err
	case err == nil && resp == nil:
		return nil, errNoResponse
	}
	return resp, err
}

// outcome returns the Outcome of c's last attempt: that by its policy, corrected
// by what is known of the sending.
func (c *call) outcome(resp *http.Response, err error) Outcome {
	switch {
	// classify returns the same, at a higher cost.
	case err == nil && resp.StatusCode < 400 && c.policy.Classify == nil:
		return Final
	// A body that cannot be read will not be readable on a retry. A server's
	// answer to a part of the body is not a result.
	case c.attempt.bodyFailed():
		return Final
	// net/http has retried often enough for all attempts.
	case errors.Is(err, wire.ErrTooManySends):
		return Final
	}
	switch outcome := c.classify(resp, err); {
	// The request has been sent on another connection. It is not sent on a
	// third one.
	case c.retried421 && statusIs(resp, http.StatusMisdirectedRequest):
		return Final
	case outcome == Unprocessed && !c.provesUnprocessed(resp, err):
		return Transient
	case outcome == Transient && err != nil &&
		c.attempt.neverSent(err, c.caller.req.URL, &c.engine.base):
		return Unprocessed
	default:
		return outcome
	}
}

// classify returns the Outcome by the policy of the result of the last attempt.
func (c *call) classify(resp *http.Response, err error) Outcome {
	if c.policy.Classify == nil {
		return c.policy.Outcome(c.sentRequest(), resp, err)
	}
	outcome := c.policy.Classify(c.sentRequest(), resp, err)
	if outcome > Unprocessed {
		return Final // it is not an Outcome
	}
	return outcome
}

// provesUnprocessed reports whether a result that is Unprocessed is about all
// that the attempt has sent. A layer in Base may have sent several requests.
func (c *call) provesUnprocessed(resp *http.Response, err error) bool {
	a := c.attempt
	_, states := statedOutcome(err)
	switch {
	case a == nil:
		return true
	case err != nil && a.failedToReconnect(err):
		return false
	// Over HTTP/1, net/http says so, too, after it has written a request that it
	// considers replayable.
	case err != nil && err.Error() == cannotRewind && !a.trace.Facts().LastHTTP2 &&
		wire.Resendable(a.req.Method, a.req.Header):
		return false
	// It may be the cause with which another request was canceled (base.ownError). The
	// proofs of net/http itself state no Outcome, and are neither joined nor wrapped.
	case a.trace.Facts().Shared && c.engine.base.isNetHTTP(c.caller.req.URL) &&
		(states || joined(err) != nil || isNothingWritten(errors.Unwrap(err))):
		return false
	// Layers that are not known may have sent the request to several hosts.
	case !c.engine.base.isKnown() && a.leavesOpen(err, states):
		return false
	}
	// The result may be that of another request of a layer. Then it does not
	// prove that this request was not processed, as Outcome assumes, and so
	// does a Policy.Classify that returns its result. An error with an Outcome
	// method decides for itself.
	return states || !a.isOfAnother(resp, err) ||
		c.policy.Outcome(c.sentRequest(), resp, err) != Unprocessed
}

// finalReason returns why a Final response ends its request.
func finalReason(resp *http.Response) Reason {
	switch {
	case resp.StatusCode < 400:
		return ReasonSuccess
	case retryafter.Forbids(resp.Header):
		return ReasonDoNotRetry
	}
	return ReasonPermanent
}

// learn records the result of an attempt, or of a body that broke off. A
// cool-down comes first, because the budget and the decision respect it. The
// budget comes last, because it gets what is known of the result, and is then
// asked for a retry.
func (c *call) learn(r result) {
	c.waits.read(r)
	// The Outcome of a request that is safe to send twice is about the last send
	// of net/http only.
	c.processed = c.idempotent || r.outcome != Unprocessed &&
		(r.err == nil || !c.attempt.neverSent(r.err, c.caller.req.URL, &c.engine.base))
	c.connEnded = r.err != nil && r.outcome == Unprocessed && c.attempt.endedUnbegun(r.err)
	c.charge.last = c.attemptResult(r)
	// A rest is recorded once enough of it has arrived.
	if c.begun && !(c.partial != nil && c.isSuccess(r) && c.partial.accepts(r)) {
		c.record()
	}
}

// attemptResult returns what a budget gets of r.
func (c *call) attemptResult(r result) AttemptResult {
	a := AttemptResult{
		Origin:    c.caller.origin,
		PolicyKey: c.policy.key,
		Number:    c.attempts,
	}
	switch {
	case r.resp != nil:
		a.Status = r.resp.StatusCode
		a.Outcome = r.outcome
		a.Timeout = a.Status == http.StatusGatewayTimeout
		a.Throttled = a.Status == http.StatusTooManyRequests && c.waits.asked > 0
		// A host that is overloaded may forbid retries.
		if r.outcome == Final && a.Status >= 400 && retryafter.Forbids(r.resp.Header) {
			a.Outcome = c.classify(withoutShouldRetry(r.resp), nil)
		}
	case r.err != nil:
		c.describeError(&a, r)
	}
	return a
}

// describeError fills in the result of an attempt that ended with an error.
func (c *call) describeError(a *AttemptResult, r result) {
	a.Timeout = isTimeout(r.err)
	switch c.caller.ended() {
	case ReasonCanceled:
		return // the host is not known to have failed
	case ReasonDeadline:
		// The host has not answered in time, unless a layer knows better.
		if _, states := statedOutcome(r.err); !states && !c.attempt.bodyFailed() {
			a.Timeout, r.outcome = true, max(r.outcome, Transient)
		}
	default:
		// The host has answered none of the requests.
		if errors.Is(r.err, wire.ErrTooManySends) {
			r.outcome = Transient
		}
	}
	a.Outcome = r.outcome
}

// record passes the result of the last attempt on to the budget.
func (c *call) record() {
	c.begun = false
	c.charge.record()
}

// report records the decision after r: for later waits, for Origins and, if
// Config.Observe is set, for that.
func (c *call) report(r result, wait time.Duration, reason Reason) {
	// The host has failed in none of the other cases.
	switch {
	case r.isOfWait:
		c.recordEnd(reason)
	// A body that is resumed works once enough of it has arrived.
	case c.isSuccess(r) && c.partial == nil:
		c.waits.failing.clear()
	case !c.isSuccess(r) && reason != ReasonCanceled && !(r.err != nil && c.attempt.bodyFailed()) &&
		!(c.connEnded && reason == ReasonNone):
		c.recordFailure(r, reason)
		c.recordEnd(reason)
	}
	if c.engine.observe != nil {
		e := c.event(r, wait, reason)
		c.caller.waited = 0
		c.engine.observe(c.caller.req.Context(), e)
	}
}

// recordFailure records that the host has failed.
func (c *call) recordFailure(r result, reason Reason) {
	c.waits.failing.Store(true)
	f := origintable.Failure{At: time.Now()}
	if r.resp != nil {
		f.Status = r.resp.StatusCode
	} else {
		f.Text = Event{Err: c.eventError(r.err, reason), Reason: reason}.errorStatus()
	}
	c.caller.known().Fail(f)
}

// recordEnd records that the request has ended after a failure, if its first
// attempt was the only one.
func (c *call) recordEnd(reason Reason) {
	if reason != ReasonNone && reason != ReasonCanceled && c.attempts == 1 {
		c.caller.known().FailWithoutRetry()
	}
}

// event returns the Event of the decision after r.
func (c *call) event(r result, wait time.Duration, reason Reason) Event {
	var asked time.Duration
	if r.resp != nil {
		asked = c.waits.asked
	}
	if reason == ReasonCooldown {
		asked = c.waits.cooldown.remaining(time.Now()).Wait
	}
	attempt := c.charge.last
	// They are known even if nothing was sent.
	attempt.Origin, attempt.PolicyKey = c.caller.origin, c.policy.key
	e := Event{
		Request:  c.caller.req,
		Response: r.resp,
		Err:      c.eventError(r.err, reason),
		Attempt:  attempt,
		Elapsed:  time.Since(c.engine.created) - c.caller.start,
		Waited:   c.caller.waited,
		Wait:     wait,
		Asked:    asked,
		Reason:   reason,
	}
	if c.partial != nil {
		return c.partial.describe(e)
	}
	return e
}

// eventError returns the error of an Event, where err is that of the attempt or
// of the wait after it.
func (c *call) eventError(err error, reason Reason) error {
	switch {
	// The attempt's own error does not explain why the body cannot be sent
	// again.
	case reason == ReasonNotReplayable && c.body.Err() != nil:
		return c.body.Err()
	case reason == ReasonNotResumable:
		return c.partial.obstacle(err)
	// The error may be any that the passing of the deadline led to.
	case reason == ReasonDeadline && err != nil && c.caller.left:
		return c.canceled(err)
	}
	return err
}

// withoutShouldRetry returns a copy of resp in whose header the server does not
// forbid a retry.
func withoutShouldRetry(resp *http.Response) *http.Response {
	clone := *resp
	clone.Header = resp.Header.Clone()
	delete(clone.Header, "X-Should-Retry")
	delete(clone.Header, "Stripe-Should-Retry")
	return &clone
}

// isSuccess reports whether r, which learn has got last, shows that the host
// works.
func (c *call) isSuccess(r result) bool { return r.resp != nil && c.charge.last.Outcome == Final }

// neverSent reports whether the attempt, in which base sent a request to u and
// failed with err, provably ended before a byte of the request was written.
func (a *attempt) neverSent(err error, u *url.URL, base *base) bool {
	switch {
	case a == nil:
		return false
	// net/http writes nothing of a request that is not valid.
	case base.isKnown() && !a.trace.Facts().Wrote && isInvalidRequest(err):
		return true
	// A layer may have sent the request without net/http. A body shows that,
	// because the layer has read it (wire.Trace.ProvesUnsent).
	case !a.hasBody && (!base.isKnown() || !isOfNetHTTP(u)):
		return false
	}
	// A layer may have canceled the request by a context of its own, whatever its error.
	canceled := !base.isNetHTTP(u) || cancelSignal(&a.req).IsSet()
	return a.trace.ProvesUnsent(canceled) && !base.hasOtherProtocols()
}

// endedUnbegun reports whether err, of a request that was not processed, means
// that its connection was at its end. With GetBody, the transport below would have
// sent it again at once. On a new connection, nothing written is a failure.
func (a *attempt) endedUnbegun(err error) bool {
	text := err.Error()
	return strings.HasPrefix(text, cannotRetry) || text == cannotRewind || isRejectedByHTTP3(err) ||
		a != nil && a.trace.Facts().LastReused && (isNothingWritten(err) ||
			strings.HasPrefix(text, resetIdle) || strings.HasPrefix(text, closedIdle))
}

// isInvalidRequest reports whether err is that of net/http for a request that it
// does not begin to send.
func isInvalidRequest(err error) bool {
	for _, prefix := range []string{"unsupported protocol scheme",
		"http: no Host in request URL", "http: nil Request.", "net/http: invalid ",
		"http2: invalid ", "http2: request header list larger"} {
		if strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	return false
}

// bodyFailed reports whether the attempt's error is that of the request body's
// own reader.
func (a *attempt) bodyFailed() bool { return a != nil && a.readerFailed }

// failedToReconnect reports whether err means that a connection failed to open
// after the request had been written on another. While a connection is being
// opened, any error counts, because the texts of proxies differ. Through a proxy,
// that seems to be so for one that net/http has, too, so the error of a stream
// does not count.
func (a *attempt) failedToReconnect(err error) bool {
	if a == nil || !a.trace.Facts().Wrote || strings.HasPrefix(err.Error(), cannotRetry) {
		return false
	}
	var op *net.OpError
	return a.trace.Facts().Connecting || errors.As(err, &op) && isDial(op) ||
		strings.HasPrefix(err.Error(), handshakeTimeout)
}

// leavesOpen reports whether the attempt has written a request about which its
// result, an error or else a response, says nothing. An error of net/http is
// about the request on the last connection. One that states an Outcome, such as
// that of the breaker of another host, may be about a request that was not sent.
func (a *attempt) leavesOpen(err error, states bool) bool {
	sent := a.trace.Facts()
	isOfLast := err != nil && (!states || classifyUnstated(err) == Unprocessed)
	return sent.UnansweredElsewhere || sent.UnansweredHere && !isOfLast
}

// isOfAnother reports whether the result of an attempt may be that of another
// request. A layer in Base sends one, for example, to follow a redirect or to
// poll for a result. If an error follows an answer, the answer may have been to
// the attempt's own request, which was processed then. A response to a request
// with another method is not that to the attempt's own.
func (a *attempt) isOfAnother(resp *http.Response, err error) bool {
	switch {
	case a == nil:
		return false
	case err != nil:
		return a.trace.Facts().Answered
	}
	return resp.Request != nil &&
		cmp.Or(resp.Request.Method, http.MethodGet) != cmp.Or(a.req.Method, http.MethodGet)
}
