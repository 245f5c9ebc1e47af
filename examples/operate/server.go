package main

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

// The hosts that the program sends requests to. One server answers for both.
const (
	tuned = "search.test" // the README changes its policy
	other = "prices.test"
)

// slow is the time of an answer that is late.
const slow = 2 * time.Second

// flaky fails as the hosts do: 30 % of the requests to tuned, and a few of
// those to other.
func flaky(w http.ResponseWriter, r *http.Request) {
	percent := rand.IntN(100)
	switch {
	case r.Host == other && percent < 5, r.Host == tuned && percent < 30:
		http.Error(w, "busy", http.StatusServiceUnavailable)
	case r.Host == tuned && percent < 35:
		select {
		case <-time.After(slow):
		case <-r.Context().Done(): // the client closed the connection
		}
	}
}

// server is a server on this machine.
type server struct {
	addr string
	http http.Server
	done chan struct{} // closed when the server has stopped serving
}

func serve(addr string, handler http.Handler) (*server, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &server{addr: listener.Addr().String(), done: make(chan struct{})}
	s.http.Handler = handler
	go func() {
		defer close(s.done)
		_ = s.http.Serve(listener) // http.ErrServerClosed, after stop
	}()
	return s, nil
}

func (s *server) stop() {
	_ = s.http.Close()
	<-s.done
}

// transport returns a base that connects to s for any host, because names below
// .test do not exist (RFC 6761). It has no Proxy, since a proxy would look the
// names up.
func (s *server) transport() *http.Transport {
	var dialer net.Dialer
	return &http.Transport{
		MaxIdleConnsPerHost: 50,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, s.addr)
		},
	}
}
