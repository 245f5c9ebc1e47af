package recipes_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/strategies"
)

// newPrivate returns a transport for servers whose certificates a private CA has
// signed, behind a proxy. A nil proxy means none.
func newPrivate(ca *x509.CertPool, proxy *url.URL) (*httpretry.RetryTransport, error) {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.TLSClientConfig = &tls.Config{RootCAs: ca}
	base.Proxy = http.ProxyURL(proxy)
	return httpretry.New(httpretry.Config{Base: base})
}

// TestPrivate checks the CA, the proxy, and that the clone still uses HTTP/2.
func TestPrivate(t *testing.T) {
	check := func(_ http.ResponseWriter, r *http.Request) { assert.Equal(t, 2, r.ProtoMajor) }
	secure := httptest.NewUnstartedServer(http.HandlerFunc(check))
	secure.EnableHTTP2 = true
	secure.StartTLS()
	defer secure.Close()
	ca := x509.NewCertPool()
	ca.AddCert(secure.Certificate())
	transport, err := newPrivate(ca, nil)
	require.NoError(t, err)
	resp := contract.Send(t, transport, contract.Request(t, "GET", secure.URL, ""))
	assert.Equal(t, 200, resp.StatusCode)

	server := play(200)
	proxyURL, err := url.Parse(serve(t, proxy("", server)))
	require.NoError(t, err)
	transport, err = newPrivate(ca, proxyURL)
	require.NoError(t, err)
	contract.Send(t, transport, contract.Request(t, "GET", "http://api.example.test/", ""))
	assert.Equal(t, 1, server.count())
}

// newHTTP3 returns a transport that sends requests over HTTP/3.
func newHTTP3(ca *x509.CertPool, cfg *quic.Config) (*httpretry.RetryTransport, error) {
	return httpretry.New(httpretry.Config{
		Base:   &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: ca}, QUICConfig: cfg},
		Policy: httpretry.Policy{AttemptTimeout: 10 * time.Second},
	})
}

// patient has timeouts for a busy machine.
func patient() *quic.Config {
	return &quic.Config{HandshakeIdleTimeout: time.Minute, MaxIdleTimeout: 10 * time.Minute}
}

// TestHTTP3 sends requests over QUIC. A PUT is retried after a 503, and a POST
// is not.
func TestHTTP3(t *testing.T) {
	script := play(503, 200, 503)
	serverTLS, clientTLS := faults.Certificates(t)
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http3.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, "HTTP/3.0", r.Proto)
			proxy("", script).ServeHTTP(w, r)
		}),
		QUICConfig: patient(),
		TLSConfig:  http3.ConfigureTLSConfig(serverTLS),
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(conn) }()
	t.Cleanup(func() {
		assert.NoError(t, server.Close())
		assert.ErrorIs(t, <-done, http.ErrServerClosed)
		assert.NoError(t, conn.Close())
	})

	transport, err := newHTTP3(clientTLS.RootCAs, patient())
	require.NoError(t, err)
	defer transport.CloseIdleConnections()
	ctx := httpretry.WithPolicy(t.Context(),
		httpretry.Policy{Backoff: strategies.Constant{Wait: time.Millisecond}})
	url := "https://" + conn.LocalAddr().String()
	put, post := contract.Request(t, "PUT", url, "data"), contract.Request(t, "POST", url, "data")
	assert.Equal(t, 200, contract.Send(t, transport, put.WithContext(ctx)).StatusCode)
	assert.Equal(t, 503, contract.Send(t, transport, post.WithContext(ctx)).StatusCode)
	assert.Equal(t, []string{"data", "data", "data"}, script.bodies())
}
