package main

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
)

// connections counts the connections of a Base.
type connections struct{ dialed, open atomic.Int64 }

// newBase returns a transport that keeps up to idle connections, and has at
// most limit of them if limit is not 0.
func newBase(counts *connections, idle, limit int) *http.Transport {
	return &http.Transport{
		MaxIdleConnsPerHost: idle,
		MaxConnsPerHost:     limit,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			counts.dialed.Add(1)
			counts.open.Add(1)
			return &countedConn{Conn: conn, open: &counts.open}, nil
		},
	}
}

// A countedConn counts its first Close.
type countedConn struct {
	net.Conn
	open   *atomic.Int64
	closed atomic.Bool
}

func (c *countedConn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}
