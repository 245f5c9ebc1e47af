package redisbudget

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// chunk is the number of hosts in one pipeline.
	chunk = 128

	// restAfter is the number of turns without anything to report after which
	// a host leaves the list.
	restAfter = 100

	// crowd is the number of hosts from which on a host leaves the list after
	// one such turn. New hosts may come faster than they rest.
	crowd = maxHosts

	// maxReport is the maximum number of hosts in a report. The counts of
	// others are lost, so that the list does not grow while a report is sent.
	maxReport = 4 * crowd
)

// A list has the hosts that have something to report, or had so lately. Hosts
// are added without a lock, and taken by one goroutine.
type list struct {
	added atomic.Pointer[host]
	count atomic.Uint64 // of all that were ever added
	hosts []*host
}

// notify wakes up the receiver of c, which has a buffer of one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// activate adds h to the list. It comes after a change of the counts of h, and
// prune looks at them after it has cleared listed, so no count is missed.
func (b *Budget) activate(h *host) {
	if h.listed.Load() {
		return
	}
	// Once listed is set, successes of other goroutines rely on since.
	now := b.now()
	if !h.listed.CompareAndSwap(false, true) {
		return
	}
	h.since.Store(int64(now))
	for {
		next := b.active.added.Load()
		h.next = next
		if b.active.added.CompareAndSwap(next, h) {
			break
		}
	}
	notify(b.wake)
	if b.active.count.Add(1)%crowd == 0 {
		notify(b.full)
	}
}

// takeAdded moves the hosts that were added.
func (l *list) takeAdded() {
	for h := l.added.Swap(nil); h != nil; {
		next := h.next
		l.hosts = append(l.hosts, h)
		h = next
	}
}

// run is the goroutine of a Budget.
func (b *Budget) run(ctx context.Context) {
	// A ticker from whose channel no goroutine receives costs nothing.
	flushes, probes := time.NewTicker(b.flushInterval), time.NewTicker(minProbe)
	defer flushes.Stop()
	defer probes.Stop()
	for {
		rested := len(b.active.hosts) == 0
		b.active.takeAdded()
		tick := flushes.C
		switch {
		case b.state.load() != shared:
			tick = probes.C
		case len(b.active.hosts) == 0:
			tick = nil
		case rested:
			// A tick of the rest may be due, which would report the first of many
			// counts alone.
			flushes.Reset(b.flushInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
			continue
		case <-b.full:
		case <-tick:
		}
		switch b.state.load() {
		case shared:
			// The error is in the log.
			_ = b.flush(false)
		case local:
			// Counts of the meantime are lost, so that they do not count later
			// than they happened.
			b.collect(false)
			b.probe(ctx)
		case closed:
			// Close sends the last report.
		}
	}
}

// collect returns the requests to send. If final is true, or if there are too
// many hosts, all leases end.
func (b *Budget) collect(final bool) []request {
	b.active.takeAdded()
	var requests []request
	final = final || len(b.active.hosts) > crowd
	now := b.now()
	for _, h := range b.active.hosts {
		l := h.lease.Load()
		if l != nil && (final || l.ends <= now) && h.lease.CompareAndSwap(l, nil) {
			h.refunds.Add(l.close())
		}
		h.resting++
		if r := b.report(h); r.successes > 0 || r.refunds > 0 || r.helped > 0 {
			h.resting = 0
			if len(requests) < maxReport {
				requests = append(requests, r)
			}
		}
	}
	b.prune()
	return requests
}

// prune removes hosts from the list that have had nothing to report for a
// while. Budget.hosts may have forgotten them already.
func (b *Budget) prune() {
	rest := restAfter
	if len(b.active.hosts) > crowd {
		rest = 1
	}
	var busy []*host
	b.active.hosts = slices.DeleteFunc(b.active.hosts, func(h *host) bool {
		if h.resting < rest || h.lease.Load() != nil {
			return false
		}
		h.resting = 0
		h.listed.Store(false)
		if h.counted() || h.lease.Load() != nil {
			busy = append(busy, h)
		}
		return true
	})
	for _, h := range busy {
		b.activate(h)
	}
}

// report takes the counts of h.
func (b *Budget) report(h *host) request {
	h.mu.Lock()
	defer h.mu.Unlock()
	// The clock is read before the counts are taken. Successes after that are in
	// the next report, and not older than now.
	now := b.now()
	r := request{key: h.key, successes: h.successes.Swap(0), refunds: h.refunds.Swap(0), helped: h.helped.Swap(0)}
	// The report may arrive as late as the timeout allows. A host that becomes
	// active now may have a since that is later than now.
	r.age = max(now-time.Duration(h.since.Swap(int64(now))), 0) + b.timeout
	return r
}

// flush sends the requests of a report, until one fails. If final is true, all
// leases end.
func (b *Budget) flush(final bool) error {
	began := b.now()
	for some := range slices.Chunk(b.collect(final), chunk) {
		ctx, cancel := context.WithTimeout(context.Background(), b.timeout)
		// Successes become older while the chunks before this one are sent.
		late := b.now() - began
		for i := range some {
			some[i].age += late
		}
		_, err := b.exchange(ctx, some)
		cancel()
		if err != nil {
			b.fail(some[0].key, err)
			return err
		}
	}
	return nil
}
