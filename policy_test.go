package httpretry_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/strategies"
)

// Hazard A11: New reports every bad field at once, with its path and value, in
// a stable order.
func TestNewReportsEverything(t *testing.T) {
	bad := httpretry.Policy{
		Backoff:           strategies.FullJitter{Base: time.Second, Max: time.Millisecond},
		MaxRetryAfter:     1, // a number without its unit
		AttemptTimeout:    -2,
		ReadAhead:         -5,
		MaxElapsed:        -time.Hour,
		Budget:            &httpretry.HostBudget{Ratio: -0.5},
		IdempotencyHeader: "Idempotency Key",
		ReplayBuffer:      -1, // means none
		ResumeIdle:        -3,
	}
	badParts := strategies.Capped{Of: strategies.Spread{
		Of: strategies.Constant{Wait: -1}, Fraction: math.NaN()}}
	_, err := httpretry.New(httpretry.Config{
		Policy: bad,
		Policies: map[string]httpretry.Policy{
			"a.test":          {MaxAttempts: -1}, // no limit
			"b.test":          {IdempotencyHeader: "Host"},
			"d.test":          {Backoff: badParts},
			"e.test":          {Cooldown: 7},
			"f.test":          {ResumeIdle: time.Hour},
			"*":               {},
			"api*.test":       {},
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
	got := strings.Split(err.Error(), "\n")
	want := []string{
		"Policy.Backoff: FullJitter.Max: 1ms: want at least Base (1s), or 0 for the default (30s)",
		"Policy.MaxRetryAfter: 1ns: want at least 1ms, 0 for 1m0s, or a negative duration for no limit",
		"Policy.AttemptTimeout: -2ns: want at least 1ms, or 0 for no timeout",
		"Policy.ReadAhead: -5: want a number of bytes, or 0 for none",
		"Policy.MaxElapsed: -1h0m0s: want at least 1ms, or 0 for no limit",
		"Policy.Budget: HostBudget.Ratio: -0.5: want 0 (the default, 0.2) or a number from " +
			"0.000001 to 1000000",
		`Policy.IdempotencyHeader: "Idempotency Key": want a header name`,
		"Policy.ResumeIdle: -3ns: want at least 1ms, or 0 for no limit",
		`Policies["*"]: matches every host: use Config.Policy`,
		`Policies["api*.test"]: `,
		`Policies["b.test"].IdempotencyHeader: "Host": want a header that HTTP does not define`,
		`Policies["bad host:99999"]: `,
		`Policies["bad host:99999"].AttemptTimeout: -1ns: want at least 1ms, or 0 for no timeout`,
		`Policies["d.test"].Backoff: Capped.Of: Spread.Of: Constant.Wait: -1ns: want at least 1ms, or 0 for no wait`,
		`Policies["d.test"].Backoff: Capped.Of: Spread.Fraction: NaN: want a positive number of at most 1, or 0 for the default (0.25)`,
		`Policies["e.test"].Cooldown: Cooldown(7): want CooldownSend, CooldownWait or CooldownFail`,
		`Policies["example.com"]: means the same as "EXAMPLE.com.": want only one of them`,
		`Policies["f.test"].ResumeIdle: 1h0m0s: want 0 without Resume`,
		`Policies["http://c.test"]: `,
		`AttemptHeader: "a b": want a header name`,
	}
	require.Len(t, got, len(want), err.Error())
	for i := range want {
		assert.True(t, strings.HasPrefix(got[i], "httpretry: Config."+want[i]),
			"%q\nwant %q", got[i], want[i])
	}

	cfg := httpretry.Config{
		Policies: map[string]httpretry.Policy{"c.test": bad, "b.test": bad, "a.test": bad}}
	_, err = httpretry.New(cfg)
	for range 20 { // the order of a map changes
		_, again := httpretry.New(cfg)
		require.EqualError(t, again, err.Error())
	}
}

func TestPolicyValidate(t *testing.T) {
	require.NoError(t, httpretry.Policy{}.Validate())
	require.NoError(t, httpretry.Policy{ReplayBuffer: -1, Budget: httpretry.Unlimited{}}.Validate())
	require.EqualError(t,
		httpretry.Policy{MaxAttempts: -3, AttemptTimeout: -1, MaxElapsed: -1}.Validate(),
		"httpretry: Policy.AttemptTimeout: -1ns: want at least 1ms, or 0 for no timeout\n"+
			"httpretry: Policy.MaxElapsed: -1ns: want at least 1ms, or 0 for no limit")
}

// An attempt header consists of the characters of a token.
func TestHeaderNames(t *testing.T) {
	const token = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	for b := range 256 {
		_, err := httpretry.New(httpretry.Config{AttemptHeader: "X-" + string([]byte{byte(b)})})
		assert.Equal(t, strings.IndexByte(token, byte(b)) >= 0, err == nil, "byte %#02x", b)
	}
}

// A header that means something else is not overwritten.
func TestHeaderNamesOfHTTP(t *testing.T) {
	for name := range strings.FieldsSeq(
		`content-length Transfer-Encoding Trailer host connection AUTHORIZATION Cookie
		Range Accept Accept-Encoding accept-language User-Agent Expect TE Upgrade Proxy-Connection Proxy-Authorization
		If-Range If-None-Match Content-Type Content-Encoding Cache-Control Date Forwarded X-Forwarded-For Via Origin
		Referer Sec-WebSocket-Key Access-Control-Request-Method HTTP2-Settings Keep-Alive Retry-After Max-Forwards
		Early-Data Priority Pragma From Age Allow Alt-Svc Alt-Used Authentication-Info Close ETag Expires Last-Modified
		Location MIME-Version Server Set-Cookie Upgrade-Insecure-Requests Vary Warning WWW-Authenticate`) {
		want := fmt.Sprintf("%q: want a header that HTTP does not define", name)
		_, err := httpretry.New(httpretry.Config{AttemptHeader: name})
		require.EqualError(t, err, "httpretry: Config.AttemptHeader: "+want)
		require.EqualError(t, httpretry.Policy{IdempotencyHeader: name}.Validate(),
			"httpretry: Policy.IdempotencyHeader: "+want)
	}
	for name := range strings.FieldsSeq(
		`X-Stainless-Retry-Count Amz-Sdk-Request Request-Id X-Request-Id X-Amz-Client-Token
		Repeatability-Request-ID Ranges Cookies Dates Retry Attempt If Proxy`) {
		_, err := httpretry.New(httpretry.Config{AttemptHeader: name})
		require.NoError(t, err, name)
	}
}

// A request with an idempotency key may be sent any number of times, so the
// attempt header must not be one for such keys.
func TestAttemptHeaderIsNoKey(t *testing.T) {
	keyed := httpretry.Policy{IdempotencyHeader: "Request-ID"}
	for _, cfg := range []httpretry.Config{
		{AttemptHeader: "idempotency-key"},
		{AttemptHeader: "X-Idempotency-Key"},
		{AttemptHeader: "request-id", Policy: keyed},
		{AttemptHeader: "Request-Id",
			Policies: map[string]httpretry.Policy{"a.test": {}, "b.test": keyed}},
		{Policy: httpretry.Policy{IdempotencyHeader: "retry-attempt"}}, // the default
	} {
		_, err := httpretry.New(cfg)
		name := cmp.Or(cfg.AttemptHeader, "Retry-Attempt")
		require.EqualError(t, err,
			fmt.Sprintf(
				"httpretry: Config.AttemptHeader: %q: want a header that is not for "+
					"idempotency keys", name))
	}
	_, err := httpretry.New(httpretry.Config{
		AttemptHeader: "-", Policy: httpretry.Policy{IdempotencyHeader: "Retry-Attempt"}})
	require.NoError(t, err)
}

// No field accepts a positive duration of less than a millisecond.
func TestAllDurationsHaveAMinimum(t *testing.T) {
	for _, v := range []interface{ Validate() error }{
		&httpretry.Policy{Resume: true}, // which ResumeIdle needs
		new(httpretry.HostBudget),
	} {
		value, found := reflect.ValueOf(v).Elem(), 0
		for _, field := range reflect.VisibleFields(value.Type()) {
			if field.Type != reflect.TypeFor[time.Duration]() {
				continue
			}
			found++
			for _, d := range []time.Duration{1, 60, time.Millisecond - 1} {
				value.FieldByIndex(field.Index).SetInt(int64(d))
				assert.ErrorContains(t, v.Validate(), fmt.Sprintf("%s.%s: %v: want ",
					value.Type().Name(), field.Name, d))
			}
			value.FieldByIndex(field.Index).SetInt(int64(time.Millisecond))
			assert.NoError(t, v.Validate())
		}
		assert.NotZero(t, found, value.Type())
	}
}

// The most specific policy of Policies applies, which inherits nothing from
// Config.Policy. A context's policy replaces it as a whole. A Config may be
// modified after New.
func TestPolicyChoice(t *testing.T) {
	attempts := func(n int) httpretry.Policy {
		p := contract.RetryEvery(0)
		p.MaxAttempts = n
		return p
	}
	policies := map[string]httpretry.Policy{
		"api.test":          attempts(0), // three by default
		"*.test":            attempts(4),
		"api.test:444":      attempts(5),
		"[::1]:8080":        attempts(6),
		"bücher.de":         attempts(7),
		"xn--pple-43d.test": attempts(8),
	}
	transport := contract.New(t, httpretry.Config{
		Base: contract.Play(s503), Policy: attempts(2), Policies: policies})
	clear(policies)
	once := httpretry.WithPolicy(t.Context(), httpretry.Policy{MaxAttempts: 1})
	for url, want := range map[string]int{
		"http://example.com/":              2,
		"http://api.test/":                 3,
		"http://API.Test.:8080/":           3,
		"http://b.api.test/":               4,
		"https://api.test:444/":            5,
		"http://[0:0:0:0:0:0:0:1]:8080/":   6,
		"http://xn--pple-43d.test/":        8,
		"http://BÜCHER.de/":                7,
		"http://xn--bcher-kva.de/":         2,
		"http://api.test:443@example.com/": 2,
	} {
		req := contract.Request(t, "GET", url, "")
		got := httpretry.ResultOf(contract.Send(t, transport, req))
		assert.Equal(t, want, got.Attempts, url)
		got = httpretry.ResultOf(contract.Send(t, transport, req.WithContext(once)))
		assert.Equal(t, 1, got.Attempts, url)
	}
}

func TestPolicysIdempotent(t *testing.T) {
	policy := contract.RetryEvery(0)
	policy.IdempotencyHeader = "request-id"
	policy.Idempotent = func(req *http.Request) bool { return req.URL.Path == "/safe" }
	for _, tt := range []struct {
		method, path, header string
		step                 contract.Step
		attempts             int
	}{
		{"GET", "/", "", s503, 1},
		{"POST", "/safe", "", s503, 5},
		{"POST", "/", "Request-Id", s503, 5},
		// A 409 is retried for any idempotency key.
		{"POST", "/safe", "", s409, 1},
		{"POST", "/", "Request-Id", s409, 5},
		{"POST", "/safe", "X-Idempotency-Key", s409, 5},
	} {
		base := contract.Play(tt.step)
		req := contract.Request(t, tt.method, "http://a.test"+tt.path, "")
		if tt.header != "" {
			req.Header.Set(tt.header, "k")
		}
		contract.Send(t, contract.With(t, base, policy), req)
		assert.Len(t, base.Attempts(), tt.attempts, tt)
	}
}

// A nil pointer in an interface value is not nil, and would panic on first use.
// New and Validate report it.
func TestNilValues(t *testing.T) {
	var (
		base      *http.Transport
		retrying  *httpretry.RetryTransport
		budget    *httpretry.HostBudget
		unlimited *httpretry.Unlimited
	)
	for want, cfg := range map[string]httpretry.Config{
		"Base: a nil *http.Transport":           {Base: base},
		"Base: a nil contract.BaseFunc":         {Base: contract.BaseFunc(nil)},
		"Base: a nil *httpretry.RetryTransport": {Base: retrying},
		"Policy.Budget: a nil *httpretry.HostBudget": {
			Policy: httpretry.Policy{Budget: budget}},
		"Policy.Budget: a nil *httpretry.Unlimited": {
			Policy: httpretry.Policy{Budget: unlimited}},
		`Policies["a.test"].Budget: a nil *httpretry.HostBudget`: {
			Policies: map[string]httpretry.Policy{"a.test": {Budget: budget}}},
	} {
		transport, err := httpretry.New(cfg)
		assert.Nil(t, transport, want)
		require.Error(t, err, want)
		want = "httpretry: Config." + want + ": want "
		assert.True(t, strings.HasPrefix(err.Error(), want), "%v", err)
		assert.NotContains(t, err.Error(), "\n", "one problem")
	}
	require.ErrorContains(t, httpretry.Policy{Budget: budget}.Validate(),
		"httpretry: Policy.Budget: a nil *httpretry.HostBudget: want ")
}

// A negative MaxRetryAfter means no limit. Any wait that the server asks for is
// kept.
func TestUnlimitedRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const days = 10 * 24 * time.Hour
		base := contract.Play(asksFor(864000), s200)
		policy := contract.RetryEvery(time.Second)
		policy.MaxRetryAfter = -1
		contract.Send(t, contract.With(t, base, policy), newGet(t))
		require.Len(t, base.Waits(), 1)
		assert.GreaterOrEqual(t, base.Waits()[0], days)
		assert.LessOrEqual(t, base.Waits()[0], days+30*time.Second)
	})
}

