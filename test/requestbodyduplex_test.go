package test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
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
	"github.com/seed421102f4/httpretry/internal/faults"
)

// An HTTP/2 server may respond before it has read the request, and continue to
// read. The end of the attempt's context does not cut that off.
func TestUploadOutlivesAnswer(t *testing.T) {
	for _, clientConn := range []bool{false, true} {
		for _, header := range []string{"", "key"} {
			t.Run(fmt.Sprintf("ClientConn=%v/%q", clientConn, header), func(t *testing.T) {
				srv := faults.HTTP2(t, func(s faults.Stream) { s.Respond(204) })
				r, w := io.Pipe()
				req := contract.Streamed(t, "POST", srv.URL(), r)
				if header != "" {
					req.Header.Set("Idempotency-Key", header)
				}
				transport := faults.HTTP2Base(t)
				var inner http.RoundTripper = transport
				if clientConn { // it gets no connection, so the hook GotConn is not called
					conn, err := transport.NewClientConn(t.Context(), "http", srv.Addr)
					require.NoError(t, err)
					t.Cleanup(func() { _ = conn.Close() })
					inner = conn
				}
				var attempt context.Context
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					attempt = req.Context()
					return inner.RoundTrip(req)
				})
				// gives every attempt a context of its own
				policy := httpretry.Policy{AttemptTimeout: time.Hour}
				contract.Send(t, contract.With(t, base, policy), req)
				for range 3 {
					_, err := w.Write(make([]byte, 1000))
					require.NoError(t, err)
				}
				require.NoError(t, w.Close())
				<-srv.Complete
				assert.EqualValues(t, 3000, srv.Received.Load())
				waitFor(t, "the end of the attempt's context", func() { <-attempt.Done() })
			})
		}
	}
}

// net/http may have resent the request whose upload outlives the response. The
// end of the first upload does not end the second.
func TestSecondUploadOutlivesAnswer(t *testing.T) {
	const size = 1 << 20 // more than may be sent at once
	var srv *faults.HTTP2Server
	srv = faults.HTTP2(t, func(s faults.Stream) {
		if s.Request == 1 {
			s.ResetStream(faults.RefusedStream)
			return
		}
		srv.Received.Store(0)
		s.Respond(204)
	})
	policy := httpretry.Policy{AttemptTimeout: time.Hour}
	transport := contract.With(t, faults.HTTP2Base(t), policy)
	contract.Send(t, transport, contract.Request(t, "PUT", srv.URL(), strings.Repeat("x", size)))
	waitFor(t, "the end of the upload", func() { <-srv.Complete })
	assert.EqualValues(t, size, srv.Received.Load())
	assert.EqualValues(t, 2, srv.Requests.Load())
}

// Hazard 0.3, A5, A10, B11: concurrent uploads get early responses. Every byte
// that a server reads, also on failed attempts, belongs to the request and is
// in its place. The accepted body is complete.
func TestEarlyAnswersToMany(t *testing.T) {
	const requests, size = 3, 4 << 20
	for _, kind := range []upload{uploadStream, uploadGetBody, uploadFile} {
		contract.ForProtocols(t, func(t *testing.T, proto string) {
			t.Run(string(kind), func(t *testing.T) {
				bodies := make([][]byte, requests)
				for i := range bodies {
					bodies[i] = randomBytes(uint64(i), size-i)
				}
				var accepted atomic.Int32
				handler := func(w http.ResponseWriter, r *http.Request) {
					var number int
					_, _ = fmt.Sscan(r.Header.Get("X-Body"), &number)
					want := bodies[number]
					if attemptOf(r) < 4 {
						part, _ := io.ReadAll(io.LimitReader(r.Body, rand.Int64N(size/4)))
						assert.True(t, bytes.HasPrefix(want, part),
							"a refused part of body %d", number)
						answerEarly(w, r, http.StatusServiceUnavailable)
						return
					}
					body, err := io.ReadAll(r.Body)
					if assert.NoError(t, err) &&
						assert.True(t, bytes.Equal(want, body), "body %d", number) {
						accepted.Add(1)
					}
				}
				base, srv := contract.Serve(t, proto, handler)
				policy := contract.RetryEvery(0)
				policy.MaxAttempts, policy.ReplayBuffer = 8, 2*size
				transport := contract.With(t, base, policy)
				var wg sync.WaitGroup
				for i, body := range bodies {
					wg.Go(func() {
						// If a busy machine interrupts a Read for longer than
						// the library waits for it, the body cannot be sent
						// again. The caller then begins anew.
						reason := httpretry.ReasonNotReplayable
						for range 5 {
							if reason != httpretry.ReasonNotReplayable {
								break
							}
							req := newUpload(t, kind, srv.URL, body)
							req.Header.Set("X-Body", fmt.Sprint(i))
							resp, err := transport.RoundTrip(req)
							if !assert.NoError(t, err) {
								return
							}
							reason = httpretry.ResultOf(resp).Reason
							assert.NoError(t, resp.Body.Close())
						}
						assert.Equal(t, httpretry.ReasonSuccess, reason)
					})
				}
				wg.Wait()
				assert.EqualValues(t, requests, accepted.Load())
			})
		})
	}
}

