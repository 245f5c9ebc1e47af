package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
)

const checkUsage = `usage: retrylab check FILE...

check prints the policies in files of package policyfile: the value of each
field, where it is from, and warnings. - is standard input. A field that this
version does not know is an error, even if programs ignore it. The exit status
is 0 if all files are valid, 1 if one is not, and 2 for wrong arguments.
`

func (l lab) check(files []string) int {
	if len(files) == 1 && slices.Contains([]string{"-h", "-help", "--help"}, files[0]) {
		fmt.Fprint(l.stdout, checkUsage)
		return 0
	}
	isFlag := func(name string) bool { return name != "-" && strings.HasPrefix(name, "-") }
	if i := slices.IndexFunc(files, isFlag); len(files) == 0 || i >= 0 {
		fmt.Fprint(l.stderr, checkUsage)
		return 2
	}
	status := 0
	for _, name := range files {
		file, err := readPolicies(name)
		if err == nil {
			_, err = io.WriteString(l.stdout, l.policiesText(name, file))
		}
		if err != nil {
			fmt.Fprintln(l.stderr, err)
			status = 1
		}
	}
	return status
}

func (l lab) policiesText(name string, file *policyfile.File) string {
	w := new(strings.Builder)
	policies := file.Policies()
	for _, key := range append([]string{""}, slices.Sorted(maps.Keys(policies))...) {
		path, p := fmt.Sprintf("policies[%q]", key), policies[key]
		if key == "" {
			path, p = "default", file.Policy()
		}
		fmt.Fprintf(w, "%s: %s\n", name, path)
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, field := range file.Fields(key) {
			from := cmp.Or(field.From, "-")
			if from == path {
				from = "own"
			}
			fmt.Fprintf(table, "  %s\t%s\t%s\n", field.Name, from, field.Value)
		}
		table.Flush()
		for _, warning := range l.checkWarnings(p) {
			fmt.Fprintf(w, "  warning: %s\n", warning)
		}
		fmt.Fprintln(w)
	}
	for _, warning := range file.Warnings() {
		fmt.Fprintf(w, "warning: %s:%v\n", name, warning)
	}
	return w.String()
}

// checkWarnings returns likely mistakes in a policy that depend on its waits,
// which are drawn, or on the deadline. File.Warnings has all others.
func (l lab) checkWarnings(p httpretry.Policy) []string {
	var all []string
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	var f policyFlags
	if err := f.use(p); err != nil {
		warn("%v", err)
		return all
	}
	f.setDefaults()
	backoff, err := parseStrategy("backoff", f.backoff, rand.New(rand.NewPCG(1, 40)).Float64, nil)
	switch {
	case f.attempts == 1:
		warn("with MaxAttempts 1 there are no retries.")
	case f.attempts > 100: // drawing them would take long
		warn("the waits of more than 100 attempts are not checked.")
	case err != nil:
		warn("the waits are not checked: %v", err)
	case checkEndless(f.attempts, backoff) != nil:
		warn("without MaxAttempts, the waits of %s are so short that a host cannot recover: use longer waits",
			backoff.Name)
	default:
		var e ends
		// A request without a limit may have millions of attempts.
		if f.attempts > 0 {
			f.processes = 1
			if e, err = l.ends(&f, 1); err != nil {
				warn("%v", err)
			}
		}
		f.warnAboutRequests(warn, f.drawWaits(backoff), e)
	}
	return all
}
