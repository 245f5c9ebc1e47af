package httpretry_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

const (
	final       = httpretry.Final
	transient   = httpretry.Transient
	unprocessed = httpretry.Unprocessed
)

// Hazard K8: every status there can be.
func TestClassifyStatus(t *testing.T) {
	want := map[int]httpretry.Outcome{408: transient, 421: unprocessed, 425: unprocessed, 429: transient}
	for status := 500; status <= 599; status++ {
		want[status] = transient
	}
	for _, status := range []int{501, 505, 506, 507, 508, 510, 511} {
		want[status] = final
	}
	for status := -1; status <= 1000; status++ {
		resp := &http.Response{StatusCode: status, Header: http.Header{}}
		assert.Equal(t, want[status], httpretry.Classify(resp, nil), status)

		resp.Header.Set("X-Should-Retry", "false")
		assert.Equal(t, final, httpretry.Classify(resp, nil), "%d, refused", status)

		resp.Header.Set("X-Should-Retry", " True ")
		promoted := want[status]
		if promoted == final && status >= 400 {
			promoted = transient
		}
		assert.Equal(t, promoted, httpretry.Classify(resp, nil), "%d, asked for", status)
	}
}

func TestClassifyResponse(t *testing.T) {
	keyed := func(name, key string) *http.Request {
		return &http.Request{Method: "POST", Header: http.Header{name: {key}}}
	}
	for _, tt := range []struct {
		name    string
		status  int
		header  map[string]string
		request *http.Request
		want    httpretry.Outcome
	}{
		{"conflict", 409, nil, keyed("Content-Type", "text/plain"), final},
		{"conflict, empty key", 409, nil, keyed("Idempotency-Key", ""), final},
		{"conflict, key", 409, nil, keyed("Idempotency-Key", "k"), transient},
		{"conflict, other key", 409, nil, keyed("X-Idempotency-Key", "k"), transient},
		{"conflict, no request", 409, nil, nil, final},
		{"too large", 413, nil, nil, final},
		{"too large for now", 413, map[string]string{"Retry-After": "10"}, nil, transient},
		{"too large, garbage", 413, map[string]string{"Retry-After": "soon"}, nil, final},
		{"Stripe's refusal", 503, map[string]string{"Stripe-Should-Retry": "false"}, nil, final},
		{"Stripe's wish", 404, map[string]string{"Stripe-Should-Retry": "true"}, nil, final},
		{"key reuse", 422, nil, keyed("Idempotency-Key", "k"), final},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp := &http.Response{StatusCode: tt.status, Header: headerOf(tt.header), Request: tt.request}
			assert.Equal(t, tt.want, httpretry.Classify(resp, nil))
		})
	}
}

// A key of the policy's own header, or a made one, counts for a conflict too.
func TestConflictWithPolicysKey(t *testing.T) {
	for name, set := range map[string]func(*httpretry.Policy, *http.Request){
		"own header": func(p *httpretry.Policy, r *http.Request) {
			p.KeyHeader = "request-id"
			r.Header.Set("Request-Id", "k")
		},
		"other standard header": func(_ *httpretry.Policy, r *http.Request) { r.Header.Set("X-Idempotency-Key", "k") },
		"made key":              func(p *httpretry.Policy, _ *http.Request) { p.NewKey = httpretry.RandomKey },
	} {
		t.Run(name, func(t *testing.T) {
			policy, req := every(0), request(t, "POST", "http://a.test/", "body")
			set(&policy, req)
			base := play(status(409), status(201))
			resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
			assert.Equal(t, 201, resp.StatusCode)
		})
	}
}

