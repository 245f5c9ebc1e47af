package recipes_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// newMonitored returns a client whose metrics are in registry, without
// OpenTelemetry. The labels are bounded by the configuration.
func newMonitored(registry *prometheus.Registry, base http.RoundTripper) (*http.Client, error) {
	ended := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "http_client_ended_total", Help: "Requests, and bodies that broke off, that ended.",
	}, []string{"policy", "part", "reason", "status"})
	retries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "http_client_retries_total", Help: "Retries, by the result of the attempt before.",
	}, []string{"policy", "outcome", "status"})
	waits := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "http_client_wait_seconds", Help: "Waits for retries and cool-downs.",
	})
	transport, err := httpretry.New(httpretry.Config{
		Base: base,
		Observe: func(_ context.Context, e httpretry.Event) {
			part := "request"
			if e.Resuming {
				part = "body"
			}
			if e.Waited > 0 {
				waits.Observe(e.Waited.Seconds())
			}
			if key := e.Attempt.PolicyKey; e.Reason == httpretry.ReasonNone {
				retries.WithLabelValues(key, e.Attempt.Outcome.String(), e.Status()).Inc()
			} else {
				ended.WithLabelValues(key, part, e.Reason.String(), e.Status()).Inc()
			}
		},
	})
	if err != nil {
		return nil, err
	}
	registry.MustRegister(ended, retries, waits)
	return &http.Client{Transport: transport}, nil
}

func TestPrometheus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		client, err := newMonitored(registry, play(503, 200))
		require.NoError(t, err)
		resp, err := client.Do(request(t, "GET", ""))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP http_client_ended_total Requests, and bodies that broke off, that ended.
# TYPE http_client_ended_total counter
http_client_ended_total{part="request",policy="",reason="success",status="200 OK"} 1
# HELP http_client_retries_total Retries, by the result of the attempt before.
# TYPE http_client_retries_total counter
http_client_retries_total{outcome="transient",policy="",status="503 Service Unavailable"} 1
`), "http_client_ended_total", "http_client_retries_total"))
		waits, err := testutil.GatherAndCount(registry, "http_client_wait_seconds")
		require.NoError(t, err)
		require.Equal(t, 1, waits)
	})
}
