package hostpattern_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/hostpattern"
)

// longestName has 253 bytes, as the longest name in the DNS.
var longestName = strings.Repeat("a.", 126) + "a"

// Hazard H3.
func TestCanonicalIsTheSameForAllSpellings(t *testing.T) {
	for want, hosts := range map[string][]string{
		"http://example.com": {
			"example.com", "EXAMPLE.com", "example.com:", "example.com:80", "example.com:080",
			"example.com.", "example.com.:80", "Example.COM.:", "example.com..",
		},
		"https://example.com": {
			"example.com", "example.com:443", "example.com:0443", "EXAMPLE.com:",
		},
		"http://example.com:443":   {"example.com:443", "EXAMPLE.com.:0443"},
		"https://example.com:80":   {"example.com:80", "example.com:0080"},
		"ftp://example.com":        {"example.com"},
		"ftp://example.com:80":     {"example.com:80"},
		"http://example.com:8":     {"example.com:8"},
		"http://example.com:800":   {"example.com:800"},
		"http://example.com:0":     {"example.com:0", "example.com:00"},
		"http://example.com:99999": {"example.com:99999", "example.com:0000099999"},
		"http://127.0.0.1":         {"127.0.0.1", "127.0.0.1:80"},
		"http://[::1]": {
			"[::1]", "[::1]:80", "[::1]:", "[0:0:0:0:0:0:0:1]", "[0000::1]:080",
		},
		"http://[::1]:8080":      {"[::1]:8080", "[0:0:0:0:0:0:0:1]:08080"},
		"http://[2001:db8::a]:1": {"[2001:DB8:0::A]:1"},
		"http://[fe80::1%eth0]":  {"[fe80::1%eth0]", "[FE80:0::1%Eth0]:80"},
		"http://[fe80::1%e]:8]":  {"[FE80::1%E]:8]"},
		"http://bücher.example":  {"bücher.example", "BÜCHER.example", "bücher.example.:80"},
		"http://xn--bcher.com:8": {"xn--bcher.com:8", "XN--BCHER.com.:8"},
		"http://日本語.a.ü..jp":     {"日本語.a.Ü..jp"},
		"http://my_service":      {"my_service", "My_Service:80"},
		"http://ü_.example":      {"ü_.example", "Ü_.EXAMPLE.:80"},

		// These are malformed.
		"http://example.com:x":             {"example.com:x", "EXAMPLE.com:X"},
		"http://a:80:80":                   {"a:80:80", "A:80:80"},
		"http://::1":                       {"::1"},
		"http://[::1":                      {"[::1"},
		"http://[::1]x":                    {"[::1]X"},
		"http://[::1]:x":                   {"[::1]:x"},
		"http://[127.0.0.1]":               {"[127.0.0.1]"},
		"http://[example.com]":             {"[EXAMPLE.com]"},
		"http://[":                         {"["},
		"http://":                          {"", ".", "..", ":", ":80", ".:080"},
		"http://:81":                       {":81", ".:81"},
		"http://good.com@evil.com":         {"good.com@evil.com", "GOOD.com@evil.com"},
		"http://a\x00b c/d?e":              {"a\x00b c/d?e"},
		"http://example.com:８０":            {"example.com:８０", "EXAMPLE.com:８０"},
		"http://@AZ[`az{\xc3(\x80\xff":     {"@AZ[`az{\xc3(\x80\xff"},
		"http://" + longestName + "x":      {strings.ToUpper(longestName) + "x"},
		"http://" + longestName + ":65535": {longestName + ":65535", longestName + ".:65535"},
	} {
		scheme, _, _ := strings.Cut(want, ":")
		for _, host := range hosts {
			for _, scheme := range []string{scheme, strings.ToUpper(scheme)} {
				got := hostpattern.Canonical(&url.URL{Scheme: scheme, Host: host})
				assert.Equal(t, want, got, "%s://%q", scheme, host)
			}
		}
	}
	assert.Empty(t, hostpattern.Canonical(nil))
}

func TestCanonicalIgnoresUserInformation(t *testing.T) {
	for raw, want := range map[string]string{
		"http://good.com@evil.com":          "http://evil.com",
		"http://good.com:80@EVIL.com:080/":  "http://evil.com",
		"https://[fe80::1%25eth0]:443/":     "https://[fe80::1%eth0]",
		"https://b%C3%BCcher.example:8443/": "https://bücher.example:8443",
	} {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		assert.Equal(t, want, hostpattern.Canonical(u))
	}
}

