package chart_test

import (
	"encoding/xml"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
)

func line(name string, xy ...float64) chart.Series {
	s := chart.Series{Name: name}
	for i := 0; i < len(xy); i += 2 {
		s.X, s.Y = append(s.X, xy[i]), append(s.Y, xy[i+1])
	}
	return s
}

var ticks = regexp.MustCompile(`class="tick"[^>]*text-anchor="(\w+)">([^<]*)<`)

// labels returns the ticks of the axes of a drawing.
func labels(svg string) (x, y []string) {
	for _, m := range ticks.FindAllStringSubmatch(svg, -1) {
		if m[1] == "end" {
			y = append(y, m[2])
			continue
		}
		x = append(x, m[2])
	}
	return x, y
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		name string
		c    chart.Chart
		x, y string
	}{
		{"from zero", chart.Chart{Series: []chart.Series{line("a", 0, 20, 80, 97)}}, "0 10 20 30 40 50 60 70 80", "0 20 40 60 80 100"},
		{"whole numbers", chart.Chart{Series: []chart.Series{line("a", 1, 1, 4, 3)}}, "1 2 3 4", "0 0.5 1 1.5 2 2.5 3"},
		{"fractions", chart.Chart{Series: []chart.Series{line("a", 0.5, 1, 1.5, 3)}}, "0.6 0.8 1 1.2 1.4", "0 0.5 1 1.5 2 2.5 3"},
		{"logarithms", chart.Chart{X: chart.Axis{Log: true}, Y: chart.Axis{Log: true}, Series: []chart.Series{line("a", 0.3, 7, 15, 0)}},
			"0.2 0.5 1 2 5 10 20", "5 10"},
		{"a range", chart.Chart{Y: chart.Axis{Min: 0.1, Max: 100, Log: true}, Series: []chart.Series{line("a", 1, 7, 2, 0)}},
			"1 2", "0.1 0.2 0.5 1 2 5 10 20 50 100"},
		{"one point", chart.Chart{Series: []chart.Series{line("a", 3, 0)}}, "3 4", "0 0.2 0.4 0.6 0.8 1"},
		{"no points", chart.Chart{Series: []chart.Series{line("a")}}, "0 1", "0 0.2 0.4 0.6 0.8 1"},
		{"thousands", chart.Chart{Series: []chart.Series{line("a", 0, 0, 1, 2.5e6)}}, "0 1", "0 500k 1M 1.5M 2M 2.5M"},
	} {
		svg, plot := chart.Draw(c.c, chart.Wide, "")
		x, y := labels(svg)
		assert.Equal(t, c.x, strings.Join(x, " "), c.name)
		assert.Equal(t, c.y, strings.Join(y, " "), c.name)
		assert.Less(t, plot.XMin, plot.XMax, c.name)
		assert.NotContains(t, svg, "NaN", c.name)
		assert.NotContains(t, svg, "Inf", c.name)
	}
}

// A drawing is XML, whatever the names are, and its numbers are finite.
func TestSVG(t *testing.T) {
	svg := chart.SVG(chart.Chart{
		Title: `<script>"a" & b`, X: chart.Axis{Label: "x < 1"}, Y: chart.Axis{Label: "y"},
		Series: []chart.Series{line("<a>", 0, 1, 1, math.NaN(), 2, 3)},
		Bands:  []chart.Band{{"out & age", 0.5, 1.5}, {"elsewhere", 7, 9}},
	})
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := d.Token()
		if token == nil {
			require.ErrorContains(t, err, "EOF")
			break
		}
		if e, ok := token.(xml.StartElement); ok {
			assert.NotEqual(t, "script", e.Name.Local)
		}
	}
	assert.NotContains(t, svg, "NaN")
	assert.NotContains(t, svg, "elsewhere", "a band outside of the range is not drawn")
	assert.Contains(t, svg, "prefers-color-scheme: dark")
	assert.Equal(t, 1, strings.Count(svg, "<style>"))
	assert.Contains(t, svg, ".chart .page { fill: #fff; fill: var(--page); }", "a viewer without variables has colors, too")
	assert.Regexp(t, `\.s7 \{ stroke: #4d535c; stroke: var\(--s7\); \}`, svg)
}

