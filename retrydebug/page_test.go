package retrydebug_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrydebug"
	"github.com/seed421102f4/httpretry/retrytest"
)

func TestEmptyPage(t *testing.T) {
	got := page(t, show(), "")
	assert.Contains(t, got, "No requests yet.")
	assert.NotContains(t, got, "<table")
	assert.Contains(t, got, "<title>httpretry</title>")
	assert.Contains(t, ask(show(), "GET", "?format=json").Body.String(), `"origins": []`)
}

func TestTitleOfQuietPage(t *testing.T) {
	got := page(t, show(withBudget(httpretry.OriginStatus{Origin: "http://a.test"}, 5)), "")
	assert.Contains(t, got, "<title>httpretry</title>")
	assert.Contains(t, text(got), "1 origin 1 ok\n")
}

// Rows are in the order of the package documentation, whatever the order of
// Origins is.
func TestOrder(t *testing.T) {
	end := time.Now().Add(time.Minute)
	type status = httpretry.OriginStatus
	type budgets = []httpretry.BudgetStatus
	now := time.Now()
	sorted := []status{
		withBudget(status{Origin: "cools, balance 0", CooldownUntil: end}, 0),
		withBudget(status{Origin: "cools, waiting", CooldownUntil: end, Waiting: 1}, 5),
		{Origin: "cools, failed", CooldownUntil: end, Budgets: budgets{{FailedRetries: 2}}},
		{Origin: "cools, less failed", CooldownUntil: end, Budgets: budgets{{FailedRetries: 1}}},
		withBudget(status{Origin: "cools, a", CooldownUntil: end}, 1),
		{Origin: "cools, b", CooldownUntil: end.Add(-time.Second), Budgets: budgets{{}}},
		{Origin: "balance 0, waiting", Waiting: 1, Budgets: budgets{{}, {BalanceKnown: true}}},
		withBudget(status{Origin: "balance 0"}, 0),
		withBudget(status{Origin: "balance below 0"}, -1), // of a Budget of the program
		withBudget(status{Origin: "waiting", Waiting: 100}, 5),
		{Origin: "less waiting, failed", Waiting: 99, Budgets: budgets{{FailedRetries: 7}}},
		{Origin: "less waiting", Waiting: 99, Budgets: budgets{{FailedRetries: 6}}},
		{Origin: "failed", LastFailureAt: now.Add(-30 * time.Second),
			Budgets: budgets{{FailedRetries: 50}, {FailedRetries: 50}}},
		{Origin: "less failed", LastFailureAt: now,
			Budgets: budgets{{FailedRetries: 49}, {FailedRetries: 50}}},
		withBudget(status{Origin: "x, not retried", LastFailureAt: now.Add(-time.Second)}, 5),
		withBudget(status{Origin: "not retried", LastFailureAt: now.Add(-50 * time.Second)}, 5),
		{Origin: "was failing", LastFailureAt: now.Add(-time.Hour),
			Budgets: budgets{{FailedRetries: 1000}}},
		withBudget(status{Origin: "ok"}, 5),
		withBudget(status{Origin: "ok, too"}, 1),
		{Origin: "other", Budgets: budgets{{}}},
	}
	var names []string
	for _, s := range sorted {
		names = append(names, s.Origin)
	}
	for seed := range uint64(5) {
		origins := append([]httpretry.OriginStatus(nil), sorted...)
		random := rand.New(rand.NewPCG(seed, 0))
		random.Shuffle(len(origins), func(i, j int) {
			origins[i], origins[j] = origins[j], origins[i]
		})
		h := show(origins...)
		var rows, objects []string
		for _, row := range table(t, page(t, h, ""))[1:] {
			if row[1] != "" {
				rows = append(rows, row[0])
			}
		}
		for _, s := range readStatuses(t, h) {
			objects = append(objects, s.Origin)
		}
		require.Equal(t, names, rows, "seed %d", seed)
		require.Equal(t, names, objects, "seed %d", seed)
	}
}

