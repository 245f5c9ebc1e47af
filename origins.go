package httpretry

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/seed421102f4/httpretry/internal/origintable"
	"github.com/seed421102f4/httpretry/internal/redact"
)

// OriginStatus is the state of an origin.
type OriginStatus struct {
	_ [0]func() // no unkeyed literals, no comparison

	// Origin is the result of the function [Origin], with characters that are not
	// printable escaped. A redirect may have chosen it. If URL.Host has more than
	// a host, its host is "REDACTED", as in "http://REDACTED".
	Origin string

	Waiting       int       // requests that wait for a retry or a cool-down
	CooldownUntil time.Time // the end of the last of its cool-downs, or zero

	// LastFailure is the Status (see Event) of the last attempt that failed, such
	// as "timeout". An attempt fails if it has no response, or a transient
	// failure, or with Policy.Resume if its body breaks off. Failures of the
	// request's own body, and attempts that the caller canceled or MaxAttempts
	// does not count, are ignored.
	LastFailure   string
	LastFailureAt time.Time

	FailedWithoutRetry int // requests whose only attempt failed, except for ReasonCanceled

	// Budgets has the Budget of the host's policy, and then those of keys with a
	// method or a path that remember the origin (see [Balancer]).
	Budgets []BudgetStatus
}

// BudgetStatus is the state of a Budget for one origin.
type BudgetStatus struct {
	_ [0]func() // no unkeyed literals, no comparison

	Key          string // in Config.Policies, of its first policy; "" for the default
	Balance      int    // how many retries that cost 1 the Budget would allow now
	BalanceKnown bool   // the Budget is a Balancer

	// Successes and FailedRetries are numbers of a HostBudget for the origin, for
	// all policies and transports that use it: the successes within its Window,
	// and the cost of failed retries. A retry that has not ended counts as failed,
	// and with Strict every retry does. After a burst, up to 31 successes may be
	// missing. For another Budget, both are 0.
	Successes, FailedRetries int

	// RecentSuccesses and RecentFailures are the attempts of the last minute, to
	// within 5 seconds, that a HostBudget for the origin has recorded. A failure
	// is one whose Outcome is not Final. For another Budget, both are 0.
	RecentSuccesses, RecentFailures int
}

// Origins returns the state of the origins that were used last, and of those
// with waiting requests, sorted by Origin. It delays no requests. Of more than
// 1024 origins, those that were used least recently may be missing, and their
// failures forgotten. After SetPolicies, an origin may be missing until its
// next request.
func (t *RetryTransport) Origins() []OriginStatus {
	set := t.current()
	origins := make(map[string]*originView)
	view := func(origin string) *originView {
		if origins[origin] == nil {
			origins[origin] = new(originView)
		}
		return origins[origin]
	}
	for h := range set.hosts() {
		view(h.origin).host = h
	}
	for origin, state := range set.engine.origins.All() {
		view(origin).state = state
	}
	ends := set.engine.cooldownEnds(time.Now())
	all := make([]OriginStatus, 0, len(origins))
	for _, origin := range slices.Sorted(maps.Keys(origins)) {
		status := origins[origin].status(set, origin)
		status.CooldownUntil = ends[origin]
		all = append(all, status)
	}
	return all
}

// originView has the parts of an OriginStatus.
type originView struct {
	host  *host // one of its spellings, which have the same policies; or nil
	state origintable.State
}

// status returns the OriginStatus, without its cool-down.
func (v *originView) status(set *policySet, origin string) OriginStatus {
	if v.host == nil {
		v.host = new(host)
		set.fill(v.host, v.state.URL())
	}
	return OriginStatus{
		Origin:             redact.Origin(origin),
		Waiting:            v.state.Waiting,
		LastFailure:        failureText(v.state.LastFailure),
		LastFailureAt:      v.state.LastFailure.At,
		FailedWithoutRetry: v.state.FailedWithoutRetry,
		Budgets:            v.host.budgets(set.engine, origin),
	}
}

// failureText returns the text of an Event's Status, or "" for no failure.
func failureText(f origintable.Failure) string {
	if f.Text == "" && !f.At.IsZero() {
		return statusText(f.Status)
	}
	return f.Text
}

// budgets returns the Budgets of an OriginStatus.
func (h *host) budgets(e *engine, origin string) []BudgetStatus {
	policies := []*resolvedPolicy{h.policy}
	for _, routes := range h.routes {
		policies = append(policies, routes.Values...)
	}
	var all []BudgetStatus
	seen := make(map[Budget]bool)
	for i, p := range policies {
		budget := e.budgetOf(p)
		// To use another one as a key would panic.
		if reflect.ValueOf(budget).Comparable() {
			if seen[budget] {
				continue
			}
			seen[budget] = true
		}
		if status, known := budgetStatus(budget, origin, p.key); known || i == 0 {
			all = append(all, status)
		}
	}
	return all
}

// budgetStatus returns the BudgetStatus of an origin, and whether budget
// remembers it.
func budgetStatus(budget Budget, origin, key string) (s BudgetStatus, known bool) {
	s.Key = key
	b, ok := budget.(Balancer)
	if !ok {
		return s, false
	}
	s.BalanceKnown = true
	s.Balance, known = b.Balance(origin)
	if b, ok := budget.(*HostBudget); ok {
		b.status(origin, &s)
	}
	return s, known
}

// cooldownEnds returns the last end of the cool-downs of each origin that cools
// down at now.
func (e *engine) cooldownEnds(now time.Time) map[string]time.Time {
	ends := make(map[string]time.Time)
	for key, until := range e.cooldowns.Ends(now) {
		if origin := originOf(key); until.After(ends[origin]) {
			ends[origin] = until
		}
	}
	return ends
}
