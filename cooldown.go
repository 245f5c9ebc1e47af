package httpretry

import (
	"fmt"
	"time"

	"github.com/seed421102f4/httpretry/internal/fielderr"
	"github.com/seed421102f4/httpretry/internal/redact"
)

// Cooldown determines what the first attempt of a request does while its host
// is cooling down. Retries always wait. If that would take longer than
// Policy.MaxRetryAfter or the deadline allows, the request ends. If a host has
// several limits, such as one for each credential, set [Policy.CooldownKey].
//
// A host cools down if it answers 429 (Too Many Requests) or 503 (Service
// Unavailable) and asks for a wait (see [RetryAfter]). A 403 counts, too, if
// Policy.Classify does not return Final for it.
//
//	one request              ──▶ 429, Retry-After: 30
//	its retry                ───────────── waits ────────────▶│ ────▶
//	retries of others        ───────────── wait ──────────────│─▶ ─▶
//	others, CooldownSend     ──▶ ──▶ ──▶ ──▶ a success ends it early
//	others, CooldownWait     ───────────── wait ──────────────│──▶ ─▶
//	others, CooldownFail     ──▶ *CooldownError, at once
//
// A cool-down lasts as long as the server asks, at most one hour. It ends early
// if an attempt that was sent after it began gets a response below 400 whose
// Outcome is Final. A resume (see [Policy.Resume]) counts when 64 KiB or the
// rest has arrived, or when the caller closes the body. A cool-down applies to
// all requests of a RetryTransport to the same [Origin], whatever their
// policies. A RetryTransport keeps the 1024 latest cool-downs. An origin with a
// CooldownKey counts as one more.
type Cooldown uint8

const (
	// CooldownSend sends the first attempt.
	CooldownSend Cooldown = iota
	// CooldownWait makes the first attempt wait. After the cool-down, waiting
	// attempts are sent at the rate at which they arrived, the latest first.
	// The time from the end of the cool-down until an attempt is sent is at
	// most the time for which it has already waited. None waits for longer than
	// Policy.MaxRetryAfter in total. If a request would have to wait for
	// longer, or beyond its deadline, it fails as with CooldownFail.
	//
	// Use CooldownWait for limits of this client, such as a quota. If a host
	// sheds load at random and all its clients wait, the host is idle.
	CooldownWait
	// CooldownFail makes the request fail at once with a [*CooldownError]. If
	// all requests to a host use CooldownFail or CooldownWait, none of them can
	// end the cool-down early.
	CooldownFail
)

// MarshalText returns the text of c, for JSON and logs.
func (c Cooldown) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// String returns "send", "wait" or "fail".
func (c Cooldown) String() string {
	switch c {
	case CooldownSend:
		return "send"
	case CooldownWait:
		return "wait"
	case CooldownFail:
		return "fail"
	default:
		return fmt.Sprintf("Cooldown(%d)", uint8(c))
	}
}

func (c Cooldown) problem() error {
	if c > CooldownFail {
		return fielderr.New(c, "CooldownSend, CooldownWait or CooldownFail")
	}
	return nil
}

// CooldownError is the error of a request or a retry that was not sent because
// its host is cooling down. It is wrapped in an [*Error].
type CooldownError struct {
	_ [0]func() // no unkeyed literals, no comparison

	Origin string    // of the request's URL: see the function Origin
	Until  time.Time // when the cool-down ends, at most an hour ahead
}

// Error returns a text with the origin and the time.
func (e *CooldownError) Error() string {
	return fmt.Sprintf(
		"%s asked for a pause until %s", redact.Origin(e.Origin), e.Until.Format(time.RFC3339))
}
