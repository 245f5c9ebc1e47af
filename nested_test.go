package httpretry_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// chainLayer is what a process has between two RetryTransports.
type chainLayer func(http.RoundTripper) http.RoundTripper

// chainThrough is a layer that changes requests; it lets see what is below it.
type chainThrough struct {
	next   http.RoundTripper
	change func(*http.Request) *http.Request
}

func (l chainThrough) RoundTrip(req *http.Request) (*http.Response, error) {
	return l.next.RoundTrip(l.change(req))
}

func (l chainThrough) Unwrap() http.RoundTripper { return l.next }

func chainChanging(change func(*http.Request) *http.Request) chainLayer {
	return func(next http.RoundTripper) http.RoundTripper { return chainThrough{next, change} }
}

func chainOpaque(next http.RoundTripper) http.RoundTripper { return baseFunc(next.RoundTrip) }

// chainStack is RetryTransports below one another, and a base that fails.
type chainStack struct {
	top    http.RoundTripper
	bottom *script
	events []*record // of each transport, the topmost first
}

func newChainStack(t testing.TB, layer chainLayer, cfgs []httpretry.Config, steps ...step) *chainStack {
	t.Helper()
	s := &chainStack{bottom: play(steps...), events: make([]*record, len(cfgs))}
	s.top = s.bottom
	for i := len(cfgs) - 1; i >= 0; i-- {
		s.events[i] = new(record)
		cfg := cfgs[i]
		cfg.Base, cfg.Observe = s.top, s.events[i].observe
		if layer != nil && i < len(cfgs)-1 {
			cfg.Base = layer(cfg.Base)
		}
		s.top = contract.New(t, cfg)
	}
	return s
}

func (s *chainStack) send(t testing.TB, req *http.Request) *http.Response {
	t.Helper()
	resp, err := s.top.RoundTrip(req)
	require.NoError(t, err)
	finish(t, resp)
	return resp
}

// trail returns the attempt header and the number of each attempt at the bottom.
func (s *chainStack) trail() (headers []string, numbers []int) {
	for _, a := range s.bottom.attempts() {
		headers = append(headers, a.header.Get("Retry-Attempt"))
		numbers = append(numbers, a.number)
	}
	return headers, numbers
}

func chainConfigs(attempts ...int) []httpretry.Config {
	cfgs := make([]httpretry.Config, len(attempts))
	for i, n := range attempts {
		cfgs[i].Policy = chainPolicy(n)
	}
	return cfgs
}

