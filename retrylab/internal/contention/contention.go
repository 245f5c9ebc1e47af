// Package contention is the experiment of Marc Brooker, "Exponential Backoff
// And Jitter", AWS Architecture Blog, 2015: clients that change one row with
// optimistic concurrency control.
package contention

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"time"

	"github.com/seed421102f4/httpretry/strategies"
)

// A Network is the delay of each message, which has a normal distribution. A
// negative delay counts as its absolute value.
type Network struct {
	Mean, Deviation time.Duration
}

// A Result has the calls and the time that clients needed until each of them
// had made its change.
type Result struct {
	Calls int           // writes that the server got
	Time  time.Duration // until the last change
}

// step is the next step of a client.
type step uint8

const (
	read       step = iota // its read reaches the server
	write                  // its write reaches the server
	tryAgain               // the refusal of its write reaches the client
	beginWrite             // the answer to its read reaches the client
)

type client struct {
	version int
	waits   strategies.Sequence
}

type message struct {
	at     time.Duration
	order  int
	client int
	step   step
}

type messages []message

func (m messages) Len() int      { return len(m) }
func (m messages) Swap(i, j int) { m[i], m[j] = m[j], m[i] }
func (m *messages) Push(x any)   { *m = append(*m, x.(message)) }
func (m messages) Less(i, j int) bool {
	return m[i].at < m[j].at || m[i].at == m[j].at && m[i].order < m[j].order
}

func (m *messages) Pop() any {
	last := len(*m) - 1
	x := (*m)[last]
	*m = (*m)[:last]
	return x
}

// Run lets clients read the row and write it, all at once. A write that does
// not follow the latest change is refused, and the client reads again after
// the wait of its strategy. A nil strategy does not wait.
func Run(clients int, s strategies.Strategy, network Network, random *rand.Rand) Result {
	all := make([]client, clients)
	var queue messages
	order := 0
	delay := func() time.Duration {
		d := random.NormFloat64()*float64(network.Deviation) + float64(network.Mean)
		return time.Duration(math.Abs(d))
	}
	send := func(at time.Duration, c int, next step) {
		order++
		heap.Push(&queue, message{at, order, c, next})
	}
	for i := range all {
		send(delay(), i, read)
	}
	var result Result
	version := 0
	for len(queue) > 0 {
		m := heap.Pop(&queue).(message)
		c := &all[m.client]
		switch m.step {
		case read:
			c.version = version
			send(m.at+delay(), m.client, beginWrite)
		case beginWrite:
			send(m.at+delay(), m.client, write)
		case write:
			result.Calls++
			// Another client has changed the row since this one read it.
			if c.version != version {
				send(m.at+delay(), m.client, tryAgain)
				continue
			}
			version++
			result.Time = m.at + delay()
		case tryAgain:
			send(m.at+c.wait(s)+delay(), m.client, read)
		}
	}
	return result
}

func (c *client) wait(s strategies.Strategy) time.Duration {
	if s == nil {
		return 0
	}
	if c.waits == nil {
		c.waits = s.Start()
	}
	return c.waits()
}
