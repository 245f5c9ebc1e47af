package replay

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/internal/bounded"
)

var errClosed = errors.New("httpretry: read of a request body that is closed")

// Recorder lets several attempts read one body from its beginning, each
// through a view of its own, while an earlier attempt may still be inside a
// Read. What was read is recorded, and later views read it from there. The
// rest is read from the source, by one view at a time and never ahead. A file
// can be read at an offset, so nothing of it is recorded.
//
// Whether the body can be sent again depends on the source and the record:
//
//	content     err     the record contains       can be sent again
//	recording   nil     all bytes read so far     until source is closed
//	recording   io.EOF  all bytes of the source   yes
//	recording   other   the bytes before it       no
//	overflowed  any     nothing                   no
//
// A Recorder is safe for concurrent use.
type Recorder struct {
	source     io.ReadCloser
	file       fileSource
	limit      int64 // most bytes recorded
	hasGetBody bool  // which returns other bodies, and may seek in source

	mu         sync.Mutex
	wake       sync.Cond
	current    *view
	record     [][]byte // what was read, from the beginning; all but the last piece are full
	recorded   int64    // bytes in record
	overflowed bool     // more was read than limit, so record is gone
	err        error    // how source ended: io.EOF, or its failure
	reading    bool     // a view is inside source.Read
	pinned     bool     // a retry is being decided: nothing of the record may be lost
	last       bool     // no view follows the current one
	roundTrip  roundTrip
	closed     bool  // source is, or is being
	closeErr   error // what closing source returned
}

// roundTrip is the base transport's RoundTrip for the current view.
type roundTrip struct {
	running bool
	stuck   *time.Timer // closes the source if RoundTrip goes on, or nil
}

// fileSource is a source that can be read at an offset, if reader is not nil.
type fileSource struct {
	reader io.ReaderAt
	start  int64 // where the file stood
}

func newRecorder(source io.ReadCloser, limit int64) *Recorder {
	r := &Recorder{source: source, limit: limit}
	r.wake.L = &r.mu
	// Only an *os.File itself: a type around a file may have a Read of its own.
	if f, ok := source.(*os.File); ok {
		if start, err := f.Seek(0, io.SeekCurrent); err == nil { // not so for a pipe
			r.file = fileSource{f, start}
		}
	}
	return r
}

// newUnrecorded returns a Recorder of a body for which there is GetBody.
func newUnrecorded(source io.ReadCloser) *Recorder {
	r := newRecorder(source, 0)
	r.hasGetBody = true
	return r
}

// open returns a new view, and closes the one before it.
func (r *Recorder) open(last bool) io.ReadCloser {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil {
		r.current.end()
	}
	// The record was pinned for this attempt.
	r.pinned, r.closeErr, r.last = false, nil, last
	r.current = &view{rec: r}
	r.wake.Broadcast()
	return r.current
}

// pin reports whether the whole body can be sent again, and if so, prevents
// Reads that would overflow the record.
func (r *Recorder) pin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pinned = r.isWhole()
	return r.pinned
}

// isWhole is called with r.mu held.
func (r *Recorder) isWhole() bool {
	ended := r.err == io.EOF // all of source is in the record
	// A Read is under way whose result will not fit.
	overflowing := r.reading && r.recorded == r.limit
	return !r.overflowed && !overflowing && (r.err == nil || ended) && (!r.closed || ended)
}

