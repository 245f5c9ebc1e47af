package chart

import (
	_ "embed"
	"fmt"
	"html"
	"math"
	"regexp"
	"slices"
	"strings"
)

// Style is the style sheet of all charts.
//
//go:embed chart.css
var Style string

// Widths of drawings. Text has the same size in both.
const (
	Wide   = 720
	Narrow = 350
)

const (
	left, right   = 58, 14
	plotHeight    = 260
	lineHeight    = 18
	charWidth     = 7 // of text, at most
	titleChar     = 8.5
	axisHeight    = 44 + axisGap
	axisGap       = 3  // between the plot and the X axis
	labelGap      = 13 // between the label of the Y axis and its highest tick
	titleHeight   = 26
	legendGap     = 22 // for the swatch of a series
	styles        = 8  // of lines, after which they repeat
	tickCharWidth = 7.5
)

// A Plot is the area of a drawing's data, in which a script finds the values
// below a pointer.
type Plot struct {
	Left, Top, Width, Height float64
	XMin, XMax, YMin, YMax   float64
	XLog, YLog               bool
}

// SVG returns a drawing of c with its own style sheet.
func SVG(c Chart) string {
	svg, _ := draw(c, Wide, "", 10)
	return strings.Replace(svg, ">", ">\n<style>"+plainStyle()+"</style>\n<rect class=\"page\" x=\"-10\" y=\"-10\" width=\"100%\" height=\"100%\"/>", 1) + "\n"
}

// plainStyle returns Style with the light color before each variable. librsvg
// and other viewers that do not know variables would draw all in black.
func plainStyle() string {
	light, _, _ := strings.Cut(Style, "@media")
	colors := map[string]string{}
	for _, m := range variable.FindAllStringSubmatch(light, -1) {
		colors[m[1]] = m[2]
	}
	return use.ReplaceAllStringFunc(Style, func(declaration string) string {
		m := use.FindStringSubmatch(declaration)
		return m[1] + ": " + colors[m[2]] + "; " + declaration
	})
}

var (
	variable = regexp.MustCompile(`(--\w+): ([^;]+);`)
	use      = regexp.MustCompile(`(fill|stroke): var\((--\w+)\)`)
)

// Draw returns a drawing of c of the given width, with further attributes of
// its svg element. It needs Style.
func Draw(c Chart, width float64, attributes string) (string, Plot) {
	return draw(c, width, attributes, 0)
}

