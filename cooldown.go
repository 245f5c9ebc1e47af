package httpretry

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Cooldown says what a request does, before its first attempt, while its host
// is cooling down: that is, after the host answered 429 (Too Many Requests) or
// 503 (Service Unavailable) and asked for a wait, by Retry-After or a quota that
// is used up (see [RetryAfter]). A 403 counts as well if Policy.Classify takes
// it for something that will pass, as GitHub's.
//
//	one request   ──▶ 429, Retry-After: 30
//	its retry     ────────────── waits ──────────────▶│ ─────▶
//	other retries ────────────── wait ────────────────│─▶ ──▶   spread out
//	others, Off   ──▶ ──▶ ──▶ ──▶ ──▶ ──▶ a success ends it for all
//	others, Wait  ────────────── wait ────────────────│──▶ ─▶
//	others, Fail  ──▶ *CooldownError, at once
//
// Retries always wait until their host has cooled down, or give up if that is
// longer than Policy.MaxRetryAfter or their deadline allows. All requests of a
// RetryTransport hear of it, whatever their policies, but for those of another
// Policy.CooldownKey.
//
// A host cools down for as long as its longest answer says, but for at most an
// hour after the last such answer: what it says of a longer time, or by mistake,
// is to be heard again. A success ends it early, if it was begun after the last
// such answer; what was on its way before says nothing new. The 1024 hosts, or
// parts of hosts by CooldownKey, that spoke last are remembered.
type Cooldown uint8

const (
	// CooldownOff sends the first attempt regardless.
	CooldownOff Cooldown = iota
	// CooldownWait waits until the host has cooled down, and a little longer,
	// so that the requests that wait do not arrive at once. If that would take
	// longer than Policy.MaxRetryAfter, Policy.MaxElapsed or the deadline of
	// the request's context allow, it fails at once, as CooldownFail does.
	CooldownWait
	// CooldownFail fails at once, with a [*CooldownError] in an [*Error] whose
	// Reason is ReasonCooldown. Nothing probes a host meanwhile: where all
	// requests fail so, or wait, no success ends the time early, and one answer
	// of one route can silence a host for that hour. See Policy.CooldownKey.
	CooldownFail
)

// String returns "off", "wait" or "fail".
func (c Cooldown) String() string {
	switch c {
	case CooldownOff:
		return "off"
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
		return fmt.Errorf("%v is none of CooldownOff, CooldownWait and CooldownFail", c)
	}
	return nil
}

// CooldownError is the error of a request, or of a retry, that was not sent
// because its host had asked to be left alone.
type CooldownError struct {
	Host  string    // in canonical form, as a Budget gets it
	Until time.Time // when the host has cooled down, an hour ahead at most
}

// Error names the host and the time.
func (e *CooldownError) Error() string {
	return fmt.Sprintf("%s asked to be left alone until %s", printable(e.Host), e.Until.Format(time.RFC3339))
}

// maxCooldown bounds what one answer can do to all other requests.
const maxCooldown = time.Hour

// cooldowns is what hosts have said of all their requests. Its zero value is
// ready.
type cooldowns struct {
	latest atomic.Pointer[time.Time] // when the last of them is over; nil: no host is cooling down
	turns  atomic.Uint64             // how often hosts have asked
	hosts  perHost[cooldown]
}

// cooldown is what one host has said.
type cooldown struct {
	mu     sync.Mutex
	until  time.Time
	spread time.Duration // range of what requests that wait add
	turn   uint64        // in which the host last asked
	early  chan struct{} // closed when a success ends it
}

// rest is what is left of a cooldown.
type rest struct {
	wait   time.Duration // 0: the host is not cooling down
	until  time.Time
	spread time.Duration
	early  <-chan struct{}
}

// turn returns how often hosts have asked, or 0 if none is cooling down. It is
// all that a success costs then.
func (cs *cooldowns) turn() uint64 {
	if cs.latest.Load() == nil {
		return 0
	}
	return cs.turns.Load()
}

// cooling reports whether a host is cooling down. Where none is any more, turn
// says so from then on.
func (cs *cooldowns) cooling(now time.Time) bool {
	latest := cs.latest.Load()
	if latest != nil && !latest.After(now) && cs.latest.CompareAndSwap(latest, nil) {
		return false
	}
	return latest != nil
}

// begin notes that a host wants to be left alone for some time from now.
func (cs *cooldowns) begin(key string, now time.Time, asked, spread time.Duration) {
	until := now.Add(min(asked, maxCooldown))
	c := cs.hosts.get(key, func(*cooldown) {})
	c.mu.Lock()
	c.turn = cs.turns.Add(1)
	if until.After(c.until) {
		c.until, c.spread = until, spread
	}
	if c.early == nil {
		c.early = make(chan struct{})
	}
	c.mu.Unlock()
	for {
		latest := cs.latest.Load()
		if latest != nil && !latest.Before(until) || cs.latest.CompareAndSwap(latest, &until) {
			return
		}
	}
}

