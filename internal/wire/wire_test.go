package wire_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/wire"
)

// attempt records the calls of a Trace, in their order.
type attempt struct {
	mu        sync.Mutex
	trace     wire.Trace
	calls     []string
	onStopped context.CancelCauseFunc // or nil
}

// note asks the Trace something, which does not return if the Trace has called
// it with its lock held.
func (a *attempt) note(call string) {
	a.trace.Facts()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, call)
}

func (a *attempt) Stop(cause error) {
	a.note("Stop: " + cause.Error())
	if a.onStopped != nil {
		a.onStopped(cause)
	}
}

func (a *attempt) Restarted() { a.note("Restarted") }
func (a *attempt) Uploaded()  { a.note("Uploaded") }

// conn is a connection that notes when it is closed.
type conn struct {
	net.Conn
	attempt *attempt
}

func (c *conn) Close() error { c.attempt.note("Close"); return nil }

func (c *conn) RemoteAddr() net.Addr { return &net.UnixAddr{Name: "a"} }

// tlsConn has negotiated HTTP/2.
type tlsConn struct{ *conn }

func (tlsConn) ConnectionState() tls.ConnectionState {
	return tls.ConnectionState{NegotiatedProtocol: "h2", ServerName: "a"}
}

// start returns an attempt and the hooks that net/http would call.
func start(t *testing.T, options wire.Options) (*attempt, *httptrace.ClientTrace) {
	a := new(attempt)
	return a, httptrace.ContextClientTrace(a.trace.Start(t.Context(), a, options))
}

// newBody is a GetBody.
func newBody() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("x")), nil }

// noBody is a GetBody whose body can be recognized.
func noBody() (io.ReadCloser, error) { return http.NoBody, nil }

