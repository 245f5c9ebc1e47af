package faults

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// Wire counts the bytes that a transport reads, and can stop its writes.
type Wire struct {
	Read    atomic.Int64  // bytes that the transport has read
	Stalled chan struct{} // closed when a write has begun to wait

	stall atomic.Bool
	once  sync.Once
}

// Watch returns a Wire for base, which must not have been used.
func Watch(base *http.Transport) *Wire {
	w := &Wire{Stalled: make(chan struct{})}
	WrapConns(base, func(conn net.Conn) net.Conn {
		return &wiredConn{ObservedConn: observed(conn), wire: w}
	})
	return w
}

// WrapConns replaces each new connection of base with the result of wrap.
func WrapConns(base *http.Transport, wrap func(net.Conn) net.Conn) {
	dial := base.DialContext
	if dial == nil {
		// As for http.DefaultTransport on js/wasm.
		dial = new(net.Dialer).DialContext
	}
	base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	}
}

// ObservedConn is a connection with a channel that says when it is closed.
type ObservedConn struct {
	net.Conn
	Closed chan struct{} // closed by Close
	once   sync.Once
}

func observed(conn net.Conn) *ObservedConn {
	return &ObservedConn{Conn: conn, Closed: make(chan struct{})}
}

// ObserveConns returns a channel that receives each new connection of base. It
// holds 10.
func ObserveConns(base *http.Transport) <-chan *ObservedConn {
	conns := make(chan *ObservedConn, 10)
	WrapConns(base, func(conn net.Conn) net.Conn {
		c := observed(conn)
		conns <- c
		return c
	})
	return conns
}

// Close implements net.Conn.
func (c *ObservedConn) Close() error {
	c.once.Do(func() { close(c.Closed) })
	return c.Conn.Close()
}

// Stall makes each later write wait until its connection is closed, as if the
// server had stopped reading.
func (w *Wire) Stall() { w.stall.Store(true) }

type wiredConn struct {
	*ObservedConn
	wire *Wire
}

func (c *wiredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wire.Read.Add(int64(n))
	return n, err
}

func (c *wiredConn) Write(p []byte) (int, error) {
	if c.wire.stall.Load() {
		c.wire.once.Do(func() { close(c.wire.Stalled) })
		<-c.Closed
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}
