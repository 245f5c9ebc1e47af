package httpretry_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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

// writerNone is what is left of a ResponseWriter in some middleware.
type writerNone struct{ http.ResponseWriter }

// writerSome are ResponseWriters as other middleware may hand them on.
func writerSome() map[string]http.ResponseWriter {
	rec := httptest.NewRecorder()
	refuses := writerHijacker{errors.New("not now")}
	return map[string]http.ResponseWriter{
		"recorder": rec,
		"none":     writerNone{rec},
		"unwraps":  writerUnwraps{writerNone{rec}, rec},
		"fails":    writerFails{writerNone{rec}},
		"hijacks": struct {
			writerNone
			http.Hijacker
		}{writerNone{rec}, refuses},
		"flushes and hijacks": struct {
			writerNone
			http.Flusher
			http.Hijacker
		}{writerNone{rec}, rec, refuses},
		"flushes, fails, hijacks": struct {
			writerFails
			http.Flusher
			http.Hijacker
		}{writerFails{writerNone{rec}}, rec, refuses},
	}
}

// writerUnwraps shows only to http.ResponseController what it can do.
type writerUnwraps struct {
	http.ResponseWriter
	inside http.ResponseWriter
}

func (w writerUnwraps) Unwrap() http.ResponseWriter { return w.inside }

// writerFails has the method that http.ResponseController prefers, alone.
type writerFails struct{ http.ResponseWriter }

func (writerFails) FlushError() error { return errors.New("gone") }

type writerHijacker struct{ err error }

func (h writerHijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, h.err }

// writerProbe tries what handlers can do, and tells what came of it. It spoils
// the response.
func writerProbe(w http.ResponseWriter) (told []string) {
	tell := func(what string, err error) {
		told = append(told, fmt.Sprintf("%s: %v, not supported: %t", what, err, errors.Is(err, http.ErrNotSupported)))
	}
	_, flusher := w.(http.Flusher)
	_, hijacker := w.(http.Hijacker)
	told = append(told, fmt.Sprintf("Flusher %t, Hijacker %t", flusher, hijacker))
	control := http.NewResponseController(w)
	tell("full duplex", control.EnableFullDuplex())
	tell("read deadline", control.SetReadDeadline(time.Now().Add(time.Hour)))
	tell("write deadline", control.SetWriteDeadline(time.Now().Add(time.Hour)))
	if p, ok := w.(http.Pusher); ok { // which ours always is
		tell("push", p.Push("/style.css", nil))
	} else {
		tell("push", http.ErrNotSupported)
	}
	n, err := io.WriteString(w, "text")
	tell(fmt.Sprint("string ", n), err)
	n64, err := io.Copy(w, strings.NewReader("more"))
	tell(fmt.Sprint("copy ", n64), err)
	tell("flush", control.Flush())
	tell("late write deadline", control.SetWriteDeadline(time.Now().Add(-time.Hour)))
	_, err = w.Write(make([]byte, 1<<16))
	told = append(told, fmt.Sprintf("late write: %t", err != nil))
	told = append(told, fmt.Sprintf("late flush: %t", control.Flush() != nil))
	conn, _, err := control.Hijack()
	tell("hijack", err)
	if conn != nil {
		_ = conn.Close()
	}
	return told
}

// writerCompare has a handler tell what its ResponseWriter can do, without
// Middleware, in one and in two, and returns that, if it is the same thrice.
func writerCompare(t *testing.T, serve func(http.Handler)) []string {
	told := make(chan []string, 1)
	probe := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { told <- writerProbe(w) })
	serve(probe)
	bare := <-told
	serve(httpretry.Middleware(probe))
	assert.Equal(t, bare, <-told, "in Middleware")
	serve(httpretry.Middleware(httpretry.Middleware(probe)))
	assert.Equal(t, bare, <-told, "in two")
	return bare
}

