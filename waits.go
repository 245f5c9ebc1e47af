package httpretry

import (
	"math"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/internal/retryafter"
	"github.com/seed421102f4/httpretry/strategies"
)

// waits determine how long a request waits before its next attempt: its
// backoff, the waits that servers have asked for, and the cool-down of its
// host.
type waits struct {
	policy   *resolvedPolicy
	cooldown hostCooldown
	failing  *failingFlag // of the host, or of a body that is resumed

	backoff, patient strategies.Sequence // nil until they are needed

	asked  time.Duration // the wait that the last response has asked for
	spread time.Duration // the range of the jitter that is added to it
}

// failingFlag is true if a host has failed and has not succeeded since.
type failingFlag struct{ atomic.Bool }

// clear makes f false. All requests to a host share f, so a success writes
// nothing if f is false already.
func (f *failingFlag) clear() {
	if f.Load() {
		f.Store(false)
	}
}

// nextBackoff returns the policy's wait before the next attempt. By default, it
// is longer if the host had failed before this attempt. Such a host most likely
// is down for seconds, so a retry that comes sooner only uses up the budget.
func (w *waits) nextBackoff(resp *http.Response) time.Duration {
	strategy, sequence := w.policy.Backoff, &w.backoff
	if w.policy.patient != nil &&
		(w.failing.Load() || statusIs(resp, http.StatusTooManyRequests)) {
		strategy, sequence = w.policy.patient, &w.patient
	}
	if *sequence == nil {
		*sequence = strategy.Start()
	}
	return max((*sequence)(), 0)
}

// read records the wait that r asks for, and begins a cool-down if that concerns
// the host. A success asks for no wait, because Retry-After has another meaning
// there.
func (w *waits) read(r result) {
	w.asked, w.spread = 0, 0
	if r.resp == nil || r.outcome == Final && r.resp.StatusCode < 400 {
		return
	}
	asked, resolution := w.parse(r.resp)
	if asked <= 0 {
		return
	}
	w.asked, w.spread = asked, retryafter.Spread(asked, resolution)
	switch r.resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.cooldown.begin(w.asked, w.spread)
	// Most 403s are about permissions. Those that a policy retries are limits.
	case http.StatusForbidden:
		if r.outcome != Final {
			w.cooldown.begin(w.asked, w.spread)
		}
	}
}

// parse returns the wait that resp asks for, or 0, and its resolution.
func (w *waits) parse(resp *http.Response) (asked, resolution time.Duration) {
	if w.policy.RetryAfter == nil {
		asked, resolution, _ = retryafter.Parse(resp.Header, time.Now)
		return asked, resolution
	}
	asked, ok := w.policy.RetryAfter(resp)
	if !ok {
		return 0, 0
	}
	// A server that counts in seconds sends whole ones.
	if asked%time.Second == 0 {
		resolution = time.Second
	}
	return min(asked, retryafter.MaxWait), resolution
}

// askedOrCooldown returns the wait that the server asks for, in the last response
// or in the response to another request, the range of the jitter that is added
// to it, and the Reason if it is too long.
func (w *waits) askedOrCooldown(now time.Time) (asked, spread time.Duration, reason Reason) {
	asked, spread, reason = w.asked, w.spread, ReasonRetryAfter
	if remaining := w.cooldown.remaining(now); remaining.Wait > asked {
		asked, spread, reason = remaining.Wait, remaining.Spread, ReasonCooldown
	}
	if asked <= w.policy.MaxRetryAfter {
		reason = ReasonNone
	}
	return asked, spread, reason
}

// restart makes the next backoff the first of its sequence, because an attempt
// has made progress.
func (w *waits) restart() {
	w.backoff, w.patient = nil, nil
	w.failing.clear()
}

// timeLeft returns the longest wait after which an attempt may still start.
func (w *waits) timeLeft(caller *caller, now time.Time) time.Duration {
	return min(caller.untilDeadline(now), w.untilMaxElapsed(caller, now))
}

// lateReason returns ReasonNone if an attempt may start after wait, or else the
// limit that it would exceed.
func (w *waits) lateReason(caller *caller, wait time.Duration, now time.Time) Reason {
	switch left := w.timeLeft(caller, now); {
	case wait <= left:
		return ReasonNone
	case left < caller.untilDeadline(now):
		return ReasonMaxElapsed
	}
	return ReasonDeadline
}

func (w *waits) untilMaxElapsed(caller *caller, now time.Time) time.Duration {
	if w.policy.MaxElapsed <= 0 {
		return math.MaxInt64
	}
	return w.policy.MaxElapsed - (now.Sub(*caller.created) - caller.start)
}

// uniform returns a random duration in (0, width].
func uniform(width time.Duration) time.Duration {
	if width <= 0 {
		return 0
	}
	return time.Duration(rand.Int64N(int64(width))) + 1
}
