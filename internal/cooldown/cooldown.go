// Package cooldown remembers which hosts have asked for a pause, and until
// when.
//
// It knows keys and times. It does not know responses, policies or what a
// request does while its host is cooling down.
package cooldown

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/internal/hosttable"
)

// MaxLength is the length of the longest cool-down. It bounds what one response
// can do to all other requests.
const MaxLength = time.Hour

// Table holds the cool-downs of hosts. Its zero value is empty and ready. It
// is safe for concurrent use.
type Table struct {
	latest      atomic.Pointer[time.Time] // when the last cool-down is over; nil: no host is cooling down
	generations atomic.Uint64             // how often hosts have asked for a pause
	hosts       hosttable.Table[host]
}

// host is the cool-down of one host.
type host struct {
	mu         sync.Mutex
	begun      time.Time
	until      time.Time
	spread     time.Duration
	generation uint64        // in which the host last asked
	cleared    chan struct{} // closed when a success ends the cool-down
	places     uint64        // taken by requests that wait
	offset     float64       // of the first place
}

// Remaining is what remains of a cool-down.
type Remaining struct {
	Wait    time.Duration   // 0: the host is not cooling down
	Until   time.Time       // when it ends
	Spread  time.Duration   // range of what a retry adds to Wait
	Length  time.Duration   // from its beginning to its end
	Cleared <-chan struct{} // closed when a success ends it early
}

// Generation returns how often hosts have asked for a pause, or 0 if none is
// cooling down. It is all that a successful request costs then.
func (t *Table) Generation() uint64 {
	if t.latest.Load() == nil {
		return 0
	}
	return t.generations.Load()
}

// Active reports whether any host is cooling down. If none is any more,
// Generation returns 0 from then on.
func (t *Table) Active(now time.Time) bool {
	latest := t.latest.Load()
	// If the swap fails, Begin has just started another cool-down.
	if latest != nil && !latest.After(now) && t.latest.CompareAndSwap(latest, nil) {
		return false
	}
	return latest != nil
}

// Begin notes that a host asked for a pause of the given length from now, and
// that its retries should return within spread after it. It never shortens a
// cool-down.
func (t *Table) Begin(key string, now time.Time, length, spread time.Duration) {
	until := now.Add(min(length, MaxLength))
	h := t.hosts.Get(key, nil)
	h.mu.Lock()
	// Each answer starts a generation, so that Clear knows which requests were
	// sent before it.
	h.generation = t.generations.Add(1)
	// The cool-down before is over: this is a new one, and not its extension.
	if !h.until.After(now) {
		h.begun, h.places, h.offset = now, 0, rand.Float64()
	}
	// A shorter wait does not end a longer one early.
	if until.After(h.until) {
		h.until, h.spread = until, spread
	}
	if h.cleared == nil {
		h.cleared = make(chan struct{})
	}
	h.mu.Unlock()
	// latest only grows, whichever of two concurrent calls comes first.
	for {
		latest := t.latest.Load()
		if latest != nil && !latest.Before(until) || t.latest.CompareAndSwap(latest, &until) {
			return
		}
	}
}

// Clear ends the cool-down of a host, because a request succeeded that was
// sent in the given generation. A host that has asked again since is not
// affected: the request was sent before that.
func (t *Table) Clear(key string, generation uint64) {
	h := t.hosts.Peek(key)
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.generation > generation || h.cleared == nil {
		return
	}
	h.until = time.Time{}
	close(h.cleared)
	h.cleared = nil
}

// Remaining returns what remains of a host's cool-down.
func (t *Table) Remaining(key string, now time.Time) Remaining {
	h := t.hosts.Peek(key)
	if h == nil {
		return Remaining{}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return Remaining{max(h.until.Sub(now), 0), h.until, h.spread, h.until.Sub(h.begun), h.cleared}
}

// Place returns the place, from 0 to 1, at which one more request that waits
// for a host is to return in the time after the cool-down. Places are spread
// evenly over that time however many requests there are: they are multiples of
// the golden ratio modulo 1, from a random start. Independent random places
// would fill some seconds by a fifth more than others.
func (t *Table) Place(key string) float64 {
	h := t.hosts.Peek(key)
	if h == nil {
		return rand.Float64()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.places++
	_, place := math.Modf(h.offset + float64(h.places)*math.Phi)
	return place
}
