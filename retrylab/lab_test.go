package main

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
	"github.com/seed421102f4/httpretry/retrylab/internal/virtual"
	"github.com/seed421102f4/httpretry/strategies"
)

// retrylab runs the command and returns its output.
func retrylab(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	l := lab{clock: virtual.New(t), stdout: &out, stderr: &errs}
	status = l.run(args)
	return out.String(), errs.String(), status
}

// quick are arguments with which each command takes little time.
var quick = map[string][]string{
	"plot":       {"-failures=20000"},
	"contention": {"-runs=3", "-clients=10,20"},
	"outage":     {"-length=40s", "-cooldowns=wait,send", "-fault=errors", "-budgets=default,aws"},
	"restart":    {"-kinds=503,timeout", "-timeout=1s", "-up=5s", "-after=5s", "-runs=3", "-load=0.8", "-backoff=FullJitter"},
	"layers":     {"-users=100"},
	"map":        {"-loads=80,90", "-cuts=50", "-after=20s", "-budgets=none,default"},
	"policy":     {"-rate=2"},
}

func files(t *testing.T, seed, command string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	args := append([]string{command, "-seed=" + seed, "-o=" + dir + "/report.html", "-svg=" + dir}, quick[command]...)
	stdout, stderr, status := retrylab(t, args...)
	require.Zero(t, status, stderr)
	require.Empty(t, stderr)
	written := map[string]string{"": stdout}
	names, err := filepath.Glob(dir + "/*")
	require.NoError(t, err)
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		written[filepath.Base(name)] = string(text)
	}
	return written
}

// Each command writes tables that fit a terminal, and a page that needs no
// network and no script. A seed determines both: nothing here draws from a
// source without a seed, and no two goroutines wake up at the same nanosecond.
func TestReports(t *testing.T) {
	for _, c := range commands() {
		t.Run(c.name, func(t *testing.T) {
			written := files(t, "7", c.name)
			assert.Greater(t, strings.Count(written[""], "\n"), 10)
			for line := range strings.SplitSeq(written[""], "\n") {
				assert.LessOrEqual(t, utf8.RuneCountInString(line), 80, "%s", line)
			}
			page := written["report.html"]
			assert.Equal(t, strings.Count(page, "<figure>"), len(written)-2)
			// But for the name of a format.
			page = strings.ReplaceAll(page, "http://www.w3.org/2000/svg", "")
			assert.NotRegexp(t, `(src|href)="?(https?:)?//|@import|url\(|<script|https://`, page)
			if c.name == "map" { // the default waits have no seed
				return
			}
			assert.Equal(t, written, files(t, "7", c.name))
			assert.NotEqual(t, written[""], files(t, "8", c.name)[""])
		})
	}
}

func TestBadFlags(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"nothing", `"nothing": want plot, contention, outage, map, restart, layers, policy or check`},
		{"plot -x", `flag provided but not defined: -x`},
		{"plot extra", `"extra": want flags only`},
		{"plot -failures=1", `-failures 1: want a value from 1000 to 10000000`},
		{"plot -strategies=Foo", `-strategies: strategy "Foo": want one of Constant, `},
		{"plot -failures=10000000 -retries=50", `want at most 100000000 retries of all 7 strategies together`},
		{"plot -o=/nonexistent/x", `-o /nonexistent/x: want a file in a directory that exists`},
		{"plot -strategies=FullJitter,FullJitter", `-strategies "FullJitter": want it once`},
		{"contention -clients=5,x", `-clients "x": want whole numbers from 1 to 10000, separated by commas`},
		{"outage -fault=fire", `-fault "fire": want one of errors, stall, slow, throttle, refuse`},
		{"outage -incident=fire", `-incident "fire": want one of cloudflare-2025-09-12, google-cloud-2025-06-12`},
		{"outage -budgets=free", `-budgets "free": want one of none, default, strict, unlimited, shared, aws, aws2026, grpc, proxy`},
		{"outage -cooldowns=never", `-cooldowns "never": want one of send, wait, fail`},
		{"outage -to=5s", `-from 20s -to 5s -length 2m30s: want times in this order`},
		{"outage -retry-after=1s", `-retry-after 1s: want -fault errors or throttle`},
		{"outage -ratio=-1 -burst=9999999", `-ratio -1: want 0`},
		{"outage -attempts=-1 -strategies=FullJitter_Max=1ms_Base=1ms", `-attempts -1: want a number from 0, or waits longer than those of FullJitter Max=1ms Base=1ms`},
		{"restart -kinds=fire", `-kinds "fire": want one of 503, refused, reset, timeout, stall`},
		{"restart -kinds=timeout", `-kinds timeout: want -timeout or -deadline`},
		{"restart -cold=10s", `-cold 10s: want -load, too`},
		{"layers -failures=fire", `-failures "fire": want one of random, replica, down`},
		{"layers -services=8 -attempts=10", `-users 3000 -attempts 10 -services 8: want at most 10000000 calls`},
		{"layers -latency=1500us", `-latency 1.5ms: want a multiple of 1ms`},
		{"map -trigger=0s", `-trigger 0s: want a value from 100ms to 1h0m0s`},
		{"restart -up=50ms", `-up 50ms: want a multiple of 100ms`},
		{"policy -budget=none", `-budget "none": want one of default, strict, unlimited, shared, aws, aws2026, grpc, proxy`},
		{"policy -file=/nonexistent", `-file: open /nonexistent: no such file`},
	} {
		args := strings.Fields(c.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "_", " ")
		}
		stdout, stderr, status := retrylab(t, args...)
		assert.Equal(t, 2, status, c.args)
		assert.Empty(t, stdout, c.args)
		assert.Contains(t, stderr, c.want, c.args)
		assert.Equal(t, 1, strings.Count(stderr, "\n"), "%s: want one line: %s", c.args, stderr)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"-h"}, {"help"}} {
		stdout, _, status := retrylab(t, args...)
		assert.Zero(t, status)
		for _, c := range commands() {
			assert.Contains(t, stdout, "retrylab "+c.name)
		}
	}
	for _, c := range commands() {
		stdout, stderr, status := retrylab(t, c.name, "-h")
		assert.Zero(t, status)
		assert.Empty(t, stderr)
		assert.Contains(t, stdout, "\n  -seed number\n      all random numbers follow from this number (default 1)\n")
		for line := range strings.SplitSeq(stdout, "\n") {
			assert.LessOrEqual(t, utf8.RuneCountInString(line), 80, "%s", line)
		}
	}
}

