package wire_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/wire"
)

// attempt records what a Trace calls.
type attempt struct {
	mu        sync.Mutex
	stops     []error
	restarts  int
	uploads   int
	bodyRead  bool
	onStopped context.CancelCauseFunc // or nil
}

func (a *attempt) Stop(cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stops = append(a.stops, cause)
	if a.onStopped != nil {
		a.onStopped(cause)
	}
}

func (a *attempt) Restarted()        { a.mu.Lock(); defer a.mu.Unlock(); a.restarts++ }
func (a *attempt) Uploaded()         { a.mu.Lock(); defer a.mu.Unlock(); a.uploads++ }
func (a *attempt) BodyWasRead() bool { return a.bodyRead }

// conn is a connection that notes whether it was closed. Its address is not
// known if it is "".
type conn struct {
	net.Conn
	addr   string
	closed atomic.Bool
}

func (c *conn) Close() error { c.closed.Store(true); return nil }

func (c *conn) RemoteAddr() net.Addr {
	if c.addr == "" {
		return nil
	}
	return &net.UnixAddr{Name: c.addr}
}

// tlsConn has negotiated the protocol, if that is not "", and has sent the
// server's name, if that is not "".
type tlsConn struct {
	*conn
	protocol, name string
}

func (c tlsConn) ConnectionState() tls.ConnectionState {
	return tls.ConnectionState{NegotiatedProtocol: c.protocol, ServerName: c.name}
}

// player calls the hooks that net/http would call.
type player struct {
	*attempt
	*wire.Trace
	hooks       *httptrace.ClientTrace
	conn, other net.Conn
}

func newPlayer(t *testing.T, options wire.Options) *player {
	p := &player{attempt: new(attempt), Trace: new(wire.Trace), conn: &conn{addr: "a"}, other: &conn{addr: "b"}}
	p.hooks = httptrace.ContextClientTrace(p.Start(t.Context(), p.attempt, options))
	return p
}

// play calls hooks by their short names.
func (p *player) play(hooks string) {
	for name := range strings.FieldsSeq(hooks) {
		switch name {
		case "get":
			call(p.hooks.GetConn, "a.test:443")
		case "get-other":
			call(p.hooks.GetConn, "b.test:443")
		case "got":
			p.hooks.GotConn(httptrace.GotConnInfo{Conn: p.conn})
		case "got-other":
			p.hooks.GotConn(httptrace.GotConnInfo{Conn: p.other})
		case "field1":
			p.field("Host")
		case "field2":
			p.field(":authority")
			p.field(":method", "GET")
		case "field2-post":
			p.field(":authority")
			p.field(":method", "POST")
		case "headers":
			if p.hooks.WroteHeaders != nil {
				p.hooks.WroteHeaders()
			}
		case "wrote":
			call(p.hooks.WroteRequest, httptrace.WroteRequestInfo{})
		case "answer":
			p.hooks.GotFirstResponseByte()
		case "1xx":
			if p.hooks.Got1xxResponse != nil {
				_ = p.hooks.Got1xxResponse(103, nil)
			}
		default:
			panic("no such hook: " + name)
		}
	}
}

func call[T any](hook func(T), value T) {
	if hook != nil {
		hook(value)
	}
}

func (p *player) field(name string, values ...string) {
	if p.hooks.WroteHeaderField != nil {
		p.hooks.WroteHeaderField(name, values)
	}
}

const (
	send1 = "get got field1 headers wrote " // over HTTP/1
	send2 = "get got field2 headers wrote " // over HTTP/2
)

