package retrydebug_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
	"github.com/seed421102f4/httpretry/retrydebug"
	"github.com/seed421102f4/httpretry/retrytest"
	"github.com/seed421102f4/httpretry/strategies"
)

// answers returns a RetryTransport whose base plays the step of the request's
// host name, or a 200.
func answers(
	t testing.TB, cfg httpretry.Config, steps map[string]retrytest.Step,
) *httpretry.RetryTransport {
	t.Helper()
	cfg.Base = retrytest.Base(t, retrytest.Always(retrytest.Func(
		func(req *http.Request) (*http.Response, error) {
			return retrytest.Base(t, steps[req.URL.Hostname()]).RoundTrip(req)
		})))
	transport, err := httpretry.New(cfg)
	require.NoError(t, err)
	return transport
}

// get sends a GET that is canceled when the test ends.
func get(t testing.TB, transport http.RoundTripper, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer header-secret")
	send(t, transport, req)
}

func send(t testing.TB, transport http.RoundTripper, req *http.Request) {
	t.Helper()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return
	}
	_, err = io.Copy(io.Discard, resp.Body)
	assert.NoError(t, err)
	assert.NoError(t, resp.Body.Close())
}

// scene is a RetryTransport with an origin in each state. Requests wait until
// the test ends.
func scene(t *testing.T) *httpretry.RetryTransport {
	slow := httpretry.Policy{Backoff: strategies.Constant{Wait: 10 * time.Minute}}
	quick := slow
	quick.MaxAttempts, quick.Backoff = 2, strategies.Constant{}
	none := slow
	none.Budget = &httpretry.HostBudget{Burst: -1}
	unlimited := slow
	unlimited.Budget = httpretry.Unlimited{}
	transport := answers(t, httpretry.Config{
		Policy: slow,
		Policies: map[string]httpretry.Policy{
			"failed.test": quick, "empty.test": none, "*.example.com": unlimited,
			"POST ok.test/search/{id}": none,
		},
	}, map[string]retrytest.Step{
		"posts.test":      {Status: 503},
		"failed.test":     {Status: 500},
		"empty.test":      {Status: 503},
		"waits.test":      {Status: 503},
		"api.example.com": retrytest.RetryAfter("3600"),
	})
	for range 3 {
		get(t, transport, "https://ok.test/path?query-secret")
	}
	get(t, transport, "https://fine.test/")
	for _, url := range []string{"https://ok.test/search/1", "https://posts.test/"} {
		req, err := http.NewRequest(http.MethodPost, url, nil)
		require.NoError(t, err)
		send(t, transport, req)
	}
	get(t, transport, "http://failed.test:8080/")
	get(t, transport, "http://empty.test/")
	get(t, transport, "https://api.example.com/")
	for range 2 {
		go get(t, transport, "https://user:password-secret@waits.test/")
	}
	synctest.Wait()
	return transport
}

// The page has all fields of each OriginStatus.
func TestPageShowsEveryState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := retrydebug.Handler(scene(t))
		time.Sleep(5500 * time.Millisecond)
		got := page(t, h, "")
		const of503 = "5s ago: 503 Service Unavailable"
		assert.Equal(t, [][]string{
			{"Origin", "State", "Failed, last minute", "Last failure", "Cool-down", "Waiting",
				"Balance"},
			{"https://api.example.com", "cooling down", "", "5s ago: 429 Too Many Requests",
				"ends in 59m55s", "", "unknown"},
			{"http://empty.test", "out of retries", "100 % of 1", of503, "", "", "0"},
			{"https://ok.test", "out of retries", "0 % of 4", "", "", "",
				"5, 0 for POST ok.test/search/{id}"},
			{"https://waits.test", "waiting", "100 % of 2", of503, "", "2", "3"},
			{"http://failed.test:8080", "failing", "100 % of 2", "5s ago: 500 Internal Server Error",
				"", "", "4"},
			{"https://posts.test", "failing", "100 % of 1", of503, "", "", "5"},
			{"https://fine.test", "ok", "0 % of 1", "", "", "", "5"},
		}, table(t, got))
		assert.Contains(t, got, "<title>httpretry · 1 cooling down · 2 out of retries · "+
			"1 waiting · 2 failing</title>")
		assert.Contains(t, text(got), "2000-01-01 00:00:05 UTC")
		time.Sleep(time.Hour)
		for _, row := range table(t, page(t, h, ""))[1:] {
			assert.Empty(t, row[2]+row[4], row)
			assert.NotEqual(t, "failing", row[1], row)
		}
	})
}

