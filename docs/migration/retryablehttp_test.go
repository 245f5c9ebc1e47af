package migration_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// newSigner returns a function that signs a request anew. A real one has the
// time in its signature.
func newSigner() func(*http.Request) {
	signed := 0
	return func(req *http.Request) {
		signed++
		req.Header.Set("Signature", "sig-"+strconv.Itoa(signed))
	}
}

func Example_retryablehttpBefore() {
	server := newServer(503, 409, 200)
	defer server.Close()
	url, sign, logger := server.URL, newSigner(), slog.New(slog.DiscardHandler)

	client := retryablehttp.NewClient()
	client.RetryMax = 3
	client.RetryWaitMin = 100 * time.Millisecond
	client.RetryWaitMax = time.Second
	client.HTTPClient.Timeout = 5 * time.Second
	client.Logger = logger
	client.CheckRetry = func(ctx context.Context, resp *http.Response, err error) (bool, error) {
		if resp != nil && resp.StatusCode == http.StatusConflict {
			return true, nil
		}
		return retryablehttp.DefaultRetryPolicy(ctx, resp, err)
	}
	client.PrepareRetry = func(req *http.Request) error {
		sign(req)
		return nil
	}

	req, err := retryablehttp.NewRequest("PUT", url, []byte("data"))
	if err != nil {
		log.Fatal(err)
	}
	sign(req.Request)
	resp, err := client.Do(req)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)

	fmt.Println(server.log())
	// Output:
	// 200 OK
	// PUT sig-1 data, PUT sig-2 data, PUT sig-3 data
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

func Example_retryablehttpAfter() {
	server := newServer(503, 409, 200)
	defer server.Close()
	url, sign, logger := server.URL, newSigner(), slog.New(slog.DiscardHandler)

	transport, err := httpretry.New(httpretry.Config{
		Base:    signer{http.DefaultTransport, sign},
		Observe: httpretry.LogEvents(logger),
		Policy: httpretry.Policy{
			MaxAttempts:    4,
			Backoff:        strategies.EqualJitter{Base: 100 * time.Millisecond, Max: time.Second},
			AttemptTimeout: 5 * time.Second,
			Classify: func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
				if resp != nil && resp.StatusCode == http.StatusConflict {
					return httpretry.Transient
				}
				return httpretry.Classify(req, resp, err)
			},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	req, err := http.NewRequest("PUT", url, strings.NewReader("data"))
	if err != nil {
		log.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)

	fmt.Println(server.log())
	// Output:
	// 200 OK
	// PUT sig-1 data, PUT sig-2 data, PUT sig-3 data
}

func Example_retryablehttpExhaustedBefore() {
	server := newServer(503)
	defer server.Close()
	client := retryablehttp.NewClient()
	client.RetryMax = 1
	client.RetryWaitMin = 100 * time.Millisecond
	client.Logger = nil
	url := server.URL

	resp, err := client.Get(url)
	if err != nil {
		// GET http://api.example.com giving up after 2 attempt(s)
		fmt.Println(strings.ReplaceAll(err.Error(), url, "http://api.example.com"))
		return
	}
	defer resp.Body.Close()
	// Output: GET http://api.example.com giving up after 2 attempt(s)
}

func Example_retryablehttpExhaustedAfter() {
	server := newServer(503)
	defer server.Close()
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		MaxAttempts: 2,
		Backoff:     strategies.Constant{Wait: 100 * time.Millisecond},
	}})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	url := server.URL

	resp, err := client.Get(url)
	if err != nil {
		log.Fatal(err) // the last attempt got no response
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 500 {
		result := httpretry.ResultOf(resp)
		// 503 Service Unavailable after 2 attempts: attempts_exhausted
		fmt.Printf("%s after %d attempts: %s\n", resp.Status, result.Attempts, result.Reason)
	}
	// Output: 503 Service Unavailable after 2 attempts: attempts_exhausted
}

func Example_retryablehttpBodyBefore() {
	server := newServer(503, 200)
	defer server.Close()
	client := retryablehttp.NewClient()
	client.RetryWaitMin = 100 * time.Millisecond
	client.Logger = nil
	url, open := server.URL, openUpload

	req, err := retryablehttp.NewRequest("PUT", url, retryablehttp.ReaderFunc(func() (io.Reader, error) {
		return open()
	}))
	if err != nil {
		log.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, server.log())
	// Output: 200 OK PUT data, PUT data
}

func Example_retryablehttpBodyAfter() {
	server := newServer(503, 200)
	defer server.Close()
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		Backoff: strategies.Constant{Wait: 100 * time.Millisecond},
	}})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	url, open := server.URL, openUpload

	body, err := open()
	if err != nil {
		log.Fatal(err)
	}
	req, err := http.NewRequest("PUT", url, body)
	if err != nil {
		log.Fatal(err)
	}
	req.GetBody = open

	resp, err := client.Do(req)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, server.log())
	// Output: 200 OK PUT data, PUT data
}

func openUpload() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewBufferString("data")), nil
}
