package httpretry

import (
	"cmp"
	"context"
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

	// Request is the caller's request, or a copy if Resuming is true, because the
	// caller may change its own once the body is closed.
	Request  *http.Request
	Response *http.Response // nil if there is none; its body must not be used

	// Err is the error of the attempt, or of the wait after it. With
	// ReasonNotReplayable, it is GetBody's, if there was one. With
	// ReasonNotResumable, it says why.
	Err error

	Attempt AttemptResult // the last one; its Number is 0 if the request ended unsent

	Elapsed time.Duration // since the start of the request
	Waited  time.Duration // since the last Event, in waits, cool-downs and drains of responses
	Wait    time.Duration // the wait that begins now, which a cool-down may extend
	Asked   time.Duration // by Response, even if too long; or a cool-down's rest (ReasonCooldown)
	Reason  Reason        // why no attempt follows, or ReasonNone if one does

	// Resuming reports whether the response's body broke off, after Offset bytes,
	// when RoundTrip had returned (see Policy.Resume).
	Resuming bool
	Offset   int64
}

// Status returns the status of the Response, such as "503 Service Unavailable",
// or "invalid status" outside 100 to 999. If there is no Response, it returns
// one of these texts for Err: "canceled", "timeout", "host cooling down", "name
// lookup failed", "connection failed", "TLS failed", "connection broken",
// "failed". It has no text of a server, of a URL or of Err, and few values, so
// it is safe for logs and for labels of metrics.
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
	// ReasonCanceled is "canceled". The caller canceled its context or Cancel.
	ReasonCanceled
	// ReasonAttempts is "attempts_exhausted". MaxAttempts allows no more.
	ReasonAttempts
	// ReasonDisabled is "retries_disabled". MaxAttempts is 1, or the request has a
	// context of WithoutRetries.
	ReasonDisabled
	// ReasonCallerRetries is "caller_retries". An outer RetryTransport or the
	// client of an inbound request retries (see Middleware).
	ReasonCallerRetries
	// ReasonNotIdempotent is "not_idempotent". The server may have processed it.
	ReasonNotIdempotent
	// ReasonNotReplayable is "not_replayable". Its body cannot be sent again.
	ReasonNotReplayable
	// ReasonDoNotRetry is "do_not_retry". A header forbids a retry: see Classify.
	ReasonDoNotRetry
	// ReasonRetryAfter is "retry_after_too_long". The wait exceeds MaxRetryAfter.
	ReasonRetryAfter
	// ReasonCooldown is "host_cooling_down". The host cools down for longer than
	// the request may wait, or it is a first attempt with CooldownFail.
	ReasonCooldown
	// ReasonDeadline is "deadline_exceeded". The deadline of the context or of
	// http.Client.Timeout has passed, or would pass in the next wait.
	ReasonDeadline
	// ReasonMaxElapsed is "max_elapsed". The wait would end after MaxElapsed.
	ReasonMaxElapsed
	// ReasonBudget is "budget_exhausted". The Budget refused the retry.
	ReasonBudget
	// ReasonNotResumable is "not_resumable". A broken body cannot be resumed.
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

// Hint names the field or call that decides about a retry, or is "".
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

// Observers returns a function for [Config.Observe] that calls each of fs, in
// order, except nil ones. If all are nil, it returns nil.
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

// LogEvents returns a function for [Config.Observe] that logs retries,
// ReasonCallerRetries and ReasonCanceled at level Info, and other reasons at
// level Warn. It does not log a success, nor a response with ReasonPermanent,
// such as a 404. It logs no headers, and URLs without user, query and fragment.
// It escapes control characters. In the text of an error, it recognizes only
// secrets in URLs. A nil logger means slog.Default().
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
