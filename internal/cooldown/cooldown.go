// Package cooldown remembers which hosts have asked for a pause, and until
// when.
//
// It knows keys and times. It does not know responses or policies, and it does
// not decide whether a request waits.
package cooldown

import (
	"container/list"
	"iter"
	"math"
	"math/rand/v2"
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
type Table struct {
	// when the last cool-down is over; nil: no host is cooling down
	latest      atomic.Pointer[time.Time]
	generations atomic.Uint64 // counts pauses that hosts ask for, and calls of Sleep
	hosts       hosttable.Table[host]

	sleeping atomic.Int64 // how many requests sleep
	queues   hosttable.Table[queue]
}

// host is the cool-down of one host.
type host struct {
	mu         sync.Mutex // guards all fields
	begun      time.Time
	until      time.Time
	spread     time.Duration
	generation uint64  // of the last pause that the host asked for
	places     uint64  // taken by requests that wait
	offset     float64 // of the first place

	waiters int           // requests that wait
	firsts  list.List     // when the requests arrived that wait for their first attempt
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

// Generation returns a number that grows with each pause that a host asks for
// and each call of Sleep. It returns 0 if no host is cooling down and no
// request sleeps. Then a successful request needs no other call.
func (t *Table) Generation() uint64 {
	if t.latest.Load() == nil && !t.AnySleeps() {
		return 0
	}
	return t.generations.Load()
}

// Active reports whether any host is cooling down. If none is any more, that is
// known to Generation from then on.
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
	// The previous cool-down is over, so a new one begins.
	if !h.until.After(now) {
		h.begun, h.places, h.offset = now, 0, rand.Float64()
	}
	// A shorter wait does not end a longer one early.
	if until.After(h.until) {
		h.until, h.spread = until, spread
	}
	h.mu.Unlock()
	// Of two concurrent calls, the later end remains.
	for {
		latest := t.latest.Load()
		if latest != nil && !latest.Before(until) || t.latest.CompareAndSwap(latest, &until) {
			return
		}
	}
}

// Clear ends the cool-down of a host, because a request succeeded that was sent
// in the given generation. It does not end a cool-down that the host asked for
// after the request was sent.
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
type Waiter struct {
	host  *host
	first *list.Element // in host.firsts; nil if it is a retry
}

// Join returns the rest of a host's cool-down, and records that a request has
// been waiting for its end since it arrived. isFirst says that the request
// waits for its first attempt. Join may be called again while the request
// waits. Leave must be called at the end.
func (t *Table) Join(w *Waiter, key string, now, arrived time.Time, isFirst bool) Remaining {
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
		if isFirst {
			w.first = h.firsts.PushBack(arrived)
		}
	}
	if h.cleared == nil {
		h.cleared = make(chan struct{})
	}
	r.Cleared = h.cleared
	return r
}

// Leave notes that the request does not wait any more.
func (w *Waiter) Leave() {
	h := w.host
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.first != nil {
		h.firsts.Remove(w.first)
	}
	// A channel belongs to the bubble of testing/synctest in which it was made,
	// and a success in another one must not close it.
	if h.waiters--; h.waiters == 0 {
		h.cleared = nil
	}
	*w = Waiter{}
}

// Arrived returns the time at which the request arrived that has waited longest
// for its first attempt. It returns now if there is none.
func (w *Waiter) Arrived(now time.Time) time.Time {
	h := w.host
	if h == nil {
		return now
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if oldest := h.firsts.Front(); oldest != nil {
		return oldest.Value.(time.Time)
	}
	return now
}

// Place returns the place of one more request in the time after a host's
// cool-down over which the requests that have waited return. It is from 0 to 1.
// Places are multiples of the golden ratio modulo 1, from a random start. They
// are spread evenly over that time, whatever the number of requests.
// Independent random places would fill some seconds by a fifth more than
// others.
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
