package faults

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
)

// Pipe returns a transport whose connections all lead to a server with this
// handler, over HTTP/1 and without a network. In a bubble of testing/synctest,
// both sides run in virtual time.
func Pipe(t testing.TB, handler http.HandlerFunc) *http.Transport {
	t.Helper()
	return pipe(t, Base(t, nil), handler)
}

// HTTP2Pipe is Pipe over HTTP/2.
func HTTP2Pipe(t testing.TB, handler http.HandlerFunc) *http.Transport {
	t.Helper()
	return pipe(t, HTTP2Base(t), handler)
}

// pipe connects base to a server with the same protocols.
func pipe(t testing.TB, base *http.Transport, handler http.HandlerFunc) *http.Transport {
	t.Helper()
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	var running sync.WaitGroup
	srv := &http.Server{
		Protocols: base.Protocols,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Done()
			handler(w, r)
		})}
	running.Go(func() { _ = srv.Serve(l) })
	base.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		client, server := net.Pipe()
		select {
		case l.conns <- server:
			return client, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	t.Cleanup(func() { base.CloseIdleConnections(); _ = srv.Close(); running.Wait() })
	return base
}

// PipeConns is Pipe with a function that serves each connection, as for
// [Listen]. A pipe cannot be reset, nor closed for writing only.
func PipeConns(t testing.TB, serve func(*Conn)) (*http.Transport, *Server) {
	t.Helper()
	s := &Server{Addr: "pipe.test"}
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		conns   []net.Conn
	)
	base := Base(t, nil)
	base.DialContext = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		mu.Lock()
		conns = append(conns, server)
		mu.Unlock()
		number := int(s.Conns.Add(1))
		running.Go(func() {
			defer server.Close()
			serve(&Conn{server, bufio.NewReader(server), number, nil, s})
		})
		return client, nil
	}
	t.Cleanup(func() {
		base.CloseIdleConnections()
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return base, s
}

type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }
