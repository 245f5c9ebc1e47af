package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// script has a handler for each of the first requests to a path. Later requests
// get a 200.
type script []http.HandlerFunc

// tally has the counts of the server for a path.
type tally struct {
	requests int // requests that arrived
	charges  int // payments that were charged for the POSTs among them
}

// server is the server of the demo. It fails as its scripts say. The scenarios
// are checked by its numbers.
type server struct {
	*httptest.Server

	mu      sync.Mutex
	scripts map[string]script // by path
	tallies map[string]tally  // by path
	keys    map[string]bool   // idempotency keys that were charged
}

func newServer() *server {
	s := &server{scripts: map[string]script{}, tallies: map[string]tally{}, keys: map[string]bool{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if handler := s.next(r); handler != nil {
			handler(w, r)
		}
	}))
	return s
}

// next counts a request and returns its handler, or nil for a 200.
func (s *server) next(r *http.Request) http.HandlerFunc {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, sc := s.tallies[r.URL.Path], s.scripts[r.URL.Path]
	t.requests++
	// A POST with a key is charged only the first time, so retries are safe.
	key := r.Header.Get("Idempotency-Key")
	if r.Method == http.MethodPost && (key == "" || !s.keys[key]) {
		t.charges++
		s.keys[key] = true
	}
	s.tallies[r.URL.Path] = t
	if t.requests > len(sc) {
		return nil
	}
	return sc[t.requests-1]
}

// play sets the script for a path.
func (s *server) play(path string, sc script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[path] = sc
}

func (s *server) tally(path string) tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tallies[path]
}

// status responds with a status and with headers, given as names and values in
// turn.
func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		fmt.Fprintln(w, http.StatusText(code))
	}
}

// throttle responds with 429 and a date in Retry-After. The client compares it
// with the Date of the same response, so its own clock does not matter.
func throttle(w http.ResponseWriter, r *http.Request) {
	now := time.Now().UTC()
	status(http.StatusTooManyRequests, "Date", now.Format(http.TimeFormat),
		"Retry-After", now.Add(time.Second).Format(http.TimeFormat))(w, r)
}

// reset resets the connection. With a linger of zero, Close sends a RST.
func reset(w http.ResponseWriter, _ *http.Request) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
}

// hang waits until the client closes the connection.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
