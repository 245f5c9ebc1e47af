// Package contention is the experiment of Marc Brooker, "Exponential Backoff
// And Jitter", AWS Architecture Blog, 2015: clients that change one row with
// optimistic concurrency control.
package contention

import (
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry/retrylab/internal/virtual"
	"github.com/seed421102f4/httpretry/strategies"
)

// A Network is the delay of each message, which has a normal distribution. A
// negative delay counts as its absolute value.
type Network struct {
	Mean, Deviation time.Duration
}

// tick is that of all times. The nanoseconds below it are the number of the
// client: see virtual.Ticking.
const tick = 10 * time.Microsecond

// A Result has the calls and the time that clients needed until each of them
// had made its change.
type Result struct {
	Calls int           // writes that the server got
	Time  time.Duration // until the last change
}

// Run lets clients read the row and write it, all at once. A write that does
// not follow the latest change is refused, and the client reads again after
// the wait of its strategy. A nil strategy does not wait. Run must be called in
// a bubble of package virtual.
func Run(clients int, s strategies.Strategy, network Network, random *rand.Rand) Result {
	var mu sync.Mutex // guards the following and random
	var result Result
	version := 0
	delay := func() time.Duration {
		d := random.NormFloat64()*float64(network.Deviation) + float64(network.Mean)
		return time.Duration(math.Abs(d))
	}
	// hop lets a message travel, and the receiver act on it.
	hop := func(act func()) {
		mu.Lock()
		d := delay()
		mu.Unlock()
		time.Sleep(d.Truncate(tick))
		mu.Lock()
		defer mu.Unlock()
		act()
	}
	begin := time.Now()
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			time.Sleep(time.Duration(i))
			wait := func() time.Duration { return 0 }
			if s != nil {
				wait = virtual.Ticking{Strategy: s, Tick: tick}.Start()
			}
			for read, accepted := 0, false; !accepted; {
				hop(func() { read = version })
				hop(func() {})
				hop(func() {
					result.Calls++
					// Otherwise, another client has changed the row since this one read it.
					if accepted = read == version; accepted {
						version++
						result.Time = time.Since(begin) + delay()
					}
				})
				if !accepted {
					hop(func() {})
					mu.Lock()
					d := wait()
					mu.Unlock()
					time.Sleep(d)
				}
			}
		})
	}
	all.Wait()
	return result
}
