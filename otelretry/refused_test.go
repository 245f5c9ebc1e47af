package otelretry

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrytest"
	"github.com/seed421102f4/httpretry/strategies"
)

// histogram has the numbers of attempts of requests.
type histogram struct {
	noop.Int64Histogram
	recorded []int64
}

func (h *histogram) Record(_ context.Context, n int64, _ ...metric.RecordOption) {
	h.recorded = append(h.recorded, n)
}

func newObserver(t *testing.T) (*observer, *histogram) {
	t.Helper()
	o, attempts := &observer{refused: map[*http.Request]refusals{}}, new(histogram)
	require.NoError(t, o.instruments(noop.NewMeterProvider().Meter(Scope)))
	o.attempts = attempts
	return o, attempts
}

var errRefused = httpretry.WithOutcome(errors.New("the circuit is open"), httpretry.Unprocessed)

// A request that panics after a refused attempt has no last Event. The entries
// of such requests are limited, and other requests are counted as before.
func TestRefusalsAreLimited(t *testing.T) {
	o, attempts := newObserver(t)
	panics := true
	host := retrytest.Func(func(req *http.Request) (*http.Response, error) {
		switch n := httpretry.Attempt(req.Context()); {
		case n == 1, n == 2 && !panics:
			return nil, errRefused
		case panics:
			panic(http.ErrAbortHandler)
		}
		return &http.Response{StatusCode: 200}, nil
	})
	transport, err := httpretry.New(httpretry.Config{
		Base:    retrytest.Base(t, retrytest.Always(host)),
		Policy:  httpretry.Policy{Backoff: strategies.Constant{}, Budget: httpretry.Unlimited{}},
		Observe: o.observe,
	})
	require.NoError(t, err)
	get := func() {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://a.test/", nil)
		require.NoError(t, err)
		resp, err := transport.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	for range 2000 {
		assert.Panics(t, get)
	}
	assert.Len(t, o.refused, 1024)

	panics = false
	for range 3 {
		get()
	}
	assert.Len(t, o.refused, 1023)
	assert.Equal(t, []int64{1, 1, 1}, attempts.recorded)
}

// The number of attempts is not negative if a Request is sent twice at the same
// time.
func TestRefusalsOfOneRequestTwice(t *testing.T) {
	o, attempts := newObserver(t)
	req := new(http.Request)
	o.observe(t.Context(), httpretry.Event{Request: req, Attempt: httpretry.AttemptResult{Number: 1}, Err: errRefused})
	o.observe(t.Context(), httpretry.Event{Request: req, Attempt: httpretry.AttemptResult{Number: 2}, Err: errRefused})
	o.observe(t.Context(), httpretry.Event{
		Request: req, Attempt: httpretry.AttemptResult{Number: 1}, Response: &http.Response{StatusCode: 200}, Reason: httpretry.ReasonSuccess,
	})
	assert.Equal(t, []int64{0}, attempts.recorded)
}
