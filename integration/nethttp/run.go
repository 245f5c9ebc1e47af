package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// neverRun are tests that start the go command, which would run the tests of
// the copy once more.
const neverRun = "^(TestOmitHTTP2|TestOmitHTTP2Vet)$"

// test names a test or subtest of a package.
type test struct{ pkg, name string }

func (t test) String() string { return t.pkg + " " + t.name }

// result is how a test ended, and its output.
type result struct {
	action string // the last of test2json's: "pass", "fail", "skip"; "run" or "pause" if it did not end
	text   string
	hung   bool // it ended the process
}

// exitStatus stands for a test if a package's tests failed without a failed
// test, such as in TestMain.
const exitStatus = "(exit status)"

// runTests runs the tests of packages that match pattern in a mode.
func (r *runner) runTests(ctx context.Context, packages []testPackage, mode, pattern string) (map[test]result, error) {
	results := make(map[test]result)
	for _, p := range packages {
		skip := neverRun
		if r.skip != "" {
			skip += "|" + r.skip
		}
		for t, e := range r.list[mode] {
			if t.pkg == p.path && e.kind == "hangs" {
				skip += "|" + exactly(t.name)
			}
		}
		// A test that hangs or panics ends the process. The others run again
		// without it, so that each has a result.
		for range 10 {
			ended, culprits, err := r.runPackage(ctx, p, mode, pattern, skip)
			if err != nil {
				return nil, err
			}
			merge(results, p.path, ended)
			if len(culprits) == 0 {
				break
			}
			fmt.Printf("  %s: ended the process: %s\n", p.path, strings.Join(culprits, ", "))
			for _, name := range culprits {
				skip += "|" + exactly(name)
			}
		}
	}
	return results, nil
}

// runPackage runs tests of one package and returns how each ended, and the
// names of the tests that ended the process.
func (r *runner) runPackage(ctx context.Context, p testPackage, mode, pattern, skip string) (map[string]result, []string, error) {
	goroot := r.changed
	if mode == bare {
		goroot = r.goroot
	}
	args := []string{"tool", "test2json", "-t", "-p", p.path, r.binary(p, goroot), "-test.v=test2json",
		"-test.run=" + pattern, "-test.skip=" + skip, "-test.timeout=" + r.timeout.String()}
	if r.short {
		args = append(args, "-test.short")
	}
	cmd := r.goCommand(ctx, goroot, p.folder(goroot), args...)
	cmd.Env = append(cmd.Env, modeEnv+"="+mode, countEnv+"="+r.countFile(mode))
	// A failed test makes an exit status, too: the events tell more.
	text, err := cmd.Output()
	if _, exit := errors.AsType[*exec.ExitError](err); err != nil && !exit {
		return nil, nil, err
	}
	ended, err := parseEvents(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w\n%s", p.path, err, text)
	}
	return ended, culprits(ended), nil
}

// countFile returns the file in which the tests of a mode count requests.
func (r *runner) countFile(mode string) string { return filepath.Join(r.temp, "requests-"+mode) }

// requests returns how many requests went through the wrapper in a mode since
// the last call.
func (r *runner) requests(mode string) (int, error) {
	text, err := os.ReadFile(r.countFile(mode))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return len(text), os.Remove(r.countFile(mode))
}

var (
	// crash is how a test's output shows that it ended the process.
	crash = regexp.MustCompile(`(?m)^(panic|fatal error): `)

	// timedOut is the list of tests that ran when the time was up.
	timedOut = regexp.MustCompile(`(?m)^panic: test timed out after .*\n\trunning tests:\n((?:\t\t.*\n)*)`)
)

// culprits returns the names of the tests that hung or crashed, without those
// of which it was a subtest.
func culprits(ended map[string]result) []string {
	names := make(map[string]bool)
	for name, e := range ended {
		if m := timedOut.FindStringSubmatch(e.text); m != nil {
			for line := range strings.Lines(m[1]) {
				running, _, _ := strings.Cut(strings.TrimSpace(line), " ")
				names[running] = true
			}
		} else if e.action == "run" || e.action == "fail" && name != exitStatus && crash.MatchString(e.text) {
			names[name] = true
		}
	}
	leaves := slices.Sorted(maps.Keys(names))
	return slices.DeleteFunc(leaves, func(name string) bool {
		return slices.ContainsFunc(leaves, func(other string) bool { return strings.HasPrefix(other, name+"/") })
	})
}

// merge adds the results of a run of one package to results.
func merge(results map[test]result, pkg string, ended map[string]result) {
	culprits := culprits(ended)
	for name, e := range ended {
		e.hung = slices.Contains(culprits, name)
		switch {
		case strings.Contains(e.text, "--- PASS: "+name+" "):
			// test2json adds the crash of another test to the last one that
			// printed something.
			e.action = "pass"
		case e.action == "run" || e.action == "pause":
			// A test that did not end has failed, or waits for one that has.
			e.action = "fail"
		}
		// The result of a test that ended before another one ended the process
		// stands.
		if t := (test{pkg, name}); results[t].action != "pass" && !results[t].hung {
			results[t] = e
		}
	}
}

// parseEvents returns how each test ended, from the output of test2json.
func parseEvents(text []byte) (map[string]result, error) {
	last := make(map[string]result)
	failed := false // a test did
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var event struct{ Action, Test, Output string }
		if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if event.Test == "" {
			event.Test = exitStatus
		} else if event.Action == "fail" {
			failed = true
		}
		e := last[event.Test]
		switch event.Action {
		case "run", "cont":
			e.action = "run"
		case "pause", "pass", "fail", "skip":
			e.action = event.Action
		case "output":
			e.text += event.Output
		}
		last[event.Test] = e
	}
	if failed || last[exitStatus].action != "fail" {
		delete(last, exitStatus)
	}
	return last, nil
}
