package httpretry_test

import (
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
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
		AttemptTimeout:    -2,
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
		"Policy.Backoff: FullJitter.Max: 1ms: want at least Base (1s), or 0 for the default (30s)",
		"Policy.AttemptTimeout: -2ns: want at least 1ms, or 0 for no timeout",
		"Policy.MaxElapsed: -1h0m0s: want at least 1ms, or 0 for no limit",
		"Policy.Budget: HostBudget.Ratio: -0.5: want 0 (the default, 0.2) or a number from " +
			"0.000001 to 1000000",
		`Policy.IdempotencyHeader: "Idempotency Key": want a header name`,
		"Policy.ResumeIdle: -3ns: want at least 1ms, or 0 for no limit",
		`Policies["b.test"].IdempotencyHeader: "Host": want a header that HTTP does not define`,
		`Policies["bad host:99999"]: `,
		`Policies["bad host:99999"].AttemptTimeout: -1ns: want at least 1ms, or 0 for no timeout`,
		`Policies["d.test"].Backoff: Capped.Of: Spread.Of: Constant.Wait: -1ns: want at least 1ms, or 0 for no wait`,
		`Policies["d.test"].Backoff: Capped.Of: Spread.Fraction: NaN: want a positive number of at most 1, or 0 for the default (0.25)`,
		`Policies["example.com"]: means the same as "EXAMPLE.com.": want only one of them`,
		`Policies["http://c.test"]: `,
		`AttemptHeader: "a b": want a header name`,
	}
	require.Len(t, got, len(want), err.Error())
	for i := range want {
		assert.True(t, strings.HasPrefix(got[i], want[i]), "%q\nwant %q", got[i], want[i])
	}

	for range 20 { // the order of a map changes
		_, again := httpretry.New(
			httpretry.Config{Policy: bad,
				Policies: map[string]httpretry.Policy{"b.test": bad, "a.test": bad, "c.test": bad}})
		_, err := httpretry.New(
			httpretry.Config{Policy: bad,
				Policies: map[string]httpretry.Policy{"c.test": bad, "b.test": bad, "a.test": bad}})
		require.EqualError(t, err, again.Error())
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

func TestHeaderNames(t *testing.T) {
	for _, name := range []string{"X-Attempt", "x-attempt", "a!#$%&'*+-.^_`|~9"} {
		_, err := httpretry.New(httpretry.Config{AttemptHeader: name})
		require.NoError(t, err, name)
	}
	for _, name := range []string{" ", "a:b", "ä", "a\n"} {
		_, err := httpretry.New(httpretry.Config{AttemptHeader: name})
		require.ErrorContains(t, err, "httpretry: Config.AttemptHeader: ", name)
	}
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
	for _, fresh := range []func() interface{ Validate() error }{
		func() interface{ Validate() error } { return &httpretry.Policy{Resume: true} },
		func() interface{ Validate() error } { return new(httpretry.HostBudget) },
	} {
		typ := reflect.TypeOf(fresh()).Elem()
		found := 0
		for _, field := range reflect.VisibleFields(typ) {
			if field.Type != reflect.TypeFor[time.Duration]() {
				continue
			}
			found++
			for _, d := range []time.Duration{1, 60, time.Millisecond - 1, time.Millisecond} {
				v := fresh()
				reflect.ValueOf(v).Elem().FieldByIndex(field.Index).SetInt(int64(d))
				if p, ok := v.(*httpretry.Policy); ok {
					p.Resume = true // ResumeIdle is not valid without it
				}
				err := v.Validate()
				if d == time.Millisecond {
					assert.NoError(t, err)
				} else {
					assert.ErrorContains(t, err, fmt.Sprintf("%s.%s: %v: want ",
						typ.Name(), field.Name, d))
				}
			}
		}
		assert.NotZero(t, found, typ)
	}
}

// A duration that is a number without its unit is an error, not a limit that
// nothing keeps.
func TestDurationsWithoutUnit(t *testing.T) {
	type policy = httpretry.Policy
	for field, of := range map[string]func(time.Duration) policy{
		"MaxRetryAfter":  func(d time.Duration) policy { return policy{MaxRetryAfter: d} },
		"AttemptTimeout": func(d time.Duration) policy { return policy{AttemptTimeout: d} },
		"MaxElapsed":     func(d time.Duration) policy { return policy{MaxElapsed: d} },
		"ResumeIdle": func(d time.Duration) policy {
			return policy{Resume: true, ResumeIdle: d}
		},
	} {
		want := "want at least 1ms, or 0 for no limit"
		switch field {
		case "AttemptTimeout":
			want = "want at least 1ms, or 0 for no timeout"
		case "MaxRetryAfter":
			want = "want at least 1ms, 0 for 1m0s, or a negative duration for no limit"
			require.NoError(t, of(-1).Validate())
		}
		for _, d := range []time.Duration{1, 30, time.Millisecond - 1} {
			problem := fmt.Sprintf("%s: %v: %s", field, d, want)
			require.EqualError(t, of(d).Validate(), "httpretry: Policy."+problem)
			_, err := httpretry.New(httpretry.Config{Policy: of(d)})
			require.EqualError(t, err, "httpretry: Config.Policy."+problem)
			_, err = httpretry.New(httpretry.Config{Policies: map[string]policy{"a.test": of(d)}})
			require.EqualError(t, err, `httpretry: Config.Policies["a.test"].`+problem)

			base := contract.Play(s200)
			req := newGet(t)
			_, err = contract.New(t, httpretry.Config{Base: base}).
				RoundTrip(req.WithContext(httpretry.WithPolicy(t.Context(), of(d))))
			require.EqualError(t, err, "httpretry: not sent: Policy."+problem)
			assert.Empty(t, base.Attempts())
		}
		require.NoError(t, of(time.Millisecond).Validate())
		require.NoError(t, of(0).Validate())
	}
}

// A ResumeIdle of any length needs Resume.
func TestResumeIdleNeedsResume(t *testing.T) {
	for _, d := range []time.Duration{time.Millisecond, time.Hour} {
		require.EqualError(t, httpretry.Policy{ResumeIdle: d}.Validate(), fmt.Sprintf(
			"httpretry: Policy.ResumeIdle: %v: want 0 without Resume", d))
	}
}

// A request with an invalid policy fails before anything is sent.
func TestInvalidContextPolicy(t *testing.T) {
	base, body := contract.Play(s200), contract.Counted("text")
	ctx := httpretry.WithPolicy(t.Context(), httpretry.Policy{AttemptTimeout: -1, MaxElapsed: -1})
	_, err := contract.New(t, httpretry.Config{Base: base}).
		RoundTrip(contract.Streamed(t, "PUT", "http://a.test/", body).WithContext(ctx))
	require.EqualError(t, err,
		"httpretry: not sent: Policy.AttemptTimeout: -1ns: want at least 1ms, or 0 for no timeout\n"+
			"Policy.MaxElapsed: -1ns: want at least 1ms, or 0 for no limit")
	requireError(t, err, 0, httpretry.ReasonPermanent)
	assert.Empty(t, base.Attempts())
}

// A context's policy is not known to New, which checks the others for this.
func TestContextPolicysKeyIsNoAttempt(t *testing.T) {
	base := contract.Play(s503, s200)
	policy := contract.RetryEvery(0)
	policy.IdempotencyHeader, policy.NewIdempotencyKey = "retry-attempt", httpretry.RandomKey
	req := contract.Request(t, "POST", "http://a.test/", "text")
	req = req.WithContext(httpretry.WithPolicy(req.Context(), policy))
	_, err := contract.New(t, httpretry.Config{Base: base}).RoundTrip(req)
	require.EqualError(t, err,
		`httpretry: not sent: Policy.IdempotencyHeader: "Retry-Attempt": want another header than Config.AttemptHeader`)
	assert.Empty(t, base.Attempts())

	req = contract.Request(t, "POST", "http://a.test/", "text")
	req = req.WithContext(httpretry.WithPolicy(req.Context(), policy))
	contract.Send(t, contract.New(t, httpretry.Config{Base: base, AttemptHeader: "-"}), req)
	assert.Len(t, base.Attempts(), 2)
}

// The most specific policy of Policies applies. A context's policy replaces it
// as a whole.
func TestPolicyChoice(t *testing.T) {
	attempts := func(n int) httpretry.Policy {
		p := contract.RetryEvery(0)
		p.MaxAttempts = n
		return p
	}
	cfg := httpretry.Config{
		Policy: attempts(2),
		Policies: map[string]httpretry.Policy{
			"api.test":          attempts(3),
			"*.test":            attempts(4),
			"api.test:444":      attempts(5),
			"[::1]:8080":        attempts(6),
			"bücher.de":         attempts(7),
			"xn--pple-43d.test": attempts(8),
		},
	}
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
		base := contract.Play(s503)
		cfg.Base = base
		transport := contract.New(t, cfg)
		contract.Send(t, transport, contract.Request(t, "GET", url, ""))
		assert.Len(t, base.Attempts(), want, url)

		ctx := httpretry.WithPolicy(t.Context(), httpretry.Policy{MaxAttempts: 1})
		contract.Send(t, transport, contract.Request(t, "GET", url, "").WithContext(ctx))
		assert.Len(t, base.Attempts(), want+1, "one request without retries")
	}
}

