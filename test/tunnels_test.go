package test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// net/http sends the request's body into the tunnel that CONNECT opens, and the
// response's body comes from it. Neither ends before the other does, however
// long that takes.
func TestConnect(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
		base := start(func(w http.ResponseWriter, r *http.Request) {
			control := http.NewResponseController(w)
			w.WriteHeader(http.StatusOK)
			assert.NoError(t, control.Flush())
			if r.ProtoMajor == 2 { // over HTTP/1, only a hijacked connection has it
				sent, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, "payload", string(sent))
			}
			time.Sleep(time.Hour)
			_, _ = io.WriteString(w, "answer")
		})
		reader, writer := io.Pipe()
		resp, err := retrying(t, base).RoundTrip(
			contract.Streamed(t, http.MethodConnect, "http://a.test/", reader))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		_, err = io.WriteString(writer, "payload")
		require.NoError(t, err)
		require.NoError(t, writer.Close())
		assert.Equal(t, "answer", contract.ReadBody(t, resp))
	})
}

// Hazard E3: a 101 response is returned as it is, and outlives the timeout of
// its attempt.
func TestSwitchingProtocols(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := faults.Pipe(t, func(w http.ResponseWriter, _ *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if !assert.NoError(t, err) {
				return
			}
			defer conn.Close()
			_, _ = rw.WriteString(
				"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_ = rw.Flush()
			line, _ := rw.ReadString('\n')
			time.Sleep(time.Hour)
			_, _ = rw.WriteString("you said " + line)
			_ = rw.Flush()
		})
		req := newGet(t)
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
		resp, err := contract.With(t, base, withTimeout(time.Minute)).RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, 101, resp.StatusCode)
		tunnel, ok := resp.Body.(io.ReadWriteCloser)
		require.True(t, ok, "%T", resp.Body)
		_, err = io.WriteString(tunnel, "hello\n")
		require.NoError(t, err)
		line, err := bufio.NewReader(tunnel).ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, "you said hello\n", line)
		require.NoError(t, tunnel.Close())
	})
}

// Hazard E3: a 101 response to a second attempt carries both directions, and
// each of them can end by itself.
func TestTunnelOnRetry(t *testing.T) {
	backend := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
		if attemptOf(req) == 1 {
			c.Respond(503, "")
			return true
		}
		c.Respond(101, "", "Connection: Upgrade", "Upgrade: echo")
		lines := bufio.NewScanner(c.Reader)
		for lines.Scan() {
			c.Send("you said " + lines.Text() + "\n")
		}
		c.Send("you ended\n") // arrives only if the client still reads
		c.CloseWrite()
		c.Drain()
		return false
	})
	target, err := url.Parse(backend.URL())
	require.NoError(t, err)
	front := contract.NewServer(t, (&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: contract.With(t, nil, withTimeout(waitLimit)),
	}).ServeHTTP)
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(waitLimit)))
	_, err = io.WriteString(
		conn, "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, nil)
	require.NoError(t, err)
	require.Equal(t, 101, resp.StatusCode)
	for i := range 3 {
		_, err = fmt.Fprintf(conn, "line %d\n", i)
		require.NoError(t, err)
		line, err := br.ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("you said line %d\n", i), line)
	}
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	rest, err := io.ReadAll(br)
	require.NoError(t, err)
	assert.Equal(t, "you ended\n", string(rest))
	assert.EqualValues(t, 2, backend.Requests.Load())
}

// duplexBody is a body that can also be written to. It fails once its request's
// context has ended.
type duplexBody struct {
	io.Reader
	io.Writer
	ctx    context.Context
	closed *bool
}

func (b duplexBody) Read(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		return 0, b.ctx.Err()
	}
	return b.Reader.Read(p)
}

func (b duplexBody) Close() error { *b.closed = true; return nil }

// Only a 101 response, and a 2xx response to CONNECT, is a tunnel, whose body
// is returned as it is. Any other response ends with its body, whatever methods
// that has.
func TestBodyWithWrite(t *testing.T) {
	for _, tt := range []struct {
		method string
		status int
		tunnel bool
	}{
		{"GET", 200, false}, {"POST", 201, false}, {"CONNECT", 403, false}, {"CONNECT", 300, false},
		{"GET", 101, true}, {"CONNECT", 200, true}, {"CONNECT", 299, true},
	} {
		contract.Bubble(t, fmt.Sprintf("%s/%d", tt.method, tt.status), func(t *testing.T) {
			closed := false
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				body := duplexBody{strings.NewReader("text"), io.Discard, req.Context(), &closed}
				if tt.tunnel {
					body.ctx = context.Background() // net/http does not need it any more
				}
				return &http.Response{
					StatusCode: tt.status, ProtoMajor: 1, ContentLength: -1, Body: body}, nil
			})
			resp, err := unchecked(t, base, withTimeout(time.Minute)).
				RoundTrip(newRequest(t, tt.method, ""))
			require.NoError(t, err)
			_, writes := resp.Body.(io.Writer)
			assert.True(t, writes || !tt.tunnel, "%T", resp.Body)
			time.Sleep(time.Hour)
			assert.Equal(t, "text", contract.ReadBody(t, resp))
			assert.True(t, closed)
		})
	}
}
