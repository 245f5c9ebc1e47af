package httpretry_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// Hazard 0.1, 0.2, C2, C3: net/http repeats requests over HTTP/2 without
// asking. One that is not safe to repeat reaches the server once.
func TestAtMostOnceHTTP2(t *testing.T) {
	answers := map[string]struct {
		answer func(faults.Stream)
		body   int32 // deliveries of a POST with a body: more than one where the server says it did nothing
	}{
		"REFUSED_STREAM":     {func(s faults.Stream) { s.ResetStream(faults.RefusedStream) }, 1},
		"PROTOCOL_ERROR":     {func(s faults.Stream) { s.ResetStream(faults.ProtocolError) }, 1},
		"INTERNAL_ERROR":     {func(s faults.Stream) { s.ResetStream(faults.InternalError) }, 1},
		"ENHANCE_YOUR_CALM":  {func(s faults.Stream) { s.ResetStream(faults.EnhanceYourCalm) }, 1},
		"GOAWAY(0)":          {func(s faults.Stream) { s.GoAway(0, faults.NoError) }, 5},
		"GOAWAY(0), calm":    {func(s faults.Stream) { s.GoAway(0, faults.EnhanceYourCalm) }, 5},
		"GOAWAY(id) + close": {func(s faults.Stream) { s.GoAway(s.ID, faults.NoError); s.Close() }, 1},
		"close":              {func(s faults.Stream) { s.Close() }, 1},
	}
	for name, tt := range answers {
		for _, layered := range []bool{false, true} {
			for _, body := range []string{"", "payload"} {
				t.Run(fmt.Sprintf("%s/layered=%v/body=%q", name, layered, body), func(t *testing.T) {
					srv := faults.HTTP2(t, tt.answer)
					var base http.RoundTripper = faults.HTTP2Base(t)
					if layered {
						base = baseFunc(base.RoundTrip)
					}
					transport := contract.New(t, httpretry.Config{Base: base, Policy: every(0)})
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					_, err := transport.RoundTrip(request(t, "POST", srv.URL(), body).WithContext(ctx))
					require.Error(t, err)
					require.NoError(t, ctx.Err(), "it took until the deadline: %v", err)
					want := int32(1)
					switch {
					case body != "":
						want = tt.body
					case strings.HasSuffix(name, "calm"):
						want = 5 // net/http does not repeat this one, so it says why
					}
					assert.Equal(t, want, srv.Requests.Load(), "deliveries; %v", err)
				})
			}
		}
	}
}

// Hazard C2: the replay that the server's GOAWAY allows is ours.
func TestGoAwayReplay(t *testing.T) {
	var once atomic.Bool
	srv := faults.HTTP2(t, func(s faults.Stream) {
		if once.CompareAndSwap(false, true) {
			s.GoAway(0, faults.NoError)
		} else {
			s.Respond(204)
		}
	})
	events := new(record)
	transport := contract.New(t, httpretry.Config{Base: faults.HTTP2Base(t), Policy: every(0), Observe: events.observe})
	resp, err := transport.RoundTrip(request(t, "POST", srv.URL(), "payload"))
	require.NoError(t, err)
	finish(t, resp)
	assert.Equal(t, 204, resp.StatusCode)
	assert.Len(t, events.events, 2)
	assert.EqualValues(t, 2, srv.Requests.Load())
}

// Hazard C4: what net/http repeats in one attempt of ours is bounded.
func TestSendsPerAttempt(t *testing.T) {
	srv := faults.HTTP2(t, func(s faults.Stream) {
		if s.Request == 1 {
			s.Respond(500)
		} else {
			s.GoAway(0, faults.NoError)
		}
	})
	policy := every(0)
	policy.MaxAttempts = 3
	transport := contract.New(t, httpretry.Config{Base: faults.HTTP2Base(t), Policy: policy})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := transport.RoundTrip(request(t, "GET", srv.URL(), "").WithContext(ctx))
	require.NoError(t, ctx.Err())
	assert.EqualError(t, err, "httpretry: gave up after 3 attempts (attempts exhausted): net/http sent the request 10 times in one attempt, and was stopped")
	assert.LessOrEqual(t, srv.Requests.Load(), int32(1+2*10))
	assert.Greater(t, srv.Requests.Load(), int32(3))
}

