package httpretry_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/strategies"
)

// chainPolicy is a policy of n attempts without waits.
func chainPolicy(n int) httpretry.Policy {
	return httpretry.Policy{MaxAttempts: n, Backoff: strategies.Constant{}, Budget: httpretry.Unlimited{}}
}

// chainKind is what chains are made of.
type chainKind struct {
	proto   string
	method  string
	header  string // AttemptHeader
	proxies bool   // every other service is a ReverseProxy
	refuses bool   // nothing listens at the bottom, so that nothing is ever processed
}

// chain is a row of services, each of which calls the next; the last one fails.
type chain struct {
	chainKind
	layers     int  // that send requests, of three attempts each
	middleware bool // is around each service
	stripped   bool // somebody between the services takes X-Should-Retry away

	mu     sync.Mutex
	bottom []string // attempt headers of what came there, or one for each refused connection
}

// run sends one request from the edge, and returns what came to the bottom.
func (c *chain) run(t *testing.T) []string {
	base, target := c.ledger(t)
	for i := range c.layers - 1 {
		transport := c.transport(t, base)
		handler := chainForward(transport, target)
		if c.proxies && i%2 == 1 {
			handler = chainProxy(transport, target)
		}
		if c.middleware {
			handler = chainUnwrapped(transport).Middleware(handler)
		}
		next, srv := serve(t, c.proto, handler.ServeHTTP)
		base, target = next, srv.URL
	}
	req := request(t, c.method, target, "payload")
	req.Header.Set("Idempotency-Key", "key")
	resp, err := c.transport(t, base).RoundTrip(req)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, resp.StatusCode, 502)
	assert.Equal(t, c.middleware && !c.stripped, resp.Header.Get("X-Should-Retry") == "false")
	finish(t, resp)
	return c.bottom
}

// ledger is the bottom.
func (c *chain) ledger(t *testing.T) (base http.RoundTripper, target string) {
	t.Helper()
	came := func(header string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.bottom = append(c.bottom, header)
	}
	if c.refuses {
		base := faults.Base(t, nil)
		dial := base.DialContext
		base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			came("")
			return dial(ctx, network, addr)
		}
		return base, "http://" + faults.Refused(t)
	}
	next, srv := serve(t, c.proto, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, "payload", string(body))
		assert.Equal(t, "key", r.Header.Get("Idempotency-Key"))
		came(r.Header.Get(c.attemptHeader()))
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	return next, srv.URL
}

func (c *chain) attemptHeader() string {
	if c.header != "" {
		return c.header
	}
	return httpretry.DefaultAttemptHeader
}

func (c *chain) transport(t *testing.T, base http.RoundTripper) http.RoundTripper {
	t.Helper()
	between := baseFunc(func(req *http.Request) (*http.Response, error) {
		resp, err := base.RoundTrip(req)
		if err == nil && c.stripped {
			resp.Header.Del("X-Should-Retry")
		}
		return resp, err
	})
	return contract.New(t, httpretry.Config{Base: between, Policy: chainPolicy(3), AttemptHeader: c.header})
}

// chainUnwrapped returns the transport that the contract checks.
func chainUnwrapped(rt http.RoundTripper) *httpretry.RetryTransport {
	return rt.(interface{ Unwrap() http.RoundTripper }).Unwrap().(*httpretry.RetryTransport)
}

// chainForward sends what comes in on to target, as most services do that call
// another, and answers with the status it gets.
func chainForward(rt http.RoundTripper, target string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, target, bytes.NewReader(body))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		req.Header.Set("Idempotency-Key", r.Header.Get("Idempotency-Key"))
		resp, err := rt.RoundTrip(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	})
}

func chainProxy(rt http.RoundTripper, target string) http.Handler {
	to, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	return &httputil.ReverseProxy{
		Transport: rt,
		ErrorLog:  log.New(io.Discard, "", 0),
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
	}
}

