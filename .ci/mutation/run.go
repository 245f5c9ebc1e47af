package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The results of a change. Those of earlier runs are read from the cache.
const (
	byTest     = "killed"
	byTimeout  = "killed by time-out"
	survived   = "survived"
	unreached  = "not reached"
	notCompile = "does not compile"
	equal      = "in the list"
)

type result struct {
	ID     string
	Result string
	By     string        // the tests that failed, or were running
	Took   time.Duration // with the builds
	Flaky  []string      // tests that failed once in three runs
}

// command runs a program and returns its output. The error has all of it.
func command(dir, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out, stderr.Bytes())
	}
	return out, err
}

// errNotCompile is the error of a build that the change breaks.
var errNotCompile = errors.New("does not compile")

// A trial is one change under test.
type trial struct {
	*project
	*place
	work    string // a folder
	overlay string // the file for -overlay
	used    bool   // code that the change leaves unused has another use
	started time.Time
	result  *result
}

// try finds out whether a test notices a change.
func (pr *project) try(p *place) (*result, error) {
	t := &trial{project: pr, place: p, started: time.Now(), result: &result{ID: p.id(), Result: unreached}}
	defer func() { t.result.Took = time.Since(t.started) }()
	var err error
	if t.work, err = os.MkdirTemp("", "mutate"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(t.work)
	if err = t.change(""); err == nil {
		err = t.suites()
	}
	if errors.Is(err, errNotCompile) {
		t.result.Result, err = notCompile, nil
	}
	return t.result, err
}

// suites runs the tests that reach the change, until one notices it.
func (t *trial) suites() error {
	for _, s := range t.ordered(t.place) {
		if err := t.suite(s); err != nil || t.result.Result == byTest || t.result.Result == byTimeout {
			return err
		}
	}
	if t.result.Result == unreached { // no test was built
		return t.build("build", "./"+t.Dir)
	}
	return nil
}

var unused = regexp.MustCompile(`declared and not used: (\w+)`)

// build runs go build or go test with the change. If the change removes the
// only use of a variable, it adds another use and builds once more.
func (t *trial) build(args ...string) error {
	args = slices.Insert(args, 1, "-overlay", t.overlay)
	_, err := command(t.root, "go", args...)
	if err == nil {
		return nil
	}
	names := unused.FindAllStringSubmatch(err.Error(), -1)
	if names == nil || t.used || t.clause != (position{}) || !strings.HasSuffix(t.Kind, " removed") {
		return t.broken(err)
	}
	t.used = true
	extra := ""
	for _, name := range names {
		extra += "_ = " + name[1] + ";"
	}
	if err := t.change(extra); err != nil {
		return err
	}
	_, err = command(t.root, "go", args...)
	return t.broken(err)
}

// broken tells a change that does not compile from a build that failed.
func (t *trial) broken(err error) error {
	if err != nil && regexp.MustCompile(`(?m)^\S*\.go:\d+:\d+: `).MatchString(err.Error()) {
		return errNotCompile
	}
	return err
}

// change writes the changed file and the overlay.
func (t *trial) change(extra string) error {
	changed := filepath.Join(t.work, filepath.Base(t.File))
	if err := os.WriteFile(changed, []byte(t.mutated(extra)), 0o644); err != nil {
		return err
	}
	replace := map[string]map[string]string{"Replace": {filepath.Join(t.root, t.File): changed}}
	data, err := json.Marshal(replace)
	if err != nil {
		return err
	}
	t.overlay = filepath.Join(t.work, "overlay.json")
	return os.WriteFile(t.overlay, data, 0o644)
}

// ordered returns the suites in the order in which they are likely to notice
// a change soon: that of the package, the root's, test, and the others.
func (pr *project) ordered(p *place) []*suite {
	rank := func(s *suite) int {
		switch s.Dir {
		case p.Dir:
			return 0
		case ".":
			return 1
		case "test":
			return 2
		case "policies":
			return 3
		}
		return 4
	}
	return slices.SortedStableFunc(slices.Values(pr.suites), func(a, b *suite) int { return cmp.Compare(rank(a), rank(b)) })
}

// suite runs the tests of a suite that reach the change, in batches. The
// cheapest is first, and each batch may take longer than the one before.
func (t *trial) suite(s *suite) error {
	var tests []*test
	for _, one := range s.Tests {
		if !one.Broken && t.reaches(one, t.place) {
			tests = append(tests, one)
		}
	}
	if len(tests) == 0 {
		return nil
	}
	t.result.Result = survived
	slices.SortStableFunc(tests, func(a, b *test) int { return cmp.Compare(a.Cost, b.Cost) })
	binary := filepath.Join(t.work, "changed.test")
	if err := t.build("test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary, s.Path); err != nil {
		return err
	}
	for allowed := 500 * time.Millisecond; len(tests) > 0; allowed *= 2 {
		n, cost := 1, tests[0].Cost
		for n < len(tests) && cost+tests[n].Cost <= allowed {
			cost += tests[n].Cost
			n++
		}
		if err := t.batch(s, binary, tests[:n], cost); err != nil || t.result.Result != survived {
			return err
		}
		tests = tests[n:]
	}
	return nil
}

// batch runs tests until one fails. A failure counts if the test fails twice in
// three runs, because a busy machine fails tests, too. A time-out counts at
// once, since its limit is generous.
func (t *trial) batch(s *suite, binary string, tests []*test, cost time.Duration) error {
	for len(tests) > 0 {
		failed, err := t.run(s, binary, tests, cost)
		if failed == nil || err != nil || t.result.Result == byTimeout {
			return err
		}
		failures := 1
		for range 2 {
			again, err := t.run(s, binary, failed, cost)
			if err != nil || t.result.Result == byTimeout {
				return err
			}
			if again != nil {
				failures++
			}
			if failures == 2 {
				t.result.Result, t.result.By = byTest, names(failed)
				return nil
			}
		}
		t.result.Flaky = append(t.result.Flaky, names(failed))
		tests = slices.DeleteFunc(slices.Clone(tests), func(one *test) bool { return slices.Contains(failed, one) })
	}
	return nil
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: ([^\s/]+)`)

// run runs tests together. It returns the one that failed, or all of them if
// the output does not say which.
func (t *trial) run(s *suite, binary string, tests []*test, cost time.Duration) ([]*test, error) {
	ctx, cancel := context.WithTimeout(context.Background(), t.limit+10*cost)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.failfast", "-test.run", "^("+names(tests)+")$")
	cmd.Dir = filepath.Join(t.root, s.Dir)
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with the processes that tests start
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	switch exit := (*exec.ExitError)(nil); {
	case ctx.Err() != nil:
		t.result.Result, t.result.By = byTimeout, names(tests)
		return nil, nil
	case err == nil:
		return nil, nil
	case !errors.As(err, &exit):
		return nil, err
	}
	if match := failure.FindSubmatch(out.data); match != nil {
		for _, one := range tests {
			if one.Name == string(match[1]) {
				return []*test{one}, nil
			}
		}
	}
	return tests, nil
}

func names(tests []*test) string {
	var all []string
	for _, t := range tests {
		all = append(all, t.Name)
	}
	return strings.Join(all, "|")
}

// A tail keeps the last bytes written to it.
type tail struct{ data []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if extra := len(t.data) - 1<<20; extra > 0 {
		t.data = slices.Delete(t.data, 0, extra)
	}
	return len(p), nil
}
