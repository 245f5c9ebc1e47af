// Package faults provides servers that misbehave on purpose, for tests of
// clients. Each server listens on the loopback interface, ends with the test
// that started it, and counts the requests that arrive.
//
// The servers implement as little of their protocols as possible, so that a
// test can stop at any byte. [HTTP1] and [HTTP2] pass every request to a test,
// and [Listen] every connection. [Refused], [Backlog], [DNS] and [Proxy] fail
// before there is a connection. [Stale] closes a connection just before a
// request is written. [Pipe] connects to a real server without a network, so
// that both sides can run in virtual time.
//
// If the system does not support a fault, the test is skipped with the reason.
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

// Server counts its connections and requests.
type Server struct {
	Addr     string       // host and port
	Conns    atomic.Int32 // connections that were accepted
	Requests atomic.Int32 // requests whose header arrived

	// The channels hold one value, which means that the number has changed.
	arrived chan struct{} // of requests
	ended   chan struct{} // of open connections
	open    atomic.Int32  // connections that have not ended
}

func (s *Server) arrive() int32 {
	n := s.Requests.Add(1)
	signal(s.arrived)
	return n
}

// patience is how long a test waits for an event. It is far longer than the
// event takes, and less than the timeout of the test binary.
const patience = time.Minute

// Await waits until n requests have arrived. A request that the client canceled
// may have ended before the server has read it. Only one goroutine may wait at
// a time.
func (s *Server) Await(t testing.TB, n int32) {
	t.Helper()
	late := time.NewTimer(patience)
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

// Settle waits until all connections so far have ended, so that all requests
// that were sent have been counted. The client must have closed its
// connections. Only one goroutine may wait at a time.
func (s *Server) Settle(t testing.TB) {
	t.Helper()
	// This connection is accepted after all others.
	last, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	_ = last.(*net.TCPConn).CloseWrite()
	_ = last.SetReadDeadline(time.Now().Add(patience))
	_, _ = io.Copy(io.Discard, last)
	late := time.NewTimer(patience)
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

// Conn is a connection that a server has accepted. Most of its methods do not
// report errors of writing. Such an error means that the client has closed the
// connection, and the test sees that on the client's side.
type Conn struct {
	net.Conn
	Reader *bufio.Reader // reads from Conn; use it for all reading
	Number int           // of the connection on its server, from 1
	tcp    *net.TCPConn
	server *Server
}

// Listen starts a server that calls serve for each connection, and closes the
// connection when serve returns. At the end of the test it closes all
// connections and waits for serve.
func Listen(t testing.TB, serve func(*Conn)) *Server {
	t.Helper()
	l := listen(t)
	s := &Server{
		Addr: l.Addr().String(), arrived: make(chan struct{}, 1), ended: make(chan struct{}, 1)}
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
			// The cleanup has closed the others already.
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

// Send writes text as it is, and reports whether that succeeded.
func (c *Conn) Send(text string) bool {
	_, err := io.WriteString(c, text)
	return err == nil
}

// Reset closes the connection with a reset.
func (c *Conn) Reset() {
	// With a linger time of 0, Close discards unsent bytes and sends a reset.
	_ = c.tcp.SetLinger(0)
	_ = c.tcp.Close()
}

// CloseWrite closes the connection for writing.
func (c *Conn) CloseWrite() { _ = c.tcp.CloseWrite() }

// Request reads the header of the next HTTP/1 request and counts the request.
func (c *Conn) Request() (*http.Request, error) {
	req, err := http.ReadRequest(c.Reader)
	if err == nil {
		c.server.arrive()
	}
	return req, err
}

// Drain reads until the client closes the connection.
func (c *Conn) Drain() { _, _ = io.Copy(io.Discard, c.Reader) }

// Respond sends an HTTP/1 response, with header lines such as "Retry-After: 1".
// The connection remains usable.
func (c *Conn) Respond(status int, body string, header ...string) {
	lines := append(
		[]string{fmt.Sprintf("HTTP/1.1 %03d %s", status, http.StatusText(status))}, header...)
	if status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified {
		lines = append(lines, fmt.Sprintf("Content-Length: %d", len(body)))
	}
	c.Send(strings.Join(lines, "\r\n") + "\r\n\r\n" + body)
}

// HTTP1 starts an HTTP/1 server without TLS that calls answer for the header of
// each request. If answer returns true, it discards the rest of the body and
// reads the next request of the connection.
func HTTP1(t testing.TB, answer func(c *Conn, req *http.Request) bool) *Server {
	t.Helper()
	return Listen(t, func(c *Conn) { c.HTTP1(answer) })
}

// HTTP1 serves one connection like the function HTTP1.
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
