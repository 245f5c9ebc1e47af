package redact_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/redact"
)

func TestURLKeepsSchemeHostAndPathOnly(t *testing.T) {
	for raw, want := range map[string]string{
		"":                                             "",
		"http://example.com":                           "http://example.com",
		"http://example.com/":                          "http://example.com/",
		"https://example.com:8443/a/b%2Fc;d=e":         "https://example.com:8443/a/b%2Fc;d=e",
		"https://user:secret@example.com/a":            "https://example.com/a",
		"https://secret@example.com/a":                 "https://example.com/a",
		"https://:secret@example.com":                  "https://example.com",
		"https://user:secret@/a":                       "https:///a",
		"https://example.com/a?token=secret":           "https://example.com/a?REDACTED",
		"https://example.com?secret":                   "https://example.com?REDACTED",
		"https://example.com/a?":                       "https://example.com/a",
		"https://example.com/a#secret":                 "https://example.com/a",
		"https://u:secret@example.com/a?secret#secret": "https://example.com/a?REDACTED",
		"https://[fe80::1%25eth0]:443/":                "https://[fe80::1%eth0]:443/",
		"https://b%C3%BCcher.example/ü":                "https://bücher.example/%C3%BC",
		"/a/b?secret":                                  "/a/b?REDACTED",
		"//user:secret@example.com/a":                  "//example.com/a",
		"a/b?secret":                                   "a/b?REDACTED",
		"?secret":                                      "?REDACTED",
		"#secret":                                      "",
		"*":                                            "*",
		"mailto:secret@example.com":                    "mailto:REDACTED",
		"http:secret?secret":                           "http:REDACTED?REDACTED",
		"http://example.com/a%0D%0Ab%1B%00%E2%80%A8c":  "http://example.com/a%0D%0Ab%1B%00%E2%80%A8c",
		"http://example.com/@scope/what%3Fever":        "http://example.com/@scope/what%3Fever",
	} {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		assert.Equal(t, want, redact.URL(u), raw)
	}
	assert.Empty(t, redact.URL(nil))
}

// No parser returns these, but a program can.
func TestURLMadeByHand(t *testing.T) {
	for want, u := range map[string]*url.URL{
		"http://REDACTED/a":             {Scheme: "http", Host: "user:secret@h", Path: "/a"},
		"http://REDACTED":               {Scheme: "http", Host: "example.com?token=secret"},
		"http://REDACTED/b":             {Scheme: "http", Host: "example.com/secret", Path: "/b"},
		"https://REDACTED":              {Scheme: "https", Host: `example.com\secret`},
		"ftp://REDACTED":                {Scheme: "ftp", Host: "example.com#secret"},
		"REDACTED:":                     {Scheme: "http://user:secret@example.com"},
		"http://h/%0D%0AGET%20%1B%5B0m": {Scheme: "http", Host: "h", Path: "/\r\nGET \x1b[0m"},
		"http://h/%00%7F%E2%80%AEa":     {Scheme: "http", Host: "h", Path: "/\x00\x7f\u202ea"},
		"http://h/a%3Fb":                {Scheme: "http", Host: "h", Path: "/a?b"},
		"http://h/evil.com":             {Scheme: "http", Host: "h", Path: "evil.com"},
		`http://h\r\nforged: line\x1b`:  {Scheme: "http", Host: "h\r\nforged: line\x1b"},
		`h\x00\u2028\u202e:`:            {Scheme: "h\x00\u2028\u202e"},
		`//\xff\u200b\u00a0`:            {Host: "\xff\u200b\u00a0"},
		"http://hREDACTED?REDACTED": {
			Scheme: "http", Host: "h", Opaque: "//user:secret@example.com/a?secret",
			RawQuery: "secret",
		},
		"http:///a": {Scheme: "http", User: url.UserPassword("secret", "secret"), Path: "/a"},
		"http://h/a": {
			Scheme: "http", Host: "h", Path: "/a", RawPath: "/\r\nsecret", Fragment: "secret",
			RawFragment: "secret",
		},
	} {
		assert.Equal(t, want, redact.URL(u))
	}
}

