package httpretry_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// point is how far an exchange gets before the server ends it.
type point struct {
	name string
	play func(*exchange, *faults.Conn) // until then, on the server
	seen seen
	tls  bool
}

// seen is what the server has of the request by then.
type seen int

const (
	unreachable seen = iota // nothing: there is no connection to send it on
	unread                  // maybe all of it, but it did not look
	some
	whole
	answered // and so does the client have the answer's header
)

const okHeader = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"

func points() []point {
	say := func(text string) func(*exchange, *faults.Conn) {
		return func(x *exchange, c *faults.Conn) {
			x.readAll(c)
			c.Send(text)
		}
	}
	return []point{
		{"the ClientHello", func(_ *exchange, c *faults.Conn) { _, _ = c.Reader.Peek(1) }, unreachable, true},
		{"a part of the ServerHello", func(x *exchange, c *faults.Conn) {
			raw, reader := c.Conn, c.Reader
			c.Conn = &shortConn{raw, 50}
			c.StartTLS(x.tls)
			c.Conn, c.Reader = raw, reader
		}, unreachable, true},
		{"accept", func(*exchange, *faults.Conn) {}, unread, false},
		{"a byte", func(_ *exchange, c *faults.Conn) { _, _ = c.Reader.Peek(1) }, some, false},
		{"a part of the header", func(_ *exchange, c *faults.Conn) { _, _ = c.Reader.Peek(40) }, some, false},
		{"the header", func(x *exchange, c *faults.Conn) { x.readHeader(c) }, whole, false},
		{"a part of the body", func(x *exchange, c *faults.Conn) {
			if req := x.readHeader(c); req != nil {
				_, _ = io.CopyN(io.Discard, req.Body, 1000)
			}
		}, whole, false},
		{"the body", say(""), whole, false},
		{"a byte of the answer", say(okHeader[:1]), whole, false},
		{"the status line", say("HTTP/1.1 200 OK\r\n"), whole, false},
		{"a part of the answer's header", say(okHeader[:len(okHeader)-8]), whole, false},
		{"the answer's header", say(okHeader + "body"), answered, false},
	}
}

// shortConn fails to write more than a few bytes.
type shortConn struct {
	net.Conn
	left int
}

func (c *shortConn) Write(p []byte) (int, error) {
	n, _ := c.Conn.Write(p[:min(c.left, len(p))])
	c.left -= n
	if n < len(p) {
		return n, errors.New("no more")
	}
	return n, nil
}

// exchange is a server that ends its first connection at a point of the
// exchange, and serves all others.
type exchange struct {
	*faults.Server
	tls    *tls.Config
	begun  atomic.Int32 // connections on which some of the request arrived
	whole  atomic.Int32 // times that its header arrived whole
	served atomic.Int32 // times that it was answered in full
}

// readHeader reads the header of the request that matters.
func (x *exchange) readHeader(c *faults.Conn) *http.Request {
	req, err := c.Request()
	if err != nil {
		return nil
	}
	x.whole.Add(1)
	return req
}

func (x *exchange) readAll(c *faults.Conn) {
	if req := x.readHeader(c); req != nil {
		_, _ = io.Copy(io.Discard, req.Body)
	}
}

// end is a way to end a connection.
type end struct {
	name string
	end  func(*faults.Conn)
}

func ends() []end {
	return []end{
		{"end", func(c *faults.Conn) { c.CloseWrite() }}, // and the client may go on
		{"close", func(c *faults.Conn) { _ = c.Close() }},
		{"reset", (*faults.Conn).Reset},
	}
}

