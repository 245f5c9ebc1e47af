package httpretry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/seed421102f4/httpretry/internal/bounded"
	"github.com/seed421102f4/httpretry/internal/respbody"
	"github.com/seed421102f4/httpretry/internal/resume"
)

// minProgress is the number of bytes of the body that an attempt has to deliver
// to be a success. From there, MaxAttempts and the backoff start over.
const minProgress = 64 << 10

// mayBreakOff reports whether resp has a body that its policy wants to resume.
func (c *call) mayBreakOff(resp *http.Response, reason Reason) bool {
	// An outer RetryTransport resumes, as it retries.
	if !c.policy.Resume || reason != ReasonSuccess ||
		resp.StatusCode < 200 || resp.StatusCode > 299 ||
		c.maxAttempts() == 1 || c.caller.outer() != nil {
		return false
	}
	_, writes := resp.Body.(io.Writer)
	return !writes && !respbody.IsEmpty(resp) && resp.ContentLength != 0 &&
		c.caller.req.Method != http.MethodHead
}

const notIdempotent resume.Obstacle = "its request is not idempotent"

// resumeLater wraps the body of resp. If the body breaks off, it is resumed, or
// its error says why it is not. result is the context that ResultOf looks for.
func (c *call) resumeLater(resp *http.Response, result *attemptContext) {
	part := resume.PartOf(c.caller.req, resp)
	switch {
	case part.Obstacle != "":
	case !c.idempotent:
		part.Obstacle = notIdempotent
	case c.policy.ResumeSame == nil:
		part.Obstacle = part.Unverified()
	}
	b := &resumingBody{
		call:    *c,
		req:     c.caller.req,
		first:   resp,
		part:    part,
		result:  result,
		initial: resume.Source{Body: resp.Body, Rest: -1},
	}
	if part.Obstacle == "" {
		b.initial.Idle = c.policy.ResumeIdle
	}
	b.source = &b.initial
	b.call.resp, b.call.done, b.call.partial, b.call.aheadLimit = nil, true, b, 0
	// A download may last for hours. The window, quiet, failing and protocol are
	// parts of a table of hosts, which SetPolicies may have replaced by then.
	b.call.charge.window, b.call.waits.cooldown.quiet, b.call.protocol = nil, nil, nil
	b.call.waits.failing = &b.failing
	resp.Body = b
}

// resumingBody is the body of a response. When it breaks off, the next Read
// requests the rest, with a copy of the call of RoundTrip, which has returned.
// The copy makes attempts, waits and decides as RoundTrip does. If there is an
// obstacle, the next Read returns that instead.
//
// Read and Close may be called concurrently, as for net/http's bodies.
type resumingBody struct {
	first   *http.Response // the caller's
	part    resume.Part
	initial resume.Source
	result  *attemptContext // has the number of attempts that ResultOf returns

	// Used by the goroutine in Read. Close uses call, too, if it settles it.
	call    call          // from the first resume on, its req is a copy that Close cancels
	failing failingFlag   // of call.waits
	req     *http.Request // the caller's; from the first resume on, a clone of it
	offset  int64         // bytes that the caller has got
	start   int64         // offset at the start of the current attempt
	broken  error         // the source's error; the next Read replaces the source
	err     error         // the end of the body

	// Set by accepts, for the last response to a request for the rest.
	skip     int64 // its bytes before the rest
	mismatch error // why it is not the rest, or nil

	// settleAt is the offset at which a resume counts as a success. It is 0
	// during the first attempt, which retry has recorded. The first Read then
	// calls settle, which does nothing because unsettled is false.
	settleAt int64

	// True if a resume has not yet been recorded as a success. The one of Read
	// and Close that sets it to false records that (settle).
	unsettled atomic.Bool

	// mu guards closed. Only Read writes source and cancel, with mu held. So
	// Close reads them with mu held, and Read without it.
	mu     sync.Mutex
	closed bool
	source *resume.Source          // nil during a resume
	cancel context.CancelCauseFunc // nil before the first resume
}

