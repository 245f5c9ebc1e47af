package main

import (
	"io"
	"net/http"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
)

// newFailsafe returns a RoundTripper with the retry policy of failsafehttp. At
// best, the last response is returned, discarded ones are closed, and each
// request has the condition of its method.
func newFailsafe(base *http.Transport, best bool) doer {
	if !best {
		policy := failsafehttp.NewRetryPolicyBuilder().Build()
		return &http.Client{Transport: failsafehttp.NewRoundTripper(base, policy)}
	}
	base.ResponseHeaderTimeout = 2 * time.Second
	policy := failsafehttp.NewRetryPolicyBuilder().WithMaxRetries(5).
		WithBackoff(500*time.Millisecond, 4*time.Second).
		WithDelayFunc(func(e failsafe.ExecutionAttempt[*http.Response]) time.Duration {
			if wait := asked(e.LastResult()); wait > 0 {
				return wait
			}
			return -1 // the backoff
		}).
		HandleIf(func(resp *http.Response, err error) bool { return err != nil || maySendAgain(resp) }).
		AbortIf(func(resp *http.Response, _ error) bool { return resp != nil && !maySendAgain(resp) }).
		OnRetryScheduled(func(e failsafe.ExecutionScheduledEvent[*http.Response]) {
			if resp := e.LastResult(); resp != nil {
				_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
				_ = resp.Body.Close()
			}
		}).ReturnLastFailure().Build()
	return &http.Client{Transport: byMethod{failsafehttp.NewRoundTripper(base, policy), base}}
}

// byMethod sends requests that are not idempotent without retries.
type byMethod struct{ retries, once http.RoundTripper }

func (b byMethod) RoundTrip(req *http.Request) (*http.Response, error) {
	if isIdempotent(req) {
		return b.retries.RoundTrip(req)
	}
	return b.once.RoundTrip(req)
}
