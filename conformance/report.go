package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report prints a summary, and the details of a single client. It returns an
// error if httpretry fails a case without a reason.
func (o options) report(results []Result, cases []*Case) error {
	ran := installed(results)
	if o.verbose || len(ran) == 1 {
		for _, r := range ran {
			details(os.Stdout, r, cases)
		}
	}
	summary(os.Stdout, results, cases)
	if o.write != "" {
		var table strings.Builder
		markdown(&table, results, cases)
		page, err := html(results, cases)
		err = errors.Join(err,
			os.WriteFile(filepath.Join(o.write, "RESULTS.md"), []byte(table.String()), 0o644),
			os.WriteFile(filepath.Join(o.write, "results.html"), page, 0o644))
		if err != nil {
			return err
		}
	}
	if o.command != "" {
		return nil
	}
	return failures(results, cases)
}

// reasons are why httpretry does not do what a case asks for.
var reasons = map[string]string{
	"failed-retry": "Users expect more than two attempts of a client that retries. A budget limits the sum.",
	"h2-refused-stream": "haproxy sends REFUSED_STREAM even after its own server got the request: " +
		"see h2-refused-executed.",
	outage: "The best settings have Burst: 100, so that requests survive restarts. The defaults pass.",
}

// outage is a case that httpretry fails with its best settings only.
const outage = "outage"

// notByDefault matches the cases that httpretry may not deliver with its
// defaults. The others would be a regression.
var notByDefault = regexp.MustCompile(`^(body-|download-|get-200-error|get-stall|h2-stall|key-200-cut|` +
	`outage-load-1|post-429|restart-|rolling-|upload-stream-large)`)

