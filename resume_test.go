package httpretry_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
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
	"github.com/seed421102f4/httpretry/strategies"
)

// origin is a base that serves data from http.ServeContent, and cuts bodies.
type origin struct {
	data    []byte
	etag    string
	cut     func(attempt int) int // bytes of the body, or -1
	failure error                 // of a body that is cut; nil: io.ErrUnexpectedEOF
	answer  func(attempt int, w http.ResponseWriter) bool

	mu       sync.Mutex
	requests []*http.Request
	open     atomic.Int32 // responses that were not closed
	again    atomic.Int32 // closes of responses that were closed
}

func newOrigin(size int, cuts ...int) *origin {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	return &origin{data: data, etag: `"v1"`, cut: func(attempt int) int {
		if attempt <= len(cuts) {
			return cuts[attempt-1]
		}
		return -1
	}}
}

// requireClosed requires all responses to be closed soon. On a busy machine,
// the library may go on while a Close is yet to run.
func (o *origin) requireClosed(t testing.TB) {
	t.Helper()
	closed := func() bool { return o.open.Load() == 0 }
	require.Eventually(t, closed, time.Minute, time.Millisecond, "something is held")
}

func (o *origin) RoundTrip(req *http.Request) (*http.Response, error) {
	o.mu.Lock()
	o.requests = append(o.requests, req)
	attempt := len(o.requests)
	o.mu.Unlock()
	o.open.Add(1)
	w := httptest.NewRecorder()
	if o.answer == nil || !o.answer(attempt, w) {
		if o.etag != "" {
			w.Header().Set("Etag", o.etag)
		}
		http.ServeContent(w, req, "file.bin", time.Time{}, bytes.NewReader(o.data))
	}
	data := w.Body.Bytes()
	body := &cutBody{origin: o, rest: data, err: io.EOF, ctx: req.Context()}
	if n := o.cut(attempt); n >= 0 && n < len(data) {
		body.rest, body.err = data[:n], cmp.Or(o.failure, io.ErrUnexpectedEOF)
	}
	return &http.Response{
		StatusCode: w.Code, ProtoMajor: 1, ProtoMinor: 1, Header: w.Header(),
		ContentLength: int64(len(data)), Body: body, Request: req,
	}, nil
}

func (o *origin) sent() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var ranges []string
	for _, r := range o.requests {
		ranges = append(ranges, r.Header.Get("Range"))
	}
	return ranges
}

type cutBody struct {
	origin *origin
	ctx    context.Context
	rest   []byte
	err    error
	closed atomic.Bool
}

func (b *cutBody) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	if len(b.rest) > 0 {
		return n, nil
	}
	return n, b.err
}

func (b *cutBody) Close() error {
	if b.closed.Swap(true) {
		b.origin.again.Add(1)
	} else {
		b.origin.open.Add(-1)
	}
	return nil
}

// resuming returns a policy that resumes without a wait.
func resuming() httpretry.Policy {
	return httpretry.Policy{
		Resume: true, Backoff: strategies.Constant{}, Budget: httpretry.Unlimited{}}
}

func get(t testing.TB, rt http.RoundTripper, header ...string) *http.Response {
	t.Helper()
	req := contract.Request(t, "GET", "http://a.test/file", "")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, resp.Body.Close()) })
	return resp
}

// A body that breaks off continues where it broke off, and the caller sees one
// response.
func TestResume(t *testing.T) {
	const size = 300_000
	for _, tt := range []struct {
		name   string
		cuts   []int
		header []string
		want   [2]int // of data
		ranges []string
	}{
		{"whole", nil, nil, [2]int{0, size}, []string{""}},
		{"once", []int{100_000}, nil, [2]int{0, size}, []string{"", "bytes=100000-299999"}},
		{"before the first byte", []int{0}, nil, [2]int{0, size}, []string{"", "bytes=0-299999"}},
		{"before the last byte", []int{size - 1}, nil, [2]int{0, size},
			[]string{"", "bytes=299999-299999"}},
		{"caller's range", []int{10, 10}, []string{"Range", "bytes=1000-1999"}, [2]int{1000, 2000},
			[]string{"bytes=1000-1999", "bytes=1010-1999", "bytes=1020-1999"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newOrigin(size, tt.cuts...)
			events := new(contract.Record)
			resp := get(t, contract.Recorded(t, o, resuming(), events), tt.header...)
			got, err := io.ReadAll(fullReads{t, resp.Body})
			require.NoError(t, err)
			assert.True(t, bytes.Equal(o.data[tt.want[0]:tt.want[1]], got))
			assert.Equal(t, tt.ranges, o.sent())
			contract.HasResult(t, resp, len(tt.ranges), httpretry.ReasonSuccess)
			for i, r := range o.requests[1:] {
				assert.Equal(t, []string{`"v1"`}, r.Header["If-Range"])
				assert.Equal(t, fmt.Sprint(i+1), r.Header.Get("Retry-Attempt"))
				assert.Equal(t, i+2, httpretry.Attempt(r.Context()))
			}
			assert.Len(t, events.Events, 2*len(tt.cuts)+1)
			require.NoError(t, resp.Body.Close())
			o.requireClosed(t)
		})
	}
}

// readAll returns the bytes that a body delivers, and its error.
func readAll(t testing.TB, o *origin, resp *http.Response) (got []byte, err error) {
	t.Helper()
	got, err = io.ReadAll(fullReads{t, resp.Body})
	assert.True(t, bytes.HasPrefix(o.data, got), "bytes of something else")
	_, again := resp.Body.Read(make([]byte, 1))
	if err == nil {
		assert.Equal(t, io.EOF, again)
	} else {
		assert.Equal(t, err, again, "the error remains")
	}
	return got, err
}

// fullReads fails a test if a Read returns neither a byte nor an error, as
// io.Reader discourages.
type fullReads struct {
	t testing.TB
	io.Reader
}

func (r fullReads) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	assert.True(r.t, n > 0 || err != nil, "a Read returned nothing")
	return n, err
}

// altered is a base that changes the responses of another one.
type altered struct {
	http.RoundTripper
	alter func(*http.Response)
}

func (b altered) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(req)
	if err == nil && b.alter != nil {
		b.alter(resp)
	}
	return resp, err
}

