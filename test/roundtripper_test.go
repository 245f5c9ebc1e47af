package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// Hazard H8: a base that signs requests gets each attempt unsigned, and each
// attempt arrives with one signature.
func TestSignerBelow(t *testing.T) {
	for method, payload := range map[string]string{"GET": "", "POST": "payload"} {
		var mu sync.Mutex
		var arrived [][]string
		srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
			body, _ := io.ReadAll(req.Body)
			mu.Lock()
			defer mu.Unlock()
			arrived = append(
				arrived, append(req.Header["Signature"], req.Header["Retry-Attempt"]...))
			assert.Equal(t, payload, string(body))
			c.Respond(503, "")
			return true
		})
		next, signed := faults.Base(t, nil), 0
		signer := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			assert.Empty(t, req.Header["Signature"])
			signed++
			req = req.WithContext(req.Context())
			req.Header = req.Header.Clone()
			req.Header.Add("Signature", fmt.Sprintf("number %d", signed))
			return next.RoundTrip(req)
		})
		req := contract.Request(t, method, srv.URL(), payload)
		req.Header.Set("Idempotency-Key", "k")
		contract.Send(t, contract.With(t, signer, threeAttempts), req)
		assert.Equal(t, [][]string{{"number 1"}, {"number 2", "1"}, {"number 3", "2"}}, arrived)
	}
}

// Hazard H10: http.DefaultTransport and http.DefaultClient are neither used nor
// modified.
func TestSharedGlobalsAreLeftAlone(t *testing.T) {
	srv := faults.HTTP1(t,
		func(c *faults.Conn, _ *http.Request) bool { c.Respond(503, ""); return true })
	shared, client := http.DefaultTransport, *http.DefaultClient
	t.Cleanup(func() { http.DefaultTransport = shared })
	trap := &contract.IdleCloser{
		RoundTripper: contract.BaseFunc(func(*http.Request) (*http.Response, error) {
			t.Error("http.DefaultTransport was used")
			return nil, errors.New("not this one")
		})}
	http.DefaultTransport = trap

	var transport httpretry.RetryTransport
	ctx := httpretry.WithPolicy(t.Context(), contract.RetryEvery(0))
	contract.Send(t, &transport, contract.Request(t, "GET", srv.URL(), "").WithContext(ctx))
	transport.CloseIdleConnections()

	assert.EqualValues(t, 5, srv.Requests.Load())
	assert.Zero(t, trap.Closed)
	assert.True(t, http.DefaultTransport == http.RoundTripper(trap))
	assert.Equal(t, client, *http.DefaultClient)
}

// Hazard G5, K2: http.Client calls a CancelRequest method if there is one, and
// embedded fields would add methods of theirs. There are only the documented
// methods.
func TestMethodSet(t *testing.T) {
	typ := reflect.TypeFor[*httpretry.RetryTransport]()
	var methods []string
	for method := range typ.Methods() {
		methods = append(methods, method.Name)
	}
	assert.Equal(t, []string{
		"CloseIdleConnections", "Origins", "RoundTrip", "SetPolicies", "Unwrap",
	}, methods)
	for field := range typ.Elem().Fields() {
		assert.False(t, field.Anonymous, "embedded: %s", field.Name)
	}
}

// oddError is an error with the methods that url.Error calls.
type oddError struct{ timeout, temporary bool }

func (e *oddError) Error() string   { return "odd" }
func (e *oddError) Timeout() bool   { return e.timeout }
func (e *oddError) Temporary() bool { return e.temporary }

// Hazard E4, K3: url.Error asks the error directly inside it whether it is a
// timeout. The answer is that of the base's error.
func TestErrorsStayTransparent(t *testing.T) {
	for _, odd := range []*oddError{{false, false}, {true, false}, {false, true}, {true, true}} {
		for attempts := 1; attempts <= 3; attempts++ {
			t.Run(fmt.Sprintf("%v/%d", *odd, attempts), func(t *testing.T) {
				policy := contract.RetryEvery(0)
				policy.MaxAttempts = attempts
				client := &http.Client{
					Transport: contract.With(t, contract.Play(contract.Fails(odd)), policy)}
				_, err := client.Get("http://a.test/")
				var (
					outer *url.Error
					inner *oddError
					own   *httpretry.Error
				)
				require.ErrorAs(t, err, &outer)
				assert.Equal(t, odd.timeout, outer.Timeout())
				assert.Equal(t, odd.temporary && attempts == 1, outer.Temporary(),
					"Error has no Temporary")
				require.ErrorAs(t, err, &inner)
				assert.Same(t, odd, inner)
				assert.Equal(t, attempts > 1, errors.As(err, &own))
			})
		}
	}
}

