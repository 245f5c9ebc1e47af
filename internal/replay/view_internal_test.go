package replay

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A view may be about to read when a retry is decided. It reads no more bytes
// than fit, even if the next attempt is the last, which does not record.
func TestEarlierViewReadsWhatFits(t *testing.T) {
	r := newRecorder(io.NopCloser(strings.NewReader("abcdef")), 3)
	first, ok := r.open(false).(*view)
	require.True(t, ok)
	buf := make([]byte, 6)
	_, rest, err := first.readRecord(buf)
	require.NoError(t, err)
	require.NotNil(t, rest, "the source is to be read")
	require.True(t, r.pin())
	last := r.open(true)
	n, err := first.readSource(rest)
	require.NoError(t, err)
	assert.Equal(t, 3, n)
	assert.Equal(t, "abcdef", readAll(t, last))
}

// If a file is closed during a Read, the error of the Read is no failure of the
// file. The first failure remains.
func TestFailureOfAFile(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	r := newRecorder(io.NopCloser(strings.NewReader("")), 0)
	r.fail(first)
	r.fail(second)
	require.Equal(t, first, r.failure())

	r = newRecorder(io.NopCloser(strings.NewReader("")), 0)
	require.NoError(t, r.closeSource())
	r.fail(first)
	require.NoError(t, r.failure())
}

// Only the last view forgets the pieces of the record that it has read. A view
// is the last one, or becomes it when the response is returned.
func TestLastViewForgets(t *testing.T) {
	text := letters(4000)
	for name, tt := range map[string]struct{ opened, finished bool }{
		"opened as the last view": {opened: true},
		"the response returned":   {finished: true},
		"not the last view":       {},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecorder(io.NopCloser(iotest.HalfReader(strings.NewReader(text))), 8192)
			for range 2 {
				require.Equal(t, text, readAll(t, r.open(false)))
				require.True(t, r.pin())
			}
			require.Greater(t, len(r.record.pieces), 2)
			v := r.open(tt.opened)
			part := readN(t, v, cap(r.record.pieces[0].data)+1)
			if tt.finished {
				r.finish()
			}
			assert.Equal(t, tt.opened || tt.finished, r.record.pieces[0] == nil)
			assert.NotNil(t, r.record.pieces[1])
			assert.Equal(t, text, part+readAll(t, v))
		})
	}
}
