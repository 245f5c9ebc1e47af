// Package httpretry sends an HTTP request again when, and only when, that is
// safe, useful and welcome.
//
// [RetryTransport] is an [http.RoundTripper]: set it as the Transport of an
// [http.Client], or hand that client to an SDK, and everything that worked
// before still works.
//
//	transport, err := httpretry.New(httpretry.Config{})
//	client := &http.Client{Transport: transport}
//
// # What happens to a request
//
// After each attempt the questions below are asked in this order. The first
// that ends the request gives its [Reason], and events, errors and logs use
// that name. A request that succeeds at once is asked none but the first; an
// attempt that failed because the caller left is canceled, whatever its error.
//
//	attempt
//	  │ transient?              no → ReasonFinal, ReasonServerRefused
//	  │ caller still there?     no → ReasonCanceled
//	  │ attempts left?          no → ReasonAttempts
//	  │ nobody above repeats?   no → ReasonChain
//	  │ safe to repeat?         no → ReasonNotIdempotent
//	  │ body replayable?        no → ReasonNotReplayable
//	  │ wait acceptable?        no → ReasonRetryAfter
//	  │ before the deadline?    no → ReasonDeadline
//	  │ budget?                 no → ReasonBudget
//	  ▼
//	wait, holding no connection → next attempt
//	                              └ while the host cools down: ReasonCooldown, if that is too long
//
// When retrying ends on a response, that response is returned as it came, with
// a nil error and its body unread, whatever its status. When it ends on an
// error, that error is returned: as it came after a single attempt, inside an
// [*Error] after several, or if it was this package that ended the attempt. The
// error of a canceled request satisfies errors.Is for the context's error and
// for its cause.
//
// # At most once
//
// A request that is not safe to repeat (see [Idempotent]) is sent again only
// if the first copy never left, or the server says that it has not acted on it
// ([Unprocessed]). That holds for net/http's own hidden re-sends too: over
// HTTP/2 an [http.Transport] repeats any request, as often as the server resets
// or refuses it (Go issue 52459). Such a request is therefore sent as a copy
// without GetBody whose connections are watched, and a second sending is
// stopped before it is written. The price, where a server announced the end of
// a connection just as a request without a body went out, is an error instead
// of a silent repeat.
//
// A request that is safe to repeat and goes to Base as it is, as on its first
// attempt most do, is left to net/http: that costs nothing, and its re-sends are
// bounded by the request's context alone. Where an attempt is a copy (every
// retry, or with an AttemptTimeout, a made key, or a body that is read through
// this package) they are bounded to ten.
//
// # Retries that add up
//
// Three services that call one another with three attempts each send the last
// one 27 requests for one that fails. [Middleware] around each service's handler
// makes that 3: services tell those below that a request is a retry, which is
// then sent on once, and those above that starting over is of no use.
//
//	edge ──▶ shop ──▶ bank ──▶▶▶ ledger: 503
//	     ◀── 503  ◀── 503, X-Should-Retry: false
//
// Within a process, a RetryTransport that has another one below it does the
// repeating alone, if the layers between them keep a request's method and path.
// The one below is known from the first attempt on if those layers have an Unwrap
// method like [RetryTransport.Unwrap], so that there are as many attempts as the
// upper one makes; without, the lower one repeats within the upper one's first
// attempt, too, and three attempts of each make 5, not 9. What the upper one would
// never repeat, by its MaxAttempts, Classify or Idempotent, or since it has not
// kept the body, is left to the lower one.
//
// # Not now
//
// A host that answers 429 or 503 with a wait is heard by all requests to it: their
// retries do not begin before that time is over. First attempts are sent, wait
// or fail at once, as [Policy.Cooldown] says. A success ends it early, and what
// has waited comes back spread out. See [Cooldown] for a picture.
//
// # No hot loop
//
// When a budget refuses retries, requests to a dead host fail at once, and a
// worker that takes the next job after each failure would send them as fast as
// the host fails. With [Policy.BudgetBackoff] the failure is handed back after the
// wait that the retry would have had, without the retry.
//
//	failure ── budget? no ─────────────▶ handed back            by default
//	failure ── budget? no ── backoff ──▶ handed back            BudgetBackoff
//
// # What is not done
//
// Redirects, cookies and credentials are the client's: each hop of a redirect
// is a request of its own here, and cookies set by a response that was dropped
// are lost. A request that is signed above this transport is repeated with the
// same signature; put the signer below it, as Base, to sign each attempt.
package httpretry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-cleanhttp"
)