// RetryTransports of one process do not multiply: those below others send once,
// for as long as those above repeat. What is sent is numbered throughout.
func TestNested(t *testing.T) {
	direct := chainChanging(func(req *http.Request) *http.Request { return req })
	counted := func(n int) (headers []string) {
		for i := range n {
			headers = append(headers, strings.TrimPrefix(strconv.Itoa(i), "0"))
		}
		return headers
	}
	for name, tt := range map[string]struct {
		layer    chainLayer
		attempts []int
		headers  []string
		numbers  []int
	}{
		"two":                 {nil, []int{3, 3}, counted(3), []int{1, 2, 3}},
		"three":               {nil, []int{3, 3, 3}, counted(3), []int{1, 2, 3}},
		"four":                {nil, []int{3, 3, 3, 3}, counted(3), []int{1, 2, 3}},
		"layer":               {direct, []int{3, 3}, counted(3), []int{1, 2, 3}},
		"layers":              {direct, []int{4, 2, 5}, counted(4), []int{1, 2, 3, 4}},
		"upper twice":         {nil, []int{2, 9}, counted(2), []int{1, 2}},
		"lower never":         {nil, []int{3, 1}, counted(3), []int{1, 2, 3}},
		"upper never":         {nil, []int{1, 3}, counted(3), []int{1, 2, 3}},
		"middle never":        {nil, []int{3, 1, 3}, counted(3), []int{1, 2, 3}},
		"only the lowest":     {nil, []int{1, 1, 3}, counted(3), []int{1, 2, 3}},
		"opaque":              {chainOpaque, []int{3, 3}, []string{"", "1", "2", "1", "2"}, []int{1, 2, 3, 2, 3}},
		"opaque, upper twice": {chainOpaque, []int{2, 3}, []string{"", "1", "2", "1"}, []int{1, 2, 3, 2}},
		"opaque, upper never": {chainOpaque, []int{1, 3}, counted(3), []int{1, 2, 3}},
		"opaque, three":       {chainOpaque, []int{3, 3, 3}, []string{"", "1", "2", "1", "2", "1", "2"}, []int{1, 2, 3, 2, 3, 2, 3}},
	} {
		for _, code := range []int{503, 425} { // what is unprocessed is the upper one's, too
			t.Run(fmt.Sprintf("%s, %d", name, code), func(t *testing.T) {
				s := newChainStack(t, tt.layer, chainConfigs(tt.attempts...), status(code))
				resp := s.send(t, request(t, "GET", "http://a.test/path", ""))
				headers, numbers := s.trail()
				assert.Equal(t, tt.headers, headers)
				assert.Equal(t, tt.numbers, numbers)
				want := tt.attempts[0]
				if want == 1 {
					want = tt.numbers[len(tt.numbers)-1] // the lower transport's response is returned as it came
				}
				assert.Equal(t, want, httpretry.Attempt(resp.Request.Context()))
			})
		}
	}
}

// The lower transport says why it does not retry, the upper one why it gives up.
func TestNestedReasons(t *testing.T) {
	s := newChainStack(t, nil, chainConfigs(3, 3), status(503))
	s.send(t, request(t, "GET", "http://a.test/", ""))
	for i, want := range [][]httpretry.Reason{
		{0, 0, httpretry.ReasonAttempts},
		{httpretry.ReasonChain, httpretry.ReasonChain, httpretry.ReasonChain},
	} {
		var got []httpretry.Reason
		for _, event := range s.events[i].events {
			got = append(got, event.Reason)
		}
		assert.Equal(t, want, got)
	}
}

// What is only alike is not the same: a layer may choose another host, and may
// word the request otherwise. With another path or method it is another request,
// which the lower transport repeats.
func TestNestedRequestIsKnown(t *testing.T) {
	edited := func(edit func(*http.Request)) chainLayer {
		return chainChanging(func(req *http.Request) *http.Request {
			clone := req.Clone(req.Context())
			edit(clone)
			return clone
		})
	}
	for name, tt := range map[string]struct {
		layer chainLayer
		want  int
	}{
		"host":       {edited(func(r *http.Request) { r.URL.Host, r.Host = "b.test", "" }), 3},
		"scheme":     {edited(func(r *http.Request) { r.URL.Scheme = "https" }), 3},
		"query":      {edited(func(r *http.Request) { r.URL.RawQuery = "signature=1" }), 3},
		"header":     {edited(func(r *http.Request) { r.Header = http.Header{"Authorization": {"x"}} }), 3},
		"GET":        {edited(func(r *http.Request) { r.Method = "GET" }), 3},
		"no method":  {edited(func(r *http.Request) { r.Method = "" }), 3},
		"slash":      {edited(func(r *http.Request) { r.URL.Path = "/" }), 3},
		"no slash":   {edited(func(r *http.Request) { r.URL.Path = "" }), 3},
		"path":       {edited(func(r *http.Request) { r.URL.Path = "/base/" }), 9},
		"method":     {edited(func(r *http.Request) { r.Method = "PUT" }), 9},
		"no URL":     {edited(func(r *http.Request) { r.URL = nil }), 3},
		"no context": {chainChanging(func(r *http.Request) *http.Request { return r.WithContext(t.Context()) }), 9},
		"own context": {chainChanging(func(r *http.Request) *http.Request {
			return r.WithContext(httpretry.WithPolicy(httpretry.WithIdempotent(r.Context()), chainPolicy(5)))
		}), 3},
	} {
		for _, method := range []string{"", "GET"} {
			for _, path := range []string{"", "/"} {
				s := newChainStack(t, tt.layer, chainConfigs(3, 3), status(503))
				req := request(t, "GET", "http://a.test"+path, "")
				req.Method = method
				s.send(t, req)
				assert.Len(t, s.bottom.attempts(), tt.want, "%s: %q %q", name, method, path)
			}
		}
	}
}

