package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// A framingServer records how the requests that it gets over TLS are framed.
type framingServer struct {
	*httptest.Server
	base    *http.Transport
	clients <-chan *faults.ObservedConn

	mu       sync.Mutex
	protocol string // of the next connections
	got      []string
	conns    []net.Conn
}

func newFramingServer(t *testing.T, protocol string) *framingServer {
	s := &framingServer{protocol: protocol}
	s.Server, s.base = newTLSServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.got = append(s.got, fmt.Sprint(r.Proto, " ", r.ContentLength))
		if r.URL.Path == "/length" && r.ContentLength < 0 {
			w.WriteHeader(http.StatusLengthRequired)
		}
	})
	cfg := s.TLS.Clone()
	s.TLS.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c := cfg.Clone()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conns = append(s.conns, hello.Conn)
		c.NextProtos = []string{s.protocol}
		return c, nil
	}
	s.clients = faults.ObserveConns(s.base)
	return s
}

// reconnect ends all connections. Those that follow speak protocol.
func (s *framingServer) reconnect(protocol string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.protocol = protocol
	for _, conn := range s.conns {
		_ = conn.Close()
	}
	s.conns = nil
	for len(s.clients) > 0 {
		<-(<-s.clients).Closed // by net/http
	}
}

// take returns the framings since the last call.
func (s *framingServer) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.got
	s.got = nil
	return got
}

// Over HTTP/2, a POST without a body and without a key has an empty body without
// a length. It has none over HTTP/1, and after a server has asked for a length.
func TestFramingWithoutBody(t *testing.T) {
	for _, layered := range []bool{false, true} {
		t.Run(fmt.Sprintf("layered=%v", layered), func(t *testing.T) {
			srv := newFramingServer(t, "h2")
			var base http.RoundTripper = srv.base
			first := "HTTP/2.0 -1"
			if layered { // which would see an attempt that is stopped
				base = httpretry.Through(contract.BaseFunc(srv.base.RoundTrip), srv.base)
				first = "HTTP/2.0 0"
			}
			events := new(contract.Record)
			transport := contract.Unchecked(
				t, httpretry.Config{Base: base, Observe: events.Observe})
			post := func(path string, want ...string) {
				t.Helper()
				events.Events = nil
				resp := contract.Send(t, transport, contract.Request(t, "POST", srv.URL+path, ""))
				assert.Equal(t, 200, resp.StatusCode)
				assert.Equal(t, want, srv.take())
				contract.HasResult(t, resp, 1, httpretry.ReasonSuccess)
				assert.Len(t, events.Events, 1, "a 411 has none of its own")
			}
			post("/", first)
			post("/", "HTTP/2.0 -1")
			srv.reconnect("http/1.1")
			post("/", "HTTP/1.1 0")
			srv.reconnect("h2")
			post("/", first)
			post("/length", "HTTP/2.0 -1", "HTTP/2.0 0")
			post("/", "HTTP/2.0 0")
		})
	}
}

// If the connection that has shown that a host speaks HTTP/2 ends, the next one
// may speak HTTP/1.
func TestFramingOfTheNextConnection(t *testing.T) {
	srv := newFramingServer(t, "h2")
	ctx := httptrace.WithClientTrace(
		t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
			if info.Conn.(*tls.Conn).ConnectionState().NegotiatedProtocol == "h2" {
				srv.reconnect("http/1.1")
			}
		}})
	contract.Send(t, contract.Unchecked(t, httpretry.Config{Base: srv.base}),
		contract.Request(t, "POST", srv.URL, "").WithContext(ctx))
	assert.Equal(t, []string{"HTTP/1.1 0"}, srv.take())
}

// A Proxy function sends a lookup over HTTP/2 in the context of a POST. That stops
// the attempt, but the function ignores the error. Then net/http may take an idle
// HTTP/1 connection, although the attempt is canceled. The POST is not sent on it,
// because the next attempt sends it.
func TestFramingAfterALookupOfProxy(t *testing.T) {
	lookups, names := newTLSServer(t, true, func(http.ResponseWriter, *http.Request) {})
	for range 20 { // net/http notices the cancel first in half of the runs
		srv := newFramingServer(t, "http/1.1")
		srv.base.DialTLSContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
			d := tls.Dialer{Config: srv.base.TLSClientConfig}
			conn, err := d.DialContext(ctx, "tcp", addr)
			return yieldingConn{conn}, err
		}
		looksUp, stopped := false, false
		srv.base.Proxy = func(req *http.Request) (*url.URL, error) {
			if looksUp {
				lookup, err := http.NewRequestWithContext(req.Context(), "GET", lookups.URL, nil)
				require.NoError(t, err)
				if resp, err := names.RoundTrip(lookup); err == nil {
					_ = resp.Body.Close()
				} else {
					stopped = true
				}
			}
			return nil, nil
		}
		transport := contract.Unchecked(t, httpretry.Config{Base: srv.base})
		post := contract.Request(t, "POST", srv.URL, "")
		contract.Send(t, transport, post)
		require.Len(t, srv.take(), 1)
		looksUp = true
		contract.Send(t, transport, post)
		require.Len(t, srv.take(), 1)
		require.True(t, stopped)
	}
}

