package integration

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// http3Server is a server that speaks HTTP/3, and the transport of a client that
// connects to the one that was started last.
type http3Server struct {
	client  *http3.Transport
	tls     *tls.Config
	handler http.Handler

	mu   sync.Mutex
	addr net.Addr // of the last one

	last    func() // shuts it down
	stopped sync.WaitGroup
}

const http3URL = "https://127.0.0.1/"

// newHTTP3Server starts one.
func newHTTP3Server(t testing.TB, handler http.Handler) *http3Server {
	t.Helper()
	id := newIdentity(t)
	certificate, err := tls.X509KeyPair([]byte(id.certificate), []byte(id.key))
	require.NoError(t, err)
	s := &http3Server{handler: handler, tls: &tls.Config{Certificates: []tls.Certificate{certificate}}}
	socket := &quic.Transport{Conn: listenUDP(t)}
	t.Cleanup(func() { _ = socket.Close(); _ = socket.Conn.Close() })
	s.client = &http3.Transport{
		TLSClientConfig: id.client,
		QUICConfig:      &quic.Config{HandshakeIdleTimeout: time.Minute, MaxIdleTimeout: time.Minute},
		Dial: func(ctx context.Context, _ string, client *tls.Config, cfg *quic.Config) (*quic.Conn, error) {
			s.mu.Lock()
			addr := s.addr
			s.mu.Unlock()
			return socket.DialEarly(ctx, addr, client, cfg)
		},
	}
	s.last = s.start(t)
	t.Cleanup(func() {
		_ = s.client.Close()
		s.last()
		s.stopped.Wait()
	})
	return s
}

func listenUDP(t testing.TB) net.PacketConn {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	return conn
}

// start starts a server to which the client connects from now on, and returns the
// function that shuts it down as soon as it has answered its requests.
func (s *http3Server) start(t testing.TB) (stop func()) {
	t.Helper()
	// The server closes only the listener. A connection that is being made would
	// take until its timeout if the socket were closed, too.
	conn := listenUDP(t)
	socket := &quic.Transport{Conn: conn}
	t.Cleanup(func() { _ = socket.Close(); _ = conn.Close() })
	server := &http3.Server{
		Handler:    s.handler,
		TLSConfig:  http3.ConfigureTLSConfig(s.tls.Clone()),
		QUICConfig: &quic.Config{HandshakeIdleTimeout: time.Minute, MaxIdleTimeout: time.Minute},
	}
	listener, err := socket.ListenEarly(server.TLSConfig, server.QUICConfig)
	require.NoError(t, err)
	s.stopped.Go(func() { _ = server.ServeListener(listener) }) // until it is shut down
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr = conn.LocalAddr()
	return func() {
		s.stopped.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = listener.Close()
			assert.NoError(t, server.Shutdown(ctx))
		})
	}
}

// replace starts a server, and shuts the one before it down.
func (s *http3Server) replace(t testing.TB) {
	t.Helper()
	before := s.last
	s.last = s.start(t)
	before()
}

// http3Stacks are those below which quic-go sends the requests.
func http3Stacks() []churned3 {
	return []churned3{
		{"quic-go alone", func(_ testing.TB, base *http3.Transport) http.RoundTripper { return base }},
		{"direct", func(t testing.TB, base *http3.Transport) http.RoundTripper { return retryOver(t, base) }},
		{"layer without Unwrap", func(t testing.TB, base *http3.Transport) http.RoundTripper {
			return retryOver(t, layer{base})
		}},
		{"Through(layer)", func(t testing.TB, base *http3.Transport) http.RoundTripper {
			return retryOver(t, httpretry.Through(layer{base}, base))
		}},
	}
}

type churned3 struct {
	name string
	over func(t testing.TB, base *http3.Transport) http.RoundTripper
}

func retryOver(t testing.TB, base http.RoundTripper) http.RoundTripper {
	transport, err := httpretry.New(httpretry.Config{Base: base})
	require.NoError(t, err)
	return transport
}

