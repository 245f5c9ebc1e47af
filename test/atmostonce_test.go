package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/errno"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/internal/wire"
)

// A layering names the layers between a RetryTransport and net/http's
// Transport.
type layering string

const (
	noLayer      layering = "none"
	knownLayer   layering = "known" // has Unwrap
	unknownLayer layering = "unknown"
)

func (l layering) transport(t *testing.T, base http.RoundTripper) http.RoundTripper {
	cfg := httpretry.Config{Base: base, Policy: contract.RetryEvery(0)}
	switch l {
	case noLayer:
		return contract.Unchecked(t, cfg)
	case unknownLayer:
		cfg.Base = contract.BaseFunc(base.RoundTrip)
	}
	return contract.New(t, cfg) // which adds a known layer
}

// Hazard 0.1, 0.2, C2, C3: net/http resends requests over HTTP/2 by itself. A
// request that is not idempotent still reaches the server at most once, unless
// the server says that it did not process it.
func TestAtMostOnceHTTP2(t *testing.T) {
	reset := func(code uint32) func(faults.Stream) {
		return func(s faults.Stream) { s.ResetStream(code) }
	}
	goAway := func(code uint32) func(faults.Stream) {
		return func(s faults.Stream) { s.GoAway(0, code) }
	}
	// A 1xx response is not an answer, so net/http may resend the request. But
	// the server has begun with it, whatever a GOAWAY says.
	after103 := func(end func(faults.Stream)) func(faults.Stream) {
		return func(s faults.Stream) {
			s.Header(false, ":status", "103")
			end(s)
		}
	}
	for name, tt := range map[string]struct {
		answer func(faults.Stream)
		// deliveries: several if the server says that it did nothing
		want int32
		// Below an unknown layer, net/http's resend is stopped. Without a body, its
		// error does not say why it would have resent the request. With one, the
		// layer may need GetBody, so it is stopped when it asks for the body. After
		// ENHANCE_YOUR_CALM, net/http does not resend it, so its error says why.
		unknown int32
	}{
		"REFUSED_STREAM":    {reset(faults.RefusedStream), 1, 1},
		"PROTOCOL_ERROR":    {reset(faults.ProtocolError), 1, 1},
		"INTERNAL_ERROR":    {reset(faults.InternalError), 1, 1},
		"ENHANCE_YOUR_CALM": {reset(faults.EnhanceYourCalm), 1, 1},
		"GOAWAY(0), three times": {func(s faults.Stream) {
			if s.Request <= 3 {
				s.GoAway(0, faults.NoError)
			} else {
				s.ResetStream(faults.InternalError)
			}
		}, 4, 1},
		"GOAWAY(0), calm": {goAway(faults.EnhanceYourCalm), 5, 5},
		"GOAWAY(id) + close": {
			func(s faults.Stream) { s.GoAway(s.ID, faults.NoError); s.Close() }, 1, 1},
		"close":                {func(s faults.Stream) { s.Close() }, 1, 1},
		"103, REFUSED_STREAM":  {after103(reset(faults.RefusedStream)), 1, 1},
		"103, GOAWAY(0)":       {after103(goAway(faults.NoError)), 1, 1},
		"103, GOAWAY(0), calm": {after103(goAway(faults.EnhanceYourCalm)), 1, 1},
	} {
		for _, above := range []layering{noLayer, knownLayer, unknownLayer} {
			for _, body := range []string{"", "payload"} {
				t.Run(fmt.Sprintf("%s/layer=%s/body=%q", name, above, body), func(t *testing.T) {
					srv := faults.HTTP2(t, tt.answer)
					err := failsInTime(t, above.transport(t, faults.HTTP2Base(t)),
						contract.Request(t, "POST", srv.URL(), body))
					want := tt.want
					if above == unknownLayer {
						want = tt.unknown
					}
					if want < tt.want { // though the server says that it did nothing
						require.ErrorContains(t, err, "httpretry.Through", "it names the remedy")
					}
					assert.Equal(t, want, srv.Requests.Load(), "deliveries; %v", err)
				})
			}
		}
	}
}

// Hazard C2: a request with a body that a GOAWAY left unprocessed is resent by
// the RetryTransport, not by net/http.
func TestGoAwayReplay(t *testing.T) {
	srv := faults.HTTP2(t, func(s faults.Stream) {
		if s.Request == 1 {
			s.GoAway(0, faults.NoError)
		} else {
			s.Respond(204)
		}
	})
	transport, events := recorded(t, faults.HTTP2Base(t))
	resp := contract.Send(t, transport, contract.Request(t, "POST", srv.URL(), "payload"))
	assert.Equal(t, 204, resp.StatusCode)
	assert.Len(t, events.Events, 2)
	assert.EqualValues(t, 2, srv.Requests.Load())
}

// A base that sends several requests with the attempt's context, for example to
// log in, is not mistaken for net/http resending the attempt.
func TestLayerThatLogsIn(t *testing.T) {
	var charges atomic.Int32
	srv, inner := newTLSServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token":
			_, _ = io.WriteString(w, "secret")
		case r.Header.Get("Authorization") != "secret":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			charges.Add(1)
		}
	})
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		resp, err := inner.RoundTrip(req)
		if err != nil || resp.StatusCode != http.StatusUnauthorized {
			return resp, err
		}
		contract.ReadBody(t, resp)
		token, err := inner.RoundTrip(
			contract.Request(t, "GET", srv.URL+"/token", "").WithContext(req.Context()))
		if err != nil {
			return nil, err
		}
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", contract.ReadBody(t, token))
		return inner.RoundTrip(req)
	})
	resp := contract.Send(t, contract.New(t, httpretry.Config{Base: base}),
		contract.Request(t, "POST", srv.URL+"/charge", ""))
	assert.Equal(t, 2, resp.ProtoMajor)
	assert.EqualValues(t, 1, charges.Load())
}