func TestClassifyError(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, tt := range []struct {
		err  error
		want httpretry.Outcome
	}{
		{dial(syscall.ECONNREFUSED), unprocessed},
		{dial(syscall.EHOSTUNREACH), unprocessed},
		{dial(os.ErrDeadlineExceeded), unprocessed},
		{dial(&net.DNSError{IsTemporary: true}), unprocessed},
		{dial(&net.DNSError{IsTimeout: true}), unprocessed},
		{dial(&net.DNSError{Err: "server misbehaving"}), unprocessed},
		{dial(&net.DNSError{IsNotFound: true}), final},
		{&net.DNSError{IsNotFound: true}, final}, // of a dialler of the base's own
		{&net.DNSError{IsTemporary: true}, transient},
		{dial(&net.AddrError{Err: "invalid port"}), final},
		{&net.OpError{Op: "proxyconnect", Err: dial(syscall.ECONNREFUSED)}, unprocessed},
		{&net.OpError{Op: "socks connect", Err: errors.New("unknown error connection refused")}, unprocessed},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, transient},
		{&net.OpError{Op: "write", Err: syscall.EPIPE}, transient},
		{&net.OpError{Op: "readfrom", Err: net.ErrClosed}, transient},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: handshake failure")}, final},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: internal error")}, transient},
		{fmt.Errorf("readLoopPeekFailLocked: %w", &net.OpError{Op: "remote error", Err: errors.New("tls: certificate required")}), final},
		{fmt.Errorf("readLoopPeekFailLocked: %w", &net.OpError{Op: "remote error", Err: errors.New("tls: internal error")}), unprocessed},
		{&tls.CertificateVerificationError{Err: errors.New("expired")}, final},
		{x509.UnknownAuthorityError{}, final},
		{x509.HostnameError{Certificate: &x509.Certificate{}}, final},
		{x509.CertificateInvalidError{}, final},
		{tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, final},
		{http.ErrSchemeMismatch, final},
		{context.Canceled, final},
		{fmt.Errorf("wrapped: %w", context.Canceled), final},
		{context.DeadlineExceeded, transient}, // net/http's own timeouts look like it
		{io.EOF, transient},
		{io.ErrUnexpectedEOF, transient},
		{errors.New("anything else"), transient},
		{errors.New("http2: Transport: cannot retry err [http2: Transport received Server's graceful shutdown GOAWAY] after Request.Body was written; define Request.GetBody to avoid this error"), unprocessed},
		{errors.New("http2: Transport: cannot retry err [stream error: stream ID 1; REFUSED_STREAM; received from peer] after Request.Body was written; define Request.GetBody to avoid this error"), transient},
		{errors.New("http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR, debug=\"bye\""), transient},
		{errors.New("net/http: cannot rewind body after connection loss"), unprocessed},
	} {
		t.Run(tt.err.Error(), func(t *testing.T) {
			assert.Equal(t, tt.want, httpretry.Classify(nil, tt.err))
		})
	}
}

