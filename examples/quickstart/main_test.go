package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/internal/frame"
	"github.com/seed421102f4/httpretry/examples/internal/frametest"
	"github.com/seed421102f4/httpretry/strategies"
)

// launch runs the program and fails the test if it leaves a goroutine behind.
func launch(
	t *testing.T, ctx context.Context, stdout io.Writer, args ...string) (code int, stderr string) {
	t.Helper()
	var errs bytes.Buffer
	frametest.LeavesNothing(t, func() { code = run(ctx, args, stdout, &errs) })
	return code, errs.String()
}

// matches counts the lines, or parts of lines, that match a pattern.
func matches(text, pattern string) int {
	return len(regexp.MustCompile(`(?m)`+pattern).FindAllString(text, -1))
}

func TestDemoDoesWhatItsTitlesSay(t *testing.T) {
	var stdout bytes.Buffer
	code, stderr := launch(t, t.Context(), &stdout)
	out := stdout.String()
	require.Equal(t, frame.OK, code, "%s%s", out, stderr)
	assert.Empty(t, stderr)

	assert.Equal(t, 13, matches(out, `^\d+\. `), "scenarios")
	assert.Equal(t, 13, matches(out, `^  ok  `), "verdicts")
	for _, line := range []string{
		`GET /busy +1 503 Service Unavailable +retry in `,
		`GET /maintenance +1 503, asks to wait 250ms +retry in `,
		`GET /throttled +1 429, asks to wait 1s +retry in [12]`,
		`GET /throttled +2 200 OK +done$`,
		`GET /slow +1 timeout +retry in `,
		`POST /charge +1 503 Service Unavailable +stop: not_idempotent$`,
		`POST /keyed +2 200 OK +done$`,
		`server saw 2 requests, made 1 charge$`,
		`POST /refused +1 connection failed +retry in `,
		`GET /refusing +1 503 Service Unavailable +stop: do_not_retry$`,
		`GET /closed +1 503, asks to wait 1h0m0s +stop: retry_after_too_long$`,
		`GET /hurry +1 503, asks to wait 40s +stop: deadline_too_near$`,
		`without a budget +40 +120 +80 +-$`,
		`Send: .* +40 +[0-9]+ +40 +0$`,
		`Wait: .* +40 +0 +40 +0$`,
		`Fail: .* +40 +0 +0 +40$`,
		// The balance after the outage. Successes add to it, and so does time
		// on a slow machine.
		`with the default budget +40 +45 +5 +0$`,
		`the server works again +60 +60 +0 +[1-9]\d*$`,
		`one 503: .* 1 +2 +1 +[1-9]\d*$`,
		`^  requests +275$`,
		`^  succeeded +148  on attempt 1: [0-9]+, on attempt 2: [0-9]+$`,
		`\bbudget_exhausted: [0-9]+`,
	} {
		assert.NotZero(t, matches(out, line), "no line matches %s in\n%s", line, out)
	}
	assert.NotContains(t, out, "\x1b", "colors are for terminals")
	for line := range strings.Lines(out) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
	}
}

// tripwire cancels a context as soon as a text was printed.
type tripwire struct {
	bytes.Buffer
	mu     sync.Mutex
	text   string
	cancel context.CancelFunc
}

func (w *tripwire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.Buffer.Write(p)
	if strings.Contains(w.String(), w.text) {
		w.cancel()
	}
	return n, err
}

func TestInterruptedProgramPrintsTheSummary(t *testing.T) {
	failing := httptest.NewServer(status(http.StatusServiceUnavailable))
	defer failing.Close()

	for _, c := range []struct {
		name, when string
		args       []string
		want       string
	}{
		{"before it begins", "", nil, `^  requests +0$`},
		{"during a wait", "retry in", nil, `^  failed +1  canceled: 1$`},
		{"between two requests", "stop: not_idempotent", []string{"-url", failing.URL, "-n", "5",
			"-rate", "0.001", "-method", "POST"}, `^  requests +1$`},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.when == "" {
				cancel()
			}
			stdout := &tripwire{text: c.when, cancel: cancel}
			code, stderr := launch(t, ctx, stdout, c.args...)
			assert.Equal(t, frame.Interrupted, code)
			assert.Empty(t, stderr)
			assert.Contains(t, stdout.String(), "\nInterrupted.\n")
			assert.NotContains(t, stdout.String(), "FAIL")
			assert.NotZero(t, matches(stdout.String(), c.want), "no line matches %s in\n%s",
				c.want, stdout)
		})
	}
}

