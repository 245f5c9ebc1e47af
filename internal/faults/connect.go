package faults

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Refused returns an address at which nothing listens. It stays taken until the
// test ends, so that no other server gets it.
func Refused(t testing.TB) string {
	t.Helper()
	_, addr := bound(t)
	return addr
}

// bound returns a socket with an address of its own, at which it does not listen
// yet.
func bound(t testing.TB) (fd int, addr string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := name.(*syscall.SockaddrInet4)
	return fd, (&net.TCPAddr{IP: at.Addr[:], Port: at.Port}).String()
}

// Backlog returns an address at which connections are neither accepted nor
// refused: its queue is full.
func Backlog(t testing.TB) string {
	t.Helper()
	fd, addr := bound(t)
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	// The queue holds one. Whether that has taken its place is seen by the next.
	dialer := net.Dialer{Timeout: 10 * time.Second}
	for {
		conn, err := dialer.Dial("tcp", addr)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			dialer.Timeout = 50 * time.Millisecond
			continue
		}
		if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
			t.Fatal(err)
		}
		return addr
	}
}

// Response codes of the DNS (RFC 1035 section 4.1.1).
const (
	DNSNoError       = 0
	DNSServerFailure = 2
	DNSNameError     = 3
	DNSQueryRefused  = 5
	DNSSilent        = -1 // no answer at all
	DNSLame          = -2 // no error, no records, and nobody else to ask
)

const dnsHeader = 12 // bytes

// DNS returns a resolver that asks a server which answers every question with
// code and without records.
func DNS(t testing.TB, code int) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			query := make([]byte, 1500)
			n, from, err := conn.ReadFrom(query)
			if err != nil {
				return
			}
			if code == DNSSilent || n < dnsHeader {
				continue
			}
			_, _ = conn.WriteTo(dnsReply(query[:n], code), from)
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// dnsReply repeats the question, without the records that may follow it.
func dnsReply(query []byte, code int) []byte {
	const answer, recursionDesired, recursionAvailable = 1 << 15, 1 << 8, 1 << 7
	end := dnsHeader
	for end < len(query) && query[end] != 0 { // the labels of the name
		end += 1 + int(query[end])
	}
	end = min(end+1+4, len(query)) // the root, type and class
	reply := append([]byte(nil), query[:end]...)
	flags := answer | recursionDesired
	if code == DNSLame {
		code = DNSNoError
	} else {
		flags |= recursionAvailable
	}
	binary.BigEndian.PutUint16(reply[2:], uint16(flags|code))
	clear(reply[6:dnsHeader]) // answer, authority and additional records: none
	return reply
}

// Proxy is an HTTP proxy that gives answer each CONNECT. If answer returns
// true, it connects the client to addr from then on.
func Proxy(t testing.TB, addr string, answer func(c *Conn, connect *http.Request) bool) *Server {
	t.Helper()
	return Listen(t, func(c *Conn) {
		req, err := c.Request()
		if err != nil || !answer(c, req) {
			return
		}
		c.relay(addr)
	})
}

// SOCKS is a SOCKS5 proxy that answers every request to connect with reply
// (RFC 1928 section 6), and if that is 0 connects the client to addr.
func SOCKS(t testing.TB, addr string, reply byte) *Server {
	t.Helper()
	return Listen(t, func(c *Conn) {
		greeting := c.take(2)
		if greeting == nil || c.take(int(greeting[1])) == nil { // the methods that the client offers
			return
		}
		c.Send("\x05\x00") // no authentication
		head := c.take(4)
		if head == nil {
			return
		}
		length := map[byte]int{1: net.IPv4len, 4: net.IPv6len}[head[3]]
		if length == 0 { // a name, after its length
			if name := c.take(1); name != nil {
				length = int(name[0])
			}
		}
		if c.take(length+2) == nil { // and the port
			return
		}
		_, _ = c.Write([]byte{5, reply, 0, 1, 0, 0, 0, 0, 0, 0})
		if reply == 0 {
			c.relay(addr)
		}
	})
}

// take reads n bytes, or returns nil.
func (c *Conn) take(n int) []byte {
	b := make([]byte, n)
	if _, err := io.ReadFull(c.Reader, b); err != nil {
		return nil
	}
	return b
}

// relay connects the client to addr until one of them leaves.
func (c *Conn) relay(addr string) {
	upstream, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer upstream.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(upstream, c.Reader)
		_ = upstream.Close()
	})
	_, _ = io.Copy(c, upstream)
	_ = c.Close()
	wg.Wait()
}
