package httpretry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// Event tells what was decided after an attempt.
type Event struct {
	// Request is the request as it was passed to RoundTrip.
	Request *http.Request

	// Response is the attempt's, nil if it ended with an error. Its body is
	// off limits.
	Response *http.Response

	// Err is the attempt's error, nil if it ended with a response. With
	// ReasonNotReplayable it is GetBody's error, if there was one.
	Err error

	// Attempt is the attempt's number, from 1. It is 0 for a request that was
	// never sent, since its host was cooling down.
	Attempt int

	// Elapsed is the time from the beginning of the first attempt to the end
	// of this one, or to the end of a request that ends while it waits. Where
	// a first attempt waits for its host to cool down, that counts too.
	Elapsed time.Duration

	// Wait is the time until the next attempt, if Reason is zero: a longer one
	// if the host asks for it meanwhile (see Cooldown). With ReasonBudget it is
	// the time until the failure is handed back (see Policy.BudgetBackoff).
	Wait time.Duration

	// Reason says why no attempt follows. It is zero if one does.
	Reason Reason
}

// Reason names what ended a request. Its zero value means that nothing has.
type Reason uint8

const (
	_                   Reason = iota
	ReasonFinal                // success, or a failure that would repeat itself
	ReasonCanceled             // the caller's context is done, or its Request.Cancel closed
	ReasonAttempts             // as many attempts as the policy allows
	ReasonNotIdempotent        // the server may have acted, and must not act twice
	ReasonNotReplayable        // the body cannot be sent again
	ReasonServerRefused        // the server asks not to be asked again
	ReasonRetryAfter           // the server asks for a longer wait than the policy allows
	ReasonDeadline             // the wait would end after the deadline, or after MaxElapsed
	ReasonBudget               // too many retries to this host
	ReasonChain                // somebody up the chain of calls retries this: see Middleware
	ReasonCooldown             // the host asks all requests to leave it alone, for too long
)

// String returns the reason in words, such as "budget exhausted".
func (r Reason) String() string {
	switch r {
	case 0:
		return "none"
	case ReasonFinal:
		return "final"
	case ReasonCanceled:
		return "canceled"
	case ReasonAttempts:
		return "attempts exhausted"
	case ReasonNotIdempotent:
		return "not idempotent"
	case ReasonNotReplayable:
		return "body not replayable"
	case ReasonServerRefused:
		return "server refused"
	case ReasonRetryAfter:
		return "Retry-After too long"
	case ReasonDeadline:
		return "deadline too near"
	case ReasonBudget:
		return "budget exhausted"
	case ReasonChain:
		return "retried up the chain"
	case ReasonCooldown:
		return "host cooling down"
	default:
		return fmt.Sprintf("Reason(%d)", uint8(r))
	}
}

// Error is the error of a request that took more than one attempt, or that
// this package itself ended. errors.Is and errors.As see the error inside.
type Error struct {
	Attempts int    // that were begun; 0 if the request was never sent
	Reason   Reason // why none followed
	Err      error  // of the last attempt, or of what ended the request
}

// Error returns the number of attempts, the reason and the error inside. It
// adds nothing of the request.
func (e *Error) Error() string {
	switch e.Attempts {
	case 0:
		return fmt.Sprintf("httpretry: not sent: %v", e.Err)
	case 1:
		return fmt.Sprintf("httpretry: gave up after 1 attempt (%v): %v", e.Reason, e.Err)
	default:
		return fmt.Sprintf("httpretry: gave up after %d attempts (%v): %v", e.Attempts, e.Reason, e.Err)
	}
}

// Unwrap returns the error inside.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the error inside is a timeout. http.Client's errors
// ask for it by a type assertion, not by errors.As.
func (e *Error) Timeout() bool { return isTimeout(e.Err) }

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// Temporary reports what the error inside does, for code that still asks.
func (e *Error) Temporary() bool {
	var t interface{ Temporary() bool }
	return errors.As(e.Err, &t) && t.Temporary()
}

// LogEvents returns a [Config.Observe] that logs each retry, and each that is
// left to those up the chain, at level Info, and each request that was given up,
// at level Warn: not those that a success or a final failure ended. URLs are
// logged without user, query and fragment, headers not at all, and control
// characters are escaped. Nil means slog.Default at the time of the event.
func LogEvents(logger *slog.Logger) func(context.Context, Event) {
	return func(ctx context.Context, e Event) {
		level, message := slog.LevelInfo, "retrying request"
		switch e.Reason {
		case ReasonFinal:
			return
		case 0:
		case ReasonChain:
			message = "left the retry to those up the chain"
		default:
			level, message = slog.LevelWarn, "gave up on request"
		}
		log := logger
		if log == nil {
			log = slog.Default()
		}
		if log.Enabled(ctx, level) {
			log.LogAttrs(ctx, level, message, e.attrs()...)
		}
	}
}

// attrs returns what may be logged of an event.
func (e Event) attrs() []slog.Attr {
	method := e.Request.Method
	if method == "" {
		method = http.MethodGet
	}
	attrs := []slog.Attr{
		slog.String("method", printable(method)),
		slog.String("url", redactURL(e.Request.URL)),
		slog.Int("attempt", e.Attempt),
		slog.Duration("elapsed", e.Elapsed),
	}
	if e.Response != nil {
		attrs = append(attrs, slog.Int("status", e.Response.StatusCode))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", redactError(e.Err)))
	}
	if e.Reason == 0 {
		return append(attrs, slog.Duration("wait", e.Wait))
	}
	return append(attrs, slog.String("reason", e.Reason.String()))
}
