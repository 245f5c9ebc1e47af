package httpretry_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/strategies"
)

// changed is WithPolicyFunc with a function that changes the policy in place.
func changed(ctx context.Context, change func(*httpretry.Policy)) context.Context {
	return httpretry.WithPolicyFunc(ctx,
		func(p httpretry.Policy) httpretry.Policy { change(&p); return p })
}

// A request of WithoutRetries is sent once, whatever its outcome, and keeps the
// rest of its host's policy.
func TestWithoutRetries(t *testing.T) {
	for name, step := range map[string]contract.Step{
		"503":     s503,
		"425":     s425,
		"reset":   reset,
		"refused": refused,
		"timeout": {Status: 200, Takes: time.Hour},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			base, events := contract.Play(step), new(contract.Record)
			policy := contract.RetryEvery(time.Second)
			policy.AttemptTimeout = time.Minute
			policy.IdempotencyHeader = "X-Key"
			policy.NewIdempotencyKey = func(*http.Request) string { return "k" }
			transport := contract.New(t, httpretry.Config{
				Base:     base,
				Policy:   httpretry.Policy{MaxAttempts: 9},
				Policies: map[string]httpretry.Policy{"a.test": policy},
				Observe:  events.Observe,
			})
			ctx := httpretry.WithoutRetries(t.Context())
			start := time.Now()
			err := exchange(t, transport,
				contract.Request(t, "POST", "http://a.test/", "text").WithContext(ctx))
			assert.Equal(t, step.Err != nil || step.Takes > 0, err != nil)
			assert.Equal(t, min(step.Takes, time.Minute), time.Since(start), "the policy's timeout")
			require.Len(t, base.Attempts(), 1)
			assert.Equal(t, "k", base.Attempts()[0].Header.Get("X-Key"), "the policy's key")
			require.Len(t, events.Events, 1)
			assert.Equal(t, httpretry.ReasonDisabled, events.Reason())
		})
	}
}

// WithoutRetries, WithPolicy and WithIdempotent can be combined in any order.
// None of them changes a context that it was derived from.
func TestContextsCombine(t *testing.T) {
	type marks = []func(context.Context) context.Context
	idempotent, once := httpretry.WithIdempotent, httpretry.WithoutRetries
	three := contract.RetryEvery(0)
	three.MaxAttempts = 3
	withPolicy := func(ctx context.Context) context.Context {
		return httpretry.WithPolicy(ctx, three)
	}
	plusOne := func(ctx context.Context) context.Context {
		return changed(ctx, func(p *httpretry.Policy) { p.MaxAttempts++ })
	}
	twice := func(ctx context.Context) context.Context {
		return changed(ctx, func(p *httpretry.Policy) { p.MaxAttempts *= 2 })
	}
	for name, tt := range map[string]struct {
		derive   marks
		attempts int // of a POST that fails
	}{
		"none":                               {nil, 1},
		"WithIdempotent":                     {marks{idempotent}, 5},
		"WithPolicy":                         {marks{withPolicy}, 1},
		"WithPolicy, WithIdempotent":         {marks{withPolicy, idempotent}, 3},
		"WithIdempotent, WithPolicy":         {marks{idempotent, withPolicy}, 3},
		"WithIdempotent, WithPolicyFunc":     {marks{idempotent, plusOne}, 6},
		"WithPolicyFunc, WithIdempotent":     {marks{plusOne, idempotent}, 6},
		"WithPolicyFunc, twice":              {marks{plusOne, idempotent, twice}, 12},
		"WithPolicyFunc, in the other order": {marks{twice, plusOne, idempotent}, 11},
		"WithPolicyFunc after WithPolicy":    {marks{idempotent, withPolicy, plusOne, twice}, 8},
		"WithPolicyFunc around WithPolicy":   {marks{idempotent, twice, withPolicy, plusOne}, 4},
		"WithPolicyFunc before WithPolicy":   {marks{idempotent, plusOne, twice, withPolicy}, 3},
		"WithPolicyFunc, WithoutRetries":     {marks{idempotent, once, plusOne}, 1},
		"all":                                {marks{withPolicy, once, idempotent}, 1},
		"all, in another order":              {marks{once, idempotent, withPolicy}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			ctxs := []context.Context{t.Context()}
			for _, derive := range tt.derive {
				ctxs = append(ctxs, derive(ctxs[len(ctxs)-1]))
			}
			send := func(ctx context.Context) int {
				base := contract.Play(s503)
				contract.Send(t, contract.With(t, base, contract.RetryEvery(0)),
					contract.Request(t, "POST", "http://a.test/", "text").WithContext(ctx))
				return len(base.Attempts())
			}
			assert.Equal(t, tt.attempts, send(ctxs[len(ctxs)-1]))
			assert.Equal(t, 1, send(ctxs[0]), "the context that the others were derived from")
		})
	}
}

