package retrydebug_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
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
		assert.Equal(t, [][]string{
			{"Origin", "State", "Cool-down", "Last failure", "Not retried", "Waiting",
				"Budget", "Balance", "Failed retries", "Successes"},
			{"https://api.example.com", "cooling down", "ends in 59 min 55 s",
				"429 Too Many Requests, 5 s ago", "1", "0", "*.example.com", "unknown", "0", "0"},
			{"http://empty.test", "out of retries", "none", "503 Service Unavailable, 5 s ago", "1", "0",
				"empty.test", "0", "0", "0"},
			{"https://ok.test", "out of retries", "none", "none", "0", "0", "default", "5", "0", "3"},
			{"https://ok.test", "", "", "", "", "", "POST ok.test/search/{id}", "0", "0", "1"},
			{"https://waits.test", "waiting", "none", "503 Service Unavailable, 5 s ago", "0", "2",
				"default", "3", "2", "0"},
			{"http://failed.test:8080", "failing", "none", "500 Internal Server Error, 5 s ago",
				"0", "0", "failed.test", "4", "1", "0"},
			{"https://posts.test", "failing", "none", "503 Service Unavailable, 5 s ago", "1", "0",
				"default", "5", "0", "0"},
			{"https://fine.test", "ok", "none", "none", "0", "0", "default", "5", "0", "1"},
		}, table(t, got))
		assert.Contains(t, text(got),
			"7 origins 1 cooling down 2 out of retries 1 waiting 2 failing 1 ok\n")
		assert.Contains(t, got, "<title>httpretry · 1 cooling down · 2 out of retries · "+
			"1 waiting · 2 failing</title>")
		assert.Contains(t, text(got), "2000-01-01 00:00:05 UTC")
		assert.Contains(t, got, `datetime="2000-01-01T00:00:05.5Z"`)

		// After the cool-down, and after the window. That of an origin whose
		// retries have failed stands still.
		time.Sleep(time.Hour)
		for _, row := range table(t, page(t, h, ""))[1:] {
			switch row[0] {
			case "https://waits.test", "http://failed.test:8080":
				assert.NotEqual(t, "0", row[8], row)
			default:
				assert.Equal(t, []string{"0", "0"}, row[8:], row)
			}
			assert.Contains(t, []string{"none", ""}, row[2])
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
		assert.Equal(t, time.Now().UTC(), report.Time)
		assert.Equal(t, time.UTC, report.Time.Location())
		want := transport.Origins()
		for i := range want {
			for _, at := range []*time.Time{&want[i].CooldownUntil, &want[i].LastFailureAt} {
				*at = at.Round(0) // no monotonic clock
				if !at.IsZero() {
					*at = at.UTC()
				}
			}
		}
		assert.ElementsMatch(t, want, readStatuses(t, retrydebug.Handler(transport)))
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

// The fields of the JSON are a promise. A program may depend on each name, and
// on the type of its value.
func TestJSONFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fields := map[string]string{}
		var note func(path string, value any)
		note = func(path string, value any) {
			switch value := value.(type) {
			case map[string]any:
				for name, v := range value {
					note(path+"."+name, v)
				}
			case []any:
				for _, v := range value {
					note(path+"[]", v)
				}
			default: // <nil> is null
				kinds := append(strings.Fields(fields[path]), fmt.Sprintf("%T", value))
				slices.Sort(kinds)
				fields[path] = strings.Join(slices.Compact(kinds), " ")
			}
		}
		var value any
		body := ask(retrydebug.Handler(scene(t)), "GET", "?format=json").Body.Bytes()
		require.NoError(t, json.Unmarshal(body, &value))
		note("", value)
		const origin, budget = ".transports[].origins[]", ".transports[].origins[].budgets[]"
		assert.Equal(t, map[string]string{
			".time":                        "string",
			".transports[].name":           "string",
			origin + ".origin":             "string",
			origin + ".waiting":            "float64",
			origin + ".cooldownUntil":      "<nil> string",
			origin + ".lastFailure":        "string",
			origin + ".lastFailureAt":      "<nil> string",
			origin + ".failedWithoutRetry": "float64",
			budget + ".key":                "string",
			budget + ".balance":            "<nil> float64",
			budget + ".successes":          "float64",
			budget + ".failedRetries":      "float64",
		}, fields)

		// The package documentation describes each.
		doc, err := os.ReadFile("doc.go")
		require.NoError(t, err)
		for path := range fields {
			name := path[strings.LastIndex(path, ".")+1:]
			assert.Regexp(t, `(?m)^//\t *`+name+`( {1,}\w|$)`, string(doc))
		}
	})
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

// Responses may be made while requests are sent.
func TestConcurrentUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := answers(t, httpretry.Config{Policy: httpretry.Policy{
			Backoff: strategies.Constant{}, Cooldown: httpretry.CooldownFail,
		}}, map[string]retrytest.Step{"h1": {Status: 500}, "h2": retrytest.RetryAfter("60")})
		h := retrydebug.Handler(transport)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for range 50 {
					get(t, transport, fmt.Sprintf("http://h%d/", i))
				}
			})
			wg.Go(func() {
				for range 20 {
					assert.Contains(t, ask(h, "GET", "").Body.String(), "</html>")
					assert.Contains(t, ask(h, "GET", "?format=json").Body.String(), "\n}\n")
				}
			})
		}
		wg.Wait()
		assert.Len(t, readOrigins(t, h), 4)
	})
}

// scenes returns transports in several states, by their names.
func scenes(t *testing.T) map[string]*httpretry.RetryTransport {
	quiet := answers(t, httpretry.Config{}, nil)
	get(t, quiet, "https://ok.test/")
	waits := answers(t, httpretry.Config{Policy: httpretry.Policy{
		Backoff: strategies.Constant{Wait: time.Hour}}},
		map[string]retrytest.Step{"waits.test": {Status: 503}})
	go get(t, waits, "https://waits.test/")
	synctest.Wait()
	return map[string]*httpretry.RetryTransport{
		"a quiet": quiet, "b unused": new(httpretry.RetryTransport), "c waits": waits,
		"d": scene(t),
	}
}

// Several transports are on one page, each under its name. Those in trouble
// come first.
func TestPageOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := retrydebug.New(retrydebug.Config{Transports: scenes(t)})
		require.NoError(t, err)
		got := page(t, h, "")
		var names, summaries []string
		for _, s := range sections(got) {
			names = append(names, heading(s))
			summaries = append(summaries, text(regexp.MustCompile(
				`(?s)<caption .*?</caption>|<p class="none">.*?</p>`).FindString(s)))
		}
		assert.Equal(t, []string{"d", "c waits", "a quiet", "b unused"}, names)
		assert.Equal(t, []string{
			"7 origins 1 cooling down 2 out of retries 1 waiting 2 failing 1 ok",
			"1 origin 1 waiting", "1 origin 1 ok", "No requests yet.",
		}, summaries)
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