// What stops a sending, by the hooks that precede it.
func TestStops(t *testing.T) {
	var (
		once       = wire.Options{AtMostOnce: true}
		withBody   = wire.Options{AtMostOnce: true, HasBody: true}
		noLayers   = wire.Options{AtMostOnce: true, HasBody: true, NoLayers: true}
		resendable = wire.Options{AtMostOnce: true, Resendable: true}
		idempotent = wire.Options{UnencryptedHTTP2: true}
		http1      = wire.Options{}
	)
	for _, tt := range []struct {
		name    string
		options wire.Options
		hooks   string
		stop    error
		forbids bool // ForbidsResend afterward
	}{
		{"one sending", once, send2, nil, true},
		{"one sending that is answered", once, send2 + "answer", nil, false},
		{"resent over HTTP/2", once, send2 + "get got", wire.ErrResent, true},
		{"resent over a connection that nothing asked for", once, send2 + "got-other", wire.ErrResent, true},
		{"resent after an answer", once, send2 + "answer get got", nil, false},
		{"resent after a 1xx response", once, send2 + "answer 1xx get got", wire.ErrResent, true},
		{"resent after several 1xx responses", once, send2 + "answer 1xx 1xx 1xx get got", wire.ErrResent, true},
		{"resent before anything was written", once, "get got get got", nil, false},
		{"over HTTP/1, net/http has written nothing", once, send1 + "get got", nil, false},
		{"over HTTP/1, but resendable", resendable, send1 + "get got", wire.ErrResent, true},
		{"over HTTP/1, resendable, answered", resendable, send1 + "answer get got", nil, false},
		{"a body is for GetBody to refuse", withBody, send2 + "get got", nil, true},
		{"a body of a registered protocol", noLayers, send2 + "get got", wire.ErrResent, true},
		{"a body, answered", withBody, send2 + "answer get got", nil, false},
		{"another host's request", once, send2 + "get-other got-other", nil, true},
		{"another host's request, written", once, send2 + "get-other got-other field2 wrote get got", wire.ErrResent, true},
		{"another host's request, and a resend", once, send2 + "get-other get got", wire.ErrResent, true},
		{"another host's request first, and a resend", once, "get-other got-other field2 wrote answer " + send2 + "get got", wire.ErrResent, true},
		{"another host's request over HTTP/1 meanwhile, answered", once, "get-other got-other field1 wrote " + send2 + "answer get got", wire.ErrResent, true},
		{"asked for twice, as net/http does to reuse a connection", once, "get " + send2 + "get-other got-other", nil, true},
		{"two requests, one answered", once, "get got " + send2 + "field2 answer get got", wire.ErrResent, true},
		{"two requests, both answered", once, "get got " + send2 + "field2 answer answer get got", nil, false},
		{"more answers than requests", once, "answer answer " + send2, nil, true},
		{"idempotent", idempotent, strings.Repeat(send2, wire.MaxSends), nil, false},
		{"idempotent, too often", idempotent, strings.Repeat(send2, wire.MaxSends+1), wire.ErrTooManySends, false},
		{"idempotent, often, over HTTP/1", http1, strings.Repeat(send1, wire.MaxSends+1), nil, false},
		{"idempotent, answered", idempotent, strings.Repeat(send2+"answer ", 5*wire.MaxSends), nil, false},
		{"idempotent, answered late", idempotent, strings.Repeat(send2, wire.MaxSends) + "answer " + strings.Repeat(send2, wire.MaxSends), nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlayer(t, tt.options)
			p.play(tt.hooks)
			if tt.stop == nil {
				assert.Empty(t, p.stops)
			} else {
				require.NotEmpty(t, p.stops)
				assert.Equal(t, tt.stop, p.stops[0])
			}
			if tt.options.AtMostOnce {
				assert.Equal(t, tt.forbids, p.ForbidsResend())
			}
		})
	}
}

// A layer that has read the body before the header is written sends one of its
// own, with a GetBody that does not ask.
func TestStopsReplacedBodies(t *testing.T) {
	for _, tt := range []struct {
		name, before, after string // hooks before and after the body is read
		stops               int
	}{
		{"read by net/http", send2, "get got", 0},
		{"read by a layer", "", send2 + "get got", 1},
		{"read by a layer, answered", "", send2 + "answer get got", 0},
		{"read by a layer while it sends another request", "get-other got-other field2", "get got field2-post get got", 1},
		{"read by net/http, and another request meanwhile", send2, "get got field2 answer get got", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlayer(t, wire.Options{AtMostOnce: true, HasBody: true})
			p.play(tt.before)
			p.bodyRead = true
			p.play(tt.after)
			assert.Len(t, p.stops, tt.stops)
		})
	}
}