// failures returns an error for each case that httpretry fails without a
// reason. At its best it delivers all others, so no client can deliver more.
func failures(results []Result, cases []*Case) error {
	var errs []error
	for _, r := range results {
		if !isOurs(r) || r.Skipped != nil {
			continue
		}
		for i, v := range r.Verdicts {
			c := cases[i]
			switch {
			case !fails(c, v), reasons[c.ID] != "" && (r.Best || c.ID != outage):
			case len(v.Problems) == 0 && !r.Best && notByDefault.MatchString(c.ID):
			default:
				err := fmt.Errorf("%s: %s (%s): %s", r.Name, c.ID, c.Level, cell(c, v))
				if v.Error != "" {
					err = fmt.Errorf("%w: %s", err, v.Error)
				}
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// more returns the clients whose defaults deliver more than httpretry's in a
// case, without doing anything wrong.
func more(results []Result, c *Case, i int) (names []string) {
	ours := slices.IndexFunc(results, func(r Result) bool { return r.Name == "httpretry" })
	if ours < 0 || results[ours].Skipped != nil || c.Level != levelDelivers {
		return nil
	}
	for _, r := range results {
		if r.Skipped == nil && !r.Best && r.Verdicts[i].Skip == "" && len(r.Verdicts[i].Problems) == 0 &&
			r.Verdicts[i].Delivered > results[ours].Verdicts[i].Delivered {
			names = append(names, r.Name)
		}
	}
	return names
}

func isOurs(r Result) bool { return strings.HasPrefix(r.Name, "httpretry") }

func percent(v Verdict) string { return fmt.Sprintf("%.0f %%", 100*v.Delivered) }

// fails reports whether a client fails a case: it does what it must not do, or
// delivers less than the case asks for.
func fails(c *Case, v Verdict) bool {
	return len(v.Problems) > 0 || c.Level == levelDelivers && c.delivers() && v.Delivered < c.Allowed.Delivered
}

// cell describes a verdict in a table.
func cell(c *Case, v Verdict) string {
	if v.Skip != "" {
		return "–"
	}
	text := v.Result
	if v.Requests > 1 {
		text = percent(v)
	}
	text += fmt.Sprintf(", %.3g×", float64(v.Sends)/float64(v.Requests))
	if len(v.Problems) > 0 {
		return "✗ " + text + ": " + strings.Join(v.Problems, ", ")
	}
	if fails(c, v) {
		return "○ " + text
	}
	return text
}

// details prints each case of one client.
func details(w io.Writer, r Result, cases []*Case) {
	fmt.Fprintf(w, "%s (%s)\n", r.Name, r.Version)
	for i, c := range cases {
		text := cell(c, r.Verdicts[i])
		if r.Verdicts[i].Skip != "" {
			text += " " + r.Verdicts[i].Skip
		}
		fmt.Fprintf(w, "  %-22s %-8s %s\n", c.ID, c.Level, text)
		if fails(c, r.Verdicts[i]) {
			fmt.Fprintf(w, "  %22s %s (%s)\n", "", c.Title, c.Clause)
			if v := r.Verdicts[i]; v.Error != "" {
				fmt.Fprintf(w, "  %22s %s\n", "", v.Error)
			}
		}
	}
}

// count returns what the summary says of one client.
type count struct{ Must, Should, Twice, Delivered, Deliverable, Skipped int }

func counts(r Result, cases []*Case) (n count) {
	for i, c := range cases {
		v := r.Verdicts[i]
		if v.Skip != "" {
			n.Skipped++
			continue
		}
		if v.Executed > 1 {
			n.Twice++
		}
		switch {
		case c.Level == levelDelivers && !c.delivers():
		case c.Level == levelDelivers:
			n.Deliverable++
			if !fails(c, v) {
				n.Delivered++
			}
		case len(v.Problems) > 0 && c.Level == levelMust:
			n.Must++
		case len(v.Problems) > 0:
			n.Should++
		}
	}
	return n
}

// summary prints one line for each client.
func summary(w io.Writer, results []Result, cases []*Case) {
	fmt.Fprintln(w, "| client | version | violates MUST | violates SHOULD | executes twice | delivers | cannot run |")
	fmt.Fprintf(w, "|%s\n", strings.Repeat("---|", 7))
	for _, r := range results {
		if r.Skipped != nil {
			fmt.Fprintf(w, "| %s | not installed | | | | | |\n", r.Name)
			continue
		}
		n := counts(r, cases)
		fmt.Fprintf(w, "| %s | %s | %d | %d | %d | %d of %d | %d |\n",
			r.Name, r.Version, n.Must, n.Should, n.Twice, n.Delivered, n.Deliverable, n.Skipped)
	}
}

// markdown prints the summary and the table of all cases.
func markdown(w io.Writer, results []Result, cases []*Case) {
	fmt.Fprintf(w, preface, time.Now().Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	summary(w, results, cases)
	fmt.Fprint(w, "\n## Cases\n\n| case | level | clause |")
	ran := installed(results)
	for _, r := range ran {
		fmt.Fprintf(w, " %s |", r.Name)
	}
	fmt.Fprintf(w, "\n|%s\n", strings.Repeat("---|", 3+len(ran)))
	for i, c := range cases {
		fmt.Fprintf(w, "| %s: %s | %s | %s |", c.ID, c.Title, c.Level, c.Clause)
		for _, r := range ran {
			fmt.Fprintf(w, " %s |", cell(c, r.Verdicts[i]))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "\nWith their defaults, these clients deliver more than httpretry with its defaults:\n\n")
	for i, c := range cases {
		if names := more(results, c, i); names != nil {
			fmt.Fprintf(w, "- %s: %s\n", c.ID, strings.Join(names, ", "))
		}
	}
	fmt.Fprint(w, "\nhttpretry does not do what these cases ask for:\n\n")
	for _, c := range cases {
		if reason := reasons[c.ID]; reason != "" {
			fmt.Fprintf(w, "- %s: %s\n", c.ID, reason)
		}
	}
}

const preface = `# Results

` + "`go run . -all -write .` writes this file and [results.html](results.html). " +
	"[README.md](README.md) says what the words mean.\n" +
	"Measured on %s with %s on %s/%s. Waits are random, so sends differ a little between runs.\n\n"

func installed(results []Result) []Result {
	return slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return r.Skipped != nil })
}
