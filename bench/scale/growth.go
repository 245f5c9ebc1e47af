package main

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry"
)

// A curve shows how the cost of a success grows with the number of something.
type curve struct {
	Name   string // the unit, "hosts"
	Points []point
}

// A point is the cost of a success at one number.
type point struct {
	N      int
	Nanos  summary // of CPU time per request, without that of Base
	Growth summary // Nanos divided by that of the first point
	Allocs float64 // per request
}

// A setup is the load of one point: goroutines that send GET requests to hosts
// in turn.
type setup struct {
	n, goroutines int
	hosts         []string
	transport     http.RoundTripper
	batches       atomic.Int64 // sent so far; a window continues with the next host

	nanos, allocs []float64 // per request, for each window
}

// batch is the number of requests between two readings of the clock.
const batch = 500

// instant is a Base that answers at once. Each request has its own response in
// the field for that of a redirect, so that goroutines share no response.
type instant struct{}

func (instant) RoundTrip(req *http.Request) (*http.Response, error) { return req.Response, nil }

func newRequest(url string) (*http.Request, error) {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Response = &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}
	return req, nil
}

// manyHosts is fewer than the tables of hosts have room for.
const manyHosts = 1000

// measureGrowth measures the curves whose names match. The windows of a curve
// alternate with those of Base alone.
func measureGrowth(p plan, match *regexp.Regexp) ([]curve, error) {
	var curves []curve
	for _, c := range []struct {
		name    string
		numbers []int
		setup   func(int) (*setup, error)
	}{
		{"hosts", p.hosts, hostsSetup},
		{"patterns", p.patterns, patternsSetup},
		{"goroutines", p.goroutines, goroutinesSetup},
		{"goroutines that send to 1,000 hosts", p.goroutines, goroutinesToManySetup},
	} {
		if !match.MatchString(c.name) {
			continue
		}
		points, err := measureCurve(p, c.numbers, c.setup)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		curves = append(curves, curve{c.name, points})
	}
	return curves, nil
}

func measureCurve(p plan, numbers []int, newSetup func(int) (*setup, error)) ([]point, error) {
	base := &setup{goroutines: 1, hosts: hostNames(1), transport: instant{}}
	setups := []*setup{base}
	for _, n := range numbers {
		s, err := newSetup(n)
		if err != nil {
			return nil, err
		}
		setups = append(setups, s)
	}
	var windows []func() error
	for _, s := range setups {
		windows = append(windows, func() error { return s.measure(p.growthWindow) })
	}
	if err := alternate(p.growthRounds, windows); err != nil {
		return nil, err
	}
	return points(base, setups[1:]), nil
}

// points summarizes the windows of setups.
func points(base *setup, setups []*setup) []point {
	var all []point
	first := differences(setups[0].nanos, base.nanos)
	for _, s := range setups {
		added := differences(s.nanos, base.nanos)
		all = append(all, point{
			N:      s.n,
			Nanos:  summarize(added),
			Growth: summarize(quotients(added, first)),
			Allocs: summarize(s.allocs).Median,
		})
	}
	return all
}

// hostsSetup sends to n hosts in turn, which is the worst order for a table of
// the hosts that were used last.
func hostsSetup(n int) (*setup, error) {
	return newSetup(n, 1, hostNames(n), nil)
}

// patternsSetup sends to 64 hosts, each of which matches one of n patterns.
func patternsSetup(n int) (*setup, error) {
	policies := make(map[string]httpretry.Policy, n)
	for i := range n {
		policies[fmt.Sprintf("*.%d.example.com", i)] = httpretry.Policy{MaxAttempts: 2}
	}
	hosts := hostNames(64)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("api-%d.%d.example.com", i, i%n)
	}
	return newSetup(n, 1, hosts, policies)
}

// goroutinesSetup sends from n goroutines to one host.
func goroutinesSetup(n int) (*setup, error) {
	return newSetup(n, n, hostNames(1), nil)
}

// goroutinesToManySetup sends from n goroutines to many hosts in turn.
func goroutinesToManySetup(n int) (*setup, error) {
	return newSetup(n, n, hostNames(manyHosts), nil)
}

func hostNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("api-%d.example.com", i)
	}
	return names
}

func newSetup(n, goroutines int, hosts []string, policies map[string]httpretry.Policy) (*setup, error) {
	transport, err := httpretry.New(httpretry.Config{Base: instant{}, Policies: policies})
	if err != nil {
		return nil, err
	}
	return &setup{n: n, goroutines: goroutines, hosts: hosts, transport: transport}, nil
}

// measure adds the result of one window.
func (s *setup) measure(length time.Duration) error {
	// No window pays for the garbage of the one before.
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	started, err := cpuTime()
	if err != nil {
		return err
	}
	sent, err := s.send(length)
	if err != nil {
		return err
	}
	ended, err := cpuTime()
	if err != nil {
		return err
	}
	runtime.ReadMemStats(&after)
	s.nanos = append(s.nanos, float64(ended-started)/float64(sent))
	s.allocs = append(s.allocs, float64(after.Mallocs-before.Mallocs)/float64(sent))
	return nil
}

// send returns the number of requests that it sent.
func (s *setup) send(length time.Duration) (int64, error) {
	end := time.Now().Add(length)
	before := s.batches.Load()
	failures := make([]error, s.goroutines)
	var wg sync.WaitGroup
	for g := range failures {
		wg.Go(func() {
			req, err := newRequest("http://" + s.hosts[0])
			for err == nil && time.Now().Before(end) {
				err = s.sendBatch(req, int(s.batches.Add(1)-1)*batch)
			}
			failures[g] = err
		})
	}
	wg.Wait()
	return (s.batches.Load() - before) * batch, errors.Join(failures...)
}

// sendBatch sends req to the hosts from number first on.
func (s *setup) sendBatch(req *http.Request, first int) error {
	for i := range batch {
		req.URL.Host = s.hosts[(first+i)%len(s.hosts)]
		resp, err := s.transport.RoundTrip(req)
		// A success returns Base's response.
		if err != nil || resp != req.Response {
			return fmt.Errorf("a request to %s: got %v, %w; want the response of Base", req.URL.Host, resp, err)
		}
	}
	return nil
}

// differences and quotients combine the values of two setups in each window.
func differences(a, b []float64) []float64 {
	result := slices.Clone(a)
	for i := range result {
		result[i] -= b[i]
	}
	return result
}

func quotients(a, b []float64) []float64 {
	result := slices.Clone(a)
	for i := range result {
		result[i] /= b[i]
	}
	return result
}
