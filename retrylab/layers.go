package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
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
	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
	"github.com/seed421102f4/httpretry/retrylab/internal/outage"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
	"github.com/seed421102f4/httpretry/retrylab/internal/virtual"
	"github.com/seed421102f4/httpretry/strategies"
)

func simulateLayers(l lab, o *options) (report.Report, error) {
	var s chainScenario
	failures := o.String("failures", "random,replica,down", "`kinds` of failure, separated by commas: "+failureKinds)
	strategy := o.String("strategy", "DecorrelatedV2", "`strategy` of all services")
	o.IntVar(&s.Services, "services", 3, "services that call one another, in front of a server")
	o.IntVar(&s.Attempts, "attempts", 3, "MaxAttempts of each service")
	o.IntVar(&s.Users, "users", 3000, "requests of users")
	o.Float64Var(&s.Rate, "rate", 5, "requests of users per second")
	o.DurationVar(&s.Latency, "latency", 5*time.Millisecond, "of the network, from one service to the next")
	o.Float64Var(&s.Failing, "failing", 0.1, "share of the requests to each service that fail, for -failures=random")
	o.IntVar(&s.Replicas, "replicas", 3, "of the server, one of which is cut off, for -failures=replica")
	if err := o.parse(); err != nil {
		return report.Report{}, err
	}
	kinds, err := split("failures", *failures, failureKinds)
	if err := cmp.Or(
		err, o.durations(layersTick, "latency"),
		within("services", s.Services, 1, 8), within("attempts", s.Attempts, 1, 10), within("users", s.Users, 1, 1_000_000),
		within("rate", s.Rate, 0.001, 100_000), within("failing", s.Failing, 0, 1), within("replicas", s.Replicas, 1, 1000),
	); err != nil {
		return report.Report{}, err
	}
	if most := float64(s.Users) * math.Pow(float64(s.Attempts), float64(s.Services)); most > maxCalls {
		return report.Report{}, fmt.Errorf("-users %d -attempts %d -services %d: want at most %d calls, users times attempts to the power of services",
			s.Users, s.Attempts, s.Services, maxCalls)
	}
	s.Seed = o.seed
	r := layersReport(s)
	for _, kind := range kinds {
		s.Failure = kind
		if err := l.addLayers(&r, s, *strategy); err != nil {
			return r, err
		}
	}
	return r, nil
}

func layersReport(s chainScenario) report.Report {
	columns := []string{"failure", "retries"}
	for i := range s.Services {
		columns = append(columns, fmt.Sprint(i+1))
	}
	return report.Report{
		Title: "Retries in a chain of services",
		About: fmt.Sprintf("Users, who do not retry, call the first of %d services, each service calls the next with up to %d attempts, and the last one calls a server. The services run RetryTransports. For random, each service and the server fail %s of their requests; for replica, one of %d replicas of the server refuses connections; for down, the server fails.",
			s.Services, s.Attempts, report.Show(report.Share(s.Failing)), s.Replicas),
		Tables: []report.Table{
			{Title: "What users see", Note: "Without retries, with unlimited ones, with budgets, with Middleware, and with both. The times are until users have an answer, of either kind.", Columns: []string{"failure", "retries", "success", "p50", "p99"}},
			{Title: "Calls for each user's request", Note: "The numbers are those of the services.",
				Columns: append(columns, "server")},
		},
	}
}

const maxCalls = 10_000_000

