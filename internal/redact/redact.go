// Package redact turns URLs and errors into text for logs. It removes text that
// may be a secret. It escapes characters that could end a line of a log,
// control a terminal or change the order of text.
//
// The package knows URLs, and where net/http quotes a URL or a response in the
// text of an error. It does not know the secrets. So it keeps the path of a
// URL, even if a service has tokens there. It also keeps a header or a token
// that an error of another package quotes in another form.
package redact

import (
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	redacted = "REDACTED"
	ellipsis = "…"

	// maxTextLen is the maximum length of results in bytes, with the ellipsis.
	maxTextLen = 512

	// maxScan is how many bytes of an error's text are read. A server or a
	// proxy can send megabytes, and every quotation mark that is not closed
	// makes tokenLen read all of the rest.
	maxScan = 16 << 10
)

// URL returns the scheme, host and path of u, in at most 512 bytes. It returns
// "" for nil.
//
// It removes the fragment and the user information. That includes the user
// name, which [url.URL.Redacted] keeps, because some services take a token as
// user name. It replaces the query and an opaque part with "REDACTED".
func URL(u *url.URL) string {
	if u == nil {
		return ""
	}
	var b strings.Builder
	if u.Scheme != "" {
		b.WriteString(urlPart(u.Scheme) + ":")
	}
	if u.Host != "" || u.User != nil {
		b.WriteString("//" + urlPart(u.Host))
	}
	switch path := u.EscapedPath(); {
	case u.Opaque != "":
		// net/http writes it into the request line as it is.
		b.WriteString(redacted)
	case path != "" && path[0] != '/' && u.Host != "":
		// As url.URL.String does. Without the slash, the path would look like a
		// part of the host.
		b.WriteString("/" + path)
	default:
		b.WriteString(path)
	}
	if u.RawQuery != "" {
		b.WriteString("?" + redacted)
	}
	return Text(b.String())
}

// Origin returns an origin, such as "http://a.test", as [URL] returns the scheme
// and the host of a URL. The host of an origin, too, can contain a whole URL.
func Origin(origin string) string {
	scheme, host, ok := strings.Cut(origin, "://")
	if !ok {
		return Text(urlPart(origin))
	}
	return Text(urlPart(scheme) + "://" + urlPart(host))
}

// urlPart returns the scheme or host s. A URL that was not made by url.Parse
// can have a whole URL in these fields. urlPart redacts that.
func urlPart(s string) string {
	if strings.ContainsAny(s, `@/\?#`) {
		return redacted
	}
	return s
}

// Error returns the text of err, in at most 512 bytes. It returns "" for nil.
//
// Error replaces each URL with the result of [URL]. Outside of URLs, it also
// redacts text that looks like user information, a query or a fragment. If
// something may be a secret but cannot be parsed, then the rest of the text may
// quote it again, so Error removes the rest, too.
func Error(err error) string {
	if err == nil {
		return ""
	}
	return Text(redactText(redactResponse(redactURLErrors(err.Error(), err))))
}

// redactResponse removes from s the part of a malformed response that net/http
// quotes, and everything after it. The bytes can be part of the body of another
// response on the same connection.
func redactResponse(s string) string {
	start := strings.Index(s, "malformed ")
	if start < 0 {
		return s
	}
	// The quote begins after a colon or with a quotation mark.
	quote := strings.IndexAny(s[start:], ":\"")
	if quote < 0 {
		return s
	}
	return strings.TrimRight(s[:start+quote], " ") + " " + redacted + ellipsis
}

// redactURLErrors redacts in text the part that comes from each *url.Error in
// the tree of err. Their URLs can be malformed and contain spaces and quotation
// marks, so redactText would not find where they end.
func redactURLErrors(text string, err error) string {
	switch e := err.(type) {
	case *url.Error:
		text = strings.ReplaceAll(text, e.Error(), urlErrorText(e))
		// An empty URL stays empty.
		text = strings.ReplaceAll(text, e.URL, redactRawURL(e.URL))
	case interface{ Unwrap() error }:
		text = redactURLErrors(text, e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			text = redactURLErrors(text, err)
		}
	}
	return text
}

// urlErrorText returns e.Error() without secrets.
func urlErrorText(e *url.Error) string {
	// The error of url.Parse quotes parts of the URL, such as a password that
	// it took for a port. These parts can have any form.
	cause := "invalid URL"
	if _, err := url.Parse(e.URL); err == nil && e.Op != "parse" {
		cause = Error(e.Err)
	}
	return e.Op + ` "` + redactRawURL(e.URL) + `": ` + cause
}

