package httpretry_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/wire"
)

// listener is a budget that keeps its arguments, and allows every retry.
type listener struct {
	httpretry.Unlimited
	ended, charged []httpretry.AttemptResult // of Record
	asked          []httpretry.AttemptResult // of Withdraw
}

func (l *listener) Record(ended, charged httpretry.AttemptResult) {
	l.ended, l.charged = append(l.ended, ended), append(l.charged, charged)
}

func (l *listener) Withdraw(_ context.Context, last httpretry.AttemptResult) bool {
	l.asked = append(l.asked, last)
	return true
}

// A budget gets the result of each attempt, and an observer gets the same.
func TestAttemptResult(t *testing.T) {
	type result = httpretry.AttemptResult
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Now())
	defer cancelLate()
	unsent := httpretry.WithOutcome(errors.New("breaker"), httpretry.Unprocessed)
	for name, tt := range map[string]struct {
		ctx  context.Context
		step contract.Step
		want result
	}{
		"success":         {nil, s200, result{Status: 200}},
		"refusal":         {nil, s404, result{Status: 404}},
		"failure":         {nil, s503, result{Status: 503, Outcome: httpretry.Transient}},
		"425":             {nil, contract.Status(425), result{Status: 425, Outcome: httpretry.Unprocessed}},
		"gateway timeout": {nil, contract.Status(504), result{Status: 504, Outcome: httpretry.Transient, Timeout: true}},
		"429 that asks for a wait": {nil, asksFor(1),
			result{Status: 429, Outcome: httpretry.Transient, Throttled: true}},
		"429":                      {nil, s429, result{Status: 429, Outcome: httpretry.Transient}},
		"503 that asks for a wait": {nil, contract.Status(503, "Retry-After", "1"), result{Status: 503, Outcome: httpretry.Transient}},
		"503 that forbids a retry": {nil, refuses(503),
			result{Status: 503, Outcome: httpretry.Transient}},
		"402 that forbids a retry": {nil, refuses(402), result{Status: 402}},
		"reset":                    {nil, reset, result{Outcome: httpretry.Transient}},
		"breaker":                  {nil, contract.Fails(unsent), result{Outcome: httpretry.Unprocessed}},
		"timeout": {nil, contract.Fails(os.ErrDeadlineExceeded),
			result{Outcome: httpretry.Transient, Timeout: true}},
		"AttemptTimeout": {nil, contract.Step{Takes: time.Hour},
			result{Outcome: httpretry.Transient, Timeout: true}},
		"unknown host": {nil, contract.Fails(unknownHost), result{}},
		"canceled":     {canceled, reset, result{}},
		"canceled after a timeout": {canceled, contract.Fails(context.DeadlineExceeded),
			result{Timeout: true}},
		"caller's deadline": {late, contract.Fails(context.DeadlineExceeded),
			result{Outcome: httpretry.Transient, Timeout: true}},
		"caller's deadline, with another error": {late, contract.Fails(unknownHost),
			result{Outcome: httpretry.Transient, Timeout: true}},
		"caller's deadline, unsent": {late, contract.Fails(unsent),
			result{Outcome: httpretry.Unprocessed}},
		"caller's deadline, in a queue": {late, contract.Fails(
			httpretry.WithOutcome(context.DeadlineExceeded, httpretry.Final)),
			result{Timeout: true}},
		"too many sends by net/http": {nil, contract.Fails(wire.ErrTooManySends),
			result{Outcome: httpretry.Transient}},
		"canceled, with a response": {canceled, s503,
			result{Status: 503, Outcome: httpretry.Transient}},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			budget, events := new(listener), new(contract.Record)
			policy := contract.RetryEvery(time.Second)
			policy.Budget, policy.MaxAttempts, policy.AttemptTimeout = budget, 1, time.Minute
			base := contract.Play(tt.step)
			req := newGet(t)
			// Only while the attempt is under way.
			during := contract.BaseFunc(func(r *http.Request) (*http.Response, error) {
				resp, err := base.RoundTrip(r)
				if tt.ctx != nil {
					*req = *req.WithContext(tt.ctx)
				}
				return resp, err
			})
			resp, err := contract.Unchecked(t, httpretry.Config{
				Base: during, Observe: events.Observe,
				Policies: map[string]httpretry.Policy{"a.test": policy},
			}).RoundTrip(req)
			if err == nil {
				contract.ReadBody(t, resp)
			}
			want := tt.want
			want.Origin, want.PolicyKey, want.Number = "http://a.test", "a.test", 1
			assert.Equal(t, []result{want}, budget.ended)
			assert.Equal(t, []result{{}}, budget.charged)
			assert.Equal(t, want.Status != 0 && want.Outcome == httpretry.Final,
				budget.ended[0].Succeeded())
			require.Len(t, events.Events, 1)
			assert.Equal(t, want, events.Events[0].Attempt)
		})
	}
}

