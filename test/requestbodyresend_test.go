package test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
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

// busyResendServer is a resendServer that answers the resend with a 503, in the
// middle of the second Read of its body, of which each takes read. It answers
// later requests with a 200, and returns their bodies.
func busyResendServer(t *testing.T, read time.Duration) (base *http.Transport, accepted *[][]byte) {
	accepted = new([][]byte)
	return resendServer(t, func(c *faults.Conn, req *http.Request) bool {
		if c.Number == 2 {
			_, _ = io.ReadFull(req.Body, make([]byte, 1000))
			time.Sleep(read / 2)
			c.Respond(503, "later", "Connection: close")
			c.Drain()
			return false
		}
		body, err := io.ReadAll(req.Body)
		assert.NoError(t, err)
		*accepted = append(*accepted, body)
		c.Respond(200, "")
		return true
	}), accepted
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
	}{
		{"short Reads", 10 * time.Millisecond, false},
		{"long Reads", time.Second, false},
		{"short Reads, wrapped", 10 * time.Millisecond, true},
		{"long Reads, wrapped", time.Second, true},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			base, accepted := busyResendServer(t, tt.read)
			source := &seekedSource{data: bytes.NewReader(data), read: tt.read, wrap: tt.wrap}
			body, err := source.rewound()
			require.NoError(t, err)
			req := contract.Streamed(t, http.MethodPut, "http://a.test/", body)
			req.ContentLength = -1
			req.GetBody = source.rewound
			req.Header.Set("Idempotency-Key", "a")
			resp := contract.Send(t, contract.With(t, base, contract.RetryEvery(0)), req)
			for _, body := range *accepted {
				assert.True(t, bytes.Equal(data, body),
					"%d bytes were accepted as the body", len(body))
			}
			// Nobody waits for a long Read, so that body is not sent again.
			if tt.read < time.Second {
				assert.Equal(t, 200, resp.StatusCode)
			} else {
				assert.Equal(t, 503, resp.StatusCode)
			}
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
			transport := contract.With(t, base, policy)
			failed := make(chan error, 1)
			go func() {
				_, err := transport.RoundTrip(req)
				failed <- err
			}()
			<-made.reading
			if tt.timeout == 0 {
				cancel()
			}
			select {
			case err := <-failed:
				require.ErrorIs(t, err, tt.want)
				assert.Equal(t, 1, made.Closes())
			case <-time.After(time.Hour):
				_ = made.Close()
				t.Error("RoundTrip does not return before Close:", <-failed)
			}
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

// guardedBody is a body whose Read takes a while, also if it is closed
// meanwhile.
type guardedBody struct {
	io.ReadCloser
	took    time.Duration
	reading *atomic.Int32 // Reads that are running
	begun   chan struct{} // receives a value when one begins
}

func (b *guardedBody) Read(p []byte) (int, error) {
	b.reading.Add(1)
	defer b.reading.Add(-1)
	b.begun <- struct{}{}
	time.Sleep(b.took)
	return b.ReadCloser.Read(p)
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
			var reading atomic.Int32
			newBody := func() *guardedBody {
				return &guardedBody{contract.Counted("text"), 40 * time.Millisecond, &reading,
					make(chan struct{}, 10)}
			}
			body := newBody()
			base := goAwayServer(t, func() { <-body.begun })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req := contract.Streamed(t, http.MethodPut, "http://a.test/", body).WithContext(ctx)
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
