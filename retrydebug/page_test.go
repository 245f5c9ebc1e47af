package retrydebug_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrydebug"
)

func TestEmptyPage(t *testing.T) {
	got := page(t, show(), "")
	assert.Contains(t, got, "No requests yet.")
	assert.NotContains(t, got, "<table")
	assert.Contains(t, got, "<title>httpretry</title>")
	assert.Contains(t, ask(show(), "GET", "?format=json").Body.String(), `"origins": []`)
	quiet := show(withBudget(httpretry.OriginStatus{Origin: "http://a.test"}, 5))
	assert.Contains(t, page(t, quiet, ""), "<title>httpretry</title>")
}

// Rows are in the order of the package documentation, whatever the order of
// Origins is.
func TestOrder(t *testing.T) {
	end := time.Now().Add(time.Minute)
	type status = httpretry.OriginStatus
	type budgets = []httpretry.BudgetStatus
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	sorted := []status{
		withBudget(status{Origin: "cools, waiting", CooldownUntil: end, Waiting: 1}, 0),
		{Origin: "cools, failed later", CooldownUntil: end, LastFailureAt: now},
		{Origin: "cools, failed", CooldownUntil: end, LastFailureAt: ago(time.Hour)},
		{Origin: "cools", CooldownUntil: end.Add(-time.Second)},
		{Origin: "balance 0, waiting", Waiting: 1, Budgets: budgets{{}, {BalanceKnown: true}}},
		withBudget(status{Origin: "balance 0"}, 0),
		withBudget(status{Origin: "balance below 0"}, -1), // of a Budget of the program
		withBudget(status{Origin: "waiting", Waiting: 100}, 5),
		{Origin: "less waiting", Waiting: 99, LastFailureAt: now},
		{Origin: "failed", LastFailureAt: now,
			Budgets: budgets{{RecentSuccesses: 10, RecentFailures: 8}, {RecentFailures: 2}}},
		{Origin: "earlier", LastFailureAt: ago(50 * time.Second), FailedWithoutRetry: 9},
		{Origin: "some fail", LastFailureAt: now,
			Budgets: budgets{{RecentSuccesses: 10, RecentFailures: 9}}},
		{Origin: "was failing", LastFailureAt: ago(time.Minute)},
		withBudget(status{Origin: "ok"}, 5),
		{Origin: "ok, too", Budgets: budgets{{}}},
	}
	var names []string
	for _, s := range sorted {
		names = append(names, s.Origin)
	}
	for seed := range uint64(5) {
		origins := make([]status, len(sorted))
		for to, from := range rand.New(rand.NewPCG(seed, 0)).Perm(len(sorted)) {
			origins[to] = sorted[from]
		}
		h := show(origins...)
		var rows, objects []string
		for _, row := range table(t, page(t, h, ""))[1:] {
			rows = append(rows, row[0])
		}
		for _, o := range readOrigins(t, h) {
			objects = append(objects, o.Origin)
		}
		require.Equal(t, names, rows, "seed %d", seed)
		require.Equal(t, names, objects, "seed %d", seed)
	}
}

// The time since a failure is rounded down, and that until the end of a
// cool-down up.
func TestTimes(t *testing.T) {
	for d, want := range map[time.Duration][2]string{
		-time.Second:       {"0s", "0s"},
		time.Second - 1:    {"0s", "1s"},
		time.Second:        {"1s", "1s"},
		90*time.Minute + 1: {"1h30m0s", "1h30m1s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			row := table(t, page(t, show(httpretry.OriginStatus{
				LastFailure: "timeout", LastFailureAt: time.Now().Add(-d),
				CooldownUntil: time.Now().Add(d)}), ""))[1]
			assert.Equal(t, []string{want[0] + " ago: timeout", "ends in " + want[1]}, row[3:5])
		})
	}
}

// Names are text, whatever they contain: those of transports, origins, failures
// and keys.
func TestEscaping(t *testing.T) {
	of := func(name string) http.Handler {
		return retrydebug.NamedHandlerOf(map[string][]httpretry.OriginStatus{name: {{
			Origin: "http://" + name, LastFailure: name, LastFailureAt: time.Now(),
			Budgets: []httpretry.BudgetStatus{{Key: name}, {Key: name}}}}})
	}
	plain := page(t, of("a"), "")
	for _, name := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onclick='alert(1)`,
		`&lt;b&gt;`, `{{.Style}}`, "</title></style><b>", "a\x00b", "ü", " ", "javascript:alert()",
	} {
		t.Run(name, func(t *testing.T) {
			h := of(name)
			got := page(t, h, "")
			// A parser replaces a zero byte.
			shown := strings.ReplaceAll(name, "\x00", "\ufffd")
			row := table(t, got)[1]
			assert.Equal(t, []string{shown, "http://" + shown, "0s ago: " + shown,
				"unknown for " + shown + ", unknown for " + shown},
				[]string{heading(got), row[0], row[3], row[6]})
			assert.Equal(t, strings.Count(plain, "<"), strings.Count(got, "<"))
			assert.Equal(t, strings.Count(plain, `"`), strings.Count(got, `"`))
			decoded := readJSON(t, h).Transports[0]
			origin := decoded.Origins[0]
			assert.Equal(t, []string{name, "http://" + name, name, name},
				[]string{decoded.Name, origin.Origin, origin.LastFailure, origin.Budgets[0].Key})
			assert.NotContains(t, ask(h, "GET", "?format=json").Body.String(), "<")
		})
	}
}