func TestOrigin(t *testing.T) {
	for origin, want := range map[string]string{
		"":                                   "",
		"http://a.test":                      "http://a.test",
		"https://[fe80::1%eth0]:81":          "https://[fe80::1%eth0]:81",
		"http://(name too long)":             "http://(name too long)",
		"http://user:secret@a.test":          "http://REDACTED",
		"http://a.test/secret":               "http://REDACTED",
		"http://a.test?secret":               "http://REDACTED",
		"http://secret@a.test://b":           "http://REDACTED",
		"secret@a://b.test":                  "REDACTED://b.test",
		"secret@a.test":                      "REDACTED",
		"http://a.test\n\x1b[31m":            `http://a.test\n\x1b[31m`,
		"http://" + strings.Repeat("a", 600): "http://" + strings.Repeat("a", 502) + "…",
	} {
		assert.Equal(t, want, redact.Origin(origin))
	}
}

func TestURLIsBounded(t *testing.T) {
	for host, want := range map[string]string{
		strings.Repeat("a", 510):   strings.Repeat("a", 510),
		strings.Repeat("a", 511):   strings.Repeat("a", 507) + "…",
		strings.Repeat("ü", 1000):  strings.Repeat("ü", 253) + "…",  // no half of a letter
		strings.Repeat("\n", 1000): strings.Repeat(`\n`, 253) + "…", // no half of an escape
	} {
		assert.Equal(t, "//"+want, redact.URL(&url.URL{Host: host}))
	}
}

// secretError is an error that wraps another one without adding text.
type secretError struct{ error }

func (e secretError) Unwrap() error { return e.error }

func TestErrorKeepsOtherText(t *testing.T) {
	assert.Empty(t, redact.Error(nil))
	for _, text := range []string{
		"EOF", "a  b", "is this h2c? or what?!", "written in C#, or F#: #",
		"dial unix @docker: refused", "malformed URL", "see http://example.com/a, or else (EOF)",
		"(see http://example.com:80/a): EOF", "proxy http://[::1]: EOF", `an "open quote`,
		`bücher "größe" 日本`,
	} {
		assert.Equal(t, text, redact.Error(errors.New(text)))
	}
	eof := errors.New("EOF")
	for want, err := range map[string]error{
		"dial tcp [::1]:80: EOF": &net.OpError{Op: "dial", Net: "tcp",
			Addr: &net.TCPAddr{IP: net.IPv6loopback, Port: 80}, Err: eof},
		`Get "http://h/": EOF`:         &url.Error{Op: "Get", URL: "http://h/", Err: eof},
		`Get "": EOF`:                  &url.Error{Op: "Get", Err: eof},
		`Get "http://h/%40scope": EOF`: &url.Error{Op: "Get", URL: "http://h/@scope", Err: eof},
	} {
		assert.Equal(t, want, redact.Error(err))
	}
}

// A redactTest is an error and the text that may be logged for it. SECRET
// stands for the parts that must be removed.
type redactTest struct {
	err  error
	want string
}

func (tt redactTest) run(t *testing.T) {
	t.Helper()
	got := redact.Error(tt.err)
	assert.Equal(t, tt.want, got)
	assert.NotContains(t, got, "SECRET", "%v", tt.err)
}

func TestErrorRemovesSecretsFromURLErrors(t *testing.T) {
	get := func(raw string, err error) error { return &url.Error{Op: "Get", URL: raw, Err: err} }
	eof := errors.New("EOF")
	known := get("http://u:SECRET@h/?SECRET", eof)
	broken := parse("http://u:SECRET/SECRET@a")
	for _, tt := range []redactTest{
		{get("http://u:SECRET@h/a?SECRET#SECRET", eof), `Get "http://h/a?REDACTED": EOF`},
		{get("http://SECRET@h", eof), `Get "http://h": EOF`},
		{get("/a?SECRET", eof), `Get "/a?REDACTED": EOF`},
		{get(`http://h/?a b"SECRET" c`, eof), `Get "http://h/?REDACTED": EOF`},
		{get("http://u:SECRET SECRET@h/", eof), `Get "REDACTED": invalid URL`},
		{get("http://h/", known), `Get "http://h/": Get "http://h/?REDACTED": EOF`},
		{get("http://h/", errors.New("line\nforged")), `Get "http://h/": line\nforged`},
		{get("http://h/", errors.New("token?SECRET and")), `Get "http://h/": token?REDACTED and`},
		{get("http://h/", nil), `Get "http://h/": `},
		{fmt.Errorf("x: %w", known), `x: Get "http://h/?REDACTED": EOF`},
		{fmt.Errorf("x http://u:SECRET@h/?SECRET: %w", known),
			`x http://h/?REDACTED: Get "http://h/?REDACTED": EOF`},
		{fmt.Errorf("x http://h/?a SECRET: %w", get("http://h/?a SECRET", eof)),
			`x http://h/?REDACTED: Get "http://h/?REDACTED": EOF`},
		{secretError{get("http://u:SECRET@h/", eof)}, `Get "http://h/": EOF`},
		{errors.Join(eof, get("http://SECRET@a/", eof), get("http://u:SECRET@b/", eof)),
			`EOF\nGet "http://a/": EOF\nGet "http://b/": EOF`},
		{broken, `parse "REDACTED": invalid URL`},
		{errors.Join(broken, parse("http://u:SECRET%zzSECRET@b")),
			`parse "REDACTED": invalid URL\nparse "REDACTED": invalid URL`},
		{&url.Error{Op: "parse", URL: "SECRET@h?SECRET", Err: errors.New("SECRET")},
			`parse "REDACTED"…`},
		// net/http quotes these in text.
		{fmt.Errorf("invalid proxy address %q: %v", "u:SECRET%zz@proxy:3128",
			parse("u:SECRET%zz@proxy:3128")), `invalid proxy address "REDACTED"…`},
		{fmt.Errorf("failed to parse Location header %q: %v", "http://u:SECRET/SECRET@a", broken),
			`failed to parse Location header "REDACTED"…`},
	} {
		tt.run(t)
	}
}

