// Package replay lets several attempts send one request body.
//
// It knows bodies: readers, GetBody, files. It does not know what an attempt
// is for, whether another follows, or what a failure means. Nothing in it
// waits for a Read, or for a Close before the end of a body, for longer than a
// moment: either may block, may share a lock with the other, or may belong to
// the request that a server is handling.
//
// The calls come in this order:
//
//	Prepare                       once, before the first attempt
//	Open, Watch, stop             for each attempt
//	Reserve                       after an attempt that may be retried
//	Finish                        before a response is returned, or
//	Abort, Unreserve              after the request failed
package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"time"

	"github.com/seed421102f4/httpretry/internal/bounded"
)

// patience is how long this package waits for a Read or a Close that blocks.
const patience = 50 * time.Millisecond

// Body is the body of a request as its attempts see it. Its zero value is
// ready for Prepare. It is not safe for concurrent use; the readers that Open
// returns are independent of it.
type Body struct {
	req    *http.Request
	source io.ReadCloser // what the current attempt's body is, or is read from
	rec    *Recorder     // between source and the base transport; nil: source is used as it is
	next   io.ReadCloser // from GetBody, between Reserve and Open
	err    error         // why GetBody did not return a body
}

// Prepare decides how the body of req is sent. A body in memory for which
// there is GetBody is sent as it is: its reader neither fails nor blocks. Any
// other body is read through a Recorder, which keeps at most limit bytes if
// there is no GetBody.
func (b *Body) Prepare(req *http.Request, limit int64) {
	b.req = req
	if Has(req) {
		b.prepare(limit)
	}
}

// prepare is Prepare for a request with a body. It is apart, as finish is, so
// that the compiler inlines its caller, which saves 2 ns.
func (b *Body) prepare(limit int64) {
	req := b.req
	b.source = req.Body
	switch {
	// Only a record of what was sent can replace it.
	case req.GetBody == nil:
		b.rec = newRecorder(req.Body, limit)
	// GetBody returns new bodies, so nothing is recorded. The Recorder knows
	// whether the attempt before still reads, and how the reader failed.
	case !bounded.InMemory(req.Body):
		b.rec = newRecorder(req.Body, 0)
		b.rec.hasGetBody = true
	}
}

// Has reports whether req has a body.
func Has(req *http.Request) bool {
	return req.Body != nil && req.Body != http.NoBody
}

// Direct reports whether the base transport reads the body without a Recorder
// in between.
func (b *Body) Direct() bool { return b.rec == nil }

// Recorder returns the Recorder of the current attempt, or nil.
func (b *Body) Recorder() *Recorder { return b.rec }

// Err returns why the last Reserve got no body from GetBody, or nil.
func (b *Body) Err() error { return b.err }

// Open returns the body of the next attempt. If that is the last attempt that
// can be made, nothing is recorded any more.
func (b *Body) Open(last bool) io.ReadCloser {
	next := b.next
	if next == nil {
		// The first attempt, or no body at all.
		if b.rec == nil {
			return b.req.Body
		}
		return b.rec.open(last)
	}
	b.next = nil
	if b.rec != nil {
		b.rec.endView() // the attempt before may still be reading
	}
	// The source before is closed, unless GetBody returned it again.
	switch {
	case !b.returnedSource(next):
		b.Abort()
	case b.rec != nil:
		b.rec.leaveSource()
	}
	b.source, b.rec = next, nil
	// A body in memory needs no Recorder.
	if bounded.InMemory(next) {
		return next
	}
	b.rec = newRecorder(next, 0)
	b.rec.hasGetBody = true
	return b.rec.open(last)
}

// Reserve makes sure that the body can be sent again, and reports whether it
// can. uploaded tells that the attempt before is known not to read its body
// any more. Otherwise it may still be sending the body, and has to go on with
// that if its response turns out to be the last: Unreserve lets it.
func (b *Body) Reserve(uploaded bool) bool {
	b.err = nil
	switch {
	case !Has(b.req):
		return true
	// A reader that has failed would fail again.
	case b.rec != nil && b.rec.failure() != nil:
		return false
	case b.req.GetBody == nil:
		return b.rec.pin()
	}
	// GetBody may seek in the body that the attempt before is reading.
	idle := uploaded
	if b.rec != nil {
		idle = b.rec.pause()
	}
	b.next, b.err = b.getBody(idle)
	return b.err == nil
}