// The function of WithPolicyFunc gets the policy of the request's host as it is
// in Config. It is called once for each request, whatever follows. A redirect
// is a request of its own.
func TestWithPolicyFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		moved := contract.Status(307, "Location", "http://b.test/")
		base := contract.Play(contract.Step{Takes: time.Hour}, s503, s503, moved, s503)
		policy := httpretry.Policy{
			Backoff:           strategies.Constant{},
			AttemptTimeout:    time.Minute,
			ReadAhead:         7,
			IdempotencyHeader: "x-key",
			NewIdempotencyKey: func(*http.Request) string { return "k" },
		}
		defaults := httpretry.Policy{Backoff: strategies.Constant{}}
		client := &http.Client{Transport: contract.New(t, httpretry.Config{
			Base:     base,
			Policy:   defaults,
			Policies: map[string]httpretry.Policy{"a.test": policy},
		})}
		var got []httpretry.Policy
		ctx := changed(t.Context(), func(p *httpretry.Policy) {
			got = append(got, *p)
			p.MaxAttempts++
		})
		start := time.Now()
		resp, err := client.Do(
			contract.Request(t, "POST", "http://a.test/", "text").WithContext(ctx))
		require.NoError(t, err)
		// The POST to b.test has no key, so its 503 is not retried.
		assert.Equal(t, "body of 503", contract.ReadBody(t, resp))
		assert.Equal(t, time.Minute, time.Since(start), "a.test's timeout")
		var sent []string
		for _, attempt := range base.Attempts() {
			sent = append(sent, attempt.Request.URL.Host+" "+attempt.Header.Get("X-Key"))
		}
		assert.Equal(t, []string{"a.test k", "a.test k", "a.test k", "a.test k", "b.test "}, sent)

		require.Len(t, got, 2)
		assert.Equal(t, "k", got[0].NewIdempotencyKey(nil))
		got[0].NewIdempotencyKey, policy.NewIdempotencyKey = nil, nil
		for _, p := range []*httpretry.Policy{&policy, &defaults} {
			p.MaxAttempts, p.MaxRetryAfter, p.ReplayBuffer = 3, time.Minute, 64<<10
		}
		assert.Equal(t, policy, httpretry.AsGiven(got[0]),
			"numbers have their default, other fields have not")
		assert.Equal(t, defaults, httpretry.AsGiven(got[1]))
	})
}

// A change that does arithmetic sets no limit where there is none, also after an
// earlier change.
func TestWithPolicyFuncWithoutLimits(t *testing.T) {
	unlimited := contract.RetryEvery(0)
	unlimited.MaxAttempts, unlimited.MaxRetryAfter = -1, -1
	for name, policy := range map[string]httpretry.Policy{
		"policy": unlimited, "change": contract.RetryEvery(0)} {
		contract.Bubble(t, name, func(t *testing.T) {
			ctx := t.Context()
			if name == "change" {
				ctx = changed(ctx, func(p *httpretry.Policy) { *p = unlimited })
			}
			ctx = changed(ctx, func(p *httpretry.Policy) {
				p.MaxAttempts++
				p.MaxRetryAfter *= 2
			})
			steps := slices.Repeat(script{asksFor(36000)}, 100)
			base := contract.Play(append(steps, s200)...)
			contract.Send(t, contract.With(t, base, policy), newGet(t).WithContext(ctx))
			assert.Len(t, base.Attempts(), 101)
		})
	}
}