func TestInterruptCancelsRequestsUnderWay(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var arrived atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if arrived.Add(1) == 5 {
			cancel()
		}
		hang(w, r)
	}))
	defer server.Close()
	var stdout bytes.Buffer
	code, _ := launch(t, ctx, &stdout, "-url", server.URL, "-n", "5", "-rate", "1000")
	assert.Equal(t, frame.Interrupted, code)
	assert.Equal(t, 5, matches(stdout.String(), `canceled +stop: canceled$`), stdout.String())
	assert.Equal(t, 1, matches(stdout.String(), `^  failed +5  canceled: 5$`), stdout.String())
}

func TestInterruptDuringTheOutage(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	server, err := startServer()
	require.NoError(t, err)
	defer server.stop()
	stdout := &tripwire{text: "without a budget", cancel: cancel}
	d := &demo{server: server, out: newScreen(stdout), counts: new(counters)}
	d.outage(ctx, 1)
	assert.Zero(t, d.failed)
	assert.NotContains(t, stdout.String(), "with the default budget")
	assert.Equal(t, concurrent, d.counts.requests)
}

func TestURLSendsToARealServer(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/missing":
			w.WriteHeader(http.StatusNotFound)
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "/missing", http.StatusFound)
		case requests.Add(1) == 1:
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer server.Close()

	t.Run("success after a retry", func(t *testing.T) {
		var stdout bytes.Buffer
		code, stderr := launch(t, t.Context(), &stdout,
			"-url", server.URL+"/?token=secret", "-n", "3", "-rate", "500", "-base", "1ms",
			"-max", "5ms")
		out := stdout.String()
		assert.Equal(t, frame.OK, code, stderr)
		assert.Equal(t, 1, matches(out, `#\d GET / +1 502 Bad Gateway +retry in `), out)
		assert.Equal(t, 3, matches(out, `200 OK +done$`), out)
		assert.Equal(t, 1, matches(out, `^  attempts +4$`), out)
		assert.NotContains(t, out, "secret")
		assert.EqualValues(t, 4, requests.Load())
	})
	t.Run("failure", func(t *testing.T) {
		var stdout bytes.Buffer
		code, stderr := launch(t, t.Context(), &stdout, "-url", server.URL+"/missing", "-n", "2",
			"-rate", "500")
		assert.Equal(t, frame.Failed, code)
		assert.Contains(t, stderr, "2 of 2 requests did not succeed")
		assert.Equal(t, 2, matches(stdout.String(), `404 Not Found +stop: permanent$`),
			stdout.String())
	})
	t.Run("redirects are not followed", func(t *testing.T) {
		var stdout bytes.Buffer
		code, _ := launch(t, t.Context(), &stdout, "-url", server.URL+"/moved", "-n", "1")
		assert.Equal(t, frame.OK, code)
		assert.Equal(t, 1, matches(stdout.String(), `302 Found +done$`), stdout.String())
	})
}

// The hint of each reason that ended a request is printed once.
func TestHints(t *testing.T) {
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/closed":
			w.Header().Set("Retry-After", "3600")
		case "/missing":
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer failing.Close()
	for _, c := range []struct {
		name string
		args string
		want []httpretry.Reason
	}{
		{"POST", "/ -n 2 -rate 500 -method POST",
			[]httpretry.Reason{httpretry.ReasonNotIdempotent}},
		{"Retry-After", "/closed -n 2", []httpretry.Reason{httpretry.ReasonRetryAfter}},
		{"the default budget", "/ -n 30 -rate 1000 -attempts 2 -base 1ms -max 1ms",
			[]httpretry.Reason{httpretry.ReasonAttempts, httpretry.ReasonBudget}},
		{"no budget", "/ -n 30 -rate 1000 -attempts 2 -base 1ms -max 1ms -budget unlimited",
			[]httpretry.Reason{httpretry.ReasonAttempts}},
		{"no hint", "/missing -n 2 -rate 500", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stdout bytes.Buffer
			args := strings.Fields("-url " + failing.URL + c.args)
			code, _ := launch(t, t.Context(), &stdout, args...)
			assert.Equal(t, frame.Failed, code)
			want := ""
			for _, reason := range c.want {
				want += fmt.Sprintf("  %v: %s ", reason, reason.Hint())
			}
			want = strings.Join(strings.Fields(want), " ")
			if want != "" {
				want = "Why requests were not retried, and how to allow it " + want
			}
			before, _, _ := strings.Cut(stdout.String(), "\nSummary\n")
			assert.True(t, strings.HasSuffix(strings.Join(strings.Fields(before), " "), want),
				"%s", before)
			assert.Equal(t, len(c.want), matches(before, `^  \w+:$`), before)
		})
	}
}