// Hazard K7: the body of a response after retries may be closed twice, read
// after that, and closed while it is read.
func TestBodyMayBeReadAfterClose(t *testing.T) {
	for _, proto := range []string{contract.HTTP1, contract.HTTP2} {
		srv, base := newTLSServer(t, proto == contract.HTTP2,
			func(w http.ResponseWriter, r *http.Request) {
				if attemptOf(r) <= 2 {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				_, _ = io.WriteString(w, strings.Repeat("text", 1<<18))
			})
		transport := retrying(t, base)
		get := func(t *testing.T) *http.Response {
			resp, err := transport.RoundTrip(contract.Request(t, "GET", srv.URL, ""))
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			require.Equal(t, proto, resp.Proto)
			return resp
		}
		t.Run(proto+"/closed twice", func(t *testing.T) {
			resp := get(t)
			require.NoError(t, resp.Body.Close())
			_ = resp.Body.Close() // net/http may return an error
			_, err := resp.Body.Read(make([]byte, 1))
			require.Error(t, err)
			require.NotErrorIs(t, err, io.EOF)
		})
		t.Run(proto+"/read to its end, and on", func(t *testing.T) {
			resp := get(t)
			assert.Len(t, contract.ReadBody(t, resp), 4<<18)
			n, err := resp.Body.Read(make([]byte, 1))
			assert.Zero(t, n)
			require.Error(t, err)
		})
		t.Run(proto+"/closed while it is read", func(t *testing.T) {
			resp := get(t)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() { _, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16)) })
				wg.Go(func() { _ = resp.Body.Close() })
			}
			wg.Wait()
			_, err := resp.Body.Read(make([]byte, 1))
			require.Error(t, err)
		})
	}
}

// Hazard C6: neither a retry nor giving up closes a connection. This runs in
// virtual time, since discarding a response that takes too long closes its
// connection.
func TestConnectionsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := map[string]int{}
		base := faults.Pipe(t, func(w http.ResponseWriter, r *http.Request) {
			requests[r.Host]++
			assert.False(t, r.Close, "the client asks for the connection's end")
			if r.Host == "bad.test" {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_, _ = io.WriteString(w, "text")
		})
		var conns atomic.Int32
		countDials(base, &conns)
		transport := retrying(t, base)
		for range 3 {
			for _, host := range []string{"good.test", "bad.test"} {
				contract.Send(t, transport, contract.Request(t, "GET", "http://"+host+"/", ""))
			}
		}
		assert.Equal(t, map[string]int{"good.test": 3, "bad.test": 15}, requests)
		assert.EqualValues(t, 2, conns.Load(), "one for each host")
	})
}

// Hazard A1, A8: goroutines may share a request, and the parts of one.
func TestSharedRequests(t *testing.T) {
	bodies := map[string]string{"GET": "", "PUT": "payload", "POST": "payload"}
	srv := contract.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, bodies[r.Method], string(body))
		assert.Equal(t, "1", r.Header.Get("X-Shared"))
		if r.Header.Get("Retry-Attempt") == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	policy := withTimeout(time.Minute)
	policy.NewIdempotencyKey = httpretry.RandomKey
	base := faults.Base(t, nil)
	base.MaxConnsPerHost = 20
	transport := contract.With(t, base, policy)
	for method, body := range bodies {
		shared := contract.Request(t, method, srv.URL, body)
		shared.Header.Set("X-Shared", "1")
		header := shared.Header.Clone()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				req := shared
				if body != "" { // the body cannot be shared
					req = shared.WithContext(shared.Context())
					req.Body, _ = shared.GetBody()
				}
				assertStatus(t, transport, req, 200)
			})
		}
		wg.Wait()
		assert.Equal(t, header, shared.Header)
	}
}

