// Soak sends requests for a long time through transports that are operated
// meanwhile, and fails if anything grows.
//
//	go run ./soak -for 30m
//
// Its clients use HTTP/1, HTTP/2 and HTTP/3. Three requests of four meet a fault
// that a seed determines. Each second, the policies are set and Origins is read.
// Reloaders follow a policy file that changes, and is sometimes wrong. All share
// a redisbudget, whose Redis is killed and started again. So are the servers.
//
// Soak fails if the goroutines, the descriptors, the heap, the RSS or the latency
// grow, if a request that is not safe to repeat is executed twice, if a response
// has wrong bytes, if a situation does not occur, or if a goroutine or a
// descriptor remains at the end. It needs Linux and redis-server.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry/integration/internal/growth"
)

func main() {
	duration := flag.Duration("for", 30*time.Minute, "how long to send requests")
	clients := flag.Int("clients", 64, "how many requests to send at a time")
	seed := flag.Uint64("seed", rand.Uint64N(1e9), "seed of the clients' random numbers")
	flag.Parse()
	if flag.NArg() > 0 || *clients < 1 || *duration <= 0 {
		fmt.Fprintln(os.Stderr, "soak: want a positive -for, at least 1 of -clients, and no arguments")
		os.Exit(2)
	}
	s := &soak{duration: *duration, clients: *clients, seed: *seed}
	if err := s.run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
}

// soak is a run of the program.
type soak struct {
	duration time.Duration
	clients  int
	seed     uint64

	fleet *fleet

	mu       sync.Mutex
	counts   map[string]int  // by situation
	steady   []time.Duration // what the latest requests without a fault took
	problems []error
}

func (s *soak) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

func (s *soak) problem(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.problems) < 20 {
		s.problems = append(s.problems, fmt.Errorf(format, args...))
	}
}

// series are what must not grow. The latency may double on a busy machine, and
// a server that starts again delays one request of a hundred.
type series struct {
	*growth.Resources
	median, tail growth.Series
}

func (r *series) all() []*growth.Series { return append(r.All(), &r.median, &r.tail) }

// run returns all that is wrong.
func (s *soak) run(w io.Writer) error {
	fmt.Fprintf(w, "%d clients for %v, seed %d\n\n", s.clients, s.duration, s.seed)
	s.counts = map[string]int{}
	before := growth.Held()
	var err error
	if s.fleet, err = newFleet(s); err != nil {
		return err
	}
	r := &series{
		Resources: growth.NewResources(),
		median:    growth.Series{Name: "median latency", Unit: " µs", Slack: 10e3},
		tail:      growth.Series{Name: "99th percentile", Unit: " µs", Slack: 100e3},
	}
	// A dozen connections of QUIC more have 120 goroutines.
	r.Goroutines.Slack, r.RSS.Slack = 120, 12<<10
	err = s.observe(w, r)
	err = errors.Join(err, s.fleet.close())
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, what := range slices.Sorted(maps.Keys(s.counts)) {
		fmt.Fprintf(w, "%8d × %s\n", s.counts[what], what)
	}
	for _, situation := range situations() {
		if s.counts[situation] == 0 {
			s.problem("the situation did not occur: %s", situation)
		}
	}
	if s.duration >= growth.From {
		for _, series := range r.all() {
			v := series.Judge()
			fmt.Fprintln(w, v)
			if !v.Flat() {
				s.problem("%v", v)
			}
		}
	}
	return errors.Join(append(s.problems, before.AwaitNone(w))...)
}

// observe sends requests and operates the fleet, and prints a row of a table
// for each tenth of the run.
func (s *soak) observe(w io.Writer, r *series) error {
	over := make(chan struct{})
	var wg sync.WaitGroup
	for i := range s.clients {
		wg.Go(func() { s.send(over, rand.New(rand.NewPCG(s.seed, uint64(i)))) })
	}
	wg.Go(func() { s.fleet.operate(over) })
	defer wg.Wait()
	defer close(over)

	fmt.Fprintln(w, "| after | requests | goroutines | descriptors | heap | RSS | median | 99th percentile |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|")
	start, answered := time.Now(), false
	for i := range growth.SamplesPerRun {
		time.Sleep(s.duration / growth.SamplesPerRun)
		if err := r.Sample(); err != nil {
			return err
		}
		s.mu.Lock()
		took := s.steady
		s.steady = nil
		requests := s.counts[sent]
		s.mu.Unlock()
		// A busy machine may stall for as long as one sample of a short run takes.
		if len(took) > 0 {
			answered = true
			slices.Sort(took)
			r.median.Add(float64(took[len(took)/2].Microseconds()))
			r.tail.Add(float64(took[len(took)*99/100].Microseconds()))
		}
		if (i+1)%(growth.SamplesPerRun/10) == 0 {
			if !answered {
				return errors.New("no request without a fault had a response")
			}
			answered = false
			last := func(of growth.Series) float64 { return of.Samples[len(of.Samples)-1] }
			fmt.Fprintf(w, "| %v | %d | %.0f | %.0f | %.1f MiB | %.1f MiB | %.1f ms | %.0f ms |\n",
				time.Since(start).Round(time.Second), requests, last(r.Goroutines), last(r.Descriptors),
				last(r.Heap)/1024, last(r.RSS)/1024, last(r.median)/1e3, last(r.tail)/1e3)
		}
	}
	return nil
}