// DefaultAttemptHeader is the header that tells a server which retry it sees.
const DefaultAttemptHeader = "Retry-Attempt"

// Config says how a [RetryTransport] works. Its zero value is valid: three
// attempts, jittered waits, a retry budget per host, and a transport of its own.
type Config struct {
	// Base sends the attempts. Nil means a pooled transport that nobody else
	// uses. It must keep the contract of http.RoundTripper.
	Base http.RoundTripper

	// Policy applies to hosts that no key of Hosts matches.
	Policy Policy

	// Hosts has the policies of particular hosts. A key is a host
	// ("api.example.com", any port), a host and port ("api.example.com:8443",
	// "[::1]:8080"), or a wildcard for one or more labels ("*.example.com").
	// Case and a trailing dot do not count, and internationalised names are
	// taken in either form. The key is compared with Request.URL.Host, and the
	// most specific wins: one with a port over one without, an exact one over
	// a wildcard, a longer wildcard over a shorter.
	//
	// Policies do not inherit: a zero field of a policy here means that
	// field's default, not the value in Policy. Start from a copy of yours.
	Hosts map[string]Policy

	// Observe is called after each attempt with what was decided, and once
	// more for a request that ends while it waits, because it is canceled or
	// its host cools down for too long. So every request that was sent, or that
	// waited to be, ends with one Event that has a Reason: count requests by
	// those, and attempts by their Attempt, which is 0 if none was made. It
	// runs on the request's goroutine, so it delays the request and may run
	// concurrently with itself. Nil means none.
	Observe func(context.Context, Event)

	// AttemptHeader names the header that tells the server which retry this
	// is. Its value is the number of attempts before this one: the header is
	// absent on the first and "1" on the first retry. It counts on from that of
	// the inbound request that this one is sent for: see Middleware. "" means
	// DefaultAttemptHeader, "-" means none.
	AttemptHeader string

	_ [0]func() // no unkeyed literals, no comparison
}

// RetryTransport is an [http.RoundTripper] that repeats requests. Its zero
// value is ready and works as New(Config{}) does. It is safe for concurrent
// use and must not be copied after first use.
type RetryTransport struct {
	settings atomic.Pointer[settings]
}

// settings is a Config that was checked, with its defaults filled in.
type settings struct {
	base    http.RoundTripper
	policy  *policy
	hosts   *hostPatterns[*policy]
	budget  Budget // of policies that have none
	observe func(context.Context, Event)
	header  string // "": none
	nested  bool   // base ends in another RetryTransport

	cooldowns cooldowns
}

// New returns a RetryTransport that works as cfg says, or an error that names
// every field that is out of range, one line each, with its path, its value
// and what is allowed. cfg is copied; what it points to is not.
func New(cfg Config) (*RetryTransport, error) {
	s, err := newSettings(cfg)
	if err != nil {
		return nil, err
	}
	t := new(RetryTransport)
	t.settings.Store(s)
	return t, nil
}

func newSettings(cfg Config) (*settings, error) {
	s := &settings{
		base:    cfg.Base,
		policy:  cfg.Policy.resolve(),
		budget:  new(HostBudget),
		observe: cfg.Observe,
	}
	if s.base == nil {
		s.base = cleanhttp.DefaultPooledTransport()
	}
	s.nested = transportBelow(s.base)

	problems := cfg.Policy.problems("Config.Policy")
	hosts, bad := hostPolicies(cfg.Hosts)
	s.hosts, problems = hosts, append(problems, bad...)
	switch cfg.AttemptHeader {
	case "":
		s.header = DefaultAttemptHeader
	case "-": // none
	default:
		s.header = http.CanonicalHeaderKey(cfg.AttemptHeader)
		if err := checkHeaderName(cfg.AttemptHeader); err != nil {
			problems = append(problems, fmt.Errorf("Config.AttemptHeader: %w", err))
		}
	}
	return s, joined(problems)
}