// The result of a retry comes with that of the attempt which it follows, the
// argument of Withdraw.
func TestAttemptResultsOfRetries(t *testing.T) {
	budget := new(listener)
	policy := contract.RetryEvery(0)
	policy.Budget = budget
	contract.Send(t, contract.New(t, httpretry.Config{
		Base: contract.Play(s503, reset, s200), Policy: policy}), newGet(t))
	first := httpretry.AttemptResult{Origin: "http://a.test", Number: 1, Status: 503,
		Outcome: httpretry.Transient}
	second := httpretry.AttemptResult{Origin: "http://a.test", Number: 2,
		Outcome: httpretry.Transient}
	third := httpretry.AttemptResult{Origin: "http://a.test", Number: 3, Status: 200}
	assert.Equal(t, []httpretry.AttemptResult{first, second, third}, budget.ended)
	assert.Equal(t, []httpretry.AttemptResult{first, second}, budget.asked)
	assert.Equal(t, []httpretry.AttemptResult{{}, first, second}, budget.charged)
}

// A body that breaks off is followed by a Withdraw, also if its attempt was
// recorded as a success.
func TestAttemptResultsOfResumes(t *testing.T) {
	o := newOrigin(1<<20, 10, 20, 100_000)
	budget := new(listener)
	policy := resuming()
	policy.Budget = budget
	resp := get(t, contract.With(t, o, policy))
	_, err := readAll(t, o, resp)
	require.NoError(t, err)
	of := func(attempt, status int, outcome httpretry.Outcome) httpretry.AttemptResult {
		return httpretry.AttemptResult{Origin: "http://a.test", Number: attempt, Status: status,
			Outcome: outcome}
	}
	breaks := []httpretry.AttemptResult{of(1, 0, httpretry.Transient),
		of(2, 0, httpretry.Transient), of(3, 0, httpretry.Transient)}
	assert.Equal(t, breaks, budget.asked)
	assert.Equal(t, []httpretry.AttemptResult{of(1, 200, httpretry.Final), breaks[1],
		of(3, 206, httpretry.Final), of(4, 206, httpretry.Final)}, budget.ended)
	assert.Equal(t, append([]httpretry.AttemptResult{{}}, breaks...), budget.charged)
}

// A layer may return a response with a status that is none.
func TestStatusZero(t *testing.T) {
	events := new(contract.Record)
	transport := contract.Unchecked(t, httpretry.Config{
		Base: answering(0), Observe: events.Observe})
	contract.ReadBody(t, contract.Send(t, transport, newGet(t)))
	assert.Equal(t, httpretry.ReasonSuccess, events.Reason())
	assert.Empty(t, transport.Origins()[0].LastFailure)
}

// A policy from a context has the key of the policy that it is made of, if any.
func TestKeyOfAContextsPolicy(t *testing.T) {
	for name, tt := range map[string]struct {
		with func(context.Context) context.Context
		want string
	}{
		"WithPolicy": {func(ctx context.Context) context.Context {
			return httpretry.WithPolicy(ctx, contract.RetryEvery(0))
		}, ""},
		"WithPolicyFunc": {func(ctx context.Context) context.Context {
			same := func(p httpretry.Policy) httpretry.Policy { return p }
			return httpretry.WithPolicyFunc(ctx, same)
		}, "GET a.test/"},
		"WithoutRetries": {httpretry.WithoutRetries, "GET a.test/"},
	} {
		t.Run(name, func(t *testing.T) {
			events := new(contract.Record)
			contract.Send(t, contract.New(t, httpretry.Config{
				Base: contract.Play(s200), Observe: events.Observe,
				Policies: map[string]httpretry.Policy{"GET a.test/": {}},
			}), newGet(t).WithContext(tt.with(t.Context())))
			require.Len(t, events.Events, 1)
			assert.Equal(t, tt.want, events.Events[0].Attempt.PolicyKey)
		})
	}
}

