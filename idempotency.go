package httpretry

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Idempotent reports whether a request is safe to send twice: by its method,
// GET, HEAD, OPTIONS, TRACE, PUT, DELETE (RFC 9110 section 9.2.2) or QUERY
// (RFC 10008), or because it has an idempotency key, a non-empty
// Idempotency-Key or X-Idempotency-Key header. Methods are compared as they go
// over the wire: "get" is not GET.
//
// A key header that is present without any value counts too: net/http takes it
// for the caller's word that the request is idempotent, and does not send it.
func Idempotent(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace,
		http.MethodPut, http.MethodDelete, "QUERY":
		return true
	}
	return hasStandardKey(req.Header)
}

// WithIdempotent returns a context whose requests are safe to send twice, on
// the caller's word and whatever their method: a POST that only searches, say.
// It is for the one request; [Policy.Idempotent] is for those that can be told
// by their looks. What Base or an SDK sends with the same context, such as a
// request for a token, is taken for safe as well if it goes through a
// RetryTransport.
func WithIdempotent(ctx context.Context) context.Context {
	m := marksOf(ctx)
	m.idempotent = true
	return m.in(ctx)
}

func hasStandardKey(h http.Header) bool {
	return hasKey(h, "Idempotency-Key") || hasKey(h, "X-Idempotency-Key")
}

// RandomKey returns a new idempotency key with 130 random bits, for
// [Policy.NewKey]. It looks at nothing of the request.
func RandomKey(*http.Request) string {
	return rand.Text()
}

// hasKey reports whether h has the idempotency key that name, in canonical
// form, stands for: a value that is not empty, or no value at all.
func hasKey(h http.Header, name string) bool {
	if values, ok := h[name]; ok {
		return isKey(values)
	}
	for other, values := range h { // a map may be filled past http.Header's methods
		if len(other) == len(name) && strings.EqualFold(other, name) && isKey(values) {
			return true
		}
	}
	return false
}

func isKey(values []string) bool {
	return len(values) == 0 || slices.ContainsFunc(values, func(v string) bool { return v != "" })
}

// checkKey refuses a key that a header value may not hold (RFC 9110 section
// 5.5). The key is not shown: it may be all it takes to read a response.
func checkKey(key string) error {
	for i := range len(key) {
		if b := key[i]; b < ' ' || b > '~' {
			return fmt.Errorf("byte %#02x at position %d of the key: want printable ASCII only", b, i)
		}
	}
	if strings.TrimSpace(key) != key {
		return fmt.Errorf("the key begins or ends with a space: want none")
	}
	return nil
}

// checkHeaderName refuses what is not a field name (RFC 9110 section 5.1), and
// the names that net/http takes from elsewhere.
func checkHeaderName(name string) error {
	for i := range len(name) {
		if !isTokenByte(name[i]) {
			return fmt.Errorf("%q is not a header name", name)
		}
	}
	switch canonical := http.CanonicalHeaderKey(name); canonical {
	case "Host", "Content-Length", "Transfer-Encoding", "Trailer", "Connection":
		return fmt.Errorf("%q is a header that net/http writes itself", name)
	}
	return nil
}

func isTokenByte(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", b) >= 0
}
