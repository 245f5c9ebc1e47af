package hostpattern

import (
	"math"
	"strings"
	"unicode/utf8"
)

// asciiName returns the name that net/http connects to for name, which is in
// lower case: each label outside ASCII in its xn-- form (RFC 5890, section
// 2.3.2.1).
//
// Before that, net/http maps names as UTS 46 says, such as full-width letters
// to those of ASCII. The tables for that are large, so asciiName maps nothing.
// The form of such a name here is one that no valid host has.
func asciiName(name string) string {
	// A longer name has no policy, and shares its key with others. To encode a
	// name takes time in proportion to the square of its length.
	if isASCII(name) || len(name) > maxNameLen || !utf8.ValidString(name) {
		return name
	}
	labels := strings.Split(name, ".")
	for i, label := range labels {
		if !isASCII(label) {
			labels[i] = "xn--" + punycode(label)
		}
	}
	return strings.Join(labels, ".")
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// punycode returns label as the procedure in RFC 3492, section 6.3, encodes it.
// In at most 255 bytes, delta cannot overflow.
func punycode(label string) string {
	runes := []rune(label)
	var out []byte
	for _, r := range runes {
		if r < utf8.RuneSelf {
			out = append(out, byte(r))
		}
	}
	ascii := len(out)
	if ascii > 0 {
		out = append(out, '-')
	}
	next, delta, bias := rune(utf8.RuneSelf), 0, 72
	for done := ascii; done < len(runes); {
		least := rune(math.MaxInt32)
		for _, r := range runes {
			if r >= next {
				least = min(least, r)
			}
		}
		delta += int(least-next) * (done + 1)
		for _, r := range runes {
			switch {
			case r < least:
				delta++
			case r == least:
				out = appendDigits(out, delta, bias)
				bias = adapt(delta, done+1, done == ascii)
				delta = 0
				done++
			}
		}
		delta++
		next = least + 1
	}
	return string(out)
}

// appendDigits appends n as a variable-length integer.
func appendDigits(out []byte, n, bias int) []byte {
	const digits = "abcdefghijklmnopqrstuvwxyz0123456789"
	for k := len(digits); ; k += len(digits) {
		t := min(max(k-bias, 1), 26)
		if n < t {
			return append(out, digits[n])
		}
		out = append(out, digits[t+(n-t)%(len(digits)-t)])
		n = (n - t) / (len(digits) - t)
	}
}

// adapt returns the next bias, as in RFC 3492, section 6.1.
func adapt(delta, length int, first bool) int {
	const base, tmin, tmax, skew, damp = 36, 1, 26, 38, 700
	if first {
		delta /= damp
	} else {
		delta /= 2
	}
	delta += delta / length
	k := 0
	for ; delta > (base-tmin)*tmax/2; k += base {
		delta /= base - tmin
	}
	return k + (base-tmin+1)*delta/(delta+skew)
}
