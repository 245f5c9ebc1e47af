package httpretry

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry/internal/cooldown"
	"github.com/seed421102f4/httpretry/internal/redact"
)

// Cooldown determines what the first attempt of a request does while its host
// is cooling down. Retries always wait. They are given up if that takes longer
// than Policy.MaxRetryAfter or their deadline allows. If a host has several
// limits, such as one for each credential, set [Policy.CooldownKey]: only
// requests with the same key share a cool-down.
//
// A host cools down if it answers 429 (Too Many Requests) or 503 (Service
// Unavailable) and asks for a wait (see [RetryAfter]). A 403 counts, too, if
// Policy.Classify does not return Final for it.
//
//	one request              ──▶ 429, Retry-After: 30
//	its retry                ───────────── waits ────────────▶│ ────▶
//	retries of others        ───────────── wait ──────────────│─▶ ─▶
//	others, CooldownRetries  ──▶ ──▶ ──▶ ──▶ a success ends it early
//	others, CooldownWait     ───────────── wait ──────────────│──▶ ─▶
//	others, CooldownFail     ──▶ *CooldownError, at once
//
// A cool-down lasts as long as the server asks, at most one hour. It ends early
// if an attempt that was sent after it began gets a response below 400. It
// applies to all requests of a RetryTransport to the same scheme, host and
// port, whatever their policies. A RetryTransport keeps the 1024 latest
// cool-downs.
type Cooldown uint8

const (
	// CooldownRetries sends the first attempt.
	CooldownRetries Cooldown = iota

	// CooldownWait makes the first attempt wait. After the cool-down, waiting
	// attempts are spread evenly over the time for which the oldest has waited.
	// None waits for longer than Policy.MaxRetryAfter in total. If the
	// cool-down exceeds that or the deadline, it fails as with CooldownFail.
	//
	// Use CooldownWait for limits of this client, such as a quota. If a host
	// sheds load at random and all its clients wait, the host is idle.
	CooldownWait

	// CooldownFail makes the request fail at once with a [*CooldownError]. If
	// all requests to a host use CooldownFail or CooldownWait, none of them can
	// end the cool-down early.
	CooldownFail
)

// String returns "retries", "wait" or "fail".
func (c Cooldown) String() string {
	switch c {
	case CooldownRetries:
		return "retries"
	case CooldownWait:
		return "wait"
	case CooldownFail:
		return "fail"
	default:
		return fmt.Sprintf("Cooldown(%d)", uint8(c))
	}
}

func (c Cooldown) problem() error {
	if c > CooldownFail {
		return fmt.Errorf("%v: want CooldownRetries, CooldownWait or CooldownFail", c)
	}
	return nil
}

// CooldownError is the error of a request or a retry that was not sent because
// its host is cooling down. It is wrapped in an [*Error].
type CooldownError struct {
	Host  string    // the Origin of the request's URL
	Until time.Time // when the host has cooled down, at most an hour ahead
}

// Error returns a text with the host and the time.
func (e *CooldownError) Error() string {
	return fmt.Sprintf("%s asked for a pause until %s", redact.Text(e.Host), e.Until.Format(time.RFC3339))
}

// callCooldown is what a call knows of its host's cool-down.
type callCooldown struct {
	generation uint64 // of the transport's cool-downs, before the last attempt
	key        string // "" until it matters
}

// cooldownKey returns the key of the cool-down that concerns c. Only a hash of
// a CooldownKey is kept: it may be a credential.
func (c *call) cooldownKey() string {
	if c.cooldown.key == "" {
		// Most policies have no CooldownKey: the key is the host.
		c.cooldown.key = c.host
		if c.policy.CooldownKey != nil {
			if part := c.policy.CooldownKey(c.req); part != "" {
				sum := sha256.Sum256([]byte(part))
				c.cooldown.key += " " + string(sum[:])
			}
		}
	}
	return c.cooldown.key
}

// noteCooldown begins a cool-down if the response asks for one.
func (c *call) noteCooldown(resp *http.Response, outcome Outcome) {
	if resp != nil && resp.StatusCode >= 400 {
		c.noteRefusal(resp, outcome)
	}
}

