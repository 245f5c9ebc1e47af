// Package restart runs RetryTransports in virtual time while replicas of their
// host restart.
package restart

import (
	"context"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing/synctest"
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
// virtual. The function policies returns the policy of each process and the
// name of the host by which the process knows the host. Up, Down and After must
// be multiples of outage.Bucket.
func (s Scenario) Run(
	policies func(process int) (httpretry.Policy, string),
) (*outage.Result, error) {
	length := s.Up + s.Down + s.After
	h := &host{
		Scenario: s, begin: time.Now(), random: rand.New(rand.NewPCG(s.Seed, 51)),
		free:   make([]time.Duration, s.Replicas),
		result: outage.Scenario{From: s.Up, To: s.Up + s.Down, Length: length}.NewResult(),
	}
	clients, err := h.clients(policies)
	if err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(s.Seed, 50))
	gap := float64(time.Second) / (s.Rate * float64(s.Processes))
	var wg sync.WaitGroup
	for {
		time.Sleep(time.Duration(random.ExpFloat64() * gap))
		if time.Since(h.begin) >= length {
			break
		}
		c := clients[random.IntN(s.Processes)]
		wg.Go(func() { h.request(c) })
		// Requests draw from common sources in the order in which they begin.
		synctest.Wait()
	}
	wg.Wait()
	return h.result, nil
}

// A client is the RetryTransport of a process.
type client struct {
	*httpretry.RetryTransport
	url string
}

func (h *host) clients(policies func(int) (httpretry.Policy, string)) ([]client, error) {
	var all []client
	for i := range h.Processes {
		policy, name := policies(i)
		transport, err := httpretry.New(httpretry.Config{Base: h, Policy: policy})
		if err != nil {
			return nil, err
		}
		all = append(all, client{transport, "http://" + name + "/"})
	}
	return all, nil
}

// host answers the attempts of all processes.
type host struct {
	Scenario
	begin time.Time

	mu     sync.Mutex
	random *rand.Rand
	free   []time.Duration // when each replica has worked off its attempts
	result *outage.Result
}

// request sends a request and counts it.
func (h *host) request(c client) {
	start := time.Since(h.begin)
	ctx := context.Background()
	if h.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.Deadline)
		defer cancel()
	}
	ok := false
	// The names of hosts are valid, so there is no error.
	if req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil); err == nil {
		resp, err := c.RoundTrip(req)
		ok = err == nil && resp.StatusCode == http.StatusOK
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.result.Ended(start, time.Since(h.begin), ok)
}

// RoundTrip implements http.RoundTripper.
func (h *host) RoundTrip(req *http.Request) (*http.Response, error) {
	wait, kind := h.admit(time.Since(h.begin))
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
	status := http.StatusOK
	switch kind {
	case "503":
		status = http.StatusServiceUnavailable
	case "refused":
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case "reset":
		return nil, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	return &http.Response{
		StatusCode: status, ProtoMajor: 1, Header: http.Header{}, Body: http.NoBody, Request: req,
	}, nil
}

// admit returns when an attempt ends, and the kind of its failure.
func (h *host) admit(now time.Duration) (wait time.Duration, kind string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.result.Sent(now)
	replica, end := h.random.IntN(h.Replicas), h.Up+h.Down
	restarts := replica < h.Restarting
	free := max(h.free[replica], now)
	if restarts && now >= h.Up && now < end {
		switch h.Kind {
		case "stall":
			free = max(free, end)
		case "timeout":
			return math.MaxInt64, h.Kind
		default:
			return h.Latency, h.Kind
		}
	}
	free += h.service(free, restarts)
	h.free[replica] = free
	// A replica goes on with attempts that have timed out.
	return free - now + h.Latency, ""
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
