package httpretry_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/strategies"
)

var (
	errReset   = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
)

// TestFlow plays one request through every exit of the decision. Hazard D3: a
// response that ends the retries is the caller's, unread.
func TestFlow(t *testing.T) {
	keyed := func(req *http.Request) { req.Header.Set("Idempotency-Key", "k") }
	tests := []struct {
		name     string
		method   string
		prepare  func(*http.Request)
		policy   func(*httpretry.Policy)
		steps    []step
		attempts int
		reason   httpretry.Reason
		status   int // of the response, 0: an error
	}{
		{name: "success", steps: []step{status(200)}, attempts: 1, reason: httpretry.ReasonFinal, status: 200},
		{name: "client's fault", steps: []step{status(404)}, attempts: 1, reason: httpretry.ReasonFinal, status: 404},
		{name: "503 then success", steps: []step{status(503), status(200)}, attempts: 2, reason: httpretry.ReasonFinal, status: 200},
		{name: "reset then success", steps: []step{fails(errReset), status(200)}, attempts: 2, reason: httpretry.ReasonFinal, status: 200},
		{name: "always 503", steps: []step{status(503)}, attempts: 5, reason: httpretry.ReasonAttempts, status: 503},
		{name: "always reset", steps: []step{fails(errReset)}, attempts: 5, reason: httpretry.ReasonAttempts},
		{name: "error then 503s", steps: []step{fails(errReset), status(503)}, attempts: 5, reason: httpretry.ReasonAttempts, status: 503},
		{name: "POST 503", method: "POST", steps: []step{status(503)}, attempts: 1, reason: httpretry.ReasonNotIdempotent, status: 503},
		{name: "POST reset", method: "POST", steps: []step{fails(errReset)}, attempts: 1, reason: httpretry.ReasonNotIdempotent},
		{name: "POST refused", method: "POST", steps: []step{fails(errRefused), status(201)}, attempts: 2, reason: httpretry.ReasonFinal, status: 201},
		{name: "POST too early", method: "POST", steps: []step{status(425), status(201)}, attempts: 2, reason: httpretry.ReasonFinal, status: 201},
		{name: "POST misdirected twice", method: "POST", steps: []step{status(421)}, attempts: 2, reason: httpretry.ReasonFinal, status: 421},
		{name: "keyed POST", method: "POST", prepare: keyed, steps: []step{status(503), status(201)}, attempts: 2, reason: httpretry.ReasonFinal, status: 201},
		{name: "keyed POST in conflict with itself", method: "POST", prepare: keyed, steps: []step{status(409), status(201)}, attempts: 2, reason: httpretry.ReasonFinal, status: 201},
		{name: "conflict without key", method: "PUT", steps: []step{status(409)}, attempts: 1, reason: httpretry.ReasonFinal, status: 409},
		{name: "server refuses", steps: []step{status(503, "X-Should-Retry", "false")}, attempts: 1, reason: httpretry.ReasonServerRefused, status: 503},
		{name: "server insists", steps: []step{status(404, "X-Should-Retry", "true"), status(200)}, attempts: 2, reason: httpretry.ReasonFinal, status: 200},
		{name: "server insists on a POST", method: "POST", steps: []step{status(404, "X-Should-Retry", "true")}, attempts: 1, reason: httpretry.ReasonNotIdempotent, status: 404},
		{name: "success that refuses", steps: []step{status(200, "X-Should-Retry", "false")}, attempts: 1, reason: httpretry.ReasonFinal, status: 200},
		{name: "Retry-After too long", steps: []step{status(503, "Retry-After", "61")}, attempts: 1, reason: httpretry.ReasonRetryAfter, status: 503},
		{name: "no retries wanted", policy: func(p *httpretry.Policy) { p.MaxAttempts = 1 }, steps: []step{status(503)}, attempts: 1, reason: httpretry.ReasonAttempts, status: 503},
		{name: "too late", policy: func(p *httpretry.Policy) { p.MaxElapsed = 2500 * time.Millisecond }, steps: []step{status(503)}, attempts: 3, reason: httpretry.ReasonDeadline, status: 503},
		{name: "just in time", policy: func(p *httpretry.Policy) { p.MaxElapsed = 2 * time.Second }, steps: []step{status(503)}, attempts: 3, reason: httpretry.ReasonDeadline, status: 503},
		{name: "no budget", policy: func(p *httpretry.Policy) { p.Budget = &httpretry.HostBudget{Floor: 2} }, steps: []step{status(503)}, attempts: 3, reason: httpretry.ReasonBudget, status: 503},
		{name: "no budget, error", policy: func(p *httpretry.Policy) { p.Budget = &httpretry.HostBudget{Floor: -1} }, steps: []step{fails(errReset)}, attempts: 1, reason: httpretry.ReasonBudget},
		{name: "certain failure", steps: []step{fails(&net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}})}, attempts: 1, reason: httpretry.ReasonFinal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := every(time.Second)
				if tt.policy != nil {
					tt.policy(&policy)
				}
				base, events := play(tt.steps...), new(record)
				transport := contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: events.observe})
				req := request(t, tt.method, "http://a.test/", "")
				if tt.method != "" && tt.method != "GET" {
					req = request(t, tt.method, "http://a.test/", "payload")
				}
				if tt.prepare != nil {
					tt.prepare(req)
				}

				resp, err := transport.RoundTrip(req)

				assert.Len(t, base.attempts(), tt.attempts)
				assert.Equal(t, tt.reason.String(), events.reason().String())
				if tt.status != 0 {
					require.NoError(t, err)
					assert.Equal(t, tt.status, resp.StatusCode)
					assert.Equal(t, "body of "+strconv.Itoa(tt.status), finish(t, resp))
				} else {
					wantErr := tt.steps[len(tt.steps)-1].err
					require.ErrorIs(t, err, wantErr)
					var all *httpretry.Error
					if tt.attempts == 1 {
						assert.True(t, err == wantErr, "a single attempt's error is returned as it came")
					} else if assert.ErrorAs(t, err, &all) {
						assert.Equal(t, tt.attempts, all.Attempts)
						assert.Equal(t, tt.reason, all.Reason)
					}
				}
				for _, wait := range base.waits() {
					assert.Equal(t, time.Second, wait)
				}
				assertEvents(t, events, tt.attempts, req)
				for _, a := range base.attempts() {
					assert.Equal(t, a.body, map[bool]string{true: "payload"}[req.Body != nil])
				}
			})
		})
	}
}

