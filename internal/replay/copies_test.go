package replay_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/bounded"
	"github.com/seed421102f4/httpretry/internal/replay"
)

// makes has a GetBody that returns its bodies one after the other.
type makes struct {
	bodies []io.ReadCloser
	calls  int
}

func (m *makes) getBody() (io.ReadCloser, error) {
	m.calls++
	if m.calls > len(m.bodies) {
		return nil, errors.New("no more")
	}
	return m.bodies[m.calls-1], nil
}

// inRoundTrip calls f during the first attempt of a request with body and
// getBody. f may end the context of the attempt.
func inRoundTrip(t *testing.T, body io.ReadCloser, getBody func() (io.ReadCloser, error),
	f func(b *replay.Body, first io.ReadCloser, end context.CancelCauseFunc),
) *replay.Body {
	t.Helper()
	return inAttempt(t, false, body, getBody, f)
}

// inAttempt is inRoundTrip for an attempt that may be the last.
func inAttempt(t *testing.T, last bool, body io.ReadCloser, getBody func() (io.ReadCloser, error),
	f func(b *replay.Body, first io.ReadCloser, end context.CancelCauseFunc),
) *replay.Body {
	t.Helper()
	b := new(replay.Body)
	b.Prepare(request(body, getBody), 0)
	first := b.Open(last)
	ctx, end := context.WithCancelCause(t.Context())
	t.Cleanup(func() { end(nil) })
	stop := watch(ctx, b)
	defer stop()
	f(b, first, end)
	return b
}

// closesOnce checks that each source was closed once.
func closesOnce(t *testing.T, sources ...*source) {
	t.Helper()
	for i, s := range sources {
		assert.EqualValues(t, 1, s.closes.Load(), "source %d", i)
	}
}

// The body of http.NewRequest needs no Copies if it is in memory, and neither
// does one without GetBody.
func TestCopiesOfOtherBodies(t *testing.T) {
	b := new(replay.Body)
	b.Prepare(newRequest(t, strings.NewReader("text")), 0)
	b.Open(false)
	assert.Nil(t, b.Copies())
	body, err := b.GetBody()()
	require.NoError(t, err)
	assert.Equal(t, "text", readAll(t, body))
	b.Copies().Close() // nil is valid

	b = prepare(newText("text"), 100)
	b.Open(false)
	assert.Nil(t, b.Copies())
	assert.Nil(t, b.GetBody())
}

// net/http gets copies that it reads, copies that it leaves unread, and closes
// some of them. All of them are closed once in the end.
func TestCopiesAreClosed(t *testing.T) {
	first, read, left := newText("text"), newText("text"), newText("text")
	m := &makes{bodies: []io.ReadCloser{read, left}}
	b := inRoundTrip(t, first, m.getBody,
		func(b *replay.Body, view io.ReadCloser, _ context.CancelCauseFunc) {
			require.NoError(t, view.Close())
			body, err := b.GetBody()()
			require.NoError(t, err)
			assert.Equal(t, "text", readAll(t, body))
			_, err = b.GetBody()()
			require.NoError(t, err)
		})
	b.Finish()
	closesOnce(t, first, read)
	assert.Zero(t, left.closes.Load(), "the attempt goes on")
	b.Copies().Close()
	closesOnce(t, first, read, left)
}

// The copies of an attempt end with the request, and when another attempt
// begins.
func TestCopiesOfAnAttemptBefore(t *testing.T) {
	for _, follows := range []bool{false, true} {
		first, left, next := newText("text"), newText("text"), newText("text")
		m := &makes{bodies: []io.ReadCloser{left, next}}
		b := inRoundTrip(t, first, m.getBody,
			func(b *replay.Body, _ io.ReadCloser, _ context.CancelCauseFunc) {
				_, err := b.GetBody()()
				require.NoError(t, err)
			})
		require.True(t, rewind(b))
		if follows {
			assert.Equal(t, "text", readAll(t, b.Open(true)))
		} else {
			b.Abort()
		}
		closesOnce(t, first, left, next)
	}
}