// GetConn may get two names for one server: its own and that of a proxy. The
// connections tell whether it may be the same server.
func TestStopsUnderAnotherName(t *testing.T) {
	for name, tt := range map[string]struct {
		first, next net.Conn
		stops       int
	}{
		"another address":                {&conn{addr: "a"}, &conn{addr: "b"}, 0},
		"the same address":               {&conn{addr: "a"}, &conn{addr: "a"}, 1},
		"an unknown address":             {&conn{addr: "a"}, &conn{}, 1},
		"an unknown address before":      {&conn{}, &conn{addr: "a"}, 1},
		"an unknown connection":          {&conn{addr: "a"}, nil, 0},
		"an unknown connection before":   {nil, &conn{addr: "a"}, 0},
		"the same address, another name": {tlsConn{&conn{addr: "a"}, "h2", "a"}, tlsConn{&conn{addr: "a"}, "h2", "b"}, 0},
		"another address, the same name": {tlsConn{&conn{addr: "a"}, "h2", "a"}, tlsConn{&conn{addr: "b"}, "h2", "a"}, 1},
		"the same address, one name":     {tlsConn{&conn{addr: "a"}, "h2", "a"}, tlsConn{&conn{addr: "a"}, "h2", ""}, 1},
		"another address, one name":      {tlsConn{&conn{addr: "a"}, "h2", "a"}, tlsConn{&conn{addr: "b"}, "h2", ""}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlayer(t, wire.Options{AtMostOnce: true})
			p.conn, p.other = tt.first, tt.next
			p.play(send2 + "get-other got-other")
			assert.Len(t, p.stops, tt.stops)
		})
	}
}

// What is sent after Detach is not the attempt's.
func TestDetach(t *testing.T) {
	p := newPlayer(t, wire.Options{AtMostOnce: true})
	p.play(send2 + "answer")
	p.Detach()
	p.play(send2 + send2 + "1xx answer get got-other")
	assert.Empty(t, p.stops)
	assert.Equal(t, 1, p.Connections())
	assert.False(t, p.ForbidsResend())
}

// Without a layer, a second connection is for a resend, unless TLS shows that
// it is for another server. The address may be that of another proxy.
func TestStopsWithoutLayers(t *testing.T) {
	for name, tt := range map[string]struct {
		first, next net.Conn
		stops       int
	}{
		"another address":              {&conn{addr: "a"}, &conn{addr: "b"}, 1},
		"another address, no names":    {tlsConn{&conn{addr: "a"}, "h2", ""}, tlsConn{&conn{addr: "b"}, "h2", ""}, 1},
		"another address, other names": {tlsConn{&conn{addr: "a"}, "h2", "a"}, tlsConn{&conn{addr: "b"}, "h2", "b"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlayer(t, wire.Options{AtMostOnce: true, NoLayers: true})
			p.conn, p.other = tt.first, tt.next
			p.play(send2 + "get-other got-other")
			assert.Len(t, p.stops, tt.stops)
		})
	}
}

// The connection of HTTP/2 is closed if a request is written on it although it
// was stopped, but not for a request on another connection.
func TestStopIsEnforced(t *testing.T) {
	for hooks, closed := range map[string]bool{
		"":                           false,
		"field2":                     true,
		"get-other got-other field2": false,
	} {
		p := newPlayer(t, wire.Options{AtMostOnce: true})
		p.play(send2)
		c := new(conn)
		p.conn = tlsConn{c, "h2", "a"}
		p.other = tlsConn{&conn{addr: "b"}, "h2", "b"}
		p.play("get got " + hooks)
		assert.Equal(t, []error{wire.ErrResent}, p.stops)
		assert.Equal(t, closed, c.closed.Load(), hooks)
	}
}

