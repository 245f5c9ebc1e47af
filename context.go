package httpretry

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"sync/atomic"
)

// contextValues is all that this package stores in contexts. There is one key,
// so that a request costs one lookup. Values are not modified once they are in
// a context: a derived context has a copy.
type contextValues struct {
	policy         *resolvedPolicy // WithPolicy
	withoutRetries bool            // WithoutRetries
	idempotent     bool            // WithIdempotent
	inbound        *inbound        // Middleware
	attempt        *attemptContext // the attempt that the context belongs to
}

type contextKey struct{}

// fromContext returns the values in ctx, or nil. They must not be modified.
func fromContext(ctx context.Context) *contextValues {
	v, _ := ctx.Value(contextKey{}).(*contextValues)
	return v
}

// copyFromContext returns a copy of the values in ctx.
func copyFromContext(ctx context.Context) contextValues {
	if v := fromContext(ctx); v != nil {
		return *v
	}
	return contextValues{}
}

// hasAttempt reports whether v, which may be nil, are the values of an
// attempt's context or of a Response's.
func (v *contextValues) hasAttempt() bool { return v != nil && v.attempt != nil }

func (v *contextValues) withContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, contextKey{}, v)
}

// WithPolicy returns a context whose requests follow p, whatever their host. It
// replaces the whole policy: a zero field means its default. If p is not valid,
// its requests are not sent and fail with an [*Error] that says why.
func WithPolicy(ctx context.Context, p Policy) context.Context {
	v := copyFromContext(ctx)
	v.policy = p.resolve()
	v.policy.err = p.problems("Policy")
	return v.withContext(ctx)
}

// problemWith returns what is wrong with a policy of WithPolicy, on its own or
// with the settings of the RetryTransport that is to follow it.
func (p *resolvedPolicy) problemWith(s *settings) error {
	if p.err == nil && p.IdempotencyHeader == s.attemptHeader {
		return fmt.Errorf("Policy.IdempotencyHeader: %q: want another header than Config.AttemptHeader", p.IdempotencyHeader)
	}
	return p.err
}

// WithoutRetries returns a context whose requests are sent once. Otherwise they
// follow the policy for their host.
func WithoutRetries(ctx context.Context) context.Context {
	v := copyFromContext(ctx)
	v.withoutRetries = true
	return v.withContext(ctx)
}

// WithIdempotent returns a context whose requests are considered idempotent,
// such as a POST that only searches. That includes requests that Base sends in
// the same context, such as a request for a token. Use [Policy.Idempotent] to
// decide by a request's contents.
func WithIdempotent(ctx context.Context) context.Context {
	v := copyFromContext(ctx)
	v.idempotent = true
	return v.withContext(ctx)
}

// Attempt returns the number, from 1, of the attempt that ctx belongs to: the
// context of a request that Base is sending, or of a Response's Request. For
// any other context it returns 1.
func Attempt(ctx context.Context) int {
	if v := fromContext(ctx); v.hasAttempt() {
		return v.attempt.number
	}
	return 1
}

// Result returns the number of attempts of the request that ended with resp,
// and the reason why no other attempt followed. If resp is not the response of
// a RetryTransport, or its Request was replaced, the result is 1 and
// ReasonSuccess, or ReasonPermanent if the status is 400 or above. With
// [Policy.Resume], the number of attempts grows while the body is read.
func Result(resp *http.Response) (attempts int, reason Reason) {
	if resp.Request != nil {
		if v := fromContext(resp.Request.Context()); v.hasAttempt() {
			// For a layer in Base, the request has not ended.
			if reason := Reason(v.attempt.reason.Load()); reason != ReasonNone {
				return v.attempt.made + int(v.attempt.resumes.Load()), reason
			}
		}
	}
	if resp.StatusCode >= 400 {
		return 1, ReasonPermanent
	}
	return 1, ReasonSuccess
}

// sameContext compares contexts, some of which cannot be compared by ==.
func sameContext(a, b context.Context) bool {
	return reflect.ValueOf(a).Comparable() && a == b
}

