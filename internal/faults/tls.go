package faults

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Certificates returns the configuration of a server, and of clients that trust
// it. The certificate is for 127.0.0.1 and example.com. The caller may change
// both configurations. Neither has protocols to negotiate.
func Certificates(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	srv := httptest.NewTLSServer(nil)
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	return &tls.Config{Certificates: srv.TLS.Certificates}, &tls.Config{RootCAs: roots}
}

// StartTLS changes the connection to TLS, and reports whether the handshake
// succeeded.
func (c *Conn) StartTLS(cfg *tls.Config) bool {
	conn := tls.Server(c.Conn, cfg)
	c.Conn, c.Reader = conn, bufio.NewReader(conn)
	return conn.Handshake() == nil
}

// Base returns a transport with the TLS configuration client and without a
// proxy. Its idle connections are closed at the end of the test.
func Base(t testing.TB, client *tls.Config) *http.Transport {
	t.Helper()
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.Proxy = nil
	// A transport writes to its configuration, maybe while another one still dials.
	base.TLSClientConfig = client.Clone()
	t.Cleanup(base.CloseIdleConnections)
	return base
}

// HTTP2Base is Base for HTTP/2 without TLS.
func HTTP2Base(t testing.TB) *http.Transport {
	t.Helper()
	base := Base(t, nil)
	base.Protocols = new(http.Protocols)
	base.Protocols.SetUnencryptedHTTP2(true)
	return base
}
