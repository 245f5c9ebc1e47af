package httpretry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// pieces is a body that returns one piece with each Read, and then end. An empty
// piece stands for a Read that blocks until ctx ends.
type pieces struct {
	ctx    context.Context
	text   []string
	end    error
	read   int // bytes
	closed atomic.Bool
}

func (b *pieces) Read(p []byte) (int, error) {
	switch {
	case b.closed.Load():
		return 0, http.ErrBodyReadAfterClose
	case len(b.text) == 0:
		end := b.end
		b.end = errAgain // no Read may follow the end
		return 0, end
	case b.text[0] == "":
		<-b.ctx.Done()
		return 0, context.Cause(b.ctx)
	}
	n := copy(p, b.text[0])
	b.read += n
	if b.text[0] = b.text[0][n:]; b.text[0] == "" {
		b.text = b.text[1:]
	}
	return n, nil
}

var errAgain = errors.New("read after the end")

func (b *pieces) Close() error { b.closed.Store(true); return nil }

// respond returns a response to req whose body has the pieces of text and then
// end.
func respond(req *http.Request, status int, end error, text ...string) *http.Response {
	return &http.Response{StatusCode: status, ProtoMajor: 1, Header: http.Header{}, Request: req,
		ContentLength: -1, Body: &pieces{ctx: req.Context(), text: slices.Clone(text), end: end}}
}

// An answer is the response to an attempt.
type answer = func(*http.Request) *http.Response

// playBodies returns a base that calls answers, one for each attempt, and the
// last one again.
func playBodies(answers ...answer) contract.BaseFunc {
	attempt := 0
	return func(req *http.Request) (*http.Response, error) {
		attempt++
		return answers[min(attempt, len(answers))-1](req), nil
	}
}

// responds returns an answer that calls respond, and adds pairs of a name and a
// value to the header.
func responds(status int, header []string, end error, text ...string) answer {
	return func(req *http.Request) *http.Response {
		resp := respond(req, status, end, text...)
		for i := 0; i < len(header); i += 2 {
			resp.Header.Set(header[i], header[i+1])
		}
		return resp
	}
}

// reading returns an answer whose body has this Read.
func reading(status int, read contract.ReaderFunc) answer {
	return func(req *http.Request) *http.Response {
		resp := respond(req, status, nil)
		resp.Body = io.NopCloser(read)
		return resp
	}
}

func brokenOff(status int, header ...string) answer {
	return responds(status, header, io.ErrUnexpectedEOF, `{"half`)
}

func stalled(status int) answer { return responds(status, nil, io.EOF, "half", "") }

func whole(req *http.Request) *http.Response { return respond(req, 200, io.EOF, "who", "le") }

func aheadPolicy() httpretry.Policy {
	policy := contract.RetryEvery(time.Second)
	policy.MaxAttempts, policy.ReadAhead = 3, 1<<10
	return policy
}

