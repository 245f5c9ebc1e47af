package contract

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/internal/faults"
)

// Protocols, as in Request.Proto.
const (
	HTTP1 = "HTTP/1.1"
	HTTP2 = "HTTP/2.0"
)

// ForProtocols runs a test over HTTP/1 and over HTTP/2.
func ForProtocols(t *testing.T, test func(t *testing.T, proto string)) {
	t.Helper()
	for _, proto := range []string{HTTP1, HTTP2} {
		t.Run(proto, func(t *testing.T) { test(t, proto) })
	}
}

// Serve starts a server for one protocol, without TLS, and returns it with a
// transport that uses only that protocol. Both end with the test.
func Serve(
	t testing.TB, proto string, handler http.HandlerFunc) (*http.Transport, *httptest.Server) {
	t.Helper()
	srv := httptest.NewUnstartedServer(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, proto, r.Proto)
			handler(w, r)
		}))
	base := faults.Base(t, nil)
	if proto == HTTP2 {
		srv.Config.Protocols = new(http.Protocols)
		srv.Config.Protocols.SetUnencryptedHTTP2(true)
		base = faults.HTTP2Base(t)
	}
	srv.Start()
	t.Cleanup(srv.Close)
	return base, srv
}

// NewServer starts a server that ends with the test.
func NewServer(t testing.TB, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return srv
}