// Attempts of services that call one another multiply, and add up with
// Middleware around each. Both ways are needed for each request at the bottom to
// be one attempt of the service above it; each alone is better than neither.
func TestChains(t *testing.T) {
	for name, kind := range map[string]chainKind{
		"GET":              {proto: http1, method: "GET"},
		"GET, HTTP2":       {proto: http2, method: "GET"},
		"POST":             {proto: http1, method: "POST"},
		"POST, HTTP2":      {proto: http2, method: "POST"},
		"own header":       {proto: http1, method: "GET", header: "x-my-try"},
		"proxies":          {proto: http1, method: "POST", proxies: true},
		"proxies, HTTP2":   {proto: http2, method: "PUT", proxies: true},
		"refused":          {proto: http1, method: "POST", refuses: true},
		"refused, proxies": {proto: http1, method: "GET", refuses: true, proxies: true},
	} {
		for layers, power := range map[int]int{3: 27, 5: 243} {
			once := 2*layers + 1 // three for the first, and two for each other layer
			if kind.refuses {
				once = 3 * (2*layers - 1) // what is unprocessed is always retried by the lowest
			}
			for _, c := range []*chain{{}, {middleware: true, stripped: true}, {middleware: true}} {
				c.chainKind, c.layers = kind, layers
				want := power
				switch {
				case c.stripped:
					want = once
				case c.middleware:
					want = 3
				}
				t.Run(fmt.Sprintf("%s/%d/%d", name, layers, want), func(t *testing.T) {
					assert.Len(t, c.run(t), want)
					if c.middleware && !c.refuses {
						c.checkHeaders(t)
					}
				})
			}
		}
	}
}

// checkHeaders: whoever is at the bottom is told of retries, wherever up the
// chain they were made.
func (c *chain) checkHeaders(t *testing.T) {
	t.Helper()
	for i, header := range c.bottom {
		want := ""
		if i > 0 {
			want = strconv.Itoa(1 + (i-1)%2) // the first or second retry of one of the layers
		}
		assert.Equal(t, want, header, "%d of %q", i, c.bottom)
	}
}

// chainCall is what a handler sends, and what came of it.
type chainCall struct {
	cfg    httpretry.Config
	method string // "" is GET
	key    string // Idempotency-Key
	stream string // a body that cannot be had again
	base   *script
	rt     http.RoundTripper
	record
	err error
}

// send sends a request with ctx to a script of steps, if cfg has no Base.
func (c *chainCall) send(t testing.TB, ctx context.Context, steps ...step) {
	if c.rt == nil {
		if c.base = play(steps...); c.cfg.Base == nil {
			c.cfg.Base = c.base
		}
		c.cfg.Observe = c.observe
		c.rt = contract.New(t, c.cfg)
	}
	req := request(t, c.method, "http://a.test/path", "").WithContext(ctx)
	if c.key != "" {
		req.Header.Set("Idempotency-Key", c.key)
	}
	if c.stream != "" {
		req.Body = contract.Counted(c.stream)
	}
	var resp *http.Response
	if resp, c.err = c.rt.RoundTrip(req); c.err == nil {
		finish(t, resp)
	}
}

// handle sends a request on behalf of an inbound one.
func (c *chainCall) handle(t testing.TB, inboundRetry string, steps ...step) {
	httpretry.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		c.send(t, r.Context(), steps...)
	})).ServeHTTP(httptest.NewRecorder(), chainInbound(http.Header{"Retry-Attempt": {inboundRetry}}))
}

// headers returns the attempt header of each attempt, "" where there is none.
func (c *chainCall) headers(name string) []string {
	var all []string
	for _, s := range c.base.attempts() {
		all = append(all, s.header.Get(name))
	}
	return all
}

// chainInbound returns an inbound request with such a header.
func chainInbound(header http.Header) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	for name, values := range header {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	return r
}

// What makes an inbound request a retry, and which one: what is sent for it is
// sent once then, and tells of it.
func TestInboundRetries(t *testing.T) {
	const own, envoy, grpc = "Retry-Attempt", "X-Envoy-Attempt-Count", "Grpc-Previous-Rpc-Attempts"
	for _, tt := range []struct {
		header  http.Header
		retries int
	}{
		{nil, 0},
		{http.Header{own: {}}, 0},
		{http.Header{own: {""}}, 0},
		{http.Header{own: {"0"}}, 0},
		{http.Header{own: {"1"}}, 1},
		{http.Header{own: {"17"}}, 17},
		{http.Header{own: {"007"}}, 7},
		{http.Header{own: {"2147483648"}}, 1<<30 - 1},
		{http.Header{own: {"99999999999999999999999999"}}, 1<<30 - 1},
		{http.Header{own: {" 2 "}}, 2},
		{http.Header{own: {"\t2"}}, 2},
		{http.Header{own: {"0", "3", "1"}}, 3},
		{http.Header{own: {"x", "2", ""}}, 2},
		{http.Header{"X-Retry-Attempt": {"1"}}, 0},
		{http.Header{envoy: {"0"}}, 0},
		{http.Header{envoy: {"1"}}, 0},
		{http.Header{envoy: {"2"}}, 1},
		{http.Header{envoy: {"1", "5"}}, 4},
		{http.Header{envoy: {"99999999999999999999"}}, 1<<30 - 2},
		{http.Header{envoy: {"many"}}, 0},
		{http.Header{grpc: {"0"}}, 0},
		{http.Header{grpc: {"1"}}, 1},
		{http.Header{grpc: {"4"}}, 4},
		{http.Header{own: {"1"}, envoy: {"5"}, grpc: {"3"}}, 4},
		{http.Header{own: {"1"}, envoy: {"1"}}, 1},
	} {
		chainCheckInbound(t, httpretry.Config{}, own, tt.header, tt.retries)
	}
	for _, garbage := range []string{
		"-1", "+1", "abc", "1.0", "1.5", "1.", ".1", "0x1", "1e3", "1_0", "1, 2", "1;q=1", "\u0661", "1 1", "\u00a01", "NaN", "true",
	} {
		chainCheckInbound(t, httpretry.Config{}, own, http.Header{own: {garbage}, envoy: {garbage}, grpc: {garbage}}, 0)
	}
}

