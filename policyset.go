package httpretry

import (
	"errors"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/seed421102f4/httpretry/internal/cooldown"
	"github.com/seed421102f4/httpretry/internal/fielderr"
	"github.com/seed421102f4/httpretry/internal/hostpattern"
	"github.com/seed421102f4/httpretry/internal/hosttable"
)

// policySet has the policies of a RetryTransport and the state that depends on
// them. SetPolicies replaces it. A request uses one policySet, and only to find
// its policy. So it follows one policy from start to end.
type policySet struct {
	settings *settings // the same for all sets of a RetryTransport
	policy   *resolvedPolicy
	patterns *hostpattern.Set[*resolvedPolicy]

	// Hosts by the spelling in Request.URL.Host, for each scheme.
	httpHosts, httpsHosts hosttable.Table[host]
}

// host is the result of lookUp for one spelling of a host.
type host struct {
	policy  *resolvedPolicy
	origin  string // the key of its state
	window  hostWindow
	quiet   cooldown.Quiet
	routes  []hostRoutes // of keys with a method or a path; nil for most hosts
	matched atomic.Bool  // in hostRoutes: by a request
}

// hostRoutes are the keys of one host pattern that have a method or a path. For
// each of them, a host has its policy. All of these have the same origin.
type hostRoutes struct {
	*hostpattern.Routes[*resolvedPolicy]
	hosts []host
}

// newPolicySet checks policies, and fills in their defaults. The errors are in
// the order of the patterns, and begin with path or paths.
func newPolicySet(
	s *settings, policy Policy, policies map[string]Policy, path, paths string,
) (*policySet, error) {
	set := &policySet{settings: s, policy: policy.resolve()}
	problems := []error{fielderr.At(path, set.policy.problemsWith(s))}
	resolved := make(map[string]*resolvedPolicy, len(policies))
	for pattern, p := range policies {
		resolved[pattern] = p.resolve()
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
		both := fielderr.Join(byPattern[pattern], resolved[pattern].problemsWith(s))
		problems = append(problems, fielderr.At(paths, fielderr.AtKey(pattern, both)))
	}
	return set, fielderr.Join(problems...)
}

// problemsWith returns the errors in p, and the one that p has only together
// with s.
func (p *resolvedPolicy) problemsWith(s *settings) error {
	return fielderr.Join(p.given.problems(), p.headerProblem(s))
}

// problemWith is problemsWith for the policy of a context, which is checked
// only once by itself.
func (p *resolvedPolicy) problemWith(s *settings) error {
	if p.err != nil {
		return p.err
	}
	return fielderr.At("Policy", p.headerProblem(s))
}

func (p *resolvedPolicy) headerProblem(s *settings) error {
	if p.IdempotencyHeader != s.attemptHeader {
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
		s.resolve(h, u)
		return h
	}
	return hosts.Get(u.Host, func(h *host) {
		s.resolve(h, u)
		s.settings.origins.note(h.origin, u)
	})
}

// resolve finds the policy and the key for the host of u, which may be nil.
func (s *policySet) resolve(h *host, u *url.URL) {
	h.policy = s.policyOf(u)
	h.origin = hostpattern.Canonical(u)
	for _, routes := range s.patterns.Routes(u) {
		hosts := make([]host, len(routes.Values))
		for i, policy := range routes.Values {
			hosts[i].policy, hosts[i].origin = policy, h.origin
		}
		h.routes = append(h.routes, hostRoutes{routes, hosts})
	}
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

// of returns h with the policy of req, which is h itself unless a key with a
// method or a path matches req.
func (h *host) of(req *http.Request) *host {
	if h.routes == nil {
		return h
	}
	return h.ofRoute(req)
}

// ofRoute is apart from of, so that the compiler inlines of.
func (h *host) ofRoute(req *http.Request) *host {
	for _, routes := range h.routes {
		if i, ok := routes.Match(req); ok {
			route := &routes.hosts[i]
			// Storing an equal value would still take the cache line.
			if !route.matched.Load() {
				route.matched.Store(true)
			}
			return route
		}
	}
	return h
}
