package recipes_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

func newHTTP3(ca *x509.CertPool, cfg *quic.Config) (*http.Client, error) {
	transport, err := httpretry.New(httpretry.Config{
		Base:   &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: ca}, QUICConfig: cfg},
		Policy: httpretry.Policy{AttemptTimeout: 10 * time.Second},
	})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}

// patient has timeouts for a busy machine.
func patient() *quic.Config {
	return &quic.Config{HandshakeIdleTimeout: time.Minute, MaxIdleTimeout: 10 * time.Minute}
}

// serveHTTP3 serves over HTTP/3 on a local UDP port. It returns the URL and the
// certificates that clients need.
func serveHTTP3(t *testing.T, handler http.Handler) (url string, ca *x509.CertPool) {
	t.Helper()
	certified := httptest.NewTLSServer(nil) // has a certificate for 127.0.0.1
	defer certified.Close()
	ca = x509.NewCertPool()
	ca.AddCert(certified.Certificate())
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http3.Server{
		Handler:    handler,
		QUICConfig: patient(),
		TLSConfig:  http3.ConfigureTLSConfig(&tls.Config{Certificates: certified.TLS.Certificates}),
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(conn) }()
	t.Cleanup(func() {
		assert.NoError(t, server.Close())
		assert.ErrorIs(t, <-done, http.ErrServerClosed)
		assert.NoError(t, conn.Close())
	})
	return fmt.Sprintf("https://%s/", conn.LocalAddr()), ca
}

// TestHTTP3 sends requests over QUIC. A PUT is retried after a 503, and a POST
// is not.
func TestHTTP3(t *testing.T) {
	server := play(503, 200, 503)
	url, ca := serveHTTP3(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "HTTP/3.0", r.Proto)
		server.ServeHTTP(w, r)
	}))
	client, err := newHTTP3(ca, patient())
	require.NoError(t, err)
	defer client.CloseIdleConnections()
	ctx := httpretry.WithPolicy(t.Context(),
		httpretry.Policy{Backoff: strategies.Constant{Wait: time.Millisecond}})
	for _, tt := range []struct {
		method string
		want   int
	}{{"PUT", 200}, {"POST", 503}} {
		req, err := http.NewRequestWithContext(ctx, tt.method, url, strings.NewReader("data"))
		require.NoError(t, err)
		assert.Equal(t, tt.want, status(t, client, req))
	}
	assert.Equal(t, []string{"data", "data", "data"}, server.bodies())
}
