package migration_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/cenkalti/backoff/v5"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/gojek/heimdall/v7"
	"github.com/gojek/heimdall/v7/httpclient"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/retrytest"
	"github.com/seed421102f4/httpretry/strategies"
)

// TestDifferences checks each cell of the guide's table of differences.
func TestDifferences(t *testing.T) {
	unknown := &net.DNSError{Err: "no such host", Name: "a.test", IsNotFound: true}
	all := []struct {
		name    string
		happens func(*testing.T, library) string
	}{
		{"GET, unknown host: requests", requests("GET",
			retrytest.Fails(&net.OpError{Op: "dial", Net: "tcp", Err: unknown}))},
		{"GET, 429, then 200: requests", requests("GET", status(429), status(200))},
		{"wait after Retry-After: a date in 20 s", func(t *testing.T, l library) string {
			at := time.Now().UTC().Add(20 * time.Second)
			late := status(503, "Retry-After", at.Format(http.TimeFormat))
			base := contract.Play(late, status(200))
			send(l.sender(base, 0), request(t, "GET"))
			return firstWait(base, 20*time.Second)
		}},
		{"client's Timeout 1.5 s; 503, 503, 200", func(t *testing.T, l library) string {
			start, base := time.Now(), contract.Play(status(503), status(503), status(200))
			got := send(l.sender(base, 3*time.Second/2), request(t, "GET"))
			return got + ", " + time.Since(start).String()
		}},
	}
	var names []string
	for _, l := range libraries() {
		names = append(names, l.name)
	}
	rows := tableAfter(t, "../migration.md", "| | "+strings.Join(names, " | ")+" |")
	require.Len(t, rows, len(all))
	for i, row := range rows {
		require.Len(t, row, 1+len(libraries()))
		require.Equal(t, all[i].name, strings.ReplaceAll(row[0], "`", ""))
		for j, l := range libraries() {
			if cell := row[1+j]; cell != "your code" {
				synctest.Test(t, func(t *testing.T) {
					assert.Equal(t, cell, all[i].happens(t, l), "%s: %s", row[0], l.name)
				})
			}
		}
	}
}

func request(t *testing.T, method string) *http.Request {
	t.Helper()
	return contract.Request(t, method, "http://a.test/", "")
}

// send describes what a caller gets.
func send(s sender, req *http.Request) string {
	resp, err := s(req)
	switch {
	case err != nil && resp == nil:
		return "error"
	case err != nil:
		return fmt.Sprint(resp.StatusCode, " and an error")
	}
	resp.Body.Close()
	return fmt.Sprint(resp.StatusCode)
}

func requests(method string, steps ...contract.Step) func(*testing.T, library) string {
	return func(t *testing.T, l library) string {
		base := contract.Play(steps...)
		send(l.sender(base, 0), request(t, method))
		return fmt.Sprint(len(base.Attempts()))
	}
}

// TestOldPolicy checks that the guide's policy brings the old behavior back.
func TestOldPolicy(t *testing.T) {
	old := with(oldPolicy())
	synctest.Test(t, func(t *testing.T) {
		assert.Equal(t, "4", requests("POST", status(503))(t, old))
		assert.Equal(t, "4", requests("POST", retrytest.Reset())(t, old))

		base := contract.Play(status(503))
		s := old.sender(base, 0)
		for range 1000 {
			send(s, request(t, "GET"))
		}
		assert.Len(t, base.Attempts(), 4000, "each GET of an outage")

		base = contract.Play(status(503))
		upload := io.NopCloser(bytes.NewReader(make([]byte, 1<<20)))
		send(old.sender(base, 0), contract.Streamed(t, "PUT", "http://a.test/", upload))
		assert.Len(t, base.Attempts(), 4, "a long upload without GetBody")

		base = contract.Play(status(503, "Retry-After", "86400"), status(200))
		send(old.sender(base, 0), request(t, "GET"))
		require.Len(t, base.Waits(), 1)
		assert.GreaterOrEqual(t, base.Waits()[0], 24*time.Hour)
	})
}

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
			return client.Do(&retryablehttp.Request{Request: req})
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