// Whatever a handler asks of its ResponseWriter, in Middleware the answer is the
// one that it gets without.
func TestWriterCanWhatTheServersCan(t *testing.T) {
	forProtocols(t, func(t *testing.T, proto string) {
		bare := writerCompare(t, func(handler http.Handler) {
			base, srv := serve(t, proto, handler.ServeHTTP)
			resp, err := base.RoundTrip(request(t, "GET", srv.URL, ""))
			require.NoError(t, err)
			_, _ = io.Copy(io.Discard, resp.Body) // it breaks off
			_ = resp.Body.Close()
		})
		assert.Contains(t, bare, "flush: <nil>, not supported: false")
		assert.Contains(t, bare, "late flush: true")
	})
	for name := range writerSome() {
		t.Run(name, func(t *testing.T) {
			writerCompare(t, func(handler http.Handler) { handler.ServeHTTP(writerSome()[name], chainInbound(nil)) })
		})
	}
}

// writerFast has the methods that spare copies.
type writerFast struct {
	http.ResponseWriter
	reads, strings int
	pushed         []string
}

func (w *writerFast) ReadFrom(r io.Reader) (int64, error) {
	w.reads++
	return io.Copy(w.ResponseWriter, r)
}

func (w *writerFast) WriteString(s string) (int, error) {
	w.strings++
	return w.Write([]byte(s))
}

func (w *writerFast) Push(target string, opts *http.PushOptions) error {
	w.pushed = append(w.pushed, target+" "+opts.Method)
	return nil
}

// What a ResponseWriter can do faster, or beyond, it is asked to do.
func TestWriterPassesOn(t *testing.T) {
	rec := httptest.NewRecorder()
	fast := &writerFast{ResponseWriter: rec}
	httpretry.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n, err := io.Copy(w, io.LimitReader(strings.NewReader("copied "), 7))
		assert.NoError(t, err)
		assert.EqualValues(t, 7, n)
		_, err = io.WriteString(w, "string")
		assert.NoError(t, err)
		pusher, ok := w.(http.Pusher)
		require.True(t, ok)
		assert.NoError(t, pusher.Push("/style.css", &http.PushOptions{Method: "HEAD"}))
	})).ServeHTTP(fast, chainInbound(nil))
	assert.Equal(t, "copied string", rec.Body.String())
	assert.Equal(t, 1, fast.reads)
	assert.Equal(t, 1, fast.strings)
	assert.Equal(t, []string{"/style.css HEAD"}, fast.pushed)
}

// writerConn tells what was copied to it by the means of its own.
type writerConn struct {
	net.Conn
	copied *atomic.Int64
}

func (c writerConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(struct{ io.Writer }{c.Conn}, r)
	c.copied.Add(n)
	return n, err
}

type writerListener struct {
	net.Listener
	copied *atomic.Int64
}

func (l writerListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return writerConn{conn, l.copied}, err
}

// Files go from the disk to the connection, as they do without Middleware.
func TestFilesAreSentByTheSystem(t *testing.T) {
	const size = 1 << 17
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("text"), size/4), 0o600))
	for name, handler := range map[string]http.HandlerFunc{
		"ServeFile": func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) },
		"Copy": func(w http.ResponseWriter, _ *http.Request) {
			f, err := os.Open(path)
			if !assert.NoError(t, err) {
				return
			}
			defer f.Close()
			w.Header().Set("Content-Length", fmt.Sprint(size))
			_, err = io.Copy(w, f)
			assert.NoError(t, err)
		},
	} {
		var copied atomic.Int64
		srv := httptest.NewUnstartedServer(httpretry.Middleware(httpretry.Middleware(handler)))
		srv.Listener = writerListener{srv.Listener, &copied}
		srv.Start()
		resp, err := faults.Base(t, nil).RoundTrip(request(t, "GET", srv.URL, ""))
		require.NoError(t, err)
		assert.Len(t, finish(t, resp), size)
		srv.Close() // waits for the handler
		assert.GreaterOrEqual(t, copied.Load(), int64(size-512), "%s: all but what the type was told by", name)
	}
}

// writerServe serves a handler in Middleware.
func writerServe(t *testing.T, proto string, handler http.HandlerFunc) (*http.Transport, *httptest.Server) {
	t.Helper()
	return serve(t, proto, httpretry.Middleware(handler).ServeHTTP)
}

