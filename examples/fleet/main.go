// Fleet shows the load of short-lived processes on a server that is down: with
// a budget for each process, and with one that all of them share in Redis.
//
// It needs no network. Each process is a goroutine, which shares nothing with
// the others, and an embedded server replaces Redis:
//
//	go run .
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/redisbudget"
	"github.com/seed421102f4/httpretry/strategies"
)

func main() {
	processes := flag.Int("processes", 60, "in the fleet")
	requests := flag.Int("requests", 3, "of each process")
	flag.Parse()
	if flag.NArg() > 0 || *processes < 1 || *requests < 1 {
		fmt.Fprintln(os.Stderr, "fleet: want flags only, and numbers of at least 1")
		os.Exit(2)
	}
	if err := run(os.Stdout, *processes, *requests); err != nil {
		log.Fatal(err)
	}
}

// work sends the requests of one process. An empty redisAddr means a budget of
// its own.
func work(server, redisAddr string, requests int) error {
	policy := httpretry.Policy{Backoff: strategies.Constant{Wait: 10 * time.Millisecond}}
	if redisAddr != "" {
		client := redis.NewClient(&redis.Options{Addr: redisAddr})
		defer client.Close()
		budget, err := redisbudget.New(redisbudget.Config{
			Client: client,
			// A machine that starts so many processes at once is slow.
			Timeout: 2 * time.Second,
		})
		if err != nil {
			return err
		}
		defer budget.Close()
		policy.Budget = budget
	}
	transport, err := httpretry.New(httpretry.Config{Policy: policy})
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport}
	for range requests {
		resp, err := client.Get(server)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
	}
	return nil
}

// run runs the fleet with each kind of budget.
func run(out io.Writer, processes, requests int) error {
	embedded, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer embedded.Close()
	fmt.Fprintf(out, "A server is down. %d processes send it %d requests each.\n", processes, requests)
	for _, f := range []*fleet{
		{title: "Each process has a budget of its own"},
		{title: "All processes share a budget in Redis", redisAddr: embedded.Addr()},
	} {
		fmt.Fprintf(out, "\n%s:\n", f.title)
		if err := f.run(out, processes, requests); err != nil {
			return err
		}
	}
	return nil
}

// A fleet is processes with one kind of budget.
type fleet struct {
	title     string
	redisAddr string
	attempts  atomic.Int64 // that the server has seen
	retries   atomic.Int64 // of those
}

func (f *fleet) run(out io.Writer, processes, requests int) error {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.attempts.Add(1)
		if r.Header.Get("Retry-Attempt") != "" {
			f.retries.Add(1)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	const atATime, rows = 8, 5
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error // of the processes that have ended
	free := make(chan struct{}, atATime)
	for range processes {
		free <- struct{}{}
		wg.Go(func() {
			err := work(server.URL, f.redisAddr, requests)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			if n := len(errs); n%max(processes/rows, 1) == 0 || n == processes {
				f.print(out, n)
			}
			<-free
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// print prints the counts so far. Processes that still run have sent requests,
// too.
func (f *fleet) print(out io.Writer, processes int) {
	retries, attempts := f.retries.Load(), f.attempts.Load()
	requests := attempts - retries
	fmt.Fprintf(out, "  %4d processes, %5d requests, %5d attempts: load %.2f\n",
		processes, requests, attempts, float64(attempts)/float64(requests))
}