// The body of a second attempt comes from GetBody, and has copies, too.
func TestCopiesOfASecondAttempt(t *testing.T) {
	m := &makes{bodies: []io.ReadCloser{newText("text"), newText("copy")}}
	b := new(replay.Body)
	b.Prepare(request(newText("text"), m.getBody), 0)
	assert.Equal(t, "text", readAll(t, b.Open(false)))
	require.True(t, rewind(b))
	view := b.Open(false)
	require.NotNil(t, b.GetBody())
	stop := watch(t.Context(), b)
	body, err := b.GetBody()()
	require.NoError(t, err)
	assert.NotEqual(t, m.bodies[1], body, "it belongs to the attempt")
	assert.Equal(t, "text", readAll(t, view))
	stop()
	b.Abort()
	_, err = body.Read(make([]byte, 1))
	require.Error(t, err)
}

// GetBody may return a body in memory. It is read like any other, because
// another one may share its reader.
func TestCopiesInMemory(t *testing.T) {
	m := &makes{bodies: []io.ReadCloser{io.NopCloser(strings.NewReader("text")), http.NoBody}}
	inRoundTrip(t, newText("text"), m.getBody,
		func(b *replay.Body, _ io.ReadCloser, _ context.CancelCauseFunc) {
			body, err := b.GetBody()()
			require.NoError(t, err)
			assert.NotEqual(t, m.bodies[0], body)
			assert.Equal(t, "text", readAll(t, body))
			body, err = b.GetBody()()
			require.NoError(t, err)
			assert.Equal(t, http.NoBody, body, "net/http compares with it")
			_, err = b.GetBody()()
			require.EqualError(t, err, "no more")
		})
}

// A GetBody that seeks returns the reader that it has. The sending before ends
// there, and the reader is closed once.
func TestCopiesOfOneReader(t *testing.T) {
	for _, kind := range []string{"finished", "aborted", "sent again"} {
		s := newSource(strings.NewReader("0123456789"))
		getBody := func() (io.ReadCloser, error) {
			_, err := s.Reader.(io.Seeker).Seek(0, io.SeekStart)
			return s, err
		}
		var views []io.ReadCloser
		b := inRoundTrip(t, s, getBody,
			func(b *replay.Body, view io.ReadCloser, _ context.CancelCauseFunc) {
				assert.Equal(t, "0123", readN(t, view, 4))
				for range 2 {
					views = append(views, view)
					var err error
					view, err = b.GetBody()()
					require.NoError(t, err)
					assert.Equal(t, "01", readN(t, view, 2))
				}
				views = append(views, view)
			})
		for _, v := range views[:2] {
			_, err := v.Read(make([]byte, 1))
			require.ErrorContains(t, err, "closed")
			require.NoError(t, v.Close())
		}
		assert.Zero(t, s.closes.Load())
		assert.Equal(t, "23", readN(t, views[2], 2))
		switch kind {
		case "finished":
			b.Finish()
			assert.Equal(t, "456789", readAll(t, views[2]))
			b.Copies().Close()
		case "aborted":
			b.Abort()
		case "sent again":
			require.True(t, rewind(b))
			waiting := make(chan error)
			go func() { _, err := views[2].Read(make([]byte, 1)); waiting <- err }()
			runtime.Gosched()
			assert.Equal(t, "0123456789", readAll(t, b.Open(true)))
			require.ErrorContains(t, <-waiting, "closed")
		}
		closesOnce(t, s)
	}
}

// The reader that GetBody returns again is closed once, too, if the retry that
// it was made for is not sent. If GetBody has opened it again, it is closed
// again.
func TestCopiesOfARetryThatIsNotSent(t *testing.T) {
	for _, closed := range []bool{false, true} {
		s := newText("text")
		getBody := func() (io.ReadCloser, error) { return s, nil }
		var last io.ReadCloser
		b := inRoundTrip(t, s, getBody,
			func(b *replay.Body, _ io.ReadCloser, _ context.CancelCauseFunc) {
				var err error
				last, err = b.GetBody()()
				require.NoError(t, err)
				if closed {
					assert.Equal(t, "t", readN(t, last, 1))
					require.NoError(t, last.Close())
				}
			})
		require.True(t, rewind(b))
		b.Abort()
		_, err := last.Read(make([]byte, 1))
		require.ErrorContains(t, err, "closed", "its position has moved")
		b.Copies().Close()
		want := int32(1)
		if closed {
			want = 2
		}
		assert.Equal(t, want, s.closes.Load())
	}
}

