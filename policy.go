package httpretry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/strategies"
)

const maxDuration = math.MaxInt64 // as a time.Duration, about 292 years

// Defaults of the fields of [Policy].
const (
	DefaultMaxAttempts   = 3
	DefaultMaxRetryAfter = 60 * time.Second
	DefaultReplayBuffer  = 64 << 10
	DefaultKeyHeader     = "Idempotency-Key"
)

// Policy says when and how requests to a host are repeated. Its zero value is
// sensible; every zero field means the default named on it. Policies are
// values: copy one and change the copy.
type Policy struct {
	// MaxAttempts is the most attempts a request gets, the first included.
	// 0 means 3, and 1 means that nothing is ever retried.
	MaxAttempts int

	// Backoff makes the waits between attempts. Nil means
	// strategies.DecorrelatedV2{Median: 500ms, Max: 30s}.
	Backoff strategies.Strategy

	// Throttled makes the waits after a 429 (Too Many Requests). Nil means
	// Backoff if that is set, else
	// strategies.DecorrelatedV2{Median: 1s, Max: 30s}.
	Throttled strategies.Strategy

	// MaxRetryAfter is the longest wait that a server may ask for, in response
	// to this request or to another (see Cooldown). If it asks for a longer
	// one, retrying ends at once: the wait is never shortened. 0 means 60s.
	MaxRetryAfter time.Duration

	// AttemptTimeout bounds one attempt, from its start until its response
	// headers are there: connecting, sending the body, waiting. It never cuts
	// a response's body. 0 means none. An attempt that is still waiting for
	// the next bytes of a body without GetBody when the time is up ends the
	// request, whose body is late: the body is closed, which has to end its
	// Read, as it does for a pipe or a socket. For the body of a server's
	// incoming request over HTTP/1 it does not: give that a read deadline.
	AttemptTimeout time.Duration

	// MaxElapsed bounds when retries may start: none starts later than this
	// after the first attempt began, or after that began to wait for its host
	// to cool down. 0 means no such bound; the deadline of a request's context
	// always bounds them.
	MaxElapsed time.Duration

	// Budget says whether a retry may be sent at all. Nil means a HostBudget
	// that the policies of one RetryTransport share. See [HostBudget] for
	// what it allows.
	Budget Budget

	// BudgetBackoff makes a request whose retry the Budget refuses wait for as
	// long as it would have waited for the retry by Backoff, before its failure
	// is handed back. Without, a loop that sends the next request as soon as one
	// has failed turns as fast as the failures come. A cancel ends that wait.
	// Meanwhile a response holds no connection, unless its body is longer than
	// 64 KiB, slow, or one that net/http unpacks. What ends for another Reason
	// is handed back at once, such as a request whose deadline is nearer than
	// the wait, or one that has had its MaxAttempts.
	BudgetBackoff bool

	// Cooldown says what the first attempt does while its host is cooling down.
	// The zero value means CooldownOff: it is sent. Retries wait in any case.
	Cooldown Cooldown

	// CooldownKey returns what a host's wish to be left alone is about, where
	// that is less than all requests to it: the credential whose quota is used
	// up, say, or the route. Only requests to the same host for which it returns
	// the same hear of it; "" is a value like any other. It is called only while
	// some host is cooling down, or begins to. Nil means that it is about the host.
	CooldownKey func(*http.Request) string

	// Classify says what an attempt's response or error means. Exactly one of
	// its arguments is not nil; it must not read the response's body. It may be
	// asked more than once about the same. Nil means [Classify].
	Classify func(*http.Response, error) Outcome

	// Idempotent says whether a request may reach the server twice. A request
	// with a non-empty KeyHeader may, whatever it says. Nil means
	// [Idempotent].
	Idempotent func(*http.Request) bool

	// NewKey makes the idempotency key of a request that may not be repeated
	// without one. It is asked once per request; every attempt carries the
	// same key. A request's own key is never overwritten. If it returns ""
	// the request goes without. Nil means that none is made;
	// [RandomKey] makes random ones.
	NewKey func(*http.Request) string

	// KeyHeader is the header of the idempotency key. "" means
	// "Idempotency-Key".
	KeyHeader string

	// ReplayBuffer is how many bytes of a body without GetBody are kept, so
	// that it can be sent again. They are kept as they are sent, not read
	// ahead; a request whose body turns out longer is sent once. A body that
	// is an *os.File is read again instead, from where it stood. 0 means
	// 64 KiB, negative means that nothing is kept.
	ReplayBuffer int64

	_ [0]func() // no unkeyed literals, no comparison
}

// policy is a Policy with its defaults filled in. Its Classify stays nil for
// the default, and its Budget for the transport's own.
type policy struct {
	Policy
	err error // why a policy from a context is not valid
}

// mayRepeat reports whether there are retries at all.
func (p *policy) mayRepeat() bool { return p.MaxAttempts > 1 }

// keyed reports whether a header has an idempotency key.
func (p *policy) keyed(h http.Header) bool { return hasKey(h, p.KeyHeader) || hasStandardKey(h) }

