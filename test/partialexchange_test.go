package test

import (
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

// breakPoint is the point of an exchange at which the server ends the
// connection.
type breakPoint struct {
	name string
	play func(*exchange, *faults.Conn) // the server's part until then
	seen seenByServer
	tls  bool
}

// seenByServer is how much of the request the server has by then.
type seenByServer int

const (
	unreachable seenByServer = iota // nothing: the connection is not established
	unread                          // unknown: it did not read
	some
	whole      // header
	partOfBody // and the rest is on its way
	answered   // all, and the client has the header of the response
)

const okHeader = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"

func breakPoints() []breakPoint {
	say := func(text string) func(*exchange, *faults.Conn) {
		return func(_ *exchange, c *faults.Conn) {
			readRequest(c)
			c.Send(text)
		}
	}
	return []breakPoint{
		{"the ClientHello", func(_ *exchange, c *faults.Conn) { _, _ = c.Reader.Peek(1) },
			unreachable, true},
		{"a part of the ServerHello", func(x *exchange, c *faults.Conn) {
			raw, reader := c.Conn, c.Reader
			c.Conn = &shortConn{raw, 50}
			c.StartTLS(x.tls)
			c.Conn, c.Reader = raw, reader
		}, unreachable, true},
		{"accept", func(*exchange, *faults.Conn) {}, unread, false},
		{"a byte", func(_ *exchange, c *faults.Conn) { _, _ = c.Reader.Peek(1) }, some, false},
		{"a part of the header", func(_ *exchange, c *faults.Conn) { _, _ = c.Reader.Peek(40) },
			some, false},
		{"the header", func(_ *exchange, c *faults.Conn) { _, _ = c.Request() }, whole, false},
		{"a part of the body", func(_ *exchange, c *faults.Conn) {
			if req, err := c.Request(); err == nil {
				_, _ = io.CopyN(io.Discard, req.Body, 1000)
			}
		}, partOfBody, false},
		{"the body", say(""), whole, false},
		{"a byte of the answer", say(okHeader[:1]), whole, false},
		{"the status line", say("HTTP/1.1 200 OK\r\n"), whole, false},
		{"a part of the answer's header", say(okHeader[:len(okHeader)-8]), whole, false},
		{"the answer's header", say(okHeader + "body"), answered, false},
	}
}

// shortConn fails to write more than left bytes.
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

// exchange is a server that ends its first connection at a breakPoint and
// serves all others.
type exchange struct {
	*faults.Server
	tls    *tls.Config
	begun  atomic.Int32 // connections on which some of the request arrived
	served atomic.Int32 // times that it was answered in full
}

// readRequest reads the request under test.
func readRequest(c *faults.Conn) {
	if req, err := c.Request(); err == nil {
		_, _ = io.Copy(io.Discard, req.Body)
	}
}

// connEnd is a way to end a connection.
type connEnd struct {
	name  string
	reads bool // the client may continue to send
	end   func(*faults.Conn)
}

func connEnds() []connEnd {
	return []connEnd{
		{"end", true, func(c *faults.Conn) { c.CloseWrite() }},
		{"close", false, func(c *faults.Conn) { _ = c.Close() }},
		{"reset", false, (*faults.Conn).Reset},
	}
}

func newExchange(t *testing.T, p breakPoint, e connEnd, reused bool) (*exchange, *http.Transport) {
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
		// the bytes that arrived before, and those that still arrive
		if p.seen != unreachable && e.reads {
			e.end(c)
			_, err := c.Reader.Peek(1)
			began = began || err == nil
			if began {
				x.begun.Add(1)
			}
			c.Drain()
			return
		}
		if began {
			x.begun.Add(1)
		}
		e.end(c)
		c.Drain() // for an end in the handshake
	})
	return x, faults.Base(t, client)
}

func (x *exchange) serve(c *faults.Conn, p breakPoint) {
	if p.tls && !c.StartTLS(x.tls) {
		return
	}
	if _, err := c.Reader.Peek(1); err != nil {
		return
	}
	x.begun.Add(1)
	readRequest(c)
	x.served.Add(1)
	c.Respond(200, "ten bytes.")
	c.Drain()
}

