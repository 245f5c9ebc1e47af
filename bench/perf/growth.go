package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/bench/internal/child"
)

// growth shows how the cost of a success of httpretry grows with the number of
// something.
type growth struct {
	name    string // the unit, "hosts"
	numbers []int
	load    func(n int) load
}

// load is a number of goroutines that send GETs to hosts in turn.
type load struct {
	goroutines int
	hosts      []string
	policies   map[string]httpretry.Policy
}

func growthRows() []growth {
	goroutines := []int{1, 2, 4, 8, 16, 32, 64}
	return []growth{
		// In turn is the worst order for a table of the hosts used last.
		{"hosts", []int{1, 10, 100, 1000, 2000, 10_000, 100_000}, func(n int) load {
			return load{goroutines: 1, hosts: hostNames(n)}
		}},
		{"patterns", []int{1, 10, 100, 1000}, loadOfPatterns},
		{"goroutines", goroutines, func(n int) load {
			return load{goroutines: n, hosts: hostNames(1)}
		}},
		{"goroutines that send to 1,000 hosts", goroutines, func(n int) load {
			return load{goroutines: n, hosts: hostNames(1000)}
		}},
	}
}

func hostNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("api-%d.example.com", i)
	}
	return names
}

// loadOfPatterns has 64 hosts, each of which matches one of n patterns.
func loadOfPatterns(n int) load {
	l := load{goroutines: 1, hosts: hostNames(64), policies: make(map[string]httpretry.Policy, n)}
	for i := range n {
		l.policies[fmt.Sprintf("*.%d.example.com", i)] = httpretry.Policy{MaxAttempts: 2}
	}
	for i := range l.hosts {
		l.hosts[i] = fmt.Sprintf("api-%d.%d.example.com", i, i%n)
	}
	return l
}

// traffic sends the requests of a load.
type traffic struct {
	transport http.RoundTripper
	hosts     []string
	requests  []*http.Request // one for each goroutine
	sent      int
	wrong     atomic.Int64 // responses
}

// newTraffic returns a contestant that sends a load.
func newTraffic(l load, transport http.RoundTripper) *contestant {
	t := &traffic{transport: transport, hosts: l.hosts}
	for range l.goroutines {
		req, err := http.NewRequest(http.MethodGet, "http://"+l.hosts[0], nil)
		if err != nil {
			panic(err) // the names of the hosts are valid
		}
		req.Response = &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}
		t.requests = append(t.requests, req)
	}
	return &contestant{send: t.send, check: t.check, perRun: l.goroutines}
}

// instant is a base. It returns the response in the request's field for that of
// a redirect, so that goroutines share no response.
type instant struct{}

func (instant) RoundTrip(req *http.Request) (*http.Response, error) { return req.Response, nil }

// send sends n requests. The first is to the host after the last one.
func (t *traffic) send(n int) {
	var wg sync.WaitGroup
	for g, req := range t.requests {
		first, end := t.sent+n*g/len(t.requests), t.sent+n*(g+1)/len(t.requests)
		wg.Go(func() {
			for i := first; i < end; i++ {
				req.URL.Host = t.hosts[i%len(t.hosts)]
				resp, err := t.transport.RoundTrip(req)
				if err != nil || resp != req.Response {
					t.wrong.Add(1)
				}
			}
		})
	}
	wg.Wait()
	t.sent += n
}

func (t *traffic) check() []string {
	if n := int(t.wrong.Load()); n > 0 {
		return []string{share(n, t.sent) + "does not return the base's response"}
	}
	return nil
}

// run measures and returns the table.
func (g growth) run(_ *child.Server, p plan, rng *rand.Rand) table {
	base := newTraffic(load{goroutines: 1, hosts: hostNames(1)}, instant{})
	all := []*contestant{base}
	for _, n := range g.numbers {
		l := g.load(n)
		transport, err := httpretry.New(httpretry.Config{Base: instant{}, Policies: l.policies})
		if err != nil {
			panic(err) // these settings are valid
		}
		all = append(all, newTraffic(l, transport))
	}
	withoutCollections(func() { measure(all, p.growthRounds, p.growthLength, rng) })
	return g.table(base, all[1:])
}

func (g growth) table(base *contestant, all []*contestant) table {
	t := table{title: g.title(), head: []string{g.name, "RoundTrip: CPU added", "ratio to the first row", "allocations"}}
	added := func(c *contestant) []float64 {
		return pairwise(c.samples, base.samples, func(a, b sample) float64 { return a.cpu - b.cpu })
	}
	first := added(all[0])
	for i, c := range all {
		ratios := added(c)
		cost := formatTimes(summarize(ratios))
		for round := range ratios {
			ratios[round] /= first[round]
		}
		t.rows = append(t.rows, []string{
			formatCount(g.numbers[i]), cost, formatRatio(summarize(ratios)), allocations(c, base),
		})
		t.failures = append(t.failures, prefix(fmt.Sprintf("%s: %d: ", t.title, g.numbers[i]), c.problems)...)
	}
	return t
}

func (g growth) title() string { return "Growth: success by the number of " + g.name }
