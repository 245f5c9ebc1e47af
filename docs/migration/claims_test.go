package migration_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/cenkalti/backoff/v5"
	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/gojek/heimdall/v7"
	"github.com/gojek/heimdall/v7/httpclient"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// TestRedirects checks at which URL a retry after a redirect starts, and
// whether the cookies of discarded responses are kept.
func TestRedirects(t *testing.T) {
	want := map[string][]string{
		"httpretry":     {"/", "/next", "/next", "/next"},
		"retryablehttp": {"/", "/next", "/ a=1", "/next a=1", "/ a=1", "/next a=1"},
	}
	for _, l := range libraries()[:2] {
		synctest.Test(t, func(t *testing.T) {
			var paths []string
			jar, err := cookiejar.New(nil)
			require.NoError(t, err)
			send(senderWithJar(t, l.name, jar, func(req *http.Request) (*http.Response, error) {
				path := req.URL.Path
				if cookie, err := req.Cookie("a"); err == nil {
					path += " " + cookie.String()
				}
				paths = append(paths, path)
				if req.URL.Path == "/" {
					return status(302, "Location", "/next")(req)
				}
				return status(503, "Set-Cookie", "a=1; Path=/")(req)
			}), newRequest(t.Context(), "GET"))
			assert.Equal(t, want[l.name], paths, l.name)
		})
	}
}

func senderWithJar(t *testing.T, name string, jar http.CookieJar, base roundTripFunc) sender {
	if name == "retryablehttp" {
		client := retryablehttp.NewClient()
		client.HTTPClient = &http.Client{Transport: base, Jar: jar}
		client.RetryMax, client.Logger = 2, nil
		return func(req *http.Request) (*http.Response, error) {
			return client.Do(&retryablehttp.Request{Request: req})
		}
	}
	transport, err := httpretry.New(httpretry.Config{Base: base})
	require.NoError(t, err)
	return (&http.Client{Transport: transport, Jar: jar}).Do
}

// TestRetryablehttpGivesUp checks that it closes the connections of all hosts,
// and that httpretry does not.
func TestRetryablehttpGivesUp(t *testing.T) {
	for i, l := range libraries()[:2] {
		synctest.Test(t, func(t *testing.T) {
			base := &closes{RoundTripper: &base{answers: []answer{status(503)}}}
			send(l.sender(base, 0), newRequest(t.Context(), "GET"))
			assert.Equal(t, i, base.n, l.name)
		})
	}
}

type closes struct {
	http.RoundTripper
	n int
}

func (c *closes) CloseIdleConnections() { c.n++ }

// TestRetryablehttpLogs checks that it has a logger by default.
func TestRetryablehttpLogs(t *testing.T) {
	assert.NotNil(t, retryablehttp.NewClient().Logger)
}

// TestSeeker checks that retryablehttp and failsafehttp send a reader that can
// seek from its first byte.
func TestSeeker(t *testing.T) {
	half := func() io.Reader {
		r := strings.NewReader("data")
		_, err := r.Seek(2, io.SeekStart)
		require.NoError(t, err)
		return r
	}
	theirs, err := retryablehttp.NewRequest("PUT", "http://a.test/", half())
	require.NoError(t, err)
	body, err := theirs.BodyBytes()
	require.NoError(t, err)
	assert.Equal(t, "data", string(body))

	b := roundTripFunc(func(req *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(req.Body)
		require.NoError(t, err)
		assert.Equal(t, "data", string(body))
		return status(200)(req)
	})
	req := newRequest(t.Context(), "PUT")
	req.Body = seekCloser{half().(*strings.Reader)}
	send(failsafehttp.NewRoundTripper(b, failsafehttp.NewRetryPolicyBuilder().Build()).RoundTrip, req)

	ours, err := http.NewRequest("PUT", "http://a.test/", half())
	require.NoError(t, err)
	body, err = io.ReadAll(ours.Body)
	require.NoError(t, err)
	assert.Equal(t, "ta", string(body))
}

// seekCloser is a body that can seek, as a file is.
type seekCloser struct{ *strings.Reader }

func (seekCloser) Close() error { return nil }

// TestRetryablehttpShell checks a retryablehttp.Client that retries nothing
// itself: for packages that ask for one.
func TestRetryablehttpShell(t *testing.T) {
	server := newServer(503, 200)
	defer server.Close()
	client := retryablehttp.NewClient()
	client.RetryMax, client.Logger = 0, nil
	client.ErrorHandler = retryablehttp.PassthroughErrorHandler
	client.HTTPClient = &http.Client{Transport: new(httpretry.RetryTransport)}
	resp, err := client.Get(server.URL)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, "200 OK after GET, GET", resp.Status+" after "+server.log())
}

