package migration_test

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/cenkalti/backoff/v5"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/gojek/heimdall/v7"
	"github.com/gojek/heimdall/v7/httpclient"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/retrytest"
	"github.com/seed421102f4/httpretry/strategies"
)

// TestRedirects checks at which URL a retry after a redirect starts, and
// whether the cookies of discarded responses are kept.
func TestRedirects(t *testing.T) {
	for name, want := range map[string][]string{
		"httpretry":     {"/", "/next", "/next", "/next"},
		"retryablehttp": {"/", "/next", "/ a=1", "/next a=1", "/ a=1", "/next a=1"},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			base := contract.Play(retrytest.Func(func(req *http.Request) (*http.Response, error) {
				if req.URL.Path == "/" {
					return respond(req, 302, "Location", "/next")
				}
				return respond(req, 503, "Set-Cookie", "a=1; Path=/")
			}))
			jar, err := cookiejar.New(nil)
			require.NoError(t, err)
			ours := contract.Unchecked(t, httpretry.Config{Base: base})
			do := (&http.Client{Transport: ours, Jar: jar}).Do
			if name == "retryablehttp" {
				set := func(c *retryablehttp.Client) { c.HTTPClient.Jar = jar }
				do = changed(set).sender(base, 0)
			}
			send(do, request(t, "GET"))
			var paths []string
			for _, r := range base.Attempts() {
				cookie, _, _ := strings.Cut(r.Header.Get("Cookie"), ";") // theirs adds more
				paths = append(paths, strings.TrimSpace(r.Request.URL.Path+" "+cookie))
			}
			assert.Equal(t, want, paths)
		})
	}
}

// TestRetryablehttpGivesUp checks that it closes the connections of all hosts,
// and that httpretry does not.
func TestRetryablehttpGivesUp(t *testing.T) {
	for i, l := range libraries()[:2] {
		synctest.Test(t, func(t *testing.T) {
			base := &contract.IdleCloser{RoundTripper: contract.Play(status(503))}
			send(l.sender(base, 0), request(t, "GET"))
			assert.Equal(t, i, base.Closed, l.name)
		})
	}
}

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

	base := contract.Play(status(200))
	req := request(t, "PUT")
	req.Body = seekCloser{half().(*strings.Reader)}
	policy := failsafehttp.NewRetryPolicyBuilder().Build()
	send(failsafehttp.NewRoundTripper(base, policy).RoundTrip, req)
	assert.Equal(t, "data", base.Attempts()[0].Body)
}

// seekCloser is a body that can seek, as a file is.
type seekCloser struct{ *strings.Reader }

func (seekCloser) Close() error { return nil }

// TestRetryablehttpShell checks a retryablehttp.Client that retries nothing
// itself: for packages that ask for one.
func TestRetryablehttpShell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.Play(status(503), status(200))
		client := retryablehttp.NewClient()
		client.RetryMax, client.Logger = 0, nil
		client.ErrorHandler = retryablehttp.PassthroughErrorHandler
		client.HTTPClient.Transport = contract.Unchecked(t, httpretry.Config{Base: base})
		assert.Equal(t, "200", send(client.StandardClient().Do, request(t, "GET")))
		assert.Len(t, base.Attempts(), 2)
	})
}

// TestStrategies checks that the guide's strategies have the bounds of those
// that they replace.
func TestStrategies(t *testing.T) {
	const low, high = time.Second, 30 * time.Second // the defaults of go-retryablehttp
	linear := strategies.Linear{Base: high, Max: time.Hour}
	jitter := strategies.Jitter{Of: linear, Fraction: 1 - float64(low)/float64(high)}
	random := strategies.Jitter{Of: strategies.Constant{Wait: high}, Fraction: 1 - float64(low)/float64(high)}
	exponential := strategies.Exponential{Base: 500 * time.Millisecond, Factor: 1.5, Max: time.Minute}
	spread := strategies.Spread{Of: exponential, Fraction: 0.5}
	for range 1000 {
		waits, theirs := strategies.Take(spread, 4), backoff.NewExponentialBackOff()
		for n, wait := range strategies.Take(jitter, 4) {
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
	for n, wait := range strategies.Take(linear, 4) {
		assert.Equal(t, retryablehttp.LinearJitterBackoff(high, high, n, nil), wait)
	}
	assert.Equal(t, heimdall.NewConstantBackoff(low, 0).Next(0), strategies.Take(strategies.Constant{Wait: low}, 1)[0])
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
	for _, step := range []contract.Step{
		retrytest.Refused(), retrytest.Reset(), retrytest.Fails(io.EOF)} {
		for _, retry := range []rehttp.RetryFn{rehttp.RetryTemporaryErr(), rehttp.RetryTimeoutErr()} {
			base := contract.Play(step)
			twice := rehttp.RetryAll(rehttp.RetryMaxRetries(2), retry)
			transport := rehttp.NewTransport(base, twice, rehttp.ConstDelay(0))
			send(transport.RoundTrip, request(t, "GET"))
			assert.Len(t, base.Attempts(), 1, "%v", step.Err)
		}
	}
}

// TestBodyTimeout checks that PerAttemptTimeout cuts off a response's body.
func TestBodyTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := faults.Pipe(t, func(w http.ResponseWriter, _ *http.Request) {
			for range 10 {
				time.Sleep(time.Second)
				_, _ = io.WriteString(w, "x") // the client may be gone
				w.(http.Flusher).Flush()
			}
		})
		transport := rehttp.NewTransport(base, rehttp.RetryMaxRetries(0), rehttp.ConstDelay(0))
		transport.PerAttemptTimeout = 4500 * time.Millisecond
		resp, err := transport.RoundTrip(request(t, "GET"))
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		assert.Error(t, err)
		assert.Equal(t, "xxxx", string(body))
	})
}