// newServer starts a server with TLS, of HTTP/2 if http2 is true.
func newServer(t *testing.T, http2 bool, handler http.HandlerFunc) *httptest.Server {
	srv := httptest.NewUnstartedServer(handler)
	srv.EnableHTTP2 = http2
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

// Each hook costs an allocation, so only those that are needed are set.
func TestHooks(t *testing.T) {
	for _, tt := range []struct {
		options wire.Options
		want    string
	}{
		{wire.Options{}, "GotConn GotFirstResponseByte"},
		{wire.Options{HasBody: true}, "GotConn GotFirstResponseByte WroteRequest"},
		{wire.Options{Restarts: true}, "GotConn GotFirstResponseByte WroteHeaders"},
		{wire.Options{AtMostOnce: true},
			"GetConn GotConn WroteHeaderField WroteHeaders GotFirstResponseByte Got1xxResponse"},
	} {
		_, hooks := start(t, tt.options)
		var set []string
		for field, value := range reflect.ValueOf(*hooks).Fields() {
			if !value.IsNil() {
				set = append(set, field.Name)
			}
		}
		assert.ElementsMatch(t, strings.Fields(tt.want), set, "%+v", tt.options)
	}
}

// The Trace performs the actions of its state, in a certain order and without
// its lock. A connection of HTTP/1 is closed after the cancel, because net/http
// would report the error of the connection as that of the attempt. One of
// HTTP/2 is closed if the request is written although it was stopped.
func TestActions(t *testing.T) {
	const resent = "Stop: the request is not idempotent, and was stopped when it was about to be sent again"
	once, resendable := wire.Options{AtMostOnce: true},
		wire.Options{AtMostOnce: true, Resendable: true}
	plain := func(c *conn) net.Conn { return c }
	http2 := func(c *conn) net.Conn { return tlsConn{c} }
	for _, tt := range []struct {
		name    string
		options wire.Options
		conn    func(*conn) net.Conn
		fields  string // of the first send
		again   string // of the second one
		want    []string
	}{
		{"HTTP/1", resendable, plain, "Host", "", []string{resent, "Close"}},
		{"HTTP/2", once, http2, ":authority :method", "", []string{resent}},
		{"HTTP/2, written", once, http2,
			":authority :method", ":authority", []string{resent, "Close"}},
		{"no connection to show", resendable,
			func(*conn) net.Conn { return nil }, "Host", "", []string{resent}},
		{"a body", wire.Options{AtMostOnce: true, HasBody: true}, plain,
			":authority", "", []string{"Uploaded"}},
		{"nothing written", wire.Options{AtMostOnce: true, Restarts: true}, plain,
			"", "", []string{"Restarted"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, hooks := start(t, tt.options)
			send := func(fields string) {
				hooks.GetConn("a.test:443")
				hooks.GotConn(httptrace.GotConnInfo{Conn: tt.conn(&conn{attempt: a})})
				for field := range strings.FieldsSeq(fields) {
					hooks.WroteHeaderField(field, []string{"POST"})
				}
			}
			send(tt.fields)
			if hooks.WroteRequest != nil {
				hooks.WroteRequest(httptrace.WroteRequestInfo{})
				assert.False(t, a.trace.AwaitsUpload())
			}
			send(tt.again)
			assert.Equal(t, tt.want, a.calls)
		})
	}
}

// WroteHeaders counts for transports that do not report each field.
func TestWroteHeaders(t *testing.T) {
	a, hooks := start(t, wire.Options{AtMostOnce: true})
	hooks.GetConn("a.test:443")
	require.True(t, a.trace.ProvesUnsent(false))
	hooks.WroteHeaders()
	assert.True(t, a.trace.Facts().Wrote)
	assert.False(t, a.trace.ProvesUnsent(false))
}

// Requests that are sent after Detach are not the attempt's. The end of the
// attempt's own upload is still reported.
func TestDetach(t *testing.T) {
	a, hooks := start(t, wire.Options{AtMostOnce: true, HasBody: true, NoLayers: true})
	hooks.GotConn(httptrace.GotConnInfo{})
	hooks.WroteHeaderField(":authority", nil)
	a.trace.Detach()
	hooks.GotConn(httptrace.GotConnInfo{})
	hooks.WroteHeaderField(":authority", nil)
	hooks.GotFirstResponseByte()
	require.NoError(t,
		hooks.Got1xxResponse(103, textproto.MIMEHeader{"Link": {strings.Repeat("x", 20<<20)}}))
	assert.False(t, a.trace.Facts().Answered)
	assert.True(t, a.trace.AwaitsUpload())
	hooks.WroteRequest(httptrace.WroteRequestInfo{})
	assert.False(t, a.trace.AwaitsUpload())
	assert.Equal(t, []string{"Uploaded"}, a.calls)
}

// The hook for 1xx responses switches off the bound of net/http, so it has its
// own.
func TestInformationalResponses(t *testing.T) {
	const status, name = 32, len("Link")
	for size, most := range map[int]int{status + name: 88, 640: 5, 3200: 1} {
		header := textproto.MIMEHeader{"Link": {strings.Repeat("x", size-status-name)}}
		_, hooks := start(t, wire.Options{AtMostOnce: true, MaxHeaderBytes: 3200})
		for range most {
			require.NoError(t, hooks.Got1xxResponse(103, header), "%d bytes", size)
		}
		require.ErrorIs(t, hooks.Got1xxResponse(103, header), wire.ErrInformational)
	}
	// Without a limit of its own, Base accepts 10 MiB.
	_, hooks := start(t, wire.Options{AtMostOnce: true})
	large := textproto.MIMEHeader{"Link": {strings.Repeat("x", 10<<20-status-name)}}
	require.NoError(t, hooks.Got1xxResponse(103, large))
	require.ErrorIs(t, hooks.Got1xxResponse(103, nil), wire.ErrInformational)
}

// The hooks that the caller's context has already are called, too.
func TestKeepsHooks(t *testing.T) {
	var called []string
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { called = append(called, "GotConn") },
		DNSDone: func(httptrace.DNSDoneInfo) { called = append(called, "DNSDone") },
	})
	a := new(attempt)
	hooks := httptrace.ContextClientTrace(
		a.trace.Start(ctx, a, wire.Options{AtMostOnce: true, HasBody: true}))
	hooks.GotConn(httptrace.GotConnInfo{})
	hooks.DNSDone(httptrace.DNSDoneInfo{})
	assert.Equal(t, []string{"GotConn", "DNSDone"}, called)
	assert.True(t, a.trace.AwaitsUpload(), "the hook of the Trace was called, too")
}