// If a body breaks off that cannot be resumed, its error says why, as do an
// Event, the log and Result.
func TestResumeExplains(t *testing.T) {
	for _, tt := range []struct {
		name   string
		alter  func(*http.Response)
		policy func(*httpretry.Policy)
		text   string
	}{
		{name: "no validator", alter: func(r *http.Response) { r.Header.Del("Etag") },
			text: "it has neither an ETag nor a Last-Modified"},
		{name: "no length", alter: func(r *http.Response) { r.ContentLength = -1 },
			text: "it has no Content-Length"},
		{name: "not idempotent", policy: func(p *httpretry.Policy) {
			p.Idempotent = func(*http.Request) bool { return false }
		}, text: "its request is not idempotent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newOrigin(1000, 10)
			base := altered{o, tt.alter}
			policy := resuming()
			if tt.policy != nil {
				tt.policy(&policy)
			}
			req := newGet(t)
			logger, log := newLogger()
			events := new(contract.Record)
			resp, err := contract.New(t, httpretry.Config{Base: base, Policy: policy,
				Observe: httpretry.Observers(events.Observe, httpretry.LogEvents(logger))}).
				RoundTrip(req)
			require.NoError(t, err)
			contract.HasResult(t, resp, 1, httpretry.ReasonSuccess)
			require.Empty(t, log.String())

			body, err := readAll(t, o, resp)
			assert.Len(t, body, 10)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.NotErrorIs(t, err, io.EOF)
			text := "unexpected EOF (the response cannot be resumed: " + tt.text + ")"
			assert.EqualError(t, err, "httpretry: gave up after 1 attempt (not_resumable): "+
				text+"; hint: "+httpretry.ReasonNotResumable.Hint())
			require.NoError(t, resp.Body.Close())

			contract.HasResult(t, resp, 1, httpretry.ReasonNotResumable)
			require.Len(t, events.Events, 2, "one of the request, and one of its body")
			e := events.Events[1]
			assert.Equal(t, httpretry.ReasonNotResumable, e.Reason)
			assert.True(t, e.Resuming)
			assert.NotSame(t, req, e.Request, "the caller may change its own")
			assert.Nil(t, e.Response)
			assert.EqualError(t, e.Err, text)
			assert.Equal(t, []any{1, int64(10), "connection broken"},
				[]any{e.Attempt.Number, e.Offset, e.Status()})
			assert.Equal(t, 1, strings.Count(log.String(), "\n"), log)
			assert.Contains(t, log.String(), `level=WARN msg="gave up on response" `)
			assert.Contains(t, log.String(), tt.text)
			assert.Len(t, o.sent(), 1)
			o.requireClosed(t)
		})
	}
}

// replaced returns body with another Read.
func replaced(body io.ReadCloser, read io.Reader) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{read, body}
}

// In these cases, the caller gets what Base's own body returns, and no Event is
// for that.
func TestResumeNever(t *testing.T) {
	classifyAs := func(outcome httpretry.Outcome) func(*httpretry.Policy) {
		return func(p *httpretry.Policy) {
			// The response itself is not retried.
			p.Backoff, p.MaxElapsed = strategies.Constant{Wait: time.Hour}, time.Minute
			p.Classify = func(*http.Request, *http.Response, error) httpretry.Outcome {
				return outcome
			}
		}
	}
	trailer := http.Header{"Sum": {"1"}} // with which a response cannot be resumed
	for _, tt := range []struct {
		name    string
		cut     int
		alter   func(*http.Response, context.CancelFunc)
		policy  func(*httpretry.Policy)
		ctx     func(context.Context) context.Context
		trailer http.Header
		read    int
		want    error
	}{
		{name: "off", cut: 10, policy: func(p *httpretry.Policy) { p.Resume = false },
			read: 10, want: io.ErrUnexpectedEOF},
		{name: "one attempt", cut: 10, policy: func(p *httpretry.Policy) { p.MaxAttempts = 1 },
			read: 10, want: io.ErrUnexpectedEOF},
		{name: "without retries", cut: 10, ctx: httpretry.WithoutRetries,
			read: 10, want: io.ErrUnexpectedEOF},
		{name: "not a success", cut: 10,
			alter: func(r *http.Response, _ context.CancelFunc) { r.StatusCode = 404 },
			read:  10, want: io.ErrUnexpectedEOF},
		{name: "a success that the policy retries", cut: 10,
			policy: classifyAs(httpretry.Transient), read: 10, want: io.ErrUnexpectedEOF},
		{name: "trailers, read to its end", cut: -1, trailer: trailer, read: 1000},
		{name: "trailers, Final", cut: 10, policy: classifyAs(httpretry.Final), trailer: trailer,
			read: 10, want: io.ErrUnexpectedEOF},
		{name: "trailers, canceled, with another error", cut: -1,
			alter: func(r *http.Response, cancel context.CancelFunc) {
				cancel()
				r.Body = replaced(r.Body, iotest.ErrReader(contract.ErrReset))
			}, trailer: trailer, want: contract.ErrReset},
		{name: "trailers, a lost connection after the last byte", cut: -1,
			alter: func(r *http.Response, _ context.CancelFunc) {
				end := iotest.ErrReader(contract.ErrReset)
				r.Body = replaced(r.Body, io.MultiReader(r.Body, end))
			}, trailer: trailer, read: 1000, want: contract.ErrReset},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, policy, events := newOrigin(1000, tt.cut), resuming(), new(contract.Record)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			base := altered{o, func(r *http.Response) {
				r.Trailer = tt.trailer
				if tt.alter != nil {
					tt.alter(r, cancel)
				}
			}}
			if tt.policy != nil {
				tt.policy(&policy)
			}
			if tt.ctx != nil {
				ctx = tt.ctx(ctx)
			}
			resp, err := contract.Recorded(t, base, policy, events).
				RoundTrip(newGet(t).WithContext(ctx))
			require.NoError(t, err)
			result := httpretry.ResultOf(resp)
			got, err := io.ReadAll(fullReads{t, resp.Body})
			assert.Len(t, got, tt.read)
			assert.Equal(t, tt.want, err)
			assert.Equal(t, tt.trailer, resp.Trailer)
			assert.Equal(t, result, httpretry.ResultOf(resp))
			assert.Len(t, o.sent(), 1)
			assert.Len(t, events.Events, 1, "none is for the body")
			require.NoError(t, resp.Body.Close())
			o.requireClosed(t)
		})
	}
}

