package policyfile_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
	"github.com/seed421102f4/httpretry/policyfile"
	"github.com/seed421102f4/httpretry/strategies"
)

func parse(t *testing.T, text string) *policyfile.File {
	t.Helper()
	return load(t, new(policyfile.Loader), text)
}

// load returns the File that l makes of text.
func load(t *testing.T, l *policyfile.Loader, text string) *policyfile.File {
	t.Helper()
	f, err := l.Parse([]byte(text))
	require.NoError(t, err, text)
	return f
}

// Every field that a file can have.
const full = `{
  "$schema": "schema.json", "version": 1,
  "default": {
    "maxAttempts": 4, "backoff": "FullJitter Base=50ms Max=2s", "maxRetryAfter": "-1s",
    "attemptTimeout": "2s", "readAhead": 4096, "maxElapsed": "1m", "budget": {"ratio": 0.2, "burst": -1, "window": "30s",
    "strict": true, "name": "a"}, "cooldown": "fail", "idempotent": true,
    "newIdempotencyKey": "random", "idempotencyHeader": "X-Key", "replayBuffer": 1024, "resume": true,
    "resumeIdle": "5s", "transient": [404, 202], "final": [500], "unprocessed": [429, 503]
  },
  "policies": {"a.test": {"maxAttempts": 1}, "b.test": {}}
}`

func TestParse(t *testing.T) {
	f := parse(t, full)
	p := f.Policy()
	b := p.Budget.(*httpretry.HostBudget)
	assert.InDelta(t, 0.2, b.Ratio, 0)
	assert.Equal(t, -1, b.Burst)
	assert.Equal(t, 30*time.Second, b.Window)
	assert.True(t, b.Strict)
	for status, want := range map[int]httpretry.Outcome{
		404: httpretry.Transient, 202: httpretry.Transient, 500: httpretry.Final,
		429: httpretry.Unprocessed, 503: httpretry.Unprocessed,
		200: httpretry.Final, 403: httpretry.Final, 502: httpretry.Transient,
	} {
		assert.Equal(t, want, outcomeOf(p, status), "%d", status)
	}
	assert.True(t, p.Idempotent(nil))
	assert.Len(t, p.NewIdempotencyKey(nil), len(httpretry.RandomKey(nil)))
	p.Budget, p.Classify, p.Idempotent, p.NewIdempotencyKey = nil, nil, nil, nil
	assert.Equal(t, httpretry.Policy{
		MaxAttempts:   4,
		Backoff:       strategies.FullJitter{Base: 50 * time.Millisecond, Max: 2 * time.Second},
		MaxRetryAfter: -time.Second, AttemptTimeout: 2 * time.Second, ReadAhead: 4096,
		MaxElapsed: time.Minute, Cooldown: httpretry.CooldownFail, IdempotencyHeader: "X-Key",
		ReplayBuffer: 1024, Resume: true, ResumeIdle: 5 * time.Second,
	}, p)

	all := f.Policies()
	require.Len(t, all, 2)
	assert.Equal(t, 1, all["a.test"].MaxAttempts)
	assert.Equal(t, time.Minute, all["a.test"].MaxElapsed)
	assert.Same(t, b, all["b.test"].Budget)
	clear(all)
	assert.Len(t, f.Policies(), 2, "the map is the caller's")
}

// outcomeOf returns the Outcome of a response to a POST.
func outcomeOf(p httpretry.Policy, status int) httpretry.Outcome {
	classify := p.Classify
	if classify == nil {
		classify = p.Outcome
	}
	req := &http.Request{Method: http.MethodPost, Header: http.Header{"X-Key": {"k"}}}
	return classify(req, &http.Response{StatusCode: status}, nil)
}

func TestEmptyFile(t *testing.T) {
	for _, text := range []string{`{}`, ` {"policies": {}} `, "{\"default\":\r\n{}}\n"} {
		f := parse(t, text)
		assert.True(t, reflect.ValueOf(f.Policy()).IsZero(), text)
		assert.Empty(t, f.Policies())
	}
}

// A policy with all fields set can have zero values for each of them.
func TestZeroValues(t *testing.T) {
	const zero = `{"maxAttempts": 0, "backoff": "default", "maxRetryAfter": "0", "attemptTimeout": "0s",
		"readAhead": 0, "maxElapsed": "0s", "budget": "default", "cooldown": "send", "idempotent": false,
		"newIdempotencyKey": "none", "idempotencyHeader": "", "replayBuffer": 0, "resume": false, "resumeIdle": "0h",
		"transient": [], "final": [], "unprocessed": []}`
	f := parse(t, strings.Replace(full, `{"maxAttempts": 1}`, zero, 1))
	assert.True(t, reflect.ValueOf(f.Policies()["a.test"]).IsZero())
	assert.Equal(t, 4, f.Policy().MaxAttempts)
}

func TestPresets(t *testing.T) {
	own := httpretry.Policy{
		MaxAttempts: 9, Cooldown: httpretry.CooldownWait,
		Classify: func(*http.Request, *http.Response, error) httpretry.Outcome {
			return httpretry.Unprocessed
		},
	}
	l := policyfile.Loader{
		Presets: map[string]httpretry.Policy{"own": own, "aws": {MaxAttempts: 8}},
	}
	f := load(t, &l, `{
		"default": {"preset": "background", "attemptTimeout": "2s", "maxElapsed": "1h"},
		"policies": {
			"stripe.test": {"preset": "stripe", "maxElapsed": "5s"},
			"aws.test": {"preset": "aws"},
			"own.test": {"preset": "own", "cooldown": "send", "budget": "unlimited"}}}`)

	assert.Equal(t, -1, f.Policy().MaxAttempts)
	assert.Equal(t, httpretry.Unlimited{}, f.Policy().Budget)
	stripe := f.Policies()["stripe.test"]
	assert.NotNil(t, stripe.NewIdempotencyKey)
	assert.Equal(t, 5*time.Second, stripe.MaxElapsed)
	assert.Equal(t, 2*time.Second, stripe.AttemptTimeout, "from the default")
	assert.Equal(t, 8, f.Policies()["aws.test"].MaxAttempts)
	mine := f.Policies()["own.test"]
	assert.Equal(t, 9, mine.MaxAttempts)
	assert.Equal(t, httpretry.CooldownSend, mine.Cooldown)
	assert.Equal(t, httpretry.Unprocessed, mine.Classify(nil, nil, nil))
}

