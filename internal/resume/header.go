package resume

import (
	"math"
	"net/http"
	"strconv"
	"strings"
)

// byteRange is the range in a Content-Range.
type byteRange struct {
	first, last int64
	complete    int64 // -1 for "*"
}

func (r byteRange) length() int64 { return r.last - r.first + 1 }

// contentRange returns the range in h, which has to have exactly one.
func contentRange(h http.Header) (byteRange, bool) {
	lines := h["Content-Range"]
	if len(lines) != 1 {
		return byteRange{}, false
	}
	return parseContentRange(lines[0])
}

// parseContentRange parses a range of bytes (RFC 9110 section 14.4), such as
// "bytes 42-1233/1234". It accepts only values that the grammar allows, and
// only ranges that are satisfied.
func parseContentRange(v string) (byteRange, bool) {
	unit, v, _ := strings.Cut(v, " ")
	positions, complete, _ := strings.Cut(v, "/")
	first, last, _ := strings.Cut(positions, "-")
	r := byteRange{parsePosition(first), parsePosition(last), parsePosition(complete)}
	// The length of the whole may be unknown.
	if !strings.EqualFold(unit, "bytes") || r.first < 0 || r.last < r.first ||
		complete != "*" && r.complete <= r.last {
		return byteRange{}, false
	}
	return r, true
}

// parsePosition parses 1*DIGIT, and returns -1 for anything else. The largest
// int64 is not accepted, so that lengths do not overflow.
func parsePosition(v string) int64 {
	n, err := strconv.ParseUint(v, 10, 63)
	if err != nil || n == math.MaxInt64 {
		return -1
	}
	return int64(n)
}

// validators returns the strong validator in h, which is the entity tag or, if
// there is none, Last-Modified. With a weak entity tag, Last-Modified must not
// be used (RFC 9110 section 13.1.5). If h has no strong validator, validators
// returns the Obstacle.
func validators(h http.Header) (etag, lastModified string, missing Obstacle) {
	if lines, found := h["Etag"]; found {
		switch {
		// If there are several lines, it is unknown which one is right.
		case len(lines) != 1:
			return "", "", BadTag
		case isStrongTag(lines[0]):
			return lines[0], "", ""
		case strings.HasPrefix(lines[0], "W/"):
			return "", "", WeakTag
		}
		return "", "", BadTag
	}
	modified, dates := h["Last-Modified"], h["Date"]
	if len(modified) == 0 {
		return "", "", NoValidator
	}
	if len(modified) != 1 || len(dates) != 1 {
		return "", "", Young
	}
	from, err := http.ParseTime(modified[0])
	to, dateErr := http.ParseTime(dates[0])
	if err != nil || dateErr != nil || to.Sub(from) < minAge {
		return "", "", Young
	}
	return "", modified[0], ""
}

// isStrongTag reports whether v is an opaque-tag (RFC 9110 section 8.8.3),
// without the W/ of a weak one. The grammar allows an empty one, but some
// servers send that for everything.
func isStrongTag(v string) bool {
	if len(v) < 3 || v[0] != '"' || v[len(v)-1] != '"' {
		return false
	}
	// The quotation marks at the ends are not part of the tag.
	for _, c := range []byte(v[1 : len(v)-1]) {
		if c <= ' ' || c == '"' || c == 0x7f {
			return false
		}
	}
	return true
}

// contentEncoding returns the content codings in h, in order. "identity" does
// not count as one (RFC 9110 section 8.4.1).
func contentEncoding(h http.Header) string {
	lines := h["Content-Encoding"]
	if len(lines) == 0 {
		return ""
	}
	codings := strings.ToLower(strings.Join(lines, ","))
	codings = strings.NewReplacer(" ", "", "\t", "").Replace(codings)
	if codings == "identity" {
		return ""
	}
	return codings
}