// ResumeIdle limits only bodies that can be resumed.
func TestResumeIdleNeedsNoObstacle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := resuming()
		policy.ResumeIdle = time.Second
		base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
			body, w := io.Pipe()
			time.AfterFunc(time.Hour, func() { assert.NoError(t, w.Close()) })
			return &http.Response{StatusCode: 200, ContentLength: -1, Body: body}, nil
		})
		_, err := io.ReadAll(get(t, contract.With(t, base, policy)).Body)
		assert.NoError(t, err)
	})
}

// An empty body and that of a tunnel remain Base's own.
func TestResumeSparesBodies(t *testing.T) {
	tunnel := struct{ io.ReadWriteCloser }{}
	for _, tt := range []struct {
		name   string
		method string
		resp   http.Response
	}{
		{"no content", "GET", http.Response{StatusCode: 204, Body: http.NoBody}},
		{"HEAD of a layer", "HEAD", http.Response{StatusCode: 200, ContentLength: 9,
			Body: contract.Counted("")}},
		{"tunnel", "GET", http.Response{StatusCode: 200, ContentLength: -1, Body: tunnel}},
		{"redirect", "GET", http.Response{StatusCode: 302, ContentLength: -1,
			Body: contract.Counted("text")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			body := tt.resp.Body
			base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
				return &tt.resp, nil
			})
			resp, err := contract.Unchecked(t, httpretry.Config{Base: base, Policy: resuming()}).
				RoundTrip(contract.Request(t, tt.method, "http://a.test/", ""))
			require.NoError(t, err)
			assert.Equal(t, body, resp.Body)
		})
	}
}

// If something else comes back instead of the rest, the caller gets the first
// error, and no byte of it. Hazard 0.5.
func TestResumeRejects(t *testing.T) {
	for status, tt := range map[int]struct{ etag, text string }{
		200: {`"v2"`, "status 200 without the validator"},
		206: {`"v1"`, "status 206 with Content-Range"}, // which is missing
		302: {`"v1"`, "status 302"},
		412: {"", "status 412"},
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			o := newOrigin(1000, 10)
			o.answer = func(attempt int, w http.ResponseWriter) bool {
				if attempt > 1 {
					w.Header().Set("Etag", tt.etag)
					w.WriteHeader(status)
					_, _ = w.Write(make([]byte, 990))
				}
				return attempt > 1
			}
			events := new(contract.Record)
			var ledger contract.Ledger
			policy := resuming()
			policy.Budget = &ledger
			resp := get(t, contract.Recorded(t, o, policy, events))
			got, err := readAll(t, o, resp)
			assert.Len(t, got, 10)
			assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
			requireError(t, err, 2, httpretry.ReasonNotResumable)
			assert.Contains(t, err.Error(), tt.text)
			assert.Equal(t, httpretry.ReasonNotResumable, events.Reason())
			assert.Equal(t, status, events.Events[2].Response.StatusCode)
			assert.ErrorContains(t, events.Events[2].Err, tt.text)
			contract.HasResult(t, resp, 2, httpretry.ReasonNotResumable)
			o.requireClosed(t)
			// The answer is not a transient failure.
			assert.Equal(t, []string{"success http://a.test", "withdraw http://a.test",
				"charged success http://a.test"}, ledger.Entries)
		})
	}
}

// A server without ranges sends everything again. The body continues with that,
// also after a break in the bytes that are skipped. Nothing that follows the
// caller's range is waited for.
func TestResumeSkips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin(3000, 10, 100)
		o.answer = func(attempt int, w http.ResponseWriter) bool {
			if attempt > 1 {
				w.Header().Set("Etag", o.etag)
				_, _ = w.Write(o.data)
			}
			return attempt > 1
		}
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			resp, err := o.RoundTrip(req)
			if len(o.sent()) == 3 {
				resp.Body = newStalling(o.data[:2000])
			}
			return resp, err
		})
		resp := get(t, contract.With(t, base, resuming()), "Range", "bytes=1000-1999")
		got, err := io.ReadAll(fullReads{t, resp.Body})
		require.NoError(t, err)
		assert.Equal(t, o.data[1000:2000], got)
		assert.Len(t, o.sent(), 3)
	})
}

// ResumeSame replaces a validator.
func TestResumeSame(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprint(same), func(t *testing.T) {
			o := newOrigin(1000, 100)
			o.etag = ""
			policy := resuming()
			policy.ResumeSame = func(first, next *http.Response) bool {
				assert.Equal(t, 200, first.StatusCode)
				assert.Equal(t, 206, next.StatusCode)
				return same
			}
			resp := get(t, contract.With(t, o, policy), "If-Range", `"mine"`)
			got, err := readAll(t, o, resp)
			if same {
				assert.NoError(t, err)
				assert.Len(t, got, 1000)
			} else {
				assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
				assert.Len(t, got, 100)
			}
			assert.Empty(t, o.requests[1].Header["If-Range"])
		})
	}
}

// unavailable answers all requests but the first with 503.
func unavailable(header ...string) func(int, http.ResponseWriter) bool {
	return func(attempt int, w http.ResponseWriter) bool {
		if attempt == 1 {
			return false
		}
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(503)
		return true
	}
}