// A Transport may send requests of its own with the attempt's context. They are
// not mistaken for resends of the attempt.
func TestRequestsInsideTransport(t *testing.T) {
	var posts atomic.Int32
	srv, known := newTLSServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			posts.Add(1)
		}
		if r.Header.Get("Authorization") == "" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	get := func(ctx context.Context, url string) {
		resp, err := known.RoundTrip(contract.Request(t, "GET", url, "").WithContext(ctx))
		if assert.NoError(t, err) {
			contract.ReadBody(t, resp)
		}
	}
	for name, set := range map[string]func(base *http.Transport){
		"a dial function that looks up addresses over HTTPS": func(base *http.Transport) {
			resolver, _ := newTLSServer(t, true, func(http.ResponseWriter, *http.Request) {})
			base.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
				get(ctx, resolver.URL+"/a")
				get(ctx, resolver.URL+"/aaaa")
				return new(net.Dialer).DialContext(ctx, network, srv.Listener.Addr().String())
			}
		},
		"a protocol that authenticates": func(base *http.Transport) {
			base.RegisterProtocol(
				"https", contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					// The first request shows that the host speaks HTTP/2.
					_, err := known.RoundTrip(
						contract.Request(t, "GET", srv.URL, "").WithContext(req.Context()))
					if err != nil {
						return nil, err
					}
					req = req.Clone(req.Context())
					req.Header.Set("Authorization", "secret")
					return known.RoundTrip(req)
				}))
		},
		// An attempt whose connection shows that the host speaks HTTP/2 is stopped and
		// sent anew, though its context is detached.
		"a protocol that detaches the context": func(base *http.Transport) {
			base.RegisterProtocol(
				"https", contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					return known.RoundTrip(req.WithContext(context.WithoutCancel(req.Context())))
				}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, body := range []string{"", "text"} {
				posts.Store(0)
				base := known.Clone()
				t.Cleanup(base.CloseIdleConnections)
				set(base)
				contract.Send(t, contract.Unchecked(t, httpretry.Config{Base: base}),
					contract.Request(t, "POST", srv.URL, body))
				assert.EqualValues(t, 1, posts.Load())
			}
		})
	}
}

// Watching 1xx responses disables net/http's bound on their size, so the
// RetryTransport has a bound of its own. Like that of net/http, it does not
// limit their number, since a server may send one every few seconds while it
// works.
func TestInformationalFlood(t *testing.T) {
	for number, want := range map[int]string{100: "", 5000: "too many 1xx responses"} {
		contract.ForProtocols(t, func(t *testing.T, proto string) {
			base, srv := contract.Serve(t, proto, func(w http.ResponseWriter, _ *http.Request) {
				for range number {
					w.WriteHeader(http.StatusProcessing)
				}
			})
			base.MaxResponseHeaderBytes = 100_000
			transport := contract.New(t, httpretry.Config{Base: base})
			req := contract.Request(t, "POST", srv.URL, "")
			if want == "" {
				contract.Send(t, transport, req)
			} else {
				require.ErrorContains(t, sendFails(t, transport, req), want)
			}
		})
	}
}

// Over HTTP/1, net/http resends a request that it considers not replayable only
// if it has written nothing of it. That is allowed, also for a request that has
// only one attempt. With TLS, the body is one from GetBody.
func TestNothingWritten(t *testing.T) {
	var sent atomic.Int32
	handler := func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.ContentLength == 0 || string(body) == "payload" {
			sent.Add(1)
		}
	}
	for _, secure := range []bool{false, true} {
		srv, base := newTLSServer(t, false, handler)
		if !secure {
			srv = contract.NewServer(t, handler)
		}
		broken := makeBrittle(base)
		transport := contract.New(t, httpretry.Config{Base: base})
		for _, k := range []kind{kindPostEmpty, kindPost, kindPostGetBody} {
			for _, method := range []string{"POST", "PUT"} {
				t.Run(fmt.Sprintf("TLS=%t/%s/%s", secure, k, method), func(t *testing.T) {
					req := k.request(t, srv.URL)
					req.Method = method
					contract.Send(t, transport, contract.Request(t, "GET", srv.URL, ""))
					broken.Store(true)
					sent.Store(0)
					resp := contract.Send(t, transport,
						req.WithContext(httpretry.WithoutRetries(req.Context())))
					assert.False(t, broken.Load(), "a write has failed")
					assert.EqualValues(t, 1, sent.Load())
					contract.HasResult(t, resp, 1, httpretry.ReasonSuccess)
				})
			}
		}
	}
}

// A request that may have only one attempt is sent again after a GOAWAY that
// excludes it, as net/http alone does, but not after any other end of its stream.
// Nothing is kept of a stream that has only one attempt, so it is not sent again.
func TestAtMostOnceOnTheLastAttempt(t *testing.T) {
	for name, answer := range map[string]func(faults.Stream){
		"REFUSED_STREAM": func(s faults.Stream) { s.ResetStream(faults.RefusedStream) },
		"GOAWAY(0)":      func(s faults.Stream) { s.GoAway(0, faults.NoError) },
	} {
		for _, k := range []kind{
			kindPostEmpty, kindPost, kindPostGetBody, kindPostStreamed} {
			for _, by := range []string{"MaxAttempts", "WithoutRetries"} {
				t.Run(name+"/"+string(k)+"/"+by, func(t *testing.T) {
					var requests atomic.Int32
					srv := faults.Listen(t, func(c *faults.Conn) {
						c.ServeFrames(func(_, flags byte, id uint32, _ []byte) bool {
							switch stream := (faults.Stream{Conn: c, ID: id}); {
							case id == 0 || flags&faults.FlagEndStream == 0:
								// the body is yet to come
							case requests.Add(1) == 2:
								stream.Respond(204)
							default:
								answer(stream)
							}
							return true
						})
					})
					req, policy := k.request(t, srv.URL()), contract.RetryEvery(0)
					if by == "MaxAttempts" {
						policy.MaxAttempts = 1
					} else {
						req = req.WithContext(httpretry.WithoutRetries(req.Context()))
					}
					transport := contract.With(t, faults.HTTP2Base(t), policy)
					if name == "GOAWAY(0)" && k != kindPostStreamed {
						contract.Send(t, transport, req)
						assert.EqualValues(t, 2, requests.Load())
						return
					}
					err := sendFails(t, transport, req)
					require.ErrorContains(t, err, strings.TrimSuffix(name, "(0)"))
					assert.EqualValues(t, 1, requests.Load())
				})
			}
		}
	}
}

