package httpretry_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
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

// instant is a base that answers without any work, so that a benchmark measures
// only the transport above it.
type instant struct{ ok, failed *http.Response }

func newInstant() *instant {
	return &instant{
		ok:     &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody},
		failed: &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody},
	}
}

func (b *instant) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return nil, err
		}
		if err := req.Body.Close(); err != nil {
			return nil, err
		}
	}
	return b.ok, nil
}

// flaky answers every other request with 503 and a body of 512 bytes.
type flaky struct {
	*instant
	n      int
	unread io.ReadCloser // the body instead, or nil
}

func (b *flaky) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.instant.RoundTrip(req)
	if b.n++; err == nil && b.n%2 == 1 {
		if b.failed.Body = b.unread; b.unread == nil {
			b.failed.Body = io.NopCloser(strings.NewReader(errorPage))
		}
		return b.failed, nil
	}
	resp.Request = req // as in net/http
	return resp, err
}

var errorPage = strings.Repeat("x", 512)

// fullConfig returns a Config with every feature that could cost something on
// the path of a success: an observer, policies per host and a budget.
func fullConfig(base http.RoundTripper) httpretry.Config {
	return httpretry.Config{
		Base:    base,
		Observe: func(context.Context, httpretry.Event) {},
		Policy:  httpretry.Policy{Backoff: strategies.Constant{}},
		Policies: map[string]httpretry.Policy{
			"api.example.com":      {MaxAttempts: 5},
			"*.example.com":        {MaxAttempts: 4},
			"*.cdn.example.com":    {MaxAttempts: 2},
			"other.example.com:81": {MaxAttempts: 1},

			"POST files.example.com/v1/charges": {MaxAttempts: 3},
			"PUT files.example.com/v1/charges":  {Budget: new(httpretry.HostBudget)},
		},
	}
}

func newKeyedPost(t testing.TB) *http.Request {
	req, err := http.NewRequest(
		"POST", "https://api.example.com/v1/charges", bytes.NewReader(make([]byte, 1<<10)))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", "0123456789")
	return req
}

// toFiles returns req as a request to the host that has a key with a path.
func toFiles(req *http.Request) *http.Request {
	req.URL.Host = "files.example.com"
	return req
}

func newAPIGet(t testing.TB) *http.Request {
	req, err := http.NewRequest("GET", "https://api.example.com/v1/charges", nil)
	require.NoError(t, err)
	req.Header.Set("Accept", "application/json")
	return req
}

// A success allocates nothing, with every feature on.
func TestSuccessAllocatesNothing(t *testing.T) {
	if contract.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	ctx := httpretry.WithPolicy(t.Context(), httpretry.Policy{MaxElapsed: time.Minute})
	for name, req := range map[string]*http.Request{
		"GET":                   newAPIGet(t),
		"GET, other host":       contract.Request(t, "GET", "http://www.example.org/", ""),
		"GET, wildcard":         contract.Request(t, "GET", "http://a.b.cdn.example.com:8080/", ""),
		"GET, IPv6":             contract.Request(t, "GET", "http://[::1]:8080/", ""),
		"GET, context's policy": newAPIGet(t).WithContext(ctx),
		"keyed POST":            newKeyedPost(t),
		"keyed POST to a path":  toFiles(newKeyedPost(t)),
		"PUT to a path with a budget": contract.Request(t, "PUT",
			"https://files.example.com/v1/charges", ""),
	} {
		t.Run(name, func(t *testing.T) {
			base := &instant{ok: newInstant().ok}
			cfg := fullConfig(
				contract.BaseFunc(
					func(*http.Request) (*http.Response, error) { return base.ok, nil }))
			// Without an observer, most of these requests are plain.
			for _, observe := range []func(context.Context, httpretry.Event){cfg.Observe, nil} {
				cfg.Observe = observe
				transport := contract.Unchecked(t, cfg)
				assert.Zero(t, testing.AllocsPerRun(1000, func() {
					if _, err := transport.RoundTrip(req); err != nil {
						t.Error(err)
					}
				}))
			}
		})
	}
}

// drainable is an empty body of a type of its own.
type drainable struct{ _ byte }

func (*drainable) Read([]byte) (int, error) { return 0, io.EOF }
func (*drainable) Close() error             { return nil }

