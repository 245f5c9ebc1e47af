package httpretry

import (
	"context"
	"fmt"
	"net/http"
)

// contextValues is all that this package stores in contexts. There is one key,
// so that a request costs one lookup. Values are not modified once they are in
// a context: a derived context has a copy.
type contextValues struct {
	policy         *resolvedPolicy // WithPolicy
	withoutRetries bool            // WithoutRetries
	idempotent     bool            // WithIdempotent
	inbound        *inbound        // Middleware
	attempt        *attempt        // the attempt that the context belongs to
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
	if v := fromContext(ctx); v != nil && v.attempt != nil {
		return v.attempt.number
	}
	return 1
}

// Result returns the number of attempts of the request that ended with resp,
// and the reason why no other attempt followed. If resp is not the response of
// a RetryTransport, or Base changed its Request, the result is 1 and
// ReasonSuccess, or ReasonPermanent if the status is 400 or above. With
// [Policy.Resume], the number of attempts grows while the body is read.
func Result(resp *http.Response) (attempts int, reason Reason) {
	if resp.Request != nil {
		if v := fromContext(resp.Request.Context()); v != nil && v.attempt != nil {
			// For a layer in Base, the request has not ended.
			if reason := Reason(v.attempt.result.reason.Load()); reason != ReasonNone {
				return v.attempt.result.made + int(v.attempt.result.resumes.Load()), reason
			}
		}
	}
	if resp.StatusCode >= 400 {
		return 1, ReasonPermanent
	}
	return 1, ReasonSuccess
}
