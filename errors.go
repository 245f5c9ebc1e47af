package httpretry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seed421102f4/httpretry/internal/wire"
)

// Error is the error of a request that took more than one attempt, or that the
// transport, its budget or its body ended, or whose response's body broke off
// (see [Policy.Resume]). Other errors are Base's own, perhaps wrapped with the
// same text for [IsUnprocessed], or that of a context that was done before the
// first attempt. For Base's own, an [Event] has the Reason.
type Error struct {
	_ [0]func() // no unkeyed literals, no comparison

	Attempts int    // attempts that were started; 0 if the request was never sent
	Reason   Reason // why no other attempt followed
	Err      error  // of the last attempt, or the one that ended the request

	// Unprocessed means that no server has processed the request: no attempt was
	// made, or each was Unprocessed or sent nothing. Otherwise, the request may
	// have been processed. After an attempt, it is false for any request that is
	// safe to send twice, because net/http may have sent it more often.
	Unprocessed bool
}

// Error returns the attempts, the Reason, the text of e.Err, and the Hint.
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

// IsUnprocessed reports whether err, of a RetryTransport or an [http.Client]
// with one, shows that no server has processed the request (see
// Error.Unprocessed), so that a queue may put a POST back. For a response, see
// [Result]. After an http.Client.Timeout, it returns false, because that error
// does not wrap the transport's. Set a deadline in the context instead.
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

// attemptTimeout is the error of an attempt that took longer than the policy's
// AttemptTimeout, or of a Read of a response's body that waited longer than its
// ResumeIdle.
type attemptTimeout struct {
	what  string
	after time.Duration
	layer error // of a layer in Base that states an Outcome, or nil
}

func newAttemptTimeout(after time.Duration) *attemptTimeout {
	return &attemptTimeout{what: "attempt timed out after", after: after}
}

// withOutcomeOf returns cause, which ended an attempt whose own error is err.
// If cause is a timeout and err states an Outcome, such as that of a limiter
// that has sent nothing, the result states that Outcome, too.
func withOutcomeOf(err, cause error) error {
	timeout, isOwn := cause.(*attemptTimeout)
	if _, states := errors.AsType[outcomer](err); !isOwn || !states {
		return cause
	}
	return &attemptTimeout{timeout.what, timeout.after, WithOutcome(err, classifyError(err))}
}

func (e *attemptTimeout) Error() string {
	text := fmt.Sprintf("%s %v", e.what, e.after)
	if e.layer != nil {
		text += ": " + e.layer.Error()
	}
	return text
}

func (e *attemptTimeout) Timeout() bool { return true }

func (e *attemptTimeout) Temporary() bool { return true } // as net.Error has it

// Is reports whether target is context.DeadlineExceeded, as for a timeout of
// net/http, or an error in the tree of the layer's error. A context.Canceled in
// that tree is the cancel of the attempt, not the caller's.
func (e *attemptTimeout) Is(target error) bool {
	return target == context.DeadlineExceeded ||
		e.layer != nil && target != context.Canceled && errors.Is(e.layer, target)
}

// As looks for target in the tree of the layer's error.
func (e *attemptTimeout) As(target any) bool { return e.layer != nil && errors.As(e.layer, target) }

var errNoResponse = errors.New("the base transport returned neither a response nor an error")

// errRequestCanceled stands for a closed Request.Cancel, which has no error.
var errRequestCanceled = errors.New("request canceled")

// errOtherCanceled stands for the cause with which another request was canceled, or, if
// the request is idempotent, for a hook's own context.Canceled (base.ownError).
var errOtherCanceled = fmt.Errorf(
	"ended by the cancel of another request, or of a hook: %w", io.ErrUnexpectedEOF)

// isCause reports whether err is a cause with which this package cancels attempts.
func isCause(err error) bool {
	switch _, timeout := err.(*attemptTimeout); err {
	case wire.ErrResent, wire.ErrTooManySends, wire.ErrProtocol:
		return true
	default:
		return timeout
	}
}

// isOwnError reports whether err was made here, not by Base. net/http wraps
// some of the errors that it gets from hooks.
func isOwnError(err error) bool {
	// A timeout that Base has wrapped may be that of a nested RetryTransport.
	if _, timeout := err.(*attemptTimeout); timeout {
		return true
	}
	for _, own := range []error{errNoResponse, errRequestCanceled, errOtherCanceled,
		wire.ErrResent, wire.ErrTooManySends, wire.ErrInformational, wire.ErrProtocol} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}
