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
//	Reserve, Rewind               after an attempt that may be retried
//	Finish                        before a response is returned, or
//	Abort                         after the request failed
package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
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
	copies *Copies       // that the current attempt gets from GetBody; nil: its GetBody is the caller's own
	next   io.ReadCloser // from GetBody, between Rewind and Open
	err    error         // why GetBody did not return a body
}

// Prepare decides how the body of req is sent. A body in memory for which
// there is GetBody is sent as it is: its reader neither fails nor blocks. Any
// other body is read through a Recorder, which keeps at most limit bytes if
// there is no GetBody.
func (b *Body) Prepare(req *http.Request, limit int64) {
	b.req, b.source = req, req.Body
	switch {
	case !Has(req):
	// Only a record of what was sent can replace it.
	case req.GetBody == nil:
		b.rec = newRecorder(req.Body, limit)
	// GetBody returns new bodies, so nothing is recorded. The Recorder knows
	// whether the attempt before still reads, and how the reader failed.
	case !bounded.InMemory(req.Body):
		b.rec = newUnrecorded(req.Body)
	}
}

// Has reports whether req has a body.
func Has(req *http.Request) bool {
	return req.Body != nil && req.Body != http.NoBody
}

// IsDirect reports whether Prepare leaves the body of req, if any, as it is.
func IsDirect(req *http.Request) bool {
	return !Has(req) || req.GetBody != nil && bounded.InMemory(req.Body)
}

// Direct reports whether the base transport reads the body without a Recorder
// in between.
func (b *Body) Direct() bool { return b.rec == nil }

// Recorder returns the Recorder of the current attempt, or nil.
func (b *Body) Recorder() *Recorder { return b.rec }

// Copies returns the bodies that the current attempt gets from GetBody, or nil
// if its GetBody is the caller's own or it has none.
func (b *Body) Copies() *Copies { return b.copies }

// GetBody returns GetBody for the request of the current attempt, or nil.
func (b *Body) GetBody() func() (io.ReadCloser, error) {
	if b.copies != nil {
		return b.copies.Get
	}
	return b.req.GetBody
}

// Err returns why Rewind got no body from GetBody, or nil.
func (b *Body) Err() error { return b.err }

// Open returns the body of the next attempt. If that is the last attempt that
// can be made, nothing is recorded any more.
func (b *Body) Open(last bool) io.ReadCloser {
	if b.next != nil {
		b.replaceSource()
	}
	switch {
	case b.rec == nil:
		return b.source
	case b.rec.hasGetBody:
		b.copies = newCopies(b.req.GetBody, b.rec)
	}
	return b.rec.open(last)
}

// replaceSource ends the bodies of the attempt before, and takes the one that
// GetBody has returned.
func (b *Body) replaceSource() {
	next := b.next
	for _, r := range b.recorders() {
		r.endView() // the attempt before may still be reading
		if sameBody(r.source, next) {
			r.leaveSource()
		}
		_ = r.closeSource() // net/http has no use for the error either
	}
	b.source, b.rec, b.copies, b.next = next, nil, nil, nil
	// A body in memory needs no Recorder.
	if !bounded.InMemory(next) {
		b.rec = newUnrecorded(next)
	}
}

// recorders returns the Recorders that the current attempt reads through.
func (b *Body) recorders() []*Recorder {
	if b.copies == nil && b.rec != nil {
		return []*Recorder{b.rec}
	}
	return b.copies.all()
}

// Reserve reports whether the body can be sent again, as far as that is known
// without GetBody. Until Open or Finish, no attempt reads more than is kept:
// the attempt before may still be sending the body, and has to go on with that
// if its response turns out to be the last.
func (b *Body) Reserve() bool {
	b.err = nil
	switch {
	case !Has(b.req):
		return true
	// A reader that has failed would fail again.
	case b.Failure() != nil:
		return false
	case b.req.GetBody == nil:
		return b.rec.pin()
	}
	return true
}

