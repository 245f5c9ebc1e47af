package chart_test

import (
	"encoding/xml"
	"io"
	"math"
	"regexp"
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

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		name string
		c    chart.Chart
		x, y string
	}{
		{"from zero", chart.Chart{Series: []chart.Series{line("a", 0, 20, 80, 97)}}, "0 10 20 30 40 50 60 70 80", "0 20 40 60 80 100"},
		{"whole numbers", chart.Chart{Series: []chart.Series{line("a", 1, 1, 4, 3)}}, "1 2 3 4", "0 0.5 1 1.5 2 2.5 3"},
		{"logarithms", chart.Chart{X: chart.Axis{Log: true}, Y: chart.Axis{Log: true}, Series: []chart.Series{line("a", 0.3, 7, 15, 0)}},
			"0.2 0.5 1 2 5 10 20", "5 10"},
		{"one point", chart.Chart{Series: []chart.Series{line("a", 3, 0)}}, "3 4", "0 0.2 0.4 0.6 0.8 1"},
		{"thousands", chart.Chart{Series: []chart.Series{line("a", 0, 0, 1, 2.5e6)}}, "0 1", "0 500k 1M 1.5M 2M 2.5M"},
	} {
		svg := c.c.SVG()
		var x, y []string
		for _, m := range ticks.FindAllStringSubmatch(svg, -1) {
			if m[1] == "end" {
				y = append(y, m[2])
				continue
			}
			x = append(x, m[2])
		}
		assert.Equal(t, c.x, strings.Join(x, " "), c.name)
		assert.Equal(t, c.y, strings.Join(y, " "), c.name)
		assert.NotContains(t, svg, "NaN", c.name)
		assert.NotContains(t, svg, "Inf", c.name)
	}
}

// A drawing is XML, whatever the names are, and its numbers are finite.
func TestSVG(t *testing.T) {
	for _, f := range []chart.Figure{
		&chart.Chart{
			Title: `<script>"a" & b`, X: chart.Axis{Label: "x < 1"}, Y: chart.Axis{Label: "y"},
			Series: []chart.Series{line("<a>", 0, 1, 1, math.NaN(), 2, 3)},
			Bands:  []chart.Band{{"out & age", 0.5, 1.5}, {"elsewhere", 7, 9}},
		},
		&chart.Heat{
			Title: "<script>", X: "&", Y: "<", Cols: []string{"<"}, Rows: []string{"&", ">"},
			Panels: []chart.Panel{{Name: "<a>", Cells: [][]float64{{1}, {math.NaN()}}}},
			Most:   1,
		},
	} {
		svg := chart.File(f)
		d := xml.NewDecoder(strings.NewReader(svg))
		for {
			token, err := d.Token()
			if token == nil {
				require.ErrorIs(t, err, io.EOF)
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
	}
}

// A cell has its value, and a color of its own if there is none.
func TestHeat(t *testing.T) {
	h := chart.Heat{Cols: []string{"50 %", "60 %"}, Rows: []string{"20 %"}, Most: 40, Panels: []chart.Panel{
		{Name: "a", Cells: [][]float64{{20, math.NaN()}}}, {Name: "b", Cells: [][]float64{{0, 40}}},
	}}
	svg := h.SVG()
	assert.Equal(t, 1, strings.Count(svg, `class="never"`))
	assert.Equal(t, 1, strings.Count(svg, ">never<"))
	for _, want := range []string{`fill-opacity="0.06"`, `fill-opacity="0.36"`, `fill-opacity="0.66"`, ">20<", ">40<", ">0<", ">a<", ">b<"} {
		assert.Equal(t, 1, strings.Count(svg, want), want)
	}
}
