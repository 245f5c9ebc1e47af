package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// table is a table of Markdown.
type table struct {
	title    string
	head     []string
	rows     [][]string
	failures []string // the problems of httpretry, which make the program fail
}

// add adds a row that ends with the problems of a client.
func (t *table) add(name string, cells, problems []string) {
	row := append([]string{name}, cells...)
	t.rows = append(t.rows, append(row, cmp.Or(strings.Join(problems, "; "), "ok")))
	if strings.HasPrefix(name, ours) {
		t.failures = append(t.failures, prefix(t.title+": "+name+": ", problems)...)
	}
}

func (t table) print(w io.Writer) {
	fmt.Fprintf(w, "\n### %s\n\n", t.title)
	line := func(cells []string) { fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.head)
	line(strings.Split(strings.Repeat("---,", len(t.head)-1)+"---", ","))
	for _, row := range t.rows {
		line(row)
	}
}

const none = "–" // a cell without a value

func median(c *contestant, cost func(sample) float64) float64 {
	return summarize(pairwise(c.samples, c.samples, func(a, _ sample) float64 { return cost(a) })).median
}

// allocations returns the cell for the allocations of a beyond those of the
// reference.
func allocations(a, reference *contestant) string {
	count := median(a, allocsOf) - median(reference, allocsOf)
	size := median(a, bytesOf) - median(reference, bytesOf)
	return fmt.Sprintf("%s, %s", formatCount(int(math.Round(count))), formatSize(size))
}

// formatTimes formats a time and its quartiles.
func formatTimes(s spread) string {
	if math.Abs(s.median) >= 10_000 {
		return fmt.Sprintf("%.1f (%.1f to %.1f) µs", s.median/1000, s.low/1000, s.high/1000)
	}
	round := func(ns float64) string { return formatCount(int(math.Round(ns))) }
	return fmt.Sprintf("%s (%s to %s) ns", round(s.median), round(s.low), round(s.high))
}

// formatMillis formats a time, in nanoseconds, and its quartiles.
func formatMillis(s spread) string {
	return fmt.Sprintf("%.1f (%.1f to %.1f) ms", s.median/1e6, s.low/1e6, s.high/1e6)
}

// formatSize formats a size.
func formatSize(n float64) string {
	if math.Abs(n) >= 10_000 {
		return fmt.Sprintf("%.1f KiB", n/1024)
	}
	return formatCount(int(math.Round(n))) + " B"
}

// formatRatio formats a ratio and its quartiles.
func formatRatio(s spread) string {
	format := "%.2f× (%.2f to %.2f)"
	if s.median >= 10 {
		format = "%.0f× (%.0f to %.0f)"
	}
	return fmt.Sprintf(format, s.median, s.low, s.high)
}

// formatCount separates groups of three digits.
func formatCount(n int) string {
	digits := strconv.Itoa(max(n, -n))
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if n < 0 {
		return "-" + digits
	}
	return digits
}
