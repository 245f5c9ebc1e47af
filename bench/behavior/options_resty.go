package main

import (
	"net/http"
	"time"

	restyv2 "github.com/go-resty/resty/v2"
	restyv3 "resty.dev/v3"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

func newRestyV2(o peers.Options) *restyv2.Client {
	return restyv2.NewWithClient(&http.Client{Transport: o.Base}).
		SetRetryCount(o.Attempts - 1).SetRetryWaitTime(o.Wait).SetRetryMaxWaitTime(time.Minute)
}

// restyV2Raw is resty v2 with SetDoNotParseResponse, unless parse is true. Then
// the body that it returns is closed.
type restyV2Raw struct {
	client *restyv2.Client
	parse  bool
}

// Do implements peers.Client.
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

var (
	restyV2Condition = option{
		text: "a retry condition can look at the method, at headers and at the deadline",
		client: func(o peers.Options) peers.Client {
			c := newRestyV2(o).AddRetryCondition(func(r *restyv2.Response, err error) bool {
				return !forbidden(r.RawResponse, err) && peers.RestyV2Failed(r, err)
			})
			return restyV2Raw{client: c}
		},
	}
	restyV2Dates = option{
		text: "`SetRetryAfter` can look at headers",
		client: func(o peers.Options) peers.Client {
			c := newRestyV2(o).AddRetryCondition(func(r *restyv2.Response, _ error) bool { return r.StatusCode() >= 500 })
			c.SetRetryAfter(func(_ *restyv2.Client, r *restyv2.Response) (time.Duration, error) {
				return asked(r.RawResponse), nil
			})
			return restyV2Raw{client: c}
		},
	}
	restyV2Timeout = option{
		text: "`SetTimeout` limits each attempt, its response's body included",
		client: func(o peers.Options) peers.Client {
			c := newRestyV2(o).SetTimeout(attemptLimit).AddRetryCondition(peers.RestyV2Failed)
			return restyV2Raw{client: c, parse: true}
		},
	}
	restyV2Waits = option{
		text: "`SetRetryMaxWaitTime` of 30 s, with a `SetRetryWaitTime` of 1 s, spreads retries",
		client: func(o peers.Options) peers.Client {
			c := newRestyV2(o).SetRetryWaitTime(time.Second).SetRetryMaxWaitTime(30 * time.Second)
			return restyV2Raw{client: c.AddRetryCondition(peers.RestyV2Failed)}
		},
	}
	restyV2Length = option{
		text: "`SetContentLength` keeps the body in memory",
		client: func(o peers.Options) peers.Client {
			return restyV2Raw{client: newRestyV2(o).SetContentLength(true).AddRetryCondition(peers.RestyV2Failed)}
		},
	}
	restyV2Unparsed = option{
		text:   "`SetDoNotParseResponse` leaves the body unread",
		client: func(o peers.Options) peers.Client { return restyV2Raw{client: newRestyV2(o)} },
	}
)

func newRestyV3(o peers.Options) *restyv3.Client {
	return restyv3.NewWithClient(&http.Client{Transport: o.Base}).SetRetryCount(o.Attempts - 1).
		SetRetryDelayStrategy(restyv3.RetryConstantDelayStrategy(o.Wait))
}

// restyV3Raw is resty v3 with SetResponseDoNotParse, unless parse is true. Then
// the body that it returns is closed.
type restyV3Raw struct {
	client *restyv3.Client
	parse  bool
}

// Do implements peers.Client.
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

var (
	restyV3Key = option{
		text: "`SetRetryAllowNonIdempotent` on the request allows its retries",
		client: func(o peers.Options) peers.Client {
			return restyV3Raw{client: newRestyV3(o).AddRetryConditions(restyv3.RetryConditionStatus5XX)}
		},
	}
	restyV3Condition = option{
		text: "a retry condition can look at headers and at the deadline",
		client: func(o peers.Options) peers.Client {
			return restyV3Raw{client: newRestyV3(o).AddRetryConditions(func(r *restyv3.Response, err error) bool {
				return err == nil && r.StatusCode() >= 500 && !forbidden(r.RawResponse, err)
			})}
		},
	}
	restyV3Errors = option{
		text: "a retry condition can look at errors",
		client: func(o peers.Options) peers.Client {
			return restyV3Raw{client: newRestyV3(o).AddRetryConditions(func(_ *restyv3.Response, err error) bool { return err != nil })}
		},
	}
	restyV3Breaker = option{
		text: "with `SetCircuitBreaker`, requests fail unsent while it is open",
		client: func(o peers.Options) peers.Client {
			c := newRestyV3(o).AddRetryConditions(restyv3.RetryConditionStatus5XX)
			return restyV3Raw{client: c.SetCircuitBreaker(restyv3.NewCircuitBreakerRatio(0.5, 20, 10*time.Second))}
		},
	}
	restyV3Timeout = option{
		text: "`SetTimeout` limits each attempt, its response's body included",
		client: func(o peers.Options) peers.Client {
			c := newRestyV3(o).SetTimeout(attemptLimit).AddRetryConditions(restyv3.RetryConditionStatus5XX)
			return restyV3Raw{client: c, parse: true}
		},
	}
	restyV3Unparsed = option{
		text:   "`SetResponseDoNotParse` leaves the body unread",
		client: func(o peers.Options) peers.Client { return restyV3Raw{client: newRestyV3(o)} },
	}
)
