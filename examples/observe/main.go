// Observe shows how to see what httpretry does: as lines of log/slog, as metrics
// of Prometheus, and as spans of OpenTelemetry.
//
// A server on this machine fails in several ways, so it needs no network:
//
//	go run .
//
// With -outages, it plays total outages of eight hosts until it is interrupted,
// and serves their metrics:
//
//	go run . -outages localhost:9464
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/otelretry"
	"github.com/seed421102f4/httpretry/strategies"
)

func main() {
	addr := flag.String("outages", "", "play outages, and serve /metrics at this `address`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *addr == "" {
		err = run(ctx, os.Stdout)
	} else {
		err = serveOutages(ctx, *addr)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// newMeters returns a MeterProvider whose metrics are in registry, which
// promhttp.HandlerFor serves.
func newMeters(registry *prometheus.Registry) (*sdkmetric.MeterProvider, error) {
	exporter, err := otelprometheus.New(
		otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		return nil, err
	}
	return sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)), nil
}

// run sends the requests and prints the records.
func run(ctx context.Context, out io.Writer) error {
	srv := httptest.NewServer(http.HandlerFunc(serve))
	defer srv.Close()

	registry, spans := prometheus.NewRegistry(), tracetest.NewSpanRecorder()
	meters, err := newMeters(registry)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{
		ReplaceAttr: reproducible(srv.Listener.Addr().String()),
	}))
	client, err := newClient(logger, meters,
		sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	if err != nil {
		return err
	}
	// Not client.CloseIdleConnections: otelhttp's transport does not forward
	// it.
	defer http.DefaultClient.CloseIdleConnections()

	fmt.Fprintln(out, "The log:")
	for _, r := range []struct{ method, path string }{
		{"GET", "/steady"}, {"GET", "/flaky?token=secret"}, {"POST", "/flaky"},
		{"GET", "/down"}, {"GET", "/refuses"}, {"GET", "/tomorrow"},
	} {
		req, err := http.NewRequestWithContext(ctx, r.method, srv.URL+r.path, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		if err := resp.Body.Close(); err != nil {
			return err
		}
	}
	return show(registry, spans, out)
}

// newClient shows what a program has to do. Observe calls all observers, and
// otelhttp is below httpretry, so that each attempt has a span.
func newClient(
	logger *slog.Logger, meters *sdkmetric.MeterProvider, tracers *sdktrace.TracerProvider,
) (*http.Client, error) {
	toMetrics, err := otelretry.Observe(otelretry.Config{MeterProvider: meters})
	if err != nil {
		return nil, err
	}
	transport, err := httpretry.New(httpretry.Config{
		Base: otelretry.NewTransport(http.DefaultTransport,
			otelhttp.WithTracerProvider(tracers), otelhttp.WithMeterProvider(meters)),
		Policy:  httpretry.Policy{Backoff: strategies.Constant{Wait: 20 * time.Millisecond}},
		Observe: httpretry.Observers(httpretry.LogEvents(logger), toMetrics),
	})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}

// serve fails as the path says.
func serve(w http.ResponseWriter, r *http.Request) {
	first := r.Header.Get("Retry-Attempt") == ""
	switch r.URL.Path {
	case "/flaky":
		if first {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	case "/down":
		w.WriteHeader(http.StatusBadGateway)
	case "/refuses":
		w.Header().Set("X-Should-Retry", "false")
		w.WriteHeader(http.StatusServiceUnavailable)
	case "/tomorrow":
		w.Header().Set("Retry-After", "86400")
		w.WriteHeader(http.StatusTooManyRequests)
	}
}

// reproducible removes the parts of a log that differ between two runs.
func reproducible(addr string) func([]string, slog.Attr) slog.Attr {
	return func(_ []string, a slog.Attr) slog.Attr {
		switch a.Key {
		case slog.TimeKey, "elapsed", "waited":
			return slog.Attr{}
		case "url":
			return slog.String(a.Key, strings.Replace(a.Value.String(), addr, "embedded.server", 1))
		}
		return a
	}
}

// shown are the metrics whose values do not differ between two runs.
var shown = regexp.MustCompile(`(?m)^httpretry_\w+_(total|attempts_count)\{.*$`)

// show prints metrics of httpretry, and all spans.
func show(registry *prometheus.Registry, spans *tracetest.SpanRecorder, out io.Writer) error {
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	fmt.Fprintln(out, "\nThe metrics:")
	for _, line := range shown.FindAllString(page.Body.String(), -1) {
		fmt.Fprintln(out, line)
	}
	fmt.Fprintln(out, "\nThe spans, one for each attempt:")
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, span := range spans.Ended() {
		attrs := attribute.NewSet(span.Attributes()...)
		fmt.Fprintf(table, "%s\tstatus %s\tresend_count %s\n", span.Name(),
			value(attrs, "http.response.status_code"), value(attrs, "http.request.resend_count"))
	}
	return table.Flush()
}

// value returns the value of an attribute, or "-" if there is none.
func value(set attribute.Set, key attribute.Key) string {
	if v, ok := set.Value(key); ok {
		return v.String()
	}
	return "-"
}
