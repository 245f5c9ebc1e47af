package faults

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"testing"
	"time"
)

// StaleServer answers every request, until one with its Context is given a
// connection that was used before: that connection is closed, and seen to be
// closed, before the request is written.
type StaleServer struct {
	*Server
	Base    *http.Transport
	Context context.Context
}

// Stale starts a StaleServer, which closes with a reset or without.
func Stale(t testing.TB, reset bool) *StaleServer {
	t.Helper()
	if reset {
		return StaleWith(t, (*Conn).Reset)
	}
	return StaleWith(t, func(*Conn) {})
}

// StaleWith starts a StaleServer that calls end before it closes the connection.
func StaleWith(t testing.TB, end func(*Conn)) *StaleServer {
	t.Helper()
	s := new(StaleServer)
	servers, clients := make(chan *Conn, 10), make(chan *toldConn, 10)
	s.Server = Listen(t, func(c *Conn) {
		servers <- c
		c.HTTP1(func(c *Conn, req *http.Request) bool {
			_, _ = io.Copy(io.Discard, req.Body)
			c.Respond(http.StatusOK, "")
			return true
		})
	})
	s.Base = Base(t, nil)
	s.Base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		told := &toldConn{Conn: conn, closed: make(chan struct{})}
		clients <- told
		return told, nil
	}
	s.Context = httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if info.Reused {
			server := <-servers
			end(server)
			_ = server.Close()
			<-(<-clients).closed // net/http has noticed
		}
	}})
	return s
}

// toldConn tells when it is closed. net/http may not have seen that
// everywhere, and try to write: it hears late that this failed, and first that
// the connection is gone.
type toldConn struct {
	net.Conn
	closed chan struct{}
	once   sync.Once
}

func (c *toldConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *toldConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		<-time.After(50 * time.Millisecond)
	}
	return n, err
}
