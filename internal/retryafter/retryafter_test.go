package retryafter_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/retryafter"
)

const (
	century = 100 * 365 * 24 * time.Hour
	day     = 24 * time.Hour
	none    = -1 // the server asks for no wait
)

// here is the client's clock in these tests: Wed, 06 May 2026 07:08:09 GMT.
var here = time.Date(2026, time.May, 6, 7, 8, 9, 0, time.UTC)

// newHeader returns a header of names and values in turn.
func newHeader(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

// parse returns the wait that h asks for, if any, without its resolution.
func parse(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	wait, _, ok = retryafter.Parse(h, func() time.Time { return now })
	return wait, ok
}

// Hazard F: values that naive parsers get wrong.
func TestParseUnderstandsSecondsAndDatesOnly(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"0": 0, "00": 0, "1": time.Second, "120": 2 * time.Minute, "0120": 2 * time.Minute,
		"000000000000000000000120": 2 * time.Minute,
		" 120":                     2 * time.Minute, "120 ": 2 * time.Minute,
		"\t120 \t":  2 * time.Minute,
		"499999999": 499999999 * time.Second,

		"1.5": 1500 * time.Millisecond, "0.0": 0, "1.0": time.Second,
		"0.25": 250 * time.Millisecond, "01.50": 1500 * time.Millisecond,
		"0.000000001": 1, "0.0000000001": 1, "0.9999999999": time.Second, "0.0000000000": 0,
		"1.00000000000": time.Second, "0.1000000000": 100 * time.Millisecond,
		"2.0000000010": 2*time.Second + 1,

		"500000000": 0, "999999999": 0, "1000000000": 0,
		"1778051288": 0, "1778051289": 0, "1778051290": time.Second,
		"1778051349":   time.Minute,
		"1778051349.5": time.Minute + 500*time.Millisecond, "1778051289.0": 0,
		"1778051289001": time.Millisecond, "1778051288999": 0, "1778051349000": time.Minute,
		"1778051349000.5": time.Minute + 500*time.Microsecond,
		"499999999999":    century, "500000000000": 0, "999999999999": 0,
		"9223372037":          century,
		"9223372036854775807": century, "9223372036854775808": century,
		"18446744073709551616": century, "99999999999999999999999999999999": century,
		strings.Repeat("9", 5000):                                   century,
		strings.Repeat("9", 5000) + "." + strings.Repeat("9", 5000): century,

		"Wed, 06 May 2026 07:09:09 GMT":     time.Minute,
		"Wednesday, 06-May-26 07:09:09 GMT": time.Minute, "Wed May  6 07:09:09 2026": time.Minute,
		"Wed, 06 May 2026 07:08:09 GMT": 0, "Wed, 06 May 2026 07:08:08 GMT": 0,
		"Thu, 07 May 2026 07:08:09 GMT":    day,
		" Wed, 06 May 2026 07:09:09 GMT\t": time.Minute,
		"Sun, 06 Nov 1994 08:49:37 GMT":    0, "Sunday, 06-Nov-94 08:49:37 GMT": 0,
		"Sun Nov  6 08:49:37 1994":         0,
		"Thursday, 06-May-27 07:08:09 GMT": 365 * day,
		"Sunday, 06-May-68 07:08:09 GMT":   15341 * day, "Monday, 06-May-69 07:08:09 GMT": 0,
		"Fri, 31 Dec 9999 23:59:59 GMT": century, "Sat, 01 Jan 0000 00:00:00 GMT": 0,

		"": none, " ": none, "\t": none, "-5": none, "+5": none, "-0": none, "1e3": none,
		"1E3": none, "1_000": none, "0x10": none, "１２": none,
		"９": none, "٣": none, "5, 10": none, "5,10": none, "5;x": none, "5 10": none, "5s": none,
		"5 s": none, "5 seconds": none, "120;": none,
		"NaN": none, "Inf": none, "+Inf": none, "-Inf": none, "Infinity": none, "nan": none,
		"null": none, "soon": none, "5\x00": none, "\u00a05": none,
		".5": none, "5.": none, ".": none, "1.5.0": none, "1.-5": none, "1.+5": none, "1.5e3": none,
		"-1.5": none, "1,5": none, "1.5s": none, `"5"`: none,
		"Wed, 06 May 2026 07:09:60 GMT": none, "Wed, 06 May 2026 07:09:09 UTC": none,
		"Wed, 06 May 2026 07:09:09 +0000": none,
		"wed, 06 may 2026 07:09:09 gmt":   none, "Wed, 06 May 2026 07:09:09": none,
		"Wed, 31 Feb 2026 07:09:09 GMT": none,
		"Wed, 06 May 2026 24:00:00 GMT": none, "Wed, 06 May 10000 07:09:09 GMT": none,
		"2026-05-06T07:09:09Z":              none,
		"Wednesday, 06-May-26 07:09:09 PST": none, "Wednesday, 06-May-26 07:09:09 CET": none,
		"Wednesday, 06-May-26 07:09:09 UTC": time.Minute,
		"Wed, 06 May 2026 07:09:09 GMT, 5":  none, "GMT": none, "Wed": none,
		"Wed, 06 May 2026 07:09:09." + strings.Repeat("0", 34) + " GMT": time.Minute,
		// though http.ParseTime would go on for megabytes
		"Wed, 06 May 2026 07:09:09." + strings.Repeat("0", 35) + " GMT": none,
	} {
		wait, ok := parse(newHeader("Retry-After", value), here)
		if want == none {
			assert.False(t, ok, "%.80q", value)
			assert.Zero(t, wait, "%.80q", value)
		} else {
			assert.True(t, ok, "%.80q", value)
			assert.Equal(t, want, wait, "%.80q", value)
		}
	}
}

