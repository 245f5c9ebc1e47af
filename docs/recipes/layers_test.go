package recipes_test

import (
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sony/gobreaker/v2"
	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"golang.org/x/time/rate"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/strategies"
)

// sidecar sends as Envoy does beside a client in a mesh. It retries a request
// twice if the status is retryOn.
type sidecar struct{ retryOn int }

func (s sidecar) RoundTrip(req *http.Request) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		req.Header.Set("X-Envoy-Attempt-Count", strconv.Itoa(attempt))
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil || resp.StatusCode != s.retryOn || attempt > 2 {
			return resp, err
		}
		resp.Body.Close()
	}
}

// TestSidecar measures how many sends of ten GETs reach a server that answers
// all with 503. The table of docs/layers.md has these numbers.
func TestSidecar(t *testing.T) {
	bare := func(next http.Handler) http.Handler { return next }
	for _, tt := range []struct {
		name    string
		client  bool // has httpretry
		sidecar sidecar
		service func(http.Handler) http.Handler // around one with httpretry, if not nil
		sends   [2]int                          // with the default budget, and with none
	}{
		{"net/http, sidecar", false, sidecar{503}, nil, [2]int{30, 30}},
		{"httpretry, sidecar", true, sidecar{503}, nil, [2]int{45, 90}},
		{"httpretry, sidecar for connects", true, sidecar{}, nil, [2]int{15, 30}},
		{"sidecar, service", false, sidecar{503}, bare, [2]int{35, 90}},
		{"sidecar, Middleware", false, sidecar{503}, httpretry.Middleware, [2]int{35, 50}},
	} {
		for i, budget := range []httpretry.Budget{nil, httpretry.Unlimited{}} {
			retrying := newClient(t, httpretry.Config{
				Policy: httpretry.Policy{Backoff: strategies.Constant{}, Budget: budget},
			})
			server, client := play(503), http.DefaultClient
			target := serve(t, proxy("", server))
			if tt.service != nil {
				target = serve(t, tt.service(proxy(target, retrying.Transport)))
			}
			if tt.client {
				client = retrying
			}
			address := serve(t, proxy(target, tt.sidecar))
			for range 10 {
				status(t, client, contract.Request(t, "GET", address, ""))
			}
			assert.Equal(t, tt.sends[i], server.count(), "%s, budget %T", tt.name, budget)
		}
	}
}

// cache answers a request with the last 200 for the same URL.
type cache struct {
	next http.RoundTripper
	kept map[string]http.Header
}

func (c cache) RoundTrip(req *http.Request) (*http.Response, error) {
	if header, ok := c.kept[req.URL.String()]; ok {
		return contract.Play(contract.Step{Header: header}).RoundTrip(req)
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
		server, tokens := play(503, 401, 200, 503, 503, 503, 503, 503, 503, 200), &issuer{}
		var token http.RoundTripper = &bearer{next: server, fetch: tokens.fetch}
		var tracing http.RoundTripper = otelhttp.NewTransport(token,
			otelhttp.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))),
			otelhttp.WithPropagators(propagation.TraceContext{}))
		limiter := limited{tracing, rate.NewLimiter(rate.Every(10*time.Second), 1)}
		client := newClient(t, httpretry.Config{
			Base: newBreaker(limiter),
			Policy: httpretry.Policy{
				Backoff: strategies.Constant{Wait: time.Second}, Budget: httpretry.Unlimited{},
			},
		})
		client.Transport = cache{client.Transport, map[string]http.Header{}}

		// Two attempts: two spans, and the limiter's wait between them. The
		// token layer's resend after the 401 is part of the second one.
		assert.Equal(t, 200, status(t, client, get(t, "/a")))
		assert.Len(t, spans.Ended(), 2)
		assert.Equal(t, 10*time.Second, server.Waits()[0])
		assert.Equal(t, []string{"Bearer token-1", "Bearer token-1", "Bearer token-2"},
			server.headers("Authorization"))
		traces := server.headers("Traceparent")
		assert.NotEmpty(t, traces[0])
		assert.Equal(t, traces[1], traces[2])
		assert.Equal(t, []string{"", "1", "1"}, server.headers("Retry-Attempt"))

		// A cached response needs no attempt.
		assert.Equal(t, 200, status(t, client, get(t, "/a")))
		assert.Equal(t, 3, server.count())

		// Six failures in a row open the circuit. Then a request neither waits
		// for the limiter nor has a span, and the cache still answers.
		assert.Equal(t, 503, status(t, client, get(t, "/b")))
		assert.Equal(t, 503, status(t, client, get(t, "/b")))
		assert.Equal(t, 9, server.count())
		assert.Len(t, spans.Ended(), 8)
		start := time.Now()
		_, err := client.Do(get(t, "/b"))
		assert.ErrorIs(t, err, gobreaker.ErrOpenState)
		assert.Equal(t, 200, status(t, client, get(t, "/a")))
		assert.Zero(t, time.Since(start))
		assert.Equal(t, 9, server.count())
		assert.Len(t, spans.Ended(), 8)

		time.Sleep(time.Minute + 1) // until the breaker lets a request through
		assert.Equal(t, 200, status(t, client, get(t, "/b")))
	})
}
