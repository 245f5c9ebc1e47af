package otelretry_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
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

// retriedOnce is a server that fails the first attempt.
func retriedOnce() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Retry-Attempt") == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
}

// printSums prints the counters and the gauges of whole numbers that reader
// collects.
func printSums(reader sdkmetric.Reader) {
	var data metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &data); err != nil {
		log.Fatal(err)
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			var points []metricdata.DataPoint[int64]
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				points = data.DataPoints
			case metricdata.Gauge[int64]:
				points = data.DataPoints
			}
			for _, point := range points {
				fmt.Println(m.Name, point.Value, point.Attributes.Encoded(attribute.DefaultEncoder()))
			}
		}
	}
}

// A program usually sets the global MeterProvider, and leaves Config empty.
func ExampleObserve() {
	reader := sdkmetric.NewManualReader()
	observe, err := otelretry.Observe(otelretry.Config{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
	})
	if err != nil {
		log.Fatal(err)
	}
	transport, err := httpretry.New(httpretry.Config{Policy: policy(), Observe: observe})
	if err != nil {
		log.Fatal(err)
	}
	srv := retriedOnce()
	defer srv.Close()
	resp, err := (&http.Client{Transport: transport}).Get(srv.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()

	printSums(reader)
	// Output:
	// httpretry.retries 1 http.request.method=GET,http.response.status_code=503,httpretry.outcome=transient
}

// A budget that processes share has a type of its own for its decisions. That
// of redisbudget is redisbudget.Decision, and this module does not depend on it.
func ExampleObserveBudget() {
	reader := sdkmetric.NewManualReader()
	record, err := otelretry.ObserveBudget(otelretry.Config{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
	})
	if err != nil {
		log.Fatal(err)
	}
	type decision struct{ Allowed, Shared bool }

	// For redisbudget.Config.Observe.
	observe := func(ctx context.Context, d decision) {
		record(ctx, otelretry.BudgetDecision{Allowed: d.Allowed, Shared: d.Shared})
	}
	observe(context.Background(), decision{Allowed: true, Shared: true})
	observe(context.Background(), decision{Allowed: false, Shared: true})

	printSums(reader)
	// Unordered output:
	// httpretry.budget.decisions 1 httpretry.allowed=true,httpretry.budget=shared
	// httpretry.budget.decisions 1 httpretry.allowed=false,httpretry.budget=shared
}

// Gauges show the state of each host. Observe needs the same Config.
func ExampleOrigins() {
	reader := sdkmetric.NewManualReader()
	cfg := otelretry.Config{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		Name:          "payments",
		Hosts:         []string{"127.0.0.1"},
	}
	transport, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{Backoff: strategies.Constant{}},
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := otelretry.Origins(transport, cfg); err != nil {
		log.Fatal(err)
	}
	srv := retriedOnce()
	defer srv.Close()
	resp, err := (&http.Client{Transport: transport}).Get(srv.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()

	printSums(reader)
	// Output:
	// httpretry.budget.balance 5 httpretry.transport=payments,server.address=127.0.0.1
	// httpretry.request.waiting 0 httpretry.transport=payments,server.address=127.0.0.1
}

// The gauge is 0 if a file cannot be read. The policies remain as they were.
func ExamplePolicyFile() {
	reader := sdkmetric.NewManualReader()
	reloader := &policyfile.Reloader{
		Path: "missing.json", Transport: new(httpretry.RetryTransport), Report: func(error) {},
	}
	_, err := otelretry.PolicyFile(reloader, otelretry.Config{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
	})
	if err != nil {
		log.Fatal(err)
	}
	_ = reloader.Reload() // is reported

	printSums(reader)
	// Output:
	// httpretry.policyfile.in_effect 0
}

// Each attempt has a span, and those of retries have the number of the retry.
func ExampleNewTransport() {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	transport, err := httpretry.New(httpretry.Config{
		Base:   otelretry.NewTransport(http.DefaultTransport, otelhttp.WithTracerProvider(provider)),
		Policy: policy(),
	})
	if err != nil {
		log.Fatal(err)
	}
	srv := retriedOnce()
	defer srv.Close()
	resp, err := (&http.Client{Transport: transport}).Get(srv.URL)
	if err != nil {
		log.Fatal(err)
	}
	_ = resp.Body.Close() // ends the span

	for _, span := range spans.GetSpans() {
		for _, a := range span.Attributes {
			switch a.Key {
			case "http.response.status_code", "http.request.resend_count":
				fmt.Println(a.Key, a.Value.String())
			}
		}
	}
	// Output:
	// http.response.status_code 503
	// http.request.resend_count 1
	// http.response.status_code 200
}
