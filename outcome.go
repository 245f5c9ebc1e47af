package httpretry

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"

	"github.com/seed421102f4/httpretry/internal/wire"
)

// outcome returns the Outcome of c's last attempt.
func (c *call) outcome(resp *http.Response, err error) (outcome Outcome) {
	p := c.policy
	switch {
	// classify returns the same, at a higher cost.
	case err == nil && resp.StatusCode < 400 && p.Classify == nil:
		return Final
	// A body that cannot be read will not be readable on a retry, and a
	// server's answer to a part of it means nothing.
	case c.attempt.bodyFailed():
		return Final
	case p.Classify != nil:
		outcome = p.Classify(c.sentRequest(), resp, err)
	default:
		outcome = classify(c.sentRequest(), resp, err, p.IdempotencyHeader)
		// The error is about another request of a layer in Base, so it does not
		// prove that this one was not processed. An error with an Outcome
		// method decides for itself.
		if outcome == Unprocessed && !statesOutcome(err) && c.attempt.isOfAnother(resp, err) {
			outcome = Transient
		}
	}
	switch {
	case outcome > Unprocessed:
		return Final
	// Another connection has been tried; once is enough.
	case c.retried421 && statusIs(resp, http.StatusMisdirectedRequest):
		return Final
	// net/http has retried often enough for all attempts.
	case errors.Is(err, wire.ErrTooManySends):
		return Final
	case outcome == Transient && err != nil && c.neverSent(err):
		return Unprocessed
	case outcome == Unprocessed && err != nil && c.attempt.failedToReconnect(err):
		return Transient
	}
	return outcome
}

// finalReason returns why a Final response ends its request.
func finalReason(resp *http.Response) Reason {
	switch {
	case resp.StatusCode < 400:
		return ReasonSuccess
	case serverForbidsRetry(resp):
		return ReasonDoNotRetry
	}
	return ReasonPermanent
}

// isSuccess reports whether resp shows that the host works, because it is not a
// transient failure. One that the server forbids to retry may be either.
func (c *call) isSuccess(resp *http.Response, reason Reason) bool {
	return reason == ReasonSuccess || reason == ReasonPermanent || reason == ReasonDoNotRetry &&
		classifyStatus(c.sentRequest(), resp, c.policy.IdempotencyHeader) == Final
}

// neverSent reports whether the current attempt, which failed with err,
// provably ended before a byte of its request was written.
func (c *call) neverSent(err error) bool {
	a := c.attempt
	switch {
	case a == nil:
		return false
	// Without a body, nothing shows whether a layer has sent the request.
	case !a.hasBody && (c.settings.base.transport == nil || !isOfNetHTTP(c.caller.req.URL)):
		return false
	}
	// The context that ended the attempt may be one of a layer.
	canceled := a.req.Context().Err() != nil || isTimeout(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	return a.trace.ProvesUnsent(canceled) && !c.settings.base.hasOtherProtocols()
}

// bodyFailed reports whether the attempt's error is that of the request body's
// own reader.
func (a *attempt) bodyFailed() bool { return a != nil && a.readerFailed }

// failedToReconnect reports whether err means that a connection failed to open
// after the request had been written on another. While a connection is being
// opened, any error counts, because the texts of proxies differ.
func (a *attempt) failedToReconnect(err error) bool {
	if a == nil || !a.trace.Wrote() {
		return false
	}
	var op *net.OpError
	return a.trace.Connecting() || errors.As(err, &op) && isDial(op) ||
		strings.HasPrefix(err.Error(), handshakeTimeout)
}

// isOfAnother reports whether the result of an attempt is that of a request
// which a layer in Base sent after another one was answered: the attempt's own,
// which was processed then, or one before it. A layer that follows a redirect
// or polls for a result does so.
func (a *attempt) isOfAnother(resp *http.Response, err error) bool {
	switch {
	case a == nil:
		return false
	case err != nil:
		return a.trace.Answered()
	}
	return resp.Request != nil &&
		cmp.Or(resp.Request.Method, http.MethodGet) != cmp.Or(a.req.Method, http.MethodGet)
}

// hasUploaded reports whether it is known that Base does not read the attempt's
// body any more. Without a copy, nothing is known.
func (a *attempt) hasUploaded() bool { return a != nil && a.trace.Uploaded() }
