package test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// Hazard B10: a client that follows a 307 or 308 finds the request's GetBody
// unchanged, and each hop has its own attempts.
func TestRedirectsWithBody(t *testing.T) {
	for _, code := range []int{http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		for name, tt := range map[string]struct {
			follows bool // without GetBody a client cannot follow the redirect
			set     func(*http.Request)
		}{
			"GetBody": {true, func(req *http.Request) {
				// Not counted, since a client that follows a redirect
				// closes it again.
				req.GetBody = func() (io.ReadCloser, error) {
					return io.NopCloser(iotest.OneByteReader(strings.NewReader("text"))), nil
				}
				req.Body, _ = req.GetBody()
			}},
			"in memory": {true, func(*http.Request) {}},
			"stream": {false, func(req *http.Request) {
				req.GetBody = nil
				req.Body = contract.Counted("text")
			}},
		} {
			t.Run(fmt.Sprintf("%d/%s", code, name), func(t *testing.T) {
				var got []string
				srv := contract.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					assert.NoError(t, err)
					got = append(got, fmt.Sprintf("%s %d %s", r.URL.Path, attemptOf(r), body))
					switch {
					case attemptOf(r) < 3:
						w.WriteHeader(http.StatusServiceUnavailable)
					case r.URL.Path == "/a":
						http.Redirect(w, r, "/b", code)
					}
				})
				req := contract.Request(t, "PUT", srv.URL+"/a", "text")
				tt.set(req)
				client := &http.Client{Transport: retrying(t, nil)}
				resp, err := client.Do(req)
				require.NoError(t, err)
				contract.ReadBody(t, resp)
				want := []string{
					"/a 1 text", "/a 2 text", "/a 3 text", "/b 1 text", "/b 2 text", "/b 3 text"}
				if !tt.follows {
					assert.Equal(t, code, resp.StatusCode)
					want = want[:3]
				}
				assert.Equal(t, want, got)
			})
		}
	}
}

type sentHop struct{ host, path, method, key, attempt, auth, cookie, body string }

// Hazard H1, H2: each hop of a redirect is a request of its own, with its own
// attempts and its own key. It has only the headers that the client gives it.
func TestRedirectHops(t *testing.T) {
	for _, own := range []bool{false, true} {
		var mu sync.Mutex
		var got []sentHop
		srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
			body, _ := io.ReadAll(req.Body)
			mu.Lock()
			defer mu.Unlock()
			h := req.Header
			got = append(got, sentHop{
				req.Host, req.URL.Path, req.Method, h.Get("Idempotency-Key"),
				h.Get("Retry-Attempt"), h.Get("Authorization"), h.Get("Cookie"), string(body)})
			switch {
			case attemptOf(req) == 1:
				c.Respond(503, "")
			case req.Host == "a.test":
				c.Respond(307, "", "Location: http://b.test/second", "Retry-After: 3600")
			default:
				c.Respond(200, "done")
			}
			return true
		})
		policy := twoAttempts
		policy.NewIdempotencyKey = httpretry.RandomKey
		client := &http.Client{Transport: contract.With(t, connectTo(t, srv.Addr), policy)}
		req := contract.Request(t, "POST", "http://a.test/first", "payload")
		req.Header.Set("Authorization", "secret")
		req.Header.Set("Cookie", "secret=1")
		if own {
			req.Header.Set("Idempotency-Key", "mine")
		}
		resp, err := client.Do(req)
		require.NoError(t, err)
		assert.Equal(t, "done", contract.ReadBody(t, resp))

		require.Len(t, got, 4)
		first, second := got[0].key, got[2].key
		assert.NotEmpty(t, first)
		assert.NotEmpty(t, second)
		assert.Equal(t, own, first == "mine")
		assert.Equal(t, own, first == second, "the client passes on its own")
		assert.Equal(t, []sentHop{
			{"a.test", "/first", "POST", first, "", "secret", "secret=1", "payload"},
			{"a.test", "/first", "POST", first, "1", "secret", "secret=1", "payload"},
			{"b.test", "/second", "POST", second, "", "", "", "payload"},
			{"b.test", "/second", "POST", second, "1", "", "", "payload"},
		}, got)
	}
}

// Hazard H9: only the client follows redirects and other references to other
// URLs.
func TestNothingIsFollowed(t *testing.T) {
	for code, sends := range map[int]int32{
		300: 1, 301: 1, 302: 1, 303: 1, 305: 1, 307: 1, 308: 1, 399: 1, 201: 1, 503: 2,
	} {
		var elsewhere atomic.Int32
		other := contract.NewServer(t,
			func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
		srv := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool {
			c.Respond(code, "the body", "Location: "+other.URL, "Content-Location: "+other.URL,
				"Refresh: 0;url="+other.URL,
				"Alt-Svc: http/1.1="+strings.TrimPrefix(other.URL, "http://"),
				"Link: <"+other.URL+">; rel=alternate")
			return true
		})
		resp, err := contract.With(t, nil, twoAttempts).
			RoundTrip(contract.Request(t, "GET", srv.URL(), ""))
		require.NoError(t, err)
		assert.Equal(t, code, resp.StatusCode)
		assert.Equal(t, other.URL, resp.Header.Get("Location"))
		assert.Equal(t, "the body", contract.ReadBody(t, resp))
		assert.Equal(t, sends, srv.Requests.Load())
		assert.Zero(t, elsewhere.Load())
	}
}
