package test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// seekedSource is the one reader of all bodies of a request. Each Read takes a
// while and returns at most 1000 bytes.
type seekedSource struct {
	mu   sync.Mutex // a test looks at the bytes, not at the race detector's report
	data *bytes.Reader
	read time.Duration
	wrap bool
}

func (s *seekedSource) Read(p []byte) (int, error) {
	time.Sleep(s.read)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data.Read(p[:min(len(p), 1000)])
}

// rewound is the source from its beginning, as a GetBody returns it that seeks.
func (s *seekedSource) rewound() (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.data.Seek(0, io.SeekStart)
	if s.wrap {
		return &contract.Body{ReadCloser: io.NopCloser(s)}, err
	}
	return io.NopCloser(s), err
}

// checkBody checks, in a server, that the body of req is data.
func checkBody(t *testing.T, req *http.Request, data []byte) {
	t.Helper()
	body, err := io.ReadAll(req.Body)
	assert.NoError(t, err)
	assert.True(t, bytes.Equal(data, body), "%d bytes were accepted as the body", len(body))
}

// resendServer closes the connection of a GET that was answered when a request
// with a body has arrived on it. net/http then sends the request again, with a
// body from GetBody. answer is called for each request on another connection.
func resendServer(
	t *testing.T, answer func(c *faults.Conn, req *http.Request) bool) *http.Transport {
	base, _ := faults.PipeConns(t, func(c *faults.Conn) {
		c.HTTP1(func(c *faults.Conn, req *http.Request) bool {
			switch {
			case req.Method == http.MethodGet:
				c.Respond(200, "")
				return true
			case c.Number == 1:
				_, _ = io.Copy(io.Discard, req.Body)
				return false
			}
			return answer(c, req)
		})
	})
	sendsGet(t, base)
	return base
}

// sendsGet sends a request, so that base has a connection.
func sendsGet(t *testing.T, base *http.Transport) {
	contract.Send(t, base, contract.Request(t, http.MethodGet, "http://a.test/", ""))
	synctest.Wait() // until the connection is idle
}

// Hazard B2: net/http reads the body that it got from GetBody to resend a
// request. An answer that arrives meanwhile is retried. GetBody seeks in the
// one reader that there is. The server must not accept anything but the whole
// body.
func TestGetBodySeeksDuringResend(t *testing.T) {
	data := randomBytes(1, 10_000)
	for _, tt := range []struct {
		name string
		read time.Duration
		wrap bool // GetBody returns another body each time
		want int
	}{
		{"short Reads", 10 * time.Millisecond, false, 200},
		{"short Reads, wrapped", 10 * time.Millisecond, true, 200},
		// Nobody waits for a long Read, so that body is not sent again.
		{"long Reads", time.Second, false, 503},
		{"long Reads, wrapped", time.Second, true, 503},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			base := resendServer(t, func(c *faults.Conn, req *http.Request) bool {
				if c.Number == 2 { // the resend, which is in its second Read
					_, _ = io.ReadFull(req.Body, make([]byte, 1000))
					time.Sleep(tt.read / 2)
					c.Respond(503, "later", "Connection: close")
					c.Drain()
					return false
				}
				checkBody(t, req, data)
				c.Respond(200, "")
				return true
			})
			source := &seekedSource{data: bytes.NewReader(data), read: tt.read, wrap: tt.wrap}
			body, err := source.rewound()
			require.NoError(t, err)
			req := contract.Streamed(t, http.MethodPut, "http://a.test/", body)
			req.ContentLength = -1
			req.GetBody = source.rewound
			req.Header.Set("Idempotency-Key", "a")
			transport := contract.With(t, base, contract.RetryEvery(0))
			assert.Equal(t, tt.want, contract.Send(t, transport, req).StatusCode)
			time.Sleep(time.Minute) // until the last Read has ended
		})
	}
}

// net/http may be inside a Read of the body that it got from GetBody to resend
// a request. The end of the context and of an attempt end that Read.
func TestBlockedBodyDuringResend(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timeout time.Duration // of an attempt
		want    error
	}{
		{"cancel", 0, context.Canceled},
		{"attempt timeout", time.Second, context.DeadlineExceeded},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			base := resendServer(t, func(c *faults.Conn, _ *http.Request) bool {
				c.Drain()
				return false
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			made := newBlockedBody()
			req := contract.Streamed(t, http.MethodPut, "http://a.test/",
				contract.Counted("text")).WithContext(ctx)
			req.GetBody = func() (io.ReadCloser, error) { return made, nil }
			req.Header.Set("Idempotency-Key", "a")
			policy := contract.RetryEvery(0)
			policy.MaxAttempts, policy.AttemptTimeout = 1, tt.timeout
			go func() {
				<-made.reading
				if tt.timeout == 0 {
					cancel()
				}
			}()
			_, err := contract.With(t, base, policy).RoundTrip(req)
			require.ErrorIs(t, err, tt.want)
			assert.Equal(t, 1, made.Closes())
		})
	}
}

