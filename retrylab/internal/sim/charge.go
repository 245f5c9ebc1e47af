package sim

import (
	"context"
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry"
)

// result returns the result of the attempt that ends now, as call.note of
// package httpretry does.
func (s *simulation) result(r *request) httpretry.AttemptResult {
	_, origin := s.Budget(int(r.process))
	ended := httpretry.AttemptResult{Origin: origin, Number: r.attempts}
	// The host has not answered before the deadline of the request.
	if s.now >= r.deadline {
		ended.Timeout, ended.Outcome = true, httpretry.Transient
		return ended
	}
	// An error has no HTTP status.
	status := r.answer.Status
	ended.Status = max(status, 0)
	ended.Outcome = s.outcomes.of(status)
	ended.Timeout = status == TimedOut || status == http.StatusGatewayTimeout
	ended.Throttled = status == http.StatusTooManyRequests && r.answer.RetryAfter > 0
	return ended
}

// record lets the budget know of an attempt that has ended.
func (s *simulation) record(r *request, ended httpretry.AttemptResult) {
	budget, _ := s.Budget(int(r.process))
	// No budget of package budgets reads the clock for a failure.
	if ended.Succeeded() {
		s.setClock(budget)
	}
	charged := r.charged
	r.charged = httpretry.AttemptResult{}
	budget.Record(ended, charged)
}

// withdraw reports whether the budget allows a retry.
func (s *simulation) withdraw(r *request, ended httpretry.AttemptResult) bool {
	budget, _ := s.Budget(int(r.process))
	s.setClock(budget)
	if !budget.Withdraw(context.Background(), ended) {
		return false
	}
	r.charged = ended
	return true
}

// refundUnsent lets the budget know of a retry that is not sent.
func (s *simulation) refundUnsent(r *request) {
	if r.charged.Number == 0 {
		return
	}
	budget, _ := s.Budget(int(r.process))
	s.setClock(budget)
	budget.Refund(r.charged)
	r.charged = httpretry.AttemptResult{}
}

// setClock sets the clock that a budget reads.
func (s *simulation) setClock(budget httpretry.Budget) {
	if _, ok := budget.(httpretry.Unlimited); !ok && s.now-s.clock > s.Lag {
		time.Sleep(s.now - s.clock)
		s.clock = s.now
	}
}
