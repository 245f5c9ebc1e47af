package main

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry"
)

// scenarios returns the single requests of the demo, in their order. Each has
// its own path, by which the server knows how to fail.
func scenarios() []scenario {
	return slices.Concat(passing(), payments(), hopeless())
}

// passing failures: the request may be repeated, and then succeeds.
func passing() []scenario {
	twice := result{200, httpretry.ReasonFinal, 2, tally{requests: 2}}
	return []scenario{{
		title:  "A 503 that passes: GET is safe to repeat",
		path:   "/busy",
		script: script{status(503)},
		want:   twice,
	}, {
		title:  "A 503 with Retry-After-Ms: 250: never sooner than told, and a little spread",
		path:   "/maintenance",
		script: script{status(503, "Retry-After-Ms", "250")},
		want:   twice,
	}, {
		title:  "A 429 with Retry-After as a date: counted from the response's Date",
		path:   "/throttled",
		script: script{throttle(time.Second)},
		want:   twice,
	}, {
		title:  "A connection that is reset after the request was sent",
		path:   "/reset",
		script: script{reset},
		want:   twice,
	}, {
		title:  "A server that hangs: AttemptTimeout cuts one attempt, not the request",
		path:   "/slow",
		script: script{hang},
		policy: httpretry.Policy{AttemptTimeout: 500 * time.Millisecond},
		want:   twice,
	}}
}

// payments are POSTs, which must not be done twice.
func payments() []scenario {
	return []scenario{{
		title:  "A POST without a key: it may have been done, so its 503 is handed back",
		method: http.MethodPost,
		path:   "/charge",
		script: script{status(503)},
		want:   result{503, httpretry.ReasonNotIdempotent, 1, tally{requests: 1, charges: 1}},
	}, {
		title:  "The same POST with an Idempotency-Key: repeated, and charged once",
		method: http.MethodPost,
		path:   "/charge-keyed",
		key:    "order-4711",
		script: script{status(503)},
		want:   result{200, httpretry.ReasonFinal, 2, tally{requests: 2, charges: 1}},
	}, {
		title:  "A POST whose connection is refused: never sent, so safe to repeat without a key",
		method: http.MethodPost,
		path:   "/charge-refused",
		base:   refusedOnce,
		want:   result{200, httpretry.ReasonFinal, 2, tally{requests: 1, charges: 1}},
	}}
}

// hopeless cases: another attempt would be useless or unwelcome.
func hopeless() []scenario {
	once := func(why httpretry.Reason) result { return result{503, why, 1, tally{requests: 1}} }
	return []scenario{{
		title:  "A server that says X-Should-Retry: false",
		path:   "/refusing",
		script: script{status(503, "X-Should-Retry", "false")},
		want:   once(httpretry.ReasonServerRefused),
	}, {
		title:  "A Retry-After of an hour: over MaxRetryAfter, so given up at once, not cut short",
		path:   "/closed",
		script: script{status(503, "Retry-After", "3600")},
		want:   once(httpretry.ReasonRetryAfter),
	}, {
		title:   "A deadline in 2s and a Retry-After of 5s: given up now, not when the time is up",
		path:    "/hurry",
		script:  script{status(503, "Retry-After", "5")},
		timeout: 2 * time.Second,
		want:    once(httpretry.ReasonDeadline),
	}}
}

// refusedOnce returns a base whose first connection is refused, as by a server
// that is being restarted: it goes to a port on which nobody listens any more.
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