// Package policies has a preset for each function, unless it has parameters
// that a file cannot have.
func TestPresetsOfPackagePolicies(t *testing.T) {
	without := map[string]string{
		"Reads":    "a file has idempotent for a key with a path",
		"Statuses": "a file has transient, final and unprocessed",
	}
	api, err := os.ReadFile("../.ci/api/policies.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(api)) {
		line, isFunc := strings.CutPrefix(line, "func ")
		name, _, _ := strings.Cut(line, "(")
		if !isFunc || without[name] != "" {
			continue
		}
		f := parse(t, `{"default": {"preset": "`+strings.ToLower(name)+`"}}`)
		assert.False(t, reflect.ValueOf(f.Policy()).IsZero(), name)
	}
	openai := parse(t, `{"default": {"preset": "openai"}}`).Policy()
	assert.Equal(t, policies.OpenAI().Backoff, openai.Backoff)
}

// A reload does not fill a budget again.
func TestBudgets(t *testing.T) {
	var l policyfile.Loader
	const text = `{"default": {"budget": {"burst": 2}}, "policies": {
		"a.test": {"budget": {"burst": 2}}, "b.test": {"budget": {"burst": 2, "name": "b"}},
		"c.test": {"budget": {"burst": 2, "name": "b"}}, "d.test": {"budget": {"burst": 3}}}}`
	f := load(t, &l, text)
	first, all := f.Policy().Budget.(*httpretry.HostBudget), f.Policies()
	assert.Same(t, first, all["a.test"].Budget)
	assert.NotSame(t, first, all["b.test"].Budget)
	assert.Same(t, all["b.test"].Budget, all["c.test"].Budget)
	assert.NotSame(t, first, all["d.test"].Budget)

	require.True(t, first.Withdraw(t.Context(), httpretry.AttemptResult{Origin: "https://a.test"}))
	runtime.GC()
	again := load(t, &l, strings.Replace(text, `{"burst": 3}`, `{"burst": 4}`, 1))
	assert.Same(t, first, again.Policy().Budget)
	assert.Same(t, all["b.test"].Budget, again.Policies()["b.test"].Budget)
	assert.NotSame(t, all["d.test"].Budget, again.Policies()["d.test"].Budget)
	left, known := again.Policy().Budget.(*httpretry.HostBudget).Balance("https://a.test")
	assert.True(t, known)
	assert.Equal(t, 1, left)

	// A file that is not valid changes no budget.
	_, err := l.Parse([]byte(`{"default": {"budget": {"burst": 2, "ratio": -1}}}`))
	require.Error(t, err)
	assert.Same(t, first, load(t, &l, text).Policy().Budget)
	runtime.KeepAlive(all)
	assert.NotSame(t, first, parse(t, text).Policy().Budget, "of another Loader")
}

func TestLoaderIsConcurrent(t *testing.T) {
	var l policyfile.Loader
	files := make([]*policyfile.File, 8)
	var wg sync.WaitGroup
	for i := range files {
		wg.Go(func() { files[i], _ = l.Parse([]byte(full)) })
	}
	wg.Wait()
	for _, f := range files {
		assert.Same(t, files[0].Policy().Budget, f.Policy().Budget)
	}
}

// errorsOf returns the lines of the error for a file.
func errorsOf(t *testing.T, text string) string {
	t.Helper()
	var l policyfile.Loader
	f, err := l.Parse([]byte(text))
	require.Error(t, err, text)
	require.Nil(t, f, text)
	for range 3 {
		_, again := l.Parse([]byte(text))
		require.EqualError(t, again, err.Error(), "the order is stable")
	}
	return err.Error()
}

// Mistakes outside of policies.
func TestErrorsOfFiles(t *testing.T) {
	for text, want := range map[string]string{
		``:                             `1:1: unexpected end of JSON input: want JSON`,
		`{`:                            `1:2: unexpected end of JSON input: want JSON`,
		"{\n  \"default\": {},\n}":     `3:1: invalid character '}' looking for beginning of object key string: want JSON`,
		`{} {}`:                        `1:4: invalid character '{' after top-level value: want JSON`,
		`{"default": 01}`:              `1:14: invalid character '1' after object key:value pair: want JSON`,
		"{} // none":                   `1:4: invalid character '/' after top-level value: want JSON`,
		"{\"é\xff\": 1}":               `1:4: byte 0xff: want UTF-8`,
		"\ufeff{}":                     `1:1: a byte order mark: want JSON without one`,
		`null`:                         `1:1: null: ` + wantRoot,
		` "x"`:                         `1:2: "x": ` + wantRoot,
		"{\r\n\t\"default\" :\r\n  7}": `3:3: default: 7: ` + wantPolicy,
		`{"policies": []}`:             `1:14: policies: an array: want an object with a policy for each pattern`,
		`{"default": []}`:              `1:13: default: an array: ` + wantPolicy,
		// The problems after an array in an array have their own paths.
		`{"default": {"maxAttempts": [[1], {"a": [2]}], "attemptTimeout": 2}, "polices": {}}`: `1:29: default.maxAttempts: an array: ` + wantWhole + "\n" +
			`1:66: default.attemptTimeout: 2: ` + wantDuration + "\n" +
			`1:70: polices: unknown field: ` + wantKnown,
	} {
		assert.Equal(t, want, errorsOf(t, text), "%q", text)
	}
	deep := strings.Repeat("[", 20_000)
	assert.Contains(t, errorsOf(t, deep), "exceeded max depth: want JSON")
	deep = strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000)
	assert.Equal(t, "1:2: a: unknown field: "+wantKnown, errorsOf(t, deep))
	large := strings.Repeat(" ", 1<<20+1)
	assert.Equal(t, "1:1: 1048577 bytes: want at most 1048576", errorsOf(t, large))
}

