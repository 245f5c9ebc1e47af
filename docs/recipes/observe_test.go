package recipes_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"
	"go.uber.org/zap/zapcore"

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
		require.Equal(t, 200, status(t, client, request(t, "GET", "")))
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

// newSampled returns a logger for w. Of the lines of a second that have the
// same level and message, it writes the first ten, and then one in a hundred.
func newSampled(w io.Writer) *slog.Logger {
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()),
		zapcore.Lock(zapcore.AddSync(w)), zapcore.InfoLevel)
	return slog.New(zapslog.NewHandler(
		zapcore.NewSamplerWithOptions(core, time.Second, 10, 100)))
}

// TestSampled checks that 1,000 failed requests in a second are 19 lines, and
// that a line with another message is among them.
func TestSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		logger := newSampled(&logged)
		client := newClient(t, httpretry.Config{
			Base: play(503), Observe: httpretry.LogEvents(logger),
		})
		for range 1000 {
			assert.Equal(t, 503, status(t, client, request(t, "POST", "data")))
			time.Sleep(time.Millisecond)
		}
		logger.Warn("another message")
		assert.Equal(t, 19, strings.Count(logged.String(), "gave up on request"))
		assert.Contains(t, logged.String(), "another message")
		assert.Contains(t, logged.String(), `"reason":"not_idempotent"`)
	})
}

// joined adds the ID that chi's middleware.RequestID has given to a request.
type joined struct{ slog.Handler }

func (h joined) Handle(ctx context.Context, line slog.Record) error {
	if id := middleware.GetReqID(ctx); id != "" {
		line.AddAttrs(slog.String("request_id", id))
	}
	return h.Handler.Handle(ctx, line)
}

func (h joined) WithAttrs(attrs []slog.Attr) slog.Handler {
	return joined{h.Handler.WithAttrs(attrs)}
}

func (h joined) WithGroup(name string) slog.Handler { return joined{h.Handler.WithGroup(name)} }

// TestJoined checks that the lines of a request have one ID, and that another
// request has another ID.
func TestJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		logger := slog.New(joined{slog.NewTextHandler(&logged, nil)})
		client := newClient(t, httpretry.Config{
			Base: play(503), Observe: httpretry.LogEvents(logger.With("service", "a")),
		})
		handler := middleware.RequestID(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			assert.Equal(t, 503, status(t, client, request(t, "GET", "").WithContext(r.Context())))
		}))
		handler.ServeHTTP(nil, request(t, "GET", ""))
		handler.ServeHTTP(nil, request(t, "GET", ""))
		_, id, _ := strings.Cut(logged.String(), "request_id=")
		id, _, _ = strings.Cut(id, "\n")
		assert.Equal(t, 6, strings.Count(logged.String(), " request_id=")) // two retries and the end
		assert.Equal(t, 3, strings.Count(logged.String(), id))
	})
}
