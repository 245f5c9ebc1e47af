package migration_test

import (
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/gojek/heimdall/v7"
	"github.com/gojek/heimdall/v7/httpclient"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

func Example_heimdallBefore() {
	server := newServer(503, 503, 200)
	defer server.Close()
	url := server.URL

	waits := heimdall.NewExponentialBackoff(100*time.Millisecond, time.Second, 2, 50*time.Millisecond)
	client := httpclient.NewClient(
		httpclient.WithHTTPTimeout(5*time.Second),
		httpclient.WithRetryCount(3),
		httpclient.WithRetrier(heimdall.NewRetrier(waits)),
	)

	server.show(client.Put(url, strings.NewReader("data"), http.Header{"Signature": {"sig"}}))
	// Output: 200 OK after PUT sig data, PUT sig data, PUT sig data
}

func Example_heimdallAfter() {
	server := newServer(503, 503, 200)
	defer server.Close()
	url := server.URL

	transport, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{
			MaxAttempts:    4,
			Backoff:        strategies.EqualJitter{Base: 100 * time.Millisecond, Max: time.Second},
			AttemptTimeout: 5 * time.Second,
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
	req.Header.Set("Signature", "sig")
	server.show(client.Do(req))
	// Output: 200 OK after PUT sig data, PUT sig data, PUT sig data
}