func reportOf(t *testing.T, args ...string) report.Report {
	t.Helper()
	o := newOptions(args[0], args[1:])
	i := slices.IndexFunc(commands(), func(c command) bool { return c.name == args[0] })
	r, err := commands()[i].run(lab{clock: virtual.New(t)}, o)
	require.NoError(t, err)
	r.Command = o.commandLine()
	return r
}

// rows returns the rows of the first table of a report. Durations are in
// seconds, and negative if they are not known.
func rows(t *testing.T, args ...string) []map[string]float64 {
	t.Helper()
	var all []map[string]float64
	table := reportOf(t, args...).Tables[0]
	for _, values := range table.Rows {
		row := map[string]float64{}
		for i, v := range values {
			switch v := v.(type) {
			case int:
				row[table.Columns[i]] = float64(v)
			case float64:
				row[table.Columns[i]] = v
			case report.Share:
				row[table.Columns[i]] = float64(v)
			case time.Duration:
				row[table.Columns[i]] = v.Seconds()
			}
		}
		all = append(all, row)
	}
	return all
}

// Conclusions are drawn only from figures that show them.
func TestNotes(t *testing.T) {
	for _, c := range []struct {
		args      string
		want, not []string
	}{
		{"outage -budgets=none,default,shared,unlimited -length=80s", []string{"unlimited: the retries keep the server overloaded", "shared is the first to get back"}, nil},
		{"outage -budgets=none,default -to=50s -length=60s -burst=-1", nil, []string{"overloaded", "first to get back"}},
		{"outage -incident=cloudflare-2025-09-12 -budgets=unlimited -length=70s", []string{"\nOf the fleets with retries, DecorrelatedV2 is the first to get back", "Constant Wait=200ms: the retries keep"}, nil},
		{"outage -fault=errors -length=60s -budgets=default,unlimited", nil, []string{"overloaded", "first to get back"}},
	} {
		got := strings.Join(reportOf(t, strings.Fields(c.args)...).Notes, "\n")
		for _, want := range c.want {
			assert.Contains(t, got, want, c.args)
		}
		for _, not := range c.not {
			assert.NotContains(t, got, not, c.args)
		}
	}
}

// A page on standard output has no text before it.
func TestPageOnStandardOutput(t *testing.T) {
	stdout, _, status := retrylab(t, "plot", "-failures=1000", "-o=-")
	assert.Zero(t, status)
	assert.True(t, strings.HasPrefix(stdout, "<!"), "%.40s", stdout)
}

// The command in a report makes the same report.
func TestCommandLine(t *testing.T) {
	r := reportOf(t, "plot", "-failures=2000", "-retries=2", "-strategies=FullJitter Base=1s", "-o=-")
	assert.Equal(t, "retrylab plot -failures=2000 -retries=2 -strategies='FullJitter Base=1s'", r.Command)

	r = reportOf(t, "outage", "-incident=google-cloud-2025-06-12", "-strategies=DecorrelatedV2", "-budgets=default", "-length=100s")
	for _, want := range []string{" -attempts=-1 ", " -budgets=default ", " -fault=errors ", " -to=1m20s"} {
		assert.Contains(t, r.Command, want, "flags that are set replace those of the incident")
	}
}

func TestPolicyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"default": {"attemptTimeout": "2s", "maxElapsed": "10s"}, "policies": {
		"a.test": {"maxAttempts": 4, "backoff": "FullJitter Base=1s Max=9s", "budget": {"burst": 7, "window": "5s"}},
		"b.test": {"budget": "unlimited", "preset": "github", "resume": true}}}`), 0o600))
	run := func(args ...string) string {
		stdout, stderr, status := retrylab(t, append([]string{"policy", "-rate=2", "-file=" + file}, args...)...)
		require.Zero(t, status, stderr)
		return strings.Join(strings.Fields(stdout), " ")
	}
	stdout := run("-policy=a.test", "-attempts=6", "-budget=shared")
	assert.Contains(t, stdout, `Up to 6 attempts with waits of FullJitter Base=1s Max=9s and `+
		`the budget "shared" with Burst 7, Window 5s, in 100 processes`)
	assert.Contains(t, run("-policy=a.test", "-ratio=0.3", "-strict"), `and a HostBudget with Ratio 0.3, Burst 7, Window 5s, Strict, in`)
	assert.Contains(t, run("-policy=a.test", "-budget=aws"), `and the budget "aws", in`)
	assert.Contains(t, stdout, "however long it lasts 9 9")
	assert.Contains(t, run(), `Up to 3 attempts with waits of DecorrelatedV2 and the budget "default"`)
	assert.Contains(t, run("-policy=b.test"), `Up to 3 attempts with waits of DecorrelatedV2 and the budget "unlimited"`)
}

// Files that are not valid are errors, and so are fields that are not known.
func TestBadPolicyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	for text, want := range map[string]string{
		`{"MaxAttempts": 3}`:                `-file: ` + file + `:1:2: MaxAttempts: unknown field: want $schema, version, default or policies`,
		`{"default": {"maxAttempts": 101}}`: `-file ` + file + `: -attempts 101: want a value from 0 to 100`,
		`{"policies": {"b.test": {}}}`:      `-policy "a.test": want one of ["b.test"]`,
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		args := []string{"policy", "-file=" + file}
		if strings.Contains(want, "a.test") {
			args = append(args, "-policy=a.test")
		}
		_, stderr, status := retrylab(t, args...)
		assert.Equal(t, 2, status, text)
		assert.Contains(t, stderr, want, text)
	}
}

func TestCheck(t *testing.T) {
	good, bad := filepath.Join(t.TempDir(), "good.json"), filepath.Join(t.TempDir(), "bad.json")
	require.NoError(t, os.WriteFile(good, []byte(`{"default": {"preset": "github", "maxAttempts": 4, "attemptTimeout": "2s"},
		"policies": {
			"b.test": {"preset": "stripe", "attemptTimeout": "10s", "budget": {"burst": 1, "ratio": 20}},
			"a.test": {"backoff": "Constant Wait=1s", "idempotent": true, "attemptTimeout": "0s"},
			"c.test": {"maxAttempts": -1, "budget": "unlimited"},
			"d.test": {"maxAttempts": -1, "backoff": "Constant", "maxElapsed": "1h"},
			"e.test": {"maxAttempts": 101},
			"f.test": {"maxAttempts": 1}}}`), 0o600))
	require.NoError(t, os.WriteFile(bad, []byte("{\n\"default\": {\"maxAttempts\": \"4\", \"attemptTimeout\": 2}}"), 0o600))

	stdout, stderr, status := retrylab(t, "check", good)
	assert.Zero(t, status)
	assert.Empty(t, stderr)
	sections := strings.Split(strings.TrimSpace(stdout), "\n\n")
	require.Len(t, sections, 8)
	assert.True(t, strings.HasPrefix(sections[0], good+": default\n"))
	assert.NotContains(t, sections[0], "warning")
	for i, want := range []string{
		`own 4`, `own "Constant Wait=1s"`, `preset stripe "random"`, ``,
	} {
		section := strings.Join(strings.Fields(sections[i]), " ")
		assert.Contains(t, section, want)
		assert.Contains(t, section, "maxRetryAfter - 1m0s", "the default of httpretry")
	}
	for i, want := range [][]string{
		1: {"use a strategy that is random", "an attempt without an answer never ends"},
		6: {"with MaxAttempts 1 there are no retries"},
		4: {"without MaxAttempts, the waits of Constant are so short that a host cannot recover: use longer waits"},
		5: {"the waits of more than 100 attempts are not checked"},
		7: {
			"warning: " + good + `:4:60: policies["a.test"].idempotent: all requests may be sent twice`,
			`policies["a.test"]: inherits functions of the preset github of default`,
			`policies["b.test"]: inherits functions of the preset github of default`,
			`policies["b.test"].budget: a ratio of 20 allows 20 failed retries`,
			`policies["c.test"].maxAttempts: without maxAttempts, maxElapsed and a budget, only a deadline ends`,
		},
	} {
		for _, warning := range want {
			assert.Contains(t, sections[i], warning)
		}
	}

	stdout, stderr, status = retrylab(t, "check", bad, good)
	assert.Equal(t, 1, status)
	assert.Contains(t, stdout, good+": default\n", "the other file is checked")
	assert.Contains(t, stderr, bad+`:2:28: default.maxAttempts: "4": want a whole number`)
	assert.Contains(t, stderr, "\n"+bad+`:2:51: default.attemptTimeout: 2: want a duration`)

	for _, args := range [][]string{{"check"}, {"check", "-x", good}} {
		_, stderr, status = retrylab(t, args...)
		assert.Equal(t, 2, status)
		assert.Contains(t, stderr, "usage: retrylab check FILE...")
	}
}

func warningsOf(t *testing.T, policy string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policies.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"default": `+policy+`}`), 0o600))
	stdout, stderr, status := retrylab(t, "check", file)
	require.Zero(t, status, stderr)
	return strings.Join(strings.Fields(stdout), " ")
}