// Trailers are sent, those announced and others, after a failure that says not
// to try again, too.
func TestTrailersInMiddleware(t *testing.T) {
	forProtocols(t, func(t *testing.T, proto string) {
		base, srv := writerServe(t, proto, func(w http.ResponseWriter, r *http.Request) {
			chainVain(t, r)
			w.Header().Set("Trailer", "X-Announced, X-Should-Retry")
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, "text")
			w.Header().Set("X-Announced", "1")
			w.Header().Set(http.TrailerPrefix+"X-Other", "2")
		})
		resp, err := base.RoundTrip(request(t, "GET", srv.URL, ""))
		require.NoError(t, err)
		assert.Equal(t, "text", finish(t, resp))
		assert.Equal(t, "1", resp.Trailer.Get("X-Announced"))
		assert.Equal(t, "2", resp.Trailer.Get("X-Other"))
	})
}

// Events are on their way as soon as they are flushed, by whichever means.
func TestEventsInMiddleware(t *testing.T) {
	forProtocols(t, func(t *testing.T, proto string) {
		seen := make(chan struct{})
		base, srv := writerServe(t, proto, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 4 {
				_, err := fmt.Fprintf(w, "data: %d\n\n", i)
				assert.NoError(t, err)
				if i%2 == 0 {
					w.(http.Flusher).Flush()
				} else {
					assert.NoError(t, http.NewResponseController(w).Flush())
				}
				<-seen
			}
		})
		resp, err := base.RoundTrip(request(t, "GET", srv.URL, ""))
		require.NoError(t, err)
		events := bufio.NewReader(resp.Body)
		for i := range 4 {
			soon(t, "an event", func() {
				line, err := events.ReadString('\n')
				assert.NoError(t, err)
				assert.Equal(t, fmt.Sprintf("data: %d\n", i), line)
				_, err = events.ReadString('\n')
				assert.NoError(t, err)
				seen <- struct{}{}
			})
		}
		finish(t, resp)
	})
}

// A connection is handed over to the handler whole, before or after a request
// was given up, and to a ReverseProxy whose own transport retries.
func TestTunnelsInMiddleware(t *testing.T) {
	tunnel := func(w http.ResponseWriter, r *http.Request) {
		chainVain(t, r)
		conn, buf, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, io.LimitReader(buf, 4))
	}
	base, srv := writerServe(t, http1, tunnel)
	proxy := chainProxy(contract.New(t, httpretry.Config{Base: base, Policy: chainPolicy(3)}), srv.URL)
	_, front := writerServe(t, http1, proxy.ServeHTTP)
	for name, url := range map[string]string{"hijacked": srv.URL, "proxied": front.URL} {
		req := request(t, "GET", url, "")
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
		resp, err := base.RoundTrip(req)
		require.NoError(t, err, name)
		require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode, name)
		conn, ok := resp.Body.(io.ReadWriteCloser)
		require.True(t, ok)
		_, err = io.WriteString(conn, "echo")
		require.NoError(t, err)
		echo, err := io.ReadAll(conn)
		require.NoError(t, err)
		assert.Equal(t, "echo", string(echo), name)
		assert.NoError(t, conn.Close())
	}
}

// http.TimeoutHandler answers for a handler that is late. Whether the answer
// tells that a request was given up is up to the Middleware around it, whichever
// handler the request was of.
func TestTimeoutHandler(t *testing.T) {
	fails := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chainVain(t, r)
		w.WriteHeader(http.StatusBadGateway)
	})
	hangs := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		chainVain(t, r)
		<-r.Context().Done()
	})
	hopes := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // waits would take too long
		call := chainCall{cfg: httpretry.Config{Policy: every(2 * time.Hour)}}
		call.send(t, r.Context(), status(503))
		w.WriteHeader(http.StatusBadGateway)
	})
	around := httpretry.Middleware
	for name, tt := range map[string]struct {
		handler http.Handler
		code    int
		says    []string
	}{
		"inside":                  {around(http.TimeoutHandler(fails, time.Hour, "late")), 502, []string{"false"}},
		"inside, late":            {around(http.TimeoutHandler(hangs, time.Second/20, "late")), 503, []string{"false"}},
		"inside, no time to wait": {around(http.TimeoutHandler(hopes, time.Hour, "late")), 502, []string{"false"}},
		"outside":                 {http.TimeoutHandler(around(fails), time.Hour, "late"), 502, []string{"false"}},
		"outside, late":           {http.TimeoutHandler(around(hangs), time.Second/20, "late"), 503, nil},
		"between":                 {around(http.TimeoutHandler(around(fails), time.Hour, "late")), 502, []string{"false"}},
		"between, late":           {around(http.TimeoutHandler(around(hangs), time.Second/20, "late")), 503, []string{"false"}},
		"none":                    {around(around(fails)), 502, []string{"false"}},
	} {
		t.Run(name, func(t *testing.T) {
			base, srv := serve(t, http1, tt.handler.ServeHTTP)
			resp, err := base.RoundTrip(request(t, "GET", srv.URL, ""))
			require.NoError(t, err)
			finish(t, resp)
			assert.Equal(t, tt.code, resp.StatusCode)
			assert.Equal(t, tt.says, resp.Header["X-Should-Retry"])
		})
	}
}

