package httpretry_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

const (
	ignored = 0  // no valid value: the wait is the backoff
	tooLong = -1 // no retry: the response is the caller's
)

// wireRetryAfter are header lines as a server sends them on Sat, 01 Jan 2000
// 00:00:00 GMT, where synctest's clock starts, and the waits that they ask for.
func wireRetryAfter() map[string]time.Duration {
	const s, ms = time.Second, time.Millisecond
	tests := map[string]time.Duration{
		"Retry-After: 7": 7 * s, "Retry-After:\t 7 \t": 7 * s, "retry-after: 007": 7 * s, "RETRY-AFTER: 7.25": 7250 * ms,
		"Retry-After: 60": 60 * s, "Retry-After: 61": tooLong, "Retry-After: 60.000000001": tooLong,
		"Retry-After: 9223372036": tooLong, "Retry-After: 9223372037": tooLong, "Retry-After: 9223372036854775808": tooLong,
		"Retry-After: 18446744073709551617":                             tooLong,
		"Retry-After: " + strings.Repeat("9", 100_000):                  tooLong,
		"Retry-After: Sat, 01 Jan 2000 00:00:30 GMT":                    30 * s,
		"Retry-After: Saturday, 01-Jan-00 00:00:30 GMT":                 30 * s,
		"Retry-After: Sat Jan  1 00:00:30 2000":                         30 * s,
		"Retry-After: Sat, 01 Jan 2000 00:01:01 GMT":                    tooLong,
		"Retry-After: Fri, 31 Dec 9999 23:59:59 GMT":                    tooLong,
		"Retry-After: 946684830":                                        tooLong, // not yet 1e9: seconds, 30 years of them
		"Retry-After: 1000000000":                                       tooLong, // the year 2001
		"Retry-After: Fri, 31 Dec 1999 23:59:59 GMT":                    ignored,
		"Retry-After: Sun, 06 Nov 1994 08:49:37 GMT":                    ignored,
		"Retry-After: Sat, 01 Jan 0000 00:00:00 GMT":                    ignored,
		"Retry-After: 0\r\nRetry-After: 0":                              ignored,
		"Retry-After: 5\r\nRetry-After: 30\r\nRetry-After: 10":          30 * s,
		"Retry-After: soon\r\nRetry-After: 30":                          30 * s,
		"Retry-After: 30\r\nRetry-After: -1":                            30 * s,
		"Retry-After: 5\r\nRetry-After: 61":                             tooLong,
		"Retry-After: Sat, 01 Jan 2000 00:00:20 GMT\r\nRetry-After: 15": 20 * s,

		// By a clock that is wrong by years.
		"Date: Mon, 01 Jan 2001 00:00:00 GMT\r\nRetry-After: Mon, 01 Jan 2001 00:00:30 GMT": 30 * s,
		"Date: Thu, 01 Jan 1970 00:00:01 GMT\r\nRetry-After: Thu, 01 Jan 1970 00:00:31 GMT": 30 * s,
		"Date: Thu, 01 Jan 1970 00:00:01 GMT\r\nRetry-After: 30":                            30 * s,
		"Date: Thu, 01 Jan 1970 00:00:01 GMT\r\nRetry-After: Sat, 01 Jan 2000 00:00:30 GMT": tooLong,
		"Date: Fri, 31 Dec 9999 23:59:59 GMT\r\nRetry-After: Sat, 01 Jan 2000 00:00:30 GMT": ignored,
		"Date: Sat, 01 Jan 0000 00:00:00 GMT\r\nRetry-After: Fri, 31 Dec 9999 23:59:59 GMT": tooLong,
		"Date: yesterday\r\nRetry-After: Sat, 01 Jan 2000 00:00:30 GMT":                     30 * s,
		"Date: Fri, 31 Dec 1999 23:59:00 GMT\r\nRetry-After: Sat, 01 Jan 2000 00:00:00 GMT": 60 * s,
		// By that of a cache's origin: Date is as old as the response.
		"Age: 60\r\nDate: Fri, 31 Dec 1999 23:59:00 GMT\r\nRetry-After: Sat, 01 Jan 2000 00:00:30 GMT": 30 * s,
		"Age: 60\r\nDate: Fri, 31 Dec 1999 23:59:00 GMT\r\nRetry-After: 40":                            40 * s,

		"retry-after-ms: 7500": 7500 * ms, "x-ms-retry-after-ms: 7500": 7500 * ms, "Retry-After-Ms: 60001": tooLong,
		"retry-after-ms: 7500\r\nRetry-After: 30": 7500 * ms, "retry-after-ms: x\r\nRetry-After: 30": 30 * s,
		"retry-after-ms: 9223372036855": tooLong, "retry-after-ms: -7500": ignored,
		`RateLimit: "a";r=0;t=30`: 30 * s, `RateLimit: "a";r=1;t=30`: ignored, `RateLimit: "a";r=0;t=99999999999999999999`: tooLong,
		`RateLimit: "a, b;r=1";r=0;t=10, "c";r=0;t=30`: 30 * s, `RateLimit: "a;r=0;t=30`: ignored,
		"RateLimit-Reset: 30\r\nRateLimit-Remaining: 0": 30 * s, "RateLimit-Reset: 30\r\nRateLimit-Remaining: 1": ignored,
		"X-RateLimit-Reset: 30\r\nX-RateLimit-Remaining: 0": 30 * s, "X-RateLimit-Reset: 30": ignored,
		"X-RateLimit-Reset: 1000000030\r\nX-RateLimit-Remaining: 0\r\nDate: Sun, 09 Sep 2001 01:46:40 GMT": 30 * s,
	}
	for _, value := range []string{
		"", "-5", "+5", "1e1", "1_0", "９", "٩", "5, 10", "5,10", "5;x", "0x10", "NaN", "Inf", "+Inf", "-Inf", "-0", "1.", ".5",
		"Sat, 01 Jan 2000 00:00:30 UTC", "Sat, 01 Jan 2000 00:00:30 +0000", "Sat, 01 Jan 2000 00:00:60 GMT", "sat, 01 jan 2000 00:00:30 gmt",
		"\xff\xfe", "\u0085", "30\u2028", "\u00a030", `"30"`,
	} {
		tests["Retry-After: "+value] = ignored
	}
	return tests
}

