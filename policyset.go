package httpretry

import (
	"errors"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/seed421102f4/httpretry/internal/cooldown"
	"github.com/seed421102f4/httpretry/internal/fielderr"
	"github.com/seed421102f4/httpretry/internal/hostpattern"
	"github.com/seed421102f4/httpretry/internal/hosttable"
)

// policySet has the policies of a RetryTransport and the state that depends on
// them. SetPolicies replaces it. A request uses one policySet, and only to find
// its policy. So it follows one policy from start to end.
type policySet struct {
	engine   *engine // the same for all sets of a RetryTransport
	policy   *resolvedPolicy
	patterns *hostpattern.Set[*resolvedPolicy]

	// Hosts by the spelling in Request.URL.Host, for each scheme.
	httpHosts, httpsHosts hosttable.Table[host]
}

// host is the result of lookUp for one spelling of a host, whatever the method
// and the path of a request are.
type host struct {
	policy   *resolvedPolicy
	origin   string         // the key of its state
	window   hostWindow     // of origin in the budget of policy
	quiet    cooldown.Quiet // of origin
	failing  failingFlag
	protocol hostProtocol

	// Keys with a method or a path. Most hosts have none.
	routes []*hostpattern.Routes[*resolvedPolicy]
}

// target is the result of lookUp for one request: its policy, its host and the
// window that records its success.
type target struct {
	policy *resolvedPolicy // of Config.Policies or SetPolicies, or the default
	host   *host
	window *hostWindow // of the host's origin in the policy's budget, or nil
}

// newPolicySet checks policies, and fills in their defaults. The errors are in
// the order of the patterns, and begin with path or paths.
func newPolicySet(
	e *engine, policy Policy, policies map[string]Policy, path, paths string,
) (*policySet, error) {
	set := &policySet{engine: e, policy: policy.withDefaults()}
	problems := []error{fielderr.At(path, set.policy.problemsIn(e))}
	resolved := make(map[string]*resolvedPolicy, len(policies))
	for pattern, p := range policies {
		resolved[pattern] = p.withDefaults()
		resolved[pattern].key = pattern
	}
	patterns, bad := hostpattern.Parse(resolved, path)
	set.patterns = patterns
	byPattern := make(map[string]error, len(bad))
	for _, b := range bad {
		byPattern[b.Pattern] = errors.New(b.Text)
	}
	// The order of a map is random, and that of errors must not be.
	for _, pattern := range slices.Sorted(maps.Keys(resolved)) {
		both := fielderr.Join(byPattern[pattern], resolved[pattern].problemsIn(e))
		problems = append(problems, fielderr.At(paths, fielderr.AtKey(pattern, both)))
	}
	return set, fielderr.Join(problems...)
}

// problemsIn returns all errors of p: those of its fields, and the one that it
// has only in a RetryTransport with the engine e.
func (p *resolvedPolicy) problemsIn(e *engine) error {
	return fielderr.Join(p.given.problems(), p.headerClash(e))
}

// contextProblemsIn is problemsIn for the policy of a context, whose fields
// checkedWithDefaults has checked.
func (p *resolvedPolicy) contextProblemsIn(e *engine) error {
	if p.err != nil {
		return p.err
	}
	return fielderr.At("Policy", p.headerClash(e))
}

// headerClash returns an error if the header for keys is also the attempt
// header.
func (p *resolvedPolicy) headerClash(e *engine) error {
	if p.IdempotencyHeader != e.attemptHeader {
		return nil
	}
	return fielderr.AtField("IdempotencyHeader", fielderr.New(
		strconv.Quote(p.IdempotencyHeader), "another header than Config.AttemptHeader"))
}

// lookUp returns the state of a URL's host. Each spelling of a host is resolved
// once.
func (s *policySet) lookUp(u *url.URL) *host {
	var hosts *hosttable.Table[host]
	switch {
	// Long names share an entry of the table, but may have different policies,
	// so they are not kept.
	case u == nil || len(u.Host) > hosttable.MaxNameLen:
	case u.Scheme == "https":
		hosts = &s.httpsHosts
	case u.Scheme == "http":
		hosts = &s.httpHosts
	}
	if hosts == nil {
		h := new(host)
		s.fill(h, u)
		return h
	}
	return hosts.Get(u.Host, func(h *host) {
		s.fill(h, u)
		s.engine.origins.Get(h.origin, u)
	})
}

// fill finds the policy and the key for the host of u, which may be nil.
func (s *policySet) fill(h *host, u *url.URL) {
	h.policy = s.policyOf(u)
	h.origin = hostpattern.Canonical(u)
	h.routes = s.patterns.Routes(u)
}

// hosts returns the hosts that the set has looked up.
func (s *policySet) hosts() iter.Seq[*host] {
	return func(yield func(*host) bool) {
		for _, table := range []*hosttable.Table[host]{&s.httpHosts, &s.httpsHosts} {
			for _, h := range table.All() {
				if !yield(h) {
					return
				}
			}
		}
	}
}

// policyOf returns the policy for the host of u, which may be nil.
func (s *policySet) policyOf(u *url.URL) *resolvedPolicy {
	if policy, ok := s.patterns.Match(u); ok {
		return policy
	}
	return s.policy
}

// target returns the target of req, a request to h. It has the policy of h
// unless a key with a method or a path matches req.
func (h *host) target(req *http.Request) target {
	if h.routes == nil {
		return target{h.policy, h, &h.window}
	}
	return h.routeTarget(req)
}

// routeTarget is apart from target, so that the compiler inlines target.
func (h *host) routeTarget(req *http.Request) target {
	to := target{h.policy, h, &h.window}
	for _, routes := range h.routes {
		i, ok := routes.Match(req)
		if !ok {
			continue
		}
		to.policy = routes.Values[i]
		// A success to a key with a budget of its own looks its window up.
		if !to.policy.sharesBudget(h.policy) {
			to.window = nil
		}
		break
	}
	return to
}

// sharesBudget reports whether p and other have the same HostBudget. The
// default one has no value in a policy.
func (p *resolvedPolicy) sharesBudget(other *resolvedPolicy) bool {
	if p.Budget == nil || other.Budget == nil {
		return p.Budget == nil && other.Budget == nil
	}
	// To compare interfaces may panic.
	a, isHost := p.Budget.(*HostBudget)
	b, _ := other.Budget.(*HostBudget)
	return isHost && a == b
}
