package main

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/hashicorp/go-retryablehttp"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/bench/internal/peers"
	"github.com/seed421102f4/httpretry/strategies"
)

// An option of a peer changes its cell in a row. A note below the table says
// so, and a test shows it.
type option struct {
	text   string
	client func(peers.Options) peers.Client
}

// options are the options of a row, by the peer's name.
type options map[string]option

// httpretryWith returns an option that is set in the policy.
func httpretryWith(text string, set func(*httpretry.Policy)) option {
	return option{text: text, client: func(o peers.Options) peers.Client {
		policy := httpretry.Policy{MaxAttempts: o.Attempts}
		if o.Wait != 0 {
			policy.Backoff = strategies.Constant{Wait: o.Wait}
		}
		set(&policy)
		transport, err := httpretry.New(httpretry.Config{Base: o.Base, Policy: policy})
		if err != nil {
			panic(err) // the row's Options are wrong
		}
		return &http.Client{Transport: transport}
	}}
}

var (
	httpretryResume = httpretryWith("`Resume: true` in the policy makes the download continue",
		func(p *httpretry.Policy) { p.Resume = true })
	httpretryBurst = httpretryWith("`Budget: &HostBudget{Burst: 100}` allows these retries",
		func(p *httpretry.Policy) { p.Budget = &httpretry.HostBudget{Burst: 100} })
	httpretryReplay = httpretryWith("`ReplayBuffer: 1 << 20` keeps the body",
		func(p *httpretry.Policy) { p.ReplayBuffer = 1 << 20 })
	// The third wait ends more than a second after the first attempt.
	httpretryOutlasts = httpretryWith("`MaxAttempts: 4, Budget: &HostBudget{Burst: 100}` allows these retries, and outlasts the outage",
		func(p *httpretry.Policy) { p.MaxAttempts, p.Budget = 4, &httpretry.HostBudget{Burst: 100} })
)

// forbidden is a condition that all libraries but heimdall let their users
// write. A request must not be retried if it is a POST, if the server asks for
// a long wait, or if the deadline is before the end of a wait of a minute.
func forbidden(resp *http.Response, err error) bool {
	// There is no request if there is no response.
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return failed.Op == "Post"
	}
	if resp == nil {
		return false
	}
	deadline, ok := resp.Request.Context().Deadline()
	return resp.Request.Method == "POST" || asked(resp) > longWait || ok && time.Until(deadline) < longWait
}

// asked returns the wait that a response asks for.
func asked(resp *http.Response) time.Duration {
	if resp == nil {
		return 0
	}
	wait, _ := httpretry.RetryAfter(resp.Header, time.Now())
	return wait
}

// retryablehttpWith returns an option that is set on go-retryablehttp's client.
func retryablehttpWith(text string, set func(*retryablehttp.Client)) option {
	return option{text: text, client: func(o peers.Options) peers.Client {
		return newRetryablehttp(o, set).StandardClient()
	}}
}

func newRetryablehttp(o peers.Options, set func(*retryablehttp.Client)) *retryablehttp.Client {
	c := retryablehttp.NewClient()
	c.HTTPClient.Transport = o.Base
	c.RetryMax = o.Attempts - 1
	c.RetryWaitMin, c.RetryWaitMax = o.Wait, o.Wait
	c.Logger = nil
	set(c)
	return c
}

var (
	retryablehttpCheck = retryablehttpWith("a `CheckRetry` can look at the method, at headers and at the deadline",
		func(c *retryablehttp.Client) {
			c.CheckRetry = func(ctx context.Context, resp *http.Response, err error) (bool, error) {
				if forbidden(resp, err) {
					return false, nil
				}
				return retryablehttp.DefaultRetryPolicy(ctx, resp, err)
			}
		})
	retryablehttpPassthrough = retryablehttpWith("`ErrorHandler: PassthroughErrorHandler` keeps the response, or the error as it is",
		func(c *retryablehttp.Client) { c.ErrorHandler = retryablehttp.PassthroughErrorHandler })
	retryablehttpDates = retryablehttpWith("a `Backoff` can compare the date with the `Date` header",
		func(c *retryablehttp.Client) {
			c.Backoff = func(_, _ time.Duration, _ int, resp *http.Response) time.Duration {
				return asked(resp)
			}
		})
	retryablehttpTimeout = retryablehttpWith("`HTTPClient.Timeout` limits each attempt, its response's body included",
		func(c *retryablehttp.Client) { c.HTTPClient.Timeout = attemptLimit })
	retryablehttpJitter = retryablehttpWith("`Backoff: LinearJitterBackoff` spreads retries, and ignores Retry-After",
		func(c *retryablehttp.Client) {
			c.RetryWaitMin, c.RetryWaitMax = time.Second, 30*time.Second // the defaults
			c.Backoff = retryablehttp.LinearJitterBackoff
		})
	retryablehttpStream = option{
		text: "its own `Request` with a `ReaderFunc` as body reads nothing ahead",
		client: func(o peers.Options) peers.Client {
			c := newRetryablehttp(o, func(*retryablehttp.Client) {})
			return sender{func(req *http.Request) (*http.Response, error) {
				body := retryablehttp.ReaderFunc(func() (io.Reader, error) { return req.Body, nil })
				r, err := retryablehttp.NewRequestWithContext(req.Context(), req.Method, req.URL.String(), body)
				if err != nil {
					return nil, err
				}
				return c.Do(r)
			}}
		},
	}
)

// attemptLimit is a timeout of an attempt, and of the body of its response.
const attemptLimit = 500 * time.Millisecond

