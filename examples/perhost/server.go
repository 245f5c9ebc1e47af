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

	mu       sync.Mutex
	requests map[string]int  // by host name
	charges  map[string]int  // payments that were charged, by host name
	keys     map[string]bool // idempotency keys that were charged
}

func newServer() *server {
	s := &server{requests: map[string]int{}, charges: map[string]int{}, keys: map[string]bool{}}
	s.Server = httptest.NewServer(s)
	return s
}

// ServeHTTP fails as the hosts do.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := s.count(r)
	switch {
	// The payment was charged, which the client cannot know.
	case r.Host == "api.example.test" && n == 1,
		r.Host == "search.example.test" && n == 2,
		r.Host == "eu.cdn.example.test":
		w.WriteHeader(http.StatusServiceUnavailable)
	case r.Host == "search.example.test" && n == 1:
		<-r.Context().Done() // the client closed the connection
	}
}

// count returns the number, from 1, of a request to its host name. A POST is
// charged, but only once for each idempotency key.
func (s *server) count(r *http.Request) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[r.Host]++
	key := r.Header.Get("Idempotency-Key")
	if r.Method == http.MethodPost && (key == "" || !s.keys[key]) {
		s.charges[r.Host]++
		s.keys[key] = true
	}
	return s.requests[r.Host]
}

// saw returns the counts of a host name.
func (s *server) saw(host string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("requests: %d", s.requests[host])
	if n := s.charges[host]; n > 0 {
		text += fmt.Sprintf(", charges: %d", n)
	}
	return text
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