// Hazard D11: the policy limits resumes as it limits retries.
func TestResumeLimits(t *testing.T) {
	for _, tt := range []struct {
		name     string
		policy   func(*httpretry.Policy)
		answer   func(int, http.ResponseWriter) bool
		failure  error
		deadline time.Duration
		reason   httpretry.Reason
		attempts int
		elapsed  time.Duration
		text     string
	}{
		{name: "attempts that are answered", answer: unavailable(),
			reason: httpretry.ReasonAttempts, attempts: 3, elapsed: 2 * time.Second,
			text: "(last attempt: status 503)"},
		{name: "MaxElapsed", policy: func(p *httpretry.Policy) {
			p.MaxElapsed = 1500 * time.Millisecond
		}, reason: httpretry.ReasonMaxElapsed, attempts: 2, elapsed: time.Second},
		{name: "deadline", deadline: 1500 * time.Millisecond, reason: httpretry.ReasonDeadline,
			attempts: 2, elapsed: time.Second},
		{name: "budget", policy: func(p *httpretry.Policy) {
			p.Budget = &httpretry.HostBudget{Burst: 1}
		}, reason: httpretry.ReasonBudget, attempts: 2, elapsed: time.Second,
			text: "Policy.Budget refused"},
		{name: "budget at once", policy: func(p *httpretry.Policy) {
			p.Budget = contract.UsedUp{}
		}, reason: httpretry.ReasonBudget, attempts: 1, text: "Policy.Budget refused"},
		{name: "Retry-After", answer: unavailable("Retry-After", "120"),
			reason: httpretry.ReasonRetryAfter, attempts: 2, elapsed: time.Second},
		{name: "X-Should-Retry", answer: unavailable("X-Should-Retry", "false"),
			reason: httpretry.ReasonDoNotRetry, attempts: 2, elapsed: time.Second},
		{name: "not transient", failure: context.Canceled,
			reason: httpretry.ReasonPermanent, attempts: 1},
		{name: "not transient for the policy", policy: func(p *httpretry.Policy) {
			p.Classify = func(*http.Request, *http.Response, error) httpretry.Outcome {
				return httpretry.Final
			}
		}, reason: httpretry.ReasonPermanent, attempts: 1},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			o := newOrigin(1000, 10, 10, 10)
			o.answer, o.failure = tt.answer, tt.failure
			policy := resuming()
			policy.Backoff = strategies.Constant{Wait: time.Second}
			if tt.policy != nil {
				tt.policy(&policy)
			}
			events := new(contract.Record)
			start := time.Now()
			req := newGet(t)
			if tt.deadline > 0 {
				ctx, cancel := context.WithTimeout(req.Context(), tt.deadline)
				defer cancel()
				req = req.WithContext(ctx)
			}
			resp, err := contract.Recorded(t, o, policy, events).RoundTrip(req)
			require.NoError(t, err)
			defer resp.Body.Close()
			_, err = readAll(t, o, resp)
			assert.Equal(t, tt.elapsed, time.Since(start).Truncate(time.Second))
			assert.ErrorIs(t, err, cmp.Or(tt.failure, io.ErrUnexpectedEOF))
			assert.Len(t, o.sent(), tt.attempts)
			assert.Equal(t, tt.reason, events.Reason())
			contract.HasResult(t, resp, tt.attempts, tt.reason)
			// As from RoundTrip, the error of an only attempt is its own.
			if e, ok := errors.AsType[*httpretry.Error](err); ok {
				assert.Equal(t, tt.reason, e.Reason)
				assert.Equal(t, tt.attempts, e.Attempts)
			} else {
				assert.Equal(t, 1, tt.attempts)
				assert.NotEqual(t, httpretry.ReasonBudget, tt.reason)
			}
			assert.ErrorContains(t, err, tt.text)
		})
	}
}

// Hazard D11: an attempt that delivers 64 KiB, or all the rest, starts over the
// number of attempts and their waits, and is the first of those that count. A
// server that breaks off after each 64 KiB gets a request for each of them, until
// MaxElapsed.
func TestResumeProgress(t *testing.T) {
	const chunk = 64 << 10
	for name, tt := range map[string]struct {
		cuts        []int
		maxAttempts int
		maxElapsed  time.Duration
		waits       []int // in seconds
		reason      httpretry.Reason
	}{
		"success": {[]int{chunk, 10, chunk - 1, chunk, 5, chunk, chunk}, 4, 0,
			[]int{1, 2, 4, 1, 2, 1, 1}, httpretry.ReasonSuccess},
		"progress at first": {[]int{chunk, 0, 0, 0, 0}, 3, 0, []int{1, 2}, httpretry.ReasonAttempts},
		"progress later":    {[]int{10, chunk, 0, 0, 0}, 3, 0, []int{1, 1, 2}, httpretry.ReasonAttempts},
		"without end": {slices.Repeat([]int{chunk}, 15), 3, 10500 * time.Millisecond,
			slices.Repeat([]int{1}, 10), httpretry.ReasonMaxElapsed},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			o, policy, events := newOrigin(1<<20, tt.cuts...), resuming(), new(contract.Record)
			policy.Backoff = strategies.Exponential{Base: time.Second, Max: time.Hour}
			policy.MaxAttempts, policy.MaxElapsed = tt.maxAttempts, tt.maxElapsed
			got, err := readAll(t, o, get(t, contract.Recorded(t, o, policy, events)))
			var waits []int
			for _, e := range events.Events {
				if e.Reason == httpretry.ReasonNone {
					waits = append(waits, int(e.Wait/time.Second))
				}
			}
			assert.Equal(t, tt.waits, waits)
			assert.Len(t, o.sent(), len(tt.waits)+1)
			assert.Equal(t, tt.reason, events.Reason())
			if tt.reason == httpretry.ReasonSuccess {
				require.NoError(t, err)
				assert.Len(t, got, 1<<20)
			} else {
				assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
			}
		})
	}
}

// A retry that makes progress is refunded, one that does not is not.
func TestResumeBudget(t *testing.T) {
	const chunk = 64 << 10
	for _, tt := range []struct {
		name string
		cuts []int
		busy bool // the host, when the rest is requested first
		read int
		want string
	}{
		{"short rest", []int{1<<20 - 10}, false, 1 << 20, "success, withdraw, charged success"},
		{"no progress", []int{100, chunk - 1}, false, 1 << 20,
			"success, withdraw, charged failure, withdraw, charged success"},
		{"caller reads so far", []int{100}, false, 100 + chunk,
			"success, withdraw, charged success"},
		{"caller closes", []int{100}, false, 200, "success, withdraw, charged success"},
		{"caller closes before", []int{100}, false, 100, "success"},
		{"no progress, no rest", []int{10, 10, 10}, false, 31,
			"success, withdraw, charged failure, withdraw, charged failure"},
		{"no answer but 503", []int{100}, true, 1 << 20,
			"success, withdraw, charged failure, withdraw, charged success"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newOrigin(1<<20, tt.cuts...)
			o.answer = func(attempt int, w http.ResponseWriter) bool {
				busy := tt.busy && attempt == 2
				if busy {
					w.WriteHeader(503)
				}
				return busy
			}
			var ledger contract.Ledger
			policy := resuming()
			policy.Budget = &ledger
			resp := get(t, contract.With(t, o, policy))
			_, err := io.ReadFull(resp.Body, make([]byte, tt.read))
			assert.Equal(t, strings.HasSuffix(tt.want, "failure"), err != nil, "%v", err)
			entries := func() string {
				return strings.ReplaceAll(strings.Join(ledger.Entries, ", "), " http://a.test", "")
			}
			// A body that was read to its end need not be closed for that.
			if tt.read == len(o.data) {
				assert.Equal(t, tt.want, entries())
			}
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, tt.want, entries())
		})
	}
}

