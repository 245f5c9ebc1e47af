package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/policyfile"
)

// program is the program while it runs, and its output.
type program struct {
	t      *testing.T
	cancel context.CancelFunc
	ended  chan error

	mu   sync.Mutex
	text bytes.Buffer
	from int // the output before is of earlier steps
}

func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

// lines returns the whole lines that were printed since the last call of step.
func (p *program) lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := p.text.String()[p.from:]
	return strings.Split(text[:strings.LastIndex(text, "\n")+1], "\n")
}

// step begins a step. Only the output from then on counts.
func (p *program) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from = p.text.Len()
}

// wait waits until ok returns true, which may take minutes on a busy machine.
func (p *program) wait(ok func() bool, format string, args ...any) {
	p.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if len(p.ended) > 0 || time.Now().After(deadline) {
			p.mu.Lock()
			output := p.text.String()
			p.mu.Unlock()
			p.t.Fatalf("%s; the output:\n%s", fmt.Sprintf(format, args...), output)
		}
	}
}

// waitLine waits for a line that ok accepts, and returns it.
func (p *program) waitLine(ok func(string) bool, format string, args ...any) (line string) {
	p.t.Helper()
	p.wait(func() bool {
		for _, line = range p.lines() {
			if ok(line) {
				return true
			}
		}
		return false
	}, "no line "+format, args...)
	return line
}

// start runs the program in a folder of its own, with a copy of the policies.
func start(t *testing.T) *program {
	t.Helper()
	policies, err := os.ReadFile("policies.json")
	require.NoError(t, err)
	require.Contains(t, string(policies), `"search.test": {"maxAttempts": 1}`,
		"policies.json was edited: git checkout policies.json")
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("policies.json", policies, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	p := &program{t: t, cancel: cancel, ended: make(chan error, 1)}
	go func() { p.ended <- operate(ctx, "policies.json", "127.0.0.1:0", &screen{out: p}) }()
	return p
}

// stop interrupts the program.
func (p *program) stop() {
	p.cancel()
	assert.NoError(p.t, <-p.ended)
}

// edit replaces the line of policies.json with the same field.
func (p *program) edit(line string) {
	text, err := os.ReadFile("policies.json")
	require.NoError(p.t, err)
	field, _, _ := strings.Cut(line, ":")
	old := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(field) + `:.*$`)
	require.Regexp(p.t, old, string(text))
	text = old.ReplaceAllLiteral(text, []byte(line))
	require.NoError(p.t, os.WriteFile("policies.json", text, 0o600))
}

// a row has the counts of tuned in one line of the output.
type row struct {
	success           int
	attempts, slowest float64
	refused           int
}

// parseRow reads a row, if the line is one.
func parseRow(line string) (r row, ok bool) {
	var at string
	var others row
	n, err := fmt.Sscanf(line, "%s %d %% %f %f s %d %d %% %f %f s %d",
		&at, &r.success, &r.attempts, &r.slowest, &r.refused,
		&others.success, &others.attempts, &others.slowest, &others.refused)
	return r, err == nil && n == 9
}

// like reports whether two rows have about the same success and attempts, and
// agree on whether there are late answers, and retries that the budget refuses.
func (r row) like(other row) bool {
	return math.Abs(float64(r.success-other.success)) <= 15 &&
		math.Abs(r.attempts-other.attempts) <= 0.4 &&
		(r.slowest >= slow.Seconds()) == (other.slowest >= slow.Seconds()) &&
		(r.refused > 0) == (other.refused > 0)
}

// numbers replaces those that differ from run to run: times, the id of the
// process, and the port.
var numbers = regexp.MustCompile(`^\d\d:\d\d:\d\d|(-HUP )\d+|(127\.0\.0\.1:)\d+`)