// TestStrategies checks that the guide's strategies have the bounds of those
// that they replace.
func TestStrategies(t *testing.T) {
	const low, high = 800 * time.Millisecond, 1200 * time.Millisecond
	linear := strategies.Jitter{Of: strategies.Linear{Base: high}, Fraction: 1 - float64(low)/float64(high)}
	random := strategies.Jitter{Of: strategies.Constant{Wait: high}, Fraction: 1 - float64(low)/float64(high)}
	exponential := strategies.Exponential{Base: 500 * time.Millisecond, Factor: 1.5, Max: time.Minute}
	spread := strategies.Spread{Of: exponential, Fraction: 0.5}
	for range 1000 {
		waits, theirs := strategies.Take(spread, 4), backoff.NewExponentialBackOff()
		for n, wait := range strategies.Take(linear, 4) {
			times := time.Duration(n + 1)
			within(t, low*times, high*times, wait)
			within(t, low*times, high*times, retryablehttp.LinearJitterBackoff(low, high, n, nil))
			middle := strategies.Take(exponential, n+1)[n]
			within(t, middle/2, middle*3/2, waits[n])
			within(t, middle/2, middle*3/2, theirs.NextBackOff())
		}
		within(t, low, high, strategies.Take(random, 1)[0])
		within(t, low, high, heimdall.NewConstantBackoff(low, high-low).Next(0))
	}
	// Both count from 0.
	seconds := func(retry int) time.Duration { return time.Duration(retry) * time.Second }
	assert.Equal(t, []time.Duration{0, time.Second}, strategies.Take(strategies.Func(seconds), 2))
	assert.Equal(t, time.Duration(0), heimdall.NewRetrierFunc(seconds).NextInterval(0))
}

func within(t *testing.T, low, high, wait time.Duration) {
	t.Helper()
	// A nanosecond is lost to rounding.
	assert.True(t, low-1 <= wait && wait <= high+1, "%v is not between %v and %v", wait, low, high)
}

func TestRehttpErrors(t *testing.T) {
	for _, err := range []error{refused(), reset(), io.EOF} {
		for _, retry := range []rehttp.RetryFn{rehttp.RetryTemporaryErr(), rehttp.RetryTimeoutErr()} {
			b := &base{answers: []answer{fails(err)}}
			transport := rehttp.NewTransport(b, rehttp.RetryAll(rehttp.RetryMaxRetries(2), retry), rehttp.ConstDelay(0))
			send(transport.RoundTrip, newRequest(t.Context(), "GET"))
			assert.Len(t, b.times, 1, "%v", err)
		}
	}
}

// TestBodyTimeout checks that PerAttemptTimeout cuts off a response's body.
func TestBodyTimeout(t *testing.T) {
	limited := library{"rehttp", func(base http.RoundTripper, _ time.Duration) sender {
		transport := rehttp.NewTransport(base, rehttp.RetryMaxRetries(0), rehttp.ConstDelay(0))
		transport.PerAttemptTimeout = 4500 * time.Millisecond
		return transport.RoundTrip
	}}
	synctest.Test(t, func(t *testing.T) { assert.Equal(t, "4 of 10 bytes", slowBody(limited)()) })
}

// slowBody returns how much of a body that takes ten seconds can be read.
func slowBody(l library) func() string {
	return func() string {
		resp, err := l.sender(roundTripFunc(dripping), 0)(newRequest(context.Background(), "GET"))
		if err != nil {
			return "error"
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body) // the timeout is an error here
		return fmt.Sprintf("%d of 10 bytes", len(body))
	}
}

// TestFailsafeWaits checks the waits that failsafehttp makes by default, and
// that jitter and WithMaxDuration make a wait shorter than the server asks.
func TestFailsafeWaits(t *testing.T) {
	wait := func(t *testing.T, retryAfter string, policy retrypolicy.Builder[*http.Response]) time.Duration {
		b := &base{answers: []answer{status(503, "Retry-After", retryAfter), status(200)}}
		send(failsafehttp.NewRoundTripper(b, policy.Build()).RoundTrip, newRequest(t.Context(), "GET"))
		require.Len(t, b.times, 2)
		return b.times[1].Sub(b.times[0])
	}
	synctest.Test(t, func(t *testing.T) {
		assert.Equal(t, time.Duration(0), wait(t, "", failsafehttp.NewRetryPolicyBuilder()))
		assert.Equal(t, 5*time.Second, wait(t, "10", failsafehttp.NewRetryPolicyBuilder().WithMaxDuration(5*time.Second)))
		least := time.Hour
		for range 100 {
			least = min(least, wait(t, "10", failsafehttp.NewRetryPolicyBuilder().WithJitterFactor(0.25)))
		}
		assert.Less(t, least, 9*time.Second)
	})
}