// A cool-down that another request has begun delays a resume.
func TestResumeRespectsCooldowns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin(1000, 10)
		o.answer = func(attempt int, w http.ResponseWriter) bool {
			if attempt == 2 {
				w.Header().Set("Retry-After", "20")
				w.WriteHeader(429)
			}
			return attempt == 2
		}
		transport := contract.With(t, o, resuming())
		resp := get(t, transport)
		contract.Send(t, transport, newGet(t).WithContext(httpretry.WithoutRetries(t.Context())))
		start := time.Now()
		got, err := readAll(t, o, resp)
		require.NoError(t, err)
		assert.Len(t, got, 1000)
		assert.GreaterOrEqual(t, time.Since(start), 20*time.Second)
	})
}

// A response to a resume begins a cool-down for the other requests to its host.
func TestResumeBeginsCooldowns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin(1000, 10)
		o.answer = unavailable("Retry-After", "20")
		policy := resuming()
		policy.MaxAttempts, policy.Cooldown = 2, httpretry.CooldownFail
		transport := contract.With(t, o, policy)
		_, err := readAll(t, o, get(t, transport))
		require.Error(t, err)
		_, err = transport.RoundTrip(newGet(t))
		_, cooling := errors.AsType[*httpretry.CooldownError](err)
		assert.True(t, cooling, "%v", err)
	})
}

var errMine = errors.New("mine")

// A cancel ends a Read that waits for a retry at once, with the context's error
// and its cause. Close ends it from another goroutine.
func TestResumeEndsWhileItWaits(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(cancel context.CancelCauseFunc, body io.Closer)
		want []error
	}{
		{"cancel", func(cancel context.CancelCauseFunc, _ io.Closer) { cancel(errMine) },
			[]error{context.Canceled, errMine}},
		{"Close", func(_ context.CancelCauseFunc, body io.Closer) { _ = body.Close() },
			[]error{http.ErrBodyReadAfterClose}},
	} {
		// Either in the wait, or while Base sends the request.
		for _, inRoundTrip := range []bool{false, true} {
			name := fmt.Sprintf("%s/in RoundTrip: %t", tt.name, inRoundTrip)
			contract.Bubble(t, name, func(t *testing.T) {
				o := newOrigin(1000, 10)
				var base http.RoundTripper = o
				policy := resuming()
				policy.Backoff = strategies.Constant{Wait: time.Hour}
				policy.MaxElapsed = 24 * time.Hour
				var ledger contract.Ledger
				policy.Budget = &ledger
				if inRoundTrip {
					policy.Backoff = strategies.Constant{}
					base = contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
						if req.Header.Get("Range") != "" {
							<-req.Context().Done()
							return nil, req.Context().Err()
						}
						return o.RoundTrip(req)
					})
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				resp, err := contract.With(t, base, policy).RoundTrip(newGet(t).WithContext(ctx))
				require.NoError(t, err)
				start := time.Now()
				ended := make(chan error)
				go func() {
					_, err := readAll(t, o, resp)
					ended <- err
				}()
				time.Sleep(time.Second)
				assert.Zero(t, o.open.Load(), "no connection is held during the wait")
				tt.end(cancel, resp.Body)
				err = <-ended
				assert.Equal(t, time.Second, time.Since(start))
				for _, want := range tt.want {
					assert.ErrorIs(t, err, want)
				}
				assert.NotErrorIs(t, err, io.ErrUnexpectedEOF, "it is in the text only")
				require.NoError(t, resp.Body.Close())
				if inRoundTrip {
					assert.NotContains(t, ledger.Entries, "refund http://a.test")
				} else {
					assert.Contains(t, ledger.Entries, "refund http://a.test", "it was never sent")
				}
			})
		}
	}
}

// A Read after Close fails, whether or not the body was resumed, can be resumed
// or had ended.
func TestResumeReadAfterClose(t *testing.T) {
	for read, etag := range map[int]string{0: `"v1"`, 5: "", 10: "", 500: `"v1"`, 1000: `"v1"`} {
		o := newOrigin(1000, 10)
		o.etag = etag
		events := new(contract.Record)
		resp := get(t, contract.Recorded(t, o, resuming(), events))
		_, err := io.ReadFull(resp.Body, make([]byte, read))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.NoError(t, resp.Body.Close(), "again")
		sent, before := len(o.sent()), len(events.Events)
		for range 3 {
			_, err = io.ReadAll(resp.Body)
			assert.Equal(t, http.ErrBodyReadAfterClose, err, "after %d bytes", read)
		}
		assert.Len(t, o.sent(), sent, "nothing is sent for a closed body")
		assert.Len(t, events.Events, before)
		o.requireClosed(t)
	}
}

// Hazard D13: once Close has returned, the caller may change its request, as
// the documentation of http.RoundTripper says, even if a Read is still
// resuming.
func TestResumeReuseOfTheRequest(t *testing.T) {
	o := newOrigin(1000, 10)
	sending := make(chan struct{})
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		if req.Header.Get("Range") == "" {
			return o.RoundTrip(req)
		}
		close(sending)
		<-req.Context().Done()
		// A base transport may look at the request until it returns, and
		// Observe after that.
		return nil, errors.New(req.URL.Path + req.Header.Get("Other"))
	})
	observe := func(_ context.Context, e httpretry.Event) {
		assert.Equal(t, "/file", e.Request.URL.Path)
		assert.Empty(t, e.Request.Header)
	}
	req := contract.Request(t, "GET", "http://a.test/file", "")
	resp, err := contract.New(t,
		httpretry.Config{Base: base, Policy: resuming(), Observe: observe}).RoundTrip(req)
	require.NoError(t, err)
	var read sync.WaitGroup
	read.Go(func() {
		_, err := io.ReadAll(resp.Body)
		assert.Equal(t, http.ErrBodyReadAfterClose, err)
	})
	<-sending
	require.NoError(t, resp.Body.Close())
	req.URL.Path = "/other"
	req.Header.Set("Other", "value")
	read.Wait()
}

