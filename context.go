package httpretry

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/seed421102f4/httpretry/internal/fielderr"
)

// contextValues is all that this package stores in contexts. There is one key,
// so that a request costs one lookup. Values are not modified once they are in
// a context. A derived context has a copy.
type contextValues struct {
	policy         *resolvedPolicy       // WithPolicy
	changes        []func(Policy) Policy // WithPolicyFunc, since the last WithPolicy
	withoutRetries bool                  // WithoutRetries
	idempotent     bool                  // WithIdempotent
	inbound        *inbound              // Middleware
	attempt        *attemptContext       // the attempt that the context belongs to
}

// inbound is a request that a server is handling.
type inbound struct {
	priorAttempts int         // how often its caller has sent it before
	done          atomic.Bool // its handler has returned
}

// isOpen reports whether requests in the inbound one's context are sent on its
// behalf.
func (in *inbound) isOpen() bool { return in != nil && !in.done.Load() }

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
// replaces the whole policy, so a zero field means its default. If p is not
// valid, its requests are not sent and fail with an [*Error] that says why.
func WithPolicy(ctx context.Context, p Policy) context.Context {
	v := copyFromContext(ctx)
	v.policy, v.changes = p.checkedWithDefaults(), nil
	return v.withContext(ctx)
}

// WithPolicyFunc returns a context whose requests follow the policy that f
// returns. f gets the policy that they would follow without it. A later
// [WithPolicy] replaces f. In the argument of f, MaxAttempts, MaxRetryAfter and
// ReplayBuffer have their defaults, and the largest number for no limit, so
// p.MaxAttempts++ is one attempt more. f must not lower any of them to 0, nor
// MaxAttempts or MaxRetryAfter below. See docs/recipes.md.
//
// f is called once for each request, before it is sent. It must be safe for
// concurrent use. If its result is not valid, the request fails as with
// WithPolicy. WithPolicyFunc panics if f is nil.
func WithPolicyFunc(ctx context.Context, f func(Policy) Policy) context.Context {
	if f == nil {
		panic("httpretry: WithPolicyFunc: nil function")
	}
	v := copyFromContext(ctx)
	v.changes = append(slices.Clip(v.changes), f)
	return v.withContext(ctx)
}

// policyFor returns the policy of a request whose host has the policy p. It
// returns p itself if the context has none.
func (v *contextValues) policyFor(p *resolvedPolicy) *resolvedPolicy {
	if v.policy != nil {
		p = v.policy
	}
	if v.changes == nil {
		return p
	}
	return p.changedBy(v.changes)
}

// changedBy returns p as the functions change it. It needs a large stack, which
// policyFor spares other requests.
func (p *resolvedPolicy) changedBy(changes []func(Policy) Policy) *resolvedPolicy {
	changed, problems := p.given, []error(nil)
	for _, f := range changes {
		var err error
		changed, err = changed.change(f)
		problems = append(problems, fielderr.At("Policy", err))
	}
	r := changed.checkedWithDefaults()
	r.key = p.key
	r.err = fielderr.Join(append(problems, r.err)...)
	return r
}

// WithoutRetries returns a context whose requests have one attempt. Otherwise
// they follow their policy. If the connection was at its end and the server has
// provably not begun the request, as after a GOAWAY, it is still sent again.
// net/http may resend one that is safe to send twice, once for each idle
// connection that ends unanswered.
func WithoutRetries(ctx context.Context) context.Context {
	v := copyFromContext(ctx)
	v.withoutRetries = true
	return v.withContext(ctx)
}

// WithIdempotent returns a context whose requests are considered idempotent,
// such as a POST that only searches. They include those that Base sends in it,
// such as for a token. Use [Policy.Idempotent] to decide by request.
func WithIdempotent(ctx context.Context) context.Context {
	v := copyFromContext(ctx)
	v.idempotent = true
	return v.withContext(ctx)
}

// Attempt returns the number, from 1, of the attempt that ctx belongs to: the
// context of the request that Base sends, or of a response's Request. For any
// other context, it returns 1.
func Attempt(ctx context.Context) int {
	if v := fromContext(ctx); v.hasAttempt() {
		return v.attempt.number
	}
	return 1
}

// Result is how a request ended. Later versions may add fields.
type Result struct {
	Attempts    int    // attempts that were started
	Reason      Reason // why no other attempt followed
	Unprocessed bool   // as Error.Unprocessed, such as if each attempt got a 425
}

// ResultOf returns the Result of the request that ended with resp, or zero for
// nil. A response of another transport, or one whose Request was replaced,
// counts as one attempt with ReasonSuccess, or from 400 on ReasonPermanent.
// With [Policy.Resume], the Result may change while the body is read.
func ResultOf(resp *http.Response) Result {
	if resp == nil {
		return Result{} // a caller may ask before it looks at the error
	}
	if resp.Request != nil {
		if v := fromContext(resp.Request.Context()); v.hasAttempt() {
			// For a layer in Base, the request has not ended.
			if reason := Reason(v.attempt.reason.Load()); reason != ReasonNone {
				return Result{
					Attempts:    v.attempt.made + int(v.attempt.resumes.Load()),
					Reason:      reason,
					Unprocessed: v.attempt.unprocessed,
				}
			}
		}
	}
	return defaultResult(resp)
}

// defaultResult is ResultOf for a response in whose Request nothing is recorded.
func defaultResult(resp *http.Response) Result {
	if resp.StatusCode >= 400 {
		return Result{Attempts: 1, Reason: ReasonPermanent}
	}
	return Result{Attempts: 1, Reason: ReasonSuccess}
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

	values contextValues

	// Not changed once another goroutine may have the context.
	number int // returned by Attempt
	made   int // attempts of this RetryTransport, this one included

	resumes atomic.Int32  // attempts since the response was handed over
	reason  atomic.Uint32 // the Reason that ended the request, or ReasonNone

	unprocessed bool // of the Result; written before reason

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

// AfterFunc spares package context a goroutine for each derived context, if it
// does not know the type of a.Context (see [context.AfterFunc]).
func (a *attemptContext) AfterFunc(f func()) func() bool {
	return context.AfterFunc(a.Context, f)
}

// isIn reports whether ctx is the context of the attempt, or derived from it.
func (a *attemptContext) isIn(ctx context.Context) bool {
	v := fromContext(ctx)
	for v.hasAttempt() && v.attempt != a {
		v = fromContext(v.attempt.Context) // of a nested RetryTransport
	}
	return v.hasAttempt()
}