// The hooks are called from goroutines of net/http, some of them after
// RoundTrip has returned, and the body is read by any. This is for the race
// detector.
func TestConcurrentHooks(t *testing.T) {
	a, hooks := start(t,
		wire.Options{AtMostOnce: true, Resendable: true, Restarts: true, HasBody: true})
	getBody := a.trace.GetBody(noBody)
	body := a.trace.Body(http.NoBody)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				hooks.GetConn("a.test:443")
				hooks.GotConn(httptrace.GotConnInfo{Conn: &conn{attempt: a}})
				hooks.WroteHeaderField(":authority", nil)
				hooks.WroteHeaders()
				hooks.WroteRequest(httptrace.WroteRequestInfo{})
				_ = hooks.Got1xxResponse(103, nil)
				hooks.GotFirstResponseByte()
			}
		})
		wg.Go(func() {
			for range 100 {
				if b, err := getBody(); err == nil {
					_, _ = b.Read(nil)
				}
				_, _ = body.Read(nil)
				a.trace.ProvesUnsent(false)
				a.trace.Facts()
				a.trace.AwaitsUpload()
			}
		})
	}
	wg.Wait()
	assert.True(t, a.trace.Facts().Wrote)
	assert.True(t, a.trace.Facts().Answered)
}

// readBody reads something of a body.
func readBody(t *testing.T, body io.Reader) {
	n, err := body.Read(make([]byte, 1))
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// While the server may be processing the request, GetBody returns no body. It
// is not asked for one either.
func TestGetBodyForbidsResends(t *testing.T) {
	calls := 0
	a, hooks := start(t, wire.Options{AtMostOnce: true, HasBody: true})
	getBody := a.trace.GetBody(func() (io.ReadCloser, error) { calls++; return newBody() })
	body, err := getBody()
	require.NoError(t, err)
	readBody(t, body)
	hooks.WroteHeaderField(":authority", nil)
	_, err = getBody()
	require.Equal(t, wire.ErrResent, err)
	hooks.GotFirstResponseByte()
	_, err = getBody()
	require.NoError(t, err)
	assert.Equal(t, 2, calls)
}

// GetBody is the request's own if the request may be sent more than once, and
// so is a body whose Reads need not be watched. The errors of GetBody are its
// own in any case.
func TestGetBodyOfOthers(t *testing.T) {
	a, hooks := start(t, wire.Options{HasBody: true})
	assert.Nil(t, hooks.WroteHeaderField)
	body, err := a.trace.GetBody(noBody)()
	require.NoError(t, err)
	assert.Equal(t, http.NoBody, body)
	assert.Equal(t, http.NoBody, a.trace.Body(http.NoBody))

	a, _ = start(t, wire.Options{AtMostOnce: true})
	assert.Equal(t, http.NoBody, a.trace.Body(http.NoBody))

	a, _ = start(t, wire.Options{AtMostOnce: true, HasBody: true})
	assert.Nil(t, a.trace.GetBody(nil))
	boom := errors.New("boom")
	_, err = a.trace.GetBody(func() (io.ReadCloser, error) { return nil, boom })()
	assert.Equal(t, boom, err)
	body, err = a.trace.GetBody(func() (io.ReadCloser, error) { return nil, nil })()
	require.NoError(t, err)
	assert.Nil(t, body)
}

// A layer that has read the body before the header is written sends a copy of
// it, with a GetBody that does not ask. It may also have sent it without
// net/http.
func TestBodyThatALayerHasRead(t *testing.T) {
	for name, read := range map[string]func(*testing.T, *attempt){
		"Body": func(t *testing.T, a *attempt) {
			body, _ := newBody()
			readBody(t, a.trace.Body(body))
		},
		"GetBody": func(t *testing.T, a *attempt) {
			body, err := a.trace.GetBody(newBody)()
			require.NoError(t, err)
			readBody(t, body)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, hooks := start(t, wire.Options{AtMostOnce: true, HasBody: true})
			hooks.GetConn("a.test:443")
			assert.True(t, a.trace.ProvesUnsent(false))
			read(t, a)
			assert.False(t, a.trace.ProvesUnsent(false))
			hooks.GetConn("a.test:443")
			hooks.GotConn(httptrace.GotConnInfo{})
			hooks.WroteHeaderField(":authority", nil)
			hooks.GotConn(httptrace.GotConnInfo{})
			assert.Equal(t, []string{"Stop: " + wire.ErrResent.Error()}, a.calls)
		})
	}
}

