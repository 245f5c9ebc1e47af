package httpretry_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// inVirtualTime runs a test over both protocols, each in a bubble, with a
// function that starts a server.
func inVirtualTime(t *testing.T, test func(t *testing.T, start func(http.HandlerFunc) *http.Transport)) {
	t.Helper()
	for proto, pipe := range map[string]func(testing.TB, http.HandlerFunc) *http.Transport{http1: faults.Pipe, http2: faults.HTTP2Pipe} {
		t.Run(proto, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test(t, func(handler http.HandlerFunc) *http.Transport { return pipe(t, handler) })
			})
		})
	}
}

// Hazard 0.6, E1, E2: 5 MB that take a second, and events that come for a day,
// outlive an attempt's timeout, on the attempt after a 503 too.
func TestAttemptTimeoutSparesResponses(t *testing.T) {
	for _, tt := range []struct {
		name    string
		chunks  int
		size    int
		every   time.Duration
		content string
	}{
		{"5 MB in a second", 100, 50_000, 10 * time.Millisecond, "application/octet-stream"},
		{"events for a day", 24, 100, time.Hour, "text/event-stream"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
				base := start(func(w http.ResponseWriter, r *http.Request) {
					if httpretryAttempt(r) == 1 {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					w.Header().Set("Content-Type", tt.content)
					for i := range tt.chunks {
						_, _ = w.Write(pattern(uint64(i), tt.size))
						_ = http.NewResponseController(w).Flush()
						time.Sleep(tt.every)
					}
				})
				policy := every(0)
				policy.AttemptTimeout = 100 * time.Millisecond
				began := time.Now()
				resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "GET", "http://a.test/", ""))
				require.NoError(t, err)
				assert.Less(t, time.Since(began), policy.AttemptTimeout)
				body := finish(t, resp)
				assert.GreaterOrEqual(t, time.Since(began), time.Duration(tt.chunks)*tt.every)
				require.Len(t, body, tt.chunks*tt.size)
				for i := range tt.chunks {
					require.True(t, body[i*tt.size:(i+1)*tt.size] == string(pattern(uint64(i), tt.size)), "chunk %d", i)
				}
			})
		})
	}
}

// Hazard E3: a tunnel that comes on a second attempt carries both directions,
// and the end of each by itself.
func TestTunnelOnRetry(t *testing.T) {
	backend := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
		if httpretryAttempt(req) == 1 {
			c.Respond(503, "")
			return true
		}
		c.Respond(101, "", "Connection: Upgrade", "Upgrade: echo")
		lines := bufio.NewScanner(c.Reader)
		for lines.Scan() {
			c.Send("you said " + lines.Text() + "\n")
		}
		c.Send("you ended\n") // which only somebody who still listens gets to know
		c.CloseWrite()
		c.Drain()
		return false
	})
	target, err := url.Parse(backend.URL())
	require.NoError(t, err)
	policy := every(0)
	policy.AttemptTimeout = patience
	front := newServer(t, (&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: contract.New(t, httpretry.Config{Policy: policy}),
	}).ServeHTTP)
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, nil)
	require.NoError(t, err)
	require.Equal(t, 101, resp.StatusCode)
	for i := range 3 {
		_, err = fmt.Fprintf(conn, "line %d\n", i)
		require.NoError(t, err)
		line, err := br.ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("you said line %d\n", i), line)
	}
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	rest, err := io.ReadAll(br)
	require.NoError(t, err)
	assert.Equal(t, "you ended\n", string(rest))
	assert.EqualValues(t, 2, backend.Requests.Load())
}