// pause prevents further Reads of the source, and waits for the current one:
// GetBody may seek in the source. Reads of a file continue, because they do not
// use its position. If a Read blocks, pause returns false.
func (r *Recorder) pause() (idle bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pinned = true
	// A sync.Cond has no timeout, so a timer wakes it up.
	late := false
	timer := time.AfterFunc(patience, func() {
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
	r.current.end()
	r.wake.Broadcast()
}

// leaveSource leaves closing the source to the next Recorder.
func (r *Recorder) leaveSource() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// finish forgets what the current view has read already, and records no more:
// the caller may keep its response open for hours.
func (r *Recorder) finish() {
	r.mu.Lock()
	r.last = true
	unused := r.current == nil || r.current.isClosed()
	if unused {
		r.record = nil
	} else {
		// The view continues with its current piece: only those before are
		// done.
		clear(r.record[:min(r.current.piece, len(r.record))])
	}
	r.mu.Unlock()
	if unused {
		_ = r.closeSource() // there is nobody left who could use the error
	}
}

// Reopen takes back the close of a view that the base transport has read
// nothing of. net/http closes the body of a request that it cannot begin on
// the HTTP/2 connection which it chose, and then sends the request, with that
// body, on another. It does not close it again.
func (r *Recorder) Reopen() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.current; v != nil && v.state == viewClosedUnread && !r.closed {
		v.state = viewReopened
	}
}

// Interrupt ends the current view. A Read that is inside the source can only
// be ended by closing the source, and with it the chance to send the body
// again.
func (r *Recorder) Interrupt() {
	r.mu.Lock()
	abandoned, unrecorded := false, false
	if v := r.current; v != nil {
		unrecorded = v.unrecorded.Load()
		// net/http does not close a reopened view, so the source is closed
		// here if no other view would.
		abandoned = r.last && v.state == viewReopened
		v.end()
	}
	// A view may be waiting for the Read of another one.
	r.wake.Broadcast()
	// An unrecorded view reads without the lock, so it may be inside Read.
	blocking := r.reading || unrecorded || r.overflowed && !r.hasGetBody
	r.mu.Unlock()
	if blocking || abandoned {
		_ = r.closeSource() // a reader gets the error of its Read
	}
}

// setInRoundTrip notes that the base transport's RoundTrip begins or ends.
func (r *Recorder) setInRoundTrip(running bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.roundTrip.stuck != nil {
		r.roundTrip.stuck.Stop()
	}
	r.roundTrip = roundTrip{running: running}
}

// awaitRoundTrip is called with r.mu held, when the base transport has closed
// its view while a Read of the source was under way. Over HTTP/2, net/http
// closes the body of a stream that was reset and then waits for the Read
// (clientStream.cleanupWriteRequest), which may end only with the answer. A
// response, for which a view is closed as well, arrives at once. So if
// RoundTrip is still running a moment later, the source is closed.
func (r *Recorder) awaitRoundTrip() {
	if !r.roundTrip.running || r.roundTrip.stuck != nil {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(patience, func() {
		r.mu.Lock()
		// RoundTrip may have returned just as the timer fired.
		stuck := r.roundTrip.stuck == timer && r.reading
		r.mu.Unlock()
		if stuck {
			_ = r.closeSource() // the Read gets the error
		}
	})
	r.roundTrip.stuck = timer
}

// closeSource closes the source once, whoever comes first. It does not wait
// for a Close that blocks, as one may that shares a lock with Read or that
// reads what a client has yet to send.
func (r *Recorder) closeSource() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	// After its end, a source is not inside Read and has nothing to wait for.
	ended := r.err != nil || r.current != nil && r.current.complete.Load()
	r.wake.Broadcast()
	r.mu.Unlock()

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
	} else if !bounded.Run(patience, closeNow) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closeErr
}

// failure returns the error of the source, but not one that is the result of
// closing it.
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
	return r.current.isClosed() && !r.current.complete.Load()
}

// isClosed reports whether the source is closed, or left to another Recorder.
func (r *Recorder) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// ended notes how a source failed of which nothing is recorded.
func (r *Recorder) ended(err error) error {
	if err != nil && err != io.EOF {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.closed && r.err == nil {
			r.err = err
		}
	}
	return err
}

// keep adds p to the record, in pieces that double its size: nothing is copied
// when it grows, and all pieces together never exceed the limit.
func (r *Recorder) keep(p []byte) {
	for len(p) > 0 {
		last := len(r.record) - 1
		if last < 0 || len(r.record[last]) == cap(r.record[last]) {
			size := min(max(int64(len(p)), r.recorded, 512), r.limit-r.recorded)
			r.record = append(r.record, make([]byte, 0, size))
			last++
		}
		piece := r.record[last]
		n := min(len(p), cap(piece)-len(piece))
		r.record[last] = append(piece, p[:n]...)
		r.recorded += int64(n)
		p = p[n:]
	}
}

// viewState is the state of a view:
//
//	unread ──▶ read ──▶ closed
//	   └────▶ closedUnread ──▶ reopened ──▶ closed
//
// A view is closed by the base transport, by the next attempt, or with its
// attempt. Only a view that the base transport closed unread can be reopened.
type viewState uint8

const (
	viewUnread viewState = iota
	viewRead
	viewClosed
	viewClosedUnread
	viewReopened // not closed again by the base transport
)

// view is the body of one attempt. Its fields are guarded by rec.mu or used by
// one Read at a time, but for the atomic ones.
type view struct {
	rec        *Recorder
	state      viewState
	offset     int64       // of the next byte, where the source is read at offsets
	piece      int         // of the record
	skip       int         // bytes of the piece that were read
	unrecorded atomic.Bool // no other view follows, and the record was read: Read needs no lock
	complete   atomic.Bool // all was read
}

// isClosed is called with rec.mu held.
func (v *view) isClosed() bool { return v.state == viewClosed || v.state == viewClosedUnread }

// end is called with rec.mu held.
func (v *view) end() {
	v.state = viewClosed
	v.unrecorded.Store(false)
}

func (v *view) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err = v.read(p)
	if err == io.EOF {
		v.complete.Store(true)
	}
	if err != nil && v.isReopened() {
		_ = v.Close() // as net/http would, which does not look at the error either
	}
	return n, err
}

func (v *view) isReopened() bool {
	v.rec.mu.Lock()
	defer v.rec.mu.Unlock()
	return v.state == viewReopened
}

