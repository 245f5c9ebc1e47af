// Package replay lets several attempts send one request body.
//
// It knows bodies, which are readers, files, and the results of GetBody. It
// does not know policies or responses, and does not decide whether an attempt
// follows. Only a Read waits for another Read without a limit. Nothing else in
// it waits longer than a moment for a Read, or for a Close before the end of a
// body. Both may block, may share a lock, and may belong to the request that a
// server is handling.
//
// The calls come in this order:
//
//	Prepare or PrepareSent        once, before or after the first attempt
//	Open, Watch, stop             for each attempt
//	Pin, Rewind                   after an attempt that may be retried
//	Finish                        before a response is returned, or
//	Abort                         after the request failed
package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/internal/bounded"
)

// Body is the body of a request as its attempts see it. Its zero value is
// ready for Prepare. It is not safe for concurrent use; the readers that Open
// returns are independent of it.
type Body struct {
	// Only the goroutine that sends attempts uses these. Other goroutines get
	// pointers to a Recorder or to Copies, which have locks.
	has     bool          // the request had a body before the base transport got it
	getBody getBody       // of the request then, or nil
	source  io.ReadCloser // the body of the current attempt, or of its Recorder
	rec     *Recorder     // between source and the base transport; nil: source is sent as it is
	copies  *Copies       // from GetBody of the current attempt; nil: it was not asked for
	only    [1]*Recorder  // the result of recorders without copies; saves an allocation
	next    io.ReadCloser // from GetBody, between Rewind and Open
	err     error         // the reason why GetBody did not return a body
}

// getBody is the type of Request.GetBody.
type getBody = func() (io.ReadCloser, error)

// Prepare decides how the body of req is sent. The body of http.NewRequest is
// sent as it is if it is in memory, because its reader neither fails nor
// blocks. Any other body is read through a Recorder, which keeps at most limit
// bytes if there is no GetBody.
func (b *Body) Prepare(req *http.Request, limit int64) {
	b.has, b.getBody, b.source = isBody(req.Body), req.GetBody, req.Body
	switch {
	case IsDirect(req):
	// Only a record of the bytes can replace the body.
	case req.GetBody == nil:
		b.rec = newRecorder(req.Body, limit)
	// GetBody returns new bodies, so no bytes are recorded. The Recorder knows
	// whether an attempt still reads, and how the reader failed.
	default:
		b.rec = newUnrecorded(req.Body)
	}
}

// PrepareSent is Prepare after the base transport has sent a request with the
// given Body and GetBody, for which IsDirect was true. The base transport may
// have replaced both.
func (b *Body) PrepareSent(body io.ReadCloser, getBody func() (io.ReadCloser, error)) {
	b.has, b.getBody, b.source = isBody(body), getBody, body
}

// Has reports whether the caller's request had a body. A layer may give it one
// later, such as go-vcr, which replaces the body of each request.
func (b *Body) Has() bool { return b.has }

func isBody(body io.ReadCloser) bool { return body != nil && body != http.NoBody }

// IsDirect reports whether Prepare leaves the body of req, if any, as it is.
func IsDirect(req *http.Request) bool {
	return !isBody(req.Body) || isInMemory(req.Body, req.GetBody)
}

// isInMemory reports whether body is in memory and getBody is the function that
// http.NewRequest makes for it. That function returns further readers of the
// same bytes, and neither fails nor blocks. A function of another origin may
// seek in the reader of body.
func isInMemory(body io.ReadCloser, getBody getBody) bool {
	return getBody != nil &&
		slices.Contains(ofNewRequest[:], reflect.ValueOf(getBody).Pointer()) &&
		bounded.InMemory(body)
}

// ofNewRequest has the functions that http.NewRequest sets as GetBody. If a
// compiler inlines NewRequest, its functions there are others. Then their
// bodies have a Recorder, which costs allocations.
var ofNewRequest = [...]uintptr{
	ofNewRequestFor(bytes.NewBufferString(" ")),
	ofNewRequestFor(bytes.NewReader([]byte(" "))),
	ofNewRequestFor(strings.NewReader(" ")),
}

func ofNewRequestFor(body io.Reader) uintptr {
	req, err := http.NewRequest(http.MethodPut, "", body)
	if err != nil {
		return 0
	}
	return reflect.ValueOf(req.GetBody).Pointer()
}

// IsInMemory reports whether the body of the current attempt, if any, is in
// memory.
func (b *Body) IsInMemory() bool { return b.rec == nil || b.rec.inMemory }

// Recorder returns the Recorder of the current attempt, or nil if the base
// transport reads the body itself.
func (b *Body) Recorder() *Recorder { return b.rec }

// Copies returns the bodies that the current attempt gets from GetBody, or nil
// if its GetBody is the caller's own or it has none.
func (b *Body) Copies() *Copies { return b.copies }

// GetBody returns GetBody for the request of the current attempt, or nil.
func (b *Body) GetBody() func() (io.ReadCloser, error) {
	if b.rec == nil || b.getBody == nil {
		return b.getBody
	}
	b.makeCopies()
	return b.copies.Get
}

func (b *Body) makeCopies() {
	if b.copies == nil {
		b.copies = newCopies(b.getBody, b.rec)
	}
}

// Err returns the reason why Rewind got no body from GetBody, or nil.
func (b *Body) Err() error { return b.err }