// A body that breaks off or stalls within ReadAhead is a failed attempt. If it is
// not retried, the caller gets the response, what has arrived, and the error.
func TestReadAhead(t *testing.T) {
	for _, tt := range []struct {
		name     string
		method   string
		answers  []answer
		attempts int
		reason   httpretry.Reason
		status   int
		body     string
		err      error // of Read
		took     time.Duration
	}{
		{"whole", "GET", []answer{whole}, 1, httpretry.ReasonSuccess, 200, "whole", nil, 0},
		{"breaks off", "GET", []answer{brokenOff(200), whole},
			2, httpretry.ReasonSuccess, 200, "whole", nil, time.Second},
		{"stalls", "GET", []answer{stalled(200), whole},
			2, httpretry.ReasonSuccess, 200, "whole", nil, 6 * time.Second},
		{"always breaks off", "GET", []answer{brokenOff(200)},
			3, httpretry.ReasonAttempts, 200, `{"half`, io.ErrUnexpectedEOF, 2 * time.Second},
		{"always stalls", "GET", []answer{stalled(200)}, 3, httpretry.ReasonAttempts, 200, "half",
			context.DeadlineExceeded, 17 * time.Second},
		{"POST breaks off", "POST", []answer{brokenOff(200)}, 1, httpretry.ReasonNotIdempotent,
			200, `{"half`, io.ErrUnexpectedEOF, 0},
		{"POST stalls", "POST", []answer{stalled(200)}, 1, httpretry.ReasonNotIdempotent,
			200, "half", context.DeadlineExceeded, 5 * time.Second},
		{"a 404 breaks off", "GET", []answer{brokenOff(404), whole},
			2, httpretry.ReasonSuccess, 200, "whole", nil, time.Second},
		// The status and the header tell more than the body.
		{"a 503 asks for a wait", "GET", []answer{brokenOff(503, "Retry-After", "20"), whole},
			2, httpretry.ReasonSuccess, 200, "whole", nil, 20 * time.Second},
		{"a 503 stalls", "GET", []answer{stalled(503), whole},
			2, httpretry.ReasonSuccess, 200, "whole", nil, time.Second},
		{"a 503 breaks off", "POST", []answer{brokenOff(503)}, 1,
			httpretry.ReasonNotIdempotent, 503, `{"half`, io.ErrUnexpectedEOF, 0},
		{"forbidden after a 200", "GET", []answer{brokenOff(200, "X-Should-Retry", "false")}, 1,
			httpretry.ReasonSuccess, 200, `{"half`, io.ErrUnexpectedEOF, 0},
		{"forbidden", "GET", []answer{brokenOff(500, "X-Should-Retry", "false")}, 1,
			httpretry.ReasonDoNotRetry, 500, `{"half`, io.ErrUnexpectedEOF, 0},
		{"error that a layer calls final", "GET", []answer{
			responds(200, nil, httpretry.WithOutcome(errChecksum, httpretry.Final), "half"),
		}, 1, httpretry.ReasonPermanent, 200, "half", errChecksum, 0},
		// The server has answered, whatever the error says.
		{"POST, unprocessed", "POST", []answer{
			responds(200, nil, httpretry.WithOutcome(errChecksum, httpretry.Unprocessed), "half"),
		}, 1, httpretry.ReasonNotIdempotent, 200, "half", errChecksum, 0},
	} {
		// Only with a Classify is the body of a 503 read ahead.
		for _, classifies := range []bool{false, true} {
			contract.Bubble(t, fmt.Sprintf("%s/%t", tt.name, classifies), func(t *testing.T) {
				policy, events, start := aheadPolicy(), new(contract.Record), time.Now()
				policy.AttemptTimeout = 5 * time.Second
				if classifies {
					policy.Classify = policy.Outcome
				}
				resp, err := contract.Recorded(t, playBodies(tt.answers...), policy, events).
					RoundTrip(contract.Request(t, tt.method, "http://a.test/", "text"))
				require.NoError(t, err)
				// A part of the wait after Retry-After is random.
				assert.InDelta(t, tt.took, time.Since(start), float64(tt.took)/2)
				body, err := io.ReadAll(resp.Body)
				require.NoError(t, resp.Body.Close())
				require.ErrorIs(t, err, tt.err)
				assert.Equal(t, tt.body, string(body))
				assert.Equal(t, tt.status, resp.StatusCode)
				assert.Equal(t, httpretry.Result{Attempts: tt.attempts, Reason: tt.reason},
					httpretry.ResultOf(resp))
				require.Len(t, events.Events, tt.attempts)
				assert.Equal(t, tt.reason, events.Reason())
				for i, e := range events.Events {
					failed := tt.reason != httpretry.ReasonSuccess || i < tt.attempts-1
					assert.Equal(t, failed, !e.Attempt.Succeeded(), "attempt %d", i+1)
				}
				if tt.err == context.DeadlineExceeded || err != nil && tt.attempts > 1 {
					requireError(t, err, tt.attempts, tt.reason)
				} else {
					_, ok := errors.AsType[*httpretry.Error](err)
					assert.False(t, ok, "%v", err)
				}
			})
		}
	}
}

var errChecksum = errors.New("checksum")

