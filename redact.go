package httpretry

import (
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	redacted    = "REDACTED"
	ellipsis    = "…"
	longestText = 512 // bytes that redactURL and redactError return at most, the ellipsis included

	// longestRead is how many bytes of an error's text are looked at. A server, or a proxy, can put megabytes there, and quotation
	// marks without end make each word cost as much as all of the rest.
	longestRead = 16 << 10
)

// redactURL returns u for logs: scheme, host and path. User information goes entirely, since tokens are sent as user names too
// (url.URL.Redacted keeps those, and the query), and so do the query, of which only the fact remains, and the fragment.
// Nothing in the result can end a log's line, drive a terminal or reorder text, and it is at most 512 bytes long. The
// path is kept, even if a service puts secrets there: nothing tells them from the rest.
func redactURL(u *url.URL) string {
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
		b.WriteString(redacted) // anything at all: net/http puts it into the request line as it is
	case path != "" && path[0] != '/' && u.Host != "":
		b.WriteString("/" + path) // as net/http does; it would read as a part of the host
	default:
		b.WriteString(path)
	}
	if u.RawQuery != "" {
		b.WriteString("?" + redacted)
	}
	return printable(b.String())
}

// urlPart returns a scheme or host as it is if it can be one. A URL that was put together by hand can hold a whole other one there.
func urlPart(s string) string {
	if strings.ContainsAny(s, `@/\?#`) {
		return redacted
	}
	return s
}

// redactError returns the text of err for logs. URLs in it are reduced to what redactURL leaves of them. What looks like user
// information or a query outside of a URL goes as well, and so does all that follows something that cannot be told from a
// secret, since it may be quoted once more: better some harmless text than none. Nothing in the result can end a
// log's line, drive a terminal or reorder text, and it is at most 512 bytes long.
func redactError(err error) string {
	if err == nil {
		return ""
	}
	return printable(redactText(redactResponse(redactURLErrors(err.Error(), err))))
}

// redactResponse cuts s where net/http goes on to quote what a server sent instead of a response: if the two have lost step, that
// may be the body of another.
func redactResponse(s string) string {
	const malformed = "malformed "
	start := strings.Index(s, malformed)
	if start < 0 {
		return s
	}
	start += len(malformed)
	quote := strings.IndexAny(s[start:], ":\"")
	if quote < 0 {
		return s
	}
	return strings.TrimRight(s[:start+quote], " ") + " " + redacted + ellipsis
}

// redactURLErrors redacts, in text, what each *url.Error in err's tree has contributed to it. What is known to be a URL is better
// parsed than guessed: it may be malformed, and hold spaces and quotes.
func redactURLErrors(text string, err error) string {
	switch e := err.(type) {
	case *url.Error:
		text = strings.ReplaceAll(text, e.Error(), urlErrorText(e))
		text = strings.ReplaceAll(text, e.URL, redactRawURL(e.URL)) // "" becomes ""
	case interface{ Unwrap() error }:
		text = redactURLErrors(text, e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			text = redactURLErrors(text, err)
		}
	}
	return text
}

// urlErrorText is e.Error() without secrets. Why a URL cannot be parsed is told by quoting parts of it, a password that was
// taken for a port among them, and these look like anything.
func urlErrorText(e *url.Error) string {
	cause := "invalid URL"
	if _, err := url.Parse(e.URL); err == nil && e.Op != "parse" {
		cause = redactError(e.Err)
	}
	return e.Op + ` "` + redactRawURL(e.URL) + `": ` + cause
}

// redactRawURL is redactURL for a URL that is not parsed yet. A URL that cannot be parsed can hide secrets anywhere. An @ in a path
// that follows a host is encoded: it is known to be no end of user information there, and redactToken is to leave it alone.
func redactRawURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return redacted
	}
	if u.Host == "" {
		return redactURL(u)
	}
	return strings.ReplaceAll(redactURL(u), "@", "%40")
}

