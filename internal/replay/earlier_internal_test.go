package replay

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A view may be about to read when a retry is decided. It reads no more than
// fits, even if the next attempt is the last, which records nothing.
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