// stalling is a body that blocks after its bytes, until it is closed. It must
// not be closed twice.
type stalling struct {
	io.Reader
	ended chan struct{}
}

func newStalling(data []byte) *stalling {
	return &stalling{bytes.NewReader(data), make(chan struct{})}
}

func (b *stalling) Read(p []byte) (int, error) {
	if n, _ := b.Reader.Read(p); n > 0 {
		return n, nil
	}
	<-b.ended
	return 0, errors.New("read of a closed body")
}

func (b *stalling) Close() error { close(b.ended); return nil }

// stallingBase answers like o, but bodies stall after n bytes on attempts up
// to last.
func stallingBase(o *origin, n, last int) contract.BaseFunc {
	return func(req *http.Request) (*http.Response, error) {
		resp, err := o.RoundTrip(req)
		if len(o.sent()) <= last {
			data := make([]byte, n)
			_, readErr := io.ReadFull(resp.Body, data)
			err = errors.Join(err, readErr, resp.Body.Close())
			resp.Body = newStalling(data)
		}
		return resp, err
	}
}

// ResumeIdle ends a Read that gets nothing, and does not count the time of the
// caller.
func TestResumeIdle(t *testing.T) {
	contract.Bubble(t, "between two Reads", func(t *testing.T) {
		o := newOrigin(1000)
		policy := resuming()
		policy.ResumeIdle, policy.MaxAttempts = 5*time.Second, 4
		events := new(contract.Record)
		start := time.Now()
		resp := get(t, contract.Recorded(t, stallingBase(o, 100, 2), policy, events))
		_, err := io.ReadFull(resp.Body, make([]byte, 50))
		require.NoError(t, err)
		time.Sleep(time.Hour)
		got, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, o.data[50:], got)
		assert.Equal(t, time.Hour+10*time.Second, time.Since(start))
		assert.Equal(t, []string{"", "bytes=100-999", "bytes=200-999"}, o.sent())
		assert.ErrorContains(t, events.Events[1].Err, "no byte of the body for 5s")
		assert.ErrorIs(t, events.Events[1].Err, context.DeadlineExceeded)
	})
	// No byte is missing, so there is nothing to wait for.
	contract.Bubble(t, "after the last byte", func(t *testing.T) {
		o, policy := newOrigin(1000), resuming()
		policy.ResumeIdle = 5 * time.Second
		start := time.Now()
		_, err := readAll(t, o, get(t, contract.With(t, stallingBase(o, 1000, 1), policy)))
		require.NoError(t, err)
		assert.Len(t, o.sent(), 1)
		assert.Equal(t, 5*time.Second, time.Since(start))
	})
	// As from RoundTrip, a timeout of the policy's is never the error itself.
	contract.Bubble(t, "and no time for a retry", func(t *testing.T) {
		o, policy := newOrigin(1000), resuming()
		policy.ResumeIdle, policy.MaxElapsed = 5*time.Second, time.Second
		_, err := readAll(t, o, get(t, contract.With(t, stallingBase(o, 10, 1), policy)))
		e, ok := errors.AsType[*httpretry.Error](err)
		require.True(t, ok, "%v", err)
		assert.True(t, e.Timeout())
		assert.Equal(t, httpretry.ReasonMaxElapsed, e.Reason)
		assert.ErrorContains(t, err, "no byte of the body for 5s")
	})
}

// AttemptTimeout limits the time until the header of each request for the
// rest, and no body.
func TestResumeAttemptTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin(1000, 10)
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			if httpretry.Attempt(req.Context()) == 2 {
				<-req.Context().Done()
				return nil, req.Context().Err()
			}
			return o.RoundTrip(req)
		})
		policy := resuming()
		policy.AttemptTimeout = time.Second
		events := new(contract.Record)
		start := time.Now()
		resp := get(t, contract.Recorded(t, base, policy, events))
		_, err := io.ReadFull(resp.Body, make([]byte, 20))
		require.NoError(t, err)
		assert.Equal(t, time.Second, time.Since(start))
		time.Sleep(time.Minute)
		_, err = io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.ErrorContains(t, events.Events[2].Err, "attempt timed out after 1s")
	})
}

// Each resume has an event before it and one after it, with the bytes so far.
func TestResumeEvents(t *testing.T) {
	o := newOrigin(1000, 10, 20)
	events := new(contract.Record)
	logger, log := newLogger()
	observe := httpretry.Observers(events.Observe, httpretry.LogEvents(logger))
	req := contract.Request(t, "GET", "http://a.test/file?secret", "")
	resp, err := contract.New(t, httpretry.Config{Base: o, Policy: resuming(), Observe: observe}).
		RoundTrip(req)
	require.NoError(t, err)
	for want := 1; want <= 3; want++ {
		contract.HasResult(t, resp, want, httpretry.ReasonSuccess)
		_, err := io.ReadFull(resp.Body, make([]byte, 11*min(want, 2)))
		require.NoError(t, err)
	}
	require.NoError(t, resp.Body.Close())
	type event struct {
		attempt  int
		reason   httpretry.Reason
		resuming bool
		offset   int64
		status   int
	}
	var got []event
	for _, e := range events.Events {
		assert.Equal(t, !e.Resuming, req == e.Request)
		assert.Equal(t, req.URL, e.Request.URL)
		status := 0
		if e.Response != nil {
			status = e.Response.StatusCode
		}
		assert.Equal(t, status == 0, e.Err != nil)
		got = append(got, event{e.Attempt.Number, e.Reason, e.Resuming, e.Offset, status})
	}
	assert.Equal(t, []event{
		{1, httpretry.ReasonSuccess, false, 0, 200},
		{1, httpretry.ReasonNone, true, 10, 0},
		{2, httpretry.ReasonSuccess, true, 10, 206},
		{2, httpretry.ReasonNone, true, 30, 0},
		{3, httpretry.ReasonSuccess, true, 30, 206},
	}, got)
	assert.Equal(t, 2, strings.Count(log.String(), `msg="resuming response"`), log)
	assert.Contains(t, log.String(), "offset=30")
	assert.NotContains(t, log.String(), "secret")
}