// likeLine reports whether a line of the output is one of the README. An
// ellipsis there stands for the rest of the line.
func likeLine(got, want string) bool {
	got = numbers.ReplaceAllString(got, "${1}${2}N")
	want = numbers.ReplaceAllString(want, "${1}${2}N")
	if want, rest, cut := strings.Cut(want, "…"); cut && rest == "" {
		return strings.HasPrefix(got, want)
	}
	wanted, isRow := parseRow(want)
	row, gotRow := parseRow(got)
	if isRow {
		return gotRow && row.like(wanted)
	}
	return got == want
}

// waitLines waits for the lines of a block of the README.
func (p *program) waitLines(block string) {
	p.t.Helper()
	for want := range strings.Lines(block) {
		want = strings.TrimSuffix(want, "\n")
		p.waitLine(func(got string) bool { return likeLine(got, want) },
			"as in the README: %s", want)
	}
}

// page returns the debug page, from the address that the program has printed.
func (p *program) page(pathAndQuery string) []byte {
	p.t.Helper()
	p.mu.Lock()
	addr := regexp.MustCompile(`http://[^/]+`).FindString(p.text.String())
	p.mu.Unlock()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(addr + pathAndQuery)
	require.NoError(p.t, err)
	defer resp.Body.Close()
	require.Equal(p.t, http.StatusOK, resp.StatusCode)
	body, err := io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	return body
}

// origin is the state of one origin in the JSON of the page.
type origin struct {
	Origin, LastFailure          string
	CooldownUntil, LastFailureAt *time.Time
	Waiting, FailedWithoutRetry  int
	Budgets                      []budget
}

type budget struct {
	Key                      string
	Balance                  *int
	Successes, FailedRetries int
}

func origins(t *testing.T, text []byte) map[string]origin {
	t.Helper()
	var page struct {
		Time       time.Time
		Transports []struct {
			Name    string
			Origins []origin
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&page), "%s", text)
	require.Len(t, page.Transports, 1)
	all := map[string]origin{}
	for _, o := range page.Transports[0].Origins {
		all[o.Origin] = o
	}
	return all
}

// like reports whether two origins have the same key, and agree on whether
// there are failures, successes, failed retries, a cool-down, and a budget that
// is used up. Such a budget allows a retry now and then.
func (o origin) like(other origin) bool {
	if len(o.Budgets) != 1 || len(other.Budgets) != 1 {
		return false
	}
	p, q := o.Budgets[0], other.Budgets[0]
	return p.Key == q.Key && p.Balance != nil && q.Balance != nil &&
		(*p.Balance < 3) == (*q.Balance < 3) &&
		(p.Successes > 0) == (q.Successes > 0) &&
		(p.FailedRetries > 0) == (q.FailedRetries > 0) &&
		(o.CooldownUntil == nil) == (other.CooldownUntil == nil) &&
		(o.LastFailureAt == nil) == (other.LastFailureAt == nil)
}

// waitPage waits until the page has the state of tuned that is in a block of
// the README.
func (p *program) waitPage(pathAndQuery, block string) {
	p.t.Helper()
	want := origins(p.t, []byte(block))
	require.Len(p.t, want, 2)
	host := "http://" + tuned
	p.wait(func() bool {
		got := origins(p.t, p.page(pathAndQuery))
		return len(got) == len(want) && got[host].like(want[host])
	}, "no page as in the README: %s", block)
	assert.Contains(p.t, string(p.page("/debug/httpretry")), host)
}