// Who names a preset has decided on its values.
func TestCheckOfAPreset(t *testing.T) {
	assert.NotContains(t, warningsOf(t, `{"preset": "background", "attemptTimeout": "2s"}`), "warning: ")
	assert.Contains(t, warningsOf(t, `{"maxAttempts": -1}`), "only the budget ends a request")
}

// A deadline and a timeout limit the success of a policy, and without a budget
// that is the success of requests that no budget refuses.
func TestPolicyLimits(t *testing.T) {
	for _, limit := range []string{"-deadline=10ms", "-timeout=10ms"} {
		stdout, _, status := retrylab(t, "policy", "-budget=unlimited", "-latency=50ms", "-rate=50", limit)
		require.Zero(t, status)
		_, table, _ := strings.Cut(stdout, "failing  success  without budget")
		rows := regexp.MustCompile(`(?m)^ +\d+(?:\.\d+)?% +(\S+) +(\S+) `).FindAllStringSubmatch(table, -1)
		require.NotEmpty(t, rows, stdout)
		for _, row := range rows {
			assert.Equal(t, []string{"0%", "0%"}, row[1:], limit)
		}
	}
}

// The defaults of the flags are those of the library.
func TestDefaults(t *testing.T) {
	file, err := policyfile.Parse([]byte(`{}`))
	require.NoError(t, err)
	shown := map[string]string{}
	for _, field := range file.Fields("") {
		shown[field.Name] = field.Value
	}
	assert.Equal(t, shown["maxAttempts"], strconv.Itoa(defaultAttempts), "-attempts")
	waits := func(text string) []time.Duration {
		s, err := parseStrategy("backoff", text, rand.New(rand.NewPCG(1, 2)).Float64, nil)
		require.NoError(t, err)
		return strategies.Take(s.Strategy, 30)
	}
	var f policyFlags
	require.NoError(t, f.use(httpretry.Policy{}))
	backoff, _, _ := strings.Cut(shown["backoff"], " (")
	assert.Equal(t, waits(backoff), waits(f.backoff), "-backoff")

	// The balances of a zero HostBudget, while successes arrive and expire.
	balances := func(b *httpretry.HostBudget) (all []int) {
		synctest.Test(t, func(t *testing.T) {
			for range 400 {
				time.Sleep(50 * time.Millisecond)
				if len(all) < 100 {
					b.Record(httpretry.AttemptResult{Origin: "a", Status: 200}, httpretry.AttemptResult{})
				}
				balance, _ := b.Balance("a")
				all = append(all, balance)
			}
		})
		return all
	}
	want := balances(new(httpretry.HostBudget))
	assert.Equal(t, want, balances(&httpretry.HostBudget{Ratio: defaultRatio}), "-ratio")
	assert.Equal(t, want, balances(&httpretry.HostBudget{Burst: defaultBurst}), "-burst")
	assert.Equal(t, want, balances(&httpretry.HostBudget{Window: defaultWindow}), "-window")
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-attempts=1", "there are no retries"},
		{"-backoff=Constant Wait=1s", "use a strategy that is random"},
		{"-attempts=8_-backoff=AWSDecorrelated Base=1s Max=4s", "many of the last waits are exactly 4.00s"},
		{"-attempts=10_-deadline=3s", "of 10 attempts, the deadline or MaxElapsed holds"},
		{"-processes=8000_-capacity=800", "8000 budgets with a Burst of 5 allow 20,000 retries however few requests they send, and the server needs 66.7s"},
		{"-capacity=400", "no spare capacity"},
		{"-budget=unlimited", "it may never recover"},
		{"-timeout=0", "an attempt without an answer never ends"},
		{"-timeout=1s", ""},
		{"-timeout=50ms", "AttemptTimeout is 50ms and the latency is 50ms: each attempt times out"},
		{"-timeout=1s_-burst=-1_-processes=3001", "each budget allows 1 failed retries per Window"},
		{"-backoff=Spread Fraction=0.05 Of=Exponential Base=1s", "retry within the same 10ms: use a strategy that is more random"},
		{"-backoff=Capped Max=600ms Of=Jitter Of=Constant Wait=1s", "retry at the same moment: their waits are cut off at a bound"},
		{"-attempts=-1_-timeout=1s", "only the budget ends a request that never succeeds"},
		{"-timeout=1s_-attempts=50_-backoff=Constant", "the 49 waits take no time in all: use longer waits"},
		{"-timeout=1s_-ratio=20", "a Ratio of 20 allows 20 failed retries for each success: 20 % is 0.2"},
		{"-attempts=-1_-timeout=1s_-deadline=20s_-budget=unlimited", "the load grows as long as an outage lasts"},
	} {
		o := newOptions("policy", strings.Split(c.args, "_"))
		var f policyFlags
		f.add(o)
		require.NoError(t, f.parse(o))
		backoff, err := parseStrategy("backoff", f.backoff, rand.New(rand.NewPCG(1, 2)).Float64, nil)
		require.NoError(t, err)
		e, err := lab{clock: virtual.New(t)}.ends(&f, 1)
		require.NoError(t, err)
		warnings := f.warnings(f.drawWaits(backoff), e)
		if c.want == "" {
			assert.Empty(t, warnings, c.args)
			continue
		}
		assert.Contains(t, strings.Join(warnings, " "), c.want, c.args)
	}
}

