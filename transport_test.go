package httpretry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/strategies"
)

// A script has the step of each attempt.
type script = []contract.Step

// Steps of scripts.
var (
	s200    = contract.Status(200)
	s201    = contract.Status(201)
	s202    = contract.Status(202)
	s204    = contract.Status(204)
	s304    = contract.Status(304)
	s400    = contract.Status(400)
	s404    = contract.Status(404)
	s409    = contract.Status(409)
	s421    = contract.Status(421, "Connection", "close")
	s425    = contract.Status(425)
	s429    = contract.Status(429)
	s500    = contract.Status(500)
	s501    = contract.Status(501)
	s503    = contract.Status(503)
	reset   = contract.Fails(contract.ErrReset)
	refused = contract.Fails(contract.ErrRefused)
)

// unknownHost is the error of net/http for a host that DNS does not know.
var unknownHost = &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}

// refuses returns the answer of a server that asks not to retry.
func refuses(status int) contract.Step {
	return contract.Status(status, "X-Should-Retry", "false")
}

// newGet returns a GET of http://a.test/.
func newGet(t testing.TB) *http.Request {
	return contract.Request(t, http.MethodGet, "http://a.test/", "")
}

// TestFlow plays one request through every exit of the decision. Its last Event
// and its Result have the same Reason. Hazard D3: the response that ends the
// retries is the caller's, unread. Hazard I7: it is, too, if the budget is used
// up. Hazard J6: a 409 to a request with a key may mean that the first attempt is
// still being processed. A 422 means that the key was used for another request.
// Hazard K10: an Event has either a response or an error. Hazard K3: the error of
// a single attempt is Base's own, unless the budget is used up.
func TestFlow(t *testing.T) {
	type policy = httpretry.Policy
	const (
		success       = httpretry.ReasonSuccess
		permanent     = httpretry.ReasonPermanent
		attempts      = httpretry.ReasonAttempts
		disabled      = httpretry.ReasonDisabled
		notIdempotent = httpretry.ReasonNotIdempotent
		doNotRetry    = httpretry.ReasonDoNotRetry
		retryAfter    = httpretry.ReasonRetryAfter
		maxElapsed    = httpretry.ReasonMaxElapsed
		budget        = httpretry.ReasonBudget
	)
	insists := contract.Status(404, "X-Should-Retry", "true")
	later := contract.Status(503, "Retry-After", "61")
	for _, tt := range []struct {
		name, method, key string
		policy            func(*policy)
		steps             script
		attempts          int
		reason            httpretry.Reason
		status            int // of the response, 0: an error
	}{
		{"success", "GET", "", nil, script{s200}, 1, success, 200},
		{"client's fault", "GET", "", nil, script{s404}, 1, permanent, 404},
		{"503 then success", "GET", "", nil, script{s503, s200}, 2, success, 200},
		{"reset then success", "GET", "", nil, script{reset, s200}, 2, success, 200},
		{"always 503", "GET", "", nil, script{s503}, 5, attempts, 503},
		{"always reset", "GET", "", nil, script{reset}, 5, attempts, 0},
		{"error then 503s", "GET", "", nil, script{reset, s503}, 5, attempts, 503},
		{"POST 503", "POST", "", nil, script{s503}, 1, notIdempotent, 503},
		{"POST reset", "POST", "", nil, script{reset}, 1, notIdempotent, 0},
		{"POST refused", "POST", "", nil, script{refused, s201}, 2, success, 201},
		{"POST too early", "POST", "", nil, script{s425, s201}, 2, success, 201},
		{"POST misdirected twice", "POST", "", nil, script{s421}, 2, permanent, 421},
		{"keyed POST", "POST", "k", nil, script{s503, s201}, 2, success, 201},
		{"keyed POST in conflict with itself", "POST", "k", nil, script{s409, s201}, 2,
			success, 201},
		{"keyed POST that stays in conflict", "POST", "k", nil, script{s409}, 5, attempts, 409},
		{"key of another request", "POST", "k", nil, script{contract.Status(422)}, 1,
			permanent, 422},
		{"conflict without key", "PUT", "", nil, script{s409}, 1, permanent, 409},
		{"server refuses", "GET", "", nil, script{refuses(503)}, 1, doNotRetry, 503},
		{"server insists", "GET", "", nil, script{insists, s200}, 2, success, 200},
		{"server insists on a POST", "POST", "", nil, script{insists}, 1, notIdempotent, 404},
		{"success that refuses", "GET", "", nil, script{refuses(200)}, 1, success, 200},
		{"Retry-After too long", "GET", "", nil, script{later}, 1, retryAfter, 503},
		{"Retry-After too long and too late", "GET", "",
			func(p *policy) { p.MaxElapsed = time.Second },
			script{later}, 1, retryAfter, 503},
		{"no retries wanted", "GET", "", func(p *policy) { p.MaxAttempts = 1 },
			script{s503}, 1, disabled, 503},
		{"no retries wanted, error", "PUT", "", func(p *policy) { p.MaxAttempts = 1 },
			script{reset}, 1, disabled, 0},
		{"too late", "GET", "", func(p *policy) { p.MaxElapsed = 2500 * time.Millisecond },
			script{s503}, 3, maxElapsed, 503},
		{"too late, error", "PUT", "", func(p *policy) { p.MaxElapsed = time.Millisecond },
			script{reset}, 1, maxElapsed, 0},
		{"just in time", "GET", "", func(p *policy) { p.MaxElapsed = 2 * time.Second },
			script{s503}, 3, maxElapsed, 503},
		{"no budget", "GET", "", func(p *policy) { p.Budget = &httpretry.HostBudget{Burst: 2} },
			script{s503}, 3, budget, 503},
		{"no budget, error", "GET", "",
			func(p *policy) { p.Budget = &httpretry.HostBudget{Burst: -1} },
			script{reset}, 1, budget, 0},
		{"certain failure", "GET", "", nil, script{contract.Fails(unknownHost)}, 1, permanent, 0},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			policy := contract.RetryEvery(time.Second)
			if tt.policy != nil {
				tt.policy(&policy)
			}
			base, events := contract.Play(tt.steps...), new(contract.Record)
			transport := contract.Recorded(t, base, policy, events)
			body := ""
			if tt.method != "GET" {
				body = "payload"
			}
			req := contract.Request(t, tt.method, "http://a.test/", body)
			if tt.key != "" {
				req.Header.Set("Idempotency-Key", tt.key)
			}

			resp, err := transport.RoundTrip(req)

			assert.Len(t, base.Attempts(), tt.attempts)
			assert.Equal(t, tt.reason.String(), events.Reason().String())
			if tt.status != 0 {
				require.NoError(t, err)
				assert.Equal(t, tt.status, resp.StatusCode)
				contract.HasResult(t, resp, tt.attempts, tt.reason)
				assert.Equal(t, req.URL, resp.Request.URL)
				assert.Equal(t, "body of "+strconv.Itoa(tt.status), contract.ReadBody(t, resp))
			} else {
				wantErr := tt.steps[len(tt.steps)-1].Err
				if tt.attempts == 1 && tt.reason != httpretry.ReasonBudget {
					assert.True(t, err == wantErr,
						"a single attempt's error is returned as it came")
				} else {
					assert.Equal(t, &httpretry.Error{
						Attempts: tt.attempts, Reason: tt.reason, Err: wantErr}, err)
				}
			}
			for _, wait := range base.Waits() {
				assert.Equal(t, time.Second, wait)
			}
			assertEvents(t, events, tt.attempts, req)
			for _, a := range base.Attempts() {
				assert.Equal(t, body, a.Body)
			}
		})
	}
}

