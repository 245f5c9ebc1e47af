// Command behavior prints a table of the behavior of httpretry and its
// alternatives when servers fail: other libraries, a naive loop and a bare
// http.Client.
//
//	go run ./behavior
//
// Each cell is the result of a program in this directory that runs a client
// against a server on the loopback interface, in real time. The rows are in
// rows.go. The command fails if a cell of httpretry is wrong.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

func main() {
	pattern := flag.String("run", "", "run only the rows whose name matches this `regexp`")
	quick := flag.Bool("quick", false, "leave out the rows that take long")
	flag.Parse()
	if err := behavior(os.Stdout, os.Stderr, *pattern, *quick); err != nil {
		fmt.Fprintln(os.Stderr, "behavior:", err)
		os.Exit(1)
	}
}

// behavior runs the rows that match and writes the table to out, and which row
// it runs to progress.
func behavior(out, progress io.Writer, pattern string, quick bool) error {
	match, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	selected := slices.DeleteFunc(rows(), func(r row) bool {
		return !match.MatchString(r.name) || quick && r.slow
	})
	if len(selected) == 0 {
		return fmt.Errorf("-run %q: no row matches", pattern)
	}
	all := peers.All()
	lines, err := runRows(selected, all, progress)
	if err != nil {
		return err
	}
	writeTable(out, all, selected, lines)
	return wrongCells(selected, lines)
}

// runRows runs the rows that mostly wait, four at the same time. Then it runs
// the others, one after another.
func runRows(selected []row, all []peers.Peer, progress io.Writer) ([][]cell, error) {
	lines, errs := make([][]cell, len(selected)), make([]error, len(selected))
	var mu sync.Mutex
	run := func(i int) {
		start := time.Now()
		lines[i], errs[i] = runRow(selected[i], all)
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(progress, "%5.1f s  %s\n", time.Since(start).Seconds(), selected[i].name)
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i, r := range selected {
		if r.busy || r.serial {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			run(i)
			<-slots
		})
	}
	wg.Wait()
	for i, r := range selected {
		if r.busy || r.serial {
			run(i)
		}
	}
	return lines, errors.Join(errs...)
}

// runRow runs a row for all peers at the same time, unless the row is serial.
func runRow(r row, all []peers.Peer) ([]cell, error) {
	cells, errs := make([]cell, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, peer := range all {
		wg.Go(func() { cells[i], errs[i] = runCell(r, peer) })
		if r.serial {
			wg.Wait()
		}
	}
	wg.Wait()
	return cells, errors.Join(errs...)
}

// writeTable writes a Markdown table and the notes below it.
func writeTable(w io.Writer, all []peers.Peer, selected []row, lines [][]cell) {
	fmt.Fprint(w, "| behavior | right |")
	for _, peer := range all {
		fmt.Fprintf(w, " %s %s |", peer.Name, peer.Version())
	}
	fmt.Fprintf(w, "\n%s|\n", strings.Repeat("|---", 2+len(all)))
	var n notes
	for i, r := range selected {
		fmt.Fprintf(w, "| %s | %s |", r.name, r.right)
		for j, c := range lines[i] {
			fmt.Fprintf(w, " %s%s |", c, n.mark(r, all[j], c))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w, "\n✗ marks a cell that is not right. An option changes each cell that has a number:")
	for i, note := range n {
		fmt.Fprintf(w, "\n%d. %s", i+1, note)
	}
	fmt.Fprintln(w)
}

// notes are the notes below a table, in the order of their first marks.
type notes []string

// mark returns the mark of a cell whose peer has an option, and adds its note.
// An option matters where the default is not right.
func (n *notes) mark(r row, peer peers.Peer, c cell) string {
	o, ok := r.options[peer.Name]
	if !ok || c.verdict == right {
		return ""
	}
	note := peer.Name + ": " + o.text
	if !slices.Contains(*n, note) {
		*n = append(*n, note)
	}
	return fmt.Sprintf(" (%d)", 1+slices.Index(*n, note))
}

// wrongCells returns an error that lists the rows in which httpretry, the first
// peer, is wrong.
func wrongCells(selected []row, lines [][]cell) error {
	var errs []error
	for i, r := range selected {
		if c := lines[i][0]; c.verdict == wrong {
			errs = append(errs, fmt.Errorf("httpretry is wrong: %s: %s; want %s", r.name, c.text, r.right))
		}
	}
	return errors.Join(errs...)
}
