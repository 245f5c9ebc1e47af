package httpretry

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"time"
)

// OriginStatus is the state of an [Origin] for the requests that follow one
// policy. Its zero value has no meaning.
type OriginStatus struct {
	Origin string // such as "https://api.example.com"
	Key    string // of Config.Policies; "" for Config.Policy

	// Balance is how many retries the Budget allows now. It is -1 if the Budget
	// has no method Balance like that of [HostBudget].
	Balance int

	// Successes and FailedRetries are those of the last Window of a HostBudget.
	// Retries that have not ended count as failed, and with Strict all do. Both
	// are 0 for another Budget.
	Successes, FailedRetries int

	CooldownUntil time.Time // zero if the origin is not cooling down
	Waiting       int       // requests to Origin that wait, whatever their policy is
}

// Origins returns the state of the origins that were used last, sorted by
// Origin and Key. There are at most 1024 for each of http and https. An origin
// has one more OriginStatus for each key with a method or a path that could
// match a request to it. With a CooldownKey, CooldownUntil is the latest of all
// parts. Origins holds no lock that every success needs.
func (t *RetryTransport) Origins() []OriginStatus {
	set, now := t.current(), time.Now()
	s := set.settings
	cooldowns := s.cooldownEnds(now)
	var all []OriginStatus
	add := func(h *host) {
		status := OriginStatus{
			Origin: h.origin, Key: h.policy.key, Balance: -1,
			CooldownUntil: cooldowns[h.origin], Waiting: int(h.waiting.Load()),
		}
		switch b := s.budgetOf(h.policy).(type) {
		case *HostBudget:
			status.Balance, status.Successes, status.FailedRetries = b.status(h.origin)
		case interface{ Balance(string) (int, bool) }:
			status.Balance, _ = b.Balance(h.origin)
		}
		all = append(all, status)
	}
	for _, h := range set.hosts() {
		add(h)
		for _, routes := range h.routes {
			for i := range routes.hosts {
				add(&routes.hosts[i])
			}
		}
	}
	order := func(a, b OriginStatus) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Key, b.Key))
	}
	slices.SortFunc(all, order)
	// An origin has an entry for each of its spellings.
	return slices.CompactFunc(all, func(a, b OriginStatus) bool { return order(a, b) == 0 })
}

// hosts returns the hosts that the set has looked up.
func (s *policySet) hosts() (all []*host) {
	for _, h := range s.httpHosts.All() {
		all = append(all, h)
	}
	for _, h := range s.httpsHosts.All() {
		all = append(all, h)
	}
	return all
}

// cooldownEnds returns when the cool-downs end that have not ended by now.
func (s *settings) cooldownEnds(now time.Time) map[string]time.Time {
	ends := make(map[string]time.Time)
	for key, end := range s.cooldowns.Ends(now) {
		// waits.cooldownKey adds a space and a hash to the origin.
		if n := len(key) - sha256.Size - 1; n > 0 && key[n] == ' ' {
			key = key[:n]
		}
		if end.After(ends[key]) {
			ends[key] = end
		}
	}
	return ends
}

// status returns the numbers of an OriginStatus that a HostBudget knows.
func (b *HostBudget) status(origin string) (balance, successes, failedRetries int) {
	w := b.hosts.Peek(origin)
	if w == nil {
		_, burst, _ := b.settings()
		return burst, 0, 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	balance = w.available()
	s, charges := w.total()
	return balance, int(s), int(charges)
}