// assertEvents checks the rules for the events of every request.
func assertEvents(t *testing.T, events *contract.Record, attempts int, req *http.Request) {
	t.Helper()
	require.Len(t, events.Events, attempts)
	for i, e := range events.Events {
		assert.Same(t, req, e.Request)
		assert.Equal(t, i+1, e.Attempt.Number)
		assert.Equal(t, e.Response == nil, e.Err != nil)
		assert.Equal(t, time.Duration(i)*time.Second, e.Elapsed)
		assert.Equal(t, i == attempts-1, e.Reason != 0,
			"the last event, and no other, has a reason")
		assert.Equal(t, e.Reason == 0, e.Wait > 0)
	}
}

// Hazard A1, A9: a request that needs one attempt is sent as it is, and the
// base's response or error is returned as it is. Its Request is the caller's,
// which net/http may have copied.
func TestSuccessIsLeftAlone(t *testing.T) {
	keyed := contract.Request(t, "POST", "http://a.test/", "body")
	keyed.Header.Set("Idempotency-Key", "k")
	for name, req := range map[string]*http.Request{
		"GET":        newGet(t),
		"PUT":        contract.Request(t, "PUT", "http://a.test/", "body"),
		"keyed POST": keyed,
	} {
		for _, bases := range []*http.Request{nil, req, req.WithContext(req.Context())} {
			want := &http.Response{StatusCode: 200, Body: http.NoBody, Request: bases}
			base := contract.BaseFunc(func(sent *http.Request) (*http.Response, error) {
				assert.Same(t, req, sent, name)
				return want, nil
			})
			resp, err := contract.Unchecked(t, httpretry.Config{Base: base}).RoundTrip(req)
			require.NoError(t, err)
			assert.Same(t, want, resp, name)
			assert.Same(t, req, resp.Request, name)
		}
	}
}

func TestAttemptHeader(t *testing.T) {
	for configured, name := range map[string]string{
		"": "Retry-Attempt", "x-my-attempt": "X-My-Attempt", "-": ""} {
		t.Run(configured, func(t *testing.T) {
			base := contract.Play(s503, s503, s200)
			transport := contract.New(t, httpretry.Config{
				Base: base, Policy: contract.RetryEvery(0), AttemptHeader: configured})
			contract.Send(t, transport, newGet(t))
			want := []http.Header{{}, {name: {"1"}}, {name: {"2"}}}
			if name == "" {
				want = []http.Header{{}, {}, {}}
			}
			for i, a := range base.Attempts() {
				assert.Equal(t, want[i], a.Header)
				assert.Equal(t, i+1, a.Attempt)
			}
		})
	}
}

// Hazard A9: Response.Request is the caller's request, with a context that is
// still alive.
func TestResponseRequest(t *testing.T) {
	type key struct{}
	for _, steps := range []script{{s200}, {s503, s200}, {s503, s503, s200}} {
		t.Run(strconv.Itoa(len(steps)), func(t *testing.T) {
			policy := contract.RetryEvery(0)
			policy.AttemptTimeout = time.Minute
			ctx := context.WithValue(t.Context(), key{}, "value")
			req := contract.Request(t, "GET", "http://a.test/path", "").WithContext(ctx)
			resp := contract.Send(t, contract.With(t, contract.Play(steps...), policy), req)
			require.NoError(t, resp.Request.Context().Err())
			assert.Equal(t, "value", resp.Request.Context().Value(key{}))
			assert.Equal(t, len(steps), httpretry.Attempt(resp.Request.Context()))
			assert.Equal(t, req.URL, resp.Request.URL)
			assert.Equal(t, req.Header, resp.Request.Header)
			if len(steps) == 1 {
				assert.Same(t, req, resp.Request)
			}
		})
	}
	assert.Equal(t, 1, httpretry.Attempt(t.Context()))
}

