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

// Never is a duration that does not end within the simulation.
const Never = time.Duration(-1)

// Unknown is a duration of which there is none.
const Unknown = time.Duration(-2)

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
