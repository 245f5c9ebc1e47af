package httpretry

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed421102f4/httpretry/internal/redact"
)

// OriginStatus is the state of an origin for the requests that follow one
// policy.
type OriginStatus struct {
	// Origin is such as "https://api.example.com". A redirect may have chosen
	// it. Characters that are not printable are escaped.
	Origin string

	// Key is that of the policy, as it is in Policies. "" means the policy for
	// all other requests.
	Key string

	// Balance is how many retries the policy's Budget allows now, or -1 if that
	// is unknown. It is known if the Budget has a method Balance like that of
	// [HostBudget].
	Balance int

	// Successes and FailedRetries are those that a HostBudget counts for the
	// origin in its Window, whatever their policy and transport. Retries that
	// have not ended count as failed, and with Strict all do. Retries that are
	// free do not count. After a burst, up to 31 successes may be missing. For
	// another Budget, both are 0.
	Successes, FailedRetries int

	// CooldownUntil is the end of the origin's cool-down, or zero. If the
	// policy has a CooldownKey, it is the last end of all its cool-downs.
	CooldownUntil time.Time

	// Waiting is the number of requests to the origin that wait for a retry or
	// for the end of a cool-down, whatever their policy.
	Waiting int
}

// Origins returns the state of the origins that were used last, at least 1024
// of them, and of those with waiting requests. They are sorted by Origin and
// Key. An origin has one OriginStatus for the policy of its host, and one for
// each key with a method or a path that a request has matched since the last
// SetPolicies. After SetPolicies, an origin may be missing until its next
// request. Origins does not delay requests.
func (t *RetryTransport) Origins() []OriginStatus {
	set := t.current()
	s := set.settings
	view := originView{
		settings:  s,
		waiting:   s.origins.waitingRequests(),
		cooldowns: s.cooldownEnds(time.Now()),
		seen:      make(map[originPolicy]bool),
	}
	for h := range set.hosts() {
		view.add(h.origin, h.policy)
		for _, routes := range h.routes {
			for i := range routes.hosts {
				if route := &routes.hosts[i]; route.matched.Load() {
					view.add(route.origin, route.policy)
				}
			}
		}
	}
	for origin, p := range s.origins.known.All() {
		view.add(origin, set.policyOf(p.url()))
	}
	for origin, w := range view.waiting {
		view.add(origin, set.policyOf(w.place.url()))
	}
	slices.SortFunc(view.all, func(a, b OriginStatus) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Key, b.Key))
	})
	return view.all
}

// originView collects the result of Origins.
type originView struct {
	settings  *settings
	waiting   map[string]waiting
	cooldowns cooldownEnds
	seen      map[originPolicy]bool
	all       []OriginStatus
}

// originPolicy identifies an OriginStatus.
type originPolicy struct {
	origin string
	policy *resolvedPolicy
}

// add adds the state of an origin once for each policy.
func (v *originView) add(origin string, p *resolvedPolicy) {
	id := originPolicy{origin, p}
	if v.seen[id] {
		return
	}
	v.seen[id] = true
	status := OriginStatus{
		Origin: redact.Text(origin), Key: p.key, Balance: -1,
		CooldownUntil: v.cooldowns.of(id), Waiting: v.waiting[origin].requests,
	}
	switch b := v.settings.budgetOf(p).(type) {
	case *HostBudget:
		status.Balance, status.Successes, status.FailedRetries = b.status(origin)
	case interface{ Balance(string) (int, bool) }:
		status.Balance, _ = b.Balance(origin)
	}
	v.all = append(v.all, status)
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

// cooldownEnds are the ends of cool-downs, by origin: of those for all requests
// to it, and the last one of those for a CooldownKey.
type cooldownEnds struct{ whole, parts map[string]time.Time }

// cooldownEnds returns the ends that are after now.
func (s *settings) cooldownEnds(now time.Time) cooldownEnds {
	ends := cooldownEnds{make(map[string]time.Time), make(map[string]time.Time)}
	for key, end := range s.cooldowns.Ends(now) {
		origin, isPart := originOf(key)
		if !isPart {
			ends.whole[origin] = end
		} else if end.After(ends.parts[origin]) {
			ends.parts[origin] = end
		}
	}
	return ends
}

// of returns the end for a policy, or zero.
func (e cooldownEnds) of(id originPolicy) time.Time {
	end := e.whole[id.origin]
	if part := e.parts[id.origin]; id.policy.CooldownKey != nil && part.After(end) {
		return part
	}
	return end
}