// draw is Draw with a margin.
func draw(c Chart, width float64, attributes string, margin float64) (string, Plot) {
	var b strings.Builder
	all := Lines(c.Series)
	rows := legendRows(all, width)
	titles := wrap(c.Title, int(width/titleChar))
	p := Plot{Left: left, Width: width - left - right, Height: plotHeight}
	p.Top = float64(titleHeight + lineHeight*(len(titles)+len(rows)) + labelGap)
	height := p.Top + p.Height + axisHeight
	xs, xTicks := newScale(c.X, func(s Series) []float64 { return s.X }, c.Series, false)
	ys, yTicks := newScale(c.Y, func(s Series) []float64 { return s.Y }, c.Series, true)
	p.XMin, p.XMax, p.XLog, p.YMin, p.YMax, p.YLog = xs.min, xs.max, xs.log, ys.min, ys.max, ys.log

	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="%g %g %g %g" width="%g" height="%g" role="img" aria-label="%s" %s>`,
		-margin, -margin, width+2*margin, height+2*margin, width+2*margin, height+2*margin, html.EscapeString(c.Title), attributes)
	for i, line := range titles {
		text(&b, "title", 0, float64(16+lineHeight*i), "start", line)
	}
	drawLegend(&b, rows, float64(titleHeight+lineHeight*(len(titles)-1)))
	text(&b, "label", 0, p.Top-labelGap, "start", c.Y.Label)
	d := drawing{&b, p, xs, ys}
	d.axes(xTicks, yTicks, c.X.Label)
	for i, band := range c.Bands {
		d.band(band, i)
	}
	// A solid line shows through the dashed lines that lie on it.
	for _, dashed := range []bool{false, true} {
		for _, l := range all {
			if (l.Style%2 == 1) == dashed {
				d.line(l)
			}
		}
	}
	b.WriteString("</svg>")
	return b.String(), p
}

type drawing struct {
	b    *strings.Builder
	p    Plot
	x, y scale
}

func (d drawing) px(v float64) float64 { return round(d.p.Left + d.p.Width*d.x.at(v)) }
func (d drawing) py(v float64) float64 { return round(d.p.Top + d.p.Height*(1-d.y.at(v))) }

func (d drawing) axes(xTicks, yTicks []float64, label string) {
	for _, t := range yTicks {
		y := d.py(t)
		fmt.Fprintf(d.b, `<line class="grid" x1="%g" x2="%g" y1="%g" y2="%g"/>`, d.p.Left, d.p.Left+d.p.Width, y, y)
		text(d.b, "tick", d.p.Left-6, y+4, "end", Number(t))
	}
	// A line at the bottom of the plot does not hide the axis below it.
	bottom, free := d.p.Top+d.p.Height+axisGap, math.Inf(-1)
	for _, t := range xTicks {
		x := d.px(t)
		fmt.Fprintf(d.b, `<line class="axis" x1="%g" x2="%g" y1="%g" y2="%g"/>`, x, x, bottom, bottom+5)
		// Numbers must not overlap.
		half := float64(len(Number(t))) * tickCharWidth / 2
		if x-half < free {
			continue
		}
		free = x + half + 6
		text(d.b, "tick", x, bottom+19, "middle", Number(t))
	}
	fmt.Fprintf(d.b, `<line class="axis" x1="%g" x2="%g" y1="%g" y2="%g"/>`, d.p.Left, d.p.Left+d.p.Width, bottom, bottom)
	text(d.b, "label", d.p.Left+d.p.Width, bottom+38, "end", label)
}

func (d drawing) band(band Band, i int) {
	from, to := max(band.From, d.x.min), min(band.To, d.x.max)
	if from >= to {
		return
	}
	fmt.Fprintf(d.b, `<rect class="band" x="%g" y="%g" width="%g" height="%g"/>`,
		d.px(from), d.p.Top, round(d.px(to)-d.px(from)), d.p.Height)
	text(d.b, "band-name", d.px(from)+3, d.p.Top+14+float64(lineHeight*i), "start", band.Name)
}

func (d drawing) line(l Line) {
	var path strings.Builder
	pen := false // whether the line goes on
	for i := range l.X {
		// A value that is unknown or out of the range interrupts the line.
		if l.X[i] < d.x.min || l.X[i] > d.x.max || math.IsNaN(l.Y[i]) {
			pen = false
			continue
		}
		command := "M"
		// A logarithmic axis has no place for 0, so no line connects two zeros.
		if pen && !(d.absent(l.Y[i-1]) && d.absent(l.Y[i])) {
			command = "L"
		}
		fmt.Fprintf(&path, "%s%g %g", command, d.px(l.X[i]), d.py(l.Y[i]))
		pen = true
		if l.Points {
			fmt.Fprintf(d.b, `<circle class="s%d" cx="%g" cy="%g" r="3.5"/>`, l.Style, d.px(l.X[i]), d.py(l.Y[i]))
		}
	}
	fmt.Fprintf(d.b, `<path class="line s%d" d="%s"/>`, l.Style, path.String())
}

// absent reports whether a value is too small for a logarithmic axis.
func (d drawing) absent(v float64) bool { return d.y.log && v < d.y.min }

// A Line is one or more series that are equal, with the number of the style
// that they are drawn with.
type Line struct {
	Series
	Style int
}

// Lines returns the lines that show series. Equal series have one line with all
// their names. The style of a line does not depend on which other series are
// equal.
func Lines(series []Series) []Line {
	var all []Line
	for i, s := range series {
		same := slices.IndexFunc(all, func(l Line) bool { return slices.Equal(l.X, s.X) && slices.Equal(l.Y, s.Y) })
		if same >= 0 {
			all[same].Name += " = " + s.Name
			continue
		}
		all = append(all, Line{s, i % styles})
	}
	return all
}

// An entry is a part of the legend. Only the first part of a long name has a
// swatch.
type entry struct {
	Line
	swatch bool
}

// legendRows breaks the legend into rows that fit the width.
func legendRows(all []Line, width float64) [][]entry {
	var rows [][]entry
	used := math.Inf(1)
	for _, l := range all {
		for i, part := range wrap(l.Name, int((width-legendWidth(""))/charWidth)) {
			l.Name = part
			if used+legendWidth(part) > width {
				rows, used = append(rows, nil), 0
			}
			rows[len(rows)-1] = append(rows[len(rows)-1], entry{l, i == 0})
			used += legendWidth(part)
		}
	}
	return rows
}

func legendWidth(name string) float64 { return float64(legendGap + charWidth*len(name) + 14) }

func drawLegend(b *strings.Builder, rows [][]entry, top float64) {
	for n, row := range rows {
		x, y := 0.0, top+float64(lineHeight*n)+10
		for _, e := range row {
			if e.swatch {
				fmt.Fprintf(b, `<path class="line s%d" d="M%g %gh17"/>`, e.Style, x, y-4)
			}
			text(b, "legend", x+legendGap, y, "start", e.Name)
			x += legendWidth(e.Name)
		}
	}
}

// wrap breaks text into lines of at most width characters.
func wrap(s string, width int) []string {
	lines := []string{""}
	for word := range strings.FieldsSeq(s) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = word
		case len(*last)+1+len(word) > width:
			lines = append(lines, word)
		default:
			*last += " " + word
		}
	}
	return lines
}

func text(b *strings.Builder, class string, x, y float64, anchor, s string) {
	fmt.Fprintf(b, `<text class="%s" x="%g" y="%g" text-anchor="%s">%s</text>`, class, x, y, anchor, html.EscapeString(s))
}

// round keeps drawings small, and the same on all processors.
func round(v float64) float64 { return math.Round(v*10) / 10 }