// Hazard D6, E6: of a response without a body, which nobody closes, nothing is
// left: its attempt's context ends, and its connection is used again.
func TestEmptyResponsesLeftOpen(t *testing.T) {
	for _, tt := range []struct {
		method string
		status int
	}{{"HEAD", 200}, {"GET", 204}, {"GET", 304}, {"GET", 200}, {"PUT", 200}} {
		for _, proto := range []string{http1, http2} {
			t.Run(fmt.Sprintf("%s %d/%s", tt.method, tt.status, proto), func(t *testing.T) {
				t.Parallel() // HTTP/2 leaves time for trailers
				base, srv := serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					if httpretryAttempt(r) == 1 {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					w.WriteHeader(tt.status)
				})
				var conns atomic.Int32
				countDials(base, &conns)
				var ended []<-chan struct{}
				watched := baseFunc(func(req *http.Request) (*http.Response, error) {
					ended = append(ended, req.Context().Done())
					return base.RoundTrip(req)
				})
				policy := every(0)
				policy.AttemptTimeout = time.Hour
				// Without the contract, which wants responses closed.
				transport := contractless(t, httpretry.Config{Base: watched, Policy: policy})
				for range 3 {
					body := ""
					if tt.method == "PUT" {
						body = "text"
					}
					resp, err := transport.RoundTrip(request(t, tt.method, srv.URL, body))
					require.NoError(t, err)
					assert.Equal(t, tt.status, resp.StatusCode)
				}
				require.Len(t, ended, 6)
				for _, done := range ended {
					soon(t, "the end of an attempt's context", func() { <-done })
				}
				assert.EqualValues(t, 1, conns.Load())
			})
		}
	}
}

// countDials counts the connections that base makes.
func countDials(base *http.Transport, conns *atomic.Int32) {
	dial := base.DialContext
	base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conns.Add(1)
		return dial(ctx, network, addr)
	}
}

// endless are responses that never end.
var endless = map[string]func(w http.ResponseWriter, r *http.Request){
	"drips": func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, ".")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(10 * time.Millisecond):
			case <-r.Context().Done():
			}
		}
	},
	"gushes": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		forEver(w)
	},
	"says that it is huge": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000000000000")
		w.WriteHeader(http.StatusServiceUnavailable)
		forEver(w)
	},
	"says that it is huge, and hangs": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000000000000")
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	},
	"is a gzip bomb": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusServiceUnavailable)
		packed := gzipBomb()
		_, _ = w.Write(packed)
		for {
			if _, err := w.Write(packed[10:]); err != nil { // without the header
				return
			}
		}
	},
}

// gzipBomb returns the beginning of a gzip stream that unpacks to a MiB, all but
// whose header (RFC 1952 section 2.3) may follow it again and again.
func gzipBomb() []byte {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(make([]byte, 1<<20))
	_ = z.Flush()
	return packed.Bytes()
}

func forEver(w io.Writer) {
	zeros := make([]byte, 1<<16)
	for {
		if _, err := w.Write(zeros); err != nil {
			return
		}
	}
}

// Hazard D1, D2: of a response that is dropped no more than 64 KiB are read,
// unpacked, and no more than the protocol has in flight leaves the socket.
func TestDropIsBoundedInBytes(t *testing.T) {
	const limit = 64 << 10
	onTheWire := map[string]int64{
		http1: limit + 256<<10 + 16<<10, // 256 KiB: what Close reads since Go 1.27
		http2: limit + 4<<20 + 64<<10,   // 4 MiB: net/http's window of a stream, filled whether or not it is read
	}
	for name, answer := range endless {
		for _, timeout := range []time.Duration{0, time.Hour} { // without and with a context of the attempt's own
			forProtocols(t, func(t *testing.T, proto string) {
				t.Run(fmt.Sprintf("%s/%v", name, timeout), func(t *testing.T) {
					base, srv := serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
						if httpretryAttempt(r) == 1 {
							answer(w, r)
						}
					})
					wire := faults.Watch(base)
					var unpacked atomic.Int64
					counted := baseFunc(func(req *http.Request) (*http.Response, error) {
						resp, err := base.RoundTrip(req)
						if err == nil && resp.StatusCode == 503 {
							resp.Body = &countedBody{resp.Body, &unpacked}
						}
						return resp, err
					})
					policy := every(0)
					policy.AttemptTimeout = timeout
					transport := contract.New(t, httpretry.Config{Base: counted, Policy: policy})
					soon(t, "the second attempt", func() {
						resp, err := transport.RoundTrip(request(t, "GET", srv.URL, ""))
						if assert.NoError(t, err) {
							finish(t, resp)
							assert.Equal(t, 200, resp.StatusCode)
						}
					})
					assert.LessOrEqual(t, unpacked.Load(), int64(limit+1))
					assert.LessOrEqual(t, wire.Read.Load(), onTheWire[proto])
				})
			})
		}
	}
}

type countedBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

// Hazard D2: nor does it take longer than 100 ms, by the clock, and no time at
// all if there is no point in trying.
func TestDropIsBoundedInTime(t *testing.T) {
	for name, answer := range endless {
		for _, timeout := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprintf("%s/%v", name, timeout), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
					base := start(func(w http.ResponseWriter, r *http.Request) {
						if httpretryAttempt(r) == 1 {
							answer(w, r)
						}
					})
					if base.Protocols == nil && closeDrains {
						t.Skip("TestDropIsBoundedInBytes does it in real time")
					}
					policy := every(0)
					policy.AttemptTimeout = timeout
					began := time.Now()
					resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "GET", "http://a.test/", ""))
					require.NoError(t, err)
					finish(t, resp)
					assert.LessOrEqual(t, time.Since(began), 100*time.Millisecond)
					if strings.HasPrefix(name, "says that it is huge") {
						assert.Zero(t, time.Since(began))
					}
				})
			})
		}
	}
}

// Hazard D2: the same for a base whose bodies obey nothing but Close.
func TestDropOfStalledBody(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			var bodies []*blocked
			base := baseFunc(func(req *http.Request) (*http.Response, error) {
				if httpretry.Attempt(req.Context()) == 3 {
					return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
				}
				bodies = append(bodies, newBlocked())
				return &http.Response{StatusCode: 503, ProtoMajor: 1, ContentLength: -1, Body: bodies[len(bodies)-1]}, nil
			})
			policy := every(0)
			policy.AttemptTimeout = timeout
			began := time.Now()
			_, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "GET", "http://a.test/", ""))
			require.NoError(t, err)
			assert.Equal(t, 100*time.Millisecond, time.Since(began), "50 ms each")
			require.Len(t, bodies, 2)
			for _, body := range bodies {
				assert.Equal(t, 1, body.Closes())
			}
		})
	}
}

// Hazard D4: a small response that is dropped leaves its connection usable,
// however its end is told.
func TestSmallDropKeepsConnection(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"empty": func(w http.ResponseWriter) { w.WriteHeader(503) },
		"known length": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(503)
			send(w, "later")
		},
		"flushed": func(w http.ResponseWriter) { w.WriteHeader(503); send(w, "later"); send(w, "perhaps") },
		"64 KiB":  func(w http.ResponseWriter) { w.WriteHeader(503); send(w, strings.Repeat("x", 64<<10)) },
		"64 KiB, known length": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "65536")
			w.WriteHeader(503)
			send(w, strings.Repeat("x", 64<<10))
		},
		"gzip": func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(503)
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, strings.Repeat("later ", 1000))
			_ = z.Close()
		},
	} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprintf("%s/%v", name, timeout), func(t *testing.T) {
				// In virtual time, since a drop that takes long gives up the connection.
				inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
					base := start(func(w http.ResponseWriter, r *http.Request) {
						_, _ = io.Copy(io.Discard, r.Body)
						if httpretryAttempt(r) < 3 {
							answer(w)
						}
					})
					var conns atomic.Int32
					countDials(base, &conns)
					policy := every(time.Millisecond) // net/http pools a new connection a moment after it hands it out
					policy.AttemptTimeout = timeout
					transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
					for _, body := range []string{"", "text"} {
						resp, err := transport.RoundTrip(request(t, "PUT", "http://a.test/", body))
						require.NoError(t, err)
						finish(t, resp)
						assert.Equal(t, 200, resp.StatusCode)
					}
					assert.EqualValues(t, 1, conns.Load())
				})
			})
		}
	}
}

// send writes and flushes, which over HTTP/1 without a length makes chunks.
func send(w http.ResponseWriter, text string) {
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
}

