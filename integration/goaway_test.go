package integration

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/otelretry"
)

const netHTTPOnly = "net/http alone"

// churned is how a keyless POST is sent through servers that end their
// connections.
type churned struct {
	name     string
	over     func(base *http.Transport) http.RoundTripper
	layered  bool // net/http is below a layer
	declared bool // the layers are known, so no request fails
}

func churnedStacks() []churned {
	retry := func(cfg httpretry.Config) http.RoundTripper {
		transport, err := httpretry.New(cfg)
		if err != nil {
			panic(err) // the Config of a test is valid
		}
		return transport
	}
	return []churned{
		{netHTTPOnly, func(base *http.Transport) http.RoundTripper { return base }, false, true},
		{"direct", func(base *http.Transport) http.RoundTripper {
			return retry(httpretry.Config{Base: base})
		}, false, true},
		{"layer with Unwrap", func(base *http.Transport) http.RoundTripper {
			return retry(httpretry.Config{Base: declaredLayer{layer{base}}})
		}, true, true},
		{"Through(layer)", func(base *http.Transport) http.RoundTripper {
			return retry(httpretry.Config{Base: httpretry.Through(layer{base}, base)})
		}, true, true},
		{"otelretry.NewTransport", func(base *http.Transport) http.RoundTripper {
			return retry(httpretry.Config{Base: otelretry.NewTransport(base)})
		}, true, true},
		{"Through(oauth2)", func(base *http.Transport) http.RoundTripper {
			source := oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "token"})
			return retry(httpretry.Config{Base: httpretry.Through(&oauth2.Transport{Source: source, Base: base}, base)})
		}, true, true},
		{"layer without Unwrap", func(base *http.Transport) http.RoundTripper {
			return retry(httpretry.Config{Base: layer{base}})
		}, true, false},
	}
}

// declaredLayer is a layer that shows the transport below it.
type declaredLayer struct{ layer }

func (l declaredLayer) Unwrap() http.RoundTripper { return l.next }

// churnRequests is how many requests each row of a test sends, which
// INTEGRATION_GOAWAY sets.
func churnRequests(t testing.TB, usual int) int {
	text := os.Getenv("INTEGRATION_GOAWAY")
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// nginx ends each HTTP/2 connection after so many requests, with a GOAWAY that
// excludes the streams that it has not begun. Keyless POSTs on those are sent
// again, as by net/http alone, but below layers that are not declared. None is
// executed twice.
func TestNginxGoAwayKeyless(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ perConnection, usual int }{{10, 200}, {100, 200}, {1000, 1100}} {
		upstream := newCounting(t)
		n := startNginx(t, overHTTP2, fmt.Sprintf("keepalive_requests %d;", tt.perConnection), proxyTo(upstream.addr()))
		for _, clients := range []int{16, 64} {
			for _, kind := range bodyKinds()[:2] {
				for _, stack := range churnedStacks() {
					name := fmt.Sprintf("%d a connection/%d clients/%s/%s", tt.perConnection, clients, kind.name, stack.name)
					t.Run(name, func(t *testing.T) {
						if alone := stack.name == netHTTPOnly; alone && os.Getenv("INTEGRATION_GOAWAY") == "" {
							t.Skip("set INTEGRATION_GOAWAY to compare: net/http's waits make it slow")
						}
						upstream.forget()
						transport := stack.over(faults.Base(t, n.client))
						// Below a layer, a request without a body is not protected
						// until the host has answered one.
						_, err := status(transport, newRequest(patient(t), t, http.MethodPost, n.url, kind))
						require.NoError(t, err)
						l := load{
							clients: clients, requests: churnRequests(t, tt.usual), method: http.MethodPost, url: n.url, kind: kind,
							limit: time.Hour, // net/http waits for seconds before it takes another connection
						}
						outcomes, slowest := l.send(t, transport)
						failed := assertChurn(t, l, outcomes, stack.declared)
						twice := assertExecutedOnce(t, upstream, outcomes[succeededOutcome])
						t.Logf("%s: failed %d of %d, executed twice %d, slowest %v",
							name, failed, l.requests, twice, slowest.Round(time.Millisecond))
					})
				}
			}
		}
	}
}

// assertChurn returns how many requests of a load failed. None may, if the
// layers are declared. Otherwise, the errors name the function that declares
// them.
func assertChurn(t *testing.T, l load, outcomes map[string]int, declared bool) (failed int) {
	t.Helper()
	logCounts(t, outcomes)
	failed = l.requests - outcomes[succeededOutcome]
	if declared {
		assert.Zero(t, failed)
	}
	for outcome := range outcomes {
		if outcome != succeededOutcome {
			assert.Contains(t, outcome, "httpretry.Through")
		}
	}
	return failed
}

// assertExecutedOnce returns how many requests were executed more than once.
func assertExecutedOnce(t *testing.T, upstream *counting, succeeded int) (twice int) {
	t.Helper()
	executions := upstream.executions()
	delete(executions, "") // the request before the load
	assert.GreaterOrEqual(t, len(executions), succeeded)
	for n := range maps.Values(executions) {
		if n > 1 {
			twice++
		}
	}
	assert.Zero(t, twice, "requests that were executed more than once")
	return twice
}

// The first requests of a process find a host of which it is not known that it
// speaks HTTP/2. Directly over net/http, none of them fails. Below layers, those
// that have no body may fail, but none is executed twice.
func TestNginxGoAwayFirstBurst(t *testing.T) {
	t.Parallel()
	upstream := newCounting(t)
	n := startNginx(t, overHTTP2, "keepalive_requests 10;", proxyTo(upstream.addr()))
	for _, clients := range []int{16, 64} {
		for _, kind := range bodyKinds()[:2] {
			for _, stack := range churnedStacks() {
				if !stack.declared || stack.name == netHTTPOnly {
					continue
				}
				t.Run(fmt.Sprintf("%d clients/%s/%s", clients, kind.name, stack.name), func(t *testing.T) {
					const burst = 200
					failed, bursts := 0, max(1, churnRequests(t, burst)/burst)
					for range bursts {
						upstream.forget()
						transport := stack.over(faults.Base(t, n.client))
						l := load{
							clients: clients, requests: burst, method: http.MethodPost, url: n.url, kind: kind, limit: time.Hour,
						}
						outcomes, _ := l.send(t, transport)
						failed += l.requests - outcomes[succeededOutcome]
						assertExecutedOnce(t, upstream, outcomes[succeededOutcome])
						closeIdle(transport)
					}
					t.Logf("%s: failed %d in %d bursts of %d", t.Name(), failed, bursts, burst)
					if !stack.layered || kind.name != bodyKinds()[0].name {
						assert.Zero(t, failed)
					}
				})
			}
		}
	}
}
