package sim

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry"
)

// decide returns the wait before the next attempt, or the Reason why none
// follows. It makes the checks of RetryTransport.decide in their order, except
// those that a GET without a body always passes.
func (s *simulation) decide(r *request, now time.Duration) (time.Duration, httpretry.Reason) {
	outcome := s.outcomes.of(r.answer.Status)
	switch {
	case outcome == httpretry.Final && r.answer.Status > 0:
		return 0, finalReason(r.answer.Status)
	case now >= r.deadline:
		return 0, httpretry.ReasonCanceled
	case outcome == httpretry.Final:
		return 0, httpretry.ReasonPermanent
	case r.attempts >= s.policy.MaxAttempts:
		return 0, httpretry.ReasonAttempts
	}
	asked, spread, tooLong := s.acceptWait(r, now)
	wait, left := max(asked, s.nextBackoff(r)), s.timeLeft(r, now)
	switch {
	case tooLong != httpretry.ReasonNone:
		return 0, tooLong
	case wait > left:
		return 0, httpretry.ReasonDeadline
	}
	if !s.charge(r) {
		return 0, httpretry.ReasonBudget
	}
	if width := min(spread, left-wait); width > 0 {
		wait += s.Jitter(r.number, wait, width)
	}
	return wait, httpretry.ReasonNone
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
	left := time.Duration(math.MaxInt64)
	if r.deadline != never {
		// At the deadline itself, there is no time for an attempt.
		left = r.deadline - 1 - now
	}
	if s.policy.MaxElapsed > 0 {
		left = min(left, s.policy.MaxElapsed-(now-r.start))
	}
	return left
}

// charge reports whether the budget allows a retry. A retry after a 429 that
// asks for a wait is free.
func (s *simulation) charge(r *request) bool {
	if r.answer.Status == http.StatusTooManyRequests && r.answer.RetryAfter > 0 {
		r.charged = false
		return true
	}
	budget, origin := s.budget(r)
	// Budgets of other clients may charge more after a timeout.
	if b, ok := budget.(interface{ WithdrawAfterTimeout() bool }); ok && r.answer.Status == TimedOut {
		r.charged = b.WithdrawAfterTimeout()
		return r.charged
	}
	r.charged = budget.Withdraw(context.Background(), origin)
	return r.charged
}

// settle records an answer that is not a transient failure.
func (s *simulation) settle(r *request) {
	budget, origin := s.budget(r)
	budget.Deposit(origin, r.charged)
}

func (s *simulation) refundUnsent(r *request) {
	if r.charged {
		r.charged = false
		budget, origin := s.budget(r)
		budget.Refund(origin)
	}
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
		c.begin(now, asked, spreadFor(asked), s.rand.Float64())
	}
}