// Hazard D5: a request that waits holds no connection: to the server it is
// idle, or closed.
func TestWaitHoldsNothing(t *testing.T) {
	for _, size := range []int{5, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			states := make(chan http.ConnState, 100)
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = w.Write(make([]byte, size))
			}))
			srv.Config.ConnState = func(_ net.Conn, s http.ConnState) { states <- s }
			srv.Start()
			t.Cleanup(srv.Close)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			decided := make(chan struct{}, 10) // to wait, and, when canceled, not to
			observe := func(context.Context, httpretry.Event) { decided <- struct{}{} }
			transport := contract.New(t, httpretry.Config{Policy: every(time.Hour), Observe: observe})
			go func() {
				_, err := transport.RoundTrip(request(t, "GET", srv.URL, "").WithContext(ctx))
				done <- err
			}()
			soon(t, "the end of the connection's use", func() {
				<-decided
				for s := range states {
					if s == http.StateIdle || s == http.StateClosed {
						return
					}
				}
			})
			assert.Empty(t, done, "it still waits")
			cancel()
			require.ErrorIs(t, <-done, context.Canceled)
		})
	}
}

// Hazard D7: that the request is still being sent when its answer is dropped
// costs no more than 100 ms either.
func TestDropWhileUploading(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Hour} {
		for _, length := range []int64{-1, 100_000} {
			t.Run(fmt.Sprintf("%v/%d", timeout, length), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
					r, w := io.Pipe()
					var came []time.Time
					base := start(func(rw http.ResponseWriter, req *http.Request) {
						came = append(came, time.Now())
						if len(came) == 1 {
							assert.Equal(t, "some", read(t, req.Body, 4))
							answerEarly(rw, req, http.StatusServiceUnavailable)
							return
						}
						go func() { _, _ = w.Write(make([]byte, 100_000-4)); _ = w.Close() }()
						n, err := io.Copy(io.Discard, req.Body)
						assert.NoError(t, err)
						assert.EqualValues(t, 100_000, n)
					})
					go func() { _, _ = io.WriteString(w, "some") }()
					policy := every(0)
					policy.AttemptTimeout = timeout
					req := streamed(t, "PUT", "http://a.test/", r)
					req.ContentLength = length
					resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(req)
					require.NoError(t, err)
					finish(t, resp)
					require.Len(t, came, 2)
					assert.LessOrEqual(t, came[1].Sub(came[0]), 100*time.Millisecond)
					time.Sleep(time.Second) // a server that closes a connection lingers, and the bubble waits for nobody
				})
			})
		}
	}
}

// Hazard D7: over HTTP/2 a server may answer, and never let the client send
// the rest of its request. The answer is dropped all the same.
func TestDropOfUploadWithoutWindow(t *testing.T) {
	for _, kind := range []string{"stream", "in memory"} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			for _, ends := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/END_STREAM=%v", kind, timeout, ends), func(t *testing.T) {
					srv := faults.HTTP2(t, func(s faults.Stream) {
						if s.Request > 1 {
							s.Respond(204)
							s.ResetStream(faults.NoError) // nor does it want the rest of this one
							return
						}
						s.Header(false, ":status", "503")
						s.Data(ends, strings.Repeat("x", 8<<10))
					})
					srv.Stingy.Store(true)
					data := pattern(3, 1<<20)
					req := request(t, "PUT", srv.URL(), string(data))
					if kind == "stream" {
						req = upload(t, kind, srv.URL(), data)
					}
					policy := every(0)
					policy.AttemptTimeout, policy.ReplayBuffer = timeout, 2<<20
					transport := contract.New(t, httpretry.Config{Base: faults.HTTP2Base(t), Policy: policy})
					soon(t, "the second attempt", func() {
						resp, err := transport.RoundTrip(req)
						if assert.NoError(t, err) {
							assert.Equal(t, 204, resp.StatusCode)
							assert.NoError(t, resp.Body.Close())
						}
					})
				})
			}
		}
	}
}

