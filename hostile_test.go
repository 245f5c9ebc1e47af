package httpretry_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

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
		"retry-after-ms: 7500":                                          7500 * ms, "x-ms-retry-after-ms: 7500": 7500 * ms, "Retry-After-Ms: 60001": tooLong,
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
	maps.Copy(tests, wireDates())
	return tests
}

// wireDates are those by a clock other than the client's.
func wireDates() map[string]time.Duration {
	const s = time.Second
	return map[string]time.Duration{
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
	}
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

// repeated reports whether a status alone makes a request worth repeating, one
// that is safe or any.
func repeated(status int) (safe, unsafe bool) {
	switch status {
	case 421, 425:
		return true, true
	case 408, 429:
		return true, false
	case 501, 505, 506, 507, 508, 510, 511:
		return false, false
	}
	return 500 <= status && status <= 599, false
}

// Hazard K8: any status that net/http lets through is taken for what it is,
// and its body is left alone.
func TestEveryStatus(t *testing.T) {
	var code atomic.Int32 // of the next answers
	informational := func() bool { return code.Load()/100 == 1 }
	bodiless := func() bool { return code.Load() == 204 || code.Load() == 304 }
	http1 := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool {
		switch {
		case informational(), bodiless():
			c.Respond(int(code.Load()), "")
		case code.Load() < 100: // which has a body, though net/http would not know how to send it
			c.Respond(int(code.Load()), "", "Content-Length: 8")
			c.Send("the body")
		default:
			c.Respond(int(code.Load()), "the body")
		}
		if informational() && code.Load() != 101 {
			c.Respond(200, "the body")
		}
		return code.Load() != 101
	})
	http2 := faults.HTTP2(t, func(s faults.Stream) {
		s.Header(bodiless(), ":status", fmt.Sprintf("%03d", code.Load()))
		if informational() {
			s.Header(false, ":status", "200")
		}
		if !bodiless() {
			s.Data(true, "the body")
		}
	})
	for _, method := range []string{"GET", "POST"} {
		for _, protocol := range []string{"HTTP/1", "HTTP/2"} {
			t.Run(protocol+"/"+method, func(t *testing.T) {
				srv, base, codes := http1, faults.Base(t, nil), 1000
				if protocol == "HTTP/2" {
					srv, base, codes = http2.Server, faults.HTTP2Base(t), 1200
				}
				policy := every(0)
				policy.MaxAttempts = 2
				transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
				for n := range codes {
					code.Store(int32(n))
					askForStatus(t, transport, srv, method, n)
				}
			})
		}
	}
}

// askForStatus sends a request that is always answered with code.
func askForStatus(t *testing.T, transport http.RoundTripper, srv *faults.Server, method string, code int) {
	before := srv.Requests.Load()
	resp, err := transport.RoundTrip(request(t, method, srv.URL(), ""))
	require.NoError(t, err, code)
	safe, unsafe := repeated(code)
	want := int32(1)
	if unsafe || safe && method == "GET" {
		want = 2
	}
	assert.Equal(t, want, srv.Requests.Load()-before, "deliveries with %d", code)
	switch {
	case code == 101 && resp.ProtoMajor == 1:
		assert.Equal(t, code, resp.StatusCode)
		require.NoError(t, resp.Body.Close())
		return
	case code/100 == 1:
		code = 200
	}
	assert.Equal(t, code, resp.StatusCode)
	body := "the body"
	if code == 204 || code == 304 {
		body = ""
	}
	assert.Equal(t, body, finish(t, resp), code)
}

// Hazard K8: what is no status at all ends as the broken answer it is: with no
// more attempts than are allowed, and one for a POST.
func TestNoStatus(t *testing.T) {
	var status atomic.Value
	http1 := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool {
		c.Send("HTTP/1.1 " + status.Load().(string) + "\r\nContent-Length: 0\r\n\r\n")
		return true
	})
	for _, text := range []string{"", " ", "99", "1000", "2 0", "abc", "-10", "0x1", "٢٠٠", "\x00\x00\x00", "5030", "503\x00"} {
		status.Store(text)
		for method, want := range map[string]int32{"GET": 3, "POST": 1} {
			policy := every(0)
			policy.MaxAttempts = 3
			http1.Requests.Store(0)
			_, err := contract.New(t, httpretry.Config{Base: faults.Base(t, nil), Policy: policy}).
				RoundTrip(request(t, method, http1.URL(), ""))
			require.Error(t, err, "%q", text)
			assert.Equal(t, want, http1.Requests.Load(), "%s %q: %v", method, text, err)
		}
	}
}

// bomb is an answer without a reasonable size.
type bomb struct {
	http1   func(*faults.Conn)
	http2   func(faults.Stream)
	limit   int64 // MaxResponseHeaderBytes; 0: 1 MiB, to save time
	answers bool  // net/http makes a response of it
	breaks  bool  // the connection, with what else is on it
}

