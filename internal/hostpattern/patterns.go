// Package hostpattern finds the value of the pattern that matches a URL's host,
// and the key under which to keep state about that host.
//
// The package knows how hosts can be spelled. It does not resolve names.
package hostpattern

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Set holds one P per pattern. It does not change, and is safe for concurrent
// use. A nil Set matches nothing.
//
// A pattern is one of:
//
//   - a host name, as in "example.com"
//   - "*." and a host name, as in "*.example.com", which matches all names that
//     have at least one label before that name
//   - an IPv6 address in brackets, as in "[::1]"
//
// each with or without a port, as in "example.com:8443". A pattern without a
// port matches all ports. Case, a trailing dot, leading zeros of a port, and
// the spelling of an address do not matter.
//
// A method may stand before it, and a path after it, as in patterns of
// http.ServeMux: "POST example.com/search", "example.com/exports/{id}".
//
// A name outside ASCII, "bücher.example", does not match its xn-- form, and the
// xn-- form does not match it.
type Set[P any] struct {
	byPort map[string]*names[P] // "" for patterns without a port
}

// entry has the values of the patterns that have the same host and port.
type entry[P any] struct {
	value    P // of the pattern without a method and a path
	hasValue bool
	routes   *Routes[P] // nil if no pattern has a method or a path
}

// names holds the patterns that have the same port.
type names[P any] struct {
	exact     map[string]*entry[P]
	wildcards map[string]*entry[P] // by the name after "*."
}

// A Problem is the description of an invalid pattern.
type Problem struct {
	Pattern string // as given to Parse
	Text    string // the mistake, and a pattern that is valid
}

// Parse returns a Set with the patterns that are the keys of m. If any key is
// not a valid pattern, or means the same as another key, Parse returns a nil
// Set and all problems, sorted by pattern. If m is empty, Parse returns a nil
// Set and no problems. For a pattern that matches every host, the problem
// recommends all, the name of the policy for all other hosts.
func Parse[P any](m map[string]P, all string) (*Set[P], []Problem) {
	if len(m) == 0 {
		return nil, nil
	}
	// The order of a map is random, and that of problems must not be.
	patterns, problems := parseKeys(slices.Sorted(maps.Keys(m)), all)
	set := &Set[P]{make(map[string]*names[P])}
	for _, p := range patterns {
		if text := set.add(p.key, p.pattern, m[p.key]); text != "" {
			problems = append(problems, Problem{Pattern: p.key, Text: text})
		}
	}
	if problems != nil {
		slices.SortFunc(problems, func(a, b Problem) int {
			return cmp.Compare(a.Pattern, b.Pattern)
		})
		return nil, problems
	}
	return set, nil
}

// keyed is the pattern of a key.
type keyed struct {
	key string
	pattern
}

// parseKeys returns the patterns of the keys that are valid, and the problems
// of all others.
func parseKeys(keys []string, all string) (patterns []keyed, problems []Problem) {
	firstKeys := make(map[pattern]string, len(keys)) // first key for each pattern
	for _, key := range keys {
		p, text := parsePattern(key, all)
		switch first, repeated := firstKeys[p]; {
		case text != "":
		case repeated:
			text = fmt.Sprintf("means the same as %q: want only one of them", cut(first))
		default:
			firstKeys[p] = key
			patterns = append(patterns, keyed{key, p})
		}
		if text != "" {
			problems = append(problems, Problem{Pattern: key, Text: text})
		}
	}
	return patterns, problems
}

// add adds a pattern that s does not have, or returns the text of a Problem.
func (s *Set[P]) add(key string, p pattern, value P) (problem string) {
	if s.byPort[p.port] == nil {
		s.byPort[p.port] = new(names[P])
	}
	e := s.byPort[p.port].entry(p)
	if p.method == "" && p.path == "" {
		e.value, e.hasValue = value, true
		return ""
	}
	if e.routes == nil {
		e.routes = &Routes[P]{routes: newRoutes()}
	}
	i := len(e.routes.Values)
	if i > maxRoutes {
		return "" // the problem before is for this key, too
	}
	e.routes.Values = append(e.routes.Values, value)
	if i == maxRoutes {
		return fmt.Sprintf("is one of more than %[1]d keys with a path for one host: "+
			"want at most %[1]d", maxRoutes)
	}
	return e.routes.add(key, p, index(i))
}

