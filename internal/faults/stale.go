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

// StaleServer answers every request until one with its Context gets a
// connection that was used before. It then closes that connection, and waits
// until the client has noticed, before the request is written.
type StaleServer struct {
	*Server
	Base    *http.Transport
	Context context.Context
}

// Stale starts a StaleServer that calls end before it closes the connection.
func Stale(t testing.TB, end func(*Conn)) *StaleServer {
	t.Helper()
	needSockets(t)
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
	clients := ObserveConns(s.Base)
	s.Context = httptrace.WithClientTrace(
		t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
			if info.Reused {
				server := <-servers
				end(server)
				_ = server.Close()
				<-(<-clients).Closed // by net/http
			}
		}})
	return s
}

// lateConn delays the errors of writes. Otherwise one goroutine of net/http
// could write to the connection while another one sees its end, and the error
// of the write would come first.
type lateConn struct{ net.Conn }

func (c lateConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		<-time.After(50 * time.Millisecond)
	}
	return n, err
}
