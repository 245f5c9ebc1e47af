package httpretry

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// patterns makes patterns whose values are themselves.
func patterns(t testing.TB, keys ...string) *hostPatterns[string] {
	t.Helper()
	m := make(map[string]string)
	for _, key := range keys {
		m[key] = key
	}
	p, problems := parseHosts(m)
	require.Empty(t, problems)
	return p
}

func TestPatternsMatchEverySpellingOfTheirHosts(t *testing.T) {
	for pattern, hosts := range map[string][]string{
		"example.com": {"example.com", "EXAMPLE.com", "example.com:", "example.com:80", "example.com:8443", "example.com:080", "example.com.",
			"example.com.:80", "Example.COM.:", "ｅｘａｍｐｌｅ.com", "EXAMPLE。com", "example。com.", "example.com:0", "example.com:99999"},
		"EXAMPLE.com.":          {"example.com", "example.com."},
		"example.com:80":        {"example.com:80", "example.com:080", "EXAMPLE.com.:0000000080"},
		"example.com:080":       {"example.com:80", "example.com:080"},
		"EXAMPLE.com.:80":       {"example.com:80"},
		"*.example.com":         {"a.example.com", "A.b.C.example.com", "a.example.com.:99", "ü.example.com", "-.example.com", "_.example.com", "ü_.example.com"},
		"*.EXAMPLE.com.:443":    {"a.example.com:443"},
		"*.com":                 {"example.com", "a.example.com"},
		"localhost":             {"localhost", "LOCALHOST:1234", "localhost."},
		"my_service":            {"my_service", "MY_service:80"},
		"az-09_AZ.example":      {"AZ-09_az.example"},
		"_a._b":                 {"_a._b"},
		"a--b.example":          {"a--b.example"},
		"127.0.0.1":             {"127.0.0.1", "127.0.0.1:80", "１２７.0.0.1", "１２７.0.0.1:80"},
		"１２７.0.0.1":             {"127.0.0.1"},
		"[::1]":                 {"[::1]", "[::1]:80", "[::1]:", "[0:0:0:0:0:0:0:1]", "[0000::0001]:443", "[::0.0.0.1]"},
		"[0:0:0:0:0:0:0:1]":     {"[::1]"},
		"[::1]:8080":            {"[::1]:8080", "[0:0:0:0:0:0:0:1]:08080"},
		"[2001:DB8::A]":         {"[2001:db8::a]", "[2001:DB8:0::A]:80"},
		"[::ffff:192.0.2.1]":    {"[::ffff:c000:201]"},
		"[fe80::1%eth0]":        {"[fe80::1%eth0]", "[fe80:0::1%eth0]:80", "[FE80::1%ETH0]"},
		"faß.example":           {"faß.example", "xn--fa-hia.example", "FAß.example:80", "XN--FA-HIA.example."},
		"xn--fa-hia.example":    {"faß.example"},
		"bücher.example":        {"bücher.example", "BÜCHER.example", "bu\u0308cher.example", "bücher.example.", "bücher。example。", "xn--bcher-kva.example:1"},
		"*.bücher.example:8443": {"a.bücher.example:8443", "ä.xn--bcher-kva.example:8443"},
		"*.日本語。jp。":             {"a.日本語.jp"},
		strings.Repeat("a", 63): {strings.Repeat("A", 63)},
		longestName:             {longestName + ":80"},
		"*." + longestName[2:]:  {longestName},
		"example.com:65535":     {"example.com:65535"},
		"example.com:1":         {"example.com:01"},
		"exa\u00admple.example": {"example.example"}, // IDNA drops the soft hyphen
		"１２.example:80":         {"12.example:80"},
	} {
		p, problems := parseHosts(map[string]string{pattern: "value"})
		if !assert.Empty(t, problems, "%s", pattern) {
			continue
		}
		for _, host := range hosts {
			value, ok := p.match(host)
			assert.True(t, ok, "%s, %s", pattern, host)
			assert.Equal(t, "value", value)
		}
	}
}

var longestName = strings.Repeat("a.", 126) + "a" // 253 bytes