// Over a connection of net/http, a body may end too early in several ways. The
// request is then sent again, and its connection is free before the body is read.
func TestReadAheadOnTheWire(t *testing.T) {
	for name, first := range map[string]func(*faults.Conn){
		"chunked": func(c *faults.Conn) { c.Send("Transfer-Encoding: chunked\r\n\r\n5\r\n12345") },
		"reset":   func(c *faults.Conn) { c.Send("Content-Length: 10\r\n\r\n12345"); c.Reset() },
		"nothing": func(c *faults.Conn) { c.Send("Content-Length: 10\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
				if c.Number == 1 {
					c.Send("HTTP/1.1 200 OK\r\n")
					first(c)
					return false
				}
				c.Respond(200, strings.Repeat("x", 1<<10), "Connection: keep-alive")
				return true
			})
			policy := aheadPolicy()
			policy.Backoff = contract.RetryEvery(0).Backoff
			for _, base := range []http.RoundTripper{
				faults.Base(t, nil), contract.BaseFunc(faults.Base(t, nil).RoundTrip),
			} {
				srv.Conns.Store(0)
				transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
				resp, err := transport.RoundTrip(contract.Request(t, "GET", srv.URL(), ""))
				require.NoError(t, err)
				assert.Equal(t, 2, httpretry.ResultOf(resp).Attempts)

				var info httptrace.GotConnInfo
				ctx := httptrace.WithClientTrace(t.Context(),
					&httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { info = i }})
				req := contract.Request(t, "GET", srv.URL(), "").WithContext(ctx)
				contract.Send(t, transport, req)
				assert.True(t, info.Reused, "the body that is not read yet holds a connection")
				assert.Len(t, contract.ReadBody(t, resp), 1<<10)
			}
		})
	}
}

// Classify decides by the bytes that were read ahead, also of a stream of events,
// and the caller gets all bytes of the last response.
func TestPeek(t *testing.T) {
	for _, tt := range []struct {
		name   string
		header string
		text   []string
		peeked string
	}{
		{"whole", "application/xml", []string{"<Er", "ror/>"}, "<Error/>"},
		{"longer", "", []string{strings.Repeat("x", 1<<10), "rest"}, strings.Repeat("x", 1<<10)},
		{"much longer", "", []string{"x", strings.Repeat("y", 5000), "z"},
			"x" + strings.Repeat("y", 1<<10-1)},
		{"event", "text/event-stream", []string{"data: 1\n", "\n", "data: 2\n\n"}, "data: 1\n\n"},
		{"CRLF", "text/event-stream; charset=utf-8",
			[]string{"event: error\r\ndata: 1\r", "\n\r", "\n", "data: 2"},
			"event: error\r\ndata: 1\r\n\r"},
		{"BOM", "Text/Event-Stream", []string{"\ufeffdata: 1\n\n", "data: 2"},
			"\ufeffdata: 1\n\n"},
		{"data first", "text/event-stream", []string{"\r\ndata: 1\nid: 2\n\n", "data: 3"},
			"\r\ndata: 1\nid: 2\n\n"},
		{"another field", "text/event-stream", []string{"database: 1\n\n", "data: 2\n\n", "3"},
			"database: 1\n\ndata: 2\n\n"},
		{"CR", "text/event-stream", []string{"data\r\r", "data: 2"}, "data\r\r"},
		// Neither a comment nor a block without data is an event.
		{"comments", "text/event-stream",
			[]string{": 1\n\n", "\n\n", "id: 2\n\n", "data: 3\n\n", "4"},
			": 1\n\n\n\nid: 2\n\ndata: 3\n\n"},
		{"no event", "text/event-stream", []string{": 1\n\n", "id: 2\n\n"}, ": 1\n\nid: 2\n\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			policy := aheadPolicy()
			policy.Backoff, policy.MaxAttempts = nil, 1
			asked := 0
			policy.Classify = func(
				_ *http.Request, resp *http.Response, err error) httpretry.Outcome {
				asked++
				assert.NoError(t, err)
				assert.Equal(t, tt.peeked, string(httpretry.Peek(resp)))
				return httpretry.Transient
			}
			observe := func(_ context.Context, e httpretry.Event) {
				assert.Equal(t, tt.peeked, string(httpretry.Peek(e.Response)))
			}
			var body *pieces
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				resp := respond(req, 200, io.EOF, tt.text...)
				resp.Header.Set("Content-Type", tt.header)
				body = resp.Body.(*pieces)
				return resp, nil
			})
			resp := get(t, contract.Unchecked(t,
				httpretry.Config{Base: base, Policy: policy, Observe: observe}))
			assert.Equal(t, 1, asked)
			assert.Equal(t, len(tt.peeked), body.read, "read beyond the limit")
			assert.Equal(t, httpretry.ReasonDisabled, httpretry.ResultOf(resp).Reason)
			assert.Equal(t, strings.Join(tt.text, ""), contract.ReadBody(t, resp))
		})
	}
	assert.Nil(t, httpretry.Peek(nil))
	assert.Nil(t, httpretry.Peek(&http.Response{}))
	assert.Nil(t, httpretry.Peek(&http.Response{Body: http.NoBody}))
}