// The JSON has the values of Origins, with its times in UTC.
func TestJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := scene(t)
		time.Sleep(time.Second)
		report := readJSON(t, retrydebug.Handler(transport))
		now := time.Now().UTC()
		assert.Equal(t, now, report.Time)
		orNull := func(at time.Time) *time.Time {
			if at.IsZero() {
				return nil
			}
			at = at.UTC().Round(0) // no monotonic clock
			return &at
		}
		var want []originReport
		for _, s := range transport.Origins() {
			o := originReport{Origin: s.Origin, Waiting: s.Waiting,
				CooldownUntil: orNull(s.CooldownUntil), LastFailure: s.LastFailure,
				LastFailureAt: orNull(s.LastFailureAt), FailedWithoutRetry: s.FailedWithoutRetry}
			for _, b := range s.Budgets {
				balance := &b.Balance
				if !b.BalanceKnown {
					balance = nil
				}
				o.Budgets = append(o.Budgets, budgetReport{b.Key, balance,
					b.Successes, b.FailedRetries, b.RecentSuccesses, b.RecentFailures})
			}
			want = append(want, o)
		}
		assert.ElementsMatch(t, want, report.Transports[0].Origins)
	})
}

// The JSON in the package documentation is a response.
func TestDocumentedJSON(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	block := regexp.MustCompile(`(?s)//\t\{\n.*?\n//\t\}\n`).FindString(string(doc))
	synctest.Test(t, func(t *testing.T) {
		status := http.StatusOK
		base := retrytest.Base(t, retrytest.Always(retrytest.Func(
			func(req *http.Request) (*http.Response, error) {
				header := http.Header{"Retry-After": {"30"}}
				return &http.Response{StatusCode: status, Header: header}, nil
			})))
		transport, err := httpretry.New(httpretry.Config{
			Base: base, Policies: map[string]httpretry.Policy{"*.example.com": {}},
		})
		require.NoError(t, err)
		get(t, transport, "https://api.example.com/")
		status = http.StatusServiceUnavailable
		go get(t, transport, "https://api.example.com/")
		synctest.Wait()
		w := ask(retrydebug.Handler(transport), "GET", "?format=json")
		assert.Equal(t, strings.ReplaceAll(block, "//\t", ""), w.Body.String())
	})
}

// The package documentation describes each field of the JSON. readJSON fails if a
// response has another one.
func TestDocumentedFields(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	for _, object := range []any{report{}, transportReport{}, fileReport{}, policyReport{},
		originReport{}, budgetReport{}} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(object)) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			assert.Regexp(t, `(?m)^//\t *`+name+`( {1,}\w|$)`, string(doc))
		}
	}
}

// No response has a query, a path, a header, a credential or a CooldownKey.
func TestNoSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const secret = "key-secret"
		transport := answers(t, httpretry.Config{Policy: httpretry.Policy{
			CooldownKey: func(*http.Request) string { return secret },
		}}, map[string]retrytest.Step{"a.test": retrytest.RetryAfter("3600")})
		for _, url := range []string{
			"https://user:password-secret@a.test/path-secret?q=query-secret#fragment-secret",
			"https://b.test/path-secret?q=query-secret",
		} {
			get(t, transport, url)
		}
		hash := sha256.Sum256([]byte(secret))
		for _, query := range []string{"", "?format=json", "?refresh=0&q=own-secret"} {
			body := ask(retrydebug.Handler(transport), "GET", query).Body.String()
			assert.Contains(t, body, "https://a.test")
			for _, hidden := range []string{
				"secret", "user", string(hash[:8]), hex.EncodeToString(hash[:8]),
				base64.StdEncoding.EncodeToString(hash[:9]), "\ufffd", `\u`, "&#",
			} {
				assert.NotContains(t, body, hidden)
			}
		}
		// The cool-down is that of the key.
		assert.NotNil(t, readOrigins(t, retrydebug.Handler(transport))[0].CooldownUntil)
	})
}