// hostPolicies prepares the policies of hosts, and lists what is wrong with
// them in the order of their patterns.
func hostPolicies(m map[string]Policy) (*hostPatterns[*policy], []error) {
	resolved := make(map[string]*policy, len(m))
	for pattern, p := range m {
		resolved[pattern] = p.resolve()
	}
	hosts, bad := parseHosts(resolved)
	byPattern := make(map[string]string, len(bad))
	for _, b := range bad {
		byPattern[b.pattern] = b.problem
	}
	var problems []error
	for _, pattern := range slices.Sorted(maps.Keys(m)) {
		path := fmt.Sprintf("Config.Hosts[%q]", pattern)
		if problem := byPattern[pattern]; problem != "" {
			problems = append(problems, fmt.Errorf("%s: %s", path, problem))
		}
		problems = append(problems, m[pattern].problems(path)...)
	}
	return hosts, problems
}

// joined makes one error of problems, each on a line of its own that begins
// with the package's name.
func joined(problems []error) error {
	lines := make([]error, len(problems))
	for i, p := range problems {
		lines[i] = fmt.Errorf("httpretry: %w", p)
	}
	return errors.Join(lines...)
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

// CloseIdleConnections closes the connections of Base that are not in use, if
// Base can. [http.Client.CloseIdleConnections] calls it.
func (t *RetryTransport) CloseIdleConnections() {
	type closer interface{ CloseIdleConnections() }
	if c, ok := t.config().base.(closer); ok {
		c.CloseIdleConnections()
	}
}

// Unwrap returns Base, or the transport that stands for a nil one: for code
// that looks through transports for what lies below them.
func (t *RetryTransport) Unwrap() http.RoundTripper { return t.config().base }

// RoundTrip sends req, and sends it again as the policy for its host or its
// context says. It returns either a response or an error. It does not modify
// req, and closes its body on every path.
//
// A request that needs one attempt and whose repetition is safe goes to Base
// as it is, and what Base returns is returned as it is: unless its body is not
// one in memory for which http.NewRequest sets GetBody, or the policy has an
// AttemptTimeout, or a key was made for it.
//
// Why a request was not repeated does not show in a response, nor in the error
// of a single attempt: Config.Observe is told.
func (t *RetryTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	c := call{settings: t.config(), req: req}
	defer c.abandon()
	if err := c.begin(); err != nil {
		return c.refuse(err)
	}
	for {
		resp, err := c.send()
		outcome := c.classify(resp, err)
		c.heed(resp, outcome)
		wait, reason := c.decide(resp, err, outcome)
		c.report(resp, err, wait, reason)
		if reason != 0 {
			return c.finish(resp, err, wait, reason)
		}
		c.drop(resp)
		if reason, err = c.pause(wait, err); reason != 0 {
			c.report(nil, err, 0, reason)
			return c.finish(nil, err, 0, reason)
		}
	}
}

// decide says that another attempt follows, and after what wait, or for what
// reason none does. The package documentation shows the order.
func (c *call) decide(resp *http.Response, err error, outcome Outcome) (time.Duration, Reason) {
	switch {
	case outcome == Final && err == nil:
		return 0, finalReason(resp)
	case c.gone():
		return 0, ReasonCanceled
	case outcome == Final:
		return 0, ReasonFinal
	case c.attempts >= c.policy.MaxAttempts:
		return 0, ReasonAttempts
	case c.retriedAbove(resp, err, outcome):
		return 0, ReasonChain
	case !c.safe && outcome != Unprocessed:
		return 0, ReasonNotIdempotent
	case !c.body.hold():
		return 0, ReasonNotReplayable
	}

	now := time.Now()
	asked, spread := c.askedWait(resp, now)
	backoff := c.nextBackoff(resp)
	wait, left := max(asked, backoff), c.left(now)
	switch {
	case asked > c.policy.MaxRetryAfter:
		return 0, ReasonRetryAfter
	case wait > left:
		return 0, ReasonDeadline
	case !c.budget().Withdraw(c.req.Context(), c.host):
		return c.policy.slowdown(backoff), ReasonBudget
	}
	c.misdirect = c.misdirect || statusIs(resp, http.StatusMisdirectedRequest)
	return wait + uniform(min(spread, left-wait)), 0
}