// A layer that has read the body, to sign it, may send one from GetBody.
// If net/http resends that, it asks GetBody for one more.
func TestBodyMadeAnew(t *testing.T) {
	a, hooks := start(t, wire.Options{AtMostOnce: true, HasBody: true})
	read, _ := newBody()
	readBody(t, a.trace.Body(read))
	getBody := a.trace.GetBody(newBody)
	body, err := getBody()
	require.NoError(t, err)
	hooks.GotConn(httptrace.GotConnInfo{})
	hooks.WroteHeaderField(":authority", nil)
	readBody(t, body)
	_, err = getBody()
	require.Equal(t, wire.ErrResent, err)
	hooks.GotConn(httptrace.GotConnInfo{})
	assert.Empty(t, a.calls)
}

// Without layers, net/http alone reads the body, and reads are not watched.
func TestBodyWithoutLayers(t *testing.T) {
	a, hooks := start(t, wire.Options{AtMostOnce: true, HasBody: true, NoLayers: true})
	assert.Equal(t, http.NoBody, a.trace.Body(http.NoBody))
	body, err := a.trace.GetBody(noBody)()
	require.NoError(t, err)
	assert.Equal(t, http.NoBody, body)
	hooks.WroteHeaderField(":authority", nil)
	_, err = a.trace.GetBody(noBody)()
	assert.Equal(t, wire.ErrResent, err)
}

// A key header counts even if it has no value, but only in its canonical form.
func TestResendable(t *testing.T) {
	for _, tt := range []struct {
		method, key string
		want        bool
	}{
		{"", "", true}, {"GET", "", true}, {"HEAD", "", true}, {"OPTIONS", "", true},
		{"TRACE", "", true},
		{"PUT", "", false}, {"DELETE", "", false}, {"POST", "", false}, {"get", "", false},
		{"POST", "Idempotency-Key", true}, {"POST", "X-Idempotency-Key", true},
		{"POST", "idempotency-key", false}, {"POST", "Key", false},
	} {
		assert.Equal(t, tt.want, wire.Resendable(tt.method, http.Header{tt.key: nil}), "%s %s",
			tt.method, tt.key)
	}
}

// net/http does not send a header that has no value, but resends a request
// because of it.
func TestHideEmptyKeys(t *testing.T) {
	h := http.Header{"Idempotency-Key": {}, "X-Idempotency-Key": {"", ""}, "Other": nil}
	wire.HideEmptyKeys(h)
	assert.Equal(t, http.Header{"Other": nil}, h)
	h = http.Header{"Idempotency-Key": {"", "k"}, "X-Idempotency-Key": {"k"}}
	wire.HideEmptyKeys(h)
	assert.Equal(t, http.Header{"Idempotency-Key": {"", "k"}, "X-Idempotency-Key": {"k"}}, h)
	wire.HideEmptyKeys(nil)
}

