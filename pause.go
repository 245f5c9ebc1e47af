package httpretry

import (
	"math"
	"time"

	"github.com/seed421102f4/httpretry/internal/cooldown"
)

// pause waits before the next attempt, and until its host has cooled down. If
// no attempt follows, it returns the Reason and the error that the request
// ends with; last is the error of the attempt before.
func (c *call) pause(wait time.Duration, last error) (Reason, error) {
	reason, err := ReasonCanceled, error(nil)
	if c.waits.sleep(&c.caller, wait) {
		reason, err = c.awaitCooldown(last)
	} else {
		err = c.canceled(last)
	}
	// The retry that the budget has charged for is not sent.
	if reason != ReasonNone {
		c.charge.refundUnsent()
	}
	return reason, err
}

// awaitFirstAttempt waits until the host has cooled down. An error ends the
// request.
func (c *call) awaitFirstAttempt() error {
	reason, err := c.awaitCooldown(nil)
	if reason == ReasonNone {
		return nil
	}
	c.report(nil, err, 0, reason)
	// As in begin, the error of a context that is done is its own.
	if reason == ReasonCanceled && c.caller.req.Context().Err() != nil {
		return err
	}
	return &Error{Reason: reason, Err: err}
}

// awaitCooldown waits until the host has cooled down. The error last is that of
// the attempt before, or nil. If the wait is too long or the caller cancels, it
// returns the Reason and the error that the request ends with.
func (c *call) awaitCooldown(last error) (Reason, error) {
	// Most requests need no clock and no Waiter.
	if c.waits.currentGeneration() == 0 {
		return ReasonNone, nil
	}
	start, first, waiter := time.Now(), c.attempts == 0, new(cooldown.Waiter)
	defer waiter.Leave()
	for now := start; c.settings.cooldowns.Active(c.waits.origin, now); now = time.Now() {
		// Hosts may ask again and again, so MaxRetryAfter limits the total.
		latest := now.Add(min(c.timeLeft(now), c.policy.MaxRetryAfter-now.Sub(start)))
		remaining := c.settings.cooldowns.Join(
			waiter, c.waits.cooldownKey(), now, start, latest, first)
		if remaining.Wait == 0 {
			break
		}
		if first && c.policy.Cooldown == CooldownFail || remaining.Until.After(latest) {
			return ReasonCooldown, c.afterAttempt(
				last, &CooldownError{Origin: c.charge.origin, Until: remaining.Until})
		}
		// After the wait, the host may be cooling down again.
		if !c.sleepCooldown(waiter, remaining) {
			return ReasonCanceled, c.canceled(last)
		}
	}
	return ReasonNone, nil
}

// sleepCooldown waits for the end of a cool-down, and then a moment more. It
// reports whether the caller is still waiting.
func (c *call) sleepCooldown(waiter *cooldown.Waiter, remaining cooldown.Remaining) bool {
	if !c.caller.sleep(remaining.Wait, remaining.Cleared) {
		return false
	}
	if c.attempts == 0 {
		return c.caller.awaitTurn(waiter)
	}
	// A cool-down that a success has ended early was short, so retries return
	// over a shorter time.
	now := time.Now()
	early := max(remaining.Until.Sub(now), 0)
	width := min(remaining.Spread, remaining.Length-early, c.timeLeft(now))
	return c.caller.sleep(uniform(width), nil)
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

// timeLeft returns the longest wait after which an attempt may still start.
func (c *call) timeLeft(now time.Time) time.Duration {
	left := time.Duration(math.MaxInt64)
	if deadline, ok := c.caller.req.Context().Deadline(); ok {
		// At the deadline itself, there is no time for an attempt.
		left = deadline.Add(-1).Sub(now)
	}
	if c.policy.MaxElapsed > 0 {
		left = min(left, c.policy.MaxElapsed-(now.Sub(c.settings.created)-c.start))
	}
	return left
}