// chainPair is two transports, one below the other, what they send, and why
// each of them ends.
type chainPair struct {
	upper, lower   func(*httpretry.Policy)
	method, stream string
	code           int
	want           int
	reasons        [2]httpretry.Reason
}

func chainPairs() map[string]chainPair {
	keys := func(p *httpretry.Policy) { p.NewKey = httpretry.RandomKey }
	forgets := func(p *httpretry.Policy) { p.ReplayBuffer = -1 }
	small := func(p *httpretry.Policy) { p.ReplayBuffer = 3 }
	broke := func(p *httpretry.Policy) { p.Budget = usedUp{} }
	none := func(*httpretry.Policy) {}
	takes := func(code int, outcome httpretry.Outcome) func(*httpretry.Policy) {
		return func(p *httpretry.Policy) {
			p.Classify = func(resp *http.Response, err error) httpretry.Outcome {
				if err == nil && resp.StatusCode == code {
					return outcome
				}
				return httpretry.Classify(resp, err)
			}
		}
	}
	limited, passing, standing := takes(403, httpretry.Unprocessed), takes(404, httpretry.Transient), takes(503, httpretry.Final)
	const attempts, chained = httpretry.ReasonAttempts, httpretry.ReasonChain
	const unsafe, once, final = httpretry.ReasonNotIdempotent, httpretry.ReasonNotReplayable, httpretry.ReasonFinal
	return map[string]chainPair{
		"nothing may be repeated":     {none, none, "POST", "", 503, 1, [2]httpretry.Reason{unsafe, unsafe}},
		"unprocessed":                 {none, none, "POST", "", 425, 3, [2]httpretry.Reason{attempts, chained}},
		"lower has keys":              {none, keys, "POST", "", 503, 3, [2]httpretry.Reason{unsafe, attempts}},
		"lower has keys, unprocessed": {none, keys, "POST", "", 425, 3, [2]httpretry.Reason{attempts, chained}},
		"upper has keys":              {keys, none, "POST", "", 503, 3, [2]httpretry.Reason{attempts, chained}},
		"both keep":                   {none, none, "PUT", "stream", 503, 3, [2]httpretry.Reason{attempts, chained}},
		"upper can have it again":     {forgets, none, "PUT", "again", 503, 3, [2]httpretry.Reason{attempts, chained}},
		"upper forgets":               {forgets, none, "PUT", "stream", 503, 3, [2]httpretry.Reason{once, attempts}},
		"upper keeps too little":      {small, none, "PUT", "stream", 503, 3, [2]httpretry.Reason{once, attempts}},
		"lower forgets":               {none, forgets, "PUT", "stream", 503, 3, [2]httpretry.Reason{attempts, chained}},
		"both forget":                 {forgets, forgets, "PUT", "stream", 503, 1, [2]httpretry.Reason{once, once}},
		"upper is broke":              {broke, none, "GET", "", 503, 1, [2]httpretry.Reason{httpretry.ReasonBudget, chained}},
		"lower takes 403 for a limit": {none, limited, "POST", "", 403, 3, [2]httpretry.Reason{final, attempts}},
		"both take 403 for a limit":   {limited, limited, "POST", "", 403, 3, [2]httpretry.Reason{attempts, chained}},
		"lower takes 404 for passing": {none, passing, "GET", "", 404, 3, [2]httpretry.Reason{final, attempts}},
		"upper takes 404 for passing": {passing, none, "GET", "", 404, 3, [2]httpretry.Reason{attempts, final}},
		"upper takes 503 for final":   {standing, none, "GET", "", 503, 3, [2]httpretry.Reason{final, attempts}},
		"lower is broke":              {none, broke, "GET", "", 503, 3, [2]httpretry.Reason{attempts, chained}},
	}
}

