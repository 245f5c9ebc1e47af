package recipes_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// fallback sends first attempts to the host of the request, and retries to
// another host.
type fallback struct {
	next  http.RoundTripper
	other string
}

func (f fallback) RoundTrip(req *http.Request) (*http.Response, error) {
	if httpretry.Attempt(req.Context()) > 1 {
		req = req.Clone(req.Context())
		req.URL.Host, req.Host = f.other, ""
		return f.next.RoundTrip(req)
	}
	resp, err := f.next.RoundTrip(req)
	if err == nil && resp.StatusCode >= 400 {
		// The other host need not wait as long as this one asks.
		for _, name := range []string{
			"Retry-After", "Retry-After-Ms", "X-Ms-Retry-After-Ms",
			"RateLimit", "RateLimit-Remaining", "X-RateLimit-Remaining",
		} {
			resp.Header.Del(name)
		}
	}
	return resp, err
}

// newWithFallback returns a client that sends retries to other, the first of
// them at once.
func newWithFallback(base http.RoundTripper, other string) (*http.Client, error) {
	transport, err := httpretry.New(httpretry.Config{
		Base: fallback{base, other},
		Policy: httpretry.Policy{
			AttemptTimeout: time.Second, // for a host that does not answer
			Backoff:        strategies.FastFirst{},
			Budget:         &httpretry.HostBudget{Burst: 100}, // for retries at the same time
		},
	})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}

// hosts is the two hosts: main, which gets first attempts, and other.
type hosts struct {
	main  func(*http.Request) *http.Response
	waits []string // the Retry-After of other's responses before its first 200

	mu    sync.Mutex
	asked []time.Time // when other got a request
}

func (h *hosts) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	if req.URL.Host == "api.example.com" {
		return h.main(req), nil
	}
	h.mu.Lock()
	h.asked = append(h.asked, time.Now())
	n := len(h.asked)
	h.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	if n <= len(h.waits) {
		return respond(req, http.StatusServiceUnavailable, http.Header{"Retry-After": {h.waits[n-1]}}), nil
	}
	return respond(req, http.StatusOK, nil), nil
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
		"milliseconds":      {"Retry-After-Ms": {"30000"}},
		"Azure":             {"X-Ms-Retry-After-Ms": {"30000"}},
		"RateLimit":         {"Ratelimit": {`"default";r=0;t=30`}},
		"RateLimit-Reset":   {"Ratelimit-Remaining": {"0"}, "Ratelimit-Reset": {"30"}},
		"X-RateLimit-Reset": {"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"30"}},
	} {
		for _, code := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
			t.Run(fmt.Sprint(name, " ", code), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					base := &hosts{main: func(req *http.Request) *http.Response {
						return respond(req, code, header)
					}}
					client, err := newWithFallback(base, "other.example.com")
					require.NoError(t, err)

					// A POST is not sent twice. Its response has the header.
					assert.Equal(t, code, status(t, client, request(t, "POST", "data")))
					start := time.Now()
					var requests sync.WaitGroup
					for range 20 {
						requests.Go(func() {
							assert.Equal(t, http.StatusOK, status(t, client, request(t, "PUT", "data")))
						})
					}
					requests.Wait()
					require.Len(t, base.asked, 20)
					for _, at := range base.asked {
						assert.Less(t, at.Sub(start), 5*time.Millisecond)
					}
				})
			})
		}
	}
}

// TestFallbackWaitsForTheOtherHost checks that a wait that the other host asks
// for is kept, and that a success keeps its header.
func TestFallbackWaitsForTheOtherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code, header := http.StatusServiceUnavailable, http.Header{"Retry-After": {"3600"}}
		base := &hosts{waits: []string{"7"}, main: func(req *http.Request) *http.Response {
			return respond(req, code, header)
		}}
		client, err := newWithFallback(base, "other.example.com")
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, status(t, client, request(t, "PUT", "data")))
		require.Len(t, base.asked, 2)
		assert.GreaterOrEqual(t, base.asked[1].Sub(base.asked[0]), 7*time.Second)

		code = http.StatusAccepted
		resp, err := client.Do(request(t, "PUT", "data"))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, "3600", resp.Header.Get("Retry-After"))
	})
}

// TestFallbackFromAHostThatDoesNotAnswer checks that AttemptTimeout ends the
// first attempt.
func TestFallbackFromAHostThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := &hosts{main: func(req *http.Request) *http.Response {
			<-req.Context().Done()
			return respond(req, http.StatusGatewayTimeout, nil)
		}}
		client, err := newWithFallback(base, "other.example.com")
		require.NoError(t, err)
		start := time.Now()
		assert.Equal(t, http.StatusOK, status(t, client, request(t, "GET", "")))
		require.Len(t, base.asked, 1)
		assert.Equal(t, time.Second, base.asked[0].Sub(start))
	})
}