// An origin is failing for a minute after a failure, whether it may be retried
// or not. The time since a failure has one unit and is rounded down.
func TestSinceFailure(t *testing.T) {
	for since, want := range map[time.Duration]string{
		-time.Second:                   "0 s",
		time.Second - 1:                "0 s",
		59 * time.Second:               "59 s",
		time.Minute - 1:                "59 s",
		time.Minute:                    "1 min",
		time.Hour - 1:                  "59 min",
		90 * time.Minute:               "1 h",
		48*time.Hour - 1:               "47 h",
		48 * time.Hour:                 "2 days",
		72*time.Hour + 5*time.Minute:   "3 days",
		4*24*time.Hour - 1*time.Second: "3 days",
	} {
		synctest.Test(t, func(t *testing.T) {
			h := show(withBudget(httpretry.OriginStatus{
				LastFailure: "timeout", LastFailureAt: time.Now().Add(-since)}, 5))
			state := "ok"
			if since < time.Minute {
				state = "failing"
			}
			cells := table(t, page(t, h, ""))[1]
			assert.Equal(t, state, cells[1], since)
			assert.Equal(t, "timeout, "+want+" ago", cells[3])
		})
	}
}

func TestCooldownInWords(t *testing.T) {
	for rest, want := range map[time.Duration]string{
		-time.Minute:                     "ends in 0 s",
		time.Nanosecond:                  "ends in 1 s",
		time.Second:                      "ends in 1 s",
		12 * time.Second:                 "ends in 12 s",
		12*time.Second + 1:               "ends in 13 s",
		59*time.Second + time.Nanosecond: "ends in 1 min",
		60 * time.Second:                 "ends in 1 min",
		61 * time.Second:                 "ends in 1 min 1 s",
		time.Hour:                        "ends in 60 min",
	} {
		synctest.Test(t, func(t *testing.T) {
			h := show(withBudget(httpretry.OriginStatus{CooldownUntil: time.Now().Add(rest)}, 1))
			assert.Equal(t, want, table(t, page(t, h, ""))[1][2])
		})
	}
}

// Names are text, whatever they contain.
func TestEscaping(t *testing.T) {
	for _, name := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onclick='alert(1)`,
		`&lt;b&gt;`, `{{.Style}}`, "</title></style><b>", "a\x00b", "ü", "javascript:alert(1)",
	} {
		t.Run(name, func(t *testing.T) {
			of := func(name string) http.Handler {
				return show(httpretry.OriginStatus{
					Origin: "http://" + name, LastFailure: name, LastFailureAt: time.Now(),
					Budgets: []httpretry.BudgetStatus{{Key: name}}})
			}
			h := of(name)
			got := page(t, h, "")
			// A parser replaces a zero byte.
			shown := strings.ReplaceAll(name, "\x00", "\ufffd")
			row := table(t, got)[1]
			assert.Equal(t, []string{"http://" + shown, shown}, []string{row[0], row[6]})
			assert.Regexp(t, "^"+regexp.QuoteMeta(shown)+", . s ago$", row[3])
			plain := page(t, of("a"), "")
			assert.Equal(t, strings.Count(plain, "<"), strings.Count(got, "<"))
			assert.Equal(t, strings.Count(plain, `"`), strings.Count(got, `"`))
			decoded := readStatuses(t, h)[0]
			assert.Equal(t, []string{"http://" + name, name, name},
				[]string{decoded.Origin, decoded.LastFailure, decoded.Budgets[0].Key})
			assert.NotContains(t, ask(h, "GET", "?format=json").Body.String(), "<")
		})
	}
}