// sender is a function as a client.
type sender struct {
	do func(*http.Request) (*http.Response, error)
}

func (s sender) Do(req *http.Request) (*http.Response, error) { return s.do(req) }

// rehttpWith returns an option that is a further condition, or a delay, or is
// set on rehttp's transport. Each may be nil.
func rehttpWith(text string, condition rehttp.RetryFn, delay rehttp.DelayFn, set func(*rehttp.Transport)) option {
	return option{text: text, client: func(o peers.Options) peers.Client {
		failed := rehttp.RetryAny(
			rehttp.RetryIsErr(func(err error) bool { return err != nil }),
			rehttp.RetryStatusInterval(500, 600),
		)
		conditions := []rehttp.RetryFn{rehttp.RetryMaxRetries(o.Attempts - 1), failed}
		if condition != nil {
			conditions = append(conditions, condition)
		}
		wait := rehttp.ConstDelay(o.Wait)
		if delay != nil {
			wait = delay
		}
		transport := rehttp.NewTransport(o.Base, rehttp.RetryAll(conditions...), wait)
		if set != nil {
			set(transport)
		}
		return &http.Client{Transport: transport}
	}}
}

var (
	rehttpMethods = rehttpWith("`RetryHTTPMethods` restricts retries to methods that are listed",
		rehttp.RetryHTTPMethods("GET", "HEAD", "PUT", "DELETE"), nil, nil)
	rehttpRetry = rehttpWith("a `RetryFn` can look at headers and at the deadline",
		func(a rehttp.Attempt) bool { return !forbidden(a.Response, nil) }, nil, nil)
	rehttpDelay = rehttpWith("a `DelayFn` can look at headers",
		nil, func(a rehttp.Attempt) time.Duration { return asked(a.Response) }, nil)
	rehttpErrors  = rehttpWith("`RetryIsErr` can look at errors", nil, nil, nil)
	rehttpPrevent = rehttpWith("`PreventRetryWithBody` reads nothing ahead",
		nil, nil, func(t *rehttp.Transport) { t.PreventRetryWithBody = true })
	rehttpTimeout = rehttpWith("`PerAttemptTimeout` limits each attempt, its response's body included",
		nil, nil, func(t *rehttp.Transport) { t.PerAttemptTimeout = attemptLimit })
)

// failsafeWith returns an option that is set on failsafehttp's retry policy.
func failsafeWith(text string, set func(retrypolicy.Builder[*http.Response])) option {
	return option{text: text, client: func(o peers.Options) peers.Client {
		return &http.Client{Transport: failsafehttp.NewRoundTripper(o.Base, failsafeRetry(o, set))}
	}}
}

func failsafeRetry(o peers.Options, set func(retrypolicy.Builder[*http.Response])) failsafe.Policy[*http.Response] {
	policy := failsafehttp.NewRetryPolicyBuilder().WithMaxAttempts(o.Attempts).WithDelay(o.Wait)
	set(policy)
	return policy.Build()
}

var (
	failsafeAbort = failsafeWith("`AbortIf` can look at a response's headers, and at its request's method and deadline",
		func(b retrypolicy.Builder[*http.Response]) { b.AbortIf(forbidden) })
	failsafeRequest = option{
		text: "`AbortIf` can look at the `*url.Error` of the `http.Client` in a `failsafehttp.NewRequest`",
		client: func(o peers.Options) peers.Client {
			retry := failsafeRetry(o, func(b retrypolicy.Builder[*http.Response]) { b.AbortIf(forbidden) })
			c := &http.Client{Transport: o.Base}
			return sender{func(req *http.Request) (*http.Response, error) {
				return failsafehttp.NewRequest(req, c, retry).Do()
			}}
		},
	}
	failsafeLast = failsafeWith("`ReturnLastFailure` keeps the response",
		func(b retrypolicy.Builder[*http.Response]) { b.ReturnLastFailure() })
	failsafeDates = failsafeWith("`WithDelayFunc` can read dates",
		func(b retrypolicy.Builder[*http.Response]) {
			b.WithDelayFunc(func(e failsafe.ExecutionAttempt[*http.Response]) time.Duration { return asked(e.LastResult()) })
		})
	failsafeClose = failsafeWith("`OnRetryScheduled` can drain and close the response",
		func(b retrypolicy.Builder[*http.Response]) {
			b.OnRetryScheduled(func(e failsafe.ExecutionScheduledEvent[*http.Response]) {
				if resp := e.LastResult(); resp != nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			})
		})
	failsafeJitter = failsafeWith("`WithDelayFunc` can add a random wait to Retry-After",
		func(b retrypolicy.Builder[*http.Response]) {
			b.WithDelayFunc(func(e failsafe.ExecutionAttempt[*http.Response]) time.Duration {
				return asked(e.LastResult()) + rand.N(30*time.Second)
			})
		})
	failsafeBreaker = option{
		text: "with a `circuitbreaker`, requests fail unsent while it is open",
		client: func(o peers.Options) peers.Client {
			retry := failsafeRetry(o, func(b retrypolicy.Builder[*http.Response]) { b.AbortOnErrors(circuitbreaker.ErrOpen) })
			breaker := circuitbreaker.NewBuilder[*http.Response]().
				HandleIf(func(resp *http.Response, err error) bool { return err != nil || resp.StatusCode >= 500 }).
				WithFailureRateThreshold(0.5, 20, 10*time.Second).Build()
			return &http.Client{Transport: failsafehttp.NewRoundTripper(o.Base, retry, breaker)}
		},
	}
)
