package httpretry

import (
	"net/http"

	"github.com/seed421102f4/httpretry/internal/replay"
)

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
		return resp, nil
	}
	c := call{engine: e, caller: caller{req: req}, idempotent: true, attempts: 1}
	defer c.cleanUpAfterPanic()
	c.adopt(to.policy, to)
	c.waits.cooldown.generation = generation
	c.body.PrepareSent(body, getBody)
	c.resp, err = either(resp, err)
	return c.retry(c.resp, err)
}