// A layer between us and net/http that sends several requests with the
// attempt's context, as one that logs in does, is not mistaken for a re-send.
func TestLayerThatLogsIn(t *testing.T) {
	var charges atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token":
			_, _ = io.WriteString(w, "secret")
		case r.Header.Get("Authorization") != "secret":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			charges.Add(1)
		}
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	inner := srv.Client().Transport
	base := baseFunc(func(req *http.Request) (*http.Response, error) {
		resp, err := inner.RoundTrip(req)
		if err != nil || resp.StatusCode != http.StatusUnauthorized {
			return resp, err
		}
		finish(t, resp)
		token, err := inner.RoundTrip(request(t, "GET", srv.URL+"/token", "").WithContext(req.Context()))
		if err != nil {
			return nil, err
		}
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", finish(t, token))
		return inner.RoundTrip(req)
	})
	resp, err := contract.New(t, httpretry.Config{Base: base}).RoundTrip(request(t, "POST", srv.URL+"/charge", ""))
	require.NoError(t, err)
	finish(t, resp)
	assert.Equal(t, 2, resp.ProtoMajor)
	assert.EqualValues(t, 1, charges.Load())
}

// A 1xx is no answer: what net/http sends after one is a repeat.
func TestAtMostOnceAfterInformational(t *testing.T) {
	srv := faults.HTTP2(t, func(s faults.Stream) {
		s.Header(false, ":status", "103")
		s.ResetStream(faults.RefusedStream)
	})
	for _, layered := range []bool{false, true} {
		var base http.RoundTripper = faults.HTTP2Base(t)
		if layered {
			base = baseFunc(base.RoundTrip)
		}
		srv.Requests.Store(0)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).
			RoundTrip(request(t, "POST", srv.URL(), "").WithContext(ctx))
		require.Error(t, err)
		require.NoError(t, ctx.Err())
		cancel()
		assert.EqualValues(t, 1, srv.Requests.Load(), "layered: %v", layered)
	}
}

// The bound on informational responses that watching them takes from net/http.
func TestInformationalFlood(t *testing.T) {
	srv := newServer(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 1000 {
			w.WriteHeader(http.StatusEarlyHints)
		}
	})
	base := baseFunc(http.DefaultTransport.(*http.Transport).Clone().RoundTrip)
	_, err := contract.New(t, httpretry.Config{Base: base}).RoundTrip(request(t, "POST", srv.URL, ""))
	require.ErrorContains(t, err, "more than 32 informational responses")
}

// Over HTTP/1, net/http gives a request that it does not hold for replayable a
// second connection only if not a byte went out on the first: that is let be.
func TestNothingWritten(t *testing.T) {
	var requests atomic.Int32
	srv := newServer(t, func(http.ResponseWriter, *http.Request) { requests.Add(1) })
	var broken atomic.Bool
	base := faults.Base(t, nil)
	faults.WrapConns(base, func(conn net.Conn) net.Conn { return &brittleConn{Conn: conn, broken: &broken} })
	transport := contract.New(t, httpretry.Config{Base: base, Policy: httpretry.Policy{MaxAttempts: 1}})
	resp, err := transport.RoundTrip(request(t, "GET", srv.URL, ""))
	require.NoError(t, err)
	finish(t, resp)
	broken.Store(true)
	resp, err = transport.RoundTrip(request(t, "POST", srv.URL, ""))
	require.NoError(t, err)
	finish(t, resp)
	assert.False(t, broken.Load(), "a write has failed")
	assert.EqualValues(t, 2, requests.Load())
}

// brittleConn fails the first write after it was broken.
type brittleConn struct {
	net.Conn
	broken *atomic.Bool
}

func (c *brittleConn) Write(p []byte) (int, error) {
	if c.broken.CompareAndSwap(true, false) {
		return 0, syscall.EPIPE
	}
	return c.Conn.Write(p)
}