// many returns n origins with all that takes space on the page.
func many(n int, name string) []httpretry.OriginStatus {
	all := make([]httpretry.OriginStatus, n)
	for i := range all {
		all[i] = httpretry.OriginStatus{
			Origin:  fmt.Sprintf("https://%s%d.example.com", name, i),
			Waiting: i % 3, LastFailure: "503 Service Unavailable", LastFailureAt: time.Now(),
			FailedWithoutRetry: i,
			Budgets: []httpretry.BudgetStatus{{Key: "*.example.com",
				Balance: i % 7, BalanceKnown: true, Successes: i, FailedRetries: i % 5}},
		}
		if i%2 == 0 {
			all[i].CooldownUntil = time.Now().Add(time.Hour)
		}
	}
	return all
}

// A table has the first origins, and the JSON has all.
func TestManyOrigins(t *testing.T) {
	for n, leftOut := range map[int]int{200: 0, 201: 1, 2048: 1848} {
		h := show(many(n, strings.Repeat("<", 230))...)
		got := page(t, h, "")
		assert.Len(t, table(t, got)[1:], min(n, 200))
		more := fmt.Sprintf("\n%d more in the JSON.", leftOut)
		assert.Equal(t, leftOut > 0, strings.Contains(text(got), more))
		assert.Len(t, readOrigins(t, h), n)
		assert.Less(t, len(got), 1<<20)
	}
}

func TestRefresh(t *testing.T) {
	for query, refreshes := range map[string]bool{
		"": true, "?": true, "?refresh=0": false, "?refresh=5": true, "?refresh=x": true,
		"?refresh=0&format=html": false,
	} {
		t.Run(query, func(t *testing.T) {
			got := page(t, show(), query)
			assert.Equal(t, refreshes,
				strings.Contains(got, `<meta http-equiv="refresh" content="5">`))
			assert.Equal(t, refreshes, strings.Contains(got, `<a href="?refresh=0">`))
			assert.Equal(t, !refreshes, strings.Contains(got, `<a href="?">`))
			assert.Contains(t, got, `<a href="?format=json">`)
		})
	}
}

// Browsers apply the style only if the Content-Security-Policy has its hash.
// The page needs nothing that the policy forbids.
func TestContentSecurityPolicy(t *testing.T) {
	w := ask(show(many(3, "a")...), "GET", "")
	body := w.Body.String()
	style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(body)
	require.NotNil(t, style)
	hash := sha256.Sum256([]byte(style[1]))
	assert.Contains(t, w.Header().Get("Content-Security-Policy"),
		"style-src 'sha256-"+base64.StdEncoding.EncodeToString(hash[:])+"';")
	// Browsers want an icon.
	assert.Contains(t, body, `<link rel="icon" href="data:,">`)
	assert.Contains(t, w.Header().Get("Content-Security-Policy"), "; img-src data:;")
	assert.NotRegexp(t, `<script|<iframe|<form|<img| style=| on[a-z]+=|url\(|@import`, body)
	link := regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	for _, link := range link.FindAllStringSubmatch(body, -1) {
		assert.Regexp(t, `^(\?|data:,$)`, link[1])
	}
}

// Screen readers know the names of the table, its columns and its rows.
func TestAccessibility(t *testing.T) {
	got := page(t, show(many(3, "a")...), "")
	assert.Contains(t, got, `<html lang="en">`)
	assert.Contains(t, got, `<meta name="viewport" content="width=device-width, initial-scale=1">`)
	assert.Contains(t, got, "<caption>Origins: 3 · 2 cooling down · 1 waiting</caption>")
	assert.Equal(t, 7, strings.Count(got, `<th scope="col">`))
	assert.Equal(t, 3, strings.Count(got, `<th scope="row">`))
}

// One failure in twenty is no outage.
func TestShare(t *testing.T) {
	for want, b := range map[string]httpretry.BudgetStatus{
		"some fail 5 % of 400":    {RecentSuccesses: 380, RecentFailures: 20},
		"some fail 0.1 % of 1000": {RecentSuccesses: 999, RecentFailures: 1},
		"failing 50 % of 2":       {RecentSuccesses: 1, RecentFailures: 1},
		"failing ":                {}, // of a Budget that does not count
	} {
		row := table(t, page(t, show(httpretry.OriginStatus{
			LastFailureAt: time.Now(), Budgets: []httpretry.BudgetStatus{b}}), ""))[1]
		assert.Equal(t, want, row[1]+" "+row[2])
	}
}

// Responses may be made at the same time.
func TestConcurrentUse(t *testing.T) {
	h := show(many(50, "a")...)
	var wg sync.WaitGroup
	for _, query := range []string{"", "", "?format=json", "?format=json"} {
		wg.Go(func() { assert.Equal(t, 200, ask(h, "GET", query).Code) })
	}
	wg.Wait()
}
