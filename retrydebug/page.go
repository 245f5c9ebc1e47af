package retrydebug

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"strings"
	"text/tabwriter"
	"time"
)

// maxRows is the most rows of a table. The first rows are about the origins in
// trouble.
const maxRows = 200

// page returns the whole page, so that a slow client does not delay its making.
func (s *state) page() ([]byte, error) {
	var page bytes.Buffer
	err := pageTemplate.Execute(&page, s)
	return page.Bytes(), err
}

// Style is the CSS. Text has a contrast of at least 4.5 to 1 with its
// background.
func (s *state) Style() template.CSS { return template.CSS(style) }

// Counts returns those of all transports. The title has them, because it is all
// that a browser shows of a page in the background.
func (s *state) Counts() []string { return counts(s.Transports...) }

// Counts returns those of t.
func (t *transport) Counts() []string { return counts(t) }

// counts returns how many origins have each trouble, such as "2 waiting".
func counts(transports ...*transport) (all []string) {
	var n [troubles]int
	for _, t := range transports {
		for _, o := range t.Origins {
			n[o.Trouble]++
		}
	}
	for t, n := range n[:noTrouble] {
		if n > 0 {
			all = append(all, fmt.Sprintf("%d %v", n, trouble(t)))
		}
	}
	return all
}

// HasFile reports whether a transport has the policies of a file.
func (s *state) HasFile() bool {
	for _, t := range s.Transports {
		if t.File != nil {
			return true
		}
	}
	return false
}

// Since returns the time from t until the page was made.
func (s *state) Since(t *time.Time) string { return seconds(s.Time.Sub(*t)) }

// Until returns the time from when the page was made until t, rounded up.
func (s *state) Until(t *time.Time) string { return seconds(t.Sub(s.Time) + time.Second - 1) }

func seconds(d time.Duration) string { return max(d, 0).Truncate(time.Second).String() }

// Rows returns the origins that have rows.
func (t *transport) Rows() []origin { return t.Origins[:min(len(t.Origins), maxRows)] }

// LeftOut returns the number of the other origins.
func (t *transport) LeftOut() int { return len(t.Origins) - len(t.Rows()) }

// Failed returns the share of the attempts of the last minute that failed, or ""
// if it is not known.
func (o origin) Failed() string {
	if o.attempts == 0 {
		return ""
	}
	percent := 100 * float64(o.failures) / float64(o.attempts)
	return fmt.Sprintf("%.3g %% of %d", percent, o.attempts)
}

// Balance returns the balance of each budget, with its key if it is not the
// only one.
func (o origin) Balance() string {
	var all []string
	for _, b := range o.Budgets {
		text := "unknown"
		if b.Balance != nil {
			text = fmt.Sprint(*b.Balance)
		}
		if len(o.Budgets) > 1 && b.Key != "" {
			text += " for " + b.Key
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// Text returns the policies as retrylab check prints them.
func (p policy) Text() string {
	path := "default"
	if p.Key != "" {
		path = fmt.Sprintf("policies[%q]", p.Key)
	}
	var b strings.Builder
	fmt.Fprintln(&b, path)
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, f := range p.Fields {
		from := f.From
		switch from {
		case "":
			from = "-"
		case path:
			from = "own"
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\n", f.Name, from, f.Value)
	}
	_ = table.Flush() // a Builder has no errors
	return b.String()
}

// contentSecurityPolicy allows nothing but the style and an empty icon. A page
// without an icon makes browsers request /favicon.ico. The policy forbids that,
// and some browsers log an error.
var contentSecurityPolicy = "default-src 'none'; style-src '" + styleHash() +
	"'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func styleHash() string {
	sum := sha256.Sum256([]byte(style))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

var (
	//go:embed page.css
	style string

	//go:embed page.html
	pageText     string
	pageTemplate = template.Must(template.New("page").Parse(pageText))
)
