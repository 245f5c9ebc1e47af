package main

import (
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A load is sent to all of its hosts in turn, by each of its goroutines with a
// request of its own.
func TestTraffic(t *testing.T) {
	rows := growthRows()
	for _, tt := range []struct {
		growth            growth
		n                 int
		hosts, goroutines int
		first             []string
	}{
		{rows[0], 300, 300, 1, []string{"api-0.example.com", "api-1.example.com"}},
		{rows[1], 2, 64, 1, []string{"api-0.0.example.com", "api-1.1.example.com", "api-2.0.example.com"}},
		{rows[2], 8, 1, 8, []string{"api-0.example.com"}},
		{rows[3], 8, 1000, 8, []string{}},
	} {
		t.Run(tt.growth.name, func(t *testing.T) {
			var mu sync.Mutex
			hosts, requests := []string{}, map[*http.Request]bool{}
			c := newTraffic(tt.growth.load(tt.n), roundTripFunc(func(req *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				hosts, requests[req] = append(hosts, req.URL.Host), true
				return req.Response, nil
			}))
			c.send(400)
			c.send(601) // goes on with the next host
			assert.Empty(t, c.check())
			assert.Len(t, hosts, 1001)
			assert.Equal(t, tt.first, hosts[:len(tt.first)])
			slices.Sort(hosts)
			assert.Len(t, slices.Compact(hosts), tt.hosts)
			assert.Len(t, requests, tt.goroutines)
		})
	}
}

// A response of another request and an error are problems, because the figures
// are those of successes.
func TestTrafficChecksResponses(t *testing.T) {
	answers := []error{nil, io.ErrUnexpectedEOF, nil, nil}
	c := newTraffic(growthRows()[0].load(2), roundTripFunc(func(req *http.Request) (*http.Response, error) {
		err := answers[0]
		if answers = answers[1:]; len(answers) == 3 {
			return new(http.Response), nil
		}
		return req.Response, err
	}))
	c.send(4)
	assert.Equal(t, []string{"50 %: does not return the base's response"}, c.check())
}

// The cost is that beyond the base's, and each round has its own ratio.
func TestGrowthTable(t *testing.T) {
	samples := func(allocs float64, cpu ...float64) *contestant {
		c := new(contestant)
		for _, ns := range cpu {
			c.samples = append(c.samples, sample{cpu: ns, allocs: allocs, bytes: 8 * allocs})
		}
		return c
	}
	base, few, many := samples(0, 10, 20, 30), samples(0, 110, 220, 430), samples(6, 210, 420, 1230)
	many.problems = []string{"x"}
	got := growth{name: "hosts", numbers: []int{1, 1000}}.table(base, []*contestant{few, many})
	assert.Equal(t, []string{"1", "200 (150 to 300) ns", "1.00× (1.00 to 1.00)", "0, 0 B"}, got.rows[0])
	assert.Equal(t, []string{"1,000", "400 (300 to 800) ns", "2.00× (2.00 to 2.50)", "6, 48 B"}, got.rows[1])
	assert.Equal(t, []string{"Growth: success by the number of hosts: 1000: x"}, got.failures)
}
