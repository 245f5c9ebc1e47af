package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
)

type options struct {
	*flag.FlagSet
	args             []string
	seed             uint64
	htmlFile, svgDir string
}

func newOptions(name string, args []string) *options {
	o := &options{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError), args: args}
	o.SetOutput(io.Discard) // main prints errors, on one line
	o.Uint64Var(&o.seed, "seed", 1, "all random numbers follow from this `number`")
	o.StringVar(&o.htmlFile, "o", "", "write a page with figures to this `file`; - is standard output")
	o.StringVar(&o.svgDir, "svg", "", "write each figure to a file in this `directory`")
	return o
}

// parse parses the arguments, after the command has added its own flags. It finds
// a file that cannot be written before a run, not after it.
func (o *options) parse() error {
	if err := o.Parse(o.args); err != nil {
		return err
	}
	if o.NArg() > 0 {
		return fmt.Errorf("%q: want flags only", o.Arg(0))
	}
	if dir, err := os.Stat(filepath.Dir(o.htmlFile)); err != nil || !dir.IsDir() {
		return fmt.Errorf("-o %s: want a file in a directory that exists", o.htmlFile)
	}
	return nil
}

func within[T cmp.Ordered](name string, value, least, most T) error {
	if !(value >= least && value <= most) {
		return fmt.Errorf("-%s %v: want a value from %v to %v", name, value, least, most)
	}
	return nil
}

// durations checks the values of duration flags, which are multiples of step. The
// sum of many of them must not overflow.
func (o *options) durations(step time.Duration, names ...string) error {
	for _, name := range names {
		d, ok := o.Lookup(name).Value.(flag.Getter).Get().(time.Duration)
		if ok && (d < 0 || d > maxDuration) {
			return fmt.Errorf("-%s %v: want a duration from 0s to %v", name, d, maxDuration)
		}
		if d%step != 0 {
			return fmt.Errorf("-%s %v: want a multiple of %v", name, d, step)
		}
	}
	return nil
}

func oneOf(name, value, choices string) error {
	if !slices.Contains(strings.Split(choices, ", "), value) {
		return fmt.Errorf("-%s %q: want one of %s", name, value, choices)
	}
	return nil
}

// split returns the parts of a list. Without choices, they may be anything.
func split(name, list, choices string) ([]string, error) {
	var parts []string
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		if slices.Contains(parts, part) {
			return nil, fmt.Errorf("-%s %q: want it once", name, part)
		}
		if err := oneOf(name, part, choices); choices != "" && err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return parts, nil
}

func parseEach[T any](name, list string, parse func(part string) (T, error)) ([]T, error) {
	parts, err := split(name, list, "")
	if err != nil {
		return nil, err
	}
	all := make([]T, len(parts))
	for i, part := range parts {
		if all[i], err = parse(part); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func parseCounts(name, list string, most int) ([]int, error) {
	return parseEach(name, list, func(part string) (int, error) {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > most {
			return 0, fmt.Errorf("-%s %q: want whole numbers from 1 to %d, separated by commas", name, part, most)
		}
		return n, nil
	})
}

// checkEndless finds attempts that nothing ends and that take no time, with
// which a simulation would not end.
func checkEndless(attempts int, backoff named) error {
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
	o.Visit(func(f *flag.Flag) {
		if f.Name == "o" || f.Name == "svg" {
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

func (o *options) write(stdout io.Writer, r report.Report) error {
	var err error
	switch o.htmlFile {
	case "-":
		err = report.WriteHTML(stdout, r)
	case "":
		err = report.WriteText(stdout, r)
	default:
		var page bytes.Buffer
		err = cmp.Or(report.WriteText(stdout, r), report.WriteHTML(&page, r), os.WriteFile(o.htmlFile, page.Bytes(), 0o644))
	}
	if err != nil || o.svgDir == "" {
		return err
	}
	err = os.MkdirAll(o.svgDir, 0o755)
	for i, f := range r.Figures {
		file := filepath.Join(o.svgDir, fmt.Sprintf("%s-%d.svg", o.Name(), i+1))
		err = cmp.Or(err, os.WriteFile(file, []byte(chart.File(f)), 0o644))
	}
	return err
}