// goAwayServer is an HTTP/2 server that answers a GET on its first connection,
// and refuses the request after it with a GOAWAY, when refuse returns. It
// answers requests on other connections.
func goAwayServer(t *testing.T, refuse func()) *http.Transport {
	base, _ := faults.PipeConns(t, func(c *faults.Conn) {
		conn := queueWrites(c.Conn)
		defer conn.Close()
		c.Conn = conn
		number, streams := c.Number, 0
		c.HTTP2(func(s faults.Stream) {
			streams++
			if number > 1 || streams == 1 {
				s.Respond(200)
				return
			}
			refuse()
			s.GoAway(s.ID-2, faults.NoError)
		})
	})
	base.Protocols = new(http.Protocols)
	base.Protocols.SetUnencryptedHTTP2(true)
	sendsGet(t, base)
	return base
}

// queuedConn is a connection whose Write does not wait for the other side to
// read, as that of a pipe does. HTTP/2 needs that, because both sides write
// before they read.
type queuedConn struct {
	net.Conn
	queue chan []byte
	done  chan struct{}
}

func queueWrites(conn net.Conn) *queuedConn {
	c := &queuedConn{conn, make(chan []byte, 1000), make(chan struct{})}
	go func() {
		defer close(c.done)
		for p := range c.queue {
			_, _ = c.Conn.Write(p) // fails once the client has closed the connection
		}
	}()
	return c
}

func (c *queuedConn) Write(p []byte) (int, error) {
	c.queue <- bytes.Clone(p)
	return len(p), nil
}

func (c *queuedConn) Close() error {
	close(c.queue)
	<-c.done
	return c.Conn.Close()
}

// After a GOAWAY on a connection that was used before, net/http calls GetBody,
// finds no connection, calls GetBody again, and forgets the body it had first.
func TestGetBodyAfterGoAway(t *testing.T) {
	for _, attempts := range []int{1, 2} {
		contract.Bubble(t, fmt.Sprintf("attempts %d", attempts), func(t *testing.T) {
			base := goAwayServer(t, func() {})
			var made []*contract.Body
			req := contract.Streamed(t, http.MethodPut, "http://a.test/", contract.Counted("text"))
			req.GetBody = func() (io.ReadCloser, error) {
				made = append(made, contract.Counted("text"))
				return made[len(made)-1], nil
			}
			policy := contract.RetryEvery(0)
			policy.MaxAttempts = attempts
			assert.Equal(t, 200, contract.Send(t, contract.With(t, base, policy), req).StatusCode)
			base.CloseIdleConnections()
			synctest.Wait()
			require.NotEmpty(t, made)
			for i, body := range made {
				assert.Equal(t, 1, body.Closes(), "closes of body %d of %d from GetBody",
					i+1, len(made))
			}
		})
	}
}

// After a GOAWAY, net/http waits for the Read of the body before it calls
// GetBody, but no longer than until the end of the context. GetBody may seek in
// the reader that is being read.
func TestGetBodyDuringRead(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timeout time.Duration // of an attempt
		want    error
	}{
		{"cancel", 0, context.Canceled},
		{"attempt timeout", 10 * time.Millisecond, context.DeadlineExceeded},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			var reading atomic.Int32 // Reads that are running
			begun := make(chan struct{}, 10)
			newBody := func() io.ReadCloser {
				text := strings.NewReader("text")
				read := contract.ReaderFunc(func(p []byte) (int, error) {
					reading.Add(1)
					defer reading.Add(-1)
					begun <- struct{}{}
					time.Sleep(40 * time.Millisecond) // also if it is closed meanwhile
					return text.Read(p)
				})
				return &contract.Body{ReadCloser: io.NopCloser(read)}
			}
			base := goAwayServer(t, func() { <-begun })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req := contract.Streamed(t, http.MethodPut, "http://a.test/", newBody()).
				WithContext(ctx)
			req.GetBody = func() (io.ReadCloser, error) {
				assert.Zero(t, reading.Load(), "Reads during GetBody")
				return newBody(), nil
			}
			policy := contract.RetryEvery(0)
			policy.MaxAttempts, policy.AttemptTimeout = 1, tt.timeout
			if tt.timeout == 0 {
				time.AfterFunc(10*time.Millisecond, cancel)
			}
			_, err := contract.With(t, base, policy).RoundTrip(req)
			require.ErrorIs(t, err, tt.want)
			time.Sleep(time.Minute) // until the last Read has ended
		})
	}
}
