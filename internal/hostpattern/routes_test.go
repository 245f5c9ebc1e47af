package hostpattern_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/internal/hostpattern"
)

// choose returns the value for req, and whether there is one.
func choose[P any](set *hostpattern.Set[P], req *http.Request) (value P, ok bool) {
	for _, routes := range set.Routes(req.URL) {
		if i, ok := routes.Match(req); ok {
			return routes.Values[i], true
		}
	}
	return set.Match(req.URL)
}

// request returns the request of a line such as "GET http://a.test/". A line
// without a method is a request without one.
func request(t testing.TB, line string) *http.Request {
	method, raw, found := strings.Cut(line, " ")
	if !found {
		method, raw = "", line
	}
	u, err := url.Parse(raw)
	require.NoError(t, err)
	return &http.Request{Method: method, URL: u}
}

func TestRoutes(t *testing.T) {
	const (
		searches = "POST a.test/v1/search"
		export   = "a.test/v1/exports/{id}"
		head     = "HEAD a.test/h"
	)
	for _, tt := range []struct {
		keys []string
		want map[string]string // by request
	}{
		{[]string{searches, export, "a.test", "*.test/batch/", "GET a.test/v1/{$}"},
			map[string]string{
				"POST http://a.test/v1/search":           searches,
				"POST https://A.Test.:8443/v1/search?q":  searches,
				"GET http://a.test/v1/search":            "a.test",
				"post http://a.test/v1/search":           "a.test",
				"http://a.test/v1/search":                "a.test",
				"POST http://a.test/v1/search/":          "a.test",
				"POST http://a.test/v1/s%65arch":         searches,
				"PUT http://a.test/v1/exports/1":         export,
				"PUT http://a.test/v1/exports/a%2Fb":     export,
				"PUT http://a.test/v1/exports/1/2":       "a.test",
				"PUT http://a.test/v1/exports/":          "a.test",
				"POST http://a.test//v1/./x/../search":   searches,
				"GET http://a.test/v1/":                  "GET a.test/v1/{$}",
				"http://a.test/v1/":                      "GET a.test/v1/{$}",
				"HEAD http://a.test/v1/":                 "GET a.test/v1/{$}",
				"GET http://a.test/v1":                   "a.test",
				"GET http://a.test/batch/1":              "a.test",
				"GET http://b.test/batch/1":              "*.test/batch/",
				"GET http://b.test/batch":                "",
				"GET http://b.test":                      "",
				"POST http://b.test/v1/search":           "",
				"OPTIONS http:*":                         "",
				"POST https://user@a.test:443/v1/search": searches,
			}},
		// Of the keys that match, the one with the most specific host applies.
		{[]string{"POST a.test/x", "*.test/x", "a.test:81/y", "*.test"},
			map[string]string{
				"POST http://a.test/x":    "POST a.test/x",
				"GET http://a.test/x":     "*.test/x",
				"GET http://a.test/y":     "*.test",
				"GET http://a.test:81/y":  "a.test:81/y",
				"GET http://a.test:81/x":  "*.test/x",
				"POST http://a.test:81/x": "POST a.test/x",
				"GET http://b.test/x":     "*.test/x",
			}},
		// No pattern matches by a redirect.
		{[]string{"a.test/v/{one}/", "a.test/v/tree/", "a.test/v/tree/{x}/{rest...}", "a.test/v/"},
			map[string]string{
				"GET http://a.test/v/tree":         "a.test/v/",
				"GET http://a.test/v/tree/":        "a.test/v/tree/",
				"GET http://a.test/v/tree/b":       "a.test/v/tree/",
				"GET http://a.test/v/tree/b/":      "a.test/v/tree/{x}/{rest...}",
				"GET http://a.test/v/tree/b/c":     "a.test/v/tree/{x}/{rest...}",
				"GET http://a.test/v/other":        "a.test/v/",
				"GET http://a.test/v/other/":       "a.test/v/{one}/",
				"GET http://a.test/v":              "",
				"GET http://a.test//v/other/..//b": "a.test/v/",
				"CONNECT http://a.test/v/tree":     "a.test/v/",
				"CONNECT http://a.test/v/tree/":    "a.test/v/tree/",
			}},
		{[]string{"GET a.test/h", head, "a.test/{rest...}"}, map[string]string{
			"HEAD http://a.test/h":   head,
			"GET http://a.test/h":    "GET a.test/h",
			"DELETE http://a.test/h": "a.test/{rest...}",
			"DELETE http://a.test":   "a.test/{rest...}",
			"CONNECT http://a.test":  "a.test/{rest...}",
		}},
		{[]string{"GET a.test/{one}/{one_}/", "CONNECT a.test/"}, map[string]string{
			"GET http://a.test/1/2":   "",
			"GET http://a.test/1/2/":  "GET a.test/{one}/{one_}/",
			"GET http://a.test/1/2/3": "GET a.test/{one}/{one_}/",
			"CONNECT http://a.test":   "CONNECT a.test/",
		}},
		// The redirect is to the second key.
		{[]string{"a.test/{one}/{one_}/", "a.test/x/y/z/{$}"}, map[string]string{
			"GET http://a.test/x/y/z":  "a.test/{one}/{one_}/",
			"GET http://a.test/x/y/z/": "a.test/x/y/z/{$}",
		}},
		// The redirect is to the second key, which is below the first one.
		{[]string{"a.test/v/{x}/{rest...}", "a.test/v/b/c/"}, map[string]string{
			"GET http://a.test/v/b/c":  "a.test/v/{x}/{rest...}",
			"GET http://a.test/v/b/c/": "a.test/v/b/c/",
		}},
		{[]string{"a.test/caf%C3%A9", "a.test/naïve", "a.test/@me:x!"}, map[string]string{
			"GET http://a.test/café":       "a.test/caf%C3%A9",
			"GET http://a.test/caf%c3%a9":  "a.test/caf%C3%A9",
			"GET http://a.test/na%C3%AFve": "a.test/naïve",
			"GET http://a.test/@me:x!":     "a.test/@me:x!",
		}},
		{[]string{"[::1]:80/x", "192.0.2.1/x"}, map[string]string{
			"GET http://[0::1]/x":       "[::1]:80/x",
			"GET http://[::1]:81/x":     "",
			"GET http://192.0.2.1:81/x": "192.0.2.1/x",
		}},
	} {
		set := parse(t, tt.keys...)
		for line, want := range tt.want {
			value, ok := choose(set, request(t, line))
			assert.Equal(t, want, value, "%q: %s", tt.keys, line)
			assert.Equal(t, want != "", ok, "%q: %s", tt.keys, line)
		}
	}
	opaque := &http.Request{Method: "POST", URL: &url.URL{
		Scheme: "http", Host: "a.test", Opaque: "/v1/other", Path: "/v1/search"}}
	_, ok := choose(parse(t, searches), opaque)
	assert.False(t, ok, "the path of an opaque URL is not sent")
	assert.Len(t, parse(t, searches).Routes(&url.URL{Host: "a.test"}), 1, "without a port")
}