const (
	kilo      = 1 << 10
	noBound   = 10 << 20 // net/http's own
	emptyBody = "\r\nContent-Length: 0\r\n\r\n"
)

// megabytes is the size of what is large, but not too large.
func megabytes() int {
	if raceEnabled {
		return 2 // to save time
	}
	return 9
}

func times(n int, s string) string { return strings.Repeat(s, n) }

// flood sends text, and if there is more, that until the client leaves.
func flood(answers bool, limit int64, text, more string) bomb {
	more = times(10_000/max(1, len(more))+1, more)
	return bomb{answers: answers, limit: limit, http1: func(c *faults.Conn) {
		for sent := c.Send(text); sent && more != ""; sent = c.Send(more) {
		}
	}}
}

func http1Bombs() map[string]bomb {
	const line = "HTTP/1.1 503 Bomb"
	chunked := line + "\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n"
	early := "HTTP/1.1 103 Early Hints\r\n"
	return map[string]bomb{
		"line of 1 MB":          flood(true, noBound, line+"\r\nX: "+times(kilo*kilo, "x")+emptyBody, ""),
		"large line":            flood(true, noBound, line+"\r\nX: "+times(megabytes()*kilo*kilo, "x")+emptyBody, ""),
		"line of 11 MB":         flood(false, noBound, line+"\r\nX: "+times(11*kilo*kilo, "x")+emptyBody, ""),
		"endless line":          flood(false, 0, line+"\r\nX: ", "x"),
		"100,000 lines":         flood(true, noBound, line+times(100_000, "\r\nX-Line: xxxxxxxx")+emptyBody, ""),
		"endless lines":         flood(false, 0, line, "\r\nX-Line: xxxxxxxx"),
		"endless folded line":   flood(false, 0, line+"\r\nX-Line: x", "\r\n x"),
		"endless name":          flood(false, 0, line+"\r\n", "X"),
		"reason phrase of 1 MB": flood(true, noBound, line+times(kilo*kilo, "x")+emptyBody, ""),
		"endless reason phrase": flood(false, 0, line, "x"),
		"endless 1xx":           flood(false, 0, "", early+"\r\n"),
		"endless large 1xx":     flood(false, 0, "", early+"Link: "+times(100*kilo, "x")+"\r\n\r\n"),
		"endless 100":           flood(false, 0, "", "HTTP/1.1 100 Continue\r\n\r\n"),
		"endless chunk size":    flood(true, 0, chunked, "0"),
		"endless extension":     flood(true, 0, chunked+"1;", "x=y;"),
		"chunks of extensions":  flood(true, 0, chunked, "1;"+times(4000, "x")+"\r\nx\r\n"),
		"endless trailer line":  flood(true, 0, chunked+"0\r\nX: ", "x"),
		"endless trailers":      flood(true, 0, chunked+"0\r\n", "X: x\r\n"),
		"endless body":          flood(true, 0, line+"\r\n\r\n", "x"),
	}
}

func http2Bombs() map[string]bomb {
	const pseudo, field = "\x00\x07:status\x03503", "\x00\x01x\x01y"
	block := func(text string) func(faults.Stream) {
		return func(s faults.Stream) { s.HeaderBlock(true, []byte(text)) }
	}
	large := func(n int) func(faults.Stream) {
		return func(s faults.Stream) { s.Header(true, ":status", "503", "x", times(n, "x")) }
	}
	return map[string]bomb{
		"header of 1 MB": {http2: large(kilo * kilo), answers: true, limit: noBound},
		"large fields": {http2: func(s faults.Stream) {
			fields := []string{":status", "503"}
			for i := range megabytes() {
				fields = append(fields, fmt.Sprintf("x-%d", i), times(kilo*kilo, "x"))
			}
			s.Header(true, fields...)
		}, answers: true, limit: noBound},
		"header of 11 MB":  {http2: large(11 * kilo * kilo), limit: noBound},
		"100,000 fields":   {http2: block(pseudo + times(100_000, field)), answers: true, limit: noBound},
		"1,000,000 fields": {http2: block(pseudo + times(1_000_000, field))},
		// Kept in the table at its first use, then a byte each (RFC 7541 sections 6.1 and 6.2.1).
		"one field a million times": {http2: block(pseudo + "\x40\x01x\x7f\xa1\x1e" + times(4000, "x") + times(1_000_000, "\xbe"))},
	}
}