func TestErrorRemovesSecretsFromText(t *testing.T) {
	for text, want := range map[string]string{
		"http://u:SECRET@h/a?SECRET#SECRET: EOF": "http://h/a?REDACTED: EOF",
		"http://SECRET@h/a: EOF":                 "http://h/a: EOF",
		"http://h/#SECRET: EOF":                  "http://h/: EOF",
		"http://u:SECRET/SECRET@h/a: SECRET":     "REDACTED…",
		"http://u:12/SECRET@h/a: SECRET":         "REDACTED…",
		"http://u:SECRET SECRET@h/a: SECRET":     "REDACTED…",
		"://u:SECRET@h/a: SECRET":                "REDACTED…",
		"http://h/SECRET@a":                      "REDACTED…",
		"http:///a:SECRET?@h":                    "REDACTED…",
		"http://h/?SECRET@a":                     "REDACTED…",
		"http://u:SECRET@SECRET?@h":              "REDACTED…",
		"http://u:p@SECRET@h":                    "REDACTED…",
		"http://a/http://u:SECRET@h/":            "REDACTED…",
		"http://a/,http://u:SECRET@h/":           "REDACTED…",
		"u:SECRET@a,http://h/":                   "REDACTED…",
		"/a?SECRET,http://h/":                    "REDACTED…",
		"ühttp://u:SECRET@h/":                    "ühttp://h/",
		"url=http://u:SECRET@h/":                 "url=http://h/",
		"git+http.x-1://u:SECRET@h/":             "git+http.x-1://h/",
		"/a?token=SECRET&b: EOF":                 "/a?REDACTED EOF",
		"/a#token=SECRET: EOF":                   "/a#REDACTED EOF",
		"a#SECRET?b and #SECRET":                 "a#REDACTED and #REDACTED",
		"/a?#SECRET: EOF":                        "/a?REDACTED EOF",
		"/a#SECRET,http://h/":                    "REDACTED…",
		`"/a b#SECRET c": EOF`:                   `"/a b#REDACTED": EOF`,
		"u:SECRET@h:80: SECRET":                  "REDACTED…",
		"<u:SECRET@h>":                           "REDACTED…",
		`"http://u:SECRET@h/a?SECRET": EOF`:      `"http://h/a?REDACTED": EOF`,
		`"http://h/a?a b SECRET": EOF`:           `"http://h/a?REDACTED": EOF`,
		`"u:SECRET SECRET@h": EOF`:               `"REDACTED"…`,
		`"a \"SECRET@h": EOF`:                    `"REDACTED"…`,
		`"GET http://u:SECRET@h/ HTTP/1.1": EOF`: `"GET http://h/%20HTTP/1.1": EOF`,
		`x"http://u:SECRET@h/": EOF`:             `x"http://h/": EOF`,
		`http://h/?SECRET"SECRET@h`:              `http://h/?REDACTEDREDACTED…`,
	} {
		redactTest{errors.New("see " + text), "see " + want}.run(t)
	}
}

// parse returns the error of parsing raw.
func parse(raw string) error {
	_, err := url.Parse(raw)
	return err
}

