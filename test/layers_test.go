package test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// requireSentOnce sends a POST through base, and fails the test if the server,
// which refuses all streams, gets it more than once.
func requireSentOnce(t *testing.T, base http.RoundTripper, srv *faults.HTTP2Server, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	_, err := contract.With(t, base, contract.RetryEvery(0)).
		RoundTrip(contract.Request(t, "POST", srv.URL(), body).WithContext(ctx))
	require.Error(t, err)
	require.NoError(t, ctx.Err(), "it took until the deadline: %v", err)
	assert.EqualValues(t, 1, srv.Requests.Load(), "%v", err)
}

func refuseStreams(t *testing.T) *faults.HTTP2Server {
	return faults.HTTP2(t, func(s faults.Stream) { s.ResetStream(faults.RefusedStream) })
}

// Hazard 0.1: a layer that signs or logs requests may read the body and make a
// request of its own, with a GetBody that the RetryTransport does not know.
func TestAtMostOnceWithLayerThatReplacesTheBody(t *testing.T) {
	for name, streamed := range map[string]bool{"GetBody": false, "stream": true} {
		for _, unwraps := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				srv, inner := refuseStreams(t), faults.HTTP2Base(t)
				layer := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					body, err := io.ReadAll(req.Body)
					if err != nil {
						return nil, err
					}
					_ = req.Body.Close()
					own, err := http.NewRequestWithContext(
						req.Context(), req.Method, req.URL.String(), bytes.NewReader(body))
					if err != nil {
						return nil, err
					}
					return inner.RoundTrip(own)
				})
				if streamed {
					withGetBody := layer
					layer = func(req *http.Request) (*http.Response, error) {
						req = req.WithContext(req.Context())
						req.Body, req.GetBody = io.NopCloser(struct{ io.Reader }{req.Body}), nil
						return withGetBody(req)
					}
				}
				var base http.RoundTripper = layer
				if unwraps {
					base = &unwrappable{layer, inner}
				}
				requireSentOnce(t, base, srv, "payload")
			})
		}
	}
}

// unwrappable is a layer that tells what it is around.
type unwrappable struct {
	http.RoundTripper
	inner http.RoundTripper
}

func (u *unwrappable) Unwrap() http.RoundTripper { return u.inner }

// Hazard 0.1: a layer may get a token from another host first, with the context
// of the attempt.
func TestAtMostOnceAfterRequestToAnotherHost(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		for _, body := range []string{"", "payload"} {
			tokens, tokenServer := contract.Serve(t, proto,
				func(http.ResponseWriter, *http.Request) {})
			srv, inner := refuseStreams(t), faults.HTTP2Base(t)
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				resp, err := tokens.RoundTrip(
					contract.Request(t, "GET", tokenServer.URL, "").WithContext(req.Context()))
				if err != nil {
					return nil, err
				}
				contract.ReadBody(t, resp)
				return inner.RoundTrip(req)
			})
			requireSentOnce(t, base, srv, body)
		}
	})
}

// Hazard 0.1: a request to another host may be on its way when the attempt's
// own is written, and be answered before that one is refused.
func TestAtMostOnceDuringRequestToAnotherHost(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		for name, tt := range map[string]struct {
			body     string
			replaced bool // by the layer
		}{
			"no body":       {"", false},
			"body":          {"payload", false},
			"replaced body": {"payload", true},
		} {
			t.Run(name, func(t *testing.T) {
				arrived, written, answered := make(chan struct{}), make(chan struct{}),
					make(chan struct{})
				handler := func(http.ResponseWriter, *http.Request) {
					close(arrived)
					<-written
				}
				others, otherServer := contract.Serve(t, proto, handler)
				var once sync.Once
				srv := faults.HTTP2(t, func(s faults.Stream) {
					once.Do(func() { close(written) })
					<-answered
					s.ResetStream(faults.RefusedStream)
				})
				inner := faults.HTTP2Base(t)
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					go func() {
						defer close(answered)
						resp, err := others.RoundTrip(
							contract.Request(t, "GET", otherServer.URL, "").
								WithContext(req.Context()))
						if assert.NoError(t, err) {
							contract.ReadBody(t, resp)
						}
					}()
					<-arrived
					if tt.replaced {
						body, err := io.ReadAll(req.Body)
						assert.NoError(t, err)
						_ = req.Body.Close()
						req = contract.Request(t, req.Method, req.URL.String(), string(body)).
							WithContext(req.Context())
					}
					return inner.RoundTrip(req)
				})
				requireSentOnce(t, base, srv, tt.body)
			})
		}
	})
}