// A transport may have a name of its own for the header, or none.
func TestInboundRetriesByName(t *testing.T) {
	for _, tt := range []struct {
		configured, header string
		retries            int
	}{
		{"x-my-try", "X-My-Try", 2},
		{"x-my-try", "Retry-Attempt", 2},
		{"x-my-try", "X-Envoy-Attempt-Count", 1},
		{"x-my-try", "X-Other", 0},
		{"-", "Retry-Attempt", 2},
		{"-", "-", 0},
	} {
		cfg := httpretry.Config{AttemptHeader: tt.configured}
		chainCheckInbound(t, cfg, tt.configured, http.Header{tt.header: {"2"}}, tt.retries)
	}
}

func chainCheckInbound(t *testing.T, cfg httpretry.Config, header string, in http.Header, retries int) {
	t.Helper()
	t.Run(fmt.Sprintf("%s %q", cfg.AttemptHeader, in), func(t *testing.T) {
		cfg.Policy = chainPolicy(3)
		call := chainCall{cfg: cfg}
		handler := contractless(t, cfg).Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			call.send(t, r.Context(), status(503))
		}))
		handler.ServeHTTP(httptest.NewRecorder(), chainInbound(in))

		want, reason := []string{"", "1", "2"}, httpretry.ReasonAttempts
		if retries > 0 {
			want, reason = []string{strconv.Itoa(retries)}, httpretry.ReasonChain
		}
		if cfg.AttemptHeader == "-" {
			want = make([]string, len(want))
		}
		assert.Equal(t, want, call.headers(header))
		assert.Equal(t, reason, call.reason())
	})
}

// Middleware knows the default header only, a transport's knows its own as well.
func TestMiddlewareHeaders(t *testing.T) {
	transport := contractless(t, httpretry.Config{AttemptHeader: "X-My-Try"})
	zero := new(httpretry.RetryTransport)
	for _, tt := range []struct {
		name       string
		middleware func(http.Handler) http.Handler
		header     string
		attempts   int
	}{
		{"package", httpretry.Middleware, "Retry-Attempt", 1},
		{"package", httpretry.Middleware, "X-My-Try", 3},
		{"transport", transport.Middleware, "Retry-Attempt", 1},
		{"transport", transport.Middleware, "X-My-Try", 1},
		{"zero transport", zero.Middleware, "Retry-Attempt", 1},
		{"zero transport", zero.Middleware, "X-My-Try", 3},
		{"nested", func(h http.Handler) http.Handler { return transport.Middleware(zero.Middleware(h)) }, "X-My-Try", 1},
		{"nested", func(h http.Handler) http.Handler { return zero.Middleware(transport.Middleware(h)) }, "X-My-Try", 1},
	} {
		t.Run(tt.name+", "+tt.header, func(t *testing.T) {
			call := chainCall{cfg: httpretry.Config{Policy: chainPolicy(3)}}
			tt.middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				call.send(t, r.Context(), status(503))
			})).ServeHTTP(httptest.NewRecorder(), chainInbound(http.Header{tt.header: {"1"}}))
			assert.Len(t, call.base.attempts(), tt.attempts)
		})
	}
}