// A failure after the last byte is ignored. A body that is longer than its
// stated length is not resumed.
func TestResumeAtTheEnd(t *testing.T) {
	tooLong := errors.New(
		"net/http: server replied with more than declared Content-Length; truncated")
	for _, tt := range []struct {
		name string
		text string
		err  error
		want error
	}{
		{"reset after the end", "12345", contract.ErrReset, nil},
		{"end of the connection after the end", "12345", io.ErrUnexpectedEOF, nil},
		{"connection error of HTTP/2 after the end", "12345",
			errors.New("connection error: PROTOCOL_ERROR"), nil},
		{"loss of the connection of HTTP/2 after the end", "12345",
			errors.New("http2: client connection lost"), nil},
		{"too long for net/http", "12345", tooLong, tooLong},
		{"canceled after the end", "12345", context.Canceled, context.Canceled},
		{"reset after too much", "123456", contract.ErrReset, contract.ErrReset},
		{"a layer that finds the bytes wrong", "12345", errMine, errMine},
		{"end", "12345", io.EOF, nil},
		{"early end of a base that does not check", "1234", io.EOF, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sent := 0
			base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
				sent++
				body := io.MultiReader(strings.NewReader(tt.text), iotest.ErrReader(tt.err))
				return &http.Response{StatusCode: 200, ContentLength: 5,
					Header: http.Header{"Etag": {`"v1"`}}, Body: io.NopCloser(body)}, nil
			})
			got, err := io.ReadAll(get(t, contract.With(t, base, resuming())).Body)
			assert.Equal(t, tt.text, string(got))
			assert.Equal(t, tt.want, err)
			assert.Equal(t, 1, sent)
		})
	}
}

// The error of a layer in Base that has checked the rest of a body reaches the
// caller. All bytes have arrived then, so there is no rest to request.
func TestResumeKeepsErrorsAtTheEnd(t *testing.T) {
	for _, ranges := range []bool{true, false} {
		o := newOrigin(1000, 10)
		o.answer = func(attempt int, w http.ResponseWriter) bool {
			if attempt == 1 || ranges {
				return false
			}
			w.Header().Set("Etag", o.etag)
			_, _ = w.Write(o.data)
			return true
		}
		base := altered{o, func(r *http.Response) {
			body := r.Body
			r.Body = replaced(body, contract.ReaderFunc(func(p []byte) (int, error) {
				n, err := body.Read(p)
				if err == io.EOF {
					err = errMine
				}
				return n, err
			}))
		}}
		got, err := readAll(t, o, get(t, contract.With(t, base, resuming())))
		assert.Equal(t, errMine, err, "ranges: %t", ranges)
		assert.Len(t, got, 1000)
		assert.Len(t, o.sent(), 2)
	}
}

// A panic of a callback or of Base reaches the caller's Read, and ends the
// body.
func TestResumePanics(t *testing.T) {
	for _, in := range []string{"Base", "Observe", "Observe, later", "ResumeSame", "Classify",
		"Classify, later", "Close", "Close, later", "Withdraw, later"} {
		t.Run(in, func(t *testing.T) {
			o, sent, breaks := newOrigin(1000, 10, 10), 0, 0
			o.etag = ""
			panics := func(where string) {
				if in == where {
					panic(errMine)
				}
			}
			budget := contract.Audit{Budget: &withdrawFunc{f: func() {
				if breaks == 2 {
					panics("Withdraw, later")
				}
			}}}
			policy := resuming()
			policy.Budget = &budget
			policy.ResumeSame = func(*http.Response, *http.Response) bool {
				panics("ResumeSame")
				return true
			}
			policy.Classify =
				func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
					if resp != nil && resp.StatusCode == 206 {
						panics("Classify")
					}
					if err != nil {
						breaks++
					}
					if breaks == 2 {
						panics("Classify, later")
					}
					return httpretry.Classify(req, resp, err)
				}
			transport := contract.Unchecked(t, httpretry.Config{
				Base: contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					sent++
					if req.Header.Get("Range") != "" {
						panics("Base")
					}
					resp, err := o.RoundTrip(req)
					if in == "Close" || in == "Close, later" && sent == 2 {
						resp.Body = closing{resp.Body, func() error { panic(errMine) }}
					}
					return resp, err
				}),
				Policy: policy,
				Observe: func(_ context.Context, e httpretry.Event) {
					if e.Resuming {
						panics("Observe")
					}
					if e.Offset == 20 {
						panics("Observe, later")
					}
				},
			})
			resp := get(t, transport)
			assert.PanicsWithValue(t, errMine, func() { _, _ = io.ReadAll(resp.Body) })
			_, err := resp.Body.Read(make([]byte, 1))
			assert.ErrorIs(t, err, io.ErrUnexpectedEOF, "not a byte after a panic")
			require.NoError(t, resp.Body.Close())
			budget.Check(t, sent)
			if !strings.HasPrefix(in, "Close") {
				o.requireClosed(t)
			}
			assert.Zero(t, o.again.Load(), "closed twice")
		})
	}
}

// withdrawFunc is a budget that calls f and allows every retry.
type withdrawFunc struct {
	httpretry.Unlimited
	f func()
}

func (b *withdrawFunc) Withdraw(context.Context, httpretry.AttemptResult) bool {
	b.f()
	return true
}

// closing is a body whose Close is close.
type closing struct {
	io.ReadCloser
	close func() error
}

func (b closing) Close() error { return b.close() }

// The error of Base's Close reaches the caller, before a resume and after it.
func TestResumeCloseFails(t *testing.T) {
	for _, read := range []int{5, 20} {
		o := newOrigin(1000, 10)
		base := altered{o, func(r *http.Response) {
			body := r.Body
			r.Body = closing{body, func() error { return errors.Join(errMine, body.Close()) }}
		}}
		resp, err := contract.With(t, base, resuming()).RoundTrip(newGet(t))
		require.NoError(t, err)
		_, err = io.ReadFull(resp.Body, make([]byte, read))
		require.NoError(t, err)
		assert.ErrorIs(t, resp.Body.Close(), errMine)
	}
}

