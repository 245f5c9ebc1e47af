// Package retryafter reads what the header of a response says about a retry: the
// wait that the server asks for, and whether there should be one at all.
// httpretry.RetryAfter and httpretry.Classify have the lists of the header
// fields.
//
// It knows header fields and times. It does not know the status of the
// response, and it does not decide whether a request waits or is retried.
package retryafter

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxWait limits every wait that a server can ask for. A hundred years is as
// good as never. Two such waits and their jitter can be added without overflow,
// since a time.Duration holds 292 years.
const MaxWait = 100 * 365 * 24 * time.Hour

// Numbers from here on are points in time: seconds since 1970 from 5e8 (1985),
// and milliseconds from 5e11 (1985, too). A bubble of testing/synctest begins
// in the year 2000. As a wait, 5e8 seconds would be 16 years.
const (
	epochSeconds = 500_000_000
	epochMillis  = 500_000_000_000
)

// Parse returns the wait that h asks for, and the resolution of the field that
// it comes from: a second or a millisecond. ok reports whether h asks for a
// wait at all. The wait is at least 0 and at most MaxWait. The keys of h must
// be canonical. Parse calls now only if the wait depends on the current time.
func Parse(h http.Header, now func() time.Time) (wait, resolution time.Duration, ok bool) {
	// Header.Get would canonicalize each key. The keys of a header that
	// net/http has read are canonical, and so is "Ratelimit".
	p := headerParser{h, now}
	w, ok := longest(h["Retry-After-Ms"], p.millis)
	if !ok {
		w, ok = longest(h["X-Ms-Retry-After-Ms"], p.millis)
	}
	if !ok {
		w, ok = longest(h["Retry-After"], p.secondsOrDate)
	}
	if !ok {
		w, ok = p.rateLimit()
	}
	// A reset time alone does not ask for a wait, because successes have it,
	// too.
	if !ok && anyZero(h["Ratelimit-Remaining"]) {
		w, ok = longest(h["Ratelimit-Reset"], p.seconds)
	}
	if !ok && anyZero(h["X-Ratelimit-Remaining"]) {
		w, ok = longest(h["X-Ratelimit-Reset"], p.seconds)
	}
	return w.wait, w.resolution, ok
}

// Asks reports whether h asks for a retry.
func Asks(h http.Header) bool { return shouldRetry(h, "true") }

// Forbids reports whether h forbids a retry.
func Forbids(h http.Header) bool { return shouldRetry(h, "false") }

// IsStored reports whether h says that the response is stored for the request's
// idempotency key. Then a retry would get the same one.
func IsStored(h http.Header) bool { return is(h, "Idempotent-Replayed", "true") }

func shouldRetry(h http.Header, value string) bool {
	return is(h, "X-Should-Retry", value) || is(h, "Stripe-Should-Retry", value)
}

func is(h http.Header, name, value string) bool {
	values := h[name]
	if len(values) == 0 {
		return false
	}
	// The first line counts, even if a proxy has joined several.
	first, _, _ := strings.Cut(values[0], ",")
	return strings.EqualFold(strings.TrimSpace(first), value)
}

// Spread returns the range of the jitter that is added to a wait that a
// server asked for. All its clients got the same wait, and would otherwise
// return at the same moment.
func Spread(asked, resolution time.Duration) time.Duration {
	if asked <= 0 {
		return 0
	}
	spread := asked / 4
	// A whole number of seconds hides differences of up to one second, and
	// servers that send "1" send it to everyone.
	if resolution >= time.Second {
		spread = max(spread, time.Second)
	}
	return min(spread, 30*time.Second)
}

// serverWait is a wait that a header asks for.
type serverWait struct{ wait, resolution time.Duration }

// longest returns the longest wait of the lines that parse understands. Of
// equal waits, it returns the one with the coarser resolution.
func longest(lines []string, parse func(string) (serverWait, bool)) (most serverWait, ok bool) {
	for _, line := range lines {
		w, valid := parse(strings.Trim(line, " \t"))
		if valid &&
			(!ok || w.wait > most.wait || w.wait == most.wait && w.resolution > most.resolution) {
			most, ok = w, true
		}
	}
	return most, ok
}

// anyZero reports whether a line is the number 0. Some servers send 0.0.
func anyZero(lines []string) bool {
	for _, line := range lines {
		if n, ok := parseNumber(strings.Trim(line, " \t")); ok && n.times(time.Second) == 0 {
			return true
		}
	}
	return false
}

// headerParser parses values of a header that arrives now.
type headerParser struct {
	header http.Header
	now    func() time.Time
}

// millis parses a number of milliseconds.
func (p headerParser) millis(v string) (serverWait, bool) {
	n, ok := parseNumber(v)
	return serverWait{n.times(time.Millisecond), time.Millisecond}, ok
}

// secondsOrDate parses a Retry-After.
func (p headerParser) secondsOrDate(v string) (serverWait, bool) {
	// All three forms of a date start with the name of a day. http.ParseTime
	// copies a value that it does not understand into its error, so it does not
	// get values that are far longer than the longest date, "Wednesday,
	// 09-Nov-94 08:49:37 GMT".
	if v == "" || len(v) > 64 || isDigits(v[:1]) {
		return p.seconds(v)
	}
	date, ok := parseDate(v)
	if !ok {
		return serverWait{}, false
	}
	return serverWait{p.until(date), time.Second}, true
}