// The request of a layer in Base remains Response.Request, however it differs
// from the one that the layer got.
func TestResponseRequestOfALayerDiffersInOneField(t *testing.T) {
	type key struct{}
	for name, change := range map[string]func(*http.Request){
		"URL":     func(r *http.Request) { r.URL = &url.URL{Scheme: "http", Host: "layer"} },
		"method":  func(r *http.Request) { r.Method = "layer" },
		"host":    func(r *http.Request) { r.Host = "layer" },
		"header":  func(r *http.Request) { r.Header = http.Header{"X-By": {"layer"}} },
		"context": func(*http.Request) {},
	} {
		for _, steps := range []script{{s200}, {s503, s200}} {
			t.Run(fmt.Sprintf("%s/%d", name, len(steps)), func(t *testing.T) {
				script := contract.Play(steps...)
				var own *http.Request
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					resp, err := script.RoundTrip(req)
					ctx := req.Context()
					if name == "context" {
						ctx = context.WithValue(ctx, key{}, "layer")
					}
					own = req.WithContext(ctx)
					change(own)
					resp.Request = own
					return resp, err
				})
				resp := contract.Send(t, contract.With(t, base, contract.RetryEvery(0)), newGet(t))
				got := resp.Request
				assert.Equal(t, []any{own.URL, own.Method, own.Host, own.Header},
					[]any{got.URL, got.Method, got.Host, got.Header})
				assert.Equal(t, own.Context().Value(key{}), got.Context().Value(key{}))
				contract.HasResult(t, resp, len(steps), httpretry.ReasonSuccess)
			})
		}
	}
}

// A base that serves from memory may return one Response again and again, whose
// Request is the caller's own since it was returned first.
func TestResponseOfTheRequestBefore(t *testing.T) {
	kept := &http.Response{StatusCode: 200, ProtoMajor: 1, Header: http.Header{}, Body: http.NoBody}
	script := contract.Play(s200, s503, s200)
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		resp, err := script.RoundTrip(req)
		if err == nil && resp.StatusCode == 200 {
			return kept, nil
		}
		return resp, err
	})
	policy := contract.RetryEvery(0)
	policy.AttemptTimeout = time.Minute
	transport, req := contract.With(t, base, policy), newGet(t)
	for _, want := range []int{1, 2} {
		resp, err := transport.RoundTrip(req)
		require.NoError(t, err)
		contract.HasResult(t, resp, want, httpretry.ReasonSuccess)
		assert.Equal(t, want == 1, resp.Request == req)
	}
}

// A layer may send a request of its own in a context that is not derived from
// the attempt's. After a copy, that request remains Response.Request, and the
// attempt keeps its context.
func TestResponseRequestInAContextOfALayer(t *testing.T) {
	type key struct{}
	own := newGet(t).WithContext(context.WithValue(context.Background(), key{}, "layer"))
	script := contract.Play(s503, s200)
	var sent context.Context
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		sent = req.Context()
		resp, err := script.RoundTrip(req)
		resp.Request = own
		return resp, err
	})
	ctx := context.WithValue(t.Context(), key{}, "caller")
	resp, err := contract.With(t, base, contract.RetryEvery(0)).
		RoundTrip(newGet(t).WithContext(ctx))
	require.NoError(t, err)
	contract.ReadBody(t, resp)
	assert.Same(t, own, resp.Request)
	assert.Equal(t, "caller", sent.Value(key{}))
}

// Hazard A7, D6: results that a base must not return, and results of fakes.
func TestBadBase(t *testing.T) {
	t.Run("nothing", func(t *testing.T) {
		base := contract.BaseFunc(func(*http.Request) (*http.Response, error) { return nil, nil })
		_, err := contract.With(t, base, contract.RetryEvery(0)).RoundTrip(newGet(t))
		assert.EqualError(t, err,
			"httpretry: gave up after 5 attempts (attempts_exhausted): the base transport "+
				"returned neither a response nor an error; hint: "+httpretry.ReasonAttempts.Hint())
	})
	t.Run("both", func(t *testing.T) {
		body := contract.Counted("")
		base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: body}, contract.ErrReset
		})
		policy := httpretry.Policy{MaxAttempts: 1}
		_, err := contract.With(t, base, policy).
			RoundTrip(contract.Request(t, "POST", "http://a.test/", ""))
		assert.True(t, err == contract.ErrReset)
		assert.EqualValues(t, 1, body.Closes())
	})
	t.Run("no body", func(t *testing.T) {
		statuses := []int{503, 503, 200}
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: statuses[httpretry.Attempt(req.Context())-1]}, nil
		})
		resp, err := contract.With(t, base, contract.RetryEvery(0)).RoundTrip(newGet(t))
		require.NoError(t, err)
		assert.Equal(t, 200, resp.StatusCode)
		assert.Nil(t, resp.Body)
	})
	contract.Bubble(t, "one response for all", func(t *testing.T) {
		resp, seconds, start := &http.Response{StatusCode: 503}, 1, time.Now()
		base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
			resp.Header = http.Header{"Retry-After": {strconv.Itoa(seconds)}}
			seconds *= 10
			return resp, nil
		})
		policy := contract.RetryEvery(0)
		policy.MaxAttempts = 3
		_, err := contract.With(t, base, policy).RoundTrip(newGet(t))
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Since(start), 11*time.Second)
	})
	t.Run("header nil", func(t *testing.T) {
		base := contract.Play(s503, s200)
		req := newGet(t)
		req.Header = nil
		contract.Send(t, contract.With(t, base, contract.RetryEvery(0)), req)
		assert.Nil(t, base.Attempts()[1].Header)
	})
	t.Run("URL nil", func(t *testing.T) {
		_, err := contract.New(t, httpretry.Config{}).
			RoundTrip(&http.Request{Header: http.Header{}})
		assert.EqualError(t, err, "http: nil Request.URL")
	})
}

