package replay

import "io"

// view is the body of one attempt. Close may be called during a Read.
type view struct {
	rec *Recorder // set by open

	// The mu of rec guards these.
	state    viewState
	at       position // of the next byte in the record
	complete bool     // Read has returned io.EOF

	// Only Read uses offset, and two Reads of a body are never concurrent.
	offset int64 // of the next byte in a fileSource
}

// viewState is the state of a view:
//
//	unread ──▶ read ──▶ closed
//	   └────▶ closedUnread ──▶ reopened ──▶ closed
//
// A view is closed by the base transport, by the next attempt, or with its
// attempt. The last two close it in any state. Only a view that the base
// transport closed unread can be reopened.
type viewState uint8

const (
	viewUnread viewState = iota
	viewRead
	viewClosed
	viewClosedUnread
	viewReopened // not closed again by the base transport
)

// isClosed is called with rec.mu held.
func (v *view) isClosed() bool { return v.state == viewClosed || v.state == viewClosedUnread }

// isLast reports whether no view follows v. It is called with rec.mu held.
func (v *view) isLast() bool { return v.rec.last && v == v.rec.current }

// hasBegun reports whether v may have been read. It is called with rec.mu held.
func (v *view) hasBegun() bool { return v.state != viewUnread && v.state != viewClosedUnread }

func (v *view) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err = v.read(p)
	if err != nil && v.noteError(err) {
		_ = v.Close() // net/http would close it here, and ignores the error, too
	}
	return n, err
}

// noteError records io.EOF. It reports whether the view closes itself after
// err.
func (v *view) noteError(err error) bool {
	v.rec.mu.Lock()
	defer v.rec.mu.Unlock()
	if err == io.EOF {
		v.complete = true
	}
	return v.state == viewReopened
}

func (v *view) read(p []byte) (n int, err error) {
	if v.rec.kind == fileSource {
		return v.readFile(p)
	}
	n, rest, err := v.readRecord(p)
	if rest != nil {
		return v.readSource(rest)
	}
	return n, err
}

// begin records that the base transport reads the view. It is called with
// rec.mu held.
func (v *view) begin() error {
	switch {
	// net/http has begun again (Recorder.Reopen), which nobody may have noticed.
	case v.state == viewClosedUnread && v.rec.inMemory && !v.rec.closed:
		v.state = viewReopened
	case v.isClosed():
		return errClosed
	case v.state == viewUnread:
		v.state = viewRead
	}
	return nil
}

func (v *view) readFile(p []byte) (n int, err error) {
	if err := v.beginFile(); err != nil {
		return 0, err
	}
	// Reads at offsets do not disturb each other, so no lock is held.
	n, err = v.rec.source.(io.ReaderAt).ReadAt(p, v.rec.start+v.offset)
	v.offset += int64(n)
	if err != nil && err != io.EOF {
		v.rec.fail(err)
	}
	return n, err
}

func (v *view) beginFile() error {
	v.rec.mu.Lock()
	defer v.rec.mu.Unlock()
	if v.rec.closed {
		return errClosed
	}
	return v.begin()
}

// readRecord serves a Read from the record. At the end of the record, it
// returns the part of p that the caller must read from the source. Until that
// is done, no other view reads from the source.
func (v *view) readRecord(p []byte) (n int, rest []byte, err error) {
	r := v.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if err := v.begin(); err != nil {
			return 0, nil, err
		}
		n = r.record.copyTo(p, &v.at)
		if r.last {
			r.record.forgetBefore(v.at) // no view follows that would read it
		}
		if n > 0 {
			return n, nil, nil
		}
		switch {
		case r.err != nil:
			return 0, nil, r.err
		case r.closed:
			return 0, nil, errClosed
		case r.mayRead():
			r.reading = true
			return 0, v.fitting(p), nil
		}
		r.wake.Wait()
	}
}

// mayRead reports whether a view may read from the source now. It is called
// with r.mu held.
func (r *Recorder) mayRead() bool {
	switch {
	case r.reading:
		return false
	case !r.pinned:
		return true
	}
	// Bytes that do not fit would be lost. GetBody may seek in a source that is
	// not recorded.
	return r.kind == recordedSource && r.record.room() > 0
}

// fitting returns the part of p whose bytes the record can keep. If no bytes
// are kept any more, it returns p. It is called with rec.mu held.
func (v *view) fitting(p []byte) []byte {
	if room := v.rec.record.room(); room > 0 && !v.isLast() {
		return p[:min(int64(len(p)), room)]
	}
	return p
}

// readSource reads from the source, and records the bytes if there is room.
func (v *view) readSource(p []byte) (n int, err error) {
	err = errClosed // if Read panics, others must not wait for it
	defer func() { v.store(p[:n], err) }()
	n, err = v.rec.source.Read(p)
	return n, err
}

// store takes the bytes and the error that a Read of the source returned.
func (v *view) store(p []byte, err error) {
	r := v.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reading = false
	if v.isLast() {
		r.record.forget()
	} else {
		r.record.keep(p)
		v.at = r.record.end()
	}
	// After the source was closed, its error is the result of that.
	if !r.closed || err == io.EOF {
		r.err = err
	}
	r.wake.Broadcast()
}

// Close ends the view. It does not wait for a Read. It closes the source if no
// later view can read from it.
func (v *view) Close() error {
	r := v.rec
	r.mu.Lock()
	// net/http may reopen a view that it has not read.
	switch v.state {
	case viewClosedUnread:
	case viewUnread:
		v.state = viewClosedUnread
	default:
		v.state = viewClosed
	}
	if v.isLast() && v.state == viewClosed {
		r.record.forget()
	}
	unneeded := r.isUnneeded(v)
	// A Read is under way for which net/http may be waiting.
	if !unneeded && v == r.current && r.reading {
		r.awaitRoundTrip()
	}
	r.wake.Broadcast()
	r.mu.Unlock()
	if unneeded {
		return r.closeSource()
	}
	return nil
}

// isUnneeded reports whether no view will read from source any more. The base
// transport has just closed v. It is called with r.mu held.
func (r *Recorder) isUnneeded(v *view) bool {
	switch {
	// GetBody may have made the source ready for the next attempt. Abort or
	// finish closes it if there is none, or if GetBody returned another body.
	case r.pinned && r.kind != recordedSource:
		return false
	// The record has all bytes of the source, or the source has failed. Another
	// view of a file may still read at its own offset.
	case r.err != nil && r.kind != fileSource:
		return true
	case v != r.current:
		return false
	// Later views cannot get the bytes that were read.
	case r.record.overflowed:
		return true
	// Until RoundTrip returns, net/http may reopen the view.
	case v.state == viewClosedUnread && r.roundTrip.running:
		return false
	}
	return r.last
}
