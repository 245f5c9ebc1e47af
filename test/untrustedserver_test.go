package test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

const (
	ignored = 0  // no valid value: the wait is the backoff
	tooLong = -1 // no retry: the response is returned
)

// Hazard F: the next attempt arrives no sooner than the server asked for, and
// no sooner than the backoff. A 400 is an error, and the server may ask for a
// retry of it. A response below 400 asks for a wait if Classify does not call it
// Final. The tests of internal/retryafter have all values. The clock is that of a
// synctest bubble, which starts at Sat, 01 Jan 2000 00:00:00 GMT.
func TestRetryAfterOnTheWire(t *testing.T) {
	const backoff = 2 * time.Second
	policy := contract.RetryEvery(backoff)
	policy.Classify = func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
		if resp != nil && resp.Header.Get("X-Should-Retry") != "" {
			return httpretry.Transient
		}
		return policy.Outcome(req, resp, err)
	}
	const s, ms = time.Second, time.Millisecond
	for lines, asked := range map[string]time.Duration{
		"Retry-After:\t 7 \t": 7 * s, "retry-after: 007": 7 * s, "RETRY-AFTER: 7.25": 7250 * ms,
		"Retry-After: 60": 60 * s, "Retry-After: 61": tooLong,
		"Retry-After: 9223372036": tooLong, "Retry-After: 9223372037": tooLong,
		"Retry-After: " + strings.Repeat("9", 100_000):         tooLong,
		"Retry-After: Sat, 01 Jan 2000 00:00:30 GMT":           30 * s,
		"Retry-After: Sat, 01 Jan 2000 00:01:01 GMT":           tooLong,
		"Retry-After: 946684830":                               30 * s,
		"Retry-After: 946684799":                               ignored,
		"Retry-After: 0\r\nRetry-After: 0":                     ignored,
		"Retry-After: 5\r\nRetry-After: 30\r\nRetry-After: 10": 30 * s,
		"Retry-After: soon\r\nRetry-After: 30":                 30 * s,
		"Retry-After: ":                                        ignored,
		"Retry-After: -5":                                      ignored,
		"Retry-After: \xff\xfe":                                ignored,
		"Retry-After: \u0085":                                  ignored,
		"Retry-After: 30\u2028":                                ignored,
		"Retry-After: \u00a030":                                ignored,
		"retry-after-ms: 7500\r\nRetry-After: 30":              7500 * ms,
		"x-ms-retry-after-ms: 7500":                            7500 * ms,
		"Retry-After-Ms: 60001":                                tooLong,
		`RateLimit: "a, b;r=1";r=0;t=10, "c";r=0;t=30`:         30 * s,
		`RateLimit: "a";r=1;t=30`:                              ignored,
		"RateLimit-Reset: 30\r\nRateLimit-Remaining: 0":        30 * s,
		"X-RateLimit-Reset: 30\r\nX-RateLimit-Remaining: 0":    30 * s,
		"X-RateLimit-Reset: 30":                                ignored,
		// A clock that is wrong by years.
		"Date: Mon, 01 Jan 2001 00:00:00 GMT\r\nRetry-After: Mon, 01 Jan 2001 00:00:30 GMT": 30 * s,
		"Date: Thu, 01 Jan 1970 00:00:01 GMT\r\nRetry-After: Sat, 01 Jan 2000 00:00:30 GMT": tooLong,
		"Date: yesterday\r\nRetry-After: Sat, 01 Jan 2000 00:00:30 GMT":                     30 * s,
		// The clock of a cache's origin: Date is as old as the response.
		"Age: 60\r\nDate: Fri, 31 Dec 1999 23:59:00 GMT\r\nRetry-After: Sat, 01 Jan 2000 00:00:30 GMT": 30 * s,
	} {
		for _, code := range []int{429, 503, 400, 202, 303} {
			contract.Bubble(t, fmt.Sprintf("%d %.120q", code, lines), func(t *testing.T) {
				seen := askOnTheWire(t, code, lines+"\r\nX-Should-Retry: true", policy)
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
		}
	}
}

// askOnTheWire sends a request to a server that responds with the header lines,
// and with 200 from the second request on. It returns when the requests
// arrived. If a response is returned after one attempt, it must come at once
// and unread.
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
				c.Send(
					fmt.Sprintf("HTTP/1.1 %d Busy\r\n%s\r\nContent-Length: %d\r\n\r\n%s", code,
						lines, len(body), body))
			}
			return true
		})
	})
	var reads atomic.Int32
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		resp, err := pipe.RoundTrip(req)
		if err == nil && len(seen) == 1 {
			resp.Body = readHook{resp.Body, func() { reads.Add(1) }}
		}
		return resp, err
	})
	resp, err := contract.With(t, base, policy).RoundTrip(newGet(t))
	require.NoError(t, err)
	if len(seen) == 1 {
		assert.Equal(t, code, resp.StatusCode)
		assert.Zero(t, time.Since(start))
		assert.Zero(t, reads.Load(), "reads of the response's body")
	} else {
		assert.Equal(t, 200, resp.StatusCode)
	}
	assert.Equal(t, body, contract.ReadBody(t, resp))
	return seen
}