// Hazard B4: nothing is read ahead. The server has the first byte before the
// caller's reader returns more, on the first attempt and on a retry.
func TestStreamingFirstByte(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		for _, timeout := range []time.Duration{0, time.Hour} {
			for _, refusals := range []int{0, 1} {
				t.Run(fmt.Sprintf("timeout=%v/refusals=%d", timeout, refusals), func(t *testing.T) {
					first := make(chan struct{})
					handler := func(w http.ResponseWriter, r *http.Request) {
						assert.Equal(t, "1", readN(t, r.Body, 1))
						if attemptOf(r) <= refusals {
							answerEarly(w, r, http.StatusServiceUnavailable)
							return
						}
						close(first)
						rest, err := io.ReadAll(r.Body)
						assert.NoError(t, err)
						assert.Equal(t, "234", string(rest))
					}
					base, srv := contract.Serve(t, proto, handler)
					r, w := io.Pipe()
					go func() {
						_, _ = io.WriteString(w, "1")
						<-first
						_, _ = io.WriteString(w, "234")
						_ = w.Close()
					}()
					policy := contract.RetryEvery(0)
					policy.AttemptTimeout = timeout
					transport := contract.With(t, base, policy)
					waitFor(t, "the response", func() {
						resp, err := transport.RoundTrip(contract.Streamed(t, "PUT", srv.URL, r))
						if assert.NoError(t, err) {
							contract.ReadBody(t, resp)
						}
					})
				})
			}
		}
	})
}

// Hazard B6: a goroutine that writes a multipart form into a pipe ends, however
// the request ends.
func TestMultipartPipe(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		for name, tt := range map[string]struct {
			size    int64
			handler http.HandlerFunc
			told    bool // the writer gets an error
		}{
			"accepted": {1000, func(w http.ResponseWriter, r *http.Request) {
				file, _, err := r.FormFile("file")
				if assert.NoError(t, err) {
					body, _ := io.ReadAll(file)
					assert.Equal(t, make([]byte, 1000), body)
				}
				if attemptOf(r) < 3 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}, false},
			"refused early": {64 << 20, func(w http.ResponseWriter, r *http.Request) {
				answerEarly(w, r, http.StatusForbidden)
			}, true},
			"busy, too large": {64 << 20, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
				answerEarly(w, r, http.StatusServiceUnavailable)
			}, true},
			"broken off": {64 << 20, func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
				panic(http.ErrAbortHandler)
			}, true},
		} {
			t.Run(name, func(t *testing.T) {
				base, srv := contract.Serve(t, proto, tt.handler)
				r, w := io.Pipe()
				form := multipart.NewWriter(w)
				written := make(chan error, 1)
				go func() { written <- writeForm(form, w, tt.size) }()
				req := contract.Streamed(t, "PUT", srv.URL, &contract.Body{ReadCloser: r})
				req.Header.Set("Content-Type", form.FormDataContentType())
				resp, err := contract.With(t, base, contract.RetryEvery(0)).RoundTrip(req)
				if err == nil {
					contract.ReadBody(t, resp)
				}
				waitFor(t, "the end of the writer", func() {
					if err := <-written; tt.told {
						assert.Error(t, err)
					} else {
						assert.NoError(t, err)
					}
				})
			})
		}
	})
}

