// Exchange sends random requests through httpretry to servers that fail, and
// checks each exchange at both ends.
//
//	go run ./exchange -for 10m
//
// A seed determines the protocol, the body and the policy of a request, and the
// reactions of its server: an early answer, a cut, a reset, a stall, RST_STREAM
// or GOAWAY.
//
// Exchange fails if a body arrives with wrong bytes, if a request that is not
// safe to repeat is sent twice, if a body is read by two readers or not closed,
// if RoundTrip does not return, if the goroutines, the heap or the RSS grow, or
// if a goroutine or a file descriptor remains at the end. It needs Linux.
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
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/integration/internal/growth"
	"github.com/seed421102f4/httpretry/internal/faults"
)

func main() {
	duration := flag.Duration("for", 10*time.Minute, "how long to send requests")
	clients := flag.Int("clients", 8, "how many requests to send at a time")
	seed := flag.Uint64("seed", rand.Uint64N(1e9), "seed of the first exchange; later ones count from it")
	only := flag.Bool("only", false, "repeat the exchange of -seed")
	flag.Parse()
	if flag.NArg() > 0 || *clients < 1 || *duration <= 0 {
		fmt.Fprintln(os.Stderr, "exchange: want a positive -for, at least 1 of -clients, and no arguments")
		os.Exit(2)
	}
	s := &exchanges{duration: *duration, clients: *clients, seed: *seed, only: *only}
	if err := s.run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
}

// exchanges is a run of the program.
type exchanges struct {
	duration time.Duration
	clients  int
	seed     uint64
	only     bool

	next atomic.Uint64 // the number of exchanges that have begun

	mu       sync.Mutex
	counts   map[string]int // by outcome
	problems []error
}

// run returns all that is wrong.
func (s *exchanges) run(w io.Writer) error {
	fmt.Fprintf(w, "%d clients for %v, seed %d\n", s.clients, s.duration, s.seed)
	warm := &host{}
	faults.Refused(warm) // the runtime's own descriptors are there from now on
	warm.close()
	s.counts = map[string]int{}
	before := growth.Held()
	resources, err := s.observe(w)
	if err != nil {
		return err
	}
	for _, what := range slices.Sorted(maps.Keys(s.counts)) {
		fmt.Fprintf(w, "%8d × %s\n", s.counts[what], what)
	}
	if s.duration >= growth.From {
		for _, series := range resources.All() {
			v := series.Judge()
			fmt.Fprintln(w, v)
			if !v.Flat() {
				s.problems = append(s.problems, errors.New(v.String()))
			}
		}
	}
	for _, outcome := range []string{succeeded, failed, canceled, retried, resent, rewound, wholeRetry, aheadRetry} {
		if s.counts[outcome] == 0 && !s.only {
			s.problems = append(s.problems, fmt.Errorf("the situation did not occur: %s", outcome))
		}
	}
	return errors.Join(append(s.problems, before.AwaitNone(w))...)
}

// observe sends exchanges, and returns what this process holds meanwhile.
func (s *exchanges) observe(w io.Writer) (resources *growth.Resources, err error) {
	over := make(chan struct{})
	var wg sync.WaitGroup
	for range s.clients {
		wg.Go(func() { s.send(over) })
	}
	start := time.Now()
	resources = growth.NewResources()
	for range growth.SamplesPerRun {
		time.Sleep(s.duration / growth.SamplesPerRun)
		if err = resources.Sample(); err != nil {
			break
		}
		if s.duration >= growth.From {
			fmt.Fprintf(w, "%6.0f s: %9d requests, %v\n", time.Since(start).Seconds(), s.next.Load(), resources.All())
		}
	}
	close(over)
	wg.Wait()
	return resources, err
}

// send is a client. It sends exchanges until the run is over.
func (s *exchanges) send(over <-chan struct{}) {
	c := newClient()
	defer c.close()
	for {
		select {
		case <-over:
			return
		default:
		}
		n := s.next.Add(1) - 1
		if s.only {
			n = 0
		}
		x := newExchange(s.seed + n)
		outcomes, problems := c.run(x)
		s.mu.Lock()
		for _, outcome := range outcomes {
			s.counts[outcome]++
		}
		for _, problem := range problems {
			s.problems = append(s.problems, errors.New(problem))
		}
		if len(problems) > 0 {
			s.problems = append(s.problems, fmt.Errorf("in -only -seed %d: %v", x.seed, x))
		}
		enough := len(s.problems) > 20
		s.mu.Unlock()
		if enough {
			return
		}
	}
}
