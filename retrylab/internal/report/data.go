package report

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
)

// WriteCSV writes the tables of r, with an empty line between them. Durations
// are in seconds, shares are fractions, and unknown values are empty.
func WriteCSV(w io.Writer, r Report) error {
	for i, t := range r.Tables {
		if i > 0 {
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
		if err := writeTableCSV(w, t); err != nil {
			return err
		}
	}
	return nil
}

func writeTableCSV(w io.Writer, t Table) error {
	out := csv.NewWriter(w)
	var head []string
	for _, c := range t.Columns {
		head = append(head, c.name())
	}
	if err := out.Write(head); err != nil {
		return err
	}
	for _, row := range t.Rows {
		line := make([]string, len(row))
		for i, v := range row {
			switch v := plain(v).(type) {
			case string:
				line[i] = v
			case int:
				line[i] = strconv.Itoa(v)
			case float64:
				line[i] = strconv.FormatFloat(v, 'g', -1, 64)
			}
		}
		if err := out.Write(line); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
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

// WriteJSON writes the tables and charts of r. Durations are in seconds, shares
// are fractions, and unknown values are null.
func WriteJSON(w io.Writer, r Report) error {
	type table struct {
		Title string           `json:"title"`
		Rows  []map[string]any `json:"rows"`
	}
	type line struct {
		Name string `json:"name"`
		X    []any  `json:"x"`
		Y    []any  `json:"y"`
	}
	type figure struct {
		Title  string `json:"title"`
		X      string `json:"x"`
		Y      string `json:"y"`
		Series []line `json:"series"`
	}
	out := struct {
		Title   string   `json:"title"`
		Command string   `json:"command"`
		About   string   `json:"about"`
		Tables  []table  `json:"tables"`
		Charts  []figure `json:"charts"`
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
	for _, c := range r.Charts {
		f := figure{Title: c.Title, X: c.X.Label, Y: c.Y.Label}
		for _, s := range c.Series {
			f.Series = append(f.Series, line{s.Name, plainAll(s.X), plainAll(s.Y)})
		}
		out.Charts = append(out.Charts, f)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(out)
}

func plainAll(values []float64) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = plain(v)
	}
	return out
}

// lineData has the data of a chart's lines for the page's script.
func lineData(c chart.Chart) []map[string]any {
	out := []map[string]any{}
	for _, l := range chart.Lines(c.Series) {
		out = append(out, map[string]any{"name": l.Name, "style": l.Style, "x": plainAll(l.X), "y": plainAll(l.Y)})
	}
	return out
}