// A server is replaced every 100 ms, and each shuts down in good order. No keyless
// POST fails, and none is executed twice.
func TestHTTP3Replaced(t *testing.T) {
	t.Parallel()
	for _, kind := range bodyKinds() {
		for _, stack := range http3Stacks() {
			t.Run(kind.name+"/"+stack.name, func(t *testing.T) {
				upstream := newCounting(t)
				s := newHTTP3Server(t, upstream.Config.Handler)
				l := load{
					clients: 16, requests: churnRequests(t, 1000), method: http.MethodPost, url: http3URL, kind: kind,
					limit: time.Hour,
				}
				replaced := 0
				var outcomes map[string]int
				var slowest time.Duration
				during(func() { outcomes, slowest = l.send(t, stack.over(t, s.client)) }, 100*time.Millisecond, func() {
					s.replace(t)
					replaced++
				})
				failed := l.requests - outcomes[succeededOutcome]
				twice := assertExecutedOnce(t, upstream, outcomes[succeededOutcome])
				if failed > 0 {
					logCounts(t, outcomes)
				}
				if stack.name != "quic-go alone" {
					assert.Zero(t, failed)
				}
				t.Logf("%s: %d servers, failed %d of %d, executed twice %d, slowest %v",
					t.Name(), replaced, failed, l.requests, twice, slowest.Round(time.Millisecond))
			})
		}
	}
}

// A server resets the streams of keyless POSTs. After H3_REQUEST_REJECTED, which
// says that the server has not begun them, they are sent again at once. After any
// other error, they are not (RFC 9114 section 4.1.1).
func TestHTTP3StreamReset(t *testing.T) {
	t.Parallel()
	const rejected, canceled, internal = 0x10b, 0x10c, 0x102
	for _, kind := range bodyKinds() {
		for _, stack := range http3Stacks()[1:] {
			for code, want := range map[quic.StreamErrorCode]int32{rejected: 4, canceled: 1, internal: 1} {
				t.Run(fmt.Sprintf("%#x/%s/%s", code, kind.name, stack.name), func(t *testing.T) {
					var arrived atomic.Int32
					s := newHTTP3Server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						_, _ = io.Copy(io.Discard, r.Body)
						if arrived.Add(1) < 4 {
							stream, err := w.(http3.HTTPStreamer).HTTPStream()
							if !assert.NoError(t, err) {
								return
							}
							stream.CancelRead(code)
							stream.CancelWrite(code)
						}
					}))
					ctx := httpretry.WithPolicy(patient(t), httpretry.Policy{MaxAttempts: 2})
					result, err := status(stack.over(t, s.client), newRequest(ctx, t, http.MethodPost, http3URL, kind))
					if want > 1 {
						require.NoError(t, err)
						assert.Equal(t, http.StatusOK, result)
					} else {
						require.Error(t, err)
						assert.False(t, httpretry.IsUnprocessed(err), "%v", err)
					}
					assert.Equal(t, want, arrived.Load())
				})
			}
		}
	}
}

// A keyless POST for which no connection was got has not been processed.
func TestHTTP3Unconnected(t *testing.T) {
	t.Parallel()
	for _, kind := range bodyKinds() {
		for _, stack := range http3Stacks()[1:] {
			t.Run(kind.name+"/"+stack.name, func(t *testing.T) {
				var dials atomic.Int32
				base := &http3.Transport{
					Dial: func(context.Context, string, *tls.Config, *quic.Config) (*quic.Conn, error) {
						dials.Add(1)
						return nil, errors.New("no connection was got")
					},
				}
				ctx := httpretry.WithPolicy(patient(t), httpretry.Policy{MaxAttempts: 3})
				_, err := status(stack.over(t, base), newRequest(ctx, t, http.MethodPost, http3URL, kind))
				require.ErrorContains(t, err, "no connection was got")
				assert.True(t, httpretry.IsUnprocessed(err), "%v", err)
				assert.EqualValues(t, 3, dials.Load())
			})
		}
	}
}
