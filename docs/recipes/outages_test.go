package recipes_test

import (
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/otelretry"
	"github.com/seed421102f4/httpretry/retrydebug"
	"github.com/seed421102f4/httpretry/strategies"
)

// An outage is a way in which all requests to a host fail, or none does.
type outage struct {
	serve  http.HandlerFunc // nil: nobody listens
	scheme string           // "": http
	dial   func(context.Context, string, string) (net.Conn, error)
	end    func(context.Context) (context.Context, context.CancelFunc)
	fails  bool
}

// TestOutages checks that the alert of docs/operations.md, LogEvents at level
// Warn and the page of retrydebug show each kind of a total outage, and no
// caller that has left.
func TestOutages(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, o := range map[string]outage{
		"503":     {serve: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, fails: true},
		"refused": {fails: true},
		"hang until the deadline": {serve: hang, fails: true,
			end: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 20*time.Millisecond)
			}},
		"certificate": {serve: hang, scheme: "https", fails: true},
		"unknown name": {fails: true,
			dial: func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}
			}},
		"bodies that break off": {serve: breakOff, fails: true},
		"caller that leaves": {serve: hang,
			end: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(20*time.Millisecond, cancel)
				return ctx, cancel
			}},
		"working": {serve: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }},
	} {
		t.Run(name, func(t *testing.T) {
			seen := 0
			if o.fails {
				seen = 10
			}
			registry, warnings := prometheus.NewRegistry(), new(bytes.Buffer)
			transport := newWatched(t, registry, warnings, o)
			o.play(t, transport)
			assert.Equal(t, seen, alerted(t, registry), "requests that the alert counts")
			assert.Equal(t, seen, strings.Count(warnings.String(), "level=WARN"), "%s", warnings)
			page := httptest.NewRecorder()
			retrydebug.Handler(transport).ServeHTTP(page, httptest.NewRequest("GET", "/", nil))
			assert.Equal(t, o.fails, strings.Contains(page.Body.String(), "1 failing</title>"))
		})
	}
}

// newWatched returns a transport with the observers of a service, and retries
// that need no time.
func newWatched(t *testing.T, registry *prometheus.Registry, log io.Writer, o outage) *httpretry.RetryTransport {
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	require.NoError(t, err)
	metrics, err := otelretry.Observe(otelretry.Config{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))})
	require.NoError(t, err)
	base := &http.Transport{DialContext: o.dial}
	t.Cleanup(base.CloseIdleConnections)
	transport, err := httpretry.New(httpretry.Config{
		Base: base,
		Policy: httpretry.Policy{
			Backoff: strategies.Constant{}, Budget: httpretry.Unlimited{}, Resume: true},
		Observe: httpretry.Observers(
			httpretry.LogEvents(slog.New(slog.NewTextHandler(log, nil))), metrics),
	})
	require.NoError(t, err)
	return transport
}

// breakOff sends a body that breaks off half way, however often it is resumed.
func breakOff(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "8")
	_, _ = io.WriteString(w, "half")
	panic(http.ErrAbortHandler)
}

// play sends ten requests to the host that is out.
func (o outage) play(t *testing.T, transport http.RoundTripper) {
	srv := httptest.NewUnstartedServer(o.serve)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	if o.scheme == "https" {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	defer srv.Close()
	if o.serve == nil {
		srv.Close()
	}
	for range 10 {
		ctx, cancel := t.Context(), context.CancelFunc(func() {})
		if o.end != nil {
			ctx, cancel = o.end(ctx)
		}
		req, err := http.NewRequestWithContext(ctx, "GET", srv.URL, nil)
		require.NoError(t, err)
		resp, err := transport.RoundTrip(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body) // it may break off
			require.NoError(t, resp.Body.Close())
		}
		cancel()
	}
}

// alerted returns how many requests and bodies the alert of docs/operations.md
// counts: those of the series that one of its selectors matches.
func alerted(t *testing.T, registry *prometheus.Registry) (n int) {
	text, err := os.ReadFile("../operations.md")
	require.NoError(t, err)
	alert := regexp.MustCompile("(?s)```promql\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, alert)
	selectors := regexp.MustCompile(`rate\((\w+)\{([^}]*)\}`).FindAllSubmatch(alert[1], -1)
	require.NotEmpty(t, selectors)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name, value := family.GetName(), metric.GetCounter().GetValue()
			if histogram := metric.GetHistogram(); histogram != nil {
				name, value = name+"_count", float64(histogram.GetSampleCount())
			}
			for _, s := range selectors {
				if string(s[1]) == name && matches(t, string(s[2]), metric.GetLabel()) {
					n += int(value)
				}
			}
		}
	}
	return n
}

// matches reports whether labels satisfy matchers, as Prometheus reads them.
func matches(t *testing.T, matchers string, labels []*dto.LabelPair) bool {
	all := regexp.MustCompile(`(\w+)(!=|!~)"([^"]*)"|(\w+)="([^"]*)"`).FindAllStringSubmatch(matchers, -1)
	require.NotEmpty(t, all)
	for _, m := range all {
		name := m[1] + m[4]
		value := ""
		for _, label := range labels {
			if label.GetName() == name {
				value = label.GetValue()
			}
		}
		switch {
		case m[2] == "!=" && value == m[3],
			m[2] == "!~" && regexp.MustCompile("^(?:"+m[3]+")$").MatchString(value),
			m[2] == "" && value != m[5]:
			return false
		}
	}
	return true
}