// parseDate parses the three forms of a date of RFC 9110 section 5.6.7.
func parseDate(v string) (date time.Time, ok bool) {
	date, err := http.ParseTime(v)
	// In the second form, http.ParseTime accepts any zone, and takes one that
	// the local time does not have for UTC. The third form names no zone.
	zone := v[strings.LastIndexByte(v, ' ')+1:]
	return date, err == nil && (zone == "GMT" || zone == "UTC" || isDigits(zone))
}

// seconds parses a number of seconds, or a Unix time in seconds or
// milliseconds.
func (p headerParser) seconds(v string) (serverWait, bool) {
	n, ok := parseNumber(v)
	switch {
	case !ok:
		return serverWait{}, false
	case n.whole >= epochMillis:
		date := time.UnixMilli(n.whole).Add(n.fractionOf(time.Millisecond))
		return serverWait{p.until(date), time.Millisecond}, true
	case n.whole >= epochSeconds:
		date := time.Unix(n.whole, 0).Add(n.fractionOf(time.Second))
		return serverWait{p.until(date), n.resolution()}, true
	}
	return serverWait{n.times(time.Second), n.resolution()}, true
}

// rateLimit parses a RateLimit field, which has policies such as
//
//	"burst";r=0;t=1, "daily";r=0;t=3600;pk=:dXNlcg==:
//
// It returns the longest time t until a policy resets that has no quota left
// (r=0).
func (p headerParser) rateLimit() (most serverWait, ok bool) {
	lines := p.header["Ratelimit"]
	// In a response of a cache, the quota may be out of date
	// (draft-ietf-httpapi-ratelimit-headers section 7.3).
	if len(lines) == 0 || p.cached() {
		return serverWait{}, false
	}
	s := scanner{strings.Trim(strings.Join(lines, ", "), " \t")}
	for s.rest != "" {
		r, t, valid := s.item()
		// A field that cannot be parsed is ignored as a whole (RFC 9651 section
		// 4.2).
		if !valid || s.rest != "" && !s.comma() {
			return serverWait{}, false
		}
		if r.isInteger && r.integer == 0 && t.isInteger && t.integer >= 0 {
			reset := number{whole: t.integer}.times(time.Second)
			most, ok = serverWait{max(most.wait, reset), time.Second}, true
		}
	}
	return most, ok
}

// until returns the time until t.
func (p headerParser) until(t time.Time) time.Duration {
	// The server's own clock makes the result independent of the local one.
	start, ok := p.date()
	if !ok {
		start = p.now()
	}
	return min(max(t.Sub(start), 0), MaxWait) // Sub saturates
}

// date returns the time at which the server made the response, if that is
// known. If a cache answered, Date is older than the response.
func (p headerParser) date() (date time.Time, ok bool) {
	dates := p.header["Date"]
	if len(dates) == 0 || p.cached() {
		return time.Time{}, false
	}
	return parseDate(strings.Trim(dates[0], " \t"))
}

// cached reports whether a cache answered.
func (p headerParser) cached() bool { return len(p.header["Age"]) > 0 }

// number is an unsigned decimal number, as precise as it was sent.
type number struct {
	whole    int64
	fraction string
	decimal  bool // it has a fraction, which may be 0
}

// parseNumber parses digits, or digits, a point and digits. strconv.ParseFloat
// accepts more: signs, exponents, underscores, hexadecimal digits, Inf and NaN.
func parseNumber(v string) (number, bool) {
	whole, fraction, decimal := strings.Cut(v, ".")
	if !isDigits(whole) || decimal && !isDigits(fraction) {
		return number{}, false
	}
	n, _ := strconv.ParseInt(whole, 10, 64) // the largest int64 if it is too large
	return number{n, fraction, decimal}, true
}

// times returns n units of time, at most MaxWait.
func (n number) times(unit time.Duration) time.Duration {
	if n.whole >= int64(MaxWait/unit) {
		return MaxWait
	}
	return time.Duration(n.whole)*unit + n.fractionOf(unit)
}

// fractionOf returns n's fraction of unit, rounded up to whole nanoseconds,
// because a retry must not be early.
func (n number) fractionOf(unit time.Duration) (d time.Duration) {
	for i := range len(n.fraction) {
		digit := time.Duration(n.fraction[i] - '0')
		if unit /= 10; unit == 0 {
			if strings.Trim(n.fraction[i:], "0") != "" {
				d++
			}
			return d
		}
		d += digit * unit
	}
	return d
}

// resolution returns the resolution of a header that is n seconds.
func (n number) resolution() time.Duration {
	if n.decimal {
		return time.Millisecond
	}
	return time.Second
}

// isDigits reports whether s is 1*DIGIT (RFC 5234 appendix B.1).
func isDigits(s string) bool { return s != "" && strings.Trim(s, digits) == "" }
