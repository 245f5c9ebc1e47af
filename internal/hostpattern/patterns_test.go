package hostpattern_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/hostpattern"
)

// parse returns a Set in which each pattern's value is the pattern.
func parse(t testing.TB, patterns ...string) *hostpattern.Set[string] {
	t.Helper()
	m := make(map[string]string)
	for _, pattern := range patterns {
		m[pattern] = pattern
	}
	set, problems := hostpattern.Parse(m, "Config.Policy")
	require.Empty(t, problems)
	return set
}

// problemsOf returns the problems of a map with these keys, for which Parse
// returns no Set.
func problemsOf(t testing.TB, keys ...string) []hostpattern.Problem {
	t.Helper()
	m := make(map[string]int)
	for i, key := range keys {
		m[key] = i
	}
	set, problems := hostpattern.Parse(m, "Config.Policy")
	assert.Nil(t, set, "%.80q", keys)
	return problems
}

// match looks host up without a scheme, which implies no port.
func match[P any](set *hostpattern.Set[P], host string) (P, bool) {
	return set.Match(&url.URL{Host: host})
}

func TestPatternMatchesAllSpellingsOfItsHosts(t *testing.T) {
	for pattern, hosts := range map[string][]string{
		"example.com": {
			"example.com", "EXAMPLE.com", "example.com:", "example.com:80", "example.com:8443",
			"example.com:080", "example.com.", "example.com.:80", "Example.COM.:",
			"example.com:0", "example.com:99999",
		},
		"EXAMPLE.com.":    {"example.com", "example.com."},
		"example.com:80":  {"example.com:80", "example.com:080", "EXAMPLE.com.:0000000080"},
		"example.com:080": {"example.com:80", "example.com:080"},
		"EXAMPLE.com.:80": {"example.com:80"},
		"*.example.com": {
			"a.example.com", "A.b.C.example.com", "a.example.com.:99", "ü.example.com",
			"-.example.com", "_.example.com", "ü_.example.com",
		},
		"*.EXAMPLE.com.:443": {"a.example.com:443"},
		"*.com":              {"example.com", "a.example.com"},
		"localhost":          {"localhost", "LOCALHOST:1234", "localhost."},
		"my_service":         {"my_service", "MY_service:80"},
		"az-09_AZ.example":   {"AZ-09_az.example"},
		"_a._b":              {"_a._b"},
		"a--b.example":       {"a--b.example"},
		"127.0.0.1":          {"127.0.0.1", "127.0.0.1:80"},
		"[::1]": {
			"[::1]", "[::1]:80", "[::1]:", "[0:0:0:0:0:0:0:1]", "[0000::0001]:443", "[::0.0.0.1]",
		},
		"[0:0:0:0:0:0:0:1]":     {"[::1]"},
		"[::1]:8080":            {"[::1]:8080", "[0:0:0:0:0:0:0:1]:08080"},
		"[2001:DB8::A]":         {"[2001:db8::a]", "[2001:DB8:0::A]:80"},
		"[::ffff:192.0.2.1]":    {"[::ffff:c000:201]"},
		"[fe80::1%eth0]":        {"[fe80::1%eth0]", "[fe80:0::1%eth0]:80", "[FE80::1%ETH0]"},
		"xn--BCHER-kva.example": {"xn--bcher-kva.example", "XN--BCHER-KVA.example."},
		"faß.example":           {"faß.example", "FAß.example:80"},
		"BÜCHER.example.": {
			"bücher.example", "BÜCHER.example", "bücher.example.", "Bücher.example:1",
		},
		"*.bücher.example:8443": {"a.bücher.example:8443", "Ä.BÜCHER.example:8443"},
		"*.日本語.jp.":             {"a.日本語.jp", "a.xn--tda.日本語.jp"},
		"bu\u0308cher.test":     {"bu\u0308cher.test"},
		strings.Repeat("語", 63): {strings.Repeat("語", 63)},
		strings.Repeat("a", 63): {strings.Repeat("A", 63)},
		longestName:             {longestName + ":80"},
		"*." + longestName[2:]:  {longestName},
		"example.com:65535":     {"example.com:65535"},
		"example.com:1":         {"example.com:01"},
	} {
		set := parse(t, pattern)
		for _, host := range hosts {
			value, ok := match(set, host)
			assert.True(t, ok, "%s, %s", pattern, host)
			assert.Equal(t, pattern, value)
		}
	}
}