// The allocations of an attempt that is a copy of the request are bounded.
func TestAllocations(t *testing.T) {
	if contract.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	ok := newInstant().ok
	buffer := make([]byte, 4<<10)
	text := bytes.NewReader(buffer)
	page := http.Response{StatusCode: 200, ContentLength: 4 << 10, Body: io.NopCloser(text)}
	keyless := newKeyedPost(t)
	keyless.Header.Del("Idempotency-Key")
	for _, tt := range []struct {
		name string
		base http.RoundTripper
		req  *http.Request
		most float64
	}{
		// Two of these are the base's, for the body of the 503, and one is the call.
		{"one retry", &flaky{instant: newInstant()}, newAPIGet(t), 12},
		// A body that is not known to be in memory is drained in a goroutine.
		{"one retry, drained",
			&flaky{instant: newInstant(), unread: &drainable{}}, newAPIGet(t), 17},
		{"keyless POST", contract.BaseFunc(
			func(*http.Request) (*http.Response, error) { return ok, nil }), keyless, 14},
		{"read ahead", contract.BaseFunc(func(*http.Request) (*http.Response, error) {
			text.Reset(buffer)
			resp := page // a second allocation
			return &resp, nil
		}), newAPIGet(t), 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			policy := httpretry.Policy{
				Backoff: strategies.Constant{}, Budget: httpretry.Unlimited{}}
			if tt.name == "read ahead" {
				policy.ReadAhead = 64 << 10
			}
			transport := contract.Unchecked(t, httpretry.Config{Base: tt.base, Policy: policy})
			allocs := testing.AllocsPerRun(1000, func() {
				resp, err := transport.RoundTrip(tt.req)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
			})
			assert.LessOrEqual(t, allocs, tt.most)
		})
	}
}

// benchmarkAgainst measures a transport and its base, so that the difference is
// the cost of the transport.
func benchmarkAgainst(
	b *testing.B, base http.RoundTripper, cfg httpretry.Config, req func() *http.Request) {
	cfg.Base = base
	for _, c := range []struct {
		name string
		rt   http.RoundTripper
	}{{"base", base}, {"httpretry", contract.Unchecked(b, cfg)}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				resp, err := c.rt.RoundTrip(req())
				if err != nil {
					b.Fatal(err)
				}
				_ = resp.Body.Close()
			}
		})
	}
}

func BenchmarkSuccess(b *testing.B) {
	ok := newInstant().ok
	empty := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		ok.Request = req
		return ok, nil
	})
	getReq, postReq := newAPIGet(b), newKeyedPost(b)
	keyless := postReq.Clone(b.Context())
	keyless.Header.Del("Idempotency-Key")
	timed := fullConfig(nil)
	timed.Policy.MaxElapsed = time.Minute

	for _, c := range []struct {
		name string
		cfg  httpretry.Config
		req  *http.Request
	}{
		{"GET/plain", httpretry.Config{}, getReq},
		{"GET/everything", fullConfig(nil), getReq},
		{"KeyedPOST/plain", httpretry.Config{}, postReq},
		{"KeyedPOST/everything", fullConfig(nil), postReq},
		{"KeylessPOST/plain", httpretry.Config{}, keyless},
	} {
		b.Run(c.name, func(b *testing.B) {
			benchmarkAgainst(b, empty, c.cfg, func() *http.Request { return c.req })
		})
	}
}

func BenchmarkOneRetry(b *testing.B) {
	policy := httpretry.Policy{Backoff: strategies.Constant{}, Budget: httpretry.Unlimited{}}
	for _, c := range []struct {
		name string
		req  *http.Request
		rt   http.RoundTripper
	}{
		{"GET", newAPIGet(b),
			contract.Unchecked(b,
				httpretry.Config{Base: &flaky{instant: newInstant()}, Policy: policy})},
		{"KeyedPOST", newKeyedPost(b),
			contract.Unchecked(b,
				httpretry.Config{Base: &flaky{instant: newInstant()}, Policy: policy})},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				// The body of the request before was sent.
				if c.req.GetBody != nil {
					c.req.Body, _ = c.req.GetBody()
				}
				resp, err := c.rt.RoundTrip(c.req)
				if err != nil {
					b.Fatal(err)
				}
				_ = resp.Body.Close()
			}
		})
	}
}

func hostNames(n int) []string {
	hosts := make([]string, n)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("host-%d.example.com", i)
	}
	return hosts
}

func BenchmarkHostBudget(b *testing.B) {
	b.Run("deposit", func(b *testing.B) {
		var budget httpretry.HostBudget
		b.ReportAllocs()
		for b.Loop() {
			contract.Succeed(&budget, "api.example.com", false)
		}
	})
	b.Run("deposit to hosts that never repeat", func(b *testing.B) {
		var budget httpretry.HostBudget
		hosts := hostNames(20_000) // far more than the table has room for
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			contract.Succeed(&budget, hosts[i%len(hosts)], false)
		}
	})
	b.Run("withdraw", func(b *testing.B) {
		var budget httpretry.HostBudget
		ctx := b.Context()
		b.ReportAllocs()
		for b.Loop() {
			budget.Withdraw(ctx, contract.Failure("api.example.com"))
		}
	})
}

func BenchmarkReadAhead(b *testing.B) {
	buffer := make([]byte, 4<<10)
	for _, limit := range []int64{0, 64 << 10} {
		text := bytes.NewReader(buffer)
		ok := http.Response{StatusCode: 200, ContentLength: 4 << 10, Body: io.NopCloser(text)}
		base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
			text.Reset(buffer)
			resp := ok
			return &resp, nil
		})
		transport := contract.Unchecked(b, httpretry.Config{
			Base: base, Policy: httpretry.Policy{ReadAhead: limit, MaxElapsed: time.Hour}})
		req := newAPIGet(b)
		b.Run(fmt.Sprint(limit), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				resp, err := transport.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		})
	}
}
