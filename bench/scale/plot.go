package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strings"
	"text/template"
)

//go:embed scale.svg.tmpl
var svgText string

// The area of the plot, in the units of the drawing. Coordinates grow to the
// right and down.
const (
	plotLeft, plotRight = 76.0, 676.0
	plotTop, plotBottom = 88.0, 340.0
)

// A figure has the data that the template draws.
type figure struct {
	XTicks, YTicks []tick
	Series         []series
	Table          float64 // where the table of hosts is full, or 0
	Description    string
}

// A tick is a line of the grid with its label.
type tick struct {
	At    float64
	Label string
}

// A series is one curve, with its entry in the legend.
type series struct {
	Class   string // "a", "b", "c"
	Name    string
	LegendX float64
	Line    string // for <polyline points="…">
	Markers []marker
}

// A marker is a point with the range of its quartiles.
type marker struct{ X, Y, Low, High float64 }

// An axis maps the decades from 10^From to 10^To to a range of coordinates.
type axis struct {
	From, To   int
	Start, End float64
}

// newAxis returns the axis for values from smallest to largest, in decades.
func newAxis(smallest, largest, start, end float64) axis {
	from := int(math.Floor(math.Log10(smallest)))
	// One value has an axis of one decade.
	to := max(int(math.Ceil(math.Log10(largest))), from+1)
	return axis{from, to, start, end}
}

func (a axis) at(value float64) float64 {
	part := (math.Log10(value) - float64(a.From)) / float64(a.To-a.From)
	return a.Start + part*(a.End-a.Start)
}

func (a axis) ticks(label func(float64) string) []tick {
	var ticks []tick
	for exponent := a.From; exponent <= a.To; exponent++ {
		value := math.Pow10(exponent)
		ticks = append(ticks, tick{a.at(value), label(value)})
	}
	return ticks
}

// draw returns the curves as an SVG document. The same curves give the same
// document.
func draw(curves []curve) ([]byte, error) {
	xs, ys := []float64{1}, []float64{}
	for _, c := range curves {
		for _, p := range c.Points {
			if p.N < 1 || p.Nanos.Low <= 0 {
				return nil, fmt.Errorf("%s: %v ns at %d: want numbers above 0 for axes in decades", c.Name, p.Nanos, p.N)
			}
			xs = append(xs, float64(p.N))
			ys = append(ys, p.Nanos.Low, p.Nanos.High)
		}
	}
	x := newAxis(slices.Min(xs), slices.Max(xs), plotLeft, plotRight)
	y := newAxis(slices.Min(ys), slices.Max(ys), plotBottom, plotTop)
	f := figure{
		XTicks:      x.ticks(func(v float64) string { return thousands(int(v)) }),
		YTicks:      y.ticks(nanosLabel),
		Description: describe(curves),
	}
	if x.To > 3 {
		f.Table = x.at(1024)
	}
	for i, c := range curves {
		f.Series = append(f.Series, newSeries(i, c, x, y))
	}
	t, err := template.New("svg").Funcs(template.FuncMap{"n": coordinate}).Parse(svgText)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, f)
	return b.Bytes(), err
}

// classes are the classes of the series in the template, which gives each a
// color and a shape.
var classes = [...]string{"circle", "square", "diamond"}

func newSeries(i int, c curve, x, y axis) series {
	s := series{Class: classes[i], Name: c.Name, LegendX: plotLeft + 130*float64(i)}
	var line []string
	for _, p := range c.Points {
		m := marker{x.at(float64(p.N)), y.at(p.Nanos.Median), y.at(p.Nanos.Low), y.at(p.Nanos.High)}
		s.Markers = append(s.Markers, m)
		line = append(line, coordinate(m.X)+","+coordinate(m.Y))
	}
	s.Line = strings.Join(line, " ")
	return s
}

// describe returns the text for readers who do not see the drawing.
func describe(curves []curve) string {
	var text []string
	for _, c := range curves {
		first, last := c.Points[0], c.Points[len(c.Points)-1]
		text = append(text, fmt.Sprintf("Number of %s: %s at %s, %s at %s.", c.Name,
			nanosLabel(first.Nanos.Median), thousands(first.N), nanosLabel(last.Nanos.Median), thousands(last.N)))
	}
	return "CPU time that httpretry adds to a request that succeeds. " + strings.Join(text, " ")
}

// nanosLabel formats nanoseconds with their unit.
func nanosLabel(nanos float64) string {
	if nanos < 1000 {
		return fmt.Sprintf("%.3g ns", nanos)
	}
	return fmt.Sprintf("%.3g µs", nanos/1000)
}

func coordinate(v float64) string { return fmt.Sprintf("%.1f", v) }
