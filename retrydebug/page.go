package retrydebug

import (
	"bytes"
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
)

// refreshSeconds is the time between two refreshes of the page.
const refreshSeconds = 5

// view is the data of pageTemplate.
type view struct {
	Style   template.CSS
	Made    time.Time
	Refresh bool
	Seconds int // between two refreshes
	Rows    []row

	// Origins have several rows if there are keys with a path. The first one is
	// the worst, and counts.
	Origins int
	Counts  []count // for each trouble that an origin has
}

// rowSize is the number of bytes of a usual row, or a few more.
const rowSize = 768

// row is a row of the table. Origin and Key are text from outside, so the
// template escapes them.
type row struct {
	Origin, Key string
	Rest        template.HTML // the other cells
}

// newRow makes the cells that have only numbers and texts of this package. As
// actions of the template, they would make a large page take several times as
// long.
func newRow(s httpretry.OriginStatus, now time.Time) row {
	t := troubleOf(s)
	var rest cells
	rest.Grow(rowSize)
	rest.add("State", "", `<span class="`, t.Class(), `">`, t.String(), `</span>`)
	if coolsDown(s) {
		rest.add("Cool-down", "", "ends in ", inWords(s.CooldownUntil.Sub(now)))
	} else {
		rest.add("Cool-down", "quiet", "none")
	}
	if s.Balance >= 0 {
		rest.add("Balance", "n", strconv.Itoa(s.Balance))
	} else {
		rest.add("Balance", "n quiet", "unknown")
	}
	rest.addCount("Waiting", s.Waiting)
	rest.addCount("Failed retries", s.FailedRetries)
	rest.addCount("Successes", s.Successes)
	return row{s.Origin, s.Key, template.HTML(rest.String())}
}

// cells is HTML.
type cells struct{ strings.Builder }

func (c *cells) add(label, class string, content ...string) {
	c.WriteString("\n" + `<td role="cell" data-label="` + label + `" class="` + class + `">`)
	for _, part := range content {
		c.WriteString(part)
	}
	c.WriteString("</td>")
}

func (c *cells) addCount(label string, n int) {
	if n == 0 {
		c.add(label, "n quiet", "0")
	} else {
		c.add(label, "n", strconv.Itoa(n))
	}
}

type count struct {
	Trouble trouble
	Origins int
}

// Title names the worst troubles, because it is all that a browser shows of a
// page in the background.
func (v *view) Title() string {
	parts := []string{"httpretry"}
	for _, c := range v.Counts {
		if c.Trouble != noTrouble {
			parts = append(parts, fmt.Sprintf("%d %v", c.Origins, c.Trouble))
		}
	}
	return strings.Join(parts, " · ")
}

// renderPage returns the whole page, so that a slow client does not delay its
// making.
func renderPage(
	now time.Time, origins []httpretry.OriginStatus, refresh bool,
) ([]byte, error) {
	v := &view{
		Style: style, Made: now, Refresh: refresh, Seconds: refreshSeconds,
		Rows: make([]row, len(origins)),
	}
	var counts [troubles]int
	seen := make(map[string]bool, len(origins))
	for i, s := range origins {
		v.Rows[i] = newRow(s, now)
		if !seen[s.Origin] {
			seen[s.Origin] = true
			counts[troubleOf(s)]++
		}
	}
	v.Origins = len(seen)
	for t, n := range counts {
		if n > 0 {
			v.Counts = append(v.Counts, count{trouble(t), n})
		}
	}
	var page bytes.Buffer
	page.Grow(len(style) + len(origins)*rowSize)
	err := pageTemplate.Execute(&page, v)
	return page.Bytes(), err
}

// inWords returns a duration in minutes and seconds, rounded up.
func inWords(d time.Duration) string {
	seconds := max((d+time.Second-1)/time.Second, 0)
	switch minutes, rest := seconds/60, seconds%60; {
	case minutes == 0:
		return fmt.Sprintf("%d s", rest)
	case rest == 0:
		return fmt.Sprintf("%d min", minutes)
	default:
		return fmt.Sprintf("%d min %d s", minutes, rest)
	}
}

// On a phone, the style shows rows as blocks. Browsers then do not expose a
// table to screen readers, so the elements have explicit roles.
var pageTemplate = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{{- if .Refresh}}
<meta http-equiv="refresh" content="{{.Seconds}}">
{{- end}}
<link rel="icon" href="data:,">
<title>{{.Title}}</title>
<style>{{.Style}}</style>
</head>
<body>
<header>
<h1>httpretry</h1>
<p>at <time datetime="{{.Made.Format "2006-01-02T15:04:05.999999999Z07:00"}}">
{{- .Made.Format "2006-01-02 15:04:05 UTC"}}</time></p>
<nav>
{{- if .Refresh}}Refreshes every {{.Seconds}} s <a href="?refresh=0">Stop refreshing</a>
{{- else}}Does not refresh <a href="?">Refresh every {{.Seconds}} s</a>
{{- end}} <a href="?format=json">JSON</a></nav>
</header>
<main>
{{- if .Rows}}
<table role="table" aria-labelledby="summary">
<caption id="summary">{{.Origins}} {{if eq .Origins 1}}origin{{else}}origins{{end}}
{{- range .Counts}} <span class="{{.Trouble.Class}}">{{.Origins}} {{.Trouble}}</span>{{end}}</caption>
<thead role="rowgroup">
<tr role="row">
<th role="columnheader" scope="col">Origin</th>
<th role="columnheader" scope="col">Policy</th>
<th role="columnheader" scope="col">State</th>
<th role="columnheader" scope="col">Cool-down</th>
<th role="columnheader" scope="col" class="n">Balance</th>
<th role="columnheader" scope="col" class="n">Waiting</th>
<th role="columnheader" scope="col" class="n">Failed retries</th>
<th role="columnheader" scope="col" class="n">Successes</th>
</tr>
</thead>
<tbody role="rowgroup">
{{- range .Rows}}
<tr role="row">
<th role="rowheader" scope="row">{{.Origin}}</th>
<td role="cell" data-label="Policy">{{if .Key}}<code>{{.Key}}</code>{{else}}default{{end}}</td>
{{- .Rest}}
</tr>
{{- end}}
</tbody>
</table>
{{- else}}
<p class="none">No requests yet.</p>
{{- end}}
</main>
<footer>
<dl>
<div><dt>Policy</dt><dd>the key in Config.Policies; “default” is Config.Policy</dd></div>
<div><dt>Cool-down</dt><dd>the host has asked for a pause, by a 429, a 503, or a 403 that is retried</dd></div>
<div><dt>Balance</dt><dd>retries that the budget allows now</dd></div>
<div><dt>Waiting</dt><dd>requests to the origin that wait for a retry, or for the end of a cool-down</dd></div>
<div><dt>Failed retries, Successes</dt><dd>in the window of a HostBudget, 10 s by default; 0 for other budgets</dd></div>
</dl>
</footer>
</body>
</html>
`))