// outcome says what the result of an attempt means, and adds what only that
// knows: a is nil if it was the caller's own request.
func (p *policy) outcome(a *attempt, resp *http.Response, err error, keyed func() bool) Outcome {
	var outcome Outcome
	if p.Classify != nil {
		outcome = p.Classify(resp, err)
	} else {
		outcome = classify(resp, err, keyed)
	}
	switch {
	case outcome > Unprocessed:
		return Final
	case outcome == Transient && err != nil && (a.neverSent(err) || a.refusedBelow()):
		return Unprocessed
	case outcome == Unprocessed && (a.repeatedBelow() || err != nil && a.dialedAgain(err)):
		return Transient
	}
	return outcome
}

// slowdown returns how long a failure whose retry the budget refused is held.
func (p *policy) slowdown(backoff time.Duration) time.Duration {
	if !p.BudgetBackoff {
		return 0
	}
	return max(backoff, 0)
}

func (p Policy) resolve() *policy {
	if p.MaxAttempts == 0 {
		p.MaxAttempts = DefaultMaxAttempts
	}
	if p.Backoff == nil {
		p.Backoff = strategies.DecorrelatedV2{Median: 500 * time.Millisecond, Max: 30 * time.Second}
		if p.Throttled == nil {
			p.Throttled = strategies.DecorrelatedV2{Median: time.Second, Max: 30 * time.Second}
		}
	}
	if p.MaxRetryAfter == 0 {
		p.MaxRetryAfter = DefaultMaxRetryAfter
	}
	if p.Idempotent == nil {
		p.Idempotent = Idempotent
	}
	if p.KeyHeader == "" {
		p.KeyHeader = DefaultKeyHeader
	}
	p.KeyHeader = http.CanonicalHeaderKey(p.KeyHeader)
	if p.ReplayBuffer == 0 {
		p.ReplayBuffer = DefaultReplayBuffer
	}
	return &policy{Policy: p}
}

// Validate returns an error that names every field out of range, one line
// each, with its value and what is allowed. New and WithPolicy call it.
func (p Policy) Validate() error {
	return joined(p.problems("Policy"))
}

// problems lists what is wrong with p, in the order of its fields, each with
// its path below path.
func (p Policy) problems(path string) []error {
	var problems []error
	add := func(field string, err error) {
		for _, line := range lines(err) {
			problems = append(problems, fmt.Errorf("%s.%s: %w", path, field, line))
		}
	}
	add("MaxAttempts", notNegative(p.MaxAttempts))
	if p.Backoff != nil {
		add("Backoff", strategies.Validate(p.Backoff))
	}
	if p.Throttled != nil {
		add("Throttled", strategies.Validate(p.Throttled))
	}
	add("MaxRetryAfter", notNegative(p.MaxRetryAfter))
	add("AttemptTimeout", notNegative(p.AttemptTimeout))
	add("MaxElapsed", notNegative(p.MaxElapsed))
	if v, ok := p.Budget.(interface{ Validate() error }); ok {
		add("Budget", v.Validate())
	}
	add("Cooldown", p.Cooldown.problem())
	if p.KeyHeader != "" {
		add("KeyHeader", checkHeaderName(p.KeyHeader))
	}
	return problems
}

func notNegative[N int | time.Duration](n N) error {
	if n < 0 {
		return fmt.Errorf("%v is negative", n)
	}
	return nil
}

// lines takes apart an error that lists problems one per line.
func lines(err error) []error {
	if err == nil {
		return nil
	}
	if !strings.Contains(err.Error(), "\n") {
		return []error{err}
	}
	var all []error
	for line := range strings.SplitSeq(err.Error(), "\n") {
		all = append(all, errors.New(line))
	}
	return all
}

// WithPolicy returns a context whose requests follow p, the whole of it,
// whatever their host. If p is not valid, such a request fails before it is
// sent, with what p.Validate says.
//
// A Policy whose MaxAttempts is 1 sends a request without retries.
func WithPolicy(ctx context.Context, p Policy) context.Context {
	resolved := p.resolve()
	resolved.err = errors.Join(p.problems("Policy")...)
	m := marksOf(ctx)
	m.policy = resolved
	return m.in(ctx)
}

// policyFor returns the policy of a request whose context has none: its host's,
// or the one for all others.
func (s *settings) policyFor(req *http.Request) *policy {
	if s.hosts != nil {
		if p, ok := s.hosts.matchURL(req.URL); ok {
			return p
		}
	}
	return s.policy
}

// askedWait returns the wait that a response asks for and the range of what is
// added to it, so that clients that were told the same do not come back
// together. It reads errors only: elsewhere Retry-After means something else.
func askedWait(resp *http.Response, now time.Time) (asked, spread time.Duration) {
	if resp == nil || resp.StatusCode < 400 {
		return 0, 0
	}
	asked, grain, ok := retryAfter(resp.Header, now)
	if !ok {
		return 0, 0
	}
	return asked, spreadFor(asked, grain)
}

// uniform draws from (0, width].
func uniform(width time.Duration) time.Duration {
	if width <= 0 {
		return 0
	}
	return time.Duration(rand.Int64N(int64(width))) + 1
}

func statusIs(resp *http.Response, status int) bool {
	return resp != nil && resp.StatusCode == status
}

// errRequestCanceled stands for a closed Request.Cancel, which has no error.
var errRequestCanceled = errors.New("request canceled")