// Hazard D7: over HTTP/2 all requests of a connection share its writes. If
// another's upload is stuck in one, the drop of a response must not get stuck
// behind it, past the caller's leaving.
func TestDropBehindStalledUpload(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Hour} {
		for _, ends := range []bool{false, true} {
			for _, size := range []int{0, 8 << 10} { // so much that net/http would tell the server that it was read
				t.Run(fmt.Sprintf("%v/END_STREAM=%v/%d", timeout, ends, size), func(t *testing.T) {
					more := make(chan struct{})
					base := faults.HTTP2Base(t)
					wire := faults.Watch(base)
					srv := faults.HTTP2(t, func(s faults.Stream) {
						switch s.Request {
						case 1: // after which the client has nothing to say about the connection itself
							s.Respond(204)
							return
						case 2: // the upload
							return
						}
						wire.Stall()
						close(more)
						<-wire.Stalled
						s.Header(false, ":status", "503")
						s.Data(ends, strings.Repeat("x", size))
					})
					resp, err := base.RoundTrip(request(t, "GET", srv.URL(), ""))
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					first := make(chan struct{})
					others, cancel := context.WithCancel(t.Context())
					var other sync.WaitGroup
					defer other.Wait()
					defer cancel()
					other.Go(func() {
						chunks := 0
						body := io.NopCloser(readerFunc(func(p []byte) (int, error) {
							if chunks++; chunks == 2 {
								close(first)
								<-more
							}
							return min(len(p), 1000), nil
						}))
						_, _ = base.RoundTrip(streamed(t, "PUT", srv.URL(), body).WithContext(others))
					})
					<-first
					policy := every(0)
					policy.AttemptTimeout = timeout
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					// Without the contract: what is stuck is closed when its connection is.
					transport := contractless(t, httpretry.Config{Base: base, Policy: policy, Observe: func(_ context.Context, e httpretry.Event) {
						if e.Attempt == 1 && e.Response != nil { // it is about to be dropped
							time.AfterFunc(100*time.Millisecond, leave)
						}
					}})
					soon(t, "the end of a canceled request", func() {
						_, err := transport.RoundTrip(request(t, "GET", srv.URL(), "").WithContext(ctx))
						assert.ErrorIs(t, err, context.Canceled)
					})
				})
			}
		}
	}
}

// Hazard D8: what a dropped response would have the client remember is lost.
func TestCookiesOfDroppedResponses(t *testing.T) {
	srv := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: fmt.Sprintf("c%d", httpretryAttempt(r)), Value: "v"})
		if httpretryAttempt(r) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := &http.Client{Jar: jar, Transport: contract.New(t, httpretry.Config{Policy: every(0)})}
	resp, err := client.Get(srv.URL)
	require.NoError(t, err)
	finish(t, resp)
	cookies := jar.Cookies(resp.Request.URL)
	require.Len(t, cookies, 1)
	assert.Equal(t, "c3", cookies[0].Name)
}

// Hazard G1: a request that is canceled in flight ends at once, and its error
// is the context's and its cause, over either protocol, with a copy or without.
func TestCancelInFlight(t *testing.T) {
	cause := errors.New("cause")
	for name, tt := range map[string]struct {
		derive func(context.Context) (context.Context, context.CancelFunc)
		want   []error
	}{
		"cancel": {context.WithCancel, []error{context.Canceled}},
		"cause": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			return ctx, func() { cancel(cause) }
		}, []error{context.Canceled, cause}},
		"deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Minute)
		}, []error{context.DeadlineExceeded}},
		"deadline with cause": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, time.Minute, cause)
		}, []error{context.DeadlineExceeded, cause}},
	} {
		for _, method := range []string{"GET", "POST"} {
			for _, attempt := range []int{1, 2} {
				t.Run(fmt.Sprintf("%s/%s/%d", name, method, attempt), func(t *testing.T) {
					inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
						var requests atomic.Int32
						base := start(func(w http.ResponseWriter, r *http.Request) {
							if int(requests.Add(1)) < attempt {
								w.WriteHeader(http.StatusTooEarly)
								return
							}
							<-r.Context().Done()
						})
						ctx, cancel := tt.derive(t.Context())
						defer cancel()
						if !strings.HasPrefix(name, "deadline") {
							time.AfterFunc(time.Minute, cancel)
						}
						events, began := new(record), time.Now()
						_, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0), Observe: events.observe}).
							RoundTrip(request(t, method, "http://a.test/", "").WithContext(ctx))
						assert.Equal(t, time.Minute, time.Since(began))
						for _, want := range tt.want {
							require.ErrorIs(t, err, want)
						}
						assert.Equal(t, httpretry.ReasonCanceled, events.reason())
						assert.EqualValues(t, attempt, requests.Load())
					})
				})
			}
		}
	}
}

