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
	"time"

	"github.com/seed421102f4/httpretry/internal/bounded"
	"github.com/seed421102f4/httpretry/internal/respbody"
	"github.com/seed421102f4/httpretry/internal/resume"
)

// minProgress is the number of bytes of the body that an attempt has to deliver
// to be a success. From there, MaxAttempts and the backoff start over.
const minProgress = 64 << 10

// resumable reports whether the body of resp can be resumed if it breaks off,
// and which part of a representation it is.
func (c *call) resumable(resp *http.Response, reason Reason) (resume.Part, bool) {
	p := c.policy
	// An outer RetryTransport resumes, as it retries.
	if !p.Resume || reason != ReasonSuccess || c.maxAttempts() == 1 || !c.idempotent || c.outer() != nil {
		return resume.Part{}, false
	}
	part, ok := resume.Of(c.req, resp)
	return part, ok && (part.HasValidator() || p.ResumeSame != nil)
}

// handOverResumable is handOver for a policy with Resume.
func (c *call) handOverResumable(resp *http.Response, reason Reason) {
	part, resumable := c.resumable(resp, reason)
	end := c.handOver(resp, reason, resumable)
	if resumable {
		c.resumeLater(resp, end, part)
	}
}

// resumeLater wraps the body of resp, so that it is resumed if it breaks off.
// end is the context that Result looks for.
func (c *call) resumeLater(resp *http.Response, end *attemptContext, part resume.Part) {
	b := &resumingBody{
		call:    *c,
		req:     c.req,
		first:   resp,
		part:    part,
		counter: end,
		initial: bodySource{ReadCloser: resp.Body, rest: -1},
	}
	b.source = &b.initial
	b.call.resumed, b.call.resp = b, nil
	resp.Body = b
}

// countedAttempts returns the number of attempts that count toward MaxAttempts:
// those since the last one that made progress, which is included.
func (c *call) countedAttempts() int {
	if c.resumed == nil {
		return c.attempts
	}
	return c.attempts - c.resumed.uncounted
}

// resumingBody is the body of a response. When it breaks off, the next Read
// requests the rest, with a copy of the call of RoundTrip, which has returned.
// The copy makes attempts, waits and decides as RoundTrip does.
//
// Read and Close may be called concurrently, as for net/http's bodies. Only the
// goroutine in Read uses the fields above mu.
type resumingBody struct {
	call  call           // its req is a copy, with a context that Close cancels
	req   *http.Request  // the caller's, or a copy after the first resume
	first *http.Response // the caller's
	part  resume.Part

	initial   bodySource
	counter   *attemptContext // has the number of attempts that Result returns
	offset    int64           // bytes that the caller has got
	start     int64           // offset at the start of the current attempt
	settleAt  int64           // offset at which the current attempt counts as a success
	uncounted int             // attempts that do not count toward MaxAttempts
	broken    error           // the source's error; the next Read replaces the source
	err       error           // the end of the body

	unsettled atomic.Bool // a resume is not yet a success; finish settles the first attempt
	mu        sync.Mutex
	closed    bool                    // guarded by mu
	source    *bodySource             // written with mu held; nil during a resume
	cancel    context.CancelCauseFunc // written with mu held; nil before the first resume
}

// bodySource is a response that delivers a part of a resumingBody.
type bodySource struct {
	io.ReadCloser
	skip    int64       // bytes to discard first
	rest    int64       // bytes to deliver; negative: until EOF
	more    bool        // bytes of something else follow the rest
	timer   *time.Timer // of ResumeIdle, running during Read
	closing atomic.Bool
}

// Read implements io.Reader.
func (b *resumingBody) Read(p []byte) (int, error) {
	for {
		if b.broken != nil {
			if err := b.resume(); err != nil {
				return 0, err
			}
		}
		n, err := b.source.read(p, b.call.policy.ResumeIdle)
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
		}
		b.broken = err
		// What has arrived does not wait for the rest.
		if n > 0 {
			return n, nil
		}
	}
}

// end ends the body with err, for this Read and all later ones, and releases
// what a resume holds.
func (b *resumingBody) end(err error) error {
	b.broken, b.err = err, err
	// This also ends a response that goes on after the rest, if Base obeys its
	// context. Close closes its body.
	if b.cancel != nil {
		b.cancel(nil)
	}
	return err
}