func TestPatternsDoNotMatchOtherHosts(t *testing.T) {
	for pattern, hosts := range map[string][]string{
		"example.com": {"", ".", ":", ":80", "a.example.com", "example.org", "example.co", "xample.com", "example.com.a", "example.comm", ".example.com",
			"example.com:a", "example.com:80:80", "example.com:-80", "example.com:+80", "example.com:８０", "[example.com]", "example.com@evil.com",
			"good.com@example.com", "example.com/", "example.com ", " example.com", "example..com", "[::1]", "example.com\x00", "ex\xffample.com"},
		"example.com:80": {"example.com", "example.com:", "example.com:8", "example.com:800", "example.com:65616", "a.example.com:80", "example.com:80a"},
		"*.example.com": {"example.com", ".example.com", "..example.com:80:80", "xexample.com", "a.example.com.b", "example.com.a", "a.example.org",
			"", "com", "[a.example.com]", "a.example.com:x"},
		"*.example.com:443": {"a.example.com", "a.example.com:4430", "example.com:443"},
		"[::1]":             {"::1", "[::2]", "[::1", "::1]", "[::1]x", "[::1]:x", "[::1%eth0]", "[[::1]]", "[]", "[", "]", "[]:80", "[::1]]"},
		"[::1]:80":          {"[::1]", "[::1]:8080", "::1:80"},
		"[fe80::1%eth0]":    {"[fe80::1]", "[fe80::1%eth1]", "[fe80::1%]"},
		"192.0.2.1":         {"[::ffff:192.0.2.1]", "[192.0.2.1]"},
		"bücher.example":    {"bucher.example", "bücher.example.com"},
	} {
		p := patterns(t, pattern)
		for _, host := range hosts {
			value, ok := p.match(host)
			assert.False(t, ok, "%s, %q", pattern, host)
			assert.Empty(t, value)
		}
	}
}

func TestTheMostSpecificPatternMatches(t *testing.T) {
	// From the most specific to the least, for a.b.example.com:8443.
	ranking := []string{
		"a.b.example.com:8443", "*.b.example.com:8443", "*.example.com:8443", "*.com:8443",
		"a.b.example.com", "*.b.example.com", "*.example.com", "*.com",
	}
	others := []string{"*.a.b.example.com:8443", "*.a.b.example.com", "example.com", "b.example.com:8443", "a.b.example.com:443", "*.c.example.com:8443", "*.net"}
	for i := range ranking {
		p := patterns(t, append(ranking[i:], others...)...)
		value, _ := p.match("A.b.example.com:8443")
		assert.Equal(t, ranking[i], value)
	}
	_, ok := patterns(t, others...).match("a.b.example.com:8443")
	assert.False(t, ok)

	all := patterns(t, append(ranking, others...)...)
	for host, want := range map[string]string{
		"a.b.example.com": "a.b.example.com", "a.b.example.com:80": "a.b.example.com", "a.b.example.com:443": "a.b.example.com:443",
		"x.b.example.com": "*.b.example.com", "x.b.example.com:8443": "*.b.example.com:8443", "x.y.b.example.com": "*.b.example.com",
		"b.example.com": "*.example.com", "b.example.com:8443": "b.example.com:8443", "example.com:8443": "*.com:8443", "example.com": "example.com",
		"x.a.b.example.com:8443": "*.a.b.example.com:8443", "com": "", "org": "", "x.net:8443": "*.net", "x.c.example.com": "*.example.com",
	} {
		value, ok := all.match(host)
		assert.Equal(t, want, value, host)
		assert.Equal(t, want != "", ok, host)
	}
}

func TestMatchURLKnowsTheSchemesPort(t *testing.T) {
	p := patterns(t, "example.com:443", "example.com:80", "example.com", "[::1]:443", "*.example.com:80")
	for raw, want := range map[string]string{
		"https://example.com/": "example.com:443", "https://example.com:/": "example.com:443", "https://example.com:443": "example.com:443",
		"https://example.com:80/": "example.com:80", "http://example.com": "example.com:80", "HTTP://EXAMPLE.com.": "example.com:80",
		"http://example.com:443": "example.com:443", "http://example.com:8080": "example.com", "ftp://example.com": "example.com",
		"https://[0::1]": "[::1]:443", "http://[::1]": "", "http://a.example.com": "*.example.com:80", "https://a.example.com": "",
		"http://good.com@example.com": "example.com:80", "http://example.com@good.com": "",
	} {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		value, ok := p.matchURL(u)
		assert.Equal(t, want, value, raw)
		assert.Equal(t, want != "", ok, raw)
	}
	_, ok := p.matchURL(nil)
	assert.False(t, ok)
	value, _ := p.match("example.com")
	assert.Equal(t, "example.com", value, "match alone knows no scheme")
}