// Read implements io.Reader.
func (b *resumingBody) Read(p []byte) (int, error) {
	for {
		if b.broken != nil {
			if err := b.resume(); err != nil {
				return 0, err
			}
		}
		n, err := b.source.Read(p)
		b.offset += int64(n)
		if b.offset >= b.settleAt {
			b.settleAt = math.MaxInt64
			b.settle()
		}
		switch {
		case err == nil:
			return n, nil
		case err == io.EOF:
			return n, b.end(io.EOF)
		case err == resume.ErrIdle:
			err = &attemptTimeout{what: "no byte of the body for", after: b.call.policy.ResumeIdle}
		}
		b.broken = err
		// The bytes that have arrived are returned now.
		if n > 0 {
			return n, nil
		}
	}
}

// end ends the body with err, for this Read and all later ones, and releases
// the resources of a resume.
func (b *resumingBody) end(err error) error {
	b.broken, b.err = err, err
	// The rest has ended, but its response may go on. Then this ends it if Base
	// obeys the context. Otherwise Close does.
	if b.cancel != nil {
		b.cancel(nil)
	}
	return err
}

// Close implements io.Closer. It ends a Read that waits for bytes or for a
// retry.
func (b *resumingBody) Close() error {
	b.mu.Lock()
	b.closed = true
	source, cancel := b.source, b.cancel
	b.mu.Unlock()
	// Closing the body early does not show that the host failed.
	b.settle()
	if cancel != nil {
		cancel(http.ErrBodyReadAfterClose)
	}
	// There is no source during a resume.
	if source == nil {
		return nil
	}
	return source.Close()
}

func (b *resumingBody) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// settle records that the current attempt is a success, once.
func (b *resumingBody) settle() {
	if b.unsettled.Swap(false) {
		b.call.record()
	}
}

// resume replaces the source, which is broken, by a response with the rest. An
// error ends the body.
func (b *resumingBody) resume() error {
	if b.err != nil {
		if b.isClosed() {
			return http.ErrBodyReadAfterClose
		}
		return b.err
	}
	b.err = b.broken // remains if a Close or a callback panics
	c := &b.call
	defer c.cleanUpAfterPanic()
	if !b.leaveSource() {
		return b.end(http.ErrBodyReadAfterClose)
	}
	if b.offset >= b.part.Length() {
		c.done = true
		return b.end(b.errorAfterLast())
	}
	// The server has answered, so the request is not Unprocessed.
	r := result{err: b.broken, outcome: min(c.outcome(nil, b.broken), Transient)}
	if b.part.Obstacle == "" {
		c.caller.req.Header = b.header()
	}
	// The obstacle does not matter if the body would not be resumed anyway.
	if b.part.Obstacle != "" && (c.caller.hasEnded() || r.outcome == Final) {
		c.learn(r)
		c.release()
		c.done = true
		return b.end(b.broken)
	}
	resp, err := c.retry(r)
	if err != nil {
		return b.end(err)
	}
	return b.replace(resp)
}

// count implements partial.
func (b *resumingBody) count() { b.result.resumes.Add(1) }

// accepts implements partial.
func (b *resumingBody) accepts(r result) bool {
	b.skip, b.mismatch = b.part.Check(r.resp, b.offset, b.same(r.resp))
	return b.mismatch == nil
}

// obstacle implements partial.
func (b *resumingBody) obstacle(err error) error {
	if b.part.Obstacle != "" {
		return fmt.Errorf("%w (%w)", err, b.part.Obstacle)
	}
	return b.mismatch
}

// describe implements partial.
func (b *resumingBody) describe(e Event) Event {
	e.Request, e.Resuming, e.Offset = b.req, true, b.offset
	return e
}

// leaveSource closes the source, and prepares the call for the attempts that
// follow. It reports whether the body is still open. If it is not, the attempt
// that broke off is recorded as a success, as Close does.
func (b *resumingBody) leaveSource() bool {
	c := &b.call
	// Close sets closed before it swaps unsettled. So either Close finds that
	// unsettled is false, or leaveSource finds below that closed is true. Then c
	// is not used any more.
	unrecorded := b.unsettled.Swap(false)
	b.mu.Lock()
	source, closed := b.source, b.closed
	b.source = nil
	if b.cancel == nil && !closed {
		var ctx context.Context
		ctx, b.cancel = context.WithCancelCause(b.req.Context())
		// Once Close has returned, the caller may change the request, while a
		// Read may still be sending it.
		b.req = b.req.Clone(b.req.Context())
		c.caller.req = b.req.WithContext(ctx)
		c.waits.cooldown.req = c.caller.req
	}
	b.mu.Unlock()
	if closed && unrecorded {
		c.record()
	}
	if !closed {
		c.done = false
	}
	// The source has failed, so its connection is of no use. Close may block.
	_ = bounded.Close(bounded.MaxTime, source)
	if closed {
		return false
	}
	// If the attempt that broke off has made progress, it counts as the first
	// one.
	if b.offset-b.start >= minProgress {
		c.uncounted = c.attempts - 1
		c.waits.restart()
	}
	return true
}

