package test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
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
				if err == nil {
					readAll(resp)
					continue
				}
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
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
			mu     sync.Mutex
			ids    []string        // of the requests that were executed
			served [3]atomic.Int32 // by the major version of the protocol
			http2  atomic.Bool
		)
		base := newAlternatingHost(t, &http2, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			ids = append(ids, r.Header.Get("Request-Id"))
			mu.Unlock()
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
		mu.Lock()
		assert.GreaterOrEqual(t, len(ids), clients*each-len(errs))
		slices.Sort(ids)
		assert.Equal(t, slices.Compact(slices.Clone(ids)), ids, "executed twice")
		mu.Unlock()
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
		return &http.Response{StatusCode: 200, ProtoMajor: 2, Body: http.NoBody, Request: req}, nil
	})
}

// newAlternatingHost returns a transport whose connections lead to a server with
// HTTP/2 or, if http2 is false, to one with HTTP/1.
func newAlternatingHost(
	t *testing.T, http2 *atomic.Bool, handler http.HandlerFunc) *http.Transport {
	t.Helper()
	addrs := map[bool]string{}
	for _, is2 := range []bool{false, true} {
		srv, _ := newTLSServer(t, is2, handler)
		addrs[is2] = srv.Listener.Addr().String()
	}
	_, client := faults.Certificates(t)
	base := faults.Base(t, client)
	base.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addrs[http2.Load()])
	}
	return base
}

// Over HTTP/2, a request that must be sent once ends with an empty frame, so that
// net/http tells when a GOAWAY excludes it. All others are framed as by net/http.
func TestFramingOverHTTP2(t *testing.T) {
	frames := make(chan string, 10)
	srv := faults.Listen(t, func(c *faults.Conn) {
		c.ServeFrames(func(kind, flags byte, stream uint32, payload []byte) bool {
			end := flags&faults.FlagEndStream != 0
			switch kind {
			case faults.FrameHeaders:
				frames <- fmt.Sprintf("HEADERS end=%t", end)
			case faults.FrameData:
				frames <- fmt.Sprintf("DATA %d end=%t", len(payload), end)
			default:
				return true
			}
			if end {
				faults.Stream{Conn: c, ID: stream}.Respond(200)
			}
			return true
		})
	})
	seen := func() (all []string) {
		for len(frames) > 0 {
			all = append(all, <-frames)
		}
		return all
	}
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
		"once": {"GET", func(req *http.Request) {
			*req = *req.WithContext(httpretry.WithoutRetries(req.Context()))
		}, false},
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
			// It executes the first requests of each connection, and excludes the others.
			const first = 20
			var executions atomic.Int32
			server, client := faults.Certificates(t)
			server.NextProtos = []string{"h2"}
			srv := faults.Listen(t, func(c *faults.Conn) {
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
			base := faults.Base(t, client)
			if tt.proxy {
				base.Proxy = http.ProxyURL(&url.URL{
					Scheme: "http", Host: faults.Proxy(t, srv.Addr, connects).Addr})
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

// errGoAway is net/http's error for a request that a GOAWAY excludes.
var errGoAway = errors.New("http2: Transport: cannot retry err [http2: Transport received " +
	"Server's graceful shutdown GOAWAY] after Request.Body was written; define Request.GetBody " +
	"to avoid this error")

// A request whose connections end before the server has begun it is sent again
// three times at once, and then after waits of up to 0.1 to 2 s, 30 times in
// all. These retries are not charged or counted. The retries that the policy
// allows follow.
func TestGoAwayWaits(t *testing.T) {
	for _, tt := range []struct{ method, body string }{
		{"POST", "payload"}, {"POST", ""}, {"GET", ""}} {
		synctest.Test(t, func(t *testing.T) {
			script, events := contract.Play(contract.Fails(errGoAway)), new(contract.Record)
			ledger := new(contract.Ledger)
			policy := contract.RetryEvery(time.Minute)
			policy.MaxAttempts, policy.Budget = 3, ledger
			err := sendFails(t, contract.Recorded(t, script, policy, events),
				contract.Request(t, tt.method, "https://a.test/", tt.body))
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
			assert.LessOrEqual(t, time.Since(script.Start), 2*time.Minute+55*time.Second)
			withdrawals := strings.Count(strings.Join(ledger.Entries, "\n"), "withdraw ")
			assert.Equal(t, 2, withdrawals, "only the retries of the policy are charged")
			for i, sent := range script.Attempts() {
				var want []string
				if i > 30 {
					want = []string{strconv.Itoa(i - 30)}
				}
				assert.Equal(t, want, sent.Header["Retry-Attempt"], "send %d", i+1)
			}
		})
	}
}

// Each wait before a request is sent again is bounded by the context's deadline.
// A request whose deadline leaves no time for it ends without a wait.
func TestGoAwayBeforeTheDeadline(t *testing.T) {
	for _, deadline := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond} {
		for _, method := range []string{"GET", "POST"} {
			synctest.Test(t, func(t *testing.T) {
				for range 20 { // the waits are random
					ctx, cancel := context.WithTimeout(t.Context(), deadline)
					base, events := contract.Play(contract.Step{
						Err: errGoAway, Takes: time.Millisecond}), new(contract.Record)
					transport := contract.Recorded(
						t, base, contract.RetryEvery(time.Second), events)
					err := sendFails(t, transport,
						contract.Request(t, method, "https://a.test/", "").WithContext(ctx))
					require.ErrorContains(t, err, "(deadline_exceeded)")
					assert.Equal(t, httpretry.ReasonDeadline, events.Reason())
					assert.Zero(t, events.Events[len(events.Events)-1].Wait)
					assert.LessOrEqual(t, time.Since(base.Start), deadline)
					cancel()
				}
			})
		}
	}
}