func TestNoPatternsMatchNothing(t *testing.T) {
	for _, m := range []map[string]int{nil, {}} {
		p, problems := parseHosts(m)
		assert.Nil(t, p)
		assert.Empty(t, problems)
		_, ok := p.match("example.com")
		assert.False(t, ok)
		_, ok = p.matchURL(&url.URL{Scheme: "http", Host: "example.com"})
		assert.False(t, ok)
	}
	var zero hostPatterns[int]
	_, ok := zero.match("example.com")
	assert.False(t, ok)
}

func TestPatternsWithTheZeroValueMatch(t *testing.T) {
	p, _ := parseHosts(map[string]int{"example.com": 0, "*.example.com:80": 0})
	_, ok := p.match("example.com")
	assert.True(t, ok)
	_, ok = p.match("a.example.com:80")
	assert.True(t, ok)
}

func TestInvalidPatternsSayWhatIsWrong(t *testing.T) {
	const (
		label   = "has the label "
		address = "has a * before an address"
		star    = "has a * that is not the whole first label"
		foreign = "has a path, query or fragment in it; allowed are"
		space   = "has a space or a control character in it; allowed are"
		ipv6    = "has brackets around what is not an IPv6 address"
		idna    = "has a name that IDNA does not allow"
		scheme  = "has a scheme in it; allowed are"
		user    = "has user information in it; allowed are"
	)
	for pattern, want := range map[string]string{
		"":  "is empty; allowed are",
		" ": space, "example.com ": space, "exam ple.com": space, "example.com\n": space, "example.com\x00": space, "example\u00a0.com": space,
		"example.com\u2028": space, "\u0085": space, "example.com\x7f": space,
		"http://example.com": scheme, "https://example.com:443/": scheme, "://": scheme,
		"user@example.com": user, "good.com@evil.com": user, "user:password@example.com": user,
		"example.com/": foreign, "example.com/path": foreign, "example.com?q": foreign, "example.com#f": foreign, `example.com\a`: foreign,
		"*": star, "**": star, "*:8080": star, "*example.com": star, "a.*.example.com": star, "example.*": star, "*.*.example.com": star,
		"a*.example.com": star, "*a.example.com": star, "example.com:*": star, "*.a*": star,
		"*.": label, "*.:80": label, "*..com": label, ".": label, "..": label, ".example.com": label, "example..com": label, "example.com..": label, ":": label, ":80": label,
		"-a.example": label, "a-.example": label, "a.-": label, "a!b": label, "ex%41mple.com": label, "a,b": label, "a;b": label, "a=b": label, `"a"`: label,
		"example.com:": `has the port ""; allowed is`, "example.com:0": `has the port "0"; allowed is`, "example.com:000": `has the port "000"`,
		"example.com:65536": `has the port "65536"`, "example.com:99999999999999999999": "has the port", "example.com:http": `has the port "http"`, "example.com:-1": `has the port "-1"`,
		"example.com:+80": `has the port "+80"`, "example.com:0x50": "has the port", "example.com:８０": "has the port", "example.com:8_0": "has the port", "[::1]:": `has the port ""`,
		"[::1]:0": `has the port "0"`, "[::1]:65536": `has the port "65536"`, "[::1]8080": `has the port "8080"`, "[::1]x:80": "has the port", "[::1].": "has the port",
		"::1": "has more than one colon", "2001:db8::1": "has more than one colon", "example.com:80:80": "has more than one colon",
		"[]": ipv6, "[": ipv6, "[::1": ipv6, "[::g]": ipv6, "[127.0.0.1]": ipv6, "[example.com]": ipv6, "[::1%]": ipv6, "[[::1]]": ipv6, "[::1]]": ipv6, "[1:2:3]:80": ipv6,
		"::1]": "has more than one colon", "a]": label, "a[::1]": "has more than one colon",
		"*.[::1]": address, "*.127.0.0.1": address, "*.0.0.1": address, "*.1:80": address, "*.１": address, "*.[x": address,
		"-ü.example": idna, "ü_.example": idna, "a\u200d.example": idna, "xn--a.ü": idna, "\u00ad": idna, "ü,": idna, "١a.example": idna, "*.-ü": idna,
		"ü。。x": label, "ü..x": label, "a\xff": "is not UTF-8", strings.Repeat("a", 64): label, "xn--not-an-idn-.example": label,
		"b" + longestName: "has a name of 254 bytes; allowed are at most 253", "a." + longestName + ".:80": "has a name of 255 bytes; allowed are at most 253",
	} {
		p, problems := parseHosts(map[string]int{pattern: 1})
		assert.Nil(t, p, "%q", pattern)
		if assert.Len(t, problems, 1, "%q", pattern) {
			assert.Equal(t, pattern, problems[0].pattern)
			assert.Contains(t, problems[0].problem, want, "%q", pattern)
		}
	}
}

