package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// An equivalent is an entry of the list of changes that make no difference:
//
//	budget.go (*HostBudget).Withdraw
//	- if n > 0 {
//	+ if n >= 0 {
//	Why nobody can see it, in one line or more.
//
// An entry ends at an empty line. A removal has no line with +. Lines are
// compared without their indentation, and wherever they are in the function. So
// an entry outlives changes of other lines.
type equivalent struct {
	line           int
	file, function string
	removed, added []string
	reason         string
	matched        bool
}

// readEquivalents reads the list. Lines that begin with # are comments.
func readEquivalents(file string) ([]*equivalent, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []*equivalent
	var e *equivalent
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#"):
		case line == "":
			e = nil
		case e == nil:
			e = &equivalent{line: i + 1}
			e.file, e.function, _ = strings.Cut(line, " ")
			all = append(all, e)
		case strings.HasPrefix(line, "- "):
			e.removed = append(e.removed, strings.TrimSpace(line[2:]))
		case strings.HasPrefix(line, "+ "):
			e.added = append(e.added, strings.TrimSpace(line[2:]))
		default:
			e.reason = strings.TrimSpace(e.reason + " " + line)
		}
	}
	for _, e := range all {
		if len(e.removed) == 0 || e.reason == "" {
			return nil, fmt.Errorf("%s:%d: want a line that begins with - and a reason", file, e.line)
		}
	}
	return all, nil
}

// find returns the entry for a place, or nil.
func find(all []*equivalent, p *place) *equivalent {
	removed, added := p.diff()
	for _, e := range all {
		if e.file == p.File && e.function == p.Func && slices.Equal(e.removed, removed) && slices.Equal(e.added, added) {
			return e
		}
	}
	return nil
}