// A function that lowers a number to one that means a default or no limit fails
// the request, also if a later function raises it again.
func TestWithPolicyFuncThatLowersTooFar(t *testing.T) {
	type policy = httpretry.Policy
	const attempts = "want at least 1 from a WithPolicyFunc, or math.MaxInt for no limit"
	for problem, lower := range map[string]func(*policy){
		"MaxAttempts: 0: " + attempts:  func(p *policy) { p.MaxAttempts-- },
		"MaxAttempts: -1: " + attempts: func(p *policy) { p.MaxAttempts -= 2 },
		"MaxRetryAfter: 0s: want a positive duration from a WithPolicyFunc, " +
			"or math.MaxInt64 for no limit": func(p *policy) { p.MaxRetryAfter -= time.Minute },
		"ReplayBuffer: 0: want at least 1 from a WithPolicyFunc, " +
			"or a negative number for no buffer": func(p *policy) { p.ReplayBuffer -= 64 << 10 },
	} {
		for _, later := range []func(*policy){
			func(*policy) {}, func(p *policy) { *p = policy{} }} {
			ctx := changed(changed(t.Context(), lower), later)
			base := contract.Play(s200)
			_, err := contract.New(t, httpretry.Config{
				Base: base, Policy: policy{MaxAttempts: 1}}).RoundTrip(newGet(t).WithContext(ctx))
			require.EqualError(t, err, "httpretry: not sent: Policy."+problem)
			assert.Empty(t, base.Attempts())
		}
	}
}

// A function may switch Resume off without a word about the policy's ResumeIdle.
func TestWithPolicyFuncSwitchesResumeOff(t *testing.T) {
	resuming := httpretry.Policy{Resume: true, ResumeIdle: time.Minute}
	transport := contract.With(t, contract.Play(s200), resuming)
	off := changed(t.Context(), func(p *httpretry.Policy) { p.Resume = false })
	contract.Send(t, transport, newGet(t).WithContext(off))
	idle := changed(off, func(p *httpretry.Policy) { p.ResumeIdle = time.Second })
	_, err := transport.RoundTrip(newGet(t).WithContext(idle))
	require.EqualError(t, err, "httpretry: not sent: Policy.ResumeIdle: 1s: want 0 without Resume")
}

// If the function of WithPolicyFunc leaves the Budget as it is, the request has
// the budget that it would have without it, whether that is the policy's or the
// transport's own.
func TestWithPolicyFuncKeepsTheBudget(t *testing.T) {
	for name, budget := range map[string]httpretry.Budget{
		"own": nil, "policy's": &httpretry.HostBudget{}} {
		t.Run(name, func(t *testing.T) {
			policy := httpretry.Policy{
				MaxAttempts: 2, Backoff: strategies.Constant{}, Budget: budget}
			base := contract.Play(s503)
			transport := contract.With(t, base, policy)
			ctx := changed(t.Context(), func(p *httpretry.Policy) { p.MaxAttempts = 3 })
			send := func(ctx context.Context) int {
				before := len(base.Attempts())
				contract.Send(t, transport, newGet(t).WithContext(ctx))
				return len(base.Attempts()) - before
			}
			// The Burst of the budget allows five retries.
			assert.Equal(t, []int{3, 2, 3, 1, 1}, []int{
				send(ctx), send(t.Context()), send(ctx), send(ctx), send(t.Context())})
		})
	}
}

