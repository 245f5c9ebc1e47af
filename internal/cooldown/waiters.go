package cooldown

import (
	"cmp"
	"container/list"
	"math/rand/v2"
	"slices"
	"time"
)

// Waiter is a request that waits for the end of a host's cool-down. Its zero
// value is ready for Join. Only the goroutine of the request uses it.
type Waiter struct {
	host    *host
	element *list.Element // of host.firsts; nil if it is a retry

	// Set for a first attempt. Guarded by host.mu.
	arrived, latest time.Time
	turn            time.Time // after the last cool-down that has ended
}

// Join returns the rest of a host's cool-down, and records that a request has
// been waiting for its end since it arrived, and may wait until latest. isFirst
// says that the request waits for its first attempt. Join may be called again
// while the request waits. Leave must be called at the end.
func (t *Table) Join(
	w *Waiter, key string, now, arrived, latest time.Time, isFirst bool,
) Remaining {
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
		w.host, w.arrived, w.latest = h, arrived, latest
		h.waiters++
		if isFirst {
			w.element = h.firsts.PushBack(w)
		}
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
	if w.element != nil {
		h.firsts.Remove(w.element)
	}
	// A channel belongs to the bubble of testing/synctest in which it was made,
	// and a success in another one must not close it.
	if h.waiters--; h.waiters == 0 {
		h.cleared = nil
	}
	*w = Waiter{}
}

// Turn returns how much longer a first attempt waits after a cool-down has
// ended. It returns 0 if the turn of the request has come, or if the host is
// cooling down again. At the end of another cool-down, all requests that still
// wait get new turns, so Turn is called again after the wait.
func (w *Waiter) Turn(now time.Time) time.Duration {
	h := w.host
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until.After(now) {
		return 0
	}
	if !h.planned {
		h.plan()
	}
	return max(w.turn.Sub(now), 0)
}

// plan gives the requests that wait for their first attempt their turns after
// the end of a cool-down.
//
// The law: each request returns within as long again as it has waited, and in
// time for its own limit. The requests return in the order of these times, at
// the lowest rate that permits it. So requests that arrived at a steady rate
// return at that rate. A burst returns over the time for which it has waited.
// And no request is late because others have waited for longer.
func (h *host) plan() {
	h.planned = true
	waiters := make([]*Waiter, 0, h.firsts.Len())
	for e := h.firsts.Front(); e != nil; e = e.Next() {
		waiters = append(waiters, e.Value.(*Waiter))
	}
	slices.SortFunc(waiters, func(a, b *Waiter) int {
		return cmp.Compare(a.longest(h.end), b.longest(h.end))
	})
	// A random start keeps those of several processes from returning together.
	start, i, begin := rand.Float64(), 0, time.Duration(0)
	for _, s := range stretches(waiters, h.end) {
		for n := range s.requests {
			fraction := (float64(n) + start) / float64(s.requests)
			waiters[i].turn = h.end.Add(begin + time.Duration(fraction*float64(s.length)))
			i++
		}
		begin += s.length
	}
}

// longest returns the longest time for which w may wait after the end of a
// cool-down.
func (w *Waiter) longest(end time.Time) time.Duration {
	return max(min(end.Sub(w.arrived), w.latest.Sub(end)), 0)
}

// A stretch is a time in which requests return at a steady rate.
type stretch struct {
	requests int
	length   time.Duration
}

// stretches returns the stretches in which waiters, sorted by longest, return.
// The rate falls from each to the next.
func stretches(waiters []*Waiter, end time.Time) []stretch {
	var all []stretch
	before := time.Duration(0)
	for _, w := range waiters {
		longest := w.longest(end)
		next := stretch{1, longest - before}
		before = longest
		// A rate that rises is not the lowest. If some of the later requests
		// return earlier, the rate of both stretches is the same.
		for len(all) > 0 && all[len(all)-1].interval() >= next.interval() {
			last := all[len(all)-1]
			next.requests, next.length = next.requests+last.requests, next.length+last.length
			all = all[:len(all)-1]
		}
		all = append(all, next)
	}
	return all
}

// interval returns the time between two requests of s.
func (s stretch) interval() float64 { return float64(s.length) / float64(s.requests) }