// TestFailsafeWaits checks the waits that failsafehttp makes by default, and
// that jitter and WithMaxDuration make a wait shorter than the server asks.
func TestFailsafeWaits(t *testing.T) {
	wait := func(t *testing.T, retryAfter string, policy retrypolicy.Builder[*http.Response]) time.Duration {
		base := contract.Play(status(503, "Retry-After", retryAfter), status(200))
		send(failsafehttp.NewRoundTripper(base, policy.Build()).RoundTrip, request(t, "GET"))
		require.Len(t, base.Waits(), 1)
		return base.Waits()[0]
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
			slow := contract.Play(contract.Step{Takes: 3 * time.Second})
			ours := func(base http.RoundTripper) http.RoundTripper {
				return contract.Unchecked(t, httpretry.Config{Base: base})
			}
			both := failsafehttp.NewRoundTripper(ours(slow), hedge)
			if below {
				both = ours(failsafehttp.NewRoundTripper(slow, hedge))
			}
			send(both.RoundTrip, request(t, "POST"))
			assert.Len(t, slow.Attempts(), 2, "below: %v", below)
		})
	}
}

func TestHeimdall(t *testing.T) {
	contract.Bubble(t, "a canceled request is sent again", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		base, start := contract.Play(retrytest.Hang()), time.Now()
		send(heimdallSender(base, 0), request(t, "GET").WithContext(ctx))
		assert.Len(t, base.Attempts(), 3)
		assert.Equal(t, 3*time.Second, time.Since(start))
	})
	contract.Bubble(t, "a response and an error", func(t *testing.T) {
		base := contract.Play(retrytest.Fails(syscall.ECONNRESET), status(503))
		resp, err := heimdallSender(base, 0)(request(t, "GET"))
		require.NotNil(t, resp)
		assert.Equal(t, 503, resp.StatusCode)
		require.Error(t, err)
		assert.NotErrorIs(t, err, syscall.ECONNRESET)
	})
	contract.Bubble(t, "a wait without a retry", func(t *testing.T) {
		base, start := contract.Play(status(501)), time.Now()
		client := httpclient.NewClient(
			httpclient.WithHTTPClient(&http.Client{Transport: base}),
			httpclient.WithRetrier(heimdall.NewRetrier(heimdall.NewConstantBackoff(time.Second, 0))))
		send(client.Do, request(t, "GET"))
		assert.Len(t, base.Attempts(), 1)
		assert.Equal(t, time.Second, time.Since(start))
	})
	t.Run("WithHTTPClient without WithHTTPTimeout", func(t *testing.T) {
		base := contract.Play(status(200))
		client := httpclient.NewClient(
			httpclient.WithHTTPTimeout(time.Second), httpclient.WithHTTPClient(&http.Client{Transport: base}))
		send(client.Do, request(t, "GET"))
		_, ok := base.Attempts()[0].Request.Context().Deadline()
		assert.False(t, ok)
	})
}

// TestBackoffDefaults checks how long backoff.Retry goes on by default.
func TestBackoffDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, start := contract.Play(status(503)), time.Now()
		_, err := backoff.Retry(t.Context(), func() (*http.Response, error) {
			return attempt(&http.Client{Transport: base}, request(t, "GET"))
		})
		assert.Error(t, err)
		assert.Greater(t, len(base.Attempts()), 15)
		assert.InDelta(t, 14, time.Since(start).Minutes(), 1.5)
	})
}

// TestBackoffRetryAfter checks the waits of the guide's loop after long ones in
// Retry-After.
func TestBackoffRetryAfter(t *testing.T) {
	for seconds, want := range map[string]string{"86400": "no retry", "9223372037": "0s"} {
		synctest.Test(t, func(t *testing.T) {
			base := contract.Play(status(503, "Retry-After", seconds), status(200))
			send(backoffSender(base, 0), request(t, "GET"))
			assert.Equal(t, want, firstWait(base, 0), seconds)
		})
	}
}