// assertEvents checks what holds for the events of every request.
func assertEvents(t *testing.T, events *record, attempts int, req *http.Request) {
	t.Helper()
	require.Len(t, events.events, attempts)
	for i, e := range events.events {
		assert.Same(t, req, e.Request)
		assert.Equal(t, i+1, e.Attempt)
		assert.Equal(t, e.Response == nil, e.Err != nil)
		assert.Equal(t, time.Duration(i)*time.Second, e.Elapsed)
		assert.Equal(t, i == attempts-1, e.Reason != 0, "the last event, and no other, has a reason")
		assert.Equal(t, e.Reason == 0, e.Wait > 0)
	}
}

// A request that needs nothing of ours is left alone: Hazard A1, A9.
func TestSuccessIsLeftAlone(t *testing.T) {
	want := &http.Response{StatusCode: 200, Body: http.NoBody}
	var got *http.Request
	base := baseFunc(func(req *http.Request) (*http.Response, error) { got = req; return want, nil })
	for name, req := range map[string]*http.Request{
		"GET":        request(t, "GET", "http://a.test/", ""),
		"PUT":        request(t, "PUT", "http://a.test/", "body"),
		"keyed POST": request(t, "POST", "http://a.test/", "body"),
	} {
		t.Run(name, func(t *testing.T) {
			if req.Method == "POST" {
				req.Header.Set("Idempotency-Key", "k")
			}
			resp, err := contractless(t, httpretry.Config{Base: base}).RoundTrip(req)
			require.NoError(t, err)
			assert.Same(t, want, resp)
			assert.Same(t, req, got)
		})
	}
	t.Run("error", func(t *testing.T) {
		want := errors.New("x509: certificate is not good")
		base := baseFunc(func(*http.Request) (*http.Response, error) { return nil, want })
		policy := httpretry.Policy{MaxAttempts: 1}
		_, err := contractless(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "GET", "http://a.test/", ""))
		assert.True(t, err == want)
	})
}

