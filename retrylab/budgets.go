package main

import (
	"context"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
)

const budgetNames = "default, strict, unlimited, shared, aws, aws2026, grpc, proxy"

// budgetsOf returns the budget of each process by the name of its kind, which is
// one of budgetNames. The kinds default, strict and shared have the fields of h.
//
//	default    h
//	strict     h with Strict, so that it is of all retries
//	unlimited  httpretry.Unlimited
//	shared     one h for all processes
//	aws        the retry quota of AWS SDKs: 500 tokens, of which a retry takes
//	           5, or 10 after a timeout; it returns them if it succeeds, and
//	           each other success returns 1
//	aws2026    the same, but a retry takes 14, or 5 after a 429
//	grpc       the retry throttling of gRPC: 10 tokens, of which each failure
//	           takes 1 and each success returns 0.1; retries need more than 5
//	proxy      that of Envoy and the Gateway API, in one proxy for all
//	           processes: retries are at most 20 % of the attempts of 10 s
func budgetsOf(kind string, h *httpretry.HostBudget) func() httpretry.Budget {
	own := func() *httpretry.HostBudget {
		return &httpretry.HostBudget{Ratio: h.Ratio, Burst: h.Burst, Window: h.Window, Strict: h.Strict || kind == "strict"}
	}
	one, proxy := own(), new(share)
	return func() httpretry.Budget {
		switch kind {
		case "shared":
			return one
		case "unlimited":
			return httpretry.Unlimited{}
		case "aws":
			return &quota{retry: 5, timeout: 10, throttled: 5}
		case "aws2026":
			return &quota{retry: 14, timeout: 14, throttled: 5}
		case "grpc":
			return new(throttle)
		case "proxy":
			return proxy
		}
		return own()
	}
}

// withBudgets returns the policy of each process: p with its budget of budgetsOf.
func withBudgets(p httpretry.Policy, kind string, h *httpretry.HostBudget) func() httpretry.Policy {
	newBudget := budgetsOf(kind, h)
	return func() httpretry.Policy {
		p.Budget = newBudget()
		return p
	}
}

func unlimited() httpretry.Budget { return httpretry.Unlimited{} }

type quota struct {
	retry, timeout, throttled int // what one takes after an attempt of that kind

	mu    sync.Mutex
	taken int // of 500
}

func (q *quota) cost(last httpretry.AttemptResult) int {
	switch {
	case last.Timeout:
		return q.timeout
	case last.Status == 429:
		return q.throttled
	}
	return q.retry
}

func (q *quota) Withdraw(_ context.Context, last httpretry.AttemptResult) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.taken+q.cost(last) > 500 {
		return false
	}
	q.taken += q.cost(last)
	return true
}

func (q *quota) Refund(last httpretry.AttemptResult) { q.put(q.cost(last)) }

func (q *quota) Record(ended, charged httpretry.AttemptResult) {
	switch {
	case !ended.Succeeded():
	case charged.Number > 0:
		q.put(q.cost(charged))
	default:
		q.put(1)
	}
}

func (q *quota) put(tokens int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken = max(q.taken-tokens, 0)
}

type throttle struct {
	mu    sync.Mutex
	taken float64 // of 10
}

func (t *throttle) Withdraw(context.Context, httpretry.AttemptResult) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.taken < 5
}

// Refund implements httpretry.Budget. A retry costs nothing until it fails.
func (*throttle) Refund(httpretry.AttemptResult) {}

func (t *throttle) Record(ended, _ httpretry.AttemptResult) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case ended.Succeeded():
		t.taken = max(t.taken-0.1, 0)
	case ended.Outcome != httpretry.Final:
		t.taken = min(t.taken+1, 10)
	}
}

// A share is the retry budget of a proxy. It counts attempts when they end.
type share struct {
	mu      sync.Mutex
	seconds [10]struct {
		second            int64
		attempts, retries int
	}
}

// count adds to the counts of this second, and returns those of ten seconds.
// s.mu is held.
func (s *share) count(attempts, retries int) (allAttempts, allRetries int) {
	now := time.Now().Unix()
	this := &s.seconds[now%10]
	if this.second != now {
		this.second, this.attempts, this.retries = now, 0, 0
	}
	this.attempts += attempts
	this.retries += retries
	for _, c := range s.seconds {
		if now-c.second < 10 {
			allAttempts += c.attempts
			allRetries += c.retries
		}
	}
	return allAttempts, allRetries
}

func (s *share) Withdraw(context.Context, httpretry.AttemptResult) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	attempts, retries := s.count(0, 0)
	if 5*(retries+1) > attempts {
		return false
	}
	s.count(0, 1)
	return true
}

func (s *share) Refund(httpretry.AttemptResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(0, -1)
}

func (s *share) Record(httpretry.AttemptResult, httpretry.AttemptResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(1, 0)
}