// The request's deadline still holds if there are no other limits.
func TestUnlimitedUntilTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		base, events := contract.Play(s503), new(contract.Record)
		policy := contract.RetryEvery(time.Second)
		policy.MaxAttempts, policy.MaxRetryAfter = -1, -1
		contract.Send(t, contract.Recorded(t, base, policy, events), newGet(t).WithContext(ctx))
		assert.Equal(t, httpretry.ReasonDeadline, events.Reason())
		assert.Len(t, base.Attempts(), 90)
	})
}

// Each field of Policy and Config is set in a test of this package, and each
// Reason is in one.
func TestFieldsAndReasonsHaveTests(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	used := map[string]bool{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue // such as the table of all reasons
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					used[n.Sel.Name] = true
				case *ast.KeyValueExpr:
					if field, ok := n.Key.(*ast.Ident); ok {
						used[field.Name] = true
					}
				}
				return true
			})
		}
	}
	for _, typ := range []reflect.Type{
		reflect.TypeFor[httpretry.Policy](), reflect.TypeFor[httpretry.Config]()} {
		for field := range typ.Fields() {
			assert.True(t, used[field.Name] || !field.IsExported(),
				"no test of this package uses %v.%s", typ, field.Name)
		}
	}
	for _, r := range reasons {
		assert.True(t, used[r.name], "no test of this package uses %s", r.name)
	}
}

