package recipes_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// newPrivate returns a client for servers whose certificates a private CA has
// signed, behind a proxy. A nil proxy means none.
func newPrivate(ca *x509.CertPool, proxy *url.URL) (*http.Client, error) {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.TLSClientConfig = &tls.Config{RootCAs: ca}
	base.Proxy = http.ProxyURL(proxy)
	transport, err := httpretry.New(httpretry.Config{Base: base})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
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
	client, err := newPrivate(ca, nil)
	require.NoError(t, err)
	resp, err := client.Get(secure.URL)
	require.NoError(t, err)
	resp.Body.Close()

	server := play(200)
	proxy := httptest.NewServer(server)
	defer proxy.Close()
	proxyURL, err := url.Parse(proxy.URL)
	require.NoError(t, err)
	client, err = newPrivate(ca, proxyURL)
	require.NoError(t, err)
	resp, err = client.Get("http://api.example.test/")
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, 1, server.count())
}
