// Package layers runs a chain of services that call one another, with the
// library's own RetryTransport and Middleware, in virtual time.
package layers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"syscall"
	"testing/synctest"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/virtual"
)

// A Scenario is a chain of Services. Users call the first one, each service
// calls the next, and the last one calls a server. Users do not retry; services
// make up to Attempts.
type Scenario struct {
	Services, Attempts int
	Users              int           // at most a million
	Rate               float64       // of the users' requests per second
	Latency            time.Duration // a multiple of Tick
	Failure            string        // one of Failures
	Failing            float64       // share of the requests that fail, for random
	Replicas           int           // of the server, of which one refuses connections, for replica
	Seed               uint64
}

// All delays are multiples of Tick. The nanoseconds below it are the number of
// the user: see virtual.Ticking.
const Tick = time.Millisecond

// Failures are the kinds of failure in a chain. With "random", each service and
// the server fail at random. With "replica", one replica of the server is cut
// off. With "down", the server is down.
const Failures = "random, replica, down"

// A Client has the settings that all services share.
type Client struct {
	Policy     httpretry.Policy        // with a Backoff and no Budget
	Budget     func() httpretry.Budget // of one service; nil: the default
	Middleware bool
}

// A Result is the result of a run.
type Result struct {
	Calls     []float64 // per user's request, to each service and then to the server
	Succeeded float64   // share of the users
	durations []time.Duration
}

// Quantile returns the time until the share p of the users have an answer.
func (r *Result) Quantile(p float64) time.Duration {
	return r.durations[min(int(p*float64(len(r.durations))), len(r.durations)-1)]
}

type chain struct {
	Scenario
	mu     sync.Mutex
	random *rand.Rand
	calls  []int
	ok     int
	took   []time.Duration
}

// Run runs the scenario. It must be called in a bubble of package virtual. The
// policy's strategy must be safe for concurrent use.
func (s Scenario) Run(c Client) (*Result, error) {
	run := &chain{Scenario: s, random: rand.New(rand.NewPCG(s.Seed, 30)), calls: make([]int, s.Services+1)}
	next := http.Handler(http.HandlerFunc(run.server))
	for i := s.Services - 1; i >= 0; i-- {
		policy := c.Policy
		policy.MaxAttempts = s.Attempts
		policy.Backoff = virtual.Ticking{Strategy: policy.Backoff, Tick: Tick}
		if c.Budget != nil {
			policy.Budget = c.Budget()
		}
		// The server is the one that may refuse connections.
		last := i == s.Services-1
		transport, err := httpretry.New(httpretry.Config{Base: &network{run, next, last}, Policy: policy})
		if err != nil {
			return nil, err
		}
		next = run.service(i, transport)
		if c.Middleware {
			next = httpretry.Middleware(next)
		}
	}
	run.users(next)
	r := &Result{durations: run.took, Succeeded: float64(run.ok) / float64(s.Users)}
	slices.Sort(r.durations)
	for _, n := range run.calls {
		r.Calls = append(r.Calls, float64(n)/float64(s.Users))
	}
	return r, nil
}

func (c *chain) users(first http.Handler) {
	var wg sync.WaitGroup
	began, at := time.Now(), 0.0
	for user := range c.Users {
		// Services that are running draw from the same source.
		at += func() float64 { c.mu.Lock(); defer c.mu.Unlock(); return c.random.ExpFloat64() }() / c.Rate
		// The nanoseconds are the user's number: see Tick.
		start := time.Duration(at * float64(time.Second)).Truncate(Tick)
		time.Sleep(start + time.Duration(user) - time.Since(began))
		wg.Go(func() {
			began := time.Now()
			w := httptest.NewRecorder()
			first.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://service-1.test/", nil))
			c.mu.Lock()
			defer c.mu.Unlock()
			c.took = append(c.took, time.Since(began))
			if w.Code == http.StatusOK {
				c.ok++
			}
		})
		// The first user does not wait, and must not run beside the next one.
		synctest.Wait()
	}
	wg.Wait()
}

func (c *chain) service(i int, transport http.RoundTripper) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.fails(i) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, fmt.Sprintf("http://service-%d.test/", i+2), nil)
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.WriteHeader(resp.StatusCode)
		// The response of a recorder has no connection.
		_ = resp.Body.Close()
	})
}

func (c *chain) server(w http.ResponseWriter, _ *http.Request) {
	if c.fails(c.Services) || c.Failure == "down" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// fails counts a call of a service, and reports whether it fails at random.
func (c *chain) fails(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[i]++
	return c.Failure == "random" && c.random.Float64() < c.Failing
}

type network struct {
	chain *chain
	next  http.Handler
	last  bool
}

func (n *network) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(n.chain.Latency)
	if n.last && n.chain.isCutOff() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	// A network does not carry the values of a context.
	in := req.Clone(context.Background())
	w := httptest.NewRecorder()
	n.next.ServeHTTP(w, in)
	resp := w.Result()
	resp.Request = req
	return resp, nil
}

// isCutOff reports whether a request is balanced to the replica that refuses
// connections. It counts as a call of the server.
func (c *chain) isCutOff() bool {
	if c.Failure != "replica" {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.random.IntN(c.Replicas) > 0 {
		return false
	}
	c.calls[c.Services]++
	return true
}