// A 200 whose body says that it failed is retried as a 503 is, and waits as it
// asks.
func TestPeekRetries(t *testing.T) {
	contract.Bubble(t, "", func(t *testing.T) {
		policy := aheadPolicy()
		policy.Classify = func(
			req *http.Request, resp *http.Response, err error) httpretry.Outcome {
			if bytes.Contains(httpretry.Peek(resp), []byte("<Error>")) {
				return httpretry.Transient
			}
			return policy.Outcome(req, resp, err)
		}
		failed := responds(200, []string{"Retry-After", "10"}, io.EOF, "<Error>")
		base, start := playBodies(failed, brokenOff(200), whole), time.Now()
		resp := contract.Send(t, contract.With(t, base, policy), newGet(t))
		assert.Equal(t, 3, httpretry.ResultOf(resp).Attempts)
		assert.GreaterOrEqual(t, time.Since(start), 11*time.Second)
	})
}

// A RetryAfter may read the wait in a body, also without a Classify.
func TestPeekInRetryAfter(t *testing.T) {
	policy, seen := aheadPolicy(), ""
	policy.MaxAttempts = 1
	policy.RetryAfter = func(resp *http.Response) (time.Duration, bool) {
		seen = string(httpretry.Peek(resp))
		return 0, false
	}
	base := playBodies(responds(429, nil, io.EOF, `{"retry_after": 8}`))
	contract.Send(t, contract.With(t, base, policy), newGet(t))
	assert.Equal(t, `{"retry_after": 8}`, seen)
}

// Responses that are none of ReadAhead's business are not touched.
func TestReadAheadSparesBodies(t *testing.T) {
	writer := struct {
		io.ReadCloser
		io.Writer
	}{io.NopCloser(strings.NewReader("text")), io.Discard}
	text := func() io.ReadCloser { return io.NopCloser(strings.NewReader("text")) }
	for name, tt := range map[string]struct {
		method string
		status int
		length int64
		body   io.ReadCloser
	}{
		"HEAD":     {"HEAD", 200, 4, text()},
		"204":      {"GET", 204, -1, text()},
		"304":      {"GET", 304, -1, text()},
		"101":      {"GET", 101, -1, text()},
		"CONNECT":  {"CONNECT", 200, -1, text()},
		"411":      {"POST", 411, -1, text()},
		"no body":  {"GET", 200, -1, nil},
		"writer":   {"GET", 200, -1, writer},
		"length 0": {"GET", 200, 0, text()},
		"none":     {"GET", 200, -1, http.NoBody},
		"503":      {"GET", 503, -1, text()},
	} {
		t.Run(name, func(t *testing.T) {
			policy := aheadPolicy()
			policy.MaxAttempts = 1
			policy.Idempotent = func(*http.Request) bool { return true }
			base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
				return &http.Response{
					StatusCode: tt.status, ContentLength: tt.length, Body: tt.body}, nil
			})
			resp, err := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy}).
				RoundTrip(contract.Request(t, tt.method, "http://a.test/", ""))
			require.NoError(t, err)
			assert.Equal(t, tt.body, resp.Body)
		})
	}
}