// isRetried reports whether a status alone makes an idempotent request, or any
// request, worth retrying.
func isRetried(status int) (safe, unsafe bool) {
	switch status {
	case 425:
		return true, true
	case 408, 429:
		return true, false
	case 501, 505, 506, 507, 508, 510, 511:
		return false, false
	}
	return 500 <= status && status <= 599, false
}

// Hazard K8: any status that net/http accepts is classified correctly, and the
// body stays intact.
func TestEveryStatus(t *testing.T) {
	var code atomic.Int32 // of the next responses
	informational := func() bool { return code.Load()/100 == 1 }
	bodiless := func() bool { return code.Load() == 204 || code.Load() == 304 }
	http1 := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool {
		switch n := int(code.Load()); {
		case n == 101:
			c.Respond(n, "")
			c.Drain() // the client closes the tunnel
			return false
		case informational():
			c.Respond(n, "")
			c.Respond(200, "the body")
		case bodiless():
			c.Respond(n, "")
		case n < 100: // with a body, which net/http's server would not send
			c.Respond(n, "", "Content-Length: 8")
			c.Send("the body")
		default:
			c.Respond(n, "the body")
		}
		return true
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
		for _, protocol := range []string{contract.HTTP1, contract.HTTP2} {
			t.Run(protocol+"/"+method, func(t *testing.T) {
				srv, base, codes := http1, faults.Base(t, nil), 1000
				if protocol == contract.HTTP2 {
					srv, base, codes = http2.Server, faults.HTTP2Base(t), 1200
				}
				transport := contract.With(t, base, twoAttempts)
				for n := range codes {
					code.Store(int32(n))
					askForStatus(t, transport, srv, method, n)
				}
			})
		}
	}
}

func askForStatus(t *testing.T, transport http.RoundTripper, srv *faults.Server,
	method string, code int) {
	before := srv.Requests.Load()
	resp, err := transport.RoundTrip(contract.Request(t, method, srv.URL(), ""))
	require.NoError(t, err, code)
	safe, unsafe := isRetried(code)
	// Over HTTP/2, the empty body of the POST had no Content-Length.
	unsafe = unsafe || code == 411 && method == "POST" && resp.ProtoMajor == 2
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
	assert.Equal(t, body, contract.ReadBody(t, resp), code)
}

// bomb is a response of unreasonable size.
type bomb struct {
	http1   func(*faults.Conn)
	http2   func(faults.Stream)
	limit   int64 // MaxResponseHeaderBytes; 0: 1 MiB, to save time
	answers bool  // net/http returns it as a response
	breaks  bool  // breaks the connection
}

const (
	kilo      = 1 << 10
	noBound   = 10 << 20 // net/http's own
	emptyBody = "\r\nContent-Length: 0\r\n\r\n"
)

// megabytes is the size of a large header that net/http still accepts.
func megabytes() int {
	if contract.RaceEnabled {
		return 2 // to save time
	}
	return 9
}

func times(n int, s string) string { return strings.Repeat(s, n) }