// A request without a header map fails as in net/http. No header of the library
// makes it valid.
func TestNoHeaderMap(t *testing.T) {
	keyed, copied := contract.RetryEvery(0), contract.RetryEvery(0)
	keyed.NewIdempotencyKey = httpretry.RandomKey
	copied.AttemptTimeout = time.Minute
	srv := contract.NewServer(t,
		func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	send := func(ctx context.Context) {
		for _, policy := range []httpretry.Policy{{}, keyed, copied} {
			for _, method := range []string{"PUT", "POST"} {
				body := contract.Counted("text")
				req := contract.Streamed(t, method, srv.URL, body).
					WithContext(httpretry.WithPolicy(ctx, policy))
				req.Header = nil
				_, err := contract.New(t, httpretry.Config{}).RoundTrip(req)
				require.EqualError(t, err, "http: nil Request.Header")
				assert.EqualValues(t, 1, body.Closes())
			}
		}
	}
	send(t.Context())
	receive(t.Context(), "1", func(r *http.Request) { send(r.Context()) })

	// A layer that has sent nothing does not make it one that is sent either.
	script, net := contract.Play(refused), srv.Client().Transport
	layer := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		if httpretry.Attempt(req.Context()) == 1 {
			return script.RoundTrip(req)
		}
		return net.RoundTrip(req)
	})
	req := contract.Request(t, "POST", srv.URL, "")
	req.Header = nil
	_, err := contract.With(t, layer, keyed).RoundTrip(req)
	require.EqualError(t, err,
		"httpretry: gave up after 2 attempts (permanent): http: nil Request.Header")

	// A Base that sends it gets no key, so it must get the request once.
	base := contract.Play(s503)
	req = contract.Request(t, "POST", "http://a.test/", "")
	req.Header = nil
	contract.Send(t, contract.With(t, base, keyed), req)
	assert.Len(t, base.Attempts(), 1)
}

// Hazard A2: each attempt has the caller's header, and shares nothing with it or
// with another attempt.
func TestHeaderCopy(t *testing.T) {
	many := http.Header{}
	for i := range 8 {
		many[fmt.Sprintf("X-%d", i)] = []string{"a", "b"}
	}
	for name, given := range map[string]http.Header{
		"nil":              nil,
		"empty":            {},
		"one":              {"X-One": {"1"}},
		"nil or no values": {"User-Agent": nil, "X-None": {}, "X-One": {"1"}},
		"several values": {
			"X-One": {"1"}, "X-Six": {"1", "2", "3", "4", "5", "6"}, "X-Two": {"1", "2"}},
		"room for more": {"X-One": append(make([]string, 0, 4), "1"),
			"X-Two": append(make([]string, 0, 4), "1", "2")},
		"many": many,
	} {
		t.Run(name, func(t *testing.T) {
			req := contract.Request(t, "POST", "http://a.test/", "")
			req.Header = given
			want := given.Clone()
			attempts := 0
			base := contract.BaseFunc(func(sent *http.Request) (*http.Response, error) {
				attempts++
				assert.Equal(t, want, sent.Header)
				for name, values := range sent.Header {
					sent.Header[name] = append(values, "added")
					for i := range values {
						values[i] = "changed"
					}
				}
				for _, values := range sent.Header {
					assert.Equal(t, []string{"added"}, values[len(values)-1:])
					assert.NotContains(t, values[:len(values)-1], "added", "of another field")
				}
				return answering(425)(sent)
			})
			contract.Send(t, contract.New(t, httpretry.Config{
				Base: base, Policy: immediateRetries(3), AttemptHeader: "-"}), req)
			assert.Equal(t, 3, attempts)
			assert.Equal(t, want, req.Header)
			for _, values := range req.Header {
				assert.NotContains(t, values[:cap(values)], "added")
			}
		})
	}
}