// contractless is a transport without the checks, for tests of identity.
func contractless(t testing.TB, cfg httpretry.Config) *httpretry.RetryTransport {
	t.Helper()
	transport, err := httpretry.New(cfg)
	require.NoError(t, err)
	return transport
}

func TestAttemptHeader(t *testing.T) {
	for _, tt := range []struct {
		configured string
		name       string
	}{
		{"", "Retry-Attempt"},
		{"x-my-attempt", "X-My-Attempt"},
		{"-", ""},
	} {
		t.Run(tt.configured, func(t *testing.T) {
			base := play(status(503), status(503), status(200))
			transport := contract.New(t, httpretry.Config{Base: base, Policy: every(0), AttemptHeader: tt.configured})
			resp, err := transport.RoundTrip(request(t, "GET", "http://a.test/", ""))
			require.NoError(t, err)
			finish(t, resp)
			want := []http.Header{{}, {tt.name: {"1"}}, {tt.name: {"2"}}}
			if tt.name == "" {
				want = []http.Header{{}, {}, {}}
			}
			for i, a := range base.attempts() {
				assert.Equal(t, want[i], a.header)
				assert.Equal(t, i+1, a.number)
			}
		})
	}
}

// Hazard A9: the response's request is the caller's, whose context lives on.
func TestResponseRequest(t *testing.T) {
	type key struct{}
	for _, steps := range [][]step{{status(200)}, {status(503), status(200)}, {status(503), status(503), status(200)}} {
		t.Run(strconv.Itoa(len(steps)), func(t *testing.T) {
			policy := every(0)
			policy.AttemptTimeout = time.Minute
			ctx := context.WithValue(t.Context(), key{}, "value")
			req := request(t, "GET", "http://a.test/path", "").WithContext(ctx)
			resp, err := contract.New(t, httpretry.Config{Base: play(steps...), Policy: policy}).RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
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

// Hazard A7, D6: what Base must not return, and what fakes do.
func TestBadBase(t *testing.T) {
	t.Run("nothing", func(t *testing.T) {
		base := baseFunc(func(*http.Request) (*http.Response, error) { return nil, nil })
		_, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(request(t, "GET", "http://a.test/", ""))
		var all *httpretry.Error
		require.ErrorAs(t, err, &all)
		assert.Equal(t, 5, all.Attempts)
		assert.EqualError(t, err, "httpretry: gave up after 5 attempts (attempts exhausted): the base transport returned neither a response nor an error")
	})
	t.Run("both", func(t *testing.T) {
		body := contract.Counted("")
		base := baseFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: body}, errReset
		})
		_, err := contract.New(t, httpretry.Config{Base: base}).RoundTrip(request(t, "POST", "http://a.test/", ""))
		assert.True(t, err == error(errReset))
		assert.EqualValues(t, 1, body.Closes())
	})
	t.Run("no body", func(t *testing.T) {
		n := 0
		base := baseFunc(func(*http.Request) (*http.Response, error) {
			n++
			return &http.Response{StatusCode: map[bool]int{true: 200, false: 503}[n > 2]}, nil
		})
		resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(request(t, "GET", "http://a.test/", ""))
		require.NoError(t, err)
		assert.Equal(t, 200, resp.StatusCode)
		assert.Nil(t, resp.Body)
	})
	t.Run("header nil", func(t *testing.T) {
		base := play(status(503), status(200))
		req := request(t, "GET", "http://a.test/", "")
		req.Header = nil
		resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(req)
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, http.Header{"Retry-Attempt": {"1"}}, base.attempts()[1].header)
	})
	t.Run("URL nil", func(t *testing.T) {
		_, err := contract.New(t, httpretry.Config{}).RoundTrip(&http.Request{Header: http.Header{}})
		assert.EqualError(t, err, "http: nil Request.URL")
	})
}