// Whether the upper transport repeats a request depends on its policy and on the
// body. Where it does not, the lower one does, if its own policy allows.
func TestNestedPolicies(t *testing.T) {
	for name, tt := range chainPairs() {
		t.Run(name, func(t *testing.T) {
			cfgs := chainConfigs(3, 3)
			tt.upper(&cfgs[0].Policy)
			tt.lower(&cfgs[1].Policy)
			s := newChainStack(t, nil, cfgs, status(tt.code))
			req := request(t, tt.method, "http://a.test/", "")
			if tt.stream != "" {
				req.Body = contract.Counted(tt.stream)
			}
			if tt.stream == "again" {
				req.GetBody = func() (io.ReadCloser, error) { return contract.Counted(tt.stream), nil }
			}
			s.send(t, req)
			sent := s.bottom.attempts()
			assert.Len(t, sent, tt.want)
			for _, a := range sent {
				assert.Equal(t, tt.stream, a.body)
				if tt.code == 503 {
					assert.Equal(t, sent[0].header.Get("Idempotency-Key"), a.header.Get("Idempotency-Key"))
				}
			}
			assert.Equal(t, tt.reasons, [2]httpretry.Reason{s.events[0].reason(), s.events[1].reason()})
		})
	}
}

// Hazard J: a key that the lower transport made is known to nobody else. Once it
// has repeated a request with it that the server may have acted on, the upper one
// does not repeat that with another key, whatever the last answer says.
func TestNestedKeyIsTheOnlyOne(t *testing.T) {
	dead := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for name, tt := range map[string]struct {
		lower int
		steps []step
		want  int
	}{
		"then unprocessed":          {3, []step{status(503), status(425), status(200)}, 3},
		"then always unprocessed":   {3, []step{status(503), status(425)}, 3},
		"unprocessed at the end":    {2, []step{status(503), status(425)}, 2},
		"misdirected at the end":    {2, []step{status(503), status(421)}, 2},
		"no connection at the end":  {2, []step{fails(io.EOF), fails(dead)}, 2},
		"no connection, then again": {3, []step{fails(io.EOF), fails(dead), status(200)}, 3},
	} {
		for layers, cfgs := range [][]httpretry.Config{chainConfigs(3, tt.lower), chainConfigs(3, tt.lower, 3), chainConfigs(3, 3, tt.lower)} {
			keyed := &cfgs[1]
			if layers == 2 {
				keyed = &cfgs[2]
			}
			keyed.Policy.NewKey = httpretry.RandomKey
			s := newChainStack(t, nil, cfgs, tt.steps...)
			if resp, err := s.top.RoundTrip(request(t, "POST", "http://a.test/", "payload")); err == nil {
				finish(t, resp)
			}
			sent := s.bottom.attempts()
			assert.Len(t, sent, tt.want, "%s, %d", name, layers)
			for _, a := range sent {
				assert.Equal(t, sent[0].header.Get("Idempotency-Key"), a.header.Get("Idempotency-Key"), "%s, %d", name, layers)
			}
		}
	}
}

