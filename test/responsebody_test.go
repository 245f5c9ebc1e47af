package test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// Hazard D5: while a request waits, another one can use its connection.
func TestWaitHoldsNoConnection(t *testing.T) {
	for _, size := range []int{0, 5, 1 << 20} { // of the response that is discarded
		synctest.Test(t, func(t *testing.T) {
			base := faults.Pipe(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/fast":
					w.WriteHeader(http.StatusNotFound) // a success would end the wait
				case r.Header.Get("Retry-Attempt") == "":
					w.WriteHeader(http.StatusServiceUnavailable)
					_, _ = w.Write(make([]byte, size))
				}
			})
			base.MaxConnsPerHost = 1
			transport := contract.With(t, base, contract.RetryEvery(time.Hour))
			done := make(chan error)
			go func() {
				resp, err := transport.RoundTrip(newGet(t))
				if err == nil {
					err = resp.Body.Close()
				}
				done <- err
			}()
			time.Sleep(time.Minute)
			start := time.Now()
			contract.Send(t, transport, contract.Request(t, "GET", "http://a.test/fast", ""))
			assert.Zero(t, time.Since(start))
			require.NoError(t, <-done)
			assert.Equal(t, 59*time.Minute, time.Since(start).Round(time.Second))
		})
	}
}

// A base that is not net/http's may leave a response's ContentLength and
// protocol unset. Its body still needs the attempt's context.
func TestResponseWithoutContentLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			r, w := io.Pipe()
			go func() {
				time.Sleep(time.Second)
				_, _ = io.WriteString(w, "text")
				_ = w.CloseWithError(req.Context().Err())
			}()
			return &http.Response{StatusCode: 200, Body: r}, nil
		})
		resp, err := contract.With(t, base, httpretry.Policy{}).
			RoundTrip(contract.Request(t, "POST", "http://a.test/", ""))
		require.NoError(t, err)
		assert.Equal(t, "text", contract.ReadBody(t, resp))
	})
}

// Hazard A9: the response after retries is the one that the base alone would
// return.
func TestResponseIsUntouched(t *testing.T) {
	for _, proto := range []string{contract.HTTP1, contract.HTTP2} {
		for _, packed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/gzip=%v", proto, packed), func(t *testing.T) {
				srv := httptest.NewUnstartedServer(
					http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.Header.Get("Retry-Attempt") == "" && r.Header.Get("X-Plain") == "" {
							w.WriteHeader(http.StatusServiceUnavailable)
							return
						}
						w.Header()["Date"] = nil
						w.Header()["X-Many"] = []string{"b", "a", ""}
						w.Header().Set("Trailer", "X-Sum")
						var body io.Writer = w
						if packed {
							w.Header().Set("Content-Encoding", "gzip")
							z := gzip.NewWriter(w)
							defer func() { _ = z.Close(); w.Header().Set("X-Sum", "42") }()
							body = z
						}
						w.WriteHeader(http.StatusPartialContent)
						_, _ = body.Write(randomBytes(1, 100_000))
						w.Header().Set("X-Sum", "42")
					}))
				srv.EnableHTTP2 = proto == contract.HTTP2
				srv.StartTLS()
				t.Cleanup(srv.Close)
				base := srv.Client().Transport
				plain := contract.Request(t, "GET", srv.URL, "")
				plain.Header.Set("X-Plain", "1")
				want, err := base.RoundTrip(plain)
				require.NoError(t, err)
				wantBody := contract.ReadBody(t, want)

				got, err := contract.With(t, base, contract.RetryEvery(0)).
					RoundTrip(contract.Request(t, "GET", srv.URL, ""))
				require.NoError(t, err)
				assert.True(t, wantBody == contract.ReadBody(t, got), "the body")
				assert.Equal(t, packed, got.Uncompressed)
				assert.NotNil(t, got.TLS)
				assert.Equal(t, "42", got.Trailer.Get("X-Sum"))
				for _, r := range []*http.Response{want, got} {
					r.Body, r.Request, r.TLS = nil, nil, nil
				}
				assert.Equal(t, want, got)
			})
		}
	}
}

