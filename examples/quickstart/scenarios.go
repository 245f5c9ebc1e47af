package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry"
)

// scenario is one request to a server that fails in some way.
type scenario struct {
	title   string
	request string // method and path, which no other scenario has
	key     string // idempotency key, if any
	script  script // how the server fails
	want    result
	policy  httpretry.Policy
	timeout time.Duration     // for the request; 0 means none
	base    http.RoundTripper // nil means the library's default
}

// result has the counts of the client and of the server for one request.
type result struct {
	status   int // 0 for an error
	reason   httpretry.Reason
	attempts int
	tally    // the server's
}

func (r result) String() string {
	text := fmt.Sprintf("caller got %d after %s; server saw %s",
		r.status, count(r.attempts, "attempt"), count(r.requests, "request"))
	if r.charges > 0 {
		text += ", made " + count(r.charges, "charge")
	}
	return text
}

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// scenarios returns requests that succeed because they are retried, then
// payments, which must not be processed twice, and then requests for which
// another attempt is useless or unwelcome.
func scenarios() []scenario {
	twice := result{200, httpretry.ReasonSuccess, 2, tally{requests: 2}}
	once := func(why httpretry.Reason) result { return result{503, why, 1, tally{requests: 1}} }
	return []scenario{
		{title: "A 503: a GET may be retried",
			request: "GET /busy", script: script{status(503)}, want: twice},
		{title: "A 503 with Retry-After-Ms: 250: the wait is at least that long",
			request: "GET /maintenance", script: script{status(503, "Retry-After-Ms", "250")},
			want: twice},
		{title: "A 429 whose Retry-After is a date: counted from the response's Date",
			request: "GET /throttled", script: script{throttle}, want: twice},
		{title: "A connection that is reset after the request was sent",
			request: "GET /reset", script: script{reset}, want: twice},
		{title: "A server that does not answer: AttemptTimeout ends the attempt",
			request: "GET /slow", script: script{hang}, want: twice,
			policy: httpretry.Policy{AttemptTimeout: time.Second}},

		{title: "A POST without a key: it may have been processed, so it is sent once",
			request: "POST /charge", script: script{status(503)},
			want: result{503, httpretry.ReasonNotIdempotent, 1, tally{requests: 1, charges: 1}}},
		{title: "The same POST with an Idempotency-Key: retried, and charged once",
			request: "POST /keyed", script: script{status(503)}, key: "order-4711",
			want: result{200, httpretry.ReasonSuccess, 2, tally{requests: 2, charges: 1}}},
		{title: "A POST whose connection is refused: never sent, so it is retried",
			request: "POST /refused", base: refusedOnce(),
			want: result{200, httpretry.ReasonSuccess, 2, tally{requests: 1, charges: 1}}},

		{title: "A server that answers X-Should-Retry: false",
			request: "GET /refusing", script: script{status(503, "X-Should-Retry", "false")},
			want: once(httpretry.ReasonDoNotRetry)},
		{title: "A Retry-After of an hour: more than MaxRetryAfter, never shortened",
			request: "GET /closed", script: script{status(503, "Retry-After", "3600")},
			want: once(httpretry.ReasonRetryAfter)},
		{title: "A deadline in 20s, a Retry-After of 40s: ended now, not in 20s",
			request: "GET /hurry", script: script{status(503, "Retry-After", "40")},
			want: once(httpretry.ReasonDeadline), timeout: 20 * time.Second},
	}
}

// refusedOnce returns a base whose first connection is refused, as by a server
// that restarts. It goes to a port on which no server listens any more.
func refusedOnce() *http.Transport {
	var dialed atomic.Bool
	return &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if !dialed.Swap(true) {
				listener, err := net.Listen(network, "127.0.0.1:0")
				if err != nil {
					return nil, err
				}
				addr = listener.Addr().String()
				_ = listener.Close()
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}
}