// The longest first waits of the default backoff.
const (
	shortWait = 700 * time.Millisecond
	longWait  = 2100 * time.Millisecond // while the host fails
)

// send plays steps for a request to a.test.
func send(t *testing.T, transport http.RoundTripper, method string, steps ...contract.Step) {
	t.Helper()
	req := contract.Request(t, method, "http://a.test/", "")
	contract.Send(t, transport, contract.Play(steps...).For(req))
}

// requireLongest calls wait many times and checks the longest result.
func requireLongest(t *testing.T, want time.Duration, wait func(t *testing.T) time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		longest := time.Duration(0)
		for range 200 {
			longest = max(longest, wait(t))
		}
		assert.LessOrEqual(t, longest, want)
		assert.Greater(t, longest, want/2)
	})
}

// The default backoff is longer while the host has not succeeded since an
// earlier failure, of any request.
func TestBackoffWhileTheHostFails(t *testing.T) {
	watched := httpretry.Policy{AttemptTimeout: time.Hour} // no request is plain
	type transport = *httpretry.RetryTransport
	type request struct {
		method string
		steps  script
	}
	sends := func(requests ...request) func(*testing.T, transport) {
		return func(t *testing.T, transport transport) {
			for _, r := range requests {
				req := contract.Request(t, r.method, "http://a.test/", "")
				_ = exchange(t, transport, contract.Play(r.steps...).For(req))
			}
		}
	}
	fails := request{"POST", script{s503}} // it is not retried
	for name, tt := range map[string]struct {
		want   time.Duration
		before func(*testing.T, transport)
	}{
		"no failure":                    {shortWait, sends()},
		"a failure that is not retried": {longWait, sends(fails)},
		"an error":                      {longWait, sends(request{"POST", script{reset}})},
		"a success": {shortWait,
			sends(fails, request{"GET", script{s200}})},
		"a success that is not 2xx": {shortWait,
			sends(fails, request{"GET", script{s404}})},
		"a retry that succeeds": {shortWait, sends(request{"GET", script{s503, s200}})},
		"a retry that fails": {longWait, sends(
			request{"GET", script{s200}}, request{"GET", script{s503, s503, s503}})},
		"a failure of another host": {shortWait, func(t *testing.T, transport transport) {
			req := contract.Request(t, "POST", "http://b.test/", "")
			contract.Send(t, transport, contract.Play(s503).For(req))
		}},
		"a cancel": {shortWait, func(t *testing.T, transport transport) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			_, err := transport.RoundTrip(
				contract.Play(contract.Step{Takes: time.Hour}).For(newGet(t).WithContext(ctx)))
			require.Error(t, err)
		}},
		"a body that fails": {shortWait, func(t *testing.T, transport transport) {
			body := io.NopCloser(iotest.ErrReader(errors.New("no disk")))
			req := contract.Streamed(t, "POST", "http://a.test/", body)
			_, err := transport.RoundTrip(contract.Play(s503).For(req))
			require.Error(t, err)
		}},
		"a failure before SetPolicies": {shortWait, func(t *testing.T, transport transport) {
			send(t, transport, "POST", s503)
			require.NoError(t, transport.SetPolicies(httpretry.Policy{}, nil))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, policy := range []httpretry.Policy{{}, watched} {
				requireLongest(t, tt.want, func(t *testing.T) time.Duration {
					transport := contract.Unchecked(t, httpretry.Config{
						Base: contract.Scripts{}, Policy: policy})
					tt.before(t, transport)
					script := contract.Play(s503, s200)
					contract.Send(t, transport, script.For(newGet(t)))
					return script.Waits()[0]
				})
			}
		})
	}
}

