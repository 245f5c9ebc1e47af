package httpretry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed421102f4/httpretry/internal/wire"
)

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

// isOwnError reports whether err was made here, not by Base. net/http wraps
// some of the errors that it gets from hooks.
func isOwnError(err error) bool {
	// A timeout that Base has wrapped may be that of a nested RetryTransport.
	if _, timeout := err.(*attemptTimeout); timeout {
		return true
	}
	for _, own := range []error{errNoResponse, errRequestCanceled, wire.ErrResent,
		wire.ErrTooManySends, wire.ErrInformational, wire.ErrProtocol} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}