// writerForm returns a form with a file, and its type.
func writerForm(t *testing.T) (form, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	part, err := w.CreateFormFile("file", "name")
	require.NoError(t, err)
	_, err = part.Write(make([]byte, 1<<16))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String(), w.FormDataContentType()
}

// The files of a form are removed by the server, which knows the request that it
// made, and not the handler's. It removes as many as without Middleware: over
// HTTP/2 none since Go 1.27, and over HTTP/1 none after a panic.
func TestFormFilesAreRemoved(t *testing.T) {
	form, contentType := writerForm(t)
	left := func(t *testing.T, proto string, panics bool, wrap func(http.Handler) http.Handler) int {
		dir := t.TempDir()
		t.Setenv("TMPDIR", dir)
		files := func() int {
			names, err := os.ReadDir(dir)
			assert.NoError(t, err)
			return len(names)
		}
		base, srv := serve(t, proto, wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			assert.NoError(t, r.ParseMultipartForm(1))
			assert.Equal(t, 1, files(), "it is on the disk")
			if panics {
				panic(http.ErrAbortHandler)
			}
		})).ServeHTTP)
		req := request(t, "POST", srv.URL, form)
		req.Header.Set("Content-Type", contentType)
		resp, err := base.RoundTrip(req)
		require.Equal(t, panics, err != nil)
		if err == nil {
			finish(t, resp)
		}
		srv.Close() // waits for its connections
		return files()
	}
	forProtocols(t, func(t *testing.T, proto string) {
		for _, panics := range []bool{false, true} {
			bare := left(t, proto, panics, func(h http.Handler) http.Handler { return h })
			assert.Equal(t, bare, left(t, proto, panics, httpretry.Middleware))
			assert.Equal(t, bare, left(t, proto, panics, func(h http.Handler) http.Handler { return httpretry.Middleware(httpretry.Middleware(h)) }))
			assert.False(t, proto == http1 && !panics && bare > 0)
		}
	})
}

// A second status is none, and the server says so as ever.
func TestSecondStatusIsLogged(t *testing.T) {
	var logged bytes.Buffer
	srv := httptest.NewUnstartedServer(httpretry.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		chainVain(t, r)
		w.WriteHeader(http.StatusServiceUnavailable)
	})))
	srv.Config.ErrorLog = log.New(&logged, "", 0)
	srv.Start()
	resp, err := faults.Base(t, nil).RoundTrip(request(t, "GET", srv.URL, ""))
	require.NoError(t, err)
	finish(t, resp)
	srv.Close()
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Empty(t, resp.Header["X-Should-Retry"])
	assert.Contains(t, logged.String(), "superfluous")
}

// http.MaxBytesReader has the server close the connection on which more than it
// allows arrives, if it gets the server's own ResponseWriter: around Middleware.
func TestBodyLimitAroundMiddleware(t *testing.T) {
	read := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
	})
	for name, tt := range map[string]struct {
		handler http.Handler
		closes  bool
	}{
		"without": {http.MaxBytesHandler(read, 10), true},
		"around":  {http.MaxBytesHandler(httpretry.Middleware(read), 10), true},
		"inside":  {httpretry.Middleware(http.MaxBytesHandler(read, 10)), false},
	} {
		base, srv := serve(t, http1, tt.handler.ServeHTTP)
		resp, err := base.RoundTrip(request(t, "POST", srv.URL, "more than ten bytes"))
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode, name)
		assert.Equal(t, tt.closes, resp.Close, name)
	}
}