// Hazard 1.3: what provably never left may be sent again, whatever the error.
func TestNeverSent(t *testing.T) {
	var posts, conns atomic.Int32
	handler := http.HandlerFunc(func(_ http.ResponseWriter, _ *http.Request) { posts.Add(1) })
	srv := httptest.NewUnstartedServer(handler)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	base := srv.Client().Transport.(*http.Transport).Clone()
	t.Cleanup(base.CloseIdleConnections)
	base.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, srv.Listener.Addr().String())
		if err == nil && conns.Add(1) < 3 {
			_ = conn.Close() // so that the TLS handshake fails, with an error that says nothing
		}
		return conn, err
	}
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(request(t, "POST", srv.URL, "payload"))
	require.NoError(t, err)
	finish(t, resp)
	assert.EqualValues(t, 3, conns.Load())
	assert.EqualValues(t, 1, posts.Load())
}

// A base that does not report its doings proves nothing.
func TestNeverSentUnknown(t *testing.T) {
	base := play(fails(io.EOF))
	_, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(request(t, "POST", "http://a.test/", ""))
	require.Equal(t, io.EOF, err)
	assert.Len(t, base.attempts(), 1)
}

// Hazard C1: an empty key is no key, to the server or to us. net/http takes
// any for one, so it does not get to see it.
func TestEmptyKeyOverHTTP1(t *testing.T) {
	var requests atomic.Int32
	srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
		if req.Method == "POST" {
			requests.Add(1)
			return false
		}
		c.Respond(200, "")
		return true
	})
	url, base := srv.URL(), faults.Base(t, nil)
	transport := contract.New(t, httpretry.Config{Base: base, Policy: every(0)})
	for range 5 {
		resp, err := transport.RoundTrip(request(t, "GET", url, "")) // leaves a connection to be reused
		require.NoError(t, err)
		finish(t, resp)
		req := request(t, "POST", url, "")
		req.Header["Idempotency-Key"] = []string{""}
		req.Header["X-Idempotency-Key"] = []string{""}
		_, err = transport.RoundTrip(req)
		require.Error(t, err)
	}
	base.CloseIdleConnections()
	srv.Settle(t)
	assert.EqualValues(t, 5, requests.Load())
}

// A GET that the policy does not hold for safe is not net/http's to repeat.
func TestUnsafeGet(t *testing.T) {
	var unsafe atomic.Int32
	srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
		if req.URL.Path == "/unsafe" {
			unsafe.Add(1)
			return false
		}
		c.Respond(200, "")
		return true
	})
	url, base := srv.URL(), faults.Base(t, nil)
	policy := every(0)
	policy.Idempotent = func(req *http.Request) bool { return req.URL.Path != "/unsafe" }
	for range 20 {
		unsafe.Store(0)
		transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
		resp, err := transport.RoundTrip(request(t, "GET", url, ""))
		require.NoError(t, err)
		finish(t, resp)
		_, err = transport.RoundTrip(request(t, "GET", url+"/unsafe", ""))
		require.Error(t, err)
		base.CloseIdleConnections()
		srv.Settle(t)
		assert.EqualValues(t, 1, unsafe.Load())
	}
}

func httpretryAttempt(r *http.Request) int {
	n := 0
	_, _ = fmt.Sscan(r.Header.Get("Retry-Attempt"), &n)
	return n + 1
}

// Hazard E1, E4: an attempt that takes too long is over.
func TestAttemptTimeout(t *testing.T) {
	for _, tt := range []struct {
		method   string
		attempts int
		want     string
	}{
		{"GET", 5, "httpretry: gave up after 5 attempts (attempts exhausted): attempt timed out after 2s"},
		{"POST", 1, "httpretry: gave up after 1 attempt (not idempotent): attempt timed out after 2s"},
	} {
		t.Run(tt.method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := play(step{status: 200, takes: time.Hour})
				policy := every(time.Second)
				policy.AttemptTimeout = 2 * time.Second
				_, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, tt.method, "http://a.test/", ""))
				require.EqualError(t, err, tt.want)
				assert.Len(t, base.attempts(), tt.attempts)
				for _, wait := range base.waits() {
					assert.Equal(t, 3*time.Second, wait)
				}
				var timeout net.Error
				require.ErrorAs(t, err, &timeout)
				assert.True(t, timeout.Timeout())
				//lint:ignore SA1019 old code asks
				assert.True(t, timeout.Temporary())
				require.NotErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, context.DeadlineExceeded, "as net/http's own timeouts are")
			})
		})
	}
}

