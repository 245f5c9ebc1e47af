package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
)

// load sends requests at a steady rate, and counts their results.
type load struct {
	mu     sync.Mutex
	counts map[string]counts // by host, since they were taken
}

func newLoad() *load { return &load{counts: map[string]counts{}} }

// counts are those of the requests to one host that have ended.
type counts struct {
	requests, successes, attempts int
	refused                       int // because the budget refused a retry
	slowest                       time.Duration
}

// observe counts the requests that end. It is the Observe of the transport.
func (l *load) observe(_ context.Context, e httpretry.Event) {
	if e.Reason == httpretry.ReasonNone {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts[e.Request.URL.Host]
	c.requests++
	c.attempts += e.Attempt.Number
	c.slowest = max(c.slowest, e.Elapsed)
	switch e.Reason {
	case httpretry.ReasonSuccess:
		c.successes++
	case httpretry.ReasonBudget:
		c.refused++
	}
	l.counts[e.Request.URL.Host] = c
}

// take returns the counts of a host since the last call.
func (l *load) take(host string) counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts[host]
	delete(l.counts, host)
	return c
}

// String returns the counts as a part of a line. Its widths are those of
// heading.
func (c counts) String() string {
	if c.requests == 0 {
		return fmt.Sprintf("%7s %8s %7s %7s", "-", "-", "-", "-")
	}
	n := float64(c.requests)
	return fmt.Sprintf("%5.0f %% %8.2f %5.1f s %7d", 100*float64(c.successes)/n,
		float64(c.attempts)/n, c.slowest.Seconds(), c.refused)
}

const (
	rate = 60 // requests per second, of which every sixth is for other

	// patience is the longest time of a request. It limits the requests under
	// way, whatever the policies are.
	patience = 10 * time.Second
)

// send sends requests until ctx is done, and waits for their ends.
func (l *load) send(ctx context.Context, transport http.RoundTripper) {
	client := &http.Client{Transport: transport}
	var wg sync.WaitGroup
	defer wg.Wait()
	pace := time.NewTicker(time.Second / rate)
	defer pace.Stop()
	for n := 0; ; n++ {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return
		}
		host := tuned
		if n%6 == 0 {
			host = other
		}
		wg.Go(func() { get(ctx, client, "http://"+host+"/") })
	}
}

// get sends one request. The observer counts its result. Another program would
// use it here.
func get(ctx context.Context, client *http.Client, url string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
}
