package test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/strategies"
)

// threeAttempts is a policy without waits and without a budget, so that
// requests can be counted.
var threeAttempts = httpretry.Policy{
	MaxAttempts: 3, Backoff: strategies.Constant{}, Budget: httpretry.Unlimited{}}

// defaultBudget is the default policy, but without waits.
var defaultBudget = httpretry.Policy{Backoff: strategies.Constant{}}

// chainKind has the settings that the services of a chain share.
type chainKind struct {
	proto   string
	method  string
	header  string // AttemptHeader; "" is the default
	proxies bool   // every other service is a ReverseProxy
	refuses bool   // the last service refuses connections, so nothing is processed
}

// chain is a row of services, each of which calls the next. The last one fails.
type chain struct {
	chainKind
	layers     int  // that send requests, with three attempts each
	middleware bool // around each service

	mu     sync.Mutex
	bottom []string // attempt headers of the requests, or "" for each refused connection
}

// run sends one request to the first service, and returns the attempt headers
// of the requests that reached the last one.
func (c *chain) run(t *testing.T) []string {
	base, target := c.bottomServer(t)
	for i := range c.layers - 1 {
		transport := c.transport(t, base)
		handler := forwardTo(transport, target)
		if c.proxies && i%2 == 1 {
			handler = proxyTo(transport, target)
		}
		switch {
		case c.middleware && c.header != "":
			handler = httpretry.MiddlewareConfig{Headers: []string{c.header}}.Wrap(handler)
		case c.middleware:
			handler = httpretry.Middleware(handler)
		}
		next, srv := contract.Serve(t, c.proto, handler.ServeHTTP)
		base, target = next, srv.URL
	}
	req := contract.Request(t, c.method, target, "payload")
	req.Header.Set("Idempotency-Key", "key")
	resp, err := c.transport(t, base).RoundTrip(req)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, resp.StatusCode, 502)
	assert.Empty(t, resp.Header["X-Should-Retry"])
	contract.ReadBody(t, resp)
	return c.bottom
}

// bottomServer is the last service. It records the requests to it.
func (c *chain) bottomServer(t *testing.T) (base http.RoundTripper, target string) {
	t.Helper()
	record := func(header string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.bottom = append(c.bottom, header)
	}
	if c.refuses {
		base := faults.Base(t, nil)
		dial := base.DialContext
		base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			record("")
			return dial(ctx, network, addr)
		}
		return base, "http://" + faults.Refused(t)
	}
	header := "Retry-Attempt"
	if c.header != "" {
		header = c.header
	}
	next, srv := contract.Serve(t, c.proto, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, "payload", string(body))
		assert.Equal(t, "key", r.Header.Get("Idempotency-Key"))
		record(r.Header.Get(header))
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	return next, srv.URL
}

func (c *chain) transport(t *testing.T, base http.RoundTripper) http.RoundTripper {
	t.Helper()
	return contract.New(t,
		httpretry.Config{Base: base, Policy: threeAttempts, AttemptHeader: c.header})
}

// forwardTo returns a service that sends each request to target and answers
// with the status that it gets.
func forwardTo(rt http.RoundTripper, target string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, target, bytes.NewReader(body))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		req.Header.Set("Idempotency-Key", r.Header.Get("Idempotency-Key"))
		resp, err := rt.RoundTrip(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	})
}

func proxyTo(rt http.RoundTripper, target string) http.Handler {
	to, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	return &httputil.ReverseProxy{
		Transport: rt,
		ErrorLog:  log.New(io.Discard, "", 0),
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
	}
}

// Hazard I10: the attempts of services that call one another multiply. With
// Middleware around each service, they add up.
func TestChains(t *testing.T) {
	for name, kind := range map[string]chainKind{
		"GET":              {proto: contract.HTTP1, method: "GET"},
		"GET, HTTP2":       {proto: contract.HTTP2, method: "GET"},
		"POST":             {proto: contract.HTTP1, method: "POST"},
		"POST, HTTP2":      {proto: contract.HTTP2, method: "POST"},
		"own header":       {proto: contract.HTTP1, method: "GET", header: "x-my-try"},
		"proxies":          {proto: contract.HTTP1, method: "POST", proxies: true},
		"proxies, HTTP2":   {proto: contract.HTTP2, method: "PUT", proxies: true},
		"refused":          {proto: contract.HTTP1, method: "POST", refuses: true},
		"refused, proxies": {proto: contract.HTTP1, method: "GET", refuses: true, proxies: true},
	} {
		for layers, power := range map[int]int{3: 27, 5: 243} {
			// three attempts of the first layer, and two retries of each other
			// one
			sum := 2*layers + 1
			if kind.refuses {
				sum = 3 * (2*layers - 1) // the last layer retries whatever is Unprocessed
			}
			for middleware, want := range map[bool]int{false: power, true: sum} {
				t.Run(fmt.Sprintf("%s/%d/%d", name, layers, want), func(t *testing.T) {
					c := &chain{chainKind: kind, layers: layers, middleware: middleware}
					assert.Len(t, c.run(t), want)
					if c.middleware && !c.refuses {
						c.checkHeaders(t)
					}
				})
			}
		}
	}
}

