// Package hosttable provides Table, a map from hosts to state. Hosts can come
// from redirects and from user input, so a Table is bounded in entries and in
// bytes.
//
// The package knows when a host was last used, and nothing else about it. It
// compares hosts byte by byte. Callers pass each host in one canonical form,
// and make their values safe for concurrent use.
package hosttable

import (
	"hash/maphash"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// MaxEntries is the maximum number of entries in a [Table].
	MaxEntries = 1024

	// MaxNameLen is the length in bytes of the longest host that has an entry
	// of its own. All longer hosts share one entry.
	MaxNameLen = 512

	// sharedName is the name of the entry for longer hosts. No valid host
	// contains a space.
	sharedName = "(name too long)"
)

// A Table holds one T per host, for the [MaxEntries] hosts that were used last.
// Hosts longer than [MaxNameLen] bytes share one entry. The zero value is empty
// and ready to use. A Table is safe for concurrent use, but it does not
// synchronize access to the values. A Table must not be copied after first use.
//
// Looking up a host takes no lock and allocates nothing. It writes only at the
// first use of that host since any host was added. So while no host is added,
// goroutines that use the same hosts do not contend for a cache line.
//
// Adding a host takes a lock. If the table is full, it also visits all entries,
// which is fast beside the new connection that the host needs.
type Table[T any] struct {
	mu sync.Mutex // held while a host is added

	// table is nil until the first host is added, and constant after that.
	table atomic.Pointer[hashTable[T]]

	// newest is the entry that was added last.
	newest atomic.Pointer[Entry[T]]
}

// A hashTable has a fixed number of buckets. The entries of one bucket form a
// linked list, which readers follow without a lock.
type hashTable[T any] struct {
	// seed is random, so that an attacker cannot choose hosts that share a
	// bucket.
	seed maphash.Seed

	entries    []*Entry[T] // all, guarded by Table.mu
	generation atomic.Uint64
	buckets    [MaxEntries]atomic.Pointer[Entry[T]]
}

// An Entry is a host of a [Table] and its value. Whoever keeps it can use the
// host again without looking it up.
type Entry[T any] struct {
	// Value is the value of the host.
	Value T

	// The rest is constant but for next, lastUsed and evicted.
	table *hashTable[T]
	next  atomic.Pointer[Entry[T]]
	hash  uint64
	host  string

	// lastUsed is the generation in which the host was last used. A generation
	// lasts from one addition to the next. Eviction needs no finer order, and
	// lookups in the same generation write only once.
	lastUsed atomic.Uint64
	evicted  atomic.Bool
}

// Use records that the host was used, and reports whether the table still holds
// e. If it does not, the host may have another Entry.
func (e *Entry[T]) Use() bool {
	e.table.markUsed(e)
	return !e.evicted.Load()
}

// Get returns the value of host and records that host was used. If the table
// has no such host, Get adds it with a zero value, and calls init if it is not
// nil to initialize that value. Get holds a lock while init runs, so init must
// not use the table. If init panics, the table remains as it was.
//
// If the table is full, Get evicts the host that was least recently used.
// Pointers to an evicted value remain valid, but the next Get for that host
// creates a new value.
func (t *Table[T]) Get(host string, init func(*T)) *T {
	// Many clients have one host, and comparing it is faster than hashing it.
	// It need not be marked as used, since none was used in a later generation.
	if e := t.newest.Load(); e != nil && e.host == host {
		return &e.Value
	}
	return &t.Entry(host, init).Value
}

// Entry is like Get, but returns the Entry of host.
func (t *Table[T]) Entry(host string, init func(*T)) *Entry[T] {
	host = boundedName(host)
	if e := t.lookUp(host); e != nil {
		e.table.markUsed(e)
		return e
	}
	return t.add(host, init)
}

// Peek returns the value of host, or nil if the table has no such host. It does
// not count as a use of host.
func (t *Table[T]) Peek(host string) *T {
	if e := t.lookUp(boundedName(host)); e != nil {
		return &e.Value
	}
	return nil
}

// All returns the hosts and their values, in no particular order. It takes no
// lock. Hosts that are added or evicted meanwhile may be missing.
func (t *Table[T]) All() iter.Seq2[string, *T] {
	return func(yield func(string, *T) bool) {
		table := t.table.Load()
		if table == nil {
			return
		}
		for i := range table.buckets {
			for e := table.buckets[i].Load(); e != nil; e = e.next.Load() {
				if !yield(e.host, &e.Value) {
					return
				}
			}
		}
	}
}

// boundedName returns the name of host's entry.
func boundedName(host string) string {
	if len(host) > MaxNameLen {
		return sharedName
	}
	return host
}

// add is the slow path of Entry.
func (t *Table[T]) add(host string, init func(*T)) *Entry[T] {
	t.mu.Lock()
	defer t.mu.Unlock()
	table := t.table.Load()
	if table == nil {
		table = &hashTable[T]{seed: maphash.MakeSeed()}
		t.table.Store(table)
	}
	hash := maphash.String(table.seed, host)
	// Another goroutine may have added host since Get looked.
	if e := table.find(host, hash); e != nil {
		return e
	}
	// A clone of host does not keep the whole URL in memory that host may be a
	// part of.
	e := &Entry[T]{table: table, hash: hash, host: strings.Clone(host)}
	// init runs before the table changes, because it may panic.
	if init != nil {
		init(&e.Value)
	}
	// With this order, no entry is used in a later generation than the newest.
	t.newest.Store(e)
	table.insert(e)
	return e
}

// lookUp returns the entry of host, or nil if there is none.
func (t *Table[T]) lookUp(host string) *Entry[T] {
	if table := t.table.Load(); table != nil {
		return table.find(host, maphash.String(table.seed, host))
	}
	return nil
}

// find returns the entry of host, whose hash is hash, or nil if there is none.
func (t *hashTable[T]) find(host string, hash uint64) *Entry[T] {
	e := t.buckets[hash%MaxEntries].Load()
	for e != nil && (e.hash != hash || e.host != host) {
		e = e.next.Load()
	}
	return e
}

// markUsed records that e was used in this generation. If a goroutine that was
// interrupted stores an earlier one, the entry may be evicted a little early.
func (t *hashTable[T]) markUsed(e *Entry[T]) {
	// Storing an equal value would still take the cache line from other
	// processors.
	if now := t.generation.Load(); e.lastUsed.Load() < now {
		e.lastUsed.Store(now)
	}
}

// insert begins a generation and adds e. If t is full, it evicts the least
// recently used entry. Table.mu is held.
func (t *hashTable[T]) insert(e *Entry[T]) {
	e.lastUsed.Store(t.generation.Add(1))
	if len(t.entries) == MaxEntries {
		t.evictOldest()
	}
	t.entries = append(t.entries, e)
	head := &t.buckets[e.hash%MaxEntries]
	e.next.Store(head.Load())
	// The entry is complete before readers can see it.
	head.Store(e)
}

// evictOldest evicts the least recently used entry. Table.mu is held.
func (t *hashTable[T]) evictOldest() {
	oldest := 0
	for i, e := range t.entries {
		if e.lastUsed.Load() < t.entries[oldest].lastUsed.Load() {
			oldest = i
		}
	}
	e := t.entries[oldest]
	t.entries = slices.Delete(t.entries, oldest, oldest+1)
	link := &t.buckets[e.hash%MaxEntries]
	for link.Load() != e {
		link = &link.Load().next
	}
	// e.next does not change, so a reader that is at e still reaches the rest
	// of the list.
	link.Store(e.next.Load())
	e.evicted.Store(true)
}