// The hint of each reason fits into a terminal with 80 columns.
func TestHintsAreWrapped(t *testing.T) {
	c := &counters{failed: make(map[httpretry.Reason]int)}
	for reason := range httpretry.ReasonNotResumable + 1 {
		c.failed[reason] = 1
	}
	var stdout bytes.Buffer
	newScreen(&stdout).hints(c)
	for line := range strings.Lines(stdout.String()) {
		assert.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), 80, line)
	}
	assert.Contains(t, stdout.String(), "\n  not_idempotent:\n    the server may have processed it;")
	assert.Equal(t, []string{"ab cd", "ef"}, wrap("ab cd ef", 5))
	assert.Equal(t, []string{"ab", "cd", "ef"}, wrap("ab cd ef", 4))
}

func TestBudgets(t *testing.T) {
	for text, want := range map[string]httpretry.Budget{
		"":           nil,
		"default":    nil,
		"unlimited":  httpretry.Unlimited{},
		"0.25":       &httpretry.HostBudget{Ratio: 0.25},
		"not-a-flag": nil,
	} {
		args := []string{"-url", "http://a.test"}
		if text != "" {
			args = append(args, "-budget", text)
		}
		opts, err := parseFlags(args)
		if text == "not-a-flag" {
			assert.ErrorContains(t, err,
				"for flag -budget: want default, unlimited or a number from 0.001 to 1000")
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, want, opts.budget, text)
	}
}

func TestEveryStrategyWorks(t *testing.T) {
	server := httptest.NewServer(status(http.StatusServiceUnavailable))
	defer server.Close()
	for _, name := range strategyNames() {
		args := []string{
			"-url", server.URL, "-n", "1", "-attempts", "2", "-strategy", name, "-base", "2ms"}
		if name != "constant" {
			args = append(args, "-max", "4ms")
		}
		var stdout bytes.Buffer
		code, stderr := launch(t, t.Context(), &stdout, args...)
		assert.Equal(t, frame.Failed, code, "%s: %s", name, stderr)
		assert.Equal(t, 1, matches(stdout.String(), `retry in [0-4]`), "%s: %s", name,
			stdout.String())
		assert.Equal(t, 1, matches(stdout.String(), `stop: attempts_exhausted$`), "%s: %s", name,
			stdout.String())
		assert.Contains(t, helpText, name)
	}
}

func TestBadFlagsAreNamedWithValueAndLimits(t *testing.T) {
	const durations = "want a duration such as 250ms or 2s, not negative"
	for args, want := range map[string]string{
		"-n 5":                              "-n 5: want a -url as well",
		"demo":                              `"demo": want flags only`,
		"-bogus":                            "-bogus",
		"-url":                              "-url",
		"-url example.com":                  `"example.com" for flag -url: want an absolute http:// or https:// URL`,
		"-url ftp://a.test":                 `"ftp://a.test" for flag -url`,
		"-url http://:80":                   `"http://:80" for flag -url`,
		"-url http://a.test -n 0":           `"0" for flag -n: want a whole number from 1 to 100000`,
		"-url http://a.test -n x":           `"x" for flag -n: want a whole number from 1 to 100000`,
		"-url http://a.test -rate 0":        `"0" for flag -rate: want a number from 0.001 to 1000`,
		"-url http://a.test -rate NaN":      `"NaN" for flag -rate`,
		"-url http://a.test -budget 0":      `"0" for flag -budget: want default, unlimited or a number`,
		"-url http://a.test -budget NaN":    `"NaN" for flag -budget`,
		"-url http://a.test -attempts 101":  `"101" for flag -attempts: want a whole number from 1 to 100`,
		"-url http://a.test -method A/B":    `"A/B" for flag -method: want an HTTP method`,
		"-url http://a.test -method=":       `"" for flag -method: want an HTTP method`,
		"-url http://a.test -timeout 5":     `"5" for flag -timeout: want a duration of at least 1ms, or 0 for no limit`,
		"-url http://a.test -timeout 5us":   `"5us" for flag -timeout: want a duration of at least 1ms, or 0 for no limit`,
		"-url http://a.test -base -1s":      `"-1s" for flag -base: ` + durations,
		"-url http://a.test -max -1s":       `"-1s" for flag -max: ` + durations,
		"-url http://a.test -strategy fast": `"fast" for flag -strategy: want one of constant, linear, exponential,`,
		"-url http://a.test -base 2s -max 1s -strategy full": "-base 2s -max 1s: FullJitter.Max: " +
			"1s: want at least Base (2s)",
		"-url http://a.test -max 1s -strategy constant": "-max 1s: -strategy constant",
	} {
		var stdout bytes.Buffer
		code, stderr := launch(t, t.Context(), &stdout, strings.Fields(args)...)
		assert.Equal(t, frame.Usage, code, args)
		assert.Contains(t, stderr, want, args)
		assert.Contains(t, stderr, "-h for help", args)
		assert.Empty(t, stdout.String(), args)
	}
}