// Hazard E1: headers that arrive as the time is up are too late.
func TestAttemptTimeoutAtTheHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := contract.Counted("")
		base := baseFunc(func(req *http.Request) (*http.Response, error) {
			time.Sleep(2 * time.Second)
			return &http.Response{StatusCode: 200, Body: body}, nil
		})
		policy := httpretry.Policy{MaxAttempts: 1, AttemptTimeout: 2 * time.Second}
		_, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "GET", "http://a.test/", ""))
		require.EqualError(t, err, "httpretry: gave up after 1 attempt (attempts exhausted): attempt timed out after 2s")
		assert.EqualValues(t, 1, body.Closes())
	})
}

// Over HTTP/2 the Close of a response may wait for what another request writes:
// nobody waits for one that came too late.
func TestAttemptTimeoutBeforeAStuckClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		defer close(free)
		body := stuckCloser{strings.NewReader(""), free}
		base := baseFunc(func(*http.Request) (*http.Response, error) {
			time.Sleep(2 * time.Second)
			return &http.Response{StatusCode: 200, ProtoMajor: 2, Body: body}, nil
		})
		policy := httpretry.Policy{MaxAttempts: 1, AttemptTimeout: 2 * time.Second}
		start := time.Now()
		_, err := contractless(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "GET", "http://a.test/", ""))
		require.ErrorContains(t, err, "attempt timed out after 2s")
		assert.LessOrEqual(t, time.Since(start), 2*time.Second+100*time.Millisecond)
	})
}

// stuckCloser closes when it is free to.
type stuckCloser struct {
	io.Reader
	free <-chan struct{}
}

func (c stuckCloser) Close() error { <-c.free; return nil }

// Hazard E5: the caller's deadline is not an attempt's.
func TestAttemptTimeoutAndDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		policy := every(0)
		policy.AttemptTimeout = time.Second + 1
		base := play(step{status: 200, takes: time.Hour})
		events := new(record)
		_, err := contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: events.observe}).
			RoundTrip(request(t, "GET", "http://a.test/", "").WithContext(ctx))
		require.Error(t, err)
		assert.Len(t, base.attempts(), 1)
		assert.Equal(t, httpretry.ReasonCanceled, events.reason())
	})
}

// Hazard D6, E6: an attempt's context ends with the response's body, or at once
// where there is none that callers would close.
func TestAttemptContextEnds(t *testing.T) {
	for _, tt := range []struct {
		name, method string
		status       int
		body         string
		use          func(*http.Response) error
	}{
		{"HEAD", "HEAD", 200, "", nil},
		{"no content", "GET", 204, "", nil},
		{"not modified", "GET", 304, "", nil},
		{"empty", "GET", 200, "", nil},
		{"read", "GET", 200, "body", func(r *http.Response) error { _, err := io.Copy(io.Discard, r.Body); return err }},
		{"closed", "GET", 200, "body", func(r *http.Response) error { return r.Body.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var ctx context.Context
			inner := play(status(503), step{status: tt.status, body: tt.body})
			base := baseFunc(func(req *http.Request) (*http.Response, error) {
				ctx = req.Context()
				resp, err := inner.RoundTrip(req)
				if tt.body == "" {
					resp.Body = io.NopCloser(strings.NewReader("")) // as HTTP/2 has it: not http.NoBody
				}
				return resp, err
			})
			policy := every(0)
			resp, err := contractless(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, tt.method, "http://a.test/", ""))
			require.NoError(t, err)
			if tt.use != nil {
				require.NoError(t, ctx.Err())
				require.NoError(t, tt.use(resp))
			}
			require.ErrorIs(t, ctx.Err(), context.Canceled)
		})
	}
}

