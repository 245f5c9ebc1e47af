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

// maxRows is the most rows of a page, in all its tables. Larger pages make
// browsers slow, and only the first rows are about origins in trouble.
const maxRows = 2048

// view is the data of pageTemplate.
type view struct {
	Style   template.CSS
	Made    time.Time
	Refresh bool
	Seconds int // between two refreshes

	Sections []section
	Counts   []count // of all sections
}

// section is the part of the page about one transport.
type section struct {
	ID   string // of its heading
	Name string // text from outside, so the template escapes it

	Rows    []row
	Origins int // all of them
	LeftOut int // origins that have no row
	Counts  []count
}

// rowSize is the number of bytes of a usual row, or a few more.
const rowSize = 1024

// row is a row of the table. An origin has one for each budget. Origin and Key
// are text from outside, so the template escapes them.
type row struct {
	Origin, Key string
	First       bool          // of the origin
	State       template.HTML // cells about the origin, empty in all rows but the first
	Rest        template.HTML // the cells after the budget
}

// addRows adds the rows of an origin. They are made of cells that have only
// numbers and texts of this package. As actions of the template, these would
// make a large page take several times as long.
func (sec *section) addRows(s *httpretry.OriginStatus, now time.Time) {
	var blank cells
	for _, label := range []string{
		"State", "Cool-down", "Last failure", "Not retried", "Waiting"} {
		blank.add(label, "")
	}
	for i, b := range s.Budgets {
		r := row{Origin: s.Origin, Key: b.Key, First: i == 0, State: template.HTML(blank.String())}
		if r.First {
			r.State = stateOf(s, now)
		}
		var rest cells
		rest.Grow(rowSize / 2)
		if b.BalanceKnown {
			rest.add("Balance", "n", strconv.Itoa(b.Balance))
		} else {
			rest.add("Balance", "n quiet", "unknown")
		}
		rest.addCount("Failed retries", b.FailedRetries)
		rest.addCount("Successes", b.Successes)
		r.Rest = template.HTML(rest.String())
		sec.Rows = append(sec.Rows, r)
	}
}

