package test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// resumeEagerly returns a policy that resumes without waits.
func resumeEagerly() httpretry.Policy {
	p := contract.RetryEvery(0)
	p.Resume = true
	return p
}

// serveFile returns a handler for data, with an entity tag.
func serveFile(data []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"v1"`)
		http.ServeContent(w, r, "file.bin", time.Time{}, bytes.NewReader(data))
	}
}

// cutConn is a connection that breaks after some bytes were read from it.
type cutConn struct {
	net.Conn
	left int
	err  error
}

func (c *cutConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		_ = c.Conn.Close()
		return 0, c.err
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// cutFirst breaks the first connection of base after n bytes.
func cutFirst(base *http.Transport, n int, err error) {
	var conns atomic.Int32
	faults.WrapConns(base, func(conn net.Conn) net.Conn {
		if conns.Add(1) > 1 {
			return conn
		}
		return &cutConn{conn, n, err}
	})
}

func download(t testing.TB, rt http.RoundTripper, url string) ([]byte, *http.Response, error) {
	t.Helper()
	resp, err := rt.RoundTrip(contract.Request(t, "GET", url, ""))
	require.NoError(t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return got, resp, err
}

// Hazard D10: wherever in an exchange its connection breaks, the caller gets
// each byte once. The offsets fall into each frame of HTTP/2, and between them.
func TestResumeAtEveryOffset(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		data := randomBytes(1, 70_000)
		_, srv := contract.Serve(t, proto, serveFile(data))
		failures := []error{io.EOF, contract.ErrReset, io.ErrUnexpectedEOF}
		resumed := 0
		for n, i := 0, 0; n < len(data)+1000; n, i = n+cmp.Or(min(n/10, 631), 13), i+1 {
			base := faults.Base(t, nil)
			if proto == contract.HTTP2 {
				base = faults.HTTP2Base(t)
			}
			cutFirst(base, n, failures[i%len(failures)])
			got, resp, err := download(t, contract.With(t, base, resumeEagerly()), srv.URL)
			require.NoError(t, err, "after %d bytes", n)
			require.Equal(t, sha256.Sum256(data), sha256.Sum256(got), "after %d bytes", n)
			if attempts := httpretry.ResultOf(resp).Attempts; attempts > 1 && n > 2000 {
				resumed++
			}
			base.CloseIdleConnections()
		}
		assert.Greater(t, resumed, 90)
	})
}

// The connection of a body that was resumed is used again once the body has
// been read. This runs in virtual time, since net/http closes a connection over
// HTTP/1 if its goroutine that wrote the request is 50 ms late.
func TestResumeKeepsConnections(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
		data := randomBytes(9, 100_000)
		base := start(serveFile(data))
		cutFirst(base, 50_000, io.EOF)
		var conns atomic.Int32
		countDials(base, &conns)
		transport := contract.With(t, base, resumeEagerly())
		for range 10 {
			got, _, err := download(t, transport, "http://a.test/")
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
		}
		assert.EqualValues(t, 2, conns.Load())
	})
}

// HTTP/2 can break off a body without breaking the connection.
func TestResumeHTTP2(t *testing.T) {
	data := string(randomBytes(2, 1000))
	for _, tt := range []struct {
		name  string
		first func(faults.Stream) // after 100 bytes
		want  int                 // requests
		fails string
	}{
		{"RST_STREAM", func(s faults.Stream) { s.ResetStream(faults.InternalError) }, 2, ""},
		{"RST_STREAM without an error", func(s faults.Stream) { s.ResetStream(faults.NoError) }, 2,
			""},
		{"RST_STREAM, refused", func(s faults.Stream) { s.ResetStream(faults.RefusedStream) }, 2,
			""},
		{"RST_STREAM, canceled", func(s faults.Stream) { s.ResetStream(faults.Cancel) }, 2, ""},
		{"early end", func(s faults.Stream) { s.Data(true, "") }, 2, ""},
		{"GOAWAY with an error, and the end of the connection",
			func(s faults.Stream) { s.GoAway(s.ID, faults.InternalError); _ = s.Close() }, 2, ""},
		{"GOAWAY, and the end of the connection",
			func(s faults.Stream) { s.GoAway(s.ID, faults.NoError); _ = s.Close() }, 2, ""},
		{"GOAWAY before the stream",
			func(s faults.Stream) { s.GoAway(0, faults.NoError); _ = s.Close() }, 2, ""},
		{"GOAWAY only", func(s faults.Stream) {
			s.GoAway(s.ID, faults.NoError)
			s.Data(true, data[100:])
		}, 1, ""},
		{"a frame of an unknown stream",
			func(s faults.Stream) { s.Frame(faults.FrameData, 0, 1001, []byte("x")) }, 2, ""},
		{"all, but no end", func(s faults.Stream) {
			s.Data(false, data[100:])
			s.ResetStream(faults.InternalError)
		}, 1, ""},
		{"more than all", func(s faults.Stream) { s.Data(true, data[100:]+"x") }, 1,
			"more than declared Content-Length"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := faults.HTTP2(t, func(s faults.Stream) {
				if s.Request == 1 {
					s.Header(false, ":status", "200", "etag", `"v1"`, "content-length", "1000")
					s.Data(false, data[:100])
					tt.first(s)
					return
				}
				s.Header(false, ":status", "206", "etag", `"v1"`, "content-length", "900",
					"content-range", "bytes 100-999/1000")
				s.Data(true, data[100:])
			})
			// Nothing is read ahead, so that the first 100 bytes arrive.
			got, _, err := download(t,
				contract.With(t, faults.HTTP2Base(t), resumeEagerly()), srv.URL())
			if tt.fails != "" {
				assert.ErrorContains(t, err, tt.fails)
				assert.True(t, strings.HasPrefix(data, string(got)))
			} else {
				require.NoError(t, err)
				assert.True(t, data == string(got))
			}
			assert.EqualValues(t, tt.want, srv.Requests.Load())
		})
	}
}

// Hazards 0.5, D10 and D12: ways in which a server can misreport the rest to net/http.
// Bytes of something else are never appended. The table of TestCheck has the
// headers.
func TestResumeLies(t *testing.T) {
	const cut = 100
	data, other := string(randomBytes(3, 1000)), string(randomBytes(4, 1000))
	rest := func(lines ...string) string {
		return "HTTP/1.1 206 Partial Content\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
	}
	const v1, v2 = `ETag: "v1"`, `ETag: "v2"`
	const all = "HTTP/1.1 200 OK\r\n" + v1 + "\r\n"
	const exact, length = "Content-Range: bytes 100-999/1000", "Content-Length: 900"
	for _, tt := range []struct {
		name   string
		answer string
		fails  string // part of the error; "": the body is complete
		sends  int32  // requests; 0: 2
	}{
		{"the truth", rest(v1, exact, length) + data[cut:], "", 0},
		{"the truth after early hints", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" +
			rest(v1, exact, length) + data[cut:], "", 0},
		{"the truth from HTTP/1.0",
			strings.Replace(rest(v1, exact, length), "1.1", "1.0", 1) + data[cut:], "", 0},
		{"more bytes after the rest", rest(v1, exact, length) + data[cut:] + "x", "", 0},
		{"all of it", all + "Content-Length: 1000\r\n\r\n" + data, "", 0},

		{"another version", rest(v2, exact, length) + other[cut:], "without the validator", 0},
		{"all of it, chunked", all + "Transfer-Encoding: chunked\r\n\r\n3e8\r\n" + data +
			"\r\n0\r\n\r\n", "another length", 0},
		{"a shorter body", rest(v1, exact, "Content-Length: 800") + data[cut:900],
			"another length", 0},
		{"a body of unknown length", rest(v1, exact, "Connection: close") + data[cut:],
			"another length", 0},
		{"a redirect", "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
			"status 302", 0},
		{"no content", "HTTP/1.1 204 No Content\r\n" + v1 + "\r\n\r\n", "status 204", 0},
		{"an endless header", "HTTP/1.1 206 Partial Content\r\nX: " + strings.Repeat("x", 1<<20),
			"server response headers exceeded", 0},
		{"nothing but cuts", rest(v1, exact, length), "attempts_exhausted", 5},
		{"nothing at all", "", "(last attempt: EOF)", 5},
		{"nothing of the kind", "SSH-2.0-OpenSSH_9.2\r\n", "attempts_exhausted", 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
				assert.Equal(t, "/", req.URL.Path, "the redirect was followed")
				if req.Header.Get("Range") == "" {
					c.Send(all + "Content-Length: 1000\r\n\r\n" + data[:cut])
					return false
				}
				assert.Equal(t, `"v1"`, req.Header.Get("If-Range"))
				assert.Equal(t, "bytes=100-999", req.Header.Get("Range"))
				c.Send(tt.answer)
				return false
			})
			var log contract.Record
			base := faults.Base(t, nil)
			base.MaxResponseHeaderBytes = 100_000
			client := &http.Client{Transport: contract.Recorded(t, base, resumeEagerly(), &log)}
			resp, err := client.Get(srv.URL())
			require.NoError(t, err)
			got, err := io.ReadAll(resp.Body)
			require.NoError(t, resp.Body.Close())
			assert.EqualValues(t, cmp.Or(tt.sends, 2), srv.Requests.Load())
			if tt.fails == "" {
				require.NoError(t, err)
				assert.True(t, data == string(got))
				return
			}
			// RoundTrip may fail with io.EOF. A Read must not, because errors.Is would
			// take it for the end of the body.
			assert.NotErrorIs(t, err, io.EOF)
			assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
			assert.ErrorContains(t, err, tt.fails)
			assert.ErrorAs(t, err, new(*httpretry.Error))
			assert.True(t, data[:cut] == string(got), "%d bytes", len(got))
			assert.NotEqual(t, httpretry.ReasonSuccess, log.Reason())
		})
	}
}

// If net/http unpacks a body, its position in the file is unknown, so it is not
// resumed. With an Accept-Encoding of the request's own, the same file is
// resumed.
func TestResumeUnpacked(t *testing.T) {
	var packed bytes.Buffer
	packer := gzip.NewWriter(&packed)
	_, err := packer.Write(randomBytes(5, 40_000))
	require.NoError(t, errors.Join(err, packer.Close()))
	text := bytes.Repeat([]byte("a line of text\n"), 20_000)
	_, srv := contract.Serve(t, contract.HTTP1, func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			serveFile(text)(w, r)
			return
		}
		// The response to a request with If-Range need not repeat it.
		if r.Header.Get("If-Range") == "" {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Length", fmt.Sprint(packed.Len()))
		}
		serveFile(packed.Bytes())(w, r)
	})
	for encoding, want := range map[string][]byte{
		"": nil, "identity": text, "gzip": packed.Bytes()} {
		t.Run("Accept-Encoding: "+encoding, func(t *testing.T) {
			base := faults.Base(t, nil)
			cutFirst(base, 20_000, io.EOF)
			req := contract.Request(t, "GET", srv.URL, "")
			if encoding != "" {
				req.Header.Set("Accept-Encoding", encoding)
			}
			resp, err := contract.With(t, base, resumeEagerly()).RoundTrip(req)
			require.NoError(t, err)
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if want == nil {
				assert.True(t, resp.Uncompressed)
				assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
				assert.ErrorContains(t, err, "Accept-Encoding: identity")
				return
			}
			require.NoError(t, err)
			assert.True(t, bytes.Equal(want, got))
		})
	}
}

// A request that follows a redirect is resumed where the redirect led to.
func TestResumeAfterRedirect(t *testing.T) {
	data := randomBytes(6, 50_000)
	var redirects atomic.Int32
	_, srv := contract.Serve(t, contract.HTTP1, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			redirects.Add(1)
			http.Redirect(w, r, "/file", http.StatusFound)
			return
		}
		serveFile(data)(w, r)
	})
	base := faults.Base(t, nil)
	cutFirst(base, 20_000, contract.ErrReset)
	resp, err := (&http.Client{Transport: contract.With(t, base, resumeEagerly())}).Get(srv.URL)
	require.NoError(t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(data, got))
	assert.EqualValues(t, 1, redirects.Load())
	assert.Equal(t, 2, httpretry.ResultOf(resp).Attempts)
}

// Hazard D13: a server goes silent in a body. ResumeIdle ends the attempt,
// over both protocols.
func TestResumeStalled(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Minute} {
		inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
			data := randomBytes(7, 300_000)
			base := start(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Range") != "" {
					serveFile(data)(w, r)
					return
				}
				w.Header().Set("Etag", `"v1"`)
				w.Header().Set("Content-Length", fmt.Sprint(len(data)))
				_, _ = w.Write(data[:1000])
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
			policy := resumeEagerly()
			policy.ResumeIdle, policy.AttemptTimeout = 3*time.Second, timeout
			begun := time.Now()
			got, _, err := download(t, contract.With(t, base, policy), "http://pipe.test/")
			require.NoError(t, err)
			assert.True(t, bytes.Equal(data, got))
			assert.Equal(t, 3*time.Second, time.Since(begun).Truncate(time.Second))
		})
	}
}

// Hazard D13: Close, from another goroutine and at any moment, returns at once
// and ends the Read. A cancel does, too. No goroutine is left.
func TestResumeRaces(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		data := randomBytes(8, 300_000)
		base, srv := contract.Serve(t, proto, serveFile(data))
		faults.WrapConns(
			base, func(conn net.Conn) net.Conn { return &cutConn{conn, 40_000, io.EOF} })
		policy := resumeEagerly()
		policy.MaxAttempts, policy.ResumeIdle = -1, time.Minute
		transport := contract.With(t, base, policy)
		before := runtime.NumGoroutine()
		for i := range 60 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			resp, err := transport.RoundTrip(
				contract.Request(t, "GET", srv.URL, "").WithContext(ctx))
			require.NoError(t, err)
			ended := make(chan struct{})
			go func() {
				got, _ := io.ReadAll(resp.Body) // which Close may end
				assert.True(t, bytes.HasPrefix(data, got))
				close(ended)
			}()
			time.Sleep(time.Duration(i) * 200 * time.Microsecond)
			if i%2 == 0 {
				cancel()
			}
			httpretry.ResultOf(resp)
			waitFor(t, "Close", func() { assert.NoError(t, resp.Body.Close()) })
			waitFor(t, "Read", func() { <-ended })
		}
		base.CloseIdleConnections()
		assert.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+6 }, waitLimit,
			time.Millisecond, "%d goroutines before", before)
	})
}
