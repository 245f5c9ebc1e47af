package main

import (
	"context"
	"net/http"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

// newRetryablehttp returns the StandardClient of go-retryablehttp. At best, a
// CheckRetry looks at the method and at the wait that the server asks for,
// attempts have a timeout, and the last response is passed through.
func newRetryablehttp(base *http.Transport, best bool) doer {
	c := retryablehttp.NewClient()
	c.HTTPClient.Transport = base
	if best {
		base.ResponseHeaderTimeout = 2 * time.Second
		c.Logger = nil
		c.RetryMax, c.RetryWaitMin, c.RetryWaitMax = 5, 500*time.Millisecond, 4*time.Second
		c.ErrorHandler = retryablehttp.PassthroughErrorHandler
		c.CheckRetry = func(ctx context.Context, resp *http.Response, err error) (bool, error) {
			switch {
			case ctx.Err() != nil:
				return false, ctx.Err()
			case err == nil:
				return maySendAgain(resp), nil
			case isPost(err):
				return false, nil
			}
			return retryablehttp.DefaultRetryPolicy(ctx, resp, err)
		}
		c.Backoff = func(least, most time.Duration, n int, resp *http.Response) time.Duration {
			return max(asked(resp), retryablehttp.DefaultBackoff(least, most, n, nil))
		}
	}
	return c.StandardClient()
}