// makeBrittle makes the first write of base fail after broken is set.
func makeBrittle(base *http.Transport) (broken *atomic.Bool) {
	broken = new(atomic.Bool)
	faults.WrapConns(base, func(conn net.Conn) net.Conn { return &brittleConn{conn, broken} })
	return broken
}

type brittleConn struct {
	net.Conn
	broken *atomic.Bool
}

func (c *brittleConn) Write(p []byte) (int, error) {
	if c.broken.CompareAndSwap(true, false) {
		return 0, errno.BrokenPipe
	}
	return c.Conn.Write(p)
}

// noRoute returns a transport that cannot connect, and counts its dials.
func noRoute() (base *http.Transport, dials *int) {
	dials = new(int)
	return &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			*dials++
			return nil, errors.New("no route")
		}}, dials
}

// If net/http could not connect, a layer may have sent the request in another way,
// which the hooks do not report. That of an http.Transport, which a layer with an
// Unwrap method uses, has not.
func TestNeverSentByNetHTTP(t *testing.T) {
	again := func(inner http.RoundTripper, usesGetBody bool) http.RoundTripper {
		return contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			body, _ := io.ReadAll(req.Body)
			_ = req.Body.Close()
			again := req.Clone(req.Context())
			again.Body = io.NopCloser(bytes.NewReader(body))
			if usesGetBody {
				again.Body, _ = req.GetBody()
			}
			return inner.RoundTrip(again)
		})
	}
	inner, dials := noRoute()
	fallback := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		_, err := inner.RoundTrip(req)
		// of a transport that does not call the hooks
		return nil, fmt.Errorf("%w, after %s", io.ErrUnexpectedEOF, err)
	})
	for name, tt := range map[string]struct {
		base     http.RoundTripper
		body     string
		attempts int
	}{
		"body":              {again(inner, false), "payload", 1},
		"GetBody":           {again(inner, true), "payload", 1},
		"without body":      {fallback, "", 1},
		"layer with Unwrap": {unwrapper{inner}, "", 5},
		"http.Transport":    {inner, "", 5},
	} {
		t.Run(name, func(t *testing.T) {
			*dials = 0
			err := sendFails(t, retrying(t, tt.base), newRequest(t, "POST", tt.body))
			require.ErrorContains(t, err, "no route")
			assert.Equal(t, tt.attempts, *dials)
		})
	}
}

// A protocol that is registered with net/http's Transport, or that TLS has
// negotiated, may not call the hooks, so they prove nothing.
func TestNeverSentByAnotherProtocol(t *testing.T) {
	for _, body := range []string{"", "payload"} {
		t.Run(fmt.Sprintf("registered/body %q", body), func(t *testing.T) {
			inner, sent := noRoute()
			base := new(http.Transport)
			base.RegisterProtocol(
				"two", contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					if req.Body != nil {
						_, _ = io.Copy(io.Discard, req.Body)
						_ = req.Body.Close()
					}
					return inner.RoundTrip(
						newRequest(t, "POST", body).
							WithContext(req.Context()))
				}))
			err := sendFails(t, noLayer.transport(t, base),
				contract.Request(t, "POST", "two://a.test/", body))
			require.ErrorContains(t, err, "no route")
			assert.Equal(t, 1, *sent)
		})
		t.Run(fmt.Sprintf("negotiated/body %q", body), func(t *testing.T) {
			server, client := faults.Certificates(t)
			server.NextProtos, client.NextProtos = []string{"mine"}, []string{"mine"}
			srv := faults.Listen(t, func(c *faults.Conn) {
				if c.StartTLS(server) {
					_, _ = c.Request() // which is processed, and not answered
				}
			})
			base := faults.Base(t, client)
			var sent atomic.Int32
			base.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{
				"mine": func(_ string, conn *tls.Conn) http.RoundTripper {
					var used atomic.Bool
					return contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
						if used.Swap(true) {
							return nil, noCachedConnError{}
						}
						sent.Add(1)
						// Write would call the hooks that are in the context.
						if err := req.WithContext(context.Background()).Write(conn); err != nil {
							return nil, err
						}
						return http.ReadResponse(bufio.NewReader(conn), req)
					})
				},
			}
			err := sendFails(t, noLayer.transport(t, base),
				contract.Request(t, "POST", "https://"+srv.Addr, body))
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			assert.EqualValues(t, 1, sent.Load())
		})
	}
}

// noCachedConnError makes net/http open another connection.
type noCachedConnError struct{}

func (noCachedConnError) Error() string             { return "the connection was used" }
func (noCachedConnError) IsHTTP2NoCachedConnError() {}

// dropServer is a server of HTTP/1 that answers requests for /, and closes the
// connection of each other one.
type dropServer struct {
	*faults.Server
	dropped atomic.Int32
	key     atomic.Value // X-Idempotency-Key of the last one
}

func newDropServer(t *testing.T) *dropServer {
	s := new(dropServer)
	s.Server = faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
		if req.URL.Path == "/" {
			c.Respond(200, "")
			return true
		}
		s.dropped.Add(1)
		s.key.Store(req.Header.Get("X-Idempotency-Key"))
		return false
	})
	return s
}

// sendsOnce sends req on a connection that was used before, and requires that it
// arrives once and fails.
func (s *dropServer) sendsOnce(t *testing.T, policy httpretry.Policy, req *http.Request) error {
	t.Helper()
	s.dropped.Store(0)
	base := faults.Base(t, nil)
	transport := contract.With(t, base, policy)
	contract.Send(t, transport, contract.Request(t, "GET", s.URL()+"/", ""))
	err := sendFails(t, transport, req)
	base.CloseIdleConnections()
	s.Settle(t)
	assert.EqualValues(t, 1, s.dropped.Load())
	return err
}

