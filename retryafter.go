package httpretry

import (
	"net/http"
	"strings"
	"time"
)

// longestWait bounds every wait that a server can ask for. A hundred years is as good as "never", and two such waits
// with any jitter on top can be added without wrapping around: time.Duration ends at 292 years.
const longestWait = 100 * 365 * 24 * time.Hour

// Numbers from here on are points in time, not spans: seconds since 1970 from 1e9 (2001), milliseconds from 1e12 (also 2001).
// A wait of 1e9 seconds would be 31 years, which nobody means.
const (
	epochSeconds = 1_000_000_000
	epochMillis  = 1_000_000_000_000
)

// RetryAfter returns how long the server asks to be left alone, as said by the header h of a response that arrived at now.
// ok tells whether it asks at all; without ok, wait is 0. A wait of 0 with ok is a server that says "at any time".
//
// The status is not looked at. Ask for responses with a 4xx or 5xx status only: in a 3xx, Retry-After has another meaning
// (RFC 9110, section 10.2.3), and rate-limit headers come with successes too.
//
// The first of these that has a valid value decides:
//
//   - Retry-After-Ms, then X-Ms-Retry-After-Ms: milliseconds.
//   - Retry-After: seconds (RFC 9110, section 10.2.3), or a date in any of the three forms of RFC 9110, section 5.6.7.
//     Servers also send fractions (1.5) and Unix time, so these are understood: a number from 1e9 is seconds
//     since 1970, one from 1e12 milliseconds since then.
//   - RateLimit: t, in seconds, of each policy with r=0, as in "default";r=0;t=30 (draft-ietf-httpapi-ratelimit-headers).
//   - RateLimit-Reset if RateLimit-Remaining is 0, then X-RateLimit-Reset if X-RateLimit-Remaining is 0: seconds or
//     Unix time, as above.
//
// Of several lines, or several policies, the longest wait counts. A value that is none of the above (signs, exponents,
// hexadecimal digits, lists in one line, anything after the number) is passed over as if it had not been sent.
//
// Dates and Unix times count from the response's own Date, so that it does not matter what the clock here says. They count
// from now if there is no valid Date, or if there is an Age: then a cache answered and Date is older than the response.
// What is past is a wait of 0.
//
// The wait is never negative and at most 100 years, however large the number, so that a moderate time can be added to it. What
// is not 0 never becomes 0: fractions are rounded up to whole nanoseconds.
//
// RetryAfter expects the canonical keys that net/http puts into a header, changes nothing, and may be called concurrently.
func RetryAfter(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	wait, _, ok = retryAfter(h, now)
	return wait, ok
}

// retryAfter is RetryAfter and also reports how finely the source counts: in whole seconds or in milliseconds.
func retryAfter(h http.Header, now time.Time) (wait, grain time.Duration, ok bool) {
	// Header.Get would canonicalise each key, and an http.Header from a server has no other. "Ratelimit" is canonical.
	r := reply{h, now}
	a, ok := longest(h["Retry-After-Ms"], r.millis)
	if !ok {
		a, ok = longest(h["X-Ms-Retry-After-Ms"], r.millis)
	}
	if !ok {
		a, ok = longest(h["Retry-After"], r.secondsOrDate)
	}
	if !ok {
		a, ok = longest(h["Ratelimit"], r.rateLimit)
	}
	if !ok && anyZero(h["Ratelimit-Remaining"]) {
		a, ok = longest(h["Ratelimit-Reset"], r.seconds)
	}
	if !ok && anyZero(h["X-Ratelimit-Remaining"]) {
		a, ok = longest(h["X-Ratelimit-Reset"], r.seconds)
	}
	return a.wait, a.grain, ok
}

// spreadFor returns within how much time after the wait that a server asked for the retries of all its clients should be
// spread: they were told the same thing, and would otherwise come back in the same instant. Whole seconds hide up to one
// second of difference, and servers that say "1" say it to everyone, hence the minimum.
func spreadFor(asked, grain time.Duration) time.Duration {
	if asked <= 0 {
		return 0
	}
	spread := asked / 4
	if grain >= time.Second {
		spread = max(spread, time.Second)
	}
	return min(spread, 30*time.Second)
}

// asked is one answer to "when may I come back?".
type asked struct{ wait, grain time.Duration }

// longest returns the longest wait among the lines that parse understands; of equal waits, the one that counts more coarsely.
func longest(lines []string, parse func(string) (asked, bool)) (most asked, ok bool) {
	for _, line := range lines {
		a, valid := parse(strings.Trim(line, " \t"))
		if valid && (!ok || a.wait > most.wait || a.wait == most.wait && a.grain > most.grain) {
			most, ok = a, true
		}
	}
	return most, ok
}

// anyZero reports whether a line says that nothing remains. Some servers write 0.0.
func anyZero(lines []string) bool {
	for _, line := range lines {
		if n, ok := parseNumber(strings.Trim(line, " \t")); ok && n.times(time.Second) == 0 {
			return true
		}
	}
	return false
}

// reply is what its methods need to know of a response to read one value in its header.
type reply struct {
	header http.Header
	now    time.Time
}

