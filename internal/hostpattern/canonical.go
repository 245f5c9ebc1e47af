package hostpattern

import (
	"net/netip"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxNameLen is the length of the longest host name in bytes that
	// [Canonical] keeps. The longest name in the DNS has 253 bytes (RFC 1035,
	// section 2.3.4).
	maxNameLen = 255

	// maxPortLen is the number of digits in the highest port, 65535.
	maxPortLen = 5

	// maxSchemeLen has no source. net/http knows two schemes, "http" and
	// "https".
	maxSchemeLen = 32

	// tooLong replaces a name, port or scheme that is longer than its maximum.
	// No valid host contains a space.
	tooLong = "(name too long)"
)

// Canonical returns the key for state about the host of u. The key is the
// origin of u. It has the scheme, the host, and the port unless that is the
// default of the scheme, as in "https://example.com" or "http://[::1]:8080". So
// http and https never share state. All spellings of an origin have the same
// key (RFC 9110, section 4.2.3, and RFC 3986, section 6.2). The exception is a
// name outside ASCII, whose xn-- form has a key of its own.
//
// A malformed host is part of its key as it is, in lower case if it is UTF-8. All
// hosts with a name longer than 255 bytes or a port longer than 5 digits share one key per
// scheme. So a key has at most 300 bytes. The key of a nil URL is "".
//
// The key identifies state. It is not an address, because net/http can connect
// to another address for the same URL.
func Canonical(u *url.URL) string {
	if u == nil {
		return ""
	}
	scheme := lower(u.Scheme)
	name, port := splitHost(u.Host)
	// A redirect may lead to any URL, so keys are bounded.
	if len(name) > maxNameLen || len(port) > maxPortLen {
		name, port = tooLong, ""
	}
	if port != "" && port != defaultPort(scheme) {
		name += ":" + port
	}
	if len(scheme) > maxSchemeLen {
		scheme = tooLong
	}
	return scheme + "://" + name
}

// defaultPort returns the port that a scheme in lower case implies, or "" if
// the scheme is not one of net/http's.
func defaultPort(scheme string) string {
	switch scheme {
	case "http":
		return "80"
	case "https":
		return "443"
	}
	return ""
}

// splitHost splits host into its name and its port. The name is in lower case
// without trailing dots, or an IPv6 address in its shortest form, in brackets.
// The port has no leading zeros, and is "" if there is none. If host is
// malformed, then all of it is the name.
func splitHost(host string) (name, port string) {
	if strings.HasPrefix(host, "[") {
		return splitIPv6(host)
	}
	colon := strings.IndexByte(host, ':')
	if colon < 0 {
		colon = len(host)
	}
	port, ok := parsePort(host[colon:])
	if !ok {
		return lower(host), ""
	}
	return lower(strings.TrimRight(host[:colon], ".")), port
}

// splitIPv6 is splitHost for a host that begins with a bracket.
func splitIPv6(host string) (name, port string) {
	// A zone may contain brackets, a port may not.
	end := strings.LastIndexByte(host, ']') + 1
	port, portOK := parsePort(host[end:])
	name, nameOK := canonicalIPv6(host[:end])
	if !portOK || !nameOK {
		return lower(host), ""
	}
	return name, port
}

// canonicalIPv6 returns the shortest form of s, an IPv6 address in brackets. If
// s is none, it returns "" and false. A zone remains, since the same address in
// another zone is another host (RFC 4007, section 6).
func canonicalIPv6(s string) (string, bool) {
	inner := strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	addr, err := netip.ParseAddr(lower(inner))
	if err != nil || addr.Is4() {
		return "", false
	}
	// Conversion within a comparison does not allocate, and most addresses are
	// canonical.
	canonical := addr.AppendTo(make([]byte, 0, 64))
	if string(canonical) == inner {
		return s, true
	}
	return "[" + string(canonical) + "]", true
}

// parsePort returns the port in s, the part of a host that follows the name.
// That part is empty, a colon, or a colon and digits. parsePort removes leading
// zeros, which package net ignores, and does not check the range.
func parsePort(s string) (port string, ok bool) {
	if s == "" || s == ":" {
		return "", true
	}
	port, ok = strings.CutPrefix(s, ":")
	if !ok || !isDigits(port) {
		return "", false
	}
	for len(port) > 1 && port[0] == '0' {
		port = port[1:]
	}
	return port, true
}

// isDigits reports whether s consists of ASCII digits.
func isDigits(s string) bool { return strings.Trim(s, "0123456789") == "" }

// lower returns s in lower case, or s itself if it is not UTF-8. strings.Map
// would replace all such bytes by the same rune, and so give different hosts the
// same name.
func lower(s string) string {
	if !utf8.ValidString(s) {
		return s
	}
	return strings.Map(lowerRune, s)
}

// lowerRune is unicode.ToLower, except for the two letters whose lower case is
// the name of another host. In a name, net/http maps U+0130 to "i" and a
// combining dot, and U+1E9E to "ss" (UTS 46). Their lower case is "i" and "ß".
func lowerRune(r rune) rune {
	if r == '\u0130' || r == '\u1e9e' {
		return r
	}
	return unicode.ToLower(r)
}