func newExchange(t *testing.T, p point, e end, reused bool) (*exchange, *http.Transport) {
	server, client := faults.Certificates(t)
	x := &exchange{tls: server}
	x.Server = faults.Listen(t, func(c *faults.Conn) {
		switch {
		case c.Number > 1:
			x.serve(c, p)
			return
		case reused:
			if _, err := c.Request(); err != nil {
				return
			}
			c.Respond(200, "")
		}
		p.play(x, c)
		began := p.seen >= some
		if p.seen != unreachable && e.name == "end" { // what came by now, and what still comes
			e.end(c)
			_, err := c.Reader.Peek(1)
			began = began || err == nil
			if began {
				x.begun.Add(1)
			}
			if p.seen < whole {
				x.readHeader(c)
			}
			c.Drain()
			return
		}
		if began {
			x.begun.Add(1)
		}
		e.end(c)
		c.Drain() // of an end in the handshake
	})
	return x, faults.Base(t, client)
}

func (x *exchange) serve(c *faults.Conn, p point) {
	if p.tls && !c.StartTLS(x.tls) {
		return
	}
	if _, err := c.Reader.Peek(1); err != nil {
		return
	}
	x.begun.Add(1)
	x.readAll(c)
	x.served.Add(1)
	c.Respond(200, "ten bytes.")
	c.Drain()
}

// Hazard 1.3, C1, C4, J1, K9: a server may end an exchange over HTTP/1 at any
// point. A request that is not safe to repeat, of which it may have seen a byte,
// is not sent again on any connection; one of which it cannot have seen any
// is, and any other is repeated until it is answered.
func TestBrokenExchange(t *testing.T) {
	for _, p := range points() {
		for _, e := range ends() {
			for _, reused := range []bool{false, true} {
				if reused && p.seen == unreachable {
					continue // it was reached
				}
				for _, k := range []kind{aGet, aPut, postWithKey, aPost, postOfStream, postOfNothing} {
					if p.name == "a part of the body" && (k == aGet || k == postOfNothing) {
						continue
					}
					t.Run(fmt.Sprintf("%s after %s/reused=%v/%s", e.name, p.name, reused, k), func(t *testing.T) {
						checkExchange(t, p, e, reused, k)
					})
				}
			}
		}
	}
}

func checkExchange(t *testing.T, p point, e end, reused bool, k kind) {
	x, base := newExchange(t, p, e, reused)
	t.Cleanup(func() { base.CloseIdleConnections() })
	s := &scene{base: base, url: x.URL()}
	if p.tls {
		s.url = "https://" + x.Addr
	}
	if p.name == "a part of the body" {
		s.body = strings.Repeat("x", 1<<20) // so that it is in the middle of it
	}
	if reused {
		s.first(t)
	}
	safe := k == aGet || k == aPut || k == postWithKey
	events := new(record)
	transport := contract.New(t, httpretry.Config{Base: base, Policy: every(0), Observe: events.observe})
	resp, err := transport.RoundTrip(s.request(t, k))
	body, broken := "", false
	if err == nil {
		got, readErr := io.ReadAll(resp.Body)
		body, broken = string(got), readErr != nil
		require.NoError(t, resp.Body.Close())
	}
	full := err == nil && !broken && body == "ten bytes."
	switch {
	case p.seen == answered:
		assert.True(t, err == nil && broken, "the answer is the caller's, broken as it is: %v", err)
		assert.Len(t, events.events, 1)
	case safe || p.seen == unreachable:
		assert.True(t, full, "%v", err)
	case p.seen == unread && full: // the connection was seen to be of no use
	default:
		assert.Error(t, err)
		assert.Len(t, events.events, 1)
		assert.Equal(t, httpretry.ReasonNotIdempotent, events.reason())
	}
	t.Cleanup(func() { // after the server's, which has read all by then
		assert.EqualValues(t, map[bool]int{false: 0, true: 1}[full], x.served.Load(), "times that the request was served")
		if !safe {
			assert.LessOrEqual(t, x.begun.Load(), int32(1), "connections on which the POST arrived")
			assert.LessOrEqual(t, x.whole.Load(), int32(1), "times that the POST arrived whole")
		}
	})
}

