package httpretry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-cleanhttp"

	"github.com/seed421102f4/httpretry/internal/cooldown"
	"github.com/seed421102f4/httpretry/internal/fielderr"
	"github.com/seed421102f4/httpretry/internal/hostpattern"
	"github.com/seed421102f4/httpretry/internal/hosttable"
)

// Config configures a [RetryTransport]. Its zero value is valid.
type Config struct {
	_ [0]func() // no unkeyed literals, no comparison

	// Base sends the attempts. It must not modify a request or its URL, which
	// all attempts share. A Base with a method Unwrap() http.RoundTripper must
	// not send a request twice, and may get requests without GetBody. Nil means
	// a new pooled transport, so share a RetryTransport rather than making one
	// for each request.
	Base http.RoundTripper

	// Policy applies to hosts that no key of Hosts matches.
	Policy Policy

	// Hosts contains policies for particular hosts. A key is a host
	// ("api.example.com", any port), a host and port ("[::1]:8080"), or a
	// wildcard for one or more labels ("*.example.com"). The most specific key
	// wins: one with a port over one without, an exact one over a wildcard, a
	// longer wildcard over a shorter one. Policies do not inherit: a zero field
	// means its default, not the value in Policy.
	//
	// Keys are compared with Request.URL.Host. Case and a trailing dot are
	// ignored. Internationalized names are compared as they are, so use the
	// xn-- form if requests do.
	Hosts map[string]Policy

	// Observe is called after each attempt, and when a wait or a cool-down ends
	// a request. The last Event of a request is the only one whose Reason is
	// not ReasonNone. A request that fails for another reason before its first
	// attempt has no Event. A body that breaks off has further Events if it can
	// be resumed (see Policy.Resume). Observe may be called concurrently. A
	// slow Observe delays the request.
	Observe func(context.Context, Event)

	// AttemptHeader is the name of a header that each retry has, with the
	// number of attempts before it. It is for services that use [Middleware].
	// It must not be one for idempotency keys or one that HTTP defines. ""
	// means "Retry-Attempt"; "-" means none.
	AttemptHeader string
}

// RetryTransport is an [http.RoundTripper] that retries requests. Its zero
// value works as New(Config{}) does. It is safe for concurrent use and must not
// be copied after first use.
type RetryTransport struct {
	settings atomic.Pointer[settings]
}

// settings is a Config that was checked, with its defaults filled in, and the
// state of a RetryTransport.
type settings struct {
	created       time.Time
	base          http.RoundTripper
	transport     *http.Transport // what base wraps in the end, nil if that is not known
	nested        bool            // base contains another RetryTransport
	policy        *resolvedPolicy
	patterns      *hostpattern.Set[*resolvedPolicy]
	budget        Budget // of policies that have none
	observe       func(context.Context, Event)
	attemptHeader string // "": none

	// Hosts by the spelling in Request.URL.Host, for each scheme.
	httpHosts, httpsHosts hosttable.Table[host]
	cooldowns             cooldown.Table
}

// host is what lookUp returns for one spelling of a host.
type host struct {
	policy *resolvedPolicy
	key    string // of the host's state: call.host
	window hostWindow
}

// New returns a RetryTransport for a shallow copy of cfg, or an error with one
// line for each invalid field: its path, its value and what is allowed.
func New(cfg Config) (*RetryTransport, error) {
	s, err := newSettings(cfg)
	if err != nil {
		return nil, err
	}
	t := new(RetryTransport)
	t.settings.Store(s)
	return t, nil
}

// newSettings checks cfg and fills in the defaults.
func newSettings(cfg Config) (*settings, error) {
	s := &settings{
		created: time.Now(),
		base:    cfg.Base,
		policy:  cfg.Policy.resolve(),
		budget:  new(HostBudget),
		observe: cfg.Observe,
	}
	var problems []error
	switch {
	case s.base == nil:
		s.base = cleanhttp.DefaultPooledTransport()
	case isNil(s.base):
		problems = append(problems, fmt.Errorf("Config.Base: a nil %T: want no value for the default, or a usable transport", s.base))
	}
	// What Base contains decides whether a first attempt needs a copy.
	s.lookThroughBase()

	// All problems are collected, so that they can be fixed at once.
	if err := cfg.Policy.problems("Config.Policy"); err != nil {
		problems = append(problems, err)
	}
	patterns, bad := hostPolicies(cfg.Hosts)
	s.patterns, problems = patterns, append(problems, bad...)
	header, err := cfg.attemptHeader()
	if err != nil {
		problems = append(problems, fielderr.At("Config.AttemptHeader", err))
	}
	s.attemptHeader = header
	return s, fielderr.At("httpretry", errors.Join(problems...))
}

