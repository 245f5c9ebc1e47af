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

// waits are the waits that the values of a header ask for, or none.
type waits map[string]time.Duration

// check sends each value in the header name, followed by rest, which are further
// names and values.
func (w waits) check(t *testing.T, name string, rest ...string) {
	t.Helper()
	for value, want := range w {
		h := newHeader(append([]string{name, value}, rest...)...)
		wait, ok := parse(h, here)
		assert.Equal(t, want != none, ok, "%.200v", h)
		assert.Equal(t, max(want, 0), wait, "%.200v", h)
	}
}

// date returns the date at a time of the client's clock, after here.
func date(after time.Duration) string { return here.Add(after).Format(http.TimeFormat) }

// Hazard F: values that naive parsers get wrong.
func TestParseUnderstandsSecondsAndDatesOnly(t *testing.T) {
	waits{
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
	}.check(t, "Retry-After")
}

func TestParseLooksUpCanonicalKeys(t *testing.T) {
	for _, h := range []http.Header{
		nil, {}, {"Content-Type": {"text/plain"}, "Date": {date(0)}},
		{"Retry-After": nil}, {"retry-after": {"5"}},
	} {
		wait, ok := parse(h, here)
		assert.False(t, ok, h)
		assert.Zero(t, wait, h)
	}
	waits{"5": 5 * time.Second}.check(t, "rETRY-aFTER")
}

func TestParseReadsMilliseconds(t *testing.T) {
	waits{
		"1500": 1500 * time.Millisecond, "0": 0, "1.5": 1500 * time.Microsecond,
		"0.000001": 1, "0.0000001": 1,
		"1778051349000": 1778051349 * time.Second, // no point in time
		"3153599999999": century - time.Millisecond, "3153600000000": century,
		"3153600000000.5": century, "9223372036854775808": century,
		"Wed, 06 May 2026 07:09:09 GMT": none, "-1": none,
	}.check(t, "Retry-After-Ms")
	waits{"250": 250 * time.Millisecond}.check(t, "x-ms-retry-after-ms")
}

func TestParseReadsPoliciesWithoutQuota(t *testing.T) {
	const s = time.Second
	waits{
		`"default";r=0;t=30`:                       30 * s,
		`"default";r=0;t=0`:                        0,
		`default;r=0;t=30`:                         30 * s,
		"\t\"default\"; r=0;  t=30 ":               30 * s,
		`"default";t=30;pk=:cHVibGlj:;r=0`:         30 * s,
		`"default";r=000;t=030`:                    30 * s,
		`"default";r=0;t=999999999999999`:          century,
		`"default";r=0;t=1778051349`:               1778051349 * s, // no point in time
		`"default";r=0;t=30;t=40`:                  40 * s,         // the last one counts
		`"a";r=0;t=5, "b";r=0;t=50, "c";r=0;t=20`:  50 * s,
		`"a";r=10;t=500, "b";r=0;t=5,"c";r=1;t=50`: 5 * s,
		`"a";r=0;t=x, "b";r=0;t=5`:                 5 * s,
		`"a\";r=0;t=30;\\";r=0;t=5`:                5 * s,
	}.check(t, "RateLimit")
	waits{`"a";r=0;t=5 `: 7 * s}.check(t, "RateLimit", "RateLimit", ` "b";r=0;t=7`)
	for _, value := range []string{
		" ", `;r=0;t=30`, `"a";r=1;t=5, ;r=0;t=30, r=0;t=30`,
		`limit=100, remaining=0, reset=30`, // an older draft
		`"a";r=1;t=30`, `"a";r=10;t=30`, `"a";r=0;t=30;r=1`, `"a";r=0;t=30;r=x`,
		`"a";r=0`, `"a";t=30`, `"a";r;t`, `"a";r=;t=`, `"a";R=0;T=30`, `"a";r=0;t=30 x`,
		`"a";r=0;t=30.5`, `"a";r=0.0;t=30`, `"a";r=0;t=-30`, `"a";r=-1;t=30`,
		// A name and a value that read like policies.
		`"a;r=0;t=30, b;r=0;t=40";r=1;t=5`, `"a";r=1;t=5;x=",b;r=0;t=40;"`,
	} {
		waits{value: none}.check(t, "RateLimit")
	}
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
	waits{"3": none, "0": none}.check(t, "Age", "RateLimit", `"a";r=0;t=5`)
	waits{"7": 7 * time.Second}.check(t, "Retry-After", "RateLimit", `"a";r=0;t=5`, "Age", "3")
}

func TestParseReadsResetsOfUsedUpQuotas(t *testing.T) {
	const reset, remaining = "RateLimit-Reset", "RateLimit-Remaining"
	waits{
		"30": 30 * time.Second, " 30": 30 * time.Second, "30.5": 30500 * time.Millisecond,
		"1778051349": time.Minute, date(time.Minute): none,
	}.check(t, reset, remaining, "0")
	waits{
		"0": 30 * time.Second, "\t0 ": 30 * time.Second, "0.0": 30 * time.Second,
		"0.00000000001": none, "1": none, "none": none, "": none, "-0": none,
	}.check(t, remaining, reset, "30")
	waits{"5": 30 * time.Second}.check(t, remaining, remaining, "0", reset, "30")
	waits{"30": none}.check(t, reset)

	waits{
		"30": 30 * time.Second, "1778051349": time.Minute, "1778051349000": time.Minute,
		"1778051000": 0, "999999999999999999999": century, "1h30m": none,
	}.check(t, "X-RateLimit-Reset", "X-RateLimit-Remaining", "0")
	waits{"99": none}.check(t, "X-RateLimit-Remaining", "X-RateLimit-Reset", "30")
	waits{"30": none}.check(t, "X-RateLimit-Reset", remaining, "0")
	waits{"30": none}.check(t, reset, "X-RateLimit-Remaining", "0")
}

