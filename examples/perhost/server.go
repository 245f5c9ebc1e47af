package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
)

// server answers for all hosts, and counts their requests.
type server struct {
	*httptest.Server

	mu      sync.Mutex
	tallies map[string]tally // by host name
	keys    map[string]bool  // idempotency keys that were charged
}

// tally has the counts for a host name.
type tally struct {
	requests int // requests that arrived
	charges  int // payments that were charged
}

func (t tally) String() string {
	text := fmt.Sprintf("%d requests", t.requests)
	if t.requests == 1 {
		text = "1 request"
	}
	if t.charges > 0 {
		text += fmt.Sprintf(", charged %d×", t.charges)
	}
	return text
}

func newServer() *server {
	s := &server{tallies: make(map[string]tally), keys: make(map[string]bool)}
	s.Server = httptest.NewServer(s)
	return s
}

// ServeHTTP fails as the hosts do.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := s.count(r)
	switch {
	case r.Host == "api.example.test" && n == 1:
		// The payment was charged, which the client cannot know.
		http.Error(w, "unavailable", http.StatusServiceUnavailable)
	case r.Host == "search.example.test" && n == 1:
		<-r.Context().Done() // the client closed the connection
	case r.Host == "search.example.test" && n == 2:
		http.Error(w, "busy", http.StatusServiceUnavailable)
	case r.Host == "eu.cdn.example.test":
		http.Error(w, "down", http.StatusServiceUnavailable)
	}
}

// count returns the number, from 1, of a request to its host name. A POST is
// charged, but only once for each idempotency key.
func (s *server) count(r *http.Request) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tallies[r.Host]
	t.requests++
	key := r.Header.Get("Idempotency-Key")
	if r.Method == http.MethodPost && (key == "" || !s.keys[key]) {
		t.charges++
		s.keys[key] = true
	}
	s.tallies[r.Host] = t
	return t.requests
}

func (s *server) tally(host string) tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tallies[host]
}

// transport returns a base that connects to s without DNS, where names below
// .test do not exist (RFC 6761). It has no Proxy, since a proxy would look the
// names up.
func (s *server) transport() *http.Transport {
	var dialer net.Dialer
	return &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, s.Listener.Addr().String())
		},
	}
}
