// Soak sends requests through httpretry for a long time to servers that fail,
// and checks that nothing of them remains.
//
//	go run ./soak -for 10m
//
// The servers run in a process of their own, one for HTTP/1 and one for HTTP/2.
// A tenth of the requests meets a fault: a 503, a reset before the answer or in
// its body, a stall, an early answer to an upload, GOAWAY or REFUSED_STREAM.
//
// Soak fails if the goroutines, the heap or the RSS of the client grow, if a
// POST without an idempotency key arrives twice, if a body has wrong bytes, or
// if a goroutine, a file descriptor or a request body that nobody closed
// remains at the end. It needs Linux.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/seed421102f4/httpretry/integration/internal/leaks"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == serveFlag {
		serve()
		return
	}
	duration := flag.Duration("for", 10*time.Minute, "how long to send requests")
	clients := flag.Int("clients", 64, "how many requests to send at a time")
	seed := flag.Uint64("seed", rand.Uint64(), "seed of the requests; the faults are random")
	flag.Parse()
	if flag.NArg() > 0 || *duration < 10*time.Second || *duration > 6*time.Hour || *clients < 2 {
		fmt.Fprintln(os.Stderr, "soak: want -for from 10s to 6h, at least 2 -clients, and no arguments")
		os.Exit(2)
	}
	if err := run(os.Stdout, *duration, *clients, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
}

// samplesPerRun is ten for each quarter.
const samplesPerRun = 40

// run returns all that is wrong.
func run(w io.Writer, duration time.Duration, clients int, seed uint64) (err error) {
	p, err := startServers()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	fmt.Fprintf(w, "%d clients for %v, seed %d\n", clients, duration, seed)
	before := leaks.Now()
	l, err := newLoad(p.addr1, p.addr2, clients)
	if err != nil {
		return err
	}
	l.knowHosts(clients)
	samples, err := l.observe(w, duration, clients, seed)
	if err != nil {
		return err
	}
	server, err := p.stats()
	if err != nil {
		return err
	}
	verdicts, err := judge(samples)
	if err != nil {
		return err
	}
	problems := []error{l.report(w, server)}
	for _, v := range verdicts {
		fmt.Fprintln(w, v)
		if !v.flat() {
			problems = append(problems, errors.New(v.String()))
		}
	}
	problems = append(problems, l.bodies.Check())
	left, err := leaks.AwaitNone(before, l.closeIdle)
	fmt.Fprintf(w, "goroutines and descriptors: %v before, %v after\n", before, left)
	return errors.Join(append(problems, err)...)
}

// observe runs the load, and returns the samples that it takes meanwhile.
func (l *load) observe(w io.Writer, duration time.Duration, clients int, seed uint64) ([]sample, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); l.run(ctx, clients, seed) }()
	var samples []sample
	var failed error
	start := time.Now()
	for range samplesPerRun {
		time.Sleep(duration / samplesPerRun)
		s, err := takeSample()
		if err != nil {
			failed = err
			break
		}
		samples = append(samples, s)
		fmt.Fprintf(w, "%6.0f s: %9d requests, %4.0f goroutines, heap %6.0f KiB, RSS %6.0f KiB\n",
			time.Since(start).Seconds(), l.requests.Load(), s.goroutines, s.heap/1024, s.rss/1024)
	}
	cancel()
	<-done
	return samples, failed
}
