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

// makes returns a GetBody that returns bodies one after the other.
func makes(bodies ...io.ReadCloser) getBody {
	return func() (io.ReadCloser, error) {
		if len(bodies) == 0 {
			return nil, errors.New("no more")
		}
		next := bodies[0]
		bodies = bodies[1:]
		return next, nil
	}
}

// attempt is the first attempt of a request.
type attempt struct {
	*replay.Body
	view    io.ReadCloser
	end     context.CancelCauseFunc // of its context
	returns func()                  // from RoundTrip, which runs until then
}

// begin begins an attempt.
func begin(t *testing.T, last bool, body io.ReadCloser, getBody getBody) attempt {
	t.Helper()
	b := replaceable(body, getBody)
	view := b.Open(last)
	ctx, end := context.WithCancelCause(t.Context())
	t.Cleanup(func() { end(nil) })
	return attempt{b, view, end, watch(ctx, b)}
}

// copied returns a body that the base transport gets from GetBody.
func (a attempt) copied(t *testing.T) io.ReadCloser {
	t.Helper()
	body, err := a.GetBody()()
	require.NoError(t, err)
	return body
}

// closesOnce checks that each source was closed once.
func closesOnce(t *testing.T, sources ...*source) {
	t.Helper()
	for i, s := range sources {
		assert.EqualValues(t, 1, s.closes.Load(), "source %d", i)
	}
}

// net/http gets copies that it reads, copies that it leaves unread, and closes
// some of them. All of them are closed once in the end.
func TestCopiesAreClosed(t *testing.T) {
	first, read, left := newText("text"), newText("text"), newText("text")
	a := begin(t, false, first, makes(read, left))
	require.NoError(t, a.view.Close())
	assert.Equal(t, "text", readAll(t, a.copied(t)))
	a.copied(t)
	a.returns()
	a.Finish()
	closesOnce(t, first, read)
	assert.Zero(t, left.closes.Load(), "the attempt goes on")
	a.Copies().Close()
	closesOnce(t, first, read, left)
}

// The copies of an attempt end with the request, and when another attempt
// begins.
func TestCopiesOfAnAttemptBefore(t *testing.T) {
	for _, follows := range []bool{false, true} {
		first, left, next := newText("text"), newText("text"), newText("text")
		a := begin(t, false, first, makes(left, next))
		a.copied(t)
		a.returns()
		require.True(t, rewind(a.Body))
		if follows {
			assert.Equal(t, "text", readAll(t, a.Open(true)))
		} else {
			a.Abort()
		}
		closesOnce(t, first, left, next)
	}
}

// The body of a second attempt comes from GetBody, and has copies, too.
func TestCopiesOfASecondAttempt(t *testing.T) {
	made := newText("copy")
	b := replaceable(newText("text"), makes(newText("text"), made))
	assert.Equal(t, "text", readAll(t, b.Open(false)))
	require.True(t, rewind(b))
	view := b.Open(false)
	require.NotNil(t, b.GetBody())
	stop := watch(t.Context(), b)
	body, err := b.GetBody()()
	require.NoError(t, err)
	assert.NotEqual(t, made, body, "it belongs to the attempt")
	assert.Equal(t, "text", readAll(t, view))
	stop()
	b.Abort()
	_, err = body.Read(make([]byte, 1))
	require.Error(t, err)
}

// GetBody may return a body in memory. It is read like any other, because
// another one may share its reader.
func TestCopiesInMemory(t *testing.T) {
	inMemory := io.NopCloser(strings.NewReader("text"))
	a := begin(t, false, newText("text"), makes(inMemory, http.NoBody))
	defer a.returns()
	body := a.copied(t)
	assert.NotEqual(t, inMemory, body)
	assert.Equal(t, "text", readAll(t, body))
	assert.Equal(t, http.NoBody, a.copied(t), "net/http compares with it")
	_, err := a.GetBody()()
	require.EqualError(t, err, "no more")
}

