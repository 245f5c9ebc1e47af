package main

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
)

// tally has the server's counts for a path.
type tally struct {
	requests int // requests that arrived
	charges  int // payments that were charged for the POSTs among them
}

// server is the server of the demo. It fails as its scripts say and counts its
// requests. The scenarios are checked by these numbers.
type server struct {
	url    string
	origin string // by which a budget knows it
	http   http.Server
	done   chan struct{} // closed when the server has stopped serving

	mu      sync.Mutex
	scripts map[string]script // by path
	tallies map[string]tally  // by path
	keys    map[string]bool   // idempotency keys that were charged
}

// script has a handler for each of the first requests to a path. Later requests
// get a 200.
type script []http.HandlerFunc

func startServer() (*server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := url.URL{Scheme: "http", Host: listener.Addr().String()}
	s := &server{
		url:     address.String(),
		origin:  httpretry.Origin(&address),
		done:    make(chan struct{}),
		scripts: make(map[string]script),
		tallies: make(map[string]tally),
		keys:    make(map[string]bool),
	}
	s.http.Handler = s
	go func() {
		defer close(s.done)
		_ = s.http.Serve(listener) // http.ErrServerClosed, after stop
	}()
	return s, nil
}

func (s *server) stop() {
	_ = s.http.Close() // all clients are done
	<-s.done
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.next(r)(w, r)
}

// next counts a request and returns its handler.
func (s *server) next(r *http.Request) http.HandlerFunc {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := r.URL.Path
	t, sc := s.tallies[path], s.scripts[path]
	t.requests++
	if r.Method == http.MethodPost && s.isNew(r.Header.Get("Idempotency-Key")) {
		t.charges++
	}
	s.tallies[path] = t
	if t.requests <= len(sc) {
		return sc[t.requests-1]
	}
	return func(http.ResponseWriter, *http.Request) {} // 200
}

// isNew reports whether a POST is to be charged. One without a key always is,
// and one with a key only the first time. So retries with a key are safe.
func (s *server) isNew(key string) bool {
	if key == "" {
		return true
	}
	known := s.keys[key]
	s.keys[key] = true
	return !known
}

// play sets the script for a path.
func (s *server) play(path string, sc script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[path] = sc
}

// tally returns the server's counts for a path.
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
func throttle(after time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now().UTC()
		w.Header().Set("Date", now.Format(http.TimeFormat))
		w.Header().Set("Retry-After", now.Add(after).Format(http.TimeFormat))
		w.WriteHeader(http.StatusTooManyRequests)
	}
}

// reset resets the connection. With a linger of zero, Close sends a RST.
func reset(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// hang waits until the client closes the connection.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