// Hazard C1: an empty key counts as none, and with a Policy.Idempotent, so does
// a key without any value. net/http takes any key as permission to resend, so
// such a key is removed.
func TestEmptyKeyOverHTTP1(t *testing.T) {
	for name, tt := range map[string]struct {
		values     []string
		idempotent func(*http.Request) bool
	}{
		"empty value":      {[]string{""}, nil},
		"no value":         {[]string{}, isGet},
		"no slice for it":  {nil, isGet},
		"empty, by policy": {[]string{""}, isGet},
	} {
		t.Run(name, func(t *testing.T) {
			srv := newDropServer(t)
			policy := contract.RetryEvery(0)
			policy.Idempotent = tt.idempotent
			policy.IdempotencyHeader = "X-Request-Id"
			for range 5 {
				req := contract.Request(t, "POST", srv.URL()+"/unsafe", "")
				req.Header["Idempotency-Key"] = tt.values
				req.Header["X-Idempotency-Key"] = tt.values
				err := srv.sendsOnce(t, policy, req)
				assert.NotErrorIs(t, err, wire.ErrResent, "net/http did not try to resend it")
			}
		})
	}
}

func isGet(req *http.Request) bool { return req.Method == "GET" }

// net/http resends requests with these methods or with a key
// (Request.isReplayable), but not one that the policy considers not idempotent.
// The server gets a key that the policy does not accept.
func TestUnsafeRequests(t *testing.T) {
	for _, tt := range []struct{ method, key string }{
		{"", ""}, {"GET", ""}, {"HEAD", ""}, {"OPTIONS", ""}, {"TRACE", ""}, {"POST", "foreign"},
	} {
		t.Run(tt.method+tt.key, func(t *testing.T) {
			srv := newDropServer(t)
			policy := contract.RetryEvery(0)
			policy.Idempotent = func(req *http.Request) bool { return req.URL.Path == "/" }
			for range 5 {
				req := contract.Request(t, "GET", srv.URL()+"/unsafe", "")
				req.Method = tt.method
				if tt.key != "" {
					req.Header.Set("X-Idempotency-Key", tt.key)
				}
				_ = srv.sendsOnce(t, policy, req)
				assert.Equal(t, tt.key, srv.key.Load())
			}
		})
	}
}

// Stopping net/http from resending a request over HTTP/2 does not close the
// connection, which other requests use.
func TestStoppedResendKeepsConnection(t *testing.T) {
	srv := faults.HTTP2(t, func(s faults.Stream) {
		if s.Request == 2 {
			s.ResetStream(faults.RefusedStream)
			return
		}
		s.Respond(204)
	})
	base := faults.HTTP2Base(t)
	warmUp(t, base, srv)
	err := sendFails(t, unknownLayer.transport(t, base), contract.Request(t, "POST", srv.URL(), ""))
	require.ErrorContains(t, err, "was stopped")
	conns := srv.Conns.Load() // 2 if net/http had not pooled the first one yet
	warmUp(t, base, srv)
	assert.EqualValues(t, 3, srv.Requests.Load())
	assert.Equal(t, conns, srv.Conns.Load())
}

// newChangingServer starts a TLS server whose first connection has the first
// protocol, and all others the second. The server resets HTTP/2 requests and
// answers HTTP/1 ones.
func newChangingServer(
	t testing.TB, first, later string) (base *http.Transport, url string, posts *atomic.Int32) {
	t.Helper()
	server, client := faults.Certificates(t)
	posts = new(atomic.Int32)
	srv := faults.Listen(t, func(c *faults.Conn) {
		cfg, proto := server.Clone(), later
		if c.Number == 1 {
			proto = first
		}
		cfg.NextProtos = []string{proto}
		switch {
		case !c.StartTLS(cfg):
		case proto == "h2":
			c.HTTP2(func(s faults.Stream) {
				posts.Add(1)
				s.ResetStream(faults.ProtocolError)
			})
		default:
			c.HTTP1(func(c *faults.Conn, req *http.Request) bool {
				if req.Method == "POST" {
					posts.Add(1)
				}
				c.Respond(200, "")
				return true
			})
		}
	})
	return faults.Base(t, client), "https://" + srv.Addr, posts
}

// Hazard C3: a server may use another protocol on the next connection.
func TestAtMostOnceAcrossProtocols(t *testing.T) {
	t.Run("HTTP/2, then HTTP/1", func(t *testing.T) {
		for range 20 {
			base, url, posts := newChangingServer(t, "h2", "http/1.1")
			_ = sendFails(t, retrying(t, base), contract.Request(t, "POST", url, ""))
			base.CloseIdleConnections()
			assert.EqualValues(t, 1, posts.Load())
		}
	})
	t.Run("stale HTTP/1, then HTTP/2", func(t *testing.T) {
		base, url, posts := newChangingServer(t, "http/1.1", "h2")
		broken := makeBrittle(base)
		transport := retrying(t, base)
		contract.Send(t, transport, contract.Request(t, "GET", url, ""))
		broken.Store(true)
		_ = sendFails(t, transport, contract.Request(t, "POST", url, ""))
		assert.EqualValues(t, 1, posts.Load())
	})
}

func connects(c *faults.Conn, _ *http.Request) bool {
	c.Respond(200, "")
	return true
}

// Hazard 0.1: through a proxy, net/http names the proxy in GetConn when it
// opens a connection, and the server when it uses an HTTP/2 connection again.
// The second name does not make a resend a request to another host.
func TestAtMostOnceThroughProxy(t *testing.T) {
	server, client := faults.Certificates(t)
	server.NextProtos = []string{"h2"}
	proxies := map[string]func(addr string) *url.URL{
		"HTTP": func(addr string) *url.URL {
			return &url.URL{Scheme: "http", Host: faults.Proxy(t, addr, connects).Addr}
		},
		"SOCKS": func(addr string) *url.URL {
			return &url.URL{Scheme: "socks5", Host: faults.SOCKS(t, addr, 0).Addr}
		},
	}
	for kind, start := range proxies {
		for name, tt := range map[string]struct {
			reused bool // the request is sent on a connection that is open already
			refuse func(faults.Stream)
		}{
			"new connection, which stays open": {
				false, func(s faults.Stream) { s.ResetStream(faults.RefusedStream) }},
			"reused connection, which stays open": {
				true, func(s faults.Stream) { s.ResetStream(faults.RefusedStream) }},
			"reused connection, which ends": {true, func(s faults.Stream) {
				s.GoAway(s.ID, faults.NoError)
				s.ResetStream(faults.RefusedStream)
			}},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				var posts atomic.Int32
				srv := faults.Listen(t, func(c *faults.Conn) {
					if !c.StartTLS(server) {
						return
					}
					warm := tt.reused && c.Number == 1
					c.HTTP2(func(s faults.Stream) {
						if warm {
							warm = false
							s.Header(true, ":status", "200")
							return
						}
						posts.Add(1)
						tt.refuse(s)
					})
				})
				base := faults.Base(t, client)
				base.Proxy = http.ProxyURL(start(srv.Addr))
				if tt.reused { // by another client, so that the protocol is not known
					contract.Send(t, base, contract.Request(t, "GET", "https://"+srv.Addr, ""))
				}
				err := failsInTime(t, retrying(t, base),
					contract.Request(t, "POST", "https://"+srv.Addr, ""))
				require.ErrorContains(t, err, "was stopped")
				assert.EqualValues(t, 1, posts.Load())
			})
		}
	}
}