// Hazard G4: Request.Cancel, before the first attempt and in flight.
func TestRequestCancel(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		for _, after := range []time.Duration{0, time.Minute} {
			t.Run(fmt.Sprintf("%s/%v", method, after), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
					var requests atomic.Int32
					base := start(func(_ http.ResponseWriter, r *http.Request) {
						requests.Add(1)
						<-r.Context().Done()
					})
					ch := make(chan struct{})
					req := request(t, method, "http://a.test/", "")
					//lint:ignore SA1019 http.Client sets it
					req.Cancel = ch
					if after == 0 {
						close(ch)
					} else {
						time.AfterFunc(after, func() { close(ch) })
					}
					events, began := new(record), time.Now()
					_, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0), Observe: events.observe}).RoundTrip(req)
					require.Error(t, err)
					assert.Equal(t, after, time.Since(began))
					if after == 0 {
						assert.Zero(t, requests.Load())
						assert.EqualError(t, err, "httpretry: not sent: request canceled")
						return
					}
					assert.EqualValues(t, 1, requests.Load())
					assert.Equal(t, httpretry.ReasonCanceled, events.reason())
				})
			})
		}
	}
}

// Hazard G2: a server's wait that would end at the deadline, or past it, is not
// begun; one that ends a nanosecond before it is.
func TestDeadlineAtRetryAfter(t *testing.T) {
	for _, tt := range []struct {
		deadline time.Duration
		attempts int
	}{{2*time.Second - 1, 1}, {2 * time.Second, 1}, {2*time.Second + 1, 2}} {
		t.Run(tt.deadline.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tt.deadline)
				defer cancel()
				base, events := play(status(503, "Retry-After", "2"), status(200)), new(record)
				resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0), Observe: events.observe}).
					RoundTrip(request(t, "GET", "http://a.test/", "").WithContext(ctx))
				require.NoError(t, err)
				finish(t, resp)
				require.Len(t, base.attempts(), tt.attempts)
				if tt.attempts == 1 {
					assert.Equal(t, httpretry.ReasonDeadline, events.reason())
					assert.Zero(t, time.Since(base.start))
					return
				}
				assert.Equal(t, []time.Duration{2 * time.Second}, base.waits())
			})
		})
	}
}

// Hazard G2, G6: a deadline at the zero time has passed: whether the context
// says so, or has yet to notice.
func TestZeroDeadline(t *testing.T) {
	t.Run("over", func(t *testing.T) {
		ctx, cancel := context.WithDeadline(t.Context(), time.Time{})
		defer cancel()
		base := play(status(200))
		_, err := contract.New(t, httpretry.Config{Base: base}).
			RoundTrip(streamed(t, "PUT", "http://a.test/", contract.Counted("x")).WithContext(ctx))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Empty(t, base.attempts())
	})
	t.Run("not noticed", func(t *testing.T) {
		base, events := play(status(503)), new(record)
		resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0), Observe: events.observe}).
			RoundTrip(request(t, "GET", "http://a.test/", "").WithContext(zeroDeadline{t.Context()}))
		require.NoError(t, err)
		assert.Equal(t, "body of 503", finish(t, resp))
		assert.Len(t, base.attempts(), 1)
		assert.Equal(t, httpretry.ReasonDeadline, events.reason())
	})
}

type zeroDeadline struct{ context.Context }

func (zeroDeadline) Deadline() (time.Time, bool) { return time.Time{}, true }

// Hazard E5, G2: a deadline right after an attempt's timeout leaves no time for
// a wait, nor a POST one for another attempt; and no wait means that the last
// nanosecond is still used.
func TestDeadlineAfterAttemptTimeout(t *testing.T) {
	for _, tt := range []struct {
		name, method string
		wait         time.Duration
		attempts     int
		reason       httpretry.Reason
	}{
		{"wait", "GET", 1, 1, httpretry.ReasonDeadline},
		{"no wait", "GET", 0, 2, httpretry.ReasonCanceled},
		{"not safe to repeat", "POST", 0, 1, httpretry.ReasonNotIdempotent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second+1)
				defer cancel()
				base, events := play(step{status: 200, takes: time.Hour}), new(record)
				policy := every(tt.wait)
				policy.AttemptTimeout = time.Second
				_, err := contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: events.observe}).
					RoundTrip(request(t, tt.method, "http://a.test/", "").WithContext(ctx))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Len(t, base.attempts(), tt.attempts)
				assert.Equal(t, tt.reason.String(), events.reason().String())
				assert.Equal(t, time.Second+time.Duration(tt.attempts-1), time.Since(base.start))
			})
		})
	}
}