// For an inbound retry everything is sent once, but what was not even processed:
// a service up the chain would have to start over for that.
func TestSingleShot(t *testing.T) {
	never := fails(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})
	once, twice, thrice := []string{"2"}, []string{"2", "3"}, []string{"2", "3", "4"}
	for name, tt := range map[string]struct {
		method, key string
		steps       []step
		headers     []string
		reason      httpretry.Reason
	}{
		"GET, 503":                {"GET", "", []step{status(503)}, once, httpretry.ReasonChain},
		"GET, 429":                {"GET", "", []step{status(429, "Retry-After", "1")}, once, httpretry.ReasonChain},
		"GET, error":              {"GET", "", []step{fails(io.ErrUnexpectedEOF)}, once, httpretry.ReasonChain},
		"POST, 503":               {"POST", "", []step{status(503)}, once, httpretry.ReasonChain},
		"POST with a key, 503":    {"POST", "key", []step{status(503)}, once, httpretry.ReasonChain},
		"POST with a key, 409":    {"POST", "key", []step{status(409)}, once, httpretry.ReasonChain},
		"GET, 200":                {"GET", "", []step{status(200)}, once, httpretry.ReasonFinal},
		"GET, 404":                {"GET", "", []step{status(404)}, once, httpretry.ReasonFinal},
		"GET, refused":            {"GET", "", []step{status(503, "X-Should-Retry", "false")}, once, httpretry.ReasonServerRefused},
		"GET, 425":                {"GET", "", []step{status(425)}, thrice, httpretry.ReasonAttempts},
		"POST, 425":               {"POST", "", []step{status(425)}, thrice, httpretry.ReasonAttempts},
		"POST, 425, success":      {"POST", "", []step{status(425), status(200)}, twice, httpretry.ReasonFinal},
		"POST, 421":               {"POST", "", []step{status(421)}, twice, httpretry.ReasonFinal},
		"GET, 425, 503":           {"GET", "", []step{status(425), status(503)}, twice, httpretry.ReasonChain},
		"POST, no connection":     {"POST", "", []step{never}, thrice, httpretry.ReasonAttempts},
		"GET, no connection, 503": {"GET", "", []step{never, status(503)}, twice, httpretry.ReasonChain},
	} {
		t.Run(name, func(t *testing.T) {
			call := chainCall{method: tt.method, key: tt.key, cfg: httpretry.Config{Policy: chainPolicy(3)}}
			call.handle(t, "2", tt.steps...)
			assert.Equal(t, tt.headers, call.headers("Retry-Attempt"))
			assert.Equal(t, tt.reason, call.reason())
		})
	}
}

// What a single shot ends with is what came of it, and the observer is told why.
func TestSingleShotIsTold(t *testing.T) {
	broken := errors.New("broken")
	for _, s := range []step{status(503), fails(broken)} {
		call := chainCall{cfg: httpretry.Config{Policy: chainPolicy(3)}}
		call.handle(t, "1", s)
		assert.Equal(t, s.err, call.err, "as it came")
		require.Len(t, call.events, 1)
		event := call.events[0]
		assert.Equal(t, "retried up the chain", event.Reason.String())
		assert.Equal(t, 1, event.Attempt)
		assert.Equal(t, s.err, event.Err)
		assert.Equal(t, s.err == nil, event.Response != nil)
		assert.Zero(t, event.Wait)
		assert.Empty(t, event.Request.Header.Get("Retry-Attempt"), "the caller's own")
	}
	call := chainCall{cfg: httpretry.Config{Policy: chainPolicy(3)}}
	call.cfg.Policy.AttemptTimeout = time.Millisecond
	call.handle(t, "1", step{status: 200, takes: time.Hour})
	require.EqualError(t, call.err, "httpretry: gave up after 1 attempt (retried up the chain): attempt timed out after 1ms")
}

// A POST that provably never left is retried for an inbound retry, too, whatever
// the error's words.
func TestSingleShotNeverSent(t *testing.T) {
	dials := 0
	base := faults.Base(t, nil)
	base.DialContext = func(context.Context, string, string) (net.Conn, error) {
		dials++
		return nil, errors.New("odd")
	}
	for method, want := range map[string]int{"POST": 3, "GET": 1} { // only what must not be sent twice is watched
		dials = 0
		call := chainCall{method: method, cfg: httpretry.Config{Base: base, Policy: chainPolicy(3)}}
		call.handle(t, "1")
		assert.Equal(t, want, dials, method)
	}
}

// chainEnd is how a request ended, and whether its handler's answer tells.
type chainEnd struct {
	method string
	change func(*httpretry.Policy) // or nil
	steps  []step
	reason httpretry.Reason
	marks  bool
}

