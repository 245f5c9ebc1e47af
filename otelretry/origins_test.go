package otelretry_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/otelretry"
	"github.com/seed421102f4/httpretry/policyfile"
	"github.com/seed421102f4/httpretry/strategies"
)

// The most specific value of Hosts wins. The port is bounded, because a server
// may redirect to any.
func TestWildcardsAndPorts(t *testing.T) {
	hosts := []string{"*.b.example", "*.a.b.example", "x.a.b.example", "a.example:8443", "*.c.example:81", "d.c.example", "[::1]:8080"}
	for url, want := range map[string]string{
		"http://x.b.example":         "server.address=*.b.example server.port=80",
		"https://y.x.b.example":      "server.address=*.b.example server.port=443",
		"http://y.a.b.example.:90":   "server.address=*.a.b.example",
		"https://x.a.B.example:0443": "server.address=x.a.b.example server.port=443",
		"http://b.example":           "server.address=_OTHER",
		"http://a.example":           "server.address=_OTHER",
		"https://a.example:8443":     "server.address=a.example server.port=8443",
		"http://d.c.example:81":      "server.address=*.c.example server.port=81",
		"http://d.c.example":         "server.address=d.c.example server.port=80",
		"http://e.c.example":         "server.address=_OTHER",
		"http://[0::1]:8080":         "server.address=::1 server.port=8080",
		"http://[::1]":               "server.address=_OTHER",
	} {
		ok := roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
		})
		metrics := recorded(t, otelretry.Config{Hosts: hosts}, ok, func(client *http.Client) { require.NoError(t, do(t, client, "GET", url)) })
		assert.Equal(t, "http.request.method=GET http.response.status_code=200 httpretry.reason=success "+want, text(onlyRequests(t, metrics).Attributes), url)
	}
}

// Gauges have the state of origins, and those with the same labels are one.
func TestOrigins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			resp := &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody, Request: req}
			if req.URL.Path == "/limited" {
				resp.Header.Set("Retry-After", "8")
			}
			return resp, nil
		})
		reader := sdkmetric.NewManualReader()
		cfg := otelretry.Config{
			MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
			Name:          "payments", Hosts: []string{"*.a.test", "b.test"},
		}
		observe, err := otelretry.Observe(cfg)
		require.NoError(t, err)
		slow := httpretry.Policy{Backoff: strategies.Constant{Wait: time.Minute}, Budget: &httpretry.HostBudget{Burst: 10, Ratio: 0.1}, MaxAttempts: 2}
		transport, err := httpretry.New(httpretry.Config{Base: base, Observe: observe,
			Policy: policy(), Policies: map[string]httpretry.Policy{"*.a.test": slow}})
		require.NoError(t, err)
		registration, err := otelretry.Origins(transport, cfg)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for _, url := range []string{"http://2.a.test", "http://2.a.test", "http://1.a.test/limited", "http://b.test", "http://c.test"} {
			wg.Go(func() { assert.NoError(t, do(t, &http.Client{Transport: transport}, "GET", url)) })
		}
		time.Sleep(2 * time.Second)
		metrics := collect(t, reader)
		labels := "httpretry.transport=payments server.address="
		assert.Equal(t, map[string]int64{labels + "*.a.test server.port=80": 3, labels + "b.test server.port=80": 0, labels + "_OTHER": 0},
			counts(t, metrics["httpretry.request.waiting"]))
		assert.Equal(t, map[string]float64{labels + "*.a.test server.port=80": 6, labels + "b.test server.port=80": 0, labels + "_OTHER": 0},
			gauges[float64](t, metrics["httpretry.cooldown.remaining"]))
		assert.Equal(t, map[string]int64{"httpretry.policy=*.a.test " + labels + "*.a.test server.port=80": 8},
			gauges[int64](t, metrics["httpretry.budget.balance"]), "of the default policy, it is Unlimited")
		wg.Wait()
		failed := "http.request.method=GET http.response.status_code=503 httpretry.outcome=transient "
		assert.Equal(t, map[string]int64{
			failed + "httpretry.policy=*.a.test " + labels + "*.a.test server.port=80": 3,
			failed + labels + "b.test server.port=80":                                  2,
			failed + labels + "_OTHER":                                                 2,
		}, counts(t, collect(t, reader)["httpretry.retries"]))
		require.NoError(t, registration.Unregister())
		assert.NotContains(t, collect(t, reader), "httpretry.request.waiting")
	})
	_, err := otelretry.Origins(nil, otelretry.Config{})
	require.EqualError(t, err, "otelretry: Origins: a nil transport: want a RetryTransport")
}

