package replay_test

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/replay"
)

// A Read may wait while a retry is being decided. It ends when the next attempt
// begins, even if that reads nothing, or when the body or the source is closed.
func TestWaitingReadEnds(t *testing.T) {
	for name, end := range map[string]func(b *replay.Body, view io.Closer){
		"Open":      func(b *replay.Body, _ io.Closer) { b.Open(false) },
		"Abort":     func(b *replay.Body, _ io.Closer) { b.Abort() },
		"Interrupt": func(b *replay.Body, _ io.Closer) { b.Recorder().Interrupt() },
		"Close":     func(_ *replay.Body, view io.Closer) { _ = view.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := prepare(newSource(iotest.OneByteReader(strings.NewReader("0123456789"))), 4)
				view := b.Open(false)
				assert.Equal(t, "0123", readN(t, view, 4))
				require.True(t, reserve(b))
				done := make(chan error, 1)
				go func() { _, err := view.Read(make([]byte, 1)); done <- err }()
				synctest.Wait()
				require.Empty(t, done, "it waits")
				end(b, view)
				require.Error(t, <-done)
				b.Abort()
			})
		})
	}
}

// Interrupt ends a Read of the last attempt, too.
func TestInterruptTheLastAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBlocked()
		b := prepare(s, 100)
		view := b.Open(true)
		done := make(chan error, 1)
		go func() { _, err := io.ReadAll(view); done <- err }()
		s.data <- "some "
		synctest.Wait()
		b.Recorder().Interrupt()
		require.Error(t, <-done)
		assert.EqualValues(t, 1, s.closes.Load())
	})
}

// A source that has failed is not read again, also by the last attempt.
func TestLastAttemptAfterAFailure(t *testing.T) {
	reader := iotest.TimeoutReader(strings.NewReader("text"))
	_, _ = reader.Read(nil) // the second Read fails, and no other
	b := prepare(newSource(reader), 100)
	view := b.Open(true)
	for range 2 {
		_, err := view.Read(make([]byte, 10))
		require.Equal(t, iotest.ErrTimeout, err)
	}
	require.NoError(t, view.Close())
}