// Hazard D6, E6: a response without a body need not be closed. The context of
// its attempt ends, and its connection is used again.
func TestEmptyResponsesLeftOpen(t *testing.T) {
	for _, tt := range []struct {
		method string
		status int
		body   string
	}{
		{"HEAD", 200, ""}, {"GET", 200, ""}, {"GET", 204, ""}, {"GET", 304, ""},
		{"PUT", 200, "text"},
	} {
		inVirtualTimeAs(t, fmt.Sprintf("%s %d", tt.method, tt.status),
			func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
				base := start(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					if attemptOf(r) == 1 {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					w.WriteHeader(tt.status)
				})
				var conns atomic.Int32
				countDials(base, &conns)
				var ended []<-chan struct{}
				watched := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					ended = append(ended, req.Context().Done())
					return base.RoundTrip(req)
				})
				// net/http pools a new connection a moment later
				policy := contract.RetryEvery(time.Millisecond)
				policy.AttemptTimeout = time.Hour
				// Unchecked, since the checks require that responses are
				// closed.
				transport := contract.Unchecked(t, httpretry.Config{Base: watched, Policy: policy})
				for range 3 {
					resp, err := transport.RoundTrip(
						contract.Request(t, tt.method, "http://a.test/", tt.body))
					require.NoError(t, err)
					assert.Equal(t, tt.status, resp.StatusCode)
				}
				require.Len(t, ended, 6)
				for _, done := range ended {
					waitFor(t, "the end of an attempt's context", func() { <-done })
				}
				assert.EqualValues(t, 1, conns.Load())
			})
	}
}

// endlessResponses never end. Some say at once that they are too long.
var endlessResponses = map[string]struct {
	tooLong  bool
	realTime bool // Close waits for a mutex, which stops the time of a bubble
	answer   http.HandlerFunc
}{
	"stalls": {answer: stalling("Content-Type", "text/plain", "some")},
	"stalls in the header of gzip": {
		realTime: true, answer: stalling("Content-Encoding", "gzip", "\x1f\x8b")},
	"drips": {answer: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		for r.Context().Err() == nil {
			writeAndFlush(w, ".")
			select {
			case <-time.After(10 * time.Millisecond):
			case <-r.Context().Done():
			}
		}
	}},
	"gushes": {answer: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		writeForever(w)
	}},
	"says that it is huge": {tooLong: true, answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000000000000")
		w.WriteHeader(http.StatusServiceUnavailable)
		writeForever(w)
	}},
	"says that it is huge, and stalls": {
		tooLong: true, answer: stalling("Content-Length", "1000000000000", "")},
	"is a gzip bomb": {answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusServiceUnavailable)
		packed := gzipBomb()
		_, _ = w.Write(packed)
		for {
			if _, err := w.Write(packed[10:]); err != nil { // without the header
				return
			}
		}
	}},
}

// stalling returns a handler that sends a header and some text, and no more.
func stalling(name, value, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(name, value)
		w.WriteHeader(http.StatusServiceUnavailable)
		writeAndFlush(w, text)
		<-r.Context().Done()
	}
}

// gzipBomb returns the beginning of a gzip stream that unpacks to a MiB. All of
// it but the header (RFC 1952 section 2.3) may follow it any number of times.
func gzipBomb() []byte {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(make([]byte, 1<<20))
	_ = z.Flush()
	return packed.Bytes()
}

// writeForever writes until the client leaves.
func writeForever(w io.Writer) {
	zeros := make([]byte, 1<<16)
	for {
		if _, err := w.Write(zeros); err != nil {
			return
		}
	}
}

