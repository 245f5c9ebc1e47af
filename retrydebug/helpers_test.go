package retrydebug_test

import (
	"encoding/json"
	"html"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrydebug"
)

// The times of responses are in UTC, wherever the process is.
func init() { time.Local = time.FixedZone("east", 5*60*60) }

// show returns a handler of the given origins.
func show(origins ...httpretry.OriginStatus) http.Handler {
	return retrydebug.NamedHandlerOf(map[string][]httpretry.OriginStatus{"": origins})
}

// withBudget returns s with one budget, which allows n retries.
func withBudget(s httpretry.OriginStatus, n int) httpretry.OriginStatus {
	s.Budgets = []httpretry.BudgetStatus{{Balance: n, BalanceKnown: true}}
	return s
}

// ask sends a request to h.
func ask(h http.Handler, method, query string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, "/debug/httpretry"+query, nil)
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

// page returns the page of h.
func page(t *testing.T, h http.Handler, query string) string {
	t.Helper()
	w := ask(h, http.MethodGet, query)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
	return w.Body.String()
}

var (
	rowOf  = regexp.MustCompile(`(?s)<tr>(.*?)</tr>`)
	cellOf = regexp.MustCompile(`(?s)<t[hd][ >].*?</t[hd]>`)
	tag    = regexp.MustCompile(`<[^>]*>`)
)

// text returns the text of a part of a page.
func text(part string) string { return html.UnescapeString(tag.ReplaceAllString(part, "")) }

// table returns the text of each cell of the page's table. The first row has
// the names of the columns.
func table(t *testing.T, page string) (rows [][]string) {
	t.Helper()
	for _, row := range rowOf.FindAllStringSubmatch(page, -1) {
		var cells []string
		for _, cell := range cellOf.FindAllString(row[1], -1) {
			cells = append(cells, text(cell))
		}
		rows = append(rows, cells)
	}
	require.NotEmpty(t, rows, "the page has no table")
	return rows
}

// sections returns the parts of a page about its transports, by their order.
func sections(page string) []string {
	return regexp.MustCompile(`(?s)<section.*?</section>`).FindAllString(page, -1)
}

// heading returns the name of the transport that a section is about.
func heading(section string) string {
	return text(regexp.MustCompile(`<h2>.*</h2>`).FindString(section))
}

// report is the JSON, as the package documentation describes it.
type report struct {
	Time       time.Time         `json:"time"`
	Transports []transportReport `json:"transports"`
}

type transportReport struct {
	Name     string         `json:"name"`
	File     *fileReport    `json:"file,omitempty"`
	Policies []policyReport `json:"policies,omitempty"`
	Origins  []originReport `json:"origins"`
}

type fileReport struct {
	Path      string     `json:"path"`
	ChangedAt *time.Time `json:"changedAt"`
	Error     string     `json:"error"`
}

type policyReport struct {
	Key    string `json:"key"`
	Fields []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
		From  string `json:"from"`
	} `json:"fields"`
}

type originReport struct {
	Origin             string         `json:"origin"`
	Waiting            int            `json:"waiting"`
	CooldownUntil      *time.Time     `json:"cooldownUntil"`
	LastFailure        string         `json:"lastFailure"`
	LastFailureAt      *time.Time     `json:"lastFailureAt"`
	FailedWithoutRetry int            `json:"failedWithoutRetry"`
	Budgets            []budgetReport `json:"budgets"`
}

type budgetReport struct {
	Key           string `json:"key"`
	Balance       *int   `json:"balance"`
	Successes     int    `json:"successes"`
	FailedRetries int    `json:"failedRetries"`

	RecentSuccesses int `json:"recentSuccesses"`
	RecentFailures  int `json:"recentFailures"`
}

// readJSON returns the JSON of h. A field that is missing here, or there, is a
// failure.
func readJSON(t *testing.T, h http.Handler, query ...string) (r report) {
	t.Helper()
	w := ask(h, http.MethodGet, "?format=json"+strings.Join(query, ""))
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	decoder := json.NewDecoder(strings.NewReader(w.Body.String()))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&r))
	again, err := json.Marshal(r)
	require.NoError(t, err)
	assert.JSONEq(t, string(again), w.Body.String())
	return r
}

// readOrigins returns the origins in the JSON of h, which shows one transport.
func readOrigins(t *testing.T, h http.Handler) []originReport {
	t.Helper()
	transports := readJSON(t, h).Transports
	require.Len(t, transports, 1)
	return transports[0].Origins
}