// A pattern for all requests costs as little as one without a path.
func TestPatternForAllPathsIsOneForTheHost(t *testing.T) {
	for _, key := range []string{"a.test", "a.test/", "a.test/{rest...}"} {
		set := parse(t, key)
		assert.Empty(t, set.Routes(&url.URL{Scheme: "http", Host: "a.test"}))
		value, _ := match(set, "a.test")
		assert.Equal(t, key, value)
	}
}

func TestProblemsOfRoutes(t *testing.T) {
	for key, want := range map[string]string{
		"post a.test/x":         `has the method "post": want "POST", as in "POST api.`,
		"get a.test":            `has the method "get": want "GET", as in "POST api.`,
		"Trace a.test":          `has the method "Trace": want "TRACE", as in "POST api.`,
		"api a.test":            `has a space or a control character in it: want a host`,
		"POST a.test":           `has a method and no path: want "POST a.test/" for all paths`,
		"POST\ta.test:80":       `has a method and no path: want "POST a.test:80/" for all paths`,
		"/x":                    "has no host: want one before the path, as in ",
		"POST /x":               "has no host: want one before the path, as in ",
		"POST ":                 "has no host: want one",
		"a.test/a b":            `has a space or a control character in it: want a host`,
		"GET a.test/a b":        "has a space or a control character in its path: want it escaped",
		"GET a.test/x?q=1":      "has a query, a fragment or a backslash in it: want a path only, as in",
		"GET a.test/x#f":        "has a query, a fragment or a backslash in it: want a path only, as in",
		"a.test/v1/*":           `has a * in its path: want "/" at the end for all paths below, `,
		"a.test//x":             `has the path "//x": want "/x"`,
		"a.test/x/../y/":        `has the path "/x/../y/": want "/y/"`,
		"CONNECT a.test/x//":    `has the path "/x//": want "/x/"`,
		"a.test/{x":             `has the path "/{x", which http.ServeMux refuses (`,
		"a.test/x{y}":           `has the path "/x{y}", which http.ServeMux refuses (`,
		"a.test/{x}/{x}":        `has the path "/{x}/{x}", which http.ServeMux refuses (`,
		"a.test/{$}/x":          `has the path "/{$}/x", which http.ServeMux refuses (`,
		"{host}.test/x":         `has the label "{host}" in its name: want`,
		"*/x":                   "matches every host: use Config.Policy for that",
		"GET http://a.test/x":   "has a scheme in it: want",
		"GET user@a.test/x":     "has user information in it: want",
		"GET a.test:99999/x":    `has the port "99999": want`,
		"G(T a.test/x":          "has a space or a control character in it: want",
		"GET a.test/\xff":       "is not UTF-8: want",
		"GTE a.test/x":          `has the method "GTE": want "GET", or another method, as in`,
		"gte a.test/x":          `has the method "gte": want "GET", or another method, as in`,
		"UPT a.test":            `has the method "UPT": want "PUT", or another method, as in`,
		"DELET a.test/x":        `has the method "DELET": want "DELETE", or another`,
		"POSTT a.test/x":        `has the method "POSTT": want "POST", or another`,
		"QUARY a.test/x":        `has the method "QUARY": want "QUERY", or another`,
		"GET POST a.test/x":     "has a space or a control character in it: want",
		"a.test:80 /x":          "has a space or a control character in it: want",
		"POST a*.test/x":        "has a * that is not the whole first label of a name: want",
		"POST api.a.test./{..}": `has the path "/{..}", which http.ServeMux refuses (`,
	} {
		problems := problemsOf(t, key)
		if assert.Len(t, problems, 1, "%q", key) {
			assert.Contains(t, problems[0].Text, want, "%q", key)
			assert.NotContains(t, problems[0].Text, ".go:", "%q", key)
		}
	}
}

