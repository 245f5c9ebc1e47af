package httpretry

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/internal/fielderr"
	"github.com/seed421102f4/httpretry/internal/replay"
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
	set, err := Config{}.policySet()
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
// If the first attempt needs no context, header or body of its own, Base gets
// req itself, and Base's own response is returned. Otherwise, such as with an
// AttemptTimeout, Base gets a copy.
func (t *RetryTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	set := t.current()
	e, to := set.engine, set.lookUp(req.URL).target(req)
	// Most requests are plain, and succeed at once.
	if e.isPlain(req, to.policy) {
		return e.roundTripPlain(req, to)
	}
	return e.roundTripCall(req, to)
}

// A plain request can be sent as it is, and sent again. If it succeeds, only
// its budget records it. Its first attempt calls no code of the user but Base,
// and holds nothing that would have to be released if Base panics.

// isPlain reports whether req, which follows p, is plain.
func (e *engine) isPlain(req *http.Request, p *resolvedPolicy) bool {
	// A nested RetryTransport looks for this attempt in the context of a copy.
	// If p.plainAllowed is true, Policy.Idempotent is nil. The order of the
	// checks spares a GET without a body the calls of IsDirect and hasKey.
	return p.plainAllowed && e.observe == nil && !e.base.nested &&
		(req.Body == nil || replay.IsDirect(req)) &&
		(hasIdempotentMethod(req) || hasKey(req.Header, p.IdempotencyHeader)) &&
		cancelChannel(req) == nil && req.Context().Err() == nil && fromContext(req.Context()) == nil
}

// roundTripPlain is RoundTrip for a plain request. A success makes no call
// value, because it would use nothing of it.
func (e *engine) roundTripPlain(req *http.Request, to target) (*http.Response, error) {
	// Base may modify the request, although it must not.
	generation, body, getBody := uint64(0), req.Body, req.GetBody
	if quiet := &to.host.quiet; !e.cooldowns.IsQuiet(quiet) {
		generation = e.cooldowns.Generation(to.host.origin, quiet)
	}
	resp, err := e.base.RoundTrip(req)
	// If generation is not 0, the success may end a cool-down (finish). If the
	// response is that to another request, such as one after a redirect,
	// handOver may have to replace its Request.
	if err == nil && resp != nil && resp.StatusCode < 400 && resp.Request == req &&
		generation == 0 {
		// Any other budget is Unlimited, which records nothing.
		if b, ok := e.budgetOf(to.policy).(*HostBudget); ok {
			b.deposit(to.host.origin, to.window)
		}
		to.host.failing.clear()
		to.host.protocol.learnFrom(resp)
		return resp, nil
	}
	return retryKept(e.endPlain(req, to, generation, body, getBody, resp, err))
}

// endPlain makes the call of a plain request whose first attempt has ended.
func (e *engine) endPlain(
	req *http.Request, to target, generation uint64, body io.ReadCloser,
	getBody func() (io.ReadCloser, error), resp *http.Response, err error,
) (*call, result, *http.Response, error) {
	c := call{sending: sending{engine: e, caller: caller{req: req}}}
	c.idempotent, c.attempts, c.begun = true, 1, true
	defer c.cleanUpAfterPanic()
	c.adopt(to.policy, to)
	c.waits.cooldown.generation = generation
	c.body.PrepareSent(body, getBody)
	return c.endOrKeep(c.resultOf(resp, e.base.ownError(req, nil, err)))
}

// roundTripCall is RoundTrip for a request that is not plain.
func (e *engine) roundTripCall(req *http.Request, to target) (*http.Response, error) {
	return retryKept(e.sendFirst(req, to))
}

// sendFirst sends the first attempt of a request that is not plain.
func (e *engine) sendFirst(req *http.Request, to target) (*call, result, *http.Response, error) {
	c := call{sending: sending{engine: e, caller: caller{req: req}}}
	defer c.cleanUpAfterPanic()
	if err := c.begin(to); err != nil {
		resp, err := c.failUnsent(err)
		return nil, result{}, resp, err
	}
	return c.endOrKeep(c.send())
}

// endOrKeep returns the result of the request if it ends with r, its first
// attempt. Otherwise it returns a copy of c on the heap, with r. Below
// http.Client, the stack of a request that waits is 4 KiB without a call, and 8
// with one.
func (c *call) endOrKeep(r result) (*call, result, *http.Response, error) {
	if r.outcome == Final {
		resp, err := c.retry(r)
		return nil, result{}, resp, err
	}
	kept := *c
	c.done = true // kept has what is to be cleaned up
	return &kept, r, nil, nil
}

// retryKept returns the result of the request, with the attempts that follow the
// first one if there is a call.
func retryKept(
	c *call, r result, resp *http.Response, err error,
) (*http.Response, error) {
	if c == nil {
		return resp, err
	}
	defer c.cleanUpAfterPanic()
	return c.retry(r)
}

// retry makes the attempts that follow the one that ended with r, and returns
// the result of the request. It is the only loop: of RoundTrip, and of the Read
// of a body that is resumed.
func (c *call) retry(r result) (*http.Response, error) {
	for {
		c.learn(r)
		wait, reason := c.decide(r)
		c.report(r, wait, reason)
		if reason != ReasonNone {
			return c.finish(r, reason)
		}
		// Another attempt is to follow. Its wait begins with the drain.
		wait -= c.discard(r)
		// The report was about the attempt. A request that ends during the wait
		// has a second one.
		if reason, err := c.awaitRetry(wait, r.err); reason != ReasonNone {
			ended := result{err: err, isOfWait: true}
			c.report(ended, 0, reason)
			return c.finish(ended, reason)
		}
		r = c.send()
	}
}

// send makes the next attempt.
func (c *call) send() result {
	if c.partial != nil {
		c.partial.count()
	}
	c.waits.cooldown.generation = c.waits.cooldown.currentGeneration()
	c.last = c.attempts+1-c.uncounted >= c.maxAttempts()
	return c.resultOf(c.sending.send())
}

// decide returns the wait before the next attempt, or the Reason why none
// follows. The package documentation shows the order of the checks.
func (c *call) decide(r result) (time.Duration, Reason) {
	switch { // pure checks, cheapest first
	case c.partial != nil && c.partial.obstacle(r.err) != nil:
		return 0, ReasonNotResumable
	case r.outcome == Final && r.err == nil:
		return 0, finalReason(r.resp)
	// If the caller does not wait any more, the error of the attempt does not
	// matter.
	case c.caller.hasEnded():
		return 0, c.caller.ended()
	case r.outcome == Final:
		return 0, ReasonPermanent
	case c.isLast() && !c.mayResend():
		return 0, c.limitReason()
	case c.caller.retries(r.outcome):
		return 0, ReasonCallerRetries
	case !c.idempotent && r.outcome != Unprocessed:
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
	return c.reserve(r.resp)
}

// reserve is the second part of decide. It charges the budget and prepares the
// body, so that another attempt can follow. If rewindBody fails, it refunds the
// charge.
func (c *call) reserve(resp *http.Response) (time.Duration, Reason) {
	now := time.Now()
	asked, spread, reason := c.waits.askedOrCooldown(now)
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
