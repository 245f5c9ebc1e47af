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
	c.waits.sleep(&c.caller, wait)
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
	c.report(nil, err, 0, reason)
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
		latest := now.Add(min(w.timeLeft(caller, now), w.policy.MaxRetryAfter-now.Sub(start)))
		remaining := w.cooldown.join(waiter, now, start, latest, isFirst)
		if remaining.Wait == 0 {
			break
		}
		if isFirst && w.policy.Cooldown == CooldownFail || remaining.Until.After(latest) {
			return ReasonCooldown, remaining.Until
		}
		// After the wait, the host may be cooling down again.
		if !w.sleepCooldown(caller, waiter, remaining, isFirst) {
			return caller.ended(), time.Time{}
		}
	}
	return ReasonNone, time.Time{}
}

// sleepCooldown waits for the end of a cool-down, and then a moment more. It
// reports whether the caller is still waiting.
func (w *waits) sleepCooldown(
	caller *caller, waiter *cooldown.Waiter, remaining cooldown.Remaining, isFirst bool,
) bool {
	if !caller.sleep(remaining.Wait, remaining.Cleared) {
		return false
	}
	if isFirst {
		return caller.awaitTurn(waiter)
	}
	// A cool-down that a success has ended early was short, so retries return
	// over a shorter time.
	now := time.Now()
	early := max(remaining.Until.Sub(now), 0)
	width := min(remaining.Spread, remaining.Length-early, w.timeLeft(caller, now))
	return caller.sleep(uniform(width), nil)
}

// awaitTurn waits for the turn of a first attempt, which another cool-down may
// put off.
func (c *caller) awaitTurn(waiter *cooldown.Waiter) bool {
	for {
		turn := waiter.Turn(time.Now())
		if turn == 0 {
			return true
		}
		if !c.sleep(turn, nil) {
			return false
		}
	}
}