// A yieldingConn lets other goroutines write before it is closed.
type yieldingConn struct{ net.Conn }

func (c yieldingConn) Close() error {
	for range 100 {
		runtime.Gosched()
	}
	return c.Conn.Close()
}

// A layer gets a token over HTTP/1 in a context that is not canceled with the
// attempt's. The attempt of a POST that is framed for HTTP/2 is stopped, and the
// token's connection is closed. net/http gets the token on another one.
func TestFramingBelowALayerWithATokenOverHTTP1(t *testing.T) {
	tokens, base := newTLSServer(t, false, func(http.ResponseWriter, *http.Request) {})
	srv := newFramingServer(t, "h2")
	layer := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		token := contract.Request(t, "GET", tokens.URL, "")
		resp, err := base.RoundTrip(token.WithContext(context.WithoutCancel(req.Context())))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return srv.base.RoundTrip(req)
	})
	transport := contract.Unchecked(
		t, httpretry.Config{Base: httpretry.Through(layer, srv.base)})
	for range 2 { // the second POST is framed for HTTP/2
		contract.Send(t, transport, contract.Request(t, "POST", srv.URL, ""))
		require.Len(t, srv.take(), 1)
	}
}

// A request was canceled while net/http connected for it. Another one gets the
// connection without a call of GetConn (clientConnPool.getConnCalled). It is
// framed for HTTP/2, and so it survives a GOAWAY that excludes it.
func TestFramingOnTheConnectionOfACanceledRequest(t *testing.T) {
	server, client := faults.Certificates(t)
	server.NextProtos = []string{"h2"}
	settled := make(chan struct{}, 10) // the client has answered the settings
	srv := faults.Listen(t, func(c *faults.Conn) {
		if !c.StartTLS(server) {
			return
		}
		c.ServeFrames(func(kind, flags byte, stream uint32, _ []byte) bool {
			s := faults.Stream{Conn: c, ID: stream}
			switch {
			case kind == faults.FrameSettings:
				settled <- struct{}{}
			case flags&faults.FlagEndStream == 0:
			case c.Number == 1:
				s.GoAway(0, faults.NoError)
			default:
				s.Respond(204)
			}
			return true
		})
	})
	base := faults.Base(t, client)
	dial, dialing, canceled := base.DialContext, make(chan struct{}, 10), make(chan struct{})
	base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialing <- struct{}{}
		<-canceled
		return dial(ctx, network, addr)
	}
	transport := contract.Unchecked(t, httpretry.Config{Base: base})
	post := contract.Request(t, "POST", "https://"+srv.Addr, "")
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-dialing; cancel() }()
	require.ErrorIs(t, sendFails(t, transport, post.WithContext(ctx)), context.Canceled)
	close(canceled)
	<-settled
	contract.Send(t, transport, post)
}

// A layer that returns neither a response nor an error is reported, whatever the
// framing.
func TestFramingWithoutResponse(t *testing.T) {
	srv := newFramingServer(t, "h2")
	broken := false
	layer := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		if broken {
			return nil, nil
		}
		return srv.base.RoundTrip(req)
	})
	transport := contract.Unchecked(t, httpretry.Config{Base: httpretry.Through(layer, srv.base)})
	contract.Send(t, transport, contract.Request(t, "POST", srv.URL, ""))
	broken = true
	err := sendFails(t, transport, contract.Request(t, "POST", srv.URL, ""))
	require.ErrorContains(t, err, "neither a response nor an error")
}

// A response over HTTP/1 beside HTTP/2, such as that of a WebSocket, does not
// show that the host no longer speaks HTTP/2.
func TestFramingBesideAWebSocket(t *testing.T) {
	for _, body := range []string{"", "payload"} {
		for _, above := range []layering{noLayer, knownLayer} {
			server, client := faults.Certificates(t)
			server.NextProtos = []string{"h2", "http/1.1"}
			var excluded atomic.Bool
			srv := faults.Listen(t, func(c *faults.Conn) {
				if !c.StartTLS(server) {
					return
				}
				if c.Conn.(*tls.Conn).ConnectionState().NegotiatedProtocol != "h2" {
					c.HTTP1(func(c *faults.Conn, _ *http.Request) bool {
						c.Respond(403, "")
						return false
					})
					return
				}
				requests := 0
				c.HTTP2(func(s faults.Stream) {
					if requests++; requests == 2 && !excluded.Swap(true) {
						s.GoAway(1, faults.NoError)
						return
					}
					s.Respond(200)
				})
			})
			transport := above.transport(t, faults.Base(t, client))
			url := "https://" + srv.Addr
			resp := contract.Send(t, transport, contract.Request(t, "GET", url, ""))
			assert.Equal(t, 2, resp.ProtoMajor)
			handshake := contract.Request(t, "GET", url, "")
			handshake.Header.Set("Connection", "Upgrade")
			handshake.Header.Set("Upgrade", "websocket")
			assert.Equal(t, 1, contract.Send(t, transport, handshake).ProtoMajor)
			resp = contract.Send(t, transport, contract.Request(t, "POST", url, body))
			assert.Equal(t, 200, resp.StatusCode)
			assert.True(t, excluded.Load())
		}
	}
}