// attemptContext is the context of an attempt, or that of a Response's Request:
// the caller's context with the values of the attempt. It is small, because
// contexts that a caller derives from it keep it in memory.
type attemptContext struct {
	context.Context // the caller's

	values  contextValues
	number  int           // what Attempt returns
	made    int           // attempts of this RetryTransport, this one included
	resumes atomic.Int32  // attempts since the response was handed over
	reason  atomic.Uint32 // the Reason that ended the request, or ReasonNone

	inRoundTrip atomic.Bool // Base's RoundTrip is running
}

// init makes a the context of the attempt with the given number. The values are
// those of ctx, or nil.
func (a *attemptContext) init(ctx context.Context, values *contextValues, number int) {
	a.Context, a.number, a.made = ctx, number, number
	if values != nil {
		a.values = *values
	}
	a.values.attempt = a
}

// Value implements context.Context.
func (a *attemptContext) Value(key any) any {
	if key == (contextKey{}) {
		return &a.values
	}
	return a.Context.Value(key)
}

// isIn reports whether ctx is the context of the attempt, or derived from it.
func (a *attemptContext) isIn(ctx context.Context) bool {
	v := fromContext(ctx)
	for v.hasAttempt() && v.attempt != a {
		v = fromContext(v.attempt.Context) // of a nested RetryTransport
	}
	return v.hasAttempt()
}

// endContext returns a context for Response.Request. It is the attempt's, which
// saves an allocation. If the caller derives contexts from those of responses,
// it is a new one, because each of them keeps those before it in memory.
func (c *call) endContext() *attemptContext {
	a := c.attempt
	if a != nil && !c.values.hasAttempt() {
		return &a.attemptContext
	}
	end := new(attemptContext)
	end.init(c.callerContext(), c.values, c.attempts)
	if a != nil {
		end.number = a.number
	}
	return end
}

// requestWith returns a copy of the caller's request with another context.
func (c *call) requestWith(ctx context.Context) *http.Request {
	if c.attempt == nil {
		return c.req.WithContext(ctx)
	}
	c.attempt.respReq = *c.req.WithContext(ctx)
	return &c.attempt.respReq
}

// detach returns a context with the values of ctx, which is the context of the
// attempt or derived from it, that ends when the caller's context does, and the
// context that Result finds in it.
func (c *call) detach(ctx context.Context) (context.Context, *attemptContext) {
	a := c.attempt
	if sameContext(ctx, a.req.Context()) {
		end := c.endContext()
		return end, end
	}
	// The values include the hooks. What the caller sends with them must not
	// end the attempt, whose response it may still be reading.
	a.trace.Detach()
	detached := &detachedContext{Context: a.Context, values: context.WithoutCancel(ctx)}
	v := fromContext(ctx)
	if v.attempt == &a.attemptContext {
		return detached, v.attempt
	}
	// A nested RetryTransport has put its own attempt into the context. Result
	// must not find that one.
	end := new(attemptContext)
	end.init(detached, v, a.number)
	return end, end
}

// detachedContext has the values of a context that was derived from that of an
// attempt, and ends when the caller's context does.
type detachedContext struct {
	context.Context // the caller's
	values          context.Context
}

// Value implements context.Context. It does not look in the caller's context
// as well, which may be a detachedContext in turn, and so on: the time would
// double with each. So context.Cause returns the error of the caller's context.
func (c *detachedContext) Value(key any) any { return c.values.Value(key) }

// AfterFunc spares package context a goroutine for each derived context (see
// [context.AfterFunc]).
func (c *detachedContext) AfterFunc(f func()) func() bool { return context.AfterFunc(c.Context, f) }

// callerContext returns the context that attempts of c are derived from. If
// that is the context of an earlier Response's Request, it is the one which
// that was derived from: otherwise a caller that makes each request in the
// context of the response before would keep all of them in memory.
func (c *call) callerContext() context.Context {
	ctx := c.req.Context()
	if earlier, ok := ctx.(*attemptContext); ok {
		return earlier.Context
	}
	return ctx
}
