package retrydebug_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
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
		origins := append([]httpretry.OriginStatus(nil), sorted...)
		random := rand.New(rand.NewPCG(seed, 0))
		random.Shuffle(len(origins), func(i, j int) {
			origins[i], origins[j] = origins[j], origins[i]
		})
		h := show(origins...)
		var rows, objects []string
		for _, row := range table(t, page(t, h, ""))[1:] {
			rows = append(rows, row[0])
		}
		for _, s := range readStatuses(t, h) {
			objects = append(objects, s.Origin)
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
					Budgets: []httpretry.BudgetStatus{{Key: name}, {Key: name}}})
			}
			h := of(name)
			got := page(t, h, "")
			// A parser replaces a zero byte.
			shown := strings.ReplaceAll(name, "\x00", "\ufffd")
			row := table(t, got)[1]
			assert.Equal(t, []string{"http://" + shown, "0s ago: " + shown,
				"unknown for " + shown + ", unknown for " + shown},
				[]string{row[0], row[3], row[6]})
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
		h := retrydebug.Handler(sendToMany(t, 2*1100))
		assert.Contains(t, page(t, h, ""), "<caption>Origins: 2048 · 1024 cooling down</caption>")
		assert.Len(t, readOrigins(t, h), 2*1024)
	})
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