// http2Floods are those that take more than one frame of a kind.
func http2Floods() map[string]bomb {
	const pseudo, field = "\x00\x07:status\x03503", "\x00\x01x\x01y"
	return map[string]bomb{
		"endless CONTINUATION": {http2: func(s faults.Stream) {
			s.Frame(faults.FrameHeaders, 0, s.ID, []byte(pseudo))
			for s.Frame(faults.FrameContinue, 0, s.ID, []byte(times(1000, field))) {
			}
		}},
		"10,000 empty CONTINUATION": {http2: func(s faults.Stream) { // net/http has no bound for these
			s.Frame(faults.FrameHeaders, 0, s.ID, []byte(pseudo))
			for range 10_000 {
				s.Frame(faults.FrameContinue, 0, s.ID, nil)
			}
			s.Close()
		}},
		"30,000 1xx": {http2: func(s faults.Stream) { // net/http counts each as 42 bytes
			frame := "\x00\x00\x0d\x01\x04\x00\x00\x00" + string(rune(s.ID)) + "\x00\x07:status\x03103"
			for range 30 {
				s.Send(times(1000, frame))
			}
			s.Close()
		}},
		"trailers of 11 MB": {answers: true, breaks: true, http2: func(s faults.Stream) {
			s.Header(false, ":status", "503")
			s.Header(true, "x", times(11*kilo*kilo, "x"))
		}},
		"body past its window": {answers: true, breaks: true, http2: func(s faults.Stream) {
			s.Header(false, ":status", "503")
			for i := 0; i < 10_000 && s.Frame(faults.FrameData, 0, s.ID, make([]byte, kilo)); i++ {
			}
			s.Close()
		}},
	}
}

// A header without end, and what else a server can do to whoever listens: it
// ends soon, with an error or a response, and nothing is sent more often than
// is allowed: a POST once.
func TestBombs(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		for name, b := range http1Bombs() {
			t.Run("HTTP/1/"+method+"/"+name, func(t *testing.T) {
				srv := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool { b.http1(c); c.CloseWrite(); return false })
				defuse(t, b, srv, faults.Base(t, nil), method)
			})
		}
		http2 := http2Bombs()
		maps.Copy(http2, http2Floods())
		for name, b := range http2 {
			t.Run("HTTP/2/"+method+"/"+name, func(t *testing.T) {
				defuse(t, b, faults.HTTP2(t, b.http2).Server, faults.HTTP2Base(t), method)
			})
		}
	}
}

func defuse(t *testing.T, b bomb, srv *faults.Server, base *http.Transport, method string) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	policy := every(0)
	policy.MaxAttempts = 2
	base.MaxResponseHeaderBytes = cmp.Or(b.limit, kilo*kilo)
	resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).
		RoundTrip(request(t, method, srv.URL(), "").WithContext(ctx))
	require.NoError(t, ctx.Err(), "it took until the deadline: %v", err)

	repeats, most := method == "GET", int32(1)
	switch {
	case repeats && b.breaks:
		most = 1 + 10 // what net/http sends again after it found the connection broken
	case repeats:
		most = 2
	}
	assert.LessOrEqual(t, srv.Requests.Load(), most)
	assert.Positive(t, srv.Requests.Load())
	switch {
	case !b.answers:
		require.Error(t, err)
	case err != nil:
		assert.True(t, repeats && b.breaks, err)
	default:
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, repeats, srv.Requests.Load() >= 2)
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, kilo*kilo)) // with an error or without
		_ = resp.Body.Close()
	}
}

// allTo returns a transport that connects to addr whatever a URL's host is.
func allTo(t *testing.T, addr string) *http.Transport {
	base := faults.Base(t, nil)
	base.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	return base
}

// controls are bytes that drive terminals, end lines or hide text.
const controls = "\x1b[31m\r\n\u2028\u2029\x7f\u0085\u009b\u202e\u200b\xff\xc0\x00\t"

// logs returns an observer that logs as text and as JSON, and what was logged.
func logs() (observe func(context.Context, httpretry.Event), out func() string) {
	var mu sync.Mutex
	var text, json bytes.Buffer
	options := &slog.HandlerOptions{Level: slog.LevelDebug}
	asText := httpretry.LogEvents(slog.New(slog.NewTextHandler(&text, options)))
	asJSON := httpretry.LogEvents(slog.New(slog.NewJSONHandler(&json, options)))
	return func(ctx context.Context, e httpretry.Event) {
			mu.Lock()
			defer mu.Unlock()
			asText(ctx, e)
			asJSON(ctx, e)
		}, func() string {
			mu.Lock()
			defer mu.Unlock()
			return text.String() + json.String()
		}
}

// assertPrintable fails if s has anything but printable characters, and line
// ends before "time=" or "{".
func assertPrintable(t *testing.T, s string) {
	t.Helper()
	require.NotEmpty(t, s)
	for line := range strings.SplitSeq(strings.TrimSuffix(s, "\n"), "\n") {
		assert.True(t, strings.HasPrefix(line, "time=") || strings.HasPrefix(line, `{"time":`), "%q", line)
		for i, r := range line {
			bad := r == utf8.RuneError && !strings.HasPrefix(line[i:], string(utf8.RuneError))
			if bad || !strconv.IsPrint(r) {
				t.Errorf("%q at %d of %q", r, i, line)
			}
		}
	}
}

