// Package cooldown remembers which hosts have asked for a pause, and until
// when.
//
// It knows keys and times. It does not know responses or policies, and it does
// not decide whether a request waits.
package cooldown

import (
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/internal/hosttable"
)

// MaxLength is the length of the longest cool-down. It bounds the effect of one
// response on all other requests.
const MaxLength = time.Hour

// Table holds the cool-downs of hosts. Its zero value is empty and ready. It
// is safe for concurrent use.
//
// Each cool-down has a key. That of the cool-down for a whole origin is the
// origin itself. Those for parts of it have other keys.
type Table struct {
	generations atomic.Uint64 // counts pauses that hosts ask for
	hosts       hosttable.Table[host]
}

// host is the cool-down with one key.
type host struct {
	mu         sync.Mutex // guards all fields
	begun      time.Time
	until      time.Time
	spread     time.Duration
	generation uint64    // of the last pause that the host asked for
	parts      time.Time // of an origin: when the last cool-down for a part of it is over

	waiters int           // requests that have joined
	cleared chan struct{} // closed when a success ends the cool-down; nil without waiters
}

// Remaining is the rest of a cool-down.
type Remaining struct {
	Wait   time.Duration // 0: the host is not cooling down
	Until  time.Time     // when it ends
	Spread time.Duration // a retry adds up to this to Wait
	Length time.Duration // from its beginning to its end

	// Cleared is closed when a success ends the cool-down early. Only Join
	// returns it.
	Cleared <-chan struct{}
}

// Quiet remembers the last generation in which an origin was found without a
// cool-down. Its zero value is ready. It belongs to one origin and one Table.
type Quiet struct{ generation atomic.Uint64 }

// IsQuiet reports whether Generation is known to return 0 for the origin of q.
// It is for successful requests, and takes no lookup.
func (t *Table) IsQuiet(q *Quiet) bool { return q.generation.Load() == t.generations.Load() }

// Generation returns a number that grows with each pause that a host asks for.
// It returns 0 if origin has no cool-down. Then a successful request needs no
// other call, and q remembers that. A cool-down that is over may count until
// Active is called, because Generation has no clock.
func (t *Table) Generation(origin string, q *Quiet) uint64 {
	generation := t.generations.Load()
	if t.isKnown(origin) {
		return generation
	}
	// Begin increases the number after its other changes. So q never hides a
	// change that was not visible above.
	q.generation.Store(generation)
	return 0
}

// isKnown reports whether origin has a cool-down that Active has not found to
// be over. It needs no clock.
func (t *Table) isKnown(origin string) bool {
	h := t.hosts.Peek(origin)
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.until.IsZero() || !h.parts.IsZero()
}

// Active reports whether origin or a part of it is cooling down. If it is not
// any more, that is known to Generation from then on.
func (t *Table) Active(origin string, now time.Time) bool {
	h := t.hosts.Peek(origin)
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, end := range []*time.Time{&h.until, &h.parts} {
		if !end.After(now) {
			*end = time.Time{}
		}
	}
	return !h.until.IsZero() || !h.parts.IsZero()
}

// Begin records that a host asked for a pause of the given length from now, and
// that its retries should return within spread after it. It never shortens a
// cool-down.
func (t *Table) Begin(origin, key string, now time.Time, length, spread time.Duration) {
	until := now.Add(min(length, MaxLength))
	h := t.hosts.Get(key, nil)
	if key != origin {
		t.noteParts(origin, until)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// The previous cool-down is over, so a new one begins.
	if !h.until.After(now) {
		h.begun = now
	}
	// A shorter wait does not end a longer one early.
	if until.After(h.until) {
		h.until, h.spread = until, spread
	}
	// Each answer starts a generation, so that Clear knows which requests were
	// sent before it.
	h.generation = t.generations.Add(1)
}

// noteParts records the end of a cool-down for a part of origin.
func (t *Table) noteParts(origin string, until time.Time) {
	// Get comes after that of the part, so the part is not evicted later.
	h := t.hosts.Get(origin, nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	if until.After(h.parts) {
		h.parts = until
	}
}

// Clear ends the cool-down of a host, because a request that was sent in the
// given generation succeeded. It does not end a cool-down that the host asked
// for after the request was sent.
func (t *Table) Clear(key string, generation uint64) {
	h := t.hosts.Peek(key)
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.generation > generation {
		return
	}
	h.until = time.Time{}
	if h.cleared != nil {
		close(h.cleared)
		h.cleared = nil
	}
}

// Remaining returns the rest of a host's cool-down.
func (t *Table) Remaining(key string, now time.Time) Remaining {
	h := t.hosts.Peek(key)
	if h == nil {
		return Remaining{}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.remaining(now)
}

// Ends returns the keys of all hosts that are cooling down, and when that ends.
func (t *Table) Ends(now time.Time) iter.Seq2[string, time.Time] {
	return func(yield func(string, time.Time) bool) {
		for key, h := range t.hosts.All() {
			h.mu.Lock()
			until := h.until
			h.mu.Unlock()
			if until.After(now) && !yield(key, until) {
				return
			}
		}
	}
}

func (h *host) remaining(now time.Time) Remaining {
	return Remaining{Wait: max(h.until.Sub(now), 0), Until: h.until, Spread: h.spread,
		Length: h.until.Sub(h.begun)}
}

// Waiter is a request that waits for the end of a host's cool-down. Its zero
// value is ready for Join. Only the goroutine of the request uses it.
type Waiter struct{ host *host }

// Join returns the rest of a host's cool-down, with the channel that is closed
// if it ends early. Join may be called again while the request waits. Leave
// must be called at the end.
func (t *Table) Join(w *Waiter, key string, now time.Time) Remaining {
	h := t.hosts.Peek(key)
	// The host may have been evicted, and have asked again since.
	if h != w.host {
		w.Leave()
	}
	if h == nil {
		return Remaining{}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.remaining(now)
	if r.Wait == 0 {
		return r
	}
	if w.host == nil {
		w.host = h
		h.waiters++
	}
	if h.cleared == nil {
		h.cleared = make(chan struct{})
	}
	r.Cleared = h.cleared
	return r
}

// Leave records that the request does not wait any more.
func (w *Waiter) Leave() {
	h := w.host
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// A channel belongs to the bubble of testing/synctest in which it was made,
	// and a success in another one must not close it.
	if h.waiters--; h.waiters == 0 {
		h.cleared = nil
	}
	w.host = nil
}