// Other methods are valid, also those that resemble a standard one.
func TestCustomMethods(t *testing.T) {
	for _, method := range []string{
		"PURGE", "PROPFIND", "REPORT", "M-SEARCH", "MGET", "READ", "BATCH", "WATCH", "TRACK",
		"PUSH", "SET", "QUERY", "G", "COPY", "LOCK", "PROPPATCH",
	} {
		set := parse(t, method+" a.test/x")
		value, ok := choose(set, request(t, method+" http://a.test/x"))
		assert.True(t, ok, method)
		assert.Equal(t, method+" a.test/x", value)
	}
	// With a method, a path of digits is not the size of a network.
	parse(t, "GET 10.0.0.0/8", "10.0.0.0/33", "10.0.0.0/8/x", "a.test/8", "10.0.0.0:80/8")
}

// A key may be as long as a file. Problems quote its beginning.
func TestProblemsOfLongKeysAreShort(t *testing.T) {
	long := strings.Repeat("ü", 1<<19)
	big := strings.ToUpper(strings.Repeat("a", 1<<20))
	for _, keys := range [][]string{
		{"a.test/" + long + "//"}, {"a.test/{" + long}, {"a.test/{" + long + "}/{" + long + "}"},
		{"a.test:" + long}, {big + " a.test"}, {strings.ToLower(big) + " a.test/"}, {"GET " + long},
		{"a.test/{a}" + long}, {long}, {"a.test/" + long, "A.test/" + long},
		{"a.test/" + long + "/{a}", "a.test/" + long + "/{b}"},
	} {
		problems := problemsOf(t, keys...)
		if assert.Len(t, problems, 1, "%.20q", keys) {
			assert.Less(t, len(problems[0].Text), 2000, "%.20q: %.200s", keys, problems[0].Text)
			assert.True(t, utf8.ValidString(problems[0].Text))
		}
	}
}