func gauges[N int64 | float64](t *testing.T, data metricdata.Aggregation) map[string]N {
	t.Helper()
	gauge, ok := data.(metricdata.Gauge[N])
	require.True(t, ok, "%T", data)
	got := map[string]N{}
	for _, point := range gauge.DataPoints {
		got[text(point.Attributes)] = point.Value
	}
	return got
}

func TestPolicyFile(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	path := filepath.Join(t.TempDir(), "policies.json")
	reloader := &policyfile.Reloader{Path: path, Transport: new(httpretry.RetryTransport), Report: func(error) {}}
	_, err := otelretry.PolicyFile(reloader, otelretry.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	require.NoError(t, err)
	assert.Empty(t, collect(t, reader), "nothing was read")
	require.NoError(t, os.WriteFile(path, []byte(`{"version": 1}`), 0o600))
	require.NoError(t, reloader.Reload())
	assert.Equal(t, map[string]int64{"": 1}, gauges[int64](t, collect(t, reader)["httpretry.policyfile.in_effect"]))
	require.NoError(t, os.Remove(path))
	require.Error(t, reloader.Reload())
	assert.Equal(t, map[string]int64{"": 0}, gauges[int64](t, collect(t, reader)["httpretry.policyfile.in_effect"]))
	_, err = otelretry.PolicyFile(nil, otelretry.Config{})
	require.EqualError(t, err, "otelretry: PolicyFile: a nil reloader: want a policyfile.Reloader")
}

// The span of a request has events for its waits: those for retries, those that
// a cool-down extends, and those of first attempts.
func TestEventsOfWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}
			switch {
			case httpretry.Attempt(req.Context()) > 1 || req.URL.Path == "/first":
			case req.URL.Path == "/dial":
				return nil, unprocessed(errors.New("refused"))
			default:
				resp.StatusCode = 429
				resp.Header.Set("Retry-After", "8")
			}
			return resp, nil
		})
		p := policy()
		p.Cooldown = httpretry.CooldownWait
		spans := tracetest.NewSpanRecorder()
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("")
		observe, err := otelretry.Observe(otelretry.Config{MeterProvider: sdkmetric.NewMeterProvider()})
		require.NoError(t, err)
		transport, err := httpretry.New(httpretry.Config{Base: base, Policy: p, Observe: observe})
		require.NoError(t, err)
		got := map[string][]string{}
		send := func(path string) {
			ctx, span := tracer.Start(context.Background(), path)
			req, err := http.NewRequestWithContext(ctx, "GET", "http://a.test"+path, nil)
			assert.NoError(t, err)
			resp, err := transport.RoundTrip(req)
			if assert.NoError(t, err) {
				assert.NoError(t, resp.Body.Close())
			}
			span.End()
		}
		send("/dial")
		var wg sync.WaitGroup
		wg.Go(func() { send("/limited") })
		synctest.Wait()
		send("/first")
		wg.Wait()
		for _, span := range spans.Ended() {
			for _, e := range span.Events() {
				for i, a := range e.Attributes { // a cool-down has jitter
					if a.Value.Type() == attribute.FLOAT64 && a.Value.AsFloat64() > 8 {
						e.Attributes[i].Value = attribute.StringValue("8+")
					}
				}
				set := attribute.NewSet(e.Attributes...)
				got[span.Name()] = append(got[span.Name()], e.Name+" "+set.Encoded(attribute.DefaultEncoder()))
			}
		}
		assert.Equal(t, map[string][]string{
			"/dial": {
				"httpretry.wait error.type=failed,httpretry.outcome=unprocessed,httpretry.wait.asked=0,httpretry.wait.planned=0.001",
				"httpretry.waited httpretry.wait.duration=0.001"},
			"/limited": {
				"httpretry.wait http.response.status_code=429,httpretry.outcome=transient,httpretry.wait.asked=8,httpretry.wait.planned=8+",
				"httpretry.waited httpretry.wait.duration=8+"},
			"/first": {"httpretry.waited httpretry.wait.duration=8+"},
		}, got)
	})
}