// Streams that their Content-Type shows are not delayed.
func TestReadAheadSparesStreams(t *testing.T) {
	for _, contentType := range []string{"application/grpc+proto", "application/x-ndjson",
		"application/vnd.amazon.eventstream", "multipart/x-mixed-replace; boundary=b"} {
		base := playBodies(responds(200, []string{"Content-Type", contentType}, io.EOF, "text"))
		resp := get(t, contract.Unchecked(t, httpretry.Config{Base: base, Policy: aheadPolicy()}))
		assert.Zero(t, resp.Body.(*pieces).read, contentType)
	}
}

// A base that returns no response, or an error after a body that broke off, is
// none of ReadAhead's business.
func TestReadAheadOfErrors(t *testing.T) {
	results := []error{nil, nil, contract.ErrReset}
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		err := results[0]
		results = results[1:]
		if len(results) == 1 {
			return brokenOff(200)(req), nil
		}
		return nil, err
	})
	policy := aheadPolicy()
	policy.Backoff = contract.RetryEvery(0).Backoff
	_, err := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy}).
		RoundTrip(newGet(t))
	require.ErrorIs(t, err, contract.ErrReset)
	assert.Empty(t, results)
}

// A server may state any length. It costs no memory.
func TestReadAheadOfAnyLength(t *testing.T) {
	policy := aheadPolicy()
	policy.ReadAhead = math.MaxInt64
	base := playBodies(func(req *http.Request) *http.Response {
		resp := respond(req, 200, io.EOF, "whole")
		resp.ContentLength = math.MaxInt64 - 1
		return resp
	})
	resp := contract.Send(t, contract.With(t, base, policy), newGet(t))
	assert.Equal(t, 1, httpretry.ResultOf(resp).Attempts)
}

// A streamed body is sent while the response is read (full duplex). A response
// that comes after the whole body is read ahead.
func TestReadAheadOfUploads(t *testing.T) {
	for _, sent := range []string{"nothing", "all", "closed"} {
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			switch sent {
			case "all":
				_, _ = io.Copy(io.Discard, req.Body)
			case "closed":
				_ = req.Body.Close()
			}
			return respond(req, 200, io.EOF, "text"), nil
		})
		policy, peeked := aheadPolicy(), ""
		policy.Classify = func(_ *http.Request, resp *http.Response, _ error) httpretry.Outcome {
			peeked = string(httpretry.Peek(resp))
			return httpretry.Final
		}
		// Unchecked, since this base does not always close the request's body.
		transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
		for name, getBody := range map[string]func() (io.ReadCloser, error){
			"recorded": nil, "GetBody": func() (io.ReadCloser, error) {
				return io.NopCloser(io.MultiReader(strings.NewReader("body"))), nil
			}} {
			req := contract.Streamed(t, "PUT", "http://a.test/", contract.Counted("body"))
			req.GetBody = getBody
			contract.Send(t, transport, req)
			assert.Equal(t, sent != "nothing", peeked == "text", "%s, %s", name, sent)
			peeked = ""
		}
		// A body in memory waits for nothing.
		req := contract.Request(t, "PUT", "http://a.test/", "body")
		getBody := req.GetBody
		req.GetBody = func() (io.ReadCloser, error) { return getBody() }
		contract.Send(t, transport, req)
		assert.Equal(t, "text", peeked)
	}
}

// A body may be read after Close as far as that of Base may.
func TestReadAheadAfterClose(t *testing.T) {
	for _, limit := range []int64{3, 1 << 10} {
		policy := aheadPolicy()
		policy.ReadAhead = limit
		base := playBodies(whole, func(req *http.Request) *http.Response {
			resp := whole(req)
			resp.Body = io.NopCloser(strings.NewReader("whole"))
			return resp
		})
		transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
		for _, want := range []struct {
			text string
			err  error
		}{{"wh", http.ErrBodyReadAfterClose}, {"whole", nil}} {
			resp := get(t, transport)
			first := make([]byte, 2)
			_, err := io.ReadFull(resp.Body, first)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			rest, err := io.ReadAll(resp.Body)
			require.ErrorIs(t, err, want.err)
			assert.Equal(t, want.text, string(first)+string(rest))
		}
	}
}

