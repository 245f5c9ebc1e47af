package httpretry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// payload is the body of a request as its attempts see it.
type payload struct {
	req  *http.Request
	rec  *recorder     // what Base reads, where that is not a body in memory
	next io.ReadCloser // from GetBody, between the decision to retry and the attempt
	err  error         // why GetBody did not give one
}

// prepare decides how the body is sent. A body in memory that can be had again
// goes as it is: its reader neither fails nor blocks. Any other is read
// through a recorder.
func (b *payload) prepare(req *http.Request, limit int64) {
	b.req = req
	switch {
	case !hasBody(req):
	case req.GetBody == nil:
		b.rec = newRecorder(req.Body, limit)
	case !inMemory(req.Body):
		b.rec = newRecorder(req.Body, 0)
		b.rec.again = true
	}
}

func hasBody(req *http.Request) bool {
	return req.Body != nil && req.Body != http.NoBody
}

// direct reports whether Base reads the body without a recorder in between.
func (b *payload) direct() bool { return b.rec == nil }

// open returns the body of the attempt that is about to be sent.
func (b *payload) open() io.ReadCloser {
	next := b.next
	if next == nil {
		if b.rec == nil {
			return b.req.Body
		}
		return b.rec.open()
	}
	b.next = nil
	if b.rec != nil {
		b.rec.end() // the attempt before may still be reading
	}
	if !b.shared(next) {
		b.abort()
	}
	if inMemory(next) {
		b.rec = nil
		return next
	}
	b.rec = newRecorder(next, 0)
	b.rec.again = true
	return b.rec.open()
}

// hold makes sure that the body can be sent again, and reports whether it can.
// The attempt it follows may still be sending the body, and still has to if
// its response turns out to be the last: release takes the hold back.
func (b *payload) hold() bool {
	switch {
	case !hasBody(b.req):
		return true
	case b.rec != nil && b.rec.failure() != nil:
		return false
	case b.req.GetBody == nil:
		return b.rec.hold()
	}
	idle := b.rec == nil || b.rec.pause()
	next, err := b.req.GetBody()
	switch {
	case err != nil:
	case next == nil:
		err = errors.New("GetBody returned neither a body nor an error")
	case !idle && b.shared(next):
		err = errors.New("GetBody returned a body that is still being read")
	}
	b.err = err
	if err == nil {
		b.next = next
	}
	return err == nil
}

// release takes back a hold, when no attempt follows.
func (b *payload) release() {
	if b.next != nil && !b.shared(b.next) {
		_ = b.next.Close() // nobody read it
	}
	b.next = nil
	if b.rec != nil {
		b.rec.release()
	}
}

// shared reports whether GetBody has returned the body that the attempt before
// was given: some seek in it, and take that for a copy.
func (b *payload) shared(next io.ReadCloser) bool {
	if b.rec == nil {
		return false
	}
	old := reflect.ValueOf(b.rec.src)
	return old.Comparable() && old.Type() == reflect.TypeOf(next) && b.rec.src == next
}

// finish says that the body is not needed beyond the current attempt, which
// may still be sending it.
func (b *payload) finish() {
	if b.rec != nil {
		b.rec.finish()
	}
}

// abort says that nobody needs the body any longer.
func (b *payload) abort() {
	if b.rec != nil {
		_ = b.rec.closeSource() // net/http has no use for the error either
	}
}

// failure returns the error of the caller's own reader, if that has failed.
func (b *payload) failure() error {
	if b.rec == nil {
		return nil
	}
	return b.rec.failure()
}

// withCloseFailure adds to err, of an attempt, that of closing the caller's own
// reader, if there is one. It may have come of that, and HTTP/1 reports either.
func (b *payload) withCloseFailure(err error) (all error, failed bool) {
	if b.rec == nil {
		return err, false
	}
	b.rec.mu.Lock()
	defer b.rec.mu.Unlock()
	unclean := b.rec.unclean
	if unclean != nil && !errors.Is(err, unclean) {
		err = fmt.Errorf("%w: %w", unclean, err)
	}
	return err, unclean != nil
}

// cut reports whether the body was closed before Base had read it to its end.
func (b *payload) cut() bool {
	if b.rec == nil {
		return false
	}
	b.rec.mu.Lock()
	defer b.rec.mu.Unlock()
	return b.rec.current.closed && !b.rec.current.complete.Load()
}

// watch ends the reading of the body when the attempt that sends req ends,
// until the returned function is called. Base would wait for a Read that
// blocks: over HTTP/1, net/http does even after its request was canceled.
func (b *payload) watch(req *http.Request) (stop func()) {
	rec := b.rec
	if rec == nil {
		return func() {}
	}
	// An interrupt that has begun is waited for: it must not meet the next
	// attempt's view.
	interrupted := make(chan struct{})
	stopCtx := context.AfterFunc(req.Context(), func() { defer close(interrupted); rec.interrupt() })
	unwatchCtx := func() {
		if !stopCtx() {
			<-interrupted
		}
	}
	cancel := legacyCancel(req)
	if cancel == nil {
		return unwatchCtx
	}
	returned := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		select {
		case <-cancel:
			rec.interrupt()
		case <-returned:
		}
	})
	return func() { unwatchCtx(); close(returned); watcher.Wait() }
}

