package recipes_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sony/gobreaker/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"golang.org/x/time/rate"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// sidecar is a proxy beside a client, as Envoy is in a mesh. It retries a
// request twice if it got no answer, or one with the status retryOn.
type sidecar struct {
	server  string
	retryOn int
}

func (s sidecar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for attempt := 1; ; attempt++ {
		req, err := http.NewRequestWithContext(
			r.Context(), r.Method, s.server+r.URL.Path, bytes.NewReader(body))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req.Header = r.Header.Clone()
		req.Header.Set("X-Envoy-Attempt-Count", strconv.Itoa(attempt))
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		switch {
		case attempt <= 2 && (err != nil || resp.StatusCode == s.retryOn):
		case err != nil: // as Envoy answers if it cannot connect
			http.Error(w, "upstream connect error", http.StatusServiceUnavailable)
			return
		default:
			w.WriteHeader(resp.StatusCode)
			return
		}
	}
}

// serve returns the address of a handler.
func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestSidecar measures how many sends of ten GETs reach a server that answers
// all with 503. The table of docs/layers.md has these numbers.
func TestSidecar(t *testing.T) {
	withBudget := httpretry.Policy{Backoff: strategies.Constant{}}
	unlimited := httpretry.Policy{Backoff: strategies.Constant{}, Budget: httpretry.Unlimited{}}
	retrying := func(p httpretry.Policy) *http.Client {
		return newClient(t, httpretry.Config{Policy: p})
	}
	// service has httpretry in the client of a handler that a sidecar calls.
	service := func(p httpretry.Policy, wrap func(http.Handler) http.Handler, server string) string {
		client := retrying(p)
		return serve(t, sidecar{serve(t, wrap(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				req, err := http.NewRequestWithContext(r.Context(), r.Method, server, nil)
				if assert.NoError(t, err) {
					w.WriteHeader(status(t, client, req))
				}
			}))), 503})
	}
	bare := func(next http.Handler) http.Handler { return next }
	for _, tt := range []struct {
		name                    string
		defaultBudget, noBudget int // sends
		setup                   func(p httpretry.Policy, server string) (*http.Client, string)
	}{
		{"net/http, sidecar", 30, 30, func(_ httpretry.Policy, server string) (*http.Client, string) {
			return http.DefaultClient, serve(t, sidecar{server, 503})
		}},
		{"httpretry, sidecar", 45, 90, func(p httpretry.Policy, server string) (*http.Client, string) {
			return retrying(p), serve(t, sidecar{server, 503})
		}},
		{"httpretry, connects", 15, 30, func(p httpretry.Policy, server string) (*http.Client, string) {
			return retrying(p), serve(t, sidecar{server, 0})
		}},
		{"sidecar, service", 35, 90, func(p httpretry.Policy, server string) (*http.Client, string) {
			return http.DefaultClient, service(p, bare, server)
		}},
		{"sidecar, Middleware", 35, 50, func(p httpretry.Policy, server string) (*http.Client, string) {
			return http.DefaultClient, service(p, httpretry.Middleware, server)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got [2]int
			for i, policy := range []httpretry.Policy{withBudget, unlimited} {
				server := play(503)
				client, address := tt.setup(policy, serve(t, server))
				for range 10 {
					assert.Equal(t, 503, sendTo(t, client, "GET", address))
				}
				got[i] = server.count()
			}
			assert.Equal(t, [2]int{tt.defaultBudget, tt.noBudget}, got)
		})
	}
}

// TestSidecarHidesRefusedServer checks that a POST to a server that refuses
// connections is retried, but not through a sidecar, whose 503 proves nothing.
func TestSidecarHidesRefusedServer(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	var attempts int
	client := newClient(t, httpretry.Config{
		Policy: httpretry.Policy{Backoff: strategies.Constant{}},
		Observe: func(_ context.Context, e httpretry.Event) {
			attempts = e.Attempt.Number
		},
	})
	_, err := client.Post(srv.URL, "text/plain", strings.NewReader("data"))
	assert.True(t, httpretry.IsUnprocessed(err), "%v", err)
	assert.Equal(t, 3, attempts)

	assert.Equal(t, 503, sendTo(t, client, "POST", serve(t, sidecar{srv.URL, 0})))
	assert.Equal(t, 1, attempts)
}

// sendTo sends a request to an address, and returns its response's status.
func sendTo(t *testing.T, client *http.Client, method, url string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	return status(t, client, req)
}

// cache answers a request with the last 200 for the same URL.
type cache struct {
	next http.RoundTripper
	kept map[string]http.Header
}

func (c cache) RoundTrip(req *http.Request) (*http.Response, error) {
	if header, ok := c.kept[req.URL.String()]; ok {
		return respond(req, http.StatusOK, header), nil
	}
	resp, err := c.next.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusOK {
		c.kept[req.URL.String()] = resp.Header
	}
	return resp, err
}

// TestLayers runs the layers of docs/layers.md together, in its order.
func TestLayers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spans := tracetest.NewSpanRecorder()
		server, tokens := play(503, 401, 200, 503), &issuer{}
		var token http.RoundTripper = &bearer{next: server, fetch: tokens.fetch}
		var tracing http.RoundTripper = otelhttp.NewTransport(token,
			otelhttp.WithTracerProvider(
				sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))),
			otelhttp.WithPropagators(propagation.TraceContext{}))
		limiter := limited{tracing, rate.NewLimiter(rate.Every(10*time.Second), 1)}
		retries, err := httpretry.New(httpretry.Config{
			Base: newBreaker(limiter),
			Policy: httpretry.Policy{
				Backoff: strategies.Constant{Wait: time.Second}, Budget: httpretry.Unlimited{},
			},
		})
		require.NoError(t, err)
		client := &http.Client{Transport: cache{retries, map[string]http.Header{}}}
		get := func(path string) (int, error) {
			resp, err := client.Get("https://api.example.com/" + path)
			if err != nil {
				return 0, err
			}
			return resp.StatusCode, resp.Body.Close()
		}
		requireStatus := func(want int, path string) {
			t.Helper()
			got, err := get(path)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}

		// Two attempts: two spans, and the limiter's wait between them. The
		// token layer's resend after the 401 is part of the second one.
		requireStatus(200, "a")
		assert.Len(t, spans.Ended(), 2)
		assert.Equal(t, 10*time.Second, server.sent[1].at)
		assert.Equal(t, []string{"Bearer token-1", "Bearer token-1", "Bearer token-2"},
			server.headers("Authorization"))
		assert.NotContains(t, server.headers("Traceparent"), "", "the token layer sees all headers")
		assert.Equal(t, []string{"", "1", "1"}, server.headers("Retry-Attempt"))

		// A cached response needs no attempt.
		requireStatus(200, "a")
		assert.Equal(t, 3, server.count())

		// Six failures in a row open the circuit. Then a request neither waits
		// for the limiter nor has a span, and the cache still answers.
		requireStatus(503, "b")
		requireStatus(503, "b")
		assert.Equal(t, 9, server.count())
		assert.Len(t, spans.Ended(), 8)
		start := time.Now()
		_, err = get("b")
		assert.ErrorIs(t, err, gobreaker.ErrOpenState)
		requireStatus(200, "a")
		assert.Zero(t, time.Since(start))
		assert.Equal(t, 9, server.count())
		assert.Len(t, spans.Ended(), 8)
	})
}