func chainEnds() map[string]chainEnd {
	one := func(p *httpretry.Policy) { p.MaxAttempts = 1 }
	broke := func(p *httpretry.Policy) { p.Budget = usedUp{} }
	slow := func(p *httpretry.Policy) { p.Budget, p.BudgetBackoff = usedUp{}, true }
	short := func(p *httpretry.Policy) { p.MaxElapsed = time.Second }
	unavailable, later := []step{status(503)}, []step{status(503, "Retry-After", "30")}
	refused := func(code int, header string) []step { return []step{status(code, header, "false")} }
	return map[string]chainEnd{
		"attempts":                {"GET", nil, unavailable, httpretry.ReasonAttempts, true},
		"attempts, errors":        {"GET", nil, []step{fails(io.EOF)}, httpretry.ReasonAttempts, true},
		"attempts, unprocessed":   {"POST", nil, []step{status(425)}, httpretry.ReasonAttempts, true},
		"one attempt":             {"GET", one, unavailable, httpretry.ReasonAttempts, false},
		"budget":                  {"GET", broke, unavailable, httpretry.ReasonBudget, true},
		"budget, backoff":         {"GET", slow, unavailable, httpretry.ReasonBudget, true},
		"server refused":          {"GET", nil, refused(503, "X-Should-Retry"), httpretry.ReasonServerRefused, true},
		"server refused, Stripe":  {"GET", nil, refused(500, "Stripe-Should-Retry"), httpretry.ReasonServerRefused, true},
		"server refused, 404":     {"GET", nil, refused(404, "X-Should-Retry"), httpretry.ReasonServerRefused, true},
		"refused on success":      {"GET", nil, refused(200, "X-Should-Retry"), httpretry.ReasonFinal, false},
		"Retry-After":             {"GET", nil, []step{status(503, "Retry-After", "3600")}, httpretry.ReasonRetryAfter, true},
		"deadline":                {"GET", short, later, httpretry.ReasonDeadline, true},
		"final":                   {"GET", nil, []step{status(404)}, httpretry.ReasonFinal, false},
		"final error":             {"GET", nil, []step{fails(x509.UnknownAuthorityError{})}, httpretry.ReasonFinal, false},
		"success":                 {"GET", nil, []step{status(200)}, httpretry.ReasonFinal, false},
		"success of a retry":      {"GET", nil, []step{status(503), status(200)}, httpretry.ReasonFinal, false},
		"final after a retry":     {"GET", nil, []step{status(503), status(400)}, httpretry.ReasonFinal, false},
		"not idempotent":          {"POST", nil, unavailable, httpretry.ReasonNotIdempotent, false},
		"not idempotent, retried": {"POST", nil, []step{status(425), status(503)}, httpretry.ReasonNotIdempotent, false},
	}
}

// chainAnswer returns the header of a handler's answer 503 after some calls.
func chainAnswer(inboundRetry string, calls func(context.Context)) http.Header {
	rec := httptest.NewRecorder()
	httpretry.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls(r.Context())
		w.WriteHeader(http.StatusServiceUnavailable)
	})).ServeHTTP(rec, chainInbound(http.Header{"Retry-Attempt": {inboundRetry}}))
	return rec.Result().Header
}

// If a handler fails whose request was given up since retries were in vain, its
// answer says that all would be in vain again. If the request may fare better,
// or was not for retrying, it says nothing.
func TestGivenUp(t *testing.T) {
	for name, tt := range chainEnds() {
		t.Run(name, func(t *testing.T) {
			call := chainCall{method: tt.method, cfg: httpretry.Config{Policy: chainPolicy(3)}}
			if tt.change != nil {
				tt.change(&call.cfg.Policy)
			}
			header := chainAnswer("0", func(ctx context.Context) { call.send(t, ctx, tt.steps...) })
			assert.Equal(t, tt.reason, call.reason())
			assert.Equal(t, tt.marks, header.Get("X-Should-Retry") == "false")
			assert.Equal(t, tt.marks, len(header) > 0, "%v", header)
		})
	}
}

// chainOther is an end that takes more than an answer.
type chainOther struct {
	inbound string
	send    func(t *testing.T, ctx context.Context, call *chainCall)
	reason  httpretry.Reason
	marks   bool
}