// The README's commands, changes of the file and output are those of this
// program. The test runs the commands, makes the changes, and waits for the
// output.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$").
		FindAllStringSubmatch(string(readme), -1)
	curl := regexp.MustCompile(`^curl -s 'http://127\.0\.0\.1:6061(/[^']+)'\n$`)
	did := map[string]int{}
	hangup := make(chan os.Signal, 1)
	canReload := notifyHangup(hangup)
	stopHangup(hangup)
	atOnce := regexp.MustCompile(`; at once: kill -HUP \d+`)
	var p *program
	page, signaled := "", false
	for _, block := range blocks {
		language, text := block[1], block[2]
		did[language]++
		if !canReload {
			text = atOnce.ReplaceAllString(text, "")
		}
		switch {
		case text == "go run .\n":
			p = start(t)
			defer p.stop()
		case strings.HasPrefix(text, "kill -HUP "):
			signaled = hangUp(t)
		case language == "sh":
			require.Regexp(t, curl, text)
			page = curl.FindStringSubmatch(text)[1]
		case language == "text" && (signaled || !strings.Contains(text, "SIGHUP")):
			p.waitLines(text)
		case language == "json" && page != "":
			p.waitPage(page, text)
			page = ""
		case language == "json":
			p.step()
			p.edit(strings.TrimSuffix(text, "\n"))
			// The README sends the first signal by itself. The second
			// change is noticed without one.
			if did["json"] > 2 {
				hangUp(t)
			}
		}
	}
	assert.Equal(t, map[string]int{"sh": 4, "text": 7, "json": 6}, did)
}

// An operator gets an answer to each SIGHUP, also if there is nothing to do.
func TestHangup(t *testing.T) {
	p := start(t)
	defer p.stop()
	p.waitLine(func(line string) bool { return strings.HasPrefix(line, "Page:") }, "with the page")
	if !hangUp(t) {
		t.Skip("the system has no SIGHUP")
	}
	p.waitLine(func(line string) bool {
		return strings.HasSuffix(line, "SIGHUP: policies.json has not changed.")
	}, "after SIGHUP")
}

// A host without a key of its own has the default.
func TestDefaultIsShown(t *testing.T) {
	t.Chdir(t.TempDir())
	file := []byte(`{"default": {"maxAttempts": 2}}`)
	require.NoError(t, os.WriteFile("policies.json", file, 0o600))
	assert.Equal(t, "No key is \"search.test\". default:\n  maxAttempts  2  from default\n",
		inEffect("policies.json"))
	// A value is shown as it is in effect, also if it is a zero value in Go.
	file = []byte(`{"default": {"preset": "background", "backoff": "Constant"}}`)
	require.NoError(t, os.WriteFile("policies.json", file, 0o600))
	assert.Equal(t, `No key is "search.test". default:
  maxAttempts    no limit     from preset background
  backoff        "Constant"   from default
  maxRetryAfter  no limit     from preset background
  budget         "unlimited"  from preset background
`, inEffect("policies.json"))
	assert.Empty(t, inEffect("missing.json"))
	require.NoError(t, os.WriteFile("policies.json", []byte(`{`), 0o600))
	assert.Empty(t, inEffect("policies.json"))
}

// The program does not start with policies that are not valid, or without its
// page.
func TestStartFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policies.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"default": {"maxAttemps": 2}}`), 0o600))
	taken, err := serve("127.0.0.1:0", http.NotFoundHandler())
	require.NoError(t, err)
	defer taken.stop()
	for _, c := range []struct{ file, addr, want string }{
		{file, "127.0.0.1:0", file + ":1:14: default.maxAttemps: unknown field"},
		{"missing.json", "127.0.0.1:0", "missing.json"},
		{"policies.json", taken.addr, "listen tcp " + taken.addr},
	} {
		var out bytes.Buffer
		err := operate(t.Context(), c.file, c.addr, &screen{out: &out})
		assert.ErrorContains(t, err, c.want)
		assert.Empty(t, out.String())
	}
}

// The file of this folder is valid, and editors find its schema.
func TestPolicies(t *testing.T) {
	text, err := os.ReadFile("policies.json")
	require.NoError(t, err)
	_, err = policyfile.Parse(text)
	require.NoError(t, err)
	var head struct {
		Schema string `json:"$schema"`
	}
	require.NoError(t, json.Unmarshal(text, &head))
	assert.FileExists(t, head.Schema)
}
