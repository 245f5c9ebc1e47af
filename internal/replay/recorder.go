package replay

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry/internal/bounded"
)

var errClosed = errors.New("httpretry: read of a request body that is closed")

// Recorder lets several attempts read one body from its beginning. Each attempt
// has a view. A Read of an earlier attempt may still be under way. Bytes of the
// source are recorded, and later views read them from the record. The rest is
// read from the source, by one view at a time and never ahead. A file is read
// at offsets, so none of its bytes are recorded.
//
// Whether the body can be sent again depends on the source and the record:
//
//	overflowed  err     the record contains       can be sent again
//	false       nil     all bytes read so far     until source is closed
//	false       io.EOF  all bytes of the source   yes
//	false       other   the bytes before err      no
//	true        any     nothing                   no
//
// What the last view reads is not kept, so it cannot be sent again once that has
// begun to read.
//
// If the request has GetBody, a Recorder has only one view and records nothing,
// because a later attempt gets another body. It is needed for two facts: the
// error of the reader, and whether the previous attempt still reads.
//
// From Pin until the next Open or Finish, and while GetBody runs, the source is
// pinned. Then views read no bytes that the record cannot keep, so none are
// lost, and a source in which GetBody may seek is not read. Reads of a file
// continue.
//
// A Recorder is safe for concurrent use.
type Recorder struct {
	// newRecorder and newUnrecorded set these. From then on, they are only
	// read. Only the view that has set reading calls source.Read. Views of a
	// file call ReadAt concurrently.
	source   io.ReadCloser
	kind     sourceKind
	start    int64 // the position of a file when the Recorder was made
	inMemory bool  // no Read of source blocks

	// mu guards all fields below.
	mu        sync.Mutex
	wake      sync.Cond // of mu; a Read that waits may be able to continue
	current   *view
	record    record // of a recordedSource; otherwise, it keeps no bytes
	err       error  // io.EOF at the end of source, or its failure
	reading   bool   // a view is inside source.Read
	pinned    bool   // views read only bytes that the record can keep
	last      bool   // no view follows the current one
	roundTrip roundTrip
	closed    bool  // source is closed or being closed
	closeErr  error // the error of closing source
}

// sourceKind is how views read a source.
type sourceKind uint8

const (
	// recordedSource is read once, and later views read the record.
	recordedSource sourceKind = iota
	// fileSource is an *os.File. Each view reads it at the view's offset.
	fileSource
	// replaceableSource is read by one view. GetBody returns the body of the
	// next attempt, and may seek in this one.
	replaceableSource
)

// roundTrip is the base transport's RoundTrip for the current view. The mu of
// the Recorder guards it.
type roundTrip struct {
	running bool
	stuck   *time.Timer // closes the source if RoundTrip continues, or nil
}

// newRecorder returns a Recorder that keeps at most limit bytes, unless source
// is a file.
func newRecorder(source io.ReadCloser, limit int64) *Recorder {
	r := &Recorder{
		source: source, inMemory: bounded.InMemory(source), record: record{limit: limit}}
	r.wake.L = &r.mu
	// A type that wraps a file may have another Read, so only an *os.File
	// itself counts.
	if f, ok := source.(*os.File); ok {
		if start, err := f.Seek(0, io.SeekCurrent); err == nil { // a pipe cannot seek
			r.kind, r.start = fileSource, start
		}
	}
	return r
}

// newUnrecorded returns a Recorder that records nothing, for a body whose
// request has GetBody.
func newUnrecorded(source io.ReadCloser) *Recorder {
	r := newRecorder(source, 0)
	if r.kind == recordedSource {
		r.kind = replaceableSource
	}
	return r
}

// open returns a new view, and closes the one before it.
func (r *Recorder) open(last bool) io.ReadCloser {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil {
		r.current.state = viewClosed
	}
	// The source was pinned for this attempt.
	r.pinned, r.closeErr, r.last = false, nil, last
	r.current = &view{rec: r}
	r.wake.Broadcast()
	return r.current
}

// pin reports whether the whole body can be sent again, and if so, pins the
// source.
func (r *Recorder) pin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pinned = r.isWhole()
	return r.pinned
}

// isWhole is called with r.mu held.
func (r *Recorder) isWhole() bool {
	switch {
	case r.record.overflowed:
		return false
	// The bytes that the last view has read are not kept.
	case r.last && r.current.hasBegun():
		return false
	// The record has all bytes of the source.
	case r.err == io.EOF:
		return true
	// The bytes of the Read that is under way will not fit.
	case r.reading && r.record.room() == 0:
		return false
	}
	return r.err == nil && !r.closed
}

// pinAndWait pins the source, and waits for the Read that is under way. If that
// blocks, pinAndWait returns false.
func (r *Recorder) pinAndWait() (idle bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pinned = true
	// A sync.Cond has no timeout, so a timer wakes it up.
	late := false
	timer := time.AfterFunc(bounded.MaxTime, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		late = true
		r.wake.Broadcast()
	})
	defer timer.Stop()
	for r.reading && !late {
		r.wake.Wait()
	}
	return !r.reading
}

