package httpretry_test

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/strategies"
)

// Hazard A11: every bad field is named at once, with its path and value, in a
// stable order.
func TestNewReportsEverything(t *testing.T) {
	bad := httpretry.Policy{
		MaxAttempts:    -3,
		Backoff:        strategies.FullJitter{Base: time.Second, Max: time.Millisecond},
		Throttled:      strategies.Capped{Of: strategies.Spread{Of: strategies.Constant{Wait: -1}, Fraction: math.NaN()}},
		MaxRetryAfter:  -time.Second,
		AttemptTimeout: -2,
		MaxElapsed:     -time.Hour,
		Budget:         &httpretry.HostBudget{Ratio: -0.5},
		KeyHeader:      "Idempotency Key",
		ReplayBuffer:   -1, // means none
	}
	_, err := httpretry.New(httpretry.Config{
		Policy: bad,
		Hosts: map[string]httpretry.Policy{
			"a.test":          {MaxAttempts: -1},
			"b.test":          {KeyHeader: "Host"},
			"EXAMPLE.com.":    {},
			"example.com":     {},
			"http://c.test":   {},
			"bad host:99999":  {AttemptTimeout: -1},
			"fine.test:8443":  {},
			"*.wildcard.test": {},
		},
		AttemptHeader: "a b",
	})
	require.Error(t, err)
	lines := strings.Split(err.Error(), "\n")
	var got []string
	for _, line := range lines {
		assert.True(t, strings.HasPrefix(line, "httpretry: Config."), line)
		got = append(got, strings.TrimPrefix(line, "httpretry: Config."))
	}
	want := []string{
		"Policy.MaxAttempts: -3 is negative",
		"Policy.Backoff: FullJitter.Max: 1ms is below Base (1s)",
		"Policy.Throttled: Capped.Of: Spread.Of: Constant.Wait: -1ns is negative",
		"Policy.Throttled: Capped.Of: Spread.Fraction: NaN is not a number",
		"Policy.MaxRetryAfter: -1s is negative",
		"Policy.AttemptTimeout: -2ns is negative",
		"Policy.MaxElapsed: -1h0m0s is negative",
		"Policy.Budget: HostBudget.Ratio: -0.5 is negative",
		`Policy.KeyHeader: "Idempotency Key" is not a header name`,
		`Hosts["a.test"].MaxAttempts: -1 is negative`,
		`Hosts["b.test"].KeyHeader: "Host" is a header that net/http writes itself`,
		`Hosts["bad host:99999"]: `,
		`Hosts["bad host:99999"].AttemptTimeout: -1ns is negative`,
		`Hosts["example.com"]: means the same as "EXAMPLE.com."; only one of them may stay`,
		`Hosts["http://c.test"]: `,
		`AttemptHeader: "a b" is not a header name`,
	}
	require.Len(t, got, len(want), err.Error())
	for i := range want {
		assert.True(t, strings.HasPrefix(got[i], want[i]), "%q\nwant %q", got[i], want[i])
	}

	for range 20 { // of a map
		_, again := httpretry.New(httpretry.Config{Policy: bad, Hosts: map[string]httpretry.Policy{"b.test": bad, "a.test": bad, "c.test": bad}})
		_, err := httpretry.New(httpretry.Config{Policy: bad, Hosts: map[string]httpretry.Policy{"c.test": bad, "b.test": bad, "a.test": bad}})
		require.EqualError(t, err, again.Error())
	}
}

func TestPolicyValidate(t *testing.T) {
	require.NoError(t, httpretry.Policy{}.Validate())
	require.NoError(t, httpretry.Policy{ReplayBuffer: -1, Budget: httpretry.Unlimited{}}.Validate())
	require.EqualError(t, httpretry.Policy{MaxAttempts: -3, MaxElapsed: -1}.Validate(),
		"httpretry: Policy.MaxAttempts: -3 is negative\nhttpretry: Policy.MaxElapsed: -1ns is negative")
}

func TestHeaderNames(t *testing.T) {
	for _, name := range []string{"X-Attempt", "x-attempt", "a!#$%&'*+-.^_`|~9"} {
		_, err := httpretry.New(httpretry.Config{AttemptHeader: name})
		require.NoError(t, err, name)
	}
	for _, name := range []string{" ", "a:b", "ä", "a\n", "content-length", "Transfer-Encoding", "Trailer", "host", "connection"} {
		_, err := httpretry.New(httpretry.Config{AttemptHeader: name})
		require.ErrorContains(t, err, "httpretry: Config.AttemptHeader: ", name)
	}
}