const (
	wantStatuses = `want an array of statuses from 200 to 999`
	wantStatus   = `want a whole number from 200 to 999`
	wantDuration = `want a duration as text with its unit, such as "500ms" or "2s"`
	wantWhole    = "want a whole number from -2147483648 to 2147483647"
	wantKnown    = "want $schema, version, default or policies"
	wantRoot     = "want an object with $schema, version, default or policies"
	wantPolicy   = "want an object with " + fields
	wantFields   = "want " + fields
	fields       = "preset, maxAttempts, backoff, maxRetryAfter, attemptTimeout, readAhead, maxElapsed, budget, " +
		"cooldown, transient, final, unprocessed, idempotent, newIdempotencyKey, idempotencyHeader, replayBuffer, resume or resumeIdle"
)

// Each mistake alone, as the value of a field of default.
func TestFieldErrors(t *testing.T) {
	const budget = `want "default", "unlimited" or an object`
	for _, c := range []struct{ field, want string }{
		{`"maxAttempts": "3"`, `.maxAttempts: "3": ` + wantWhole},
		{`"maxAttempts": 3.5`, `.maxAttempts: 3.5: ` + wantWhole},
		{`"maxAttempts": 2147483648`, `.maxAttempts: 2147483648: ` + wantWhole},
		{`"maxAttempts": null`, `.maxAttempts: null: ` + wantWhole},
		{`"maxAttempts": [1, {"a": 2}]`, `.maxAttempts: an array: ` + wantWhole},
		{`"maxAttempts": ` + strings.Repeat("1", 100),
			`.maxAttempts: ` + strings.Repeat("1", 80) + `...: ` + wantWhole},
		{`"maxAttempts": ` + strings.Repeat("1", 80),
			`.maxAttempts: ` + strings.Repeat("1", 80) + `: ` + wantWhole},
		{`"maxAttempts": "` + strings.Repeat("a", 80) + `"`,
			`.maxAttempts: "` + strings.Repeat("a", 80) + `": ` + wantWhole},
		{`"maxAttempts": "` + strings.Repeat("a", 79) + `éb"`,
			`.maxAttempts: "` + strings.Repeat("a", 79) + `"...: ` + wantWhole},
		{`"readAhead": -1`, `.readAhead: -1: want a whole number from 0 to 9007199254740992`},
		{`"attemptTimeout": 2`, `.attemptTimeout: 2: ` + wantDuration},
		{`"attemptTimeout": "2"`, `.attemptTimeout: "2": ` + wantDuration},
		{`"attemptTimeout": "1d"`, `.attemptTimeout: "1d": ` + wantDuration},
		{`"attemptTimeout": "-1s"`, `.attemptTimeout: "-1s": ` + wantDuration},
		{`"attemptTimeout": "9999999h"`, `.attemptTimeout: "9999999h": ` + wantDuration},
		{`"attemptTimeout": "2us"`, `.attemptTimeout: 2µs: want at least 1ms, or 0 for no timeout`},
		{`"maxElapsed": "1ns"`, `.maxElapsed: 1ns: want at least 1ms, or 0 for no limit`},
		{`"resumeIdle": "1ns"`, `.resumeIdle: 1ns: want at least 1ms, or 0 for no limit`},
		{`"maxRetryAfter": true`, `.maxRetryAfter: true: ` + wantDuration},
		{`"backoff": 2`, `.backoff: 2: want text with a strategy, such as "FullJitter Base=100ms Max=10s"`},
		{`"backoff": "FullJitter Bas=1s Max=1"`, `.backoff: FullJitter: "Bas=1s": want Base=, Factor=, Max=; ` +
			`FullJitter.Max: "1": want a duration with its unit, such as 100ms or 2s`},
		{`"backoff": "Constant Wait=` + strings.Repeat("0", 2100) + `s"`,
			`.backoff: "Constant Wait=` + strings.Repeat("0", 66) +
				`"...: want at most 2048 characters`},
		{`"resume": "yes"`, `.resume: "yes": want true or false`},
		{`"cooldown": "Wait"`, `.cooldown: "Wait": want "send" or "wait" or "fail"`},
		{`"idempotent": 1`, `.idempotent: 1: want true or false`},
		{`"newIdempotencyKey": true`, `.newIdempotencyKey: true: want "none" or "random"`},
		{`"idempotencyHeader": 1`, `.idempotencyHeader: 1: want text`},
		{`"idempotencyHeader": "a b"`, `.idempotencyHeader: "a b": want a header name, such as X-Request-Id`},
		{`"replayBuffer": 1e3`, `.replayBuffer: 1e3: want a whole number from -9007199254740992 to 9007199254740992`},
		{`"preset": "strip"`, `.preset: "strip": want one of anthropic, aws, background, github, openai, slack, stripe`},
		{`"preset": true`, `.preset: true: want one of anthropic, aws, background, github, openai, slack, stripe`},
		{`"MaxAttempts": 3`, `.MaxAttempts: unknown field: ` + wantFields},
		{`"a b": 3`, `["a b"]: unknown field: ` + wantFields},
		{`"transient": 503`, `.transient: 503: ` + wantStatuses},
		{`"final": {"503": true}`, `.final: an object: ` + wantStatuses},
		{`"unprocessed": null`, `.unprocessed: null: ` + wantStatuses},
		{`"transient": ["503"]`, `.transient[0]: "503": ` + wantStatus},
		{`"transient": [503, 5.3]`, `.transient[1]: 5.3: ` + wantStatus},
		{`"transient": [[503]]`, `.transient[0]: an array: ` + wantStatus},
		{`"transient": [199]`, `.transient[0]: 199: ` + wantStatus},
		{`"final": [200, 999, 1000]`, `.final[2]: 1000: ` + wantStatus},
		{`"final": [429, 503, 429.0]`, `.final[2]: 429: repeats a status: want only that of line 2, column 24`},
		{`"final": [500], "unprocessed": [429, 500]`,
			`.unprocessed[1]: 500: repeats a status: want only that of line 2, column 24`},
		{`"budget": 3`, `.budget: 3: ` + budget},
		{`"budget": "none"`, `.budget: "none": ` + budget},
		{`"budget": []`, `.budget: an array: ` + budget},
		{`"budget": {"ratio": -1}`, `.budget.ratio: -1: want 0 (the default, 0.2) or a number from 0.000001 to 1000000`},
		{`"budget": {"ratio": "1"}`, `.budget.ratio: "1": want a number`},
		{`"budget": {"ratio": 1e-400}`, `.budget.ratio: 1e-400: want a number`},
		{`"budget": {"ratio": 1e999}`, `.budget.ratio: 1e999: want a number`},
		{`"budget": {"burst": 1000001}`, `.budget.burst: 1000001: want a whole number from -2147483648 to 1000000`},
		{`"budget": {"window": "9000h"}`, `.budget.window: 9000h0m0s: want 0 (the default, 30s) or a duration from 1ms to 8760h0m0s`},
		{`"budget": {"strict": 1}`, `.budget.strict: 1: want true or false`},
		{`"budget": {"name": 1}`, `.budget.name: 1: want text`},
		{`"budget": {"size": 1}`, `.budget.size: unknown field: want ratio, burst, window, strict or name`},
	} {
		text := "{\n \"default\": {" + c.field + "}}"
		position, got, _ := strings.Cut(errorsOf(t, text), ": ")
		assert.True(t, strings.HasPrefix(position, "2:"), position)
		assert.Equal(t, "default"+c.want, got, text)
	}
}

