package main

import (
	"net/http"
	"time"

	restyv2 "github.com/go-resty/resty/v2"
	restyv3 "resty.dev/v3"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

// restyV2Raw is resty v2 with SetDoNotParseResponse, unless parse is true. Then
// the body that it returns is closed.
type restyV2Raw struct {
	client *restyv2.Client
	parse  bool
}

func (c restyV2Raw) Do(req *http.Request) (*http.Response, error) {
	r := c.client.R().SetContext(req.Context()).SetDoNotParseResponse(!c.parse)
	r.Header = req.Header.Clone()
	if req.Body != nil {
		r.SetBody(req.Body)
	}
	resp, err := r.Execute(req.Method, req.URL.String())
	if err != nil {
		return nil, err
	}
	return resp.RawResponse, nil
}

// restyV2With returns an option that is set on resty v2's client.
func restyV2With(text string, parse bool, set func(*restyv2.Client)) option {
	return option{text: text, client: func(o peers.Options) peers.Client {
		c := restyv2.NewWithClient(&http.Client{Transport: o.Base}).
			SetRetryCount(o.Attempts - 1).SetRetryWaitTime(o.Wait).SetRetryMaxWaitTime(time.Minute)
		set(c)
		return restyV2Raw{client: c, parse: parse}
	}}
}

var (
	restyV2Condition = restyV2With("a retry condition can look at the method, at headers and at the deadline", false,
		func(c *restyv2.Client) {
			c.AddRetryCondition(func(r *restyv2.Response, err error) bool {
				return !forbidden(r.RawResponse, err) && peers.RestyV2Failed(r, err)
			})
		})
	restyV2Dates = restyV2With("`SetRetryAfter` can look at headers", false, func(c *restyv2.Client) {
		c.AddRetryCondition(func(r *restyv2.Response, _ error) bool { return r.StatusCode() >= 500 })
		c.SetRetryAfter(func(_ *restyv2.Client, r *restyv2.Response) (time.Duration, error) {
			return asked(r.RawResponse), nil
		})
	})
	restyV2Timeout = restyV2With("`SetTimeout` limits each attempt, its response's body included", true,
		func(c *restyv2.Client) { c.SetTimeout(attemptLimit).AddRetryCondition(peers.RestyV2Failed) })
	restyV2Waits = restyV2With("`SetRetryMaxWaitTime` of 30 s, with a `SetRetryWaitTime` of 1 s, spreads retries", false,
		func(c *restyv2.Client) {
			c.SetRetryWaitTime(time.Second).SetRetryMaxWaitTime(30 * time.Second).AddRetryCondition(peers.RestyV2Failed)
		})
	restyV2Length = restyV2With("`SetContentLength` keeps the body in memory", false,
		func(c *restyv2.Client) { c.SetContentLength(true).AddRetryCondition(peers.RestyV2Failed) })
	restyV2Unparsed = restyV2With("`SetDoNotParseResponse` leaves the body unread", false, func(*restyv2.Client) {})
)

// restyV3Raw is resty v3 with SetResponseDoNotParse, unless parse is true. Then
// the body that it returns is closed.
type restyV3Raw struct {
	client *restyv3.Client
	parse  bool
}

func (c restyV3Raw) Do(req *http.Request) (*http.Response, error) {
	r := c.client.R().SetContext(req.Context()).SetResponseDoNotParse(!c.parse)
	r.Header = req.Header.Clone()
	if req.Header.Get("Idempotency-Key") != "" {
		r.SetRetryAllowNonIdempotent(true)
	}
	resp, err := r.Execute(req.Method, req.URL.String())
	if err != nil {
		return nil, err
	}
	return resp.RawResponse, nil
}

// restyV3With returns an option that is set on resty v3's client.
func restyV3With(text string, parse bool, set func(*restyv3.Client)) option {
	return option{text: text, client: func(o peers.Options) peers.Client {
		c := restyv3.NewWithClient(&http.Client{Transport: o.Base}).SetRetryCount(o.Attempts - 1).
			SetRetryDelayStrategy(restyv3.RetryConstantDelayStrategy(o.Wait))
		set(c)
		return restyV3Raw{client: c, parse: parse}
	}}
}

var (
	restyV3Key = restyV3With("`SetRetryAllowNonIdempotent` on the request allows its retries", false,
		func(c *restyv3.Client) { c.AddRetryConditions(restyv3.RetryConditionStatus5XX) })
	restyV3Condition = restyV3With("a retry condition can look at headers and at the deadline", false,
		func(c *restyv3.Client) {
			c.AddRetryConditions(func(r *restyv3.Response, err error) bool {
				return err == nil && r.StatusCode() >= 500 && !forbidden(r.RawResponse, err)
			})
		})
	restyV3Errors = restyV3With("a retry condition can look at errors", false, func(c *restyv3.Client) {
		c.AddRetryConditions(func(_ *restyv3.Response, err error) bool { return err != nil })
	})
	restyV3Breaker = restyV3With("with `SetCircuitBreaker`, requests fail unsent while it is open", false,
		func(c *restyv3.Client) {
			c.AddRetryConditions(restyv3.RetryConditionStatus5XX)
			c.SetCircuitBreaker(restyv3.NewCircuitBreakerRatio(0.5, 20, 10*time.Second))
		})
	restyV3Timeout = restyV3With("`SetTimeout` limits each attempt, its response's body included", true,
		func(c *restyv3.Client) {
			c.SetTimeout(attemptLimit).AddRetryConditions(restyv3.RetryConditionStatus5XX)
		})
	restyV3Unparsed = restyV3With("`SetResponseDoNotParse` leaves the body unread", false, func(*restyv3.Client) {})
)
