package httpretry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// hostPatterns finds the value of the most specific pattern that matches a host. It does not change once it is made. A nil
// *hostPatterns is valid and matches nothing.
//
// Patterns with the port of the request come before patterns without a port, in each of the two an exact name before wildcards,
// and a longer wildcard before a shorter one. So *.example.com:8443 beats api.example.com, for requests to port 8443.
type hostPatterns[P any] struct {
	byPort  map[string]*hostSet[P] // nil without such patterns
	anyPort hostSet[P]
}

// hostSet is the patterns that agree on the port.
type hostSet[P any] struct {
	exact map[string]P
	wild  map[string]P // by what follows "*."
	// The lengths of wild's keys, longest first: a name can only end in one of them where it has a dot, so most names cost
	// no map lookup, and none costs more than there are lengths, however many labels a stranger puts into it.
	lengths []int
}

// patternError says what is wrong with a pattern.
type patternError struct {
	pattern string // as given, not quoted
	problem string
}

// parseHosts prepares m, whose keys are patterns, for lookups. If any key is not a valid pattern or means the same as another, it
// returns no *hostPatterns but all the problems, sorted by pattern.
func parseHosts[P any](m map[string]P) (*hostPatterns[P], []patternError) {
	if len(m) == 0 {
		return nil, nil
	}
	var problems []patternError
	var p hostPatterns[P]
	first := make(map[hostPattern]string, len(m)) // the key that a pattern was first written as
	for _, key := range slices.Sorted(maps.Keys(m)) {
		pattern, problem := parsePattern(key)
		if other, ok := first[pattern]; ok && problem == "" {
			problem = fmt.Sprintf("means the same as %q; only one of them may stay", other)
		}
		if problem != "" {
			problems = append(problems, patternError{key, problem})
			continue
		}
		first[pattern] = key
		p.add(pattern, m[key])
	}
	if problems != nil {
		return nil, problems
	}
	return &p, nil
}

func (p *hostPatterns[P]) add(pattern hostPattern, value P) {
	set := &p.anyPort
	if pattern.port != "" {
		if p.byPort == nil {
			p.byPort = make(map[string]*hostSet[P])
		}
		if set = p.byPort[pattern.port]; set == nil {
			set = new(hostSet[P])
			p.byPort[pattern.port] = set
		}
	}
	set.add(pattern, value)
}

func (s *hostSet[P]) add(pattern hostPattern, value P) {
	names := &s.exact
	if pattern.wild {
		names = &s.wild
		longestFirst := func(a, b int) int { return cmp.Compare(b, a) }
		at, found := slices.BinarySearchFunc(s.lengths, len(pattern.name), longestFirst)
		if !found {
			s.lengths = slices.Insert(s.lengths, at, len(pattern.name))
		}
	}
	if *names == nil {
		*names = make(map[string]P)
	}
	(*names)[pattern.name] = value
}

// matchURL returns the value for u's host, which may hold upper case, a port that is empty or has leading zeros, a trailing
// dot, an IPv6 address in brackets with a zone, or an internationalised name. Without a port it has the one that u's scheme
// implies: https://example.com and https://example.com:443 are the same (RFC 9110, section 4.2.3).
func (p *hostPatterns[P]) matchURL(u *url.URL) (P, bool) {
	if u == nil {
		return p.lookup("", "")
	}
	return p.lookup(u.Host, defaultPort(u.Scheme))
}

func (p *hostPatterns[P]) lookup(host, impliedPort string) (value P, ok bool) {
	if p == nil {
		return value, false
	}
	name, port := splitHost(host)
	if port = cmp.Or(port, impliedPort); port != "" && p.byPort != nil {
		if set := p.byPort[port]; set != nil {
			if value, ok = set.match(name); ok {
				return value, true
			}
		}
	}
	return p.anyPort.match(name)
}

func (s *hostSet[P]) match(name string) (value P, ok bool) {
	if value, ok = s.exact[name]; ok {
		return value, true
	}
	for _, n := range s.lengths {
		// Something must come before the dot.
		if dot := len(name) - n - 1; dot > 0 && name[dot] == '.' {
			if value, ok = s.wild[name[dot+1:]]; ok {
				return value, true
			}
		}
	}
	return value, false
}

// canonicalHost returns the key under which state about u's host is kept: the same for all spellings of one host and port. It is
// in lower case and ASCII, without trailing dots, with an IPv6 address in its shortest form, and with the port unless that is
// the scheme's default (RFC 9110, section 4.2.3; RFC 3986, section 6.2). A host that has no such form is its own key, in lower case.
//
// The key is for bookkeeping. Nothing may be connected to by it or trusted for it: it is not exactly what net/http dials.
func canonicalHost(u *url.URL) string {
	if u == nil {
		return ""
	}
	name, port := splitHost(u.Host)
	switch n := len(name); {
	case port == "" || port == defaultPort(u.Scheme):
		return name
	case len(u.Host) == n+1+len(port) && u.Host[:n] == name:
		return u.Host // canonical as it is: nothing to allocate
	}
	return name + ":" + port
}