// Hazard H5: a log contains no bytes of a body, and a malformed response may be
// a part of one.
func TestErrorRemovesResponses(t *testing.T) {
	const broken = "net/http: HTTP/1.x transport connection broken: "
	for text, want := range map[string]string{
		broken + `malformed HTTP response "SECRET"`:    broken + "malformed HTTP response",
		broken + `malformed HTTP status code "SECRET"`: broken + "malformed HTTP status code",
		broken + `malformed MIME header: missing colon: "SECRET"`: broken +
			"malformed MIME header",
		"malformed MIME header line: SECRET SECRET": "malformed MIME header line",
		`malformed "SECRET"`:                        "malformed",
	} {
		redactTest{errors.New(text), want + " REDACTED…"}.run(t)
	}
}

func TestErrorOfAClient(t *testing.T) {
	dial := func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no network")
	}
	transport := &http.Transport{DialContext: dial}
	client := &http.Client{Transport: transport}
	_, err := client.Get("http://SECRET:SECRET@example.com/a?token=SECRET#SECRET")
	assert.Equal(t, `Get "http://example.com/a?REDACTED": no network`, redact.Error(err))
	_, err = client.Get("http://u:SECRET/x@example.com")
	assert.Equal(t, `parse "REDACTED": invalid URL`, redact.Error(err))
	_, err = client.Get("secret://u:SECRET@example.com?SECRET")
	assert.Equal(t, `Get "secret://example.com?REDACTED": unsupported protocol scheme "secret"`,
		redact.Error(err))
	transport.Proxy = func(*http.Request) (*url.URL, error) {
		const proxy = "http://u:SECRET%zz@proxy"
		return nil, fmt.Errorf("invalid proxy address %q: %v", proxy, parse(proxy))
	}
	_, err = client.Get("http://example.com")
	assert.Equal(t, `Get "http://example.com": invalid proxy address "REDACTED"…`,
		redact.Error(err))
}

// Hazard H6.
func TestErrorCannotForgeALogLine(t *testing.T) {
	for text, want := range map[string]string{
		"a\r\nlevel=ERROR msg=forged":             `a\r\nlevel=ERROR msg=forged`,
		"\x1b[2J\x07\x00\x7f":                     `\x1b[2J\a\x00\x7f`,
		"a\u2028b\u2029c\u0085d":                  `a\u2028b\u2029c\u0085d`,
		"\u202eabc\u202c\u2066\u2069\u200f\u061c": `\u202eabc\u202c\u2066\u2069\u200f\u061c`,
		"\ufeff\u200b\u00ad\u00a0\U000e0041":      `\ufeff\u200b\u00ad\u00a0\U000e0041`,
		"\xff\xc3(\xe2\x80":                       `\xff\xc3(\xe2\x80`,
		"\uFFFD":                                  "\uFFFD",
		"it's a \\ \"tab\"\t":                     `it's a \ "tab"\t`,
		"日本語 é 👍":                                 "日本語 é 👍",
		"\"quoted\nline\"":                        `"quoted\nline"`,
		"CONNECT: 407 \x1b]0;title\x07":           `CONNECT: 407 \x1b]0;title\a`,
	} {
		got := redact.Error(errors.New(text))
		assert.Equal(t, want, got)
		assert.Equal(t, got, redact.Error(errors.New(got)), "a second time")
	}
}

func TestErrorIsBounded(t *testing.T) {
	for text, want := range map[string]string{
		strings.Repeat("a", 512):    strings.Repeat("a", 512),
		strings.Repeat("a", 513):    strings.Repeat("a", 509) + "…",
		strings.Repeat("a ", 1<<20): strings.Repeat("a ", 254) + "a…",
		strings.Repeat("\n", 1<<20): strings.Repeat(`\n`, 254) + "…",
	} {
		assert.Equal(t, want, redact.Error(errors.New(text)))
	}
	longURL := "http://h/" + strings.Repeat("a", 1000) + "?SECRET"
	long := redact.Error(&url.Error{Op: "Get", URL: longURL, Err: errors.New("EOF")})
	assert.Len(t, long, 512)
	assert.NotContains(t, long, "SECRET")
	// The cut must not make a secret look like something else.
	for n := 480; n < 520; n++ {
		got := redact.Error(errors.New(strings.Repeat("a", n) + " http://u:SECRET@h/?SECRET"))
		assert.NotContains(t, got, "SECRET")
		assert.LessOrEqual(t, len(got), 512)
	}
}

