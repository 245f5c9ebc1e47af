package httpretry

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"time"

	"github.com/hashicorp/go-cleanhttp"
	"github.com/seed421102f4/httpretry/internal/cooldown"
	"github.com/seed421102f4/httpretry/internal/fielderr"
	"github.com/seed421102f4/httpretry/internal/origintable"
	"github.com/seed421102f4/httpretry/internal/wire"
)

// Config configures a [RetryTransport]. Its zero value is valid.
type Config struct {
	_ [0]func() // no unkeyed literals, no comparison

	// Base sends the attempts. It must not modify a request or its URL, which all
	// attempts share. It must send in a context with the values of the request's,
	// such as that of context.WithoutCancel. Otherwise net/http may send a POST
	// twice. A Base with an Unwrap() http.RoundTripper method (see [Through])
	// promises to send each request at most once, and must work without GetBody.
	// Nil means a new connection pool with GOMAXPROCS+1 idle connections for each
	// host, so create one RetryTransport and share it.
	Base http.RoundTripper

	Policy Policy // for requests that no key of Policies matches

	// Policies contains policies for particular requests, which inherit nothing
	// from Policy. A key is a host ("api.example.com", any port), a host and port
	// ("[::1]:8080"), or a wildcard for one or more labels ("*.example.com", not
	// example.com). It may have a method and a path, as in [http.ServeMux] ("POST
	// api.example.com/exports/{id}"). The most specific host wins: one with a port
	// before one without, an exact one before a wildcard, a longer wildcard before
	// a shorter one. Among keys of one host, the one wins that ServeMux would
	// choose, without redirects. At most 1,000 of them may have a path. Case of
	// the host and a trailing dot are ignored. A name outside ASCII does not match
	// its xn-- form, nor the reverse.
	Policies map[string]Policy

	// Observe is called after each attempt, and when a wait or a cool-down ends a
	// request. It may be called concurrently. A slow Observe delays the request.
	// The last Event before RoundTrip returns has a Reason other than ReasonNone,
	// and no earlier one has. A request that is never sent has an Event if its
	// policy, a cool-down or a wait for one ended it. A body that breaks off later
	// has further Events (see Policy.Resume).
	Observe func(context.Context, Event)

	// AttemptHeader is the name of a header that each retry has, with the number
	// of attempts before it, for [Middleware]. In the context of an inbound retry,
	// the attempts before that count, too. It must not be one for idempotency keys
	// or one that HTTP defines. "" means "Retry-Attempt"; "-" means none.
	AttemptHeader string
}

// engine is the part of a RetryTransport that SetPolicies keeps. Its settings
// are those of a Config that was checked, with their defaults.
type engine struct {
	// Set by New, and only read from then on.
	created       time.Time
	base          base
	budget        Budget // of policies that have none
	observe       func(context.Context, Event)
	attemptHeader string // "": none

	// The state of the hosts, whatever their policies are.
	cooldowns cooldown.Table
	origins   origintable.Table
}

// base is Config.Base and its known properties.
type base struct {
	http.RoundTripper
	transport *http.Transport // the innermost transport, nil if it is not known
	http3     bool            // the innermost transport is quic-go's http3.Transport
	nested    bool            // it contains another RetryTransport
}

// New returns a RetryTransport for a shallow copy of cfg, or an error with one
// line for each invalid field: its path, its value and the allowed values.
func New(cfg Config) (*RetryTransport, error) {
	set, err := cfg.policySet()
	if err != nil {
		return nil, err
	}
	t := new(RetryTransport)
	t.policies.Store(set)
	return t, nil
}

// policySet checks cfg and fills in the defaults. It returns the policies, with a
// new engine.
func (cfg Config) policySet() (*policySet, error) {
	e := &engine{
		created: time.Now(),
		base:    base{RoundTripper: cfg.Base},
		budget:  new(HostBudget),
		observe: cfg.Observe,
	}
	var problems []error
	switch {
	case e.base.RoundTripper == nil:
		e.base.RoundTripper = cleanhttp.DefaultPooledTransport()
	case isNil(e.base.RoundTripper):
		problems = append(problems, fielderr.At("Config.Base", fielderr.New(
			fmt.Sprintf("a nil %T", cfg.Base), "no value for the default, or a usable transport")))
	}
	// The transports in Base determine whether a first attempt needs a copy.
	e.base.lookThrough()

	// All problems are collected, so that they can be fixed at once.
	set, err := newPolicySet(e, cfg.Policy, cfg.Policies, "Config.Policy", "Config.Policies")
	problems = append(problems, err)
	// If the attempt header is also the header for keys of a policy, that is
	// reported once. So newPolicySet is called before the engine has it.
	header, err := cfg.attemptHeader()
	problems = append(problems, fielderr.At("Config.AttemptHeader", err))
	e.attemptHeader = header
	return set, fielderr.At("httpretry", fielderr.Join(problems...))
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
	// If the attempt header were a header for keys, a retry of a request
	// without a key would look as if it had one.
	retry := http.Header{canonical: {"1"}}
	forKeys := hasKey(retry, cfg.Policy.withDefaults().IdempotencyHeader)
	for _, p := range cfg.Policies {
		forKeys = forKeys || hasKey(retry, p.withDefaults().IdempotencyHeader)
	}
	if forKeys {
		return "", fielderr.New(strconv.Quote(name), "a header that is not for idempotency keys")
	}
	return canonical, nil
}