// Hazard A11, K2: the zero value works. Unwrap returns the base.
func TestZeroTransport(t *testing.T) {
	srv := contract.NewServer(t,
		func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	var transport httpretry.RetryTransport
	client := &http.Client{Transport: &transport}
	defer client.CloseIdleConnections()
	resp, err := client.Get(srv.URL)
	require.NoError(t, err)
	assert.Equal(t, "hello", contract.ReadBody(t, resp))
	assert.IsType(t, new(http.Transport), transport.Unwrap())
	assert.Same(t, transport.Unwrap(), transport.Unwrap(), "all requests have the same base")

	base := contract.Play(s200)
	assert.Same(t, base, contract.Unchecked(t, httpretry.Config{Base: base}).Unwrap())
}

// cycle is a transport that contains itself.
type cycle struct {
	http.RoundTripper
	asked int
}

func (c *cycle) Unwrap() http.RoundTripper {
	if c.asked++; c.asked > 10_000 {
		panic("New does not end")
	}
	return c
}

// New returns even if transports contain each other in a cycle.
func TestUnwrapCycle(t *testing.T) {
	base := &cycle{RoundTripper: contract.Play(s503, s200)}
	resp, err := contract.With(t, base, contract.RetryEvery(0)).RoundTrip(newGet(t))
	require.NoError(t, err)
	assert.Equal(t, "body of 200", contract.ReadBody(t, resp))
}

// Through forwards CloseIdleConnections to the layer and to its base, and names
// what is nil.
func TestThrough(t *testing.T) {
	layer, base := &contract.IdleCloser{}, &contract.IdleCloser{}
	client := &http.Client{Transport: contract.Unchecked(t,
		httpretry.Config{Base: httpretry.Through(layer, base)})}
	client.CloseIdleConnections()
	assert.Equal(t, []int{1, 1}, []int{layer.Closed, base.Closed})

	for _, pair := range [][2]http.RoundTripper{
		{nil, base}, {layer, nil}, {(*http.Transport)(nil), base}, {layer, (*http.Transport)(nil)},
	} {
		assert.PanicsWithValue(t, fmt.Sprintf("httpretry: Through: a %T and a %T: "+
			"want two transports that are not nil", pair[0], pair[1]),
			func() { httpretry.Through(pair[0], pair[1]) })
	}
}

// Hazard K1: CloseIdleConnections is forwarded.
func TestCloseIdleConnections(t *testing.T) {
	base := &contract.IdleCloser{}
	client := &http.Client{Transport: contract.Unchecked(t, httpretry.Config{Base: base})}
	client.CloseIdleConnections()
	assert.Equal(t, 1, base.Closed)

	// which has no such method
	client.Transport = contract.Unchecked(t, httpretry.Config{Base: contract.Play()})
	client.CloseIdleConnections()
}

// Hazard G1, G4: a cancel of the context, or by Request.Cancel, ends a wait at once.
func TestCancelDuringWait(t *testing.T) {
	cause := errors.New("the user closed the window")
	for text, tt := range map[string]struct {
		cause  error
		legacy bool // by Request.Cancel
	}{
		"context canceled: the user closed the window": {cause: cause},
		"context canceled": {},
		"request canceled": {legacy: true},
	} {
		contract.Bubble(t, text, func(t *testing.T) {
			base, events := contract.Play(s503), new(contract.Record)
			transport := contract.Recorded(t, base, contract.RetryEvery(time.Hour), events)
			ctx, cancel := context.WithCancelCause(t.Context())
			req := newGet(t).WithContext(ctx)
			if tt.legacy {
				ch := make(chan struct{})
				req.Cancel = ch //nolint:staticcheck // http.Client sets it
				cancel = func(error) { close(ch) }
			}
			time.AfterFunc(time.Minute, func() { cancel(tt.cause) })
			start := time.Now()
			_, err := transport.RoundTrip(req)
			assert.Equal(t, time.Minute, time.Since(start))
			assert.EqualError(t, err, "httpretry: gave up after 1 attempt (canceled): "+text+
				" (last attempt: status 503)")
			assert.Equal(t, !tt.legacy, errors.Is(err, context.Canceled))
			assert.Equal(t, tt.cause != nil, errors.Is(err, cause))
			assert.Len(t, base.Attempts(), 1)
			require.Len(t, events.Events, 2)
			assert.Equal(t, time.Hour, events.Events[0].Wait)
			assert.Equal(t, httpretry.ReasonCanceled, events.Events[1].Reason)
			assert.Equal(t, 1, events.Events[1].Attempt.Number)
		})
	}
}

// Hazard G6: a response that comes as the caller cancels is returned, and not
// retried.
func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		cancel()
		return contract.Play(s503).RoundTrip(req)
	})
	events := new(contract.Record)
	resp, err := contract.New(t, httpretry.Config{Base: base, Observe: events.Observe}).
		RoundTrip(newGet(t).WithContext(ctx))
	require.NoError(t, err)
	assert.Equal(t, "body of 503", contract.ReadBody(t, resp))
	assert.Equal(t, httpretry.ReasonCanceled, events.Reason())
}

// Hazard G2: no wait begins that would end at or after the deadline, even if
// the server asks for it. A wait that ends a nanosecond earlier begins.
func TestDeadline(t *testing.T) {
	asks := asksFor(1)
	for _, tt := range []struct {
		step     contract.Step
		deadline time.Duration
		attempts int
	}{
		{s503, time.Second - 1, 1},
		{s503, time.Second, 1},
		{s503, time.Second + 1, 2},
		{s503, 3 * time.Second, 3},
		{asks, time.Second - 1, 1},
		{asks, time.Second, 1},
		{asks, time.Second + 1, 2},
	} {
		name := fmt.Sprintf("%d/%v", tt.step.Status, tt.deadline)
		contract.Bubble(t, name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tt.deadline)
			defer cancel()
			base, events := contract.Play(tt.step), new(contract.Record)
			start := time.Now()
			resp, err := contract.Recorded(t, base, contract.RetryEvery(time.Second), events).
				RoundTrip(newGet(t).WithContext(ctx))
			require.NoError(t, err)
			assert.Equal(t, tt.step.Body, contract.ReadBody(t, resp))
			assert.Len(t, base.Attempts(), tt.attempts)
			assert.Equal(t, httpretry.ReasonDeadline, events.Reason())
			assert.Equal(t, time.Duration(tt.attempts-1)*time.Second, time.Since(start))
		})
	}
}

// The Reason names the limit that is nearer.
func TestNearerLimit(t *testing.T) {
	for _, tt := range []struct {
		elapsed, deadline time.Duration
		reason            httpretry.Reason
	}{
		{2 * time.Second, 3 * time.Second, httpretry.ReasonMaxElapsed},
		{3 * time.Second, 2 * time.Second, httpretry.ReasonDeadline},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tt.deadline)
			defer cancel()
			policy, events := contract.RetryEvery(time.Minute), new(contract.Record)
			policy.MaxElapsed = tt.elapsed
			contract.Send(t, contract.Recorded(t, contract.Play(s503), policy, events),
				newGet(t).WithContext(ctx))
			assert.Equal(t, tt.reason.String(), events.Reason().String())
		})
	}
}