// A GetBody that seeks returns the reader that it has. The sending before ends
// there, and the reader is closed once.
func TestCopiesOfOneReader(t *testing.T) {
	for _, kind := range []string{"finished", "aborted", "sent again"} {
		s, getBody := newSeekable()
		a := begin(t, false, s, getBody)
		assert.Equal(t, "0123", readN(t, a.view, 4))
		views := []io.ReadCloser{a.view}
		for range 2 {
			view := a.copied(t)
			assert.Equal(t, "01", readN(t, view, 2))
			views = append(views, view)
		}
		a.returns()
		for _, v := range views[:2] {
			_, err := v.Read(make([]byte, 1))
			require.ErrorContains(t, err, "closed")
			require.NoError(t, v.Close())
		}
		assert.Zero(t, s.closes.Load())
		assert.Equal(t, "23", readN(t, views[2], 2))
		switch kind {
		case "finished":
			a.Finish()
			assert.Equal(t, "456789", readAll(t, views[2]))
			a.Copies().Close()
		case "aborted":
			a.Abort()
		case "sent again":
			require.True(t, rewind(a.Body))
			waiting := make(chan error)
			go func() { _, err := views[2].Read(make([]byte, 1)); waiting <- err }()
			runtime.Gosched()
			assert.Equal(t, "0123456789", readAll(t, a.Open(true)))
			require.ErrorContains(t, <-waiting, "closed")
		}
		closesOnce(t, s)
	}
}

// The reader that GetBody returns again is closed once, too, if the retry that
// it was made for is not sent. If GetBody has opened it again, it is closed
// again.
func TestCopiesOfARetryThatIsNotSent(t *testing.T) {
	for closes, closed := range map[int32]bool{1: false, 2: true} {
		s, getBody := newSeekable()
		a := begin(t, false, s, getBody)
		last := a.copied(t)
		if closed {
			assert.Equal(t, "0", readN(t, last, 1))
			require.NoError(t, last.Close())
		}
		a.returns()
		require.True(t, rewind(a.Body))
		a.Abort()
		_, err := last.Read(make([]byte, 1))
		require.ErrorContains(t, err, "closed", "its position has moved")
		a.Copies().Close()
		assert.Equal(t, closes, s.closes.Load())
	}
}

// While GetBody runs, nothing reads. A reader that does not become idle is not
// used for a second sending.
func TestCopiesPinReaders(t *testing.T) {
	for _, tt := range []struct{ last, same bool }{
		{false, false}, {false, true}, {true, false}, {true, true}} {
		synctest.Test(t, func(t *testing.T) {
			s := newBlocked()
			next := io.ReadCloser(newText("again"))
			if tt.same {
				next = s
			}
			a := begin(t, tt.last, s, makes(next))
			rest := make(chan string, 1)
			go func() { text, _ := io.ReadAll(a.view); rest <- string(text) }()
			s.data <- "some "
			synctest.Wait()
			start := time.Now()
			body, err := a.GetBody()()
			assert.Equal(t, bounded.MaxTime, time.Since(start),
				"it waits for the Read, but not for long")
			s.data <- "text"
			if tt.same {
				require.EqualError(t, err, "GetBody returned a body that is still being read")
				assert.Equal(t, "some text", <-rest, "GetBody has moved the position")
			} else {
				require.NoError(t, err)
				assert.Equal(t, "again", readAll(t, body))
				s.data <- " and more"
				close(s.data)
				assert.Equal(t, "some text and more", <-rest)
			}
			a.returns()
			a.Abort()
			assert.EqualValues(t, 1, s.closes.Load())
		})
	}
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
				a := begin(t, false, bodies[0], makes(bodies[1:]...))
				for _, r := range []io.Reader{a.view, a.copied(t)} {
					go func() { _, _ = r.Read(make([]byte, 1)) }()
				}
				synctest.Wait()
				a.returns()
				assert.Equal(t, inMemory, rewind(a.Body))
				if !inMemory {
					require.ErrorContains(t, a.Err(), "closing the body does not end it")
					closesOnce(t, next)
				}
				a.Abort()
				close(s.end)
			})
		}
	}
}

// A Read that begins while GetBody runs waits for it.
func TestCopiesHoldReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := make(chan struct{})
		a := begin(t, false, newText("text"), func() (io.ReadCloser, error) {
			running <- struct{}{}
			running <- struct{}{}
			return newText("again"), nil
		})
		var bodies []io.ReadCloser
		for range 2 {
			go func() {
				body, err := a.GetBody()()
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
				go func() { text, _ := io.ReadAll(a.view); read <- string(text) }()
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
		a.returns()
		a.Abort()
	})
}