// The second Event of a request that ends in its wait has the result of its last
// attempt. That of a request that a cool-down ends unsent has none.
func TestAttemptResultOfOtherEvents(t *testing.T) {
	playScene(t, contract.RetryEvery(time.Hour), func(s *scene) {
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Hour)
		time.AfterFunc(time.Minute, cancel)
		s.get(ctx, reset)
		require.Len(s, s.Events, 2)
		assert.Equal(s, httpretry.ReasonCanceled, s.Reason())
		assert.Equal(s, s.Events[0].Attempt, s.Events[1].Attempt)
		assert.Equal(s, httpretry.Transient, s.Events[1].Attempt.Outcome)
	})
	policy := contract.RetryEvery(0)
	policy.Cooldown = httpretry.CooldownFail
	playScene(t, policy, func(s *scene) {
		s.sendOnce(asksFor(3600))
		s.Events = nil
		s.get(s.Context(), s200)
		require.Len(s, s.Events, 1)
		assert.Equal(s, httpretry.ReasonCooldown, s.Reason())
		assert.Equal(s, httpretry.AttemptResult{Origin: "http://a.test"}, s.Events[0].Attempt)
	})
}

// Whatever ends the requests, a budget gets each attempt once, and each
// charge is refunded or recorded once.
func TestAccountOfManyRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu   sync.Mutex
			sent int
		)
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			sent++
			mu.Unlock()
			select {
			case <-time.After(rand.N(time.Second)):
			case <-req.Context().Done():
				return nil, req.Context().Err()
			}
			if rand.N(4) == 0 {
				return nil, contract.ErrReset
			}
			status := []int{200, 404, 429, 503, 504}[rand.N(5)]
			return &http.Response{StatusCode: status, Body: http.NoBody, Request: req,
				Header: http.Header{"Retry-After": {"1"}}}, nil
		})
		budget := &contract.Audit{Budget: new(httpretry.HostBudget)}
		policy := contract.RetryEvery(100 * time.Millisecond)
		policy.Budget, policy.Cooldown = budget, httpretry.CooldownWait
		policy.AttemptTimeout = 800 * time.Millisecond
		transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
		var wg sync.WaitGroup
		for i := range 2000 {
			wg.Go(func() {
				time.Sleep(rand.N(time.Minute))
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(10*time.Second))
				defer cancel()
				method := []string{"GET", "POST"}[i%2]
				resp, err := transport.RoundTrip(
					contract.Request(t, method, "http://a.test/", "").WithContext(ctx))
				if err == nil {
					contract.ReadBody(t, resp)
				}
			})
		}
		wg.Wait()
		budget.Check(t, sent)
	})
}

// Structs that may grow cannot be compared, so that later versions can have
// fields of any type.
func TestStructsThatMayGrow(t *testing.T) {
	for _, v := range []any{
		httpretry.AttemptResult{}, httpretry.Config{}, httpretry.CooldownError{},
		httpretry.Error{}, httpretry.Event{}, httpretry.MiddlewareConfig{},
		httpretry.BudgetStatus{}, httpretry.OriginStatus{}, httpretry.Policy{},
	} {
		of := reflect.TypeOf(v)
		assert.Equal(t, "_", of.Field(0).Name, "%v", of)
		assert.False(t, of.Field(0).Type.Comparable(), "%v", of)
	}
}

// A response that forbids a retry has the Outcome that its policy returns
// without that header.
func TestAttemptResultOfAForbiddenRetry(t *testing.T) {
	for name, tt := range map[string]struct {
		outcome httpretry.Outcome
		want    httpretry.Outcome
	}{
		"final":          {final, final},
		"transient":      {transient, transient},
		"unprocessed":    {unprocessed, unprocessed},
		"not an Outcome": {unprocessed + 1, final},
	} {
		t.Run(name, func(t *testing.T) {
			budget := new(listener)
			policy := contract.RetryEvery(0)
			policy.Budget = budget
			policy.Classify = func(
				req *http.Request, resp *http.Response, err error) httpretry.Outcome {
				if httpretry.Classify(req, resp, err) == final {
					return final
				}
				return tt.outcome
			}
			transport, err := httpretry.New(httpretry.Config{
				Base: contract.Play(contract.Status(503,
					"X-Should-Retry", "false", "Stripe-Should-Retry", "false")),
				Policy: policy})
			require.NoError(t, err)
			contract.Send(t, transport, newGet(t))
			require.Len(t, budget.ended, 1)
			assert.Equal(t, tt.want, budget.ended[0].Outcome)
			failure := transport.Origins()[0].LastFailure
			assert.Equal(t, tt.want != final, failure != "", "Origins has %q", failure)
		})
	}
}

