package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
	for name, c := range map[string]struct {
		cause error
		isOwn bool // a layer would not cancel with it
	}{
		"cancel":          {nil, false},
		"deadline":        {context.DeadlineExceeded, false},
		"client timeout":  {errClientTimeout, false},
		"protocol":        {wire.ErrProtocol, true},
		"resent":          {wire.ErrResent, true},
		"too many sends":  {wire.ErrTooManySends, true},
		"attempt timeout": {attemptTimeoutError(t), true},
	} {
		for _, layers := range []layering{noLayer, knownLayer, unknownLayer, observed} {
			// A layer may have canceled a context of its own.
			replaced := layers != unknownLayer && (layers != knownLayer || c.isOwn)
			t.Run(name+"/"+string(layers)+"/POST", func(t *testing.T) {
				err := sendBeforeCancel(t, layers, "POST", c.cause, 1)
				require.Error(t, err)
				assert.False(t, httpretry.IsUnprocessed(err))
				assert.Equal(t, replaced, errors.Is(err, io.ErrUnexpectedEOF))
				if replaced {
					require.ErrorContains(t, err, "ended by the cancel of another request")
					assert.NotErrorIs(t, err, context.Canceled)
					assert.NotErrorIs(t, err, context.DeadlineExceeded)
				}
			})
			if replaced {
				t.Run(name+"/"+string(layers)+"/GET", func(t *testing.T) {
					require.NoError(t, sendBeforeCancel(t, layers, "GET", c.cause, 2))
				})
			}
		}
	}
}

// The cause of another request's cancel may state that it was not processed, such as
// that of an errgroup in which a breaker has failed.
func TestCancelOfAnotherRequestThatStatesAnOutcome(t *testing.T) {
	cause := httpretry.WithOutcome(errors.New("breaker open"), httpretry.Unprocessed)
	for _, layers := range []layering{noLayer, observed} {
		err := sendBeforeCancel(t, layers, "POST", fmt.Errorf("group: %w", cause), 1)
		require.ErrorIs(t, err, cause)
		assert.False(t, httpretry.IsUnprocessed(err))
	}
}

// errClientTimeout has the text with which net/http cancels a request whose Cancel
// http.Client closes at its Timeout.
var errClientTimeout = errors.New("net/http: request canceled")

// The cause may be that of the request before, to which the response was not handed
// over when this one got its connection.
func TestCancelOfTheRequestBefore(t *testing.T) {
	states := httpretry.WithOutcome(errors.New("breaker open"), httpretry.Unprocessed)
	for name, cause := range map[string]error{
		"cancel":          nil,
		"attempt timeout": attemptTimeoutError(t),
		"states":          states,
		"joined":          errors.Join(states, states),
		"nothing written": fmt.Errorf("group: %w", nothingWrittenError(t)),
	} {
		for _, timeout := range []time.Duration{0, time.Minute} {
			t.Run(name+"/POST/"+timeout.String(), func(t *testing.T) {
				err := sendAfterCancel(t, "POST", timeout, cause, 1)
				require.Error(t, err)
				assert.False(t, httpretry.IsUnprocessed(err))
				assert.NotErrorIs(t, err, context.Canceled)
				assert.NotErrorIs(t, err, context.DeadlineExceeded)
			})
			t.Run(name+"/GET/"+timeout.String(), func(t *testing.T) {
				require.NoError(t, sendAfterCancel(t, "GET", timeout, cause, 2))
			})
		}
	}
}

// nothingWrittenError returns net/http's error for a connection on which it could write
// nothing.
func nothingWrittenError(t *testing.T) error {
	t.Helper()
	base := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		client, _ := net.Pipe()
		return unwritable{client}, nil
	}}
	// net/http sometimes returns the error of the write.
	for range 1000 {
		err := sendFails(t, base, contract.Request(t, "POST", "http://a.test", ""))
		if httpretry.Classify(nil, nil, err) == httpretry.Unprocessed {
			return err
		}
	}
	require.Fail(t, "no connection failed with nothing written")
	return nil
}

type unwritable struct{ net.Conn }

func (unwritable) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// beforeHandingOver returns a context in which f is called when net/http first gives
// back a connection. The response is handed over only after f has returned.
func beforeHandingOver(ctx context.Context, f func()) context.Context {
	var called atomic.Bool
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{PutIdleConn: func(error) {
		if !called.Swap(true) {
			f()
		}
	}})
}

// sendAfterCancel sends a request on the connection of another one, which is canceled
// with cause while this one is executed. It returns its error.
func sendAfterCancel(
	t *testing.T, method string, timeout time.Duration, cause error, executions int32) error {
	t.Helper()
	var executed atomic.Int32
	ctx, cancel := context.WithCancelCause(t.Context())
	srv := contract.NewServer(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/second" && executed.Add(1) == 1 {
			cancel(cause)
			<-r.Context().Done()
		}
	})
	base := new(http.Transport)
	t.Cleanup(base.CloseIdleConnections)
	policy := withTimeout(timeout)
	transport := unchecked(t, base, policy)

	result := make(chan error, 1)
	second := contract.Request(t, method, srv.URL+"/second", "")
	ctx = beforeHandingOver(ctx, func() {
		resp, err := transport.RoundTrip(second)
		if err == nil {
			_ = resp.Body.Close()
		}
		result <- err
	})
	first := contract.Request(t, "GET", srv.URL+"/first", "").WithContext(ctx)
	// It may get its response after it has closed the connection.
	if resp, err := base.RoundTrip(first); err == nil {
		_ = resp.Body.Close()
	}
	err := <-result
	assert.Equal(t, executions, executed.Load())
	return err
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

	var offered atomic.Bool
	ctx := beforeHandingOver(t.Context(), func() {
		offered.Store(true)
		cancelOnConnection(t, base, srv.URL+"/second", cause)
		<-left.Done()
	})
	req := contract.Request(t, method, srv.URL+"/first", "").WithContext(ctx)
	if cause == errClientTimeout {
		req.Cancel = make(chan struct{}) //nolint:staticcheck // http.Client sets it for its Timeout
	}
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
	srv := contract.NewServer(t, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	})
	for _, method := range []string{"GET", "POST"} {
		for _, byChannel := range []bool{false, true} {
			base := new(http.Transport)
			req := cancelAtConnection(t, contract.Request(t, method, srv.URL, ""), byChannel)
			err := sendFails(t, noLayer.transport(t, base), req)
			require.ErrorContains(t, err, "canceled")
			assert.NotContains(t, err.Error(), "another request")
			assert.Equal(t, !byChannel, errors.Is(err, context.Canceled))
			base.CloseIdleConnections()
		}
	}
}

