package otelretry

import (
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// newObserver returns an observer, and a function that returns the sum and the
// count of the attempts that it has recorded.
func newObserver(t *testing.T) (*observer, func() (sum int64, count uint64)) {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	o := &observer{refused: map[*http.Request]refusals{}}
	require.NoError(t, o.instruments(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter(Scope)))
	return o, func() (sum int64, count uint64) {
		var data metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(t.Context(), &data))
		for _, scope := range data.ScopeMetrics {
			for _, m := range scope.Metrics {
				if m.Name != "httpretry.request.attempts" {
					continue
				}
				for _, point := range m.Data.(metricdata.Histogram[int64]).DataPoints {
					sum, count = sum+point.Sum, count+point.Count
				}
			}
		}
		return sum, count
	}
}

type base func(*http.Request) (*http.Response, error)

func (f base) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

var errRefused = httpretry.WithOutcome(errors.New("the circuit is open"), httpretry.Unprocessed)

// A request that panics after a refused attempt has no last Event. The entries
// of such requests are limited, and other requests are counted as before.
func TestRefusalsAreLimited(t *testing.T) {
	o, attempts := newObserver(t)
	panics := true
	transport, err := httpretry.New(httpretry.Config{
		Base: base(func(req *http.Request) (*http.Response, error) {
			switch n := httpretry.Attempt(req.Context()); {
			case n == 1, n == 2 && !panics:
				return nil, errRefused
			case panics:
				panic(http.ErrAbortHandler)
			}
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
		}),
		Policy:  httpretry.Policy{Backoff: strategies.Constant{}, Budget: httpretry.Unlimited{}},
		Observe: o.observe,
	})
	require.NoError(t, err)
	newRequest := func() *http.Request {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://a.test/", nil)
		require.NoError(t, err)
		return req
	}
	for range 2000 {
		assert.Panics(t, func() { _, _ = transport.RoundTrip(newRequest()) })
	}
	assert.Len(t, o.refused, 1024)

	panics = false
	for range 3 {
		resp, err := transport.RoundTrip(newRequest())
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	assert.Len(t, o.refused, 1023)
	sum, count := attempts()
	assert.EqualValues(t, 3, sum)
	assert.EqualValues(t, 3, count)
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
	sum, count := attempts()
	assert.EqualValues(t, 0, sum)
	assert.EqualValues(t, 1, count)
}