func TestPatternMatchesNoOtherHosts(t *testing.T) {
	for pattern, hosts := range map[string][]string{
		"example.com": {
			"", ".", ":", ":80", "a.example.com", "example.org", "example.co", "xample.com",
			"example.com.a", "example.comm", ".example.com",
			"example.com:a", "example.com:80:80", "example.com:-80", "example.com:+80",
			"example.com:８０", "[example.com]", "example.com@evil.com",
			"good.com@example.com", "example.com/", "example.com ", " example.com", "example..com",
			"[::1]", "example.com\x00", "ex\xffample.com",
			"ｅｘａｍｐｌｅ.com", "example。com",
		},
		"example.com:80": {
			"example.com", "example.com:", "example.com:8", "example.com:800", "example.com:65616",
			"a.example.com:80", "example.com:80a",
		},
		"*.example.com": {
			"example.com", ".example.com", "..example.com:80:80", "xexample.com", "a.example.com.b",
			"example.com.a", "a.example.org",
			"", "com", "[a.example.com]", "a.example.com:x",
		},
		"*.a":               {strings.Repeat("a.", 128) + "a"}, // longer than a name can be
		"*.example.com:443": {"a.example.com", "a.example.com:4430", "example.com:443"},
		"[::1]": {
			"::1", "[::2]", "[::1", "::1]", "[::1]x", "[::1]:x", "[::1%eth0]", "[[::1]]", "[]", "[",
			"]", "[]:80", "[::1]]",
		},
		"[::1]:80":       {"[::1]", "[::1]:8080", "::1:80"},
		"[fe80::1%eth0]": {"[fe80::1]", "[fe80::1%eth1]", "[fe80::1%]"},
		"192.0.2.1":      {"[::ffff:192.0.2.1]", "[192.0.2.1]"},
		"xn--bcher-kva.example": {
			"bucher.example", "bücher.example", "bcher-kva.example",
		},
		"bücher.example": {
			"bucher.example", "xn--bcher-kva.example", "bu\u0308cher.example", "bücher.example.com",
		},
		"in.example":   {"İn.example"},
		"fass.example": {"faß.example", "FAẞ.example"},
	} {
		set := parse(t, pattern)
		for _, host := range hosts {
			value, ok := match(set, host)
			assert.False(t, ok, "%s, %q", pattern, host)
			assert.Empty(t, value)
		}
	}
}

func TestMostSpecificPatternMatches(t *testing.T) {
	// From the most specific to the least, for a.b.example.com:8443.
	ranking := []string{
		"a.b.example.com:8443", "*.b.example.com:8443", "*.example.com:8443", "*.com:8443",
		"a.b.example.com", "*.b.example.com", "*.example.com", "*.com",
	}
	others := []string{
		"*.a.b.example.com:8443", "*.a.b.example.com", "example.com", "b.example.com:8443",
		"a.b.example.com:443",
		"*.c.example.com:8443", "*.net",
	}
	for i := range ranking {
		set := parse(t, append(ranking[i:], others...)...)
		value, _ := match(set, "A.b.example.com:8443")
		assert.Equal(t, ranking[i], value)
	}
	_, ok := match(parse(t, others...), "a.b.example.com:8443")
	assert.False(t, ok)

	all := parse(t, append(ranking, others...)...)
	for host, want := range map[string]string{
		"a.b.example.com":        "a.b.example.com",
		"a.b.example.com:80":     "a.b.example.com",
		"a.b.example.com:443":    "a.b.example.com:443",
		"x.b.example.com":        "*.b.example.com",
		"x.b.example.com:8443":   "*.b.example.com:8443",
		"x.y.b.example.com":      "*.b.example.com",
		"b.example.com":          "*.example.com",
		"b.example.com:8443":     "b.example.com:8443",
		"example.com:8443":       "*.com:8443",
		"example.com":            "example.com",
		"x.a.b.example.com:8443": "*.a.b.example.com:8443",
		"com":                    "",
		"org":                    "",
		"x.net:8443":             "*.net",
		"x.c.example.com":        "*.example.com",
	} {
		value, ok := match(all, host)
		assert.Equal(t, want, value, host)
		assert.Equal(t, want != "", ok, host)
	}
}

func TestMatchUsesTheDefaultPortOfTheScheme(t *testing.T) {
	set := parse(t,
		"example.com:443", "example.com:80", "example.com", "[::1]:443", "*.example.com:80")
	for raw, want := range map[string]string{
		"https://example.com/":        "example.com:443",
		"https://example.com:/":       "example.com:443",
		"https://example.com:443":     "example.com:443",
		"https://example.com:80/":     "example.com:80",
		"http://example.com":          "example.com:80",
		"HTTP://EXAMPLE.com.":         "example.com:80",
		"http://example.com:443":      "example.com:443",
		"http://example.com:8080":     "example.com",
		"ftp://example.com":           "example.com",
		"https://[0::1]":              "[::1]:443",
		"http://[::1]":                "",
		"http://a.example.com":        "*.example.com:80",
		"https://a.example.com":       "",
		"http://good.com@example.com": "example.com:80",
		"http://example.com@good.com": "",
	} {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		value, ok := set.Match(u)
		assert.Equal(t, want, value, raw)
		assert.Equal(t, want != "", ok, raw)
	}
	_, ok := set.Match(nil)
	assert.False(t, ok)
	value, _ := match(set, "example.com")
	assert.Equal(t, "example.com", value, "without a scheme")
	value, _ = set.Match(&url.URL{Scheme: "HTTPS", Host: "example.com"})
	assert.Equal(t, "example.com:443", value, "scheme in upper case")
}

