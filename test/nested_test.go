package test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// unwrapper is a layer that shows what it contains.
type unwrapper struct{ http.RoundTripper }

func (u unwrapper) Unwrap() http.RoundTripper { return u.RoundTripper }

// nesting is a way to put a RetryTransport into the Base of another one.
type nesting struct {
	name string
	wrap func(inner http.RoundTripper) http.RoundTripper
	// hidden: the outer transport cannot see the inner one. So it sends the
	// caller's own request in the first attempt, and the inner transport does
	// not know that it is in an attempt, so it retries.
	hidden bool
}

var nestings = []nesting{
	{"direct", func(inner http.RoundTripper) http.RoundTripper { return inner }, false},
	{"Unwrap", func(inner http.RoundTripper) http.RoundTripper {
		return unwrapper{unwrapper{inner}}
	}, false},
	{"no Unwrap", func(inner http.RoundTripper) http.RoundTripper {
		return contract.BaseFunc(inner.RoundTrip)
	}, true},
}

// nested is a RetryTransport in another one, both with three attempts.
type nested struct {
	contract.Record // of the inner transport
	outerEvents     contract.Record
	outer           http.RoundTripper
}

// over returns one whose inner transport has policy.
func (n nesting) over(t *testing.T, base http.RoundTripper, policy httpretry.Policy) *nested {
	t.Helper()
	s := new(nested)
	inner := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy, Observe: s.Observe})
	s.outer = contract.Recorded(t, n.wrap(inner), threeAttempts, &s.outerEvents)
	return s
}

// eachOnce is the result of attemptsOf for three attempts, each of which is sent once.
var eachOnce = []string{"1 []", "2 [1]", "3 [2]"}

// attemptsOf returns two properties of each attempt: its number in the context,
// and the values of the attempt header.
func attemptsOf(script *contract.Script) (seen []string) {
	for _, s := range script.Attempts() {
		seen = append(seen, fmt.Sprint(s.Attempt, s.Header["Retry-Attempt"]))
	}
	return seen
}

// The inner one of two RetryTransports sends each attempt of the outer one
// once. If the outer one cannot see it, that does not hold for the first
// attempt of a request that is sent as it is. Then 3 × 3 attempts are 5.
func TestNestedTransports(t *testing.T) {
	hidden := slices.Concat(eachOnce, eachOnce[1:])
	for _, n := range nestings {
		for name, tt := range map[string]struct {
			step    contract.Step
			method  string
			key     string
			stream  bool // without GetBody
			watched bool // not idempotent, so that even the first attempt is a copy
			want    int  // attempts; 0: all
		}{
			"GET, 503": {step: s503, method: "GET"},
			"GET, 425": {step: s425, method: "GET"},
			// It is read through two recorders, and closed once.
			"PUT, stream": {step: s503, method: "PUT", stream: true, watched: true},
			"GET, 429": {
				step: contract.Status(429, "Retry-After-Ms", "1"), method: "GET"},
			"GET, error":           {step: reset, method: "GET"},
			"GET, no connection":   {step: refused, method: "GET"},
			"POST with a key, 503": {step: s503, method: "POST", key: "key"},
			"POST, 503":            {step: s503, method: "POST", watched: true, want: 1},
			"POST, error":          {step: reset, method: "POST", watched: true, want: 1},
			"POST, 425":            {step: s425, method: "POST", watched: true},
			"POST, no connection":  {step: refused, method: "POST", watched: true},
			"GET, 404":             {step: s404, method: "GET", want: 1},
			"GET, 200":             {step: s200, method: "GET", want: 1},
		} {
			t.Run(n.name+"/"+name, func(t *testing.T) {
				script := contract.Play(tt.step)
				s := n.over(t, script, threeAttempts)
				req := newRequest(t, tt.method, "payload")
				if tt.stream {
					req.Body, req.GetBody = contract.Counted("payload"), nil
				}
				if tt.key != "" {
					req.Header.Set("Idempotency-Key", tt.key)
				}
				resp, err := s.outer.RoundTrip(req)

				want := eachOnce
				switch {
				case tt.want > 0:
					want = eachOnce[:tt.want]
				case n.hidden && !tt.watched:
					want = hidden
				}
				assert.Equal(t, want, attemptsOf(script))
				for _, sent := range script.Attempts() {
					assert.Equal(t, "payload", sent.Body)
					assert.Equal(t, tt.key, sent.Header.Get("Idempotency-Key"))
				}
				// The base's result is the caller's.
				require.ErrorIs(t, err, tt.step.Err)
				if err == nil {
					assert.Equal(t, tt.step.Status, resp.StatusCode)
					assert.Equal(t, tt.step.Body, contract.ReadBody(t, resp))
				}
			})
		}
	}
}