// A host with too many keys with a path is one problem, which costs no more for
// more keys. All other keys are checked.
func TestTooManyRoutes(t *testing.T) {
	keys := func(host string, n int) []string {
		all := []string{"a.test", "b.test/x"}
		for i := range n {
			all = append(all, fmt.Sprintf("%s/%06d/", host, i))
		}
		return all
	}
	parse(t, keys("POST a.test", 1000)...)
	for _, host := range []string{"a.test", "*.test", "a.test:80"} {
		assert.Len(t, problemsOf(t, keys(host, 1001)...), 1, host)
	}
	// ServeMux, which does not get these keys, would find a conflict.
	problems := problemsOf(t, append(keys("POST a.test", 20_000),
		"POST a.test/x/{id}", "POST a.test/{id}/x", "z.test:x")...)
	require.Len(t, problems, 2)
	assert.Equal(t, "POST a.test/001000/", problems[0].Pattern)
	assert.Equal(t, "is one of more than 1000 keys with a path for one host: want at most 1000",
		problems[0].Text)
	assert.Equal(t, "z.test:x", problems[1].Pattern)
}

func TestConflictsOfRoutes(t *testing.T) {
	for _, tt := range []struct{ first, second, want string }{
		{"GET a.test/x/{id}", "a.test/x/1", "conflicts with"},
		{"a.test/a/{x}", "a.test/{x}/b", "conflicts with"},
		{"a.test/x/{id}", "a.test/x/{name}", "conflicts with"},
		{"POST  a.test/x", "POST A.test./x", "means the same as"},
		{"a.test", "a.test/", "means the same as"},
		{"a.test/", "a.test/{rest...}", "means the same as"},
	} {
		for range 5 { // maps have no order
			problems := problemsOf(t, tt.first, tt.second, "a.test/other", "*.test/x/{y}")
			if assert.Len(t, problems, 1) {
				assert.Equal(t, tt.second, problems[0].Pattern)
				assert.Contains(t, problems[0].Text, tt.want+` "`+tt.first+`"`)
				assert.Contains(t, problems[0].Text, ": want ")
			}
		}
	}
	// Patterns of different hosts do not conflict.
	parse(t, "GET a.test/x/{id}", "b.test/x/1", "*.test/x/1", "a.test:80/x/1")
}

// pairs returns n pairs of keys that conflict with each other, and with no
// other key.
func pairs(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("a.test/%05d/{a}", i), fmt.Sprintf("a.test/%05d/{b}", i))
	}
	return keys
}

// All conflicts are listed, in order, and so are all other problems.
func TestManyConflicts(t *testing.T) {
	const n = 500
	keys := append(pairs(n), "POST z.test", "z.test:x", "a.test", "a.test/", "")
	for i := range 20 {
		keys = append(keys, fmt.Sprintf("*/%02d", i))
	}
	problems := problemsOf(t, keys...)
	texts := make(map[string]string)
	for i, p := range problems {
		texts[p.Pattern] = p.Text
		assert.True(t, i == 0 || problems[i-1].Pattern < p.Pattern, p.Pattern)
	}
	for i := range n {
		assert.Contains(t, texts[fmt.Sprintf("a.test/%05d/{b}", i)],
			fmt.Sprintf(`conflicts with "a.test/%05d/{a}", because`, i))
	}
	assert.Len(t, problems, n+24, `each "*/", "POST z.test", "z.test:x", "a.test/" and ""`)
	assert.Equal(t, problems, problemsOf(t, keys...), "maps have no order")
}

// The work for keys that conflict grows as their number does, even if all those
// that do not conflict come first.
func TestWorkForConflicts(t *testing.T) {
	late := func(n int) (keys []string) {
		for i := range n {
			keys = append(keys, fmt.Sprintf("a.test/%05d/{a}", i), fmt.Sprintf("z%d.test/", i),
				fmt.Sprintf("a.test/{z}/%05d/{b}", i), fmt.Sprintf("a.test/{z}/%05d/{c}", i))
		}
		return keys
	}
	for name, keys := range map[string]func(n int) []string{"pairs": pairs, "late": late} {
		work := func(n int) float64 {
			all := keys(n)
			return testing.AllocsPerRun(1, func() { problemsOf(t, all...) })
		}
		assert.Less(t, work(300)/work(150), 2.5, name)
	}
}

