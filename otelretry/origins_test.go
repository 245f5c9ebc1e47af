package otelretry_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
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
		"http://x.b.example":         "*.b.example server.port=80",
		"https://y.x.b.example":      "*.b.example server.port=443",
		"http://y.a.b.example.:90":   "*.a.b.example",
		"https://x.a.B.example:0443": "x.a.b.example server.port=443",
		"http://b.example":           "_OTHER",
		"http://a.example":           "_OTHER",
		"https://a.example:8443":     "a.example server.port=8443",
		"http://d.c.example:81":      "*.c.example server.port=81",
		"http://d.c.example":         "d.c.example server.port=80",
		"http://e.c.example":         "_OTHER",
		"http://[0::1]:8080":         "::1 server.port=8080",
		"http://[::1]":               "_OTHER",
	} {
		assert.Equal(t, want, serverOf(t, url, hosts...), url)
	}
}

// Gauges have the state of origins, and those with the same labels are one.
func TestOrigins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			resp := answer(req, 503)
			if req.URL.Path == "/limited" {
				resp.Header.Set("Retry-After", "8")
			}
			return resp, nil
		})
		reader, provider := measured()
		cfg := otelretry.Config{
			MeterProvider: provider, Name: "payments", Hosts: []string{"*.a.test", "b.test"}}
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
	reader, provider := measured()
	path := filepath.Join(t.TempDir(), "policies.json")
	reloader := &policyfile.Reloader{Path: path, Transport: new(httpretry.RetryTransport), Report: func(error) {}}
	_, err := otelretry.PolicyFile(reloader, otelretry.Config{MeterProvider: provider})
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

// Waits are recorded as long as they were: those for retries, those that another
// request's cool-down extends, those of first attempts, and those that a cancel
// ends. The span of a request has events for them.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			resp := answer(req, 200)
			switch {
			case httpretry.Attempt(req.Context()) > 1 || req.URL.Path == "/first":
			case req.URL.Path == "/dial":
				return nil, unprocessed(errors.New("refused"))
			case req.URL.Path == "/limited":
				resp.StatusCode = 429
				resp.Header.Set("Retry-After", "8")
			default:
				resp.StatusCode = 503
			}
			return resp, nil
		})
		spans := tracetest.NewSpanRecorder()
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("")
		slow, first := policy(), policy()
		slow.Backoff = strategies.Constant{Wait: time.Second}
		first.Cooldown = httpretry.CooldownWait
		var waited atomic.Int64 // of all requests: the base takes no time
		metrics := recorded(t, otelretry.Config{}, base, func(client *http.Client) {
			var wg sync.WaitGroup
			get := func(name string, p httpretry.Policy, limit time.Duration, want error) {
				path, _, _ := strings.Cut(name, " ")
				wg.Go(func() {
					begun := time.Now()
					ctx, span := tracer.Start(httpretry.WithPolicy(t.Context(), p), name)
					defer span.End()
					ctx, cancel := context.WithCancel(ctx)
					defer cancel()
					time.AfterFunc(limit, cancel)
					req := newRequest(t, ctx, "GET", "http://a.test"+path)
					assert.ErrorIs(t, send(client, req), want)
					waited.Add(int64(time.Since(begun)))
				})
			}
			get("/dial", policy(), time.Hour, nil)
			get("/extended", slow, time.Hour, nil)
			time.Sleep(500 * time.Millisecond)
			get("/limited", slow, time.Hour, nil)
			synctest.Wait()
			get("/first", first, time.Hour, nil)
			get("/first canceled", first, 3*time.Second, context.Canceled)
			get("/retry canceled", slow, 2*time.Second, context.Canceled)
			wg.Wait()
		})
		points := metrics["httpretry.wait"].(metricdata.Histogram[float64]).DataPoints
		require.Len(t, points, 1)
		assert.EqualValues(t, 6, points[0].Count)
		assert.InDelta(t, time.Duration(waited.Load()).Seconds(), points[0].Sum, 1e-6)

		got := map[string][]string{}
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
		const of503 = "httpretry.wait http.response.status_code=503,httpretry.outcome=transient," +
			"httpretry.wait.asked=0,httpretry.wait.planned="
		const waitedFor = "httpretry.waited httpretry.wait.duration="
		assert.Equal(t, map[string][]string{
			"/dial": {
				"httpretry.wait error.type=failed,httpretry.outcome=unprocessed,httpretry.wait.asked=0,httpretry.wait.planned=0.001",
				waitedFor + "0.001"},
			"/extended": {of503 + "1", waitedFor + "8+"},
			"/limited": {
				"httpretry.wait http.response.status_code=429,httpretry.outcome=transient,httpretry.wait.asked=8,httpretry.wait.planned=8+",
				waitedFor + "8+"},
			"/first":          {waitedFor + "8+"},
			"/first canceled": {waitedFor + "3"},
			"/retry canceled": {of503 + "8+", waitedFor + "2"},
		}, got)
	})
}
