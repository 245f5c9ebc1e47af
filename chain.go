package httpretry

import (
	"cmp"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
)

// Middleware lets the retries of services that call one another add up, where
// they would multiply: three services of three attempts each cost the last one
// 3 requests and not 27, five of them 3 and not 243. Put it around the handler
// of a server, and use the inbound request's context for the requests that the
// handler sends through any RetryTransport.
//
//	       attempts          attempts          attempts
//	edge ───────────▶ shop ───────────▶ bank ───────────▶ ledger: 503
//	       1                 1                 1 2 3            gave up
//	     ◀─────────── 503 ◀─────────── 503, X-Should-Retry: false
//
// Down the chain: an inbound request that is itself a retry is repeated up
// there, so what is sent on its behalf is sent once ([ReasonChain]), unless it
// is [Unprocessed]. It is known by a Retry-Attempt of at least 1 (see
// [RetryTransport.Middleware] for another name), an X-Envoy-Attempt-Count of at
// least 2, or a Grpc-Previous-Rpc-Attempts of at least 1. The attempt header of
// what is sent counts on from there, so that services further down know, too.
//
// Up the chain: if a request was given up that would not fare better if all
// were done again, and the handler answers 5xx or 429, the answer gets
// X-Should-Retry: false, unless the handler set that header. RetryTransport
// and many SDKs obey. That is so for [ReasonAttempts] after more than one
// attempt, [ReasonBudget], [ReasonServerRefused], [ReasonRetryAfter],
// [ReasonDeadline] and [ReasonCooldown]. A failure that the handler makes good,
// by answering anything else, is nobody's business. But one such request is
// enough, whatever others, or an SDK's repetition of it, came to, and whatever
// the 5xx or 429 is about.
//
// All this ends when the handler returns: work that it leaves behind with its
// context is retried as ever.
//
// The handler's ResponseWriter is an http.Flusher and an http.Hijacker if the
// server's is, sends files and pushes as that does, and http.ResponseController
// sees through it. Only http.MaxBytesReader wants the server's own, to end a
// connection on which too much arrives: put http.MaxBytesHandler around
// Middleware, not inside.
//
// The headers can be forged. Whoever does so gets fewer retries for the request
// that has them, and for no other.
func Middleware(next http.Handler) http.Handler {
	return middleware(next, DefaultAttemptHeader)
}

// Middleware is the function of that name for services whose clients tell of
// their retries in t's [Config.AttemptHeader]. It understands Retry-Attempt, too.
func (t *RetryTransport) Middleware(next http.Handler) http.Handler {
	return middleware(next, DefaultAttemptHeader, t.config().header)
}

func middleware(next http.Handler, headers ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m := marksOf(r.Context())
		in := &inbound{retries: inboundRetries(r.Header, headers)}
		if m.inbound.open() { // a Middleware around this one, which may know another header
			in.outer, in.retries = m.inbound, max(in.retries, m.inbound.retries)
		}
		defer in.over.Store(true)
		m.inbound = in
		marked := r.WithContext(m.in(r.Context()))
		defer func() {
			// Files of a form are removed by the server, which knows r only; and
			// layers around this one ask r what a mux has matched.
			if r.MultipartForm == nil {
				r.MultipartForm = marked.MultipartForm
			}
			r.Pattern = marked.Pattern
		}()
		next.ServeHTTP(in.writer(w), marked)
	})
}

// inbound is a request that a server is handling.
type inbound struct {
	retries int         // how many copies of it were sent before this one
	outer   *inbound    // of a Middleware around its own, nil without
	gaveUp  atomic.Bool // a request on its behalf was given up
	over    atomic.Bool // its handler has returned
}

// open reports whether what is sent in the request's context still is for it.
func (in *inbound) open() bool { return in != nil && !in.over.Load() }

// isRetry reports whether somebody up the chain repeats the request.
func (in *inbound) isRetry() bool { return in.open() && in.retries > 0 }

// inboundRetries returns the number of copies of a request that were sent
// before, by what its header says in any of the ways that are in use.
func inboundRetries(h http.Header, names []string) int {
	retries := max(
		largest(h["X-Envoy-Attempt-Count"])-1, // which counts from 1
		largest(h["Grpc-Previous-Rpc-Attempts"]),
	)
	for _, name := range names {
		retries = max(retries, largest(h[name]))
	}
	return retries
}