// Open returns the body of the next attempt. If no attempt can follow that one,
// nothing more is recorded.
func (b *Body) Open(last bool) io.ReadCloser {
	if b.next != nil {
		b.replaceSource()
	}
	if b.rec == nil {
		return b.source
	}
	return b.rec.open(last)
}

// replaceSource ends the bodies of the previous attempt, and takes the one that
// GetBody has returned.
func (b *Body) replaceSource() {
	next := b.next
	for _, r := range b.recorders() {
		r.endView() // the previous attempt may still be reading
		if sameBody(r.source, next) {
			r.leaveSource()
		}
		_ = r.closeSource() // net/http ignores such an error, too
	}
	b.source, b.rec, b.copies, b.next = next, nil, nil, nil
	if !isInMemory(next, b.getBody) {
		b.rec = newUnrecorded(next)
	}
}

// recorders returns the Recorders that the current attempt reads through.
func (b *Body) recorders() []*Recorder {
	switch {
	case b.copies != nil:
		return b.copies.all()
	case b.rec != nil:
		b.only[0] = b.rec
		return b.only[:]
	}
	return nil
}

// Pin reports whether the body can be sent again, as far as that is known
// without GetBody. Until Open or Finish, no attempt reads bytes that the record
// cannot keep. The previous attempt may still be sending the body, and
// continues if its response is the last one.
func (b *Body) Pin() bool {
	b.err = nil
	switch {
	case !b.has:
		return true
	// A reader that has failed would fail again.
	case b.Failure() != nil:
		return false
	case b.getBody == nil:
		return b.rec.pin()
	}
	return true
}

// Rewind calls GetBody for the next attempt, if there is GetBody, and reports
// whether there is a body. Rewind is called after Pin, and only if no other
// condition prevents the retry. The reason is that GetBody may seek in the body
// that the previous attempt is still sending. Rewind does not wait for GetBody
// after stop, or longer than limit.
func (b *Body) Rewind(stop bounded.Signal, limit time.Duration) bool {
	switch {
	case !b.has || b.getBody == nil:
		return true
	case b.rec != nil:
		b.makeCopies()
		b.next, b.err = b.copies.rewind(stop, limit)
	// The function of http.NewRequest does not block.
	default:
		b.next, b.err = b.getBody()
	}
	return b.err == nil
}

// Finish is called when no attempt follows the current one, which may still be
// sending the body. It undoes Pin.
func (b *Body) Finish() {
	if b.rec == nil {
		return
	}
	// GetBody may still move the position of the reader. Then the upload does
	// not continue.
	if !b.copies.inGetBody() {
		unpinAll(b.recorders())
	}
	b.rec.finish()
}

// Abort closes the bodies that the current attempt reads through a Recorder,
// and the body that Rewind got for an attempt that is not made.
func (b *Body) Abort() {
	next := b.next
	b.next = nil
	for _, r := range b.recorders() {
		// GetBody may have returned a body of the current attempt again. If
		// that is still open, it is closed here, and must not be closed twice.
		if next != nil && !r.isClosed() && sameBody(r.source, next) {
			next = nil
		}
		r.abort()
	}
	if next != nil {
		_ = bounded.Close(bounded.MaxTime, next) // no attempt has read it
	}
}

// Failure returns the error of the caller's reader, or nil if that has not
// failed.
func (b *Body) Failure() error {
	for _, r := range b.recorders() {
		if err := r.failure(); err != nil {
			return err
		}
	}
	return nil
}

// WithCloseFailure adds the error of closing the caller's reader to err, the
// error of an attempt. failed reports whether Close returned an error. Over
// HTTP/1, net/http returns only one of the two errors.
func (b *Body) WithCloseFailure(err error) (all error, failed bool) {
	for _, r := range b.recorders() {
		closeErr := r.closeFailure()
		if closeErr == nil {
			continue
		}
		failed = true
		// net/http returns it only if there was no error before
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

// IsRead reports whether the base transport has read the whole body, or will read
// no more of it. A body in memory counts, because its reader waits for nothing.
func (b *Body) IsRead() bool {
	return b.IsInMemory() || !slices.ContainsFunc(b.recorders(), (*Recorder).isInUse)
}

// Watch is called before the base transport's RoundTrip, and stop after it. In
// between, the end of ctx ends the reading of the body. Over HTTP/1, net/http
// waits for a Read that blocks even after the request was canceled.
func (b *Body) Watch(ctx context.Context) (stop func()) {
	rec, copies := b.rec, b.copies
	if rec == nil {
		return func() {}
	}
	rec.setInRoundTrip(true)
	copies.begin(ctx)
	var i interrupt
	switch {
	// No Read of it blocks, unless GetBody is called (Copies.running).
	case rec.inMemory:
	case copies != nil:
		i = interruptAfter(ctx, copies.Interrupt)
	default:
		i = interruptAfter(ctx, rec.Interrupt)
	}
	return func() {
		rec.setInRoundTrip(false)
		copies.returned()
		i.end()
	}
}

// interrupt is a call that follows the end of a context.
type interrupt struct {
	stop func() bool // nil: there is none
	done chan struct{}
}

func interruptAfter(ctx context.Context, f func()) interrupt {
	done := make(chan struct{})
	return interrupt{context.AfterFunc(ctx, func() { defer close(done); f() }), done}
}

// end waits for a call that has begun, which must not end the view of the next
// attempt.
func (i interrupt) end() {
	if i.stop != nil && !i.stop() {
		<-i.done
	}
}