// waitTests maps headers to the waits they ask for, or none.
type waitTests map[string]struct {
	header http.Header
	want   time.Duration
}

func (tests waitTests) run(t *testing.T) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			wait, ok := parse(test.header, here)
			assert.Equal(t, test.want != none, ok)
			assert.Equal(t, max(test.want, 0), wait)
		})
	}
}

func TestParseLooksUpCanonicalKeys(t *testing.T) {
	waitTests{
		"nothing":   {http.Header{}, none},
		"no header": {nil, none},
		"unrelated": {
			newHeader("Content-Type", "text/plain", "Date", "Wed, 06 May 2026 07:08:09 GMT"), none},
		"key without values":        {http.Header{"Retry-After": nil}, none},
		"key that is not canonical": {http.Header{"retry-after": {"5"}}, none},
		"key in any case":           {newHeader("rETRY-aFTER", "5"), 5 * time.Second},
	}.run(t)
}

func TestParseReadsMilliseconds(t *testing.T) {
	waitTests{
		"milliseconds":       {newHeader("retry-after-ms", "1500"), 1500 * time.Millisecond},
		"milliseconds, zero": {newHeader("retry-after-ms", "0"), 0},
		"milliseconds, fraction": {
			newHeader("retry-after-ms", "1.5"), 1500 * time.Microsecond},
		"milliseconds, tiny fraction": {newHeader("retry-after-ms", "0.0000001"), 1},
		"milliseconds, last digit":    {newHeader("retry-after-ms", "0.000001"), 1},
		"milliseconds, no epoch": {
			newHeader("retry-after-ms", "1778051349000"), 1778051349 * time.Second},
		"milliseconds, below the cap": {
			newHeader("retry-after-ms", "3153599999999"), century - time.Millisecond},
		"milliseconds, at the cap": {newHeader("retry-after-ms", "3153600000000"), century},
		"milliseconds, a bit more": {newHeader("retry-after-ms", "3153600000000.5"), century},
		"milliseconds, beyond":     {newHeader("retry-after-ms", "9223372036854775808"), century},
		"milliseconds, no date": {
			newHeader("retry-after-ms", "Wed, 06 May 2026 07:09:09 GMT"), none},
		"milliseconds, negative": {newHeader("retry-after-ms", "-1"), none},
		"other milliseconds":     {newHeader("x-ms-retry-after-ms", "250"), 250 * time.Millisecond},
	}.run(t)
}

