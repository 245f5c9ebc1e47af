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

	// Origin is the result of the function [Origin], such as
	// "https://api.example.com". A redirect may have chosen it. Characters that
	// are not printable are escaped. If URL.Host has more than a host, its host
	// is "REDACTED", as in "http://REDACTED".
	Origin string

	Waiting int // requests that wait for a retry or a cool-down

	// CooldownUntil is when the last of its cool-downs ends; zero if there is
	// none.
	CooldownUntil time.Time

	// LastFailure is the Status (see Event) of the last attempt that failed,
	// such as "timeout", and LastFailureAt is when it failed. An attempt fails
	// if it has no response, or one that is a transient failure, or with
	// Policy.Resume one whose body breaks off. It does not count if its caller
	// canceled it, or if the request's own body failed.
	LastFailure   string
	LastFailureAt time.Time

	// FailedWithoutRetry is the number of requests whose only attempt failed,
	// for any Reason but ReasonCanceled.
	FailedWithoutRetry int

	// Budgets has the Budget of the host's policy, and then the other ones of keys
	// with a method or a path that remember the origin (see [Balancer]).
	Budgets []BudgetStatus
}

// BudgetStatus is the state of a Budget for one origin.
type BudgetStatus struct {
	_ [0]func() // no unkeyed literals, no comparison

	// Key is the key in Config.Policies of the first policy with the Budget, or ""
	// for the default.
	Key string

	// Balance is how many retries the Budget would allow now. It is known if the
	// Budget is a [Balancer]. For a HostBudget, that is how many retries that
	// cost 1.
	Balance      int
	BalanceKnown bool

	// Successes and FailedRetries are numbers of a HostBudget: how many successes
	// it counts for the origin within its Window, and what failed retries have
	// cost, for all policies and transports that use it. A retry that has not
	// ended counts as failed. With Strict, every retry counts as failed. Retries
	// that are free do not count. After a burst, up to 31 successes may be
	// missing. For another Budget, both are 0.
	Successes, FailedRetries int
}

// Origins returns the state of the origins that were used last, and of those
// with waiting requests, sorted by Origin. If more than 1024 origins were used,
// those that were used least recently may be missing, and their failures may be
// forgotten. After SetPolicies, an origin may be missing until its next
// request. Origins does not delay requests.
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
		set.resolve(v.host, v.state.URL())
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
		s.Balance, s.Successes, s.FailedRetries = b.status(origin)
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
