// Observe shows how to see what httpretry does: as lines of log/slog, and as
// metrics and spans of OpenTelemetry.
//
// A server on this machine fails in several ways, so it needs no network:
//
//	go run .
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/otelretry"
	"github.com/seed421102f4/httpretry/strategies"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// telemetry keeps metrics and spans in memory. Other programs export them.
type telemetry struct {
	metrics *sdkmetric.ManualReader
	spans   *tracetest.SpanRecorder
}

// run sends the requests and prints the records.
func run(ctx context.Context, out io.Writer) error {
	srv := httptest.NewServer(http.HandlerFunc(serve))
	defer srv.Close()

	tel := telemetry{sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()}
	logger := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{
		ReplaceAttr: reproducible(srv.Listener.Addr().String()),
	}))
	client, err := newClient(logger,
		sdkmetric.NewMeterProvider(sdkmetric.WithReader(tel.metrics)),
		sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(tel.spans)))
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
	return tel.print(ctx, out)
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

// print prints the metrics of httpretry, and all spans.
func (t telemetry) print(ctx context.Context, out io.Writer) error {
	var data metricdata.ResourceMetrics
	if err := t.metrics.Collect(ctx, &data); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nThe metrics:")
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var rows []string
	for _, scope := range data.ScopeMetrics {
		if scope.Scope.Name != otelretry.Scope {
			continue // metrics of otelhttp
		}
		for _, m := range scope.Metrics {
			rows = append(rows, points(m)...)
		}
	}
	slices.Sort(rows)
	for _, row := range rows {
		fmt.Fprintln(table, row)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nThe spans, one for each attempt:")
	for _, span := range t.spans.Ended() {
		attrs := attribute.NewSet(span.Attributes()...)
		fmt.Fprintf(table, "%s\tstatus %s\tresend_count %s\n", span.Name(),
			value(attrs, "http.response.status_code"), value(attrs, "http.request.resend_count"))
	}
	return table.Flush()
}

// points returns one line for each set of labels.
func points(m metricdata.Metrics) []string {
	var rows []string
	add := func(set attribute.Set, what string) {
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s", m.Name, labels(set), what))
	}
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			add(p.Attributes, strconv.FormatInt(p.Value, 10))
		}
	case metricdata.Histogram[int64]:
		for _, p := range data.DataPoints {
			add(p.Attributes, fmt.Sprintf("%d in %d requests", p.Sum, p.Count))
		}
	case metricdata.Histogram[float64]:
		// The duration of requests differs between two runs, and so do waits.
		if m.Name == "httpretry.wait" {
			for _, p := range data.DataPoints {
				add(p.Attributes, fmt.Sprintf("%d waits", p.Count))
			}
		}
	}
	return rows
}

// labels formats a set of labels, by the last part of their names.
func labels(set attribute.Set) string {
	var parts []string
	for _, kv := range set.ToSlice() {
		name := string(kv.Key[strings.LastIndexByte(string(kv.Key), '.')+1:])
		parts = append(parts, fmt.Sprintf("%s=%s", name, kv.Value.String()))
	}
	return strings.Join(parts, ", ")
}

// value returns the value of an attribute, or "-" if there is none.
func value(set attribute.Set, key attribute.Key) string {
	if v, ok := set.Value(key); ok {
		return v.String()
	}
	return "-"
}
