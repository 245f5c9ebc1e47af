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

// http3Upstream is a host whose server can be replaced. client connects to the
// server that was started last.
type http3Upstream struct {
	client  *http3.Transport
	handler http.Handler
	tls     *tls.Config

	mu      sync.Mutex
	current *http3Server
	stopped sync.WaitGroup
}

const http3URL = "https://127.0.0.1/"

func newHTTP3Upstream(t testing.TB, handler http.Handler) *http3Upstream {
	t.Helper()
	id := newIdentity(t)
	certificate, err := tls.X509KeyPair([]byte(id.certificate), []byte(id.key))
	require.NoError(t, err)
	socket := &quic.Transport{Conn: listenUDP(t)}
	u := &http3Upstream{
		handler: handler,
		tls:     http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{certificate}}),
	}
	u.client = &http3.Transport{
		TLSClientConfig: id.client,
		QUICConfig:      slowQUIC(),
		Dial: func(ctx context.Context, _ string, client *tls.Config, cfg *quic.Config) (*quic.Conn, error) {
			return u.dial(ctx, socket, client, cfg)
		},
	}
	u.current = u.start(t)
	t.Cleanup(func() {
		_ = u.client.Close()
		_ = u.current.server.Close()
		u.stopped.Wait()
		_ = socket.Close()
	})
	return u
}

func listenUDP(t testing.TB) net.PacketConn {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// slowQUIC has timeouts for a busy machine.
func slowQUIC() *quic.Config {
	return &quic.Config{HandshakeIdleTimeout: time.Minute, MaxIdleTimeout: time.Minute}
}

// http3Server is one server of a host.
type http3Server struct {
	server *http3.Server
	addr   net.Addr
	dials  sync.WaitGroup // connections that the server is yet to accept
}

func (u *http3Upstream) start(t testing.TB) *http3Server {
	t.Helper()
	conn := listenUDP(t)
	s := &http3Server{addr: conn.LocalAddr()}
	s.server = &http3.Server{
		Handler:    u.handler,
		TLSConfig:  u.tls,
		QUICConfig: slowQUIC(),
		ConnContext: func(ctx context.Context, _ *quic.Conn) context.Context {
			s.dials.Done()
			return ctx
		},
	}
	u.stopped.Go(func() { _ = s.server.Serve(conn) }) // until it is shut down
	return s
}

func (u *http3Upstream) dial(
	ctx context.Context, socket *quic.Transport, client *tls.Config, cfg *quic.Config,
) (*quic.Conn, error) {
	u.mu.Lock()
	s := u.current
	s.dials.Add(1)
	u.mu.Unlock()
	return socket.DialEarly(ctx, s.addr, client, cfg)
}

// replace starts another server. The one before gets no further connections,
// accepts those that are being made, and answers the requests that it has got.
func (u *http3Upstream) replace(t testing.TB) {
	t.Helper()
	next := u.start(t)
	u.mu.Lock()
	before := u.current
	u.current = next
	u.mu.Unlock()
	u.stopped.Go(func() {
		before.dials.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		// quic-go's client leaves some connections open whose requests it has
		// sent on another one.
		if before.server.Shutdown(ctx) != nil {
			_ = before.server.Close()
		}
	})
}

// An http3Stack is a transport under test above quic-go's.
type http3Stack struct {
	name     string
	over     func(t testing.TB, base *http3.Transport) http.RoundTripper
	declared bool // the layers are known
}

const quicGoOnly = "quic-go alone"

func http3Stacks() []http3Stack {
	return []http3Stack{
		{quicGoOnly, func(_ testing.TB, base *http3.Transport) http.RoundTripper { return base }, true},
		{"direct", func(t testing.TB, base *http3.Transport) http.RoundTripper { return retryOver(t, base) }, true},
		{"Through(layer)", func(t testing.TB, base *http3.Transport) http.RoundTripper {
			return retryOver(t, httpretry.Through(layer{base}, base))
		}, true},
		{"layer without Unwrap", func(t testing.TB, base *http3.Transport) http.RoundTripper {
			return retryOver(t, layer{base})
		}, false},
	}
}

func retryOver(t testing.TB, base http.RoundTripper) http.RoundTripper {
	transport, err := httpretry.New(httpretry.Config{Base: base})
	require.NoError(t, err)
	return transport
}

// A server is replaced every 100 ms, and each shuts down in good order. No keyless
// POST fails, even below a layer that is not known, and none is executed twice.
//
// quic-go may close a connection after a GOAWAY, with H3_NO_ERROR, just as a
// stream is opened. The server may have got that request.
func TestHTTP3Replaced(t *testing.T) {
	t.Parallel()
	for _, kind := range bodyKinds() {
		for _, stack := range http3Stacks() {
			t.Run(kind.name+"/"+stack.name, func(t *testing.T) {
				upstream := newCounting(t)
				u := newHTTP3Upstream(t, upstream.Config.Handler)
				transport := stack.over(t, u.client)
				l := load{
					clients: 16, requests: churnRequests(t, 1000), method: http.MethodPost, url: http3URL, kind: kind,
					limit: time.Hour,
				}
				var outcomes map[string]int
				var slowest time.Duration
				replaced, executed := 0, 0
				during(func() { outcomes, slowest = l.send(t, transport) }, 100*time.Millisecond, func() {
					// On a busy machine, a server must not end before it has begun.
					if n := len(upstream.executions()); n >= executed+50 {
						u.replace(t)
						replaced, executed = replaced+1, n
					}
				})
				failed := l.requests - outcomes[succeededOutcome]
				twice := assertExecutedOnce(t, upstream, outcomes[succeededOutcome])
				t.Logf("%s: %d servers, failed %d of %d, executed twice %d, slowest %v",
					t.Name(), replaced, failed, l.requests, twice, slowest.Round(time.Millisecond))
				logCounts(t, outcomes)
				for outcome := range outcomes {
					if stack.name != quicGoOnly && outcome != succeededOutcome {
						assert.Contains(t, outcome, "H3_NO_ERROR (local)")
					}
				}
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
					u := newHTTP3Upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
					result, err := status(stack.over(t, u.client), newRequest(ctx, t, http.MethodPost, http3URL, kind))
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

// A keyless POST for which no connection was got has not been processed, and is
// retried. A layer that is not known might have sent one without a body by itself.
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
				ctx := httpretry.WithPolicy(patient(t), eager())
				_, err := status(stack.over(t, base), newRequest(ctx, t, http.MethodPost, http3URL, kind))
				require.ErrorContains(t, err, "no connection was got")
				known := stack.declared || kind.name != bodyKinds()[0].name
				assert.Equal(t, known, httpretry.IsUnprocessed(err), "%v", err)
				if known {
					assert.EqualValues(t, eager().MaxAttempts, dials.Load())
				} else {
					assert.EqualValues(t, 1, dials.Load())
				}
			})
		}
	}
}