// An invalid policy fails its requests before anything is sent.
func TestInvalidContextPolicy(t *testing.T) {
	base, body := play(status(200)), contract.Counted("text")
	ctx := httpretry.WithPolicy(t.Context(), httpretry.Policy{MaxAttempts: -1, MaxElapsed: -1})
	_, err := contract.New(t, httpretry.Config{Base: base}).RoundTrip(streamed(t, "PUT", "http://a.test/", body).WithContext(ctx))
	require.EqualError(t, err, "httpretry: not sent: Policy.MaxAttempts: -1 is negative\nPolicy.MaxElapsed: -1ns is negative")
	var all *httpretry.Error
	require.ErrorAs(t, err, &all)
	assert.Zero(t, all.Attempts)
	assert.Empty(t, base.attempts())
}

// The most specific policy applies, and a context's is the whole of it.
func TestPolicyChoice(t *testing.T) {
	attempts := func(n int) httpretry.Policy {
		p := every(0)
		p.MaxAttempts = n
		return p
	}
	cfg := httpretry.Config{
		Policy: attempts(2),
		Hosts: map[string]httpretry.Policy{
			"api.test":     attempts(3),
			"*.test":       attempts(4),
			"api.test:444": attempts(5),
			"[::1]:8080":   attempts(6),
			"bücher.de":    attempts(7),
		},
	}
	for url, want := range map[string]int{
		"http://example.com/":              2,
		"http://api.test/":                 3,
		"http://API.Test.:8080/":           3,
		"http://b.api.test/":               4,
		"https://api.test:444/":            5,
		"http://[0:0:0:0:0:0:0:1]:8080/":   6,
		"http://xn--bcher-kva.de/":         7,
		"http://BÜCHER.de/":                7,
		"http://api.test:443@example.com/": 2,
	} {
		base := play(status(503))
		cfg.Base = base
		transport := contract.New(t, cfg)
		resp, err := transport.RoundTrip(request(t, "GET", url, ""))
		require.NoError(t, err)
		finish(t, resp)
		assert.Len(t, base.attempts(), want, url)

		ctx := httpretry.WithPolicy(t.Context(), httpretry.Policy{MaxAttempts: 1})
		resp, err = transport.RoundTrip(request(t, "GET", url, "").WithContext(ctx))
		require.NoError(t, err)
		finish(t, resp)
		assert.Len(t, base.attempts(), want+1, "one request without retries")
	}
}

// A policy in Hosts inherits nothing.
func TestNoInheritance(t *testing.T) {
	base := play(status(503))
	cfg := httpretry.Config{Base: base, Policy: every(0), Hosts: map[string]httpretry.Policy{
		"a.test": {Backoff: strategies.Constant{}},
	}}
	resp, err := contract.New(t, cfg).RoundTrip(request(t, "GET", "http://a.test/", ""))
	require.NoError(t, err)
	finish(t, resp)
	assert.Len(t, base.attempts(), 3, "the default, not Config.Policy's five")
}

// What New was given may change afterwards.
func TestConfigIsCopied(t *testing.T) {
	base := play(status(503))
	hosts := map[string]httpretry.Policy{"a.test": every(0)}
	cfg := httpretry.Config{Base: base, Hosts: hosts}
	transport := contract.New(t, cfg)
	hosts["a.test"] = httpretry.Policy{MaxAttempts: 1}
	resp, err := transport.RoundTrip(request(t, "GET", "http://a.test/", ""))
	require.NoError(t, err)
	finish(t, resp)
	assert.Len(t, base.attempts(), 5)
}

func TestPolicysIdempotent(t *testing.T) {
	policy := every(0)
	policy.KeyHeader = "request-id"
	policy.Idempotent = func(req *http.Request) bool { return req.URL.Path == "/safe" }
	for _, tt := range []struct {
		method, path, key string
		attempts          int
	}{
		{"GET", "/", "", 1},
		{"POST", "/safe", "", 5},
		{"POST", "/", "k", 5},
	} {
		base := play(status(503))
		req := request(t, tt.method, "http://a.test"+tt.path, "")
		if tt.key != "" {
			req.Header.Set("Request-Id", tt.key)
		}
		resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(req)
		require.NoError(t, err)
		finish(t, resp)
		assert.Len(t, base.attempts(), tt.attempts, tt)
	}
}