// getBody calls GetBody. Some implementations seek in the body that they are
// given for and return that body itself. This is fine only if nothing reads it.
func (b *Body) getBody(idle bool) (io.ReadCloser, error) {
	next, err := b.req.GetBody()
	switch {
	case err != nil:
		return nil, err
	case next == nil:
		return nil, errors.New("GetBody returned neither a body nor an error")
	case !idle && b.returnedSource(next):
		return nil, errors.New("GetBody returned a body that is still being read")
	}
	return next, nil
}

// returnedSource reports whether next, from GetBody, is the body of the
// attempt before.
func (b *Body) returnedSource(next io.ReadCloser) bool {
	// These contain pointers, which can be compared.
	if bounded.InMemory(next) {
		return b.source == next
	}
	source := reflect.ValueOf(b.source)
	return source.IsValid() && source.Comparable() && source.Type() == reflect.TypeOf(next) && b.source == next
}

// Unreserve takes back a Reserve, when no attempt follows.
func (b *Body) Unreserve() {
	next := b.next
	b.next = nil
	switch {
	case next == nil:
	case !b.returnedSource(next):
		_ = bounded.Close(patience, next) // nobody has read it
	case b.rec != nil:
		// GetBody has moved the position of the body that the attempt is
		// sending. What would follow is not what belongs there.
		b.rec.endView()
	}
	if b.rec != nil {
		b.rec.unpin()
	}
}

// Finish says that no attempt follows the current one, which may still be
// sending the body.
func (b *Body) Finish() {
	if b.next != nil || b.rec != nil {
		b.finish()
	}
}

func (b *Body) finish() {
	b.Unreserve()
	if b.rec != nil {
		b.rec.finish()
	}
}

// Abort closes the body that attempts read through a Recorder.
func (b *Body) Abort() {
	if b.rec != nil {
		_ = b.rec.closeSource() // net/http has no use for the error either
	}
}

// Failure returns the error of the caller's own reader, if that has failed.
func (b *Body) Failure() error {
	if b.rec == nil {
		return nil
	}
	return b.rec.failure()
}

// WithCloseFailure adds to err, of an attempt, the error of closing the
// caller's own reader, if there is one, and reports whether there is. HTTP/1
// returns either of them.
func (b *Body) WithCloseFailure(err error) (all error, failed bool) {
	if b.rec == nil {
		return err, false
	}
	b.rec.mu.Lock()
	defer b.rec.mu.Unlock()
	// net/http returns it only if nothing failed before
	// (transferWriter.writeBody).
	closeErr := b.rec.closeErr
	if closeErr != nil && !errors.Is(err, closeErr) {
		err = fmt.Errorf("%w: %w", closeErr, err)
	}
	return err, closeErr != nil
}

// ClosedEarly reports whether the body was closed before the base transport
// had read it to its end.
func (b *Body) ClosedEarly() bool {
	if b.rec == nil {
		return false
	}
	b.rec.mu.Lock()
	defer b.rec.mu.Unlock()
	v := b.rec.current
	return v.isClosed() && !v.complete.Load()
}

// Watch is called before the base transport's RoundTrip, and stop after it. In
// between, the end of ctx ends the reading of the body: over HTTP/1, net/http
// waits for a Read that blocks even after the request was canceled.
func (b *Body) Watch(ctx context.Context) (stop func()) {
	rec := b.rec
	if rec == nil {
		return func() {}
	}
	rec.setInRoundTrip(true)
	// An interrupt that has begun is waited for, because it must not end the
	// next attempt's view.
	interrupted := make(chan struct{})
	stopInterrupt := context.AfterFunc(ctx, func() { defer close(interrupted); rec.Interrupt() })
	return func() {
		rec.setInRoundTrip(false)
		if !stopInterrupt() {
			<-interrupted
		}
	}
}
