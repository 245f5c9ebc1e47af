// Package faults has servers that misbehave on purpose, for the tests of what
// has to live with them. Each listens on the loopback interface, ends with the
// test that started it, and counts what reached it.
//
// They speak as little of their protocols as it takes, so that a test can stop
// at any byte: [HTTP1] and [HTTP2] give a test every request, [Listen] every
// connection. [Refused], [Backlog], [DNS] and [Proxy] fail before there is
// one. [Stale] closes a connection at the worst moment, and [Pipe] connects a
// real server without a network, so that both sides run in virtual time.
package faults

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Server counts what reached it.
type Server struct {
	Addr     string       // host and port
	Conns    atomic.Int32 // connections that were accepted
	Requests atomic.Int32 // requests whose header arrived whole

	arrived chan struct{} // gets a value for each request, unless it has one
	ended   chan struct{} // gets a value for each connection that ended, unless it has one
	open    atomic.Int32  // connections that have not
}

func (s *Server) arrive() int32 {
	n := s.Requests.Add(1)
	signal(s.arrived)
	return n
}

// Await waits until n requests have arrived: a client that gave up on an
// answer may be told so before the server has read what it gave up on. One
// goroutine may wait at a time.
func (s *Server) Await(t testing.TB, n int32) {
	t.Helper()
	late := time.NewTimer(10 * time.Second)
	defer late.Stop()
	for s.Requests.Load() < n {
		select {
		case <-s.arrived:
		case <-late.C:
			t.Errorf("%d of %d requests arrived", s.Requests.Load(), n)
			return
		}
	}
}

// Settle waits until all connections made so far have ended, so that whatever
// was sent on them has been counted. The client has to close its own first. One
// goroutine may wait at a time.
func (s *Server) Settle(t testing.TB) {
	t.Helper()
	last, err := net.Dial("tcp", s.Addr) // is accepted after all others
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	_ = last.(*net.TCPConn).CloseWrite()
	_ = last.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.Copy(io.Discard, last)
	late := time.NewTimer(10 * time.Second)
	defer late.Stop()
	for s.open.Load() > 0 {
		select {
		case <-s.ended:
		case <-late.C:
			t.Errorf("%d connections have not ended", s.open.Load())
			return
		}
	}
}

// URL returns the server's address as a URL without TLS.
func (s *Server) URL() string { return "http://" + s.Addr }

// Conn is a connection that a server has accepted. Its writes may fail once
// the client has left, which the client's side of a test shows: of the methods
// below, only those report it by which a test may go on sending.
type Conn struct {
	net.Conn
	Reader *bufio.Reader // of Conn: use it for all that is read
	Number int           // of the connection on its server, from 1
	tcp    *net.TCPConn
	server *Server
}

// Listen serves each connection with serve, and closes it when that returns.
// When the test ends, it closes all of them and waits.
func Listen(t testing.TB, serve func(*Conn)) *Server {
	t.Helper()
	l := listen(t)
	s := &Server{Addr: l.Addr().String(), arrived: make(chan struct{}, 1), ended: make(chan struct{}, 1)}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		conns []net.Conn
		over  bool
	)
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			if over {
				_ = conn.Close()
			}
			mu.Unlock()
			number := int(s.Conns.Add(1))
			s.open.Add(1)
			wg.Go(func() {
				defer func() { _ = conn.Close(); s.open.Add(-1); signal(s.ended) }()
				serve(&Conn{conn, bufio.NewReader(conn), number, conn.(*net.TCPConn), s})
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		over = true
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return s
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Send writes text as it is, and reports whether it could.
func (c *Conn) Send(text string) bool {
	_, err := io.WriteString(c, text)
	return err == nil
}

// Reset closes the connection so that the client sees a reset, not an end.
func (c *Conn) Reset() {
	_ = c.tcp.SetLinger(0)
	_ = c.tcp.Close()
}

// CloseWrite ends what is sent, but not what is received.
func (c *Conn) CloseWrite() { _ = c.tcp.CloseWrite() }

// Request reads the header of the next request over HTTP/1 and counts it.
func (c *Conn) Request() (*http.Request, error) {
	req, err := http.ReadRequest(c.Reader)
	if err == nil {
		c.server.arrive()
	}
	return req, err
}

// Drain reads until the client closes the connection.
func (c *Conn) Drain() { _, _ = io.Copy(io.Discard, c.Reader) }

// Respond answers over HTTP/1, with header lines such as "Retry-After: 1". The
// connection stays usable.
func (c *Conn) Respond(status int, body string, header ...string) {
	lines := append([]string{fmt.Sprintf("HTTP/1.1 %03d %s", status, http.StatusText(status))}, header...)
	if status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified {
		lines = append(lines, fmt.Sprintf("Content-Length: %d", len(body)))
	}
	c.Send(strings.Join(lines, "\r\n") + "\r\n\r\n" + body)
}

// HTTP1 serves HTTP/1 without TLS: it gives answer the header of each request,
// and goes on to the connection's next if answer returns true. What is left of
// a body is read before that.
func HTTP1(t testing.TB, answer func(c *Conn, req *http.Request) bool) *Server {
	t.Helper()
	return Listen(t, func(c *Conn) { c.HTTP1(answer) })
}

// HTTP1 serves one connection as the function HTTP1 does.
func (c *Conn) HTTP1(answer func(c *Conn, req *http.Request) bool) {
	for {
		req, err := c.Request()
		if err != nil || !answer(c, req) {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
	}
}