func TestParseReadsPoliciesWithoutQuota(t *testing.T) {
	waitTests{
		"policy":             {newHeader("RateLimit", `"default";r=0;t=30`), 30 * time.Second},
		"policy, zero reset": {newHeader("RateLimit", `"default";r=0;t=0`), 0},
		"policy, spaces": {
			newHeader("RateLimit", "\t\"default\"; r=0;  t=30 "), 30 * time.Second},
		"policy, order": {
			newHeader("RateLimit", `"default";t=30;pk=:cHVibGlj:;r=0`), 30 * time.Second},
		"policy, token":  {newHeader("RateLimit", `default;r=0;t=30`), 30 * time.Second},
		"policy, zeros":  {newHeader("RateLimit", `"default";r=000;t=030`), 30 * time.Second},
		"policy, absurd": {newHeader("RateLimit", `"default";r=0;t=999999999999999`), century},
		"policy, no epoch": {
			newHeader("RateLimit", `"default";r=0;t=1778051349`), 1778051349 * time.Second},
		"policies": {
			newHeader("RateLimit", `"a";r=0;t=5, "b";r=0;t=50, "c";r=0;t=20`), 50 * time.Second},
		"policies, some with quota": {
			newHeader("RateLimit", `"a";r=10;t=500, "b";r=0;t=5,"c";r=1;t=50`), 5 * time.Second},
		"policies, one without a time": {
			newHeader("RateLimit", `"a";r=0;t=x, "b";r=0;t=5`), 5 * time.Second},
		"policies on several lines": {
			newHeader("RateLimit", `"a";r=0;t=5 `, "RateLimit", ` "b";r=0;t=7`), 7 * time.Second},
		"policy with quota":     {newHeader("RateLimit", `"default";r=1;t=30`), none},
		"policy with ten":       {newHeader("RateLimit", `"default";r=10;t=30`), none},
		"policy, no t":          {newHeader("RateLimit", `"default";r=0`), none},
		"policy, no r":          {newHeader("RateLimit", `"default";t=30`), none},
		"policy, bare":          {newHeader("RateLimit", `"default";r;t`), none},
		"policy, empty values":  {newHeader("RateLimit", `"default";r=;t=`), none},
		"policy, no name":       {newHeader("RateLimit", `;r=0;t=30`), none},
		"policy, blank name":    {newHeader("RateLimit", `"a";r=1;t=5, ;r=0;t=30, r=0;t=30`), none},
		"policy, upper case":    {newHeader("RateLimit", `"default";R=0;T=30`), none},
		"policy, fraction t":    {newHeader("RateLimit", `"default";r=0;t=30.5`), none},
		"policy, fraction r":    {newHeader("RateLimit", `"default";r=0.0;t=30`), none},
		"policy, negative t":    {newHeader("RateLimit", `"default";r=0;t=-30`), none},
		"policy, negative r":    {newHeader("RateLimit", `"default";r=-1;t=30`), none},
		"policy, junk after t":  {newHeader("RateLimit", `"default";r=0;t=30 x`), none},
		"policy, last r counts": {newHeader("RateLimit", `"default";r=0;t=30;r=1`), none},
		"policy, last t counts": {
			newHeader("RateLimit", `"default";r=0;t=30;t=40`), 40 * time.Second},
		"policy, last r is none": {newHeader("RateLimit", `"default";r=0;t=30;r=x`), none},
		"name that reads like one": {
			newHeader("RateLimit", `"a;r=0;t=30, b;r=0;t=40";r=1;t=5`), none},
		"name with escaped quotes": {
			newHeader("RateLimit", `"a\";r=0;t=30;\\";r=0;t=5`), 5 * time.Second},
		"value that reads like one": {
			newHeader("RateLimit", `"a";r=1;t=5;x=",b;r=0;t=40;"`), none},
		"older draft": {newHeader("RateLimit", `limit=100, remaining=0, reset=30`), none},
		"empty":       {newHeader("RateLimit", " "), none},
	}.run(t)
}

