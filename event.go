package httpretry

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/internal/redact"
)

// Event describes an attempt and the decision after it.
type Event struct {
	_ [0]func() // no unkeyed literals, no comparison

	// Request is the caller's request. If Resuming is true, it is a copy,
	// because the caller may change its own once the body is closed.
	Request *http.Request

	Response *http.Response // nil if there is none; its body must not be used

	// Err is the error of the attempt, or of the wait after it. With
	// ReasonNotReplayable, it is GetBody's error, if there was one. With
	// ReasonNotResumable, it is why the body cannot be resumed, or why Response
	// is not the rest of it.
	Err error

	// Attempt is the result of the last attempt, as a [Budget] gets it. Its Number
	// is 0 if the request ended unsent.
	Attempt AttemptResult

	Elapsed time.Duration // since the start of the request

	// Waited is how long the request has waited since its last Event, or since
	// its start. It includes cool-downs, and the time to drain a response.
	Waited time.Duration

	// Wait is the wait that begins now, unless a cool-down extends it or a
	// success ends it (see Policy.Backoff).
	Wait time.Duration

	// Asked is the wait that Response asks for, even if that is too long. With
	// ReasonCooldown, it is the rest of the host's cool-down.
	Asked time.Duration

	Reason Reason // why no attempt follows, or ReasonNone if one does

	// Resuming reports whether the response's body broke off after RoundTrip
	// had returned (see Policy.Resume). Offset is the number of its bytes that
	// were read.
	Resuming bool
	Offset   int64
}

// Status returns the status of the Response, such as "503 Service Unavailable",
// or "invalid status" if it is not from 100 to 999. If there is no Response,
// Status returns one of these texts for Err: "canceled", "timeout", "host
// cooling down", "name lookup failed", "connection failed", "TLS failed",
// "connection broken", "failed". It has no text of a server, of a URL or of
// Err, and few values, so it is safe for logs and for labels of metrics.
func (e Event) Status() string {
	if e.Response == nil {
		return e.errorStatus()
	}
	return statusText(e.Response.StatusCode)
}

// statusText is Status for a response.
func statusText(code int) string {
	// Over HTTP/2, net/http accepts any number as a status. Servers must not be
	// able to choose from an unlimited number of texts.
	if code < 100 || code > 999 {
		return "invalid status"
	}
	return strings.TrimSpace(strconv.Itoa(code) + " " + http.StatusText(code))
}

// errorStatus is Status for an Event without a Response.
func (e Event) errorStatus() string {
	var (
		cooling *CooldownError
		dns     *net.DNSError
		op      *net.OpError
	)
	switch {
	// A canceled request may have ended with the error of an earlier attempt.
	case e.Reason == ReasonCanceled,
		e.Reason != ReasonDeadline && errors.Is(e.Err, context.Canceled):
		return "canceled"
	case errors.As(e.Err, &cooling):
		return "host cooling down"
	case isTimeout(e.Err):
		return "timeout"
	case errors.As(e.Err, &dns):
		return "name lookup failed"
	case isHandshake(e.Err), errors.As(e.Err, &op) && isAlert(op):
		return "TLS failed"
	case op != nil && isDial(op):
		return "connection failed"
	case op != nil, errors.Is(e.Err, io.EOF), errors.Is(e.Err, io.ErrUnexpectedEOF),
		isNothingWritten(e.Err), e.Err != nil && isUnprocessedText(e.Err.Error()):
		return "connection broken"
	}
	return "failed"
}

// Reason is why a request ended. The text of each, for logs and metrics, does
// not change. Later versions may add Reasons. A program should treat one that
// it does not know as a failure.
type Reason uint8

const (
	// ReasonNone is "none". The request has not ended.
	ReasonNone Reason = iota
	// ReasonSuccess is "success". The response is below 400.
	ReasonSuccess
	// ReasonPermanent is "permanent". A retry would not change the result.
	ReasonPermanent
	// ReasonCanceled is "canceled". The caller has canceled the request's
	// context, or closed its Cancel channel.
	ReasonCanceled
	// ReasonAttempts is "attempts_exhausted". MaxAttempts allows no other
	// attempt.
	ReasonAttempts
	// ReasonDisabled is "retries_disabled". MaxAttempts is 1, or the request
	// has a context of WithoutRetries.
	ReasonDisabled
	// ReasonCallerRetries is "caller_retries". An outer RetryTransport or the
	// client of an inbound request retries (see Middleware).
	ReasonCallerRetries
	// ReasonNotIdempotent is "not_idempotent". The server may have processed a
	// request that is not safe to send twice (see Idempotent).
	ReasonNotIdempotent
	// ReasonNotReplayable is "not_replayable". The body of the request cannot
	// be sent again (see Policy.ReplayBuffer).
	ReasonNotReplayable
	// ReasonDoNotRetry is "do_not_retry". The response has an X-Should-Retry or
	// a Stripe-Should-Retry that is false.
	ReasonDoNotRetry
	// ReasonRetryAfter is "retry_after_too_long". The response asks for a wait
	// that is longer than MaxRetryAfter.
	ReasonRetryAfter
	// ReasonCooldown is "host_cooling_down". The host is cooling down, and that
	// takes longer than the request may wait, or it is a first attempt with
	// CooldownFail.
	ReasonCooldown
	// ReasonDeadline is "deadline_exceeded". The deadline of http.Client.Timeout
	// or of the context has passed, in an attempt or in a wait, or the next wait
	// would end after it.
	ReasonDeadline
	// ReasonMaxElapsed is "max_elapsed". The wait would end after MaxElapsed.
	ReasonMaxElapsed
	// ReasonBudget is "budget_exhausted". The Budget refused the retry.
	ReasonBudget
	// ReasonNotResumable is "not_resumable". A response's body that broke off
	// cannot be resumed (see Policy.Resume).
	ReasonNotResumable
)

