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

	askedBy       *http.Response // asked and spread are from its header
	asked, spread time.Duration
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

// askedWait returns the wait that a response asks for, and the range of the
// jitter that is added to it. A response below 400 asks for no wait, because
// Retry-After has another meaning there.
func (w *waits) askedWait(resp *http.Response) (asked, spread time.Duration) {
	if resp == nil || resp.StatusCode < 400 {
		return 0, 0
	}
	// noteCooldown, acceptWait and isScheduled ask for the same response.
	if w.askedBy != resp {
		w.askedBy, w.asked, w.spread = resp, 0, 0
		if asked, resolution, ok := retryafter.Parse(resp.Header, time.Now); ok {
			w.asked, w.spread = asked, retryafter.Spread(asked, resolution)
		}
	}
	return w.asked, w.spread
}

// isScheduled reports whether resp, a 429 that asks for a wait, schedules the
// retry.
func (w *waits) isScheduled(resp *http.Response) bool {
	if !statusIs(resp, http.StatusTooManyRequests) {
		return false
	}
	asked, _ := w.askedWait(resp)
	return asked > 0
}

// acceptWait returns the wait that the server asks for, in resp or in the
// response to another request, the range of the jitter that is added to it,
// and the Reason if it is too long.
func (w *waits) acceptWait(
	resp *http.Response, now time.Time,
) (asked, spread time.Duration, reason Reason) {
	asked, spread = w.askedWait(resp)
	reason = ReasonRetryAfter
	if remaining := w.cooldown.remaining(now); remaining.Wait > asked {
		asked, spread, reason = remaining.Wait, remaining.Spread, ReasonCooldown
	}
	if asked <= w.policy.MaxRetryAfter {
		reason = ReasonNone
	}
	return asked, spread, reason
}

// noteCooldown begins a cool-down if the response asks for one.
func (w *waits) noteCooldown(resp *http.Response, outcome Outcome) {
	if resp == nil {
		return
	}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
	// Most 403s are about permissions. Those that a policy retries are limits.
	case http.StatusForbidden:
		if outcome == Final {
			return
		}
	default:
		return
	}
	if asked, spread := w.askedWait(resp); asked > 0 {
		w.cooldown.begin(asked, spread)
	}
}

// restart makes the next backoff the first of its sequence, because an attempt
// has made progress.
func (w *waits) restart() {
	w.backoff, w.patient, w.askedBy = nil, nil, nil
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