// Hazard A2: what a base does to an attempt's header stays there.
func TestHeaderPerAttempt(t *testing.T) {
	inner := play(status(503), status(503), status(200))
	base := baseFunc(func(req *http.Request) (*http.Response, error) {
		req.Header.Add("X-Added", "1")
		if v := req.Header["X-Given"]; v != nil {
			v[0] = "changed"
		}
		return inner.RoundTrip(req)
	})
	req := request(t, "POST", "http://a.test/", "")
	req.Header.Set("X-Given", "given")
	policy := every(0)
	policy.NewKey = httpretry.RandomKey // so that even the first attempt is a copy
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(req)
	require.NoError(t, err)
	finish(t, resp)
	for _, a := range inner.attempts() {
		assert.Equal(t, []string{"1"}, a.header["X-Added"])
	}
	assert.Equal(t, http.Header{"X-Given": {"given"}}, req.Header)
}

// Hazard A11: the zero value works.
func TestZeroTransport(t *testing.T) {
	srv := newServer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	var transport httpretry.RetryTransport
	client := &http.Client{Transport: &transport}
	defer client.CloseIdleConnections()
	resp, err := client.Get(srv.URL)
	require.NoError(t, err)
	assert.Equal(t, "hello", finish(t, resp))
}

// Hazard K2.
func TestUnwrap(t *testing.T) {
	base := play(status(200))
	transport, err := httpretry.New(httpretry.Config{Base: base})
	require.NoError(t, err)
	assert.Same(t, base, transport.Unwrap())
	assert.IsType(t, new(http.Transport), new(httpretry.RetryTransport).Unwrap())
}

// Hazard K1.
func TestCloseIdleConnections(t *testing.T) {
	base := &closer{}
	client := &http.Client{Transport: contractless(t, httpretry.Config{Base: base})}
	client.CloseIdleConnections()
	assert.Equal(t, 1, base.closed)

	client.Transport = contractless(t, httpretry.Config{Base: baseFunc(nil)}) // which cannot
	client.CloseIdleConnections()
}

type closer struct {
	http.RoundTripper
	closed int
}

func (c *closer) CloseIdleConnections() { c.closed++ }