// redactText redacts each word of s, and each quoted string as a whole. One whose end is out of sight may be anything.
func redactText(s string) string {
	var b strings.Builder
	long := len(s) > longestRead
	s = s[:min(len(s), longestRead)]
	for s != "" && b.Len() <= longestText {
		token := s[:tokenLen(s)]
		s = s[len(token):]
		safe, more := redactQuoted(token)
		if long && (s == "" || isOpenQuote(token)) {
			safe, more = redacted, false
		}
		b.WriteString(safe)
		if !more {
			b.WriteString(ellipsis)
			break
		}
	}
	return b.String() // printable cuts what is too long
}

// isOpenQuote reports whether a quoted string begins with token and does not end there.
func isOpenQuote(token string) bool {
	_, err := strconv.Unquote(token)
	return token[0] == '"' && err != nil
}

// redactQuoted is redactToken for a token that may be quoted.
func redactQuoted(token string) (safe string, more bool) {
	inner, err := strconv.Unquote(token)
	if err != nil || token[0] != '"' {
		return redactToken(token)
	}
	if safe, more = redactToken(inner); safe == inner {
		return token, more
	}
	return `"` + safe + `"`, more
}

// tokenLen returns the length of the quoted string or the word at the beginning of s, which is not empty. A white space is a
// word of its own.
func tokenLen(s string) int {
	if quoted, err := strconv.QuotedPrefix(s); err == nil && s[0] == '"' {
		return len(quoted)
	}
	var space bool
	for i, r := range s {
		if i > 0 && (space || r == '"' || unicode.IsSpace(r)) {
			return i
		}
		space = unicode.IsSpace(r)
	}
	return len(s)
}

// redactToken redacts what may be a URL, or a part of one, and leaves the rest alone. Without more, what follows it in the text may
// quote what was redacted.
func redactToken(s string) (safe string, more bool) {
	before, _, ok := strings.Cut(s, "://")
	if !ok {
		if strings.LastIndexByte(s, '@') > 0 { // user:password@proxy:3128, say; @name is an abstract socket
			return redacted, false
		}
		return redactQuery(s), true
	}
	start := len(strings.TrimRightFunc(before, isSchemeRune))
	end := max(start, len(strings.TrimRight(s, ".,:;)"))) // punctuation of the text around it
	u, err := url.Parse(s[start:end])
	ends := 0 // how many @ are known to end user information; any other may end what the parser took for something else
	if err == nil && u.User != nil {
		ends = 1
	}
	if err != nil || strings.Count(s, "@") > ends || strings.Contains(s[:start], "?") {
		return redacted, false
	}
	return s[:start] + redactURL(u) + s[end:], true
}

// redactQuery cuts s at a question mark that is not just the end of a question.
func redactQuery(s string) string {
	before, after, _ := strings.Cut(s, "?")
	if !strings.ContainsFunc(after, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
		return s
	}
	return before + "?" + redacted
}

// isSchemeRune follows RFC 3986, section 3.1.
func isSchemeRune(r rune) bool {
	return r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("+-.", r))
}

// printable escapes, as Go's quoted strings do, all in s that is not a printable character, and ends it after at most longestText
// bytes. Not printable are control characters, line and paragraph separators, everything that is invisible or changes
// the direction of text, and what is not UTF-8. Text that has been through it comes out the same.
func printable(s string) string {
	b := make([]byte, 0, min(len(s), longestText))
	cut := 0
	for i, r := range s {
		if len(b) <= longestText-len(ellipsis) {
			cut = len(b)
		}
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			b = append(b, `\x`+strconv.FormatUint(uint64(s[i]), 16)...)
		case strconv.IsPrint(r):
			b = utf8.AppendRune(b, r)
		default:
			quoted := strconv.QuoteRune(r)
			b = append(b, quoted[1:len(quoted)-1]...)
		}
		if len(b) > longestText {
			return string(b[:cut]) + ellipsis
		}
	}
	return string(b)
}