// entry returns the entry for the host of p, whose port does not matter.
func (n *names[P]) entry(p pattern) *entry[P] {
	entries := &n.exact
	if p.wildcard {
		entries = &n.wildcards
	}
	if *entries == nil {
		*entries = make(map[string]*entry[P])
	}
	e := (*entries)[p.name]
	if e == nil {
		e = new(entry[P])
		(*entries)[p.name] = e
	}
	return e
}

// Match returns the value of the most specific pattern that matches the host of
// u, and whether there is one. A URL without a port has the default port of its
// scheme. A nil URL matches nothing.
//
// Patterns with the port of u are more specific than patterns without a port.
// Among these, a name is more specific than a wildcard, and a long wildcard is
// more specific than a short one. For a request to port 8443,
// "*.example.com:8443" is more specific than "api.example.com".
//
// It ignores patterns with a method or a path. Routes returns those.
func (s *Set[P]) Match(u *url.URL) (value P, ok bool) {
	for e := range s.entries(u) {
		if e.hasValue {
			return e.value, true
		}
	}
	return value, false
}

// Routes returns the patterns with a method or a path whose host is that of u,
// from the most specific host to that of the value that Match returns. If none
// of them matches a request, it has that value.
func (s *Set[P]) Routes(u *url.URL) []*Routes[P] {
	var all []*Routes[P]
	for e := range s.entries(u) {
		if e.routes != nil {
			all = append(all, e.routes)
		}
		if e.hasValue {
			break
		}
	}
	return all
}

// entries returns the entries that match the host of u, the most specific one
// first.
func (s *Set[P]) entries(u *url.URL) iter.Seq[*entry[P]] {
	return func(yield func(*entry[P]) bool) {
		if s == nil || u == nil {
			return
		}
		name, port := splitHost(u.Host)
		port = cmp.Or(port, defaultPort(lower(u.Scheme)))
		// A port is more specific than any name.
		if port == "" || s.byPort[port].each(name, yield) {
			s.byPort[""].each(name, yield)
		}
	}
}

// each calls yield for each entry that matches name, the most specific one
// first, until yield returns false. It returns the last result of yield.
func (n *names[P]) each(name string, yield func(*entry[P]) bool) bool {
	if n == nil {
		return true
	}
	if e := n.exact[name]; e != nil && !yield(e) {
		return false
	}
	// A redirect may lead to any URL, and no wildcard matches a longer name.
	if len(n.wildcards) == 0 || len(name) > maxNameLen {
		return true
	}
	for i := 1; i < len(name); i++ { // at least one byte has to be before the dot
		if name[i] != '.' {
			continue
		}
		if e := n.wildcards[name[i+1:]]; e != nil && !yield(e) {
			return false
		}
	}
	return true
}

// A pattern is in canonical form, so patterns with the same meaning are equal.
type pattern struct {
	name     string // without "*."; an IPv6 address is in brackets
	port     string // "" for all ports
	wildcard bool
	method   string // "" for all methods
	path     string // "" for all paths; a pattern of http.ServeMux
}

const (
	wantPattern = `want a host and, if it matters, its port, ` +
		`as in "example.com", "example.com:8443", "*.example.com" or "[::1]:8080"`
	wildcardAddress = "has a * before an address: " +
		"want a * before a name, as in *.example.com"
)

// parsePattern returns s in canonical form, or else the text of a Problem.
func parsePattern(s, all string) (p pattern, problem string) {
	if !utf8.ValidString(s) {
		return p, "is not UTF-8: " + wantPattern
	}
	method, rest, path, problem := cutRoute(s)
	if problem != "" {
		return p, problem
	}
	p.method, p.path = method, path
	if _, err := netip.ParsePrefix(strings.Trim(rest, "[]") + path); err == nil && method == "" {
		return p, `is a network: want one key for each address or name, as in "10.0.0.1"`
	}
	if problem := nonHostPart(rest); problem != "" {
		return p, problem + ": " + wantPattern
	}
	host, wildcard := strings.CutPrefix(rest, "*.")
	if problem := misplacedStar(host, all); problem != "" {
		return p, problem
	}
	p.wildcard = wildcard
	var port string
	// Only an IPv6 address has colons before its port.
	if strings.HasPrefix(host, "[") {
		p.name, port, problem = patternIPv6(host, wildcard)
	} else {
		p.name, port, problem = patternName(host, wildcard)
	}
	if problem == "" {
		p.port, problem = patternPort(port)
	}
	return p, problem
}

