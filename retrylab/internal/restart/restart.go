// Package restart runs RetryTransports in virtual time while replicas of their
// host restart.
package restart

import (
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/outage"
)

// A Scenario is the load, the host and its restart.
type Scenario struct {
	Processes int
	Rate      float64       // of the requests per second of each process
	Deadline  time.Duration // of a request; 0: none
	Latency   time.Duration

	Kind       string        // one of Kinds
	Up         time.Duration // from the start of the processes until the restart
	Down       time.Duration // length of the restart
	After      time.Duration // from its end until the last request
	Replicas   int           // of the host, each of which gets a random share of the attempts
	Restarting int           // replicas that restart

	Load float64       // of the host, as a share of its capacity; 0: it has no limit
	Cold time.Duration // the capacity of restarted replicas grows from a tenth for this long
	Seed uint64
}

// Kinds are what attempts to a replica get that restarts: a 503, a refused or a
// reset connection, or nothing. With "stall", the replica pauses and then works
// off the attempts that it has got.
const Kinds = "503, refused, reset, timeout, stall"

// Run sends requests at random times. It must be called in a bubble of package
// virtual. The function policy returns the policy of each process. Up, Down and
// After must be multiples of outage.Bucket.
func (s Scenario) Run(policy func(process int) httpretry.Policy) (*outage.Result, error) {
	length := s.Up + s.Down + s.After
	h := &host{
		Scenario: s, random: rand.New(rand.NewPCG(s.Seed, 51)), free: make([]time.Duration, s.Replicas),
	}
	result := outage.Scenario{From: s.Up, To: s.Up + s.Down, Length: length}.NewResult()
	err := outage.Fleet{
		Processes: s.Processes, Rate: s.Rate * float64(s.Processes), Length: length, Deadline: s.Deadline,
		Policy: policy, Seed: s.Seed, Answer: h.answer,
	}.Run(result)
	return result, err
}

// host answers the attempts of all processes.
type host struct {
	Scenario
	random *rand.Rand
	free   []time.Duration // when each replica has worked off its attempts
}

// answer returns the answer to an attempt that arrives now.
func (h *host) answer(now time.Duration) outage.Answer {
	replica, end := h.random.IntN(h.Replicas), h.Up+h.Down
	restarts := replica < h.Restarting
	free := max(h.free[replica], now)
	if restarts && now >= h.Up && now < end {
		failed := outage.Answer{After: h.Latency, Status: http.StatusServiceUnavailable}
		switch h.Kind {
		case "503":
			return failed
		case "refused":
			failed.Err = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
			return failed
		case "reset":
			failed.Err = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
			return failed
		case "timeout":
			return outage.Answer{After: math.MaxInt64}
		default: // a stall
			free = max(free, end)
		}
	}
	free += h.service(free, restarts)
	h.free[replica] = free
	// A replica goes on with attempts that have timed out.
	return outage.Answer{After: free - now + h.Latency, Status: http.StatusOK}
}

// service returns how long a replica works on an attempt.
func (h *host) service(at time.Duration, restarts bool) time.Duration {
	share := 1.0
	if since := at - h.Up - h.Down; restarts && since >= 0 && since < h.Cold {
		share = 0.1 + 0.9*float64(since)/float64(h.Cold)
	}
	capacity := h.Rate * float64(h.Processes) / float64(h.Replicas) * share
	// Without a Load, it works for no time.
	return time.Duration(h.Load / capacity * float64(time.Second))
}
