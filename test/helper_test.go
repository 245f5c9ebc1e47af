package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/strategies"
)

// A script has the step of each attempt.
type script = []contract.Step

// Steps of scripts.
var (
	s200    = contract.Status(200)
	s204    = contract.Status(204)
	s404    = contract.Status(404)
	s425    = contract.Status(425)
	s503    = contract.Status(503)
	reset   = contract.Fails(contract.ErrReset)
	refused = contract.Fails(contract.ErrRefused)
)

// Policies without waits and without a budget, so that requests can be counted.
var (
	twoAttempts = httpretry.Policy{
		MaxAttempts: 2, Backoff: strategies.Constant{}, Budget: httpretry.Unlimited{}}
	threeAttempts = httpretry.Policy{
		MaxAttempts: 3, Backoff: strategies.Constant{}, Budget: httpretry.Unlimited{}}
)

// retrying returns a transport over base that retries without a wait.
func retrying(t testing.TB, base http.RoundTripper) http.RoundTripper {
	t.Helper()
	return contract.With(t, base, contract.RetryEvery(0))
}

// recorded is retrying for a transport whose events are recorded.
func recorded(t testing.TB, base http.RoundTripper) (http.RoundTripper, *contract.Record) {
	t.Helper()
	events := new(contract.Record)
	return contract.Recorded(t, base, contract.RetryEvery(0), events), events
}

// withTimeout returns a policy that retries without a wait, with an AttemptTimeout.
func withTimeout(timeout time.Duration) httpretry.Policy {
	policy := contract.RetryEvery(0)
	policy.AttemptTimeout = timeout
	return policy
}

// unchecked returns a transport without a layer between it and base.
func unchecked(t testing.TB, base http.RoundTripper, p httpretry.Policy) *httpretry.RetryTransport {
	t.Helper()
	return contract.Unchecked(t, httpretry.Config{Base: base, Policy: p})
}

// sendFails sends req, and returns its error.
func sendFails(t testing.TB, transport http.RoundTripper, req *http.Request) error {
	t.Helper()
	_, err := transport.RoundTrip(req) //nolint:bodyclose // it fails
	require.Error(t, err)
	return err
}

// failsInTime is sendFails for an error that must come within waitLimit.
func failsInTime(t testing.TB, transport http.RoundTripper, req *http.Request) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(req.Context(), waitLimit)
	defer cancel()
	err := sendFails(t, transport, req.WithContext(ctx))
	require.NoError(t, ctx.Err(), "it took until the deadline: %v", err)
	return err
}

// newTLSServer starts a server with TLS, of HTTP/2 if http2 is true, and returns
// it with a transport that trusts it.
func newTLSServer(t testing.TB, http2 bool, handler http.HandlerFunc,
) (*httptest.Server, *http.Transport) {
	t.Helper()
	srv := httptest.NewUnstartedServer(handler)
	srv.EnableHTTP2 = http2
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv, srv.Client().Transport.(*http.Transport)
}

// newGet returns a GET of http://a.test/.
func newGet(t testing.TB) *http.Request {
	return contract.Request(t, http.MethodGet, "http://a.test/", "")
}

// newRequest returns a request to http://a.test/.
func newRequest(t testing.TB, method, body string) *http.Request {
	t.Helper()
	return contract.Request(t, method, "http://a.test/", body)
}

// attemptOf returns the number of the attempt that a server received.
func attemptOf(r *http.Request) int {
	n := 0
	_, _ = fmt.Sscan(r.Header.Get("Retry-Attempt"), &n)
	return n + 1
}

// waitLimit is how long a test waits for an event. No event takes nearly as
// long, and it is less than the timeout of the test binary.
const waitLimit = time.Minute

// answerEarly responds while the request is still being sent. Over HTTP/1 it
// also asks for the connection to be closed.
func answerEarly(w http.ResponseWriter, r *http.Request, code int) {
	if r.ProtoMajor < 2 {
		// or else the server first reads the whole request
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Connection", "close")
	}
	w.WriteHeader(code)
}

// waitFor fails the test if f does not return within waitLimit.
func waitFor(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(waitLimit):
		t.Fatalf("%s: not within %v", what, waitLimit)
	}
}

// randomBytes returns size bytes. Bytes from different seeds differ.
func randomBytes(seed uint64, size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(data)
	return data
}

