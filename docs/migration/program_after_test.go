package migration_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// after is the same client as before. It uses httpretry.
type after struct {
	url    string
	client *http.Client
}

// signer signs each attempt.
type signer struct {
	base http.RoundTripper
	sign func(*http.Request)
}

func (s signer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	s.sign(req)
	return s.base.RoundTrip(req)
}

func newAfter(
	url string, base http.RoundTripper, sign func(*http.Request), logger *log.Logger) (*after, error) {
	transport, err := httpretry.New(httpretry.Config{
		Base: signer{base, sign},
		Observe: func(_ context.Context, e httpretry.Event) {
			if e.Response != nil && e.Response.StatusCode >= 400 {
				logger.Println("failed:", e.Response.Status)
			}
		},
		Policy: httpretry.Policy{
			MaxAttempts:    4,
			Backoff:        strategies.Exponential{Base: 100 * time.Millisecond, Max: time.Second},
			AttemptTimeout: 5 * time.Second,
			ReadAhead:      1 << 20,
			Classify: func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
				if replyOf(httpretry.Peek(resp)).Error == "busy" {
					return httpretry.Transient
				}
				return httpretry.Classify(req, resp, err)
			},
			RetryAfter: func(resp *http.Response) (time.Duration, bool) {
				wait, err := time.ParseDuration(replyOf(httpretry.Peek(resp)).Wait)
				if err == nil {
					return wait, true
				}
				return httpretry.RetryAfter(resp.Header, time.Now())
			},
		},
	})
	if err != nil {
		return nil, err
	}
	return &after{url, &http.Client{Transport: transport}}, nil
}

func (a *after) do(req *http.Request) (string, error) {
	resp, err := a.client.Do(req)
	if err != nil {
		f := &failure{tries: 1, cause: err}
		if e, ok := errors.AsType[*httpretry.Error](err); ok {
			f.tries = e.Attempts
		}
		return "", f
	}
	switch result := httpretry.ResultOf(resp); result.Reason {
	case httpretry.ReasonSuccess, httpretry.ReasonPermanent:
		return textOf(resp)
	default:
		resp.Body.Close()
		return "", &failure{tries: result.Attempts, status: resp.StatusCode}
	}
}

func (a *after) get(ctx context.Context, id string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", a.url+id, nil)
	if err != nil {
		return "", err
	}
	return a.do(req)
}

func (a *after) put(
	ctx context.Context, id string, open func() (io.ReadCloser, error)) (string, error) {
	body, err := open()
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, "PUT", a.url+id, body)
	if err != nil {
		return "", err
	}
	req.GetBody = open
	return a.do(req)
}

func (a *after) add(ctx context.Context, key, text string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, "POST", a.url, strings.NewReader(text))
	if err != nil {
		return "", err
	}
	req.Header.Set("Idempotency-Key", key)
	return a.do(req)
}
