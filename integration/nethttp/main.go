// Nethttp runs the tests of other people's code with httpretry below every
// http.Client.
//
// Without arguments, these are the tests of net/http and of packages around it.
// Arguments are modules, with their versions: example.com/module@v1.2.3.
//
// Nethttp copies the GOROOT of the go command in use to a temporary folder and
// changes the copy. Then http.Client, httputil.ReverseProxy and the RoundTrip
// calls of the tests of the standard library call httpretry, which calls the
// transport that they meant to call. It builds the tests with the copy and runs
// them once per mode (package wrap describes the modes). Every test that passes
// with a wrapper that does nothing has to pass with httpretry, but for those
// listed in expected.txt.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/integration/nethttp/wrap"
)

// bare is the mode of the control that runs with GOROOT as it is.
const bare = "bare"

func main() {
	all := append([]string{bare}, wrap.Modes()...)
	modes := flag.String("modes", strings.Join(all, ","), "the modes to run, comma-separated")
	race := flag.Bool("race", false, "build the tests with the race detector")
	run := flag.String("run", "", "run only the tests that match this pattern, as in go test")
	skip := flag.String("skip", "", "do not run the tests that match this pattern, as in go test")
	short := flag.Bool("short", false, "run the tests in their short form, as in go test")
	timeout := flag.Duration("timeout", 4*time.Minute, "the time limit of one package's tests in one mode")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r := &runner{
		modes: strings.Split(*modes, ","), race: *race, only: *run, skip: *skip, short: *short,
		timeout: *timeout, modules: flag.Args(),
	}
	for _, mode := range r.modes {
		if !slices.Contains(all, mode) {
			fmt.Fprintf(os.Stderr, "nethttp: -modes %q: want one of %q\n", mode, all)
			os.Exit(2)
		}
	}
	for _, m := range r.modules {
		if !strings.Contains(m, "@") || strings.HasPrefix(m, "-") {
			fmt.Fprintf(os.Stderr, "nethttp: %q is not a module with a version; flags come first\n", m)
			os.Exit(2)
		}
	}
	if err := r.runAll(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "nethttp:", err)
		os.Exit(1)
	}
}

// runner runs tests in each mode.
type runner struct {
	modes   []string
	race    bool
	only    string // a pattern for -test.run
	skip    string // a pattern for -test.skip; "": none
	short   bool
	timeout time.Duration // for one run of one package's tests
	modules []string      // none: the standard library

	temp    string
	goroot  string // of the go command in use
	changed string // the changed copy of it
	list    expectations
	control map[test]bool // the tests that pass in the controls; nil: none ran yet
}

// suite is the packages that are tested together.
type suite struct {
	name     string
	module   string // a folder within the module to build them in
	packages []testPackage
}

type testPackage struct {
	path  string // its import path
	name  string
	dir   string // its folder, below GOROOT/src for one of the standard library
	std   bool
	built string // a folder for its test binaries, one per GOROOT
}

// runAll runs all suites and returns an error if a test failed unexpectedly.
func (r *runner) runAll(ctx context.Context) (err error) {
	if r.list, err = parseExpectations(expectedText); err != nil {
		return err
	}
	if r.temp, err = os.MkdirTemp("", "nethttp"); err != nil {
		return err
	}
	defer func() {
		if e := os.RemoveAll(r.temp); err == nil {
			err = e
		}
	}()
	if err := r.changeGOROOT(ctx); err != nil {
		return err
	}

	load := []func(context.Context) (*suite, error){r.standardLibrary}
	if len(r.modules) > 0 {
		load = nil
	}
	for _, m := range r.modules {
		load = append(load, func(ctx context.Context) (*suite, error) { return r.module(ctx, m) })
	}
	unexpected := 0
	for _, f := range load {
		s, err := f(ctx)
		if err != nil {
			return err
		}
		n, err := r.runSuite(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		unexpected += n
	}
	if unexpected > 0 {
		return fmt.Errorf("%d tests failed unexpectedly", unexpected)
	}
	return nil
}

// runSuite builds and runs a suite in all modes, and returns the number of
// unexpected failures.
func (r *runner) runSuite(ctx context.Context, s *suite) (int, error) {
	start := time.Now()
	// The bare tests come first, because the others have one more file.
	if err := r.build(ctx, s, r.goroot); err != nil {
		return 0, err
	}
	if err := addSetters(s, r.changed); err != nil {
		return 0, err
	}
	if err := r.build(ctx, s, r.changed); err != nil {
		return 0, err
	}
	fmt.Printf("%s: built in %.0f s\n", s.name, time.Since(start).Seconds())

	r.control = nil
	unexpected := 0
	for _, mode := range r.modes {
		n, err := r.runMode(ctx, s, mode)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", mode, err)
		}
		unexpected += n
	}
	return unexpected, nil
}

// changeGOROOT copies GOROOT and changes the copy.
func (r *runner) changeGOROOT(ctx context.Context) error {
	goroot, err := output(ctx, "", "go", "env", "GOROOT")
	if err != nil {
		return err
	}
	r.goroot = strings.TrimSpace(goroot)
	r.changed = filepath.Join(r.temp, "goroot")
	if err := copyGOROOT(r.goroot, r.changed); err != nil {
		return err
	}
	src := filepath.Join(r.changed, "src")
	places, err := rewrite(src)
	if err != nil {
		return err
	}
	if err := vendorLibrary(ctx, filepath.Join(src, "vendor")); err != nil {
		return err
	}
	version, err := os.ReadFile(filepath.Join(r.goroot, "VERSION"))
	if err != nil {
		return err
	}
	release, _, _ := strings.Cut(string(version), "\n")
	fmt.Printf("%s, %d calls of the tests of net/http rewritten\n", release, places)
	return nil
}