// Lists of statuses change the Classify of the preset, or the default one. A
// policy inherits those that it does not have, unless its preset has a
// Classify.
func TestStatuses(t *testing.T) {
	const final, transient, unprocessed = httpretry.Final, httpretry.Transient, httpretry.Unprocessed
	l := policyfile.Loader{Presets: map[string]httpretry.Policy{
		"own": {Classify: func(*http.Request, *http.Response, error) httpretry.Outcome {
			return httpretry.Transient
		}},
	}}
	for _, tt := range []struct {
		name, base, policy string
		want               map[int]httpretry.Outcome
	}{
		{"the default is as it was", `{}`, `{"transient": [404]}`,
			map[int]httpretry.Outcome{404: transient, 403: final, 503: transient}},
		{"also what is final otherwise", `{"transient": [412]}`, `{"unprocessed": [404, 503, 412]}`,
			map[int]httpretry.Outcome{
				404: unprocessed, 412: unprocessed, 503: unprocessed, 429: transient}},
		{"on top of a preset", `{}`, `{"preset": "openai", "transient": [404], "final": [409]}`,
			map[int]httpretry.Outcome{404: transient, 409: final, 429: unprocessed, 503: transient}},
		{"on top of a preset of the program", `{}`, `{"preset": "own", "final": [503], "unprocessed": [404]}`,
			map[int]httpretry.Outcome{503: final, 404: unprocessed, 200: transient}},
		{"inherited", `{"transient": [404], "final": [503]}`, `{}`,
			map[int]httpretry.Outcome{404: transient, 503: final}},
		{"another list of the same name", `{"transient": [404, 403]}`, `{"transient": [410]}`,
			map[int]httpretry.Outcome{404: final, 403: final, 410: transient}},
		{"another list of another name", `{"transient": [404], "final": [503]}`, `{"unprocessed": [429]}`,
			map[int]httpretry.Outcome{404: transient, 503: final, 429: unprocessed}},
		{"a status that the default lists elsewhere", `{"final": [503, 500, 429]}`,
			`{"transient": [503], "unprocessed": [429]}`,
			map[int]httpretry.Outcome{503: transient, 500: final, 429: unprocessed}},
		{"an empty list", `{"transient": [404], "final": [503]}`, `{"transient": []}`,
			map[int]httpretry.Outcome{404: final, 503: final}},
		{"a preset", `{"final": [503, 409]}`, `{"preset": "openai", "transient": [404]}`,
			map[int]httpretry.Outcome{503: transient, 409: transient, 404: transient}},
		{"a preset without a Classify", `{"final": [503]}`, `{"preset": "stripe"}`,
			map[int]httpretry.Outcome{503: transient, 500: transient}},
		{"the preset of default", `{"preset": "openai", "final": [409]}`, `{"transient": [404]}`,
			map[int]httpretry.Outcome{409: final, 404: transient, 429: unprocessed}},
		{"both presets", `{"preset": "own", "final": [409]}`, `{"preset": "openai", "transient": [404]}`,
			map[int]httpretry.Outcome{409: transient, 404: transient, 403: final}},
		{"a header of the policy", `{"final": [503]}`, `{"idempotencyHeader": "X-Key"}`,
			map[int]httpretry.Outcome{503: final, 409: transient}},
		{"a header of default", `{"idempotencyHeader": "X-Key"}`, `{"final": [503]}`,
			map[int]httpretry.Outcome{503: final, 409: transient}},
	} {
		// The default may come before the policies or after them.
		for _, text := range []string{
			`{"default": ` + tt.base + `, "policies": {"a.test": ` + tt.policy + `}}`,
			`{"policies": {"a.test": ` + tt.policy + `}, "default": ` + tt.base + `}`,
		} {
			p := load(t, &l, text).Policies()["a.test"]
			for status, want := range tt.want {
				assert.Equal(t, want, outcomeOf(p, status), "%s: %d", tt.name, status)
			}
		}
	}
}

// A longer list than there are statuses repeats one of them.
func TestLongLists(t *testing.T) {
	all := make([]string, 0, 800)
	for status := 200; status <= 999; status++ {
		all = append(all, strconv.Itoa(status))
	}
	const rest = `, "maxAttempts": 4, "attemptTimeout": "2s"}}`
	f := parse(t, `{"default": {"final": [`+strings.Join(all, ",")+`]`+rest)
	assert.Equal(t, httpretry.Final, outcomeOf(f.Policy(), 503))
	assert.Equal(t, 4, f.Policy().MaxAttempts)

	long := strings.Join(slices.Repeat(all, 10), ",")
	lines := strings.Split(errorsOf(t, `{"default": {"final": [`+long+`, [{"a": []}]]`+rest), "\n")
	require.Len(t, lines, 101)
	assert.Contains(t, lines[0], "default.final[800]: 200: repeats a status")
	assert.Equal(t, "and 7101 more problems", lines[100])
}

