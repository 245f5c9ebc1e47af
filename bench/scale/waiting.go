package main

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

// A waitingRow has the memory of requests that wait for their retry.
type waitingRow struct {
	Name        string
	Requests    int
	Heap, Stack float64 // bytes per request
	Goroutines  float64 // per request
	Sockets     int64   // of all requests
}

// maxConnections is the number of connections over which the first attempts
// are sent.
const maxConnections = 64

// direct is a client that calls RoundTrip.
type direct struct{ http.RoundTripper }

func (d direct) Do(req *http.Request) (*http.Response, error) { return d.RoundTrip(req) }

// measureWaiting measures n waiting requests with each of the peers, below an
// http.Client and without it.
func measureWaiting(url string, n int, all []peers.Peer) ([]waitingRow, error) {
	makeGoroutines(n)
	var rows []waitingRow
	for _, p := range all {
		below, err := measureWaitingWith(url, n, p.New)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		alone, err := measureWaitingWith(url, n, func(o peers.Options) peers.Client { return direct{p.RoundTripper(o)} })
		if err != nil {
			return nil, fmt.Errorf("%s without http.Client: %w", p.Name, err)
		}
		below.Name, alone.Name = p.Name, p.Name+" without http.Client"
		rows = append(rows, below, alone)
	}
	return rows, nil
}

func measureWaitingWith(url string, n int, newClient func(peers.Options) peers.Client) (waitingRow, error) {
	w := &waiters{url: url, counts: new(connections)}
	w.transport = newBase(w.counts, maxConnections, maxConnections)
	w.client = newClient(peers.Options{Base: w.transport, Wait: time.Hour, NoBudget: true})
	defer w.stop()
	return w.measure(n)
}

// makeGoroutines starts n goroutines at the same time. The runtime keeps their
// descriptors, which the first measurement would have to pay for.
func makeGoroutines(n int) {
	var group sync.WaitGroup
	end := make(chan struct{})
	for range n {
		group.Go(func() { <-end })
	}
	close(end)
	group.Wait()
}

// waiters are requests that wait for their retry.
type waiters struct {
	url       string
	client    peers.Client
	transport *http.Transport // below the client
	counts    *connections    // of the transport

	cancel   context.CancelFunc // nil before the requests are sent
	group    sync.WaitGroup
	returned atomic.Int64 // calls that did not wait
}

// measure sends n requests, and measures them when all of them wait.
func (w *waiters) measure(n int) (waitingRow, error) {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	first, err := served(w.url)
	if err != nil {
		return waitingRow{}, err
	}
	before := readMemory()
	for range n {
		w.group.Go(func() { w.send(ctx) })
	}
	if err := w.await(first + int64(n)); err != nil {
		return waitingRow{}, err
	}
	after := readMemory()
	last, err := served(w.url)
	if err != nil {
		return waitingRow{}, err
	}
	if returned := w.returned.Load(); returned != 0 || last != first+int64(n) {
		return waitingRow{}, fmt.Errorf("%d requests did not wait, and the server got %d; want 0 and %d", returned, last-first, n)
	}
	return waitingRow{
		Requests:   n,
		Heap:       (after.heap - before.heap) / float64(n),
		Stack:      (after.stack - before.stack) / float64(n),
		Goroutines: (after.goroutines - before.goroutines) / float64(n),
		Sockets:    w.counts.open.Load(),
	}, nil
}

// send returns when w is stopped.
func (w *waiters) send(ctx context.Context) {
	defer w.returned.Add(1)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/down", nil)
	if err != nil {
		return
	}
	if resp, err := w.client.Do(req); err == nil {
		resp.Body.Close()
	}
}

// stop cancels the requests.
func (w *waiters) stop() {
	if w.cancel != nil {
		w.cancel()
	}
	w.group.Wait()
}

// await waits until the server has had a number of requests, and until no
// connection is in use. If connections stay in use, it returns after a while.
func (w *waiters) await(requests int64) error {
	const pause = 50 * time.Millisecond
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(pause) {
		now, err := served(w.url)
		if err != nil {
			return err
		}
		if now >= requests {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the server got %d requests in a minute; want %d", now, requests)
		}
	}
	for deadline := time.Now().Add(5 * time.Second); w.counts.open.Load() > 0 && time.Now().Before(deadline); {
		time.Sleep(pause)
		w.transport.CloseIdleConnections()
	}
	// The last requests to free their connections begin to wait now.
	time.Sleep(pause)
	return nil
}

// memory is the memory of this process.
type memory struct{ heap, stack, goroutines float64 }

func readMemory() memory {
	// The first collection makes the stacks smaller, and the second one frees
	// the memory that finalizers and pools have kept.
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return memory{float64(stats.HeapAlloc), float64(stats.StackInuse), float64(runtime.NumGoroutine())}
}