// A legend that does not fit on one line has several.
func TestLegend(t *testing.T) {
	c := chart.Chart{Title: "t"}
	for i := range 7 {
		c.Series = append(c.Series, line("a name of some length", 0, 0, 1, float64(i)))
	}
	_, wide := chart.Draw(c, chart.Wide, "")
	_, narrow := chart.Draw(c, chart.Narrow, "")
	assert.Greater(t, narrow.Top, wide.Top)
	// So does a name that does not fit on one line.
	for i := range c.Series {
		c.Series[i].Y[1] = 1
	}
	svg, _ := chart.Draw(c, chart.Narrow, "")
	legend := regexp.MustCompile(`class="legend"[^>]*>([^<]*)<`).FindAllStringSubmatch(svg, -1)
	assert.Len(t, legend, 4)
	for _, m := range legend {
		assert.LessOrEqual(t, len(m[1]), 50)
	}
	assert.Equal(t, 2, strings.Count(svg, `class="line s0"`), "the line, and one in the legend")
}

var paths = regexp.MustCompile(`<path class="line (s\d)" d="([^"]*)"/>`)

// drawn returns the lines of a drawing by their style, without its legend.
func drawn(svg string) map[string]string {
	all := map[string]string{}
	for _, m := range paths.FindAllStringSubmatch(svg[strings.Index(svg, `class="grid"`):], -1) {
		all[m[1]] += m[2]
	}
	return all
}

// Equal lines are drawn once, so that the dashes of one do not mix with the
// color of another. The other lines keep their styles.
func TestEqualLinesAreDrawnOnce(t *testing.T) {
	series := []chart.Series{line("a", 0, 1, 1, 2), line("b", 0, 1, 1, 2), line("c", 0, 1, 1, 3)}
	svg, _ := chart.Draw(chart.Chart{Series: series}, chart.Wide, "")
	assert.Contains(t, svg, ">a = b<")
	assert.Contains(t, svg, ">c<")
	assert.Equal(t, 4, strings.Count(svg, `class="line`), "two lines, and two in the legend")
	assert.ElementsMatch(t, []string{"s0", "s2"}, slices.Collect(maps.Keys(drawn(svg))))
	assert.Equal(t, "a", series[0].Name)
}

// A dashed line lies on a solid one.
func TestDashedOverSolid(t *testing.T) {
	svg, _ := chart.Draw(chart.Chart{Series: []chart.Series{line("a", 0, 1, 1, 2), line("b", 0, 1, 1, 2.1), line("c", 0, 1, 1, 3)}}, chart.Wide, "")
	svg = svg[strings.Index(svg, `class="grid"`):]
	assert.Less(t, strings.Index(svg, `line s2`), strings.Index(svg, `line s1`))
}

// A line at the bottom does not hide the axis.
func TestAxisIsVisible(t *testing.T) {
	svg, plot := chart.Draw(chart.Chart{Series: []chart.Series{line("a", 0, 0, 1, 0)}}, chart.Wide, "")
	bottom := plot.Top + plot.Height
	assert.Equal(t, fmt.Sprintf("M%g %gL%g %g", plot.Left, bottom, plot.Left+plot.Width, bottom), drawn(svg)["s0"])
	axis := regexp.MustCompile(`class="axis" x1="[\d.]+" x2="[\d.]+" y1="([\d.]+)"`).FindAllStringSubmatch(svg, -1)
	require.NotEmpty(t, axis)
	for _, m := range axis {
		y, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		// Half of a line of two pixels, and half of one of one.
		assert.Greater(t, y, bottom+1.5)
	}
}

// A logarithmic axis has no place for 0, so there is no line between zeros.
func TestZerosOnALogarithmicAxis(t *testing.T) {
	c := chart.Chart{Y: chart.Axis{Log: true, Min: 1, Max: 100}, Series: []chart.Series{line("a", 0, 0, 1, 0, 2, 100, 3, 0, 4, 0, 5, 1, 6, 1)}}
	svg, _ := chart.Draw(c, chart.Wide, "")
	assert.Equal(t, "MMLLMLL", regexp.MustCompile(`[^ML]`).ReplaceAllString(drawn(svg)["s0"], ""), "it begins anew at 1 and at 4")
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1", 0.5: "0.5", 12.345: "12.3", 123.4: "123", 9999: "9999", 12345: "12.3k", 2e6: "2M", -0.25: "-0.25", 0.00123: "0.00123",
	} {
		assert.Equal(t, want, chart.Number(v))
	}
}