// The function for the proxy may choose another one for each resend. Without a
// server name in a TLS handshake, neither the name in GetConn nor the address
// shows that the second connection leads to the same server.
func TestAtMostOnceThroughProxies(t *testing.T) {
	for _, scheme := range []string{"https", "http"} {
		t.Run(scheme, func(t *testing.T) {
			var posts atomic.Int32
			server, client := faults.Certificates(t)
			server.NextProtos = []string{"h2"}
			srv := faults.Listen(t, func(c *faults.Conn) {
				if c.StartTLS(server) {
					c.HTTP2(func(s faults.Stream) {
						posts.Add(1)
						s.GoAway(s.ID, faults.NoError)
						s.ResetStream(faults.RefusedStream)
					})
				}
			})
			var proxies []string
			for range 3 {
				proxy := faults.Proxy(t, srv.Addr, connects)
				if scheme == "http" { // the proxy itself answers
					proxy = faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
						if req.Method == "POST" {
							posts.Add(1)
							return false
						}
						c.Respond(200, "")
						return true
					})
				}
				proxies = append(proxies, proxy.Addr)
			}
			base := faults.Base(t, client)
			var chosen atomic.Int32
			base.Proxy = func(*http.Request) (*url.URL, error) {
				return &url.URL{Scheme: "http", Host: proxies[int(chosen.Add(1))%len(proxies)]}, nil
			}
			policy := contract.RetryEvery(0)
			policy.Idempotent = isGet
			transport := unchecked(t, base, policy)
			if scheme == "http" {
				// net/http resends a request only if it failed on a connection
				// that was used before.
				for range proxies {
					contract.Send(t, transport, contract.Request(t, "GET", "http://"+srv.Addr, ""))
				}
			}
			req := contract.Request(t, "POST", scheme+"://"+srv.Addr, "")
			req.Header.Set("X-Idempotency-Key", "foreign")
			err := failsInTime(t, transport, req)
			// Over HTTP/2, its empty body cannot be sent again.
			require.ErrorContains(t, err,
				map[string]string{"http": "was stopped", "https": "REFUSED_STREAM"}[scheme])
			assert.EqualValues(t, 1, posts.Load())
		})
	}
}

// A layer may detach a request from the attempt's context. net/http then does
// not see that the context ends before it would resend the request.
func TestAtMostOnceInDetachedContext(t *testing.T) {
	for _, body := range []string{"", "payload"} {
		t.Run(fmt.Sprintf("body=%q", body), func(t *testing.T) {
			srv := faults.HTTP2(t, func(s faults.Stream) { s.ResetStream(faults.RefusedStream) })
			base := faults.HTTP2Base(t)
			layer := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), waitLimit)
				defer cancel()
				return base.RoundTrip(req.WithContext(ctx))
			})
			err := sendFails(t, retrying(t, layer), contract.Request(t, "POST", srv.URL(), body))
			require.ErrorContains(t, err, "was stopped")
			base.CloseIdleConnections()
			assert.EqualValues(t, 1, srv.Requests.Load())
		})
	}
}

// Hazard 1.3: the hooks of httptrace that a base calls, and their proofs about
// a POST whose error proves nothing.
func TestNeverSentProof(t *testing.T) {
	conn, _ := net.Pipe()
	connecting := func(c *httptrace.ClientTrace) { c.GetConn("a:80") }
	connected := func(c *httptrace.ClientTrace) {
		c.GetConn("a:80")
		c.GotConn(httptrace.GotConnInfo{Conn: conn})
	}
	wroteField := func(c *httptrace.ClientTrace) {
		c.GetConn("a:80")
		c.WroteHeaderField("Host", nil)
	}
	var timeout error // the attempt's timeout, for which the base waits
	for _, tt := range []struct {
		name     string
		reports  func(*httptrace.ClientTrace)
		err      error
		attempts int
	}{
		{"no connection", connecting, io.EOF, 5},
		{"no connection in time", connecting, timeout, 5},
		{"no connection in a layer's time", connecting, context.DeadlineExceeded, 5},
		{"a connection", connected, io.EOF, 5},
		{"a connection, and out of time", connected, timeout, 5},
		// An HTTP/2 stream may still be written when RoundTrip has returned.
		{"a connection that is not shown", func(c *httptrace.ClientTrace) {
			c.GetConn("a:80")
			c.GotConn(httptrace.GotConnInfo{})
		}, io.EOF, 1},
		{"a field", wroteField, io.EOF, 1},
		{"a header, but not its fields", func(c *httptrace.ClientTrace) {
			c.GetConn("a:80")
			c.WroteHeaders()
		}, io.EOF, 1},
		{"sent, then dialled elsewhere", wroteField, contract.ErrRefused, 1},
		{"nothing", func(*httptrace.ClientTrace) {}, io.EOF, 1},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			attempts := 0
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				attempts++
				tt.reports(httptrace.ContextClientTrace(req.Context()))
				if tt.err == timeout {
					<-req.Context().Done()
					return nil, req.Context().Err()
				}
				return nil, tt.err
			})
			policy := withTimeout(time.Second)
			_ = sendFails(t, contract.With(t, base, policy), newRequest(t, "POST", "payload"))
			assert.Equal(t, tt.attempts, attempts)
		})
	}
}

