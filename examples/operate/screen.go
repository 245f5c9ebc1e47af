package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/seed421102f4/httpretry/policyfile"
)

// screen prints the output of the program.
type screen struct {
	mu     sync.Mutex
	out    io.Writer
	shown  int  // calls of reload
	inRows bool // the heading is above
}

const heading = `
          %-36s%s
TIME      SUCCESS ATTEMPTS SLOWEST REFUSED    SUCCESS ATTEMPTS SLOWEST REFUSED
`

func (s *screen) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inRows = false
	fmt.Fprintf(s.out, format, args...)
}

// begin prints where the policies and the page are.
func (s *screen) begin(file, addr string, canReload bool) {
	how := fmt.Sprintf("followed every %v", policyfile.DefaultInterval)
	if canReload {
		how += fmt.Sprintf("; at once: kill -HUP %d", os.Getpid())
	}
	s.print("Policies: %s, %s\nPage:     http://%s/debug/httpretry\n", file, how, addr)
	s.print("%s", inEffect(file))
}

// line prints the counts of the last second.
func (s *screen) line(ofTuned, ofOther counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.inRows {
		fmt.Fprintf(s.out, heading, tuned, other)
		s.inRows = true
	}
	fmt.Fprintf(s.out, "%s  %v    %v\n", clock(), ofTuned, ofOther)
}

// reload prints the result of a change of the file.
func (s *screen) reload(file string, err error) {
	s.mu.Lock()
	s.shown++
	s.mu.Unlock()
	if err != nil {
		s.print("\n%s  All policies remain as they are:\n%v\n", clock(), err)
		return
	}
	s.print("\n%s  %s is in effect.\n%s", clock(), file, inEffect(file))
}

// reloads returns how many changes were printed.
func (s *screen) reloads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown
}

// unchanged prints that a signal had no effect. The error is that of the last
// change.
func (s *screen) unchanged(file string, err error) {
	if err != nil {
		s.print("\n%s  SIGHUP: %s still has its mistakes:\n%v\n", clock(), file, err)
		return
	}
	s.print("\n%s  SIGHUP: %s has not changed.\n", clock(), file)
}

func clock() string { return time.Now().Format(time.TimeOnly) }

// inEffect returns the fields that the file sets for tuned, and where. The file
// may have changed since the Reloader read it. Then a report of that follows.
func inEffect(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	policies, err := policyfile.Parse(data)
	if err != nil {
		return ""
	}
	fields, key := policies.Fields(tuned), tuned
	if fields == nil {
		// Another key may match, such as "*.test".
		fields, key = policies.Fields(""), fmt.Sprintf("No key is %q. default", tuned)
	}
	return table(key, fields)
}

// table returns the fields that are set, and where.
func table(key string, fields []policyfile.Field) string {
	var text strings.Builder
	columns := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, f := range fields {
		if f.From != "" {
			fmt.Fprintf(columns, "  %s\t%s\tfrom %s\n", f.Name, f.Value, f.From)
		}
	}
	_ = columns.Flush() // a Builder returns no errors
	return fmt.Sprintf("%s:\n%s", key, text.String())
}
