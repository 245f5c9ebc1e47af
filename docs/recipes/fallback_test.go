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
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/retrytest"
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

// hosts has the script of each host.
type hosts map[string]*contract.Script

func (h hosts) RoundTrip(req *http.Request) (*http.Response, error) {
	return h[req.URL.Host].RoundTrip(req)
}

// newHosts returns a host with one answer to all requests, and another one that
// answers 200 after these steps.
func newHosts(main contract.Step, other ...contract.Step) hosts {
	return hosts{
		mainHost:  contract.Play(main),
		otherHost: contract.Play(append(other, contract.Step{Takes: 10 * time.Millisecond})...),
	}
}

func newWithFallback(t *testing.T, base hosts) *http.Client {
	layer := fallback{base, map[string]string{mainHost: otherHost}}
	return newClient(t, httpretry.Config{Base: layer, Policy: layer.policy()})
}

// TestFallback checks that the other host is asked at once, however long a wait
// the first one asks for, and that no other request waits, either.
func TestFallback(t *testing.T) {
	later := time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC) // the bubble begins in 2000
	for name, header := range map[string][]string{
		"none":              nil,
		"a while":           {"Retry-After", "30"},
		"more than allowed": {"Retry-After", "3600"},
		"a date":            {"Retry-After", later.Format(http.TimeFormat)},
		"RateLimit":         {"Ratelimit", `"default";r=0;t=30`},
	} {
		for _, code := range []int{429, 503} {
			contract.Bubble(t, fmt.Sprint(name, " ", code), func(t *testing.T) {
				base := newHosts(contract.Status(code, header...))
				client := newWithFallback(t, base)

				// A POST is not sent twice.
				assert.Equal(t, code, status(t, client, request(t, "POST", "data")))
				// Nor does a cool-down that another policy has begun delay the retries.
				once := httpretry.WithPolicy(t.Context(), httpretry.Policy{MaxAttempts: 1})
				assert.Equal(t, code, status(t, client, request(t, "GET", "").WithContext(once)))

				var requests sync.WaitGroup
				for range 20 {
					requests.Go(func() {
						assert.Equal(t, 200, status(t, client, request(t, "PUT", "data")))
					})
				}
				requests.Wait()
				require.Len(t, base[otherHost].Attempts(), 20)
				assert.Less(t, base[otherHost].Attempts()[19].At, 5*time.Millisecond)
			})
		}
	}
}

// TestFallbackWaitsForTheOtherHost checks that a wait that the other host asks
// for is kept, also by the retry of another request.
func TestFallbackWaitsForTheOtherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newHosts(contract.Status(503, "Retry-After", "3600"),
			contract.Status(503, "Retry-After", "7"))
		client := newWithFallback(t, base)
		var requests sync.WaitGroup
		for i := range 2 {
			requests.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				assert.Equal(t, 200, status(t, client, request(t, "PUT", "data")))
			})
		}
		requests.Wait()
		require.Len(t, base[otherHost].Attempts(), 3)
		assert.GreaterOrEqual(t, base[otherHost].Waits()[0], 7*time.Second)
	})
}

// TestFallbackFromAHostThatDoesNotAnswer checks that AttemptTimeout ends the
// first attempt.
func TestFallbackFromAHostThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newHosts(retrytest.Hang())
		assert.Equal(t, 200, status(t, newWithFallback(t, base), request(t, "GET", "")))
		require.Len(t, base[otherHost].Attempts(), 1)
		assert.Equal(t, time.Second, base[otherHost].Attempts()[0].At)
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
			base := newHosts(contract.Status(503, "Retry-After", "30"))
			gateway, err := newGateway(base, &url.URL{Scheme: "https", Host: mainHost},
				&url.URL{Scheme: "https", Host: otherHost})
			require.NoError(t, err)
			start := time.Now()
			for _, want := range tt.want {
				req := httptest.NewRequest(tt.method, "/items/7", http.NoBody)
				req.Header.Set("Retry-Attempt", tt.inbound)
				recorder := httptest.NewRecorder()
				gateway.ServeHTTP(recorder, req)
				assert.Equal(t, want, recorder.Code)
			}
			assert.Less(t, time.Since(start), time.Second)
			assert.Len(t, base[mainHost].Attempts(), tt.main)
			assert.Len(t, base[otherHost].Attempts(), tt.other)
		})
	}
}