// Hazard H6: what a server puts into its answer drives no terminal and forges
// no line of a log, nor does it reach an error that net/http keeps it out of.
func TestControlsFromServer(t *testing.T) {
	for name, answer := range map[string]string{
		"reason phrase":      "HTTP/1.1 503 \x1b[31m\u2028\u0085\x7f\xff\x00\tx\r\nContent-Length: 0\r\n\r\n",
		"Retry-After":        "HTTP/1.1 503 x\r\nRetry-After: \x1b[31m\u2028\u0085\xff\r\nContent-Length: 0\r\n\r\n",
		"header, printable":  "HTTP/1.1 503 x\r\nX: \u2028\u202e\u0085\xff\r\nContent-Length: 0\r\n\r\n",
		"header, controls":   "HTTP/1.1 503 x\r\nX: \x1b[31m\x7f\x00\r\nContent-Length: 0\r\n\r\n",
		"header, a lone CR":  "HTTP/1.1 503 x\r\nX: a\rlevel=ERROR\r\nContent-Length: 0\r\n\r\n",
		"header name":        "HTTP/1.1 503 x\r\nX\x1b[31m\u2028: y\r\nContent-Length: 0\r\n\r\n",
		"header, no colon":   "HTTP/1.1 503 x\r\n\x1b[31m\u2028\xff\r\nContent-Length: 0\r\n\r\n",
		"status code":        "HTTP/1.1 \x1b[3\u2028 x\r\nContent-Length: 0\r\n\r\n",
		"version":            "HTTP/\x1b[31m\u2028 503 x\r\nContent-Length: 0\r\n\r\n",
		"garbage":            controls + controls + "\r\n",
		"length":             "HTTP/1.1 503 x\r\nContent-Length: \u2028\xff\r\n\r\n",
		"coding":             "HTTP/1.1 503 x\r\nTransfer-Encoding: \u2028\xff\r\n\r\n",
		"X-Should-Retry":     "HTTP/1.1 503 x\r\nX-Should-Retry: \u2028no\r\nContent-Length: 0\r\n\r\n",
		"informational":      "HTTP/1.1 103 \x1b[31m\u2028\r\nLink: \u2028\xff\r\n\r\nHTTP/1.1 503 \x1b\r\nContent-Length: 0\r\n\r\n",
		"body, then nothing": "HTTP/1.1 503 x\r\nContent-Length: 100\r\n\r\n" + controls,
	} {
		t.Run(name, func(t *testing.T) {
			srv := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool { c.Send(answer); return false })
			observe, out := logs()
			policy := every(0)
			policy.MaxAttempts = 2
			resp, err := contract.New(t, httpretry.Config{Base: faults.Base(t, nil), Policy: policy, Observe: observe}).
				RoundTrip(request(t, "GET", srv.URL(), ""))
			assertPrintable(t, out())
			assert.EqualValues(t, 2, srv.Requests.Load())
			if err == nil {
				_ = resp.Body.Close()
				return
			}
			_, plain := faults.Base(t, nil).RoundTrip(request(t, "GET", srv.URL(), ""))
			require.Error(t, plain)
			// net/http's own text is printable from Go 1.26.4 on.
			assertPrintable(t, "time="+strings.ReplaceAll(err.Error(), plain.Error(), ""))
		})
	}
}

// Hazard H6, 1.1: a proxy's answer to CONNECT becomes an error as it is, which
// is net/http's affair; in a log it is quoted.
func TestControlsFromProxy(t *testing.T) {
	const reason = "\x1b[31mgo away\u2028level=ERROR msg=forged\u0085\x7f\xff\r"
	proxy := faults.Proxy(t, "", func(c *faults.Conn, _ *http.Request) bool {
		c.Send("HTTP/1.1 503 " + reason + "\r\nRetry-After: \u2028\r\n\r\n")
		return false
	})
	base := faults.Base(t, nil)
	base.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy.Addr})
	observe, out := logs()
	_, plain := base.RoundTrip(request(t, "POST", "https://a.test/", ""))
	require.Error(t, plain)
	require.Contains(t, plain.Error(), "\x1b", "or this test shows nothing")
	_, err := contract.New(t, httpretry.Config{Base: base, Policy: every(0), Observe: observe}).
		RoundTrip(request(t, "POST", "https://a.test/", ""))
	require.Error(t, err)
	assertPrintable(t, out())
	assert.EqualValues(t, 1+5, proxy.Requests.Load(), "of which none reached the server")
	assertPrintable(t, "time="+strings.ReplaceAll(err.Error(), plain.Error(), ""))
}