// All problems of a file come at once, in the order of their positions.
func TestErrors(t *testing.T) {
	const text = `{
  "default": {"maxAttempts": 3, "maxAttempts": 4, "attemptTimeout": "1"},
  "polices": {},
  "policies": {
    "https://a.test": {"cooldown": "wait"},
    "*": {},
    "b.test": {"maxElapsed": 5, "budget": {"burst": 1, "name": "x"}},
    "B.test": {"budget": {"burst": 2, "name": "x"}},
    "b.test": 7, "ü.test": 8, "c.test": 9
  },
  "$schema": 1
}`
	want := []string{
		`2:33: default.maxAttempts: repeats a field: want only that of line 2, column 15`,
		`2:69: default.attemptTimeout: "1": ` + wantDuration,
		`3:3: polices: unknown field: ` + wantKnown,
		`5:5: policies["https://a.test"]: has a scheme in it: want a host and, if it matters, its port, ` +
			`as in "example.com", "example.com:8443", "*.example.com" or "[::1]:8080"`,
		`6:5: policies["*"]: matches every host: use "default" for that`,
		`7:5: policies["b.test"]: means the same as "B.test": want only one of them`,
		`7:30: policies["b.test"].maxElapsed: 5: ` + wantDuration,
		`8:26: policies["B.test"].budget: another budget has the name "x": want the same parameters, or another name`,
		`9:5: policies["b.test"]: repeats a field: want only that of line 7, column 5`,
		`9:28: policies["ü.test"]: 8: ` + wantPolicy,
		`9:41: policies["c.test"]: 9: ` + wantPolicy,
		`11:14: $schema: 1: want text`,
	}
	assert.Equal(t, want, strings.Split(errorsOf(t, text), "\n"))

	_, err := policyfile.Parse([]byte(text))
	var first *policyfile.Error
	require.ErrorAs(t, err, &first)
	assert.Equal(t, policyfile.Error{Line: 2, Column: 33, Path: "default.maxAttempts",
		Problem: "repeats a field: want only that of line 2, column 15"}, *first)
}

func TestManyErrors(t *testing.T) {
	key := strings.Repeat("k", 1000)
	fields := strings.Repeat(`"`+key+`": 0,`, 500)
	lines := strings.Split(errorsOf(t, `{"policies": {"`+key+`": {`+fields+`"a": 1}}}`), "\n")
	assert.Len(t, lines, 101)
	assert.Equal(t, "and 402 more problems", lines[100])
	for _, line := range lines {
		assert.Less(t, len(line), 500)
	}
	// A budget that is not valid has no name, even after many problems.
	fields = strings.Repeat(`"a": 0,`, 200)
	got := errorsOf(t, `{"default": {`+fields+`"budget": {"name": "x", "burst": "1"}},
		"policies": {"a.test": {"budget": {"name": "x", "burst": 2}}}}`)
	assert.Contains(t, got, "and 101 more problems")
}

// The first problems are those that come first in the file. Parse finds those
// of keys last.
func TestManyErrorsOfKeysAndFields(t *testing.T) {
	var keys, fields strings.Builder
	for i := range 150 {
		// The order of the names is not that in the file.
		fmt.Fprintf(&keys, `"a %d": {"x": 1},`+"\n", 999-i)
		fmt.Fprintf(&fields, `"f%d": 1,`+"\n", i)
	}
	lines := strings.Split(errorsOf(t, `{"policies": {`+keys.String()+`"a.test": {}},
		"default": {`+fields.String()+`"maxAttempts": 4}}`), "\n")
	require.Len(t, lines, 101)
	for i, line := range lines[:100] {
		path := fmt.Sprintf(`policies["a %d"]`, 999-i/2)
		if i%2 == 1 {
			path += ".x"
		}
		position, text, _ := strings.Cut(line, ": ")
		assert.True(t, strings.HasPrefix(position, strconv.Itoa(i/2+1)+":"), line)
		assert.True(t, strings.HasPrefix(text, path+": "), line)
	}
	assert.Equal(t, "and 350 more problems", lines[100])
}

// A field that the program does not know is an error, or with IgnoreUnknown a
// warning at the same place. All other fields are in effect.
func TestIgnoreUnknown(t *testing.T) {
	const text = `{
  "hedge": {"default": {"maxAttempts": "x"}},
  "default": {"maxAttempts": 4, "maxHedges": [1, {"maxAttempts": 5}], "budget": {"burst": 2, "cost": 1}},
  "policies": {"a.test": {"attemptTimeout": "2s",
    "ä b": null}}
}`
	_, err := policyfile.Parse([]byte(text))
	require.Error(t, err)
	want := strings.ReplaceAll(err.Error(), "unknown field: ", "unknown field, which is ignored: ")
	for _, path := range []string{
		"2:3: hedge: ", "3:33: default.maxHedges: ", "3:94: default.budget.cost: ", `5:5: policies["a.test"]["ä b"]: `,
	} {
		assert.Contains(t, "\n"+want, "\n"+path+"unknown field, which is ignored: want ")
	}

	l := policyfile.Loader{IgnoreUnknown: true}
	f := load(t, &l, text)
	assert.Equal(t, want, lines(f.Warnings()))
	assert.Equal(t, 4, f.Policy().MaxAttempts)
	assert.Equal(t, 2, f.Policy().Budget.(*httpretry.HostBudget).Burst)
	assert.Equal(t, 2*time.Second, f.Policies()["a.test"].AttemptTimeout)

	*f.Warnings()[0] = policyfile.Error{}
	assert.Equal(t, want, lines(f.Warnings()), "the warnings are the caller's")
	f = load(t, &l, `{"version": 1, "default": {"maxAttempts": 4}, "policies": {"a.test": {}}}`)
	assert.Nil(t, f.Warnings())
}