func (r reply) millis(v string) (asked, bool) {
	n, ok := parseNumber(v)
	return asked{n.times(time.Millisecond), time.Millisecond}, ok
}

func (r reply) secondsOrDate(v string) (asked, bool) {
	// The three forms begin with the day's name. http.ParseTime copies what it does not understand into its error, so it
	// sees neither numbers nor anything far longer than the longest date, "Wednesday, 09-Nov-94 08:49:37 GMT".
	if v == "" || len(v) > 64 || isDigit(v[0]) {
		return r.seconds(v)
	}
	date, err := http.ParseTime(v)
	if err != nil {
		return asked{}, false
	}
	return asked{r.until(date), time.Second}, true
}

// seconds reads a number of seconds, or a Unix time in seconds or milliseconds.
func (r reply) seconds(v string) (asked, bool) {
	n, ok := parseNumber(v)
	switch {
	case !ok:
		return asked{}, false
	case n.whole >= epochMillis:
		return asked{r.until(time.UnixMilli(n.whole).Add(n.part(time.Millisecond))), time.Millisecond}, true
	case n.whole >= epochSeconds:
		return asked{r.until(time.Unix(n.whole, 0).Add(n.part(time.Second))), n.grain()}, true
	}
	return asked{n.times(time.Second), n.grain()}, true
}

// rateLimit reads one line of policies, such as `"burst";r=0;t=1, "daily";r=0;t=3600;pk=:dXNlcg==:`, a list in terms of RFC
// 9651 whose names may hold commas and semicolons. Only policies without remaining quota say when to come back.
func (r reply) rateLimit(line string) (most asked, ok bool) {
	for line != "" {
		var policy string
		var balanced bool
		if policy, line, balanced = cutUnquoted(line, ','); !balanced {
			return asked{}, false // RFC 9651, section 4.2: a field that does not parse is ignored as a whole
		}
		if reset, out := exhausted(policy); out {
			most, ok = asked{max(most.wait, reset), time.Second}, true
		}
	}
	return most, ok
}

// exhausted returns the time to reset of a policy with r=0. Both are integers: no fractions here. If a parameter is repeated,
// its last value counts (RFC 9651, section 4.2.3.2).
func exhausted(policy string) (reset time.Duration, ok bool) {
	name, params, _ := cutUnquoted(policy, ';')
	var r, t number
	var hasR, hasT bool
	for params != "" {
		var param string
		param, params, _ = cutUnquoted(params, ';')
		switch key, value, _ := strings.Cut(strings.Trim(param, " \t"), "="); key {
		case "r":
			r, hasR = parseNumber(value)
		case "t":
			t, hasT = parseNumber(value)
		}
	}
	named := strings.Trim(name, " \t") != ""
	whole := hasR && hasT && !r.decimal && !t.decimal
	return t.times(time.Second), named && whole && r.whole == 0
}

// cutUnquoted cuts s around the first sep outside of double quotes. balanced is false if a quote is left open.
func cutUnquoted(s string, sep byte) (before, after string, balanced bool) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			i++ // the escaped byte
		case c == sep && !quoted:
			return s[:i], s[i+1:], true
		}
	}
	return s, "", !quoted
}

// until returns how long it takes until t, by the clock that t was read from.
func (r reply) until(t time.Time) time.Duration {
	start := r.now
	if dates := r.header["Date"]; len(dates) > 0 && len(r.header["Age"]) == 0 {
		if date, err := http.ParseTime(strings.Trim(dates[0], " \t")); err == nil {
			start = date
		}
	}
	return min(max(t.Sub(start), 0), longestWait) // Sub saturates
}

// number is an unsigned decimal number, as precise as it was sent.
type number struct {
	whole    int64 // saturates at wholeMost
	fraction string
	decimal  bool // has a fraction, which may be 0
}

// wholeMost is far beyond longestWait in any unit, and small enough to be multiplied by ten.
const wholeMost = 100_000_000_000_000_000

// parseNumber reads digits, or digits, a point and digits. strconv would do too much: it takes signs, exponents, underscores,
// hexadecimal digits, Inf and NaN, and reports what is too large as an error.
func parseNumber(v string) (number, bool) {
	whole, fraction, decimal := strings.Cut(v, ".")
	if !isDigits(whole) || decimal && !isDigits(fraction) {
		return number{}, false
	}
	n := number{fraction: fraction, decimal: decimal}
	for i := range len(whole) {
		n.whole = min(n.whole*10+int64(whole[i]-'0'), wholeMost)
	}
	return n, true
}

// times returns n units of time, at most longestWait.
func (n number) times(unit time.Duration) time.Duration {
	if n.whole >= int64(longestWait/unit) {
		return longestWait
	}
	return time.Duration(n.whole)*unit + n.part(unit)
}

// part returns what n's fraction is of unit. It is rounded up: to come back a nanosecond early is early.
func (n number) part(unit time.Duration) (d time.Duration) {
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

// grain returns how finely a server counts that sends n as seconds.
func (n number) grain() time.Duration {
	if n.decimal {
		return time.Millisecond
	}
	return time.Second
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isDigits reports whether s is 1*DIGIT. Other scripts' digits are none (RFC 5234, appendix B.1).
func isDigits(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	return s != ""
}