func TestNoPatternsMatchNothing(t *testing.T) {
	none, problems := hostpattern.Parse(map[string]int{}, "Config.Policy")
	assert.Nil(t, none)
	assert.Empty(t, problems)
	for _, set := range []*hostpattern.Set[int]{none, new(hostpattern.Set[int])} {
		_, ok := set.Match(&url.URL{Scheme: "http", Host: "example.com"})
		assert.False(t, ok)
	}
}

func TestPatternWithTheZeroValueMatches(t *testing.T) {
	set, _ := hostpattern.Parse(map[string]int{"example.com": 0, "*.test:80": 0}, "Config.Policy")
	for _, host := range []string{"example.com", "a.test:80"} {
		_, ok := match(set, host)
		assert.True(t, ok, host)
	}
}

func TestProblemsOfPatterns(t *testing.T) {
	const (
		all     = "matches every host: use Config.Policy for that"
		label   = "has the label "
		address = "has a * before an address: want"
		star    = "has a * that is not the whole first label of a name: want"
		path    = "has a query, a fragment or a backslash in it: want"
		blank   = "has a space or a control character in it: want"
		ipv6    = "has brackets without an IPv6 address in them: want"
		scheme  = "has a scheme in it: want"
		user    = "has user information in it: want"
		colons  = "has more than one colon: want"
	)
	for want, patterns := range map[string][]string{
		"is empty: want":     {""},
		"is not UTF-8: want": {"a\xff"},
		blank: {
			" ", "example.com ", "exam ple.com", "example.com\n", "example.com\x00",
			"example\u00a0.com", "example.com\u2028", "\u0085", "example.com\x7f",
		},
		scheme: {"http://example.com", "https://example.com:443/", "://"},
		user:   {"user@example.com", "good.com@evil.com", "user:password@example.com"},
		path: {
			"example.com?q", "example.com#f", `example.com\a`},
		all: {"*", "*:8080"},
		all + `, or write the hosts that use the port, as in "*.example.com:8443"`: {"*:8080"},
		star: {
			"**", "*example.com", "a.*.example.com", "example.*", "*.*.example.com",
			"a*.example.com", "*a.example.com", "example.com:*", "*.a*", "**:80",
		},
		label: {
			"*.", "*.:80", "*..com", ".", "..", ".example.com", "example..com", "example.com..",
			":", ":80", "-a.example", "a-.example", "a.-", "a!b", "ex%41mple.com", "a,b", "a;b",
			"a=b", `"a"`, "a]", "xn--not-an-idn-.example",
			strings.Repeat("a", 64), strings.Repeat("語", 64),
			"-ü.example", "ü-", "a\u200d.example", "\u00ad", "exa\u00admple.example", "ü,", "*.-ü",
			"ü。。x", "example。com", "ü..x", "“example.com”", "a‑b.example",
		},
		`has the label "a!b" in its name: want 1 to 63 letters, `: {"c.a!b.d"},
		`has the port "": want a number from 1 to 65535`:          {"example.com:", "[::1]:"},
		`has the port "0": want`:                                  {"example.com:0", "[::1]:0"},
		`has the port "000"`:                                      {"example.com:000"},
		`has the port "65536"`: {
			"example.com:65536", "[::1]:65536"},
		`has the port "http"`: {"example.com:http"},
		`has the port "-1"`:   {"example.com:-1"},
		`has the port "+80"`:  {"example.com:+80"},
		`has the port "8080"`: {"[::1]8080"},
		`has the port `: {
			"example.com:99999999999999999999", "example.com:0x50", "example.com:８０",
			"example.com:8_0", "[::1]x:80", "[::1].",
		},
		colons: {"::1", "2001:db8::1", "example.com:80:80", "::1]", "a[::1]"},
		ipv6: {
			"[]", "[", "[::1", "[::g]", "[127.0.0.1]", "[example.com]", "[::1%]", "[[::1]]",
			"[::1]]", "[1:2:3]:80",
		},
		`is a network: want one key for each address or name, as in "10.0.0.1"`: {
			"10.0.0.0/8", "192.0.2.1/32", "10.0.0.0/0", "[2001:db8::]/32", "2001:db8::/128",
		},
		address: {"*.[::1]", "*.127.0.0.1", "*.0.0.1", "*.1:80", "*.[x"},
		"has a name of 254 bytes: want at most 253": {"b" + longestName},
		"has a name of 255 bytes: want at most 253": {"a." + longestName + ".:80"},
	} {
		for _, pattern := range patterns {
			problems := problemsOf(t, pattern)
			if assert.Len(t, problems, 1, "%q", pattern) {
				assert.Equal(t, pattern, problems[0].Pattern)
				assert.Contains(t, problems[0].Text, want, "%q", pattern)
			}
		}
	}
}

