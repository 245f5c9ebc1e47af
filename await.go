package httpretry

import (
	"time"

	"github.com/seed421102f4/httpretry/internal/cooldown"
)

// awaitRetry waits before the next attempt, and until its host has cooled down.
// If no attempt follows, it returns the Reason and the error that the request
// ends with. The error last is that of the attempt before.
func (c *call) awaitRetry(wait time.Duration, last error) (Reason, error) {
	var until time.Time
	c.caller.sleep(wait, nil)
	reason := c.caller.ended()
	if reason == ReasonNone {
		reason, until = c.waits.awaitCooldown(&c.caller, false)
	}
	if reason == ReasonNone {
		return ReasonNone, nil
	}
	err := c.waitError(reason, until, last)
	// The retry that the budget has charged for is not sent.
	c.charge.refundUnsent()
	return reason, err
}

// awaitFirstAttempt waits until the host has cooled down. An error ends the
// request.
func (c *call) awaitFirstAttempt() error {
	reason, until := c.waits.awaitCooldown(&c.caller, true)
	if reason == ReasonNone {
		return nil
	}
	err := c.waitError(reason, until, nil)
	c.report(result{err: err, isOfWait: true}, 0, reason)
	// As in begin, the error of a context that is done is its own.
	if reason != ReasonCooldown && c.caller.req.Context().Err() != nil {
		return err
	}
	return &Error{Reason: reason, Err: err, Unprocessed: true}
}

// waitError returns the error of a request that ended during a wait, because
// its caller does not wait any more or its host cools down until a time that is
// too late. The error last is that of the attempt before, or nil.
func (c *call) waitError(reason Reason, until time.Time, last error) error {
	if reason != ReasonCooldown {
		return c.canceled(last)
	}
	return c.afterAttempt(last, &CooldownError{Origin: c.caller.origin, Until: until})
}

// awaitCooldown waits until the host has cooled down. If the caller does not
// wait any more or the wait is too long, it returns the Reason. With
// ReasonCooldown, it also returns when the cool-down ends.
func (w *waits) awaitCooldown(caller *caller, isFirst bool) (reason Reason, until time.Time) {
	// Most requests need no clock and no Waiter.
	if w.cooldown.currentGeneration() == 0 {
		return ReasonNone, time.Time{}
	}
	start, waiter := time.Now(), new(cooldown.Waiter)
	defer waiter.Leave()
	for now := start; w.cooldown.isActive(now); now = time.Now() {
		// Hosts may ask again and again, so MaxRetryAfter limits the total.
		left := min(w.timeLeft(caller, now), w.policy.MaxRetryAfter-now.Sub(start))
		remaining := w.cooldown.join(waiter, now)
		if remaining.Wait == 0 {
			break
		}
		if isFirst && w.policy.Cooldown == CooldownFail || remaining.Wait > left {
			return ReasonCooldown, remaining.Until
		}
		// Requests that have waited together must not return together. After the
		// second wait, the host may be cooling down again.
		if !caller.sleep(remaining.Wait, remaining.Cleared) ||
			!caller.sleep(w.afterCooldown(caller, remaining, start, isFirst), nil) {
			return caller.ended(), time.Time{}
		}
	}
	return ReasonNone, time.Time{}
}

// afterCooldown returns how much longer a request waits that has waited for the
// end of a cool-down since start. It returns 0 if the host has asked again.
func (w *waits) afterCooldown(
	caller *caller, ended cooldown.Remaining, start time.Time, isFirst bool,
) time.Duration {
	now := time.Now()
	if w.cooldown.remaining(now).Wait > 0 {
		return 0
	}
	left := w.timeLeft(caller, now)
	if isFirst {
		// Requests that arrived at a steady rate return at up to 2 ln 2 = 1.4
		// times that rate. If the range began at 0, more would return at first.
		waited := now.Sub(start)
		width := min(waited, left, w.policy.MaxRetryAfter-waited)
		return width/2 + uniform(width-width/2)
	}
	// A cool-down that a success has ended early was short, so retries return
	// over a shorter time.
	early := max(ended.Until.Sub(now), 0)
	return uniform(min(ended.Spread, ended.Length-early, left))
}
