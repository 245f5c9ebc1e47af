package migration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

// before is a client of a store of texts. It uses go-retryablehttp.
type before struct {
	url    string
	client *retryablehttp.Client
	sign   func(*http.Request)
}

// A reply is the body of each response of the store. A store that is busy says
// so with status 200, too.
type reply struct {
	Text, Error string
	Wait        string // a duration
}

func replyOf(body []byte) (r reply) {
	_ = json.Unmarshal(body, &r) // not a reply
	return r
}

// A failure is the error of a request that the client has given up.
type failure struct {
	tries  int
	status int // of the last response, or 0
	cause  error
}

func (f *failure) Error() string {
	return fmt.Sprintf("gave up after %d tries, status %d: %v", f.tries, f.status, f.cause)
}

func (f *failure) Unwrap() error { return f.cause }

func newBefore(
	url string, base http.RoundTripper, sign func(*http.Request), logger *log.Logger) *before {
	client := retryablehttp.NewClient()
	client.HTTPClient = &http.Client{Transport: base, Timeout: 5 * time.Second}
	client.RetryMax = 3
	client.RetryWaitMin = 100 * time.Millisecond
	client.RetryWaitMax = time.Second
	client.Logger = nil
	client.CheckRetry = func(ctx context.Context, resp *http.Response, err error) (bool, error) {
		if err != nil {
			return retryablehttp.DefaultRetryPolicy(ctx, resp, err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(body))
		if err != nil || replyOf(body).Error == "busy" {
			resp.Header.Set("X-Wait", replyOf(body).Wait) // Backoff gets a closed body
			return true, nil
		}
		return retryablehttp.DefaultRetryPolicy(ctx, resp, nil)
	}
	client.Backoff = func(
		least, most time.Duration, retry int, resp *http.Response) time.Duration {
		if resp != nil {
			if wait, err := time.ParseDuration(resp.Header.Get("X-Wait")); err == nil {
				return wait
			}
		}
		return retryablehttp.DefaultBackoff(least, most, retry, resp)
	}
	client.ErrorHandler = func(resp *http.Response, err error, tries int) (*http.Response, error) {
		f := &failure{tries: tries, cause: err}
		if resp != nil {
			f.status = resp.StatusCode
			resp.Body.Close()
		}
		return nil, f
	}
	client.PrepareRetry = func(req *http.Request) error {
		sign(req)
		return nil
	}
	client.ResponseLogHook = func(_ retryablehttp.Logger, resp *http.Response) {
		if resp.StatusCode >= 400 {
			logger.Println("failed:", resp.Status)
		}
	}
	return &before{url, client, sign}
}

func (b *before) do(req *retryablehttp.Request) (string, error) {
	b.sign(req.Request)
	resp, err := b.client.Do(req)
	if err != nil {
		return "", err
	}
	return textOf(resp)
}

// textOf returns the text in a response, and closes the body.
func textOf(resp *http.Response) (string, error) {
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return "", errors.New(resp.Status)
	}
	var r reply
	err := json.NewDecoder(resp.Body).Decode(&r)
	return r.Text, err
}

// get returns the text with an ID.
func (b *before) get(ctx context.Context, id string) (string, error) {
	req, err := retryablehttp.NewRequestWithContext(ctx, "GET", b.url+id, nil)
	if err != nil {
		return "", err
	}
	return b.do(req)
}

// put stores the text that open opens.
func (b *before) put(
	ctx context.Context, id string, open func() (io.ReadCloser, error)) (string, error) {
	body := retryablehttp.ReaderFunc(func() (io.Reader, error) { return open() })
	req, err := retryablehttp.NewRequestWithContext(ctx, "PUT", b.url+id, body)
	if err != nil {
		return "", err
	}
	return b.do(req)
}

// add stores a text, and returns its ID. The store ignores a key that it knows.
func (b *before) add(ctx context.Context, key, text string) (string, error) {
	req, err := retryablehttp.NewRequestWithContext(ctx, "POST", b.url, []byte(text))
	if err != nil {
		return "", err
	}
	req.Header.Set("Idempotency-Key", key)
	return b.do(req)
}