// Hazard G5: http.Client's Timeout bounds all attempts together, and its error
// says what it is.
func TestClientTimeoutOverAll(t *testing.T) {
	for _, tt := range []struct {
		name string
		wait time.Duration
		took time.Duration
	}{
		{"in flight", time.Second, 3500 * time.Millisecond}, // the third attempt would begin at 4 s
		{"in flight, no wait", 0, 3500 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
				base := start(func(w http.ResponseWriter, r *http.Request) {
					if httpretryAttempt(r) > 1 {
						<-r.Context().Done()
						return
					}
					time.Sleep(time.Second)
					w.WriteHeader(http.StatusServiceUnavailable)
				})
				client := &http.Client{Transport: contract.New(t, httpretry.Config{Base: base, Policy: every(tt.wait)}), Timeout: 3500 * time.Millisecond}
				began := time.Now()
				_, err := client.Get("http://a.test/")
				assert.Equal(t, tt.took, time.Since(began))
				var clients *url.Error
				require.ErrorAs(t, err, &clients)
				assert.True(t, clients.Timeout())
				require.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Regexp(t, `^Get "http://a\.test/": .*(context deadline exceeded|request canceled)`, err.Error())
			})
		})
	}
	_, can := any(new(httpretry.RetryTransport)).(interface{ CancelRequest(*http.Request) })
	assert.False(t, can, "http.Client would call it")
}

// Hazard G3: every attempt has the caller's values, and its hooks are called
// once for each event.
func TestContextReachesEveryAttempt(t *testing.T) {
	type key struct{}
	forProtocols(t, func(t *testing.T, proto string) {
		for _, method := range []string{"GET", "POST"} {
			for _, timeout := range []time.Duration{0, time.Hour} {
				t.Run(fmt.Sprintf("%s/%v", method, timeout), func(t *testing.T) {
					base, srv := serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
						_, _ = io.Copy(io.Discard, r.Body)
						if httpretryAttempt(r) < 3 {
							w.WriteHeader(http.StatusTooEarly) // which a POST may be sent again after
						}
					})
					var values []any
					seen := baseFunc(func(req *http.Request) (*http.Response, error) {
						values = append(values, req.Context().Value(key{}))
						return base.RoundTrip(req)
					})
					var gotConn, wroteHeaders, firstByte atomic.Int32
					wroteRequest := make(chan struct{}, 10) // over HTTP/2 possibly after the answer
					ctx := httptrace.WithClientTrace(context.WithValue(t.Context(), key{}, "v"), &httptrace.ClientTrace{
						GotConn:              func(httptrace.GotConnInfo) { gotConn.Add(1) },
						WroteHeaders:         func() { wroteHeaders.Add(1) },
						WroteRequest:         func(httptrace.WroteRequestInfo) { wroteRequest <- struct{}{} },
						GotFirstResponseByte: func() { firstByte.Add(1) },
					})
					policy := every(0)
					policy.AttemptTimeout = timeout
					resp, err := contract.New(t, httpretry.Config{Base: seen, Policy: policy}).
						RoundTrip(request(t, method, srv.URL, "text").WithContext(ctx))
					require.NoError(t, err)
					finish(t, resp)
					assert.Equal(t, []any{"v", "v", "v"}, values)
					for name, n := range map[string]*atomic.Int32{
						"GotConn": &gotConn, "WroteHeaders": &wroteHeaders, "GotFirstResponseByte": &firstByte,
					} {
						assert.EqualValues(t, 3, n.Load(), name)
					}
					soon(t, "WroteRequest", func() { <-wroteRequest; <-wroteRequest; <-wroteRequest })
					assert.Empty(t, wroteRequest)
				})
			}
		}
	})
}

