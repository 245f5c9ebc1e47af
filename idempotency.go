package httpretry

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/seed421102f4/httpretry/internal/defaults"
	"github.com/seed421102f4/httpretry/internal/fielderr"
)

// Idempotent reports whether req is safe to send twice, because its method is
// GET, HEAD, OPTIONS, TRACE, PUT, DELETE (RFC 9110 section 9.2.2) or QUERY (RFC
// 10008), or it has a non-empty Idempotency-Key or X-Idempotency-Key header. As
// in net/http, such a header also counts if req.Header maps it to an empty
// slice. Methods are case-sensitive.
func Idempotent(req *http.Request) bool {
	return hasIdempotentMethod(req) || hasStandardKey(req.Header)
}

func hasIdempotentMethod(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace,
		http.MethodPut, http.MethodDelete, "QUERY":
		return true
	}
	return false
}

// hasKey reports whether h has an idempotency key, in the header of that name
// or a standard one.
func hasKey(h http.Header, name string) bool {
	return hasStandardKey(h) || name != defaults.IdempotencyHeader && hasKeyIn(h, name)
}

func hasStandardKey(h http.Header) bool {
	return hasKeyIn(h, defaults.IdempotencyHeader, "X-Idempotency-Key")
}

// RandomKey returns a new idempotency key with 130 random bits, for
// [Policy.NewIdempotencyKey]. The key has no quotes. The draft of the IETF
// wants them, but most services do not: see docs/recipes.md.
func RandomKey(*http.Request) string {
	return rand.Text()
}

// hasKeyIn reports whether h has an idempotency key in one of the headers with
// these names, which are in canonical form.
func hasKeyIn(h http.Header, names ...string) bool {
	for _, name := range names {
		if values, ok := h[name]; ok && countsAsKey(values) {
			return true
		}
	}
	// Code that writes to the map directly may use another spelling.
	for other, values := range h {
		for _, name := range names {
			// If h has the canonical name, only its values count.
			if len(other) == len(name) && strings.EqualFold(other, name) && h[name] == nil &&
				countsAsKey(values) {
				return true
			}
		}
	}
	return false
}

// countsAsKey reports whether a header for keys with these values is an
// idempotency key, because one of them is not empty or there are none.
func countsAsKey(values []string) bool {
	return len(values) == 0 || slices.ContainsFunc(values, func(v string) bool { return v != "" })
}

// checkKeyValue returns an error if key is not a valid header value (RFC 9110
// section 5.5). The error does not contain the key, which may be a secret.
func checkKeyValue(key string) error {
	for i := range len(key) {
		if b := key[i]; b < ' ' || b > '~' {
			return fmt.Errorf(
				"byte %#02x at position %d of the key: want printable ASCII only", b, i)
		}
	}
	if strings.TrimSpace(key) != key {
		return fmt.Errorf("the key begins or ends with a space: want none")
	}
	return nil
}

// checkHeaderName returns an error if name is not a field name (RFC 9110
// section 5.1), or if HTTP defines the header, since a request may need its own
// value for that.
func checkHeaderName(name string) error {
	for i := range len(name) {
		if !isTokenByte(name[i]) {
			return fielderr.New(strconv.Quote(name), "a header name, such as X-Request-Id")
		}
	}
	if isDefinedByHTTP(http.CanonicalHeaderKey(name)) {
		return fielderr.New(strconv.Quote(name), "a header that HTTP does not define")
	}
	return nil
}

// isDefinedByHTTP reports whether HTTP defines a header, whose name is
// canonical. RFC 9110 to 9114 and the standards for cookies, forwarding, CORS
// and WebSocket count. It includes the headers of responses.
func isDefinedByHTTP(name string) bool {
	for _, prefix := range []string{
		"Accept", "Access-Control-", "Content-", "If-", "Proxy-", "Sec-", "X-Forwarded-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	switch name {
	case "Age", "Allow", "Alt-Svc", "Alt-Used", "Authentication-Info", "Authorization",
		"Cache-Control", "Close", "Connection", "Cookie", "Date", "Early-Data", "Etag",
		"Expect", "Expires", "Forwarded", "From", "Host", "Http2-Settings", "Keep-Alive",
		"Last-Modified", "Location", "Max-Forwards", "Mime-Version", "Origin", "Pragma",
		"Priority", "Range", "Referer", "Retry-After", "Server", "Set-Cookie", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Upgrade-Insecure-Requests", "User-Agent", "Vary",
		"Via", "Warning", "Www-Authenticate":
		return true
	}
	return false
}

func isTokenByte(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", b) >= 0
}

// setHeader replaces a header field in whatever spelling it has, because a map
// may be filled past the methods of http.Header.
func setHeader(h http.Header, name string, values []string) http.Header {
	if h == nil {
		h = make(http.Header, 1)
	}
	for other := range h {
		if len(other) == len(name) && strings.EqualFold(other, name) {
			delete(h, other)
		}
	}
	h[name] = values
	return h
}
