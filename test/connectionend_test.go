package test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strconv"
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
	"github.com/seed421102f4/httpretry/internal/wire"
)

// executed counts how often requests were executed, by their Request-Id.
type executed struct {
	mu    sync.Mutex
	times map[string]int
}

func (e *executed) note(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.times == nil {
		e.times = map[string]int{}
	}
	e.times[id]++
}

// sendPOSTs sends keyless POSTs without a body from many clients at a time, and
// returns the errors of those that failed.
func sendPOSTs(
	t *testing.T, transport http.RoundTripper, url string, clients, each int) (errs []error) {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for client := range clients {
		wg.Go(func() {
			for i := range each {
				req := contract.Request(t, "POST", url, "")
				req.Header.Set("Request-Id", strconv.Itoa(client*each+i))
				resp, err := transport.RoundTrip(req)
				if err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		})
	}
	wg.Wait()
	return errs
}

// A host changes from HTTP/2 to HTTP/1 and back. A request without a body is
// framed for the protocol of its connection. Hardly any is lost, and none is
// executed twice. Below a layer, a GOAWAY may end some that were framed for HTTP/1.
func TestFramingOfAHostThatChanges(t *testing.T) {
	const clients, each = 64, 20
	for _, layers := range []layering{noLayer, knownLayer} {
		var (
			count  executed
			served [3]atomic.Int32 // by the major version of the protocol
			http2  atomic.Bool
		)
		base := newAlternatingHost(t, &http2, func(w http.ResponseWriter, r *http.Request) {
			count.note(r.Header.Get("Request-Id"))
			if r.ProtoMajor == 1 {
				assert.Empty(t, r.TransferEncoding)
				assert.Equal(t, "0", r.Header.Get("Content-Length"))
			}
			if served[r.ProtoMajor].Add(1)%20 == 0 { // over HTTP/2, with a GOAWAY
				http2.Store(r.ProtoMajor == 1)
				w.Header().Set("Connection", "close")
			}
		})
		errs := sendPOSTs(t, layers.transport(t, base), "https://example.com", clients, each)
		stopped := 0
		for _, err := range errs {
			if errors.Is(err, wire.ErrResent) {
				stopped++
			}
		}
		// If a connection of HTTP/1 ends unused, net/http may go on over HTTP/2 with a
		// request that was framed for HTTP/1. If the machine is slow, more may fail,
		// because the server closes a connection one second after its GOAWAY.
		if layers == noLayer {
			assert.LessOrEqual(t, stopped, clients*each/100)
		}
		assert.GreaterOrEqual(t, len(count.times), clients*each-len(errs))
		for id, n := range count.times {
			assert.Equal(t, 1, n, "executions of %s", id)
		}
		assert.NotZero(t, served[1].Load())
		assert.NotZero(t, served[2].Load())
	}
}

// A host whose connections always speak the other protocol is not followed forever.
func TestFramingOfAHostThatChangesEachTime(t *testing.T) {
	var http2 atomic.Bool
	dials := 0
	base := newAlternatingHost(t, &http2, func(http.ResponseWriter, *http.Request) {})
	base.TLSClientConfig.NextProtos = []string{"h2", "http/1.1"}
	base.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{
		"h2": func(_ string, c *tls.Conn) http.RoundTripper { return onHTTP2(c) }}
	dial := base.DialContext
	base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials++
		http2.Store(!http2.Load())
		return dial(ctx, network, addr)
	}
	base.DisableKeepAlives = true // each send gets a new connection
	transport := contract.Unchecked(t, httpretry.Config{Base: base})
	// The first request expects HTTP/1, and ends over HTTP/2, which the second expects.
	for _, want := range []int{11, 12} {
		dials = 0
		assert.Empty(t, sendPOSTs(t, transport, "https://example.com", 1, 1))
		assert.Equal(t, want, dials)
	}
}