// lines returns the texts of warnings.
func lines(warnings []*policyfile.Error) string {
	var all []string
	for _, w := range warnings {
		all = append(all, w.Error())
	}
	return strings.Join(all, "\n")
}

// Only the names of fields may be unknown. Any other mistake makes a policy
// that is not that of the file.
func TestIgnoreUnknownIgnoresNothingElse(t *testing.T) {
	l := policyfile.Loader{IgnoreUnknown: true}
	for text, want := range map[string]string{
		`{"default": {"preset": "acme"}}`:       `1:24: default.preset: "acme": want one of`,
		`{"default": {"backoff": "Fibonacci"}}`: `1:25: default.backoff: strategy "Fibonacci"`,
		`{"default": {"cooldown": "never"}}`:    `1:26: default.cooldown: "never": want`,
		`{"default": {"budget": "shared"}}`:     `1:24: default.budget: "shared": want`,
		`{"default": {"maxAttempts": "3"}}`:     `1:29: default.maxAttempts: "3": want`,
		`{"default": {"final": [5000]}}`:        `1:24: default.final[0]: 5000: want`,
		`{"default": {"hedge": 1, "hedge": 2}}`: `1:26: default.hedge: repeats a field`,
		`{"policies": {"https://a.test": {}}}`:  `1:15: policies["https://a.test"]: has a scheme`,
		`{"hedge": 1`:                           `1:12: unexpected end of JSON input`,
	} {
		f, err := l.Parse([]byte(text))
		assert.Nil(t, f, text)
		require.Error(t, err, text)
		assert.True(t, strings.HasPrefix(err.Error(), want), "%s: %v", text, err)
		assert.NotContains(t, err.Error(), "\n", text)
	}
	// The warnings of a file with an error are not errors.
	_, err := l.Parse([]byte(`{"hedge": 1, "default": {"maxAttempts": 0.5}}`))
	assert.EqualError(t, err, "1:41: default.maxAttempts: 0.5: "+wantWhole)
}

func TestManyWarnings(t *testing.T) {
	var fields strings.Builder
	for i := range 250 {
		fmt.Fprintf(&fields, `"f%d": 0, `, i)
	}
	l := policyfile.Loader{IgnoreUnknown: true}
	all := load(t, &l, `{`+fields.String()+`"default": {"maxAttempts": 4}}`).Warnings()
	require.Len(t, all, 101)
	assert.Equal(t, "f99", all[99].Path)
	assert.EqualError(t, all[100], "1:1: and 150 more warnings")
}

// A later version is the only error of a file, with IgnoreUnknown, too.
func TestVersion(t *testing.T) {
	const want = "want 1, the version that this program reads"
	for _, l := range []*policyfile.Loader{{}, {IgnoreUnknown: true}} {
		for _, text := range []string{`{}`, `{"version": 1}`, `{"default": {}, "version": 1.0}`} {
			load(t, l, text)
		}
		for text, want := range map[string]string{
			`{"version": 2}`: "1:13: version: 2: " + want,
			"{\"default\": {\"maxAttempts\": {\"a\": 1}}, \"hedges\": 1,\n\"version\": 12.0}": "2:12: version: 12.0: " + want,
			// A program that reads such a version may have other fields.
			`{"version": 9223372036854775808, "default": 7}`: "1:13: version: 9223372036854775808: " + want,
			`{"hedges": 1, "version": 2e999}`:                "1:26: version: 2e999: " + want,
			`{"version": 0}`:                                 "1:13: version: 0: " + want,
			`{"version": 1.5}`:                               "1:13: version: 1.5: " + want,
			`{"version": "1"}`:                               `1:13: version: "1": ` + want,
			`{"version": null}`:                              `1:13: version: null: ` + want,
			`{"version": 0, "default": 7}`: "1:13: version: 0: " + want + "\n" +
				"1:27: default: 7: " + wantPolicy,
		} {
			_, err := l.Parse([]byte(text))
			assert.EqualError(t, err, want)
		}
	}
}

// A limit for resumes needs resumes. A policy that switches them off inherits no
// limit for them.
func TestResumeIdleNeedsResume(t *testing.T) {
	l := policyfile.Loader{
		Presets: map[string]httpretry.Policy{"own": {Resume: true, ResumeIdle: time.Second}},
	}
	for text, want := range map[string]time.Duration{ // of a.test
		`{"default": {"resume": true, "resumeIdle": "5s"}, "policies": {"a.test": {}}}`:                5 * time.Second,
		`{"default": {"resume": true, "resumeIdle": "5s"}, "policies": {"a.test": {"resume": false}}}`: 0,
		`{"policies": {"a.test": {"resume": false}}, "default": {"preset": "own"}}`:                    0,
		`{"policies": {"a.test": {"resume": false, "preset": "own"}}}`:                                 0,
		`{"policies": {"a.test": {"resumeIdle": "2s", "preset": "own"}}}`:                              2 * time.Second,
		`{"policies": {"a.test": {"resumeIdle": "2s"}}, "default": {"resume": true}}`:                  2 * time.Second,
		`{"policies": {"a.test": {"resumeIdle": "0s"}}}`:                                               0,
	} {
		f := load(t, &l, text)
		p := f.Policies()["a.test"]
		assert.NoError(t, p.Validate(), text)
		assert.Equal(t, want, p.ResumeIdle, text)
		if want == 0 {
			assert.Contains(t, f.Fields("a.test"), policyfile.Field{
				Name: "resumeIdle", Value: "no limit", From: `policies["a.test"]`}, text)
		}
	}
	for text, want := range map[string]string{
		`{"default": {"resumeIdle": "5s"}, "policies": {"a.test": {}}}`:                             "1:28: default",
		`{"policies": {"a.test": {"resume": false, "resumeIdle": "5s"}}}`:                           `1:57: policies["a.test"]`,
		`{"policies": {"a.test": {"preset": "own", "resumeIdle": "5s", "resume": false}}}`:          `1:57: policies["a.test"]`,
		`{"policies": {"a.test": {"resumeIdle": "5s"}}, "default": {"preset": "background"}}`:       `1:40: policies["a.test"]`,
		`{"policies": {"a.test": {"resumeIdle": "5s"}}, "default": {"resume": false, "final": []}}`: `1:40: policies["a.test"]`,
	} {
		_, err := l.Parse([]byte(text))
		assert.EqualError(t, err, want+".resumeIdle: 5s: want 0 without Resume", text)
	}
}