// attemptHeader returns the canonical name of the attempt header, or "" if
// retries are to have none.
func (cfg *Config) attemptHeader() (string, error) {
	if cfg.AttemptHeader == "-" {
		return "", nil
	}
	name := cmp.Or(cfg.AttemptHeader, defaultAttemptHeader)
	if err := checkHeaderName(name); err != nil {
		return "", err
	}
	canonical := http.CanonicalHeaderKey(name)
	// A request that may be retried only because it was never sent must not
	// look as if it could be sent any number of times.
	retry := http.Header{canonical: {"1"}}
	forKeys := isKeyed(retry, cfg.Policy.resolve().IdempotencyHeader)
	for _, p := range cfg.Hosts {
		forKeys = forKeys || isKeyed(retry, p.resolve().IdempotencyHeader)
	}
	if forKeys {
		return "", fmt.Errorf("%q: want a header that is not for idempotency keys", name)
	}
	return canonical, nil
}

// hostPolicies prepares the policies of hosts, and lists what is wrong with
// them in the order of their patterns.
func hostPolicies(m map[string]Policy) (*hostpattern.Set[*resolvedPolicy], []error) {
	resolved := make(map[string]*resolvedPolicy, len(m))
	for pattern, p := range m {
		resolved[pattern] = p.resolve()
	}
	patterns, bad := hostpattern.Parse(resolved)
	byPattern := make(map[string]string, len(bad))
	for _, b := range bad {
		byPattern[b.Pattern] = b.Text
	}
	var problems []error
	// The order of a map is random, and that of errors must not be.
	for _, pattern := range slices.Sorted(maps.Keys(m)) {
		path := fmt.Sprintf("Config.Hosts[%q]", pattern)
		if problem := byPattern[pattern]; problem != "" {
			problems = append(problems, fmt.Errorf("%s: %s", path, problem))
		}
		if err := m[pattern].problems(path); err != nil {
			problems = append(problems, err)
		}
	}
	return patterns, problems
}

// lookThroughBase notes what s.base contains, as far as transports have an
// Unwrap method.
func (s *settings) lookThroughBase() {
	rt := s.base
	for range 100 { // New must return even if transports wrap each other in a cycle
		switch t := rt.(type) {
		case *RetryTransport:
			s.nested = true
			return
		case *http.Transport:
			s.transport = t
			return
		case interface{ Unwrap() http.RoundTripper }:
			rt = t.Unwrap()
		default:
			return
		}
	}
}

// hidesGetBody reports whether only net/http's Transport would use the GetBody
// of a request to u, and may resend the request over HTTP/2 with it.
// getBodyFor decides which attempts have no GetBody.
func (s *settings) hidesGetBody(u *url.URL) bool {
	return s.transport != nil && u != nil && (u.Scheme == "https" || s.unencryptedHTTP2())
}

// isNetHTTP reports whether Base is net/http's Transport itself, with no layer
// that a request to u is known to pass.
func (s *settings) isNetHTTP(u *url.URL) bool {
	_, ok := s.base.(*http.Transport)
	return ok && isOfNetHTTP(u)
}

// isOfNetHTTP reports whether net/http's Transport implements the scheme of u.
// Other schemes are those of protocols that were registered with it
// (http.Transport.RegisterProtocol), which are layers.
func isOfNetHTTP(u *url.URL) bool {
	return u != nil && (u.Scheme == "http" || u.Scheme == "https")
}

// hasOtherProtocols reports whether Base may send requests by a protocol that
// TLS has negotiated and that does not call the hooks of httptrace. It is asked
// after an attempt: Clone prepares HTTP/2 as the first RoundTrip does.
func (s *settings) hasOtherProtocols() bool {
	if s.transport == nil {
		return false
	}
	for name := range s.transport.Clone().TLSNextProto {
		if name != "h2" && name != "unencrypted_http2" {
			return true
		}
	}
	return false
}

// unencryptedHTTP2 reports whether Base is known to speak HTTP/2 without TLS.
func (s *settings) unencryptedHTTP2() bool {
	return s.transport != nil && s.transport.Protocols != nil && s.transport.Protocols.UnencryptedHTTP2()
}

// config returns the settings, made on first use for a zero RetryTransport.
func (t *RetryTransport) config() *settings {
	if s := t.settings.Load(); s != nil {
		return s
	}
	s, err := newSettings(Config{})
	if err != nil {
		panic(err) // the zero Config is valid, which a test shows
	}
	if !t.settings.CompareAndSwap(nil, s) {
		return t.settings.Load()
	}
	return s
}

