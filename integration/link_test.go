package integration

import (
	"context"
	"io"
	mathrand "math/rand/v2"
	"net"
	"testing"

	"github.com/seed421102f4/httpretry/internal/faults"
)

// brokenLink is a way to a server on which each connection breaks after a
// random number of bytes from the server.
type brokenLink struct{ *faults.Server }

// startBrokenLink returns one whose connections break after at most so many
// bytes. reset breaks them with a reset.
func startBrokenLink(t testing.TB, upstream string, most int, reset bool) brokenLink {
	t.Helper()
	return brokenLink{faults.Listen(t, func(c *faults.Conn) {
		server, err := net.Dial("tcp", upstream)
		if err != nil {
			return
		}
		go func() {
			defer server.Close() // ends the copy below
			_, _ = io.Copy(server, c.Reader)
		}()
		_, _ = io.CopyN(c, server, int64(mathrand.IntN(most)))
		if reset {
			c.Reset()
		}
		_ = server.Close()
	})}
}

// dial connects to the server over the link.
func (l brokenLink) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, l.Addr)
}