// inMemory reports whether body is one of the readers for which
// http.NewRequest sets GetBody, as it wraps them.
func inMemory(body io.ReadCloser) bool {
	var reader io.Reader = body
	if t := reflect.TypeOf(body); t == reflect.TypeOf(io.NopCloser(nil)) || t == reflect.TypeOf(io.NopCloser(&bytes.Buffer{})) {
		reader, _ = reflect.ValueOf(body).Field(0).Interface().(io.Reader)
	}
	switch reader.(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader:
		return true
	}
	return false
}

var errBodyClosed = errors.New("httpretry: read of a request body that is closed")

// recorder lets several attempts read one body from its beginning, each
// through a view of its own, while an earlier attempt may still be inside a
// Read. What has been read is kept, and later views get it from there; what
// has not is read from the source, by one view at a time, and never ahead. Of
// a file, which can be read at an offset, nothing needs to be kept.
type recorder struct {
	src   io.ReadCloser
	at    io.ReaderAt // src, if it is a file
	start int64       // where src stood
	limit int64       // most bytes kept
	again bool        // there is GetBody, which may seek in src

	mu      sync.Mutex
	wake    sync.Cond
	current *view
	record  [][]byte // what was read, from the beginning; all but the last piece are full
	kept    int64    // bytes in record
	lost    bool     // more was read than may be kept, so record is gone
	err     error    // how src ended: io.EOF, or its failure
	reading bool     // a view is inside src.Read
	held    bool     // nothing may be lost now
	last    bool     // no view follows the current one
	closed  bool     // src is, or is being
	unclean error    // what closing src returned
}

func newRecorder(src io.ReadCloser, limit int64) *recorder {
	r := &recorder{src: src, limit: limit}
	r.wake.L = &r.mu
	if f, ok := src.(*os.File); ok { // nothing else: a type around a file may have a Read of its own
		if start, err := f.Seek(0, io.SeekCurrent); err == nil { // not so for a pipe
			r.at, r.start = f, start
		}
	}
	return r
}

// open returns a new view, and closes the one before it.
func (r *recorder) open() io.ReadCloser {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil {
		r.current.end()
	}
	r.held, r.unclean = false, nil
	r.current = &view{rec: r}
	r.wake.Broadcast()
	return r.current
}

// hold keeps what there is to send again, and reports whether that is all
// there was.
func (r *recorder) hold() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = r.whole()
	return r.held
}

// replayable reports what hold would, and holds nothing.
func (r *recorder) replayable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.again || r.whole()
}

// whole is called with r.mu held.
func (r *recorder) whole() bool {
	ended := r.err == io.EOF // all of src is in the record
	losing := r.reading && r.kept == r.limit
	return !r.lost && !losing && (r.err == nil || ended) && (!r.closed || ended)
}

// pause keeps Base from reading, as hold does, and waits until it does not, for
// GetBody may be about to seek in what it reads. Only a Read that blocks is not
// waited for: then pause returns false.
func (r *recorder) pause() (idle bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = true
	late := false
	timer := time.AfterFunc(maxDrainTime, func() {
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

func (r *recorder) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = false
	r.wake.Broadcast()
}

// end ends the current view, and leaves the source as it is.
func (r *recorder) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current.end()
	r.wake.Broadcast()
}

func (r *recorder) finish() {
	r.mu.Lock()
	r.last = true
	unused := r.current == nil || r.current.closed
	r.mu.Unlock()
	if unused {
		_ = r.closeSource() // there is nobody left to tell
	}
}

// reopen takes back the close of a view that Base has read nothing of. net/http
// closes the body of a request that it cannot begin on the HTTP/2 connection
// which it chose, and then sends the request, with that body, on another. It
// does not close it again.
func (r *recorder) reopen() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.current; v != nil && v.closed && v.spurned && !r.closed {
		v.closed, v.orphan = false, true
	}
}

// interrupt ends the current view. A Read that is inside the source can only
// be ended by closing that, and with it the chance to send the body again.
func (r *recorder) interrupt() {
	r.mu.Lock()
	forgotten := false
	if v := r.current; v != nil {
		forgotten = r.last && v.orphan && !v.closed
		v.end()
		v.spurned = false
	}
	r.wake.Broadcast()
	blocking := r.reading || r.lost && !r.again
	r.mu.Unlock()
	if blocking || forgotten {
		_ = r.closeSource() // a reader gets the error of its Read
	}
}

// closeSource may be called by whoever comes first.
func (r *recorder) closeSource() error {
	r.mu.Lock()
	closed := r.closed
	r.closed = true
	r.wake.Broadcast()
	r.mu.Unlock()
	if closed {
		return nil
	}
	err := r.src.Close()
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.unclean = err
	}
	return err
}

// failure leaves out what came of closing the source.
func (r *recorder) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == io.EOF || r.err == errBodyClosed {
		return nil
	}
	return r.err
}

