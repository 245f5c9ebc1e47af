package replay

import (
	"math/bits"
	"sync"
)

// minPiece is the size of the smallest pieces that are recycled. The size of
// the largest is minPiece << (len(pools) - 1), which is 8 KiB. A record might
// leave more of a larger piece unused.
const minPiece = 512

// pools have the pieces that no record refers to, by size. Each size is twice
// the one before. Without them, the allocation of the pieces costs several
// times as much as copying the body.
//
// They are the only package-level variables of this module that are written.
// They may be, because no result depends on their contents. A piece that is
// never recycled, such as one of a body that its transport does not close, is
// left to the garbage collector.
//
// A piece in a pool still has bytes of an earlier body, as the buffers that
// net/http pools have. They are not cleared, because only bytes that were added
// to a piece since then are read.
var pools [5]sync.Pool

// piece is a part of a record. Only one record refers to it.
type piece struct {
	data []byte // its capacity is the size of the piece
}

// newPiece returns an empty piece of at most most bytes. If that is too little
// for a piece that can be recycled, it has most bytes.
func newPiece(most int64) *piece {
	class := classOf(most)
	if class < 0 {
		return &piece{data: make([]byte, 0, most)}
	}
	if p, ok := pools[class].Get().(*piece); ok {
		return p
	}
	return &piece{data: make([]byte, 0, minPiece<<class)}
}

// classOf returns the index in pools of the largest pieces of at most size
// bytes, or -1 if there are none.
func classOf(size int64) int {
	return min(bits.Len64(uint64(size/minPiece)), len(pools)) - 1
}

// recycle lets another record have p. The caller must not use p any more.
func (p *piece) recycle() {
	if class := classOf(int64(cap(p.data))); class >= 0 {
		p.data = p.data[:0]
		pools[class].Put(p)
	}
}

func (p *piece) isFull() bool { return len(p.data) == cap(p.data) }

// add adds bytes of b until p is full, and returns their number.
func (p *piece) add(b []byte) int {
	n := min(len(b), cap(p.data)-len(p.data))
	p.data = append(p.data, b[:n]...)
	return n
}