// A connection of HTTP/1 is this request's alone. It is closed, because
// net/http would write on it. One of HTTP/2 stays open for the requests that
// share it.
func TestStopClosesConnections(t *testing.T) {
	for name, tt := range map[string]struct {
		first  string
		conn   func(*conn) net.Conn
		closed bool
	}{
		"HTTP/1":            {send1, func(c *conn) net.Conn { return c }, true},
		"HTTP/2":            {send2, func(c *conn) net.Conn { return c }, false},
		"TLS, HTTP/1":       {send2, func(c *conn) net.Conn { return tlsConn{c, "http/1.1", ""} }, true},
		"TLS, no agreement": {send2, func(c *conn) net.Conn { return tlsConn{c, "", ""} }, true},
		"TLS, HTTP/2":       {send1, func(c *conn) net.Conn { return tlsConn{c, "h2", ""} }, false},
		"unknown":           {send1, func(*conn) net.Conn { return nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlayer(t, wire.Options{AtMostOnce: true, Resendable: true})
			p.play(tt.first)
			c := new(conn)
			p.conn = tt.conn(c)
			p.play("get got")
			assert.Equal(t, []error{wire.ErrResent}, p.stops)
			assert.Equal(t, tt.closed, c.closed.Load())
		})
	}
}

// What can be concluded from the hooks that were called.
func TestFacts(t *testing.T) {
	for _, tt := range []struct {
		name, hooks              string
		unsent, wrote, uploaded  bool
		connecting               bool
		connections, wantUploads int
	}{
		{name: "nothing", hooks: ""},
		{name: "connecting", hooks: "get", unsent: true, connecting: true},
		{name: "connected", hooks: "get got", unsent: true, connections: 1},
		{name: "connected, by a pool that does not ask", hooks: "got", unsent: true, connections: 1},
		{name: "connecting elsewhere", hooks: "get get-other", unsent: true, connecting: true},
		{name: "connecting elsewhere, in the end", hooks: "get got get-other", unsent: true, connecting: true, connections: 1},
		{name: "connected elsewhere", hooks: "get got get-other got-other", unsent: true, connections: 2},
		{name: "a field of HTTP/1", hooks: "get got field1", wrote: true, connections: 1},
		{name: "a field of HTTP/2", hooks: "get got field2", wrote: true, connections: 1},
		{name: "headers alone", hooks: "get got headers", wrote: true, connections: 1},
		{name: "all of it", hooks: send1, wrote: true, uploaded: true, connections: 1, wantUploads: 1},
		{name: "all of it, and answered", hooks: send2 + "answer", wrote: true, uploaded: true, connections: 1, wantUploads: 1},
		{name: "sent again", hooks: send2 + "get got", wrote: true, connections: 2, wantUploads: 1},
		{name: "connecting again", hooks: send2 + "get", wrote: true, uploaded: true, connecting: true, connections: 1, wantUploads: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlayer(t, wire.Options{AtMostOnce: true, HasBody: true})
			p.play(tt.hooks)
			assert.Equal(t, tt.unsent, p.ProvesUnsent(), "ProvesUnsent")
			assert.Equal(t, tt.wrote, p.Wrote(), "Wrote")
			assert.Equal(t, strings.Contains(tt.hooks, "answer"), p.Answered(), "Answered")
			assert.Equal(t, tt.uploaded, p.Trace.Uploaded(), "Uploaded")
			assert.Equal(t, tt.connecting, p.Connecting(), "Connecting")
			assert.Equal(t, tt.connections, p.Connections(), "Connections")
			assert.Equal(t, tt.wantUploads, p.uploads, "calls of Uploaded")
		})
	}
}

// Without AtMostOnce, too few hooks are set for a proof.
func TestNoProofOfIdempotentRequests(t *testing.T) {
	p := newPlayer(t, wire.Options{})
	p.play("get got")
	assert.False(t, p.ProvesUnsent())
}

// Restarted is called for each connection but the first, until something of the
// request was written.
func TestRestarted(t *testing.T) {
	for _, tt := range []struct {
		hooks string
		want  int
	}{
		{"got", 0}, {"got got", 1}, {"got got got", 2}, {"got headers got", 0}, {"got got headers got", 1},
	} {
		for _, atMostOnce := range []bool{false, true} {
			p := newPlayer(t, wire.Options{Restarts: true, HasBody: true, AtMostOnce: atMostOnce})
			p.play(tt.hooks)
			assert.Equal(t, tt.want, p.restarts, "%s, %v", tt.hooks, atMostOnce)
		}
	}
	p := newPlayer(t, wire.Options{})
	p.play("got got")
	assert.Zero(t, p.restarts, "not asked for")
}

