package report_test

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
)

func TestShow(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{"a", "a"},
		{1234567, "1,234,567"},
		{1.005, "1"},
		{999.6, "1,000"},
		{-1885.4, "-1,885"},
		{math.NaN(), "-"},
		{report.Share(0.0109), "1.09%"},
		{report.Share(0.999), "99.90%"},
		{report.Share(1.0), "100%"},
		{12500 * time.Microsecond, "12ms"},
		{999600 * time.Microsecond, "1.00s"},
		{150 * time.Second, "2m30s"},
		{report.Never, "never"},
		{report.Unknown, "-"},
	} {
		assert.Equal(t, c.want, report.Show(c.v))
	}
}

var example = report.Report{
	Title: "A title", About: strings.Repeat("words ", 30), Command: "retrylab <x>",
	Tables: []report.Table{{
		Title:   "A table",
		Columns: []string{"name", "count", "wait", "share"},
		Rows: [][]any{
			{"<a>", 12345, 1500 * time.Millisecond, report.Share(0.25)},
			{strings.Repeat("long ", 30), 1, report.Never, report.Share(math.NaN())},
		},
	}},
	Figures: []chart.Figure{&chart.Chart{Title: "</style>", Series: []chart.Series{{Name: "a", X: []float64{1, 2}, Y: []float64{3, math.NaN()}}}}},
	Notes:   []string{strings.Repeat("notes ", 30)},
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, report.WriteText(&b, example))
	assert.Contains(t, b.String(), "\n<a>", "names are on the left")
	assert.Contains(t, b.String(), "  12,345  1.50s  25.0%\n", "numbers are on the right")
	assert.Contains(t, b.String(), "…       1  never      -\n")
	for line := range strings.SplitSeq(b.String(), "\n") {
		assert.LessOrEqual(t, len([]rune(line)), 80)
	}
}

// The page has no script, and no text in a report ends an element of it.
func TestHTML(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, report.WriteHTML(&b, example))
	assert.NotContains(t, b.String(), "<script")
	assert.Equal(t, 1, strings.Count(b.String(), "</style>"))
	assert.NotContains(t, b.String(), "<a>")
	assert.Contains(t, b.String(), "<td>&lt;a&gt;</td>")
	assert.Contains(t, b.String(), "<figure><svg ")
}