// restart follows all fields of a file, and its flags replace them.
func TestRestartFollowsAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policies.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"default": {"budget": "unlimited", "backoff": "Constant Wait=1s", "final": [503]}}`), 0o600))
	for _, c := range []struct {
		args   string
		failed bool
	}{{"-kinds=503", true}, {"-kinds=reset", false}, {"-kinds=reset -attempts=1", true}, {"-kinds=reset -budget=grpc", true}} {
		args := append([]string{"restart", "-file=" + file, "-down=1s", "-runs=1"}, strings.Fields(c.args)...)
		assert.Equal(t, c.failed, rows(t, args...)[1]["failed"] != 0, c.args)
		// Only the attempts are those of the policy.
		assert.Equal(t, strings.Contains(c.args, "-attempts=1"), rows(t, args...)[2]["failed"] != 0, "go-retryablehttp: %s", c.args)
	}
	assert.Contains(t, reportOf(t, "restart", "-runs=1").Notes[0], "repeatable with -backoff")
	assert.Empty(t, reportOf(t, "restart", "-runs=1", "-file="+file).Notes)
}

// As in the library, a negative MaxAttempts is no limit, and 0 is the default.
func TestAnyNumberOfAttempts(t *testing.T) {
	half := func(attempts string) float64 {
		all := rows(t, "policy", "-rate=2", "-budget=unlimited", "-timeout=1s", attempts)
		require.Equal(t, 0.5, all[5]["failing"])
		return all[5]["success"]
	}
	assert.InDelta(t, 0.875, half("-attempts=3"), 0.04)
	assert.Equal(t, half("-attempts=3"), half("-attempts=0"))
	assert.Equal(t, 1.0, half("-attempts=-7"))

	// Nothing ends these requests, and still the command does.
	stdout, stderr, status := retrylab(t, "policy", "-rate=2", "-attempts=-1", "-budget=unlimited", "-timeout=1s")
	require.Zero(t, status, stderr)
	assert.Regexp(t, `fail after the latency +never +never +never +-\n`, stdout)
}

// Runs have different seeds, and processes have budgets of their own.
func TestRestartsOfAFleet(t *testing.T) {
	args := []string{"restart", "-up=0s", "-rate=100", "-down=1s", "-after=5s", "-attempts=2", "-backoff=Constant Wait=1s"}
	one := rows(t, append(args, "-runs=1", "-processes=10")...)[1]
	several := rows(t, append(args, "-runs=4", "-processes=10")...)[1]
	assert.NotEqual(t, one["begun"], several["begun"])
	assert.InDelta(t, 10*defaultBurst, one["begun"]-one["failed"], 0)
	assert.Equal(t, 1.0, one["sends"], "retries are sent after the restart")
	// No others fail.
	assert.InDelta(t, one["failed"]/1000, one["lost"], 1e-6)
}

// These are bounds of the default policy. docs/choosing.md has the figures.
func TestDefaultPolicyInRestarts(t *testing.T) {
	overload := "-kinds=stall -down=10s -load=0.8 -timeout=2s -latency=0s -up=40s -after=100s -runs=1"
	for _, c := range []struct {
		args, column string
		most         float64
	}{
		{"-kinds=503 -down=1s -runs=6", "failed", 1},
		{"-kinds=refused -down=3s -runs=6", "failed", 13},
		{"-down=10s -runs=4", "sends", 1.7},
		{"-down=1m -runs=4", "sends", 1.17},
		// 30 % of the attempts fail at random.
		{"-replicas=10 -restarting=3 -down=1m -processes=10 -rate=10 -runs=1", "failed", 0.04 * 100 * 60},
		{overload + " -processes=100 -rate=0.8", "latest", 66},
		{overload + " -processes=400 -rate=0.2", "latest", 90},
	} {
		got := rows(t, append([]string{"restart", "-after=5s"}, strings.Fields(c.args)...)...)[1]
		t.Logf("%s: %v %v", c.args, c.column, got[c.column])
		assert.GreaterOrEqual(t, got[c.column], 0.0, c.args) // not never
		assert.LessOrEqual(t, got[c.column], c.most, c.args)
	}
}

// The goal of the default: it comes back wherever a fleet without retries does,
// but for one cell. docs/choosing.md has the whole map. Seeds and the waits of
// the default, which have no seed, change the times, but here never the cells.
func TestMap(t *testing.T) {
	r := reportOf(t, "map", "-loads=60,90", "-cuts=20,90", "-budgets=none,default,unlimited", "-after=150s")
	back := func(table int) (all []bool) {
		for _, row := range r.Tables[table].Rows {
			for _, d := range row[1:] {
				all = append(all, d.(time.Duration) >= 0)
			}
		}
		return all
	}
	assert.Equal(t, []bool{true, true, true, true}, back(0), "no retries")
	assert.Equal(t, []bool{true, true, true, true}, back(1), "the default")
	assert.Equal(t, []bool{true, true, false, false}, back(2), "no budget")
	assert.Equal(t, []string{
		"default: comes back wherever a fleet without retries does.",
		"unlimited: does not come back in 2 of the 4 cells in which a fleet without retries does.",
	}, r.Notes)
	assert.Zero(t, r.Tables[0].Rows[0][1], "80 % of the capacity are enough for a load of 60 %")
}

// The blog's simulation with 100 clients, a base of 5 ms and a cap of 2 s. It
// counts retries from 1, so its first ceilings are twice the base. The figures
// are those that were published with it, and for V2 with Polly's issue 530.
func TestCallsAsPublished(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	random := strategies.Rand(r.Float64)
	const base, limit = 5 * time.Millisecond, 2 * time.Second
	for _, c := range []struct {
		name     string
		strategy strategies.Strategy
		calls    float64
	}{
		{"none", nil, 2418},
		{"exponential", strategies.Exponential{Base: 2 * base, Max: limit}, 1859},
		{"AWS", strategies.AWSDecorrelated{Base: base, Max: limit, Rand: random}, 1003},
		{"equal", strategies.EqualJitter{Base: 2 * base, Max: limit, Rand: random}, 812},
		{"V2", strategies.DecorrelatedV2{Median: 2 * base, Max: limit, Rand: random}, 799},
		{"full", strategies.FullJitter{Base: 2 * base, Max: limit, Rand: random}, 795},
	} {
		const runs = 60
		calls := 0.0
		for range runs {
			virtual.New(t)(func() {
				n, _ := changeRow(100, c.strategy, 10*time.Millisecond, 2*time.Millisecond, r)
				calls += float64(n) / runs
			})
		}
		t.Logf("%s: %.0f calls, published %.0f", c.name, calls, c.calls)
		assert.InEpsilon(t, c.calls, calls, 0.02, c.name)
	}
}

// If all messages take the same time, one write of each round is accepted.
func TestCallsInLockstep(t *testing.T) {
	const clients, hop = 20, time.Millisecond
	virtual.New(t)(func() {
		calls, took := changeRow(clients, nil, hop, 0, rand.New(rand.NewPCG(1, 2)))
		assert.Equal(t, clients*(clients+1)/2, calls)
		assert.Equal(t, 4*clients*hop, took.Truncate(hop))
	})
}

func runChain(t *testing.T, s chainScenario, middleware bool) *chain {
	t.Helper()
	s.Latency, s.Seed, s.Rate = time.Millisecond, 1, 5
	policy := httpretry.Policy{Backoff: strategies.DecorrelatedV2{Rand: strategies.Seeded(1)}}
	var r *chain
	virtual.New(t)(func() {
		var err error
		r, err = s.run(policy, unlimited, middleware)
		require.NoError(t, err)
	})
	return r
}

// Retries multiply without Middleware and add up with it.
func TestServerIsDown(t *testing.T) {
	for _, c := range []struct {
		services, attempts int
		middleware         bool
		want               float64
	}{
		{3, 3, false, 27}, {5, 3, false, 243}, {2, 4, false, 16},
		{3, 3, true, 7}, {5, 3, true, 11}, {2, 4, true, 7},
	} {
		s := chainScenario{Services: c.services, Attempts: c.attempts, Users: 20, Failure: "down"}
		r := runChain(t, s, c.middleware)
		assert.Equal(t, c.want, r.callsPerUser()[c.services], "%+v", c)
		assert.Zero(t, r.succeeded())
	}
}

// Without a budget and without Middleware, services fail independently.
func TestRandomFailures(t *testing.T) {
	const p, users = 0.1, 20_000
	s := chainScenario{Services: 3, Attempts: 3, Users: users, Failure: "random", Failing: p}
	r := runChain(t, s, false)
	success := 1 - p
	for range s.Services {
		success = (1 - p) * (1 - math.Pow(1-success, 3))
	}
	// Within five standard deviations.
	assert.InDelta(t, success, r.succeeded(), 5*math.Sqrt(success*(1-success)/users))
	assert.Equal(t, 1.0, r.callsPerUser()[0])
}

func sampleOf(t *testing.T, text string, clients int) *sample {
	t.Helper()
	s, err := parseStrategy("strategies", text, rand.New(rand.NewPCG(1, 2)).Float64, map[string]time.Duration{"Base": time.Second, "Median": time.Second})
	require.NoError(t, err)
	return takeSample(s.Strategy, clients, 5)
}

// The peaks of Polly's issue 530. 400,000 clients give them within 5 %.
func TestPeaksAsPublished(t *testing.T) {
	for _, c := range []struct {
		strategy string
		peak     float64
	}{
		{"Exponential", 1}, {"EqualJitter", 0.02}, {"FullJitter", 0.0156},
		{"DecorrelatedV2", 0.0109}, {"AWSDecorrelated", 0.0065},
	} {
		got := sampleOf(t, c.strategy, 400_000).Peaks(10 * time.Millisecond)[0]
		t.Logf("%s: %.2f %%, published %.2f %%", c.strategy, 100*got, 100*c.peak)
		assert.InEpsilon(t, c.peak, got, 0.05, c.strategy)
	}
}

// A peak is that of any interval, wherever it begins, and each client counts
// once.
func TestPeaksOfAnyInterval(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		strategy string
		width    time.Duration
		want     float64
	}{
		// 998 to 1002 ms, on both sides of a multiple of 10 ms.
		{"Spread Fraction=0.002 Of=Constant Wait=1s", 10 * ms, 1},
		{"Spread Fraction=0.002 Of=Constant Wait=1s", 2 * ms, 0.5},
		{"Constant Wait=0", 10 * ms, 1},
		// Uniform, with a retry of each client in each second.
		{"Spread Fraction=0.1 Of=Constant Wait=1s", 10 * ms, 0.05},
	} {
		got := sampleOf(t, c.strategy, 50_000).Peaks(c.width)[0]
		assert.InDelta(t, c.want, got, 0.05*c.want, "%s, %v", c.strategy, c.width)
		assert.LessOrEqual(t, got, 1.0, c.strategy)
	}
}

func TestParseStrategy(t *testing.T) {
	defaults := map[string]time.Duration{"Base": time.Second, "Median": 2 * time.Second, "Wait": 3 * time.Second}
	for _, c := range []struct {
		text string
		want []time.Duration // in milliseconds
	}{
		{"exponential base=10ms factor=3", []time.Duration{10, 30, 90}},
		{"FastFirst Of=Exponential Base=10ms", []time.Duration{0, 10, 20}},
		{"Capped Max=15ms Of=Jitter Of=Exponential Base=10ms", []time.Duration{5, 10, 15}},
		{"Constant Wait=0", []time.Duration{0, 0, 0}},
		{"Jitter Of=Linear Max=2s", []time.Duration{500, 1000, 1000}},
	} {
		s, err := parseStrategy("strategies", c.text, func() float64 { return 0.5 }, defaults)
		require.NoError(t, err, c.text)
		assert.Equal(t, c.text, s.Name)
		for i, wait := range strategies.Take(s.Strategy, 3) {
			assert.Equal(t, c.want[i], wait.Truncate(time.Millisecond)/time.Millisecond, "%s: %d", c.text, i)
		}
	}
}

var failed = httpretry.AttemptResult{Number: 1, Status: http.StatusBadGateway, Outcome: httpretry.Transient}

func allowed(b httpretry.Budget, last httpretry.AttemptResult) (n int) {
	for n < 10_000 && b.Withdraw(context.Background(), last) {
		n++
	}
	return n
}

func budgetOf(kind string) httpretry.Budget { return budgetsOf(kind, new(httpretry.HostBudget))() }

func record(b httpretry.Budget, n, status int, outcome httpretry.Outcome, charged httpretry.AttemptResult) {
	for range n {
		b.Record(httpretry.AttemptResult{Number: 1 + charged.Number, Status: status, Outcome: outcome}, charged)
	}
}

func succeed(b httpretry.Budget, n int) {
	record(b, n, http.StatusOK, httpretry.Final, httpretry.AttemptResult{})
}

func TestBurst(t *testing.T) {
	for kind, want := range map[string]int{
		"default": 7, "strict": 7, "shared": 7, "unlimited": 10_000, "aws": 100, "aws2026": 35, "grpc": 10_000, "proxy": 0,
	} {
		next := budgetsOf(kind, &httpretry.HostBudget{Burst: 7})
		assert.Equal(t, want, allowed(next(), failed), kind)
		if kind == "shared" {
			want = 0
		}
		assert.Equal(t, want, allowed(next(), failed), "%s: another process", kind)
	}
}

func TestStrict(t *testing.T) {
	for kind, want := range map[string]int{"default": 2, "strict": 0} {
		b := budgetOf(kind)
		require.Equal(t, 5, allowed(b, failed))
		record(b, 1, http.StatusOK, httpretry.Final, failed)
		assert.Equal(t, want, allowed(b, failed), kind)
	}
}

func TestTokensComeBack(t *testing.T) {
	aws := budgetOf("aws")
	assert.Equal(t, 100, allowed(aws, failed))
	aws.Refund(failed)
	assert.Equal(t, 1, allowed(aws, failed), "a retry that is not sent returns its tokens")
	succeed(aws, 10)
	assert.Equal(t, 2, allowed(aws, failed), "ten successes are worth two retries")
	record(aws, 1, http.StatusBadGateway, httpretry.Transient, failed)
	assert.Zero(t, allowed(aws, failed))
	record(aws, 1, http.StatusOK, httpretry.Final, failed)
	assert.Equal(t, 1, allowed(aws, failed), "a retry that succeeds returns its tokens, too")

	assert.Equal(t, 50, allowed(budgetOf("aws"), httpretry.AttemptResult{Timeout: true}))
	assert.Equal(t, 100, allowed(budgetOf("aws2026"), httpretry.AttemptResult{Status: http.StatusTooManyRequests}))
}

func TestThrottle(t *testing.T) {
	b := budgetOf("grpc")
	record(b, 4, http.StatusBadGateway, httpretry.Transient, httpretry.AttemptResult{})
	assert.Equal(t, 10_000, allowed(b, failed))
	record(b, 1, http.StatusBadGateway, httpretry.Transient, failed)
	assert.Zero(t, allowed(b, failed), "the fifth failure leaves half of the tokens")
	succeed(b, 1)
	assert.Equal(t, 10_000, allowed(b, failed))
}

// A proxy allows a fifth of the attempts of the last ten seconds.
func TestProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budgetOf("proxy")
		succeed(b, 20)
		assert.Equal(t, 4, allowed(b, failed))
		b.Refund(failed)
		assert.Equal(t, 1, allowed(b, failed))
		time.Sleep(9 * time.Second)
		succeed(b, 5)
		assert.Equal(t, 1, allowed(b, failed))
		time.Sleep(time.Second)
		assert.Zero(t, allowed(b, failed), "the retry of a second ago counts")
	})
}

// The program is not a test, although it gets its clock from package testing.
func TestProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "retrylab")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for args, want := range map[string]string{
		"outage -budgets=none -length=40s": "\nnone  ",
		"layers -users=10 -test.v":         "retrylab layers: flag provided but not defined: -test.v",
	} {
		out, err := exec.Command(program, strings.Fields(args)...).CombinedOutput()
		assert.Equal(t, strings.Contains(args, "-test.v"), err != nil, args)
		assert.Contains(t, string(out), want)
		assert.NotContains(t, string(out), "PASS")
	}
}
