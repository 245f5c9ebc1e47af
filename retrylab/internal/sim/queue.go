package sim

import "time"

// An event is something that will happen to a request.
type event struct {
	at      time.Duration
	order   uint64 // events at the same time happen in the order of their making
	request int32
	version uint32 // of the request; if it has changed, the event is void
}

func (e event) before(f event) bool {
	return e.at < f.at || e.at == f.at && e.order < f.order
}

// queue has events in the order of time.
//
// Most events are ends of attempts, which are added in the order of time:
// timeouts, because all are equally long, and answers, because a server answers
// one request after another. They are in lanes, which need no sorting. All
// other events are in a heap, which then is small enough for a processor's
// cache.
type queue struct {
	lanes [lanes]lane
	rest  heap
	order uint64
}

// The lanes of a queue. An event that is earlier than the last one in its lane
// goes to the heap, so a wrong lane costs only time.
const (
	answers = iota
	timeouts
	lanes
	noLane
)

// push adds an event. It adds it to the given lane if it is the last there.
func (q *queue) push(which int, at time.Duration, request int32, version uint32) {
	q.order++
	e := event{at, q.order, request, version}
	if which == noLane || !q.lanes[which].add(e) {
		q.rest.push(e)
	}
}

// next returns when the next event happens, if there is one.
func (q *queue) next() (time.Duration, bool) {
	e, _, ok := q.first()
	return e.at, ok
}

// pop removes the next event. There must be one.
func (q *queue) pop() event {
	e, which, _ := q.first()
	if which == noLane {
		return q.rest.pop()
	}
	q.lanes[which].done++
	return e
}

// first returns the next event and its lane.
func (q *queue) first() (first event, which int, ok bool) {
	which = noLane
	if len(q.rest) > 0 {
		first, ok = q.rest[0], true
	}
	for i := range q.lanes {
		if l := &q.lanes[i]; len(l.events) > l.done && (!ok || l.events[l.done].before(first)) {
			first, which, ok = l.events[l.done], i, true
		}
	}
	return first, which, ok
}

// lane has events that were added in the order of time.
type lane struct {
	events []event
	done   int // how many of events have happened
}

// add adds e and reports whether it is in the order of time.
func (l *lane) add(e event) bool {
	if n := len(l.events); n > l.done && e.at < l.events[n-1].at {
		return false
	}
	// Those that are done make room before the slice grows.
	if len(l.events) == cap(l.events) && l.done > len(l.events)/2 {
		l.events, l.done = l.events[:copy(l.events, l.events[l.done:])], 0
	}
	l.events = append(l.events, e)
	return true
}

// heap has four children to each node. That takes half as many cache misses as
// two.
type heap []event

func (h *heap) push(e event) {
	*h = append(*h, e)
	events := *h
	i := len(events) - 1
	// The event moves up until its parent is not later.
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(events[parent]) {
			break
		}
		events[i] = events[parent]
		i = parent
	}
	events[i] = e
}

func (h *heap) pop() event {
	events := *h
	first := events[0]
	last := len(events) - 1
	e := events[last]
	events = events[:last]
	*h = events
	// The last event moves down from the top until no child is earlier.
	i := 0
	for {
		child := 4*i + 1
		if child >= last {
			break
		}
		for c := child + 1; c < min(4*i+5, last); c++ {
			if events[c].before(events[child]) {
				child = c
			}
		}
		if !events[child].before(e) {
			break
		}
		events[i] = events[child]
		i = child
	}
	if last > 0 {
		events[i] = e
	}
	return first
}