// A policy in Policies inherits nothing.
func TestNoInheritance(t *testing.T) {
	base := contract.Play(s503)
	cfg := httpretry.Config{
		Base: base, Policy: contract.RetryEvery(0), Policies: map[string]httpretry.Policy{
			"a.test": {Backoff: strategies.Constant{}},
		}}
	contract.Send(t, contract.New(t, cfg), newGet(t))
	assert.Len(t, base.Attempts(), 3, "the default, not Config.Policy's five")
}

// A Config may be modified after New.
func TestConfigIsCopied(t *testing.T) {
	base := contract.Play(s503)
	policies := map[string]httpretry.Policy{"a.test": contract.RetryEvery(0)}
	cfg := httpretry.Config{Base: base, Policies: policies}
	transport := contract.New(t, cfg)
	policies["a.test"] = httpretry.Policy{MaxAttempts: 1}
	contract.Send(t, transport, newGet(t))
	assert.Len(t, base.Attempts(), 5)
}

func TestPolicysIdempotent(t *testing.T) {
	policy := contract.RetryEvery(0)
	policy.IdempotencyHeader = "request-id"
	policy.Idempotent = func(req *http.Request) bool { return req.URL.Path == "/safe" }
	for _, tt := range []struct {
		method, path, key string
		attempts          int
	}{
		{"GET", "/", "", 1},
		{"POST", "/safe", "", 5},
		{"POST", "/", "k", 5},
	} {
		base := contract.Play(s503)
		req := contract.Request(t, tt.method, "http://a.test"+tt.path, "")
		if tt.key != "" {
			req.Header.Set("Request-Id", tt.key)
		}
		contract.Send(t, contract.New(t, httpretry.Config{Base: base, Policy: policy}), req)
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
	for name, tt := range map[string]struct {
		cfg  httpretry.Config
		want string
	}{
		"Base": {
			httpretry.Config{Base: base}, "httpretry: Config.Base: a nil *http.Transport: want "},
		"function": {httpretry.Config{Base: contract.BaseFunc(nil)},
			"httpretry: Config.Base: a nil contract.BaseFunc: want "},
		"RetryTransport": {httpretry.Config{Base: retrying},
			"httpretry: Config.Base: a nil *httpretry.RetryTransport: want "},
		"Budget": {httpretry.Config{Policy: httpretry.Policy{Budget: budget}},
			"httpretry: Config.Policy.Budget: a nil *httpretry.HostBudget: want "},
		"another Budget": {httpretry.Config{Policy: httpretry.Policy{Budget: unlimited}},
			"httpretry: Config.Policy.Budget: a nil *httpretry.Unlimited: want "},
		"a host's Budget": {
			httpretry.Config{Policies: map[string]httpretry.Policy{"a.test": {Budget: budget}}},
			`httpretry: Config.Policies["a.test"].Budget: a nil *httpretry.HostBudget: want `},
	} {
		t.Run(name, func(t *testing.T) {
			transport, err := httpretry.New(tt.cfg)
			assert.Nil(t, transport)
			require.Error(t, err)
			assert.True(t, strings.HasPrefix(err.Error(), tt.want), "%v", err)
			assert.NotContains(t, err.Error(), "\n", "one problem")
		})
	}
	require.ErrorContains(t, httpretry.Policy{Budget: budget}.Validate(),
		"httpretry: Policy.Budget: a nil *httpretry.HostBudget: want ")
}

// Each text says what is allowed.
func TestTextsSayWhatIsAllowed(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg  httpretry.Config
		want []string // in the text
	}{
		"AttemptTimeout": {httpretry.Config{Policy: httpretry.Policy{AttemptTimeout: -1}},
			[]string{
				"Config.Policy.AttemptTimeout: -1ns: ", "want at least 1ms, or 0 for no timeout"}},
		"ResumeIdle": {httpretry.Config{Policy: httpretry.Policy{ResumeIdle: -1}},
			[]string{"Config.Policy.ResumeIdle: -1ns: ", "want at least 1ms, or 0 for no limit"}},
		"ResumeIdle alone": {httpretry.Config{Policy: httpretry.Policy{ResumeIdle: 5 * time.Second}},
			[]string{"Config.Policy.ResumeIdle: 5s: want 0 without Resume"}},
		"MaxElapsed": {httpretry.Config{Policy: httpretry.Policy{MaxElapsed: -1}},
			[]string{"Config.Policy.MaxElapsed: -1ns: ", "want at least 1ms, or 0 for no limit"}},
		"Cooldown": {httpretry.Config{Policy: httpretry.Policy{Cooldown: 7}},
			[]string{"Config.Policy.Cooldown: Cooldown(7): ",
				"want CooldownSend, CooldownWait or CooldownFail"}},
		"every host": {httpretry.Config{Policies: map[string]httpretry.Policy{"*": {}}},
			[]string{`Config.Policies["*"]: `, "use Config.Policy"}},
		"part of a label": {
			httpretry.Config{Policies: map[string]httpretry.Policy{"api*.test": {}}},
			[]string{`Config.Policies["api*.test"]: `}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := httpretry.New(tt.cfg)
			require.Error(t, err)
			for _, want := range tt.want {
				assert.Contains(t, err.Error(), want)
			}
			assert.NotContains(t, err.Error(), "\n", "one problem")
		})
	}
}