// Hazard 1.3, C1, C4, J1, K9: a server may end an HTTP/1 exchange at any point.
// A request that is not idempotent is not sent again if the server may have
// received a byte of it. Other requests are retried until they are answered, or,
// with ReadAhead, until the answer is whole.
func TestBrokenExchange(t *testing.T) {
	for _, p := range breakPoints() {
		for _, e := range connEnds() {
			for _, k := range []kind{
				kindGet, kindPut, kindPostKeyed, kindPost, kindPostStreamed, kindPostEmpty} {
				if p.seen == partOfBody && (k == kindGet || k == kindPostEmpty) {
					continue
				}
				name := fmt.Sprintf("%s after %s/%s", e.name, p.name, k)
				t.Run(name, func(t *testing.T) { checkExchange(t, p, e, false, k, 0) })
				// On a connection that was used before, the handshake is over.
				if p.seen != unreachable {
					t.Run(name+"/reused", func(t *testing.T) { checkExchange(t, p, e, true, k, 0) })
				}
				t.Run(name+"/read ahead", func(t *testing.T) { checkExchange(t, p, e, false, k, 64) })
			}
		}
	}
}

func checkExchange(
	t *testing.T, p breakPoint, e connEnd, reused bool, k kind, readAhead int64) {
	var x *exchange
	setUp := func(t *testing.T) *scene {
		s := new(scene)
		x, s.base = newExchange(t, p, e, reused)
		s.url = x.URL()
		if p.tls {
			s.url = "https://" + x.Addr
		}
		if p.seen == partOfBody {
			s.body = strings.Repeat("x", 1<<20) // so that the server ends in the middle of it
		}
		return s
	}
	if reused {
		setUp = idle(setUp)
	}
	s := setUp(t)
	safe := k == kindGet || k == kindPut || k == kindPostKeyed
	events := new(contract.Record)
	policy := contract.RetryEvery(0)
	policy.ReadAhead = readAhead
	transport := contract.Recorded(t, s.base, policy, events)
	resp, err := transport.RoundTrip(s.request(t, k))
	body, broken := "", false
	if err == nil {
		got, readErr := io.ReadAll(resp.Body)
		body, broken = string(got), readErr != nil
		require.NoError(t, resp.Body.Close())
	}
	full := err == nil && !broken && body == "ten bytes."
	switch {
	case p.seen == answered && (readAhead == 0 || !safe):
		assert.True(t, err == nil && broken, "the answer is the caller's, broken as it is: %v", err)
		assert.Len(t, events.Events, 1)
	case safe || p.seen == unreachable:
		assert.True(t, full, "%v", err)
	case p.seen == unread && full: // net/http noticed before it wrote the request
	default:
		assert.Error(t, err)
		assert.Len(t, events.Events, 1)
		assert.Equal(t, httpretry.ReasonNotIdempotent, events.Reason())
	}
	t.Cleanup(func() { // after the server's cleanup, when it has read everything
		assert.Equal(t, full, x.served.Load() == 1, "served %d times", x.served.Load())
		assert.LessOrEqual(t, x.served.Load(), int32(1))
		if !safe {
			assert.LessOrEqual(t, x.begun.Load(), int32(1), "connections on which the POST arrived")
		}
	})
}

// Hazard 1.1, K9: a server may close an idle connection while the next request
// is written on it, which is the most frequent race. A POST is delivered at
// most once. If Classify returns Unprocessed for net/http's error, the POST was
// not delivered.
func TestStaleRace(t *testing.T) {
	var (
		mu      sync.Mutex
		seen    = map[string]int{}
		results = map[string]error{}
	)
	t.Cleanup(func() { // after the server's cleanup, when it has read everything
		for id, err := range results {
			switch {
			case err == nil:
				assert.Equal(t, 1, seen[id], id)
			case httpretry.Classify(nil, nil, err) == unprocessed:
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
	transport := contract.With(t, base, contract.RetryEvery(0))
	s := &scene{url: server.URL()}
	for i := range 200 {
		k := []kind{kindPost, kindPostStreamed, kindPostEmpty}[i%3]
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

// A proxy chooses the text of its response to CONNECT. If that is a text by
// which errors are classified, it proves nothing about a request that net/http
// had written on an earlier connection.
func TestTextOfAProxyProvesNothing(t *testing.T) {
	for _, words := range []string{
		"http: server closed idle connection", "net/http: TLS handshake timeout"} {
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
		policy := contract.RetryEvery(0)
		policy.Idempotent = func(*http.Request) bool { return false } // but net/http resends a GET
		transport := contract.With(t, base, policy)
		contract.Send(t, transport, contract.Request(t, "GET", "https://"+backend.Addr, ""))
		_, err := transport.RoundTrip(
			contract.Request(t, "GET", "https://"+backend.Addr+"/pay", ""))
		require.Error(t, err)
		assert.EqualValues(t, 1, paid.Load())
	}
}
