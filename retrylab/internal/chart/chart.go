// Package chart draws line charts and heat maps as SVG. The drawings follow the
// reader's light or dark color scheme, and need neither a script nor a network.
package chart

import (
	_ "embed"
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

// Style is the style sheet of all figures.
//
//go:embed chart.css
var Style string

// A Figure is a drawing that needs Style.
type Figure interface {
	SVG() string
}

// File returns a figure with its own style sheet.
func File(f Figure) string {
	return strings.Replace(f.SVG(), ">",
		">\n<style>"+Style+"</style>\n<rect class=\"page\" x=\"-10\" y=\"-10\" width=\"100%\" height=\"100%\"/>", 1) + "\n"
}

// A Chart is lines over two axes.
type Chart struct {
	Title  string
	X, Y   Axis
	Series []Series
	Bands  []Band
}

// An Axis has a label that names the unit. Its range is that of the data,
// unless Min and Max are set.
type Axis struct {
	Label    string
	Log      bool
	Min, Max float64
}

// A Series is a line through points in the order of X. Points marks each.
type Series struct {
	Name   string
	X, Y   []float64
	Points bool
}

// A Band is a range of X with a name, such as an outage.
type Band struct {
	Name     string
	From, To float64
}

// A scale maps values to the range [0, 1]. On a logarithmic one, values below
// the minimum are at the minimum, so that 0 has a place.
type scale struct {
	min, max float64
	log      bool
}

func (s scale) at(v float64) float64 {
	if s.log {
		return math.Log(max(v, s.min)/s.min) / math.Log(s.max/s.min)
	}
	return (v - s.min) / (s.max - s.min)
}

// newScale returns the scale of an axis for the values of its series, and the
// values of its ticks. A linear Y axis starts at 0.
func newScale(a Axis, values func(Series) []float64, series []Series, isY bool) (scale, []float64) {
	lo, hi, whole := math.Inf(1), math.Inf(-1), !isY
	for _, s := range series {
		for _, v := range values(s) {
			whole = whole && v == math.Trunc(v)
			// A logarithmic axis has no place for 0.
			if !math.IsNaN(v) && (!a.Log || v > 0) {
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}
	// Without a value, any range will do.
	if lo > hi {
		lo, hi = 0, 1
	}
	if isY && !a.Log {
		lo = min(lo, 0)
	}
	fixed := a.Max > a.Min
	if fixed {
		lo, hi = a.Min, a.Max
	}
	if lo == hi {
		hi = lo + 1
	}
	if a.Log {
		return logScale(lo, hi, fixed)
	}
	step := NiceStep((hi - lo) / 8)
	// Numbers of clients or services have no fractions.
	if whole {
		step = max(step, 1)
	}
	// The highest tick is not below any value.
	if isY && !fixed {
		hi = math.Ceil(hi/step-1e-9) * step
	}
	var ticks []float64
	for i := math.Ceil(lo/step - 1e-9); i*step <= hi+step*1e-9; i++ {
		ticks = append(ticks, i*step)
	}
	return scale{lo, hi, false}, ticks
}

// logScale widens a range to numbers that are 1, 2 or 5 times a power of ten.
func logScale(lo, hi float64, fixed bool) (scale, []float64) {
	if !fixed {
		lo, hi = 1/NiceStep(1/lo), NiceStep(hi)
	}
	var ticks []float64
	for t := NiceStep(lo); t <= hi*(1+1e-9); t = NiceStep(t * 1.001) {
		ticks = append(ticks, t)
	}
	return scale{lo, hi, true}, ticks
}

// NiceStep returns 1, 2 or 5 times a power of ten, at least step.
func NiceStep(step float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(step)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= step*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// Number formats a value with three significant digits, and with k and M for
// thousands and millions.
func Number(v float64) string {
	abs := math.Abs(v)
	switch {
	case abs >= 1e6:
		return trim(v/1e6) + "M"
	case abs >= 1e4:
		return trim(v/1e3) + "k"
	}
	return trim(v)
}

func trim(v float64) string {
	if v == 0 {
		return "0"
	}
	digits := max(0, 2-int(math.Floor(math.Log10(math.Abs(v))+1e-9)))
	s := strconv.FormatFloat(v, 'f', min(digits, 6), 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

const (
	width         = 720
	left, right   = 58, 14
	plotWidth     = width - left - right
	plotHeight    = 260
	lineHeight    = 18
	charWidth     = 7  // of text, at most
	axisGap       = 3  // between the plot and the X axis
	axisHeight    = 47 // with the gap
	labelGap      = 13 // between the label of the Y axis and its highest tick
	titleHeight   = 26
	legendGap     = 22 // for the swatch of a series
	styles        = 8  // of lines, after which they repeat
	tickCharWidth = 7.5
)

func open(b *strings.Builder, title string, height float64) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="-10 -10 %d %g" width="%d" height="%g" role="img" aria-label="%s">`,
		width+20, height+20, width+20, height+20, html.EscapeString(title))
	text(b, "title", 0, 16, "start", title)
}

type drawing struct {
	strings.Builder
	top  float64
	x, y scale
}

func (c *Chart) SVG() string {
	d := new(drawing)
	var xTicks, yTicks []float64
	d.x, xTicks = newScale(c.X, func(s Series) []float64 { return s.X }, c.Series, false)
	d.y, yTicks = newScale(c.Y, func(s Series) []float64 { return s.Y }, c.Series, true)
	d.legend(c.Series)
	legend := d.String()
	d.Reset()
	open(&d.Builder, c.Title, d.top+plotHeight+axisHeight)
	d.WriteString(legend)
	text(d, "label", 0, d.top-labelGap, "start", c.Y.Label)
	d.axes(xTicks, yTicks, c.X.Label)
	for _, band := range c.Bands {
		from, to := max(band.From, d.x.min), min(band.To, d.x.max)
		if from < to {
			fmt.Fprintf(d, `<rect class="band" x="%g" y="%g" width="%g" height="%d"/>`,
				d.px(from), d.top, round(d.px(to)-d.px(from)), plotHeight)
			text(d, "band-name", d.px(from)+3, d.top+14, "start", band.Name)
		}
	}
	// A solid line shows through the dashed lines that lie on it.
	for _, dashed := range []int{0, 1} {
		for i := dashed; i < len(c.Series); i += 2 {
			d.line(c.Series[i], i%styles)
		}
	}
	d.WriteString("</svg>")
	return d.String()
}

func (d *drawing) px(v float64) float64 { return round(left + plotWidth*d.x.at(v)) }
func (d *drawing) py(v float64) float64 { return round(d.top + plotHeight*(1-d.y.at(v))) }

func (d *drawing) axes(xTicks, yTicks []float64, label string) {
	for _, t := range yTicks {
		fmt.Fprintf(d, `<line class="grid" x1="%d" x2="%d" y1="%g" y2="%g"/>`, left, left+plotWidth, d.py(t), d.py(t))
		text(d, "tick", left-6, d.py(t)+4, "end", Number(t))
	}
	// A line at the bottom of the plot does not hide the axis below it.
	bottom, free := d.top+plotHeight+axisGap, math.Inf(-1)
	for _, t := range xTicks {
		x := d.px(t)
		fmt.Fprintf(d, `<line class="axis" x1="%g" x2="%g" y1="%g" y2="%g"/>`, x, x, bottom, bottom+5)
		// Numbers must not overlap.
		half := float64(len(Number(t))) * tickCharWidth / 2
		if x-half < free {
			continue
		}
		free = x + half + 6
		text(d, "tick", x, bottom+19, "middle", Number(t))
	}
	fmt.Fprintf(d, `<line class="axis" x1="%d" x2="%d" y1="%g" y2="%g"/>`, left, left+plotWidth, bottom, bottom)
	text(d, "label", left+plotWidth, bottom+38, "end", label)
}

func (d *drawing) line(s Series, style int) {
	var path strings.Builder
	pen := false // whether the line goes on
	// A logarithmic axis has no place for 0, so no line connects two zeros.
	absent := func(v float64) bool { return d.y.log && v < d.y.min }
	for i := range s.X {
		// A value that is unknown or out of the range interrupts the line.
		if s.X[i] < d.x.min || s.X[i] > d.x.max || math.IsNaN(s.Y[i]) {
			pen = false
			continue
		}
		command := "M"
		if pen && !(absent(s.Y[i-1]) && absent(s.Y[i])) {
			command = "L"
		}
		fmt.Fprintf(&path, "%s%g %g", command, d.px(s.X[i]), d.py(s.Y[i]))
		pen = true
		if s.Points {
			fmt.Fprintf(d, `<circle class="s%d" cx="%g" cy="%g" r="2.5"/>`, style, d.px(s.X[i]), d.py(s.Y[i]))
		}
	}
	fmt.Fprintf(d, `<path class="line s%d" d="%s"/>`, style, path.String())
}

func legendWidth(name string) float64 { return float64(legendGap + charWidth*len(name) + 14) }

// legend draws the names of the series, and sets the top of the plot below them.
func (d *drawing) legend(series []Series) {
	x, row := math.Inf(1), -1
	for i, s := range series {
		if x+legendWidth(s.Name) > width {
			x, row = 0, row+1
		}
		y := float64(titleHeight + lineHeight*row + 10)
		fmt.Fprintf(d, `<path class="line s%d" d="M%g %gh17"/>`, i%styles, x, y-4)
		text(d, "legend", x+legendGap, y, "start", s.Name)
		x += legendWidth(s.Name)
	}
	d.top = float64(titleHeight + lineHeight*(2+row) + labelGap)
}

func text(b io.Writer, class string, x, y float64, anchor, s string) {
	fmt.Fprintf(b, `<text class="%s" x="%g" y="%g" text-anchor="%s">%s</text>`, class, x, y, anchor, html.EscapeString(s))
}

// round keeps drawings small, and the same on all processors.
func round(v float64) float64 { return math.Round(v*10) / 10 }

// A Heat is several heat maps with the same rows, columns and colors: 0 is white
// and Most is dark.
type Heat struct {
	Title      string
	X, Y       string   // labels
	Cols, Rows []string // their values
	Panels     []Panel
	Most       float64
}

// A Panel is one heat map. It has the value of each cell by row and column. NaN is
// never.
type Panel struct {
	Name  string
	Cells [][]float64
}

const (
	panelsPerRow = 2
	cellHeight   = 20
	rowLabel     = 44 // width of the names of the rows
)

func (h *Heat) SVG() string {
	b := new(strings.Builder)
	panelWidth := float64(width / panelsPerRow)
	panelHeight := float64(2*lineHeight + cellHeight*len(h.Rows) + 2*lineHeight + 8)
	lines := (len(h.Panels) + panelsPerRow - 1) / panelsPerRow
	open(b, h.Title, titleHeight+float64(lines)*panelHeight)
	for i, p := range h.Panels {
		fmt.Fprintf(b, `<g transform="translate(%g %g)">`,
			float64(i%panelsPerRow)*panelWidth, titleHeight+float64(i/panelsPerRow)*panelHeight)
		h.panel(b, p, (panelWidth-rowLabel-16)/float64(len(h.Cols)))
		b.WriteString("</g>")
	}
	b.WriteString("</svg>")
	return b.String()
}

func (h *Heat) panel(b *strings.Builder, p Panel, cellWidth float64) {
	text(b, "legend", rowLabel, 16, "start", p.Name)
	text(b, "label", rowLabel-6, 2*lineHeight-4, "end", h.Y)
	for r, row := range p.Cells {
		y := float64(2*lineHeight + cellHeight*r)
		text(b, "tick", rowLabel-6, y+14, "end", h.Rows[r])
		for c, v := range row {
			x := round(rowLabel + cellWidth*float64(c))
			shown, fill := Number(v), fmt.Sprintf(`class="back" fill-opacity="%.2f"`, 0.06+0.6*v/h.Most)
			if math.IsNaN(v) {
				shown, fill = "never", `class="never"`
			}
			fmt.Fprintf(b, `<rect %s x="%g" y="%g" width="%g" height="%d"/>`, fill, x, y, round(cellWidth-1), cellHeight-1)
			text(b, "cell", round(x+cellWidth/2), y+14, "middle", shown)
		}
	}
	y := float64(2*lineHeight + cellHeight*len(h.Rows))
	for c, name := range h.Cols {
		text(b, "tick", round(rowLabel+cellWidth*(float64(c)+0.5)), y+14, "middle", name)
	}
	text(b, "label", rowLabel+cellWidth*float64(len(h.Cols)), y+2*lineHeight-4, "end", h.X)
}