func (v *view) read(p []byte) (n int, err error) {
	r := v.rec
	if v.unrecorded.Load() {
		n, err = r.source.Read(p)
		return n, r.ended(err)
	}
	// What was recorded comes first, then the file or the source.
	n, done, err := v.readRecord(p)
	switch {
	case done:
		return n, err
	case r.file.reader != nil:
		n, err = r.file.reader.ReadAt(p, r.file.start+v.offset)
		v.offset += int64(n)
		return n, r.ended(err)
	}
	return v.readSource(p)
}

// readRecord serves a Read that needs no source. If it is not done, the caller
// has to read from the source, and unless that is a file, nobody else does.
func (v *view) readRecord(p []byte) (n int, done bool, err error) {
	r := v.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if v.isClosed() || r.file.reader != nil && r.closed {
			return 0, true, errClosed
		}
		if v.state == viewUnread {
			v.state = viewRead
		}
		if r.file.reader != nil {
			return 0, false, nil
		}
		if n = v.copyRecord(p); n > 0 {
			return n, true, nil
		}
		switch {
		case r.err != nil:
			return 0, true, r.err
		case r.closed:
			return 0, true, errClosed
		// While a retry is being decided, what would not fit is not read.
		case !r.reading && !(r.pinned && r.recorded == r.limit):
			r.reading = true
			return 0, false, nil
		}
		r.wake.Wait()
	}
}

// copyRecord is called with rec.mu held.
func (v *view) copyRecord(p []byte) int {
	r := v.rec
	for ; v.piece < len(r.record); v.piece, v.skip = v.piece+1, 0 {
		if n := copy(p, r.record[v.piece][v.skip:]); n > 0 {
			v.skip += n
			return n
		}
		if v.piece == len(r.record)-1 {
			break // it may grow
		}
		// No view follows that would need the piece.
		if r.last {
			r.record[v.piece] = nil
		}
	}
	return 0
}

// readSource reads from the source, and records what it gets if there is room.
func (v *view) readSource(p []byte) (n int, err error) {
	r := v.rec
	// Only what fits is read, until there is no room: then the record
	// overflows.
	if room := v.room(); room > 0 {
		p = p[:min(int64(len(p)), room)]
	}
	err = errClosed // if Read panics, others must not wait for it
	defer func() { v.store(p[:n], err) }()
	n, err = r.source.Read(p)
	return n, err
}

// room returns how many bytes can still be recorded. Only the one view that
// reads changes that.
func (v *view) room() int64 {
	v.rec.mu.Lock()
	defer v.rec.mu.Unlock()
	// What an earlier view reads is for the current view to read, too.
	if v.rec.last && v == v.rec.current {
		return 0
	}
	return v.rec.limit - v.rec.recorded
}

// store takes in what a Read of the source returned.
func (v *view) store(p []byte, err error) {
	r := v.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reading = false
	switch {
	// No view follows, so nothing is recorded and Read needs no lock from now
	// on, unless it has to pause for GetBody.
	case r.last && v == r.current:
		r.record = nil
		v.unrecorded.Store(!v.isClosed() && err == nil && !r.hasGetBody)
	case r.recorded+int64(len(p)) <= r.limit:
		r.keep(p)
		v.piece = max(len(r.record)-1, 0)
		if r.record != nil {
			v.skip = len(r.record[v.piece])
		}
	// More than the limit: the record is of no use any more.
	default:
		r.overflowed = true
		r.record = nil
		v.unrecorded.Store(!v.isClosed() && !r.hasGetBody)
	}
	switch {
	case err == nil || r.err != nil:
	case r.closed && err != io.EOF:
		r.err = errClosed // closed here, so the error is not the source's own
	default:
		r.err = err
	}
	r.wake.Broadcast()
}

// Close ends the view. It does not wait for a Read. It closes the source if no
// later view can read from it: no attempt follows, the record has overflowed,
// or the source has ended.
func (v *view) Close() error {
	r := v.rec
	r.mu.Lock()
	// net/http may reopen a view of which it has read nothing.
	if v.state == viewUnread {
		v.state = viewClosedUnread
	} else if v.state != viewClosedUnread {
		v.end()
	}
	v.unrecorded.Store(false)
	if v == r.current && r.last {
		r.record = nil
	}
	// Until RoundTrip returns, net/http may reopen a view that it has not read.
	last := r.last && !(v.state == viewClosedUnread && r.roundTrip.running)
	unneeded := v == r.current && (last || r.overflowed) || r.err != nil && r.file.reader == nil
	// A Read is under way for which net/http may be waiting.
	if !unneeded && v == r.current && r.reading {
		r.awaitRoundTrip()
	}
	r.wake.Broadcast()
	// GetBody may have made the source ready for the next attempt. Abort or
	// finish closes it if there is none, or if GetBody returned another body.
	unneeded = unneeded && !(r.pinned && r.hasGetBody)
	r.mu.Unlock()
	if unneeded {
		return r.closeSource()
	}
	return nil
}
