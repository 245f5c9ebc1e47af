// Package contract has the helpers that the tests of several packages share:
//
//   - [New] returns a RetryTransport that checks, while a test uses it for
//     something else, that the contract of http.RoundTripper holds toward its
//     caller and toward its base.
//   - [Play] is a base transport that follows a script and records the attempts
//     that it gets.
//   - [Record] collects the events of a RetryTransport.
//   - [Request], [RetryEvery], [Serve] and others make requests, policies and
//     servers.
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
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// New returns a transport for cfg that fails the test in these cases:
//
//   - The caller's request is modified.
//   - The request's body, if it is a [*Body], is not closed exactly once.
//   - RoundTrip returns both a response and an error, or neither.
//   - A response of the base is still open when the test ends.
//
// If cfg.Base is nil, New makes a transport that uses no proxy.
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

// With is New for a Config that has a Base and a Policy only.
func With(t testing.TB, base http.RoundTripper, policy httpretry.Policy) http.RoundTripper {
	t.Helper()
	return New(t, httpretry.Config{Base: base, Policy: policy})
}

// Recorded is With for a transport whose events are added to record.
func Recorded(t testing.TB, base http.RoundTripper, policy httpretry.Policy,
	record *Record) http.RoundTripper {
	t.Helper()
	return New(t, httpretry.Config{Base: base, Policy: policy, Observe: record.Observe})
}

// Bubble runs test as a subtest of t, in virtual time.
func Bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// base is the side below the transport. It keeps track of the response bodies
// that are open.
type base struct {
	t    testing.TB
	next http.RoundTripper

	mu   sync.Mutex
	open map[*Body]bool
}

func (b *base) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(req)
	if resp == nil || resp.Body == nil || resp.Body == http.NoBody {
		return resp, err
	}
	// A Body would hide the Write method of a tunnel.
	if _, tunnel := resp.Body.(io.Writer); tunnel {
		return resp, err
	}
	body := &Body{ReadCloser: resp.Body}
	body.closed = func() { b.setOpen(body, false) }
	resp.Body = body
	b.setOpen(body, true)
	return resp, err
}

func (b *base) CloseIdleConnections() { closeIdle(b.next) }

// Unwrap returns the transport below.
func (b *base) Unwrap() http.RoundTripper { return b.next }

// setOpen forgets a body when it is closed, since a test may send many
// requests.
func (b *base) setOpen(body *Body, open bool) {
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
		body.await() // a goroutine may close it a moment later
		assert.NotZero(b.t, body.Closes(), "a response was never closed")
	}
}

// caller is the side above the transport.
type caller struct {
	t    testing.TB
	next http.RoundTripper
}

func (c *caller) CloseIdleConnections() { closeIdle(c.next) }

// Unwrap returns the transport that is checked.
func (c *caller) Unwrap() http.RoundTripper { return c.next }

// Unchecked returns a transport for cfg without the checks of New, for tests of
// identity and of panics, and for those that count allocations.
func Unchecked(t testing.TB, cfg httpretry.Config) *httpretry.RetryTransport {
	t.Helper()
	transport, err := httpretry.New(cfg)
	require.NoError(t, err)
	return transport
}

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
	// Functions cannot be compared, but the addresses of their code can.
	assert.Equal(c.t, reflect.ValueOf(before.GetBody).Pointer(),
		reflect.ValueOf(req.GetBody).Pointer(), "GetBody was modified")
	assert.True(c.t, before.Body == req.Body, "the request's Body was modified")
	assert.True(c.t, before.Context() == req.Context(), "the request's context was modified")
	assert.Equal(c.t, before.ContentLength, req.ContentLength, "ContentLength was modified")
	assert.Equal(c.t, resp == nil, err != nil, "either a response or an error: %v, %v", resp, err)
	switch {
	case body == nil:
	case err != nil:
		body.await() // a Close that takes long on a busy machine continues
		assert.EqualValues(c.t, 1, body.Closes(), "closes of the request's body, after an error")
	default:
		c.t.Cleanup(func() { // RoundTrip may return before the body is closed
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

// Body is a body that counts how often it is closed.
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

// Closes returns how often b was closed.
func (b *Body) Closes() int { return int(b.closes.Load()) }

// await waits up to about three seconds for b to be closed.
func (b *Body) await() {
	for i := 0; b.Closes() == 0 && i < 300; i++ {
		time.Sleep(10 * time.Millisecond)
	}
}

// Counted returns a request body that counts its closes. http.NewRequest makes
// no GetBody for it.
func Counted(body string) *Body {
	return &Body{ReadCloser: io.NopCloser(struct{ io.Reader }{strings.NewReader(body)})}
}