// While GetBody runs, nothing reads. A reader that does not become idle is not
// used for a second sending.
func TestCopiesPinReaders(t *testing.T) {
	for _, tt := range []struct{ last, same bool }{
		{false, false}, {false, true}, {true, false}, {true, true}} {
		synctest.Test(t, func(t *testing.T) {
			s, again := newBlocked(), newText("again")
			getBody := func() (io.ReadCloser, error) {
				if tt.same {
					return s, nil
				}
				return again, nil
			}
			b := inAttempt(t, tt.last, s, getBody,
				func(b *replay.Body, view io.ReadCloser, _ context.CancelCauseFunc) {
					rest := make(chan string, 1)
					go func() { text, _ := io.ReadAll(view); rest <- string(text) }()
					s.data <- "some "
					synctest.Wait()
					start := time.Now()
					body, err := b.GetBody()()
					assert.Equal(t, bounded.MaxTime, time.Since(start),
						"it waits for the Read, but not for long")
					s.data <- "text"
					if tt.same {
						require.EqualError(t, err,
							"GetBody returned a body that is still being read")
						assert.Equal(t, "some text", <-rest, "GetBody has moved the position")
						return
					}
					require.NoError(t, err)
					assert.Equal(t, "again", readAll(t, body))
					s.data <- " and more"
					close(s.data)
					assert.Equal(t, "some text and more", <-rest)
				})
			b.Abort()
			assert.EqualValues(t, 1, s.closes.Load())
		})
	}
}

// A Read that blocks is ended for the next attempt, by closing its body.
func TestCopiesOfABlockedBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, next := newBlocked(), newText("text")
		m := &makes{bodies: []io.ReadCloser{next}}
		read := make(chan error, 1)
		b := inRoundTrip(t, s, m.getBody,
			func(_ *replay.Body, view io.ReadCloser, _ context.CancelCauseFunc) {
				go func() { _, err := view.Read(make([]byte, 1)); read <- err }()
				synctest.Wait()
			})
		require.True(t, rewind(b), b.Err())
		require.Error(t, <-read)
		assert.EqualValues(t, 1, s.closes.Load())
		assert.Equal(t, "text", readAll(t, b.Open(true)))
		b.Finish()
		closesOnce(t, next)
	})
}

// stuck is a source whose Read blocks until the test ends, even if it is
// closed.
type stuck struct {
	source
	end chan struct{}
}

func (s *stuck) Read([]byte) (int, error) { <-s.end; return 0, io.EOF }

// A body that GetBody returns may share a reader with a body whose Read does
// not end. Only a body in memory cannot.
func TestCopiesOfAStuckBody(t *testing.T) {
	for _, first := range []bool{false, true} { // the other one ends when it is closed
		for _, inMemory := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s, other, next := &stuck{end: make(chan struct{})}, newBlocked(), newText("text")
				bodies := []io.ReadCloser{s, other, next}
				if first {
					bodies = []io.ReadCloser{other, s, next}
				}
				if inMemory {
					bodies[2] = io.NopCloser(strings.NewReader("text"))
				}
				m := &makes{bodies: bodies[1:]}
				b := inRoundTrip(t, bodies[0], m.getBody,
					func(b *replay.Body, view io.ReadCloser, _ context.CancelCauseFunc) {
						body, err := b.GetBody()()
						require.NoError(t, err)
						for _, r := range []io.Reader{view, body} {
							go func() { _, _ = r.Read(make([]byte, 1)) }()
						}
						synctest.Wait()
					})
				assert.Equal(t, inMemory, rewind(b))
				if !inMemory {
					require.ErrorContains(t, b.Err(), "closing the body does not end it")
					closesOnce(t, next)
				}
				b.Abort()
				close(s.end)
			})
		}
	}
}