// defaultPort knows the two schemes that net/http speaks; it takes them in lower case only, as they are in every parsed URL.
func defaultPort(scheme string) string {
	switch scheme {
	case "http":
		return "80"
	case "https":
		return "443"
	}
	return ""
}

// splitHost splits host into its name in canonical form, with brackets if it is an IPv6 address, and its port without leading
// zeros, "" if there is none. What has more than one colon outside of brackets, or is otherwise malformed, has no port.
// It allocates nothing if the name is canonical.
func splitHost(host string) (name, port string) {
	if !isPlain(host) {
		return splitOther(host)
	}
	colon := strings.IndexByte(host, ':')
	if colon < 0 {
		return trimDots(host), ""
	}
	if name, port, ok := cutPort(host, colon); ok {
		return trimDots(name), port
	}
	return host, ""
}

// isPlain reports whether s is ASCII without upper case and brackets, and is quick at it, since it is asked on every request. Of the
// bytes from 0x40 to 0x5f, where these are, it knows none; that allows it to judge eight at once. Of what hosts have, it
// wrongly objects to the underscore only, and splitOther takes that as it is.
func isPlain(s string) bool {
	var seen uint64
	if n := len(s); n >= 8 {
		for i := 0; i < n-8; i += 8 {
			seen |= notPlain(eight(s[i:]))
		}
		seen |= notPlain(eight(s[n-8:])) // some of them once more
	} else {
		for i := range n {
			seen |= notPlain(uint64(s[i]))
		}
	}
	return seen == 0
}

// notPlain has the highest bit of each byte of w set that is not ASCII, or has 0x40 without 0x20.
func notPlain(w uint64) uint64 {
	return (w | w<<1&^(w<<2)) & 0x8080808080808080
}

// eight returns the first eight bytes of s. The compiler makes one load of it.
func eight(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// trimDots is strings.TrimRight(name, "."), which is slower if there is nothing to do.
func trimDots(name string) string {
	for name != "" && name[len(name)-1] == '.' {
		name = name[:len(name)-1]
	}
	return name
}

// splitOther is splitHost for a host that needs more than a look.
func splitOther(host string) (name, port string) {
	if strings.HasPrefix(host, "[") {
		return splitIPv6(host)
	}
	colon := strings.IndexByte(host, ':')
	if colon < 0 {
		colon = len(host)
	}
	name, port, ok := cutPort(host, colon)
	if !ok {
		return lowerASCII(host), ""
	}
	name = trimDots(name)
	if ascii, ok := toASCII(name); ok {
		name = trimDots(ascii) // there are other dots, such as U+3002
	}
	return lowerASCII(name), port
}

// splitIPv6 is splitHost for a host that begins with a bracket. The zone is kept: the same address in another zone is another
// host (RFC 4007, section 6). Its case is not, though some systems could tell two such zones apart.
func splitIPv6(host string) (name, port string) {
	end := strings.LastIndexByte(host, ']') + 1
	if name, port, ok := cutPort(host, end); ok && end > 0 {
		if name, ok := canonicalIPv6(name); ok {
			return name, port
		}
	}
	return lowerASCII(host), ""
}

// canonicalIPv6 takes and returns an address in brackets.
func canonicalIPv6(s string) (string, bool) {
	addr, err := netip.ParseAddr(lowerASCII(s[1 : len(s)-1]))
	if err != nil || addr.Is4() {
		return "", false
	}
	buf := append(make([]byte, 0, 64), '[') // on the stack
	buf = append(addr.AppendTo(buf), ']')
	if string(buf) == s {
		return s, true
	}
	return string(buf), true
}

// cutPort cuts host at colon, its length if there is none. The port must be digits or missing; it loses leading zeros, which
// make no difference to package net.
func cutPort(host string, colon int) (name, port string, ok bool) {
	if colon == len(host) {
		return host, "", true
	}
	name, port = host[:colon], host[colon+1:]
	if host[colon] != ':' || port != "" && !isDigits(port) {
		return "", "", false
	}
	for len(port) > 1 && port[0] == '0' {
		port = port[1:]
	}
	return name, port, true
}

// toASCII returns name as net/http would dial it if it is not in ASCII: with IDNA's mapping for lookups applied (RFC 5891, section
// 5; UTS 46). ASCII is returned as it is, which is also what net/http does.
//
// That mapping is not in the standard library's public API. Request.Write applies another one, bare Punycode, which keeps
// upper case and fullwidth digits and so would give one host several names. But a Transport tells its dial function
// the address that it made of the URL, so this one is asked to connect, and refuses. It costs some microseconds.
func toASCII(name string) (string, bool) {
	if isASCII(name) {
		return name, true
	}
	t := &http.Transport{DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
		return nil, dialAddress(addr)
	}}
	_, err := t.RoundTrip(&http.Request{URL: &url.URL{Scheme: "http", Host: name}, Header: http.Header{}})
	addr, _ := errors.AsType[dialAddress](err)
	ascii, _, err := net.SplitHostPort(string(addr))
	return ascii, err == nil && ascii != "" && isASCII(ascii) // what IDNA refuses is dialled unchanged
}