// Attempts are numbered throughout, whichever transport makes them and whatever
// each calls its header. Who cannot repeat a request does not keep those above
// it from that.
func TestNestedAttemptsAreCounted(t *testing.T) {
	unsafe, keys := chainPolicy(3), chainPolicy(3)
	unsafe.Idempotent = func(*http.Request) bool { return false }
	keys.NewKey = httpretry.RandomKey
	for name, tt := range map[string]struct {
		method  string
		cfgs    []httpretry.Config
		steps   []step
		headers []string
	}{
		"both repeat": {"POST", []httpretry.Config{{Policy: chainPolicy(3)}, {Policy: keys}},
			[]step{status(425), status(503)}, []string{"", "1", "2", "3"}},
		"silent above": {"GET", []httpretry.Config{{Policy: chainPolicy(3), AttemptHeader: "-"}, {Policy: chainPolicy(3)}},
			[]step{status(503)}, []string{"", "1", "2"}},
		"other name above": {"GET", []httpretry.Config{{Policy: chainPolicy(3), AttemptHeader: "X-Try"}, {Policy: chainPolicy(3)}},
			[]step{status(503)}, []string{"", "1", "2"}},
		"silent below": {"GET", []httpretry.Config{{Policy: chainPolicy(3)}, {Policy: chainPolicy(3), AttemptHeader: "-"}},
			[]step{status(503)}, []string{"", "1", "2"}},
		"unsafe between": {"GET", []httpretry.Config{{Policy: chainPolicy(3)}, {Policy: unsafe}, {Policy: chainPolicy(3)}},
			[]step{status(503)}, []string{"", "1", "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newChainStack(t, nil, tt.cfgs, tt.steps...)
			s.send(t, request(t, tt.method, "http://a.test/", ""))
			headers, numbers := s.trail()
			assert.Equal(t, tt.headers, headers)
			assert.Equal(t, []int{1, 2, 3, 4}[:len(tt.headers)], numbers)
		})
	}
}

// A policy of the context is everybody's, and an inbound retry is sent once by
// all together, unless it was not processed.
func TestNestedContexts(t *testing.T) {
	for _, tt := range []struct {
		inbound string
		code    int
		want    int
	}{{"0", 503, 4}, {"0", 425, 4}, {"1", 503, 1}, {"1", 425, 4}} {
		s := newChainStack(t, nil, chainConfigs(3, 3, 3), status(tt.code))
		header := chainAnswer(tt.inbound, func(ctx context.Context) {
			s.send(t, request(t, "GET", "http://a.test/", "").WithContext(httpretry.WithPolicy(ctx, chainPolicy(4))))
		})
		assert.Len(t, s.bottom.attempts(), tt.want, "%v", tt)
		assert.Equal(t, tt.want == 4, header.Get("X-Should-Retry") == "false", "%v", tt)
	}
}

// chainServer starts a server, and returns a transport to it.
type chainServer func(*testing.T) (*faults.Server, http.RoundTripper)

func chainHTTP1(answer func(*faults.Conn) bool) chainServer {
	return func(t *testing.T) (*faults.Server, http.RoundTripper) {
		return faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool { return answer(c) }), faults.Base(t, nil)
	}
}

func chainHTTP2(answer func(faults.Stream)) chainServer {
	return func(t *testing.T) (*faults.Server, http.RoundTripper) {
		return faults.HTTP2(t, answer).Server, faults.HTTP2Base(t)
	}
}