// No retry starts later than MaxElapsed; one that starts just then is in time.
func TestMaxElapsedEdges(t *testing.T) {
	for _, tt := range []struct {
		max      time.Duration
		attempts int
	}{{1, 1}, {3*time.Second - 1, 1}, {3 * time.Second, 2}, {3*time.Second + 1, 2}, {6*time.Second - 1, 2}, {6 * time.Second, 3}} {
		t.Run(tt.max.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base, events := play(step{status: 503, takes: time.Second}), new(record)
				policy := every(2 * time.Second)
				policy.MaxElapsed = tt.max
				resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: events.observe}).
					RoundTrip(request(t, "GET", "http://a.test/", ""))
				require.NoError(t, err)
				finish(t, resp)
				assert.Len(t, base.attempts(), tt.attempts)
				assert.Equal(t, httpretry.ReasonDeadline, events.reason())
			})
		})
	}
}

// veiled hides what kind of context it is: each context derived from it that is
// not canceled costs a goroutine, with which a bubble would not end.
type veiled struct{ context.Context }

func (o veiled) Value(key any) any {
	if _, ours := key.(fmt.Stringer); ours {
		return o.Context.Value(key)
	}
	return nil
}

// Hazard E6, K6: no context of an attempt is left uncanceled.
func TestNoContextIsLost(t *testing.T) {
	for _, steps := range [][]step{
		{status(200)}, {status(503)}, {status(425), status(204)}, {fails(errRefused), status(200)}, {fails(errReset)}, {{status: 200, takes: time.Hour}},
	} {
		for _, method := range []string{"GET", "POST", "HEAD"} {
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := context.WithCancel(context.Background())
				policy := every(time.Second)
				policy.AttemptTimeout = time.Minute
				resp, err := contract.New(t, httpretry.Config{Base: play(steps...), Policy: policy}).
					RoundTrip(request(t, method, "http://a.test/", "text").WithContext(veiled{parent}))
				if err == nil && method != "HEAD" {
					finish(t, resp)
				} else if err == nil {
					require.NoError(t, resp.Body.Close())
				}
				t.Cleanup(cancel) // too late for what still waits: the bubble has ended
			})
		}
	}
}

// Hazard E7: a request that is over is let go of: no timer of an hour keeps it.
func TestTimersAreStopped(t *testing.T) {
	for name, run := range map[string]func(http.RoundTripper, *http.Request, context.CancelFunc){
		"answered": func(rt http.RoundTripper, req *http.Request, _ context.CancelFunc) {
			if resp, err := rt.RoundTrip(req); err == nil {
				_ = resp.Body.Close()
			}
		},
		"canceled": func(rt http.RoundTripper, req *http.Request, cancel context.CancelFunc) {
			req.Header.Set("X-Want", "nothing")
			time.AfterFunc(20*time.Millisecond, cancel)
			_, _ = rt.RoundTrip(req)
		},
		"canceled while waiting": func(rt http.RoundTripper, req *http.Request, cancel context.CancelFunc) {
			req.Header.Set("X-Want", "503")
			time.AfterFunc(20*time.Millisecond, cancel)
			_, _ = rt.RoundTrip(req)
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := baseFunc(func(req *http.Request) (*http.Response, error) {
				switch req.Header.Get("X-Want") {
				case "nothing":
					<-req.Context().Done()
					return nil, req.Context().Err()
				case "503":
					return &http.Response{StatusCode: 503, Body: io.NopCloser(bytes.NewReader(nil))}, nil
				}
				return &http.Response{StatusCode: 200, Body: io.NopCloser(bytes.NewReader(nil))}, nil
			})
			policy := every(time.Hour)
			policy.AttemptTimeout = time.Hour
			transport := contractless(t, httpretry.Config{Base: base, Policy: policy})
			kept := func() weak.Pointer[http.Request] {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, "GET", "http://a.test/", nil)
				require.NoError(t, err)
				run(transport, req, cancel)
				return weak.Make(req)
			}()
			soon(t, "the collection of the request", func() {
				for kept.Value() != nil {
					runtime.GC()
				}
			})
		})
	}
}
