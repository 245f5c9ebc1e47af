package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func someCurves() []curve {
	at := func(n int, nanos float64) point {
		return point{N: n, Nanos: summary{nanos, 0.9 * nanos, 1.1 * nanos}}
	}
	return []curve{
		{"hosts", []point{at(1, 50), at(1000, 60), at(100_000, 1500)}},
		{"patterns", []point{at(1, 50), at(1000, 55)}},
		{"goroutines", []point{at(1, 50), at(64, 45)}},
	}
}

// An element of a drawing has the text up to the next element.
type element struct {
	name, text string
	attributes map[string]string
}

// drawn returns the elements of the drawing of curves.
func drawn(t *testing.T, curves []curve) []element {
	t.Helper()
	svg, err := draw(curves)
	require.NoError(t, err)
	var elements []element
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if err == io.EOF {
			return elements
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			e := element{name: token.Name.Local, attributes: map[string]string{}}
			for _, a := range token.Attr {
				e.attributes[a.Name.Local] = a.Value
			}
			elements = append(elements, e)
		case xml.CharData:
			if len(elements) > 0 {
				elements[len(elements)-1].text += string(token)
			}
		}
	}
}

func TestDrawingIsDeterministic(t *testing.T) {
	svg, err := draw(someCurves())
	require.NoError(t, err)
	again, err := draw(someCurves())
	require.NoError(t, err)
	assert.Equal(t, string(svg), string(again))
}

func TestDrawingHasTextForEveryReader(t *testing.T) {
	byID := map[string]element{}
	var text strings.Builder
	for _, e := range drawn(t, someCurves()) {
		if id := e.attributes["id"]; id != "" {
			require.NotContains(t, byID, id)
			byID[id] = e
		}
		if e.name == "text" {
			text.WriteString(e.text)
		}
		assert.NotContains(t, e.text, "NaN")
	}
	assert.Equal(t, "title", byID["title"].name)
	assert.Equal(t, "desc", byID["desc"].name)
	assert.Contains(t, byID["desc"].text, "Number of hosts: 50 ns at 1, 1.5 µs at 100,000. Number of patterns: ")
	for _, label := range []string{"hosts", "patterns", "goroutines", "1,000", "100,000", "10 ns", "10 µs"} {
		assert.Contains(t, text.String(), label)
	}
	for _, class := range classes {
		assert.Contains(t, byID, class, "a shape")
	}
}

func TestPointsLieInThePlotAndTheLegendDoesNot(t *testing.T) {
	var points, legend int
	for _, e := range drawn(t, someCurves()) {
		if e.name != "use" {
			continue
		}
		x, err := strconv.ParseFloat(e.attributes["x"], 64)
		require.NoError(t, err)
		y, err := strconv.ParseFloat(e.attributes["y"], 64)
		require.NoError(t, err)
		if y < plotTop {
			legend++
			continue
		}
		points++
		assert.GreaterOrEqual(t, x, plotLeft)
		assert.LessOrEqual(t, x, plotRight)
		assert.LessOrEqual(t, y, plotBottom)
	}
	assert.Equal(t, 3, legend)
	assert.Equal(t, 7, points)
}

func TestAxis(t *testing.T) {
	a := newAxis(50, 1500, 340, 100)
	assert.Equal(t, axis{1, 4, 340, 100}, a)
	assert.InDelta(t, 340, a.at(10), 1e-9)
	assert.InDelta(t, 260, a.at(100), 1e-9)
	assert.InDelta(t, 100, a.at(10_000), 1e-9)
	var labels []string
	for _, tick := range a.ticks(nanosLabel) {
		labels = append(labels, tick.Label)
	}
	assert.Equal(t, []string{"10 ns", "100 ns", "1 µs", "10 µs"}, labels)
	assert.Equal(t, axis{2, 3, 0, 1}, newAxis(100, 100, 0, 1), "one value")
}

func TestDrawRefusesValuesWithoutLogarithm(t *testing.T) {
	for _, p := range []point{{N: 0, Nanos: summary{1, 1, 1}}, {N: 1, Nanos: summary{1, 0, 2}}} {
		_, err := draw([]curve{{"hosts", []point{p}}})
		assert.ErrorContains(t, err, "want numbers above 0")
	}
}