// errorAfterLast returns the error of Read after the last byte. No byte is
// missing then, so a connection that breaks off before the end of its stream
// makes no difference. Any other error remains, because a layer in Base may
// have found that the bytes are not the right ones. So does that of a response
// with an obstacle, whose trailers may be missing.
func (b *resumingBody) errorAfterLast() error {
	if b.part.Obstacle != "" || b.offset > b.part.Length() || !isOfConnection(b.broken) {
		return b.broken
	}
	return io.EOF
}

// isOfConnection reports whether err, of a body, is that of a connection or of
// a stream of HTTP/2.
func isOfConnection(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok || err == io.ErrUnexpectedEOF {
		return true
	}
	// The types of net/http are not exported: http2StreamError,
	// http2ConnectionError, http2GoAwayError.
	for _, prefix := range []string{"stream error: ", "connection error: ", "http2: "} {
		if strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	return false
}

// header returns the header of the requests for the rest. It differs from the
// caller's in Range and If-Range only.
func (b *resumingBody) header() http.Header {
	byteRange, ifRange := b.part.Headers(b.offset)
	header := setHeader(b.req.Header.Clone(), "Range", []string{byteRange})
	header = setHeader(header, "If-Range", []string{ifRange})
	if ifRange == "" {
		delete(header, "If-Range")
	}
	return header
}

// replace makes resp, which has the rest of the body, the source of Read.
func (b *resumingBody) replace(resp *http.Response) error {
	b.start = b.offset
	b.settleAt = min(b.offset+minProgress, b.part.Length())
	rest := b.part.Length() - b.offset
	source := &resume.Source{
		Body: resp.Body,
		Skip: b.skip,
		Rest: rest,
		More: resp.ContentLength > b.skip+rest,
		Idle: b.call.policy.ResumeIdle,
	}
	b.unsettled.Store(true)
	b.broken, b.err = nil, nil
	if !b.attach(source) {
		b.settle()
		_ = bounded.Close(bounded.MaxTime, source) // nobody reads it
		return b.end(http.ErrBodyReadAfterClose)
	}
	return nil
}

// attach makes source the source of Read, unless the body is closed. Close has
// no source to close during a resume.
func (b *resumingBody) attach(source *resume.Source) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.source = source
	return true
}

// same returns a function that calls ResumeSame for resp, or nil if the policy
// has none.
func (b *resumingBody) same(resp *http.Response) func() bool {
	same := b.call.policy.ResumeSame
	if same == nil {
		return nil
	}
	return func() bool { return same(b.first, resp) }
}

// finish implements partial. The error is the one that broke the body, to which
// it adds r.
func (b *resumingBody) finish(r result, reason Reason) (*http.Response, error) {
	c := &b.call
	if reason == ReasonSuccess {
		c.done, c.resp = true, nil
		return r.resp, nil
	}
	if r.resp != nil {
		c.discard(r)
	}
	b.result.reason.Store(uint32(reason))
	err := r.err
	if reason == ReasonNotResumable {
		err = b.obstacle(err)
	}
	switch {
	// The error is complete.
	case isOfCaller(reason) && c.caller.left, errors.Is(err, b.broken):
	// io.EOF, with which net/http's RoundTrip may fail, would be the end of the
	// body to a caller that uses errors.Is.
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("%w (last attempt: %v)", b.broken, err)
	default:
		err = c.afterAttempt(err, b.broken)
	}
	r.err = err
	err = c.fail(r, reason)
	if b.isClosed() {
		err = http.ErrBodyReadAfterClose
	}
	return nil, err
}