// The outer one of nested transports resumes.
func TestResumeNested(t *testing.T) {
	o := newOrigin(1000, 10)
	inner := contract.Unchecked(t, httpretry.Config{Base: o, Policy: resuming()})
	outer := contract.With(t, inner, resuming())
	got, err := readAll(t, o, get(t, outer))
	require.NoError(t, err)
	assert.Len(t, got, 1000)
	assert.Len(t, o.sent(), 2)
	t.Run("only the inner one could", func(t *testing.T) {
		o := newOrigin(1000, 10)
		inner := contract.Unchecked(t, httpretry.Config{Base: o, Policy: resuming()})
		outer := contract.With(t, inner, httpretry.Policy{})
		_, err := io.ReadAll(get(t, outer).Body)
		assert.Equal(t, io.ErrUnexpectedEOF, err)
		assert.Len(t, o.sent(), 1)
	})
}

// The retries of an inbound request's client are not multiplied by resumes.
func TestResumeLeftToCaller(t *testing.T) {
	o := newOrigin(1000, 10)
	o.failure = contract.ErrRefused // that the body was not sent does not undo the request
	transport := contract.With(t, o, resuming())
	handler := httpretry.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		resp, err := transport.RoundTrip(newGet(t).WithContext(r.Context()))
		if !assert.NoError(t, err) {
			return
		}
		defer resp.Body.Close()
		_, err = readAll(t, o, resp)
		assert.Equal(t, o.failure, err)
		reason := httpretry.ResultOf(resp).Reason
		assert.Equal(t, httpretry.ReasonCallerRetries, reason)
	}))
	inbound := contract.Request(t, "GET", "http://service.test/", "")
	inbound.Header.Set("Retry-Attempt", "1")
	handler.ServeHTTP(httptest.NewRecorder(), inbound)
	assert.Len(t, o.sent(), 1)
}

// The request for the rest is the one that was sent, but for its range.
func TestResumeSendsTheSameRequest(t *testing.T) {
	o := newOrigin(1000, 10)
	type key struct{}
	req := contract.Request(t, "GET", "http://user@a.test/file?q=1", "")
	req.Method = "" // GET
	req = req.WithContext(context.WithValue(req.Context(), key{}, "value"))
	req.Host = "b.test"
	req.Header = http.Header{"Authorization": {"Bearer x"}, "X-Two": {"1", "2"},
		"range": {"bytes=0-"}, "if-range": {"z"}}
	resp, err := contract.With(t, o, resuming()).RoundTrip(req)
	require.NoError(t, err)
	_, err = readAll(t, o, resp)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	again := o.requests[1]
	assert.Equal(t, req.URL, again.URL)
	assert.Equal(t, "b.test", again.Host)
	assert.Equal(t, "", again.Method)
	assert.Equal(t, "value", again.Context().Value(key{}))
	assert.Equal(t, http.Header{
		"Authorization": {"Bearer x"}, "X-Two": {"1", "2"}, "Retry-Attempt": {"1"},
		"Range": {"bytes=10-999"}, "If-Range": {`"v1"`},
	}, again.Header)
}

// A body that is closed while Base still answers the request for its rest is
// not read. The answer is closed.
func TestResumeClosedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin(1000, 10)
		base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			if req.Header.Get("Range") != "" {
				time.Sleep(time.Hour) // whatever the context says
				req = req.WithContext(context.WithoutCancel(req.Context()))
			}
			return o.RoundTrip(req)
		})
		var ledger contract.Ledger
		policy := resuming()
		policy.Budget = &ledger
		resp := get(t, contract.With(t, base, policy))
		ended := make(chan error)
		go func() {
			_, err := readAll(t, o, resp)
			ended <- err
		}()
		time.Sleep(time.Second)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, http.ErrBodyReadAfterClose, <-ended)
		assert.Zero(t, o.open.Load())
		assert.Contains(t, ledger.Entries, "charged success http://a.test", "the host has answered")
	})
}

// foreignContext is of a type that package context does not know, so a context
// derived from it holds a goroutine until it is canceled.
type foreignContext struct {
	context.Context
	done chan struct{}
}

func (c foreignContext) Done() <-chan struct{} { return c.done }

// Hazard E6: nothing is held once a body has ended, whichever way it ends.
func TestResumeLeavesNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		cuts   []int
		closed bool // after 20 bytes
		fails  bool
	}{
		"end":     {cuts: []int{10, 10}},
		"failure": {cuts: []int{10, 10, 10}, fails: true},
		"Close":   {cuts: []int{10}, closed: true},
	} {
		// At its end, a bubble has to have no goroutine left.
		contract.Bubble(t, name, func(t *testing.T) {
			o := newOrigin(1000, tt.cuts...)
			policy := resuming()
			policy.ResumeIdle = time.Minute
			req := newGet(t)
			req = req.WithContext(foreignContext{req.Context(), make(chan struct{})})
			resp, err := contract.Unchecked(t, httpretry.Config{Base: o, Policy: policy}).
				RoundTrip(req)
			require.NoError(t, err)
			if tt.closed {
				_, err = io.ReadFull(resp.Body, make([]byte, 20))
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				return
			}
			_, err = io.ReadAll(resp.Body)
			assert.Equal(t, tt.fails, err != nil)
		})
	}
}

// A response that can be resumed costs one wrapper.
func TestResumeAllocations(t *testing.T) {
	if contract.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	body := new(bytes.Reader)
	data := make([]byte, 1<<10)
	ok := &http.Response{
		StatusCode: 200, ContentLength: int64(len(data)), Header: http.Header{"Etag": {`"v1"`}}}
	base := contract.BaseFunc(func(*http.Request) (*http.Response, error) {
		body.Reset(data)
		resp := *ok
		resp.Body = io.NopCloser(body)
		return &resp, nil
	})
	buf := make([]byte, 512)
	measure := func(p httpretry.Policy) float64 {
		transport, req := contract.Unchecked(t, httpretry.Config{Base: base, Policy: p}), newGet(t)
		return testing.AllocsPerRun(100, func() {
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			for err == nil {
				_, err = resp.Body.Read(buf)
			}
			_ = resp.Body.Close()
		})
	}
	plain := measure(httpretry.Policy{})
	assert.LessOrEqual(t, measure(httpretry.Policy{Resume: true})-plain, 3.0,
		"the body, and the context and request that Result uses")
	assert.LessOrEqual(t, measure(httpretry.Policy{Resume: true, ResumeIdle: time.Minute})-plain,
		5.0, "a timer")
}
