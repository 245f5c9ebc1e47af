package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

// retryWait is the wait before a retry in the measurements of load.
const retryWait = time.Millisecond

// A loadRow is the result of one client under the load of many goroutines.
type loadRow struct {
	Clients     int
	Name        string
	Goodput     summary // responses with status 200 per second
	Relative    summary // Goodput divided by that of the bare client
	P50, P99    summary // latency in milliseconds
	CPU         summary // microseconds of this process per attempt
	RelativeCPU summary // CPU divided by that of the bare client
	Connections int64   // dialed to warm up
	Dialed      int64   // connections dialed in the windows
	Attempts    float64 // per call
	Succeeded   float64 // percent of the calls
}

// A loader sends requests with one of the clients.
type loader struct {
	name        string
	client      *http.Client
	connections connections
	warmUp      int64 // connections that the first window dialed

	goodput, p50, p99, cpu      []float64 // for each window
	calls, attempts, successful int64
}

// measureLoad measures the clients with number goroutines that send requests to
// path.
func measureLoad(p plan, url, path string, number int) ([]loadRow, error) {
	var loaders []*loader
	var windows []func() error
	for _, peer := range withoutLibraries() {
		l := &loader{name: peer.Name}
		// Connections that were dialed for a request that then got another one
		// stay open for the next.
		base := newBase(&l.connections, 4*number, 0)
		defer base.CloseIdleConnections()
		l.client = &http.Client{Transport: peer.RoundTripper(peers.Options{Base: base, Wait: retryWait})}
		// Connections are opened before the first window, an eighth more than
		// there are goroutines. On a busy machine, net/http closes a connection
		// now and then (maxWriteWaitBeforeConnReuse is 50 ms). Without a spare
		// one, each request until a new one is open would dial.
		open := number + number/8
		if _, err := l.run(fmt.Sprintf("%s/meet?n=%d", url, open), open, 0); err != nil {
			return nil, err
		}
		l.warmUp = l.connections.dialed.Load()
		loaders = append(loaders, l)
		windows = append(windows, func() error { return l.measure(url, path, number, p.loadWindow) })
	}
	if err := alternate(p.loadRounds, windows); err != nil {
		return nil, err
	}
	var rows []loadRow
	bare := loaders[1]
	for _, l := range loaders {
		rows = append(rows, l.row(number, bare))
	}
	return rows, nil
}

// withoutLibraries returns httpretry, the bare client and the naive loop.
func withoutLibraries() []peers.Peer { return peers.All()[:3] }

func (l *loader) row(clients int, bare *loader) loadRow {
	return loadRow{
		Clients:     clients,
		Name:        l.name,
		Goodput:     summarize(l.goodput),
		Relative:    summarize(quotients(l.goodput, bare.goodput)),
		P50:         summarize(l.p50),
		P99:         summarize(l.p99),
		CPU:         summarize(l.cpu),
		RelativeCPU: summarize(quotients(l.cpu, bare.cpu)),
		Connections: l.warmUp,
		Dialed:      l.connections.dialed.Load() - l.warmUp,
		Attempts:    float64(l.attempts) / float64(l.calls),
		Succeeded:   100 * float64(l.successful) / float64(l.calls),
	}
}

// measure adds the results of one window.
func (l *loader) measure(url, path string, number int, length time.Duration) error {
	before, err := served(url)
	if err != nil {
		return err
	}
	started, err := cpuTime()
	if err != nil {
		return err
	}
	start := time.Now()
	results, err := l.run(url+path, number, length)
	if err != nil {
		return err
	}
	elapsed := time.Since(start)
	ended, err := cpuTime()
	if err != nil {
		return err
	}
	after, err := served(url)
	if err != nil {
		return err
	}
	l.add(results, elapsed, ended-started, after-before)
	return nil
}

// callResults are the results of calls.
type callResults struct {
	milliseconds []float64
	successful   int64
}

func (l *loader) add(r callResults, elapsed, cpu time.Duration, attempts int64) {
	slices.Sort(r.milliseconds)
	l.goodput = append(l.goodput, float64(r.successful)/elapsed.Seconds())
	l.p50 = append(l.p50, quantile(r.milliseconds, 0.50))
	l.p99 = append(l.p99, quantile(r.milliseconds, 0.99))
	l.cpu = append(l.cpu, cpu.Seconds()*1e6/float64(attempts))
	l.calls += int64(len(r.milliseconds))
	l.attempts += attempts
	l.successful += r.successful
}

// run sends requests from many goroutines for a while, and at least one from
// each.
func (l *loader) run(url string, number int, length time.Duration) (callResults, error) {
	end := time.Now().Add(length)
	all := make([]callResults, number)
	failures := make([]error, number)
	var wg sync.WaitGroup
	for i := range number {
		wg.Go(func() {
			for first := true; failures[i] == nil && (first || time.Now().Before(end)); first = false {
				failures[i] = all[i].call(l.client, url)
			}
		})
	}
	wg.Wait()
	var sum callResults
	for _, r := range all {
		sum.milliseconds = append(sum.milliseconds, r.milliseconds...)
		sum.successful += r.successful
	}
	return sum, errors.Join(failures...)
}

// call sends one request and reads its response. A response that is not one of
// the server's is an error.
func (r *callResults) call(client *http.Client, url string) error {
	start := time.Now()
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	size, err := io.Copy(io.Discard, resp.Body)
	if err != nil {
		return err
	}
	switch {
	case resp.StatusCode == http.StatusOK && size == successBytes:
		r.successful++
	case resp.StatusCode != http.StatusServiceUnavailable || size != failureBytes:
		return fmt.Errorf("GET %s: got %s with %d bytes", url, resp.Status, size)
	}
	r.milliseconds = append(r.milliseconds, time.Since(start).Seconds()*1e3)
	return nil
}
