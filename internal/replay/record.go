package replay

// record has the first bytes of a source, for views that begin later. Its
// methods copy bytes into its pieces and out of them, and never return a part
// of a piece. So a piece that the record forgets is not read any more, and
// another record may use it.
//
// All methods are called with the Recorder's mu held.
type record struct {
	// limit is set by newRecorder, and only read from then on.
	limit int64 // the most bytes that are kept

	// All others change with mu held.
	pieces     []*piece // all but the last one are full; nil: forgotten
	size       int64    // bytes that were kept, forgotten ones included
	capacity   int64    // bytes that can be kept until the record grows again
	overflowed bool     // the source had more bytes than limit, so all are forgotten
}

// position is that of a byte in a record.
type position struct {
	piece int
	skip  int // bytes of the piece before it
}

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
	for len(p) > 0 {
		// The capacity doubles, but it never exceeds the limit. Pieces are only
		// added as they are needed.
		if r.size == r.capacity {
			r.capacity += min(max(int64(len(p)), r.size, minPiece), r.room())
		}
		if n := len(r.pieces); n == 0 || r.pieces[n-1].isFull() {
			r.pieces = append(r.pieces, newPiece(r.capacity-r.size))
		}
		n := r.pieces[len(r.pieces)-1].add(p)
		r.size += int64(n)
		p = p[n:]
	}
}

// copyTo copies bytes from a position to p, and moves the position behind them.
// At the end of the record, it copies nothing.
func (r *record) copyTo(p []byte, from *position) (n int) {
	for from.piece < len(r.pieces) {
		copied := copy(p[n:], r.pieces[from.piece].data[from.skip:])
		n += copied
		from.skip += copied
		if n == len(p) || from.piece == len(r.pieces)-1 {
			break // the last piece may grow
		}
		*from = position{piece: from.piece + 1}
	}
	return n
}

// end returns the position behind the last byte.
func (r *record) end() position {
	if len(r.pieces) == 0 {
		return position{}
	}
	last := len(r.pieces) - 1
	return position{piece: last, skip: len(r.pieces[last].data)}
}

// forgetBefore forgets the pieces before that of a position.
func (r *record) forgetBefore(p position) {
	// The pieces before one that is forgotten already are forgotten, too.
	for i := min(p.piece, len(r.pieces)) - 1; i >= 0 && r.pieces[i] != nil; i-- {
		r.pieces[i].recycle()
		r.pieces[i] = nil // a piece is recycled once
	}
}

// forget forgets all pieces.
func (r *record) forget() {
	r.forgetBefore(position{piece: len(r.pieces)})
	r.pieces = nil
}
