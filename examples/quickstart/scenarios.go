package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry"
)

// scenario is one request to a server that fails in some way.
type scenario struct {
	title   string
	method  string // "" means GET
	path    string // of this scenario only
	key     string // idempotency key, if any
	script  script // how the server fails
	policy  httpretry.Policy
	timeout time.Duration     // for the request; 0 means none
	base    http.RoundTripper // nil means the library's default
	want    result
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

func scenarios() []scenario { return slices.Concat(recoveries(), payments(), failures()) }

// recoveries are requests that succeed because they are retried.
func recoveries() []scenario {
	twice := result{200, httpretry.ReasonSuccess, 2, tally{requests: 2}}
	return []scenario{{
		title:  "A 503: a GET may be retried",
		path:   "/busy",
		script: script{status(503)},
		want:   twice,
	}, {
		title:  "A 503 with Retry-After-Ms: 250: the wait is at least that long",
		path:   "/maintenance",
		script: script{status(503, "Retry-After-Ms", "250")},
		want:   twice,
	}, {
		title:  "A 429 whose Retry-After is a date: counted from the response's Date",
		path:   "/throttled",
		script: script{throttle(time.Second)},
		want:   twice,
	}, {
		title:  "A connection that is reset after the request was sent",
		path:   "/reset",
		script: script{reset},
		want:   twice,
	}, {
		title:  "A server that does not answer: AttemptTimeout ends the attempt",
		path:   "/slow",
		script: script{hang},
		policy: httpretry.Policy{AttemptTimeout: time.Second},
		want:   twice,
	}}
}

// payments are POSTs, which must not be processed twice.
func payments() []scenario {
	return []scenario{{
		title:  "A POST without a key: it may have been processed, so it is sent once",
		method: http.MethodPost,
		path:   "/charge",
		script: script{status(503)},
		want:   result{503, httpretry.ReasonNotIdempotent, 1, tally{requests: 1, charges: 1}},
	}, {
		title:  "The same POST with an Idempotency-Key: retried, and charged once",
		method: http.MethodPost,
		path:   "/keyed",
		key:    "order-4711",
		script: script{status(503)},
		want:   result{200, httpretry.ReasonSuccess, 2, tally{requests: 2, charges: 1}},
	}, {
		title:  "A POST whose connection is refused: never sent, so it is retried",
		method: http.MethodPost,
		path:   "/refused",
		base:   refusedOnce(),
		want:   result{200, httpretry.ReasonSuccess, 2, tally{requests: 1, charges: 1}},
	}}
}

// failures are requests for which another attempt is useless or unwelcome.
func failures() []scenario {
	once := func(why httpretry.Reason) result {
		return result{503, why, 1, tally{requests: 1}}
	}
	return []scenario{{
		title:  "A server that answers X-Should-Retry: false",
		path:   "/refusing",
		script: script{status(503, "X-Should-Retry", "false")},
		want:   once(httpretry.ReasonDoNotRetry),
	}, {
		title:  "A Retry-After of an hour: more than MaxRetryAfter, never shortened",
		path:   "/closed",
		script: script{status(503, "Retry-After", "3600")},
		want:   once(httpretry.ReasonRetryAfter),
	}, {
		title:   "A deadline in 20s, a Retry-After of 40s: ended now, not in 20s",
		path:    "/hurry",
		script:  script{status(503, "Retry-After", "40")},
		timeout: 20 * time.Second,
		want:    once(httpretry.ReasonDeadline),
	}}
}

// refusedOnce returns a base whose first connection is refused, as by a server
// that restarts. It goes to a port on which no server listens any more.
func refusedOnce() *http.Transport {
	var dialed atomic.Bool
	var dialer net.Dialer
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
			return dialer.DialContext(ctx, network, addr)
		},
	}
}