// A Read that begins while GetBody runs waits for it.
func TestCopiesHoldReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := make(chan struct{})
		getBody := func() (io.ReadCloser, error) {
			running <- struct{}{}
			running <- struct{}{}
			return newText("again"), nil
		}
		b := inRoundTrip(t, newText("text"), getBody,
			func(b *replay.Body, view io.ReadCloser, _ context.CancelCauseFunc) {
				var bodies []io.ReadCloser
				for range 2 {
					go func() {
						body, err := b.GetBody()()
						assert.NoError(t, err)
						bodies = append(bodies, body)
					}()
				}
				read := make(chan string, 1)
				for i := range 2 { // the calls come one after the other
					<-running
					synctest.Wait()
					assert.Len(t, bodies, i)
					if i == 0 {
						go func() { text, _ := io.ReadAll(view); read <- string(text) }()
						synctest.Wait()
						assert.Empty(t, read)
					}
					<-running
					synctest.Wait()
				}
				assert.Equal(t, "text", <-read)
				for _, body := range bodies {
					assert.Equal(t, "again", readAll(t, body))
				}
			})
		b.Abort()
	})
}

// After the end of its attempt, GetBody is not called. If a call returns later,
// its body is closed.
func TestCopiesOfAnEndedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reason, m := errors.New("the reason"), new(makes)
		b := inRoundTrip(t, newText("text"), m.getBody,
			func(b *replay.Body, _ io.ReadCloser, end context.CancelCauseFunc) {
				end(reason)
				for range 20 { // select is random
					_, err := b.GetBody()()
					require.ErrorIs(t, err, reason)
				}
			})
		_, err := b.GetBody()()
		require.ErrorContains(t, err, "after its attempt")
		assert.Zero(t, m.calls)
		b.Abort()
	})
	for _, when := range []string{"canceled", "canceled and returned", "returned"} {
		synctest.Test(t, func(t *testing.T) {
			called, late, first := make(chan struct{}), newText("late"), newText("text")
			calls := 0
			getBody := func() (io.ReadCloser, error) { calls++; <-called; return late, nil }
			errs := make(chan error, 2)
			b := inRoundTrip(t, first, getBody,
				func(b *replay.Body, _ io.ReadCloser, end context.CancelCauseFunc) {
					for range 2 {
						go func() { _, err := b.GetBody()(); errs <- err }()
						synctest.Wait()
					}
					if when == "returned" {
						return
					}
					end(nil)
					require.ErrorIs(t, <-errs, context.Canceled,
						"the second call does not wait for the first")
					require.ErrorIs(t, <-errs, context.Canceled,
						"nor does the first wait for GetBody")
					if when == "canceled" {
						close(called)
						synctest.Wait()
						closesOnce(t, late)
					}
				})
			b.Copies().Close() // does not wait for GetBody
			if when != "canceled" {
				start := time.Now()
				assert.False(t, rewind(b), "GetBody is still running")
				assert.Equal(t, bounded.MaxTime, time.Since(start))
				require.EqualError(t, b.Err(), "a call of GetBody has not returned")
				close(called)
				synctest.Wait()
			}
			if when == "returned" {
				for range 2 { // the second call has got its turn
					require.ErrorContains(t, <-errs, "after its attempt")
				}
			}
			assert.Equal(t, 1, calls)
			b.Abort()
			closesOnce(t, first, late)
		})
	}
}

// A GetBody that blocks does not hold up the result of the request. The body
// that it returns late is closed, unless its Recorder closes it. If that has
// closed it before, GetBody has opened it again.
func TestRewindIsBounded(t *testing.T) {
	for _, tt := range []struct{ stopped, same, finished, aborted bool }{
		{}, {stopped: true}, {same: true}, {same: true, finished: true},
		{same: true, aborted: true}} {
		synctest.Test(t, func(t *testing.T) {
			first, late := newText("text"), newText("late")
			getBody := func() (io.ReadCloser, error) {
				time.Sleep(time.Hour)
				if tt.same {
					return first, nil
				}
				return late, nil
			}
			var view io.ReadCloser
			b := inRoundTrip(t, first, getBody,
				func(_ *replay.Body, v io.ReadCloser, _ context.CancelCauseFunc) { view = v })
			stop, limit := make(chan struct{}), time.Minute
			if tt.stopped {
				time.AfterFunc(time.Minute, func() { close(stop) })
				limit = bounded.NoLimit
			}
			start := time.Now()
			require.True(t, b.Pin())
			assert.False(t, b.Rewind(bounded.Signal{stop}, limit))
			assert.Equal(t, time.Minute, time.Since(start))
			require.EqualError(t, b.Err(), "a call of GetBody has not returned")
			if tt.finished {
				// The upload would send bytes from another position.
				b.Finish()
				read := make(chan error, 1)
				go func() { _, err := view.Read(make([]byte, 1)); read <- err }()
				time.Sleep(2 * time.Hour)
				assert.Empty(t, read)
				b.Copies().Interrupt()
				require.ErrorContains(t, <-read, "closed")
				b.Copies().Close()
			}
			if tt.aborted {
				b.Abort()
				closesOnce(t, first)
				first.closes.Store(0)
			}
			time.Sleep(2 * time.Hour)
			b.Abort()
			closesOnce(t, first)
			assert.Equal(t, !tt.same, late.closes.Load() == 1)
		})
	}
}