func TestPatternsThatMeanTheSameAreAProblem(t *testing.T) {
	for _, same := range [][]string{ // sorted, as the problems are
		{"EXAMPLE.com.", "example.com"},
		{"EXAMPLE.com", "Example.com", "example.com", "example.com."},
		{"*.EXAMPLE.com", "*.example.com", "*.example.com."},
		{"faß.example", "xn--fa-hia.example"},
		{"bücher.example:80", "xn--bcher-kva.example:080"},
		{"example.com:080", "example.com:80"},
		{"[0:0:0:0:0:0:0:1]", "[::1]"},
		{"[::1]:080", "[::1]:80"},
		{"127.0.0.1", "１２７.0.0.1"},
	} {
		m := map[string]int{"example.org": 0, "example.com:1": 0, "*.example.com:1": 0, "example.org:80": 0}
		for i, key := range same {
			m[key] = i
		}
		keys := slices.Sorted(slices.Values(same))
		for range 5 { // in whatever order the map is
			p, problems := parseHosts(maps.Clone(m))
			assert.Nil(t, p)
			require.Len(t, problems, len(same)-1)
			for i, problem := range problems {
				assert.Equal(t, keys[i+1], problem.pattern)
				assert.Equal(t, fmt.Sprintf("means the same as %q; only one of them may stay", keys[0]), problem.problem)
			}
		}
	}
}

func TestAllProblemsAreReportedInOrder(t *testing.T) {
	m := map[string]int{"z*": 0, "ok.example": 0, "": 0, "b.example:0": 0, "b.example": 0, "B.example": 0, "a b": 0, "[::": 0}
	for range 5 {
		p, problems := parseHosts(maps.Clone(m))
		assert.Nil(t, p)
		var got []string
		for _, problem := range problems {
			got = append(got, problem.pattern)
		}
		assert.Equal(t, []string{"", "[::", "a b", "b.example", "b.example:0", "z*"}, got)
	}
}

// Hazard H3.
func TestCanonicalHostIsTheSameForEverySpelling(t *testing.T) {
	for want, hosts := range map[string][]string{
		"http|example.com": {"example.com", "EXAMPLE.com", "example.com:", "example.com:80", "example.com:080", "example.com.", "example.com.:80",
			"Example.COM.:", "ｅｘａｍｐｌｅ.com", "example。com:80", "example.com.."},
		"https|example.com":         {"example.com", "example.com:443", "example.com:0443", "EXAMPLE.com:"},
		"http|example.com:443":      {"example.com:443", "EXAMPLE.com.:0443"},
		"https|example.com:80":      {"example.com:80", "example.com:0080"},
		"ftp|example.com:80":        {"example.com:80"},
		"http|example.com:8":        {"example.com:8"},
		"http|example.com:800":      {"example.com:800"},
		"http|example.com:0":        {"example.com:0", "example.com:00"},
		"http|example.com:99999":    {"example.com:99999"},
		"http|127.0.0.1":            {"127.0.0.1", "１２７.0.0.1", "127.0.0.1:80"},
		"http|[::1]":                {"[::1]", "[::1]:80", "[::1]:", "[0:0:0:0:0:0:0:1]", "[0000::1]:080"},
		"http|[::1]:8080":           {"[::1]:8080", "[0:0:0:0:0:0:0:1]:08080"},
		"http|[2001:db8::a]:1":      {"[2001:DB8:0::A]:1"},
		"http|[fe80::1%eth0]":       {"[fe80::1%eth0]", "[FE80:0::1%Eth0]:80"},
		"http|xn--fa-hia.example":   {"faß.example", "xn--fa-hia.example", "XN--fa-hia.example:80", "FAß.example."},
		"http|xn--tda:8080":         {"ü:8080", "Ü.:08080", "u\u0308:8080", "ü。:8080"},
		"http|my_service":           {"my_service", "My_Service:80"},
		"http|ü_.example":           {"ü_.example", "ü_.EXAMPLE", "ü_.example:80", "ü_.EXAMPLE.:"}, // IDNA refuses it
		"http|-ü:81":                {"-ü:81"},
		"http|example.com:x":        {"example.com:x", "EXAMPLE.com:X"},
		"http|a:80:80":              {"a:80:80", "A:80:80"},
		"http|::1":                  {"::1"},
		"http|[::1":                 {"[::1"},
		"http|[::1]x":               {"[::1]X"},
		"http|[::1]:x":              {"[::1]:x"},
		"http|[127.0.0.1]":          {"[127.0.0.1]"},
		"http|[example.com]":        {"[EXAMPLE.com]"},
		"http|[":                    {"["},
		"http|":                     {"", ".", "..", ":", ":80", ".:080"},
		"http|:81":                  {":81", ".:81"},
		"http|good.com@evil.com":    {"good.com@evil.com", "GOOD.com@evil.com"},
		"http|a\x00b c/d?e":         {"a\x00b c/d?e"},
		"http|example.com:８０":       {"example.com:８０", "EXAMPLE.com:８０"},
		"http|" + longestName + "x": {strings.ToUpper(longestName) + "x"},
	} {
		scheme, want, _ := strings.Cut(want, "|")
		for _, host := range hosts {
			assert.Equal(t, want, canonicalHost(&url.URL{Scheme: scheme, Host: host}), "%s://%q", scheme, host)
		}
	}
	assert.Empty(t, canonicalHost(nil))
}

