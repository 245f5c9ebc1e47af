package recipes_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/time/rate"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// limited waits for the limiter before it sends a request.
type limited struct {
	next    http.RoundTripper
	limiter *rate.Limiter
}

func (l limited) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := l.limiter.Wait(req.Context()); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, httpretry.WithOutcome(err, httpretry.Unprocessed) // nothing was sent
	}
	return l.next.RoundTrip(req)
}

// attemptsLimited is a client that sends at most ten requests a second, retries
// included.
func attemptsLimited(base http.RoundTripper) (*http.Client, error) {
	transport, err := httpretry.New(httpretry.Config{
		Base: limited{base, rate.NewLimiter(10, 1)},
	})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}

// requestsLimited is a client that begins at most ten requests a second. Their
// retries are not limited.
func requestsLimited(base http.RoundTripper) (*http.Client, error) {
	transport, err := httpretry.New(httpretry.Config{Base: base})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: limited{transport, rate.NewLimiter(10, 1)}}, nil
}

// TestLimiter counts the most requests that arrive within a second, if each of
// a hundred needs a retry.
func TestLimiter(t *testing.T) {
	for _, tt := range []struct {
		name     string
		client   func(http.RoundTripper) (*http.Client, error)
		min, max int // in the busiest second
	}{
		{"below", attemptsLimited, 10, 11},
		{"above", requestsLimited, 15, 40},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &script{statuses: []int{http.StatusOK}}
				client, err := tt.client(roundTripFunc(func(req *http.Request) (*http.Response, error) {
					resp, err := server.RoundTrip(req)
					if req.Header.Get("Retry-Attempt") == "" {
						return respond(req, http.StatusServiceUnavailable, nil), err
					}
					return resp, err
				}))
				assert.NoError(t, err)
				ctx := httpretry.WithPolicy(t.Context(), httpretry.Policy{
					Budget: httpretry.Unlimited{}, Backoff: strategies.Constant{Wait: 2 * time.Second},
				})
				var wg sync.WaitGroup
				for range 100 {
					wg.Go(func() {
						assert.Equal(t, http.StatusOK, status(t, client, request(t, "GET", "").WithContext(ctx)))
					})
				}
				wg.Wait()
				assert.Equal(t, 200, server.count())
				assert.GreaterOrEqual(t, busiestSecond(server.sent), tt.min)
				assert.LessOrEqual(t, busiestSecond(server.sent), tt.max)
			})
		})
	}
}

// busiestSecond returns the most requests that arrived within a second.
func busiestSecond(requests []sent) int {
	most := 0
	for i, first := range requests {
		n := i
		for n < len(requests) && requests[n].at < first.at+time.Second {
			n++
		}
		most = max(most, n-i)
	}
	return most
}

// TestLimiterThatTimesOut checks that even a POST is retried, with its body, if
// its AttemptTimeout ends while it waits for the limiter.
func TestLimiterThatTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := play(http.StatusOK)
		limiter := rate.NewLimiter(rate.Every(time.Minute), 1)
		assert.True(t, limiter.Allow())
		client := newClient(t, httpretry.Config{
			Base: limited{server, limiter},
			Policy: httpretry.Policy{
				AttemptTimeout: 10 * time.Second, MaxAttempts: -1, Budget: httpretry.Unlimited{},
				Backoff: strategies.Constant{Wait: 20 * time.Second},
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		assert.Equal(t, http.StatusOK, status(t, client, request(t, "POST", "data").WithContext(ctx)))
		assert.Equal(t, []string{"data"}, server.bodies())
		assert.NotEmpty(t, server.headers("Retry-Attempt")[0])
	})
}
