package faults

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Certificates returns the configuration of a server whose certificate is for
// 127.0.0.1 and example.com, and of clients that trust it. Both are the
// caller's to change; neither names a protocol to negotiate.
func Certificates(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	srv := httptest.NewTLSServer(nil)
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	return &tls.Config{Certificates: srv.TLS.Certificates}, &tls.Config{RootCAs: roots}
}

// StartTLS goes on with TLS, and reports whether the handshake succeeded.
func (c *Conn) StartTLS(cfg *tls.Config) bool {
	conn := tls.Server(c.Conn, cfg)
	c.Conn, c.Reader = conn, bufio.NewReader(conn)
	return conn.Handshake() == nil
}

// Base returns a transport that trusts what client trusts, goes through no
// proxy, and whose idle connections close with the test.
func Base(t testing.TB, client *tls.Config) *http.Transport {
	t.Helper()
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.Proxy = nil
	base.TLSClientConfig = client
	t.Cleanup(base.CloseIdleConnections)
	return base
}

// HTTP2Base returns a transport that speaks HTTP/2 without TLS.
func HTTP2Base(t testing.TB) *http.Transport {
	t.Helper()
	base := Base(t, nil)
	base.Protocols = new(http.Protocols)
	base.Protocols.SetUnencryptedHTTP2(true)
	return base
}