// A warning is where the file sets the value, and has the value that is in
// effect.
func TestWarnings(t *testing.T) {
	const (
		twice   = "all requests may be sent twice, POST and PATCH included: want true only if that is safe for each of them"
		budget  = "without maxAttempts, maxElapsed and a deadline, only the budget ends a request that never succeeds: want one of them"
		endless = "without maxAttempts, maxElapsed and a budget, only a deadline ends a request that never succeeds: want one of them"
		ratio   = "a ratio of 20 allows 20 failed retries for each success: want 0.2 for 20 %"
	)
	own := httpretry.Policy{CooldownKey: httpretry.RandomKey, Idempotent: httpretry.Idempotent,
		NewIdempotencyKey: httpretry.RandomKey}
	l := policyfile.Loader{Presets: map[string]httpretry.Policy{"own": own}}
	for text, want := range map[string][]string{
		`{"default": {"maxAttempts": 1, "idempotent": false, "maxElapsed": "1m", "budget": {"ratio": 1}}}`: nil,
		`{"default": {"idempotent": true}, "policies": {"a.test": {}, "b.test": {"idempotent": false}}}`:   {"1:28: default.idempotent: " + twice},
		`{"policies": {"a.test/x": {"idempotent": true}, "POST a.test/y": {"idempotent": true}}}`:          {`1:42: policies["a.test/x"].idempotent: ` + twice},
		`{"default": {"maxAttempts": -1}, "policies": {"a.test": {"maxElapsed": "1s"}, "b.test": {}}}`:     {"1:29: default.maxAttempts: " + budget},
		`{"default": {"maxAttempts": -1, "budget": "unlimited"}}`:                                          {"1:29: default.maxAttempts: " + endless},
		`{"default": {"preset": "background"}}`:                                                            nil,
		`{"default": {"preset": "background", "maxElapsed": "1h"}, "policies": {"a.test": {"maxElapsed": "0s"}}}`: {
			`1:97: policies["a.test"].maxElapsed: ` + endless},
		`{"default": {"budget": {"ratio": 20}}, "policies": {"a.test": {}}}`: {"1:24: default.budget: " + ratio},
		`{"default": {"preset": "own"}, "policies": {"a.test": {}, "b.test": {"preset": "own"}, "c.test": {"idempotent": false}}}`: {
			`1:55: policies["a.test"]: inherits functions of the preset own of default: want them only if they are right for this key (CooldownKey, idempotent)`,
			`1:98: policies["c.test"]: inherits functions of the preset own of default: want them only if they are right for this key (CooldownKey)`,
		},
	} {
		assert.Equal(t, strings.Join(want, "\n"), lines(load(t, &l, text).Warnings()), text)
	}
}

// A host with too many keys is an error with a position. Errors quote the beginning of a long key.
func TestKeysAreBounded(t *testing.T) {
	var keys strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&keys, "\n\"a.test/%05d/\": {},", i)
	}
	assert.Equal(t, `1002:1: policies["a.test/01000/"]: is one of more than 1000 keys with a path `+
		`for one host: want at most 1000`, errorsOf(t, `{"policies": {`+keys.String()+"\n\"a.test\": {}}}"))
	got := errorsOf(t, `{"policies": {"a.test//`+strings.Repeat("x", 1<<19)+`": {}}}`)
	assert.True(t, strings.HasPrefix(got, `1:15: policies["a.test//xxx`), "%.100s", got)
	assert.Less(t, len(got), 1000)
}

// A preset of the program that is not valid is reported where it is used.
func TestBadPreset(t *testing.T) {
	l := policyfile.Loader{
		Presets: map[string]httpretry.Policy{"bad": {MaxElapsed: -1, Resume: true, ResumeIdle: 1}},
	}
	_, err := l.Parse([]byte(`{"policies": {"a.test": {"preset": "bad"}}}`))
	require.EqualError(t, err, `1:36: policies["a.test"].preset: "bad": the preset is not valid: `+
		`httpretry: Policy.MaxElapsed: -1ns: want at least 1ms, or 0 for no limit; `+
		`httpretry: Policy.ResumeIdle: 1ns: want at least 1ms, or 0 for no limit`)
}

func TestFields(t *testing.T) {
	text := func(f *policyfile.File, key string) string {
		var lines []string
		for _, field := range f.Fields(key) {
			lines = append(lines, field.Name+" = "+field.Value+" <"+field.From+">")
		}
		return strings.Join(lines, "\n")
	}
	assert.Equal(t, `maxAttempts = 4 <default>
backoff = "FullJitter Base=50ms Max=2s" <default>
maxRetryAfter = no limit <default>
attemptTimeout = "2s" <default>
readAhead = 4096 <default>
maxElapsed = "1m0s" <default>
budget = {"ratio":0.2,"burst":-1,"window":"30s","strict":true,"name":"a"} <default>
cooldown = "fail" <default>
transient = [404,202] <default>
final = [500] <default>
unprocessed = [429,503] <default>
idempotent = true <default>
newIdempotencyKey = "random" <default>
idempotencyHeader = "X-Key" <default>
replayBuffer = 1024 <default>
resume = true <default>
resumeIdle = "5s" <default>`, text(parse(t, full), ""))

	f := parse(t, `{"default": {"preset": "github", "maxAttempts": 4, "budget": {"burst": 1}},
		"policies": {"a.test": {"preset": "stripe", "attemptTimeout": "0s", "backoff": "Constant Wait=1s"}}}`)
	assert.Equal(t, `maxAttempts = 4 <default>
backoff = "Constant Wait=1s" <policies["a.test"]>
maxRetryAfter = 1m0s <>
attemptTimeout = no timeout <policies["a.test"]>
readAhead = none <>
maxElapsed = no limit <>
budget = {"burst":1} <default>
cooldown = send <>
CooldownKey = a function <preset stripe>
Classify = a function <preset github of default>
transient = none <>
final = none <>
unprocessed = none <>
idempotent = by method and key <>
newIdempotencyKey = "random" <preset stripe>
idempotencyHeader = Idempotency-Key <>
replayBuffer = 65536 <>
resume = false <>
resumeIdle = no limit <>`, text(f, "a.test"))
	assert.Contains(t, text(f, ""), "Classify = a function <preset github>\n")
	assert.Nil(t, f.Fields("b.test"))
}

