package report

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"

	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string
)

// figure is a chart on the page: two drawings, of which the page shows the one
// that fits its width, and the data.
type figure struct {
	Title        string
	Wide, Narrow template.HTML
	Data         template.JS
	Table        Table
}

// WriteHTML writes r as a page that needs nothing else.
func WriteHTML(w io.Writer, r Report) error {
	page, err := template.New("page").Funcs(template.FuncMap{
		"show":    func(t Table, i int, v any) string { return t.Columns[i].Kind.Show(v) },
		"numeric": func(c Column) bool { return c.Kind != Text },
	}).Parse(pageHTML)
	if err != nil {
		return err
	}
	var figures []figure
	for _, c := range r.Charts {
		f, err := newFigure(c)
		if err != nil {
			return err
		}
		figures = append(figures, f)
	}
	return page.Execute(w, map[string]any{
		"Report": r, "Figures": figures,
		"Style": template.CSS(chart.Style + pageCSS), "Script": template.JS(pageJS),
	})
}

func newFigure(c chart.Chart) (figure, error) {
	f := figure{Title: c.Title, Table: dataTable(c)}
	wide, err := drawing(c, chart.Wide, "wide")
	if err != nil {
		return f, err
	}
	narrow, err := drawing(c, chart.Narrow, "narrow")
	if err != nil {
		return f, err
	}
	data, err := json.Marshal(lineData(c))
	if err != nil {
		return f, err
	}
	f.Wide, f.Narrow, f.Data = wide, narrow, template.JS(data)
	return f, nil
}

func drawing(c chart.Chart, width float64, size string) (template.HTML, error) {
	// The first drawing is for its Plot, which the second one carries.
	_, plot := chart.Draw(c, width, "")
	where, err := json.Marshal(plot)
	if err != nil {
		return "", err
	}
	svg, _ := chart.Draw(c, width, fmt.Sprintf(`data-size="%s" data-plot='%s' tabindex="0" aria-describedby="keys"`, size, where))
	return template.HTML(svg), nil
}

// dataTable returns the data of a chart, with a row for each X.
func dataTable(c chart.Chart) Table {
	t := Table{Title: "Data: " + c.Title, Columns: []Column{{c.X.Label, Number}}}
	rows := map[float64][]any{}
	var xs []float64
	for i, s := range c.Series {
		t.Columns = append(t.Columns, Column{s.Name, Number})
		for j, x := range s.X {
			if rows[x] == nil {
				xs = append(xs, x)
				rows[x] = emptyRow(x, len(c.Series))
			}
			rows[x][i+1] = number(s.Y[j])
		}
	}
	slices.Sort(xs)
	for _, x := range xs {
		t.Rows = append(t.Rows, rows[x])
	}
	return t
}

func emptyRow(x float64, n int) []any {
	row := make([]any, n+1)
	row[0] = x
	for i := range n {
		row[i+1] = "-"
	}
	return row
}

// number returns v as a value of the kind Number.
func number(v float64) any { return v }
