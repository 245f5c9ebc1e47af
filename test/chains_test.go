package test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

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
		transport := contract.New(t,
			httpretry.Config{Base: base, Policy: threeAttempts, AttemptHeader: c.header})
		handler := forwardTo(t, transport, target)
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
	resp := contract.Send(t, contract.New(t,
		httpretry.Config{Base: base, Policy: threeAttempts, AttemptHeader: c.header}), req)
	assert.GreaterOrEqual(t, resp.StatusCode, 502)
	assert.Empty(t, resp.Header["X-Should-Retry"])
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
	header := cmp.Or(c.header, "Retry-Attempt")
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

// forwardTo returns a service that sends each request to target and answers
// with the status that it gets.
func forwardTo(t *testing.T, rt http.RoundTripper, target string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		req := contract.Request(t, r.Method, target, string(body)).WithContext(r.Context())
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
					if c.refuses || !c.middleware {
						return
					}
					// The last service can tell retries from first attempts, whichever
					// service made them.
					assert.Empty(t, c.bottom[0])
					for i, header := range c.bottom[1:] {
						// the first or second retry of one of the layers
						assert.Equal(t, strconv.Itoa(1+i%2), header, "%d of %q", i, c.bottom)
					}
				})
			}
		}
	}
}