// stateOf returns the cells about an origin.
func stateOf(s *httpretry.OriginStatus, now time.Time) template.HTML {
	t := troubleOf(s, now)
	var state cells
	state.Grow(rowSize)
	state.add("State", "", `<span class="`, t.Class(), `">`, t.String(), `</span>`)
	if coolsDown(s) {
		state.add("Cool-down", "", "ends in ", inWords(s.CooldownUntil.Sub(now)))
	} else {
		state.add("Cool-down", "quiet", "none")
	}
	if s.LastFailureAt.IsZero() {
		state.add("Last failure", "quiet", "none")
	} else {
		// The text of a status is one of net/http.
		state.add("Last failure", "", template.HTMLEscapeString(s.LastFailure), ", ",
			ago(now.Sub(s.LastFailureAt)), " ago")
	}
	state.addCount("Not retried", s.FailedWithoutRetry)
	state.addCount("Waiting", s.Waiting)
	return template.HTML(state.String())
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
func renderPage(now time.Time, transports []transport, refresh bool) ([]byte, error) {
	v := &view{Style: style, Made: now, Refresh: refresh, Seconds: refreshSeconds}
	var all [troubles]int
	rows, shown := 0, withRows(transports, now)
	for i, t := range transports {
		sec := section{
			ID: fmt.Sprintf("transport-%d", i+1), Name: t.name,
			Origins: len(t.origins), LeftOut: len(t.origins) - shown[i],
		}
		var own [troubles]int
		for j := range t.origins {
			trouble := troubleOf(&t.origins[j], now)
			own[trouble]++
			all[trouble]++
			if j < shown[i] {
				sec.addRows(&t.origins[j], now)
			}
		}
		sec.Counts = counts(own)
		v.Sections = append(v.Sections, sec)
		rows += len(sec.Rows)
	}
	v.Counts = counts(all)
	var page bytes.Buffer
	page.Grow(len(style) + rows*rowSize)
	err := pageTemplate.Execute(&page, v)
	return page.Bytes(), err
}

// withRows returns how many origins of each transport have rows. Of all the
// origins, those that are first by trouble have them.
func withRows(transports []transport, now time.Time) []int {
	shown := make([]int, len(transports))
	for rows := 0; ; {
		var next *httpretry.OriginStatus
		of := 0 // its transport
		for i, t := range transports {
			if shown[i] == len(t.origins) {
				continue
			}
			if s := &t.origins[shown[i]]; next == nil || byTrouble(s, next, now) < 0 {
				next, of = s, i
			}
		}
		if next == nil {
			return shown
		}
		if rows += len(next.Budgets); rows > maxRows {
			return shown
		}
		shown[of]++
	}
}

func counts(origins [troubles]int) (all []count) {
	for t, n := range origins {
		if n > 0 {
			all = append(all, count{trouble(t), n})
		}
	}
	return all
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

// ago returns a duration in one unit, rounded down.
func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", max(d, 0)/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	default:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
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
{{- range .Sections}}
<section{{if .Name}} aria-labelledby="{{.ID}}"{{end}}>
{{- if .Name}}
<h2 id="{{.ID}}">{{.Name}}</h2>
{{- end}}
{{- if .Rows}}
<table role="table" aria-labelledby="{{if .Name}}{{.ID}} {{end}}{{.ID}}-summary">
<caption id="{{.ID}}-summary">{{.Origins}} {{if eq .Origins 1}}origin{{else}}origins{{end}}
{{- range .Counts}} <span class="{{.Trouble.Class}}">{{.Origins}} {{.Trouble}}</span>{{end}}</caption>
<thead role="rowgroup">
<tr role="row">
<th role="columnheader" scope="col">Origin</th>
<th role="columnheader" scope="col">State</th>
<th role="columnheader" scope="col">Cool-down</th>
<th role="columnheader" scope="col">Last failure</th>
<th role="columnheader" scope="col" class="n">Not retried</th>
<th role="columnheader" scope="col" class="n">Waiting</th>
<th role="columnheader" scope="col">Budget</th>
<th role="columnheader" scope="col" class="n">Balance</th>
<th role="columnheader" scope="col" class="n">Failed retries</th>
<th role="columnheader" scope="col" class="n">Successes</th>
</tr>
</thead>
<tbody role="rowgroup">
{{- range .Rows}}
<tr role="row"{{if not .First}} class="more"{{end}}>
<th role="rowheader" scope="row">{{.Origin}}</th>
{{- .State}}
<td role="cell" data-label="Budget">{{if .Key}}<code>{{.Key}}</code>{{else}}default{{end}}</td>
{{- .Rest}}
</tr>
{{- end}}
</tbody>
</table>
{{- end}}
{{- if .LeftOut}}
<p class="quiet">{{.LeftOut}} {{if .Rows}}more {{end}}
{{- if eq .LeftOut 1}}origin is{{else}}origins are{{end}} left out. The <a href="?format=json">JSON</a> has all of them.</p>
{{- else if not .Rows}}
<p class="none">No requests yet.</p>
{{- end}}
</section>
{{- end}}
</main>
<footer>
<dl>
<div><dt>Cool-down</dt><dd>the host has asked for a pause, by a 429, a 503, or a 403 that is retried</dd></div>
<div><dt>Last failure</dt><dd>the result of the last attempt that failed; the origin counts as failing for a minute</dd></div>
<div><dt>Not retried</dt><dd>requests that failed without a retry, since the origin was first used</dd></div>
<div><dt>Waiting</dt><dd>requests to the origin that wait for a retry, or for the end of a cool-down</dd></div>
<div><dt>Budget</dt><dd>the key in Config.Policies of the first policy that has it; “default” is Config.Policy</dd></div>
<div><dt>Balance</dt><dd>retries that the budget allows now; one that follows a timeout counts as two</dd></div>
<div><dt>Failed retries, Successes</dt><dd>in the Window of a HostBudget, which stands still while the origin fails; a retry that follows a timeout counts as two; 0 for other budgets</dd></div>
</dl>
</footer>
</body>
</html>
`))