// The end of the caller's context, at any byte, ends the request as it does
// before the header.
func TestReadAheadCanceled(t *testing.T) {
	for at := range 5 {
		for _, copies := range []bool{false, true} {
			contract.Bubble(t, fmt.Sprintf("%d/%v", at, copies), func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				cause := errors.New("left")
				base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					text := slices.Repeat([]string{"x"}, at)
					time.AfterFunc(time.Second, func() { cancel(cause) })
					return respond(req, 200, io.EOF, append(text, "")...), nil
				})
				policy := aheadPolicy()
				if copies {
					policy.AttemptTimeout = time.Minute
				}
				events := new(contract.Record)
				_, err := contract.Recorded(t, base, policy, events).
					RoundTrip(newGet(t).WithContext(ctx))
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, cause)
				assert.Equal(t, httpretry.ReasonCanceled, events.Reason())
			})
		}
	}
}

// A body that was read whole before the AttemptTimeout has come in time, even if
// that passes before its last Read returns.
func TestReadAheadInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := strings.NewReader("whole")
		base := playBodies(reading(200, func(p []byte) (int, error) {
			time.Sleep(time.Minute)
			synctest.Wait() // the timer has canceled the attempt
			return text.Read(p)
		}))
		policy := aheadPolicy()
		policy.AttemptTimeout = 2 * time.Minute
		resp, err := contract.With(t, base, policy).
			RoundTrip(contract.Request(t, "POST", "http://a.test/", "text"))
		require.NoError(t, err)
		assert.Equal(t, "whole", contract.ReadBody(t, resp))
	})
}

// A request's Cancel channel ends reading ahead, too, and the status does not
// matter any more.
func TestReadAheadCanceledOtherwise(t *testing.T) {
	for _, status := range []int{200, 503} {
		synctest.Test(t, func(t *testing.T) {
			cancel, gone := make(chan struct{}), make(chan struct{})
			base := playBodies(reading(status, func([]byte) (int, error) {
				<-gone
				return 0, io.ErrClosedPipe
			}))
			policy := aheadPolicy()
			policy.Classify = policy.Outcome
			req := newGet(t)
			req.Cancel = cancel //nolint:staticcheck // net/http uses it
			time.AfterFunc(20*time.Millisecond, func() { close(cancel) })
			start := time.Now()
			_, err := contract.With(t, base, policy).RoundTrip(req)
			require.ErrorContains(t, err, "request canceled")
			assert.Less(t, time.Since(start), time.Second)
			close(gone)
		})
	}
}

// A body of a status that has failed is not waited for. Its Read goes on where
// reading ahead is.
func TestReadAheadOfASlowFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := strings.NewReader("error")
		base := playBodies(reading(503, func(p []byte) (int, error) {
			time.Sleep(time.Second)
			return text.Read(p[:1])
		}))
		policy, peeked := aheadPolicy(), "not called"
		policy.Classify = func(
			req *http.Request, resp *http.Response, err error) httpretry.Outcome {
			peeked = string(httpretry.Peek(resp))
			return policy.Outcome(req, resp, err)
		}
		start := time.Now()
		resp, err := contract.With(t, base, policy).
			RoundTrip(contract.Request(t, "POST", "http://a.test/", "text"))
		require.NoError(t, err)
		assert.Less(t, time.Since(start), time.Second)
		assert.Empty(t, peeked)
		assert.Equal(t, "error", contract.ReadBody(t, resp))
	})
}

// An AttemptTimeout that passes while such a body is still being read drops it.
func TestReadAheadOfASlowFailureInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := reading(503, func([]byte) (int, error) {
			time.Sleep(time.Second)
			return 0, io.ErrUnexpectedEOF
		})
		base := playBodies(func(req *http.Request) *http.Response {
			time.Sleep(time.Second)
			return broken(req)
		})
		policy := aheadPolicy()
		policy.Classify = policy.Outcome
		policy.AttemptTimeout = time.Second + 50*time.Millisecond
		transport := contract.With(t, base, policy)
		for range 100 { // the timer and the wait end at the same time
			resp, err := transport.RoundTrip(contract.Request(t, "POST", "http://a.test/", "text"))
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				require.NoError(t, resp.Body.Close())
			}
			require.Error(t, err)
		}
		time.Sleep(time.Second) // until the last Read has ended
	})
}