// A request whose context has an invalid policy fails before anything is sent.
// Of several functions, the policy that the last one returns is checked, and no
// other.
func TestInvalidPolicyOfAContext(t *testing.T) {
	type policy = httpretry.Policy
	invalid := func(p *policy) { p.MaxElapsed = -1 }
	repair := func(p *policy) { p.MaxElapsed = time.Minute }
	noKey := policy{IdempotencyHeader: "retry-attempt"}
	with := func(p policy) context.Context { return httpretry.WithPolicy(t.Context(), p) }
	const problem = "Policy.MaxElapsed: -1ns: want at least 1ms, or 0 for no limit"
	const noHeader = `Policy.IdempotencyHeader: "Retry-Attempt": want another header than ` +
		`Config.AttemptHeader`
	twoProblems := with(policy{MaxElapsed: -1, AttemptTimeout: -1})
	for name, tt := range map[string]struct {
		ctx    context.Context
		want   string
		header string // Config.AttemptHeader
	}{
		"WithPolicy": {ctx: twoProblems, want: "Policy.AttemptTimeout: -1ns: " +
			"want at least 1ms, or 0 for no timeout\n" + problem},
		"WithPolicy, not with this transport":   {ctx: with(noKey), want: noHeader},
		"WithPolicy, without an attempt header": {ctx: with(noKey), header: "-"},

		"invalid":  {ctx: changed(t.Context(), invalid), want: problem},
		"repaired": {ctx: changed(changed(t.Context(), invalid), repair)},
		"of an invalid policy": {
			ctx: changed(twoProblems, func(p *policy) { p.AttemptTimeout = 0 }), want: problem},
		"of a repaired policy": {ctx: changed(with(policy{MaxElapsed: -1}), repair)},
		"not with this transport": {
			ctx: changed(t.Context(), func(p *policy) { *p = noKey }), want: noHeader},
	} {
		t.Run(name, func(t *testing.T) {
			base := contract.Play(s200)
			body := contract.Counted("text")
			req := contract.Streamed(t, "PUT", "http://a.test/", body).WithContext(tt.ctx)
			err := exchange(t, contract.New(t,
				httpretry.Config{Base: base, AttemptHeader: tt.header}), req)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, "httpretry: not sent: "+tt.want)
			requireError(t, err, 0, httpretry.ReasonPermanent)
			assert.Empty(t, base.Attempts())
		})
	}
}

// A nil function panics at once. If a function panics, the request's body is
// closed.
func TestPolicyFuncPanics(t *testing.T) {
	assert.PanicsWithValue(t, "httpretry: WithPolicyFunc: nil function",
		func() { httpretry.WithPolicyFunc(t.Context(), nil) })
	body := contract.Counted("text")
	ctx := changed(t.Context(), func(*httpretry.Policy) { panic("boom") })
	req := contract.Streamed(t, "PUT", "http://a.test/", body).WithContext(ctx)
	transport := contract.Unchecked(t, httpretry.Config{Base: contract.Play(s200)})
	assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(req) })
	assert.Equal(t, 1, body.Closes())
}

// Requests may share a context with a function, and contexts that were derived
// from it with others.
func TestPolicyFuncsOfConcurrentRequests(t *testing.T) {
	transport := contract.New(t, httpretry.Config{
		Base: contract.Scripts{}, Policy: contract.RetryEvery(0)})
	shared := changed(t.Context(), func(p *httpretry.Policy) { p.MaxAttempts++ })
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			ctx := changed(shared, func(p *httpretry.Policy) { p.MaxAttempts += n + 1 })
			for want, ctx := range map[int]context.Context{6: shared, 7 + n: ctx} {
				script := contract.Play(s503)
				assert.NoError(t, exchange(t, transport, script.For(newGet(t).WithContext(ctx))))
				assert.Len(t, script.Attempts(), want)
			}
		})
	}
	wg.Wait()
}

// A body is resumed by the policy of WithPolicyFunc, which is not asked again.
func TestWithPolicyFuncResumes(t *testing.T) {
	calls := 0
	ctx := changed(t.Context(), func(p *httpretry.Policy) {
		calls++
		p.Resume = true
	})
	o := newOrigin(1000, 10, 10)
	policy := resuming()
	policy.Resume = false
	resp, err := contract.With(t, o, policy).RoundTrip(newGet(t).WithContext(ctx))
	require.NoError(t, err)
	_, err = readAll(t, o, resp)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Len(t, o.sent(), 3)
	assert.Equal(t, 1, calls)
}