// cut returns the beginning of s, a part of a key that a problem quotes. Keys
// may be as long as a file.
func cut(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

func isBlank(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

// nonHostPart describes the first part of s that cannot be in a host. Often,
// that is another part of a URL.
func nonHostPart(s string) string {
	switch {
	case s == "":
		return "is empty"
	case strings.ContainsFunc(s, isBlank):
		return "has a space or a control character in it"
	case strings.Contains(s, "@"):
		return "has user information in it"
	case strings.ContainsAny(s, `?#\`):
		return "has a query, a fragment or a backslash in it"
	}
	return ""
}

// misplacedStar describes the mistake with a star in host, which is a pattern
// without the "*." at its beginning.
func misplacedStar(host, all string) string {
	if host == "*" {
		return fmt.Sprintf("matches every host: use %s for that", all)
	}
	if strings.HasPrefix(host, "*:") {
		return fmt.Sprintf("matches every host: use %s for that, "+
			`or write the hosts that use the port, as in "*.example.com:8443"`, all)
	}
	if strings.Contains(host, "*") {
		return "has a * that is not the whole first label of a name: " + wantPattern
	}
	return ""
}

// patternIPv6 returns the canonical form of the address at the beginning of s,
// and the rest of s.
func patternIPv6(s string, wildcard bool) (name, port, problem string) {
	if wildcard {
		return "", "", wildcardAddress
	}
	end := strings.LastIndexByte(s, ']') + 1
	name, ok := canonicalIPv6(s[:end])
	if !ok {
		return "", "", "has brackets without an IPv6 address in them: " +
			"want one as in [2001:db8::1] or [fe80::1%eth0]"
	}
	return name, s[end:], ""
}

// patternName returns the canonical form of the name at the beginning of s, and
// the rest of s. It is stricter than net/http, which tries to connect to any
// name, because a pattern that no working URL can match is a mistake.
func patternName(s string, wildcard bool) (name, port, problem string) {
	name, _, _ = strings.Cut(s, ":")
	port = s[len(name):]
	// That is most likely an IPv6 address without brackets.
	if strings.Count(port, ":") > 1 {
		return "", "", "has more than one colon: " +
			"want an IPv6 address in brackets, as in [::1]:8080"
	}
	name = lower(strings.TrimSuffix(name, "."))
	if len(name) > 253 {
		return "", "", fmt.Sprintf("has a name of %d bytes: "+
			"want at most 253 (RFC 1035, section 2.3.4)", len(name))
	}
	last := ""
	for last = range strings.SplitSeq(name, ".") {
		if !isLabel(last) {
			return "", "", fmt.Sprintf("has the label %q in its name: "+
				"want 1 to 63 letters, digits, hyphens and underscores, "+
				"without a hyphen at either end", last)
		}
	}
	// No top-level domain consists of digits, but the last part of an IPv4
	// address does (RFC 3696, section 2).
	if wildcard && isDigits(last) {
		return "", "", wildcardAddress
	}
	return name, port, ""
}

// isLabel reports whether s, in lower case, is a label that can be resolved. It
// allows underscores, as package net does, since many internal names have them.
// The xn-- form of a label outside ASCII has at least one byte per character.
func isLabel(s string) bool {
	for i, r := range s {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '_':
		case r == '-' && 0 < i && i < len(s)-1:
		case r >= utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsMark(r) || unicode.IsDigit(r)):
		default:
			return false
		}
	}
	n := utf8.RuneCountInString(s)
	return 1 <= n && n <= 63
}

// patternPort returns the canonical form of the port in s, the part of a
// pattern that follows the name.
func patternPort(s string) (port, problem string) {
	if s == "" {
		return "", ""
	}
	// A URL may end in a colon without a port. A pattern that does so probably
	// lacks its port.
	port, ok := parsePort(s)
	n, err := strconv.ParseUint(port, 10, 16)
	if !ok || err != nil || n == 0 {
		return "", fmt.Sprintf("has the port %q: "+
			"want a number from 1 to 65535", cut(strings.TrimPrefix(s, ":")))
	}
	return port, ""
}
