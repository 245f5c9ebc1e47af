package httpretry

import (
	"context"
	"io"
	"net/http"
	"reflect"

	"github.com/seed421102f4/httpretry/internal/respbody"
)

// handOver prepares resp, of the last attempt, for the caller. It sets
// resp.Request, and ends the attempt with the body. It returns the context that
// has the attempts and the Reason, or nil. Except in the last row below,
// ResultOf finds that context.
//
// resp.Request depends on the request that Base has set, on the context of that
// request, and on whether the result is recorded:
//
//	set by Base                recorded  for the caller
//	nil, or the request sent   no        the caller's
//	nil, or the request sent   yes       the caller's, with the result
//	another, in the attempt    any       Base's, detached, with the result
//	another, in no attempt     yes       Base's, with the result (*)
//	any other                  any       Base's, as it is
//
// A request is in an attempt if its context is that of the attempt or derived
// from it. "With the result" means in a context in which ResultOf finds it. The
// row marked (*) is for an attempt that sent the caller's own request. After a
// copy, such a request stays as it is, too.
func (s *sending) handOver(
	resp *http.Response, end Result, mayBreakOff bool) (result *attemptContext) {
	a := s.attempt
	isDefault := !mayBreakOff && end == defaultResult(resp)
	// ResultOf returns the default anyway, unless the request's context is that
	// of an earlier response. An outer RetryTransport sets Response.Request
	// itself, once it has decided how the request ended.
	recorded := s.caller.outer() == nil && (!isDefault || s.caller.values.hasAttempt())
	if recorded {
		result = s.caller.resultContext(a, s.attempts)
	}
	switch {
	case resp.Request == nil, s.isOwn(resp.Request):
		resp.Request = s.shownRequest(result)
	// Base has sent a request of its own, for example to follow a redirect. The
	// context of that request must not end with the attempt.
	case a != nil && a.isIn(resp.Request.Context()):
		var ctx context.Context
		ctx, result = s.detach(resp.Request.Context())
		resp.Request = resp.Request.WithContext(ctx)
	// A layer, such as a tracer, has cloned the caller's own request. If the
	// context of the clone has an attempt, Base has returned the same Response
	// to an earlier request, so that context is not changed.
	case recorded && a == nil && !fromContext(resp.Request.Context()).hasAttempt():
		ctx := resp.Request.Context()
		result.init(ctx, fromContext(ctx), s.attempts)
		resp.Request = resp.Request.WithContext(result)
	}
	if result != nil {
		result.unprocessed = end.Unprocessed
		result.reason.Store(uint32(end.Reason))
	}
	if a != nil && (a.cancel != nil || a.copies.HasMore()) {
		a.followBody(resp)
	}
	return result
}

// shownRequest returns the caller's request, with the result if there is one.
func (s *sending) shownRequest(result *attemptContext) *http.Request {
	if result == nil {
		return s.caller.req
	}
	if a := s.attempt; a != nil && a.shown != nil {
		*a.shown = *s.caller.req.WithContext(result) // which does not escape
		return a.shown
	}
	return s.caller.req.WithContext(result)
}

// isOwn reports whether req is the request that the last attempt sent, or the
// copy that net/http makes of one with a body (setupRewindBody). That copy is
// the Response.Request if an HTTP/2 connection was open already.
func (s *sending) isOwn(req *http.Request) bool {
	sent := s.sentRequest()
	return req == sent || req == s.caller.req ||
		req.URL == sent.URL && req.Method == sent.Method && req.Host == sent.Host &&
			reflect.ValueOf(req.Header).Pointer() == reflect.ValueOf(sent.Header).Pointer() &&
			sameContext(req.Context(), sent.Context())
}

// followBody ends the attempt with the body of its response. Until then, the
// attempt's context must live, because it is that of the body, too.
func (a *attempt) followBody(resp *http.Response) {
	switch {
	// The body of a tunnel also writes, and net/http does not need its context
	// any more (RFC 9110 sections 9.3.6 and 15.2.2).
	case isTunnel(&a.req, resp):
		a.ResponseEnded(resp.ProtoMajor)
	// Callers often do not close a body without bytes. A layer may have wrapped
	// http.NoBody. Over HTTP/2, a response without a body may still have
	// trailers, which end it.
	case respbody.IsEmpty(resp), respbody.IsWhole(resp),
		resp.ProtoMajor == 1 && (resp.ContentLength == 0 || a.req.Method == http.MethodHead):
		a.ResponseEnded(resp.ProtoMajor)
	default:
		a.respBody.Follow(resp, a)
	}
}

// isTunnel reports whether resp is a tunnel whose body also writes. For
// CONNECT, the body from net/http does not write, because net/http sends the
// request's body through the tunnel.
func isTunnel(req *http.Request, resp *http.Response) bool {
	_, writes := resp.Body.(io.Writer)
	return resp.StatusCode == http.StatusSwitchingProtocols ||
		writes && req.Method == http.MethodConnect && resp.StatusCode >= 200 &&
			resp.StatusCode < 300
}

// resultContext returns a context for Response.Request, in which ResultOf finds
// the attempts and the Reason. To save an allocation, that is the attempt's own
// context. It is a new one if there is no copy, or if the caller's context is
// that of an earlier response. Such contexts form a chain, and each keeps those
// before it in memory.
func (c *caller) resultContext(a *attempt, attempts int) *attemptContext {
	if a != nil && !c.values.hasAttempt() {
		return &a.attemptContext
	}
	result := new(attemptContext)
	result.init(c.attemptContext(), &c.values, attempts)
	if a != nil {
		result.number = a.number
	}
	return result
}

// detach returns a context that has the values of ctx and ends when the
// caller's context does. ctx is the context of the attempt or derived from it.
// detach also returns the context that ResultOf finds in the new one.
func (s *sending) detach(ctx context.Context) (context.Context, *attemptContext) {
	a := s.attempt
	if sameContext(ctx, a.req.Context()) {
		result := s.caller.resultContext(a, s.attempts)
		return result, result
	}
	// The values include the hooks. A request that the caller sends with them
	// must not end the attempt, whose response it may still be reading.
	a.trace.Detach()
	detached := &detachedContext{Context: a.Context, values: context.WithoutCancel(ctx)}
	v := fromContext(ctx)
	if v.attempt == &a.attemptContext {
		return detached, v.attempt
	}
	// A nested RetryTransport has put its own attempt into the context.
	// ResultOf must not find that one.
	result := new(attemptContext)
	result.init(detached, v, a.number)
	return result, result
}

// detachedContext has the values of a context that was derived from that of an
// attempt, and ends when the caller's context does.
type detachedContext struct {
	context.Context // the caller's
	values          context.Context
}

// Value implements context.Context. It asks only values. If it also asked the
// caller's context, a chain of detached contexts would take exponential time.
// As a consequence, context.Cause returns the error of the caller's context,
// and not its cause.
func (c *detachedContext) Value(key any) any { return c.values.Value(key) }

// AfterFunc spares package context a goroutine for each derived context (see
// [context.AfterFunc]).
func (c *detachedContext) AfterFunc(f func()) func() bool { return context.AfterFunc(c.Context, f) }
