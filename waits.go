package httpretry

import (
	"crypto/sha256"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/internal/cooldown"
	"github.com/seed421102f4/httpretry/internal/retryafter"
	"github.com/seed421102f4/httpretry/strategies"
)

// waits determine how long a request waits before its next attempt: its
// backoff, the waits that servers have asked for, and the cool-down of its
// host.
type waits struct {
	policy    *resolvedPolicy
	cooldowns *cooldown.Table // of the transport
	req       *http.Request   // call.caller.req
	origin    string          // of its URL
	quiet     *cooldown.Quiet // of origin; nil while a body is resumed

	backoff, throttled strategies.Sequence // nil until they are needed

	of            *http.Response // the response that asked and spread are of
	asked, spread time.Duration

	floor      time.Duration // the part of the next wait that servers have asked for
	endedEarly bool          // a success of another request has ended a long backoff

	generation uint64 // of cooldowns, before the last attempt
	key        string // of the host's cool-down, "" until it is needed
}

// nextBackoff returns the policy's wait before the next attempt.
func (w *waits) nextBackoff(resp *http.Response) time.Duration {
	strategy, sequence := w.policy.Backoff, &w.backoff
	if w.policy.throttled != nil && statusIs(resp, http.StatusTooManyRequests) {
		strategy, sequence = w.policy.throttled, &w.throttled
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
	if w.of != resp {
		w.of, w.asked, w.spread = resp, 0, 0
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
	if remaining := w.remainingCooldown(now); remaining.Wait > asked {
		asked, spread, reason = remaining.Wait, remaining.Spread, ReasonCooldown
	}
	if asked <= w.policy.MaxRetryAfter {
		reason = ReasonNone
	}
	w.floor = asked
	return asked, spread, reason
}

// currentGeneration returns 0 if the host has no cool-down and no request to it
// sleeps.
func (w *waits) currentGeneration() uint64 {
	quiet := w.quiet
	if quiet == nil {
		quiet = new(cooldown.Quiet)
	}
	if w.cooldowns.IsQuiet(quiet) {
		return 0
	}
	return w.cooldowns.Generation(w.origin, quiet)
}

func (w *waits) remainingCooldown(now time.Time) cooldown.Remaining {
	if w.cooldowns.Active(w.origin, now) {
		return w.cooldowns.Remaining(w.cooldownKey(), now)
	}
	return cooldown.Remaining{}
}

// cooldownKey returns the key of the cool-down that concerns the request. Only
// a hash of a CooldownKey is kept, because it may be a credential.
func (w *waits) cooldownKey() string {
	if w.key == "" {
		// Without a CooldownKey, the key is the origin.
		w.key = w.origin
		if w.policy.CooldownKey != nil {
			if part := w.policy.CooldownKey(w.req); part != "" {
				sum := sha256.Sum256([]byte(part))
				w.key = partKey(w.origin, sum)
			}
		}
	}
	return w.key
}

// partKey returns the key of the cool-down for a part of an origin. No other
// origin begins with a space, since no scheme of net/http does.
func partKey(origin string, sum [sha256.Size]byte) string {
	return " " + string(sum[:]) + origin
}

// originOf returns the origin in the key of a cool-down.
func originOf(key string) string {
	if strings.HasPrefix(key, " ") && len(key) > sha256.Size {
		return key[1+sha256.Size:]
	}
	return key
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
		w.cooldowns.Begin(w.origin, w.cooldownKey(), time.Now(), asked, spread)
	}
}

// noteSuccess ends the host's cool-down if the last attempt was sent after the
// cool-down began. It also ends the long backoff of another request.
func (w *waits) noteSuccess() {
	// If generation is 0, the host had no cool-down and no request to it slept
	// when the attempt was sent.
	if w.generation == 0 {
		return
	}
	now := time.Now()
	if w.cooldowns.Active(w.origin, now) || w.cooldowns.AnySleeps(w.origin) {
		w.cooldowns.Clear(w.cooldownKey(), now, w.generation)
		w.cooldowns.Wake(w.cooldownKey(), w.generation)
	}
}

// restart makes the next backoff the first of its sequence.
func (w *waits) restart() {
	w.backoff, w.throttled, w.of = nil, nil, nil
}

// longWait is the shortest backoff that a success of another request may end.
const longWait = 10 * time.Second

// sleep waits before a retry, and reports whether the caller is still waiting.
// Without a limit of attempts, backoffs grow long, so that a request would wait
// long after its host is up again. So a success of another request to the host
// ends one long backoff. That happens once for each request. Otherwise one that
// fails while others succeed would hardly wait.
func (w *waits) sleep(caller *caller, wait time.Duration) bool {
	// A wait that a server asks for is never shortened.
	if wait-w.floor < longWait || w.endedEarly || w.policy.MaxAttempts < math.MaxInt {
		return caller.sleep(wait, nil)
	}
	return w.sleepLong(caller, wait)
}

// sleepLong is sleep for a long backoff. It is apart from sleep, so that most
// waiting requests need less stack.
func (w *waits) sleepLong(caller *caller, wait time.Duration) bool {
	backoff, begun := wait-w.floor, time.Now()
	if !caller.sleep(w.floor, nil) {
		return false
	}
	key := w.cooldownKey() // may panic
	var sleeper cooldown.Sleeper
	awake := w.cooldowns.Sleep(&sleeper, w.origin, key)
	defer sleeper.Leave()
	if !caller.sleep(backoff, awake) {
		return false
	}
	end := begun.Add(wait)
	w.endedEarly = time.Now().Before(end)
	if !caller.sleep(uniform(min(time.Until(end), longWait)), nil) {
		return false
	}
	// If the host has asked for a pause since, it was not up.
	if w.remainingCooldown(time.Now()).Wait > 0 {
		return caller.sleep(time.Until(end), nil)
	}
	return true
}

// uniform returns a random duration in (0, width].
func uniform(width time.Duration) time.Duration {
	if width <= 0 {
		return 0
	}
	return time.Duration(rand.Int64N(int64(width))) + 1
}