// Hazard F: what is on the wire decides when the server sees the next attempt.
// It is never sooner than the backoff, nor than it was told.
func TestRetryAfterOnTheWire(t *testing.T) {
	const backoff = 2 * time.Second
	for lines, asked := range wireRetryAfter() {
		for _, code := range []int{429, 503, 404} {
			t.Run(fmt.Sprintf("%d %.120q", code, lines), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					seen := askOnTheWire(t, code, lines+"\r\nX-Should-Retry: true", every(backoff))
					if asked == tooLong {
						require.Len(t, seen, 1)
						return
					}
					require.Len(t, seen, 2)
					most := max(asked, backoff)
					if asked > 0 { // the spread
						most = max(most, asked+max(asked/4, time.Second))
					}
					assert.GreaterOrEqual(t, seen[1]-seen[0], max(asked, backoff))
					assert.LessOrEqual(t, seen[1]-seen[0], most)
				})
			})
		}
	}
}

// Hazard F: in an answer that is no error, these headers mean something else.
func TestRetryAfterOnTheWireOfSuccesses(t *testing.T) {
	policy := every(time.Second)
	policy.Classify = func(resp *http.Response, _ error) httpretry.Outcome {
		if resp.Header.Get("X-Should-Retry") != "" {
			return httpretry.Transient
		}
		return httpretry.Final
	}
	for _, code := range []int{200, 202, 301, 303, 307, 399} {
		for _, lines := range []string{"Retry-After: 30", "Retry-After: 9223372037", "retry-after-ms: 99999", `RateLimit: "a";r=0;t=30`} {
			synctest.Test(t, func(t *testing.T) {
				seen := askOnTheWire(t, code, lines+"\r\nX-Should-Retry: true", policy)
				assert.Equal(t, []time.Duration{0, time.Second}, seen, "%d %s", code, lines)
			})
		}
	}
}

// askOnTheWire gets an answer with the given header lines, and 200 for each
// request after that. It returns when the requests arrived, and checks that an
// answer which was handed over came at once, unread.
func askOnTheWire(t *testing.T, code int, lines string, policy httpretry.Policy) []time.Duration {
	const body = "the whole of it"
	var seen []time.Duration
	start := time.Now()
	pipe, _ := faults.PipeConns(t, func(c *faults.Conn) {
		c.HTTP1(func(c *faults.Conn, _ *http.Request) bool {
			seen = append(seen, time.Since(start))
			if len(seen) > 1 {
				c.Respond(200, body)
			} else {
				c.Send(fmt.Sprintf("HTTP/1.1 %d Busy\r\n%s\r\nContent-Length: %d\r\n\r\n%s", code, lines, len(body), body))
			}
			return true
		})
	})
	var reads atomic.Int32
	base := baseFunc(func(req *http.Request) (*http.Response, error) {
		resp, err := pipe.RoundTrip(req)
		if err == nil && len(seen) == 1 {
			resp.Body = &watchedBody{resp.Body, &reads}
		}
		return resp, err
	})
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(request(t, "GET", "http://a.test/", ""))
	require.NoError(t, err)
	if len(seen) == 1 {
		assert.Equal(t, code, resp.StatusCode)
		assert.Zero(t, time.Since(start))
		assert.Zero(t, reads.Load(), "reads of the response's body")
	} else {
		assert.Equal(t, 200, resp.StatusCode)
	}
	assert.Equal(t, body, finish(t, resp))
	return seen
}

// watchedBody counts Reads.
type watchedBody struct {
	io.ReadCloser
	reads *atomic.Int32
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.reads.Add(1)
	return b.ReadCloser.Read(p)
}