// dialAddress brings the address that was to be dialled out of a Transport.
type dialAddress string

func (a dialAddress) Error() string { return "not dialling " + string(a) }

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// lowerASCII leaves what is not ASCII alone: strings.ToLower would replace bytes that are not UTF-8.
func lowerASCII(s string) string {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			b := []byte(s)
			for j := i; j < len(b); j++ {
				if 'A' <= b[j] && b[j] <= 'Z' {
					b[j] += 'a' - 'A'
				}
			}
			return string(b)
		}
	}
	return s
}

// hostPattern is a pattern in canonical form: two that mean the same are equal.
type hostPattern struct {
	name string // an IPv6 address is in brackets; without the "*." if wild
	port string // "" is any
	wild bool
}

const (
	allowedPatterns = `allowed are a host and, if it matters, its port, ` +
		`as in "example.com", "example.com:8443", "*.example.com" or "[::1]:8080"`
	allowedPorts = "allowed is a number from 1 to 65535"
)

// parsePattern returns s in canonical form, or says what is wrong with it and what is allowed.
func parsePattern(s string) (p hostPattern, problem string) {
	if problem := foreignPart(s); problem != "" {
		return p, problem + "; " + allowedPatterns
	}
	host, wild := strings.CutPrefix(s, "*.")
	if strings.Contains(host, "*") {
		return p, `has a * that is not the whole first label of a name; ` + allowedPatterns
	}
	p.wild = wild
	if strings.HasPrefix(host, "[") {
		p.name, host, problem = patternIPv6(host, wild)
	} else {
		var port string
		p.name, port, _ = strings.Cut(host, ":")
		host = host[len(p.name):]
		if strings.Contains(port, ":") {
			return p, "has more than one colon; an IPv6 address goes into brackets, as in [::1]:8080"
		}
		p.name, problem = patternName(p.name, wild)
	}
	if problem == "" {
		p.port, problem = patternPort(host)
	}
	return p, problem
}

// foreignPart says what part of a URL, or of nothing at all, s holds that is not part of a host.
func foreignPart(s string) string {
	switch {
	case s == "":
		return "is empty"
	case !utf8.ValidString(s):
		return "is not UTF-8"
	case strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return "has a space or a control character in it"
	case strings.Contains(s, "://"):
		return "has a scheme in it"
	case strings.Contains(s, "@"):
		return "has user information in it"
	case strings.ContainsAny(s, "/?#\\"):
		return "has a path, query or fragment in it"
	}
	return ""
}

// patternIPv6 returns the address at the beginning of s, in brackets, and what follows it.
func patternIPv6(s string, wild bool) (name, rest, problem string) {
	end := strings.LastIndexByte(s, ']') + 1
	if end > 0 {
		var ok bool
		if name, ok = canonicalIPv6(s[:end]); ok && !wild {
			return name, s[end:], ""
		}
	}
	if wild {
		return "", "", "has a * before an address; it may only stand before a name, as in *.example.com"
	}
	return "", "", "has brackets around what is not an IPv6 address; allowed is one as in [2001:db8::1] or [fe80::1%eth0]"
}

// patternPort takes what follows the name.
func patternPort(s string) (port, problem string) {
	if s == "" {
		return "", ""
	}
	// A URL may end in a colon with no port, but a pattern that does more likely misses what should have been put there.
	_, port, ok := cutPort(s, 0)
	n, err := strconv.ParseUint(port, 10, 16)
	if !ok || err != nil || n == 0 {
		return "", fmt.Sprintf("has the port %q; %s", strings.TrimPrefix(s, ":"), allowedPorts)
	}
	return port, ""
}

// patternName returns the canonical form of a name, or of what follows "*.". It is stricter than net/http, which dials whatever
// it is given, since a pattern that no working URL can match is a mistake.
func patternName(s string, wild bool) (name, problem string) {
	name, ok := toASCII(s)
	if !ok {
		return "", "has a name that IDNA does not allow in a lookup (RFC 5891, section 5)"
	}
	name = lowerASCII(strings.TrimSuffix(name, "."))
	if len(name) > 253 {
		return "", fmt.Sprintf("has a name of %d bytes; allowed are at most 253 (RFC 1035, section 2.3.4)", len(name))
	}
	last := ""
	for last = range strings.SplitSeq(name, ".") {
		if !isLabel(last) {
			return "", fmt.Sprintf("has the label %q in its name; allowed are 1 to 63 letters, digits, hyphens and underscores, "+
				"without a hyphen at either end", last)
		}
	}
	if wild && isDigits(last) {
		return "", "has a * before an address; it may only stand before a name, as in *.example.com"
	}
	return name, ""
}

// isLabel allows what the resolver of package net does: underscores too, which are common in internal names.
func isLabel(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', isDigit(c), c == '_':
		case c == '-' && 0 < i && i < len(s)-1:
		default:
			return false
		}
	}
	return 1 <= len(s) && len(s) <= 63
}
