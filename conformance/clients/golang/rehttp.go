package main

import (
	"net/http"
	"time"

	"github.com/PuerkitoBio/rehttp"
)

// newRehttp returns the example of rehttp's documentation. At best, all errors
// and the usual statuses of idempotent requests are retried.
func newRehttp(base *http.Transport, best bool) doer {
	if !best {
		return &http.Client{Transport: rehttp.NewTransport(base, rehttp.RetryAll(
			rehttp.RetryMaxRetries(3), rehttp.RetryTemporaryErr(),
		), rehttp.ExpJitterDelay(time.Second, 10*time.Second))}
	}
	base.ResponseHeaderTimeout = 2 * time.Second
	backoff := rehttp.ExpJitterDelay(500*time.Millisecond, 4*time.Second)
	return &http.Client{Transport: rehttp.NewTransport(base, rehttp.RetryAll(
		rehttp.RetryMaxRetries(5),
		func(a rehttp.Attempt) bool { return isIdempotent(a.Request) },
		rehttp.RetryAny(
			rehttp.RetryIsErr(func(err error) bool { return err != nil }),
			func(a rehttp.Attempt) bool { return a.Response != nil && maySendAgain(a.Response) },
		),
	), func(a rehttp.Attempt) time.Duration { return max(asked(a.Response), backoff(a)) })}
}
