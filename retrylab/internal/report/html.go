package report

import (
	_ "embed"
	"html/template"
	"io"

	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
)

//go:embed page.html
var pageHTML string

// WriteHTML writes r as a page that needs nothing else, and has no script.
func WriteHTML(w io.Writer, r Report) error {
	page, err := template.New("page").Funcs(template.FuncMap{
		"show":  Show,
		"svg":   func(f chart.Figure) template.HTML { return template.HTML(f.SVG()) },
		"style": func() template.CSS { return template.CSS(chart.Style) },
	}).Parse(pageHTML)
	if err != nil {
		return err
	}
	return page.Execute(w, r)
}