// TestErrorTexts provokes, with a real server, each error that is known by its
// text alone, so that a new wording in net/http shows here. What is left of
// the table is in TestAtMostOnceHTTP2 and TestGoAwayReplay: GOAWAY's errors
// decide how often a POST is delivered there.
func TestErrorTexts(t *testing.T) {
	ok := newServer(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	silent := faults.Listen(t, (*faults.Conn).Drain)
	modify := func(f func(*http.Request)) func(*testing.T, *http.Transport) *http.Request {
		return func(t *testing.T, _ *http.Transport) *http.Request {
			req := request(t, "PUT", ok.URL, "text")
			f(req)
			return req
		}
	}
	for _, tt := range []struct {
		name    string
		request func(*testing.T, *http.Transport) *http.Request
		text    string
		want    httpretry.Outcome
	}{
		{"scheme", modify(func(r *http.Request) { r.URL.Scheme = "ftp" }), `unsupported protocol scheme "ftp"`, final},
		{"no host", modify(func(r *http.Request) { r.URL.Host = "" }), "http: no Host in request URL", final},
		{"no URL", modify(func(r *http.Request) { r.URL = nil }), "http: nil Request.URL", final},
		{"no header", modify(func(r *http.Request) { r.Header = nil }), "http: nil Request.Header", final},
		{"method", modify(func(r *http.Request) { r.Method = "A B" }), `net/http: invalid method "A B"`, final},
		{"header name", modify(func(r *http.Request) { r.Header["A B"] = []string{"c"} }), `net/http: invalid header field name "A B"`, final},
		{"header value", modify(func(r *http.Request) { r.Header["A"] = []string{"\n"} }), `net/http: invalid header field value for "A"`, final},
		{"trailer", modify(func(r *http.Request) { r.Trailer = http.Header{"A B": nil} }), `net/http: invalid trailer field name "A B"`, final},
		{"URL", modify(func(r *http.Request) { r.URL.Opaque = "\n" }), "net/http: can't write control character in Request.URL", final},
		{"port", modify(func(r *http.Request) { r.URL.Host = "127.0.0.1:99999" }), "address 99999: invalid port", final},
		{"short body", modify(func(r *http.Request) { r.ContentLength = 10 }), "http: ContentLength=10 with Body length 4", final},
		{"long body", modify(func(r *http.Request) { r.ContentLength = 1 }), "http: ContentLength=1 with Body length 4", final},
		{"no body", modify(func(r *http.Request) { r.ContentLength = 5; r.Body = nil }), "http: Request.ContentLength=5 with nil Body", final},
		{"HTTP/2, long body", func(t *testing.T, base *http.Transport) *http.Request {
			base.Protocols = new(http.Protocols)
			base.Protocols.SetUnencryptedHTTP2(true)
			req := request(t, "PUT", faults.HTTP2(t, func(faults.Stream) {}).URL(), "text")
			req.ContentLength = 1
			return req
		}, "http2: request body larger than specified content length", final},
		{"HTTP/2, large header", func(t *testing.T, base *http.Transport) *http.Request {
			srv := httptest.NewUnstartedServer(ok.Config.Handler)
			srv.EnableHTTP2 = true
			srv.Config.MaxHeaderBytes = 1 << 10
			srv.StartTLS()
			t.Cleanup(srv.Close)
			base.TLSClientConfig = srv.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
			base.ForceAttemptHTTP2 = true
			resp, err := base.RoundTrip(request(t, "GET", srv.URL, "")) // so that the limit is known
			require.NoError(t, err)
			finish(t, resp)
			req := request(t, "GET", srv.URL, "")
			req.Header.Set("A", strings.Repeat("a", 10<<10))
			return req
		}, "http2: request header list larger than peer's advertised limit", final},
		{"large response header", func(t *testing.T, base *http.Transport) *http.Request {
			base.MaxResponseHeaderBytes = 1000
			srv := newServer(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("A", strings.Repeat("a", 10<<10)) })
			return request(t, "GET", srv.URL, "")
		}, "net/http: server response headers exceeded 1000 bytes; aborted", final},
		{"TLS handshake timeout", func(t *testing.T, base *http.Transport) *http.Request {
			base.TLSHandshakeTimeout = time.Millisecond
			return request(t, "GET", "https://"+silent.Addr, "")
		}, "net/http: TLS handshake timeout", unprocessed},
		{"plain answer to TLS", func(t *testing.T, _ *http.Transport) *http.Request {
			return request(t, "GET", strings.Replace(ok.URL, "http:", "https:", 1), "")
		}, "tls: first record does not look like a TLS handshake", final},
		{"unknown authority", func(t *testing.T, _ *http.Transport) *http.Request {
			srv := httptest.NewTLSServer(nil)
			srv.Config.ErrorLog = nil
			t.Cleanup(srv.Close)
			return request(t, "GET", srv.URL, "")
		}, "tls: failed to verify certificate", final},
		{"TLS alert", func(t *testing.T, base *http.Transport) *http.Request {
			srv := httptest.NewUnstartedServer(nil)
			srv.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
			srv.StartTLS()
			t.Cleanup(srv.Close)
			base.TLSClientConfig = &tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true}
			return request(t, "GET", srv.URL, "")
		}, "remote error: tls: protocol version not supported", final},
		{"proxy refuses", func(t *testing.T, base *http.Transport) *http.Request {
			base.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: faults.Refused(t)})
			return request(t, "GET", "https://a.test", "")
		}, "proxyconnect tcp: dial tcp", unprocessed},
		{"refused", func(t *testing.T, _ *http.Transport) *http.Request {
			return request(t, "GET", "http://"+faults.Refused(t), "")
		}, "connection refused", unprocessed},
		{"response header timeout", func(t *testing.T, base *http.Transport) *http.Request {
			base.ResponseHeaderTimeout = time.Millisecond
			return request(t, "GET", "http://"+silent.Addr, "")
		}, "net/http: timeout awaiting response headers", transient},
		{"end of file", func(t *testing.T, _ *http.Transport) *http.Request {
			return request(t, "GET", faults.HTTP1(t, func(*faults.Conn, *http.Request) bool { return false }).URL(), "")
		}, "EOF", transient},
		{"not HTTP", func(t *testing.T, _ *http.Transport) *http.Request {
			return request(t, "GET", faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool {
				c.Send("garbage\r\n")
				return false
			}).URL(), "")
		}, "malformed HTTP response", transient},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// An error while a request is written may lose the race against that of its connection.
			var err error
			for range 100 {
				base := http.DefaultTransport.(*http.Transport).Clone()
				base.Proxy = nil
				var resp *http.Response
				resp, err = base.RoundTrip(tt.request(t, base))
				base.CloseIdleConnections()
				if err == nil {
					_ = resp.Body.Close()
				}
				require.Error(t, err)
				if strings.Contains(err.Error(), tt.text) {
					break
				}
			}
			require.ErrorContains(t, err, tt.text)
			assert.Equal(t, tt.want, httpretry.Classify(nil, err), "%T: %v", err, err)
		})
	}
}