// Both observers get a Reason that shows which transport retries. Only the
// outer transport's budget is charged.
func TestNestedReasons(t *testing.T) {
	var ledger contract.Ledger
	policy := threeAttempts
	policy.Budget = &ledger
	for _, n := range nestings[:2] {
		t.Run(n.name, func(t *testing.T) {
			ledger.Entries = nil
			s := n.over(t, contract.Play(s503, reset, s200), policy)
			contract.Send(t, s.outer, newGet(t))
			reasons := func(r *contract.Record) (reasons []httpretry.Reason) {
				for _, e := range r.Events {
					reasons = append(reasons, e.Reason)
				}
				return reasons
			}
			assert.Equal(t, []httpretry.Reason{httpretry.ReasonCallerRetries,
				httpretry.ReasonCallerRetries, httpretry.ReasonSuccess}, reasons(&s.Record))
			assert.Equal(t, []httpretry.Reason{httpretry.ReasonNone,
				httpretry.ReasonNone, httpretry.ReasonSuccess}, reasons(&s.outerEvents))
			assert.Equal(t, []string{
				"failure http://a.test", "failure http://a.test", "success http://a.test",
			}, ledger.Entries)
		})
	}
}

// On behalf of an inbound retry, the outer transport counts on from that, and
// the inner one does not change the count.
func TestNestedInInboundRetry(t *testing.T) {
	for _, n := range nestings {
		for status, want := range map[int][]string{
			503: {"1 [2]"}, 425: {"1 [2]", "2 [3]", "3 [4]"}} {
			t.Run(fmt.Sprintf("%s/%d", n.name, status), func(t *testing.T) {
				script := contract.Play(contract.Status(status))
				transport := n.over(t, script, threeAttempts).outer
				inbound := httptest.NewRequest("POST", "/", nil)
				inbound.Header.Set("Retry-Attempt", "2")
				httpretry.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					req := newRequest(t, "POST", "payload").WithContext(r.Context())
					contract.Send(t, transport, req)
				})).ServeHTTP(httptest.NewRecorder(), inbound)
				assert.Equal(t, want, attemptsOf(script))
			})
		}
	}
}

// An error of the base is wrapped by the outer transport only, and the result
// of a response is the outer transport's.
func TestNestedResult(t *testing.T) {
	for _, n := range nestings {
		for _, method := range []string{"GET", "PUT"} {
			t.Run(n.name+"/"+method, func(t *testing.T) {
				var e *httpretry.Error
				err := sendFails(t, n.over(t, contract.Play(reset), threeAttempts).outer,
					newRequest(t, method, ""))
				require.ErrorAs(t, err, &e)
				assert.Equal(t, &httpretry.Error{
					Attempts: 3, Reason: httpretry.ReasonAttempts, Err: contract.ErrReset}, e)

				for _, req := range []*http.Request{
					newRequest(t, method, ""),
					// Without GetBody, the inner transport copies requests.
					contract.Streamed(t, method, "http://a.test/", contract.Counted("payload")),
				} {
					s := n.over(t, contract.Play(s503), threeAttempts)
					resp := contract.Send(t, s.outer, req)
					contract.HasResult(t, resp, 3, httpretry.ReasonAttempts)
					assert.Equal(t, 3, httpretry.Attempt(resp.Request.Context()))
				}
			})
		}
	}
}

// The inner transport's timeout ends an attempt of the outer one.
func TestNestedAttemptTimeout(t *testing.T) {
	for _, n := range nestings[:2] {
		contract.Bubble(t, n.name, func(t *testing.T) {
			policy := threeAttempts
			policy.AttemptTimeout = time.Second
			script := contract.Play(contract.Step{Status: 200, Takes: time.Hour})
			err := sendFails(t, n.over(t, script, policy).outer, newGet(t))
			var e *httpretry.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, []any{3, httpretry.ReasonAttempts}, []any{e.Attempts, e.Reason})
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, eachOnce, attemptsOf(script))
			assert.Equal(t, 3*time.Second, time.Since(script.Start))
		})
	}
}

// A request that a layer of Base sends in the context of an attempt, such as a
// request for a token, is sent once by any RetryTransport. So is one that the
// same RetryTransport sends.
func TestRequestInContextOfAttempt(t *testing.T) {
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprintf("same transport %v", own), func(t *testing.T) {
			tokens, script := contract.Play(s503), contract.Play(s200)
			var side http.RoundTripper = contract.With(t, tokens, threeAttempts)
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				if req.URL.Host == "tokens.test" {
					return tokens.RoundTrip(req)
				}
				token, err := side.RoundTrip(contract.Request(t, "GET", "http://tokens.test/", "").
					WithContext(req.Context()))
				if err != nil {
					return nil, err
				}
				contract.ReadBody(t, token)
				if token.StatusCode != http.StatusOK {
					return nil, errors.New("no token")
				}
				return script.RoundTrip(req)
			})
			policy := threeAttempts
			policy.AttemptTimeout = time.Hour // makes each attempt a copy
			transport := contract.With(t, base, policy)
			if own {
				side = transport
			}
			require.ErrorContains(t, sendFails(t, transport, newGet(t)), "no token")
			require.Len(t, tokens.Attempts(), 3)
			for i, sent := range tokens.Attempts() {
				assert.Equal(t, i+1, sent.Attempt)
			}
			assert.Empty(t, script.Attempts())
		})
	}
}