// Hazard H6: what a caller passes on from its own callers.
func TestControlsFromCaller(t *testing.T) {
	for name, spoil := range map[string]func(*http.Request){
		"path":         func(r *http.Request) { r.URL.Path = "/" + controls },
		"raw path":     func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/"+controls, "/"+controls },
		"no slash":     func(r *http.Request) { r.URL.Path = controls },
		"opaque":       func(r *http.Request) { r.URL.Opaque = "//" + controls },
		"host":         func(r *http.Request) { r.URL.Host = controls },
		"scheme":       func(r *http.Request) { r.URL.Scheme = "http" + controls },
		"query":        func(r *http.Request) { r.URL.RawQuery = controls },
		"fragment":     func(r *http.Request) { r.URL.Fragment = controls },
		"user":         func(r *http.Request) { r.URL.User = url.UserPassword(controls, controls) },
		"method":       func(r *http.Request) { r.Method = "PUT" + controls },
		"header name":  func(r *http.Request) { r.Header["X"+controls] = []string{"x"} },
		"header value": func(r *http.Request) { r.Header.Set("X", controls) },
		"key":          func(r *http.Request) { r.Header.Set("Idempotency-Key", controls) },
		"Host":         func(r *http.Request) { r.Host = controls },
	} {
		t.Run(name, func(t *testing.T) {
			srv := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool { c.Respond(503, ""); return true })
			observe, out := logs()
			policy := every(0)
			policy.MaxAttempts = 2
			policy.Classify = func(*http.Response, error) httpretry.Outcome { return httpretry.Transient }
			req := request(t, "GET", srv.URL(), "")
			spoil(req)
			base := allTo(t, srv.Addr)
			plain := func() string { // what net/http says by itself
				_, err := base.RoundTrip(req)
				return fmt.Sprint(err)
			}()
			resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: observe}).RoundTrip(req)
			assertPrintable(t, out())
			if err == nil {
				_ = resp.Body.Close()
			} else {
				assertPrintable(t, "time="+strings.ReplaceAll(err.Error(), plain, ""))
			}
		})
	}
}

// Hazard H6: a redirect's target is the client's next request.
func TestControlsFromRedirect(t *testing.T) {
	for _, location := range []string{"/%1b%5B31m%0d%0a%e2%80%a8%ff%00", "/\u2028\u202e\xff?\u2028#\u2028", "//a.test\u2028/", "?x=\u0085", "/%"} {
		srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
			if req.URL.Path == "/" && req.URL.RawQuery == "" {
				c.Respond(307, "", "Location: "+location)
			} else {
				c.Respond(503, "")
			}
			return true
		})
		observe, out := logs()
		policy := every(0)
		policy.MaxAttempts = 2
		base := allTo(t, srv.Addr)
		client := &http.Client{Transport: contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: observe})}
		resp, err := client.Get(srv.URL() + "/")
		if err == nil {
			_ = resp.Body.Close()
		}
		if out() != "" { // else the client would not go there
			assertPrintable(t, out())
		}
	}
}

// Hazard H5: no log says what may be a secret, whichever way a request ended,
// and an error says nothing that Base did not.
func TestSecretsStaySecret(t *testing.T) {
	const secret = "hunter2"
	answers := map[string]func(c *faults.Conn) bool{
		"response": func(c *faults.Conn) bool {
			c.Respond(503, secret, "Set-Cookie: session="+secret, "X-Secret: "+secret, "Location: /?"+secret, "WWW-Authenticate: "+secret)
			return true
		},
		"error": func(*faults.Conn) bool { return false },
	}
	refuse := func(c *faults.Conn) bool {
		c.Respond(503, secret, "X-Should-Retry: false", "Set-Cookie: "+secret)
		return true
	}
	later := func(c *faults.Conn) bool {
		c.Respond(503, secret, "Retry-After: 3600", "X-Secret: "+secret)
		return true
	}
	exits := map[httpretry.Reason]func(*secretRequest){
		httpretry.ReasonFinal:         func(r *secretRequest) { r.policy.Classify = func(*http.Response, error) httpretry.Outcome { return 0 } },
		httpretry.ReasonCanceled:      func(r *secretRequest) { r.policy = every(time.Hour); r.cancel = true },
		httpretry.ReasonAttempts:      func(*secretRequest) {},
		httpretry.ReasonNotIdempotent: func(r *secretRequest) { r.policy.NewKey = nil; r.req.Header.Del("Idempotency-Key") },
		httpretry.ReasonNotReplayable: func(r *secretRequest) { r.req.GetBody = nil; r.policy.ReplayBuffer = -1 },
		httpretry.ReasonServerRefused: func(r *secretRequest) { r.answer = refuse },
		httpretry.ReasonRetryAfter:    func(r *secretRequest) { r.answer = later },
		httpretry.ReasonDeadline:      func(r *secretRequest) { r.policy.MaxElapsed = 1 },
		httpretry.ReasonBudget:        func(r *secretRequest) { r.policy.Budget = &httpretry.HostBudget{Floor: -1} },
	}
	for reason, set := range exits {
		for kind, answer := range answers {
			for _, layer := range []string{"plain", "client", "wrapped"} {
				t.Run(fmt.Sprintf("%v/%s/%s", reason, kind, layer), func(t *testing.T) {
					r := &secretRequest{secret: secret, answer: answer, policy: every(0), layer: layer, reason: reason}
					r.send(t, set)
				})
			}
		}
	}
}