// A layer that follows redirects or polls for a result sends requests of its
// own after the attempt's. If those were not processed, that does not hold for
// the attempt's, which was answered.
func TestUnprocessedRequestOfALayer(t *testing.T) {
	for name, tt := range map[string]struct {
		followUp func(inner http.RoundTripper, next *http.Request) (*http.Response, error)
		posts    int32
	}{
		"425": {func(inner http.RoundTripper, next *http.Request) (*http.Response, error) {
			return inner.RoundTrip(next)
		}, 1},
		"error": {func(http.RoundTripper, *http.Request) (*http.Response, error) {
			return nil, errors.New("http2: Transport received Server's graceful shutdown GOAWAY")
		}, 1},
		"error with an Outcome": {func(http.RoundTripper, *http.Request) (*http.Response, error) {
			return nil, unprocessedError{}
		}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			var posts atomic.Int32
			handler := func(w http.ResponseWriter, r *http.Request) {
				if r.Method == "POST" {
					posts.Add(1)
					http.Redirect(w, r, "/result", http.StatusSeeOther)
					return
				}
				w.WriteHeader(http.StatusTooEarly)
			}
			inner, srv := contract.Serve(t, contract.HTTP1, handler)
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				resp, err := inner.RoundTrip(req)
				if err != nil {
					return nil, err
				}
				contract.ReadBody(t, resp)
				return tt.followUp(inner, contract.Request(t, "GET", srv.URL+"/result", "").
					WithContext(req.Context()))
			})
			resp, err := contract.With(t, base, contract.RetryEvery(0)).
				RoundTrip(contract.Request(t, "POST", srv.URL, "payload"))
			if err == nil {
				contract.ReadBody(t, resp)
			}
			assert.Equal(t, tt.posts, posts.Load())
		})
	}
}

// unprocessedError is the error of a layer that knows what it means.
type unprocessedError struct{}

func (unprocessedError) Error() string              { return "the limiter is full" }
func (unprocessedError) Outcome() httpretry.Outcome { return httpretry.Unprocessed }

// Hazard 0.1: a layer may also be a protocol that is registered with net/http's
// Transport.
func TestAtMostOnceWithRegisteredProtocol(t *testing.T) {
	for _, scheme := range []string{"http", "signed"} {
		t.Run(scheme, func(t *testing.T) {
			srv, inner := refuseStreams(t), faults.HTTP2Base(t)
			base := new(http.Transport)
			base.RegisterProtocol(
				scheme, contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					body, err := io.ReadAll(req.Body)
					if err != nil {
						return nil, err
					}
					_ = req.Body.Close()
					return inner.RoundTrip(
						contract.Request(t, req.Method, srv.URL(), string(body)).
							WithContext(req.Context()))
				}))
			ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
			defer cancel()
			_, err := contract.Unchecked(t,
				httpretry.Config{Base: base, Policy: contract.RetryEvery(0)}).
				RoundTrip(
					contract.Request(t, "POST", scheme+"://a.test/", "payload").WithContext(ctx))
			require.ErrorContains(t, err, "was stopped")
			assert.EqualValues(t, 1, srv.Requests.Load())
		})
	}
}