func TestTextEscapesAndBounds(t *testing.T) {
	assert.Empty(t, redact.Text(""))
	assert.Equal(t, "http://u:p@h/?q", redact.Text("http://u:p@h/?q"), "nothing is redacted")
	assert.Equal(t, `a\r\n\x1b[2J\u202e\xff`, redact.Text("a\r\n\x1b[2J\u202e\xff"))
	for n := 500; n < 520; n++ {
		got := redact.Text(strings.Repeat("a", n))
		assert.Len(t, got, min(n, 512))
		assert.Equal(t, n > 512, strings.HasSuffix(got, "…"))
		assert.Equal(t, got, redact.Text(got), "a second time")
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("http", "example.com", "/a", "q=1", "", uint8(0))
	f.Add("https", "[::1]:80", "/@a", "a?b=c&d", " see ", uint8(1))
	f.Add("http", "h\r\n", "/\x1b\u202e", "\x00", "\"", uint8(2))
	f.Add("a b", "a@b", "/ü?", "a b\"c", "x://", uint8(3))
	f.Add("", "", "", "", "", uint8(4))
	f.Add("http", "h", "?", "/a", "", uint8(6)) // a password that reads like a path
	f.Add("http", strings.Repeat("h", 600), "", "", strings.Repeat("\n", 300), uint8(5))
	f.Fuzz(func(t *testing.T, scheme, host, path, query, around string, how uint8) {
		const secret = "sEcReT7"
		if strings.Contains(scheme+host+path+query+around, "sEcReT") {
			t.Skip()
		}
		u := &url.URL{
			Scheme: scheme, Host: host, Path: path, RawQuery: query + secret, Fragment: secret,
			User: url.UserPassword(secret, secret),
		}
		checkRedacted(t, redact.URL(u), secret)
		checkRedacted(t,
			redact.URL(&url.URL{Scheme: scheme, Host: secret + "@" + host, Opaque: secret}), secret)
		// A URL that was put together by hand, and the parser's error for it.
		raw := scheme + "://" + query + ":" + secret + path + "@" + host
		checkRedacted(t, redact.Error(parse(raw)), secret)
		proxyErr := fmt.Errorf("invalid proxy address %q: %v", raw, parse(raw))
		checkRedacted(t, redact.Error(proxyErr), secret)
		raw = u.String()
		cause := errors.New(around)
		known := &url.Error{Op: "Get", URL: raw, Err: cause}
		checkRedacted(t, redact.Error(known), secret)
		checkRedacted(t, redact.Error(fmt.Errorf("%s%w%s", around, known, around)), secret)
		checkRedacted(t, redact.Error(errors.Join(cause, known)), secret)
		if how%2 == 0 {
			raw = fmt.Sprintf("%q", raw)
		} else if strings.Contains(raw, `"`) || strings.ContainsFunc(raw, unicode.IsSpace) {
			return // the end of such a URL is unknown
		}
		checkRedacted(t, redact.Error(errors.New("see "+raw+" "+around)), secret)
	})
}

func checkRedacted(t *testing.T, got, secret string) {
	t.Helper()
	if strings.Contains(got, secret) || len(got) > 512 || !utf8.ValidString(got) {
		t.Errorf("%d bytes: %q", len(got), got)
	}
	for _, r := range got {
		if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
			t.Errorf("%q holds %U", got, r)
		}
	}
}

// Only the beginning of a long text is read. A token that does not end there is
// redacted.
func TestErrorOfALongText(t *testing.T) {
	long := strings.Repeat("x", 20<<10)
	for _, text := range []string{
		"dial user:SECRET" + long + "@h",
		"dial http://user:SECRET" + long + "@h/",
		`dial "user SECRET ` + long + `@h"`,
		`dial "user ` + strings.Repeat(`\"`, 20<<10) + ` SECRET@h"`,
		`dial "` + strings.Repeat(`\"`, 20<<10) + " SECRET",
		"dial SECRET" + long,
		"dial SECRET" + long + " and more",
	} {
		assert.Equal(t, "dial REDACTED…", redact.Error(errors.New(text)), "%.40s", text)
	}
	whole := strings.Repeat("x", 16<<10) // which is read to its end
	assert.Equal(t, whole[:509]+"…", redact.Error(errors.New(whole)))
	assert.Equal(t, "REDACTED…", redact.Error(errors.New(whole+"x")))
	assert.Equal(t, `dial "a b" REDACTED…`, redact.Error(errors.New(`dial "a b" `+long)))
	text := "a " + strings.Repeat("b", 1000) + " " + long
	assert.Equal(t, "a "+strings.Repeat("b", 507)+"…", redact.Error(errors.New(text)))
}
