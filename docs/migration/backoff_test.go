package migration_test

import (
	"context"
	"errors"
	"log"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

func Example_backoffBefore() {
	server := newServer(503, 429, 200)
	defer server.Close()
	ctx, url := context.Background(), server.URL

	put := func() (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, "PUT", url, strings.NewReader("data"))
		if err != nil {
			return nil, backoff.Permanent(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode < 400 {
			return resp, err
		}
		resp.Body.Close()
		if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
			return nil, backoff.RetryAfter(seconds)
		}
		if resp.StatusCode != 429 && resp.StatusCode < 500 {
			return nil, backoff.Permanent(errors.New(resp.Status))
		}
		return nil, errors.New(resp.Status)
	}
	waits := backoff.NewExponentialBackOff()
	waits.InitialInterval = 100 * time.Millisecond
	resp, err := backoff.Retry(ctx, put, backoff.WithBackOff(waits),
		backoff.WithMaxTries(4), backoff.WithMaxElapsedTime(time.Minute))
	server.show(resp, err)
	// Output: 200 OK after PUT data, PUT data, PUT data
}

func Example_backoffAfter() {
	server := newServer(503, 429, 200)
	defer server.Close()
	ctx, url := context.Background(), server.URL

	transport, err := httpretry.New(httpretry.Config{
		Base: http.DefaultTransport,
		Policy: httpretry.Policy{
			MaxAttempts: 4,
			MaxElapsed:  time.Minute,
			Backoff: strategies.Spread{
				Of:       strategies.Exponential{Base: 100 * time.Millisecond, Factor: 1.5, Max: time.Minute},
				Fraction: 0.5,
			},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	req, err := http.NewRequestWithContext(ctx, "PUT", url, strings.NewReader("data"))
	if err != nil {
		log.Fatal(err)
	}
	server.show(client.Do(req))
	// Output: 200 OK after PUT data, PUT data, PUT data
}