func TestCanonicalHostIsNotFooledByUserInformation(t *testing.T) {
	for raw, want := range map[string]string{
		"http://good.com@evil.com":          "evil.com",
		"http://good.com:80@EVIL.com:080/":  "evil.com",
		"https://[fe80::1%25eth0]:443/":     "[fe80::1%eth0]",
		"https://b%C3%BCcher.example:8443/": "xn--bcher-kva.example:8443",
	} {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		assert.Equal(t, want, canonicalHost(u))
	}
}

// Each of these is in upper case, or not in ASCII, at every place of names of every length: the scan takes several bytes at once.
func TestNoByteOfAHostIsOverlooked(t *testing.T) {
	for n := range 40 {
		plain := strings.Repeat("a", n)
		assert.True(t, isPlain(plain))
		for i := range n {
			upper := plain[:i] + "A" + plain[i+1:]
			assert.Equal(t, plain, canonicalHost(&url.URL{Host: upper}))
			for c := range 256 {
				s := plain[:i] + string([]byte{byte(c)}) + plain[i+1:]
				if isPlain(s) && (c >= 0x80 || 'A' <= c && c <= 'Z' || c == '[') || !isPlain(s) && c < 0x40 {
					t.Fatalf("%#x at %d of %d", c, i, n)
				}
			}
		}
	}
	for _, c := range "abcdefghijklmnopqrstuvwxyz0123456789-.:" {
		assert.True(t, isPlain(string(c)), "%c", c)
	}
}

// IDNA is net/http's: whatever it dials for a name is the name's form here.
func TestToASCIIIsWhatIsDialled(t *testing.T) {
	for name, want := range map[string]string{
		"faß.example": "xn--fa-hia.example", "BÜCHER.example": "xn--bcher-kva.example", "１２７.0.0.1": "127.0.0.1",
		"例え.テスト": "xn--r8jz45g.xn--zckzah", "ü": "xn--tda", "EXAMPLE.com": "EXAMPLE.com", "": "", "a b": "a b",
	} {
		ascii, ok := toASCII(name)
		assert.True(t, ok, name)
		assert.Equal(t, want, ascii)
	}
	for _, name := range []string{"ü_", "-ü", "ü/", "ü@b", "ü b", "ü\x00", "ü[", "\u00ad", "xn--a.ü", "a\u200db"} {
		_, ok := toASCII(name)
		assert.False(t, ok, "%q", name)
	}
}

func TestToASCIILeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // fails if a goroutine stays
		_, ok := toASCII("bücher.example")
		assert.True(t, ok)
	})
	assert.Equal(t, "not dialling a:1", dialAddress("a:1").Error())
}

func TestOnlyASCIILettersAreLowered(t *testing.T) {
	assert.Equal(t, "@az[`az{ÄÉ\x80\xff", lowerASCII("@AZ[`az{ÄÉ\x80\xff"))
	assert.Equal(t, "z", lowerASCII("Z"))
	assert.Equal(t, "", lowerASCII(""))
	assert.True(t, isASCII("\x00\x7f"))
	assert.False(t, isASCII("a\x80"))
}