// checkHeaders checks that the last service can tell retries from first
// attempts, whichever service made them.
func (c *chain) checkHeaders(t *testing.T) {
	t.Helper()
	for i, header := range c.bottom {
		want := ""
		if i > 0 {
			want = strconv.Itoa(1 + (i-1)%2) // the first or second retry of one of the layers
		}
		assert.Equal(t, want, header, "%d of %q", i, c.bottom)
	}
}

// balancer sends each request to one of several replicas.
type balancer struct {
	next     http.RoundTripper
	replicas []string // host and port
	choose   func(n int) int
}

func (b *balancer) RoundTrip(req *http.Request) (*http.Response, error) {
	out := req.Clone(req.Context())
	out.URL.Host = b.replicas[b.choose(len(b.replicas))]
	return b.next.RoundTrip(out)
}

// seeded returns a source of random numbers that is safe for concurrent use and
// the same in each run.
func seeded() (random func() float64) {
	var mu sync.Mutex
	source := rand.New(rand.NewPCG(1, 2))
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return source.Float64()
	}
}

// users sends n requests, one after another, through a transport with three
// attempts to two services, the second of which sends them to last. It returns
// how many succeeded, in percent.
func users(t *testing.T, n int, last http.RoundTripper, middleware bool,
	around func(http.Handler) http.Handler) float64 {
	base, target := last, "http://last.test"
	for range 2 {
		handler := around(forwardTo(contract.With(t, base, defaultBudget), target))
		if middleware {
			handler = httpretry.Middleware(handler)
		}
		next, srv := contract.Serve(t, contract.HTTP1, handler.ServeHTTP)
		base, target = next, srv.URL
	}
	transport := contract.With(t, base, defaultBudget)
	succeeded := 0
	for range n {
		resp := contract.Send(t, transport, contract.Request(t, "GET", target, ""))
		if resp.StatusCode == http.StatusOK {
			succeeded++
		}
	}
	return 100 * float64(succeeded) / float64(n)
}

// One of the last service's three replicas is cut off. Middleware must not keep
// retries from other replicas.
func TestOneReplicaIsCutOff(t *testing.T) {
	base, good := contract.Serve(t, contract.HTTP1, func(http.ResponseWriter, *http.Request) {})
	_, bad := contract.Serve(t, contract.HTTP1, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	healthy := good.Listener.Addr().String()
	for name, broken := range map[string]string{
		"503": bad.Listener.Addr().String(), "refused": faults.Refused(t)} {
		for balancing, isRandom := range map[string]bool{"round robin": false, "random": true} {
			t.Run(name+", "+balancing, func(t *testing.T) {
				success := map[bool]float64{}
				for _, middleware := range []bool{false, true} {
					random, turn := seeded(), new(atomic.Int64)
					choose := func(n int) int { return int(turn.Add(1)) % n }
					if isRandom {
						choose = func(n int) int { return int(random() * float64(n)) }
					}
					last := &balancer{
						next: base, replicas: []string{broken, healthy, healthy}, choose: choose}
					unchanged := func(h http.Handler) http.Handler { return h }
					success[middleware] = users(t, 500, last, middleware, unchanged)
				}
				t.Logf("%.1f %% without Middleware, %.1f %% with", success[false], success[true])
				assert.GreaterOrEqual(t, success[true], success[false]-1)
			})
		}
	}
}

// Each of three services fails 10 % of its requests at random.
func TestEachServiceFailsAtRandom(t *testing.T) {
	for _, middleware := range []bool{false, true} {
		t.Run(fmt.Sprintf("Middleware %v", middleware), func(t *testing.T) {
			random := seeded()
			unreliable := func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if random() < 0.1 {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					h.ServeHTTP(w, r)
				})
			}
			base, srv := contract.Serve(t, contract.HTTP1,
				unreliable(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP)
			last := &balancer{next: base, replicas: []string{srv.Listener.Addr().String()},
				choose: func(int) int { return 0 }}
			success := users(t, 3000, last, middleware, unreliable)
			t.Logf("%.2f %%", success)
			assert.GreaterOrEqual(t, success, 99.0)
		})
	}
}