func chainOthers() map[string]chainOther {
	return map[string]chainOther{
		"chain": {"1", func(t *testing.T, ctx context.Context, call *chainCall) {
			call.send(t, ctx, status(503))
		}, httpretry.ReasonChain, false},
		"chain, unprocessed": {"1", func(t *testing.T, ctx context.Context, call *chainCall) {
			call.send(t, ctx, status(425))
		}, httpretry.ReasonAttempts, true},
		"not replayable": {"0", func(t *testing.T, ctx context.Context, call *chainCall) {
			call.method, call.stream, call.cfg.Policy.ReplayBuffer = "PUT", "stream", -1
			call.send(t, ctx, status(503))
		}, httpretry.ReasonNotReplayable, false},
		"cooldown": {"0", func(t *testing.T, ctx context.Context, call *chainCall) {
			call.cfg.Policy.Cooldown = httpretry.CooldownFail
			call.send(t, t.Context(), status(503, "Retry-After", "3600")) // for nobody
			call.send(t, ctx)
		}, httpretry.ReasonCooldown, true},
		"context's deadline": {"0", func(t *testing.T, ctx context.Context, call *chainCall) {
			ctx, cancel := context.WithTimeout(ctx, time.Minute/2)
			defer cancel()
			call.send(t, ctx, status(503, "Retry-After", "45"))
		}, httpretry.ReasonDeadline, true},
		"canceled": {"0", func(t *testing.T, ctx context.Context, call *chainCall) {
			ctx, cancel := context.WithCancel(ctx)
			call.cfg.Policy.Backoff = strategies.Func(func(int) time.Duration { cancel(); return time.Hour })
			call.send(t, ctx, status(503))
		}, httpretry.ReasonCanceled, false},
		"for nobody": {"0", func(t *testing.T, _ context.Context, call *chainCall) {
			call.send(t, t.Context(), status(503))
		}, httpretry.ReasonAttempts, false},
		"tolerated, and another": {"0", func(t *testing.T, ctx context.Context, call *chainCall) {
			call.send(t, ctx, status(503))
			call.send(t, ctx)
		}, httpretry.ReasonAttempts, true},
	}
}

func TestGivenUpOtherwise(t *testing.T) {
	for name, tt := range chainOthers() {
		t.Run(name, func(t *testing.T) {
			call := chainCall{cfg: httpretry.Config{Policy: chainPolicy(3)}}
			header := chainAnswer(tt.inbound, func(ctx context.Context) { tt.send(t, ctx, &call) })
			assert.Equal(t, tt.reason, call.reason())
			assert.Equal(t, tt.marks, header.Get("X-Should-Retry") == "false")
		})
	}
}

// chainVain sends a request on behalf of r that is given up.
func chainVain(t testing.TB, r *http.Request) {
	call := chainCall{cfg: httpretry.Config{Policy: chainPolicy(3)}}
	call.send(t, r.Context(), status(503))
	assert.Equal(t, httpretry.ReasonAttempts, call.reason())
}

// chainStatus is what a handler answers, and what of that is said of retries.
type chainStatus struct {
	answer http.HandlerFunc
	code   int
	says   []string
}

func chainStatuses() map[string]chainStatus {
	state := func(codes ...int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for _, code := range codes {
				w.WriteHeader(code)
			}
		}
	}
	says := func(word string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Should-Retry", word)
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	text := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "text") }
	flush := func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }
	fail := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "text", http.StatusBadGateway) }
	return map[string]chainStatus{
		"200":                {state(200), 200, nil},
		"204":                {state(204), 204, nil},
		"302":                {state(302), 302, nil},
		"404":                {state(404), 404, nil},
		"408":                {state(408), 408, nil},
		"428":                {state(428), 428, nil},
		"429":                {state(429), 429, []string{"false"}},
		"430":                {state(430), 430, nil},
		"499":                {state(499), 499, nil},
		"500":                {state(500), 500, []string{"false"}},
		"503":                {state(503), 503, []string{"false"}},
		"599":                {state(599), 599, []string{"false"}},
		"nothing":            {state(), 200, nil},
		"text":               {text, 200, nil},
		"flush":              {flush, 200, nil},
		"103, then 200":      {state(103, 200), 200, nil},
		"103, then 503":      {state(103, 103, 503), 503, []string{"false"}},
		"103, then nothing":  {state(103), 200, nil},
		"200, then 503":      {state(200, 503), 200, nil},
		"503, then 200":      {state(503, 200), 503, []string{"false"}},
		"http.Error":         {fail, 502, []string{"false"}},
		"own true":           {says("true"), 503, []string{"true"}},
		"own false":          {says("false"), 503, []string{"false"}},
		"own else":           {says("perhaps"), 503, []string{"perhaps"}},
		"before any request": {nil, 503, nil},
	}
}

// Only an answer that clients may retry for says that they need not, and only
// if its handler does not speak of that itself.
func TestFinalStatus(t *testing.T) {
	for name, tt := range chainStatuses() {
		forProtocols(t, func(t *testing.T, proto string) {
			t.Run(name, func(t *testing.T) {
				base, srv := serve(t, proto, httpretry.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if tt.answer == nil {
						w.WriteHeader(http.StatusServiceUnavailable)
					}
					chainVain(t, r)
					if tt.answer != nil {
						tt.answer(w, r)
					}
				})).ServeHTTP)
				srv.Config.ErrorLog = log.New(io.Discard, "", 0)
				resp, err := base.RoundTrip(request(t, "GET", srv.URL, ""))
				require.NoError(t, err)
				finish(t, resp)
				assert.Equal(t, tt.code, resp.StatusCode)
				assert.Equal(t, tt.says, resp.Header["X-Should-Retry"])
			})
		})
	}
}

