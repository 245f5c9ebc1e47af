package httpretry

import (
	"cmp"
	"maps"
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

	// Policies, sorted by Key, has the policy of the host, and those of the
	// keys with a method or a path that a request has matched since the last
	// SetPolicies. It has at most 16 policies. MorePolicies is how many it
	// leaves out.
	Policies     []PolicyStatus
	MorePolicies int
}

// maxPolicies is the maximum length of OriginStatus.Policies.
const maxPolicies = 16

// PolicyStatus is the state of an origin for the requests that follow one
// policy. Policies with the same Budget have the same numbers.
type PolicyStatus struct {
	_ [0]func() // no unkeyed literals, no comparison

	Key string // in Config.Policies, or "" for the default

	// Balance is how many retries the policy's Budget would allow now. It is
	// known if the Budget is a [Balancer]. For a HostBudget, that is how many
	// retries that cost 1.
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
		v := view(h.origin)
		v.hosts = append(v.hosts, h)
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
	hosts []*host // its spellings
	state origintable.State
}

// status returns the OriginStatus, without its cool-down.
func (v *originView) status(set *policySet, origin string) OriginStatus {
	policies, more := v.policies(set)
	status := OriginStatus{
		Origin:             redact.Origin(origin),
		Waiting:            v.state.Waiting,
		LastFailure:        failureText(v.state.LastFailure),
		LastFailureAt:      v.state.LastFailure.At,
		FailedWithoutRetry: v.state.FailedWithoutRetry,
		Policies:           make([]PolicyStatus, len(policies)),
		MorePolicies:       more,
	}
	for i, p := range policies {
		status.Policies[i] = policyStatus(set.engine.budgetOf(p), origin, p.key)
	}
	return status
}

// failureText returns the text of an Event's Status, or "" for no failure.
func failureText(f origintable.Failure) string {
	if f.Text == "" && !f.At.IsZero() {
		return statusText(f.Status)
	}
	return f.Text
}

// policies returns the policies of an OriginStatus, and how many others there
// are. Those of the hosts come first, and then those with the first keys.
func (v *originView) policies(set *policySet) (policies []*resolvedPolicy, more int) {
	if len(v.hosts) == 0 {
		return []*resolvedPolicy{set.policyOf(v.state.URL())}, 0
	}
	// All spellings of a host have the same policies, but hosts with names that
	// are too long share an origin.
	var all []hostRoutes
	for _, h := range v.hosts {
		if !slices.Contains(policies, h.policy) {
			policies = append(policies, h.policy)
		}
		all = addMatched(all, h.routes)
	}
	var routes []*resolvedPolicy
	total := len(policies)
	for _, r := range all {
		n := 0
		for i := range r.matched.all() {
			// The values are in the order of their keys.
			if n++; n <= maxPolicies {
				routes = append(routes, r.Values[i])
			}
		}
		total += n
	}
	slices.SortFunc(routes, byKey)
	policies = append(policies, routes...)
	policies = policies[:min(len(policies), maxPolicies)]
	slices.SortFunc(policies, byKey)
	return policies, total - len(policies)
}

func byKey(a, b *resolvedPolicy) int { return cmp.Compare(a.key, b.key) }

// addMatched returns all, which belongs to the caller, with the matches in
// routes.
func addMatched(all, routes []hostRoutes) []hostRoutes {
	for _, r := range routes {
		i := slices.IndexFunc(all, func(other hostRoutes) bool { return other.Routes == r.Routes })
		if i < 0 {
			i = len(all)
			all = append(all, hostRoutes{r.Routes, newBitset(len(r.Values))})
		}
		all[i].matched.add(r.matched)
	}
	return all
}

// policyStatus returns the PolicyStatus of an origin and a budget.
func policyStatus(budget Budget, origin, key string) PolicyStatus {
	s := PolicyStatus{Key: key}
	switch b := budget.(type) {
	case *HostBudget:
		s.Balance, s.Successes, s.FailedRetries = b.status(origin)
		s.BalanceKnown = true
	case Balancer:
		s.Balance, _ = b.Balance(origin)
		s.BalanceKnown = true
	}
	return s
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
