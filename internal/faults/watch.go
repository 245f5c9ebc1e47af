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
	dial := base.DialContext
	base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &wiredConn{Conn: conn, wire: w, closed: make(chan struct{})}, nil
	}
	return w
}

// Stall makes each write wait from now on until its connection is closed, as
// when the other side does not read any more.
func (w *Wire) Stall() { w.stall.Store(true) }

type wiredConn struct {
	net.Conn
	wire   *Wire
	closed chan struct{}
	once   sync.Once
}

func (c *wiredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wire.Read.Add(int64(n))
	return n, err
}

func (c *wiredConn) Write(p []byte) (int, error) {
	if c.wire.stall.Load() {
		c.wire.once.Do(func() { close(c.wire.Stalled) })
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

func (c *wiredConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