// Hazard G1: a wait ends with the caller's interest.
func TestCancelDuringWait(t *testing.T) {
	cause := errors.New("the user closed the window")
	tests := map[string]struct {
		cancel func(req *http.Request) (*http.Request, func())
		want   []error
		text   string
	}{
		"with cause": {
			func(req *http.Request) (*http.Request, func()) {
				ctx, cancel := context.WithCancelCause(req.Context())
				return req.WithContext(ctx), func() { cancel(cause) }
			},
			[]error{context.Canceled, cause},
			"httpretry: gave up after 1 attempt (canceled): context canceled: the user closed the window (last attempt: status 503)",
		},
		"without cause": {
			func(req *http.Request) (*http.Request, func()) {
				ctx, cancel := context.WithCancel(req.Context())
				return req.WithContext(ctx), cancel
			},
			[]error{context.Canceled},
			"httpretry: gave up after 1 attempt (canceled): context canceled (last attempt: status 503)",
		},
		"Request.Cancel": { // Hazard G4
			func(req *http.Request) (*http.Request, func()) {
				ch := make(chan struct{})
				req = req.Clone(req.Context())
				//lint:ignore SA1019 http.Client sets it
				req.Cancel = ch
				return req, func() { close(ch) }
			},
			nil,
			"httpretry: gave up after 1 attempt (canceled): request canceled (last attempt: status 503)",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base, events := play(status(503)), new(record)
				transport := contract.New(t, httpretry.Config{Base: base, Policy: every(time.Hour), Observe: events.observe})
				req, cancel := tt.cancel(request(t, "GET", "http://a.test/", ""))
				time.AfterFunc(time.Minute, cancel)
				start := time.Now()
				_, err := transport.RoundTrip(req)
				assert.Equal(t, time.Minute, time.Since(start))
				assert.EqualError(t, err, tt.text)
				for _, want := range tt.want {
					assert.ErrorIs(t, err, want)
				}
				assert.Len(t, base.attempts(), 1)
				require.Len(t, events.events, 2)
				assert.Equal(t, time.Hour, events.events[0].Wait)
				assert.Equal(t, httpretry.ReasonCanceled, events.events[1].Reason)
				assert.Equal(t, 1, events.events[1].Attempt)
			})
		})
	}
}

// Hazard G6: the caller's context wins over whatever error it leads to.
func TestCanceled(t *testing.T) {
	cause := errors.New("cause")
	canceled := func(t *testing.T) context.Context {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		return ctx
	}
	t.Run("before the first attempt", func(t *testing.T) {
		base, body := play(status(200)), contract.Counted("x")
		req := streamed(t, "POST", "http://a.test/", body).WithContext(canceled(t))
		_, err := contract.New(t, httpretry.Config{Base: base}).RoundTrip(req)
		require.ErrorIs(t, err, cause)
		require.ErrorIs(t, err, context.Canceled)
		assert.EqualError(t, err, "httpretry: not sent: context canceled: cause")
		assert.Empty(t, base.attempts())
	})
	for n, when := range []string{"during the first attempt", "during the second attempt"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				slow := step{status: 200, takes: time.Hour}
				base := play([][]step{{slow}, {status(503), slow}}[n]...)
				events := new(record)
				time.AfterFunc(time.Minute, func() { cancel(cause) })
				_, err := contract.New(t, httpretry.Config{Base: base, Policy: every(time.Second), Observe: events.observe}).
					RoundTrip(request(t, "GET", "http://a.test/", "").WithContext(ctx))
				require.ErrorIs(t, err, cause)
				assert.Equal(t, httpretry.ReasonCanceled, events.reason())
				assert.Len(t, base.attempts(), n+1)
				assert.ErrorIs(t, err, context.Canceled, "which HTTP/1 alone would not say")
			})
		})
	}
	t.Run("as a response comes", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		base := baseFunc(func(req *http.Request) (*http.Response, error) {
			cancel()
			return play(status(503)).RoundTrip(req)
		})
		events := new(record)
		resp, err := contract.New(t, httpretry.Config{Base: base, Observe: events.observe}).
			RoundTrip(request(t, "GET", "http://a.test/", "").WithContext(ctx))
		require.NoError(t, err)
		assert.Equal(t, "body of 503", finish(t, resp))
		assert.Equal(t, httpretry.ReasonCanceled, events.reason())
	})
}

// Hazard G2: no wait that would end at or after the deadline is begun.
func TestDeadline(t *testing.T) {
	for _, tt := range []struct {
		deadline time.Duration
		attempts int
	}{
		{time.Second - 1, 1},
		{time.Second, 1},
		{time.Second + 1, 2},
		{3 * time.Second, 3},
	} {
		t.Run(tt.deadline.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tt.deadline)
				defer cancel()
				base, events := play(status(503)), new(record)
				start := time.Now()
				resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(time.Second), Observe: events.observe}).
					RoundTrip(request(t, "GET", "http://a.test/", "").WithContext(ctx))
				require.NoError(t, err)
				assert.Equal(t, "body of 503", finish(t, resp))
				assert.Len(t, base.attempts(), tt.attempts)
				assert.Equal(t, httpretry.ReasonDeadline, events.reason())
				assert.Equal(t, time.Duration(tt.attempts-1)*time.Second, time.Since(start))
			})
		})
	}
}

