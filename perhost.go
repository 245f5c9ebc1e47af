package httpretry

import (
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"sync/atomic"
)

// maxHosts is the most hosts that a perHost remembers. Hosts may come from redirects and from user input, so whatever
// is kept for each of them needs a bound.
const maxHosts = 1024

// A perHost keeps one T for each host, for the maxHosts hosts that were used last. The zero value is empty and ready.
// It is safe for concurrent use; what a T does under concurrency is T's own affair.
//
// Finding a host takes no lock, allocates nothing and, as long as no host is added, writes nothing, so that cores which
// use the same hosts do not fight over a cache line. Adding a host takes a lock and, once the table is full, a walk
// through all of it. That is the balance wanted: a sync.Map takes about twice as long to find a host and has nothing to
// evict by, and copying a map for each addition takes about three times as long as the walk.
type perHost[T any] struct {
	mu    sync.Mutex                   // held to add and to evict
	table atomic.Pointer[hostTable[T]] // nil until the first host is added; does not change after that
}

// A hostTable is a hash table of fixed size. Entries of one slot form a list; readers walk it without a lock.
type hostTable[T any] struct {
	seed  maphash.Seed // its own, so that nobody can choose hosts that all fall into one slot
	len   int          // guarded by perHost.mu
	turn  atomic.Uint64
	slots [maxHosts]atomic.Pointer[hostEntry[T]]
}

type hostEntry[T any] struct {
	next atomic.Pointer[hostEntry[T]]
	hash uint64
	host string

	// used is the table's turn when the host was last used. A turn lasts from one addition to the next, and a reader
	// stores it only if it differs: recency to that grain is all that eviction needs, and costs a write only after an
	// addition.
	used  atomic.Uint64
	value T
}

// get returns host's value and counts as a use of it. A host that is not there is added; its value, zero until then, is
// passed to open, which runs under the lock and must not use the perHost. To make room, the host least recently used is
// dropped: goroutines that still hold its value go on with it, but nobody will find it again.
func (p *perHost[T]) get(host string, open func(*T)) *T {
	if t := p.table.Load(); t != nil {
		if e := t.find(host, maphash.String(t.seed, host)); e != nil {
			if turn := t.turn.Load(); e.used.Load() != turn {
				e.used.Store(turn)
			}
			return &e.value
		}
	}
	return p.add(host, open)
}

// peek returns host's value, nil if it has none. It changes nothing and does not count as a use.
func (p *perHost[T]) peek(host string) *T {
	if t := p.table.Load(); t != nil {
		if e := t.find(host, maphash.String(t.seed, host)); e != nil {
			return &e.value
		}
	}
	return nil
}

// add is the slow half of get.
func (p *perHost[T]) add(host string, open func(*T)) *T {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.table.Load()
	if t == nil {
		t = &hostTable[T]{seed: maphash.MakeSeed()}
		p.table.Store(t)
	}
	hash := maphash.String(t.seed, host)
	if e := t.find(host, hash); e != nil {
		return &e.value // another goroutine was faster
	}
	// The copy of host keeps no request's whole URL in memory.
	e := &hostEntry[T]{hash: hash, host: strings.Clone(host)}
	open(&e.value)
	if t.len == maxHosts {
		t.evict()
	}
	e.used.Store(t.turn.Add(1))
	slot := &t.slots[hash%maxHosts]
	e.next.Store(slot.Load())
	slot.Store(e) // only now can readers see e, and they see all of it
	t.len++
	return &e.value
}

func (t *hostTable[T]) find(host string, hash uint64) *hostEntry[T] {
	e := t.slots[hash%maxHosts].Load()
	for e != nil && (e.hash != hash || e.host != host) {
		e = e.next.Load()
	}
	return e
}

// evict unlinks the entry least recently used. Its next stays as it is: a reader that stands on it still reaches the
// rest of the list. perHost.mu is held.
func (t *hostTable[T]) evict() {
	var oldest *atomic.Pointer[hostEntry[T]] // what points to the entry
	least := uint64(math.MaxUint64)
	for i := range t.slots {
		link := &t.slots[i]
		for e := link.Load(); e != nil; e = link.Load() {
			if used := e.used.Load(); used < least {
				oldest, least = link, used
			}
			link = &e.next
		}
	}
	oldest.Store(oldest.Load().next.Load())
	t.len--
}