// onHTTP2 returns a transport that answers each request on c, over HTTP/2.
func onHTTP2(c *tls.Conn) http.RoundTripper {
	return contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{Conn: c})
		if err := context.Cause(req.Context()); err != nil {
			return nil, err
		}
		resp := &http.Response{StatusCode: 200, ProtoMajor: 2, Body: http.NoBody, Request: req}
		return resp, nil
	})
}

// newAlternatingHost returns a transport whose connections lead to a server with
// HTTP/2 or, if http2 is false, to one with HTTP/1.
func newAlternatingHost(
	t *testing.T, http2 *atomic.Bool, handler http.HandlerFunc) *http.Transport {
	t.Helper()
	addrs := map[bool]string{}
	for _, is2 := range []bool{false, true} {
		srv := httptest.NewUnstartedServer(handler)
		srv.EnableHTTP2 = is2
		srv.StartTLS()
		t.Cleanup(srv.Close)
		addrs[is2] = srv.Listener.Addr().String()
	}
	_, client := faults.Certificates(t)
	base := faults.Base(t, client)
	base.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addrs[http2.Load()])
	}
	return base
}

// frames is a server with HTTP/2 that notes the frames of requests, and answers
// each of them with the status that it returns.
func newFrames(
	t *testing.T, status func(request int) int) (srv *faults.Server, seen func() []string) {
	t.Helper()
	var mu sync.Mutex
	var frames []string
	requests := 0
	srv = faults.Listen(t, func(c *faults.Conn) {
		c.ServeFrames(func(kind, flags byte, stream uint32, payload []byte) bool {
			mu.Lock()
			defer mu.Unlock()
			end := flags&faults.FlagEndStream != 0
			switch kind {
			case faults.FrameHeaders:
				frames = append(frames, fmt.Sprintf("HEADERS end=%t", end))
			case faults.FrameData:
				frames = append(frames, fmt.Sprintf("DATA %d end=%t", len(payload), end))
			default:
				return true
			}
			if end {
				requests++
				faults.Stream{Conn: c, ID: stream}.Respond(status(requests))
			}
			return true
		})
	})
	return srv, func() []string {
		mu.Lock()
		defer mu.Unlock()
		seen := frames
		frames = nil
		return seen
	}
}

// Over HTTP/2, a request that must be sent once ends with an empty frame, so that
// net/http tells when a GOAWAY excludes it. All others are framed as by net/http.
func TestFramingOverHTTP2(t *testing.T) {
	srv, seen := newFrames(t, func(int) int { return 200 })
	base := faults.HTTP2Base(t)
	transport := contract.New(t, httpretry.Config{Base: base})
	for name, tt := range map[string]struct {
		method string
		change func(*http.Request)
		empty  bool
	}{
		"POST":   {"POST", func(*http.Request) {}, true},
		"NoBody": {"POST", func(req *http.Request) { req.Body = http.NoBody }, true},
		"key": {
			"POST", func(req *http.Request) { req.Header.Set("Idempotency-Key", "1") }, false},
		"Expect": {"POST",
			func(req *http.Request) { req.Header.Set("Expect", "100-continue") }, false},
		"GET":  {"GET", func(*http.Request) {}, false},
		"HEAD": {"HEAD", func(*http.Request) {}, false},
		"once": {"GET", func(req *http.Request) { *req = *req.WithContext(httpretry.WithoutRetries(req.Context())) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			var got [2][]string
			for i, rt := range []http.RoundTripper{base, transport} {
				req := contract.Request(t, tt.method, srv.URL(), "")
				tt.change(req)
				contract.Send(t, rt, req)
				got[i] = seen()
			}
			if tt.empty {
				assert.Equal(t, []string{"HEADERS end=true"}, got[0])
				assert.Equal(t, []string{"HEADERS end=false", "DATA 0 end=true"}, got[1])
			} else {
				assert.Equal(t, got[0], got[1])
			}
		})
	}
}

