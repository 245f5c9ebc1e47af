package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
	"github.com/seed421102f4/httpretry/retrylab/internal/spec"
)

// options are the flags of a command. All commands have these.
type options struct {
	*flag.FlagSet
	args   []string
	stderr io.Writer

	seed                       uint64
	htmlFile, jsonFile, svgDir string
}

func newOptions(name string, args []string, stderr io.Writer) *options {
	o := &options{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError), args: args, stderr: stderr}
	o.SetOutput(io.Discard) // main prints errors, on one line
	o.Uint64Var(&o.seed, "seed", 1, "all random numbers follow from this `number`")
	o.StringVar(&o.htmlFile, "o", "", "write a page with figures to this `file`; - is standard output")
	o.StringVar(&o.jsonFile, "json", "", "write the tables to this `file`; - is standard output")
	o.StringVar(&o.svgDir, "svg", "", "write each figure to a file in this `directory`")
	return o
}

// parse parses the arguments, after the command has added its own flags.
func (o *options) parse() error {
	if err := o.Parse(o.args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return o.explain(err)
	}
	if o.NArg() > 0 {
		return fmt.Errorf("%q: want flags only", o.Arg(0))
	}
	return o.checkFiles()
}

// checkFiles finds files that cannot be written before a run, not after it.
func (o *options) checkFiles() error {
	used := map[string]string{}
	for _, name := range []string{"o", "json"} {
		file := o.Lookup(name).Value.String()
		if file == "" {
			continue
		}
		if other, ok := used[file]; ok {
			return fmt.Errorf("-%s %s -%s %s: want different files", other, file, name, file)
		}
		used[file] = name
		dir, err := os.Stat(filepath.Dir(file))
		if err != nil || !dir.IsDir() {
			return fmt.Errorf("-%s %s: want a file in a directory that exists", name, file)
		}
		if info, err := os.Stat(file); err == nil && info.IsDir() {
			return fmt.Errorf("-%s %s: want a file, not a directory", name, file)
		}
	}
	if info, err := os.Stat(o.svgDir); err == nil && !info.IsDir() {
		return fmt.Errorf("-svg %s: want a directory, not a file", o.svgDir)
	}
	return nil
}

var (
	undefined = regexp.MustCompile(`^flag provided but not defined: -(.*)$`)
	missing   = regexp.MustCompile(`^flag needs an argument: -(.*)$`)
	invalid   = regexp.MustCompile(`^invalid (?:boolean )?value "(.*)" for (?:flag )?-([^:]*): `)
)

// explain adds the allowed values to an error of package flag.
func (o *options) explain(err error) error {
	if m := undefined.FindStringSubmatch(err.Error()); m != nil {
		var names []string
		o.VisitAll(func(f *flag.Flag) { names = append(names, "-"+f.Name) })
		return fmt.Errorf("-%s: want one of %s", m[1], strings.Join(names, " "))
	}
	if m := missing.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("-%s: want a value after it", m[1])
	}
	if m := invalid.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("-%s %q: want %s", m[2], m[1], wanted(o.Lookup(m[2])))
	}
	return err
}

// wanted describes the values of a flag.
func wanted(f *flag.Flag) string {
	switch f.Value.(flag.Getter).Get().(type) {
	case bool:
		return "true or false"
	case time.Duration:
		return "a duration such as 100ms or 2s"
	case float64:
		return "a number"
	case uint64:
		return "a whole number of at least 0"
	}
	return "a whole number"
}

// within checks the value of a number flag.
func within[T int | float64](name string, value, least, most T) error {
	if !(value >= least && value <= most) {
		return fmt.Errorf("-%s %v: want a number from %v to %v", name, value, least, most)
	}
	return nil
}

// durations checks the values of duration flags. The sum of many of them must
// not overflow.
func (o *options) durations(names ...string) error {
	for _, name := range names {
		d, ok := o.Lookup(name).Value.(flag.Getter).Get().(time.Duration)
		if ok && (d < 0 || d > spec.MaxDuration) {
			return fmt.Errorf("-%s %v: want a duration from 0s to %v", name, d, spec.MaxDuration)
		}
	}
	return nil
}