// A server may answer over HTTP/2 before it has read the request, and read on.
// What ends an attempt's context does not cut that short.
func TestUploadOutlivesAnswer(t *testing.T) {
	for _, header := range []string{"", "key"} {
		t.Run(header, func(t *testing.T) {
			srv := faults.HTTP2(t, func(s faults.Stream) { s.Respond(204) })
			r, w := io.Pipe()
			req := streamed(t, "POST", srv.URL(), r)
			if header != "" {
				req.Header.Set("Idempotency-Key", header)
			}
			inner := faults.HTTP2Base(t)
			var attempt context.Context
			base := baseFunc(func(req *http.Request) (*http.Response, error) {
				attempt = req.Context()
				return inner.RoundTrip(req)
			})
			policy := httpretry.Policy{AttemptTimeout: time.Hour} // so that every attempt has a context of its own
			resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			for range 3 {
				_, err = w.Write(make([]byte, 1000))
				require.NoError(t, err)
			}
			require.NoError(t, w.Close())
			<-srv.Complete
			assert.EqualValues(t, 3000, srv.Received.Load())
			soon(t, "the end of the attempt's context", func() { <-attempt.Done() })
		})
	}
}

// The same for what net/http has sent again: that the first upload has ended
// does not end the second.
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
	transport := contract.New(t, httpretry.Config{Base: faults.HTTP2Base(t), Policy: policy})
	resp, err := transport.RoundTrip(request(t, "PUT", srv.URL(), strings.Repeat("x", size)))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	soon(t, "the end of the upload", func() { <-srv.Complete })
	assert.EqualValues(t, size, srv.Received.Load())
	assert.EqualValues(t, 2, srv.Requests.Load())
}

// To stop a repeat over HTTP/2 does not cost the connection, which others use.
func TestStoppedRepeatKeepsConnection(t *testing.T) {
	srv := faults.HTTP2(t, func(s faults.Stream) {
		if s.Request == 2 {
			s.ResetStream(faults.RefusedStream)
			return
		}
		s.Respond(204)
	})
	base := faults.HTTP2Base(t)
	warmUp(t, base, srv)
	transport := contract.New(t, httpretry.Config{Base: base, Policy: every(0)})
	_, err := transport.RoundTrip(request(t, "POST", srv.URL(), ""))
	require.ErrorContains(t, err, "was stopped")
	conns := srv.Conns.Load() // 2 if net/http had not pooled the first yet, a moment after its first request
	warmUp(t, base, srv)
	assert.EqualValues(t, 3, srv.Requests.Load())
	assert.Equal(t, conns, srv.Conns.Load())
}

// Hazard E3: a tunnel comes through as it is, and outlives the attempt's timeout.
func TestSwitchingProtocols(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := faults.Pipe(t, func(w http.ResponseWriter, _ *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if !assert.NoError(t, err) {
				return
			}
			defer conn.Close()
			_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_ = rw.Flush()
			line, _ := rw.ReadString('\n')
			time.Sleep(time.Hour)
			_, _ = rw.WriteString("you said " + line)
			_ = rw.Flush()
		})
		policy := httpretry.Policy{AttemptTimeout: time.Minute}
		req := request(t, "GET", "http://a.test/", "")
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
		resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, 101, resp.StatusCode)
		tunnel, ok := resp.Body.(io.ReadWriteCloser)
		require.True(t, ok, "%T", resp.Body)
		_, err = io.WriteString(tunnel, "hello\n")
		require.NoError(t, err)
		line, err := bufio.NewReader(tunnel).ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, "you said hello\n", line)
		require.NoError(t, tunnel.Close())
	})
}

// Hazard D5: while a request waits, its connection is another's.
func TestWaitHoldsNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := faults.Pipe(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" && r.Header.Get("Retry-Attempt") == "" {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = w.Write(make([]byte, 1<<20))
			}
		})
		base.MaxConnsPerHost = 1
		transport := contract.New(t, httpretry.Config{Base: base, Policy: every(time.Hour)})
		done := make(chan error)
		go func() {
			resp, err := transport.RoundTrip(request(t, "GET", "http://a.test/slow", ""))
			if err == nil {
				err = resp.Body.Close()
			}
			done <- err
		}()
		time.Sleep(time.Minute)
		start := time.Now()
		resp, err := transport.RoundTrip(request(t, "GET", "http://a.test/fast", ""))
		require.NoError(t, err)
		finish(t, resp)
		assert.Zero(t, time.Since(start))
		require.NoError(t, <-done)
		assert.Equal(t, 59*time.Minute, time.Since(start).Round(time.Second))
	})
}

