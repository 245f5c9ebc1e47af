package faults

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
)

// Refused returns an address at which nothing listens. The address stays in
// use until the test ends, so that no other server is given it.
func Refused(t testing.TB) string {
	t.Helper()
	needSockets(t)
	l := listen(t)
	defer l.Close()
	// A connected socket holds its local port without listening there. That
	// works on every system, unlike binding a socket through package syscall.
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() })
	return conn.LocalAddr().String()
}

// needSockets skips the test where package net imitates a network in memory.
// Such a network does not reset connections, and its errors do not name the
// cause.
func needSockets(t testing.TB) {
	t.Helper()
	if runtime.GOOS == "js" || runtime.GOOS == "wasip1" {
		t.Skipf("faults: package net has no sockets on %s", runtime.GOOS)
	}
}

// Response codes of the DNS (RFC 1035 section 4.1.1).
const (
	DNSNoError       = 0
	DNSServerFailure = 2
	DNSNameError     = 3
	DNSQueryRefused  = 5
	DNSSilent        = -1 // no answer
	DNSLame          = -2 // no error and no records, without recursion
)

const dnsHeader = 12 // bytes

// DNS returns a resolver for a server that answers every question with code and
// without records.
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
	return &net.Resolver{
		PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
		}}
}

// dnsReply returns the answer to a query, which is the same question without
// records.
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

// Proxy starts an HTTP proxy that calls answer for each CONNECT. If answer
// returns true, the proxy connects the client to addr.
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

// SOCKS starts a SOCKS5 proxy that answers every request with reply (RFC 1928
// section 6). If reply is 0, the proxy connects the client to addr.
func SOCKS(t testing.TB, addr string, reply byte) *Server {
	t.Helper()
	return Listen(t, func(c *Conn) {
		// The greeting ends with the methods that the client offers.
		greeting := c.take(2)
		if greeting == nil || c.take(int(greeting[1])) == nil {
			return
		}
		c.Send("\x05\x00") // no authentication
		head := c.take(4)
		if head == nil {
			return
		}
		length := map[byte]int{1: net.IPv4len, 4: net.IPv6len}[head[3]]
		if length == 0 { // a name with its length in front
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

// take returns the next n bytes, or nil if there are not as many.
func (c *Conn) take(n int) []byte {
	b := make([]byte, n)
	if _, err := io.ReadFull(c.Reader, b); err != nil {
		return nil
	}
	return b
}

// relay connects the client to addr until one of them closes.
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