// The two backoffs of a request have sequences of their own.
func TestBackoffAfterAnotherRequestSucceeds(t *testing.T) {
	requireLongest(t, shortWait, func(t *testing.T) time.Duration {
		transport := contract.Unchecked(t, httpretry.Config{Base: contract.Scripts{}})
		script := contract.Play(s429, s503, s200)
		done := make(chan struct{})
		go func() {
			defer close(done)
			contract.Send(t, transport, script.For(newGet(t)))
		}()
		synctest.Wait()
		send(t, transport, "GET", s200)
		<-done
		return script.Waits()[1]
	})
}

// The wait of a body that is resumed is short after an attempt with progress,
// and long after another one. It does not depend on the state of the host, which
// SetPolicies may have replaced since.
func TestBackoffOfResumes(t *testing.T) {
	for cut, want := range map[int]time.Duration{10: longWait, 70_000: shortWait} {
		requireLongest(t, want, func(t *testing.T) time.Duration {
			var times []time.Time
			o := newOrigin(100_000, 10, cut)
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				if req.Method == http.MethodPost {
					return answering(503)(req)
				}
				times = append(times, time.Now())
				return o.RoundTrip(req)
			})
			transport := contract.Unchecked(t, httpretry.Config{
				Base: base, Policy: httpretry.Policy{Resume: true}})
			resp := get(t, transport)
			contract.Send(t, transport, contract.Request(t, "POST", "http://a.test/", ""))
			_, err := readAll(t, o, resp)
			require.NoError(t, err)
			require.Len(t, times, 3)
			assert.LessOrEqual(t, times[1].Sub(times[0]), shortWait)
			return times[2].Sub(times[1])
		})
	}
}