// writeForm writes a form with a file of size bytes.
func writeForm(form *multipart.Writer, w *io.PipeWriter, size int64) error {
	part, err := form.CreateFormFile("file", "name")
	if err != nil {
		return err
	}
	_, err = io.CopyN(part, contract.Zeros{}, size)
	return errors.Join(err, form.Close(), w.Close())
}

// Hazard B9: a body that waits for 100 Continue is not read if the server
// responds with 503 instead. It is sent again after a 503 that follows the 100.
// A 417 is final.
func TestExpectContinue(t *testing.T) {
	for _, tt := range []struct {
		name     string
		steps    []int // status of each attempt; negative: after reading the body
		close    bool  // the connection, so that the body need not be sent
		want     int
		requests int32
	}{
		{"503 before 100", []int{503, 503, -200}, false, 200, 3},
		{"503 before 100, and close", []int{503, 503, -200}, true, 200, 3},
		{"503 after 100", []int{-503, -503, -200}, false, 200, 3},
		{"503 before and after 100", []int{503, -503, 503, -503, -200}, true, 200, 5},
		{"417", []int{417}, true, 417, 1},
	} {
		for _, kind := range []upload{uploadStream, uploadGetBody, uploadFile} {
			t.Run(tt.name+"/"+string(kind), func(t *testing.T) {
				data := randomBytes(1, 50_000) // within the replay buffer
				srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
					assert.Equal(t, "100-continue", req.Header.Get("Expect"))
					code := tt.steps[min(attemptOf(req), len(tt.steps))-1]
					if code < 0 {
						c.Respond(100, "")
						body, err := io.ReadAll(req.Body)
						assert.NoError(t, err)
						assert.True(t, bytes.Equal(data, body))
						c.Respond(-code, "")
						return true
					}
					if tt.close {
						c.Respond(code, "", "Connection: close")
						return false
					}
					c.Respond(code, "")
					return true
				})
				base := faults.Base(t, nil)
				base.ExpectContinueTimeout = time.Hour
				req := newUpload(t, kind, srv.URL(), data)
				req.Header.Set("Expect", "100-continue")
				waitFor(t, "the response", func() {
					resp, err := contract.With(t, base, contract.RetryEvery(0)).RoundTrip(req)
					if assert.NoError(t, err) {
						contract.ReadBody(t, resp)
						assert.Equal(t, tt.want, resp.StatusCode)
					}
				})
				assert.Equal(t, tt.requests, srv.Requests.Load())
			})
		}
	}
}

// Hazard B13: in a reverse proxy, the request's body is not read after the
// handler has returned, and the inbound connection stays intact.
func TestReverseProxyBody(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		const size = 1 << 20
		data := randomBytes(7, size)
		base, backend := contract.Serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/early" {
				part, _ := io.ReadAll(io.LimitReader(r.Body, rand.Int64N(100_000)))
				assert.True(t, bytes.HasPrefix(data, part))
				answerEarly(w, r, http.StatusServiceUnavailable)
				return
			}
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(data, body))
		})
		target, err := url.Parse(backend.URL)
		require.NoError(t, err)
		proxy := &httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
			Transport: contract.With(t, base, contract.RetryEvery(0)),
		}
		var late atomic.Int64
		front := contract.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
			var over atomic.Bool
			body := r.Body
			r.Body = &struct { // a pointer, since net/http may compare bodies
				io.Reader
				io.Closer
			}{contract.ReaderFunc(func(p []byte) (int, error) {
				after := over.Load()
				n, err := body.Read(p)
				if after {
					late.Add(int64(n))
				}
				return n, err
			}), body}
			proxy.ServeHTTP(w, r)
			over.Store(true)
		})
		client := faults.Base(t, nil)
		for range 5 {
			early := contract.Request(t, "PUT", front.URL+"/early", string(data))
			resp, err := client.RoundTrip(early)
			if err == nil { // or the front server ended a connection that was still uploading
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				assert.GreaterOrEqual(t, resp.StatusCode, 502)
			}
			whole := contract.Request(t, "PUT", front.URL+"/whole", string(data))
			assert.Equal(t, 200, contract.Send(t, client, whole).StatusCode)
		}
		assert.Zero(t, late.Load(), "bytes read after the handler returned")
	})
}