// Hazard A9: over an HTTP/2 connection that is open already, Response.Request
// of net/http is a copy that it has made of a request with a body. Through a
// RetryTransport it is the caller's request, with a context that is still alive
// after the body has ended, and that Result knows.
func TestResponseRequestOverReusedConnection(t *testing.T) {
	for _, k := range []kind{kindPost, kindPostKeyed, kindPostStreamed} {
		for status, want := range map[int]httpretry.Reason{200: httpretry.ReasonSuccess,
			204: httpretry.ReasonSuccess, 503: httpretry.ReasonBudget} {
			t.Run(fmt.Sprintf("%s/%d", k, status), func(t *testing.T) {
				srv, base := newTLSServer(t, true,
					func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
				policy := httpretry.Policy{Budget: contract.UsedUp{}}
				if status == 503 {
					policy.Idempotent = func(*http.Request) bool { return true }
				}
				transport := contract.With(t, base, policy)
				for range 3 {
					req := k.request(t, srv.URL)
					if k == kindPostStreamed {
						req.Method = "PUT"
					}
					resp := contract.Send(t, transport, req)
					require.NoError(t, resp.Request.Context().Err())
					require.NoError(t, context.Cause(resp.Request.Context()))
					assert.Same(t, req.URL, resp.Request.URL)
					assert.Equal(t, req.GetBody != nil, resp.Request.GetBody != nil)
					contract.HasResult(t, resp, 1, want)
				}
			})
		}
	}
}

// Hazard A9: the context of a request that a layer has made from the attempt's
// has the layer's values, and ends with the caller's context only.
func TestResponseRequestOfALayerOutlivesTheAttempt(t *testing.T) {
	type key struct{}
	for _, tt := range []struct{ background, nested bool }{
		{false, false}, {true, false}, {false, true}, {true, true}} {
		inner := contract.Play(s503, s200)
		var base http.RoundTripper = contract.BaseFunc(
			func(req *http.Request) (*http.Response, error) {
				return inner.RoundTrip(
					req.WithContext(context.WithValue(req.Context(), key{}, "of the layer")))
			})
		if tt.nested {
			// It makes a copy of the request if there is a timeout.
			base = unchecked(t, base, httpretry.Policy{AttemptTimeout: time.Minute})
		}
		ctx, cancel := context.WithCancel(t.Context())
		if tt.background {
			ctx = context.Background()
		}
		resp := contract.Send(t, retrying(t, base), newGet(t).WithContext(ctx))
		got := resp.Request.Context()
		require.NoError(t, got.Err())
		require.NoError(t, context.Cause(got))
		assert.Equal(t, "of the layer", got.Value(key{}))
		assert.Equal(t, 2, httpretry.Attempt(got))
		goroutines := runtime.NumGoroutine()
		derived, cancelDerived := context.WithCancel(got)
		assert.Equal(t, goroutines, runtime.NumGoroutine())
		cancel()
		if !tt.background {
			require.ErrorIs(t, got.Err(), context.Canceled)
			require.ErrorIs(t, context.Cause(got), context.Canceled)
			waitFor(t, "the end of a derived context", func() { <-derived.Done() })
		}
		cancelDerived()
	}
}

// countingContext counts the values that it is asked for.
type countingContext struct {
	context.Context
	lookups *int
}

func (c countingContext) Value(key any) any {
	*c.lookups++
	return c.Context.Value(key)
}

// newPage returns a response to req that can be resumed.
func newPage(status int, req *http.Request) *http.Response {
	return &http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{"Etag": {`"v1"`}}, ContentLength: 4,
		Body: io.NopCloser(strings.NewReader("page")),
	}
}

// layerKey is the key of a value that a layer adds to a context.
type layerKey struct{}

// Hazard A9: a caller may make each request in the context of the response
// before it, such as for the next page. That takes no longer from page to page,
// and keeps no earlier response in memory unless a layer's values do. A caller
// may also derive the context of each request from that of the response before.
// All of them stay in memory then, but no attempt after the first does, and a
// page adds one link to the chain of a lookup.
func TestPagesInTheContextOfTheResponseBefore(t *testing.T) {
	const pages = 10
	refused := contract.RetryEvery(0)
	refused.Budget = contract.UsedUp{}
	for name, tt := range map[string]struct {
		policy httpretry.Policy
		fails  bool // the first attempt of each page
	}{
		"retry":   {contract.RetryEvery(0), true},
		"timeout": {httpretry.Policy{AttemptTimeout: time.Hour}, false},
		"resume":  {httpretry.Policy{Resume: true}, false},
		"refused": {refused, true},
	} {
		for layer, change := range map[string]func(*http.Request) *http.Request{
			"no layer": func(req *http.Request) *http.Request { return req },
			"signer":   func(req *http.Request) *http.Request { return req.Clone(req.Context()) },
			"tracer": func(req *http.Request) *http.Request {
				return req.WithContext(context.WithValue(req.Context(), layerKey{}, "span"))
			},
		} {
			for _, derived := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/%t", name, layer, derived), func(t *testing.T) {
					var last weak.Pointer[http.Request] // the last attempt
					base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
						last = weak.Make(req)
						status := 200
						if tt.fails && httpretry.Attempt(req.Context()) == 1 {
							status = 503
						}
						return newPage(status, change(req)), nil
					})
					transport := contract.With(t, base, tt.policy)
					lookups, want := 0, 1
					var ctx context.Context = countingContext{context.Background(), &lookups}
					var sent, answered []weak.Pointer[http.Request]
					for range pages {
						resp := contract.Send(t, transport, newGet(t).WithContext(ctx))
						sent = append(sent, last)
						answered = append(answered, weak.Make(resp.Request))
						ctx = resp.Request.Context()
						if derived {
							ctx = countingContext{ctx, &lookups}
							want++
						}
					}
					lookups = 0
					assert.Nil(t, ctx.Value("missing"))
					assert.Equal(t, want, lookups)
					runtime.GC()
					switch {
					case layer == "tracer": // which keeps earlier responses by a value of its own
					case derived:
						for i, req := range sent[1 : pages-1] {
							assert.Nil(t, req.Value(), "page %d", i+1)
						}
					default:
						assert.Nil(t, answered[pages-2].Value())
					}
					runtime.KeepAlive(ctx)
				})
			}
		}
	}
}

