package httpretry

import (
	"net/http"

	"github.com/seed421102f4/httpretry/internal/replay"
)

// A plain request can be sent as it is, and sent again. Unless it fails, nobody
// has to know of it but its budget. Nothing of a caller is called for it except
// Base, so there is nothing to clean up if Base panics.

// isPlain reports whether req, to h, is plain.
func (s *settings) isPlain(req *http.Request, h *host) bool {
	return h.policy.isPlain && s.observe == nil && !s.base.nested &&
		replay.IsDirect(req) && h.policy.isIdempotent(req) &&
		cancelChannel(req) == nil && req.Context().Err() == nil && fromContext(req.Context()) == nil
}

// isPlain reports whether requests that follow p may be plain.
func (p *Policy) isPlain() bool {
	switch p.Budget.(type) {
	case nil, *HostBudget, Unlimited:
	default:
		return false // a Deposit of the caller's may panic
	}
	return p.Classify == nil && p.Idempotent == nil &&
		p.AttemptTimeout == 0 && p.MaxElapsed == 0 && p.Cooldown == CooldownSend && !p.Resume
}

// roundTripPlain is RoundTrip for a plain request. Without a call, a success
// costs half as much.
func (s *settings) roundTripPlain(req *http.Request, h *host) (*http.Response, error) {
	generation := s.cooldowns.Generation()
	resp, err := s.base.RoundTrip(req)
	// A success may end a cool-down. A response to another request, such as
	// that after a redirect, is the business of handOver.
	if err == nil && resp != nil && resp.StatusCode < 400 && resp.Request == req &&
		generation == 0 {
		depositTo(s.budgetOf(h.policy), &h.window, h.origin, false)
		return resp, nil
	}
	c := call{settings: s, caller: caller{req: req}, idempotent: true, attempts: 1}
	defer c.cleanUpAfterPanic()
	c.follow(h.policy, h)
	c.waits.generation = generation
	c.body.Prepare(req, 0)
	c.resp, err = either(resp, err)
	return c.retry(c.resp, err)
}
