package redisbudget

import (
	"strings"
	"sync"
	"sync/atomic"
)

// Hosts can come from redirects and from user input, so a Budget keeps the
// state of a bounded number of them.
const (
	maxHosts   = 1024
	maxNameLen = 512 // in bytes; Budget.host shortens longer names
)

// hosts has the state of the maxHosts hosts that were used last. The zero value
// is empty.
//
// The core has a table of hosts, too, but in an internal package. That package
// can change with any version of the core, and this module has versions of its
// own. For the same reason, this module uses no other internal package of the
// core.
type hosts struct {
	byName sync.Map // from string to *host
	added  atomic.Int64

	mu  sync.Mutex // held while a host is added
	all []*host    // those of byName
}

// get returns the state of the host with a name. It takes no lock and allocates
// nothing, except for a host that is not there. It adds that one, with the
// result of key.
func (t *hosts) get(name string, key func(name string) string) *host {
	h, ok := t.byName.Load(name)
	if !ok {
		return t.add(name, key(name))
	}
	found := h.(*host)
	found.markUsed(t.added.Load())
	return found
}

// markUsed records a use at a time in additions. The time never goes back,
// because a goroutine that was interrupted has an early one. Otherwise the
// next addition could forget a host that is in use.
func (h *host) markUsed(now int64) {
	for {
		used := h.used.Load()
		// Storing an equal value would take the cache line from other
		// processors.
		if used >= now || h.used.CompareAndSwap(used, now) {
			return
		}
	}
}

// add adds a host. If there are maxHosts, it forgets the one that was least
// recently used. Whoever still has that one may use it.
func (t *hosts) add(name, key string) *host {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Another goroutine may have been faster.
	if h, ok := t.byName.Load(name); ok {
		return h.(*host)
	}
	// A clone does not keep the URL in memory that the name may be a part of.
	h := &host{name: strings.Clone(name), key: key}
	h.used.Store(t.added.Add(1))
	if len(t.all) < maxHosts {
		t.all = append(t.all, h)
	} else {
		// Looking at all of them takes less time than a request.
		oldest := 0
		for i, other := range t.all {
			if other.used.Load() < t.all[oldest].used.Load() {
				oldest = i
			}
		}
		t.byName.Delete(t.all[oldest].name)
		t.all[oldest] = h
	}
	t.byName.Store(h.name, h)
	return h
}