// Hazard A9: Response.Request may be a copy of the caller's request, whose
// context may be of a type that cannot be compared.
func TestResponseRequestWithIncomparableContext(t *testing.T) {
	type incomparable struct {
		context.Context
		_ func()
	}
	inner := contract.Play(s503)
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		return inner.RoundTrip(req.WithContext(req.Context())) // which is a copy
	})
	req := newGet(t)
	req = req.WithContext(incomparable{Context: req.Context()})
	// The checks of contract.New compare contexts.
	resp := contract.Send(t, unchecked(t, base, httpretry.Policy{MaxAttempts: 1}), req)
	assert.Same(t, req.URL, resp.Request.URL)
}

// Hazard A9: a request in the context of a Response's Request does not end the
// attempt, whose response the caller may still be reading.
func TestSendsInTheContextOfAnOpenResponse(t *testing.T) {
	arrived, answer := make(chan struct{}), make(chan struct{})
	srv, base := newTLSServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			arrived <- struct{}{}
			<-answer
			return
		}
		_ = http.NewResponseController(w).Flush()
		<-answer
		_, _ = io.WriteString(w, "text")
	})
	layer := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		return base.RoundTrip(req.Clone(context.WithValue(req.Context(), layerKey{}, "span")))
	})
	transport := contract.New(t, httpretry.Config{Base: layer})
	stream, err := transport.RoundTrip(contract.Request(t, "POST", srv.URL, ""))
	require.NoError(t, err)
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			req := contract.Request(t, "GET", srv.URL, "").WithContext(stream.Request.Context())
			resp, err := transport.RoundTrip(req)
			if assert.NoError(t, err) {
				contract.ReadBody(t, resp)
			}
		})
		<-arrived // the second is sent while the first is unanswered
	}
	close(answer)
	others.Wait()
	assert.Equal(t, "text", contract.ReadBody(t, stream))
}

// A header map may be filled past the methods of http.Header, with keys that
// are not canonical. The library's headers replace them, and are sent once.
func TestHeaderKeysThatAreNotCanonical(t *testing.T) {
	contract.ForProtocols(t, func(t *testing.T, proto string) {
		var headers []http.Header
		base, srv := contract.Serve(t, proto, func(w http.ResponseWriter, r *http.Request) {
			headers = append(headers, r.Header.Clone())
			if len(headers) < 3 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		policy := contract.RetryEvery(0)
		policy.NewIdempotencyKey = func(*http.Request) string { return "made" }
		transport := contract.With(t, base, policy)
		for name, tt := range map[string]struct{ given, want string }{
			"a key":        {"mine", "mine"},
			"an empty key": {"", "made"},
		} {
			t.Run(name, func(t *testing.T) {
				headers = nil
				req := contract.Request(t, "POST", srv.URL, "text")
				req.Header["idempotency-key"] = []string{tt.given}
				req.Header["RETRY-attempt"] = []string{"0"}
				contract.Send(t, transport, req)
				require.Len(t, headers, 3)
				for i, h := range headers {
					assert.Equal(t, []string{tt.want}, h["Idempotency-Key"], "attempt %d", i+1)
					assert.Equal(t, []string{fmt.Sprint(i)}, h["Retry-Attempt"], "attempt %d", i+1)
				}
			})
		}
	})
}