// Hazard G5: http.Client's Timeout is a bound over all attempts.
func TestClientTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, wait := range []time.Duration{time.Second, time.Hour} {
			base := play(step{err: errReset, takes: time.Second})
			client := &http.Client{
				Transport: contract.New(t, httpretry.Config{Base: base, Policy: every(wait)}),
				Timeout:   3500 * time.Millisecond,
			}
			start := time.Now()
			_, err := client.Get("http://a.test/")
			require.Error(t, err)
			assert.LessOrEqual(t, time.Since(start), 3500*time.Millisecond)
		}
		slow := play(step{status: 200, takes: time.Hour})
		client := &http.Client{Transport: contract.New(t, httpretry.Config{Base: slow}), Timeout: time.Minute}
		_, err := client.Get("http://a.test/")
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		assert.True(t, timeout.Timeout())
		assert.Len(t, slow.attempts(), 1)
	})
}

func TestRetryAfterWait(t *testing.T) {
	for _, tt := range []struct {
		name     string
		header   []string
		min, max time.Duration
	}{
		{"none", nil, 2 * time.Second, 2 * time.Second},
		{"zero is plain backoff", []string{"Retry-After", "0"}, 2 * time.Second, 2 * time.Second},
		{"garbage is plain backoff", []string{"Retry-After", "soon"}, 2 * time.Second, 2 * time.Second},
		{"shorter than the backoff", []string{"Retry-After", "1"}, 2 * time.Second, 3 * time.Second},
		{"longer", []string{"Retry-After", "40"}, 40 * time.Second, 50 * time.Second},
		{"longest", []string{"Retry-After", "60"}, 60 * time.Second, 75 * time.Second},
		{"milliseconds", []string{"Retry-After-Ms", "4000"}, 4 * time.Second, 5 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seen := map[time.Duration]bool{}
				for range 50 {
					base := play(status(503, tt.header...), status(200))
					resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(2 * time.Second)}).
						RoundTrip(request(t, "GET", "http://a.test/", ""))
					require.NoError(t, err)
					finish(t, resp)
					wait := base.waits()[0]
					assert.GreaterOrEqual(t, wait, tt.min, "never earlier than told")
					assert.LessOrEqual(t, wait, tt.max)
					seen[wait] = true
				}
				if tt.max > tt.min {
					assert.Greater(t, len(seen), 40, "clients that were told the same come back spread out")
				}
			})
		})
	}
}

// The spread is what the deadline leaves, not an early or a clamped wait.
func TestRetryAfterSpreadBeforeDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[time.Duration]bool{}
		for range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), 41*time.Second)
			base := play(status(503, "Retry-After", "40"), status(200))
			resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).
				RoundTrip(request(t, "GET", "http://a.test/", "").WithContext(ctx))
			require.NoError(t, err)
			finish(t, resp)
			cancel()
			require.Len(t, base.attempts(), 2)
			wait := base.waits()[0]
			assert.GreaterOrEqual(t, wait, 40*time.Second)
			assert.Less(t, wait, 41*time.Second)
			seen[wait] = true
		}
		assert.Greater(t, len(seen), 40)
	})
}

// Retry-After counts on errors only.
func TestRetryAfterOnSuccess(t *testing.T) {
	policy := every(time.Second)
	policy.Classify = func(resp *http.Response, _ error) httpretry.Outcome {
		if resp.Header.Get("Retry-After") != "" {
			return httpretry.Transient
		}
		return httpretry.Final
	}
	synctest.Test(t, func(t *testing.T) {
		base := play(status(202, "Retry-After", "30"), status(200))
		resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "GET", "http://a.test/", ""))
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, []time.Duration{time.Second}, base.waits())
	})
}