// Close implements io.Closer. It ends a Read that waits, also for a retry.
func (b *resumingBody) Close() error {
	b.mu.Lock()
	b.closed = true
	source, cancel := b.source, b.cancel
	b.mu.Unlock()
	// A caller that does not want the rest is no failure of the host.
	b.settle()
	if cancel != nil {
		cancel(http.ErrBodyReadAfterClose)
	}
	// There is no source during a resume.
	if source == nil {
		return nil
	}
	return source.close()
}

func (b *resumingBody) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// settle records that the current attempt is a success, once.
func (b *resumingBody) settle() {
	if b.unsettled.Swap(false) {
		b.call.settleSuccess(&http.Response{StatusCode: http.StatusPartialContent})
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
	b.err = b.broken // if a Close or a callback panics
	if !b.detach() {
		return b.end(http.ErrBodyReadAfterClose)
	}
	if b.offset >= b.part.Length() {
		return b.end(b.errorAfterLast())
	}
	c := &b.call
	defer c.cleanUpAfterPanic()
	var resp *http.Response
	err := b.broken
	// A failure of the body does not undo the request.
	outcome := min(c.outcome(nil, err), Transient)
	for {
		wait, reason := c.decide(resp, err, outcome)
		if resp != nil && c.isSuccess(resp, reason) {
			return b.conclude(resp, reason)
		}
		c.report(resp, err, wait, reason)
		if reason != ReasonNone {
			return b.fail(resp, err, wait, reason)
		}
		c.discard(resp)
		// As in RoundTrip, a wait that ends early has a second Event.
		if reason, err = c.pause(wait, err); reason != ReasonNone {
			c.report(nil, err, 0, reason)
			return b.fail(nil, err, 0, reason)
		}
		resp, err = b.send()
		outcome = c.outcome(resp, err)
		c.noteCooldown(resp, outcome)
	}
}

// detach closes the source, and prepares the call for the attempts that follow.
// It reports whether the body is still open.
func (b *resumingBody) detach() bool {
	c := &b.call
	// Close sets closed before it swaps unsettled. So either Close finds it
	// false, or closed is read as true below and c is not used.
	b.unsettled.Store(false)
	b.mu.Lock()
	source, closed := b.source, b.closed
	b.source = nil
	if b.cancel == nil && !closed {
		var ctx context.Context
		ctx, b.cancel = context.WithCancelCause(b.req.Context())
		// Once Close has returned, the caller may change the request, while a
		// Read may still be sending it.
		b.req = b.req.Clone(b.req.Context())
		c.req = b.req.WithContext(ctx)
	}
	b.mu.Unlock()
	// It has failed, so its connection is of no use. Close may block.
	_ = bounded.Close(respbody.MaxTime, closeFunc(source.close))
	if closed {
		return false
	}
	// An attempt that made progress is the first of those that count.
	if b.offset-b.start >= minProgress {
		b.uncounted = c.attempts - 1
		c.waits = waits{}
	}
	return true
}

// errorAfterLast returns what Read returns after the last byte. No byte is
// missing then, so a connection that breaks off before the end of its stream
// makes no difference. Any other error remains: a layer in Base may have found
// that the bytes are not the right ones.
func (b *resumingBody) errorAfterLast() error {
	if b.offset > b.part.Length() || !isOfConnection(b.broken) {
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

// send requests the rest, with a copy of the caller's request that differs in
// Range and If-Range only.
func (b *resumingBody) send() (*http.Response, error) {
	byteRange, ifRange := b.part.Headers(b.offset)
	header := setHeader(b.req.Header.Clone(), "Range", []string{byteRange})
	header = setHeader(header, "If-Range", []string{ifRange})
	if ifRange == "" {
		delete(header, "If-Range")
	}
	b.call.req.Header = header
	b.counter.resumes.Add(1)
	return b.call.send()
}

// conclude ends the attempts with resp, which is not a transient failure. If
// resp is the rest of the body, it becomes the source.
func (b *resumingBody) conclude(resp *http.Response, reason Reason) error {
	c := &b.call
	skip, err := b.part.Check(resp, b.offset, b.same(resp))
	if err != nil {
		c.settleSuccess(resp)
		c.report(resp, err, 0, ReasonNotResumable)
		return b.fail(resp, err, 0, ReasonNotResumable)
	}
	c.report(resp, nil, 0, reason)
	c.progress, c.resp = progressDone, nil
	b.start = b.offset
	b.settleAt = min(b.offset+minProgress, b.part.Length())
	rest := b.part.Length() - b.offset
	source := &bodySource{ReadCloser: resp.Body, skip: skip, rest: rest, more: resp.ContentLength > skip+rest}
	b.unsettled.Store(true)
	b.broken, b.err = nil, nil
	if !b.attach(source) {
		b.settle()
		_ = bounded.Close(respbody.MaxTime, closeFunc(source.close)) // nobody reads it
		return b.end(http.ErrBodyReadAfterClose)
	}
	return nil
}

// attach makes source what Read reads from, unless the body is closed. Close
// has no source to close during a resume.
func (b *resumingBody) attach(source *bodySource) bool {
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

// fail ends the body with the error that broke it, to which it adds the result
// of the attempts to resume it. With WaitOnBudget it waits first.
func (b *resumingBody) fail(resp *http.Response, err error, wait time.Duration, reason Reason) error {
	c := &b.call
	if resp != nil {
		c.discard(resp)
	}
	b.counter.reason.Store(uint32(reason))
	switch {
	case reason == ReasonCanceled || errors.Is(err, b.broken):
	// io.EOF, with which net/http's RoundTrip may fail, would be the end of the
	// body to a caller that uses errors.Is.
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("%w (last attempt: %v)", b.broken, err)
	default:
		err = c.afterAttempt(err, b.broken)
	}
	err = c.fail(err, reason)
	c.sleep(wait, nil)
	if b.isClosed() {
		err = http.ErrBodyReadAfterClose
	}
	return b.end(err)
}

// read reads from the source, each Read for at most idle.
func (s *bodySource) read(p []byte, idle time.Duration) (int, error) {
	if s.rest < 0 {
		return s.readOnce(p, idle)
	}
	if s.skip > 0 {
		// io.CopyN would drop an error that comes with the last of the bytes.
		skipped, err := io.Copy(io.Discard, io.LimitReader(timedReader{s, idle}, s.skip))
		s.skip -= skipped
		switch {
		case err != nil:
			return 0, err
		case s.skip > 0:
			return 0, io.ErrUnexpectedEOF
		}
	}
	if s.rest == 0 {
		return s.readEnd(idle)
	}
	n, err := s.readOnce(p[:min(int64(len(p)), s.rest)], idle)
	s.rest -= int64(n)
	switch {
	case s.rest > 0:
		return n, noEOF(err)
	case s.more:
		return n, io.EOF
	}
	return n, err
}

// readEnd reads what comes after the rest: EOF, or the error of a layer in Base
// that has checked the bytes. A byte is not of this body.
func (s *bodySource) readEnd(idle time.Duration) (int, error) {
	n, err := s.readOnce(make([]byte, 1), idle)
	if n > 0 {
		return 0, io.EOF
	}
	return 0, err
}

// noEOF returns the error for a body that is shorter than it has to be.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readOnce reads for at most idle. 0 means no limit.
func (s *bodySource) readOnce(p []byte, idle time.Duration) (int, error) {
	if idle <= 0 {
		return s.ReadCloser.Read(p)
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(idle, s.interrupt)
	} else {
		s.timer.Reset(idle)
	}
	n, err := s.ReadCloser.Read(p)
	if !s.timer.Stop() {
		err = &attemptTimeout{what: "no byte of the body for", after: idle}
	}
	return n, err
}

// interrupt ends a Read that waits, by closing the body. With net/http's bodies
// that works over HTTP/1 and HTTP/2.
func (s *bodySource) interrupt() {
	_ = s.close() // the Read has an error of its own
}

func (s *bodySource) close() error {
	if s.closing.Swap(true) {
		return nil
	}
	return s.ReadCloser.Close()
}

// timedReader is a bodySource as an io.Reader.
type timedReader struct {
	source *bodySource
	idle   time.Duration
}

func (r timedReader) Read(p []byte) (int, error) { return r.source.readOnce(p, r.idle) }

// closeFunc is a function as an io.Closer.
type closeFunc func() error

func (f closeFunc) Close() error { return f() }
