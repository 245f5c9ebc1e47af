package main

import (
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestPoints(t *testing.T) {
	base := &setup{nanos: []float64{10, 20, 30}}
	got := points(base, []*setup{
		{n: 1, nanos: []float64{110, 120, 130}, allocs: []float64{0, 0, 0}},
		{n: 10, nanos: []float64{210, 320, 430}, allocs: []float64{6, 5, 6}},
	})
	assert.Equal(t, []point{
		{N: 1, Nanos: summary{100, 100, 100}, Growth: summary{1, 1, 1}},
		{N: 10, Nanos: summary{300, 250, 350}, Growth: summary{3, 2.5, 3.5}, Allocs: 6},
	}, got)
}

func TestSetupsSendToAllHostsInTurn(t *testing.T) {
	for _, test := range []struct {
		name  string
		setup func(int) (*setup, error)
		n     int
		hosts []string // the first ones
		count int
	}{
		{"hosts", hostsSetup, 300, []string{"api-0.example.com", "api-1.example.com"}, 300},
		{"patterns", patternsSetup, 2, []string{"api-0.0.example.com", "api-1.1.example.com", "api-2.0.example.com"}, 64},
		{"goroutines", goroutinesSetup, 8, []string{"api-0.example.com", "api-0.example.com"}, 1},
		{"goroutines, many hosts", goroutinesToManySetup, 8, []string{"api-0.example.com", "api-1.example.com"}, batch},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := test.setup(test.n)
			require.NoError(t, err)
			assert.Equal(t, test.n, s.n)
			var sent []string
			count := map[string]bool{}
			s.transport = roundTripFunc(func(req *http.Request) (*http.Response, error) {
				sent = append(sent, req.URL.Host)
				count[req.URL.Host] = true
				return req.Response, nil
			})
			req, err := newRequest("http://example.com")
			require.NoError(t, err)
			require.NoError(t, s.sendBatch(req, 0))
			assert.Equal(t, test.hosts, sent[:len(test.hosts)])
			assert.Len(t, count, test.count)
		})
	}
}

// The setups for goroutines send from as many, each with a request of its own.
func TestSetupsSendFromAllGoroutines(t *testing.T) {
	for _, newSetup := range []func(int) (*setup, error){goroutinesSetup, goroutinesToManySetup} {
		const n = 8
		s, err := newSetup(n)
		require.NoError(t, err)
		var mu sync.Mutex
		sent := map[*http.Request]int{}
		s.transport = roundTripFunc(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			sent[req]++
			return nil, io.ErrUnexpectedEOF // ends the goroutine
		})
		_, err = s.send(time.Minute)
		assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
		assert.Len(t, sent, n)
		for _, requests := range sent {
			assert.Equal(t, 1, requests)
		}
	}
}

func TestMeasureCountsEachRequest(t *testing.T) {
	s, err := goroutinesSetup(3)
	require.NoError(t, err)
	require.NoError(t, s.measure(1e6))
	require.NoError(t, s.measure(1e6))
	assert.Len(t, s.nanos, 2)
	assert.Len(t, s.allocs, 2)
	assert.Positive(t, s.batches.Load())
}

func TestAnotherResponseEndsTheMeasurement(t *testing.T) {
	s, err := hostsSetup(2)
	require.NoError(t, err)
	s.transport = roundTripFunc(func(*http.Request) (*http.Response, error) { return new(http.Response), nil })
	assert.ErrorContains(t, s.measure(1e6), "want the response of Base")
}