// TestHedge checks that a hedge policy sends a POST twice, below httpretry as
// well as above it.
func TestHedge(t *testing.T) {
	hedge := hedgepolicy.NewWithDelay[*http.Response](time.Second)
	for _, below := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var sent atomic.Int64
			var slow http.RoundTripper = roundTripFunc(func(req *http.Request) (*http.Response, error) {
				sent.Add(1)
				select {
				case <-time.After(3 * time.Second):
					return status(200)(req)
				case <-req.Context().Done():
					return nil, req.Context().Err()
				}
			})
			var policies []failsafe.Policy[*http.Response]
			if below {
				slow = failsafehttp.NewRoundTripper(slow, hedge)
			} else {
				policies = append(policies, hedge)
			}
			ours, err := httpretry.New(httpretry.Config{Base: slow})
			require.NoError(t, err)
			send(failsafehttp.NewRoundTripper(ours, policies...).RoundTrip, newRequest(t.Context(), "POST"))
			assert.Equal(t, int64(2), sent.Load(), "below: %v", below)
		})
	}
}

func TestHeimdall(t *testing.T) {
	t.Run("a canceled request is sent again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			b := &base{answers: []answer{status(200)}}
			start := time.Now()
			send(heimdallSender(b, 0), newRequest(ctx, "GET"))
			assert.Len(t, b.times, 3)
			assert.Equal(t, 3*time.Second, time.Since(start))
		})
	})
	t.Run("a response and an error", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &base{answers: []answer{fails(syscall.ECONNRESET), status(503)}}
			resp, err := heimdallSender(b, 0)(newRequest(t.Context(), "GET"))
			require.NotNil(t, resp)
			assert.Equal(t, 503, resp.StatusCode)
			require.Error(t, err)
			assert.False(t, errors.Is(err, syscall.ECONNRESET))
		})
	})
	t.Run("a wait without a retry", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &base{answers: []answer{status(501)}}
			waits := heimdall.NewRetrier(heimdall.NewConstantBackoff(time.Second, 0))
			client := httpclient.NewClient(
				httpclient.WithHTTPClient(&http.Client{Transport: b}), httpclient.WithRetrier(waits))
			start := time.Now()
			send(client.Do, newRequest(t.Context(), "GET"))
			assert.Len(t, b.times, 1)
			assert.Equal(t, time.Second, time.Since(start))
		})
	})
	t.Run("WithHTTPClient without WithHTTPTimeout", func(t *testing.T) {
		check := roundTripFunc(func(req *http.Request) (*http.Response, error) {
			_, ok := req.Context().Deadline()
			assert.False(t, ok)
			return status(200)(req)
		})
		client := httpclient.NewClient(
			httpclient.WithHTTPTimeout(time.Second), httpclient.WithHTTPClient(&http.Client{Transport: check}))
		send(client.Do, newRequest(t.Context(), "GET"))
	})
}

// TestBackoffDefaults checks how long backoff.Retry goes on by default.
func TestBackoffDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &base{answers: []answer{status(503)}}
		start := time.Now()
		_, err := backoff.Retry(t.Context(), func() (*http.Response, error) {
			return attempt(&http.Client{Transport: b}, newRequest(t.Context(), "GET"))
		})
		assert.Error(t, err)
		assert.Greater(t, len(b.times), 15)
		assert.InDelta(t, 14, time.Since(start).Minutes(), 1.5)
	})
}

// TestBackoffRetryAfter checks the waits of the guide's loop after long ones in
// Retry-After.
func TestBackoffRetryAfter(t *testing.T) {
	for seconds, want := range map[string]string{"86400": "no retry", "9223372037": "0s"} {
		synctest.Test(t, func(t *testing.T) {
			b := &base{answers: []answer{status(503, "Retry-After", seconds), status(200)}}
			send(backoffSender(b, 0), newRequest(t.Context(), "GET"))
			assert.Equal(t, want, b.firstWait(0), seconds)
		})
	}
}
