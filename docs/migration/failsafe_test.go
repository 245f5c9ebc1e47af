package migration_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/timeout"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

func newBreaker() circuitbreaker.CircuitBreaker[*http.Response] {
	return circuitbreaker.NewBuilder[*http.Response]().
		HandleIf(func(resp *http.Response, err error) bool { return err != nil || resp.StatusCode >= 500 }).
		WithFailureThreshold(2).
		WithDelay(time.Minute).
		Build()
}

func Example_failsafeBefore() {
	server := newServer(503)
	defer server.Close()
	url, breaker := server.URL, newBreaker()

	retry := failsafehttp.NewRetryPolicyBuilder().
		WithMaxRetries(3).
		WithBackoff(100*time.Millisecond, time.Second).
		AbortOnErrors(circuitbreaker.ErrOpen).
		Build()
	attemptTimeout := timeout.New[*http.Response](5 * time.Second)
	client := &http.Client{Transport: failsafehttp.NewRoundTripper(nil, retry, breaker, attemptTimeout)}

	_, err := client.Get(url)
	fmt.Println(errors.Is(err, circuitbreaker.ErrOpen), server.log())
	// Output: true GET, GET
}

func Example_failsafeAfter() {
	server := newServer(503)
	defer server.Close()
	url, breaker := server.URL, newBreaker()

	transport, err := httpretry.New(httpretry.Config{
		Base: failsafehttp.NewRoundTripper(nil, breaker),
		Policy: httpretry.Policy{
			MaxAttempts:    4,
			Backoff:        strategies.EqualJitter{Base: 100 * time.Millisecond, Max: time.Second},
			AttemptTimeout: 5 * time.Second,
			Classify: func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
				if errors.Is(err, circuitbreaker.ErrOpen) {
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

	_, err = client.Get(url)
	fmt.Println(errors.Is(err, circuitbreaker.ErrOpen), server.log())
	// Output: true GET, GET
}
