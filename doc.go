// Package httpretry provides an [http.RoundTripper] that retries failed HTTP
// requests: with jittered backoff, within a retry budget for each host,
// honoring Retry-After, and only if the request is safe to send again.
//
//	client := &http.Client{Transport: new(httpretry.RetryTransport)}
//
// The zero [RetryTransport] makes up to three attempts. Use [New] to choose a
// base transport, policies for particular hosts, or an observer.
//
// # When a request is retried
//
// After a response, the transport makes these checks in this order. After an
// error, it first asks whether the caller is still waiting. The first check
// that fails ends the request and determines its [Reason].
//
//	can a retry succeed?      ReasonSuccess, ReasonPermanent, ReasonDoNotRetry
//	is the caller waiting?    ReasonCanceled, ReasonDeadline
//	are attempts left?        ReasonAttempts, ReasonDisabled
//	is the retry ours?        ReasonCallerRetries
//	is it safe to resend?     ReasonNotIdempotent
//	can its body be resent?   ReasonNotReplayable
//	is the wait acceptable?   ReasonRetryAfter, ReasonCooldown
//	does it end in time?      ReasonMaxElapsed, or the one for a deadline
//	is any budget left?       ReasonBudget
//
// Then the transport waits, without holding a connection, and makes the next
// attempt. [Policy.Resume] does the same for response bodies that break off.
// Its first check is whether a response has the rest (ReasonNotResumable). With
// [Policy.ReadAhead], a small body that breaks off is a failed attempt.
//
// If a check fails after a response, RoundTrip returns that response, whatever
// its status, with its body unread. Otherwise it returns an error: an [*Error],
// whose text has a hint, or, after a single attempt, often Base's own.
// [ResultOf] and [Event] have the Reason.
//
// # Non-idempotent requests
//
// A request that is not idempotent (see [Idempotent]) is retried only if no
// server has processed it (see [Unprocessed]). If its connection was at its end
// and the error proves that the server has not begun it, as after a GOAWAY, it
// is sent again, up to 30 times: three times at once, then after waits of up to
// 2 s. MaxAttempts, the AttemptHeader and the Budget do not count that.
//
// The transport prevents net/http from resending such a request over HTTP/2 (Go
// issue 52459). So after a GOAWAY, it may fail if Base has a layer that
// [Through] does not declare. With any layer, a request without a body may
// fail, too, until its host has answered one.
//
// # Limitations
//
// Each hop of a redirect is a separate request. Cookies in discarded responses
// are lost. A signer above the transport signs once for all attempts, so put it
// below, as Base. Do not put one RetryTransport below another. If the layers
// between them have an Unwrap method, the inner one makes one attempt. After a
// GOAWAY, net/http resends an idempotent request within one attempt: up to ten
// sends in a retry or with an AttemptTimeout, otherwise until the context ends.
package httpretry