// lookUp returns what is known of a URL's host. Each spelling of a host is
// resolved once.
func (s *settings) lookUp(u *url.URL) *host {
	var hosts *hosttable.Table[host]
	switch {
	// Long names share an entry, so they are not kept as spellings.
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
	return hosts.Get(u.Host, func(h *host) { s.resolve(h, u) })
}

// resolve finds the policy and the key for the host of u, which may be nil.
func (s *settings) resolve(h *host, u *url.URL) {
	h.policy = s.policy
	if u == nil {
		return
	}
	if policy, ok := s.patterns.Match(u); ok {
		h.policy = policy
	}
	h.key = hostpattern.Canonical(u)
}

// maxHeaderBytes returns the limit of Base for response headers, or 0.
func (s *settings) maxHeaderBytes() int64 {
	if s.transport == nil {
		return 0
	}
	return s.transport.MaxResponseHeaderBytes
}

// CloseIdleConnections calls Base's method of that name, if there is one.
func (t *RetryTransport) CloseIdleConnections() {
	type closer interface{ CloseIdleConnections() }
	if c, ok := t.config().base.(closer); ok {
		c.CloseIdleConnections()
	}
}

// Unwrap returns Base, or the transport that is used if Base is nil.
func (t *RetryTransport) Unwrap() http.RoundTripper { return t.config().base }

// RoundTrip sends req, and retries it as its policy determines. It returns
// either a response or an error. It does not modify req, and closes its body.
//
// The first attempt passes req itself to Base and returns Base's own response,
// unless it needs a context, a header or a body of its own, such as for an
// AttemptTimeout. Then it passes a copy.
func (t *RetryTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	c := call{settings: t.config(), req: req}
	defer c.cleanUpAfterPanic()
	if err := c.begin(); err != nil {
		return c.failUnsent(err)
	}
	for {
		resp, err := c.send()
		outcome := c.outcome(resp, err)
		// The cool-down comes before the decision, which has to respect it.
		c.noteCooldown(resp, outcome)
		wait, reason := c.decide(resp, err, outcome)
		c.report(resp, err, wait, reason)
		if reason != ReasonNone {
			return c.finish(resp, err, wait, reason)
		}
		// Another attempt is to follow.
		c.discard(resp)
		// A request that ends while it waits has a second Event.
		if reason, err = c.pause(wait, err); reason != ReasonNone {
			c.report(nil, err, 0, reason)
			return c.finish(nil, err, 0, reason)
		}
	}
}

// decide returns the wait before the next attempt, or the Reason why none
// follows. The package documentation shows the order of the checks.
func (c *call) decide(resp *http.Response, err error, outcome Outcome) (time.Duration, Reason) {
	switch { // pure checks, cheapest first
	case outcome == Final && err == nil:
		return 0, finalReason(resp)
	// An attempt that failed because its caller canceled it is canceled,
	// whatever its error.
	case c.callerCanceled():
		return 0, ReasonCanceled
	case outcome == Final:
		return 0, ReasonPermanent
	case c.countedAttempts() >= c.maxAttempts():
		return 0, ReasonAttempts
	case c.callerRetries(outcome):
		return 0, ReasonCallerRetries
	case !c.idempotent && outcome != Unprocessed:
		return 0, ReasonNotIdempotent
	}

	// From here on, there are actions that finish takes back. The body is
	// reserved, so that an attempt that is still sending it cannot read more
	// than is kept.
	if !c.body.Reserve() {
		return 0, ReasonNotReplayable
	}
	now := time.Now()
	asked, spread, tooLong := c.acceptWait(resp, now)
	backoff := c.nextBackoff(resp)
	wait, left := max(asked, backoff), c.timeLeft(now)
	switch {
	case tooLong != ReasonNone:
		return 0, tooLong
	case wait > left:
		return 0, ReasonDeadline
	}
	// The budget is charged when nothing else prevents the retry. GetBody comes
	// last, because it may seek in the body that the attempt is still sending.
	if !c.chargeBudget(resp) {
		return c.policy.budgetWait(backoff), ReasonBudget
	}
	if !c.rewindBody(err, outcome) {
		return 0, ReasonNotReplayable
	}
	// A 421 may be retried on another connection (RFC 9110 section 15.5.20).
	c.retried421 = c.retried421 || statusIs(resp, http.StatusMisdirectedRequest)
	// Clients that got the same wait must not return together.
	return wait + uniform(min(spread, left-wait)), ReasonNone
}