// Hazard D1, D2: at most 64 KiB of a discarded response are read, counted after
// decompression. No more is read from the connection than the protocol has in
// flight.
func TestDropIsBoundedInBytes(t *testing.T) {
	const limit = 64 << 10
	onTheWire := map[string]int64{
		contract.HTTP1: limit + 256<<10 + 16<<10, // 256 KiB: Close reads as much since Go 1.27
		contract.HTTP2: limit + 4<<20 + 64<<10,   // 4 MiB: net/http's window of a stream
	}
	for name, tt := range endlessResponses {
		// without and with a context of the attempt's own
		for _, timeout := range []time.Duration{0, time.Hour} {
			for proto, most := range onTheWire {
				t.Run(fmt.Sprintf("%s/%v/%s", name, timeout, proto), func(t *testing.T) {
					handler := func(w http.ResponseWriter, r *http.Request) {
						if attemptOf(r) == 1 {
							tt.answer(w, r)
						}
					}
					base, srv := contract.Serve(t, proto, handler)
					wire := faults.Watch(base)
					var unpacked atomic.Int64
					counted := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
						resp, err := base.RoundTrip(req)
						if err == nil && resp.StatusCode == 503 {
							resp.Body = &countedBody{resp.Body, &unpacked}
						}
						return resp, err
					})
					policy := contract.RetryEvery(0)
					policy.AttemptTimeout = timeout
					transport := contract.With(t, counted, policy)
					waitFor(t, "the second attempt", func() {
						resp, err := transport.RoundTrip(contract.Request(t, "GET", srv.URL, ""))
						if assert.NoError(t, err) {
							contract.ReadBody(t, resp)
							assert.Equal(t, 200, resp.StatusCode)
						}
					})
					assert.LessOrEqual(t, unpacked.Load(), int64(limit+1))
					assert.LessOrEqual(t, wire.Read.Load(), most)
				})
			}
		}
	}
}

// countedBody counts the bytes that are read.
type countedBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

// Hazard D2: discarding a response takes at most 100 ms. It takes no time if
// the response is known to be too long. TestDropIsBoundedInBytes has the rows that
// cannot be in virtual time.
func TestDropIsBoundedInTime(t *testing.T) {
	for name, tt := range endlessResponses {
		if tt.realTime {
			continue
		}
		for _, timeout := range []time.Duration{0, time.Hour} {
			inVirtualTimeAs(t, fmt.Sprintf("%s/%v", name, timeout),
				func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
					base := start(func(w http.ResponseWriter, r *http.Request) {
						if attemptOf(r) == 1 {
							tt.answer(w, r)
						}
					})
					if base.Protocols == nil && closeDrains {
						t.Skip("Close waits for a mutex")
					}
					policy := contract.RetryEvery(0)
					policy.AttemptTimeout = timeout
					began := time.Now()
					contract.Send(t, contract.With(t, base, policy), newGet(t))
					assert.LessOrEqual(t, time.Since(began), 100*time.Millisecond)
					if tt.tooLong {
						assert.Zero(t, time.Since(began))
					}
				})
		}
	}
}

// Hazard D4: after a small response is discarded, its connection can be used
// again, however the end of the body is marked.
func TestSmallDropKeepsConnection(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"empty": func(w http.ResponseWriter) { w.WriteHeader(503) },
		"flushed": func(w http.ResponseWriter) {
			w.WriteHeader(503)
			writeAndFlush(w, "later")
			writeAndFlush(w, "perhaps")
		},
		"64 KiB": func(w http.ResponseWriter) {
			w.WriteHeader(503)
			writeAndFlush(w, strings.Repeat("x", 64<<10))
		},
		"64 KiB, known length": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "65536")
			w.WriteHeader(503)
			writeAndFlush(w, strings.Repeat("x", 64<<10))
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
			// In virtual time, since discarding that takes too long closes the
			// connection.
			inVirtualTimeAs(t, fmt.Sprintf("%s/%v", name, timeout),
				func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
					base := start(func(w http.ResponseWriter, r *http.Request) {
						_, _ = io.Copy(io.Discard, r.Body)
						if attemptOf(r) < 3 {
							answer(w)
						}
					})
					var conns atomic.Int32
					countDials(base, &conns)
					// net/http pools a new connection a moment later
					policy := contract.RetryEvery(time.Millisecond)
					policy.AttemptTimeout = timeout
					transport := contract.With(t, base, policy)
					for _, body := range []string{"", "text"} {
						resp := contract.Send(t, transport,
							contract.Request(t, "PUT", "http://a.test/", body))
						assert.Equal(t, 200, resp.StatusCode)
					}
					assert.EqualValues(t, 1, conns.Load())
				})
		}
	}
}