func TestCanonicalIsBounded(t *testing.T) {
	const long = 60_000
	for _, test := range []struct{ scheme, host, want string }{
		{"http", strings.Repeat("a", 255), "http://" + strings.Repeat("a", 255)},
		{"http", strings.Repeat("a", 255) + ".:80", "http://" + strings.Repeat("a", 255)},
		{"http", strings.Repeat("a", 256), "http://(name too long)"},
		{"https", strings.Repeat("a", 256), "https://(name too long)"},
		{"http", strings.Repeat("a", long) + ":8080", "http://(name too long)"},
		{"http", strings.Repeat("a", long) + ":x", "http://(name too long)"},
		{"http", strings.Repeat("Ⱥ", 100), "http://(name too long)"}, // longer in lower case
		{"http", strings.Repeat("語", long), "http://(name too long)"},
		{"http", "[fe80::1%" + strings.Repeat("a", long) + "]", "http://(name too long)"},
		{"http", "[" + strings.Repeat("1:", long), "http://(name too long)"},
		{"http", "a:" + strings.Repeat("0", long) + "81", "http://a:81"},
		{"http", "a:655350", "http://(name too long)"},
		{"http", "a:" + strings.Repeat("1", long), "http://(name too long)"},
		{strings.Repeat("a", 32), "a", strings.Repeat("a", 32) + "://a"},
		{strings.Repeat("a", 33), "a", "(name too long)://a"},
	} {
		got := hostpattern.Canonical(&url.URL{Scheme: test.scheme, Host: test.host})
		assert.Equal(t, test.want, got, "%.80s", test.host)
	}
}

// Two hosts that net/http can connect to, and that have the same key, have to
// be the same host, or one could silence the other.
func TestLowerCaseIsTheSameHost(t *testing.T) {
	for r := range rune(unicode.MaxRune) {
		name, lower := "a"+string(r)+"a", "a"+string(unicode.ToLower(r))+"a"
		key := func(host string) string { return hostpattern.Canonical(&url.URL{Host: host}) }
		if !utf8.ValidRune(r) || name == lower || key(name) != key(lower) {
			continue
		}
		dialed, same := dialedHost(name), dialedHost(lower)
		// A name that remains outside ASCII cannot be resolved.
		if isASCII(dialed) && isASCII(same) && !strings.EqualFold(dialed, same) {
			t.Errorf("%U: net/http connects to %q, and to %q for its lower case", r, dialed, same)
		}
	}
	assert.Equal(t, "http://aİa", hostpattern.Canonical(&url.URL{Scheme: "http", Host: "AİA"}))
	assert.Equal(t, "http://faẞ", hostpattern.Canonical(&url.URL{Scheme: "http", Host: "FAẞ"}))
}

// dialedHost returns the host that net/http connects to for name.
func dialedHost(name string) string {
	var dialed string
	dial := func(_ context.Context, _, addr string) (net.Conn, error) {
		dialed, _, _ = net.SplitHostPort(addr)
		return nil, errors.New("no network")
	}
	u := &url.URL{Scheme: "http", Host: name}
	_, _ = (&http.Transport{DialContext: dial}).
		RoundTrip(&http.Request{URL: u, Header: http.Header{}})
	return dialed
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf })
}

func FuzzCanonical(f *testing.F) {
	for _, host := range []string{
		"example.com", "EXAMPLE.com.", "example.com:", "example.com:080", "[0:0:0:0:0:0:0:1]:80",
		"[fe80::1%eth0]",
		"faß.example", "FAẞ", "İ", "K", "１２７.0.0.1", "good.com@evil.com", "", "ü_.example",
		"a:80:80", ":", "..:0443",
		"[::ffff:1.2.3.4%a]", "[::ffff:c000:201]", "[fe80::1%e]:8]", "\xff", "A\xffÜ", "a:00",
		"a:655350", "[", "]", "[]",
		strings.Repeat("Ⱥ", 127), strings.Repeat("a", 256),
		"[fe80::1%" + strings.Repeat("Z", 245) + "]:1",
	} {
		f.Add("http", host)
		f.Add("HTTPS", host)
	}
	f.Add(strings.Repeat("Ⱥ", 16), "a")
	f.Fuzz(func(t *testing.T, scheme, host string) {
		once := hostpattern.Canonical(&url.URL{Scheme: scheme, Host: host})
		if len(once) > 300 {
			t.Errorf("%q, %q: %d bytes", scheme, host, len(once))
		}
		// Bytes that are not UTF-8 have no case.
		if utf8.ValidString(scheme) && utf8.ValidString(host) {
			for _, other := range []string{upperASCII(host), lowerASCII(host)} {
				got := hostpattern.Canonical(&url.URL{Scheme: scheme, Host: other})
				if got != once || got != lowerASCII(got) {
					t.Errorf("%q, %q: %q, but %q for %q", scheme, host, once, got, other)
				}
			}
		}
		if strings.Contains(scheme, ":") {
			return // the key cannot be taken apart
		}
		scheme, host, _ = strings.Cut(once, "://")
		if twice := hostpattern.Canonical(&url.URL{Scheme: scheme, Host: host}); once != twice {
			t.Errorf("%q, then %q", once, twice)
		}
	})
}

// upperASCII is strings.ToUpper for ASCII only. Some letters outside ASCII have
// an upper case whose lower case is another letter.
func upperASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' {
			return unicode.ToUpper(r)
		}
		return r
	}, s)
}

func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return unicode.ToLower(r)
		}
		return r
	}, s)
}
