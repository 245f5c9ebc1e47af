package httpretry

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/internal/fielderr"
)

// RetryTransport is an [http.RoundTripper] that retries requests. Its zero
// value works as New(Config{}) does. It is safe for concurrent use and must not
// be copied after first use.
type RetryTransport struct {
	policies atomic.Pointer[policySet]
}

// current returns the policies for a request that begins now.
func (t *RetryTransport) current() *policySet {
	if set := t.policies.Load(); set != nil {
		return set
	}
	return t.makeDefault()
}

// makeDefault makes the policies of a zero RetryTransport. It is apart from
// current, so that the compiler inlines current.
func (t *RetryTransport) makeDefault() *policySet {
	set, err := Config{}.resolve()
	if err != nil {
		panic(err) // the zero Config is valid, which a test shows
	}
	if !t.policies.CompareAndSwap(nil, set) {
		return t.policies.Load()
	}
	return set
}

// engine returns the part of t that SetPolicies keeps.
func (t *RetryTransport) engine() *engine { return t.current().engine }

// CloseIdleConnections calls Base's method of that name, if there is one.
func (t *RetryTransport) CloseIdleConnections() {
	closeIdleConnections(t.engine().base.RoundTripper)
}

// Unwrap returns Base, or the transport that is used if Base is nil.
func (t *RetryTransport) Unwrap() http.RoundTripper { return t.engine().base.RoundTripper }

// RoundTrip sends req, and retries it as its policy determines. It returns
// either a response or an error. It does not modify req, and closes its body.
//
// If the first attempt needs no context, header or body of its own, it passes
// req itself to Base and returns Base's own response. Otherwise, such as with
// an AttemptTimeout, it passes a copy.
func (t *RetryTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	set := t.current()
	e, to := set.engine, set.lookUp(req.URL).target(req)
	// Most requests are plain, and succeed at once.
	if e.isPlain(req, to.policy) {
		return e.roundTripPlain(req, to)
	}
	return e.roundTripCall(req, to)
}

// roundTripCall is RoundTrip for a request that is not plain. It is apart from
// RoundTrip, so that the stack holds one call value.
func (e *engine) roundTripCall(req *http.Request, to target) (*http.Response, error) {
	c := call{engine: e, caller: caller{req: req}}
	defer c.cleanUpAfterPanic()
	if err := c.begin(to); err != nil {
		return c.failUnsent(err)
	}
	return c.retry(c.send())
}

// retry makes the attempts that follow the first one, which ended with resp or
// err, and returns the result of the request.
func (c *call) retry(resp *http.Response, err error) (*http.Response, error) {
	for {
		outcome := c.outcome(resp, err)
		// The cool-down comes before the decision, which has to respect it.
		c.waits.noteCooldown(resp, outcome)
		// The budget learns of the attempt before it is asked for a retry.
		c.note(resp, err, outcome)
		c.charge.record()
		wait, reason := c.decide(resp, err, outcome)
		c.noteResult(resp, err, reason)
		c.report(resp, err, wait, reason)
		if reason != ReasonNone {
			return c.finish(resp, err, reason)
		}
		// Another attempt is to follow. Its wait begins with the drain.
		wait -= c.discard(resp)
		// The first report was about the attempt. A request that ends during
		// the wait has a second Event.
		if reason, pauseErr := c.awaitRetry(wait, err); reason != ReasonNone {
			c.caller.noteEnd(reason, c.attempts)
			c.report(nil, pauseErr, 0, reason)
			return c.finish(nil, pauseErr, reason)
		}
		resp, err = c.send()
	}
}

// decide returns the wait before the next attempt, or the Reason why none
// follows. The package documentation shows the order of the checks.
func (c *call) decide(resp *http.Response, err error, outcome Outcome) (time.Duration, Reason) {
	switch { // pure checks, cheapest first
	case outcome == Final && err == nil:
		return 0, finalReason(resp)
	// If the caller does not wait any more, the error of the attempt does not
	// matter.
	case c.caller.hasEnded():
		return 0, c.caller.ended()
	case outcome == Final:
		return 0, ReasonPermanent
	case c.isLast() && !c.mayResend():
		return 0, c.limitReason()
	case c.caller.retries(outcome):
		return 0, ReasonCallerRetries
	case !c.idempotent && outcome != Unprocessed:
		return 0, ReasonNotIdempotent
	}

	// From here on, the checks have effects. After Pin, an attempt that is still
	// sending the body reads no more of it than is kept, until finish undoes Pin.
	switch pinned := c.body.Pin(); {
	case !pinned && c.isLast():
		return 0, c.limitReason()
	case !pinned:
		return 0, ReasonNotReplayable
	case c.mayResend():
		return c.resend()
	}
	return c.reserve(resp)
}

// reserve is the second part of decide. It charges the budget and prepares the
// body, so that another attempt can follow. If rewindBody fails, it refunds the
// charge.
func (c *call) reserve(resp *http.Response) (time.Duration, Reason) {
	now := time.Now()
	asked, spread, reason := c.waits.acceptWait(resp, now)
	wait := max(asked, c.waits.nextBackoff(resp))
	if reason == ReasonNone {
		reason = c.waits.lateReason(&c.caller, wait, now)
	}
	// The budget is charged when nothing else prevents the retry. GetBody comes
	// last, because it may seek in the body that the attempt is still sending.
	if reason == ReasonNone {
		reason = c.withdraw(wait)
	}
	if reason == ReasonNone {
		reason = c.rewindBody(wait)
	}
	if reason != ReasonNone {
		return 0, reason
	}
	// A 421 may be retried on another connection (RFC 9110 section 15.5.20).
	c.retried421 = c.retried421 || statusIs(resp, http.StatusMisdirectedRequest)
	// Clients that got the same wait must not return together. GetBody may have
	// taken a part of the time that was left.
	return wait + uniform(min(spread, c.waits.timeLeft(&c.caller, time.Now())-wait)), ReasonNone
}

// SetPolicies replaces Config.Policy and Config.Policies. Requests that have
// begun keep theirs, even while a body is resumed. Connections, cool-downs and
// the default Budget stay. If an argument is not valid, SetPolicies changes
// nothing and returns an error as [New] does.
func (t *RetryTransport) SetPolicies(policy Policy, policies map[string]Policy) error {
	set, err := newPolicySet(t.engine(), policy, policies, "policy", "policies")
	if err != nil {
		return fielderr.At("httpretry", err)
	}
	t.policies.Store(set)
	return nil
}
