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
	all, err := io.ReadAll(last)
	require.NoError(t, err)
	assert.Equal(t, "abcdef", string(all))
}

// net/http may close a body unread and send it on another connection. The last
// attempt allows that, too.
func TestReopenOnTheLastAttempt(t *testing.T) {
	r := newRecorder(io.NopCloser(strings.NewReader("text")), 0)
	v := r.open(true)
	r.setInRoundTrip(true)
	require.NoError(t, v.Close())
	r.Reopen()
	all, err := io.ReadAll(v)
	require.NoError(t, err)
	assert.Equal(t, "text", string(all))
	r.setInRoundTrip(false)
	r.finish()
	assert.True(t, r.closed)
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
				all, err := io.ReadAll(r.open(false))
				require.NoError(t, err)
				require.Equal(t, text, string(all))
				require.True(t, r.pin())
			}
			require.Greater(t, len(r.record.pieces), 2)
			v := r.open(tt.opened)
			p := make([]byte, cap(r.record.pieces[0].data)+1)
			_, err := io.ReadFull(v, p)
			require.NoError(t, err)
			if tt.finished {
				r.finish()
			}
			assert.Equal(t, tt.opened || tt.finished, r.record.pieces[0] == nil)
			assert.NotNil(t, r.record.pieces[1])
			rest, err := io.ReadAll(v)
			require.NoError(t, err)
			assert.Equal(t, text, string(p)+string(rest))
		})
	}
}

// The last view keeps no bytes that it reads from the source, and Close forgets
// those that earlier views have read.
func TestLastViewRecordsNothing(t *testing.T) {
	for _, finished := range []bool{false, true} {
		r := newRecorder(io.NopCloser(strings.NewReader("some text")), 100)
		p := make([]byte, 4)
		v := r.open(false)
		_, err := io.ReadFull(v, p)
		require.NoError(t, err)
		require.Equal(t, int64(4), r.record.size)
		if finished {
			r.finish()
		} else {
			require.True(t, r.pin())
			v = r.open(true)
			_, err = io.ReadFull(v, p)
			require.NoError(t, err)
			assert.NotNil(t, r.record.pieces)
		}
		_, err = io.ReadFull(v, p)
		require.NoError(t, err)
		assert.Nil(t, r.record.pieces)
	}

	r := newRecorder(io.NopCloser(strings.NewReader("text")), 100)
	_, err := io.ReadFull(r.open(false), make([]byte, 2))
	require.NoError(t, err)
	require.True(t, r.pin())
	v := r.open(true)
	_, err = io.ReadFull(v, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, v.Close())
	assert.Nil(t, r.record.pieces)

	// A closed view that becomes the last one needs no record either.
	r = newRecorder(io.NopCloser(strings.NewReader("text")), 100)
	v = r.open(false)
	_, err = io.ReadFull(v, make([]byte, 2))
	require.NoError(t, err)
	require.NoError(t, v.Close())
	assert.NotNil(t, r.record.pieces)
	r.finish()
	assert.Nil(t, r.record.pieces)
}