// A connection that the server closes while it is idle gives a text of its
// own, or, with a reset, another.
func TestIdleConnectionTexts(t *testing.T) {
	for reset, text := range map[bool]string{false: "http: server closed idle connection", true: "readLoopPeekFailLocked: "} {
		stale := faults.Stale(t, reset)
		resp, err := stale.Base.RoundTrip(request(t, "GET", stale.URL(), ""))
		require.NoError(t, err)
		finish(t, resp)
		_, err = stale.Base.RoundTrip(streamed(t, "POST", stale.URL(), contract.Counted("text")).WithContext(stale.Context))
		require.ErrorContains(t, err, text)
		assert.Equal(t, unprocessed, httpretry.Classify(nil, err), "%T %v", err, err)
	}
}

func TestOutcomeString(t *testing.T) {
	for outcome, want := range map[httpretry.Outcome]string{
		final: "final", transient: "transient", unprocessed: "unprocessed", 3: "invalid outcome",
	} {
		assert.Equal(t, want, outcome.String())
	}
}

// What a policy's own classification cannot mean stands.
func TestClassifyOutOfRange(t *testing.T) {
	policy := every(0)
	policy.Classify = func(*http.Response, error) httpretry.Outcome { return 7 }
	base := play(status(503))
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "GET", "http://a.test/", ""))
	require.NoError(t, err)
	finish(t, resp)
	assert.Len(t, base.attempts(), 1)
}

// A response's body is there for the classification that must not read it, and
// is the caller's afterwards.
func TestClassifySeesTheResponse(t *testing.T) {
	policy := every(0)
	policy.Classify = func(resp *http.Response, err error) httpretry.Outcome {
		assert.NoError(t, err)
		if bytes.Equal([]byte(resp.Header.Get("X-State")), []byte("warming up")) {
			return httpretry.Unprocessed
		}
		return httpretry.Classify(resp, err)
	}
	base := play(status(200, "X-State", "warming up"), status(200))
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "POST", "http://a.test/", "text"))
	require.NoError(t, err)
	assert.Equal(t, "body of 200", finish(t, resp))
	assert.Len(t, base.attempts(), 2)
}