// secretRequest is a request with secrets in all that it has.
type secretRequest struct {
	secret string
	layer  string // that Base is made of
	answer func(*faults.Conn) bool
	policy httpretry.Policy
	reason httpretry.Reason
	cancel bool // while it waits
	req    *http.Request
}

func (r *secretRequest) send(t *testing.T, set func(*secretRequest)) {
	srv := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool { return r.answer(c) })
	r.policy.MaxAttempts, r.policy.AttemptTimeout = 2, time.Hour
	r.req = request(t, "POST", srv.URL()+"/path", r.secret)
	r.req.URL.User = url.UserPassword(r.secret, r.secret)
	r.req.URL.RawQuery, r.req.URL.Fragment = "token="+r.secret, r.secret
	for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie", "Idempotency-Key", "X-Api-Key", "Referer"} {
		r.req.Header.Set(name, r.secret)
	}
	set(r)
	ctx, cancel := context.WithCancel(r.req.Context())
	defer cancel()
	observe, out := logs()
	var last error // as Base had it
	base := r.base(t)
	transport := contract.New(t, httpretry.Config{
		Base: baseFunc(func(req *http.Request) (*http.Response, error) {
			resp, err := base.RoundTrip(req)
			last = err
			return resp, err
		}),
		Policy: r.policy,
		Observe: func(ctx context.Context, e httpretry.Event) {
			observe(ctx, e)
			if e.Wait > 0 && r.cancel {
				cancel()
			}
		},
	})
	resp, err := transport.RoundTrip(r.req.WithContext(ctx))
	switch {
	case err == nil:
		assert.Equal(t, r.secret, finish(t, resp))
	case last != nil:
		assert.NotContains(t, strings.ReplaceAll(err.Error(), last.Error(), ""), r.secret)
	default:
		assert.NotContains(t, err.Error(), r.secret)
	}
	assert.NotContains(t, out(), r.secret)
	if r.reason != httpretry.ReasonFinal { // which is not logged
		assert.Contains(t, out(), "reason")
	}
	if r.reason == httpretry.ReasonCanceled {
		require.Error(t, err)
	}
}

func (r *secretRequest) base(t *testing.T) http.RoundTripper {
	transport := faults.Base(t, nil)
	switch r.layer {
	case "client": // whose errors hold the URL
		client := &http.Client{Transport: transport}
		return baseFunc(func(req *http.Request) (*http.Response, error) {
			resp, err := client.Do(req)
			return resp, err
		})
	case "wrapped":
		return baseFunc(func(req *http.Request) (*http.Response, error) {
			resp, err := transport.RoundTrip(req)
			if err != nil {
				err = fmt.Errorf("calling %s through %s@proxy:3128: %w", req.URL, req.URL.User, err)
			}
			return resp, err
		})
	}
	return transport
}

// Hazard J7: a key that cannot be sent is not shown either.
func TestSecretsOfRequestsNotSent(t *testing.T) {
	const secret = "hunter2"
	base := play(status(200))
	policy := every(0)
	policy.NewKey = func(*http.Request) string { return secret + "\x1b\r\n" }
	req := request(t, "POST", "http://"+secret+":"+secret+"@a.test/?"+secret+"#"+secret, secret)
	_, err := contract.New(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(req)
	require.Error(t, err)
	assert.NotContains(t, err.Error(), secret)
	assertPrintable(t, "time="+err.Error())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = contract.New(t, httpretry.Config{Base: base}).RoundTrip(req.WithContext(ctx))
	require.Error(t, err)
	assert.NotContains(t, err.Error(), secret)

	policy = every(0)
	policy.AttemptTimeout = 1
	slow := baseFunc(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, context.Cause(req.Context())
	})
	observe, out := logs()
	req = request(t, "GET", req.URL.String(), "")
	_, err = contract.New(t, httpretry.Config{Base: slow, Policy: policy, Observe: observe}).RoundTrip(req)
	require.ErrorContains(t, err, "attempt timed out")
	assert.NotContains(t, err.Error()+out(), secret)
	assertPrintable(t, out())
	assert.Empty(t, base.attempts())
}

// hop is a request as a server saw it.
type hop struct{ host, path, method, key, attempt, auth, cookie, body string }

// hops records requests, answers the first of each path with 503 and the next
// as answer does.
func hops(t *testing.T, answer func(c *faults.Conn, req *http.Request)) (*faults.Server, func() []hop) {
	var mu sync.Mutex
	var seen []hop
	failed := map[string]bool{}
	srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
		body, _ := io.ReadAll(req.Body)
		mu.Lock()
		defer mu.Unlock()
		h := req.Header
		seen = append(seen, hop{req.Host, req.URL.Path, req.Method, h.Get("Idempotency-Key"), h.Get("Retry-Attempt"),
			h.Get("Authorization"), h.Get("Cookie"), string(body)})
		if target := req.Host + req.URL.Path; !failed[target] {
			failed[target] = true
			c.Respond(503, "")
		} else {
			answer(c, req)
		}
		return true
	})
	return srv, func() []hop { mu.Lock(); defer mu.Unlock(); return slices.Clone(seen) }
}

