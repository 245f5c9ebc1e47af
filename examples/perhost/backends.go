package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
)

// backends holds the servers for the host names.
type backends struct {
	api, search, cdn *backend
}

func startBackends() (*backends, error) {
	api, err1 := start(charge)
	search, err2 := start(searching)
	cdn, err3 := start(mirror)
	b := &backends{api, search, cdn}
	if err := errors.Join(err1, err2, err3); err != nil {
		b.stop()
		return nil, err
	}
	return b, nil
}

func (b *backends) stop() {
	for _, one := range []*backend{b.api, b.search, b.cdn} {
		if one != nil {
			_ = one.http.Close()
			<-one.done
		}
	}
}

func (b *backends) tally(host string) tally {
	one := b.serving(host)
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.tallies[host]
}

// serving returns the server for a host name.
func (b *backends) serving(host string) *backend {
	switch {
	case host == "api.example.test":
		return b.api
	case host == "search.example.test":
		return b.search
	case strings.HasSuffix(host, ".cdn.example.test"):
		return b.cdn
	}
	return nil
}

// transport returns a base that connects to the servers without DNS, where
// names below .test do not exist (RFC 6761). It has no Proxy, since a proxy
// would look the names up.
func (b *backends) transport() *http.Transport {
	var dialer net.Dialer
	return &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			one := b.serving(host)
			if one == nil {
				return nil, fmt.Errorf("no server for %q", host)
			}
			return dialer.DialContext(ctx, network, one.addr)
		},
	}
}

// tally has a server's counts for a host name.
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

// backend is a server that counts its requests and then answers them.
type backend struct {
	addr   string
	http   http.Server
	done   chan struct{} // closed when the server has stopped serving
	answer func(w http.ResponseWriter, r *http.Request, n int)

	mu      sync.Mutex
	tallies map[string]tally // by host name
	keys    map[string]bool  // idempotency keys that were charged
}

func start(answer func(w http.ResponseWriter, r *http.Request, n int)) (*backend, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &backend{
		addr:    listener.Addr().String(),
		done:    make(chan struct{}),
		answer:  answer,
		tallies: make(map[string]tally),
		keys:    make(map[string]bool),
	}
	b.http.Handler = b
	go func() {
		defer close(b.done)
		_ = b.http.Serve(listener) // http.ErrServerClosed, after stop
	}()
	return b, nil
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) { b.answer(w, r, b.count(r)) }

// count returns the number, from 1, of a request to its host name. A POST is
// charged, but only once for each idempotency key.
func (b *backend) count(r *http.Request) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tallies[r.Host]
	t.requests++
	if key := r.Header.Get("Idempotency-Key"); r.Method == http.MethodPost &&
		(key == "" || !b.keys[key]) {
		t.charges++
		b.keys[key] = true
	}
	b.tallies[r.Host] = t
	return t.requests
}

// charge fails after the payment was charged, which the client cannot know.
func charge(w http.ResponseWriter, _ *http.Request, n int) {
	if n == 1 {
		http.Error(w, "unavailable", http.StatusServiceUnavailable)
	}
}

// searching does not answer, then is busy, then answers.
func searching(w http.ResponseWriter, r *http.Request, n int) {
	switch n {
	case 1:
		<-r.Context().Done() // the client closed the connection
	case 2:
		http.Error(w, "busy", http.StatusServiceUnavailable)
	}
}

// mirror fails for the European host name.
func mirror(w http.ResponseWriter, r *http.Request, _ int) {
	if strings.HasPrefix(r.Host, "eu.") {
		http.Error(w, "down", http.StatusServiceUnavailable)
	}
}
