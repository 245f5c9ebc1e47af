package httpretry_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// awsTokens is the retry quota of the AWS SDKs in their standard mode: a bucket
// for each client, whatever its hosts are. A retry costs 5 tokens, and 10 after
// a timeout. A retry that succeeds returns its cost, and any other success
// returns 1.
type awsTokens struct {
	mu    sync.Mutex
	taken int // of 500
}

func (*awsTokens) cost(last httpretry.AttemptResult) int {
	if last.Timeout {
		return 10
	}
	return 5
}

func (a *awsTokens) Withdraw(_ context.Context, last httpretry.AttemptResult) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.taken+a.cost(last) > 500 {
		return false
	}
	a.taken += a.cost(last)
	return true
}

func (a *awsTokens) Refund(last httpretry.AttemptResult) { a.put(a.cost(last)) }

func (a *awsTokens) Record(ended, charged httpretry.AttemptResult) {
	switch {
	case !ended.Succeeded():
	case charged.Number > 0: // a retry
		a.put(a.cost(charged))
	default:
		a.put(1)
	}
}

func (a *awsTokens) put(tokens int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.taken = max(a.taken-tokens, 0)
}

// Balance is for RetryTransport.Origins. It assumes that nothing times out.
func (a *awsTokens) Balance(string) (retries int, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return (500 - a.taken) / 5, true
}

// A retry can cost more or less, which depends on the attempt that it follows.
func ExampleBudget_awsTokens() {
	// The first attempt of each request fails with the status in its query.
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Retry-Attempt") != "" && r.URL.Path == "/recovers":
		case r.URL.RawQuery == "504":
			w.WriteHeader(http.StatusGatewayTimeout)
		default:
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer srv.Close()
	budget := new(awsTokens)
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		Budget: budget, MaxAttempts: 2, Backoff: strategies.Constant{}}})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	for _, path := range []string{"/down?504", "/down?429", "/recovers?504"} {
		resp, err := client.Get(srv.URL + path)
		if err != nil {
			log.Fatal(err)
		}
		_ = resp.Body.Close()
		fmt.Println(path, resp.StatusCode, "tokens taken:", budget.taken)
	}
	// Output:
	// /down?504 504 tokens taken: 10
	// /down?429 429 tokens taken: 15
	// /recovers?504 200 tokens taken: 15
}
