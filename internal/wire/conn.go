package wire

import (
	"crypto/tls"
	"net"
)

// connection has the known properties of a connection when a request gets it.
type connection struct {
	conn  net.Conn // nil if the base transport shows none
	addr  net.Addr // of the server, or of a proxy; nil if it is not known
	tls   bool     // it has a TLS state
	http2 bool     // TLS has negotiated HTTP/2
	name  string   // sent to the server in the TLS handshake; "" for an IP address
}

func inspect(conn net.Conn) connection {
	if conn == nil {
		return connection{}
	}
	c := connection{conn: conn, addr: conn.RemoteAddr()}
	if secure, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
		state := secure.ConnectionState()
		c.tls, c.http2, c.name = true, state.NegotiatedProtocol == "h2", state.ServerName
	}
	return c
}

// speaksHTTP2 reports whether TLS has negotiated HTTP/2, or without TLS whether
// it was spoken before. Other requests share an HTTP/2 connection.
func (c connection) speaksHTTP2(before bool) bool {
	if c.tls {
		return c.http2
	}
	return before
}

// maySharePeer reports whether two connections may lead to the same server.
// Those through a proxy have the proxy's address, whatever the server, and
// net/http chooses a proxy again for each resend.
func (c connection) maySharePeer(other connection, noLayers bool) bool {
	if c.name != "" && other.name != "" {
		return c.name == other.name
	}
	// Without layers, hardly anything but a resend takes another connection.
	return noLayers || c.addr == nil || other.addr == nil || c.addr.String() == other.addr.String()
}
