package test

import (
	"errors"
	"fmt"
	"io"
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
	err := failsInTime(t, retrying(t, base), contract.Request(t, "POST", srv.URL(), body))
	assert.EqualValues(t, 1, srv.Requests.Load(), "%v", err)
}

// copyOf returns a request of its own for req, whose body is read and closed.
func copyOf(t *testing.T, req *http.Request, url string) *http.Request {
	body, err := io.ReadAll(req.Body)
	assert.NoError(t, err)
	_ = req.Body.Close()
	return contract.Request(t, req.Method, url, string(body)).WithContext(req.Context())
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
					if streamed {
						req = req.WithContext(req.Context())
						req.Body, req.GetBody = io.NopCloser(struct{ io.Reader }{req.Body}), nil
					}
					return inner.RoundTrip(copyOf(t, req, req.URL.String()))
				})
				var base http.RoundTripper = layer
				if unwraps {
					base = httpretry.Through(layer, inner)
				}
				requireSentOnce(t, base, srv, "payload")
			})
		}
	}
}

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
		for _, tt := range []struct {
			body     string
			replaced bool // by the layer
		}{{"", false}, {"payload", false}, {"payload", true}} {
			t.Run(fmt.Sprintf("%q/%t", tt.body, tt.replaced), func(t *testing.T) {
				arrived, written, answered := make(chan struct{}), make(chan struct{}),
					make(chan struct{})
				others, otherServer := contract.Serve(t, proto,
					func(http.ResponseWriter, *http.Request) { close(arrived); <-written })
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
						req = copyOf(t, req, req.URL.String())
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
		err   error // instead of the result, which is a 425
		posts int32
	}{
		"425": {nil, 1},
		"error": {
			errors.New("http2: Transport received Server's graceful shutdown GOAWAY"), 1},
		"error with an Outcome": {unprocessedError{}, 5},
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
				if tt.err != nil {
					return nil, tt.err
				}
				return inner.RoundTrip(contract.Request(t, "GET", srv.URL+"/result", "").
					WithContext(req.Context()))
			})
			resp, err := retrying(t, base).
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
					return inner.RoundTrip(copyOf(t, req, srv.URL()))
				}))
			err := failsInTime(t, noLayer.transport(t, base),
				contract.Request(t, "POST", scheme+"://a.test/", "payload"))
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
	type sender = func(first error, next *http.Request) (*http.Response, error)
	fails := func(with func(first error) error) sender {
		return func(first error, _ *http.Request) (*http.Response, error) {
			return nil, with(first)
		}
	}
	for name, second := range map[string]sender{
		"joined with a closed connection": fails(
			func(first error) error { return errors.Join(idleClosed, first) }),
		"joined with a refused dial": fails(
			func(first error) error { return errors.Join(refused, first) }),
		"joined with a breaker's error": fails(
			func(first error) error { return errors.Join(unprocessedError{}, first) }),
		"only a refused dial":    fails(func(error) error { return refused }),
		"only a breaker's error": fails(func(error) error { return unprocessedError{} }),
		"a breaker's error in a chain": fails(
			func(first error) error { return &errorChain{unprocessedError{}, first} }),
		"only a GOAWAY": func(_ error, next *http.Request) (*http.Response, error) {
			srv := faults.HTTP2(t, func(s faults.Stream) { s.GoAway(0, faults.InternalError) })
			return faults.HTTP2Base(t).RoundTrip(
				contract.Request(t, "POST", srv.URL(), "payload").WithContext(next.Context()))
		},
		"a 425 of the layer": func(_ error, next *http.Request) (*http.Response, error) {
			return contract.Play(s425).RoundTrip(next)
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
			resp, err := retrying(t, base).
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

func refusedDial(t *testing.T) error {
	return sendFails(t, faults.Base(t, nil),
		contract.Request(t, "POST", "http://"+faults.Refused(t), "payload"))
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
	_ = sendFails(t, retrying(t, base), newRequest(t, "POST", "payload"))
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
	broken := makeBrittle(inner)
	transport := noLayer.transport(t, unwrapper{inner})
	for attempts := range 2 {
		resp := contract.Send(t, transport, contract.Request(t, "POST", srv.URL(), "payload"))
		contract.HasResult(t, resp, attempts+1, httpretry.ReasonSuccess)
		broken.Store(true)
	}
	assert.EqualValues(t, 3, requests.Load())
}
