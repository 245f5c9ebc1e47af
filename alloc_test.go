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

// respond returns b.ok, and does not read the body.
func (b *instant) respond(*http.Request) (*http.Response, error) { return b.ok, nil }

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
			cfg := fullConfig(contract.BaseFunc(newInstant().respond))
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

// newPages returns a base whose responses have 4 KiB.
func newPages() contract.BaseFunc {
	buffer := make([]byte, 4<<10)
	text := bytes.NewReader(buffer)
	page := http.Response{StatusCode: 200, ContentLength: 4 << 10, Body: io.NopCloser(text)}
	return func(*http.Request) (*http.Response, error) {
		text.Reset(buffer)
		resp := page
		return &resp, nil
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
		{"keyless POST", contract.BaseFunc(newInstant().respond), keyless, 14},
		{"read ahead", newPages(), newAPIGet(t), 2}, // one of these is the base's
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

// benchmark measures req and the rest of its response.
func benchmark(b *testing.B, name string, rt http.RoundTripper, req *http.Request) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			resp, err := rt.RoundTrip(req)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	})
}

// The cost of a transport is the difference from that of its base.
func BenchmarkSuccess(b *testing.B) {
	ok := newInstant().ok
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		ok.Request = req
		return ok, nil
	})
	plain := contract.Unchecked(b, httpretry.Config{Base: base})
	everything := contract.Unchecked(b, fullConfig(base))
	get, keyed := newAPIGet(b), newKeyedPost(b)
	keyless := keyed.Clone(b.Context())
	keyless.Header.Del("Idempotency-Key")

	benchmark(b, "base", base, get)
	benchmark(b, "GET/plain", plain, get)
	benchmark(b, "GET/everything", everything, get)
	benchmark(b, "KeyedPOST/plain", plain, keyed)
	benchmark(b, "KeyedPOST/everything", everything, keyed)
	benchmark(b, "KeylessPOST/plain", plain, keyless)
}

func BenchmarkOneRetry(b *testing.B) {
	policy := httpretry.Policy{Backoff: strategies.Constant{}, Budget: httpretry.Unlimited{}}
	benchmark(b, "GET", contract.Unchecked(b,
		httpretry.Config{Base: &flaky{instant: newInstant()}, Policy: policy}), newAPIGet(b))
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
	for _, limit := range []int64{0, 64 << 10} {
		benchmark(b, fmt.Sprint(limit), contract.Unchecked(b, httpretry.Config{Base: newPages(),
			Policy: httpretry.Policy{ReadAhead: limit, MaxElapsed: time.Hour}}), newAPIGet(b))
	}
}