// Hazard C8: a layer gives up before its request is written, and does not wait for its
// end. The request is then either not written any more, also if net/http sends it again,
// or not retried, if it has got a connection of HTTP/2.
func TestRequestThatALayerLeaves(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for _, whileDialing := range []bool{false, true} {
			for _, body := range []string{"", "payload"} {
				for _, err := range []error{errors.New("layer: gave up"), contract.ErrRefused} {
					if http2 && !whileDialing && err == contract.ErrRefused {
						continue // a layer that says so has to wait
					}
					name := fmt.Sprintf("HTTP2=%t/dialing=%t/%s/%v", http2, whileDialing, body, err)
					t.Run(name, func(t *testing.T) {
						testLeavesRequest(t, http2, whileDialing, body, err)
					})
				}
			}
		}
	}
}

func testLeavesRequest(t *testing.T, http2, whileDialing bool, body string, layerErr error) {
	var executed, sends atomic.Int32
	srv, base := newTLSServer(t, http2, func(_ http.ResponseWriter, req *http.Request) {
		assert.Equal(t, http2, req.ProtoMajor == 2)
		if req.Method == http.MethodPost {
			executed.Add(1)
		}
	})
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var once sync.Once
	pause := func() { once.Do(func() { close(begun); <-goOn }) }
	resume := sync.OnceFunc(func() { close(goOn) })
	layer := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		switch {
		case req.Method != http.MethodPost:
			return base.RoundTrip(req)
		case sends.Add(1) > 1:
			resume()
			assert.Error(t, <-ended)
			return base.RoundTrip(req)
		}
		ctx := context.WithoutCancel(req.Context())
		if !whileDialing {
			ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
				WroteHeaderField: func(string, []string) { pause() }})
		}
		go func() {
			resp, err := base.RoundTrip(req.WithContext(ctx))
			if err == nil {
				_ = resp.Body.Close()
			}
			ended <- err
		}()
		<-begun
		return nil, layerErr
	})
	transport := noLayer.transport(t, httpretry.Through(layer, base))
	if whileDialing {
		base.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			pause()
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	} else {
		// net/http sends a request again if a connection that was used before fails.
		contract.Send(t, transport, contract.Request(t, "HEAD", srv.URL, ""))
	}
	resp, err := transport.RoundTrip(contract.Request(t, "POST", srv.URL, body))
	if http2 && !whileDialing {
		require.ErrorIs(t, err, layerErr)
		resume()
		require.NoError(t, <-ended)
	} else {
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.EqualValues(t, 2, sends.Load())
	}
	assert.EqualValues(t, 1, executed.Load())
}

// Hazard C8: over HTTP/2, a request that is canceled once it has a connection may still
// be written.
func TestCancelOnAConnection(t *testing.T) {
	srv, base := newTLSServer(t, true, http.NotFound)
	for _, byChannel := range []bool{false, true} {
		req := cancelAtConnection(t, contract.Request(t, "POST", srv.URL, "body"), byChannel)
		err := sendFails(t, noLayer.transport(t, base), req)
		require.ErrorContains(t, err, "canceled")
		assert.False(t, httpretry.IsUnprocessed(err))
	}
}

// If net/http has written a request on one connection and then fails to dial
// another one, the request was not provably unsent.
func TestDialedAgainTimesOut(t *testing.T) {
	var delivered atomic.Int32
	server, client := faults.Certificates(t)
	srv := faults.Listen(t, func(c *faults.Conn) {
		switch {
		case c.Number > 1:
			c.Drain() // and never a TLS handshake
		case c.StartTLS(server):
			c.HTTP1(func(c *faults.Conn, req *http.Request) bool {
				if req.URL.Path == "/act" {
					delivered.Add(1)
					return false
				}
				c.Respond(200, "")
				return true
			})
		}
	})
	base := faults.Base(t, client)
	policy := contract.RetryEvery(0)
	policy.Idempotent = func(req *http.Request) bool { return req.URL.Path != "/act" }
	transport := contract.With(t, base, policy)
	contract.Send(t, transport, contract.Request(t, "GET", "https://"+srv.Addr, ""))
	base.TLSHandshakeTimeout = 20 * time.Millisecond
	_ = sendFails(t, transport, contract.Request(t, "GET", "https://"+srv.Addr+"/act", ""))
	assert.EqualValues(t, 1, delivered.Load())
}

// digest returns a layer that answers a 401 as digest authentication does. It
// sends the request again, with a body from GetBody.
func digest(next http.RoundTripper) contract.BaseFunc {
	return func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err != nil || resp.StatusCode != http.StatusUnauthorized {
			return resp, err
		}
		readAll(resp)
		again := req.Clone(req.Context())
		again.Header.Set("Authorization", "Digest")
		if again.Body, err = req.GetBody(); err != nil {
			return nil, err
		}
		return next.RoundTrip(again)
	}
}

// A layer in Base may use GetBody, also for a request that is not idempotent. A
// request that it sends after an answer is its own.
func TestLayerThatUsesGetBody(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		for _, timeout := range []time.Duration{0, time.Hour} {
			for _, method := range []string{"POST", "PUT"} {
				t.Run(fmt.Sprintf("%s/timeout %v", method, timeout), func(t *testing.T) {
					var requests atomic.Int32
					base, srv := contract.Serve(t, proto, func(
						w http.ResponseWriter, r *http.Request) {
						requests.Add(1)
						body, err := io.ReadAll(r.Body)
						assert.NoError(t, err)
						assert.Equal(t, "payload", string(body))
						if r.Header.Get("Authorization") == "" {
							w.WriteHeader(http.StatusUnauthorized)
						}
					})
					policy := withTimeout(timeout)
					resp := contract.Send(t, contract.With(t, digest(base), policy),
						contract.Request(t, method, srv.URL, "payload"))
					assert.Equal(t, 200, resp.StatusCode)
					assert.EqualValues(t, 2, requests.Load())
				})
			}
		}
	})
}