// Informational answers say nothing of what is to come.
func TestEarlyHintsSayNothing(t *testing.T) {
	forProtocols(t, func(t *testing.T, proto string) {
		base, srv := serve(t, proto, httpretry.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			chainVain(t, r)
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusInternalServerError)
		})).ServeHTTP)
		var hints []textproto.MIMEHeader
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(_ int, header textproto.MIMEHeader) error { hints = append(hints, header); return nil },
		})
		resp, err := base.RoundTrip(request(t, "GET", srv.URL, "").WithContext(ctx))
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, []string{"false"}, resp.Header["X-Should-Retry"])
		assert.Equal(t, []textproto.MIMEHeader{{"Link": {"</style.css>; rel=preload"}}}, hints)
	})
}

// One of many requests on behalf of the same inbound one is given up. The answer
// tells, or does not if the handler makes do without.
func TestGivenUpAmongMany(t *testing.T) {
	for code, says := range map[int][]string{200: nil, 404: nil, 503: {"false"}} {
		handler := httpretry.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var calls sync.WaitGroup
			for i := range 16 {
				calls.Go(func() {
					if i == 7 {
						chainVain(t, r)
						return
					}
					call := chainCall{cfg: httpretry.Config{Policy: chainPolicy(3)}}
					call.send(t, r.Context(), status(503), status(200))
				})
				r.Header.Set("Retry-Attempt", "9") // theirs to change, and of no consequence
			}
			calls.Wait()
			w.WriteHeader(code)
		}))
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, chainInbound(nil))
		assert.Equal(t, says, rec.Result().Header["X-Should-Retry"], "%d", code)
	}
}

// Work that a handler leaves behind is nobody's: it is retried, tells nothing of
// inbound retries, and does not change an answer.
func TestMarkerEndsWithHandler(t *testing.T) {
	for name, leave := range map[string]func(){
		"returns": func() {},
		"panics":  func() { panic(http.ErrAbortHandler) },
		"exits":   runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			var left *http.Request
			var answer http.ResponseWriter
			rec := httptest.NewRecorder()
			var handling sync.WaitGroup
			handling.Go(func() {
				defer func() { _ = recover() }()
				httpretry.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					left, answer = r.WithContext(context.WithoutCancel(r.Context())), w
					leave()
				})).ServeHTTP(rec, chainInbound(http.Header{"Retry-Attempt": {"1"}}))
			})
			handling.Wait()
			call := chainCall{cfg: httpretry.Config{Policy: chainPolicy(3)}}
			call.send(t, left.Context(), status(503))
			assert.Equal(t, []string{"", "1", "2"}, call.headers("Retry-Attempt"))
			assert.Equal(t, httpretry.ReasonAttempts, call.reason())
			answer.WriteHeader(http.StatusServiceUnavailable) // too late for any server
			assert.Empty(t, rec.Header())

			another := chainCall{cfg: httpretry.Config{Policy: chainPolicy(3)}}
			httpretry.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				another.send(t, r.Context(), status(503))
			})).ServeHTTP(httptest.NewRecorder(), chainInbound(nil).WithContext(left.Context()))
			assert.Len(t, another.base.attempts(), 3, "what it begins anew is none of the old")
		})
	}
}

// A request that is on its way when the handler returns is retried from then on.
func TestHandlerReturnsDuringCall(t *testing.T) {
	rec := httptest.NewRecorder()
	var answer http.ResponseWriter
	var calls sync.WaitGroup
	returned := make(chan struct{})
	script := play(status(503))
	call := chainCall{cfg: httpretry.Config{Policy: chainPolicy(3)}}
	sent := make(chan struct{}, 3)
	call.cfg.Base = baseFunc(func(req *http.Request) (*http.Response, error) {
		sent <- struct{}{}
		<-returned
		return script.RoundTrip(req)
	})
	httpretry.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer = w
		calls.Go(func() { call.send(t, context.WithoutCancel(r.Context())) })
		<-sent
	})).ServeHTTP(rec, chainInbound(http.Header{"Retry-Attempt": {"1"}}))
	close(returned)
	calls.Wait()
	assert.Len(t, script.attempts(), 3)
	assert.Equal(t, httpretry.ReasonAttempts, call.reason())
	answer.WriteHeader(http.StatusServiceUnavailable)
	assert.Empty(t, rec.Header())
}