// Hazard F: clients that were told the same wait come back spread out, and never
// earlier than told, or than the backoff of 2 s. The spread is shortened to the
// time that the deadline leaves. The wait is not.
func TestRetryAfterWait(t *testing.T) {
	const s = time.Second
	for name, tt := range map[string]struct {
		asked                   int
		shortest, longest, left time.Duration
	}{
		"shorter than the backoff": {1, 2 * s, 3 * s, time.Hour},
		"longer":                   {40, 40 * s, 50 * s, time.Hour},
		"before the deadline":      {40, 40 * s, 41*s - 1, 41 * s},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			seen := map[time.Duration]bool{}
			for range 50 {
				ctx, cancel := context.WithTimeout(t.Context(), tt.left)
				base := contract.Play(asksFor(tt.asked), s200)
				contract.Send(t, contract.With(t, base, contract.RetryEvery(2*s)),
					newGet(t).WithContext(ctx))
				cancel()
				require.Len(t, base.Attempts(), 2)
				wait := base.Waits()[0]
				assert.GreaterOrEqual(t, wait, tt.shortest)
				assert.LessOrEqual(t, wait, tt.longest)
				seen[wait] = true
			}
			assert.Greater(t, len(seen), 40)
		})
	}
}

// A Backoff that is set applies after a 429, too.
func TestBackoffAfter429(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := contract.RetryEvery(0)
		policy.Backoff = strategies.Func(
			func(retry int) time.Duration { return time.Duration(retry+1) * time.Second })
		base := contract.Play(s503, s429, s503, s429, s200)
		contract.Send(t, contract.With(t, base, policy), newGet(t))
		assert.Equal(t, []time.Duration{
			time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}, base.Waits())
	})
}

// The defaults: three attempts, a first wait of about half a second, and of
// about 1.5 seconds after a 429 and after a second failure. Each of the two has
// a sequence of its own.
func TestDefaults(t *testing.T) {
	for _, tt := range []struct {
		policy httpretry.Policy
		steps  script
		limit  time.Duration // of the last wait
	}{
		{httpretry.Policy{MaxAttempts: 2}, script{s503, s503}, 700 * time.Millisecond},
		{httpretry.Policy{}, script{s503, s503, s503}, 2100 * time.Millisecond},
		{httpretry.Policy{MaxAttempts: 4}, script{s503, s503, s503, s503}, 4300 * time.Millisecond},
		{httpretry.Policy{MaxAttempts: 2}, script{s429, s429}, 2100 * time.Millisecond},
		{httpretry.Policy{}, script{s429, s429, s429}, 4300 * time.Millisecond},
		{httpretry.Policy{MaxAttempts: 4}, script{s503, s429, s503, s503}, 4300 * time.Millisecond},
	} {
		requireLongest(t, tt.limit, func(t *testing.T) time.Duration {
			base := contract.Play(tt.steps...)
			contract.Send(t, contract.With(t, base, tt.policy), newGet(t))
			require.Len(t, base.Attempts(), len(tt.steps))
			return base.Waits()[len(tt.steps)-2]
		})
	}
}

// Hazard A11: a negative wait of a strategy counts as 0, and a very long one
// does not overflow.
func TestExtremeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, wait := range []time.Duration{-time.Hour, 0, 1 << 62, 1<<63 - 1} {
			policy := contract.RetryEvery(0)
			policy.Backoff = strategies.Func(func(int) time.Duration { return wait })
			policy.MaxRetryAfter = 1<<63 - 1
			base := contract.Play(contract.Status(503, "Retry-After", "99999999999999999999"), s200)
			if wait <= 0 {
				base = contract.Play(s503, s200)
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Hour, cancel)
			err := exchange(t, contract.With(t, base, policy), newGet(t).WithContext(ctx))
			if wait > 0 {
				require.ErrorIs(t, err, context.Canceled)
				assert.Len(t, base.Attempts(), 1)
				continue
			}
			require.NoError(t, err)
			assert.Equal(t, []time.Duration{0}, base.Waits())
		}
	})
}

// The calls of a budget, in their order, and the host's name in them. Hazard I6:
// only retries are charged.
func TestBudgetCalls(t *testing.T) {
	for _, tt := range []struct {
		name, method string
		steps        script
		want         string // of the origin
	}{
		{"success", "GET", script{s200}, "success"},
		{"refusal that stands", "GET", script{s404}, "success"},
		{"success in the end", "GET", script{s503, s503, s200},
			"failure, withdraw, charged failure, withdraw, charged success"},
		{"failure", "GET", script{s503, s501}, "failure, withdraw, charged success"},
		{"failure in the end", "GET", script{s503}, "failure" +
			strings.Repeat(", withdraw, charged failure", 4)},
		{"429 whose wait is obeyed", "GET",
			script{contract.Status(429, "Retry-After", "0.001"), s200},
			"failure, withdraw, charged success"},
		{"429 without a wait", "GET", script{s429, s200}, "failure, withdraw, charged success"},
		{"server refuses", "GET", script{refuses(503)}, "failure"},
		{"too long a wait", "GET", script{asksFor(3600)}, "failure"},
		{"server refuses a final failure", "GET", script{refuses(402)}, "success"},
		{"certain error", "GET", script{contract.Fails(unknownHost)}, "nothing"},
		{"not safe", "POST", script{reset}, "failure"},
		{"not safe, 503", "POST", script{s503}, "failure"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			budget := &contract.Ledger{}
			policy := contract.RetryEvery(0)
			policy.Budget = budget
			_ = exchange(t, contract.With(t, contract.Play(tt.steps...), policy),
				contract.Request(t, tt.method, "http://A.test:80/", ""))
			got := strings.ReplaceAll(strings.Join(budget.Entries, ", "), " http://a.test", "")
			assert.Equal(t, tt.want, got)
		})
	}
}

