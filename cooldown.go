package httpretry

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/internal/cooldown"
	"github.com/seed421102f4/httpretry/internal/fielderr"
	"github.com/seed421102f4/httpretry/internal/redact"
)

// Cooldown determines what the first attempt of a request does while its host
// is cooling down. Retries always wait. If that would take longer than
// Policy.MaxRetryAfter, MaxElapsed or the deadline allows, the request ends.
//
// A host cools down if it answers 429 (Too Many Requests) or 503 (Service
// Unavailable) and asks for a wait (see [RetryAfter]). A 403 counts, too, if
// Policy.Classify does not return Final for it. The cool-down lasts as long as
// the server asks, at most one hour. It ends early if an attempt that began
// after the last such answer gets a Final response below 400. It applies to all
// requests of a RetryTransport to the same [Origin], or to those with the same
// [Policy.CooldownKey], whatever their policies. The 1024 latest cool-downs are
// kept. See docs/choosing.md.
type Cooldown uint8

const (
	// CooldownSend sends the first attempt.
	CooldownSend Cooldown = iota
	// CooldownWait makes the first attempt wait. After the cool-down, it waits
	// again, for a random time from half of the first wait to all of it.
	// Policy.MaxRetryAfter, Policy.MaxElapsed and the deadline limit the sum. If
	// the cool-down alone would last longer, the request fails as with
	// CooldownFail. It is for limits of this client, such as a quota. If a host
	// sheds load at random and all its clients wait, the host is idle.
	CooldownWait
	// CooldownFail makes the request fail at once with a [*CooldownError]. If no
	// request to the host uses CooldownSend, none can end the cool-down early.
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

// CooldownError is the error of a request that a cool-down of its host ended
// before its first attempt or in a wait. It is wrapped in an [*Error].
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

// hostCooldown is the cool-down that concerns a request: that of its host, or
// that of a part of it, which Policy.CooldownKey names.
type hostCooldown struct {
	table  *cooldown.Table            // of the transport
	origin string                     // of the request's URL
	quiet  *cooldown.Quiet            // of origin; nil while a body is resumed
	req    *http.Request              // call.caller.req
	partOf func(*http.Request) string // CooldownKey, or nil

	key        string // in table, "" until it is needed
	generation uint64 // of table, before the last attempt
}

// currentGeneration returns 0 if the host has no cool-down. After a cool-down,
// it may still return another number (see Table.Generation).
func (h *hostCooldown) currentGeneration() uint64 {
	quiet := h.quiet
	if quiet == nil {
		quiet = new(cooldown.Quiet)
	}
	if h.table.IsQuiet(quiet) {
		return 0
	}
	return h.table.Generation(h.origin, quiet)
}

// isActive reports whether the host, or any part of it, is cooling down.
func (h *hostCooldown) isActive(now time.Time) bool { return h.table.Active(h.origin, now) }

// remaining returns the rest of the cool-down.
func (h *hostCooldown) remaining(now time.Time) cooldown.Remaining {
	if h.isActive(now) {
		return h.table.Remaining(h.tableKey(), now)
	}
	return cooldown.Remaining{}
}

// tableKey returns the key of the cool-down in the table. Only a hash of a
// CooldownKey is kept, because it may be a credential.
func (h *hostCooldown) tableKey() string {
	if h.key == "" {
		// Without a CooldownKey, the key is the origin.
		h.key = h.origin
		if h.partOf != nil {
			if part := h.partOf(h.req); part != "" {
				sum := sha256.Sum256([]byte(part))
				h.key = partKey(h.origin, sum)
			}
		}
	}
	return h.key
}

// partKey returns the key of the cool-down for a part of an origin. No other
// origin begins with a space, since no scheme of net/http does.
func partKey(origin string, sum [sha256.Size]byte) string {
	return " " + string(sum[:]) + origin
}

// originOf returns the origin in the key of a cool-down.
func originOf(key string) string {
	if strings.HasPrefix(key, " ") && len(key) > sha256.Size {
		return key[1+sha256.Size:]
	}
	return key
}

// begin begins the cool-down that a response asks for.
func (h *hostCooldown) begin(asked, spread time.Duration) {
	h.table.Begin(h.origin, h.tableKey(), time.Now(), asked, spread)
}

// endEarly ends the host's cool-down if the last attempt was sent after the
// cool-down began.
func (h *hostCooldown) endEarly() {
	// If generation is 0, the host had no cool-down when the attempt was sent.
	if h.generation > 0 && h.isActive(time.Now()) {
		h.table.Clear(h.tableKey(), h.generation)
	}
}

// join records that the request waits for the end of the cool-down, and returns
// the rest of it.
func (h *hostCooldown) join(waiter *cooldown.Waiter, now time.Time) cooldown.Remaining {
	return h.table.Join(waiter, h.tableKey(), now)
}