// A TLS connection to a server that does not speak it ends as such.
func TestPlainAnswerToTLS(t *testing.T) {
	srv := newServer(t, func(http.ResponseWriter, *http.Request) {})
	client := &http.Client{Transport: contract.New(t, httpretry.Config{Policy: every(0)})}
	_, err := client.Get(strings.Replace(srv.URL, "http:", "https:", 1))
	require.ErrorIs(t, err, http.ErrSchemeMismatch)
	var record tls.RecordHeaderError
	assert.False(t, errors.As(err, &record))
}

// changing is a TLS server whose connections speak the protocol that speaks
// returns for their number. HTTP/2 requests are reset, HTTP/1 ones answered.
func changing(t testing.TB, speaks func(conn int) string) (base *http.Transport, url string, posts *atomic.Int32) {
	t.Helper()
	server, client := faults.Certificates(t)
	posts = new(atomic.Int32)
	srv := faults.Listen(t, func(c *faults.Conn) {
		cfg := server.Clone()
		cfg.NextProtos = []string{speaks(c.Number)}
		switch {
		case !c.StartTLS(cfg):
		case speaks(c.Number) == "h2":
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

// Hazard C3: a server may speak another protocol on the next connection.
func TestAtMostOnceAcrossProtocols(t *testing.T) {
	t.Run("HTTP/2, then HTTP/1", func(t *testing.T) {
		for range 20 {
			base, url, posts := changing(t, func(conn int) string { return map[bool]string{true: "h2", false: "http/1.1"}[conn == 1] })
			_, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(request(t, "POST", url, ""))
			require.Error(t, err)
			base.CloseIdleConnections()
			assert.EqualValues(t, 1, posts.Load())
		}
	})
	t.Run("stale HTTP/1, then HTTP/2", func(t *testing.T) {
		base, url, posts := changing(t, func(conn int) string { return map[bool]string{true: "http/1.1", false: "h2"}[conn == 1] })
		var broken atomic.Bool
		faults.WrapConns(base, func(conn net.Conn) net.Conn { return &brittleConn{Conn: conn, broken: &broken} })
		transport := contract.New(t, httpretry.Config{Base: base, Policy: every(0)})
		resp, err := transport.RoundTrip(request(t, "GET", url, ""))
		require.NoError(t, err)
		finish(t, resp)
		broken.Store(true)
		_, err = transport.RoundTrip(request(t, "POST", url, ""))
		require.Error(t, err)
		assert.EqualValues(t, 1, posts.Load())
	})
}

// Hazard 1.3: how far a base says that it got, and what that proves for a POST
// whose error says nothing.
func TestNeverSentProof(t *testing.T) {
	for _, tt := range []struct {
		name     string
		reports  func(*httptrace.ClientTrace)
		timeout  bool // the attempt's, or else the error comes at once
		err      error
		attempts int
	}{
		{"no connection", func(c *httptrace.ClientTrace) { c.GetConn("a:80") }, false, io.EOF, 5},
		{"no connection in time", func(c *httptrace.ClientTrace) { c.GetConn("a:80") }, true, nil, 5},
		{"a connection", func(c *httptrace.ClientTrace) { c.GetConn("a:80"); c.GotConn(httptrace.GotConnInfo{}) }, false, io.EOF, 5},
		// An HTTP/2 stream may still be written when RoundTrip has returned.
		{"a connection, and out of time", func(c *httptrace.ClientTrace) { c.GetConn("a:80"); c.GotConn(httptrace.GotConnInfo{}) }, true, nil, 1},
		{"a connection, and out of a layer's time", func(c *httptrace.ClientTrace) { c.GetConn("a:80"); c.GotConn(httptrace.GotConnInfo{}) }, false, fmt.Errorf("layer: %w", context.DeadlineExceeded), 1},
		{"a connection, and a layer's own timeout", func(c *httptrace.ClientTrace) { c.GetConn("a:80"); c.GotConn(httptrace.GotConnInfo{}) }, false, &oddError{timeout: true}, 1},
		{"no connection in a layer's time", func(c *httptrace.ClientTrace) { c.GetConn("a:80") }, false, context.DeadlineExceeded, 5},
		{"a field", func(c *httptrace.ClientTrace) { c.GetConn("a:80"); c.WroteHeaderField("Host", nil) }, false, io.EOF, 1},
		{"a header, but not its fields", func(c *httptrace.ClientTrace) { c.GetConn("a:80"); c.WroteHeaders() }, false, io.EOF, 1},
		{"sent, then dialled elsewhere", func(c *httptrace.ClientTrace) { c.GetConn("a:80"); c.WroteHeaderField("Host", nil) }, false, errRefused, 1},
		{"nothing", func(*httptrace.ClientTrace) {}, false, io.EOF, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				base := baseFunc(func(req *http.Request) (*http.Response, error) {
					attempts++
					tt.reports(httptrace.ContextClientTrace(req.Context()))
					if tt.timeout {
						<-req.Context().Done()
						return nil, req.Context().Err()
					}
					return nil, tt.err
				})
				policy := every(0)
				policy.AttemptTimeout = time.Second
				_, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "POST", "http://a.test/", ""))
				require.Error(t, err)
				assert.Equal(t, tt.attempts, attempts)
			})
		})
	}
}