func TestPatternsThatMeanTheSameAreAProblem(t *testing.T) {
	for _, same := range [][]string{
		{"EXAMPLE.com.", "example.com"},
		{"EXAMPLE.com", "Example.com", "example.com", "example.com."},
		{"*.EXAMPLE.com", "*.example.com", "*.example.com."},
		{"BÜCHER.example", "bücher.example"},
		{"example.com:080", "example.com:80"},
		{"[0:0:0:0:0:0:0:1]", "[::1]"},
		{"[::1]:080", "[::1]:80"},
	} {
		keys := slices.Sorted(slices.Values(same))
		for range 5 { // maps have no order
			problems := problemsOf(t, append(keys, "example.org", "example.com:1",
				"*.example.com:1", "example.org:80")...)
			require.Len(t, problems, len(same)-1)
			for i, problem := range problems {
				assert.Equal(t, keys[i+1], problem.Pattern)
				want := fmt.Sprintf("means the same as %q: want only one of them", keys[0])
				assert.Equal(t, want, problem.Text)
			}
		}
	}
}

func TestMatchDoesNotAllocateForCanonicalHosts(t *testing.T) {
	many := parse(t, "api.example.com", "api.example.com:8443", "*.example.org",
		"*.west.example.org:444", "*.example.net:9090", "[2001:db8::1]", "db", "192.0.2.1")
	one := parse(t, "example.com")
	for _, host := range []string{
		"api.example.com", "api.example.com:8443", "api.example.com:443", "192.0.2.1:8080",
		"[2001:db8::1]:8080", "db", "my_service:8080", "eu.west.example.org", "bücher.example",
		"service-with-a-long-name.eu-west-1.compute.example.net:9090",
	} {
		u := &url.URL{Scheme: "https", Host: host}
		assert.Zero(t, testing.AllocsPerRun(100, func() { many.Match(u) }), host)
		assert.Zero(t, testing.AllocsPerRun(100, func() { one.Match(u) }), host)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"example.com", "EXAMPLE.com.", "example.com:", "example.com:080", "*.example.com:8443",
		"[0:0:0:0:0:0:0:1]:80", "[fe80::1%eth0]",
		"faß.example", "FAẞ", "İ", "１２７.0.0.1", "good.com@evil.com", "*", "*:80", "", "ü_.example",
		"a:80:80", "[::ffff:1.2.3.4%a]",
		"*.exa/ple.com", "xn--a.ü", "ü。。", "\xff", "*.日本語.jp", "A..", "a:00",
	} {
		f.Add(s, "example.com:80")
		f.Add("*.example.com", s)
	}
	f.Fuzz(func(t *testing.T, pattern, host string) {
		set, problems := hostpattern.Parse(map[string]int{pattern: 1}, "Config.Policy")
		if (set == nil) == (problems == nil) {
			t.Fatalf("%q: %v, %v", pattern, set, problems)
		}
		match(set, host)
		// FuzzRoutes is for patterns with a method or a path.
		if set == nil || strings.ContainsAny(pattern, "/ \t") {
			return
		}
		matching := pattern
		if suffix, wildcard := strings.CutPrefix(pattern, "*"); wildcard {
			matching = "a.b" + suffix
			if _, ok := match(set, suffix[1:]); ok {
				t.Errorf("%q matches its own suffix", pattern)
			}
		}
		for _, host := range spellings(matching) {
			if _, ok := match(set, host); !ok {
				t.Errorf("%q does not match %q", pattern, host)
			}
			other := host + "x-other" // another name, or no valid port
			if _, ok := match(set, other); ok {
				t.Errorf("%q matches %q", pattern, other)
			}
		}
	})
}

// spellings returns forms of a valid host that mean the same.
func spellings(host string) []string {
	all := []string{host, upperASCII(host), lowerASCII(host)}
	if !strings.HasPrefix(host, "[") {
		name, port, hasPort := strings.Cut(host, ":")
		name = strings.TrimRight(name, ".") + "."
		if hasPort {
			name += ":0" + port
		}
		all = append(all, name)
	}
	return all
}
