package faults

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
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
	servers := make(chan *Conn, 10)
	s.Server = Listen(t, func(c *Conn) {
		servers <- c
		c.HTTP1(func(c *Conn, req *http.Request) bool {
			_, _ = io.Copy(io.Discard, req.Body)
			c.Respond(http.StatusOK, "")
			return true
		})
	})
	s.Base = Base(t, nil)
	WrapConns(s.Base, func(conn net.Conn) net.Conn { return lateConn{conn} })
	clients := Tell(s.Base)
	s.Context = httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if info.Reused {
			server := <-servers
			end(server)
			_ = server.Close()
			<-(<-clients).Closed // net/http has noticed
		}
	}})
	return s
}

// lateConn tells late that a write has failed. net/http may not have seen
// everywhere that the connection is closed, and try to write: it hears first
// that the connection is gone.
type lateConn struct{ net.Conn }

func (c lateConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		<-time.After(50 * time.Millisecond)
	}
	return n, err
}