func (r *Recorder) unpin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pinned = false
	r.wake.Broadcast()
}

// endView ends the current view, and leaves the source as it is.
func (r *Recorder) endView() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current.state = viewClosed
	r.wake.Broadcast()
}

// leaveSource records that the next Recorder closes the source.
func (r *Recorder) leaveSource() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// finish records no more, because the caller may keep the response open for
// hours. If the current view has ended, finish closes the source.
func (r *Recorder) finish() {
	if r.endRecord() {
		_ = r.closeSource() // the request has ended and cannot return the error
	}
}

// abort closes the source. The base transport may still read the current view.
func (r *Recorder) abort() {
	r.endRecord()
	_ = r.closeSource() // net/http has no use for the error either
}

// endRecord is called when no view follows the current one. It forgets the
// bytes that the current view has read, and reports whether that has ended.
func (r *Recorder) endRecord() (unused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = true
	if v := r.current; v != nil && !v.isClosed() {
		// The view may still read a part of its current piece.
		r.record.forgetBefore(v.at)
		return false
	}
	if r.current != nil {
		r.current.state = viewClosed // if it were reopened, its body would be empty
	}
	r.record.forget()
	return true
}

// Reopen undoes the Close of a view from which the base transport has read
// nothing. If net/http cannot begin a request on the HTTP/2 connection that it
// chose, it closes the body. It then sends the request with the same body on
// another connection, and does not close the body again.
func (r *Recorder) Reopen() {
	r.mu.Lock()
	defer r.mu.Unlock()
	// If the record has all bytes, the source is not needed.
	readable := !r.closed || r.err == io.EOF
	if v := r.current; v != nil && v.state == viewClosedUnread && readable {
		v.state = viewReopened
	}
}

// Interrupt ends the current view. If a Read of the source is under way, only
// closing the source can end it. Then the body cannot be sent again.
func (r *Recorder) Interrupt() {
	r.mu.Lock()
	closes := r.reading
	if v := r.current; v != nil {
		// net/http does not close a reopened view, so the source is closed
		// here if no other view would.
		closes = closes || r.last && v.state == viewReopened
		v.state = viewClosed
	}
	// A view may be waiting for the Read of another one.
	r.wake.Broadcast()
	r.mu.Unlock()
	if closes {
		_ = r.closeSource() // the Read returns its error
	}
}

// setInRoundTrip records that the base transport's RoundTrip begins or ends.
func (r *Recorder) setInRoundTrip(running bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.roundTrip.stuck != nil {
		r.roundTrip.stuck.Stop()
	}
	r.roundTrip = roundTrip{running: running}
}

// awaitRoundTrip closes the source a moment later if RoundTrip is still running
// then. It is called with r.mu held, when the base transport has closed its
// view while a Read of the source was under way. Over HTTP/2, net/http closes
// the body of a stream that was reset and then waits for that Read
// (clientStream.cleanupWriteRequest). The Read may end only after the caller
// has got the response. If the view was closed because a response has arrived,
// RoundTrip returns at once.
func (r *Recorder) awaitRoundTrip() {
	if !r.roundTrip.running || r.roundTrip.stuck != nil {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(bounded.MaxTime, func() {
		r.mu.Lock()
		// RoundTrip may have returned just as the timer fired.
		stuck := r.roundTrip.stuck == timer && r.reading
		r.mu.Unlock()
		if stuck {
			_ = r.closeSource() // the Read returns the error
		}
	})
	r.roundTrip.stuck = timer
}

// closeSource closes the source, once. It does not wait for a Close that
// blocks. That may share a lock with Read, or read bytes that a client has not
// sent yet.
func (r *Recorder) closeSource() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	// After the end of the source, no Read is under way, so Close does not
	// block.
	ended := r.err != nil || r.current != nil && r.current.complete
	r.wake.Broadcast()
	r.mu.Unlock()
	// Close of a body in memory does nothing.
	if r.inMemory {
		return nil
	}

	closeNow := func() {
		if err := r.source.Close(); err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.closeErr = err
		}
	}
	// A Close that cannot block needs no goroutine.
	if ended {
		closeNow()
	} else if !bounded.Run(bounded.MaxTime, closeNow) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closeErr
}

// failure returns the error of the source, or nil at its end. Errors that
// closing the source caused are not in r.err (store, fail). errClosed is there
// if a Read panicked, or if the source is a closed view of an outer
// RetryTransport.
func (r *Recorder) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == io.EOF || r.err == errClosed {
		return nil
	}
	return r.err
}

// closeFailure returns the error of closing the source.
func (r *Recorder) closeFailure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closeErr
}

// closedEarly reports whether the current view was closed before its end.
func (r *Recorder) closedEarly() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current.isClosed() && !r.current.complete
}

// isInUse reports whether the base transport may still read the current view.
func (r *Recorder) isInUse() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.current.complete && !r.current.isClosed()
}

// isClosed reports whether the source is closed, or another Recorder closes it.
func (r *Recorder) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// fail records the failure of a file, unless closing the file caused it.
func (r *Recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed && r.err == nil {
		r.err = err
	}
}
