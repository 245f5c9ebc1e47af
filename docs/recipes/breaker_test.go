package recipes_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sony/gobreaker/v2"
	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// breaker is a circuit breaker for one host.
type breaker struct {
	next    http.RoundTripper
	circuit *gobreaker.CircuitBreaker[*http.Response]
}

func newBreaker(next http.RoundTripper) breaker {
	return breaker{next, gobreaker.NewCircuitBreaker[*http.Response](gobreaker.Settings{
		IsExcluded: func(err error) bool { return errors.Is(err, context.Canceled) },
	})}
}

var errServer = errors.New("the server failed")

func (b breaker) RoundTrip(req *http.Request) (*http.Response, error) {
	sent := false
	resp, err := b.circuit.Execute(func() (*http.Response, error) {
		sent = true
		resp, err := b.next.RoundTrip(req)
		if err == nil && resp.StatusCode >= 500 {
			err = errServer // counts as a failure
		}
		return resp, err
	})
	switch {
	case err == errServer:
		return resp, nil
	case sent:
		return resp, err
	}
	if req.Body != nil {
		req.Body.Close()
	}
	// The circuit is open. Metrics do not count an attempt that was not sent.
	err = httpretry.WithOutcome(err, httpretry.Unprocessed)
	return nil, httpretry.WithOutcome(err, httpretry.Final) // no retry
}

// TestBreaker checks that a request fails at once while the circuit is open,
// and that the breaker counts attempts.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := play(503, 503, 503, 503, 503, 503, 200)
		client := newClient(t, httpretry.Config{
			Base: newBreaker(server),
			Policy: httpretry.Policy{
				Backoff: strategies.Constant{Wait: time.Second}, Budget: httpretry.Unlimited{},
			},
		})
		// By default, it opens after six failures in a row.
		for range 2 {
			assert.Equal(t, 503, status(t, client, request(t, "GET", "")))
		}
		start := time.Now()
		_, err := client.Do(request(t, "PUT", "data"))
		assert.ErrorIs(t, err, gobreaker.ErrOpenState)
		assert.Zero(t, time.Since(start))
		assert.Equal(t, 6, server.count())

		time.Sleep(time.Minute + 1)
		assert.Equal(t, 200, status(t, client, request(t, "PUT", "data")))
		assert.Equal(t, 7, server.count())
	})
}

// TestBreakerIgnoresCancels checks that requests that their caller cancels do
// not open the circuit.
func TestBreakerIgnoresCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := roundTripFunc(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		})
		client := newClient(t, httpretry.Config{Base: newBreaker(hang)})
		for range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			_, err := client.Do(request(t, "GET", "").WithContext(ctx))
			assert.ErrorIs(t, err, context.Canceled)
			assert.NotErrorIs(t, err, gobreaker.ErrOpenState)
		}
	})
}

// TestBreakerCountsTimeouts checks that attempts that AttemptTimeout ends open
// the circuit, although their contexts are canceled.
func TestBreakerCountsTimeouts(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	}))
	defer srv.Close()
	client := newClient(t, httpretry.Config{
		Base: newBreaker(http.DefaultTransport),
		Policy: httpretry.Policy{
			MaxAttempts: 7, AttemptTimeout: 10 * time.Millisecond, Budget: httpretry.Unlimited{},
			Backoff: strategies.Constant{Wait: time.Millisecond},
		},
	})
	_, err := client.Get(srv.URL)
	assert.ErrorIs(t, err, gobreaker.ErrOpenState)
}