// Hazard 0.1: GetBody for a layer is not GetBody for net/http, which would use
// it to resend a request over HTTP/2.
func TestLayerThatUsesGetBodyAtMostOnce(t *testing.T) {
	srv := faults.HTTP2(t, func(s faults.Stream) {
		if s.Request == 1 {
			s.Respond(401)
			return
		}
		s.ResetStream(faults.RefusedStream)
	})
	transport, events := recorded(t, digest(faults.HTTP2Base(t)))
	err := sendFails(t, transport, contract.Request(t, "POST", srv.URL(), "payload"))
	assert.Equal(t, httpretry.ReasonNotIdempotent, events.Reason())
	assert.EqualValues(t, 2, srv.Requests.Load(), "%v", err)
}

// lateReadConn is a brittleConn on which net/http sees the failure of the write
// before the end of the reading that follows.
type lateReadConn struct{ brittleConn }

func (c *lateReadConn) Read(p []byte) (int, error) {
	n, err := c.brittleConn.Read(p)
	if err != nil {
		<-time.After(200 * time.Millisecond)
	}
	return n, err
}

// A request of which no byte was written was not processed over TLS, either,
// where net/http gets no GetBody, and with a body for which there is none.
// net/http then does not resend the request, but its error shows that nothing
// was written.
func TestNothingWrittenWithoutGetBody(t *testing.T) {
	for _, secure := range []bool{false, true} {
		for name, tt := range map[string]struct {
			stream bool
			above  layering
		}{
			"memory":               {false, knownLayer},
			"stream":               {true, knownLayer},
			"stream, net/http":     {true, noLayer},
			"stream below a layer": {true, unknownLayer},
		} {
			t.Run(fmt.Sprintf("TLS=%v/%s", secure, name), func(t *testing.T) {
				var posts atomic.Int32
				var broken atomic.Bool
				handler := func(_ http.ResponseWriter, r *http.Request) {
					if body, _ := io.ReadAll(r.Body); string(body) == "payload" {
						posts.Add(1)
					}
				}
				srv, base := newTLSServer(t, false, handler)
				if !secure {
					srv = contract.NewServer(t, handler)
				}
				faults.WrapConns(base, func(conn net.Conn) net.Conn {
					return &lateReadConn{brittleConn{conn, &broken}}
				})
				layer := http.RoundTripper(base)
				if tt.above == unknownLayer {
					layer = contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
						resp, err := base.RoundTrip(req)
						if err != nil {
							err = fmt.Errorf("layer: %w", err)
						}
						return resp, err
					})
				}
				transport := tt.above.transport(t, layer)
				contract.Send(t, transport, contract.Request(t, "GET", srv.URL, ""))
				broken.Store(true)
				req := contract.Request(t, "POST", srv.URL, "payload")
				if tt.stream {
					req.GetBody = nil
					req.Body = contract.Counted("payload")
				}
				contract.Send(t, transport, req)
				assert.False(t, broken.Load(), "a write has failed")
				assert.EqualValues(t, 1, posts.Load())
			})
		}
	}
}

// Hazard C4: the bound on how often net/http sends an attempt is about requests
// without an answer. A layer may send many requests of its own.
func TestLayerThatSendsManyRequests(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		for _, method := range []string{"GET", "POST"} {
			t.Run(method, func(t *testing.T) {
				var ranges atomic.Int32
				inner, srv := contract.Serve(t, proto, func(
					w http.ResponseWriter, r *http.Request) {
					ranges.Add(1)
					_, _ = io.WriteString(w, r.Header.Get("Range"))
				})
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					for i := range 12 {
						part := req.Clone(req.Context())
						part.Header.Set("Range", fmt.Sprintf("bytes=%d-", i))
						contract.Send(t, inner, part)
					}
					return inner.RoundTrip(req)
				})
				resp := contract.Send(t, contract.With(t, base, withTimeout(time.Minute)),
					contract.Request(t, method, srv.URL, ""))
				assert.Equal(t, 200, resp.StatusCode)
				assert.EqualValues(t, 13, ranges.Load())
			})
		}
	})
}

// Hazard C4: the number of times that net/http sends one attempt is bounded. An
// attempt that it has sent as often as that is the last one of its request.
func TestGoAwayStorm(t *testing.T) {
	for _, tt := range []struct {
		failures int // before the storm
		timeout  time.Duration
		attempts string
		layered  bool
	}{
		// With the timeout, the first attempt is a copy.
		{0, time.Minute, "1 attempt", true},
		{1, 0, "2 attempts", true},
		{1, 0, "2 attempts", false},
	} {
		srv := faults.HTTP2(t, func(s faults.Stream) {
			if s.Request <= tt.failures {
				s.Respond(500)
			} else {
				s.GoAway(0, faults.NoError)
			}
		})
		policy, events := contract.RetryEvery(0), new(contract.Record)
		policy.AttemptTimeout = tt.timeout
		cfg := httpretry.Config{Base: faults.HTTP2Base(t), Policy: policy, Observe: events.Observe}
		transport := contract.New(t, cfg)
		if !tt.layered {
			transport = contract.Unchecked(t, cfg)
		}
		err := failsInTime(t, transport, contract.Request(t, "GET", srv.URL(), ""))
		require.EqualError(t, err, "httpretry: gave up after "+tt.attempts+" (permanent): "+
			"the request was sent 10 times in one attempt, and was stopped")
		assert.Equal(t, httpretry.ReasonPermanent, events.Reason())
		assert.Len(t, events.Events, tt.failures+1)
		assert.LessOrEqual(t, srv.Requests.Load(), int32(tt.failures+10))
		assert.Greater(t, srv.Requests.Load(), int32(tt.failures+2))
	}
}

// Hazard C4: after a restart of the host, net/http tries each idle connection of
// HTTP/1 before it opens one. No limit fails the request before that.
func TestManyBrokenConnections(t *testing.T) {
	const idle = 20
	var busy sync.WaitGroup
	var restarting, working atomic.Bool
	busy.Add(idle)
	srv := faults.Listen(t, func(c *faults.Conn) {
		isNew := restarting.Load()
		c.HTTP1(func(c *faults.Conn, _ *http.Request) bool {
			if isNew {
				working.Store(true)
			} else if restarting.Load() {
				return false
			} else {
				busy.Done()
				busy.Wait() // so that each request has a connection of its own
			}
			c.Respond(200, "")
			return true
		})
	})
	base := faults.Base(t, nil)
	base.MaxIdleConnsPerHost = idle
	policy := withTimeout(time.Minute) // so that the attempt is a copy
	transport := unchecked(t, base, policy)
	var all sync.WaitGroup
	for range idle {
		all.Go(func() { contract.Send(t, transport, contract.Request(t, "GET", srv.URL(), "")) })
	}
	all.Wait()
	restarting.Store(true)
	resp := contract.Send(t, transport, contract.Request(t, "GET", srv.URL(), ""))
	contract.HasResult(t, resp, 1, httpretry.ReasonSuccess)
	assert.True(t, working.Load())
}

