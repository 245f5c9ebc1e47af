package chart

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// A Heat is several heat maps with the same rows and columns.
type Heat struct {
	Title      string
	X, Y       string   // labels
	Cols, Rows []string // their values
	Panels     []Panel
}

// A Panel is one heat map. It has the value of each cell by row and column: 0 is
// white and Most is dark. NaN is never.
type Panel struct {
	Name  string
	Cells [][]float64
	Most  float64
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
			shown, fill := Number(v), fmt.Sprintf(`class="back" fill-opacity="%.2f"`, 0.06+0.6*v/p.Most)
			if math.IsNaN(v) {
				shown, fill = "never", `class="never"`
			}
			fmt.Fprintf(b, `<rect %s x="%g" y="%g" width="%g" height="%d"/>`, fill, x, y, round(cellWidth-1), cellHeight-1)
			fmt.Fprintf(b, `<text class="cell" x="%g" y="%g" text-anchor="middle">%s</text>`,
				round(x+cellWidth/2), y+14, html.EscapeString(shown))
		}
	}
	y := float64(2*lineHeight + cellHeight*len(h.Rows))
	for c, name := range h.Cols {
		text(b, "tick", round(rowLabel+cellWidth*(float64(c)+0.5)), y+14, "middle", name)
	}
	text(b, "label", rowLabel+cellWidth*float64(len(h.Cols)), y+2*lineHeight-4, "end", h.X)
}
