package faults

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// Wire watches and stalls what a transport has on its connections.
type Wire struct {
	Read    atomic.Int64  // bytes that the transport has taken from its connections
	Stalled chan struct{} // is closed when a write has begun to wait

	stall atomic.Bool
	once  sync.Once
}

// Watch puts a Wire under base, which must not have been used.
func Watch(base *http.Transport) *Wire {
	w := &Wire{Stalled: make(chan struct{})}
	WrapConns(base, func(conn net.Conn) net.Conn {
		return &wiredConn{ToldConn: told(conn), wire: w}
	})
	return w
}

// WrapConns puts what wrap returns in place of each connection that base makes
// from now on.
func WrapConns(base *http.Transport, wrap func(net.Conn) net.Conn) {
	dial := base.DialContext
	base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	}
}

// ToldConn tells when it is closed.
type ToldConn struct {
	net.Conn
	Closed chan struct{} // is closed with it
	once   sync.Once
}

func told(conn net.Conn) *ToldConn {
	return &ToldConn{Conn: conn, Closed: make(chan struct{})}
}

// Tell returns a channel that gets each connection that base makes from now on,
// up to 10.
func Tell(base *http.Transport) <-chan *ToldConn {
	conns := make(chan *ToldConn, 10)
	WrapConns(base, func(conn net.Conn) net.Conn {
		c := told(conn)
		conns <- c
		return c
	})
	return conns
}

// Close implements net.Conn.
func (c *ToldConn) Close() error {
	c.once.Do(func() { close(c.Closed) })
	return c.Conn.Close()
}

// Stall makes each write wait from now on until its connection is closed, as
// when the other side does not read any more.
func (w *Wire) Stall() { w.stall.Store(true) }

type wiredConn struct {
	*ToldConn
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