// split returns the parts of a list that are separated by commas.
func split(name, list string) ([]string, error) {
	var parts []string
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		if slices.Contains(parts, part) {
			return nil, fmt.Errorf("-%s %q: want it once", name, part)
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// parseCounts parses numbers from 1 that are separated by commas.
func parseCounts(name, list string, most int) ([]int, error) {
	parts, err := split(name, list)
	if err != nil {
		return nil, err
	}
	var ns []int
	for _, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("-%s %q: want whole numbers from 1 to %d, separated by commas", name, part, most)
		}
		ns = append(ns, n)
	}
	return ns, nil
}

// parseStrategies parses strategies that are separated by commas.
func parseStrategies(list string, parse func(string) (spec.Named, error)) ([]spec.Named, error) {
	parts, err := split("strategies", list)
	if err != nil {
		return nil, err
	}
	var all []spec.Named
	for _, part := range parts {
		s, err := parse(part)
		if err != nil {
			return nil, fmt.Errorf("-strategies: %w", err)
		}
		all = append(all, s)
	}
	return all, nil
}

// checkEndless finds attempts that nothing ends and that take no time, with
// which a simulation would not end.
func checkEndless(attempts int, backoff spec.Named) error {
	// Drawing waits changes those of the simulation.
	if attempts >= 0 {
		return nil
	}
	const waits = 100
	total, next := time.Duration(0), backoff.Strategy.Start()
	for range waits {
		total += max(next(), 0)
	}
	if total < waits*time.Millisecond {
		return fmt.Errorf("-attempts %d: want a number from 0, or waits longer than those of %s", attempts, backoff.Name)
	}
	return nil
}

// checkBudget returns the first problem of a budget, by the name of its flag.
func checkBudget(b *httpretry.HostBudget) error {
	err := b.Validate()
	if err == nil {
		return nil
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	field, problem, _ := strings.Cut(strings.TrimPrefix(first, "HostBudget."), ":")
	return fmt.Errorf("-%s%s", strings.ToLower(field), problem)
}

func (o *options) help(w io.Writer, about string) {
	fmt.Fprintln(w, report.Fill(fmt.Sprintf("retrylab %s shows %s.", o.Name(), about), ""))
	o.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		if !slices.Contains([]string{"", "0", "0s", "false"}, f.DefValue) {
			usage += " (default " + strings.ReplaceAll(f.DefValue, ",", ", ") + ")"
		}
		fmt.Fprintf(w, "\n  %s\n      %s\n", strings.TrimSpace("-"+f.Name+" "+value), report.Fill(usage, "      "))
	})
}

func (o *options) commandLine() string {
	words := []string{"retrylab", o.Name()}
	skip := map[string]bool{"o": true, "json": true, "svg": true}
	o.Visit(func(f *flag.Flag) {
		if skip[f.Name] {
			return
		}
		value := f.Value.String()
		if strings.ContainsAny(value, " ") {
			value = "'" + value + "'"
		}
		words = append(words, "-"+f.Name+"="+value)
	})
	return strings.Join(words, " ")
}

// write writes a report in the formats that the flags ask for. The terminal
// gets the text, unless it gets another format.
func (o *options) write(stdout io.Writer, r report.Report) error {
	if o.htmlFile != "-" && o.jsonFile != "-" {
		if err := report.WriteText(stdout, r); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name, file string
		write      func(io.Writer, report.Report) error
	}{{"json", o.jsonFile, report.WriteJSON}, {"o", o.htmlFile, report.WriteHTML}} {
		if err := writeFile(f.file, stdout, r, f.write); err != nil {
			return fmt.Errorf("-%s: %w", f.name, err)
		}
	}
	if o.svgDir == "" {
		return nil
	}
	if err := writeSVGs(o.svgDir, o.Name(), r.Figures); err != nil {
		return fmt.Errorf("-svg: %w", err)
	}
	return nil
}

func writeFile(file string, stdout io.Writer, r report.Report, write func(io.Writer, report.Report) error) error {
	switch file {
	case "":
		return nil
	case "-":
		return write(stdout, r)
	}
	var b bytes.Buffer
	if err := write(&b, r); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

func writeSVGs(dir, name string, figures []chart.Figure) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i, f := range figures {
		file := filepath.Join(dir, fmt.Sprintf("%s-%d.svg", name, i+1))
		if err := os.WriteFile(file, []byte(chart.File(f)), 0o644); err != nil {
			return err
		}
	}
	return nil
}
