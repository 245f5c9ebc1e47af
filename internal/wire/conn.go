package wire

import (
	"crypto/tls"
	"net"
	"reflect"
	"strings"
)

// connInfo has the known properties of a connection when a request gets it.
type connInfo struct {
	conn   net.Conn // nil if the base transport shows none
	tls    bool     // it has a TLS state
	http2  bool     // TLS has negotiated HTTP/2
	http3  bool     // it is the stand-in of quic-go's http3.Transport for a connection
	reused bool
	name   string // sent to the server in the TLS handshake; "" for an IP address
}

func inspect(conn net.Conn) connInfo {
	if conn == nil {
		return connInfo{}
	}
	c := connInfo{conn: conn, http3: strings.HasPrefix(reflect.TypeOf(conn).String(), "*http3.")}
	if secure, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
		state := secure.ConnectionState()
		c.tls, c.http2, c.name = true, state.NegotiatedProtocol == "h2", state.ServerName
	}
	return c
}

// speaksHTTP2 reports whether c speaks HTTP/2. Without TLS, the connection does
// not show that, and the result is withoutTLS.
func (c connInfo) speaksHTTP2(withoutTLS bool) bool {
	if c.tls {
		return c.http2
	}
	return withoutTLS
}

// maySharePeer reports whether two connections may lead to the same server.
// Those through a proxy have the proxy's address, whatever the server, and
// net/http chooses a proxy again for each resend.
func (c connInfo) maySharePeer(other connInfo, noLayers bool) bool {
	if c.name != "" && other.name != "" {
		return c.name == other.name
	}
	// Without layers, hardly anything but a resend takes another connection.
	if noLayers {
		return true
	}
	// Most requests have one connection, and some connections, such as those of
	// tests, have no RemoteAddr that works. So it is called only here.
	addr, otherAddr := c.conn.RemoteAddr(), other.conn.RemoteAddr()
	return addr == nil || otherAddr == nil || addr.String() == otherAddr.String()
}