// The ServeMux of Go 1.21 takes a method for a part of the host. It would match
// nothing.
func TestRoutesNeedPatternsOfServeMux(t *testing.T) {
	const old = "GODEBUG=httpmuxgo121=1"
	if !strings.Contains(os.Getenv("GODEBUG"), "httpmuxgo121=1") {
		cmd := faults.Command(t, os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), old)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	problems := problemsOf(t, "GET a.test/x", "b.test")
	require.Len(t, problems, 1)
	assert.Equal(t, "GET a.test/x", problems[0].Pattern)
	assert.Contains(t, problems[0].Text, old)
}

func TestAllocationsOfRoutes(t *testing.T) {
	set := parse(t, "POST a.test/v1/search", "a.test/v1/exports/{id}", "a.test/batch/")
	for line, most := range map[string]float64{
		"POST http://a.test/v1/search":   0,
		"GET http://a.test/v1/exports/1": 1,
		// ServeMux looks for a pattern with a slash at the end.
		"GET http://a.test/v1/search": 5,
		"GET http://a.test/batch/1/2": 3,
	} {
		req := request(t, line)
		routes := set.Routes(req.URL)[0]
		assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { routes.Match(req) }), most, line)
	}
}

// A key matches a request with a clean path if http.ServeMux serves it without
// a redirect. Of two keys, one that matches alone applies if any does.
func FuzzRoutes(f *testing.F) {
	for _, s := range []string{
		"POST a.test/v1/search", "a.test/v1/exports/{id}", "a.test/batch/", "GET a.test/{x...}",
		"a.test/{$}", "a.test/%2F/%", "CONNECT a.test/x", "get a.test/x", "a.test//",
		"a.test/{x}/{x}",
		"HEAD a.test/a/{b}/c", "a.test", "GET a.test/é", "GET a.test/_x...}",
	} {
		f.Add(s, "a.test/batch/{x}/", "GET", "/batch/1")
		f.Add("GET a.test/", s, "POST", "/v1//search")
		f.Add(s, s, "", "/a/b")
	}
	f.Fuzz(func(t *testing.T, first, second, method, path string) {
		u, err := url.Parse("http://a.test" + path)
		if err != nil || u.Host != "a.test" {
			return
		}
		req := &http.Request{Method: method, URL: u}
		matching := map[string]bool{}
		for _, key := range []string{first, second} {
			set, problems := hostpattern.Parse(map[string]bool{key: true}, "Config.Policy")
			if (set == nil) == (problems == nil) {
				t.Fatalf("%q: %v, %v", key, set, problems)
			}
			if set == nil {
				return
			}
			matching[key], _ = choose(set, req)
			if route, ok := served(key); ok && method != "" && u.EscapedPath() == cleaned(u) {
				if got, want := matching[key], serves(route, req); got != want {
					t.Errorf("%q, %q %q: %v, but ServeMux: %v", key, method, path, got, want)
				}
			}
		}
		both, _ := hostpattern.Parse(
			map[string]string{first: first, second: second}, "Config.Policy")
		if both == nil {
			return // they conflict
		}
		key, ok := choose(both, req)
		if ok != (matching[first] || matching[second]) || ok && !matching[key] {
			t.Errorf("%q, %q, %q %q: %q, but alone: %v", first, second, method, path, key, matching)
		}
	})
}

// served returns the pattern of http.ServeMux for a key of a.test with a path.
func served(key string) (pattern string, ok bool) {
	before, path, ok := strings.Cut(key, "a.test/")
	method := strings.TrimRight(before, " \t")
	return method + " /" + path, ok && (before == "" || method != before)
}

// cleaned returns the path to which http.ServeMux redirects u, if to any.
func cleaned(u *url.URL) string {
	w, mux := httptest.NewRecorder(), http.NewServeMux()
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	mux.ServeHTTP(w, &http.Request{Method: "GET", URL: u})
	if location := w.Header().Get("Location"); location != "" {
		return location
	}
	return u.EscapedPath()
}

// serves reports whether a mux with only the given pattern serves req.
func serves(pattern string, req *http.Request) (served bool) {
	mux := http.NewServeMux()
	mux.HandleFunc(strings.TrimPrefix(pattern, " "),
		func(http.ResponseWriter, *http.Request) { served = true })
	mux.ServeHTTP(httptest.NewRecorder(), req)
	return served
}