// An item of any type but Date and Display String is valid, as a policy or as
// the value of a parameter. If a part of the field is not valid, all of the field
// is ignored.
func TestParseIgnoresARateLimitThatDoesNotParse(t *testing.T) {
	for _, value := range []string{
		`"a"`, `a`, `*a:/%`, `1`, `-1`, `-0`, `999999999999999`, `1.5`, `999999999999.999`,
		`?0`, `?1`, `:YQ==:`, `:YQ:`, `:YWI=:`, `:YWI:`, `:YWJj:`, `::`,
		`"\"\\"`, `""`, `" ~"`,
	} {
		field := `"a";r=0;t=5, ` + value + `, "c";*k._-9=` + value + `;k`
		wait, ok := parse(newHeader("RateLimit", field), here)
		assert.True(t, ok, field)
		assert.Equal(t, 5*time.Second, wait, field)
	}
	for _, value := range []string{
		``, ` `, `'a'`, `{a}`, `ä`, `"ä"`, `"a`, `"`, `"\`, `"\a"`, "\"\t\"", "\"\x7f\"",
		`"a"x`, `a\`, `a=1`, `a b`, `("a")`, `()`,
		`-`, `--1`, `+1`, `1.`, `.5`, `-.5`, `1.5.5`, `1.2345`, `1234567890123.1`,
		`1000000000000000`, `?`, `?2`, `?true`, `@1`, `@-1`,
		`:`, `:YQ==`, `:Y:`, `:Y Q:`, `:=YQ=:`, `:YQ===:`, `:YQ=:`, `:=:`, `:YWJj=:`,
		`%`, `%""`, `%"a%c3%bc %22"`,
		`"c";`, `"c" ;k`, `"c"; `, "\"c\";\tk", `"c";K`, `"c";9`, `"c";=1`, `"c";k=`,
		`"c";k= 1`, `"c";k =1`,
	} {
		for _, h := range []http.Header{
			newHeader("RateLimit", `"a";r=0;t=5, `+value),
			newHeader("RateLimit", value+`, "a";r=0;t=5`),
			newHeader("RateLimit", `"a";r=0;t=5;x=`+value),
			newHeader("RateLimit", `"a";r=0;t=5`, "RateLimit", value),
		} {
			_, ok := parse(h, here)
			assert.False(t, ok, "%v", h)
		}
	}
}

// A quota that a cache has stored may be out of date. A Retry-After counts.
func TestParseIgnoresARateLimitOfACache(t *testing.T) {
	waitTests{
		"cached":      {newHeader("RateLimit", `"a";r=0;t=5`, "Age", "3"), none},
		"cached, new": {newHeader("RateLimit", `"a";r=0;t=5`, "Age", "0"), none},
		"cached Retry-After": {
			newHeader("RateLimit", `"a";r=0;t=5`, "Retry-After", "7", "Age", "3"), 7 * time.Second},
	}.run(t)
}

func TestParseReadsResetsOfUsedUpQuotas(t *testing.T) {
	waitTests{
		"reset": {newHeader("RateLimit-Reset", "30", "RateLimit-Remaining", "0"), 30 * time.Second},
		"reset, spaces": {
			newHeader("RateLimit-Reset", " 30", "RateLimit-Remaining", "\t0 "), 30 * time.Second},
		"reset, epoch": {
			newHeader("RateLimit-Reset", "1778051349", "RateLimit-Remaining", "0"), time.Minute},
		"reset, fractions": {
			newHeader("RateLimit-Reset", "30.5", "RateLimit-Remaining", "0.0"),
			30500 * time.Millisecond},
		"reset, nearly no quota": {
			newHeader("RateLimit-Reset", "30", "RateLimit-Remaining", "0.00000000001"), none},
		"reset with quota": {
			newHeader("RateLimit-Reset", "30", "RateLimit-Remaining", "1"), none},
		"reset without remaining": {newHeader("RateLimit-Reset", "30"), none},
		"reset, remaining is garbage": {
			newHeader("RateLimit-Reset", "30", "RateLimit-Remaining", "none"), none},
		"reset, remaining is empty": {
			newHeader("RateLimit-Reset", "30", "RateLimit-Remaining", ""), none},
		"reset, remaining is -0": {
			newHeader("RateLimit-Reset", "30", "RateLimit-Remaining", "-0"), none},
		"reset, one quota is out": {newHeader("RateLimit-Reset", "30", "RateLimit-Remaining", "5",
			"RateLimit-Remaining", "0"), 30 * time.Second},
		"reset, date": {
			newHeader("RateLimit-Reset", "Wed, 06 May 2026 07:09:09 GMT",
				"RateLimit-Remaining", "0"), none},
		"reset of the other": {
			newHeader("X-RateLimit-Reset", "30", "RateLimit-Remaining", "0"), none},
		"reset by the other": {
			newHeader("RateLimit-Reset", "30", "X-RateLimit-Remaining", "0"), none},
		"x reset": {
			newHeader("X-RateLimit-Reset", "30", "X-RateLimit-Remaining", "0"), 30 * time.Second},
		"x reset, epoch": {
			newHeader("X-RateLimit-Reset", "1778051349", "X-RateLimit-Remaining", "0"),
			time.Minute},
		"x reset, millis": {
			newHeader("X-RateLimit-Reset", "1778051349000", "X-RateLimit-Remaining", "0"),
			time.Minute},
		"x reset, past": {
			newHeader("X-RateLimit-Reset", "1778051000", "X-RateLimit-Remaining", "0"), 0},
		"x reset with quota": {
			newHeader("X-RateLimit-Reset", "30", "X-RateLimit-Remaining", "99"), none},
		"x reset, absurd": {
			newHeader("X-RateLimit-Reset", "999999999999999999999", "X-RateLimit-Remaining", "0"),
			century},
		"x reset, not a time": {
			newHeader("X-RateLimit-Reset", "1h30m", "X-RateLimit-Remaining", "0"), none},
	}.run(t)
}

func TestParseTakesTheLongestOfSeveralLines(t *testing.T) {
	waitTests{
		"longest of several lines": {
			newHeader("Retry-After", "5", "Retry-After", "120", "Retry-After", "7"),
			2 * time.Minute},
		"longest of seconds and dates": {
			newHeader("Retry-After", "5", "Retry-After", "Wed, 06 May 2026 07:09:09 GMT"),
			time.Minute},
		"garbage among several lines": {
			newHeader("Retry-After", "soon", "Retry-After", "5", "Retry-After", "5, 10"),
			5 * time.Second},
		"zero among several lines": {newHeader("Retry-After", "0", "Retry-After", "-1"), 0},
		"nothing but garbage":      {newHeader("Retry-After", "soon", "Retry-After", "-1"), none},
		"longest of milliseconds": {
			newHeader("Retry-After-Ms", "5", "Retry-After-Ms", "120"), 120 * time.Millisecond},
		"longest of resets": {
			newHeader("X-RateLimit-Reset", "5", "X-RateLimit-Reset", "9", "X-RateLimit-Remaining",
				"0"), 9 * time.Second},
		"every source invalid":          {newHeader(everySource("garbage")...), none},
		"every source out of its range": {newHeader(everySource("-1")...), none},
	}.run(t)
}

// source is a header that can ask for a wait.
type source struct {
	name, value string
	rest        []string // names and values of others that it needs
	wait        time.Duration
}

func (s source) pairs() []string { return s.with(s.value) }

// with returns names and values with another value.
func (s source) with(value string) []string {
	return append([]string{s.name, value}, s.rest...)
}

// sources are all headers that can ask for a wait, the first one first. Each
// asks for another wait.
var sources = []source{
	{"Retry-After-Ms", "1000", nil, time.Second},
	{"X-Ms-Retry-After-Ms", "2000", nil, 2 * time.Second},
	{"Retry-After", "3", nil, 3 * time.Second},
	{"RateLimit", `"a";r=0;t=4`, nil, 4 * time.Second},
	{"RateLimit-Reset", "5", []string{"RateLimit-Remaining", "0"}, 5 * time.Second},
	{"X-RateLimit-Reset", "6", []string{"X-RateLimit-Remaining", "0"}, 6 * time.Second},
}

func everySource(value string) (pairs []string) {
	for _, source := range sources {
		pairs = append(pairs, source.with(value)...)
	}
	return pairs
}

// A valid source wins over those after it, whether its wait is shorter or
// longer. An invalid one does not.
func TestParseTakesTheFirstValidSource(t *testing.T) {
	for i, first := range sources {
		for _, second := range sources[i+1:] {
			require.NotEqual(t, first.wait, second.wait)
			h := newHeader(append(second.pairs(), first.pairs()...)...)
			wait, ok := parse(h, here)
			assert.True(t, ok)
			assert.Equal(t, first.wait, wait, "%v", h)

			h = newHeader(append(first.with("garbage"), second.pairs()...)...)
			wait, ok = parse(h, here)
			assert.True(t, ok)
			assert.Equal(t, second.wait, wait, "%v", h)
		}
	}
	wait, ok := parse(newHeader("Retry-After-Ms", "0", "Retry-After", "60"), here)
	assert.True(t, ok)
	assert.Zero(t, wait, "zero is a value")
	wait, _ = parse(
		newHeader("RateLimit", `"a";r=0`, "RateLimit-Reset", "5", "RateLimit-Remaining", "0"), here)
	assert.Equal(t, 5*time.Second, wait)
}

// Hazard F: the server's dates are relative to the server's clock.
func TestParseCountsFromTheResponsesDate(t *testing.T) {
	const (
		at     = "Wed, 06 May 2026 07:08:09 GMT"
		minute = "Wed, 06 May 2026 07:09:09 GMT"
	)
	waitTests{
		"server slow by a year": {
			newHeader("Date", "Tue, 06 May 2025 07:08:09 GMT", "Retry-After",
				"Tue, 06 May 2025 07:09:09 GMT"), time.Minute},
		"server fast by a year": {
			newHeader("Date", "Thu, 06 May 2027 07:08:09 GMT", "Retry-After",
				"Thu, 06 May 2027 07:09:09 GMT"), time.Minute},
		"server at the epoch": {
			newHeader("Date", "Thu, 01 Jan 1970 00:00:01 GMT", "Retry-After",
				"Thu, 01 Jan 1970 00:00:31 GMT"), 30 * time.Second},
		"past by its own clock": {newHeader("Date", minute, "Retry-After", at), 0},
		"now by its own clock":  {newHeader("Date", minute, "Retry-After", minute), 0},
		"epoch by its own clock": {
			newHeader("Date", "Wed, 06 May 2026 07:07:09 GMT", "Retry-After", "1778051349"),
			2 * time.Minute},
		"millis by its own clock": {
			newHeader("Date", "Wed, 06 May 2026 07:07:09 GMT", "Retry-After", "1778051349000"),
			2 * time.Minute},
		"reset by its own clock": {
			newHeader("Date", "Wed, 06 May 2026 07:07:09 GMT", "X-RateLimit-Reset", "1778051349",
				"X-RateLimit-Remaining", "0"), 2 * time.Minute},
		"seconds need no clock": {
			newHeader("Date", "Tue, 06 May 2025 07:08:09 GMT", "Retry-After", "60"), time.Minute},
		"another form of date": {
			newHeader("Date", "Tue May  6 07:08:09 2025", "Retry-After",
				"Tuesday, 06-May-25 07:09:09 GMT"), time.Minute},
		"a Date in another zone": {
			newHeader("Date", "Tuesday, 06-May-25 07:08:09 PST", "Retry-After", minute),
			time.Minute},
		"spaces around the date": {
			newHeader("Date", " Tue, 06 May 2025 07:08:09 GMT\t", "Retry-After",
				"Tue, 06 May 2025 07:09:09 GMT"), time.Minute},
		"answer of a cache": {
			newHeader("Date", "Wed, 06 May 2026 07:00:00 GMT", "Age", "489", "Retry-After", minute),
			time.Minute},
		"answer of a cache, fresh": {
			newHeader("Date", "Wed, 06 May 2026 07:00:00 GMT", "Age", "0", "Retry-After", minute),
			time.Minute},
		"epoch of a cache": {
			newHeader("Date", "Wed, 06 May 2026 07:00:00 GMT", "Age", "489", "Retry-After",
				"1778051349"), time.Minute},
		"invalid date":        {newHeader("Date", "today", "Retry-After", minute), time.Minute},
		"empty date":          {newHeader("Date", "", "Retry-After", minute), time.Minute},
		"date without values": {http.Header{"Date": {}, "Retry-After": {minute}}, time.Minute},
		"first date counts": {
			newHeader("Date", at, "Date", minute, "Retry-After", minute), time.Minute},
		"across all of time": {
			newHeader("Date", "Sat, 01 Jan 0000 00:00:00 GMT", "Retry-After",
				"Fri, 31 Dec 9999 23:59:59 GMT"), century},
		"across time backwards": {
			newHeader("Date", "Fri, 31 Dec 9999 23:59:59 GMT", "Retry-After",
				"Sat, 01 Jan 0000 00:00:00 GMT"), 0},
	}.run(t)
}

func TestParseTakesAnyNow(t *testing.T) {
	h := newHeader("Retry-After", "Wed, 06 May 2026 07:09:09 GMT")
	wait, _ := parse(h, here.Add(400*time.Millisecond))
	assert.Equal(t, 59600*time.Millisecond, wait)
	wait, _ = parse(h, here.In(time.FixedZone("", 5*3600)))
	assert.Equal(t, time.Minute, wait)
	wait, ok := parse(h, time.Time{})
	assert.True(t, ok)
	assert.Equal(t, century, wait)
}

func TestParseLeavesTheHeaderAlone(t *testing.T) {
	h := newHeader(append(everySource("garbage"), "Date", "today", "Retry-After", " 5 ")...)
	before := h.Clone()
	_, _ = parse(h, here)
	assert.Equal(t, before, h)
}

// A fraction is exact to the nanosecond, rounded up.
func TestParseRoundsFractionsUp(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		digits := fmt.Sprintf("%012d", random.Int64N(1e12))
		value := fmt.Sprintf("%d.%s", random.IntN(1000), digits[:1+random.IntN(12)])
		for key, unit := range map[string]time.Duration{
			"Retry-After": time.Second, "Retry-After-Ms": time.Millisecond} {
			exact, _ := new(big.Rat).SetString(value)
			exact.Mul(exact, big.NewRat(int64(unit), 1))
			wait, ok := parse(newHeader(key, value), here)
			got := big.NewRat(int64(wait), 1)
			assert.True(t, ok && got.Cmp(exact) >= 0, "%s: %s is early: %v", key, value, wait)
			assert.Negative(t, got.Sub(got, big.NewRat(1, 1)).Cmp(exact), "%s: %s is late: %v",
				key, value, wait)
		}
	}
}

var benchmarkHeaders = map[string]http.Header{
	"none": newHeader("Date", "Wed, 06 May 2026 07:08:09 GMT", "Content-Type", "text/plain",
		"Content-Length", "5"),
	"digits": newHeader("Date", "Wed, 06 May 2026 07:08:09 GMT", "Retry-After", "120"),
	"date": newHeader(
		"Date", "Wed, 06 May 2026 07:08:09 GMT", "Retry-After", "Wed, 06 May 2026 07:09:09 GMT"),
	"millis": newHeader("Retry-After-Ms", "1500"),
	"policy": newHeader("RateLimit", `"burst";r=0;t=1, "daily";r=0;t=3600`),
	"reset":  newHeader("X-RateLimit-Reset", "1778051349", "X-RateLimit-Remaining", "0"),
}

func TestParseDoesNotAllocate(t *testing.T) {
	for name, h := range benchmarkHeaders {
		assert.Zero(t, testing.AllocsPerRun(100, func() { parse(h, here) }), name)
	}
}

func BenchmarkParse(b *testing.B) {
	for name, h := range benchmarkHeaders {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				parse(h, here)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, value := range []string{
		"120", "499999999", "500000000", "499999999999", "500000000000", "9223372037",
		"9223372036854775808", "1.5", "1778051349", "1778051349000", "-5",
		"+5", "1_000", "0x10", "5, 10", "NaN", "９",
		"Wed, 06 May 2026 07:09:09 GMT", "Wednesday, 06-May-26 07:09:09 GMT",
		"Wed May  6 07:09:09 2026", "Fri, 31 Dec 9999 23:59:59 GMT",
		`"a";r=0;t=30`, `"a\";r=0;t=5, "b";r=0;t=9999999999999999999`, "\"", "\\", ";", ",", "",
		`a;r=0;t=5;b=-1.5;c=:YQ==:;d=?1;e=@1;f=%"%c3%bc", "b"`, `"a" ;r=0;t=5`, `"a";r=0;t=5,`,
	} {
		for source := range sources {
			f.Add(uint8(source), value, "Wed, 06 May 2026 07:08:09 GMT", false, here.Unix())
		}
	}
	f.Add(uint8(2), "Fri, 31 Dec 9999 23:59:59 GMT", "", true, int64(-1<<63))
	f.Add(uint8(2), "9999999999", "", true, int64(1<<63-1))
	f.Fuzz(func(t *testing.T, at uint8, value, date string, cached bool, unix int64) {
		source := sources[int(at)%len(sources)]
		h := newHeader(append(source.with(value), "Date", date)...)
		garbled := newHeader(append(source.with(value), source.name, "garbage")...)
		if cached {
			h.Set("Age", "1")
			garbled.Set("Age", "1")
		}
		now := time.Unix(unix, 0)
		wait, ok := parse(h, now)
		if wait < 0 || wait > century || !ok && wait != 0 {
			t.Fatalf("%v: %v, %v", h, wait, ok)
		}
		if longer, _ := parse(garbled, now); !ok && longer != 0 {
			t.Fatalf("%v: garbage made it valid", h)
		}
		checkDigits(t, source.name, strings.Trim(value, " \t"), wait, ok)
	})
}