// end notes a success of a host with an attempt that began in some turn.
func (cs *cooldowns) end(key string, turn uint64) {
	c := cs.hosts.peek(key)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn > turn || c.early == nil {
		return
	}
	c.until = time.Time{}
	close(c.early)
	c.early = nil
}

// rest returns what is left of a host's cooldown.
func (cs *cooldowns) rest(key string, now time.Time) rest {
	c := cs.hosts.peek(key)
	if c == nil {
		return rest{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return rest{max(c.until.Sub(now), 0), c.until, c.spread, c.early}
}

// cooldownKey returns the key of what the request's host says. Credentials and
// the like are not kept, only their hash.
func (c *call) cooldownKey() string {
	if c.coolKey == "" {
		c.coolKey = c.host
		if of := c.policy.CooldownKey; of != nil {
			if part := of(c.req); part != "" {
				sum := sha256.Sum256([]byte(part))
				c.coolKey += " " + string(sum[:])
			}
		}
	}
	return c.coolKey
}

// heed lets the host's other requests know what its response says of them.
func (c *call) heed(resp *http.Response, outcome Outcome) {
	if resp != nil && resp.StatusCode >= 400 {
		c.share(resp, outcome)
	}
}

func (c *call) share(resp *http.Response, outcome Outcome) {
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
	case http.StatusForbidden:
		if outcome == Final {
			return
		}
	default:
		return
	}
	now := time.Now()
	if asked, spread := askedWait(resp, now); asked > 0 {
		c.settings.cooldowns.begin(c.cooldownKey(), now, asked, spread)
	}
}

// succeeded tells of an answer that is not a transient failure.
func (c *call) succeeded(resp *http.Response) {
	c.budget().Deposit(c.host)
	if cs := &c.settings.cooldowns; c.turn > 0 && resp.StatusCode < 400 && cs.cooling(time.Now()) {
		cs.end(c.cooldownKey(), c.turn)
	}
}

// askedWait returns the wait that the host asks for, in resp or in another's
// response, the range of what is added to it, and what to call a wait that is
// too long.
func (c *call) askedWait(resp *http.Response, err error, now time.Time) (asked, spread time.Duration, why Reason) {
	asked, spread = askedWait(resp, now)
	if rest := c.rest(now); rest.wait > asked {
		return rest.wait, rest.spread, ReasonCooldown
	}
	if err == nil {
		return asked, spread, ReasonRetryAfter
	}
	if below, ok := errors.AsType[*CooldownError](err); ok { // of a RetryTransport below this one
		asked = max(below.Until.Sub(now), 0)
		return asked, spreadFor(asked, time.Second), ReasonCooldown
	}
	return asked, spread, ReasonRetryAfter
}

// rest returns what is left of what concerns the request.
func (c *call) rest(now time.Time) rest {
	if cs := &c.settings.cooldowns; cs.cooling(now) {
		return cs.rest(c.cooldownKey(), now)
	}
	return rest{}
}

// admit waits before the first attempt, if the host is cooling down. An error
// ends the request.
func (c *call) admit() *Error {
	reason, err := c.cool(nil)
	if reason == 0 {
		return nil
	}
	c.report(nil, err, 0, reason)
	c.above.refuse()
	return &Error{Reason: reason, Err: err}
}

// cool waits until the host has cooled down, before an attempt that follows one
// with the error last. If that takes too long, or the caller leaves, it returns
// the reason and the error that the request ends with.
func (c *call) cool(last error) (Reason, error) {
	var began time.Time
	for c.settings.cooldowns.turn() > 0 {
		now := time.Now()
		rest := c.rest(now)
		if rest.wait == 0 {
			break
		}
		if began.IsZero() {
			began = now // hosts may ask again and again
		}
		left := c.left(now)
		if c.attempts == 0 && c.policy.Cooldown == CooldownFail ||
			rest.until.Sub(began) > c.policy.MaxRetryAfter || rest.wait > left {
			return ReasonCooldown, c.after(last, &CooldownError{Host: c.host, Until: rest.until})
		}
		extra := uniform(min(rest.spread, left-rest.wait))
		there := c.sleep(rest.wait+extra, rest.early)
		if there { // if it ended early, the extra still spreads out what waits
			there = c.sleep(min(extra, time.Until(rest.until.Add(extra))), nil)
		}
		if !there {
			return ReasonCanceled, c.canceled(last)
		}
	}
	return 0, nil
}
