package peers

import (
	"net/http"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/gojek/heimdall/v7"
	"github.com/gojek/heimdall/v7/httpclient"
	"github.com/hashicorp/go-retryablehttp"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// Constant is strategies.Constant, which does not accept a wait of less than a
// millisecond.
type Constant time.Duration

// Start implements strategies.Strategy.
func (c Constant) Start() strategies.Sequence {
	return func() time.Duration { return time.Duration(c) }
}

func httpretryTransport(o Options) http.RoundTripper {
	cfg := httpretry.Config{Base: o.Base, Policy: httpretry.Policy{MaxAttempts: o.Attempts}}
	if o.Wait != 0 {
		cfg.Policy.Backoff = Constant(o.Wait)
	}
	if o.NoBudget {
		cfg.Policy.Budget = httpretry.Unlimited{}
	}
	transport, err := httpretry.New(cfg)
	if err != nil {
		panic(err) // the caller's Options are wrong
	}
	return transport
}

// retryablehttpTransport returns the Transport of a StandardClient.
func retryablehttpTransport(o Options) http.RoundTripper {
	c := retryablehttp.NewClient()
	if o.Base != nil {
		c.HTTPClient.Transport = o.Base
	}
	if o.Attempts != 0 {
		c.RetryMax = o.Attempts - 1
	}
	if o.Wait != 0 {
		c.RetryWaitMin, c.RetryWaitMax = o.Wait, o.Wait
	}
	// By default it logs each request to the standard error.
	c.Logger = nil
	return c.StandardClient().Transport
}

// rehttpTransport combines rehttp's conditions, of which none is the default:
// those of its documentation, 429, and 5xx because all others retry them.
func rehttpTransport(o Options) http.RoundTripper {
	retries := 3 // as in its documentation
	if o.Attempts != 0 {
		retries = o.Attempts - 1
	}
	delay := rehttp.ExpJitterDelay(time.Second, 10*time.Second) // as in its documentation
	if o.Wait != 0 {
		delay = rehttp.ConstDelay(o.Wait)
	}
	return rehttp.NewTransport(o.Base, rehttp.RetryAll(
		rehttp.RetryMaxRetries(retries),
		rehttp.RetryAny(
			rehttp.RetryTemporaryErr(),
			rehttp.RetryStatuses(http.StatusTooManyRequests),
			rehttp.RetryStatusInterval(500, 600),
		),
	), delay)
}

func failsafeTransport(o Options) http.RoundTripper {
	policy := failsafehttp.NewRetryPolicyBuilder()
	if o.Attempts != 0 {
		policy.WithMaxAttempts(o.Attempts)
	}
	if o.Wait != 0 { // by default there is no wait
		policy.WithDelay(o.Wait)
	}
	return failsafehttp.NewRoundTripper(o.Base, policy.Build())
}

// newHeimdall returns heimdall's own client. It has an http.Client below it, so
// it cannot be an http.RoundTripper. Its Do has the signature of Client's.
func newHeimdall(o Options) Client {
	opts := []httpclient.Option{
		httpclient.WithHTTPClient(&http.Client{Transport: o.Base}),
	}
	if o.Attempts != 0 { // by default there is no retry
		opts = append(opts, httpclient.WithRetryCount(o.Attempts-1))
	}
	if o.Wait != 0 { // by default there is no wait
		// NewConstantBackoff would cut off fractions of a millisecond.
		retrier := heimdall.NewRetrierFunc(func(int) time.Duration { return o.Wait })
		opts = append(opts, httpclient.WithRetrier(retrier))
	}
	return httpclient.NewClient(opts...)
}
