package cooldown

import (
	"container/list"
	"sync"
	"sync/atomic"
)

// Sleeper is a request that sleeps in a long backoff. Its zero value is ready
// for Sleep. Only the goroutine of the request calls Leave.
type Sleeper struct {
	all         *sleepers
	origin, key string
	awake       chan struct{}

	// Guarded by all.mu.
	generation uint64        // in which it fell asleep
	element    *list.Element // of its queue; nil once it does not sleep any more
}

// sleepers are the requests that sleep. They are not in a hosttable.Table,
// because that forgets hosts. They take memory only while they sleep.
type sleepers struct {
	number atomic.Int64 // of all

	mu      sync.Mutex
	queues  map[string]*list.List // by key, in the order in which they fell asleep; none is empty
	origins map[string]int        // their number by origin; none is 0
}

// Sleep adds s to the sleepers of a host, and returns a channel that Wake
// closes. Leave must be called at the end.
func (t *Table) Sleep(s *Sleeper, origin, key string) <-chan struct{} {
	s.all, s.origin, s.key, s.awake = &t.sleepers, origin, key, make(chan struct{})
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.all.add(s)
	s.generation = t.generations.Add(1)
	return s.awake
}

// add adds s at the end of its queue. The mutex is held.
func (a *sleepers) add(s *Sleeper) {
	if a.queues == nil {
		a.queues, a.origins = make(map[string]*list.List), make(map[string]int)
	}
	q := a.queues[s.key]
	if q == nil {
		q = list.New()
		a.queues[s.key] = q
	}
	s.element = q.PushBack(s)
	a.origins[s.origin]++
	a.number.Add(1)
}

// remove removes s once. The mutex is held.
func (a *sleepers) remove(s *Sleeper) {
	if s.element == nil {
		return
	}
	q := a.queues[s.key]
	q.Remove(s.element)
	s.element = nil
	if q.Len() == 0 {
		delete(a.queues, s.key)
	}
	if a.origins[s.origin]--; a.origins[s.origin] == 0 {
		delete(a.origins, s.origin)
	}
	a.number.Add(-1)
}

// Leave removes s, unless Wake has.
func (s *Sleeper) Leave() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.all.remove(s)
}

// AnySleeps reports whether a request to origin sleeps.
func (t *Table) AnySleeps(origin string) bool {
	a := &t.sleepers
	// Most of the time, none sleeps, and no lock is needed.
	if a.number.Load() == 0 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.origins[origin] > 0
}

// Wake wakes the request to a host that has slept longest, because a request
// that was sent in the given generation succeeded. It wakes none that fell
// asleep later. Since each success wakes one, a host that is up again gets no
// more requests at once than it can answer.
func (t *Table) Wake(key string, generation uint64) {
	a := &t.sleepers
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.queues[key]
	if q == nil {
		return
	}
	if s := q.Front().Value.(*Sleeper); s.generation <= generation {
		a.remove(s)
		close(s.awake)
	}
}
