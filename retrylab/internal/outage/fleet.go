package outage

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"testing/synctest"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/virtual"
)

// A Fleet is processes that send requests to one server. Each process has a
// RetryTransport of its own. It must run in a bubble of package virtual.
type Fleet struct {
	Processes int
	Rate      float64       // of requests per second, of all processes together
	Length    time.Duration // until the last request begins
	Deadline  time.Duration // of a request; 0: none
	Policy    func(process int) httpretry.Policy
	Seed      uint64

	// Answer is the server. It is called for one attempt at a time, in the order
	// of time.
	Answer func(now time.Duration) Answer
}

// tick is that of all times. The nanoseconds below it are the number of the
// request: see virtual.Ticking.
const tick = 100 * time.Microsecond

// An Answer is a server's answer to an attempt.
type Answer struct {
	After      time.Duration // until it arrives
	Status     int
	RetryAfter time.Duration // that the answer asks for; 0: it asks for none
	Err        error         // instead of a response
}

// running is a Fleet that is running. It is the Base of its transports.
type running struct {
	Fleet
	begin time.Time
	url   *url.URL

	mu     sync.Mutex
	result *Result
}

// Run sends requests at random times, waits for their ends and counts them.
func (f Fleet) Run(result *Result) error {
	r := &running{
		Fleet: f, begin: time.Now(), result: result, url: &url.URL{Scheme: "http", Host: "server.test", Path: "/"}}
	transports := make([]*httpretry.RetryTransport, f.Processes)
	random := rand.New(rand.NewPCG(f.Seed, 10))
	at := time.Duration(0)
	var wg sync.WaitGroup
	for i := 0; ; i++ {
		at += time.Duration(random.ExpFloat64() / f.Rate * float64(time.Second))
		process := random.IntN(f.Processes)
		if at >= f.Length {
			break
		}
		time.Sleep(at.Truncate(tick) + time.Duration(i)%tick - time.Since(r.begin))
		transport := transports[process]
		if transport == nil {
			policy := f.Policy(process)
			if policy.Backoff != nil {
				policy.Backoff = virtual.Ticking{Strategy: policy.Backoff, Tick: tick}
			}
			var err error
			if transport, err = httpretry.New(httpretry.Config{Base: r, Policy: policy}); err != nil {
				return err
			}
			transports[process] = transport
		}
		wg.Go(func() { r.request(transport) })
		// Without this, two requests might run at the same time, in any order.
		synctest.Wait()
	}
	wg.Wait()
	return nil
}

// request sends a request and counts it.
func (r *running) request(transport http.RoundTripper) {
	start := time.Since(r.begin)
	ctx := context.Background()
	if r.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Deadline)
		defer cancel()
	}
	req := (&http.Request{Method: http.MethodGet, URL: r.url, Header: http.Header{}}).WithContext(ctx)
	resp, err := transport.RoundTrip(req)
	ok := err == nil && resp.StatusCode < http.StatusBadRequest
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Ended(start, time.Since(r.begin), ok)
}

// RoundTrip implements http.RoundTripper.
func (r *running) RoundTrip(req *http.Request) (*http.Response, error) {
	a := r.answer(req.Header.Get("Retry-Attempt") != "")
	if after := a.After.Truncate(tick); after > 0 {
		timer := time.NewTimer(after)
		defer timer.Stop()
		// The server does not notice that a client gives up, and works on.
		select {
		case <-timer.C:
		case <-req.Context().Done():
			return nil, context.Cause(req.Context())
		}
	}
	if a.Err != nil {
		return nil, a.Err
	}
	header := http.Header{}
	switch {
	case a.RetryAfter%time.Second > 0:
		header.Set("Retry-After-Ms", strconv.FormatInt(a.RetryAfter.Milliseconds(), 10))
	case a.RetryAfter > 0:
		header.Set("Retry-After", strconv.Itoa(int(a.RetryAfter/time.Second)))
	}
	return &http.Response{
		StatusCode: a.Status, ProtoMajor: 1, Header: header, Body: http.NoBody, Request: req,
	}, nil
}

func (r *running) answer(isRetry bool) Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.begin)
	r.result.Sent(now)
	if isRetry {
		r.result.Retries++
	}
	return r.Answer(now)
}