// A server that needs a Content-Length gets the request once more, without the
// empty body, and so do all later requests to that host.
func TestFramingAfterLengthRequired(t *testing.T) {
	srv, seen := newFrames(t, func(request int) int {
		if request == 1 {
			return 411
		}
		return 200
	})
	events := new(contract.Record)
	transport := contract.New(t,
		httpretry.Config{Base: faults.HTTP2Base(t), Observe: events.Observe})
	for range 2 {
		resp := contract.Send(t, transport, contract.Request(t, "POST", srv.URL(), ""))
		assert.Equal(t, 200, resp.StatusCode)
		contract.HasResult(t, resp, 1, httpretry.ReasonSuccess)
	}
	assert.Equal(t, []string{
		"HEADERS end=false", "DATA 0 end=true", "HEADERS end=true", "HEADERS end=true"}, seen())
	assert.Len(t, events.Events, 2)
}

// burst is a server with TLS and HTTP/2 that executes the first requests of each
// connection, and excludes the others with a GOAWAY.
func newBurst(
	t *testing.T, first uint32,
) (srv *faults.Server, base *http.Transport, executions *atomic.Int32) {
	t.Helper()
	server, client := faults.Certificates(t)
	server.NextProtos = []string{"h2"}
	executions = new(atomic.Int32)
	srv = faults.Listen(t, func(c *faults.Conn) {
		if !c.StartTLS(server) {
			return
		}
		c.HTTP2(func(s faults.Stream) {
			if s.ID > 2*first {
				s.GoAway(2*first-1, faults.NoError)
				return
			}
			executions.Add(1)
			s.Respond(204)
		})
	})
	base = faults.Base(t, client)
	base.ForceAttemptHTTP2 = true
	return srv, base, executions
}

// The first requests of a process meet GOAWAYs at once. Directly over net/http,
// none of them fails, although it is not known that the host speaks HTTP/2.
// Through a proxy and below layers, that is so once the host has answered one.
func TestFramingOfTheFirstBurst(t *testing.T) {
	const clients = 64
	for _, tt := range []struct {
		name   string
		proxy  bool
		layers layering
	}{
		{"direct", false, noLayer},
		{"through a proxy", true, noLayer},
		{"below a layer", false, knownLayer},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv, base, executions := newBurst(t, 20)
			if tt.proxy {
				proxy := faults.Proxy(t, srv.Addr, func(c *faults.Conn, _ *http.Request) bool {
					c.Respond(200, "")
					return true
				})
				base.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy.Addr})
			}
			transport := tt.layers.transport(t, base)
			want := int32(clients)
			if tt.name != "direct" {
				assert.Empty(t, sendPOSTs(t, transport, "https://"+srv.Addr, 1, 1))
				want++
			}
			assert.Empty(t, sendPOSTs(t, transport, "https://"+srv.Addr, clients, 1))
			assert.Equal(t, want, executions.Load())
		})
	}
}

// Below a layer that is not known, a request may fail after a GOAWAY that
// excludes it. Its error names the function that prevents that.
func TestGoAwayBelowUnknownLayers(t *testing.T) {
	for _, body := range []string{"", "payload"} {
		srv := faults.HTTP2(t, func(s faults.Stream) { s.GoAway(0, faults.NoError) })
		_, err := unknownLayer.transport(t, faults.HTTP2Base(t)).
			RoundTrip(contract.Request(t, "POST", srv.URL(), body))
		require.ErrorContains(t, err, "httpretry.Through")
		assert.EqualValues(t, 1, srv.Requests.Load())
	}
}

// A request without retries is sent again after a GOAWAY that excludes it, as by
// net/http alone.
func TestGoAwayWithoutRetries(t *testing.T) {
	srv := faults.HTTP2(t, func(s faults.Stream) {
		if s.Request == 1 {
			s.GoAway(0, faults.NoError)
		} else {
			s.Respond(204)
		}
	})
	req := contract.Request(t, "POST", srv.URL(), "")
	resp := contract.Send(t, noLayer.transport(t, faults.HTTP2Base(t)),
		req.WithContext(httpretry.WithoutRetries(req.Context())))
	assert.Equal(t, 204, resp.StatusCode)
	assert.EqualValues(t, 2, srv.Requests.Load())
}