func (l lab) addLayers(r *report.Report, s chainScenario, strategy string) error {
	c := &chart.Chart{
		Title: "Calls for each user's request: " + s.Failure,
		X:     chart.Axis{Label: "service, and the server at the end"}, Y: chart.Axis{Label: "calls"},
	}
	for _, v := range [...]struct {
		name       string
		attempts   int
		budget     func() httpretry.Budget
		middleware bool
	}{
		{"none", 1, nil, false}, {"multiplied", s.Attempts, unlimited, false}, {"budgeted", s.Attempts, nil, false},
		{"Middleware", s.Attempts, unlimited, true}, {"both", s.Attempts, nil, true},
	} {
		backoff, err := parseStrategy("strategy", strategy, strategies.Seeded(s.Seed), nil)
		if err != nil {
			return err
		}
		s.Attempts = v.attempts
		var result *chain
		l.clock(func() { result, err = s.run(httpretry.Policy{Backoff: backoff.Strategy}, v.budget, v.middleware) })
		if err != nil {
			return err
		}
		r.Tables[0].Rows = append(r.Tables[0].Rows, []any{s.Failure, v.name, report.Share(result.succeeded()), result.took.Quantile(0.5), result.took.Quantile(0.99)})
		calls, line := []any{s.Failure, v.name}, chart.Series{Name: v.name, Points: true}
		for i, n := range result.callsPerUser() {
			calls = append(calls, n)
			line.X, line.Y = append(line.X, float64(i+1)), append(line.Y, n)
		}
		r.Tables[1].Rows = append(r.Tables[1].Rows, calls)
		// Without retries, calls are one for each request, at most.
		if v.name != "none" {
			c.Series = append(c.Series, line)
		}
	}
	r.Figures = append(r.Figures, c)
	return nil
}

// A chainScenario is a chain of Services. Users call the first one, each service
// calls the next, and the last one calls a server. Users do not retry; services
// make up to Attempts.
type chainScenario struct {
	Services, Attempts int
	Users              int           // at most a million
	Rate               float64       // of the users' requests per second
	Latency            time.Duration // a multiple of layersTick
	Failure            string        // one of failureKinds
	Failing            float64       // share of the requests that fail, for random
	Replicas           int           // of the server, of which one refuses connections, for replica
	Seed               uint64
}

// All delays are multiples of layersTick. The nanoseconds below it are the number of
// the user: see virtual.Ticking.
const layersTick = time.Millisecond

// failureKinds are the kinds of failure in a chain. With "random", each service and
// the server fail at random. With "replica", one replica of the server is cut
// off. With "down", the server is down.
const failureKinds = "random, replica, down"

type chain struct {
	chainScenario
	mu     sync.Mutex
	random *rand.Rand
	calls  []int
	ok     int
	took   outage.Durations
}

func (c *chain) succeeded() float64 { return float64(c.ok) / float64(c.Users) }

// callsPerUser returns the calls of each service, and then of the server.
func (c *chain) callsPerUser() (all []float64) {
	for _, n := range c.calls {
		all = append(all, float64(n)/float64(c.Users))
	}
	return all
}

// run runs the scenario. Each service has the policy, and a budget if it is not
// nil. It must be called in a bubble of package virtual. The
// policy's strategy must be safe for concurrent use.
func (s chainScenario) run(policy httpretry.Policy, budget func() httpretry.Budget, middleware bool) (*chain, error) {
	run := &chain{chainScenario: s, random: rand.New(rand.NewPCG(s.Seed, 30)), calls: make([]int, s.Services+1)}
	next := http.Handler(http.HandlerFunc(run.server))
	for i := s.Services - 1; i >= 0; i-- {
		policy := policy
		policy.MaxAttempts = s.Attempts
		policy.Backoff = virtual.Ticking{Strategy: policy.Backoff, Tick: layersTick}
		if budget != nil {
			policy.Budget = budget()
		}
		// The server is the one that may refuse connections.
		last := i == s.Services-1
		transport, err := httpretry.New(httpretry.Config{Base: &network{run, next, last}, Policy: policy})
		if err != nil {
			return nil, err
		}
		next = run.service(i, transport)
		if middleware {
			next = httpretry.Middleware(next)
		}
	}
	run.users(next)
	slices.Sort(run.took)
	return run, nil
}

func (c *chain) users(first http.Handler) {
	var wg sync.WaitGroup
	began, at := time.Now(), 0.0
	for user := range c.Users {
		// Services that are running draw from the same source.
		at += func() float64 { c.mu.Lock(); defer c.mu.Unlock(); return c.random.ExpFloat64() }() / c.Rate
		// The nanoseconds are the user's number: see layersTick.
		start := time.Duration(at * float64(time.Second)).Truncate(layersTick)
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
		req := httptest.NewRequestWithContext(r.Context(), http.MethodGet, fmt.Sprintf("http://service-%d.test/", i+2), nil)
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
