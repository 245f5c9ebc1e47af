package recipes_test

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/otelretry"
)

// newMonitored returns a client whose metrics are in registry, which
// promhttp.HandlerFor serves.
func newMonitored(registry *prometheus.Registry, base http.RoundTripper) (*http.Client, error) {
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return nil, err
	}
	observe, err := otelretry.Observe(otelretry.Config{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)),
		Hosts:         []string{"api.example.com"}, // those that get a label of their own
	})
	if err != nil {
		return nil, err
	}
	transport, err := httpretry.New(httpretry.Config{Base: base, Observe: observe})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}

// TestPrometheus checks that the page has the names and labels of all metrics.
func TestPrometheus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		broken := play(503, 200)
		client, err := newMonitored(registry, roundTripFunc(
			func(req *http.Request) (*http.Response, error) {
				resp, err := broken.RoundTrip(req)
				resp.ContentLength, resp.Body = 1, io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))
				return resp, err
			}))
		require.NoError(t, err)
		ctx := httpretry.WithPolicyFunc(t.Context(), func(p httpretry.Policy) httpretry.Policy {
			p.Resume = true
			return p
		})
		resp, err := client.Do(request(t, "GET", "").WithContext(ctx))
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.Error(t, err)
		require.NoError(t, resp.Body.Close())

		families, err := registry.Gather()
		require.NoError(t, err)
		var got []string
		for _, family := range families {
			if !strings.HasPrefix(family.GetName(), "httpretry_") {
				continue
			}
			var labels []string
			for _, label := range family.GetMetric()[0].GetLabel() {
				if !strings.HasPrefix(label.GetName(), "otel_scope_") {
					labels = append(labels, "`"+label.GetName()+"`")
				}
			}
			host := slices.Index(labels, "`server_address`")
			require.GreaterOrEqual(t, host, 0)
			labels = slices.Delete(labels, host, host+1)
			got = append(got, "| `"+family.GetName()+"` | "+
				strings.ToLower(family.GetType().String())+" | "+strings.Join(labels, ", ")+" |")
		}
		page, err := os.ReadFile("../recipes.md")
		require.NoError(t, err)
		want := regexp.MustCompile("(?m)^\\| `httpretry_.*$").FindAllString(string(page), -1)
		slices.Sort(want)
		assert.Equal(t, want, got)
	})
}