// view is the body of one attempt.
type view struct {
	rec    *recorder
	offset int64 // of the next byte, where the source is read at offsets
	piece  int   // of the record
	skip   int   // what of the piece has been read

	closed   bool        // guarded by rec.mu
	touched  bool        // Base has read; guarded by rec.mu
	spurned  bool        // Base has closed it untouched; guarded by rec.mu
	orphan   bool        // it was opened again, and Base does not close it; guarded by rec.mu
	alone    atomic.Bool // nothing is kept any more, so no other view follows this one
	complete atomic.Bool // all was read
}

// end is called with rec.mu held.
func (v *view) end() {
	v.closed = true
	v.alone.Store(false)
}

func (v *view) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err = v.read(p)
	if err == io.EOF {
		v.complete.Store(true)
	}
	if err != nil && v.isOrphan() {
		_ = v.Close() // as Base would, which does not look at the error either
	}
	return n, err
}

func (v *view) isOrphan() bool {
	v.rec.mu.Lock()
	defer v.rec.mu.Unlock()
	return v.orphan
}

func (v *view) read(p []byte) (n int, err error) {
	r := v.rec
	if v.alone.Load() {
		n, err = r.src.Read(p)
		return n, r.ended(err)
	}
	n, err, done := v.recorded(p)
	switch {
	case done:
		return n, err
	case r.at != nil:
		n, err = r.at.ReadAt(p, r.start+v.offset)
		v.offset += int64(n)
		return n, r.ended(err)
	}
	return v.pull(p)
}

// recorded serves a Read that needs no source. If it is not done, the caller
// has to read from the source, and for one without offsets, is the only one
// to.
func (v *view) recorded(p []byte) (n int, err error, done bool) {
	r := v.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if v.closed || r.at != nil && r.closed {
			return 0, errBodyClosed, true
		}
		v.touched = true
		if r.at != nil {
			return 0, nil, false
		}
		if n = v.replay(p); n > 0 {
			return n, nil, true
		}
		switch {
		case r.err != nil:
			return 0, r.err, true
		case r.closed:
			return 0, errBodyClosed, true
		case !r.reading && !(r.held && r.kept == r.limit):
			r.reading = true
			return 0, nil, false
		}
		r.wake.Wait()
	}
}

// replay is called with rec.mu held.
func (v *view) replay(p []byte) int {
	for ; v.piece < len(v.rec.record); v.piece, v.skip = v.piece+1, 0 {
		if n := copy(p, v.rec.record[v.piece][v.skip:]); n > 0 {
			v.skip += n
			return n
		}
		if v.piece == len(v.rec.record)-1 {
			break // it may grow
		}
	}
	return 0
}

// pull reads from the source, and keeps what it gets if there is room.
func (v *view) pull(p []byte) (n int, err error) {
	r := v.rec
	if room := r.limit - r.kept; room > 0 { // only who pulls changes kept
		p = p[:min(int64(len(p)), room)]
	}
	err = errBodyClosed // should Read panic, others must not wait for it
	defer func() { v.pulled(p[:n], err) }()
	n, err = r.src.Read(p)
	return n, err
}

// pulled takes in what a Read of the source returned.
func (v *view) pulled(p []byte, err error) {
	r := v.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reading = false
	if r.kept+int64(len(p)) <= r.limit {
		r.keep(p)
		v.piece = max(len(r.record)-1, 0)
		if r.record != nil {
			v.skip = len(r.record[v.piece])
		}
	} else {
		r.lost = true
		r.record = nil
		v.alone.Store(!v.closed && !r.again)
	}
	switch {
	case err == nil || r.err != nil:
	case r.closed && err != io.EOF:
		r.err = errBodyClosed // by us, so the error is not the source's own
	default:
		r.err = err
	}
	r.wake.Broadcast()
}

// keep adds p to the record, in pieces that double its size: nothing is copied
// when it grows, and all of it together is never more than the limit.
func (r *recorder) keep(p []byte) {
	for len(p) > 0 {
		last := len(r.record) - 1
		if last < 0 || len(r.record[last]) == cap(r.record[last]) {
			size := min(max(int64(len(p)), r.kept, 512), r.limit-r.kept)
			r.record = append(r.record, make([]byte, 0, size))
			last++
		}
		piece := r.record[last]
		n := min(len(p), cap(piece)-len(piece))
		r.record[last] = append(piece, p[:n]...)
		r.kept += int64(n)
		p = p[n:]
	}
}

// ended notes how a source failed that nothing is kept of.
func (r *recorder) ended(err error) error {
	if err != nil && err != io.EOF {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.closed && r.err == nil {
			r.err = err
		}
	}
	return err
}

// Close ends the view. It does not wait for a Read. The source is closed with
// the last view, or with the first that has seen all that can be sent again.
func (v *view) Close() error {
	r := v.rec
	r.mu.Lock()
	v.end()
	v.spurned = !v.touched
	unneeded := v == r.current && (r.last || r.lost) || r.err != nil && r.at == nil
	r.wake.Broadcast()
	r.mu.Unlock()
	if unneeded {
		return r.closeSource()
	}
	return nil
}