// canonicalHosts are hosts whose lookup has to be cheap.
var canonicalHosts = map[string]string{
	"name": "api.example.com", "port": "api.example.com:8443", "default": "api.example.com:443", "address": "192.0.2.1:8080", "ipv6": "[2001:db8::1]:8080",
	"short": "db", "service": "my_service:8080", "wildcard": "eu.west.example.org", "long": "service-with-a-long-name.eu-west-1.compute.example.net:9090",
}

func manyPatterns(t testing.TB) *hostPatterns[string] {
	return patterns(t, "api.example.com", "api.example.com:8443", "*.example.org", "*.west.example.org:444", "*.example.net:9090", "[2001:db8::1]", "db", "192.0.2.1")
}

func TestLookupsDoNotAllocate(t *testing.T) {
	p, exact := manyPatterns(t), patterns(t, "example.com")
	for name, host := range canonicalHosts {
		u := &url.URL{Scheme: "https", Host: host}
		assert.Zero(t, testing.AllocsPerRun(100, func() { canonicalHost(u) }), name)
		assert.Zero(t, testing.AllocsPerRun(100, func() { p.match(host) }), name)
		assert.Zero(t, testing.AllocsPerRun(100, func() { p.matchURL(u) }), name)
		assert.Zero(t, testing.AllocsPerRun(100, func() { exact.match(host) }), name)
	}
}

func BenchmarkCanonicalHost(b *testing.B) {
	for name, host := range canonicalHosts {
		u := &url.URL{Scheme: "https", Host: host}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				canonicalHost(u)
			}
		})
	}
	u := &url.URL{Scheme: "https", Host: "bücher.example"}
	b.Run("unicode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			canonicalHost(u)
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	for kind, p := range map[string]*hostPatterns[string]{"none": nil, "one": patterns(b, "api.example.com"), "many": manyPatterns(b)} {
		for name, host := range canonicalHosts {
			b.Run(kind+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					p.match(host)
				}
			})
		}
	}
}

func FuzzHostPatterns(f *testing.F) {
	for _, s := range []string{
		"example.com", "EXAMPLE.com.", "example.com:", "example.com:080", "*.example.com:8443", "[0:0:0:0:0:0:0:1]:80", "[fe80::1%eth0]", "faß.example", "１２７.0.0.1",
		"good.com@evil.com", "*", "", "ü_.example", "a:80:80", "[::ffff:1.2.3.4%a]", "xn--a.ü", "ü。。", "\xff", "*.日本語。jp", "A..", "a:00",
	} {
		f.Add(s, "example.com:80")
		f.Add("*.example.com", s)
	}
	f.Fuzz(func(t *testing.T, pattern, host string) {
		checkCanonical(t, host)
		checkCanonical(t, pattern)
		p, problems := parseHosts(map[string]int{pattern: 1})
		if (p == nil) == (problems == nil) {
			t.Fatalf("%q: %v, %v", pattern, p, problems)
		}
		p.match(host)
		if p == nil {
			return
		}
		match := pattern
		if suffix, wild := strings.CutPrefix(pattern, "*"); wild {
			match = "a.b" + suffix
			if _, ok := p.match(suffix[1:]); ok {
				t.Errorf("%q matches its own suffix", pattern)
			}
		}
		for _, host := range spellings(match) {
			if _, ok := p.match(host); !ok {
				t.Errorf("%q does not match %q", pattern, host)
			}
			other := host + "x" // another name or no valid port
			if _, ok := p.match(other); ok {
				t.Errorf("%q matches %q", pattern, other)
			}
		}
	})
}

// spellings returns host, which is valid, in forms that mean the same.
func spellings(host string) []string {
	upper := []byte(host) // strings.ToUpper maps some letters to other ones
	for i, c := range upper {
		if 'a' <= c && c <= 'z' {
			upper[i] -= 'a' - 'A'
		}
	}
	all := []string{host, string(upper), lowerASCII(host)}
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

func checkCanonical(t *testing.T, host string) {
	for _, scheme := range []string{"http", "https", "ftp"} {
		once := canonicalHost(&url.URL{Scheme: scheme, Host: host})
		if twice := canonicalHost(&url.URL{Scheme: scheme, Host: once}); once != twice {
			t.Errorf("%s://%q: %q, then %q", scheme, host, once, twice)
		}
		if once != lowerASCII(once) {
			t.Errorf("%s://%q: %q", scheme, host, once)
		}
	}
}

// match looks host up without a scheme, so that a host without a port matches patterns without a port only.
func (p *hostPatterns[P]) match(host string) (P, bool) { return p.lookup(host, "") }
