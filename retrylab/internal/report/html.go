package report

import (
	_ "embed"
	"encoding/json"
	"html/template"
	"io"
	"math"
	"time"

	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
)

//go:embed page.html
var pageHTML string

// WriteHTML writes r as a page that needs nothing else, and has no script.
func WriteHTML(w io.Writer, r Report) error {
	page, err := template.New("page").Funcs(template.FuncMap{
		"show":    func(t Table, i int, v any) string { return t.Columns[i].Kind.Show(v) },
		"numeric": func(c Column) bool { return c.Kind != Text },
		"svg":     func(f chart.Figure) template.HTML { return template.HTML(f.SVG()) },
		"style":   func() template.CSS { return template.CSS(chart.Style) },
	}).Parse(pageHTML)
	if err != nil {
		return err
	}
	return page.Execute(w, r)
}

// WriteJSON writes the tables of r. Durations are in seconds, shares are
// fractions, and unknown values are null.
func WriteJSON(w io.Writer, r Report) error {
	type table struct {
		Title string           `json:"title"`
		Rows  []map[string]any `json:"rows"`
	}
	out := struct {
		Title   string   `json:"title"`
		Command string   `json:"command"`
		About   string   `json:"about"`
		Tables  []table  `json:"tables"`
		Notes   []string `json:"notes"`
	}{Title: r.Title, Command: r.Command, About: r.About, Notes: r.Notes}
	for _, t := range r.Tables {
		rows := []map[string]any{}
		for _, values := range t.Rows {
			row := map[string]any{}
			for i, v := range values {
				row[t.Columns[i].name()] = plain(v)
			}
			rows = append(rows, row)
		}
		out.Tables = append(out.Tables, table{t.Title, rows})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(out)
}

// name is the name of a column with the unit of its plain values.
func (c Column) name() string {
	if c.Kind == Seconds {
		return c.Name + " (s)"
	}
	return c.Name
}

// plain returns v as a string, an int, a float64, or nil if it is not known.
func plain(v any) any {
	switch v := v.(type) {
	case time.Duration:
		if v == Never || v == Unknown {
			return nil
		}
		return v.Seconds()
	case float64:
		if math.IsNaN(v) {
			return nil
		}
	}
	return v
}
