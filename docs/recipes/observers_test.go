package recipes_test

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/otelretry"
)

func newObserved(
	logger *slog.Logger, meters *sdkmetric.MeterProvider, base http.RoundTripper,
) (*http.Client, error) {
	metrics, err := otelretry.Observe(otelretry.Config{MeterProvider: meters})
	if err != nil {
		return nil, err
	}
	transport, err := httpretry.New(httpretry.Config{
		Base:    base,
		Observe: httpretry.Observers(httpretry.LogEvents(logger), metrics),
	})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}

func TestObservers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		reader := sdkmetric.NewManualReader()
		client, err := newObserved(slog.New(slog.NewTextHandler(&logged, nil)),
			sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), play(503, 200))
		require.NoError(t, err)
		assert.Equal(t, 200, status(t, client, request(t, "GET", "")))

		assert.Contains(t, logged.String(), "503 Service Unavailable")
		var data metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(context.Background(), &data))
		require.Len(t, data.ScopeMetrics, 1)
		assert.Len(t, data.ScopeMetrics[0].Metrics, 4)
	})
}
