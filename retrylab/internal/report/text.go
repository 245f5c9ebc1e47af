package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

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
			cell = cut(cell, widths[i])
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.Numeric(i) {
				cell, pad = pad, cell
			}
			out.WriteString(cell + pad)
			out.WriteString(strings.Repeat(" ", gap))
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