// After the end of its attempt, GetBody is not called. If a call returns later,
// its body is closed.
func TestCopiesOfAnEndedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reason := errors.New("the reason")
		a := begin(t, false, newText("text"), func() (io.ReadCloser, error) {
			t.Error("GetBody was called")
			return nil, nil
		})
		a.end(reason)
		for range 20 { // select is random
			_, err := a.GetBody()()
			require.ErrorIs(t, err, reason)
		}
		a.returns()
		_, err := a.GetBody()()
		require.ErrorContains(t, err, "after its attempt")
		a.Abort()
	})
	synctest.Test(t, func(t *testing.T) {
		a := begin(t, false, newBlocked(), func() (io.ReadCloser, error) {
			t.Error("GetBody was called")
			return nil, nil
		})
		read, err := make(chan error, 1), make(chan error, 1)
		go func() { _, e := a.view.Read(make([]byte, 1)); read <- e }()
		synctest.Wait()
		go func() { _, e := a.GetBody()(); err <- e }()
		synctest.Wait()
		assert.Empty(t, err, "it waits for the Read")
		a.end(nil)
		require.ErrorIs(t, <-err, context.Canceled)
		require.Error(t, <-read)
		a.returns()
		a.Abort()
	})
	for _, when := range []string{"canceled", "canceled and returned", "returned"} {
		synctest.Test(t, func(t *testing.T) {
			called, late, first := make(chan struct{}), newText("late"), newText("text")
			calls := 0
			a := begin(t, false, first,
				func() (io.ReadCloser, error) { calls++; <-called; return late, nil })
			errs := make(chan error, 2)
			for range 2 {
				go func() { _, err := a.GetBody()(); errs <- err }()
				synctest.Wait()
			}
			if when != "returned" {
				a.end(nil)
				require.ErrorIs(t, <-errs, context.Canceled,
					"the second call does not wait for the first")
				require.ErrorIs(t, <-errs, context.Canceled, "nor does the first wait for GetBody")
			}
			if when == "canceled" {
				close(called)
				synctest.Wait()
				closesOnce(t, late)
			}
			a.returns()
			a.Copies().Close() // does not wait for GetBody
			if when != "canceled" {
				start := time.Now()
				assert.False(t, rewind(a.Body), "GetBody is still running")
				assert.Equal(t, bounded.MaxTime, time.Since(start))
				require.EqualError(t, a.Err(), "a call of GetBody has not returned")
				close(called)
				synctest.Wait()
			}
			if when == "returned" {
				for range 2 { // the second call has got its turn
					require.ErrorContains(t, <-errs, "after its attempt")
				}
			}
			assert.Equal(t, 1, calls)
			a.Abort()
			closesOnce(t, first, late)
		})
	}
}

// heldContext holds one call of Done for each channel in holds, until that is
// closed.
type heldContext struct {
	context.Context
	holds chan chan struct{}
}

func (c heldContext) Done() <-chan struct{} {
	select {
	case hold := <-c.holds:
		<-hold
	default:
	}
	return c.Context.Done()
}

// A call that gets its turn after GetBody was called for the next attempt does not
// let the attempt before read on.
func TestCopiesAfterRewind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, next := newText("text"), newText("again")
		b := replaceable(first, makes(next))
		view, ctx := b.Open(false), heldContext{t.Context(), make(chan chan struct{}, 1)}
		returns := watch(ctx, b)
		hold := make(chan struct{})
		synctest.Wait() // package context has called Done
		ctx.holds <- hold
		err, read := make(chan error, 1), make(chan error, 1)
		go func() { _, e := b.GetBody()(); err <- e }()
		synctest.Wait() // the attempt is running, so far
		returns()
		require.True(t, rewind(b))
		close(hold)
		require.ErrorContains(t, <-err, "after its attempt")
		go func() { _, e := view.Read(make([]byte, 1)); read <- e }()
		synctest.Wait()
		assert.Empty(t, read)
		assert.Equal(t, "again", readAll(t, b.Open(true)))
		require.ErrorContains(t, <-read, "closed")
		b.Abort()
		closesOnce(t, first, next)
	})
}