// An error of the request body's Close does not matter after an answer.
func TestReadAheadAfterAFailedClose(t *testing.T) {
	answers := playBodies(brokenOff(200), whole)
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
		return answers(req)
	})
	policy := aheadPolicy()
	policy.Backoff = contract.RetryEvery(0).Backoff
	body := io.NopCloser(strings.NewReader("body"))
	req := contract.Streamed(t, "PUT", "http://a.test/",
		closing{body, func() error { return errors.New("close failed") }})
	resp, err := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy}).RoundTrip(req)
	require.NoError(t, err)
	assert.Equal(t, "whole", contract.ReadBody(t, resp))
}

// A body of a layer may not obey the context. Its Read ends with Close only, or
// not even then. It does not hold RoundTrip.
func TestReadAheadOfADeafBody(t *testing.T) {
	for _, obeys := range []bool{true, false} {
		for _, method := range []string{"GET", "POST"} {
			synctest.Test(t, func(t *testing.T) {
				free := make(chan struct{})
				base := playBodies(func(req *http.Request) *http.Response {
					resp := respond(req, 200, nil)
					resp.Body = newStalling(nil)
					if !obeys {
						resp.Body = io.NopCloser(&stalling{strings.NewReader(""), free})
					}
					return resp
				})
				policy, start := aheadPolicy(), time.Now()
				policy.AttemptTimeout, policy.MaxAttempts = time.Minute, 2
				_, err := contract.With(t, base, policy).
					RoundTrip(contract.Request(t, method, "http://a.test/", "text"))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				attempts := map[string]time.Duration{"GET": 2, "POST": 1}[method]
				assert.InDelta(t, attempts*time.Minute, time.Since(start), float64(2*time.Second))
				close(free)
			})
		}
	}
}

// A panic of a body reaches the caller, and the body is closed.
func TestReadAheadPanics(t *testing.T) {
	closed := 0
	panics := reading(200, func([]byte) (int, error) { panic("read") })
	transport := contract.Unchecked(t, httpretry.Config{Policy: aheadPolicy(),
		Base: playBodies(func(req *http.Request) *http.Response {
			resp := panics(req)
			resp.Body = closing{resp.Body, func() error { closed++; return nil }}
			return resp
		})})
	assert.PanicsWithValue(t, "read", func() { _, _ = transport.RoundTrip(newGet(t)) })
	assert.Equal(t, 1, closed)

	// After the cancel, nobody gets the panic. But its body is not a whole one.
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		base := playBodies(reading(200, func([]byte) (int, error) {
			<-ctx.Done()
			time.Sleep(time.Millisecond)
			panic("late")
		}))
		_, err := contract.With(t, base, aheadPolicy()).RoundTrip(newGet(t).WithContext(ctx))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})

	// A body that returns more than it was asked for does not get bytes of another.
	tooMany := reading(200, func(p []byte) (int, error) { return len(p) + 1, io.EOF })
	transport = contract.Unchecked(t,
		httpretry.Config{Base: playBodies(tooMany), Policy: aheadPolicy()})
	assert.Panics(t, func() { _, _ = transport.RoundTrip(newGet(t)) })
}

// A Read that returns nothing ends reading ahead, because it may do so forever.
func TestReadAheadOfNothing(t *testing.T) {
	base := playBodies(reading(200, func([]byte) (int, error) { return 0, nil }))
	n, err := get(t, contract.With(t, base, aheadPolicy())).Body.Read(make([]byte, 1))
	assert.Zero(t, n)
	require.NoError(t, err)
}

// An outer RetryTransport retries, so it gets the error.
func TestReadAheadNested(t *testing.T) {
	contract.Bubble(t, "", func(t *testing.T) {
		sent := 0
		base := playBodies(brokenOff(200), brokenOff(200), whole)
		counted := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			sent++
			return base(req)
		})
		inner := contract.Unchecked(t, httpretry.Config{Base: counted, Policy: aheadPolicy()})
		outer := contract.RetryEvery(0)
		resp := contract.Send(t, contract.With(t, inner, outer), newGet(t))
		assert.Equal(t, 3, httpretry.ResultOf(resp).Attempts)
		assert.Equal(t, 3, sent)
	})
}

