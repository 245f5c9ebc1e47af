package replay

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// read returns all bytes from a position to the end of the record, read with a
// buffer of some size, and moves the position there.
func (r *record) read(from *position, size int) string {
	var all []byte
	buf := make([]byte, size)
	for n := r.copyTo(buf, from); n > 0; n = r.copyTo(buf, from) {
		all = append(all, buf[:n]...)
	}
	return string(all)
}

// sizes returns the sizes of the pieces.
func (r *record) sizes() (all []int) {
	for _, p := range r.pieces {
		all = append(all, cap(p.data))
	}
	return all
}

// letters returns n letters of which neighbors differ.
func letters(n int) string { return strings.Repeat("abcdefghijklmnopqrstuvwxyz-", n/27+1)[:n] }

// Each piece but the last one is full, and as large as all before it. Together,
// they are no larger than the limit.
func TestPiecesOfARecord(t *testing.T) {
	for name, tt := range map[string]struct {
		limit int64
		reads []int
		want  []int
	}{
		"nothing":                     {100, nil, nil},
		"an empty Read":               {100, []int{0}, nil},
		"one byte at a time":          {4096, slices.Repeat([]int{1}, 1025), []int{512, 512, 1024}},
		"pieces that are just full":   {4096, slices.Repeat([]int{256}, 4), []int{512, 512}},
		"a long first Read":           {4096, []int{700, 1}, []int{512, 188, 512}},
		"a long second Read":          {4096, []int{512, 2000}, []int{512, 1024, 512, 464}},
		"a Read across pieces":        {4096, []int{500, 100}, []int{512, 512}},
		"a limit below the least":     {100, []int{1}, []int{100}},
		"a limit that leaves a rest":  {600, []int{512, 88}, []int{512, 88}},
		"a limit that is not reached": {600, []int{512, 1}, []int{512, 88}},
	} {
		t.Run(name, func(t *testing.T) {
			r := record{limit: tt.limit}
			var all strings.Builder
			var reader position
			for _, n := range tt.reads {
				text := letters(all.Len() + n)[all.Len():]
				all.WriteString(text)
				r.keep([]byte(text))
				assert.Equal(t, text, r.read(&reader, 10), "of the new bytes")
				assert.Equal(t, r.end(), reader)
			}
			assert.Equal(t, tt.want, r.sizes())
			assert.Equal(t, tt.limit-int64(all.Len()), r.room())
			for _, size := range []int{1, 7, 512, 5000} {
				assert.Equal(t, all.String(), r.read(new(position), size))
			}
		})
	}
}

// A record that is full stays as it is until one more byte comes. Then it is
// empty.
func TestRecordOverflows(t *testing.T) {
	r := record{limit: 4}
	r.keep([]byte("text"))
	r.keep(nil)
	assert.False(t, r.overflowed)
	assert.Equal(t, "text", r.read(new(position), 10))
	for range 2 {
		r.keep([]byte("s"))
		assert.True(t, r.overflowed)
		assert.Nil(t, r.pieces)
		assert.Empty(t, r.read(new(position), 10))
		assert.Equal(t, position{}, r.end())
	}

	r = record{limit: 4}
	r.keep([]byte("texts"))
	assert.True(t, r.overflowed)
	assert.Nil(t, r.pieces, "a part is not kept")
}

// The record keeps a copy of the bytes, because the buffer of a Read is its
// caller's.
func TestRecordCopies(t *testing.T) {
	r, p := record{limit: 4}, []byte("text")
	r.keep(p)
	clear(p)
	got := make([]byte, 4)
	require.Equal(t, 4, r.copyTo(got, new(position)))
	clear(got)
	assert.Equal(t, "text", r.read(new(position), 10))
}

// The pieces before a position are forgotten, and the others can be read.
func TestRecordForgets(t *testing.T) {
	text := letters(4000)
	starts := []int{0, 512, 1024, 2048} // of the pieces
	for _, positions := range [][]int{{0}, {0, 1, 2, 3}, {2}, {3}, {1, 3}} {
		r := record{limit: 4096}
		for chunk := range slices.Chunk([]byte(text), 500) {
			r.keep(chunk)
		}
		require.Len(t, r.pieces, len(starts))
		for _, piece := range positions {
			at := position{piece: piece}
			r.forgetBefore(at)
			for i, p := range r.pieces {
				assert.Equal(t, i < piece, p == nil, "piece %d before %d", i, piece)
			}
			assert.Equal(t, text[starts[piece]:], r.read(&at, 300))
		}
		r.forget()
		r.forgetBefore(position{piece: 4}) // of a reader that was there
		assert.Nil(t, r.pieces)
	}
}
