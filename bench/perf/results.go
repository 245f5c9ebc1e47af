package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

// results are those of one run. Printed, they are the end of the README.
type results struct {
	conditions string // a sentence without its first word, "Measured"
	versions   []string
	tables     []table
}

const resultsTitle = "## Results\n\n"

// conditions returns those of a run that begins now.
func conditions(seed uint64, machine string) string {
	return strings.TrimSpace(fmt.Sprintf("on %s with %s on %s/%s, with seed %d, on %d processors %s",
		time.Now().UTC().Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH, seed, runtime.NumCPU(), machine))
}

// wrap breaks text into lines of the width that Markdown has here.
func wrap(text string) string {
	const width = 120
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
		case column+1+n > width:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// versions returns the libraries, each with its version.
func versions() []string {
	var all []string
	for _, p := range peers.All() {
		all = append(all, fmt.Sprintf("%s: %s %s", p.Name, cmp.Or(p.Module, "net/http"), p.Version()))
	}
	return all
}

// head returns the text before the tables.
func (r *results) head() string {
	return resultsTitle + wrap("Measured "+r.conditions+
		". Only ratios and allocations can be compared with those of other machines.") + "\n\n" +
		"- " + strings.Join(r.versions, "\n- ") + "\n"
}

// update puts the results into a file.
func (r *results) update(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	changed, err := r.replaceIn(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(name, []byte(changed), 0o644)
}

// replaceIn returns text with these results. If r has all tables, they replace
// all that follows the title of the results. Otherwise, they replace only the
// tables with the same titles, and say when they were measured.
func (r *results) replaceIn(text string) (string, error) {
	before, old, found := strings.Cut(text, resultsTitle)
	if !found {
		return "", fmt.Errorf("has no line %q", strings.TrimSpace(resultsTitle))
	}
	if len(r.tables) == len(entries()) {
		return before + r.head() + joinTables(r.tables, ""), nil
	}
	head, _, _ := strings.Cut(old, tableTitle)
	head = strings.TrimRight(head, "\n") + "\n"
	var changed strings.Builder
	changed.WriteString(before + resultsTitle + head)
	for _, e := range entries() {
		changed.WriteString(cmp.Or(joinTables(withTitle(r.tables, e.title), wrap("Measured by itself "+r.conditions+".")), tableIn(old, e.title)))
	}
	return changed.String(), nil
}

func withTitle(tables []table, title string) []table {
	for i, t := range tables {
		if t.title == title {
			return tables[i : i+1]
		}
	}
	return nil
}

// joinTables returns tables as they are printed, each with a note.
func joinTables(tables []table, note string) string {
	var b strings.Builder
	for _, t := range tables {
		t.note = note
		t.print(&b)
	}
	return b.String()
}

// tableIn returns the table with a title as it is in text, or "".
func tableIn(text, title string) string {
	_, after, found := strings.Cut("\n"+text, tableTitle+title+"\n")
	if !found {
		return ""
	}
	body, _, _ := strings.Cut(after, tableTitle)
	return tableTitle + title + "\n" + strings.TrimRight(body, "\n") + "\n"
}