// Hazard H1, H2: each hop of a redirect is a request of its own, with its own
// attempts and its own key, and has only what the client gives it.
func TestRedirectHops(t *testing.T) {
	for _, own := range []bool{false, true} {
		srv, seen := hops(t, func(c *faults.Conn, req *http.Request) {
			if req.Host == "a.test" {
				c.Respond(307, "", "Location: http://b.test/second", "Retry-After: 3600")
			} else {
				c.Respond(200, "done")
			}
		})
		policy := every(0)
		policy.MaxAttempts = 2
		policy.NewKey = httpretry.RandomKey
		client := &http.Client{Transport: contract.New(t, httpretry.Config{Base: allTo(t, srv.Addr), Policy: policy})}
		req := request(t, "POST", "http://a.test/first", "payload")
		req.Header.Set("Authorization", "secret")
		req.Header.Set("Cookie", "secret=1")
		if own {
			req.Header.Set("Idempotency-Key", "mine")
		}
		resp, err := client.Do(req)
		require.NoError(t, err)
		assert.Equal(t, "done", finish(t, resp))

		got := seen()
		require.Len(t, got, 4)
		first, second := got[0].key, got[2].key
		assert.NotEmpty(t, first)
		assert.NotEmpty(t, second)
		if own {
			assert.Equal(t, []string{"mine", "mine"}, []string{first, second}, "the client passes it on")
		} else {
			assert.NotEqual(t, first, second)
		}
		assert.Equal(t, []hop{
			{"a.test", "/first", "POST", first, "", "secret", "secret=1", "payload"},
			{"a.test", "/first", "POST", first, "1", "secret", "secret=1", "payload"},
			{"b.test", "/second", "POST", second, "", "", "", "payload"},
			{"b.test", "/second", "POST", second, "1", "", "", "payload"},
		}, got)
	}
}

// Hazard H9: nobody but the client follows anything.
func TestNothingIsFollowed(t *testing.T) {
	for _, code := range []int{300, 301, 302, 303, 305, 307, 308, 399, 201, 503} {
		var elsewhere atomic.Int32
		other := newServer(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
		srv := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool {
			c.Respond(code, "the body", "Location: "+other.URL, "Content-Location: "+other.URL, "Refresh: 0;url="+other.URL,
				"Alt-Svc: http/1.1="+strings.TrimPrefix(other.URL, "http://"), "Link: <"+other.URL+">; rel=alternate")
			return true
		})
		policy := every(0)
		policy.MaxAttempts = 2
		resp, err := contract.New(t, httpretry.Config{Policy: policy}).RoundTrip(request(t, "GET", srv.URL(), ""))
		require.NoError(t, err)
		assert.Equal(t, code, resp.StatusCode)
		assert.Equal(t, other.URL, resp.Header.Get("Location"))
		assert.Equal(t, "the body", finish(t, resp))
		assert.Equal(t, map[bool]int32{false: 1, true: 2}[code == 503], srv.Requests.Load())
		assert.Zero(t, elsewhere.Load())
	}
}

// Hazard H3: a request's policy and budget are those of its URL's host, in
// whatever way it is spelled, and not those of its Host header.
func TestHostsOnTheWire(t *testing.T) {
	srv := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool { c.Respond(503, ""); return true })
	book := &ledger{}
	policy := every(0)
	policy.MaxAttempts, policy.Budget = 2, book
	transport := contract.New(t, httpretry.Config{
		Base:   allTo(t, srv.Addr),
		Policy: httpretry.Policy{MaxAttempts: 1},
		Hosts: map[string]httpretry.Policy{"example.com:80": policy, "[::1]:80": policy, "127.0.0.1": policy, "faß.example": policy,
			"evil.com": policy, "[fe80::1%eth0]": policy},
	})
	for raw, want := range map[string]string{
		"http://example.com": "example.com", "http://EXAMPLE.com": "example.com", "http://example.com.": "example.com",
		"http://example.com:": "example.com", "http://example.com:80": "example.com", "http://example.com:080/": "example.com",
		"http://Example.COM.:0080": "example.com", "http://ｅｘａｍｐｌｅ.com": "example.com", "http://example。com": "example.com",
		"http://[::1]": "[::1]", "http://[0:0:0:0:0:0:0:1]:080": "[::1]", "http://[0000::0001]:": "[::1]",
		"http://１２７.0.0.1": "127.0.0.1", "http://127.0.0.1:8080": "127.0.0.1:8080", "http://[FE80::1%25eth0]": "[fe80::1%eth0]",
		"http://faß.example": "xn--fa-hia.example", "http://xn--fa-hia.example": "xn--fa-hia.example", "http://FAß.example.:80": "xn--fa-hia.example",
		"http://good.com@evil.com": "evil.com", "http://example.com:80@EVIL.com": "evil.com",
		"http://example.com:81": "", "http://example.com:8080": "", "http://sub.example.com": "", "http://example.com.evil.test": "",
		"http://evil.com@good.com": "", "http://fass.example": "", "http://[::2]": "", "http://[fe80::1%25eth1]": "", "http://example.comm": "",
	} {
		for _, host := range []string{"", "example.com", "other.test"} {
			book.entries = nil
			before := srv.Requests.Load()
			req := request(t, "GET", raw, "")
			if host != "" {
				req.Host = host
			}
			resp, err := transport.RoundTrip(req)
			require.NoError(t, err, raw)
			finish(t, resp)
			if want == "" {
				assert.EqualValues(t, 1, srv.Requests.Load()-before, "%s, Host %s", raw, host)
				assert.Empty(t, book.entries)
			} else {
				assert.EqualValues(t, 2, srv.Requests.Load()-before, "%s, Host %s", raw, host)
				assert.Equal(t, []string{"withdraw " + want}, book.entries, "%s, Host %s", raw, host)
			}
		}
	}
}