// lookThrough follows the Unwrap methods of the layers in b, and records the
// transport that it finds.
func (b *base) lookThrough() {
	rt := b.RoundTripper
	for range 100 { // New must return even if transports wrap each other in a cycle
		switch t := rt.(type) {
		case *RetryTransport:
			b.nested = true
			return
		case *http.Transport:
			b.transport = t
			return
		case interface{ Unwrap() http.RoundTripper }:
			rt = t.Unwrap()
		default:
			b.http3 = reflect.TypeOf(rt) != nil && reflect.TypeOf(rt).String() == "*http3.Transport"
			return
		}
	}
}

// hostPort returns the address of u as net/http calls GetConn with, unless there
// is a proxy.
func hostPort(u *url.URL) string {
	port := u.Port()
	switch {
	case port == "" && u.Scheme == "https":
		port = "443"
	case port == "":
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// Through returns layer with an Unwrap method that returns base, for
// [Config.Base]. It declares that layer sends each request at most once, by
// base, as a tracer or a client of OAuth does. A request that is not idempotent
// is then sent again after a GOAWAY that excludes it. With any other layer, it
// may fail. Through panics if an argument is nil.
func Through(layer, base http.RoundTripper) http.RoundTripper {
	if layer == nil || isNil(layer) || base == nil || isNil(base) {
		panic(fmt.Sprintf("httpretry: Through: a %T and a %T: want two transports that are not nil",
			layer, base))
	}
	return &through{layer, base}
}

type through struct{ layer, base http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t *through) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.layer.RoundTrip(req)
}

// Unwrap returns the base, for lookThrough.
func (t *through) Unwrap() http.RoundTripper { return t.base }

// CloseIdleConnections closes those of both, because few layers forward it.
func (t *through) CloseIdleConnections() {
	closeIdleConnections(t.layer)
	closeIdleConnections(t.base)
}

// closeIdleConnections calls rt's method of that name, if there is one.
func closeIdleConnections(rt http.RoundTripper) {
	if c, ok := rt.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// ownError returns err, which RoundTrip has returned for req, unless it may be the
// cause with which another request was canceled. If two requests share a connection
// (wire.Facts.Shared) and one is canceled, both get its cause, which net/http does
// not wrap (Go issue 41600). That must not decide about the other, which the server
// may have processed. Without a trace, it is not known whether req has shared one,
// and without AtMostOnce, whether net/http has opened another one since.
func (b *base) ownError(req *http.Request, trace *wire.Trace, err error) error {
	switch {
	case err == nil, b.transport == nil, cancelSignal(req).IsSet():
	case trace != nil && !trace.Facts().Shared:
	// It is that of GetBody. An attempt that is stopped with it gives no connection
	// away.
	case err == wire.ErrResent && trace != nil && !trace.Facts().Answered:
	// A layer may have canceled a context of its own.
	case isCause(err), b.isNetHTTP(req.URL) && isCancel(req, trace, err):
		return errOtherCanceled
	}
	return err
}

// isCancel reports whether err may be the cause with which another request was
// canceled. A dial may have had a deadline of its own. http.Client sets Cancel for
// its Timeout, most likely for both requests. Who calls the deprecated
// Transport.CancelRequest is expected not to set it.
func isCancel(req *http.Request, trace *wire.Trace, err error) bool {
	return err == context.Canceled || trace.Facts().Answered && err == context.DeadlineExceeded ||
		cancelChannel(req) != nil && err.Error() == canceledText
}

// isKnown reports whether the innermost transport is known, and no layer above it
// sends requests by another one.
func (b *base) isKnown() bool { return b.transport != nil || b.http3 }

// maySpeakHTTP2 reports whether net/http's Transport may send a request to u over
// HTTP/2.
func (b *base) maySpeakHTTP2(u *url.URL) bool {
	return u != nil && (u.Scheme == "https" || b.unencryptedHTTP2())
}

// isNetHTTP reports whether Base is net/http's Transport itself, with no layer
// that a request to u is known to pass.
func (b *base) isNetHTTP(u *url.URL) bool {
	_, ok := b.RoundTripper.(*http.Transport)
	return ok && isOfNetHTTP(u)
}

// isOfNetHTTP reports whether net/http's Transport implements the scheme of u.
// Other schemes are those of protocols that were registered with it
// (http.Transport.RegisterProtocol), which are layers.
func isOfNetHTTP(u *url.URL) bool {
	return u != nil && (u.Scheme == "http" || u.Scheme == "https")
}

// hasOtherProtocols reports whether Base may send requests by a protocol that
// TLS has negotiated and that does not call the hooks of httptrace. It is
// called after an attempt, because Clone prepares HTTP/2 as the first RoundTrip
// does.
func (b *base) hasOtherProtocols() bool {
	if b.transport == nil {
		return false
	}
	for name := range b.transport.Clone().TLSNextProto {
		if name != "h2" && name != "unencrypted_http2" {
			return true
		}
	}
	return false
}

// unencryptedHTTP2 reports whether Base is known to speak HTTP/2 without TLS. With
// both, net/http prefers HTTP/1 (http.Protocols).
func (b *base) unencryptedHTTP2() bool {
	return b.transport != nil && b.transport.Protocols != nil &&
		b.transport.Protocols.UnencryptedHTTP2() && !b.transport.Protocols.HTTP1()
}

// maxHeaderBytes returns the limit of Base for response headers, or 0.
func (b *base) maxHeaderBytes() int64 {
	if b.transport == nil {
		return 0
	}
	return b.transport.MaxResponseHeaderBytes
}

// budgetOf returns the budget of requests that follow p.
func (e *engine) budgetOf(p *resolvedPolicy) Budget {
	if p.Budget == nil {
		return e.budget
	}
	return p.Budget
}
