package replay

import (
	"io"
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

func readN(t *testing.T, r io.Reader, n int) string {
	t.Helper()
	p := make([]byte, n)
	_, err := io.ReadFull(r, p)
	require.NoError(t, err)
	return string(p)
}

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(text)
}

// Each piece but the last one is full, and as large as all before it. Together,
// they are no larger than the limit. A Read may get bytes of several pieces, so
// small pieces are as fast as one large one. The record keeps a copy of the
// bytes, because the buffer of a Read is its caller's.
func TestPiecesOfARecord(t *testing.T) {
	for name, tt := range map[string]struct {
		limit int64
		reads []int
		want  []int
	}{
		"nothing":                   {100, nil, nil},
		"an empty Read":             {100, []int{0}, nil},
		"one byte at a time":        {4096, slices.Repeat([]int{1}, 1025), []int{512, 512, 1024}},
		"pieces that are just full": {4096, slices.Repeat([]int{256}, 4), []int{512, 512}},
		"a long first Read":         {4096, []int{700, 1}, []int{512, 188, 512}},
		"a long second Read":        {4096, []int{512, 2000}, []int{512, 1024, 512, 464}},
		"a Read across pieces":      {4096, []int{500, 100}, []int{512, 512}},
		"a Read of pieces of all sizes": {100_000, []int{24_224},
			[]int{8192, 8192, 4096, 2048, 1024, 512, 160}},
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
				p := []byte(text)
				r.keep(p)
				clear(p)
				assert.Equal(t, text, r.read(&reader, 10), "of the new bytes")
				assert.Equal(t, r.end(), reader)
			}
			assert.Equal(t, tt.want, r.sizes())
			assert.Equal(t, tt.limit-int64(all.Len()), r.room())
			for _, size := range []int{1, 7, 512, 5000} {
				assert.Equal(t, all.String(), r.read(new(position), size))
			}
			whole := make([]byte, all.Len())
			assert.Equal(t, all.Len(), r.copyTo(whole, new(position)), "in one Read")
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