// Many inbound requests at once, each with many requests of its own, have
// nothing to do with one another.
func TestManyInbound(t *testing.T) {
	var deliveries [4]atomic.Int32
	base, bottom := serve(t, http1, func(w http.ResponseWriter, r *http.Request) {
		kind, err := strconv.Atoi(r.URL.Path[1:])
		assert.NoError(t, err)
		deliveries[kind].Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	transport := contract.New(t, httpretry.Config{Base: base, Policy: chainPolicy(3)})
	edge, shop := serve(t, http1, httpretry.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var calls sync.WaitGroup
		for range 4 {
			calls.Go(func() {
				resp, err := transport.RoundTrip(request(t, "GET", bottom.URL+r.URL.Path, "").WithContext(r.Context()))
				assert.NoError(t, err)
				finish(t, resp)
			})
			r.Header.Set("Retry-Attempt", "1") // the handler's to change
		}
		calls.Wait()
		w.WriteHeader(http.StatusServiceUnavailable)
	})).ServeHTTP)
	var clients sync.WaitGroup
	for i := range 40 {
		clients.Go(func() {
			kind := i % len(deliveries)
			req := request(t, "GET", fmt.Sprintf("%s/%d", shop.URL, kind), "")
			if kind > 0 {
				req.Header.Set("Retry-Attempt", strconv.Itoa(kind))
			}
			resp, err := edge.RoundTrip(req)
			assert.NoError(t, err)
			finish(t, resp)
			assert.Equal(t, kind == 0, resp.Header.Get("X-Should-Retry") == "false")
		})
	}
	clients.Wait()
	for kind, want := range []int32{120, 40, 40, 40} {
		assert.Equal(t, want, deliveries[kind].Load(), "kind %d", kind)
	}
}

// chainSink is a ResponseWriter that does nothing.
type chainSink struct{ header http.Header }

func (w *chainSink) Header() http.Header         { return w.header }
func (w *chainSink) Write(p []byte) (int, error) { return len(p), nil }
func (w *chainSink) WriteHeader(int)             {}
func (w *chainSink) Flush()                      {}

// Middleware costs a handler little, and what it sends nothing: the first attempt
// for an inbound request that is none is the caller's own request.
func TestMiddlewareAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	ok := newInstant().ok
	transport := contractless(t, everything(baseFunc(func(*http.Request) (*http.Response, error) { return ok, nil })))
	var sends float64
	inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		if r.Header.Get("Measure") != "" {
			req := get(t).WithContext(r.Context())
			sends = testing.AllocsPerRun(1000, func() {
				if _, err := transport.RoundTrip(req); err != nil {
					t.Error(err)
				}
			})
		}
	})
	handler, w, r := httpretry.Middleware(inner), &chainSink{http.Header{}}, chainInbound(nil)
	added := testing.AllocsPerRun(1000, func() { handler.ServeHTTP(w, r) })
	assert.LessOrEqual(t, added, 6.0)
	handler.ServeHTTP(w, chainInbound(http.Header{"Measure": {"1"}}))
	assert.Zero(t, sends)
}

func BenchmarkMiddleware(b *testing.B) {
	inner := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	w, r := &chainSink{http.Header{}}, chainInbound(http.Header{"Accept": {"*/*"}})
	for _, c := range []struct {
		name    string
		handler http.Handler
	}{{"bare", inner}, {"Middleware", httpretry.Middleware(inner)}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.handler.ServeHTTP(w, r)
			}
		})
	}
}

// Layers around Middleware learn from their request what a mux inside has matched.
func TestPatternIsSeenOutside(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /a/{id}", func(http.ResponseWriter, *http.Request) {})
	r := httptest.NewRequest("GET", "/a/7", nil)
	httpretry.Middleware(mux).ServeHTTP(httptest.NewRecorder(), r)
	assert.Equal(t, "GET /a/{id}", r.Pattern)
}

// A retry that is left to others is no reason to worry.
func TestLogOfAChain(t *testing.T) {
	var log strings.Builder
	observe := httpretry.LogEvents(slog.New(slog.NewTextHandler(&log, nil)))
	observe(t.Context(), httpretry.Event{Request: request(t, "GET", "http://a.test/", ""), Attempt: 1, Reason: httpretry.ReasonChain})
	assert.Contains(t, log.String(), "level=INFO")
	assert.Contains(t, log.String(), `msg="left the retry to those up the chain"`)
}