// A request of which the server saw nothing because there was no connection is
// sent on the next, once.
func TestDialedLater(t *testing.T) {
	for _, k := range []kind{aGet, aPut, postWithKey, aPost, postOfStream, postOfNothing} {
		t.Run(string(k), func(t *testing.T) {
			s := overTLS(func(_, _ *tls.Config) {})(t)
			addresses := []string{faults.Refused(t), faults.Refused(t), s.server.Addr}
			s.base.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
				addr := addresses[0]
				addresses = addresses[1:]
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
			resp, err := contract.New(t, httpretry.Config{Base: s.base, Policy: every(0)}).RoundTrip(s.request(t, k))
			require.NoError(t, err)
			finish(t, resp)
			assert.EqualValues(t, 1, s.server.Requests.Load())
		})
	}
}

// Hazard 1.1, K9: the commonest race there is, between a server that closes an
// idle connection and the next request on it. A POST is delivered once at most,
// and what net/http's error is taken for never promises too much.
func TestStaleRace(t *testing.T) {
	var (
		mu      sync.Mutex
		seen    = map[string]int{}
		results = map[string]error{}
	)
	t.Cleanup(func() { // after the server's, which has read all by then
		for id, err := range results {
			switch {
			case err == nil:
				assert.Equal(t, 1, seen[id], id)
			case httpretry.Classify(nil, err) == unprocessed:
				assert.Zero(t, seen[id], "%s: %v", id, err)
			default:
				assert.LessOrEqual(t, seen[id], 1, "%s: %v", id, err)
			}
		}
	})
	server := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
		mu.Lock()
		seen[req.Header.Get("Id")]++
		mu.Unlock()
		_, _ = io.Copy(io.Discard, req.Body)
		c.Respond(200, "")
		if c.Number%2 == 0 {
			c.Reset()
		}
		return false
	})
	base := faults.Base(t, nil)
	transport := contract.New(t, httpretry.Config{Base: base, Policy: every(0)})
	s := &scene{url: server.URL()}
	for i := range 200 {
		k := []kind{aPost, postOfStream, postOfNothing}[i%3]
		for name, rt := range map[string]http.RoundTripper{"net/http": base, "retried": transport} {
			req := s.request(t, k)
			id := fmt.Sprintf("%s, %s %d", name, k, i)
			req.Header.Set("Id", id)
			resp, err := rt.RoundTrip(req)
			results[id] = err
			if err == nil {
				require.NoError(t, resp.Body.Close())
			}
		}
	}
}

// A proxy words what it answers a CONNECT. If its words are those by which an
// error is known, they prove nothing about a request that net/http had written
// on the connection before, and was about to repeat.
func TestWordsOfAProxy(t *testing.T) {
	for _, words := range []string{"http: server closed idle connection", "net/http: TLS handshake timeout"} {
		var paid atomic.Int32
		server, client := faults.Certificates(t)
		backend := faults.Listen(t, func(c *faults.Conn) {
			if !c.StartTLS(server) {
				return
			}
			c.HTTP1(func(c *faults.Conn, req *http.Request) bool {
				if req.URL.Path == "/pay" && paid.Add(1) == 1 {
					return false
				}
				c.Respond(200, "")
				return true
			})
		})
		proxy := faults.Proxy(t, backend.Addr, func(c *faults.Conn, _ *http.Request) bool {
			if c.Number == 2 {
				c.Send("HTTP/1.1 503 " + words + "\r\n\r\n")
				return false
			}
			c.Respond(200, "", "Connection: keep-alive")
			return true
		})
		base := faults.Base(t, client)
		base.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy.Addr})
		policy := every(0)
		policy.Idempotent = func(*http.Request) bool { return false } // but net/http repeats a GET
		transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
		resp, err := transport.RoundTrip(request(t, "GET", "https://"+backend.Addr, ""))
		require.NoError(t, err)
		finish(t, resp)
		_, err = transport.RoundTrip(request(t, "GET", "https://"+backend.Addr+"/pay", ""))
		require.Error(t, err)
		assert.EqualValues(t, 1, paid.Load())
	}
}