// The hook for 1xx responses switches off the bound of net/http, so it has its
// own.
func TestInformationalResponses(t *testing.T) {
	const status, name = 32, len("Link")
	for size, most := range map[int]int{status + name: 88, 640: 5, 3200: 1} {
		header := textproto.MIMEHeader{"Link": {strings.Repeat("x", size-status-name)}}
		p := newPlayer(t, wire.Options{AtMostOnce: true, MaxHeaderBytes: 3200})
		for range most {
			require.NoError(t, p.hooks.Got1xxResponse(103, header), "%d bytes", size)
		}
		require.ErrorIs(t, p.hooks.Got1xxResponse(103, header), wire.ErrInformational)
	}
	// Without a limit of its own, Base accepts 10 MiB.
	p := newPlayer(t, wire.Options{AtMostOnce: true})
	large := textproto.MIMEHeader{"Link": {strings.Repeat("x", 10<<20-status-name)}}
	require.NoError(t, p.hooks.Got1xxResponse(103, large))
	require.ErrorIs(t, p.hooks.Got1xxResponse(103, nil), wire.ErrInformational)
	assert.Nil(t, newPlayer(t, wire.Options{}).hooks.Got1xxResponse, "net/http keeps its own bound")
}

// The hooks that the caller's context has already are called, too.
func TestKeepsHooks(t *testing.T) {
	var called []string
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { called = append(called, "GotConn") },
		DNSDone: func(httptrace.DNSDoneInfo) { called = append(called, "DNSDone") },
	})
	trace := new(wire.Trace)
	hooks := httptrace.ContextClientTrace(trace.Start(ctx, new(attempt), wire.Options{}))
	hooks.GotConn(httptrace.GotConnInfo{})
	hooks.DNSDone(httptrace.DNSDoneInfo{})
	assert.Equal(t, []string{"GotConn", "DNSDone"}, called)
	assert.Equal(t, 1, trace.Connections())
}

// The hooks are called from goroutines of net/http, some of them after
// RoundTrip has returned. This is for the race detector.
func TestConcurrentHooks(t *testing.T) {
	p := newPlayer(t, wire.Options{AtMostOnce: true, Resendable: true, Restarts: true})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				p.play(send2 + "1xx answer " + send1 + "get-other got-other answer")
			}
		})
		wg.Go(func() {
			for range 100 {
				p.ForbidsResend()
				p.ProvesUnsent()
				p.Connecting()
				p.Connections()
				p.Trace.Uploaded()
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 4*100*3, p.Connections())
	assert.True(t, p.Wrote())
}

// net/http calls the hooks in the order that the tests above assume.
func TestRealServer(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for _, body := range []string{"", "payload"} {
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			srv.EnableHTTP2 = http2
			srv.StartTLS()
			t.Cleanup(srv.Close)
			for range 3 {
				ctx, cancel := context.WithCancelCause(t.Context())
				a, trace := &attempt{onStopped: cancel}, new(wire.Trace)
				ctx = trace.Start(ctx, a, wire.Options{AtMostOnce: true, HasBody: body != ""})
				req, err := http.NewRequestWithContext(ctx, "POST", srv.URL, strings.NewReader(body))
				require.NoError(t, err)
				resp, err := srv.Client().Transport.RoundTrip(req)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				assert.Equal(t, http2, resp.ProtoMajor == 2)
				assert.Equal(t, 1, trace.Connections())
				assert.True(t, trace.Wrote())
				assert.False(t, trace.Connecting())
				assert.False(t, trace.ForbidsResend(), "it was answered")
				assert.False(t, trace.ProvesUnsent())
				cancel(nil)
			}
		}
	}
}

// A dial that fails proves that nothing was sent.
func TestRealDial(t *testing.T) {
	boom := errors.New("boom")
	base := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, boom }}
	trace := new(wire.Trace)
	ctx := trace.Start(t.Context(), new(attempt), wire.Options{AtMostOnce: true})
	req, err := http.NewRequestWithContext(ctx, "POST", "http://a.test/", nil)
	require.NoError(t, err)
	_, err = base.RoundTrip(req)
	require.ErrorIs(t, err, boom)
	assert.True(t, trace.ProvesUnsent())
	assert.True(t, trace.Connecting())
	assert.Zero(t, trace.Connections())
}
