package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/integration/nethttp/wrap"
)

// nothing is the mode of the control with a wrapper that only calls its base.
const nothing = "nothing"

//go:embed expected.txt
var expectedText string

// expectations has the tests that fail by design, by mode.
type expectations map[string]map[test]expectation

type expectation struct {
	kind   string // one of kinds
	reason string
}

// kinds say how a listed test fails: in each run, in some runs, or by not
// ending. The last kind does not run.
var kinds = []string{"fails", "races", "hangs"}

// parseExpectations reads lines of the form
//
//	kind modes package test # reason
//
// with comma-separated modes. Empty lines and those that begin with # are
// comments.
func parseExpectations(text string) (expectations, error) {
	list := make(expectations)
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		entry, reason, _ := strings.Cut(line, " # ")
		fields := strings.Fields(entry)
		if len(fields) != 4 || reason == "" || !slices.Contains(kinds, fields[0]) {
			return nil, fmt.Errorf("expected.txt:%d: %q: want fails|races|hangs modes package test # reason", number, line)
		}
		for mode := range strings.SplitSeq(fields[1], ",") {
			if !slices.Contains(wrap.Modes(), mode) {
				return nil, fmt.Errorf("expected.txt:%d: mode %q: want one of %q", number, mode, wrap.Modes())
			}
			if list[mode] == nil {
				list[mode] = make(map[test]expectation)
			}
			list[mode][test{fields[2], fields[3]}] = expectation{fields[0], reason}
		}
	}
	return list, nil
}

// verdict sorts the tests of one mode.
type verdict struct {
	expected   []test // failed as listed
	unexpected []test
	without    []test // failed in a control, too
	flaky      []test // failed, and then passed alone
	passed     int
}

// runMode runs all tests in a mode, prints the unexpected results, and returns
// the number of unexpected failures.
func (r *runner) runMode(ctx context.Context, s *suite, mode string) (int, error) {
	start := time.Now()
	results, err := r.runTests(ctx, s.packages, mode, r.only)
	if err != nil {
		return 0, err
	}
	var v verdict
	var failed []test
	for _, t := range failures(results) {
		if _, ok := r.list[mode][t]; ok {
			v.expected = append(v.expected, t)
			continue
		}
		passed, err := r.passesAlone(ctx, s, mode, t)
		if err != nil {
			return 0, err
		}
		// Some tests of net/http measure time, and fail more than once on a
		// busy machine. One that hangs would do so for as long again.
		if !passed && !results[t].hung {
			if passed, err = r.passesAlone(ctx, s, mode, t); err != nil {
				return 0, err
			}
		}
		if passed {
			v.flaky = append(v.flaky, t)
		} else {
			failed = append(failed, t)
		}
	}
	// A test that fails in a control is no evidence about httpretry.
	if mode == bare || mode == nothing {
		r.noteControl(results, failed)
	}
	v.unexpected, v.without = r.split(mode, failed)
	v.unexpected = append(v.unexpected, r.missing(mode, results)...)
	for _, e := range results {
		if e.action == "pass" {
			v.passed++
		}
	}
	r.print(v, mode, results, time.Since(start))
	return len(v.unexpected), r.checkWrapper(mode)
}

// checkWrapper prints how many requests went through the wrapper. None at all
// is an error, unless r.only may name a test that sends none.
func (r *runner) checkWrapper(mode string) error {
	n, err := r.requests(mode)
	switch {
	case err != nil || mode == bare:
		return err
	case n == 0 && r.only == "":
		return errors.New("no request went through the wrapper")
	}
	fmt.Printf("  %d requests went through the wrapper\n", n)
	return nil
}

// print prints a verdict, the failures first.
func (r *runner) print(v verdict, mode string, results map[test]result, took time.Duration) {
	for _, t := range v.unexpected {
		fmt.Printf("  FAIL: %s\n%s", t, excerpt(results[t].text))
	}
	for _, t := range v.without {
		fmt.Printf("  fails without httpretry, too: %s\n", t)
	}
	for _, t := range v.flaky {
		fmt.Printf("  failed first, passed alone: %s\n%s", t, excerpt(results[t].text))
	}
	for _, t := range sorted(r.list[mode]) {
		if r.list[mode][t].kind == "fails" && results[t].action == "pass" {
			fmt.Printf("  passes, but expected.txt says that it fails: %s\n", t)
		}
	}
	fmt.Printf("%s: %d tests passed, %d failed as expected, %d failed unexpectedly, in %.0f s\n",
		mode, v.passed, len(v.expected), len(v.unexpected), took.Seconds())
}

// excerpt returns the first lines of a test's output, indented.
func excerpt(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "=== ") {
			continue
		}
		fmt.Fprintf(&b, "      %s\n", strings.TrimRight(line, "\n"))
		if b.Len() > 1500 {
			break
		}
	}
	return b.String()
}

// failures returns the tests that failed, without those of which it was a
// subtest that failed.
func failures(results map[test]result) []test {
	parents := make(map[test]bool)
	for t, e := range results {
		if e.action != "fail" {
			continue
		}
		for name := t.name; ; {
			i := strings.LastIndexByte(name, '/')
			if i < 0 {
				break
			}
			name = name[:i]
			parents[test{t.pkg, name}] = true
		}
	}
	var failed []test
	for _, t := range sorted(results) {
		if results[t].action == "fail" && !parents[t] {
			failed = append(failed, t)
		}
	}
	return failed
}

// passesAlone runs a failed test once more and reports whether it passes.
func (r *runner) passesAlone(ctx context.Context, s *suite, mode string, t test) (bool, error) {
	i := slices.IndexFunc(s.packages, func(p testPackage) bool { return p.path == t.pkg })
	pattern := exactly(t.name)
	if t.name == exitStatus {
		pattern = "" // it takes all tests
	}
	results, err := r.runTests(ctx, s.packages[i:i+1], mode, pattern)
	if err != nil {
		return false, err
	}
	if t.name == exitStatus {
		_, failed := results[t]
		return !failed, nil
	}
	return results[t].action == "pass", nil
}

// exactly returns the pattern for -test.run or -test.skip that matches one test
// or subtest.
func exactly(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// noteControl keeps which tests pass in both controls.
func (r *runner) noteControl(results map[test]result, failed []test) {
	passed := make(map[test]bool)
	for t, e := range results {
		if e.action != "skip" && (r.control == nil || r.control[t]) && !slices.Contains(failed, t) {
			passed[t] = true
		}
	}
	r.control = passed
}

// split takes those from failed that did not pass in the controls, either.
func (r *runner) split(mode string, failed []test) (left, without []test) {
	for _, t := range failed {
		if r.control != nil && !r.control[t] && mode != bare && mode != nothing {
			without = append(without, t)
		} else {
			left = append(left, t)
		}
	}
	return left, without
}

// missing returns the top-level tests that passed in the controls and have no
// result in a mode.
func (r *runner) missing(mode string, results map[test]result) []test {
	var missing []test
	for _, t := range sorted(r.control) {
		_, ok := results[t]
		if !ok && r.list[mode][t].kind != "hangs" && !strings.Contains(t.name, "/") {
			missing = append(missing, t)
		}
	}
	return missing
}

// sorted returns the keys of m in the order of packages and names.
func sorted[V any](m map[test]V) []test {
	return slices.SortedFunc(maps.Keys(m), func(a, b test) int {
		return strings.Compare(a.String(), b.String())
	})
}
