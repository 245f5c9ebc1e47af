package replay

// record has the first bytes of a source, for views that begin later. Nothing
// else refers to its pieces, because copyTo copies their bytes.
//
// All methods are called with the Recorder's mu held.
type record struct {
	// limit is set by newRecorder, and only read from then on.
	limit int64 // the most bytes that are kept

	// All others change with mu held.
	pieces     [][]byte // all but the last one are full; nil: forgotten
	size       int64    // bytes that were kept, forgotten ones included
	overflowed bool     // the source had more bytes than limit, so all are forgotten
}

// position is that of a byte in a record.
type position struct {
	piece int
	skip  int // bytes of the piece before it
}

// minPiece is the size of the first piece of a record, unless the limit is
// lower or the first Read is longer.
const minPiece = 512

// room returns how many more bytes the record can keep.
func (r *record) room() int64 { return r.limit - r.size }

// keep adds p. If p does not fit, the record overflows. A part of a body cannot
// be sent, so no bytes are kept then.
func (r *record) keep(p []byte) {
	if int64(len(p)) > r.room() {
		r.overflowed = true
		r.forget()
		return
	}
	// Each new piece doubles the size of the record. So nothing is copied when
	// it grows, and all pieces together never exceed the limit.
	for len(p) > 0 {
		if n := len(r.pieces); n == 0 || len(r.pieces[n-1]) == cap(r.pieces[n-1]) {
			size := min(max(int64(len(p)), r.size, minPiece), r.room())
			r.pieces = append(r.pieces, make([]byte, 0, size))
		}
		last := &r.pieces[len(r.pieces)-1]
		n := min(len(p), cap(*last)-len(*last))
		*last = append(*last, p[:n]...)
		r.size += int64(n)
		p = p[n:]
	}
}

// copyTo copies bytes from a position to p, and moves the position behind them.
// At the end of the record, it copies nothing.
func (r *record) copyTo(p []byte, from *position) int {
	for from.piece < len(r.pieces) {
		if n := copy(p, r.pieces[from.piece][from.skip:]); n > 0 {
			from.skip += n
			return n
		}
		if from.piece == len(r.pieces)-1 {
			break // it may grow
		}
		*from = position{piece: from.piece + 1}
	}
	return 0
}

// end returns the position behind the last byte.
func (r *record) end() position {
	if len(r.pieces) == 0 {
		return position{}
	}
	last := len(r.pieces) - 1
	return position{piece: last, skip: len(r.pieces[last])}
}

// forgetBefore forgets the pieces before that of a position.
func (r *record) forgetBefore(p position) {
	// The pieces before one that is forgotten already are forgotten, too.
	for i := min(p.piece, len(r.pieces)) - 1; i >= 0 && r.pieces[i] != nil; i-- {
		r.pieces[i] = nil
	}
}

// forget forgets all pieces.
func (r *record) forget() { r.pieces = nil }