// noteRefusal is noteCooldown for a status of 400 or above. It is apart, so
// that the compiler inlines noteCooldown, which saves 2 ns.
func (c *call) noteRefusal(resp *http.Response, outcome Outcome) {
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
	if asked, spread := c.askedWait(resp); asked > 0 {
		c.settings.cooldowns.Begin(c.cooldownKey(), time.Now(), asked, spread)
	}
}

// noteSuccess ends the cool-down of a host that answered a request sent after
// it began.
func (c *call) noteSuccess() {
	cooldowns := &c.settings.cooldowns
	if c.cooldown.generation > 0 && cooldowns.Active(time.Now()) {
		cooldowns.Clear(c.cooldownKey(), c.cooldown.generation)
	}
}

// acceptWait returns the wait that the server asks for, in resp or in the
// response to another request, the range of the jitter that is added to it,
// and the Reason if it is too long.
func (c *call) acceptWait(resp *http.Response, now time.Time) (asked, spread time.Duration, reason Reason) {
	asked, spread = c.askedWait(resp)
	reason = ReasonRetryAfter
	if remaining := c.remainingCooldown(now); remaining.Wait > asked {
		asked, spread, reason = remaining.Wait, remaining.Spread, ReasonCooldown
	}
	if asked <= c.policy.MaxRetryAfter {
		reason = ReasonNone
	}
	return asked, spread, reason
}

func (c *call) remainingCooldown(now time.Time) cooldown.Remaining {
	if c.settings.cooldowns.Active(now) {
		return c.settings.cooldowns.Remaining(c.cooldownKey(), now)
	}
	return cooldown.Remaining{}
}

// awaitCooldown waits until the host has cooled down, before an attempt that
// follows one with the error last. If that takes too long or the caller
// cancels, it returns the Reason and the error that the request ends with.
func (c *call) awaitCooldown(last error) (Reason, error) {
	var (
		start  time.Time
		waiter cooldown.Waiter
	)
	defer waiter.Leave()
	for cooldowns := &c.settings.cooldowns; cooldowns.Generation() > 0; {
		now := time.Now()
		if !cooldowns.Active(now) {
			break
		}
		// Hosts may ask again and again: MaxRetryAfter limits the total.
		if start.IsZero() {
			start = now
		}
		first := c.attempts == 0
		remaining := cooldowns.Join(&waiter, c.cooldownKey(), now, start, first)
		if remaining.Wait == 0 {
			break
		}
		if first && c.policy.Cooldown == CooldownFail ||
			remaining.Until.Sub(start) > c.policy.MaxRetryAfter || remaining.Wait > c.timeLeft(now) {
			return ReasonCooldown, c.afterAttempt(last, &CooldownError{Host: c.host, Until: remaining.Until})
		}
		// After the wait, the host may be cooling down again.
		if !c.sleepCooldown(&waiter, remaining, start) {
			return ReasonCanceled, c.canceled(last)
		}
	}
	return ReasonNone, nil
}

// sleepCooldown waits for the end of a cool-down, and then a moment more. It
// reports whether the caller is still waiting. The request has been waiting
// since start.
func (c *call) sleepCooldown(waiter *cooldown.Waiter, remaining cooldown.Remaining, start time.Time) bool {
	first, place := c.attempts == 0, rand.Float64()
	// Places are taken in the order of arrival.
	if first {
		place = c.settings.cooldowns.Place(c.cooldownKey())
	}
	if !c.sleep(remaining.Wait, remaining.Cleared) {
		return false
	}
	now := time.Now()
	// If a success has ended the cool-down early, it lasted less long, and so
	// does the time over which retries return.
	early := max(remaining.Until.Sub(now), 0)
	width := min(remaining.Spread, remaining.Length-early)
	// The first attempts of all requests that arrived meanwhile are far more
	// than the retries. Over the time in which they arrived, they add their own
	// rate to that of new requests.
	if first {
		arrived := waiter.Arrived(now)
		width = min(now.Sub(arrived), c.policy.MaxRetryAfter-now.Sub(start))
	}
	return c.sleep(scale(min(width, c.timeLeft(now)), place), nil)
}

func scale(d time.Duration, factor float64) time.Duration {
	return time.Duration(float64(max(d, 0)) * factor)
}
