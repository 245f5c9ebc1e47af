// Observe shows what httpretry tells of its work, in two ways side by side: as
// lines of log/slog, and as metrics and spans of OpenTelemetry.
//
// An embedded server fails as services do, so it needs no network:
//
//	go run .
package main

import (
	"cmp"
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

// telemetry keeps in memory what a program would export.
type telemetry struct {
	metrics *sdkmetric.ManualReader
	spans   *tracetest.SpanRecorder
}

func run(ctx context.Context, out io.Writer) error {
	srv := httptest.NewServer(http.HandlerFunc(serve))
	defer srv.Close()

	tel := telemetry{sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()}
	logger := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: steady(srv.Listener.Addr().String())}))
	client, err := newClient(logger,
		sdkmetric.NewMeterProvider(sdkmetric.WithReader(tel.metrics)),
		sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(tel.spans)))
	if err != nil {
		return err
	}
	defer http.DefaultClient.CloseIdleConnections() // client's own does not get past otelhttp

	fmt.Fprintln(out, "What log/slog is told:")
	for _, r := range []struct{ method, path string }{
		{"GET", "/steady"}, {"GET", "/flaky?token=secret"}, {"POST", "/flaky"}, {"GET", "/down"}, {"GET", "/refuses"}, {"GET", "/tomorrow"},
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

// newClient is what a program does to be told: one function for all that
// listens, and otelhttp between httpretry and the network, so that each attempt
// has a span.
func newClient(logger *slog.Logger, meters *sdkmetric.MeterProvider, tracers *sdktrace.TracerProvider) (*http.Client, error) {
	toMetrics, err := otelretry.Observe(otelretry.Config{MeterProvider: meters})
	if err != nil {
		return nil, err
	}
	toLog := httpretry.LogEvents(logger)
	transport, err := httpretry.New(httpretry.Config{
		Base: otelhttp.NewTransport(otelretry.ResendCount(http.DefaultTransport),
			otelhttp.WithTracerProvider(tracers), otelhttp.WithMeterProvider(meters)),
		Policy: httpretry.Policy{Backoff: strategies.Constant{Wait: 20 * time.Millisecond}},
		Observe: func(ctx context.Context, e httpretry.Event) {
			toLog(ctx, e)
			toMetrics(ctx, e)
		},
	})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}

// serve fails in the way that the path names.
func serve(w http.ResponseWriter, r *http.Request) {
	first := r.Header.Get(httpretry.DefaultAttemptHeader) == ""
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

// steady leaves out of a log what differs between two runs.
func steady(addr string) func([]string, slog.Attr) slog.Attr {
	return func(_ []string, a slog.Attr) slog.Attr {
		switch a.Key {
		case slog.TimeKey, "elapsed":
			return slog.Attr{}
		case "url":
			return slog.String(a.Key, strings.Replace(a.Value.String(), addr, "embedded.server", 1))
		}
		return a
	}
}

func (t telemetry) print(ctx context.Context, out io.Writer) error {
	var data metricdata.ResourceMetrics
	if err := t.metrics.Collect(ctx, &data); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nWhat OpenTelemetry is told, as metrics:")
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var rows []string
	for _, scope := range data.ScopeMetrics {
		if scope.Scope.Name != otelretry.Scope {
			continue // otelhttp's own
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
	fmt.Fprintln(out, "\n... and as spans, one for each attempt:")
	for _, span := range t.spans.Ended() {
		attrs := attribute.NewSet(span.Attributes()...)
		fmt.Fprintf(table, "%s\tstatus %s\tresend_count %s\n", span.Name(),
			value(attrs, "http.response.status_code"), value(attrs, "http.request.resend_count"))
	}
	return table.Flush()
}

// points returns a line for each set of labels.
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
		if m.Name == "httpretry.wait" { // a duration differs between two runs
			for _, p := range data.DataPoints {
				add(p.Attributes, fmt.Sprintf("%.2f s in %d waits", p.Sum, p.Count))
			}
		}
	}
	return rows
}

func labels(set attribute.Set) string {
	var parts []string
	for _, kv := range set.ToSlice() {
		name := string(kv.Key[strings.LastIndexByte(string(kv.Key), '.')+1:])
		parts = append(parts, fmt.Sprintf("%s=%s", name, kv.Value.String()))
	}
	return strings.Join(parts, ", ")
}

func value(set attribute.Set, key attribute.Key) string {
	v, ok := set.Value(key)
	return cmp.Or(map[bool]string{true: v.String()}[ok], "-")
}
