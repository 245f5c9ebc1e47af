package httpretry

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/internal/cooldown"
)

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

// currentGeneration returns 0 if the host has no cool-down and no request to it
// sleeps. After a cool-down, it may still return another number (see
// Table.Generation).
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

// noteSuccess ends the host's cool-down if the last attempt was sent after the
// cool-down began. It also ends the long backoff of another request.
func (h *hostCooldown) noteSuccess() {
	// If generation is 0, the host had no cool-down and no request to it slept
	// when the attempt was sent.
	if h.generation == 0 {
		return
	}
	now := time.Now()
	if h.isActive(now) || h.table.AnySleeps(h.origin) {
		h.table.Clear(h.tableKey(), now, h.generation)
		h.table.Wake(h.tableKey(), h.generation)
	}
}

// addSleeper records that the request sleeps in a long backoff, and returns a
// channel that is closed when a success wakes it.
func (h *hostCooldown) addSleeper(sleeper *cooldown.Sleeper) (awake <-chan struct{}) {
	return h.table.Sleep(sleeper, h.origin, h.tableKey())
}

// join records that the request has been waiting for the end of the cool-down
// since it arrived, and returns the rest of the cool-down.
func (h *hostCooldown) join(
	waiter *cooldown.Waiter, now, arrived, latest time.Time, isFirst bool,
) cooldown.Remaining {
	return h.table.Join(waiter, h.tableKey(), now, arrived, latest, isFirst)
}