// If the deadline only leaves no time for the next wait, the error is that of the
// attempt, also if the deadline passes in Observe.
func TestErrorBeforeTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var events []httpretry.Event
		_, err := contract.New(t, httpretry.Config{
			Base: contract.Play(refused), Policy: contract.RetryEvery(time.Minute),
			Observe: func(_ context.Context, e httpretry.Event) {
				time.Sleep(time.Hour)
				events = append(events, e)
			},
		}).RoundTrip(newGet(t).WithContext(ctx))
		assert.Equal(t, contract.ErrRefused, err)
		require.Len(t, events, 1)
		assert.Equal(t, httpretry.ReasonDeadline, events[0].Reason)
		assert.Equal(t, contract.ErrRefused, events[0].Err)
		assert.Equal(t, "connection failed", events[0].Status())
	})
}

// http.Client closes the Cancel channel at its Timeout, maybe before the context
// is done. Then the deadline has passed, and the caller has not left.
func TestCancelChannelAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for after, want := range map[time.Duration]httpretry.Reason{
			time.Minute - 1: httpretry.ReasonCanceled, time.Minute: httpretry.ReasonDeadline,
		} {
			ctx := lateContext{t.Context(), time.Now().Add(time.Minute)}
			canceled, events := make(chan struct{}), new(contract.Record)
			time.AfterFunc(after, func() { close(canceled) })
			req := newGet(t).WithContext(ctx)
			req.Cancel = canceled //nolint:staticcheck // http.Client sets it
			base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
				<-canceled
				return nil, contract.ErrReset
			})
			_, err := contract.Recorded(t, base, contract.RetryEvery(0), events).RoundTrip(req)
			require.Error(t, err)
			assert.Equal(t, want, events.Reason())
			assert.Equal(t, want == httpretry.ReasonDeadline,
				errors.Is(events.Events[0].Err, context.DeadlineExceeded))
		}
	})
}

// lateContext is a context that is not done at its deadline.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// slowBudget allows retries after a time, or refuses one once the context is
// done.
type slowBudget struct {
	httpretry.Unlimited
	takes    time.Duration
	refunded int
}

func (b *slowBudget) Withdraw(ctx context.Context, _ httpretry.AttemptResult) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(b.takes):
		return true
	}
}

func (b *slowBudget) Refund(httpretry.AttemptResult) { b.refunded++ }

// If Withdraw takes long, the request ends as it would if that were a part of
// the wait.
func TestSlowWithdraw(t *testing.T) {
	timeout := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, 2*time.Second)
	}
	for name, tt := range map[string]struct {
		end        func(context.Context) (context.Context, context.CancelFunc)
		maxElapsed time.Duration
		takes      time.Duration
		reason     httpretry.Reason
		err        error
		refunded   int
	}{
		"in time": {takes: time.Second, reason: httpretry.ReasonAttempts},
		"beyond MaxElapsed": {maxElapsed: 2 * time.Second, takes: 3 * time.Second,
			reason: httpretry.ReasonMaxElapsed, refunded: 1},
		"beyond the deadline": {end: timeout, takes: 3 * time.Second,
			reason: httpretry.ReasonDeadline, err: context.DeadlineExceeded},
		"wait beyond MaxElapsed": {maxElapsed: 2 * time.Second, takes: 1500 * time.Millisecond,
			reason: httpretry.ReasonMaxElapsed, refunded: 1},
		"wait beyond the deadline": {end: timeout, takes: 1500 * time.Millisecond,
			reason: httpretry.ReasonDeadline, refunded: 1},
		"cancel": {takes: 3 * time.Second, reason: httpretry.ReasonCanceled, err: context.Canceled,
			end: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(2*time.Second, cancel)
				return ctx, cancel
			}},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			budget, events := &slowBudget{takes: tt.takes}, new(contract.Record)
			policy := contract.RetryEvery(time.Second)
			policy.Budget, policy.MaxAttempts, policy.MaxElapsed = budget, 2, tt.maxElapsed
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if tt.end != nil {
				ctx, cancel = tt.end(ctx)
			}
			defer cancel()
			base := contract.Play(reset)
			_, err := contract.Recorded(t, base, policy, events).
				RoundTrip(newGet(t).WithContext(ctx))
			require.Error(t, err)
			if tt.err != nil {
				assert.ErrorIs(t, err, tt.err)
			}
			assert.Equal(t, tt.reason.String(), events.Reason().String())
			assert.Equal(t, tt.refunded, budget.refunded)
			assert.Equal(t, tt.reason == httpretry.ReasonAttempts, len(base.Attempts()) == 2)
		})
	}
}