func TestThrottledBackoff(t *testing.T) {
	count := func(unit time.Duration) strategies.Func {
		return func(retry int) time.Duration { return time.Duration(retry+1) * unit }
	}
	steps := []step{status(503), status(429), status(503), status(429), status(200)}
	for _, tt := range []struct {
		name      string
		throttled strategies.Strategy
		want      []time.Duration
	}{
		{"of its own", count(time.Minute), []time.Duration{time.Second, time.Minute, 2 * time.Second, 2 * time.Minute}},
		{"the same", nil, []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := every(0)
				policy.Backoff, policy.Throttled = count(time.Second), tt.throttled
				base := play(steps...)
				resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "GET", "http://a.test/", ""))
				require.NoError(t, err)
				finish(t, resp)
				assert.Equal(t, tt.want, base.waits())
			})
		})
	}
}

// The defaults: three attempts, V2 around half a second, a second after 429.
func TestDefaults(t *testing.T) {
	for _, tt := range []struct {
		status int
		limit  time.Duration
	}{{503, 700 * time.Millisecond}, {429, 1400 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			longest := time.Duration(0)
			for range 200 {
				base := play(status(tt.status))
				resp, err := contract.New(t, httpretry.Config{Base: base}).RoundTrip(request(t, "GET", "http://a.test/", ""))
				require.NoError(t, err)
				finish(t, resp)
				require.Len(t, base.attempts(), 3)
				longest = max(longest, base.waits()[0])
			}
			assert.LessOrEqual(t, longest, tt.limit, "first wait of %d", tt.status)
			assert.Greater(t, longest, tt.limit/2)
		})
	}
}

// Hazard A11: a strategy's negative wait is none, and its waits may be absurd.
func TestOddWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, wait := range []time.Duration{-time.Hour, 0, 1 << 62, 1<<63 - 1} {
			policy := every(0)
			policy.Backoff = strategies.Func(func(int) time.Duration { return wait })
			policy.MaxRetryAfter = 1<<63 - 1
			base := play(status(503, "Retry-After", "99999999999999999999"), status(200))
			if wait <= 0 {
				base = play(status(503), status(200))
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Hour, cancel)
			resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).
				RoundTrip(request(t, "GET", "http://a.test/", "").WithContext(ctx))
			if wait > 0 {
				require.ErrorIs(t, err, context.Canceled)
				assert.Len(t, base.attempts(), 1)
				continue
			}
			require.NoError(t, err)
			finish(t, resp)
			assert.Equal(t, []time.Duration{0}, base.waits())
		}
	})
}

// What is deposited and withdrawn, once per request and under which name.
// Hazard I6: only retries cost.
func TestBudgetCalls(t *testing.T) {
	for _, tt := range []struct {
		name  string
		steps []step
		want  string
	}{
		{"success", []step{status(200)}, "deposit a.test"},
		{"refusal that stands", []step{status(404)}, "deposit a.test"},
		{"success in the end", []step{status(503), status(503), status(200)}, "withdraw a.test, withdraw a.test, deposit a.test"},
		{"failure", []step{status(503), status(501)}, "withdraw a.test, deposit a.test"},
		{"server refuses", []step{status(503, "X-Should-Retry", "false")}, ""},
		{"certain error", []step{fails(&net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}})}, ""},
		{"not safe", []step{fails(errReset)}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			budget := &ledger{}
			policy := every(0)
			policy.Budget = budget
			method := "GET"
			if tt.name == "not safe" {
				method = "POST"
			}
			resp, err := contract.New(t, httpretry.Config{Base: play(tt.steps...), Policy: policy}).
				RoundTrip(request(t, method, "http://A.test:80/", ""))
			if err == nil {
				finish(t, resp)
			}
			assert.Equal(t, tt.want, strings.Join(budget.entries, ", "))
		})
	}
}