// A key that the policy does not take for one is the server's to see all the
// same, and still no leave to send twice.
func TestForeignKey(t *testing.T) {
	var requests atomic.Int32
	srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
		if req.Method == "POST" {
			requests.Add(1)
			assert.Equal(t, "foreign", req.Header.Get("X-Idempotency-Key"))
			return false
		}
		c.Respond(200, "")
		return true
	})
	url, base := srv.URL(), faults.Base(t, nil)
	policy := every(0)
	policy.Idempotent = func(req *http.Request) bool { return req.Method == "GET" }
	for range 10 {
		requests.Store(0)
		transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
		resp, err := transport.RoundTrip(request(t, "GET", url, ""))
		require.NoError(t, err)
		finish(t, resp)
		req := request(t, "POST", url, "")
		req.Header.Set("X-Idempotency-Key", "foreign")
		_, err = transport.RoundTrip(req)
		require.Error(t, err)
		base.CloseIdleConnections()
		srv.Settle(t)
		assert.EqualValues(t, 1, requests.Load())
	}
}

// A dial function that makes requests of its own with the attempt's context.
func TestDialThatLogsIn(t *testing.T) {
	newH2 := func(handler http.HandlerFunc) *httptest.Server {
		srv := httptest.NewUnstartedServer(handler)
		srv.EnableHTTP2 = true
		srv.StartTLS()
		t.Cleanup(srv.Close)
		return srv
	}
	var posts atomic.Int32
	srv := newH2(func(http.ResponseWriter, *http.Request) { posts.Add(1) })
	login := newH2(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "token") })
	base := srv.Client().Transport.(*http.Transport).Clone()
	t.Cleanup(base.CloseIdleConnections)
	base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		resp, err := login.Client().Transport.RoundTrip(request(t, "GET", login.URL, "").WithContext(ctx))
		if err != nil {
			return nil, err
		}
		finish(t, resp)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0)}).RoundTrip(request(t, "POST", srv.URL, "text"))
	require.NoError(t, err)
	finish(t, resp)
	assert.EqualValues(t, 1, posts.Load())
}

// Hazard K4, G4: a panic leaves no goroutine behind that waits for
// Request.Cancel. The bubble would not end with one.
func TestPanicWithCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := baseFunc(func(*http.Request) (*http.Response, error) { panic("boom") })
		req := streamed(t, "PUT", "http://a.test/", contract.Counted("text"))
		//lint:ignore SA1019 http.Client sets it
		req.Cancel = make(chan struct{})
		transport := contractless(t, httpretry.Config{Base: base})
		assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(req) })
	})
}