// A negative MaxAttempts means no limit.
func TestUnlimitedAttempts(t *testing.T) {
	policy := contract.RetryEvery(0)
	policy.MaxAttempts = -1
	require.NoError(t, policy.Validate())
	var steps script
	for range 1000 {
		steps = append(steps, s503)
	}
	base := contract.Play(append(steps, s200)...)
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).
		RoundTrip(contract.Request(t, "PUT", "http://a.test/", "text"))
	require.NoError(t, err)
	assert.Equal(t, "body of 200", contract.ReadBody(t, resp))
	assert.Len(t, base.Attempts(), 1001)
}

// A negative MaxRetryAfter means no limit. Any wait that the server asks for is
// kept, in the response to the request or to another one.
func TestUnlimitedRetryAfter(t *testing.T) {
	for _, cooldown := range []httpretry.Cooldown{httpretry.CooldownSend, httpretry.CooldownWait} {
		t.Run(cooldown.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const day = 24 * time.Hour
				base := contract.Play(contract.Status(429, "Retry-After", "864000"), s200)
				policy := contract.RetryEvery(time.Second)
				policy.MaxRetryAfter, policy.Cooldown = -1, cooldown
				require.NoError(t, policy.Validate())
				transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
				contract.Send(t, transport, newGet(t))
				require.Len(t, base.Waits(), 1)
				assert.GreaterOrEqual(t, base.Waits()[0], 10*day)
				assert.LessOrEqual(t, base.Waits()[0], 10*day+30*time.Second)
			})
		})
	}
}

// The request's deadline still holds if there are no other limits.
func TestUnlimitedUntilTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		base, events := contract.Play(s503), new(contract.Record)
		policy := contract.RetryEvery(time.Second)
		policy.MaxAttempts, policy.MaxRetryAfter = -1, -1
		contract.Send(t, contract.New(t,
			httpretry.Config{Base: base, Policy: policy, Observe: events.Observe}),
			newGet(t).WithContext(ctx))
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
