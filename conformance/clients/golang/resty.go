package main

import (
	"io"
	"net/http"
	"strings"
	"time"

	"resty.dev/v3"
)

// resty is a resty client as a doer. It makes its own requests.
type restyDoer struct {
	client *resty.Client
	best   bool
}

// newResty returns resty with three retries, as in its documentation. At best,
// a key allows the retries of a POST, and conditions look at errors, headers and
// the body.
func newResty(base *http.Transport, best bool) doer {
	c := resty.NewWithClient(&http.Client{Transport: base})
	if !best {
		return restyDoer{c.SetRetryCount(3), false}
	}
	base.ResponseHeaderTimeout = 2 * time.Second
	c.SetRetryCount(5).SetRetryWaitTime(500 * time.Millisecond).SetRetryMaxWaitTime(4 * time.Second)
	return restyDoer{c.AddRetryConditions(func(r *resty.Response, err error) bool {
		if err != nil || r.RawResponse == nil {
			return true
		}
		switch r.StatusCode() {
		case 408, 425, 429, 500, 502, 503, 504:
			return maySendAgain(r.RawResponse)
		}
		return r.StatusCode() == http.StatusOK && strings.Contains(r.String(), `"error"`)
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