// A fail-over layer sends a request to another host if the first one fails. Its
// result is about both, although it may be the error or the response of one. The
// first host executes the request and resets the connection. The second one
// never gets it, or refuses it.
func TestFailOverAfterAnExecutedRequest(t *testing.T) {
	idleClosed := errors.New("http: server closed idle connection")
	refused := refusedDial(t)
	for name, second := range map[string]func(first error, next *http.Request) (
		*http.Response, error){
		"joined with a closed connection": func(first error, _ *http.Request) (
			*http.Response, error) {
			return nil, errors.Join(idleClosed, first)
		},
		"joined with a refused dial": func(first error, _ *http.Request) (*http.Response, error) {
			return nil, errors.Join(refused, first)
		},
		"joined with a breaker's error": func(first error, _ *http.Request) (
			*http.Response, error) {
			return nil, errors.Join(unprocessedError{}, first)
		},
		"only a refused dial": func(error, *http.Request) (*http.Response, error) {
			return nil, refused
		},
		"only a GOAWAY": func(_ error, next *http.Request) (*http.Response, error) {
			srv := faults.HTTP2(t, func(s faults.Stream) { s.GoAway(0, faults.InternalError) })
			return faults.HTTP2Base(t).RoundTrip(
				contract.Request(t, "POST", srv.URL(), "payload").WithContext(next.Context()))
		},
		"only a breaker's error": func(error, *http.Request) (*http.Response, error) {
			return nil, unprocessedError{}
		},
		"a breaker's error in a chain": func(first error, _ *http.Request) (
			*http.Response, error) {
			return nil, &errorChain{unprocessedError{}, first}
		},
		"a 425 of the layer": func(_ error, next *http.Request) (*http.Response, error) {
			return contract.Play(contract.Status(425)).RoundTrip(next)
		},
		"425": func(_ error, next *http.Request) (*http.Response, error) {
			inner, srv := contract.Serve(t, contract.HTTP1,
				func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooEarly) })
			return inner.RoundTrip(contract.Request(t, "POST", srv.URL, "payload").
				WithContext(next.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
				_, _ = io.Copy(io.Discard, req.Body)
				c.Reset()
				return false
			})
			inner := faults.Base(t, nil)
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				resp, err := inner.RoundTrip(req)
				if err == nil {
					return resp, nil
				}
				return second(err, req)
			})
			resp, err := contract.With(t, base, contract.RetryEvery(0)).
				RoundTrip(contract.Request(t, "POST", srv.URL(), "payload"))
			if err == nil {
				contract.ReadBody(t, resp)
			}
			assert.EqualValues(t, 1, srv.Requests.Load())
		})
	}
}

// errorChain is an error whose Unwrap returns the errors one after another, as
// some packages for several errors do.
type errorChain struct{ first, next error }

func (c *errorChain) Error() string      { return c.first.Error() + "; " + c.next.Error() }
func (c *errorChain) Unwrap() error      { return c.next }
func (c *errorChain) As(target any) bool { return errors.As(c.first, target) }

// refusedDial returns the error of a dial to a port on which nobody listens.
func refusedDial(t *testing.T) error {
	_, err := faults.Base(t, nil).RoundTrip(
		contract.Request(t, "POST", "http://"+faults.Refused(t), "payload"))
	require.Error(t, err)
	return err
}

// A fail-over layer whose first host never gets the request delivers it to the
// second one, and a retry of both follows if neither gets it.
func TestFailOverOfUnsentRequests(t *testing.T) {
	refused, tries := refusedDial(t), 0
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		_ = req.Body.Close()
		tries++
		return nil, errors.Join(refused, refused)
	})
	_, err := contract.With(t, base, contract.RetryEvery(0)).
		RoundTrip(contract.Request(t, "POST", "http://a.test/", "payload"))
	require.Error(t, err)
	assert.Equal(t, 5, tries)
}

// A connection that breaks before anything is written on it takes nothing from
// the proof of a later response: layers that have an Unwrap method send a
// request at most once, so net/http itself has sent it again.
func TestProofAfterABrokenConnection(t *testing.T) {
	var requests atomic.Int32
	srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
		_, _ = io.Copy(io.Discard, req.Body)
		if requests.Add(1) == 2 {
			c.Respond(425, "")
		} else {
			c.Respond(200, "")
		}
		return true
	})
	inner := faults.Base(t, nil)
	var first atomic.Pointer[deadConn]
	faults.WrapConns(inner, func(c net.Conn) net.Conn {
		dead := &deadConn{Conn: c}
		first.CompareAndSwap(nil, dead)
		return dead
	})
	transport := contract.Unchecked(t, httpretry.Config{
		Base: &unwrappable{inner, inner}, Policy: contract.RetryEvery(0)})
	for attempts := range 2 {
		resp := contract.Send(t, transport, contract.Request(t, "POST", srv.URL(), "payload"))
		contract.HasResult(t, resp, attempts+1, httpretry.ReasonSuccess)
		first.Load().dead.Store(true)
	}
	assert.EqualValues(t, 3, requests.Load())
}

// deadConn is a connection on which nothing more can be written.
type deadConn struct {
	net.Conn
	dead atomic.Bool
}

func (c *deadConn) Write(p []byte) (int, error) {
	if c.dead.Load() {
		return 0, errors.New("broken")
	}
	return c.Conn.Write(p)
}
