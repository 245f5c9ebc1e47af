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

// queue is a heap of events with four children to each node. That takes half
// as many cache misses as two, which is what the time of a large simulation is
// spent on.
type queue struct {
	events []event
	order  uint64
}

func (q *queue) push(at time.Duration, request int32, version uint32) {
	q.order++
	e := event{at, q.order, request, version}
	q.events = append(q.events, e)
	i := len(q.events) - 1
	// The event moves up until its parent is not later.
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(q.events[parent]) {
			break
		}
		q.events[i] = q.events[parent]
		i = parent
	}
	q.events[i] = e
}

// next returns when the next event happens, if there is one.
func (q *queue) next() (time.Duration, bool) {
	if len(q.events) == 0 {
		return 0, false
	}
	return q.events[0].at, true
}

func (q *queue) pop() event {
	first := q.events[0]
	last := len(q.events) - 1
	e := q.events[last]
	q.events = q.events[:last]
	// The last event moves down from the top until no child is earlier.
	i := 0
	for {
		child := 4*i + 1
		if child >= last {
			break
		}
		for c := child + 1; c < min(4*i+5, last); c++ {
			if q.events[c].before(q.events[child]) {
				child = c
			}
		}
		if !q.events[child].before(e) {
			break
		}
		q.events[i] = q.events[child]
		i = child
	}
	if last > 0 {
		q.events[i] = e
	}
	return first
}