// Hazard C4: in an attempt that sends the caller's own request, nothing limits
// how often net/http sends it, and no Event or charge shows that. The server
// accepts the last send.
func TestGoAwayStormWithoutACopy(t *testing.T) {
	const sends = 40
	for _, observed := range []bool{false, true} {
		srv := faults.HTTP2(t, func(s faults.Stream) {
			if s.Request < sends {
				s.GoAway(0, faults.NoError)
			} else {
				s.Respond(200)
			}
		})
		budget, events := new(httpretry.HostBudget), new(contract.Record)
		cfg := httpretry.Config{Base: faults.HTTP2Base(t)}
		cfg.Policy.Budget = budget
		if observed {
			cfg.Observe = events.Observe
		}
		before := contract.Balance(budget, srv.URL())
		resp := contract.Send(t, contract.New(t, cfg), contract.Request(t, "GET", srv.URL(), ""))
		contract.HasResult(t, resp, 1, httpretry.ReasonSuccess)
		assert.EqualValues(t, sends, srv.Requests.Load())
		assert.LessOrEqual(t, before, contract.Balance(budget, srv.URL()), "nothing is charged")
		if observed {
			assert.Len(t, events.Events, 1)
		}
	}
}

// A layer may send a request of its own with the attempt's context while the
// attempt is on its way. That does not end the attempt, whose answer may be
// that of a request which was processed.
func TestLayerThatSendsMeanwhile(t *testing.T) {
	for _, body := range []string{"", "payload"} {
		contract.ForProtocols(t, func(t *testing.T, proto string) {
			t.Run(fmt.Sprintf("body %q", body), func(t *testing.T) {
				if body == "" && proto == contract.HTTP2 {
					t.Skip(
						"net/http's resend of a request without a body and a request of a layer " +
							"to the same host look the same: see gotConn in internal/wire")
				}
				var posts atomic.Int32
				processing, reported := make(chan struct{}), make(chan struct{})
				inner, srv := contract.Serve(t, proto, func(
					w http.ResponseWriter, r *http.Request) {
					if r.Method != "POST" {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					if posts.Add(1) == 1 {
						close(processing)
					}
					select {
					case <-reported:
						w.WriteHeader(http.StatusCreated)
					case <-r.Context().Done():
					}
				})
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					go func() { // reports the progress of the upload
						defer close(reported)
						<-processing
						side := contract.Request(t, "GET", srv.URL+"/progress", "")
						// it may fail, the attempt must not
						resp, err := inner.RoundTrip(side.WithContext(req.Context()))
						if err == nil {
							_ = resp.Body.Close()
						}
					}()
					return inner.RoundTrip(req)
				})
				transport := retrying(t, base)
				waitFor(t, "the response", func() {
					assertStatus(t, transport, contract.Request(t, "POST", srv.URL, body), 201)
				})
				assert.EqualValues(t, 1, posts.Load())
			})
		})
	}
}

// A base that reports connections may have none to show.
func TestConnectionUnknown(t *testing.T) {
	for _, field := range []string{":authority", "Host"} {
		t.Run(field, func(t *testing.T) {
			attempts := 0
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				attempts++
				trace := httptrace.ContextClientTrace(req.Context())
				for range 3 {
					trace.GetConn("a.test:80")
					trace.GotConn(httptrace.GotConnInfo{})
					if req.Context().Err() != nil {
						return nil, context.Cause(req.Context())
					}
					trace.WroteHeaderField(field, []string{"a.test"})
				}
				return nil, io.EOF
			})
			policy := contract.RetryEvery(0)
			// but net/http resends a GET
			policy.Idempotent = func(*http.Request) bool { return false }
			err := sendFails(t, contract.With(t, base, policy), newGet(t))
			require.ErrorContains(t, err, "and was stopped")
			assert.Equal(t, 1, attempts)
		})
	}
}

// A request of which nothing was written, because its idle connection was reset,
// was not processed. It is sent again at once, and the budget is not asked.
func TestIdleConnectionThatWasReset(t *testing.T) {
	for _, layered := range []bool{false, true} {
		for _, k := range []kind{kindPost, kindPostStreamed} {
			t.Run(fmt.Sprintf("%t/%s", layered, k), func(t *testing.T) {
				srv := faults.Stale(t, (*faults.Conn).Reset)
				base := http.RoundTripper(srv.Base)
				if layered {
					base = contract.BaseFunc(srv.Base.RoundTrip)
				}
				transport := contract.With(t, base, httpretry.Policy{Budget: contract.UsedUp{}})
				contract.Send(t, transport, contract.Request(t, "GET", srv.URL(), ""))
				req := k.request(t, srv.URL())
				contract.Send(t, transport, req.WithContext(srv.Context))
				assert.EqualValues(t, 2, srv.Requests.Load())
			})
		}
	}
}

// The end of a connection that the server was about to close is a failure of the
// host if the request fails, because its body cannot be sent again.
func TestGoAwayThatEndsARequest(t *testing.T) {
	srv := faults.HTTP2(t, func(s faults.Stream) { s.GoAway(0, faults.NoError) })
	transport := contract.Unchecked(t, httpretry.Config{Base: faults.HTTP2Base(t)})
	req := contract.Request(t, "POST", srv.URL(), "text")
	req.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("no body") }
	require.ErrorContains(t, sendFails(t, transport, req), "no body")
	origin := transport.Origins()[0]
	assert.Equal(t, "failed", origin.LastFailure)
	assert.EqualValues(t, 1, origin.FailedWithoutRetry)
}