// The names of transports are text, too.
func TestEscapingOfNames(t *testing.T) {
	for _, name := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `&lt;b&gt;`, `{{.Style}}`,
		"</title></style><b>", "ü", " ",
	} {
		of := func(name string) http.Handler {
			origins := map[string][]httpretry.OriginStatus{name: many(1, "a")}
			return retrydebug.NamedHandlerOf(origins)
		}
		got, plain := page(t, of(name), ""), page(t, of("a"), "")
		assert.Equal(t, name, heading(got))
		assert.Equal(t, strings.Count(plain, "<"), strings.Count(got, "<"))
		assert.Equal(t, strings.Count(plain, `"`), strings.Count(got, `"`))
		assert.Equal(t, name, readJSON(t, of(name)).Transports[0].Name)
		assert.NotContains(t, ask(of(name), "GET", "?format=json").Body.String(), "<")
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

// A page says how many of the last origins it leaves out, and shows no part of
// the budgets of one. The JSON has all.
func TestPageLeavesOriginsOut(t *testing.T) {
	for n, leftOut := range map[int]int{128: 0, 129: 1, 1000: 872} {
		origins := many(n, "a")
		for i := range origins {
			origins[i].Budgets = slices.Repeat(origins[i].Budgets, 16)
		}
		got := page(t, show(origins...), "")
		rows := table(t, got)[1:]
		assert.Len(t, rows, 16*min(n, 128))
		assert.Equal(t, "*.example.com", rows[15][6])
		assert.Contains(t, text(got), fmt.Sprintf("%d origins ", n))
		assert.Equal(t, leftOut > 0, strings.Contains(got, "left out"))
		if leftOut > 0 {
			verb := "origins are"
			if leftOut == 1 {
				verb = "origin is"
			}
			assert.Contains(t, text(got), fmt.Sprintf("\n%d more %s left out.", leftOut, verb))
		}
		assert.Len(t, readOrigins(t, show(origins...)), n)
	}
	// After an origin that has no room, none has, so that the rows are those of
	// the first origins.
	origins := many(129, "a")
	for i := range origins {
		origins[i].CooldownUntil, origins[i].Waiting = time.Time{}, 1000-i
		origins[i].Budgets = slices.Repeat([]httpretry.BudgetStatus{{Key: "a.test"}}, 16)
	}
	origins[127].Budgets = append(origins[127].Budgets, httpretry.BudgetStatus{})
	origins[128].Budgets = origins[128].Budgets[:1]
	got := page(t, show(origins...), "")
	assert.Contains(t, got, origins[126].Origin)
	assert.Contains(t, text(got), "\n2 more origins are left out.")
}

// The rows of all transports together are those of the first origins, whatever
// their names are.
func TestPageOfSeveralLeavesOriginsOut(t *testing.T) {
	quiet := func(n int, name string) []httpretry.OriginStatus {
		origins := many(n, name)
		for i := range origins {
			origins[i] = withBudget(httpretry.OriginStatus{Origin: origins[i].Origin}, 5)
		}
		return origins
	}
	waiting := withBudget(httpretry.OriginStatus{Origin: "https://z.test", Waiting: 1}, 5)
	h := retrydebug.NamedHandlerOf(map[string][]httpretry.OriginStatus{
		"a": quiet(1500, "a"),
		"b": quiet(1500, "b"),
		"c": append(quiet(10, "c"), waiting),
		"d": {},
	})
	var rows []int
	var names []string
	all := sections(page(t, h, ""))
	for _, s := range all {
		rows = append(rows, max(strings.Count(s, "<tr ")-1, 0))
		names = append(names, heading(s))
	}
	assert.Equal(t, []string{"c", "a", "b", "d"}, names)
	assert.Equal(t, []int{1, 1500, 547, 0}, rows)
	assert.Contains(t, all[0], waiting.Origin)
	assert.Contains(t, text(all[0]), "\n10 more origins are left out.")
	assert.NotContains(t, all[1], "left out")
	assert.Contains(t, text(all[2]), "\n953 more origins are left out.")
	assert.Contains(t, text(all[3]), "No requests yet.")

	h = retrydebug.NamedHandlerOf(map[string][]httpretry.OriginStatus{
		"a": quiet(2048, "a"), "b": quiet(1, "b"),
	})
	all = sections(page(t, h, ""))
	assert.Contains(t, text(all[1]), "\n1 origin is left out. The JSON has all of them.")
	assert.NotContains(t, all[1], "<table")
	assert.NotContains(t, all[1], "No requests yet.")
	assert.Len(t, readJSON(t, h).Transports[1].Origins, 1)
}

// The size of a page has a bound, because a RetryTransport does not remember
// longer names.
func TestLargePage(t *testing.T) {
	got := page(t, show(many(2048, strings.Repeat("<", 230))...), "")
	assert.Equal(t, 1+2048, strings.Count(got, "<tr "))
	assert.Less(t, len(got), 4<<20)
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

// Screen readers know the table, even where the style makes blocks of its rows.
func TestAccessibility(t *testing.T) {
	got := page(t, show(many(3, "a")...), "")
	assert.Contains(t, got, `<html lang="en">`)
	assert.Contains(t, got, `<meta name="viewport" content="width=device-width, initial-scale=1">`)
	assert.Contains(t, got, `<table role="table" aria-labelledby="transport-1-summary">`)
	assert.Contains(t, got, `<caption id="transport-1-summary">`)
	columns := regexp.MustCompile(`<th role="columnheader" scope="col"[^>]*>([^<]*)</th>`).
		FindAllStringSubmatch(got, -1)
	require.Len(t, columns, 10)
	rows := rowOf.FindAllString(got, -1)[1:]
	require.Len(t, rows, 3)
	for _, row := range rows {
		assert.Equal(t, 1, strings.Count(row, `<th role="rowheader" scope="row">`))
		cells := regexp.MustCompile(`<td role="cell" data-label="([^"]*)"`).
			FindAllStringSubmatch(row, -1)
		require.Len(t, cells, 9)
		for i, cell := range cells {
			assert.Equal(t, columns[i+1][1], cell[1])
		}
	}
}

// Each table and its part of the page have the name of the transport. No two
// elements have the same id.
func TestAccessibilityOfSeveral(t *testing.T) {
	got := page(t, retrydebug.NamedHandlerOf(map[string][]httpretry.OriginStatus{
		"a": many(1, "a"), "b": many(1, "b"), "c": nil,
	}), "")
	for i, s := range sections(got) {
		id := fmt.Sprintf("transport-%d", i+1)
		assert.Contains(t, s, `<section aria-labelledby="`+id+`">`)
		assert.Contains(t, s, `<h2 id="`+id+`">`)
		if heading(s) != "c" {
			assert.Contains(t, s, `aria-labelledby="`+id+" "+id+`-summary"`)
			assert.Contains(t, s, `<caption id="`+id+`-summary">`)
		}
	}
	ids := regexp.MustCompile(` id="[^"]*"`).FindAllString(got, -1)
	assert.Len(t, ids, 5)
	slices.Sort(ids)
	assert.Len(t, slices.Compact(ids), 5)
}

// sendToMany returns a RetryTransport that has sent requests to n origins. Half
// of them cool down.
func sendToMany(t testing.TB, n int) *httpretry.RetryTransport {
	base := retrytest.Base(t, retrytest.Always(retrytest.Func(
		func(req *http.Request) (*http.Response, error) {
			resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}}
			if strings.HasPrefix(req.URL.Host, "cools") {
				resp.StatusCode = http.StatusTooManyRequests
				resp.Header.Set("Retry-After", "3600")
			}
			return resp, nil
		})))
	transport, err := httpretry.New(httpretry.Config{Base: base,
		Policies: map[string]httpretry.Policy{"*.example.com": {}}})
	require.NoError(t, err)
	for i := range n / 2 {
		get(t, transport, fmt.Sprintf("https://api%d.example.com/", i))
		get(t, transport, fmt.Sprintf("http://cools%d.test/", i))
	}
	return transport
}

// A RetryTransport has at most 1024 origins of each scheme.
func TestThousandOrigins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := retrydebug.Handler(sendToMany(t, 1000))
		got := page(t, h, "")
		assert.Equal(t, 1+1000, strings.Count(got, "<tr "))
		assert.Contains(t, text(got), "1000 origins 500 cooling down 500 ok\n")
		assert.Len(t, readOrigins(t, h), 1000)

		h = retrydebug.Handler(sendToMany(t, 2*1100))
		assert.Equal(t, 1+2*1024, strings.Count(page(t, h, ""), "<tr "))
	})
}

func BenchmarkPage(b *testing.B) {
	for _, query := range []string{"", "?format=json"} {
		b.Run("1000"+query, func(b *testing.B) {
			h := retrydebug.Handler(sendToMany(b, 1000))
			b.ReportAllocs()
			for b.Loop() {
				if w := ask(h, "GET", query); w.Code != 200 {
					b.Fatal(w.Code)
				}
			}
		})
	}
}