// redactRawURL is URL for a URL that is not parsed. A URL that cannot be parsed
// can have secrets anywhere.
func redactRawURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return redacted
	}
	if u.Host == "" {
		return URL(u)
	}
	// An @ after the host does not end user information. If it is encoded,
	// redactToken does not mistake it for one that does.
	return strings.ReplaceAll(URL(u), "@", "%40")
}

// redactText redacts each word of s, and each quoted string as a whole.
func redactText(s string) string {
	var b strings.Builder
	long := len(s) > maxScan
	s = s[:min(len(s), maxScan)]
	for s != "" && b.Len() <= maxTextLen {
		n, quoted := tokenLen(s)
		token := s[:n]
		s = s[n:]
		redact := redactToken
		if quoted {
			redact = redactQuoted
		}
		safe, more := redact(token)
		// A token whose end was not read may have a secret anywhere.
		if long && (s == "" || token[0] == '"' && !quoted) {
			safe, more = redacted, false
		}
		b.WriteString(safe)
		if !more {
			b.WriteString(ellipsis)
			break
		}
	}
	return b.String() // Text cuts it to its maximum
}

// redactQuoted is redactToken for a quoted string.
func redactQuoted(token string) (safe string, more bool) {
	inner, _ := strconv.Unquote(token)
	if safe, more = redactToken(inner); safe == inner {
		return token, more
	}
	return `"` + safe + `"`, more
}

// tokenLen returns the length of the quoted string or word at the beginning of
// s, which is not empty. A single white space is a word, too.
func tokenLen(s string) (n int, quoted bool) {
	if prefix, err := strconv.QuotedPrefix(s); err == nil && s[0] == '"' {
		return len(prefix), true
	}
	var space bool
	for i, r := range s {
		if i > 0 && (space || r == '"' || unicode.IsSpace(r)) {
			return i, false
		}
		space = unicode.IsSpace(r)
	}
	return len(s), false
}

// redactToken redacts s if it may be a URL or a part of one, and else returns
// it as it is. If more is false, then the text after s may quote the redacted
// part.
func redactToken(s string) (safe string, more bool) {
	before, _, ok := strings.Cut(s, "://")
	if !ok {
		// This can be user:password@proxy:3128. An abstract socket, such as
		// @name, has the @ in front.
		if strings.LastIndexByte(s, '@') > 0 {
			return redacted, false
		}
		return redactQuery(s), true
	}
	// The URL may have punctuation of the text around it.
	start := len(strings.TrimRightFunc(before, isSchemeRune))
	end := max(start, len(strings.TrimRight(s, ".,:;)")))
	u, err := url.Parse(s[start:end])
	// One @ ends the user information. Any other may end user information that
	// the parser took for something else.
	ends := 0
	if err == nil && u.User != nil {
		ends = 1
	}
	if err != nil || strings.Count(s, "@") > ends || strings.ContainsAny(s[:start], "?#") {
		return redacted, false
	}
	return s[:start] + URL(u) + s[end:], true
}

// redactQuery redacts the text after the first question mark or number sign in
// s, unless that is only punctuation. A token of OAuth 2.0 comes in a fragment
// (RFC 6749, section 4.2.2).
func redactQuery(s string) string {
	end := strings.IndexAny(s, "?#") + 1
	isWordRune := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
	if end == 0 || !strings.ContainsFunc(s[end:], isWordRune) {
		return s
	}
	return s[:end] + redacted
}

// isSchemeRune reports whether r can be in a scheme (RFC 3986, section 3.1).
func isSchemeRune(r rune) bool {
	return r < utf8.RuneSelf &&
		(unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("+-.", r))
}

// Text returns s in at most 512 bytes, and escapes all characters that are not
// printable as a quoted Go string does. These are control characters, line and
// paragraph separators, invisible characters, characters that change the
// direction of text, and bytes that are not UTF-8. Text that was escaped
// remains the same. Text does not redact anything.
func Text(s string) string {
	b := make([]byte, 0, min(len(s), maxTextLen))
	cut := 0 // where an ellipsis has room, between two characters or escapes
	for i, r := range s {
		if len(b) <= maxTextLen-len(ellipsis) {
			cut = len(b)
		}
		switch {
		// U+FFFD stands for a byte that is not UTF-8, unless s contains it.
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			b = append(b, `\x`+strconv.FormatUint(uint64(s[i]), 16)...)
		case strconv.IsPrint(r):
			b = utf8.AppendRune(b, r)
		default:
			quoted := strconv.QuoteRune(r)
			b = append(b, quoted[1:len(quoted)-1]...)
		}
		if len(b) > maxTextLen {
			return string(b[:cut]) + ellipsis
		}
	}
	return string(b)
}
