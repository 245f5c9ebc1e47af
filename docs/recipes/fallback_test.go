package recipes_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// fallback sends retries to the other host of the request's host.
type fallback struct {
	next  http.RoundTripper
	other map[string]string
}

func (f fallback) RoundTrip(req *http.Request) (*http.Response, error) {
	if httpretry.Attempt(req.Context()) > 1 {
		req = req.Clone(req.Context())
		req.URL.Host, req.Host = f.other[req.URL.Host], ""
	}
	return f.next.RoundTrip(req)
}

// policy is for the hosts in f.other. It makes the first retry at once.
func (f fallback) policy() httpretry.Policy {
	return httpretry.Policy{
		AttemptTimeout: time.Second, // for a host that does not answer
		Backoff:        strategies.FastFirst{},
		Budget:         &httpretry.HostBudget{Burst: 100}, // for retries at the same time
		// Retries wait for the cool-down of the other host only.
		CooldownKey: func(req *http.Request) string { return f.other[req.URL.Host] },
		RetryAfter: func(resp *http.Response) (time.Duration, bool) {
			if httpretry.Attempt(resp.Request.Context()) == 1 {
				return 0, false // the next attempt is sent to another host
			}
			return httpretry.RetryAfter(resp.Header, time.Now())
		},
	}
}

// newGateway returns a proxy that sends requests to two upstreams in turn, and
// their retries to the other one.
func newGateway(base http.RoundTripper, a, b *url.URL) (http.Handler, error) {
	layer := fallback{base, map[string]string{a.Host: b.Host, b.Host: a.Host}}
	policy := layer.policy()
	policy.AttemptTimeout = 0 // it would include the upload of a slow client
	transport, err := httpretry.New(httpretry.Config{Base: layer, Policy: policy})
	if err != nil {
		return nil, err
	}
	var turn atomic.Uint32
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL([]*url.URL{a, b}[turn.Add(1)%2])
			r.SetXForwarded()
		},
	}
	return httpretry.Middleware(proxy), nil
}

const mainHost, otherHost = "api.example.com", "other.example.com"

func newWithFallback(t *testing.T, base http.RoundTripper) *http.Client {
	layer := fallback{base, map[string]string{mainHost: otherHost}}
	return newClient(t, httpretry.Config{Base: layer, Policy: layer.policy()})
}

// hosts is two hosts. It records when each of them got a request.
type hosts struct {
	main  func(*http.Request) *http.Response
	waits []string // the Retry-After of other's responses before its first 200

	mu    sync.Mutex
	asked map[string][]time.Time
}

func (h *hosts) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	h.mu.Lock()
	if h.asked == nil {
		h.asked = make(map[string][]time.Time)
	}
	h.asked[req.URL.Host] = append(h.asked[req.URL.Host], time.Now())
	n := len(h.asked[req.URL.Host])
	h.mu.Unlock()
	switch {
	case req.URL.Host == mainHost:
		return h.main(req), nil
	case n <= len(h.waits):
		return respond(req, 503, http.Header{"Retry-After": {h.waits[n-1]}}), nil
	}
	time.Sleep(10 * time.Millisecond)
	return respond(req, 200, nil), nil
}

// answer returns a function that answers with a status and a header.
func answer(status int, header http.Header) func(*http.Request) *http.Response {
	return func(req *http.Request) *http.Response { return respond(req, status, header) }
}

// TestFallback checks that the other host is asked at once, however long a wait
// the first one asks for, and that no other request waits, either.
func TestFallback(t *testing.T) {
	later := time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC) // the bubble begins in 2000
	for name, header := range map[string]http.Header{
		"none":              nil,
		"a while":           {"Retry-After": {"30"}},
		"more than allowed": {"Retry-After": {"3600"}},
		"a date":            {"Retry-After": {later.Format(http.TimeFormat)}},
		"RateLimit":         {"Ratelimit": {`"default";r=0;t=30`}},
	} {
		for _, code := range []int{429, 503} {
			t.Run(fmt.Sprint(name, " ", code), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					base := &hosts{main: answer(code, header)}
					client := newWithFallback(t, base)

					// A POST is not sent twice.
					assert.Equal(t, code, status(t, client, request(t, "POST", "data")))
					// Nor does a cool-down that another policy has begun delay the retries.
					once := httpretry.WithPolicy(t.Context(), httpretry.Policy{MaxAttempts: 1})
					assert.Equal(t, code, status(t, client, request(t, "GET", "").WithContext(once)))

					start := time.Now()
					var requests sync.WaitGroup
					for range 20 {
						requests.Go(func() {
							assert.Equal(t, 200, status(t, client, request(t, "PUT", "data")))
						})
					}
					requests.Wait()
					require.Len(t, base.asked[otherHost], 20)
					for _, at := range base.asked[otherHost] {
						assert.Less(t, at.Sub(start), 5*time.Millisecond)
					}
				})
			})
		}
	}
}

// TestFallbackWaitsForTheOtherHost checks that a wait that the other host asks
// for is kept, also by the retry of another request.
func TestFallbackWaitsForTheOtherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := &hosts{waits: []string{"7"}, main: answer(503, http.Header{"Retry-After": {"3600"}})}
		client := newWithFallback(t, base)
		var requests sync.WaitGroup
		for i := range 2 {
			requests.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				assert.Equal(t, 200, status(t, client, request(t, "PUT", "data")))
			})
		}
		requests.Wait()
		require.Len(t, base.asked[otherHost], 3)
		for _, at := range base.asked[otherHost][1:] {
			assert.GreaterOrEqual(t, at.Sub(base.asked[otherHost][0]), 7*time.Second)
		}
	})
}

// TestFallbackFromAHostThatDoesNotAnswer checks that AttemptTimeout ends the
// first attempt.
func TestFallbackFromAHostThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := &hosts{main: func(req *http.Request) *http.Response {
			<-req.Context().Done()
			return respond(req, 504, nil)
		}}
		start := time.Now()
		assert.Equal(t, 200, status(t, newWithFallback(t, base), request(t, "GET", "")))
		require.Len(t, base.asked[otherHost], 1)
		assert.Equal(t, time.Second, base.asked[otherHost][0].Sub(start))
	})
}

// TestGateway checks to which upstreams a request goes if one is down, and that
// an inbound retry is sent once.
func TestGateway(t *testing.T) {
	for _, tt := range []struct {
		method, inbound string
		want            []int // the statuses of two requests
		main, other     int   // the requests of each upstream
	}{
		{"PUT", "", []int{200, 200}, 1, 2},
		{"POST", "", []int{200, 503}, 1, 1},
		{"PUT", "1", []int{200, 503}, 1, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			base := &hosts{main: answer(503, http.Header{"Retry-After": {"30"}})}
			gateway, err := newGateway(base, &url.URL{Scheme: "https", Host: mainHost},
				&url.URL{Scheme: "https", Host: otherHost})
			require.NoError(t, err)
			var statuses []int
			start := time.Now()
			for range tt.want {
				req := httptest.NewRequest(tt.method, "/items/7", http.NoBody)
				req.Header.Set("Retry-Attempt", tt.inbound)
				recorder := httptest.NewRecorder()
				gateway.ServeHTTP(recorder, req)
				statuses = append(statuses, recorder.Code)
			}
			assert.Equal(t, tt.want, statuses)
			assert.Less(t, time.Since(start), time.Second)
			assert.Len(t, base.asked[mainHost], tt.main)
			assert.Len(t, base.asked[otherHost], tt.other)
		})
	}
}
