package migration_test

import (
	"log"
	"net/http"
	"time"

	"github.com/PuerkitoBio/rehttp"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

func Example_rehttpBefore() {
	server := newServer(503, 429, 500)
	defer server.Close()
	url := server.URL

	transport := rehttp.NewTransport(nil,
		rehttp.RetryAll(
			rehttp.RetryMaxRetries(3),
			rehttp.RetryHTTPMethods("GET", "PUT"),
			rehttp.RetryAny(rehttp.RetryStatuses(429, 503), rehttp.RetryTimeoutErr()),
		),
		rehttp.ExpJitterDelay(100*time.Millisecond, time.Second),
	)
	transport.PerAttemptTimeout = 5 * time.Second
	client := &http.Client{Transport: transport}

	server.show(client.Get(url))
	// Output: 500 Internal Server Error after GET, GET, GET
}

func Example_rehttpAfter() {
	server := newServer(503, 429, 500)
	defer server.Close()
	url := server.URL

	transport, err := httpretry.New(httpretry.Config{
		Base: http.DefaultTransport,
		Policy: httpretry.Policy{
			MaxAttempts:    4,
			Backoff:        strategies.FullJitter{Base: 100 * time.Millisecond, Max: time.Second},
			AttemptTimeout: 5 * time.Second,
			Classify: func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
				if resp != nil && resp.StatusCode != 429 && resp.StatusCode != 503 {
					return httpretry.Final
				}
				return httpretry.Classify(req, resp, err)
			},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	server.show(client.Get(url))
	// Output: 500 Internal Server Error after GET, GET, GET
}