// cancelAtConnection returns a copy of req that is canceled when it gets a connection,
// by its Cancel or by its context.
func cancelAtConnection(t *testing.T, req *http.Request, byChannel bool) *http.Request {
	ctx, cancel := context.WithCancel(req.Context())
	t.Cleanup(cancel)
	channel := make(chan struct{})
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			if byChannel {
				close(channel)
			} else {
				cancel()
			}
		}})
	req = req.WithContext(ctx)
	req.Cancel = channel //nolint:staticcheck // http.Client sets it for its Timeout
	return req
}

// A hook may be canceled by a context of its own, such as that of a shutdown, or end a
// request that was not sent.
func TestErrorOfADial(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	_, dialer := new(net.Dialer).DialContext(ended, "tcp", "127.0.0.1:1")
	states := httpretry.WithOutcome(errors.New("breaker open"), httpretry.Unprocessed)
	for _, c := range []struct {
		method    string
		err, want error
		dials     int
	}{
		{"GET", dialer, dialer, 1}, {"POST", dialer, dialer, 1},
		// Of a plain request, it is not known that it was not sent.
		{"GET", context.Canceled, io.ErrUnexpectedEOF, 3},
		{"POST", context.Canceled, context.Canceled, 1},
		{"GET", context.DeadlineExceeded, context.DeadlineExceeded, 3},
		{"POST", context.DeadlineExceeded, context.DeadlineExceeded, 3},
		{"GET", states, states, 3}, {"POST", states, states, 3},
	} {
		dials := 0
		dial := func(context.Context, string, string) (net.Conn, error) {
			dials++
			return nil, c.err
		}
		transport := unchecked(t, &http.Transport{DialContext: dial}, threeAttempts)
		err := sendFails(t, transport, contract.Request(t, c.method, "http://example.com", ""))
		require.ErrorIs(t, err, c.want, c.method)
		assert.Equal(t, c.dials, dials, "%s: %v", c.method, c.err)
	}
}

// A connection fails, and net/http opens another one, which takes too long for the hook.
func TestErrorOfADialAfterAConnection(t *testing.T) {
	var requests, dials atomic.Int32
	srv := contract.NewServer(t, func(http.ResponseWriter, *http.Request) {
		if requests.Add(1) == 2 {
			panic(http.ErrAbortHandler)
		}
	})
	base := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if dials.Add(1) == 2 {
				return nil, context.DeadlineExceeded
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		}}
	defer base.CloseIdleConnections()
	transport := unchecked(t, base, httpretry.Policy{MaxAttempts: 1, AttemptTimeout: time.Minute})
	contract.Send(t, transport, contract.Request(t, "GET", srv.URL, ""))
	err := sendFails(t, transport, contract.Request(t, "GET", srv.URL, ""))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.EqualValues(t, 2, dials.Load())
}

// net/http asks for the body again, and gets ErrResent, after a connection has failed.
func TestResendThatIsStoppedByGetBody(t *testing.T) {
	var requests atomic.Int32
	srv := contract.NewServer(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if requests.Add(1) == 2 {
			panic(http.ErrAbortHandler)
		}
	})
	policy := contract.RetryEvery(0)
	policy.Idempotent = func(*http.Request) bool { return false }
	base := new(http.Transport)
	defer base.CloseIdleConnections()
	transport := unchecked(t, base, policy)
	contract.Send(t, transport, contract.Request(t, "GET", srv.URL, "body"))
	err := sendFails(t, transport, contract.Request(t, "GET", srv.URL, "body"))
	require.ErrorIs(t, err, wire.ErrResent)
	assert.EqualValues(t, 2, requests.Load())
}

// The request of a layer has ended with a cause of its own.
func TestErrorOfALayersOwnRequest(t *testing.T) {
	sends := 0
	layer := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
		sends++
		err := fmt.Errorf("token: %w", &httpretry.Error{Err: wire.ErrResent})
		return nil, httpretry.WithOutcome(err, httpretry.Unprocessed)
	})
	for attempts, policy := range map[int]httpretry.Policy{1: {MaxAttempts: 1}, 3: threeAttempts} {
		transport := unchecked(t, httpretry.Through(layer, new(http.Transport)), policy)
		for _, method := range []string{"GET", "POST"} {
			sends = 0
			err := sendFails(t, transport, contract.Request(t, method, "http://example.com", ""))
			require.ErrorContains(t, err, "token: ")
			assert.Equal(t, attempts, sends)
		}
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
	//nolint:bodyclose // it fails
	_, err := base.RoundTrip(contract.Request(t, "GET", url, "").WithContext(ctx))
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
	err := sendFails(t, contract.With(t, base, withTimeout(time.Millisecond)), newGet(t))
	require.ErrorIs(t, err, context.DeadlineExceeded)
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
		contract.Send(t, outer, contract.Request(t, "POST", "https://example.com", ""))
	}
}