// checkDigits checks wait against arithmetic that cannot overflow. value is a
// number of seconds in digits.
func checkDigits(t *testing.T, key, value string, wait time.Duration, ok bool) {
	unit, limit := time.Second, int64(5e8)
	switch key {
	case "RateLimit":
		return
	case "Retry-After-Ms", "X-Ms-Retry-After-Ms":
		unit, limit = time.Millisecond, 1<<62
	}
	n, valid := new(big.Int).SetString(value, 10)
	if !valid || strings.Trim(value, "0123456789") != "" || n.Cmp(big.NewInt(limit)) >= 0 {
		return
	}
	n.Mul(n, big.NewInt(int64(unit)))
	if most := big.NewInt(int64(century)); n.Cmp(most) > 0 {
		n = most
	}
	if !ok || n.Cmp(big.NewInt(int64(wait))) != 0 {
		t.Fatalf("%s: %s is %v, %v", key, value, wait, ok)
	}
}

func TestParseReportsResolution(t *testing.T) {
	usedUp := []string{"0"}
	for name, test := range map[string]struct {
		header           http.Header
		wait, resolution time.Duration
	}{
		"nothing": {http.Header{}, 0, 0},
		"milliseconds": {
			http.Header{"Retry-After-Ms": {"2000"}}, 2 * time.Second, time.Millisecond},
		"seconds": {http.Header{"Retry-After": {"2"}}, 2 * time.Second, time.Second},
		"decimal": {http.Header{"Retry-After": {"2.0"}}, 2 * time.Second, time.Millisecond},
		"date": {http.Header{"Retry-After": {"Thu, 01 Jan 1970 00:00:02 GMT"}},
			2 * time.Second, time.Second},
		"epoch": {http.Header{"Retry-After": {"500000000"}}, 5e8 * time.Second, time.Second},
		"decimal epoch": {http.Header{"Retry-After": {"500000000.5"}},
			5e8*time.Second + time.Second/2, time.Millisecond},
		"epoch in millis": {
			http.Header{"Retry-After": {"500000000000"}}, 5e8 * time.Second, time.Millisecond},
		"policy": {http.Header{"Ratelimit": {`"a";r=0;t=2`}}, 2 * time.Second, time.Second},
		"reset": {http.Header{"Ratelimit-Reset": {"2"}, "Ratelimit-Remaining": usedUp},
			2 * time.Second, time.Second},
		"x reset": {http.Header{"X-Ratelimit-Reset": {"2"}, "X-Ratelimit-Remaining": usedUp},
			2 * time.Second, time.Second},
		"x reset, decimal": {
			http.Header{"X-Ratelimit-Reset": {"2.5"}, "X-Ratelimit-Remaining": usedUp},
			2500 * time.Millisecond, time.Millisecond},
		"longest decides": {http.Header{"Retry-After": {"3", "3.5", "2"}}, 3500 * time.Millisecond,
			time.Millisecond},
		"coarsest, last":  {http.Header{"Retry-After": {"2.0", "2"}}, 2 * time.Second, time.Second},
		"coarsest, first": {http.Header{"Retry-After": {"2", "2.0"}}, 2 * time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			wait, resolution, ok := retryafter.Parse(
				test.header, func() time.Time { return time.Unix(0, 0) })
			assert.Equal(t, test.wait, wait)
			assert.Equal(t, test.resolution, resolution)
			assert.Equal(t, resolution != 0, ok)
		})
	}
}

func TestSpread(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for _, test := range []struct{ asked, resolution, want time.Duration }{
		{0, s, 0}, {0, ms, 0}, {-s, s, 0}, {math.MinInt64, ms, 0},
		{1, s, s}, {s, s, s}, {4 * s, s, s}, {4*s + 4, s, s + 1}, {60 * s, s, 15 * s},
		{120 * s, s, 30 * s}, {121 * s, s, 30 * s},
		{3, ms, 0}, {4, ms, 1}, {s, ms, 250 * ms}, {60 * s, ms, 15 * s}, {121 * s, ms, 30 * s},
		{retryafter.MaxWait, s, 30 * s}, {retryafter.MaxWait, ms, 30 * s},
		{math.MaxInt64, s, 30 * s},
	} {
		assert.Equal(t, test.want, retryafter.Spread(test.asked, test.resolution), "%v, %v",
			test.asked, test.resolution)
	}
}

func TestMaxWaitsCanBeAdded(t *testing.T) {
	wait := retryafter.MaxWait // not constant: a constant would not compile
	wait += wait + wait/2
	assert.Positive(t, wait)
}
