package test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/wire"
)

// Hazard G7: over HTTP/1, net/http gives a connection to the next request before it hands
// over a response without a body. If the next one is canceled, both get its cause.
// The first, which was processed, is sent again only if it is idempotent, whatever
// that cause means.
func TestCancelOfAnotherRequest(t *testing.T) {
	for name, cause := range map[string]error{
		"cancel":          nil,
		"protocol":        wire.ErrProtocol,
		"resent":          wire.ErrResent,
		"too many sends":  wire.ErrTooManySends,
		"attempt timeout": attemptTimeoutError(t),
	} {
		for _, layers := range []layering{noLayer, knownLayer, unknownLayer, observed} {
			// A layer may have canceled a context of its own.
			replaced := layers != unknownLayer && (layers != knownLayer || cause != nil)
			t.Run(name+"/"+string(layers)+"/POST", func(t *testing.T) {
				err := sendBeforeCancel(t, layers, "POST", cause, 1)
				require.Error(t, err)
				assert.False(t, httpretry.IsUnprocessed(err))
				assert.Equal(t, replaced, errors.Is(err, io.ErrUnexpectedEOF))
				if replaced {
					require.ErrorContains(t, err, "closed by the cancel of another request")
					assert.NotErrorIs(t, err, context.Canceled)
					assert.NotErrorIs(t, err, context.DeadlineExceeded)
				}
			})
			if replaced {
				t.Run(name+"/"+string(layers)+"/GET", func(t *testing.T) {
					require.NoError(t, sendBeforeCancel(t, layers, "GET", cause, 2))
				})
			}
		}
	}
}

// observed is noLayer for a transport that has an Observe.
const observed layering = "observed"

// sendBeforeCancel sends a request whose connection another one gets, which is
// canceled with cause before the response is handed over. It returns its error.
func sendBeforeCancel(
	t *testing.T, layers layering, method string, cause error, executions int32) error {
	t.Helper()
	var executed atomic.Int32
	left, leave := context.WithCancel(t.Context()) // the first attempt has ended
	defer leave()
	srv := contract.NewServer(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/first" && executed.Add(1) > 1 {
			leave()
		}
	})
	base := new(http.Transport)
	t.Cleanup(base.CloseIdleConnections)

	// The first response is handed over only after the hook has returned.
	var offered atomic.Bool
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		PutIdleConn: func(error) {
			if !offered.Swap(true) {
				cancelOnConnection(t, base, srv.URL+"/second", cause)
				<-left.Done()
			}
		}})
	req := contract.Request(t, method, srv.URL+"/first", "").WithContext(ctx)
	transport := layers.transport(t, base)
	if layers == observed {
		transport = contract.Unchecked(t, httpretry.Config{Base: base,
			Policy: contract.RetryEvery(0), Observe: func(context.Context, httpretry.Event) {}})
	}
	resp, err := transport.RoundTrip(req)
	leave()
	assert.True(t, offered.Load())
	assert.Equal(t, executions, executed.Load())
	if err == nil {
		require.NoError(t, resp.Body.Close())
	}
	return err
}

// The cancel of the request itself is not that of another one.
func TestCancelOfTheRequestItself(t *testing.T) {
	srv := contract.NewServer(t, func(http.ResponseWriter, *http.Request) {})
	for _, method := range []string{"GET", "POST"} {
		ctx, cancel := context.WithCancel(t.Context())
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { cancel() }})
		base := new(http.Transport)
		req := contract.Request(t, method, srv.URL, "").WithContext(ctx)
		_, err := noLayer.transport(t, base).RoundTrip(req) //nolint:bodyclose // it fails
		require.ErrorIs(t, err, context.Canceled)
		assert.NotContains(t, err.Error(), "another request")
		base.CloseIdleConnections()
	}
}

// cancelOnConnection sends a request, and cancels it with cause as soon as it has
// a connection.
func cancelOnConnection(t *testing.T, base http.RoundTripper, url string, cause error) {
	ctx, cancel := context.WithCancelCause(t.Context())
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			assert.True(t, info.Reused)
			cancel(cause)
		}})
	_, err := base.RoundTrip(contract.Request(t, "GET", url, "").WithContext(ctx)) //nolint:bodyclose // it fails
	assert.Error(t, err)
}

// attemptTimeoutError returns the cause with which an AttemptTimeout cancels.
func attemptTimeoutError(t *testing.T) error {
	t.Helper()
	var cause error
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		cause = context.Cause(req.Context())
		return nil, cause
	})
	policy := httpretry.Policy{MaxAttempts: 1, AttemptTimeout: time.Millisecond}
	_, err := contract.With(t, base, policy).RoundTrip( //nolint:bodyclose // it fails
		contract.Request(t, "GET", "http://example.com", ""))
	require.True(t, errors.Is(err, context.DeadlineExceeded))
	return cause
}

// A layer sends a request of its own over HTTP/1, by another RetryTransport and in
// the context of an attempt that expects HTTP/2. It ends with the attempt, which is
// then sent again, framed for HTTP/1.
func TestRequestOfALayerInAStoppedAttempt(t *testing.T) {
	var http2, asks atomic.Bool
	http2.Store(true)
	base := newAlternatingHost(t, &http2, func(http.ResponseWriter, *http.Request) {})
	tokens := contract.NewServer(t, func(http.ResponseWriter, *http.Request) {})
	inner := contract.New(t, httpretry.Config{})
	layer := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		if asks.Load() {
			token := contract.Request(t, "POST", tokens.URL, "").WithContext(req.Context())
			resp, err := inner.RoundTrip(token)
			if err != nil {
				return nil, err
			}
			_ = resp.Body.Close()
		}
		return base.RoundTrip(req)
	})
	outer := contract.New(t, httpretry.Config{Base: httpretry.Through(layer, base)})
	for _, ask := range []bool{false, true} {
		asks.Store(ask)
		resp, err := outer.RoundTrip(contract.Request(t, "POST", "https://example.com", ""))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
}