// String returns the text of r.
func (r Reason) String() string {
	names := [...]string{
		ReasonNone:          "none",
		ReasonSuccess:       "success",
		ReasonPermanent:     "permanent",
		ReasonCanceled:      "canceled",
		ReasonAttempts:      "attempts_exhausted",
		ReasonDisabled:      "retries_disabled",
		ReasonCallerRetries: "caller_retries",
		ReasonNotIdempotent: "not_idempotent",
		ReasonNotReplayable: "not_replayable",
		ReasonDoNotRetry:    "do_not_retry",
		ReasonRetryAfter:    "retry_after_too_long",
		ReasonCooldown:      "host_cooling_down",
		ReasonDeadline:      "deadline_exceeded",
		ReasonMaxElapsed:    "max_elapsed",
		ReasonBudget:        "budget_exhausted",
		ReasonNotResumable:  "not_resumable",
	}
	if int(r) >= len(names) {
		return fmt.Sprintf("Reason(%d)", uint8(r))
	}
	return names[r]
}

// MarshalText returns the text of r, for JSON and logs.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Hint returns a short text that says which field or call decides about a retry
// of a request that ended with r, or "" if none does.
func (r Reason) Hint() string {
	switch r {
	case ReasonAttempts:
		return "Policy.MaxAttempts allows no more attempts"
	case ReasonDisabled:
		return "Policy.MaxAttempts is 1, or the request's context is of WithoutRetries"
	case ReasonCallerRetries:
		return "the inbound request was a retry (see Middleware), or another RetryTransport retries"
	case ReasonNotIdempotent:
		return "the server may have processed it; an Idempotency-Key header, " +
			"Policy.NewIdempotencyKey or WithIdempotent allows a retry"
	case ReasonNotReplayable:
		return "a retry needs a body from Request.GetBody, or one that fits into Policy.ReplayBuffer"
	case ReasonDoNotRetry:
		return "the server sent X-Should-Retry: false, which a Policy.Classify may ignore"
	case ReasonRetryAfter:
		return "the server asked for a longer wait than Policy.MaxRetryAfter"
	case ReasonCooldown:
		return "the host asked for a pause; see Policy.Cooldown, CooldownKey and MaxRetryAfter"
	case ReasonDeadline:
		return "http.Client.Timeout or the context's deadline allows no more time"
	case ReasonMaxElapsed:
		return "the wait would end after Policy.MaxElapsed"
	case ReasonBudget:
		return "Policy.Budget refused a retry to this host; a job can use policies.Background"
	case ReasonNotResumable:
		return "the comment on Policy.Resume lists the properties that a response needs; " +
			"ResumeSame replaces a validator"
	}
	return ""
}

// Error is the error of one of these:
//
//   - a request that took more than one attempt
//   - a request that the transport, its budget or its body ended
//   - a response's body that broke off (see [Policy.Resume])
//
// Any other error is Base's own. If [IsUnprocessed] could not tell otherwise, it
// is wrapped in an error with the same text. An [Event] has the Reason of it, too.
type Error struct {
	_ [0]func() // no unkeyed literals, no comparison

	Attempts int    // attempts that were started; 0 if the request was never sent
	Reason   Reason // why no other attempt followed
	Err      error  // of the last attempt, or the one that ended the request

	// Unprocessed means that no server has processed the request: no attempt was
	// made, or each was Unprocessed or sent nothing. If it is false, the request
	// may have been processed. It is false if an attempt was made of a request
	// that is safe to send twice, because net/http may have sent it more often
	// than is known.
	Unprocessed bool
}

