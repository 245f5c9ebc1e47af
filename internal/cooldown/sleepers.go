package cooldown

import (
	"container/list"
	"sync"
)

// Sleeper is a request that sleeps in a long backoff. Its zero value is ready
// for Sleep. Only the goroutine of the request calls Leave.
type Sleeper struct {
	table *Table
	queue *queue
	awake chan struct{}

	// Guarded by queue.mu.
	generation uint64        // in which it fell asleep
	place      *list.Element // in queue.sleepers; nil once it does not sleep any more
}

// queue has the sleepers of one host, in the order in which they fell asleep.
type queue struct {
	mu       sync.Mutex
	sleepers list.List
}

// Sleep adds s to the sleepers of a host, and returns a channel that Wake
// closes. Leave must be called at the end.
func (t *Table) Sleep(s *Sleeper, key string) <-chan struct{} {
	s.table, s.queue, s.awake = t, t.queues.Get(key, nil), make(chan struct{})
	t.sleeping.Add(1)
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	s.generation = t.generations.Add(1)
	s.place = s.queue.sleepers.PushBack(s)
	return s.awake
}

// Leave removes s, unless Wake has.
func (s *Sleeper) Leave() {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	s.remove()
}

// remove removes s once. The mutex of its queue is held.
func (s *Sleeper) remove() {
	if s.place != nil {
		s.queue.sleepers.Remove(s.place)
		s.place = nil
		s.table.sleeping.Add(-1)
	}
}

// AnySleeps reports whether any request sleeps.
func (t *Table) AnySleeps() bool { return t.sleeping.Load() > 0 }

// Wake wakes the request to a host that has slept longest, because a request
// succeeded that was sent in the given generation. It wakes none that fell
// asleep later. Since each success wakes one, a host that is up again gets no
// more requests at once than it can answer.
func (t *Table) Wake(key string, generation uint64) {
	q := t.queues.Peek(key)
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if oldest := q.sleepers.Front(); oldest != nil {
		if s := oldest.Value.(*Sleeper); s.generation <= generation {
			s.remove()
			close(s.awake)
		}
	}
}
