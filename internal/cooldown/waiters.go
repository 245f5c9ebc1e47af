package cooldown

import (
	"container/list"
	"math"
	"math/rand/v2"
	"time"
)

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