// largest returns the largest of values that are whole numbers, 0 if none is.
func largest(values []string) int {
	most := int64(0)
	for _, v := range values {
		if n, ok := parseNumber(strings.Trim(v, " \t")); ok && !n.decimal {
			most = max(most, n.whole)
		}
	}
	return int(min(most, math.MaxInt32/2)) // to which attempts can be added
}

// link finds what c's context says of who else repeats its request.
func (c *call) link() {
	if in := c.marks.inbound; in.open() {
		c.inbound, c.before = in, in.retries
	}
	switch a := c.marks.attempt; {
	case a == nil:
	case a.sending.Load() && sameRequest(a, c.req):
		c.above, c.before = a, a.before
	default:
		c.foreign = true
	}
}

// sameRequest reports whether b is what layers made of a's request on its way
// down, and not a request of their own, for a token, say. Hosts are theirs to
// choose.
func sameRequest(a *attempt, b *http.Request) bool {
	return cmp.Or(a.req.Method, http.MethodGet) == cmp.Or(b.Method, http.MethodGet) && a.path == pathOf(b.URL)
}

// pathOf returns the path as it goes over the wire.
func pathOf(u *url.URL) string {
	if u == nil || u.Path == "" {
		return "/"
	}
	return u.Path
}

// retriedAbove reports whether somebody up the chain repeats the request after
// an attempt that ended so: another RetryTransport, of which this one is a Base,
// or whoever sent the request that this one is sent for. A service up there would
// have to start over for what was not even processed here.
func (c *call) retriedAbove(resp *http.Response, err error, outcome Outcome) bool {
	return c.above.repeats(resp, err) || outcome != Unprocessed && c.inbound.isRetry()
}

// repeats reports whether the transport that made the attempt, or one above it,
// repeats its request if this is what it ends with.
func (a *attempt) repeats(resp *http.Response, err error) bool {
	return a != nil && (a.mayRepeat(resp, err) || a.above.repeats(resp, err))
}

// mayRepeat asks what decide would, as far as that shows here.
func (a *attempt) mayRepeat(resp *http.Response, err error) bool {
	if !a.policy.mayRepeat() || a.rec != nil && !a.rec.replayable() {
		return false
	}
	outcome := a.policy.outcome(a, resp, err, func() bool { return a.policy.keyed(a.req.Header) })
	return outcome == Unprocessed || outcome == Transient && !a.once
}

// startOver says that a RetryTransport below is about to send the request again,
// which that has to answer for, with a key of its own, say: here net/http's own
// repeats are watched.
func (a *attempt) startOver() {
	for ; a != nil; a = a.above {
		a.repeated.Store(true)
		if a.once {
			a.wrote.Store(false)
			a.informational.Store(0)
		} else {
			a.sends.Store(0)
		}
	}
}

// refuse says that a RetryTransport below does not send the request.
func (a *attempt) refuse() {
	for ; a != nil; a = a.above {
		a.refused.Store(true)
	}
}

// tellInbound notes that a request that was sent on behalf of an inbound one was
// given up.
func (c *call) tellInbound(resp *http.Response, err error, reason Reason) {
	if c.inbound == nil {
		return
	}
	switch reason {
	case ReasonAttempts:
		if c.attempts == 1 {
			return // nobody has tried again yet, as the policy wants it: let those above
		}
	case ReasonCooldown:
		if c.above.repeats(resp, err) {
			return // it may yet succeed
		}
	case ReasonBudget, ReasonServerRefused, ReasonRetryAfter, ReasonDeadline:
	default:
		return
	}
	for in := c.inbound; in.open(); in = in.outer {
		in.gaveUp.Store(true)
	}
}

// announced reports whether the request says itself which retry it is, before
// any was made here.
func (c *call) announced() bool {
	return c.before == 0 || c.settings.header == "" || largest(c.req.Header[c.settings.header]) == c.before
}

// transportBelow reports whether there is a RetryTransport below rt, as far as
// transports tell what they wrap.
func transportBelow(rt http.RoundTripper) bool {
	for range 100 { // a ring would be an endless loop in RoundTrip, too, but not in New
		if _, ok := rt.(*RetryTransport); ok {
			return true
		}
		w, ok := rt.(interface{ Unwrap() http.RoundTripper })
		if !ok {
			return false
		}
		rt = w.Unwrap()
	}
	return false
}
