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

// running is a fleet of processes, of which each has a RetryTransport, and the
// Base of these.
type running struct {
	Scenario
	Client
	begin time.Time
	url   *url.URL

	mu     sync.Mutex
	server func(now time.Duration) Answer // called for one attempt at a time, in the order of time
	result *Result
}

// Run simulates a fleet: it sends requests at random times, waits for their ends
// and counts them. It must be called in a bubble of package virtual.
func (s Scenario) Run(c Client) (*Result, error) {
	n := s.Length / Bucket
	r := &running{
		Scenario: s, Client: c, begin: time.Now(), url: &url.URL{Scheme: "http", Host: "server.test", Path: "/"},
		server: s.server(), result: &Result{
			scenario: s, Begun: make([]int, n), OK: make([]int, n), Attempts: make([]int, n), Successes: make([]int, n),
		},
	}
	transports := make([]*httpretry.RetryTransport, c.Processes)
	random := rand.New(rand.NewPCG(s.Seed, 10))
	at := time.Duration(0)
	var wg sync.WaitGroup
	for i := 0; ; i++ {
		at += time.Duration(random.ExpFloat64() / s.Rate * float64(time.Second))
		process := random.IntN(c.Processes)
		if at >= s.Length {
			break
		}
		time.Sleep(at.Truncate(tick) + time.Duration(i)%tick - time.Since(r.begin))
		transport := transports[process]
		if transport == nil {
			policy := c.Policy()
			// Otherwise, a request that never succeeds would never end.
			if policy.MaxAttempts < 0 && policy.MaxElapsed == 0 && c.Deadline == 0 {
				r.Deadline = s.Length
			}
			if policy.Backoff != nil {
				policy.Backoff = virtual.Ticking{Strategy: policy.Backoff, Tick: tick}
			}
			var err error
			if transport, err = httpretry.New(httpretry.Config{Base: r, Policy: policy}); err != nil {
				return nil, err
			}
			transports[process] = transport
		}
		wg.Go(func() { r.request(transport) })
		// Without this, two requests might run at the same time, in any order.
		synctest.Wait()
	}
	wg.Wait()
	return r.result, nil
}

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
	r.result.ended(start, time.Since(r.begin), ok)
}

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
	count(r.result.Attempts, now)
	if isRetry {
		r.result.Retries++
	}
	return r.server(now)
}
