package otelretry

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
)

// hosts are the values of Config.Hosts.
type hosts map[hostPort]bool

// A hostPort is a canonical host or a wildcard, with a port or 0 for any.
type hostPort struct {
	host string
	port int
}

// newHosts returns the hosts for Config.Hosts.
func newHosts(patterns []string) (hosts, error) {
	all := make(hosts, len(patterns))
	var problems []error
	for i, pattern := range patterns {
		h, ok := parseHost(pattern)
		if !ok {
			problems = append(problems, fmt.Errorf("otelretry: Config.Hosts[%d]: %q: want a "+
				"name or an IP address, with or without a port, or a wildcard as \"*.example.com\"",
				i, pattern))
		}
		all[h] = true
	}
	return all, errors.Join(problems...)
}

// parseHost parses a value of Config.Hosts.
func parseHost(pattern string) (h hostPort, ok bool) {
	name := pattern
	// An IPv6 address has colons, too.
	if !isIP(name) && strings.Contains(name, ":") {
		host, digits, err := net.SplitHostPort(name)
		port, errPort := strconv.ParseUint(digits, 10, 16)
		if err != nil || errPort != nil || port == 0 {
			return h, false
		}
		name, h.port = host, int(port)
	}
	h.host = canonicalHost(name)
	name, wild := strings.CutPrefix(name, "*.")
	return h, isIP(name) && !wild || name != "" && !strings.ContainsAny(name, "/:@[]* ")
}

// add appends the labels of the host and the port of u.
func (all hosts) add(labels []attribute.KeyValue, u *url.URL) []attribute.KeyValue {
	if len(all) == 0 {
		return labels
	}
	if u == nil {
		return append(labels, addressKey.String(otherValue))
	}
	port, byDefault := portOf(u)
	name := canonicalHost(u.Hostname())
	for _, known := range []int{port, 0} {
		pattern, rest, more := name, name, true
		for more {
			if all[hostPort{pattern, known}] {
				labels = append(labels, addressKey.String(pattern))
				if known != 0 || byDefault {
					labels = append(labels, portKey.Int(port))
				}
				return labels
			}
			_, rest, more = strings.Cut(rest, ".")
			pattern = "*." + rest
		}
	}
	return append(labels, addressKey.String(otherValue))
}

// portOf returns the port of u, or 0 if it is not valid, and whether it is the
// default of the scheme.
func portOf(u *url.URL) (port int, byDefault bool) {
	standard := 0
	switch u.Scheme {
	case "http":
		standard = 80
	case "https":
		standard = 443
	}
	if u.Port() == "" {
		return standard, standard != 0
	}
	port, _ = strconv.Atoi(u.Port())
	return port, port != 0 && port == standard
}

func isIP(host string) bool {
	_, err := netip.ParseAddr(withoutBrackets(host))
	return err == nil
}

// canonicalHost returns the same value for all spellings of a host that
// httpretry considers equal: a name in lower case without trailing dots, or an
// IP address in its shortest form. Unlike httpretry's, an IPv6 address has no
// brackets, as the semantic conventions want it.
func canonicalHost(host string) string {
	host = strings.ToLower(withoutBrackets(host))
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.String()
	}
	return strings.TrimRight(host, ".")
}

// withoutBrackets removes the brackets around an IPv6 address.
func withoutBrackets(host string) string {
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			return inner
		}
	}
	return host
}