// Policies without a Budget share that of the transport.
func TestSharedBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.Play(s503)
		policy := httpretry.Policy{MaxAttempts: 3}
		transport := contract.New(t,
			httpretry.Config{Base: base, Policies: map[string]httpretry.Policy{"a.test": policy}})
		ctx := httpretry.WithPolicy(t.Context(), policy)
		for _, ctx := range []context.Context{t.Context(), ctx, t.Context()} {
			contract.Send(t, transport, newGet(t).WithContext(ctx))
		}
		assert.Len(t, base.Attempts(), 3+5, "three requests and a burst of five retries")
	})
}

// panickyContext is a context whose methods panic from a certain call on.
type panickyContext struct {
	context.Context
	left *atomic.Int64 // calls until then
}

func (c panickyContext) spring() {
	if c.left.Add(-1) < 0 {
		panic("boom")
	}
}

func (c panickyContext) Value(key any) any { c.spring(); return c.Context.Value(key) }

func (c panickyContext) Err() error { c.spring(); return c.Context.Err() }

func (c panickyContext) Done() <-chan struct{} { c.spring(); return c.Context.Done() }

func (c panickyContext) Deadline() (time.Time, bool) { c.spring(); return c.Context.Deadline() }

// Hazard K4: a panic of the request's context leaves nothing open, and no request
// that waits, whichever of its calls it is.
func TestContextPanics(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Hour} {
		for _, rewindable := range []bool{false, true} {
			for calls := int64(0); ; calls++ {
				panicked := contextPanics(t, timeout, rewindable, calls)
				if require.Less(t, calls, int64(1000)); !panicked {
					assert.Greater(t, calls, int64(10))
					break
				}
			}
		}
	}
}

// contextPanics sends a request whose context panics after a number of calls,
// and reports whether it was called more often than that.
func contextPanics(t *testing.T, timeout time.Duration, rewindable bool, calls int64,
) (panicked bool) {
	var bodies []*contract.Body
	counted := func() *contract.Body {
		bodies = append(bodies, contract.Counted("text"))
		return bodies[len(bodies)-1]
	}
	sent, budget := 0, contract.Audit{Budget: httpretry.Unlimited{}}
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		sent++
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
		status := 503
		if len(bodies) > 3 {
			status = 200
		}
		return &http.Response{StatusCode: status, Body: counted(), Request: req}, nil
	})
	policy := contract.RetryEvery(time.Millisecond)
	policy.AttemptTimeout, policy.Budget = timeout, &budget
	transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
	ctx := panickyContext{t.Context(), new(atomic.Int64)}
	ctx.left.Store(calls)
	req := contract.Streamed(t, "PUT", "http://a.test/", counted()).WithContext(ctx)
	if rewindable {
		req.GetBody = func() (io.ReadCloser, error) { return counted(), nil }
	}
	defer func() {
		panicked = recover() != nil
		budget.Check(t, sent, "with a panic after", calls)
		for _, origin := range transport.Origins() {
			assert.Zero(t, origin.Waiting, "with a panic after %d calls", calls)
		}
		for i, body := range bodies {
			assert.Equal(t, 1, body.Closes(), "closes of body %d, with a panic after %d calls",
				i, calls)
		}
	}()
	resp, err := transport.RoundTrip(req)
	require.NoError(t, err)
	ctx.left.Store(math.MaxInt64)
	contract.ReadBody(t, resp)
	return false
}

// The budget gets the end of an attempt in which Base has panicked, also if that
// sent the caller's own request. A retry is not refunded, because it may have
// been sent.
func TestBudgetOfAPanic(t *testing.T) {
	const first = "nothing http://a.test"
	for attempt, want := range map[int][]string{1: {first}, 2: {
		"failure http://a.test", "withdraw http://a.test", "charged " + first}} {
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			if httpretry.Attempt(req.Context()) == attempt {
				panic("boom")
			}
			return answering(503)(req)
		})
		budget, policy := new(contract.Ledger), contract.RetryEvery(0)
		policy.Budget = budget
		transport := contract.With(t, base, policy)
		assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(newGet(t)) })
		assert.Equal(t, want, budget.Entries)
	}
}