// The contexts of attempts and of responses have the marks of the request's
// context. So a request that is sent in one of them is treated as the first.
func TestContextsOfAttemptsAndResponsesKeepMarks(t *testing.T) {
	two := immediateRetries(2)
	two.Idempotent = func(*http.Request) bool { return true }
	marks := map[string]struct {
		in   func(context.Context) context.Context
		want []string // the attempt headers of a POST that fails
	}{
		"none":           {func(ctx context.Context) context.Context { return ctx }, []string{""}},
		"WithIdempotent": {httpretry.WithIdempotent, []string{"", "1", "2"}},
		"WithPolicy": {func(ctx context.Context) context.Context {
			return httpretry.WithPolicy(ctx, two)
		}, []string{"", "1"}},
		"WithPolicyFunc": {func(ctx context.Context) context.Context {
			return changed(ctx, func(p *httpretry.Policy) { *p = two })
		}, []string{"", "1"}},
		"WithoutRetries": {func(ctx context.Context) context.Context {
			return httpretry.WithoutRetries(httpretry.WithPolicy(ctx, two))
		}, []string{""}},
		"Middleware": {func(ctx context.Context) context.Context {
			return inboundContext(t, ctx, "7")
		}, []string{"7"}},
	}
	for _, body := range []string{"", "text"} { // without a copy and with one
		for name, tt := range marks {
			t.Run(fmt.Sprintf("%s/body %q", name, body), func(t *testing.T) {
				req := contract.Request(t, "PUT", "http://a.test/", "").
					WithContext(tt.in(t.Context()))
				if body != "" {
					req.Body = contract.Counted(body)
				}
				attempt, response := sentAndReturned(t, req)
				for place, ctx := range map[string]context.Context{
					"attempt": attempt, "response": response} {
					call := outboundCall{method: "POST"}
					call.send(t, ctx, s503)
					assert.Equal(t, tt.want, call.headers("Retry-Attempt"), place)
				}
			})
		}
	}
}

// inboundContext returns the context of an inbound retry, whose handler returns
// when the test ends.
func inboundContext(t *testing.T, ctx context.Context, retry string) context.Context {
	inbound, end := make(chan context.Context), make(chan struct{})
	t.Cleanup(func() { close(end) })
	go receive(ctx, retry, func(r *http.Request) { inbound <- r.Context(); <-end })
	return <-inbound
}

// sentAndReturned sends a request that fails once, and returns the contexts of
// its attempt, which does not end with that, and of its response.
func sentAndReturned(t *testing.T, req *http.Request) (attempt, response context.Context) {
	t.Helper()
	script := contract.Play(refuses(503))
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		attempt = context.WithoutCancel(req.Context())
		return script.RoundTrip(req)
	})
	// With an attempt header, Middleware causes a copy.
	resp := contract.Send(t, contract.New(t, httpretry.Config{Base: base, AttemptHeader: "-"}), req)
	return attempt, resp.Request.Context()
}

// WithIdempotent also applies to requests that a layer in Base sends in the
// context of an attempt. They need no key.
func TestWithIdempotentCoversLayers(t *testing.T) {
	policy := contract.RetryEvery(0)
	policy.NewIdempotencyKey = func(*http.Request) string { return "k" }
	for name, tt := range map[string]struct {
		ctx  context.Context
		want []string
	}{
		"marked":   {httpretry.WithIdempotent(t.Context()), nil},
		"unmarked": {t.Context(), []string{"k"}},
	} {
		t.Run(name, func(t *testing.T) {
			tokens := contract.Play(s200)
			inner := contract.With(t, tokens, policy)
			script := contract.Play(s503, s200)
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				contract.Send(t, inner, contract.Request(t, "POST", "http://b.test/token", "").
					WithContext(req.Context()))
				return script.RoundTrip(req)
			})
			contract.Send(t, contract.With(t, base, policy), newGet(t).WithContext(tt.ctx))
			require.Len(t, tokens.Attempts(), 2)
			for _, sent := range tokens.Attempts() {
				assert.Equal(t, tt.want, sent.Header["Idempotency-Key"])
			}
		})
	}
}