// A body that is longer than ReadAhead may be resumed where it breaks off. An
// attempt that resumes reads nothing ahead, so no byte of it is lost.
func TestReadAheadBeforeResume(t *testing.T) {
	for _, tt := range []struct {
		cuts   []int
		before int // attempts in RoundTrip
		ranges []string
	}{
		{[]int{50, 500}, 2, []string{"", "", "bytes=500-999"}},
		{[]int{101}, 1, []string{"", "bytes=101-999"}},
		{[]int{500, 50}, 1, []string{"", "bytes=500-999", "bytes=550-999"}},
	} {
		contract.Bubble(t, fmt.Sprint(tt.cuts), func(t *testing.T) {
			o := newOrigin(1000, tt.cuts...)
			policy := aheadPolicy()
			policy.ReadAhead, policy.Resume = 100, true
			resp := get(t, contract.With(t, o, policy))
			assert.Equal(t, tt.before, httpretry.ResultOf(resp).Attempts)
			assert.Equal(t, string(o.data), contract.ReadBody(t, resp))
			assert.Equal(t, tt.ranges, o.sent())
			assert.Equal(t, len(tt.ranges), httpretry.ResultOf(resp).Attempts)
		})
	}
}

// The trailers of a body that was read ahead are there when RoundTrip returns.
func TestReadAheadTrailers(t *testing.T) {
	for _, start := range []func(testing.TB, http.HandlerFunc) *http.Transport{
		faults.Pipe, faults.HTTP2Pipe} {
		synctest.Test(t, func(t *testing.T) {
			base := start(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", "X-Sum")
				_, _ = io.WriteString(w, "text")
				w.Header().Set("X-Sum", "42")
			})
			policy := aheadPolicy()
			policy.AttemptTimeout = time.Minute
			var attempt context.Context
			spy := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				attempt = req.Context()
				return base.RoundTrip(req)
			})
			resp := get(t, contract.With(t, spy, policy))
			assert.Equal(t, "42", resp.Trailer.Get("X-Sum"))
			require.Error(t, attempt.Err(), "the attempt has ended, and holds nothing")
			time.Sleep(time.Hour) // the AttemptTimeout has ended
			assert.Equal(t, "text", contract.ReadBody(t, resp))
		})
	}
}

// Bodies that are read at the same time do not share bytes, nor do those that
// Peek has returned.
func TestReadAheadSharesNoBytes(t *testing.T) {
	var peeks sync.Map
	policy := aheadPolicy()
	policy.ReadAhead = 6 << 10
	policy.Classify = func(req *http.Request, resp *http.Response, _ error) httpretry.Outcome {
		peeks.Store(req.URL.Path, httpretry.Peek(resp))
		return httpretry.Final
	}
	content := func(path string) string {
		return strings.Repeat(path, 100+len(path)*int(path[1]-'0')*30)
	}
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		resp := respond(req, 200, io.EOF)
		resp.Body = io.NopCloser(strings.NewReader(content(req.URL.Path)))
		return resp, nil
	})
	transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 100 {
				path := fmt.Sprintf("/%d-%d", i, j)
				resp, err := transport.RoundTrip(
					contract.Request(t, "GET", "http://a.test"+path, ""))
				if !assert.NoError(t, err) {
					return
				}
				first := make([]byte, 1)
				_, err = io.ReadFull(resp.Body, first)
				assert.NoError(t, err)
				if j%3 == 0 { // such a body may be read after Close
					assert.NoError(t, resp.Body.Close())
				}
				body, err := io.ReadAll(iotest.OneByteReader(resp.Body))
				assert.NoError(t, err)
				assert.Equal(t, content(path), string(first)+string(body))
				assert.NoError(t, resp.Body.Close())
			}
		})
	}
	wg.Wait()
	peeks.Range(func(path, peeked any) bool {
		text := content(path.(string))
		return assert.Equal(t, text[:min(len(text), 6<<10)], string(peeked.([]byte)))
	})
}