// The hooks of one send come in the order that the package documentation
// states, over a new connection and over one that was used before. Those for
// responses may come before the last of those for writing.
func TestHookOrder(t *testing.T) {
	for http2, writes := range map[bool][]string{
		false: {"GetConn", "GotConn", "Host", "WroteHeaders", "WroteRequest"},
		true:  {"GetConn", "GotConn", ":authority", "WroteHeaders", "WroteRequest"},
	} {
		srv := newServer(t, http2, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusOK)
		})
		for range 2 {
			wrote, read := make(chan string, 10), make(chan string, 10)
			var first sync.Once // the first field tells the protocol
			req, err := http.NewRequestWithContext(
				httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
					GetConn:      func(string) { wrote <- "GetConn" },
					GotConn:      func(httptrace.GotConnInfo) { wrote <- "GotConn" },
					WroteHeaders: func() { wrote <- "WroteHeaders" },
					WroteRequest: func(httptrace.WroteRequestInfo) { wrote <- "WroteRequest" },
					WroteHeaderField: func(name string, _ []string) {
						first.Do(func() { wrote <- name })
					},
					GotFirstResponseByte: func() { read <- "GotFirstResponseByte" },
					Got1xxResponse: func(int, textproto.MIMEHeader) error {
						read <- "Got1xxResponse"
						return nil
					},
				}), "POST", srv.URL, strings.NewReader("x"))
			require.NoError(t, err)
			resp, err := srv.Client().Transport.RoundTrip(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			for _, want := range writes { // the last of which may come after the response
				assert.Equal(t, want, <-wrote)
			}
			for _, want := range []string{
				"GotFirstResponseByte", "Got1xxResponse", "Got1xxResponse"} {
				assert.Equal(t, want, <-read)
			}
			assert.Empty(t, wrote)
			assert.Empty(t, read)
		}
	}
}

// An answered exchange leaves a Trace that proves nothing and stops nothing.
func TestRealServer(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for _, body := range []string{"", "payload"} {
			srv := newServer(t, http2, func(http.ResponseWriter, *http.Request) {})
			for range 3 {
				ctx, cancel := context.WithCancelCause(t.Context())
				a := &attempt{onStopped: cancel}
				ctx = a.trace.Start(ctx, a, wire.Options{AtMostOnce: true, HasBody: body != ""})
				req, err := http.NewRequestWithContext(
					ctx, "POST", srv.URL, strings.NewReader(body))
				require.NoError(t, err)
				getBody := a.trace.GetBody(noBody)
				resp, err := srv.Client().Transport.RoundTrip(req)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				assert.Equal(t, http2, resp.ProtoMajor == 2)
				assert.True(t, a.trace.Facts().Wrote)
				assert.False(t, a.trace.Facts().Connecting)
				assert.False(t, a.trace.ProvesUnsent(false))
				_, err = getBody()
				assert.NoError(t, err, "it was answered")
				cancel(nil)
				if body == "" {
					assert.Empty(t, a.calls)
				}
			}
		}
	}
}

// A connection may have been shared once it was answered, or if it was used before. One
// that is being opened is not shared.
func TestShared(t *testing.T) {
	a, hooks := start(t, wire.Options{AtMostOnce: true})
	first, second := net.Pipe()
	hooks.GetConn("a.test:80")
	assert.False(t, a.trace.Facts().Shared)
	hooks.GotConn(httptrace.GotConnInfo{Conn: first, Reused: true})
	assert.True(t, a.trace.Facts().Shared)
	hooks.GetConn("a.test:80")
	assert.False(t, a.trace.Facts().Shared)
	hooks.GotConn(httptrace.GotConnInfo{Conn: second})
	assert.False(t, a.trace.Facts().Shared)
	hooks.GotFirstResponseByte()
	assert.True(t, a.trace.Facts().Shared)
}

// A dial that fails proves that nothing was sent.
func TestRealDial(t *testing.T) {
	boom := errors.New("boom")
	base := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, boom }}
	a := new(attempt)
	ctx := a.trace.Start(t.Context(), a, wire.Options{AtMostOnce: true, HasBody: true})
	req, err := http.NewRequestWithContext(ctx, "POST", "http://a.test/", nil)
	require.NoError(t, err)
	_, err = base.RoundTrip(req)
	require.ErrorIs(t, err, boom)
	assert.True(t, a.trace.ProvesUnsent(false))
	assert.True(t, a.trace.Facts().Connecting)
	assert.False(t, a.trace.AwaitsUpload())
}

// A connection whose RemoteAddr panics, as one of net/http's own tests has, can
// be used, because RemoteAddr is called only to compare two connections.
func TestConnWithoutAddress(t *testing.T) {
	_, hooks := start(t, wire.Options{AtMostOnce: true, HasBody: true})
	hooks.GetConn("a.test:80")
	assert.NotPanics(t, func() { hooks.GotConn(httptrace.GotConnInfo{Conn: struct{ net.Conn }{}}) })
}
