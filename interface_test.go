package httpretry_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// Hazard G5, K2: http.Client looks for a CancelRequest method, and others for
// what an embedded field would lend. There is nothing but what is documented.
func TestMethodSet(t *testing.T) {
	typ := reflect.TypeFor[*httpretry.RetryTransport]()
	var methods []string
	for method := range typ.Methods() {
		methods = append(methods, method.Name)
	}
	assert.Equal(t, []string{"CloseIdleConnections", "Middleware", "RoundTrip", "Unwrap"}, methods)
	for field := range typ.Elem().Fields() {
		assert.False(t, field.Anonymous, "embedded: %s", field.Name)
	}
}

// oddError is an error that says of itself what url.Error asks for.
type oddError struct{ timeout, temporary bool }

func (e *oddError) Error() string   { return "odd" }
func (e *oddError) Timeout() bool   { return e.timeout }
func (e *oddError) Temporary() bool { return e.temporary }

// Hazard E4, K3: an error says through all layers what it said, and url.Error
// looks no deeper than one.
func TestErrorsStayTransparent(t *testing.T) {
	for _, odd := range []*oddError{{false, false}, {true, false}, {false, true}, {true, true}} {
		for attempts := 1; attempts <= 3; attempts++ {
			t.Run(fmt.Sprintf("%v/%d", *odd, attempts), func(t *testing.T) {
				policy := every(0)
				policy.MaxAttempts = attempts
				client := &http.Client{Transport: contract.New(t, httpretry.Config{Base: play(fails(odd)), Policy: policy})}
				_, err := client.Get("http://a.test/")
				var (
					outer *url.Error
					inner *oddError
					own   *httpretry.Error
				)
				require.ErrorAs(t, err, &outer)
				assert.Equal(t, odd.timeout, outer.Timeout())
				assert.Equal(t, odd.temporary, outer.Temporary())
				require.ErrorAs(t, err, &inner)
				assert.Same(t, odd, inner)
				assert.Equal(t, attempts > 1, errors.As(err, &own))
			})
		}
	}
}

// Hazard K7: the body of a response that was retried for is a body like any
// other: it may be closed twice, read after that, and closed while it is read.
func TestBodyIsUsedOddly(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		base, url := recovering(t, proto, 2, strings.Repeat("text", 1<<18))
		transport := contract.New(t, httpretry.Config{Base: base, Policy: every(0)})
		get := func(t *testing.T) *http.Response {
			resp, err := transport.RoundTrip(request(t, "GET", url, ""))
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			require.Equal(t, proto, resp.Proto)
			return resp
		}
		t.Run(proto+"/closed twice", func(t *testing.T) {
			resp := get(t)
			require.NoError(t, resp.Body.Close())
			_ = resp.Body.Close() // an error is net/http's own affair
			_, err := resp.Body.Read(make([]byte, 1))
			require.Error(t, err)
			require.NotErrorIs(t, err, io.EOF)
		})
		t.Run(proto+"/read to its end, and on", func(t *testing.T) {
			resp := get(t)
			assert.Len(t, finish(t, resp), 4<<18)
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

// recovering answers each request's first attempts with 503, and then with text.
func recovering(t testing.TB, proto string, failures int, text string) (base *http.Transport, url string) {
	t.Helper()
	server, client := faults.Certificates(t)
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if httpretryAttempt(r) <= failures {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, text)
		}),
		TLSConfig: server,
		Protocols: new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(proto == "HTTP/1.1")
	srv.Protocols.SetHTTP2(proto == "HTTP/2.0")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.ServeTLS(l, "", "") })
	t.Cleanup(func() { _ = srv.Close(); serving.Wait() })
	base = faults.Base(t, client)
	base.Protocols = srv.Protocols
	return base, "https://" + l.Addr().String()
}

// Hazard C6: neither a retry nor giving up costs a connection, of the same host
// or another. In virtual time, since a drop that takes long gives up the connection.
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
		transport := contract.New(t, httpretry.Config{Base: base, Policy: every(0)})
		for range 3 {
			for _, host := range []string{"good.test", "bad.test"} {
				resp, err := transport.RoundTrip(request(t, "GET", "http://"+host+"/", ""))
				require.NoError(t, err)
				finish(t, resp)
			}
		}
		assert.Equal(t, map[string]int{"good.test": 3, "bad.test": 15}, requests)
		assert.EqualValues(t, 2, conns.Load(), "one for each host")
	})
}

// Hazard J6: a conflict may be the first copy still at work, if there is a key
// to know it by. A key that is used for something else stays used for that.
func TestConflicts(t *testing.T) {
	for _, tt := range []struct {
		status     int
		key        string
		deliveries int32
	}{
		{409, "", 1},
		{409, "key", 5},
		{422, "", 1},
		{422, "key", 1},
	} {
		srv := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool { c.Respond(tt.status, "text"); return true })
		req := request(t, "POST", srv.URL(), "payload")
		if tt.key != "" {
			req.Header.Set("Idempotency-Key", tt.key)
		}
		resp, err := contract.New(t, httpretry.Config{Policy: every(0)}).RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, tt.status, resp.StatusCode)
		assert.Equal(t, "text", finish(t, resp))
		assert.Equal(t, tt.deliveries, srv.Requests.Load(), "%d, key %q", tt.status, tt.key)
	}
}
