// Package contract checks that a RetryTransport keeps what a RoundTripper must
// keep, towards its caller and towards its base, while a test uses it for
// something else.
package contract

import (
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// New returns a transport for cfg that fails the test if a caller's request is
// modified, if the body of one (that is a [*Body]) is closed more than once or
// not at all, if a response comes with an error or neither comes, or if a
// response of the base is still open when the test ends. A nil Base is a
// transport of its own that goes through no proxy.
func New(t testing.TB, cfg httpretry.Config) http.RoundTripper {
	t.Helper()
	b := &base{t: t, next: cfg.Base, open: map[*Body]bool{}}
	if cfg.Base == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.Proxy = nil
		b.next = own
		t.Cleanup(own.CloseIdleConnections)
	}
	cfg.Base = b
	transport, err := httpretry.New(cfg)
	require.NoError(t, err)
	t.Cleanup(b.check)
	return &caller{t: t, next: transport}
}

// base follows the body of every response that is handed to the transport.
type base struct {
	t    testing.TB
	next http.RoundTripper

	mu   sync.Mutex
	open map[*Body]bool
}

func (b *base) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(req)
	if resp != nil && resp.Body != nil && resp.Body != http.NoBody {
		if _, tunnel := resp.Body.(io.Writer); !tunnel {
			body := &Body{ReadCloser: resp.Body}
			body.closed = func() { b.follow(body, false) }
			resp.Body = body
			b.follow(body, true)
		}
	}
	return resp, err
}

func (b *base) CloseIdleConnections() { closeIdle(b.next) }

// Unwrap lets a RetryTransport see another one below it.
func (b *base) Unwrap() http.RoundTripper { return b.next }

// follow keeps no body beyond its end: a test may send many requests.
func (b *base) follow(body *Body, open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if open {
		b.open[body] = true
	} else {
		delete(b.open, body)
	}
}

func (b *base) check() {
	b.mu.Lock()
	open := slices.Collect(maps.Keys(b.open))
	b.mu.Unlock()
	for _, body := range open {
		body.await() // one that was left behind may be closed a moment later
		assert.NotZero(b.t, body.Closes(), "a response was never closed")
	}
}

// caller stands where the caller is.
type caller struct {
	t    testing.TB
	next http.RoundTripper
}

func (c *caller) CloseIdleConnections() { closeIdle(c.next) }

// Unwrap returns the transport that is checked.
func (c *caller) Unwrap() http.RoundTripper { return c.next }

func closeIdle(rt http.RoundTripper) {
	if c, ok := rt.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (c *caller) RoundTrip(req *http.Request) (*http.Response, error) {
	before := *req
	url, header := urlOf(req), req.Header.Clone()
	body, _ := req.Body.(*Body)

	resp, err := c.next.RoundTrip(req)

	assert.Equal(c.t, url, urlOf(req), "the request's URL was modified")
	assert.Equal(c.t, header, req.Header, "the request's header was modified")
	assert.Equal(c.t, reflect.ValueOf(before.GetBody).Pointer(), reflect.ValueOf(req.GetBody).Pointer(), "GetBody was modified")
	assert.True(c.t, before.Body == req.Body, "the request's Body was modified")
	assert.True(c.t, before.Context() == req.Context(), "the request's context was modified")
	assert.Equal(c.t, before.ContentLength, req.ContentLength, "ContentLength was modified")
	assert.Equal(c.t, resp == nil, err != nil, "either a response or an error: %v, %v", resp, err)
	switch {
	case body == nil:
	case err != nil:
		assert.EqualValues(c.t, 1, body.Closes(), "closes of the request's body, after an error")
	default:
		c.t.Cleanup(func() { // RoundTrip may return before
			body.await()
			assert.EqualValues(c.t, 1, body.Closes(), "closes of the request's body")
		})
	}
	return resp, err
}

func urlOf(req *http.Request) url.URL {
	if req.URL == nil {
		return url.URL{}
	}
	return *req.URL
}

// Body counts how often it is closed.
type Body struct {
	io.ReadCloser
	closes atomic.Int32
	closed func() // or nil
}

// Close implements io.Closer.
func (b *Body) Close() error {
	b.closes.Add(1)
	if b.closed != nil {
		b.closed()
	}
	return b.ReadCloser.Close()
}

// Closes returns how often b was closed so far.
func (b *Body) Closes() int { return int(b.closes.Load()) }

// await waits for b to be closed, for up to a second or so.
func (b *Body) await() {
	for i := 0; b.Closes() == 0 && i < 1000; i++ {
		time.Sleep(time.Millisecond)
	}
}

// Counted returns a request body for which there is no GetBody.
func Counted(body string) *Body {
	return &Body{ReadCloser: io.NopCloser(struct{ io.Reader }{strings.NewReader(body)})}
}
