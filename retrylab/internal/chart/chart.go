// Package chart draws line charts as SVG. The drawings follow the reader's
// light or dark color scheme, and need neither a script nor a network.
package chart

import (
	"math"
	"strconv"
	"strings"
)

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
		return (math.Log(max(v, s.min)) - math.Log(s.min)) / (math.Log(s.max) - math.Log(s.min))
	}
	return (v - s.min) / (s.max - s.min)
}

// newScale returns the scale of an axis for the values of its series, and the
// values of its ticks. A linear Y axis starts at 0.
func newScale(a Axis, values func(Series) []float64, series []Series, fromZero bool) (scale, []float64) {
	lo, hi, whole := math.Inf(1), math.Inf(-1), !fromZero
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
	if fromZero && !a.Log {
		lo = min(lo, 0)
	}
	if a.Max > a.Min {
		lo, hi = a.Min, a.Max
	}
	if lo == hi {
		hi = lo + 1
	}
	if a.Log {
		return logScale(lo, hi, a.Max > a.Min)
	}
	step := niceStep((hi - lo) / 8)
	// Numbers of clients or services have no fractions.
	if whole {
		step = max(step, 1)
	}
	// The highest tick is not below any value.
	if fromZero && a.Max <= a.Min {
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
	var ticks []float64
	for e := math.Floor(math.Log10(lo)); e <= math.Ceil(math.Log10(hi)); e++ {
		for _, m := range []float64{1, 2, 5} {
			ticks = append(ticks, m*math.Pow(10, e))
		}
	}
	// Only the ticks in the range remain, and the nearest one at either end.
	first, last := 0, len(ticks)-1
	for first < last && ticks[first+1] <= lo*(1+1e-9) {
		first++
	}
	for last > first && ticks[last-1] >= hi*(1-1e-9) {
		last--
	}
	if !fixed {
		lo, hi = ticks[first], ticks[last]
	}
	kept := ticks[:0]
	for _, t := range ticks[first : last+1] {
		if t >= lo*(1-1e-9) && t <= hi*(1+1e-9) {
			kept = append(kept, t)
		}
	}
	return scale{lo, hi, true}, kept
}

// niceStep returns 1, 2 or 5 times a power of ten, at least step.
func niceStep(step float64) float64 {
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