// Each field of a Policy either matters only once an attempt has failed, or it
// keeps requests from being plain.
func TestFieldsOfPlainPolicies(t *testing.T) {
	classify := func(*http.Request, *http.Response, error) httpretry.Outcome {
		return httpretry.Final
	}
	fields := map[string]struct {
		value   any
		isPlain bool
	}{
		"MaxAttempts":       {7, true},
		"Backoff":           {strategies.Constant{}, true},
		"RetryAfter":        {func(*http.Response) (time.Duration, bool) { return 0, false }, true},
		"MaxRetryAfter":     {time.Hour, true},
		"AttemptTimeout":    {time.Hour, false},
		"ReadAhead":         {int64(7), false},
		"MaxElapsed":        {time.Hour, false},
		"Budget":            {contract.UsedUp{}, false},
		"Cooldown":          {httpretry.CooldownWait, false},
		"CooldownKey":       {func(*http.Request) string { return "" }, true},
		"Classify":          {classify, false},
		"Idempotent":        {httpretry.Idempotent, false},
		"NewIdempotencyKey": {httpretry.RandomKey, true}, // a plain request needs none
		"IdempotencyHeader": {"Request-Id", true},
		"ReplayBuffer":      {int64(7), true}, // the body of a plain request has GetBody
		"Resume":            {true, false},
		"ResumeSame":        {func(_, _ *http.Response) bool { return true }, true}, // of Resume
		"ResumeIdle":        {time.Hour, true},                                      // of Resume
	}
	assert.True(t, httpretry.IsPlain(httpretry.Policy{}))
	assert.True(t, httpretry.IsPlain(httpretry.Policy{Budget: new(httpretry.HostBudget)}))
	assert.True(t, httpretry.IsPlain(httpretry.Policy{Budget: httpretry.Unlimited{}}))
	for f := range reflect.TypeFor[httpretry.Policy]().Fields() {
		want, ok := fields[f.Name]
		if !f.IsExported() || !assert.True(t, ok,
			"%s: want it in the table, and in allowsPlain if it matters to a success", f.Name) {
			continue
		}
		var p httpretry.Policy
		reflect.ValueOf(&p).Elem().FieldByName(f.Name).Set(reflect.ValueOf(want.value))
		assert.Equal(t, want.isPlain, httpretry.IsPlain(p), f.Name)
	}
}

// A plain request that was canceled before is not sent, and its error is that
// of its context.
func TestPlainRequestCanceledBefore(t *testing.T) {
	base := contract.Play(s200)
	transport := contract.New(t, httpretry.Config{Base: base})
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("cause")
	cancel(cause)
	_, err := transport.RoundTrip(newGet(t).WithContext(ctx))
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, err, cause)
	assert.EqualError(t, err, "context canceled: cause")

	req, canceled := newGet(t), make(chan struct{})
	close(canceled)
	req.Cancel = canceled //nolint:staticcheck // http.Client sets it
	_, err = transport.RoundTrip(req)
	requireError(t, err, 0, httpretry.ReasonCanceled)
	assert.Empty(t, base.Attempts())
}

// The success of a plain request ends a cool-down.
func TestPlainSuccessEndsCooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := contract.With(t,
			contract.Play(asksFor(30), s200), httpretry.Policy{MaxAttempts: 1})
		get := func(ctx context.Context) error {
			return exchange(t, transport, newGet(t).WithContext(ctx))
		}
		failing := httpretry.WithPolicy(
			t.Context(), httpretry.Policy{Cooldown: httpretry.CooldownFail})
		require.NoError(t, get(t.Context())) // the 429
		requireError(t, get(failing), 0, httpretry.ReasonCooldown)
		require.NoError(t, get(t.Context()))
		assert.NoError(t, get(failing))
	})
}

// requireError requires an Error with that number of attempts and that reason.
func requireError(t *testing.T, err error, attempts int, reason httpretry.Reason) {
	t.Helper()
	var e *httpretry.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, attempts, e.Attempts)
	assert.Equal(t, reason, e.Reason)
}

// A layer must not replace or clear the body of a plain request. If it does, the
// retries still send the same bytes.
func TestLayerChangesBodyOfPlainRequest(t *testing.T) {
	for _, change := range []func(*http.Request){
		// as recorders for tests do
		func(req *http.Request) { req.Body = struct{ io.ReadCloser }{req.Body} },
		func(req *http.Request) { req.Body, req.GetBody = nil, nil },
	} {
		var sent []string
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			body, err := io.ReadAll(req.Body)
			sent = append(sent, string(body))
			change(req)
			return &http.Response{StatusCode: 503, Body: http.NoBody, Request: req}, err
		})
		transport := contract.Unchecked(t, httpretry.Config{
			Base: base, Policy: httpretry.Policy{Backoff: strategies.Constant{}}})
		contract.Send(t, transport, contract.Request(t, "PUT", "http://a.test/", "text"))
		assert.Equal(t, []string{"text", "text", "text"}, sent)
	}
}

// Some layers replace the body of each request, such as go-vcr, which breaks
// the contract of http.RoundTripper. A request without a body is still retried
// without one.
func TestLayerThatReplacesBodies(t *testing.T) {
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		for _, timeout := range []time.Duration{0, time.Minute} { // plain, and not
			sent := 0
			transport := contract.Unchecked(t, httpretry.Config{
				Policy: httpretry.Policy{AttemptTimeout: timeout, Backoff: strategies.Constant{}},
				Base: contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					if sent > 0 || timeout > 0 {
						assert.True(t, req.Body == body, "attempt %d: %v", sent+1, req.Body)
					}
					sent++
					req.Body = io.NopCloser(strings.NewReader(""))
					return &http.Response{StatusCode: 503, Body: http.NoBody, Request: req}, nil
				}),
			})
			contract.Send(t, transport, contract.Streamed(t, "GET", "http://a.test/", body))
			assert.Equal(t, 3, sent)
		}
	}
}

// Base may have a URL for a request that has none.
func TestRequestWithoutURL(t *testing.T) {
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		sent := contract.Request(t, req.Method, "http://a.test/", "")
		return &http.Response{StatusCode: 200, ProtoMajor: 1, Body: http.NoBody, Request: sent}, nil
	})
	transport := contract.Unchecked(t, httpretry.Config{Base: base})
	for _, method := range []string{"GET", "POST"} {
		resp, err := transport.RoundTrip(&http.Request{Method: method, Header: http.Header{}})
		require.NoError(t, err)
		assert.Equal(t, 200, resp.StatusCode)
	}
}
