package sim

import (
	"math"
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry"
)

// decide returns the wait before the next attempt, or the Reason why none
// follows. It makes the checks of RetryTransport.decide in their order, except
// those that a GET without a body always passes.
func (s *simulation) decide(
	r *request, ended httpretry.AttemptResult, now time.Duration) (time.Duration, httpretry.Reason) {
	switch {
	case ended.Succeeded():
		return 0, finalReason(r.answer.Status)
	case now >= r.deadline:
		return 0, httpretry.ReasonDeadline
	case ended.Outcome == httpretry.Final:
		return 0, httpretry.ReasonPermanent
	case r.attempts >= s.policy.MaxAttempts:
		return 0, s.limitReason()
	}
	asked, spread, tooLong := s.acceptWait(r, now)
	wait, left := max(asked, s.nextBackoff(r)), s.timeLeft(r, now)
	switch {
	case tooLong != httpretry.ReasonNone:
		return 0, tooLong
	case wait > left:
		return 0, s.lateReason(r, now)
	}
	if !s.withdraw(r, ended) {
		return 0, httpretry.ReasonBudget
	}
	if width := min(spread, left-wait); width > 0 {
		wait += s.Jitter(r.number, wait, width)
	}
	return wait, httpretry.ReasonNone
}

func (s *simulation) limitReason() httpretry.Reason {
	if s.policy.MaxAttempts == 1 {
		return httpretry.ReasonDisabled
	}
	return httpretry.ReasonAttempts
}

func finalReason(status int) httpretry.Reason {
	if status < 400 {
		return httpretry.ReasonSuccess
	}
	return httpretry.ReasonPermanent
}

// acceptWait returns the wait that the server asks for, in the answer to r or
// to another request of the process, and the Reason if it is too long.
func (s *simulation) acceptWait(r *request, now time.Duration) (asked, spread time.Duration, reason httpretry.Reason) {
	asked, spread = r.answer.RetryAfter, spreadFor(r.answer.RetryAfter)
	reason = httpretry.ReasonRetryAfter
	if c := s.cooldowns[r.process]; c != nil && c.until-now > asked {
		asked, spread, reason = c.until-now, c.spread, httpretry.ReasonCooldown
	}
	if asked <= s.policy.MaxRetryAfter {
		reason = httpretry.ReasonNone
	}
	return asked, spread, reason
}

func (s *simulation) nextBackoff(r *request) time.Duration {
	// Most requests end without a retry.
	if r.backoff == nil {
		r.backoff = s.policy.Backoff.Start()
	}
	return max(r.backoff(), 0)
}

// timeLeft returns the longest wait after which an attempt may still start.
func (s *simulation) timeLeft(r *request, now time.Duration) time.Duration {
	return min(r.untilDeadline(now), s.untilMaxElapsed(r, now))
}

// lateReason returns the Reason of a request that may not wait beyond timeLeft.
func (s *simulation) lateReason(r *request, now time.Duration) httpretry.Reason {
	if s.untilMaxElapsed(r, now) < r.untilDeadline(now) {
		return httpretry.ReasonMaxElapsed
	}
	return httpretry.ReasonDeadline
}

func (r *request) untilDeadline(now time.Duration) time.Duration {
	if r.deadline == never {
		return math.MaxInt64
	}
	// At the deadline itself, there is no time for an attempt.
	return r.deadline - 1 - now
}

func (s *simulation) untilMaxElapsed(r *request, now time.Duration) time.Duration {
	if s.policy.MaxElapsed <= 0 {
		return math.MaxInt64
	}
	return s.policy.MaxElapsed - (now - r.start)
}

// noteCooldown begins a cool-down if the answer asks for one.
func (s *simulation) noteCooldown(r *request, now time.Duration) {
	switch r.answer.Status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
	default:
		return
	}
	if asked := r.answer.RetryAfter; asked > 0 {
		c := s.cooldowns[r.process]
		if c == nil {
			c = new(cooldown)
			s.cooldowns[r.process] = c
		}
		c.begin(now, asked, spreadFor(asked))
	}
}