// writeAndFlush writes and flushes. Without a Content-Length, over HTTP/1, that
// makes a chunk.
func writeAndFlush(w http.ResponseWriter, text string) {
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
}

// Hazard D2, D7: a response is discarded within 100 ms even if its request is
// still being sent, and its stream waits for the rest of that, which the caller
// has not yet written.
func TestDropWhileUploading(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Hour} {
		for _, length := range []int64{-1, 100_000} {
			inVirtualTimeAs(t, fmt.Sprintf("%v/%d", timeout, length),
				func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
					r, w := io.Pipe()
					var came []time.Time
					base := start(func(rw http.ResponseWriter, req *http.Request) {
						came = append(came, time.Now())
						if len(came) == 1 {
							assert.Equal(t, "some", readN(t, req.Body, 4))
							answerEarly(rw, req, http.StatusServiceUnavailable)
							_, _ = io.WriteString(rw, "later")
							return
						}
						go func() { _, _ = w.Write(make([]byte, 100_000-4)); _ = w.Close() }()
						n, err := io.Copy(io.Discard, req.Body)
						assert.NoError(t, err)
						assert.EqualValues(t, 100_000, n)
					})
					go func() { _, _ = io.WriteString(w, "some") }()
					policy := contract.RetryEvery(0)
					policy.AttemptTimeout = timeout
					req := contract.Streamed(t, "PUT", "http://a.test/", r)
					req.ContentLength = length
					contract.Send(t, contract.With(t, base, policy), req)
					require.Len(t, came, 2)
					assert.LessOrEqual(t, came[1].Sub(came[0]), 100*time.Millisecond)
					// a server delays the close of its connection, and the
					// bubble ends at once
					time.Sleep(time.Second)
				})
		}
	}
}