// If the wait for GetBody ends just as GetBody returns, its body is either used
// or closed.
func TestRewindEndsWithGetBody(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			first, next, stop := newText("text"), newText("next"), make(chan struct{})
			b := inRoundTrip(t, first,
				func() (io.ReadCloser, error) { close(stop); return next, nil },
				func(*replay.Body, io.ReadCloser, context.CancelCauseFunc) {})
			require.True(t, b.Pin())
			if b.Rewind(bounded.Signal{stop}, bounded.NoLimit) {
				assert.Equal(t, "next", readAll(t, b.Open(true)))
			}
			synctest.Wait()
			b.Abort()
			closesOnce(t, first, next)
		})
	}
}

// The panics of GetBody are its caller's. A GetBody that ends its goroutine has
// returned nothing.
func TestGetBodyEnds(t *testing.T) {
	for _, goexit := range []bool{false, true} {
		getBody := func() (io.ReadCloser, error) {
			if goexit {
				runtime.Goexit() // as a test that fails does
			}
			panic("boom")
		}
		ends := func(f func() error) {
			if goexit {
				require.EqualError(t, f(), "GetBody returned neither a body nor an error")
			} else {
				assert.PanicsWithValue(t, "boom", func() { _ = f() })
			}
		}
		s := newText("text")
		b := inRoundTrip(t, s, getBody,
			func(b *replay.Body, view io.ReadCloser, _ context.CancelCauseFunc) {
				ends(func() error { _, err := b.GetBody()(); return err })
				assert.Equal(t, "text", readAll(t, view), "the readers do not stay pinned")
			})
		ends(func() error { rewind(b); return b.Err() })
		b.Abort()
		closesOnce(t, s)
	}
}

// The end of the attempt's context ends a Read of a copy.
func TestCopiesAreInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBlocked()
		m := &makes{bodies: []io.ReadCloser{s}}
		b := inRoundTrip(t, newText("text"), m.getBody,
			func(b *replay.Body, _ io.ReadCloser, end context.CancelCauseFunc) {
				body, err := b.GetBody()()
				require.NoError(t, err)
				read := make(chan error, 1)
				go func() { _, err := body.Read(make([]byte, 1)); read <- err }()
				synctest.Wait()
				end(nil)
				require.Error(t, <-read)
			})
		b.Abort()
		assert.EqualValues(t, 1, s.closes.Load())
	})
}

// The failures of a copy are those of the caller's own reader.
func TestCopiesFail(t *testing.T) {
	broken, stuck := errors.New("broken"), errors.New("stuck")
	s := newSource(io.MultiReader(strings.NewReader("te"), iotest.ErrReader(broken)))
	s.closeErr = stuck
	m := &makes{bodies: []io.ReadCloser{s, newText("text")}}
	b := inRoundTrip(t, newText("text"), m.getBody,
		func(b *replay.Body, view io.ReadCloser, _ context.CancelCauseFunc) {
			assert.Equal(t, "text", readAll(t, view))
			body, err := b.GetBody()()
			require.NoError(t, err)
			_, err = io.ReadAll(body)
			require.ErrorIs(t, err, broken)
			assert.False(t, b.ClosedEarly())
			require.ErrorIs(t, body.Close(), stuck)
		})
	require.ErrorIs(t, b.Failure(), broken)
	other := errors.New("of the attempt")
	err, failed := b.WithCloseFailure(other)
	assert.True(t, failed)
	require.ErrorIs(t, err, stuck)
	require.ErrorIs(t, err, other)
	assert.True(t, b.ClosedEarly(), "the copy was not read to its end")
	assert.False(t, rewind(b), "it would fail again")
	require.NoError(t, b.Err())
}