// Hazard A1, A2: the upper transport watches what net/http repeats. What the
// lower one repeats, since that is safe by what it knows, is not stopped.
func TestNestedRepeatsAreNotStopped(t *testing.T) {
	never, unsafe, keys := chainPolicy(1), chainPolicy(3), chainPolicy(3)
	never.AttemptTimeout = time.Minute // so that all is watched
	unsafe.Idempotent = func(*http.Request) bool { return false }
	keys.NewKey = httpretry.RandomKey
	reset := chainHTTP2(func(s faults.Stream) { s.ResetStream(faults.InternalError) })
	leaves := chainHTTP2(func(s faults.Stream) { s.GoAway(0, faults.NoError) })
	closed := chainHTTP1(func(*faults.Conn) bool { return false })
	failed := chainHTTP1(func(c *faults.Conn) bool { c.Respond(503, ""); return true })
	informed := chainHTTP1(func(c *faults.Conn) bool {
		c.Send(strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 20))
		c.Respond(425, "")
		return true
	})
	for name, tt := range map[string]struct {
		method       string
		upper, lower httpretry.Policy
		server       chainServer
		want         int32
	}{
		"more than net/http may":   {"GET", never, chainPolicy(20), failed, 20},
		"reset, lower has keys":    {"POST", chainPolicy(3), keys, reset, 3},
		"reset, upper is careful":  {"GET", unsafe, chainPolicy(3), reset, 3},
		"reset, both are careful":  {"POST", chainPolicy(3), chainPolicy(3), reset, 1},
		"reset, upper never":       {"POST", never, chainPolicy(3), reset, 1},
		"closed, lower has keys":   {"POST", chainPolicy(3), keys, closed, 3},
		"closed, upper is careful": {"GET", unsafe, chainPolicy(3), closed, 3},
		"closed, upper never":      {"POST", never, chainPolicy(3), closed, 1},
		"GOAWAY, upper never":      {"POST", never, chainPolicy(3), leaves, 3},
		"1xx, upper never":         {"POST", never, chainPolicy(3), informed, 3},
	} {
		t.Run(name, func(t *testing.T) {
			srv, base := tt.server(t)
			lower := contract.New(t, httpretry.Config{Base: base, Policy: tt.lower})
			resp, err := contract.New(t, httpretry.Config{Base: lower, Policy: tt.upper}).RoundTrip(request(t, tt.method, srv.URL(), "payload"))
			assert.Equal(t, tt.want, srv.Requests.Load())
			if err == nil {
				finish(t, resp)
			} else {
				assert.NotContains(t, err.Error(), "was stopped")
			}
		})
	}
}

// chainTokens is a layer that gets a token for each request, with its context,
// from a server that is not well.
type chainTokens struct {
	next, tokens http.RoundTripper
	t            testing.TB
}

func (l chainTokens) RoundTrip(req *http.Request) (*http.Response, error) {
	token := request(l.t, "GET", "http://tokens.test/token", "").WithContext(req.Context())
	resp, err := l.tokens.RoundTrip(token)
	if err != nil {
		return nil, err
	}
	finish(l.t, resp)
	return l.next.RoundTrip(req)
}

func (l chainTokens) Unwrap() http.RoundTripper { return l.next }

// What a layer sends for itself has retries of its own, though it has the
// request's context, and what is sent later with a response's context as well.
func TestNestedButAnother(t *testing.T) {
	tokens := newChainStack(t, nil, chainConfigs(3), status(503), status(503), status(200))
	s := newChainStack(t, func(next http.RoundTripper) http.RoundTripper {
		return chainTokens{next, tokens.top, t}
	}, chainConfigs(3, 3), status(503))
	resp := s.send(t, request(t, "GET", "http://a.test/", ""))
	headers, numbers := tokens.trail()
	assert.Equal(t, []string{"", "1", "2", "", ""}, headers, "three for the first attempt, and one for each other")
	assert.Equal(t, []int{1, 2, 3, 1, 1}, numbers)
	headers, numbers = s.trail()
	assert.Equal(t, []string{"", "1", "2"}, headers)
	assert.Equal(t, []int{1, 2, 3}, numbers)

	require.Equal(t, 3, httpretry.Attempt(resp.Request.Context()))
	s.send(t, request(t, "GET", "http://a.test/", "").WithContext(resp.Request.Context()))
	headers, numbers = s.trail()
	assert.Equal(t, []string{"", "1", "2"}, headers[3:])
	assert.Equal(t, []int{1, 2, 3}, numbers[3:])

	plain := newChainStack(t, nil, chainConfigs(3), status(503))
	plain.send(t, request(t, "GET", "http://a.test/", "").WithContext(resp.Request.Context()))
	_, numbers = plain.trail()
	assert.Equal(t, []int{1, 2, 3}, numbers, "and not those of the request before")
}