type ledger struct{ entries []string }

func (l *ledger) Deposit(host string) { l.entries = append(l.entries, "deposit "+host) }
func (l *ledger) Withdraw(_ context.Context, host string) bool {
	l.entries = append(l.entries, "withdraw "+host)
	return true
}

// Policies without a budget share the transport's.
func TestSharedBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play(status(503))
		policy := httpretry.Policy{MaxAttempts: 3}
		transport := contract.New(t, httpretry.Config{Base: base, Hosts: map[string]httpretry.Policy{"a.test": policy}})
		ctx := httpretry.WithPolicy(t.Context(), policy)
		for _, ctx := range []context.Context{t.Context(), ctx, t.Context()} {
			resp, err := transport.RoundTrip(request(t, "GET", "http://a.test/", "").WithContext(ctx))
			require.NoError(t, err)
			finish(t, resp)
		}
		assert.Len(t, base.attempts(), 3+3, "three requests and a floor of three retries")
	})
}

// Hazard K4: a panic reaches the caller, and nothing is left behind.
func TestPanics(t *testing.T) {
	boom := func() { panic("boom") }
	tests := map[string]func(*httpretry.Config){
		"Base": func(c *httpretry.Config) {
			c.Base = baseFunc(func(*http.Request) (*http.Response, error) { boom(); return nil, nil })
		},
		"Observe": func(c *httpretry.Config) { c.Observe = func(context.Context, httpretry.Event) { boom() } },
		"Classify": func(c *httpretry.Config) {
			c.Policy.Classify = func(*http.Response, error) httpretry.Outcome { boom(); return 0 }
		},
		"Idempotent": func(c *httpretry.Config) { c.Policy.Idempotent = func(*http.Request) bool { boom(); return false } },
		"NewKey":     func(c *httpretry.Config) { c.Policy.NewKey = func(*http.Request) string { boom(); return "" } },
		"Backoff": func(c *httpretry.Config) {
			c.Policy.Backoff = strategies.Func(func(int) time.Duration { boom(); return 0 })
		},
		"Deposit":  func(c *httpretry.Config) { c.Policy.Budget = panicBudget{true} },
		"Withdraw": func(c *httpretry.Config) { c.Policy.Budget = panicBudget{false} },
	}
	for name, set := range tests {
		t.Run(name, func(t *testing.T) {
			var bodies []*contract.Body
			code := 503
			if name == "Deposit" {
				code = 200
			}
			inner := play(status(code))
			cfg := httpretry.Config{Policy: every(0), Base: baseFunc(func(req *http.Request) (*http.Response, error) {
				resp, err := inner.RoundTrip(req)
				body := &contract.Body{ReadCloser: resp.Body}
				resp.Body = body
				bodies = append(bodies, body)
				return resp, err
			})}
			cfg.Policy.AttemptTimeout = time.Hour // so that there is something to let go of
			set(&cfg)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			body := contract.Counted("x")
			req := streamed(t, "POST", "http://a.test/", body).WithContext(ctx)
			if name != "NewKey" {
				req.Header.Set("Idempotency-Key", "k")
			}
			if name == "Idempotent" {
				req.Header.Del("Idempotency-Key")
			}
			assert.PanicsWithValue(t, "boom", func() { _, _ = contractless(t, cfg).RoundTrip(req) })
			assert.EqualValues(t, 1, body.Closes(), "closes of the request's body")
			for _, b := range bodies {
				assert.EqualValues(t, 1, b.Closes(), "closes of a response's body")
			}
		})
	}
}

type panicBudget struct{ deposit bool }

func (b panicBudget) Deposit(string) {
	if b.deposit {
		panic("boom")
	}
}

func (b panicBudget) Withdraw(context.Context, string) bool {
	if !b.deposit {
		panic("boom")
	}
	return true
}
