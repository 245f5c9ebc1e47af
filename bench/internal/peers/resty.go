package peers

import (
	"bytes"
	"io"
	"net/http"

	restyv2 "github.com/go-resty/resty/v2"
	restyv3 "resty.dev/v3"
)

// resty makes the http.Request itself, so it cannot be an http.RoundTripper. Do
// copies method, URL, header, context and body into resty's own Request, and
// returns the *http.Response of resty's Response.

// restyBody returns the body for resty's SetBody: bytes if they are in memory,
// because its users have them as such, else a reader.
func restyBody(req *http.Request) (any, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	if req.GetBody == nil || req.ContentLength < 0 {
		return req.Body, nil
	}
	defer req.Body.Close()
	data := make([]byte, req.ContentLength)
	if _, err := io.ReadFull(req.Body, data); err != nil {
		return nil, err
	}
	return data, nil
}

type restyV2 struct{ client *restyv2.Client }

// restyV2Failed is the condition for a retry of resty v2.
func restyV2Failed(resp *restyv2.Response, err error) bool {
	return err != nil || resp.StatusCode() == http.StatusTooManyRequests || resp.StatusCode() >= 500
}

func newRestyV2(o Options) Client {
	c := restyv2.NewWithClient(&http.Client{Transport: o.Base})
	// By default there is no retry, and no condition for one.
	if o.Attempts != 0 {
		c.SetRetryCount(o.Attempts - 1)
		c.AddRetryCondition(restyV2Failed)
	}
	if o.Wait != 0 {
		c.SetRetryWaitTime(o.Wait).SetRetryMaxWaitTime(o.Wait)
	}
	// By default it logs errors to the standard error.
	c.SetLogger(quiet{})
	return restyV2{c}
}

func (c restyV2) Do(req *http.Request) (*http.Response, error) {
	body, err := restyBody(req)
	if err != nil {
		return nil, err
	}
	r := c.client.R().SetContext(req.Context())
	if body != nil {
		r.SetBody(body)
	}
	r.Header = req.Header.Clone()
	resp, err := r.Execute(req.Method, req.URL.String())
	if err != nil {
		return nil, err
	}
	// By default it has read the body and closed it.
	raw := *resp.RawResponse
	raw.Body = io.NopCloser(bytes.NewReader(resp.Body()))
	return &raw, nil
}

type restyV3 struct{ client *restyv3.Client }

func newRestyV3(o Options) Client {
	c := restyv3.NewWithClient(&http.Client{Transport: o.Base})
	// By default there is no retry, and no condition for one but errors.
	if o.Attempts != 0 {
		c.SetRetryCount(o.Attempts - 1)
		c.AddRetryConditions(restyv3.RetryConditionStatus5XX, restyv3.RetryConditionStatusTooManyRequests)
	}
	if o.Wait != 0 {
		c.SetRetryDelayStrategy(restyv3.RetryConstantDelayStrategy(o.Wait))
	}
	// By default it logs errors to the standard error.
	c.SetLogger(quiet{})
	return restyV3{c}
}

func (c restyV3) Do(req *http.Request) (*http.Response, error) {
	body, err := restyBody(req)
	if err != nil {
		return nil, err
	}
	r := c.client.R().SetContext(req.Context())
	if body != nil {
		r.SetBody(body)
	}
	r.Header = req.Header.Clone()
	resp, err := r.Execute(req.Method, req.URL.String())
	if err != nil {
		return nil, err
	}
	raw := *resp.RawResponse
	raw.Body = resp.Body
	return &raw, nil
}

// quiet is the Logger of both versions of resty.
type quiet struct{}

func (quiet) Errorf(string, ...any) {}
func (quiet) Warnf(string, ...any)  {}
func (quiet) Debugf(string, ...any) {}
