package policies_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/policies"
	"github.com/seed421102f4/httpretry/strategies"
)

// classify prints the Outcome of a response to a POST without a key.
func classify(p httpretry.Policy, status int, header ...string) {
	req := httptest.NewRequest(http.MethodPost, "http://service.test/", nil)
	resp := &http.Response{StatusCode: status, Header: http.Header{}}
	for i := 0; i < len(header); i += 2 {
		resp.Header.Set(header[i], header[i+1])
	}
	fmt.Println(status, header, p.Classify(req, resp, nil))
}

// printResult sends a request under a policy, without waits, and prints its result.
func printResult(p httpretry.Policy, method string, base contract.BaseFunc) {
	p.Backoff = strategies.Constant{}
	transport, err := httpretry.New(httpretry.Config{Base: base, Policy: p})
	if err != nil {
		log.Fatal(err)
	}
	req := httptest.NewRequest(method, "http://service.test/", nil)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, httpretry.ResultOf(resp))
}

// idempotent prints whether a POST to a path may be sent twice.
func idempotent(p httpretry.Policy, path string) {
	req := httptest.NewRequest(http.MethodPost, "http://service.test"+path, nil)
	fmt.Println(path, p.Idempotent(req))
}

// A 400 is final, unless its header says that the request was throttled.
func ExampleAWS() {
	classify(policies.AWS(), 400)
	classify(policies.AWS(), 400, "X-Amzn-ErrorType", "ThrottlingException")
	// Output:
	// 400 [] final
	// 400 [X-Amzn-ErrorType ThrottlingException] transient
}

// The limits of a minute have a Retry-After, and the limit of a month has none.
func ExampleAnthropic() {
	classify(policies.Anthropic(), 429, "Retry-After", "30")
	classify(policies.Anthropic(), 429)
	idempotent(policies.Anthropic(), "/v1/messages")
	idempotent(policies.Anthropic(), "/v1/messages/batches")
	// Output:
	// 429 [Retry-After 30] unprocessed
	// 429 [] final
	// /v1/messages true
	// /v1/messages/batches false
}

// A job waits until its host is up again, for up to an hour.
func ExampleBackground() {
	p := policies.Background(time.Hour)
	p.AttemptTimeout = time.Minute // for a server that does not answer
	requests := 0
	printResult(p, http.MethodGet, func(req *http.Request) (*http.Response, error) {
		if requests++; requests < 50 {
			return nil, io.ErrUnexpectedEOF
		}
		return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
	})
	// Output:
	// 200 {50 success false}
}

// A 403 is a limit if it names a time.
func ExampleGitHub() {
	classify(policies.GitHub(), 403)
	classify(policies.GitHub(), 403, "Retry-After", "60")
	// Output:
	// 403 [] final
	// 403 [Retry-After 60] unprocessed
}

// A POST that only computes may be sent twice.
func ExampleOpenAI() {
	idempotent(policies.OpenAI(), "/v1/embeddings")
	idempotent(policies.OpenAI(), "/v1/files")
	// Output:
	// /v1/embeddings true
	// /v1/files false
}

func ExampleReads() {
	p := policies.Reads(policies.AWS(), "/_search", "/indexes/*/search")
	idempotent(p, "/books/_search")
	idempotent(p, "/v1/indexes/books/search")
	idempotent(p, "/books/_doc")
	// Output:
	// /books/_search true
	// /v1/indexes/books/search true
	// /books/_doc false
}

// A POST to a method that reads may be sent twice.
func ExampleSlack() {
	idempotent(policies.Slack(), "/api/conversations.list")
	idempotent(policies.Slack(), "/api/chat.postMessage")
	// Output:
	// /api/conversations.list true
	// /api/chat.postMessage false
}

// Each POST without an Idempotency-Key gets one, which its attempts share.
func ExampleStripe() {
	var keys []string
	base := func(req *http.Request) (*http.Response, error) {
		keys = append(keys, req.Header.Get("Idempotency-Key"))
		if len(keys) == 1 {
			return nil, io.ErrUnexpectedEOF
		}
		return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
	}
	printResult(policies.Stripe(), http.MethodPost, base)
	fmt.Println(keys[0] != "", keys[0] == keys[1])
	// Output:
	// 200 {2 success false}
	// true true
}

// A search cluster answers 500 to a query that is wrong, and 404 until all
// nodes know a new index. It checks its limits before it processes a request.
func ExampleStatuses() {
	p := policies.Statuses(httpretry.Policy{}, httpretry.Final, 500)
	p = policies.Statuses(p, httpretry.Transient, 404)
	p = policies.Statuses(p, httpretry.Unprocessed, 429)
	classify(p, 500)
	classify(p, 404)
	classify(p, 404, "X-Should-Retry", "false")
	classify(p, 429)
	classify(p, 503)
	// Output:
	// 500 [] final
	// 404 [] transient
	// 404 [X-Should-Retry false] final
	// 429 [] unprocessed
	// 503 [] transient
}

// The response 202 (Accepted) means that a report is not complete.
func ExampleStatuses_accepted() {
	p := policies.Statuses(httpretry.Policy{}, httpretry.Transient, http.StatusAccepted)
	requests := 0
	printResult(p, http.MethodGet, func(req *http.Request) (*http.Response, error) {
		status := http.StatusAccepted
		if requests++; requests == 3 {
			status = http.StatusOK
		}
		return &http.Response{StatusCode: status, Body: http.NoBody, Request: req}, nil
	})
	// Output:
	// 200 {3 success false}
}