// A connection that could not be made proves nothing about a request that had
// been written on the one before, whatever stopped it.
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
	policy := every(0)
	policy.Idempotent = func(req *http.Request) bool { return req.URL.Path != "/act" }
	transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
	resp, err := transport.RoundTrip(request(t, "GET", "https://"+srv.Addr, ""))
	require.NoError(t, err)
	finish(t, resp)
	base.TLSHandshakeTimeout = 20 * time.Millisecond
	_, err = transport.RoundTrip(request(t, "GET", "https://"+srv.Addr+"/act", ""))
	require.Error(t, err)
	assert.EqualValues(t, 1, delivered.Load())
}

// Over HTTP/2 a response of length 0 may end, and have trailers, after its
// header.
func TestEmptyResponseWithTrailers(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("Content-Length", "0")
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("X-Sum", "42")
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	resp, err := contract.New(t, httpretry.Config{Base: srv.Client().Transport}).RoundTrip(request(t, "POST", srv.URL, "text"))
	require.NoError(t, err)
	assert.Empty(t, finish(t, resp))
	assert.Equal(t, "42", resp.Trailer.Get("X-Sum"))
}

// Hazard D6: over HTTP/2, where an empty body is not http.NoBody, an attempt's
// context ends soon even if nobody closes the response.
func TestAttemptContextEndsUnclosed(t *testing.T) {
	for _, tt := range []struct {
		method string
		status int
	}{{"HEAD", 200}, {"POST", 204}, {"POST", 304}, {"POST", 200}} {
		synctest.Test(t, func(t *testing.T) {
			var ctx context.Context
			base := baseFunc(func(req *http.Request) (*http.Response, error) {
				ctx = req.Context()
				return &http.Response{StatusCode: tt.status, ProtoMajor: 2, Body: io.NopCloser(strings.NewReader(""))}, nil
			})
			policy := httpretry.Policy{AttemptTimeout: time.Hour}
			resp, err := contractless(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, tt.method, "http://a.test/", ""))
			require.NoError(t, err)
			require.NoError(t, ctx.Err())
			assert.Equal(t, tt.status, resp.StatusCode)
			time.Sleep(time.Second - time.Nanosecond)
			synctest.Wait()
			require.NoError(t, ctx.Err(), "there may be trailers yet")
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.ErrorIs(t, ctx.Err(), context.Canceled)
		})
	}
}

// Hazard D1, D2: a response that stalls, and net/http's decompression of one,
// which waits for a header of its own. In real time: Close waits for a mutex
// here (since Go 1.27 even without decompression), which stops a bubble.
func TestDropOfStalledResponse(t *testing.T) {
	for _, encoding := range []string{"", "gzip"} {
		for _, timeout := range []time.Duration{0, time.Hour} { // without and with a context of the attempt's own
			t.Run(fmt.Sprintf("%s/%v", encoding, timeout), func(t *testing.T) {
				t.Parallel()
				srv := newServer(t, func(w http.ResponseWriter, r *http.Request) {
					if httpretryAttempt(r) > 1 {
						return
					}
					if encoding != "" {
						w.Header().Set("Content-Encoding", encoding)
					}
					w.WriteHeader(http.StatusServiceUnavailable)
					_, _ = io.WriteString(w, "\x1f\x8b")
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
				})
				policy := every(0)
				policy.AttemptTimeout = timeout
				// Many times what it takes, and nothing beside what it would take unbounded.
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				resp, err := contract.New(t, httpretry.Config{Policy: policy}).RoundTrip(request(t, "GET", srv.URL, "").WithContext(ctx))
				require.NoError(t, err)
				finish(t, resp)
				assert.Equal(t, 200, resp.StatusCode)
				assert.NoError(t, ctx.Err())
			})
		}
	}
}

// Hazard K4: a response's body that panics while it is dropped, in whatever
// goroutine.
func TestPanicWhileDropping(t *testing.T) {
	for _, major := range []int{1, 2} {
		body := &contract.Body{ReadCloser: io.NopCloser(readerFunc(func([]byte) (int, error) { panic("boom") }))}
		base := baseFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 503, ProtoMajor: major, ContentLength: -1, Body: body}, nil
		})
		transport := contractless(t, httpretry.Config{Base: base, Policy: every(0)})
		assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(request(t, "GET", "http://a.test/", "")) })
		assert.EqualValues(t, 1, body.Closes())
	}
}