// The lists of statuses that Fields shows are those in effect.
func TestFieldsOfStatuses(t *testing.T) {
	f := parse(t, `{"default": {"final": [503, 500], "unprocessed": [429]}, "policies": {
		"a.test": {"transient": [503]}, "b.test": {"final": [], "transient": [429]},
		"c.test": {"preset": "openai", "transient": [404]}, "d.test": {"preset": "stripe"}}}`)
	for key, want := range map[string][]string{
		"":       {"transient none <>", "final [503,500] <default>", "unprocessed [429] <default>"},
		"a.test": {`transient [503] <policies["a.test"]>`, "final [500] <default>", "unprocessed [429] <default>"},
		"b.test": {`transient [429] <policies["b.test"]>`, `final none <policies["b.test"]>`, "unprocessed none <default>"},
		"c.test": {"Classify a function <preset openai>", `transient [404] <policies["c.test"]>`, "final none <>", "unprocessed none <>"},
		"d.test": {"transient none <>", "final none <>", "unprocessed none <>"},
	} {
		var got []string
		for _, field := range f.Fields(key) {
			if slices.Contains([]string{"Classify", "transient", "final", "unprocessed"}, field.Name) {
				got = append(got, field.Name+" "+field.Value+" <"+field.From+">")
			}
		}
		assert.Equal(t, want, got, key)
	}
}

type budget struct{ httpretry.Unlimited }

// A value is described as a default only if it is the zero value of its field.
// The zero value of a strategy or of Unlimited is not.
func TestFieldsShowWhatIsInEffect(t *testing.T) {
	l := policyfile.Loader{Presets: map[string]httpretry.Policy{
		"constant": {Backoff: strategies.Constant{}, Budget: &httpretry.HostBudget{}},
		"own": {
			Backoff:           strategies.Func(func(int) time.Duration { return 1 }),
			Budget:            budget{},
			Idempotent:        func(*http.Request) bool { return true },
			NewIdempotencyKey: func(*http.Request) string { return "1" },
			ReplayBuffer:      1 << 60,
		},
	}}
	for _, tt := range []struct{ policy, name, want string }{
		{`{"backoff": "Constant"}`, "backoff", `"Constant"`},
		{`{"backoff": "FullJitter"}`, "backoff", `"FullJitter"`},
		{`{"backoff": "DecorrelatedV2"}`, "backoff", `"DecorrelatedV2"`},
		{`{"preset": "constant"}`, "backoff", `"Constant"`},
		{`{"preset": "constant"}`, "budget", `{}`},
		{`{"budget": {}}`, "budget", `{}`},
		{`{"preset": "background"}`, "budget", `"unlimited"`},
		{`{"budget": "unlimited"}`, "budget", `"unlimited"`},
		{`{"preset": "background"}`, "maxAttempts", "no limit"},
		{`{"preset": "background"}`, "maxRetryAfter", "no limit"},
		{`{"replayBuffer": -7}`, "replayBuffer", "none"},
		// A file cannot contain these values of a preset.
		{`{"preset": "own"}`, "backoff", "a strategies.Func"},
		{`{"preset": "own"}`, "budget", "a policyfile_test.budget"},
		{`{"preset": "own"}`, "idempotent", "a function"},
		{`{"preset": "own"}`, "newIdempotencyKey", "a function"},
		{`{"preset": "own"}`, "replayBuffer", "1152921504606846976"},
		// These are defaults.
		{`{"preset": "constant", "backoff": "default"}`, "backoff",
			"DecorrelatedV2 Median=500ms Max=30s (Median=1.5s after a 429, and while the host fails)"},
		{`{"preset": "background", "budget": "default"}`, "budget", "one that all policies share"},
	} {
		fields := load(t, &l, `{"default": `+tt.policy+`}`).Fields("")
		i := slices.IndexFunc(fields, func(f policyfile.Field) bool { return f.Name == tt.name })
		require.NotEqual(t, -1, i, tt)
		assert.Equal(t, tt.want, fields[i].Value, tt)
	}
}

// assertShown checks each value that Fields shows as JSON. A file that contains
// it has the same value.
func assertShown(t *testing.T, f *policyfile.File) {
	t.Helper()
	for _, key := range append(slices.Collect(maps.Keys(f.Policies())), "") {
		for _, shown := range f.Fields(key) {
			assert.NotEmpty(t, shown.Value, shown.Name)
			if shown.From == "" || !json.Valid([]byte(shown.Value)) {
				continue // a default, or one of the texts of TestFields
			}
			needs := "" // another field
			if shown.Name == "resumeIdle" {
				needs = `"resume": true, `
			}
			again := parse(t, fmt.Sprintf(`{"default": {%s%q: %s}}`, needs, shown.Name, shown.Value))
			shown.From = "default"
			assert.Contains(t, again.Fields(""), shown)
		}
	}
}

// files returns the files of a kind in testdata/files.json: valid, invalid, or
// beyond_schema, which only the parser rejects.
func files(t testing.TB, kind string) []string {
	t.Helper()
	text, err := os.ReadFile("testdata/files.json")
	require.NoError(t, err)
	var all map[string][]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &all))
	require.NotEmpty(t, all[kind])
	var texts []string
	for _, file := range all[kind] {
		texts = append(texts, string(file))
	}
	return texts
}

func TestFieldsReadBackEqual(t *testing.T) {
	for _, text := range files(t, "valid") {
		assertShown(t, parse(t, text))
	}
}