// flood sends text and then, if more is not empty, more until the client
// leaves.
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
		"large line": flood(
			true, noBound, line+"\r\nX: "+times(megabytes()*kilo*kilo, "x")+emptyBody, ""),
		"line of 11 MB": flood(
			false, noBound, line+"\r\nX: "+times(11*kilo*kilo, "x")+emptyBody, ""),
		"endless line": flood(false, 0, line+"\r\nX: ", "x"),
		"100,000 lines": flood(
			true, noBound, line+times(100_000, "\r\nX-Line: xxxxxxxx")+emptyBody, ""),
		"endless lines":         flood(false, 0, line, "\r\nX-Line: xxxxxxxx"),
		"reason phrase of 1 MB": flood(true, noBound, line+times(kilo*kilo, "x")+emptyBody, ""),
		"endless reason phrase": flood(false, 0, line, "x"),
		"endless 1xx":           flood(false, 0, "", early+"\r\n"),
		"endless large 1xx": flood(
			false, 0, "", early+"Link: "+times(100*kilo, "x")+"\r\n\r\n"),
		"endless 100":          flood(false, 0, "", "HTTP/1.1 100 Continue\r\n\r\n"),
		"endless chunk size":   flood(true, 0, chunked, "0"),
		"endless extension":    flood(true, 0, chunked+"1;", "x=y;"),
		"chunks of extensions": flood(true, 0, chunked, "1;"+times(4000, "x")+"\r\nx\r\n"),
		"endless trailer line": flood(true, 0, chunked+"0\r\nX: ", "x"),
		"endless body":         flood(true, 0, line+"\r\n\r\n", "x"),
	}
}

func http2Bombs() map[string]bomb {
	const pseudo, field = "\x00\x07:status\x03503", "\x00\x01x\x01y"
	block := func(text string) func(faults.Stream) {
		return func(s faults.Stream) { s.HeaderBlock(true, []byte(text)) }
	}
	return map[string]bomb{
		"large fields": {http2: func(s faults.Stream) {
			fields := []string{":status", "503"}
			for i := range megabytes() {
				fields = append(fields, fmt.Sprintf("x-%d", i), times(kilo*kilo, "x"))
			}
			s.Header(true, fields...)
		}, answers: true, limit: noBound},
		"header of 11 MB": {http2: func(s faults.Stream) {
			s.Header(true, ":status", "503", "x", times(11*kilo*kilo, "x"))
		}, limit: noBound},
		"100,000 fields": {
			http2: block(pseudo + times(100_000, field)), answers: true, limit: noBound},
		"1,000,000 fields": {http2: block(pseudo + times(1_000_000, field))},
		// In the dynamic table after its first use, then a byte each (RFC 7541
		// sections 6.1 and 6.2.1).
		"one field a million times": {
			http2: block(
				pseudo + "\x40\x01x\x7f\xa1\x1e" + times(4000, "x") + times(1_000_000, "\xbe"))},
		"endless CONTINUATION": {http2: func(s faults.Stream) {
			s.Frame(faults.FrameHeaders, 0, s.ID, []byte(pseudo))
			for s.Frame(faults.FrameContinue, 0, s.ID, []byte(times(1000, field))) {
			}
		}},
		// net/http has no bound for these
		"10,000 empty CONTINUATION": {http2: func(s faults.Stream) {
			s.Frame(faults.FrameHeaders, 0, s.ID, []byte(pseudo))
			for range 10_000 {
				s.Frame(faults.FrameContinue, 0, s.ID, nil)
			}
			s.Close()
		}},
		"30,000 1xx": {http2: func(s faults.Stream) { // net/http counts each as 42 bytes
			frame := "\x00\x00\x0d\x01\x04\x00\x00\x00" + string(rune(s.ID)) +
				"\x00\x07:status\x03103"
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

// A request to a server that sends endless or huge headers, bodies or frames
// ends soon, with an error or a response. It is sent no more often than
// allowed, and a POST only once.
func TestEndlessResponsesEndSoon(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		for name, b := range http1Bombs() {
			t.Run("HTTP/1/"+method+"/"+name, func(t *testing.T) {
				srv := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool {
					b.http1(c)
					c.CloseWrite()
					return false
				})
				sendToBomb(t, b, srv, faults.Base(t, nil), method)
			})
		}
		for name, b := range http2Bombs() {
			t.Run("HTTP/2/"+method+"/"+name, func(t *testing.T) {
				sendToBomb(t, b, faults.HTTP2(t, b.http2).Server, faults.HTTP2Base(t), method)
			})
		}
	}
}

func sendToBomb(t *testing.T, b bomb, srv *faults.Server, base *http.Transport, method string) {
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	base.MaxResponseHeaderBytes = cmp.Or(b.limit, kilo*kilo)
	resp, err := contract.With(t, base, twoAttempts).
		RoundTrip(contract.Request(t, method, srv.URL(), "").WithContext(ctx))
	require.NoError(t, ctx.Err(), "it took until the deadline: %v", err)

	repeats, most := method == "GET", int32(1)
	switch {
	case repeats && b.breaks:
		most = 1 + 10 // net/http resends it when it finds the connection broken
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
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, kilo*kilo)) // with or without an error
		_ = resp.Body.Close()
	}
}
