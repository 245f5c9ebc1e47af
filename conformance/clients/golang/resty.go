package main

import (
	"io"
	"net/http"
	"time"

	"resty.dev/v3"
)

// resty is a resty client as a doer. It makes its own requests.
type restyDoer struct {
	client *resty.Client
	best   bool
}

// newResty returns resty with three retries, as in its documentation. At best,
// a key allows the retries of a POST, a condition looks at errors and headers,
// and the body is left to the caller.
func newResty(base *http.Transport, best bool) doer {
	c := resty.NewWithClient(&http.Client{Transport: base})
	if !best {
		return restyDoer{c.SetRetryCount(3), false}
	}
	base.ResponseHeaderTimeout = 2 * time.Second
	c.SetRetryCount(5).SetRetryWaitTime(500 * time.Millisecond).SetRetryMaxWaitTime(4 * time.Second)
	c.SetRetryDefaultConditions(false).SetResponseDoNotParse(true)
	return restyDoer{c.AddRetryConditions(func(r *resty.Response, err error) bool {
		return err != nil || r.RawResponse == nil || maySendAgain(r.RawResponse)
	}), true}
}

func (d restyDoer) Do(req *http.Request) (*http.Response, error) {
	r := d.client.R().SetContext(req.Context())
	r.Header = req.Header.Clone()
	if req.Body != nil && req.GetBody == nil {
		r.SetBody(req.Body)
	} else if req.Body != nil {
		data, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		r.SetBody(data)
	}
	if d.best && req.Header.Get("Idempotency-Key") != "" {
		r.SetRetryAllowNonIdempotent(true)
	}
	resp, err := r.Execute(req.Method, req.URL.String())
	if err != nil {
		return nil, err
	}
	raw := *resp.RawResponse
	raw.Body = resp.Body
	return &raw, nil
}