// Hazard D7: over HTTP/2 a server may respond and never let the client send the
// rest of its request. The response is still discarded.
func TestDropOfUploadWithoutWindow(t *testing.T) {
	for kind, inMemory := range map[string]bool{"stream": false, "in memory": true} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			for _, ends := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/END_STREAM=%v", kind, timeout, ends), func(t *testing.T) {
					srv := faults.HTTP2(t, func(s faults.Stream) {
						if s.Request > 1 {
							s.Respond(204)
							// and ignores the rest of this request, too
							s.ResetStream(faults.NoError)
							return
						}
						s.Header(false, ":status", "503")
						s.Data(ends, strings.Repeat("x", 8<<10))
					})
					srv.Stingy.Store(true)
					data := randomBytes(3, 1<<20)
					req := newUpload(t, uploadStream, srv.URL(), data)
					if inMemory {
						req = contract.Request(t, "PUT", srv.URL(), string(data))
					}
					policy := contract.RetryEvery(0)
					policy.AttemptTimeout, policy.ReplayBuffer = timeout, 2<<20
					transport := contract.With(t, faults.HTTP2Base(t), policy)
					waitFor(t, "the second attempt", func() {
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

// Hazard D7: all requests on an HTTP/2 connection share its writes. If the
// upload of another request blocks in a write, discarding a response does not
// block RoundTrip after the caller has canceled.
func TestDropBehindStalledUpload(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Hour} {
		for _, ends := range []bool{false, true} {
			for _, size := range []int{0, 8 << 10} { // enough for net/http to send a WINDOW_UPDATE
				t.Run(fmt.Sprintf("%v/END_STREAM=%v/%d", timeout, ends, size), func(t *testing.T) {
					more := make(chan struct{})
					base := faults.HTTP2Base(t)
					wire := faults.Watch(base)
					srv := faults.HTTP2(t, func(s faults.Stream) {
						switch s.Request {
						case 1: // the client has then sent its frames about the connection itself
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
					contract.Send(t, base, contract.Request(t, "GET", srv.URL(), ""))
					first := make(chan struct{})
					others, cancel := context.WithCancel(t.Context())
					var other sync.WaitGroup
					defer other.Wait()
					defer cancel()
					other.Go(func() {
						chunks := 0
						body := io.NopCloser(contract.ReaderFunc(func(p []byte) (int, error) {
							if chunks++; chunks == 2 {
								close(first)
								<-more
							}
							return min(len(p), 1000), nil
						}))
						_, _ = base.RoundTrip(
							contract.Streamed(t, "PUT", srv.URL(), body).WithContext(others))
					})
					<-first
					policy := contract.RetryEvery(0)
					policy.AttemptTimeout = timeout
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					// Unchecked: the blocked response is closed when its
					// connection is.
					observe := func(_ context.Context, e httpretry.Event) {
						// it is about to be discarded
						if e.Attempt.Number == 1 && e.Response != nil {
							time.AfterFunc(100*time.Millisecond, leave)
						}
					}
					transport := contract.Unchecked(t,
						httpretry.Config{Base: base, Policy: policy, Observe: observe})
					waitFor(t, "the end of a canceled request", func() {
						_, err := transport.RoundTrip(
							contract.Request(t, "GET", srv.URL(), "").WithContext(ctx))
						assert.ErrorIs(t, err, context.Canceled)
					})
				})
			}
		}
	}
}

// Hazard D8: cookies of discarded responses are lost.
func TestCookiesOfDroppedResponses(t *testing.T) {
	srv := contract.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: fmt.Sprintf("c%d", attemptOf(r)), Value: "v"})
		if attemptOf(r) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := &http.Client{Jar: jar, Transport: contract.With(t, nil, contract.RetryEvery(0))}
	resp, err := client.Get(srv.URL)
	require.NoError(t, err)
	contract.ReadBody(t, resp)
	cookies := jar.Cookies(resp.Request.URL)
	require.Len(t, cookies, 1)
	assert.Equal(t, "c3", cookies[0].Name)
}

// Over HTTP/2, a response without a body may be followed by trailers, however
// long that takes. The attempt's context lives until then, because its end
// would cancel the server's work.
func TestTrailersAfterAnHour(t *testing.T) {
	for _, status := range []int{200, 204} {
		for _, method := range []string{"POST", "PUT"} {
			contract.Bubble(t, fmt.Sprintf("%s/%d", method, status), func(t *testing.T) {
				base := faults.HTTP2Pipe(t, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Trailer", "X-Sum")
					if status == 200 {
						w.Header().Set("Content-Length", "0")
					}
					w.WriteHeader(status)
					assert.NoError(t, http.NewResponseController(w).Flush())
					time.Sleep(time.Hour)
					assert.NoError(t, r.Context().Err(), "the request was canceled")
					w.Header().Set("X-Sum", "42")
				})
				policy := httpretry.Policy{AttemptTimeout: time.Minute}
				resp, err := contract.With(t, base, policy).
					RoundTrip(contract.Request(t, method, "http://a.test/", "text"))
				require.NoError(t, err)
				assert.Equal(t, status, resp.StatusCode)
				assert.Empty(t, contract.ReadBody(t, resp))
				assert.Equal(t, "42", resp.Trailer.Get("X-Sum"))
			})
		}
	}
}