// Rewind calls GetBody for the next attempt, if there is GetBody, and reports
// whether there is a body. It comes after Reserve, and when nothing else
// prevents the retry: GetBody may seek in the body that the attempt before is
// still sending. uploaded tells that the attempt is known not to read its body
// any more.
func (b *Body) Rewind(uploaded bool) bool {
	switch {
	case !Has(b.req) || b.req.GetBody == nil:
		return true
	case b.copies != nil:
		b.next, b.err = b.copies.rewind()
	default:
		b.next, b.err = b.rewindInMemory(uploaded)
	}
	return b.err == nil
}

// rewindInMemory calls GetBody for a body in memory. Some implementations seek
// in the reader that they are given for, and return it again or another reader
// that reads from it. This is fine only if nothing else reads it.
func (b *Body) rewindInMemory(uploaded bool) (io.ReadCloser, error) {
	next, err := callGetBody(b.req.GetBody)
	switch {
	case err != nil || uploaded:
		return next, err
	case sameBody(b.source, next):
		return nil, errStillRead
	// Nothing shows what such a body reads from in the end, and no Recorder
	// can pause the attempt before.
	case !bounded.InMemory(next):
		_ = bounded.Close(patience, next) // errMayBeRead is what matters
		return nil, errMayBeRead
	}
	return next, nil
}

// Finish says that no attempt follows the current one, which may still be
// sending the body. It takes back Reserve.
func (b *Body) Finish() {
	if b.rec != nil {
		unpin(b.recorders())
		b.rec.finish()
	}
}

// Abort closes the bodies that attempts read through a Recorder, and the one
// that Rewind got for an attempt that does not follow.
func (b *Body) Abort() {
	next := b.next
	b.next = nil
	for _, r := range b.recorders() {
		// GetBody may have returned a body that is still open. It is closed
		// here, and must not be closed twice.
		if next != nil && !r.isClosed() && sameBody(r.source, next) {
			next = nil
		}
		_ = r.closeSource() // net/http has no use for the error either
	}
	if next != nil {
		_ = bounded.Close(patience, next) // nobody has read it
	}
}

// Failure returns the error of the caller's own reader, if that has failed.
func (b *Body) Failure() error {
	for _, r := range b.recorders() {
		if err := r.failure(); err != nil {
			return err
		}
	}
	return nil
}

// WithCloseFailure adds to err, of an attempt, the error of closing the
// caller's own reader, if there is one, and reports whether there is. HTTP/1
// returns either of them.
func (b *Body) WithCloseFailure(err error) (all error, failed bool) {
	for _, r := range b.recorders() {
		closeErr := r.closeFailure()
		if closeErr == nil {
			continue
		}
		failed = true
		// net/http returns it only if nothing failed before
		// (transferWriter.writeBody).
		if !errors.Is(err, closeErr) {
			err = fmt.Errorf("%w: %w", closeErr, err)
		}
	}
	return err, failed
}

// ClosedEarly reports whether a body was closed before the base transport had
// read it to its end.
func (b *Body) ClosedEarly() bool {
	return slices.ContainsFunc(b.recorders(), (*Recorder).closedEarly)
}

// Watch is called before the base transport's RoundTrip, and stop after it. In
// between, the end of ctx ends the reading of the body: over HTTP/1, net/http
// waits for a Read that blocks even after the request was canceled.
func (b *Body) Watch(ctx context.Context) (stop func()) {
	rec, copies := b.rec, b.copies
	if rec == nil {
		return func() {}
	}
	interrupt := rec.Interrupt
	if copies != nil {
		interrupt = copies.Interrupt
	}
	rec.setInRoundTrip(true)
	copies.begin(ctx)
	// An interrupt that has begun is waited for, because it must not end the
	// next attempt's view.
	interrupted := make(chan struct{})
	stopInterrupt := context.AfterFunc(ctx, func() { defer close(interrupted); interrupt() })
	return func() {
		rec.setInRoundTrip(false)
		copies.returned()
		if !stopInterrupt() {
			<-interrupted
		}
	}
}
