package migration_test

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/cenkalti/backoff/v5"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/gojek/heimdall/v7"
	"github.com/gojek/heimdall/v7/httpclient"
	"github.com/hashicorp/go-retryablehttp"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// sender sends a request and retries it.
type sender func(*http.Request) (*http.Response, error)

// A library makes a sender that makes up to three attempts and waits a second
// between them. The timeout is the Timeout of the http.Client that its users
// have in their hands.
type library struct {
	name   string
	sender func(base http.RoundTripper, timeout time.Duration) sender
}

// libraries has the columns of the guide's table of differences.
func libraries() []library {
	return []library{
		with(httpretry.Policy{}),
		changed(func(*retryablehttp.Client) {}),
		{"rehttp", rehttpSender},
		{"failsafehttp", failsafehttpSender},
		{"heimdall", heimdallSender},
		{"backoff", backoffSender},
	}
}

// with is httpretry with a policy.
func with(p httpretry.Policy) library {
	p.Backoff = strategies.Constant{Wait: time.Second}
	return library{"httpretry", func(base http.RoundTripper, timeout time.Duration) sender {
		transport, err := httpretry.New(httpretry.Config{Base: base, Policy: p})
		if err != nil {
			panic(err)
		}
		return (&http.Client{Transport: transport, Timeout: timeout}).Do
	}}
}

// changed is retryablehttp with a change.
func changed(change func(*retryablehttp.Client)) library {
	return library{"retryablehttp", func(base http.RoundTripper, timeout time.Duration) sender {
		client := retryablehttp.NewClient()
		client.HTTPClient = &http.Client{Transport: base, Timeout: timeout}
		client.RetryMax, client.RetryWaitMax = 2, time.Second
		client.Logger = nil
		change(client)
		return func(req *http.Request) (*http.Response, error) {
			wrapped, err := retryablehttp.FromRequest(req)
			if err != nil {
				return nil, err
			}
			return client.Do(wrapped)
		}
	}}
}

func rehttpSender(base http.RoundTripper, timeout time.Duration) sender {
	failed := rehttp.RetryIsErr(func(err error) bool { return err != nil })
	transport := rehttp.NewTransport(base,
		rehttp.RetryAll(rehttp.RetryMaxRetries(2), rehttp.RetryAny(rehttp.RetryStatusInterval(500, 600), failed)),
		rehttp.ConstDelay(time.Second))
	return (&http.Client{Transport: transport, Timeout: timeout}).Do
}

func failsafehttpSender(base http.RoundTripper, timeout time.Duration) sender {
	policy := failsafehttp.NewRetryPolicyBuilder().WithDelay(time.Second).Build()
	return (&http.Client{Transport: failsafehttp.NewRoundTripper(base, policy), Timeout: timeout}).Do
}

func heimdallSender(base http.RoundTripper, timeout time.Duration) sender {
	// WithHTTPTimeout has no effect on a client of one's own.
	return httpclient.NewClient(
		httpclient.WithHTTPClient(&http.Client{Transport: base, Timeout: timeout}),
		httpclient.WithRetryCount(2),
		httpclient.WithRetrier(heimdall.NewRetrier(heimdall.NewConstantBackoff(time.Second, 0))),
	).Do
}

// backoffSender is a loop around a client, as in that library's documentation.
func backoffSender(base http.RoundTripper, timeout time.Duration) sender {
	client := &http.Client{Transport: base, Timeout: timeout}
	return func(req *http.Request) (*http.Response, error) {
		return backoff.Retry(req.Context(), func() (*http.Response, error) { return attempt(client, req) },
			backoff.WithMaxTries(3), backoff.WithBackOff(backoff.NewConstantBackOff(time.Second)))
	}
}

func attempt(client *http.Client, req *http.Request) (*http.Response, error) {
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode < 500 {
		return resp, nil
	}
	resp.Body.Close()
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		return nil, backoff.RetryAfter(seconds)
	}
	return nil, errors.New(resp.Status)
}