// Hazard C2: net/http may find that the HTTP/2 connection that it chose is
// unusable before it writes anything. It then sends the request on another
// connection, although it has closed the body.
func TestBodyIsSentThoughItsConnectionWasUnusable(t *testing.T) {
	var servers sync.Map
	srv := faults.HTTP2(t, func(s faults.Stream) {
		servers.Store(s.Conn.Number, s.Conn)
		s.Respond(http.StatusOK)
	})
	base := faults.HTTP2Base(t)
	clients := faults.ObserveConns(base)
	events := new(contract.Record)
	transport := contract.Recorded(t, base, contract.RetryEvery(0), events)
	warmUp(t, base, srv)

	var once sync.Once
	ctx := httptrace.WithClientTrace(
		t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
			once.Do(func() {
				conn, _ := servers.Load(1)
				_ = conn.(*faults.Conn).Close()
				<-(<-clients).Closed // until net/http has noticed
				warmUp(t, base, srv) // opens another connection
			})
		}})
	body := contract.Counted("the whole body")
	req := contract.Streamed(t, http.MethodPost, srv.URL(), body).WithContext(ctx)
	contract.Send(t, transport, req)
	<-srv.Complete
	assert.EqualValues(t, len("the whole body"), srv.Received.Load())
	assert.EqualValues(t, 3, srv.Requests.Load(), "two GETs and the POST")
	assert.Len(t, events.Events, 1, "net/http sent it again by itself")
}

// Hazard B4: the response that ends the retries is returned while the request's
// body is still being sent, and the upload continues. On a retry, the first
// attempt is still in a Read of the body.
func TestFullDuplex(t *testing.T) {
	for _, tt := range []struct {
		method   string
		refusals int
		timeout  time.Duration
		buffer   int64
	}{
		{"POST", 0, 0, 0}, {"POST", 0, 0, -1}, {"PUT", 1, 0, 0}, {"PUT", 1, time.Hour, 0},
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			base, srv := contract.Serve(t, contract.HTTP2,
				func(w http.ResponseWriter, r *http.Request) {
					if attemptOf(r) <= tt.refusals {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					rc := http.NewResponseController(w)
					_ = rc.Flush()
					lines := bufio.NewScanner(r.Body)
					for lines.Scan() {
						_, _ = fmt.Fprintln(w, lines.Text())
						_ = rc.Flush()
					}
				})
			r, w := io.Pipe()
			policy := contract.RetryEvery(0)
			policy.AttemptTimeout, policy.ReplayBuffer = tt.timeout, tt.buffer
			waitFor(t, "the dialogue", func() {
				req := contract.Streamed(t, tt.method, srv.URL, &contract.Body{ReadCloser: r})
				resp, err := contract.With(t, base, policy).RoundTrip(req)
				if assert.NoError(t, err) && assert.Equal(t, 200, resp.StatusCode) {
					echoLines(t, w, resp)
				}
			})
		})
	}
}

// echoLines writes lines into the body of a request, and requires each to
// return in the response before it writes the next.
func echoLines(t *testing.T, w io.WriteCloser, resp *http.Response) {
	t.Helper()
	echo := bufio.NewReader(resp.Body)
	for i := range 20 {
		line := fmt.Sprintf("line %d %s\n", i, strings.Repeat("-", 10_000))
		_, err := io.WriteString(w, line)
		assert.NoError(t, err)
		got, err := echo.ReadString('\n')
		assert.NoError(t, err)
		assert.Equal(t, line, got)
	}
	assert.NoError(t, w.Close())
	rest, err := io.ReadAll(echo)
	assert.NoError(t, err)
	assert.Empty(t, rest)
	assert.NoError(t, resp.Body.Close())
}