// A request that is sent in the context of a finished attempt, that of a
// response's request, is one like any other. It is retried, and its attempts
// count from 1.
func TestRequestInContextOfFinishedAttempt(t *testing.T) {
	for _, n := range nestings {
		for _, first := range []contract.Step{s200, s503} {
			t.Run(fmt.Sprintf("%s/%d", n.name, first.Status), func(t *testing.T) {
				transport := n.over(t, contract.Play(s503, first), threeAttempts).outer
				resp, err := transport.RoundTrip(newRequest(t, "PUT", "payload"))
				require.NoError(t, err)
				ctx := resp.Request.Context() // while the body is open, the attempt's context lives
				require.Greater(t, httpretry.Attempt(ctx), 1)
				defer contract.ReadBody(t, resp)

				script := contract.Play(s503)
				second := contract.With(t, script, threeAttempts)
				next := contract.Send(t, second,
					contract.Request(t, "GET", "http://a.test/next", "").WithContext(ctx))
				assert.Equal(t, eachOnce, attemptsOf(script))
				contract.HasResult(t, next, 3, httpretry.ReasonAttempts)
			})
		}
	}
}

// A request from a goroutine of Base that outlives its attempt is not sent on
// behalf of that attempt.
func TestRequestAfterAttempt(t *testing.T) {
	var left context.Context
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		left = context.WithoutCancel(req.Context())
		return nil, contract.ErrReset
	})
	_ = sendFails(t, contract.With(t, base, threeAttempts), newGet(t))
	require.Equal(t, 3, httpretry.Attempt(left))

	script := contract.Play(s503)
	contract.Send(t, contract.With(t, script, threeAttempts), newGet(t).WithContext(left))
	assert.Equal(t, eachOnce, attemptsOf(script))
}

// For the outer transport, a request that the inner one does not send because
// of a cool-down failed with an ordinary error. So a GET is retried after the
// outer transport's own wait, and a POST is not.
func TestNestedCooldown(t *testing.T) {
	for method, want := range map[string][]time.Duration{"GET": {20 * time.Second}, "POST": nil} {
		contract.Bubble(t, method, func(t *testing.T) {
			script := contract.Play(contract.Status(429, "Retry-After", "15"), s200)
			inner := contract.Unchecked(t, httpretry.Config{Base: script,
				Policy: httpretry.Policy{MaxAttempts: 1, Cooldown: httpretry.CooldownFail}})
			outer := contract.With(t, inner, contract.RetryEvery(10*time.Second))
			contract.Send(t, inner, newGet(t))

			req := newRequest(t, method, "payload")
			if want != nil {
				contract.Send(t, outer, req)
			} else {
				var cooling *httpretry.CooldownError
				require.ErrorAs(t, sendFails(t, outer, req), &cooling)
				assert.Equal(t, "http://a.test", cooling.Origin)
			}
			assert.Equal(t, want, script.Waits())
		})
	}
}

// With real servers, a keyless POST that fails after it was delivered is
// delivered once.
func TestNestedOnTheWire(t *testing.T) {
	for _, n := range nestings {
		contract.ForProtocols(t, func(t *testing.T, proto string) {
			for _, tt := range []struct {
				method, key  string
				want, hidden int32
			}{{"POST", "", 1, 1}, {"POST", "key", 3, 5}, {"GET", "", 3, 5}} {
				t.Run(fmt.Sprintf("%s/%s %s", n.name, tt.method, tt.key), func(t *testing.T) {
					var deliveries atomic.Int32
					base, srv := contract.Serve(t, proto,
						func(w http.ResponseWriter, _ *http.Request) {
							deliveries.Add(1)
							w.WriteHeader(http.StatusServiceUnavailable)
						})
					req := contract.Request(t, tt.method, srv.URL, "payload")
					if tt.key != "" {
						req.Header.Set("Idempotency-Key", tt.key)
					}
					contract.Send(t, n.over(t, base, threeAttempts).outer, req)
					want := tt.want
					if n.hidden {
						want = tt.hidden
					}
					assert.Equal(t, want, deliveries.Load())
				})
			}
		})
	}
}