// Several transports are on one page, each under its name. Those in trouble
// come first.
func TestPageOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet := answers(t, httpretry.Config{}, nil)
		get(t, quiet, "https://ok.test/")
		waits := answers(t, httpretry.Config{Policy: httpretry.Policy{
			Backoff: strategies.Constant{Wait: time.Hour}}},
			map[string]retrytest.Step{"waits.test": {Status: 503}})
		go get(t, waits, "https://waits.test/")
		h, err := retrydebug.New(retrydebug.Config{Transports: map[string]*httpretry.RetryTransport{
			"a quiet": quiet, "b unused": new(httpretry.RetryTransport), "c waits": waits,
			"d": scene(t)}})
		require.NoError(t, err)
		got := page(t, h, "")
		var names []string
		for _, s := range sections(got) {
			names = append(names, heading(s))
		}
		assert.Equal(t, []string{"d", "c waits", "a quiet", "b unused"}, names)
		assert.Equal(t, []string{"https://waits.test", "waiting"},
			table(t, sections(got)[1])[1][:2])
		// The title is about all of them.
		assert.Contains(t, got, "<title>httpretry · 1 cooling down · 2 out of retries · "+
			"2 waiting · 2 failing</title>")

		var objects []string
		for _, transport := range readJSON(t, h).Transports {
			objects = append(objects, transport.Name)
		}
		assert.Equal(t, names, objects)
	})
}

// The JSON has the same shape for one transport and for several. That of
// Handler has no name, and a page of one has none above its table.
func TestOneOrSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := scene(t)
		one := retrydebug.Handler(transport)
		named, err := retrydebug.New(retrydebug.Config{
			Transports: map[string]*httpretry.RetryTransport{"search": transport}})
		require.NoError(t, err)
		withoutName := ask(one, "GET", "?format=json").Body.String()
		assert.Contains(t, withoutName, `"name": ""`)
		assert.Equal(t, strings.Replace(withoutName, `"name": ""`, `"name": "search"`, 1),
			ask(named, "GET", "?format=json").Body.String())

		assert.NotContains(t, page(t, one, ""), "<h2")
		assert.Equal(t, "search", heading(page(t, named, "")))
		assert.Equal(t, table(t, page(t, one, "")), table(t, page(t, named, "")))
	})
}

// A transport with a file has the last change of the file, and on request its
// policies as retrylab check prints them.
func TestFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, path := new(httpretry.RetryTransport), filepath.Join(t.TempDir(), "&lt;p.json")
		r := &policyfile.Reloader{Path: path, Transport: transport, Report: func(error) {}}
		h, err := retrydebug.New(retrydebug.Config{
			Transports: map[string]*httpretry.RetryTransport{
				"z": transport, "b": new(httpretry.RetryTransport)},
			Reloaders: []*policyfile.Reloader{r},
		})
		require.NoError(t, err)
		assert.Contains(t, text(page(t, h, "?policies")), path+": not read yet")
		assert.Equal(t, &fileReport{Path: path}, readJSON(t, h, "&policies").Transports[1].File)

		write := func(contents string) {
			require.NoError(t, os.WriteFile(path, []byte(contents), 0o600))
		}
		write(`{"default": {"maxAttempts": 4}, "policies": {"a.test": {"attemptTimeout": "2s"}}}`)
		require.NoError(t, r.Reload())
		time.Sleep(time.Minute)
		got := page(t, h, "?policies")
		assert.Contains(t, text(got), path+": changed 1m0s ago")
		assert.NotContains(t, got, "http-equiv")
		for _, want := range []string{
			"\ndefault\n  maxAttempts        own  4\n",
			"\npolicies[\"a.test\"]\n  maxAttempts        default  4\n",
			"\n  attemptTimeout     own      2s\n", "\n  cooldown           -        send\n",
		} {
			assert.Contains(t, "\n"+strings.ReplaceAll(text(got), "\"2s\"", "2s"), want)
		}
		all := readJSON(t, h, "&policies").Transports
		assert.Nil(t, all[0].File)
		require.Len(t, all[1].Policies, 2)
		assert.Equal(t, "a.test", all[1].Policies[1].Key)
		field := all[1].Policies[1].Fields[0]
		assert.Equal(t, []string{"maxAttempts", "4", "default"},
			[]string{field.Name, field.Value, field.From})

		// Policies remain if the next file is not valid. Then the transport comes
		// first. Policies are not shown unless they are asked for.
		write("<")
		require.Error(t, r.Reload())
		got = page(t, h, "")
		assert.Contains(t, text(got), path+": changed 0s ago, not in effect: the policies before it remain\n"+
			path+":1:1: invalid character")
		assert.NotContains(t, text(got), "maxAttempts")
		assert.Contains(t, text(page(t, h, "?policies")), "maxAttempts")
		first := readJSON(t, h).Transports[0]
		assert.Nil(t, first.Policies)
		assert.Contains(t, first.File.Error, path+":1:1: ")
		assert.Equal(t, time.Now().UTC(), *first.File.ChangedAt)
	})
}