// A request whose deadline leaves no time to be sent again ends without a wait.
func TestGoAwayBeforeTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
			time.Sleep(time.Millisecond)
			return nil, errGoAway
		})
		for range 20 { // the waits are random
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			events := new(contract.Record)
			_, err := contract.Recorded(t, base, contract.RetryEvery(0), events).
				RoundTrip(newGet(t).WithContext(ctx))
			require.Error(t, err)
			last := events.Events[len(events.Events)-1]
			assert.Equal(t, httpretry.ReasonDeadline, last.Reason)
			assert.Zero(t, last.Wait)
			cancel()
		}
	})
}

// errGoAway is net/http's error for a request that a GOAWAY excludes.
var errGoAway = errors.New("http2: Transport: cannot retry err [http2: Transport received " +
	"Server's graceful shutdown GOAWAY] after Request.Body was written; define Request.GetBody " +
	"to avoid this error")

// A request whose connections end before the server has begun it is sent again
// three times at once, and then after waits of up to 0.1 to 2 s, 30 times in
// all. These retries are not charged or counted. The retries that the policy
// allows follow.
func TestGoAwayWaits(t *testing.T) {
	for _, req := range []func(t testing.TB) *http.Request{
		func(t testing.TB) *http.Request { return contract.Request(t, "POST", "https://a.test/", "payload") },
		func(t testing.TB) *http.Request { return contract.Request(t, "POST", "https://a.test/", "") },
		newGet,
	} {
		synctest.Test(t, func(t *testing.T) {
			script, events := contract.Play(contract.Fails(errGoAway)), new(contract.Record)
			ledger := new(contract.Ledger)
			policy := contract.RetryEvery(time.Minute)
			policy.MaxAttempts, policy.Budget = 3, ledger
			start := time.Now()
			_, err := contract.Recorded(t, script, policy, events).RoundTrip(req(t))
			require.ErrorIs(t, err, errGoAway)
			require.ErrorContains(t, err, "gave up after 33 attempts (attempts_exhausted)")
			require.Len(t, events.Events, 33, "each is seen")
			most := []time.Duration{0, 0, 0, 100, 200, 400, 800, 1600}
			for i, e := range events.Events {
				assert.Equal(t, i+1, e.Attempt.Number)
				assert.Equal(t, httpretry.Unprocessed, e.Attempt.Outcome)
				switch {
				case i < len(most):
					assert.LessOrEqual(t, e.Wait, most[i]*time.Millisecond, "wait %d", i+1)
				case i < 30:
					assert.LessOrEqual(t, e.Wait, 2*time.Second, "wait %d", i+1)
				case i < 32:
					assert.Equal(t, time.Minute, e.Wait)
				}
			}
			assert.Equal(t, httpretry.ReasonAttempts, events.Reason())
			assert.LessOrEqual(t, time.Since(start), 2*time.Minute+55*time.Second)
			withdrawals := 0
			for _, entry := range ledger.Entries {
				if strings.HasPrefix(entry, "withdraw ") {
					withdrawals++
				}
			}
			assert.Equal(t, 2, withdrawals, "only the retries of the policy are charged")
			for i, sent := range script.Attempts() {
				want := max(0, i-30)
				got := sent.Header.Get("Retry-Attempt")
				if want == 0 {
					assert.Empty(t, got, "send %d", i+1)
				} else {
					assert.Equal(t, strconv.Itoa(want), got, "send %d", i+1)
				}
			}
		})
	}
}

// Each wait before a request is sent again is bounded by the context's deadline.
func TestGoAwayAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		start := time.Now()
		base := contract.Play(contract.Fails(errGoAway))
		_, err := contract.With(t, base, contract.RetryEvery(time.Second)).
			RoundTrip(contract.Request(t, "POST", "https://a.test/", "").WithContext(ctx))
		require.ErrorContains(t, err, "(deadline_exceeded)")
		assert.LessOrEqual(t, time.Since(start), 500*time.Millisecond)
	})
}