func TestHelpNamesEveryFlag(t *testing.T) {
	var stdout bytes.Buffer
	code, stderr := launch(t, t.Context(), &stdout, "-h")
	assert.Equal(t, frame.OK, code)
	assert.Empty(t, stderr)
	for _, name := range []string{"-url", "-n", "-rate", "-method", "-attempts", "-timeout",
		"-budget", "-strategy", "-base", "-max"} {
		assert.Equal(t, 1, matches(stdout.String(), `^  `+name+` [A-Z]`), name)
	}
}

// A scenario with another result than expected fails the demo.
func TestScenarioThatDoesNotDoWhatItSaysFails(t *testing.T) {
	server, err := startServer()
	require.NoError(t, err)
	defer server.stop()
	var stdout bytes.Buffer
	d := &demo{server: server, out: newScreen(&stdout), counts: new(counters)}
	s := scenarios()[0]
	s.want.requests = 1
	d.report(t.Context(), d.run(t.Context(), s), "")
	assert.Equal(t, 1, d.failed)
	assert.Contains(t, stdout.String(),
		"FAIL  caller got 200 after 2 attempts; server saw 2 requests (success); expected:")
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// The response to another request extends a wait that was printed.
func TestExtendedWaitIsPrinted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			resp := &http.Response{
				StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}
			if httpretry.Attempt(req.Context()) == 1 {
				resp.StatusCode = 503
				if req.URL.Path == "/limited" {
					resp.Header.Set("Retry-After-Ms", "8000")
				}
			}
			return resp, nil
		})
		var stdout bytes.Buffer
		out := newScreen(&stdout)
		transport, err := httpretry.New(httpretry.Config{
			Base:    base,
			Policy:  httpretry.Policy{Backoff: strategies.Constant{Wait: time.Second}},
			Observe: out.observe,
		})
		require.NoError(t, err)
		client := &http.Client{Transport: transport}
		var wg sync.WaitGroup
		for _, path := range []string{"/other", "/limited"} {
			wg.Go(func() {
				_, err := send(t.Context(), client, http.MethodGet, "http://a.test"+path, nil)
				assert.NoError(t, err)
			})
			time.Sleep(500 * time.Millisecond)
		}
		wg.Wait()
		printed := stdout.String()
		assert.Equal(t, 1, matches(
			printed, `^  0\.00s GET /other +1 503 Service Unavailable +retry in 1s$`), printed)
		assert.Equal(t, 1,
			matches(
				printed,
				`^ [ 1]\d\.\d\ds GET /other +2 a cool-down extended the wait to (8\.[5-9]|9|1[01])[.\d]*s$`), printed)
		assert.Equal(t, 1, matches(printed, `cool-down`), printed)
		assert.Empty(t, out.planned)
	})
}

func TestColorsAreForTerminals(t *testing.T) {
	s := &screen{color: true}
	assert.Equal(t, "\x1b[31mx\x1b[0m", s.paint(red, "x"))
	s.color = false
	assert.Equal(t, "x", s.paint(red, "x"))
	assert.False(t, isTerminal(new(bytes.Buffer)))
}

func TestTextIsCutToItsColumn(t *testing.T) {
	assert.Equal(t, "abc", fit("abc", 3))
	assert.Equal(t, "ab…", fit("abcd", 3))
	assert.Equal(t, "äö…", fit("äöüß", 3))
}
