// Package report writes results as text, JSON and HTML.
package report

import (
	"fmt"
	"math"
	"strconv"
	"time"

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

// A Table has a value of its column's kind in each cell.
type Table struct {
	Title   string
	Note    string // on the columns
	Columns []Column
	Rows    [][]any
}

// A Column is a column of a Table.
type Column struct {
	Name string
	Kind Kind
}

// A Kind is the type and the format of the values in a column.
type Kind int

// Values are of these kinds. NaN and Unknown are not known.
const (
	Text    Kind = iota // string
	Count               // int
	Number              // float64
	Share               // float64, shown in percent
	Seconds             // time.Duration
)

// Never is a duration that does not end within the simulation.
const Never = time.Duration(-1)

// Unknown is a duration of which there is none.
const Unknown = time.Duration(-2)

// Show formats a value for people.
func (k Kind) Show(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case int:
		return thousands(v)
	case time.Duration:
		return Duration(v)
	case float64:
		switch {
		case v != v:
			return "-"
		case k == Share:
			return percent(v)
		}
		if math.Abs(v) >= 999.5 {
			return thousands(int(math.Round(v))) // as a Count
		}
		return chart.Number(v)
	}
	panic(fmt.Sprintf("report: a value of type %T", v))
}

// percent shows more digits next to 0 and 100 %, where they matter.
func percent(v float64) string {
	digits := 1
	switch {
	case v == 0 || v == 1:
		digits = 0
	case v < 0.1 || v > 0.99 && v < 1:
		digits = 2
	case v >= 10:
		digits = 0
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