// Error returns the number of attempts, the Reason, the text of e.Err, and the
// Hint of the Reason.
func (e *Error) Error() string {
	text := "not sent"
	switch {
	case e.Attempts == 1:
		text = fmt.Sprintf("gave up after 1 attempt (%v)", e.Reason)
	case e.Attempts > 1:
		text = fmt.Sprintf("gave up after %d attempts (%v)", e.Attempts, e.Reason)
	}
	text = fmt.Sprintf("httpretry: %s: %v", text, e.Err)
	if hint := e.Reason.Hint(); hint != "" {
		text += "; hint: " + hint
	}
	return text
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether e.Err is a timeout. http.Client uses it.
func (e *Error) Timeout() bool { return isTimeout(e.Err) }

// IsUnprocessed reports whether err, which a RetryTransport or an [http.Client]
// with one has returned, shows that no server has processed the request (see
// Error.Unprocessed). So a queue may put a POST back. A [Result] says the same of
// a request that ended with a response. For any other error, IsUnprocessed
// returns false. It also does so after an http.Client.Timeout, whose error does
// not wrap that of the transport, so set a deadline in the context instead.
func IsUnprocessed(err error) bool {
	// It does not look into joined errors, because one of them is not about all.
	for ; err != nil; err = errors.Unwrap(err) {
		switch e := err.(type) {
		case *Error:
			return e.Unprocessed
		case *markedError:
			return e.unprocessed
		case outcomer:
			return e.Outcome() == Unprocessed
		}
	}
	return false
}

// markedError is the error of the only attempt of a request, for which
// IsUnprocessed would not return the right value otherwise.
type markedError struct {
	error
	unprocessed bool
}

func (e *markedError) Unwrap() error { return e.error }

// Timeout is for url.Error, which does not look for the method with errors.As.
func (e *markedError) Timeout() bool { return isTimeout(e.error) }

// Temporary is for url.Error, too.
func (e *markedError) Temporary() bool {
	var t interface{ Temporary() bool }
	return errors.As(e.error, &t) && t.Temporary()
}

// isPlainAnswer reports whether err is that of a TLS handshake that was not
// answered with TLS. http.Client replaces it if it has this type.
func isPlainAnswer(err error) bool {
	_, ok := err.(tls.RecordHeaderError)
	return ok
}

// Observers returns a function for [Config.Observe] that calls each of fs, in
// order, except nil ones. If there are no others, it returns nil.
func Observers(fs ...func(context.Context, Event)) func(context.Context, Event) {
	fs = slices.DeleteFunc(slices.Clone(fs), func(f func(context.Context, Event)) bool {
		return f == nil
	})
	switch len(fs) {
	case 0:
		return nil
	case 1:
		return fs[0]
	}
	return func(ctx context.Context, e Event) {
		for _, f := range fs {
			f(ctx, e)
		}
	}
}

// LogEvents returns a function for [Config.Observe]. The function logs retries,
// ReasonCallerRetries and ReasonCanceled at level Info, and other reasons at
// level Warn. It does not log a success, nor a response with ReasonPermanent,
// such as a 404. It logs URLs without user, query and fragment, escapes control
// characters, and logs no headers. In the text of an error, it recognizes no
// other secrets than those in URLs. A nil logger means slog.Default().
func LogEvents(logger *slog.Logger) func(context.Context, Event) {
	return func(ctx context.Context, e Event) {
		level, message := slog.LevelWarn, "gave up on request"
		switch {
		case e.Reason == ReasonSuccess, e.Reason == ReasonPermanent && e.Err == nil:
			return
		case e.Reason == ReasonNone:
			level, message = slog.LevelInfo, "retrying request"
		case e.Reason == ReasonCallerRetries:
			level, message = slog.LevelInfo, "left the retry to the caller"
		case e.Reason == ReasonCanceled:
			level, message = slog.LevelInfo, "caller canceled request"
		}
		// RoundTrip has returned, so the request did not fail.
		switch {
		case e.Resuming && e.Reason == ReasonNone:
			message = "resuming response"
		case e.Resuming && level == slog.LevelWarn:
			message = "gave up on response"
		}
		log := logger
		// slog.SetDefault may be called after LogEvents.
		if log == nil {
			log = slog.Default()
		}
		if log.Enabled(ctx, level) {
			log.LogAttrs(ctx, level, message, e.attrs()...)
		}
	}
}

// attrs returns the attributes that LogEvents logs.
func (e Event) attrs() []slog.Attr {
	attrs := []slog.Attr{
		slog.String("method", redact.Text(cmp.Or(e.Request.Method, http.MethodGet))),
		slog.String("url", redact.URL(e.Request.URL)),
		slog.Int("attempt", e.Attempt.Number),
		slog.Duration("elapsed", e.Elapsed),
	}
	if e.Waited > 0 {
		attrs = append(attrs, slog.Duration("waited", e.Waited))
	}
	if e.Resuming {
		attrs = append(attrs, slog.Int64("offset", e.Offset))
	}
	attrs = append(attrs, slog.String("status", e.Status()))
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", redact.Error(e.Err)))
	}
	if e.Asked > 0 {
		attrs = append(attrs, slog.Duration("asked", e.Asked))
	}
	if e.Reason == ReasonNone {
		return append(attrs, slog.Duration("wait", e.Wait))
	}
	if hint := e.Reason.Hint(); hint != "" {
		attrs = append(attrs, slog.String("hint", hint))
	}
	return append(attrs, slog.String("reason", e.Reason.String()))
}
