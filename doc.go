// Package httpretry provides an [http.RoundTripper] that retries failed HTTP
// requests: with jittered backoff, within a retry budget for each host,
// honoring Retry-After, and only if the request is safe to send again.
//
// Use a [RetryTransport] as the Transport of an [http.Client]:
//
//	client := &http.Client{Transport: new(httpretry.RetryTransport)}
//
// The zero RetryTransport makes up to three attempts. Use [New] to choose a
// base transport, policies for particular hosts, or an observer.
//
// # When a request is retried
//
// After a response, the transport makes the following checks in this order.
// After an error, it first checks whether the caller is waiting. The first
// check that fails ends the request and determines its [Reason].
//
//	can a retry succeed?      ReasonSuccess, ReasonPermanent, ReasonDoNotRetry
//	is the caller waiting?    ReasonCanceled, ReasonDeadline
//	are attempts left?        ReasonAttempts, ReasonDisabled
//	does no caller retry it?  ReasonCallerRetries
//	is it safe to resend?     ReasonNotIdempotent
//	can its body be resent?   ReasonNotReplayable
//	is the wait acceptable?   ReasonRetryAfter, ReasonCooldown
//	does it end in time?      ReasonMaxElapsed, or that of the deadline
//	is any budget left?       ReasonBudget
//
// Then the transport waits, without holding a connection, and makes the next
// attempt. [Policy.Resume] extends that to response bodies that break off, with
// ReasonNotResumable.
//
// If a check fails after a response, RoundTrip returns that response, whatever
// its status, with its body unread. If a check fails after an error, or if a
// request ends while it waits for a retry, RoundTrip returns an [*Error], whose
// text has a hint (see [Reason.Hint]). The error of a single attempt keeps its
// text, unless the context, the request's body or the budget ended the request.
// [ResultOf] and [Event] have the Reason.
//
// # Non-idempotent requests
//
// A request that is not idempotent (see [Idempotent]) is retried only if it was
// never sent, or if the server did not process it (see [Unprocessed]). If its
// connection ends before the server has begun it, it is sent again at once, up
// to 30 times. These sends do not count toward MaxAttempts. [IsUnprocessed]
// reports whether a request that failed was not processed.
//
// The transport prevents net/http from resending such a request over HTTP/2 (Go
// issue 52459). So if a server sends a GOAWAY, the request may fail below a layer
// that [Through] does not declare. Below any layer, a request without a body may
// fail, too, until its host has answered one.
//
// # Limitations
//
// Each hop of a redirect is a separate request. Cookies in discarded responses
// are lost. A signer above the transport signs once for all attempts, so put it
// below, as Base. Do not stack RetryTransports. If the layers between two of
// them have an Unwrap method, the inner one makes one attempt. If an HTTP/2
// server refuses an idempotent request with GOAWAY, net/http resends it within
// one attempt, at most ten times in a retry or with an AttemptTimeout, and
// otherwise until the context ends.
package httpretry
