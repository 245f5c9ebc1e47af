// Package report writes results as text and HTML.
package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
)

// A Report is the result of one command.
type Report struct {
	Title   string
	Command string // that makes the same report
	About   string // the simulation
	Tables  []Table
	Figures []chart.Figure
	Notes   []string // conclusions
}

// A Table has a string, an int, a float64, a Share or a time.Duration in each
// cell. NaN and Unknown are not known.
type Table struct {
	Title   string
	Note    string // on the columns
	Columns []string
	Rows    [][]any
}

// A Share is shown in percent.
type Share float64

// Numeric reports whether the values of a column are numbers.
func (t Table) Numeric(column int) bool {
	if len(t.Rows) == 0 {
		return false
	}
	_, isText := t.Rows[0][column].(string)
	return !isText
}

const (
	Never   = time.Duration(-1) // does not end within the simulation
	Unknown = time.Duration(-2) // there is none
)

// Show formats a value for people.
func Show(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case int:
		return thousands(v)
	case time.Duration:
		return Duration(v)
	case Share:
		if v == v {
			return percent(float64(v))
		}
	case float64:
		switch {
		case math.Abs(v) >= 999.5:
			return thousands(int(math.Round(v)))
		case v == v:
			return chart.Number(v)
		}
	default:
		panic(fmt.Sprintf("report: a value of type %T", v))
	}
	return "-"
}

// percent shows more digits next to 0 and 100 %, where they matter.
func percent(v float64) string {
	digits := 1
	switch {
	case v == 0 || v == 1 || v >= 10:
		digits = 0
	case v < 0.1 || v > 0.99 && v < 1:
		digits = 2
	}
	return strconv.FormatFloat(100*v, 'f', digits, 64) + "%"
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Duration formats a duration with three digits.
func Duration(d time.Duration) string {
	switch {
	case d == Never:
		return "never"
	case d == Unknown:
		return "-"
	case d == 0:
		return "0"
	case d < time.Millisecond:
		return fmt.Sprintf("%.3gms", d.Seconds()*1000)
	// These limits are those of rounding: 999.6ms is 1.00s.
	case d < 999500*time.Microsecond:
		return fmt.Sprintf("%.0fms", d.Seconds()*1000)
	case d < 9995*time.Millisecond:
		return fmt.Sprintf("%.2fs", d.Seconds())
	case d < 99950*time.Millisecond:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// Width is that of a terminal.
const Width = 80

// WriteText writes the tables and notes of r for a terminal.
func WriteText(w io.Writer, r Report) error {
	var b strings.Builder
	b.WriteString(r.Title + "\n\n")
	b.WriteString(Fill(r.About, "") + "\n")
	for _, t := range r.Tables {
		b.WriteString("\n" + Fill(strings.TrimSpace(t.Title+". "+t.Note), "") + "\n\n")
		writeTable(&b, t)
	}
	if len(r.Notes) > 0 {
		b.WriteString("\n")
	}
	for _, n := range r.Notes {
		b.WriteString("- " + Fill(n, "  ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeTable(b *strings.Builder, t Table) {
	cells := [][]string{t.Columns}
	for _, row := range t.Rows {
		line := make([]string, len(row))
		for i, v := range row {
			line[i] = Show(v)
		}
		cells = append(cells, line)
	}
	widths := make([]int, len(t.Columns))
	for _, line := range cells {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	shrink(t, widths)
	for _, line := range cells {
		var out strings.Builder
		for i, cell := range line {
			width := widths[i]
			if !t.Numeric(i) {
				width = -width // on the left
			}
			fmt.Fprintf(&out, "%*s%*s", width, cut(cell, widths[i]), gap, "")
		}
		fmt.Fprintln(b, strings.TrimRight(out.String(), " "))
	}
}

const gap = 2

func shrink(t Table, widths []int) {
	total, widest := -gap, -1
	for i, w := range widths {
		total += w + gap
		if !t.Numeric(i) && (widest < 0 || w > widths[widest]) {
			widest = i
		}
	}
	if widest >= 0 && total > Width {
		widths[widest] = max(widths[widest]-(total-Width), 8)
	}
}

func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// Fill wraps text at the width of a terminal. All lines but the first begin
// with indent.
func Fill(s, indent string) string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		switch {
		case line == "":
			line = word
		case len(indent)+utf8.RuneCountInString(line+" "+word) > Width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return strings.Join(append(lines, line), "\n"+indent)
}

//go:embed page.html
var pageHTML string

// WriteHTML writes r as a page that needs nothing else, and has no script.
func WriteHTML(w io.Writer, r Report) error {
	page, err := template.New("page").Funcs(template.FuncMap{
		"show":  Show,
		"svg":   func(f chart.Figure) template.HTML { return template.HTML(f.SVG()) },
		"style": func() template.CSS { return template.CSS(chart.Style) },
	}).Parse(pageHTML)
	if err != nil {
		return err
	}
	return page.Execute(w, r)
}
