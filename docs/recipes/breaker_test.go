package recipes_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sony/gobreaker/v2"
	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/retrytest"
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

// TestBreakerIgnoresCancels checks that requests that their caller cancels do
// not open the circuit.
func TestBreakerIgnoresCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := contract.Play(retrytest.Hang())
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
	synctest.Test(t, func(t *testing.T) {
		base := faults.Pipe(t, func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		})
		client := newClient(t, httpretry.Config{
			Base: newBreaker(base),
			Policy: httpretry.Policy{
				MaxAttempts: 7, AttemptTimeout: time.Second, Budget: httpretry.Unlimited{},
			},
		})
		_, err := client.Get("http://api.example.com/")
		assert.ErrorIs(t, err, gobreaker.ErrOpenState)
	})
}