// Hazard H8: a signer below sees each attempt unsigned, and its signatures
// arrive one at a time.
func TestSignerBelow(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		var mu sync.Mutex
		var arrived [][]string
		srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
			body, _ := io.ReadAll(req.Body)
			mu.Lock()
			defer mu.Unlock()
			arrived = append(arrived, append(req.Header["Signature"], req.Header["Retry-Attempt"]...))
			assert.Equal(t, map[string]string{"POST": "payload"}[method], string(body))
			c.Respond(503, "")
			return true
		})
		next, signed := faults.Base(t, nil), 0
		signer := baseFunc(func(req *http.Request) (*http.Response, error) {
			assert.Empty(t, req.Header["Signature"])
			signed++
			req = req.WithContext(req.Context())
			req.Header = req.Header.Clone()
			req.Header.Add("Signature", fmt.Sprintf("number %d", signed))
			return next.RoundTrip(req)
		})
		policy := every(0)
		policy.MaxAttempts = 3
		body := map[string]string{"POST": "payload"}[method]
		req := request(t, method, srv.URL(), body)
		req.Header.Set("Idempotency-Key", "k")
		resp, err := contract.New(t, httpretry.Config{Base: signer, Policy: policy}).RoundTrip(req)
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, [][]string{{"number 1"}, {"number 2", "1"}, {"number 3", "2"}}, arrived)
	}
}

// Hazard H10: what all programs share is neither used nor changed.
func TestSharedGlobalsAreLeftAlone(t *testing.T) {
	srv := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool { c.Respond(503, ""); return true })
	shared, client := http.DefaultTransport, *http.DefaultClient
	t.Cleanup(func() { http.DefaultTransport = shared })
	trap := &closer{RoundTripper: baseFunc(func(*http.Request) (*http.Response, error) {
		t.Error("http.DefaultTransport was used")
		return nil, errors.New("not this one")
	})}
	http.DefaultTransport = trap

	var transport httpretry.RetryTransport
	ctx := httpretry.WithPolicy(t.Context(), every(0))
	resp, err := transport.RoundTrip(request(t, "GET", srv.URL(), "").WithContext(ctx))
	require.NoError(t, err)
	finish(t, resp)
	transport.CloseIdleConnections()

	assert.EqualValues(t, 5, srv.Requests.Load())
	assert.Zero(t, trap.closed)
	assert.True(t, http.DefaultTransport == http.RoundTripper(trap))
	assert.Equal(t, client, *http.DefaultClient)
}

// Hazard H6: an error can hold megabytes of what a server or a proxy sent. A log
// entry does not, and does not take long to make either.
func TestLogsAreBounded(t *testing.T) {
	for name, text := range map[string]string{
		"controls": times(kilo*kilo, "\x1b"),
		"quotes":   `"` + times(2*kilo*kilo, `\"`),
		"words":    times(kilo*kilo, `" "`),
	} {
		proxy := faults.Proxy(t, "", func(c *faults.Conn, _ *http.Request) bool {
			c.Send("HTTP/1.1 503 " + text + "\r\n\r\n")
			return false
		})
		base := faults.Base(t, nil)
		base.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy.Addr})
		observe, out := logs()
		policy := every(0)
		policy.MaxAttempts = 2
		transport := contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: observe})
		req := request(t, "GET", "https://a.test/"+times(10*kilo, "\u2028"), "")
		failed := make(chan error, 1)
		go func() {
			_, err := transport.RoundTrip(req)
			failed <- err
		}()
		select {
		case err := <-failed:
			require.Error(t, err)
			require.Greater(t, len(err.Error()), kilo*kilo, "or this test shows nothing")
		case <-time.After(20 * time.Second): // where milliseconds are enough
			t.Fatal("still logging ", name)
		}
		assertPrintable(t, out())
		for line := range strings.SplitSeq(out(), "\n") {
			assert.Less(t, len(line), 4*kilo)
		}
	}
}