// An upload is a kind of body that net/http does not know.
type upload string

const (
	uploadStream  upload = "stream"
	uploadGetBody upload = "GetBody"
	uploadFile    upload = "file"
)

// newUpload returns a PUT of data.
func newUpload(t testing.TB, kind upload, url string, data []byte) *http.Request {
	t.Helper()
	req := contract.Streamed(t, "PUT", url, nil)
	open := func() (io.ReadCloser, error) {
		return &contract.Body{
			ReadCloser: io.NopCloser(struct{ io.Reader }{bytes.NewReader(data)})}, nil
	}
	req.Body, _ = open()
	switch kind {
	case uploadGetBody:
		req.GetBody = open
		req.ContentLength = int64(len(data))
	case uploadFile:
		name := filepath.Join(t.TempDir(), "file")
		assert.NoError(t, os.WriteFile(name, data, 0o600))
		file, err := os.Open(name)
		assert.NoError(t, err)
		req.Body = file
	}
	return req
}

// warmUp sends a request, so that base has a connection to srv.
func warmUp(t testing.TB, base http.RoundTripper, srv *faults.HTTP2Server) {
	t.Helper()
	contract.Send(t, base, contract.Request(t, http.MethodGet, srv.URL(), ""))
	<-srv.Complete
}

// connectTo returns a transport that connects to addr, whatever the URL's host.
func connectTo(t *testing.T, addr string) *http.Transport {
	base := faults.Base(t, nil)
	base.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	return base
}

// blockedBody is a body whose Read blocks until it is closed.
type blockedBody struct {
	reading, closed chan struct{}
	begin, end      sync.Once
	closes          atomic.Int32
}

func newBlockedBody() *blockedBody {
	return &blockedBody{reading: make(chan struct{}), closed: make(chan struct{})}
}

func (b *blockedBody) Read([]byte) (int, error) {
	b.begin.Do(func() { close(b.reading) })
	<-b.closed
	return 0, errors.New("read of a closed body")
}

func (b *blockedBody) Close() error {
	b.closes.Add(1)
	b.end.Do(func() { close(b.closed) })
	return nil
}

func (b *blockedBody) Closes() int { return int(b.closes.Load()) }

// newBodyBase returns a base that calls f with the body and the number of each
// attempt, and responds with the status that f returns. f may keep the body.
func newBodyBase(f func(body io.ReadCloser, attempt int) int) contract.BaseFunc {
	return func(req *http.Request) (*http.Response, error) {
		status := f(req.Body, httpretry.Attempt(req.Context()))
		return &http.Response{StatusCode: status, Body: http.NoBody}, nil
	}
}

// readHook is a body that calls a function before each Read.
type readHook struct {
	io.ReadCloser
	before func()
}

func (b readHook) Read(p []byte) (int, error) { b.before(); return b.ReadCloser.Read(p) }

func readN(t testing.TB, r io.Reader, n int) string {
	t.Helper()
	p := make([]byte, n)
	_, err := io.ReadFull(r, p)
	require.NoError(t, err)
	return string(p)
}

// inVirtualTime runs a test over both protocols, each in a synctest bubble.
// start starts a server and returns a transport that is connected to it.
func inVirtualTime(
	t *testing.T, test func(t *testing.T, start func(http.HandlerFunc) *http.Transport)) {
	t.Helper()
	for proto, pipe := range map[string]func(testing.TB, http.HandlerFunc) *http.Transport{
		contract.HTTP1: faults.Pipe, contract.HTTP2: faults.HTTP2Pipe} {
		contract.Bubble(t, proto, func(t *testing.T) {
			// A server sleeps before it closes a connection for good, which
			// it can do only as long as this goroutine lives.
			t.Cleanup(func() { time.Sleep(time.Minute) })
			test(t, func(handler http.HandlerFunc) *http.Transport { return pipe(t, handler) })
		})
	}
}

// inVirtualTimeAs is inVirtualTime in a subtest.
func inVirtualTimeAs(t *testing.T, name string,
	test func(t *testing.T, start func(http.HandlerFunc) *http.Transport)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inVirtualTime(t, test) })
}

// countDials counts the connections that base dials.
func countDials(base *http.Transport, conns *atomic.Int32) {
	dial := base.DialContext
	base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conns.Add(1)
		return dial(ctx, network, addr)
	}
}