// Layers may leave work behind, too: it is no part of the attempt any more.
func TestNestedLeftBehind(t *testing.T) {
	left := newChainStack(t, nil, chainConfigs(3), status(503))
	var ctx context.Context
	s := newChainStack(t, chainChanging(func(req *http.Request) *http.Request {
		ctx = context.WithoutCancel(req.Context())
		return req
	}), chainConfigs(3, 3), status(200))
	s.send(t, request(t, "GET", "http://a.test/", ""))
	left.send(t, request(t, "GET", "http://a.test/", "").WithContext(ctx))
	headers, _ := left.trail()
	assert.Equal(t, []string{"", "1", "2"}, headers)
}

// While a host cools down, the lower transport says so, and the upper one waits
// as long: only when that gives up is the request given up.
func TestNestedCooldown(t *testing.T) {
	for attempts, marks := range map[int]bool{1: true, 2: false} {
		synctest.Test(t, func(t *testing.T) {
			fail := chainPolicy(3)
			fail.Cooldown = httpretry.CooldownFail
			bottom := play(status(429, "Retry-After", "30"), status(200))
			lower := contract.New(t, httpretry.Config{Base: bottom, Policy: fail})
			single := request(t, "GET", "http://a.test/", "")
			resp, err := lower.RoundTrip(single.WithContext(httpretry.WithPolicy(t.Context(), httpretry.Policy{MaxAttempts: 1})))
			require.NoError(t, err)
			finish(t, resp)

			policy := chainPolicy(attempts)
			policy.MaxElapsed = time.Hour // so that it is seen to be one request
			upper := contract.New(t, httpretry.Config{Base: lower, Policy: policy})
			header := chainAnswer("0", func(ctx context.Context) {
				resp, err := upper.RoundTrip(single.WithContext(ctx))
				require.Equal(t, marks, err != nil, "%v", err)
				if err == nil {
					finish(t, resp)
				}
			})
			assert.Equal(t, marks, header.Get("X-Should-Retry") == "false", "%d attempts", attempts)
		})
	}
}

// Whatever a context is marked with, and in whatever order, it keeps all of it.
func TestMarksInAnyOrder(t *testing.T) {
	with := func(mark func(context.Context) context.Context) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(w, r.WithContext(mark(r.Context()))) })
		}
	}
	marks := []func(http.Handler) http.Handler{
		httpretry.Middleware,
		with(httpretry.WithIdempotent),
		with(func(ctx context.Context) context.Context { return httpretry.WithPolicy(ctx, chainPolicy(4)) }),
		with(func(ctx context.Context) context.Context { return chainAttempt(t, ctx) }),
	}
	for i := range 24 {
		order, rest := []int{}, []int{0, 1, 2, 3}
		for n := 4; n > 0; i, n = i/n, n-1 {
			order, rest = append(order, rest[i%n]), slices.Delete(slices.Clone(rest), i%n, i%n+1)
		}
		call := chainCall{method: "POST"}
		var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, 2, httpretry.Attempt(r.Context()), "%v", order)
			call.send(t, r.Context(), status(503))
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		for _, mark := range order {
			handler = marks[mark](handler)
		}
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, chainInbound(nil))
		var numbers []int
		for _, a := range call.base.attempts() {
			numbers = append(numbers, a.number)
		}
		assert.Equal(t, []int{1, 2, 3, 4}, numbers, "%v", order)
		assert.Equal(t, "false", rec.Result().Header.Get("X-Should-Retry"), "%v", order)
	}
}

// chainAttempt returns the context of a second attempt.
func chainAttempt(t testing.TB, ctx context.Context) context.Context {
	base := play(status(503), status(200))
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: chainPolicy(2)}).RoundTrip(request(t, "GET", "http://a.test/", "").WithContext(ctx))
	require.NoError(t, err)
	finish(t, resp)
	return resp.Request.Context()
}