func TestParseTakesTheLongestOfSeveralLines(t *testing.T) {
	waits{"5": 2 * time.Minute}.check(t, "Retry-After", "Retry-After", "120", "Retry-After", "7")
	waits{"5": time.Minute}.check(t, "Retry-After", "Retry-After", date(time.Minute))
	waits{"soon": 5 * time.Second}.check(t, "Retry-After",
		"Retry-After", "5", "Retry-After", "5, 10")
	waits{"0": 0, "soon": none}.check(t, "Retry-After", "Retry-After", "-1")
	waits{"5": 120 * time.Millisecond}.check(t, "Retry-After-Ms", "Retry-After-Ms", "120")
	waits{"5": 9 * time.Second}.check(t, "X-RateLimit-Reset",
		"X-RateLimit-Reset", "9", "X-RateLimit-Remaining", "0")
	waits{"soon": none}.check(t, "Retry-After", everySource("garbage")...)
	waits{"soon": none}.check(t, "Retry-After", everySource("-1")...)
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
	const year, epoch = 365 * day, "1778051349" // a minute after here
	later := date(time.Minute)
	for _, wrong := range []time.Duration{-year, year} {
		waits{date(wrong + time.Minute): time.Minute, "60": time.Minute}.
			check(t, "Retry-After", "Date", date(wrong))
	}
	waits{"Thu, 01 Jan 1970 00:00:31 GMT": 30 * time.Second}.
		check(t, "Retry-After", "Date", "Thu, 01 Jan 1970 00:00:01 GMT")
	waits{date(0): 0, later: 0}.check(t, "Retry-After", "Date", later)
	waits{epoch: 2 * time.Minute, epoch + "000": 2 * time.Minute}.
		check(t, "Retry-After", "Date", date(-time.Minute))
	waits{epoch: 2 * time.Minute}.check(t, "X-RateLimit-Reset",
		"Date", date(-time.Minute), "X-RateLimit-Remaining", "0")
	for _, form := range []string{"Tue May  6 07:08:09 2025", " Tue, 06 May 2025 07:08:09 GMT\t"} {
		waits{"Tuesday, 06-May-25 07:09:09 GMT": time.Minute}.
			check(t, "Retry-After", "Date", form)
	}
	// A Date of a cache is older than its response.
	for _, age := range []string{"489", "0"} {
		waits{later: time.Minute, epoch: time.Minute}.
			check(t, "Retry-After", "Date", date(-489*time.Second), "Age", age)
	}
	// A date that is not valid, or in another zone, does not count, nor does a second one.
	for _, first := range []string{"today", "", "Tuesday, 06-May-25 07:08:09 PST", date(0)} {
		waits{later: time.Minute}.check(t, "Retry-After", "Date", first, "Date", later)
	}
	wait, _ := parse(http.Header{"Date": {}, "Retry-After": {later}}, here)
	assert.Equal(t, time.Minute, wait)
	const first, last = "Sat, 01 Jan 0000 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT"
	waits{last: century, first: 0}.check(t, "Retry-After", "Date", first)
	waits{last: 0, first: 0}.check(t, "Retry-After", "Date", last)
}

func TestParseTakesAnyNow(t *testing.T) {
	h := newHeader("Retry-After", date(time.Minute))
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
	const s, ms = time.Second, time.Millisecond
	for _, test := range []struct {
		header           http.Header
		wait, resolution time.Duration
	}{
		{http.Header{}, 0, 0},
		{newHeader("Retry-After-Ms", "2000"), 2 * s, ms},
		{newHeader("Retry-After", "2"), 2 * s, s},
		{newHeader("Retry-After", "2.0"), 2 * s, ms},
		{newHeader("Retry-After", "Thu, 01 Jan 1970 00:00:02 GMT"), 2 * s, s},
		{newHeader("Retry-After", "500000000"), 5e8 * s, s},
		{newHeader("Retry-After", "500000000.5"), 5e8*s + s/2, ms},
		{newHeader("Retry-After", "500000000000"), 5e8 * s, ms},
		{newHeader("RateLimit", `"a";r=0;t=2`), 2 * s, s},
		{newHeader("RateLimit-Reset", "2", "RateLimit-Remaining", "0"), 2 * s, s},
		{newHeader("X-RateLimit-Reset", "2", "X-RateLimit-Remaining", "0"), 2 * s, s},
		{newHeader("X-RateLimit-Reset", "2.5", "X-RateLimit-Remaining", "0"), 2500 * ms, ms},
		// The longest line decides, or the coarsest of the longest.
		{http.Header{"Retry-After": {"3", "3.5", "2"}}, 3500 * ms, ms},
		{http.Header{"Retry-After": {"2.0", "2"}}, 2 * s, s},
		{http.Header{"Retry-After": {"2", "2.0"}}, 2 * s, s},
	} {
		wait, resolution, ok := retryafter.Parse(
			test.header, func() time.Time { return time.Unix(0, 0) })
		assert.Equal(t, test.wait, wait, test.header)
		assert.Equal(t, test.resolution, resolution, test.header)
		assert.Equal(t, resolution != 0, ok, test.header)
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
