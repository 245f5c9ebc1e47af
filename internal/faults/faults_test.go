package faults_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/errno"
	"github.com/seed421102f4/httpretry/internal/faults"
)

func get(t *testing.T, base *http.Transport, url string) (*http.Response, error) {
	t.Helper()
	return base.RoundTrip(contract.Request(t, "GET", url, ""))
}

func TestHTTP1(t *testing.T) {
	srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
		switch req.URL.Path {
		case "/reset":
			c.Reset()
		case "/end":
			c.CloseWrite()
			c.Drain()
		default:
			c.Respond(299, "text", "X-Number: "+req.URL.Path)
			return true
		}
		return false
	})
	base := faults.Base(t, nil)
	for _, path := range []string{"/1", "/2"} {
		resp, err := get(t, base, srv.URL()+path)
		require.NoError(t, err)
		assert.Equal(t, 299, resp.StatusCode)
		assert.Equal(t, path, resp.Header.Get("X-Number"))
		assert.Equal(t, "text", contract.ReadBody(t, resp))
	}
	assert.EqualValues(t, 1, srv.Conns.Load())
	base.CloseIdleConnections()
	_, err := get(t, base, srv.URL()+"/reset")
	require.ErrorIs(t, err, errno.ConnReset)
	base.DisableKeepAlives = true
	_, err = get(t, base, srv.URL()+"/end")
	require.ErrorIs(t, err, io.EOF)
	assert.EqualValues(t, 3, srv.Conns.Load())
	assert.EqualValues(t, 4, srv.Requests.Load())
}

func TestHTTP2(t *testing.T) {
	srv := faults.HTTP2(t, func(s faults.Stream) {
		if s.Request == 2 {
			s.ResetStream(faults.InternalError)
			return
		}
		s.Header(false, ":status", "299", "x-name", "value")
		s.Data(false, "some ")
		s.Data(false, "text")
		s.Header(true, "x-trailer", "last")
	})
	base := faults.HTTP2Base(t)
	resp, err := base.RoundTrip(contract.Request(t, "PUT", srv.URL(), "1234"))
	require.NoError(t, err)
	assert.Equal(t, 299, resp.StatusCode)
	assert.Equal(t, "value", resp.Header.Get("X-Name"))
	assert.Equal(t, "some text", contract.ReadBody(t, resp))
	assert.Equal(t, "last", resp.Trailer.Get("X-Trailer"))
	_, err = get(t, base, srv.URL())
	require.ErrorContains(t, err, "INTERNAL_ERROR; received from peer")
	assert.EqualValues(t, 2, srv.Requests.Load())
}

// respond answers a request with its path.
func respond(c *faults.Conn, req *http.Request) bool {
	c.Respond(200, req.URL.Path)
	return true
}

// listenTLS starts a server with TLS that answers each request with its path.
func listenTLS(t *testing.T, cfg *tls.Config) *faults.Server {
	t.Helper()
	return faults.Listen(t, func(c *faults.Conn) {
		if c.StartTLS(cfg) {
			c.HTTP1(respond)
		}
	})
}

func TestConnect(t *testing.T) {
	base := faults.Base(t, nil)
	_, err := get(t, base, "http://"+faults.Refused(t))
	require.ErrorIs(t, err, errno.ConnRefused)

	base.DialContext = (&net.Dialer{Timeout: 20 * time.Millisecond}).DialContext
	_, err = get(t, base, "http://"+faults.Backlog(t))
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	assert.Equal(t, "dial", op.Op)
	assert.True(t, op.Timeout())
}

func TestDNS(t *testing.T) {
	for code, want := range map[int]net.DNSError{
		faults.DNSNameError:     {Err: "no such host", IsNotFound: true},
		faults.DNSServerFailure: {Err: "server misbehaving", IsTemporary: true},
		faults.DNSQueryRefused:  {Err: "server misbehaving"},
		faults.DNSSilent:        {Err: "i/o timeout", IsTimeout: true, IsTemporary: true},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if code == faults.DNSSilent {
			ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
		}
		_, err := faults.DNS(t, code).LookupHost(ctx, "a.test")
		cancel()
		var dns *net.DNSError
		require.ErrorAs(t, err, &dns)
		assert.Contains(t, dns.Err, want.Err)
		assert.Equal(t, []bool{want.IsNotFound, want.IsTemporary, want.IsTimeout},
			[]bool{dns.IsNotFound, dns.IsTemporary, dns.IsTimeout})
	}
}

func TestProxies(t *testing.T) {
	target := faults.HTTP1(t, respond)
	server, client := faults.Certificates(t)
	secure := listenTLS(t, server)
	connect := faults.Proxy(t, secure.Addr, func(c *faults.Conn, req *http.Request) bool {
		assert.Equal(t, http.MethodConnect, req.Method)
		c.Send("HTTP/1.1 200 OK\r\n\r\n")
		return true
	})
	socks := faults.SOCKS(t, target.Addr, 0)
	refusing := faults.SOCKS(t, target.Addr, 5)
	for _, tt := range []struct{ proxy, url, err string }{
		{connect.URL(), "https://" + secure.Addr, ""},
		{"socks5://" + socks.Addr, target.URL(), ""},
		{"socks5h://" + socks.Addr, "http://name.test", ""},
		{"socks5://" + refusing.Addr, target.URL(), "connection refused"},
	} {
		base := faults.Base(t, client)
		proxy, err := url.Parse(tt.proxy)
		require.NoError(t, err)
		base.Proxy = http.ProxyURL(proxy)
		resp, err := get(t, base, tt.url+"/target")
		if tt.err != "" {
			require.ErrorContains(t, err, tt.err)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, "/target", contract.ReadBody(t, resp))
	}
}

// Sometimes net/http reports that it cannot write to a connection that it has
// closed, instead of the reset because of which it closed it.
func TestStale(t *testing.T) {
	for _, tt := range []struct {
		end     func(*faults.Conn)
		isReset bool
	}{
		{func(*faults.Conn) {}, false},
		{(*faults.Conn).Reset, true},
	} {
		var err error
		for try := 0; try == 0 || try < 100 && errors.Is(err, net.ErrClosed); try++ {
			err = staleError(t, tt.end)
		}
		assert.Equal(t, tt.isReset, errors.Is(err, errno.ConnReset), "%v", err)
	}
}

func staleError(t *testing.T, end func(*faults.Conn)) error {
	t.Helper()
	srv := faults.Stale(t, end)
	resp, err := get(t, srv.Base, srv.URL())
	require.NoError(t, err)
	assert.Empty(t, contract.ReadBody(t, resp))
	req := contract.Streamed(t, "POST", srv.URL(), contract.Counted("text"))
	_, err = srv.Base.RoundTrip(req.WithContext(srv.Context))
	require.Error(t, err)
	assert.EqualValues(t, 1, srv.Requests.Load())
	return err
}

func TestPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		base := faults.Pipe(t, func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Hour)
			_, _ = io.WriteString(w, "text")
		})
		resp, err := get(t, base, "http://a.test/")
		require.NoError(t, err)
		assert.Equal(t, "text", contract.ReadBody(t, resp))
		assert.Equal(t, time.Hour, time.Since(start))
	})
}