// A body goes through all transports as it is, though it is answered before it
// has been sent, and again with the next attempt.
func TestNestedUploads(t *testing.T) {
	const size = 200 << 10
	forProtocols(t, func(t *testing.T, proto string) {
		var deliveries atomic.Int32
		base, srv := serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
			deliveries.Add(1)
			if httpretryAttempt(r) < 3 {
				answerEarly(w, r, http.StatusServiceUnavailable)
				return
			}
			seed, err := strconv.ParseUint(r.URL.Path[1:], 10, 64)
			assert.NoError(t, err)
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(pattern(seed, size), body), "another body")
		})
		policy := chainPolicy(3)
		policy.ReplayBuffer = size
		lower := contract.New(t, httpretry.Config{Base: base, Policy: policy})
		upper := contract.New(t, httpretry.Config{Base: lower, Policy: policy})
		var uploads sync.WaitGroup
		for i := range 12 {
			uploads.Go(func() {
				kind := []string{"stream", "GetBody", "file"}[i%3]
				resp, err := upper.RoundTrip(upload(t, kind, fmt.Sprintf("%s/%d", srv.URL, i), pattern(uint64(i), size)))
				if assert.NoError(t, err) {
					assert.Equal(t, http.StatusOK, resp.StatusCode)
					finish(t, resp)
				}
			})
		}
		uploads.Wait()
		assert.EqualValues(t, 36, deliveries.Load())
	})
}

// chainRing is a transport that says it is below itself.
type chainRing struct{ http.RoundTripper }

func (r *chainRing) Unwrap() http.RoundTripper { return r }

// Transports that say nothing of use about what they wrap do no harm.
func TestOddUnwraps(t *testing.T) {
	for name, layer := range map[string]chainLayer{
		"itself":  func(next http.RoundTripper) http.RoundTripper { return &chainRing{next} },
		"nothing": func(next http.RoundTripper) http.RoundTripper { return chainNothing{next} },
	} {
		s := newChainStack(t, layer, chainConfigs(3, 3), status(503))
		s.send(t, request(t, "GET", "http://a.test/", ""))
		assert.Len(t, s.bottom.attempts(), 5, name)
	}
}

type chainNothing struct{ http.RoundTripper }

func (chainNothing) Unwrap() http.RoundTripper { return nil }

// A request that a lower transport refuses, since a host is cooling down, was not
// sent by that; but a layer between may have sent it before it asked for something
// else, with the same context or its own.
func TestRefusedBelowIsNoProof(t *testing.T) {
	for _, own := range []bool{false, true} {
		bottom := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool { c.Respond(200, "done"); return true })
		lower := contract.New(t, httpretry.Config{
			Base: play(status(429, "Retry-After", "3600")), Policy: httpretry.Policy{Cooldown: httpretry.CooldownFail},
		})
		resp, err := lower.RoundTrip(request(t, "GET", "http://audit.test/", ""))
		require.NoError(t, err)
		finish(t, resp)

		sender := faults.Base(t, nil)
		upper := contract.New(t, httpretry.Config{Policy: every(0), Base: baseFunc(func(r *http.Request) (*http.Response, error) {
			sent := r
			if own {
				sent = r.WithContext(t.Context())
			}
			resp, err := sender.RoundTrip(sent)
			if err != nil {
				return nil, err
			}
			finish(t, resp)
			_, err = lower.RoundTrip(request(t, "GET", "http://audit.test/", "").WithContext(r.Context()))
			return nil, err
		})})
		_, err = upper.RoundTrip(request(t, "POST", bottom.URL(), "order"))
		var cooling *httpretry.CooldownError
		require.ErrorAs(t, err, &cooling)
		assert.EqualValues(t, 1, bottom.Requests.Load(), "own context: %v", own)
	}
}