// A GetBody that blocks does not hold up the result of the request. The body
// that it returns late is not closed if its Recorder closes it. If that has
// closed it before, GetBody has opened it again.
func TestRewindIsBounded(t *testing.T) {
	for _, then := range []string{"", "finished", "aborted"} {
		synctest.Test(t, func(t *testing.T) {
			s := newText("text")
			a := begin(t, false, s, func() (io.ReadCloser, error) {
				time.Sleep(time.Hour)
				return s, nil
			})
			a.returns()
			start := time.Now()
			require.True(t, a.Pin())
			assert.False(t, a.Rewind(bounded.Signal{}, time.Minute))
			assert.Equal(t, time.Minute, time.Since(start))
			require.EqualError(t, a.Err(), "a call of GetBody has not returned")
			switch then {
			case "finished": // the upload would send bytes from another position
				a.Finish()
				read := make(chan error, 1)
				go func() { _, err := a.view.Read(make([]byte, 1)); read <- err }()
				time.Sleep(2 * time.Hour)
				assert.Empty(t, read)
				a.Copies().Interrupt()
				require.ErrorContains(t, <-read, "closed")
				a.Copies().Close()
			case "aborted":
				a.Abort()
				closesOnce(t, s)
				s.closes.Store(0)
			}
			time.Sleep(2 * time.Hour)
			a.Abort()
			closesOnce(t, s)
		})
	}
}

// A body that GetBody returns too late is closed.
func TestLateBodyIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := newText("late")
		b := replaceable(newText("text"), func() (io.ReadCloser, error) {
			time.Sleep(time.Hour)
			return late, nil
		})
		b.Open(false)
		require.True(t, b.Pin())
		assert.False(t, b.Rewind(bounded.Signal{}, time.Minute))
		time.Sleep(2 * time.Hour)
		closesOnce(t, late)
		b.Abort()
	})
}

// If the wait for GetBody ends just as GetBody returns, its body is either used
// or closed.
func TestRewindEndsWithGetBody(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			first, next, stop := newText("text"), newText("next"), make(chan struct{})
			b := replaceable(first, func() (io.ReadCloser, error) { close(stop); return next, nil })
			b.Open(false)
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

// A failing GetBody leaves the attempt's readers as they are. Its panics are
// its caller's. If it ends its goroutine, it has returned nothing.
func TestGetBodyFails(t *testing.T) {
	const neither = "GetBody returned neither a body nor an error"
	for name, tt := range map[string]struct {
		getBody getBody
		want    string // "": it panics
	}{
		"error":   {makes(), "no more"},
		"nothing": {func() (io.ReadCloser, error) { return nil, nil }, neither},
		"Goexit": {func() (io.ReadCloser, error) {
			runtime.Goexit() // as a test that fails does
			return nil, nil
		}, neither},
		"panic": {func() (io.ReadCloser, error) { panic("boom") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			fails := func(f func() error) {
				if tt.want == "" {
					assert.PanicsWithValue(t, "boom", func() { _ = f() })
				} else {
					require.EqualError(t, f(), tt.want)
				}
			}
			s := newText("text")
			a := begin(t, false, s, tt.getBody)
			fails(func() error { _, err := a.GetBody()(); return err })
			assert.Equal(t, "text", readAll(t, a.view), "the readers do not stay pinned")
			a.returns()
			fails(func() error { rewind(a.Body); return a.Err() })
			a.Abort()
			closesOnce(t, s)
		})
	}
}

// The failures of a copy are those of the caller's own reader.
func TestCopiesFail(t *testing.T) {
	broken, stuck := errors.New("broken"), errors.New("stuck")
	s := newSource(io.MultiReader(strings.NewReader("te"), iotest.ErrReader(broken)))
	s.closeErr = stuck
	a := begin(t, false, newText("text"), makes(s, newText("text")))
	assert.Equal(t, "text", readAll(t, a.view))
	body := a.copied(t)
	_, err := io.ReadAll(body)
	require.ErrorIs(t, err, broken)
	assert.False(t, a.ClosedEarly())
	require.ErrorIs(t, body.Close(), stuck)
	a.returns()
	require.ErrorIs(t, a.Failure(), broken)
	other := errors.New("of the attempt")
	err, failed := a.WithCloseFailure(other)
	assert.True(t, failed)
	require.ErrorIs(t, err, stuck)
	require.ErrorIs(t, err, other)
	assert.True(t, a.ClosedEarly(), "the copy was not read to its end")
	assert.False(t, rewind(a.Body), "it would fail again")
	require.NoError(t, a.Err())
}
