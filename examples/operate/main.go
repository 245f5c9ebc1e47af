// Operate is a program whose retry policies change while it runs. They are in
// policies.json. Its own server fails some of the requests, so that a change
// shows after a few seconds. A debug page shows the state of each host:
//
//	cd examples/operate
//	go run .
//
// It needs no network. The README in this folder changes the file.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
	"github.com/seed421102f4/httpretry/retrydebug"
)

// The hosts that the program sends requests to. One server answers for both.
const (
	tuned = "search.test" // the README changes its policy
	other = "prices.test"
)

func main() {
	file := flag.String("file", "policies.json", "`name` of the file with the policies")
	addr := flag.String("addr", "127.0.0.1:6061", "`address` of the debug page")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := operate(ctx, *file, *addr, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// operate sends requests, with the policies of the file, until ctx is done.
func operate(ctx context.Context, file, addr string, out io.Writer) error {
	hosts := httptest.NewServer(http.HandlerFunc(flaky))
	defer hosts.Close()
	second := &second{counts: map[string]*counts{}}
	transport, err := httpretry.New(httpretry.Config{
		Base:    connectingTo(hosts.Listener.Addr().String()),
		Observe: second.observe,
	})
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()

	// A program must not start with policies that are not valid. From then on,
	// an error changes nothing.
	reloader := &policyfile.Reloader{Path: file, Transport: transport, Report: func(error) {}}
	if err := reloader.Reload(); err != nil {
		return err
	}
	second.out = out
	reloader.Report = func(err error) {
		if err != nil {
			second.print("All policies remain as they are:\n%v\n", err)
			return
		}
		second.print("%s is in effect.\n", file)
	}

	debug, err := retrydebug.New(retrydebug.Config{
		Transports: map[string]*httpretry.RetryTransport{"demo": transport},
		Reloaders:  []*policyfile.Reloader{reloader},
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/debug/httpretry", debug)
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	page := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = page.Serve(listener) }() // until Close
	defer page.Close()

	fmt.Fprintf(out, "Policies: %s, followed every %v\nPage:     http://%s/debug/httpretry\n\n%-10s%-42s%s\n",
		file, policyfile.DefaultInterval, listener.Addr(), "", tuned, other)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _ = reloader.Run(ctx) }) // it ends with ctx
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	pace := time.NewTicker(time.Second / 60)
	defer pace.Stop()
	for n := 1; ; n++ {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return nil
		}
		host := tuned
		if n%6 == 0 {
			host = other
		}
		wg.Go(func() { get(ctx, client, "http://"+host+"/") })
		if n%60 == 0 {
			second.print("%v   %v\n", second.take(tuned), second.take(other))
		}
	}
}

// get sends one request. The observer counts its result. Another program would
// use it here.
func get(ctx context.Context, client *http.Client, url string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return
	}
	if resp, err := client.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// second counts the requests that ended within the last second, by host.
type second struct {
	mu     sync.Mutex
	out    io.Writer
	counts map[string]*counts
}

type counts struct {
	requests, successes, attempts int
	refused                       int // because the budget refused a retry
	slowest                       time.Duration
}

// observe is the Observe of the transport.
func (s *second) observe(_ context.Context, e httpretry.Event) {
	if e.Reason == httpretry.ReasonNone {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts[e.Request.URL.Host]
	if c == nil {
		c = new(counts)
		s.counts[e.Request.URL.Host] = c
	}
	c.requests++
	c.attempts += e.Attempt.Number
	c.slowest = max(c.slowest, e.Elapsed)
	switch e.Reason {
	case httpretry.ReasonSuccess:
		c.successes++
	case httpretry.ReasonBudget:
		c.refused++
	}
}

// take returns the counts of a host as a part of a line, and forgets them.
func (s *second) take(host string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts[host]
	delete(s.counts, host)
	if c == nil {
		return fmt.Sprintf("%39s", "no requests")
	}
	n := float64(c.requests)
	return fmt.Sprintf("%3.0f %% ok %4.2f attempts %3.1f s %2d refused", 100*float64(c.successes)/n,
		float64(c.attempts)/n, c.slowest.Seconds(), c.refused)
}

func (s *second) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, time.Now().Format(time.TimeOnly)+"  "+format, args...)
}

// flaky fails as the hosts do: 30 % of the requests to tuned are busy and 5 %
// late, and 5 % of those to other are busy.
func flaky(w http.ResponseWriter, r *http.Request) {
	percent := rand.IntN(100)
	switch {
	case r.Host == other && percent < 5, r.Host == tuned && percent < 30:
		http.Error(w, "busy", http.StatusServiceUnavailable)
	case r.Host == tuned && percent < 35:
		select {
		case <-time.After(2 * time.Second):
		case <-r.Context().Done(): // the client closed the connection
		}
	}
}

// connectingTo returns a base that connects to addr for any host, because names
// below .test do not exist (RFC 6761). It has no Proxy, since a proxy would
// look the names up.
func connectingTo(addr string) *http.Transport {
	return &http.Transport{
		MaxIdleConnsPerHost: 50,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}
}