// The result of a response that no RetryTransport returned depends on its
// status only. A caller may ask for a result before it looks at the error.
func TestResultOfOtherResponses(t *testing.T) {
	contract.HasResult(t, nil, 0, httpretry.ReasonNone)
	for _, req := range []*http.Request{nil, newGet(t)} {
		for status, want := range map[int]httpretry.Reason{204: httpretry.ReasonSuccess,
			400: httpretry.ReasonPermanent, 503: httpretry.ReasonPermanent} {
			contract.HasResult(t, &http.Response{StatusCode: status, Request: req}, 1, want)
		}
	}
}

// For a layer in Base, the request of a response has not ended, so Result has
// the status only.
func TestResultBelow(t *testing.T) {
	script := contract.Play(s503, s503, s200)
	var reasons []httpretry.Reason
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		resp, err := script.RoundTrip(req)
		result := httpretry.ResultOf(resp)
		assert.Equal(t, 1, result.Attempts)
		reasons = append(reasons, result.Reason)
		return resp, err
	})
	policy := contract.RetryEvery(0)
	policy.AttemptTimeout = time.Hour // a copy even of the first attempt
	contract.Send(t, contract.With(t, base, policy), newGet(t))
	assert.Equal(t, []httpretry.Reason{
		httpretry.ReasonPermanent, httpretry.ReasonPermanent, httpretry.ReasonSuccess}, reasons)
}

// The context of a response's request may be used for another request, or one
// may be derived from it. The attempts and the reason of that are its own, even
// if it needs a single attempt.
func TestResultOfNextRequest(t *testing.T) {
	withTimeout := contract.RetryEvery(0)
	withTimeout.AttemptTimeout = time.Hour
	for name, derive := range map[string]func(context.Context) context.Context{
		"itself": func(ctx context.Context) context.Context { return ctx },
		"derived": func(ctx context.Context) context.Context {
			return context.WithValue(ctx, derivedKey{}, 1)
		},
		"WithPolicy": func(ctx context.Context) context.Context {
			return httpretry.WithPolicy(ctx, withTimeout)
		},
		"WithoutRetries": httpretry.WithoutRetries,
	} {
		for status, want := range map[int]httpretry.Reason{
			200: httpretry.ReasonSuccess, 404: httpretry.ReasonPermanent} {
			t.Run(fmt.Sprintf("%s/%d", name, status), func(t *testing.T) {
				base := contract.Play(s503, s503, s404, contract.Status(status))
				transport := contract.With(t, base, contract.RetryEvery(0))
				first := contract.Send(t, transport, newGet(t))
				ctx := derive(first.Request.Context())
				second := contract.Send(t, transport, newGet(t).WithContext(ctx))
				assert.Len(t, base.Attempts(), 4)

				contract.HasResult(t, second, 1, want)
				assert.Equal(t, 1, httpretry.Attempt(second.Request.Context()))
				assert.Equal(t, ctx.Value(derivedKey{}),
					second.Request.Context().Value(derivedKey{}))
				contract.HasResult(t, first, 3, httpretry.ReasonPermanent)
			})
		}
	}
}

// derivedKey is the key of a value in a context that was derived from another.
type derivedKey struct{}

// ofLayers are contexts in which layers send clones of requests.
var ofLayers = map[string]func(context.Context) context.Context{
	"same context": func(ctx context.Context) context.Context { return ctx },
	"derived": func(ctx context.Context) context.Context {
		return context.WithValue(ctx, derivedKey{}, "span")
	},
}

// A layer such as a tracer sends a clone of the request, in a context of its
// own. Result returns how the request ended, whether or not the first attempt
// was a copy already. The layer's values and policy stay in the context.
func TestResultOfACloningLayer(t *testing.T) {
	own := contract.RetryEvery(0)
	own.MaxAttempts = 2
	for _, timeout := range []time.Duration{0, time.Hour} {
		for _, tt := range []struct {
			name     string
			change   func(*httpretry.Policy)
			step     contract.Step
			attempts int
			reason   httpretry.Reason
		}{
			{"success", func(*httpretry.Policy) {}, s200, 1, httpretry.ReasonSuccess},
			{"budget", func(p *httpretry.Policy) { p.Budget = contract.UsedUp{} }, s503, 1,
				httpretry.ReasonBudget},
			{"retries", func(p *httpretry.Policy) { p.MaxAttempts = 3 }, s503, 3,
				httpretry.ReasonAttempts},
		} {
			t.Run(fmt.Sprintf("%s/timeout %v", tt.name, timeout), func(t *testing.T) {
				policy := contract.RetryEvery(0)
				policy.AttemptTimeout = timeout
				tt.change(&policy)
				inner := contract.Play(tt.step)
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					ctx := httpretry.WithPolicy(
						context.WithValue(req.Context(), derivedKey{}, "span"), own)
					sent := req.Clone(ctx)
					resp, err := inner.RoundTrip(sent)
					resp.Request = sent
					return resp, err
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				resp := contract.Send(t, contract.With(t, base, policy), newGet(t).WithContext(ctx))
				contract.HasResult(t, resp, tt.attempts, tt.reason)
				got := resp.Request.Context()
				assert.Equal(t, tt.attempts, httpretry.Attempt(got))
				assert.Equal(t, "span", got.Value(derivedKey{}))
				require.NoError(t, got.Err())

				next := contract.Play(s503)
				contract.Send(t, contract.New(t, httpretry.Config{Base: next}),
					newGet(t).WithContext(got))
				assert.Len(t, next.Attempts(), 2, "the layer's policy")
				cancel()
				assert.ErrorIs(t, got.Err(), context.Canceled)
			})
		}
	}
}

// Result returns how a request ended even if a nested RetryTransport is between
// a layer that clones requests and the transport that ended the request.
func TestResultOfACloningLayerBelowTwo(t *testing.T) {
	timeout := contract.RetryEvery(0)
	timeout.AttemptTimeout = time.Hour
	for name, derive := range ofLayers {
		for inner, policy := range map[string]httpretry.Policy{
			"": contract.RetryEvery(0), "timeout": timeout} {
			for _, steps := range []script{{s200}, {s503, s200}, {s503}} {
				t.Run(fmt.Sprintf("%s/%s/%d steps", name, inner, len(steps)), func(t *testing.T) {
					script := contract.Play(steps...)
					base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
						return script.RoundTrip(req.Clone(derive(req.Context())))
					})
					below := contract.With(t, base, policy)
					outer := contract.With(t, below, contract.RetryEvery(0))
					resp := contract.Send(t, outer, newGet(t))
					want := httpretry.ReasonSuccess
					if resp.StatusCode != 200 {
						want = httpretry.ReasonAttempts
					}
					attempts := len(script.Attempts())
					contract.HasResult(t, resp, attempts, want)
					assert.Equal(t, attempts, httpretry.Attempt(resp.Request.Context()))
				})
			}
		}
	}
}

// A resume counts as an attempt, even if a layer has cloned the request.
func TestResultOfACloningLayerAfterAResume(t *testing.T) {
	timeout := resuming()
	timeout.AttemptTimeout = time.Hour
	for name, derive := range ofLayers {
		for kind, policy := range map[string]httpretry.Policy{
			"original": resuming(), "copy": timeout} {
			for cuts, want := range map[int]httpretry.Reason{
				1: httpretry.ReasonSuccess, 3: httpretry.ReasonAttempts} {
				t.Run(fmt.Sprintf("%s/%s/%d cuts", name, kind, cuts), func(t *testing.T) {
					o := newOrigin(1000, []int{10, 10, 10}[:cuts]...)
					base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
						return o.RoundTrip(req.Clone(derive(req.Context())))
					})
					resp := get(t, contract.With(t, base, policy))
					contract.HasResult(t, resp, 1, httpretry.ReasonSuccess)
					_, err := readAll(t, o, resp)
					assert.Equal(t, want == httpretry.ReasonSuccess, err == nil, "%v", err)
					contract.HasResult(t, resp, len(o.sent()), want)
				})
			}
		}
	}
}

// outcomeError is an error of a layer in Base, such as a circuit breaker, that
// determines its own Outcome.
type outcomeError struct{ outcome httpretry.Outcome }

func (e outcomeError) Error() string              { return "the breaker is open" }
func (e outcomeError) Outcome() httpretry.Outcome { return e.outcome }
