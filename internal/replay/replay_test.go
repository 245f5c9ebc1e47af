package replay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/bounded"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/replay"
)

// source is a request body that counts its closes.
type source struct {
	io.Reader
	closes     atomic.Int32
	closeErr   error
	closeTakes time.Duration
}

// watch calls GetBody for the request of an attempt, and then Watch.
func watch(ctx context.Context, b *replay.Body) (stop func()) {
	b.GetBody()
	return b.Watch(ctx)
}

func newSource(r io.Reader) *source { return &source{Reader: r} }

func newText(text string) *source { return newSource(struct{ io.Reader }{strings.NewReader(text)}) }

func (s *source) Close() error {
	s.closes.Add(1)
	time.Sleep(s.closeTakes)
	return s.closeErr
}

// blocked is a source whose Read blocks until it receives data or is closed.
type blocked struct {
	source
	data   chan string
	closed chan struct{}
}

func newBlocked() *blocked {
	return &blocked{data: make(chan string), closed: make(chan struct{})}
}

func (b *blocked) Read(p []byte) (int, error) {
	select {
	case text, ok := <-b.data:
		if !ok {
			return 0, io.EOF
		}
		return copy(p, text), nil
	case <-b.closed:
		return 0, errors.New("read of a closed source")
	}
}

func (b *blocked) Close() error {
	if b.closes.Add(1) == 1 {
		close(b.closed)
	}
	return nil
}

// getBody is the type of Request.GetBody.
type getBody = func() (io.ReadCloser, error)

func request(body io.ReadCloser, getBody getBody) *http.Request {
	return &http.Request{Method: "PUT", Body: body, GetBody: getBody}
}

func prepare(body io.ReadCloser, limit int64) *replay.Body {
	b := new(replay.Body)
	b.Prepare(request(body, nil), limit)
	return b
}

// replaceable prepares a body that GetBody replaces.
func replaceable(body io.ReadCloser, getBody getBody) *replay.Body {
	b := new(replay.Body)
	b.Prepare(request(body, getBody), 0)
	return b
}

// rewind prepares the body for another attempt.
func rewind(b *replay.Body) bool {
	return b.Pin() && b.Rewind(bounded.Signal{}, bounded.NoLimit)
}

func readAll(t testing.TB, r io.ReadCloser) string {
	t.Helper()
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	return string(text)
}

func readN(t testing.TB, r io.Reader, n int) string {
	t.Helper()
	p := make([]byte, n)
	_, err := io.ReadFull(r, p)
	require.NoError(t, err)
	return string(p)
}

func TestNoBody(t *testing.T) {
	for _, none := range []io.ReadCloser{nil, http.NoBody} {
		b := prepare(none, 100)
		assert.False(t, b.Has())
		assert.Nil(t, b.Recorder())
		for range 3 {
			stop := watch(t.Context(), b)
			assert.Equal(t, none, b.Open(false))
			stop()
			assert.True(t, rewind(b))
		}
		b.Finish()
		b.Abort()
		require.NoError(t, b.Err())
		require.NoError(t, b.Failure())
		assert.False(t, b.ClosedEarly())
	}
}

// A body in memory is sent as it is, if it and GetBody are of http.NewRequest.
func TestDirect(t *testing.T) {
	reader := strings.NewReader("text")
	own := func() (io.ReadCloser, error) { return io.NopCloser(reader), nil }
	ofNewRequest := newRequest(t, strings.NewReader("text")).GetBody
	for name, tt := range map[string]struct {
		req  *http.Request
		want bool
	}{
		"strings.Reader":  {newRequest(t, strings.NewReader("text")), true},
		"bytes.Reader":    {newRequest(t, bytes.NewReader([]byte("text"))), true},
		"bytes.Buffer":    {newRequest(t, bytes.NewBufferString("text")), true},
		"empty":           {newRequest(t, strings.NewReader("")), true},
		"another reader":  {request(newText("text"), ofNewRequest), false},
		"another GetBody": {request(io.NopCloser(reader), own), false},
		"without GetBody": {request(io.NopCloser(reader), nil), false},
		"of a pipe":       {newRequest(t, io.LimitReader(reader, 4)), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := new(replay.Body)
			b.Prepare(tt.req, 100)
			assert.Equal(t, tt.want, replay.IsDirect(tt.req))
			assert.Equal(t, tt.want, b.Recorder() == nil)
			assert.Equal(t, tt.want, b.Open(false) == tt.req.Body)
		})
	}
}

// newRequest returns a request of http.NewRequest.
func newRequest(t testing.TB, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "PUT", "http://a.test/", body)
	require.NoError(t, err)
	return req
}

// Each attempt of a request of http.NewRequest sends a new reader, even while
// the attempt before still reads.
func TestDirectIsRewound(t *testing.T) {
	for _, sent := range []bool{false, true} { // before it was prepared
		req := newRequest(t, strings.NewReader("text"))
		b := new(replay.Body)
		if sent {
			body, getBody := req.Body, req.GetBody
			req.Body, req.GetBody = nil, nil // by the base transport
			b.PrepareSent(body, getBody)
		} else {
			b.Prepare(req, 0)
		}
		for range 3 {
			body := b.Open(false)
			assert.Nil(t, b.Recorder())
			assert.Equal(t, "te", readN(t, body, 2))
			require.True(t, rewind(b))
			assert.Equal(t, "xt", readAll(t, body))
		}
	}
}

// The next attempt gets the whole body if the bytes that attempts have read
// fit. In the end, the source is closed once.
func TestRecord(t *testing.T) {
	const text = "0123456789"
	for limit := range int64(len(text) + 2) {
		for read := range len(text) + 1 {
			checkRecord(t, iotest.OneByteReader(strings.NewReader(text)), text, limit, read)
			checkRecord(t, iotest.DataErrReader(strings.NewReader(text)), text, limit, read)
		}
	}
}

// checkRecord lets three attempts read a part of r, which contains text, and
// then one more read all of it.
func checkRecord(t *testing.T, r io.Reader, text string, limit int64, read int) {
	t.Helper()
	s := newSource(r)
	b := prepare(s, limit)
	attempts := 0
	for ; attempts < 3; attempts++ {
		view := b.Open(false)
		assert.Equal(t, text[:read], readN(t, view, read))
		require.NoError(t, view.Close())
		if !rewind(b) {
			break
		}
	}
	if int64(read) > limit {
		assert.Equal(t, 0, attempts, "limit %d, %d read", limit, read)
	} else if assert.Equal(t, 3, attempts, "limit %d, %d read", limit, read) {
		assert.Equal(t, text, readAll(t, b.Open(true)), "limit %d, %d read", limit, read)
	}
	b.Finish()
	require.EqualValues(t, 1, s.closes.Load())
}

// A Read returns no more than can be kept, however large its buffer is.
func TestReadUpToTheLimit(t *testing.T) {
	b := prepare(newText("the quick brown fox"), 10)
	n, err := b.Open(false).Read(make([]byte, 512))
	require.NoError(t, err)
	assert.Equal(t, 10, n)
	require.True(t, rewind(b))
	assert.Equal(t, "the quick brown fox", readAll(t, b.Open(true)))
}

// The last attempt records nothing, so a body of which it has read some cannot
// be sent again.
func TestLastAttempt(t *testing.T) {
	s := newText("some text")
	b := prepare(s, 100)
	view := b.Open(true)
	assert.True(t, b.Pin(), "nothing was read")
	b.Finish()
	assert.Equal(t, "some", readN(t, view, 4))
	assert.False(t, b.Pin())
	require.NoError(t, view.Close())
	assert.EqualValues(t, 1, s.closes.Load(), "with the last view")
	_, err := view.Read(make([]byte, 1))
	require.ErrorContains(t, err, "closed")
	assert.True(t, b.ClosedEarly())

	b = prepare(newText("some text"), 100)
	assert.Equal(t, "some text", readAll(t, b.Open(true)))
	assert.False(t, b.Pin(), "all of it was read")
	b.Abort()

	s = newText("some text")
	prepare(s, 100).Finish()
	assert.EqualValues(t, 1, s.closes.Load(), "no attempt was made")
}

// A source that has failed is not read again, and its failure is that of every
// later Read. The body cannot be sent again then.
func TestSourceFails(t *testing.T) {
	for _, last := range []bool{false, true} {
		// The second Read fails, and no other.
		s := newSource(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("text"))))
		b := prepare(s, 100)
		view := b.Open(last)
		for range 2 {
			_, err := io.ReadAll(view)
			require.Equal(t, iotest.ErrTimeout, err)
		}
		require.Equal(t, iotest.ErrTimeout, b.Failure())
		assert.False(t, rewind(b))
		b.Abort()
		assert.EqualValues(t, 1, s.closes.Load())
		require.Equal(t, iotest.ErrTimeout, b.Failure(), "not the result of the close")
	}
}

// An error of Close is reported once, together with the attempt's own.
func TestCloseFails(t *testing.T) {
	boom := errors.New("boom")
	s := newText("text")
	s.closeErr = boom
	b := prepare(s, 100)
	view := b.Open(true)
	require.ErrorIs(t, view.Close(), boom)
	all, failed := b.WithCloseFailure(io.EOF)
	assert.True(t, failed)
	require.ErrorIs(t, all, boom)
	require.ErrorIs(t, all, io.EOF)
	all, failed = b.WithCloseFailure(boom)
	assert.True(t, failed)
	assert.Equal(t, boom, all)

	b = prepare(newText("text"), 100)
	b.Open(false)
	all, failed = b.WithCloseFailure(io.EOF)
	assert.False(t, failed)
	assert.Equal(t, io.EOF, all)
}

// A new view may begin while the one before is inside Read of the source. It
// gets the result of that Read, and the old view gets an error.
func TestViewsShareARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s, _, oldDone := blockedRead(100, false, "some ")
		require.True(t, rewind(b))
		view := b.Open(false)
		result := make(chan string)
		go func() { text, _ := io.ReadAll(view); result <- string(text) }()
		synctest.Wait()
		s.data <- "more "
		s.data <- "text"
		close(s.data)
		assert.Equal(t, "some more text", <-result)
		require.Error(t, <-oldDone)
		b.Finish()
	})
}

// A view may read the record while the Read of the view before ends, which adds
// to the record. Only the race detector notices if they are not synchronized.
func TestViewReadsAGrowingRecord(t *testing.T) {
	const size = 8 << 10
	first, second := strings.Repeat("a", size), strings.Repeat("b", size)
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			r, w := io.Pipe()
			write := func(text string) { _, _ = io.WriteString(w, text) }
			go write(first)
			b := prepare(r, 2*size)
			old := b.Open(false)
			readN(t, old, size)
			go func() { _, _ = old.Read(make([]byte, size)) }()
			synctest.Wait()
			require.True(t, rewind(b))
			view := iotest.OneByteReader(b.Open(false))
			got := readN(t, view, size/4)
			go write(second)
			got += readN(t, view, size-size/4)
			assert.Equal(t, first, got)
			assert.Equal(t, second, readN(t, view, size))
		})
	}
}

// While a retry is being decided, the previous attempt reads no bytes that
// cannot be kept. If no retry follows, it continues.
func TestPinHoldsReads(t *testing.T) {
	for _, follows := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := prepare(newSource(iotest.OneByteReader(strings.NewReader("0123456789"))), 5)
			view := b.Open(false)
			assert.Equal(t, "0123", readN(t, view, 4))
			require.True(t, rewind(b))
			rest := make(chan string, 1)
			go func() { text, _ := io.ReadAll(view); rest <- string(text) }()
			synctest.Wait()
			assert.Empty(t, rest, "it waits")
			if follows {
				assert.Equal(t, "0123456789", readAll(t, b.Open(true)))
				assert.Equal(t, "4", <-rest)
			} else {
				b.Finish()
				assert.Equal(t, "456789", <-rest)
			}
			b.Finish()
		})
	}
}

// A Read may wait while a retry is being decided. It ends when the next attempt
// begins, even if that reads nothing, or when the body or the source is closed.
func TestWaitingReadEnds(t *testing.T) {
	for name, end := range map[string]func(b *replay.Body, view io.Closer){
		"Open":      func(b *replay.Body, _ io.Closer) { b.Open(false) },
		"Abort":     func(b *replay.Body, _ io.Closer) { b.Abort() },
		"Interrupt": func(b *replay.Body, _ io.Closer) { b.Recorder().Interrupt() },
		"Close":     func(_ *replay.Body, view io.Closer) { _ = view.Close() },
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			b := prepare(newSource(iotest.OneByteReader(strings.NewReader("0123456789"))), 4)
			view := b.Open(false)
			assert.Equal(t, "0123", readN(t, view, 4))
			require.True(t, rewind(b))
			done := make(chan error, 1)
			go func() { _, err := view.Read(make([]byte, 1)); done <- err }()
			synctest.Wait()
			require.Empty(t, done, "it waits")
			end(b, view)
			require.Error(t, <-done)
			b.Abort()
		})
	}
}

// blockedRead opens a body for an attempt that reads the texts. Then its Read
// blocks. done receives its error.
func blockedRead(limit int64, last bool, texts ...string) (
	b *replay.Body, s *blocked, view io.ReadCloser, done chan error,
) {
	s = newBlocked()
	b = prepare(s, limit)
	view = b.Open(last)
	done = make(chan error, 1)
	go func() { _, err := io.ReadAll(view); done <- err }()
	for _, text := range texts {
		s.data <- text
	}
	synctest.Wait()
	return b, s, view, done
}

// The bytes of a Read that is under way may not fit.
func TestPinDuringAReadPastTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _, _ := blockedRead(4, false, "text")
		assert.False(t, rewind(b))
		b.Abort()
	})
}

// Each attempt reads a file from the position that it had, and no bytes are
// kept.
func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte("skipped0123456789"), 0o600))
	file, err := os.Open(name)
	require.NoError(t, err)
	_, err = file.Seek(int64(len("skipped")), io.SeekStart)
	require.NoError(t, err)
	b := prepare(file, 0)
	for read := range 10 {
		view := b.Open(false)
		assert.Equal(t, "0123456789"[:read], readN(t, view, read))
		require.NoError(t, view.Close())
		_, err := view.Read(make([]byte, 1))
		require.Error(t, err, "of a closed view")
		require.True(t, rewind(b))
	}
	view := b.Open(true)
	text, err := io.ReadAll(iotest.OneByteReader(view))
	require.NoError(t, err)
	assert.Equal(t, "0123456789", string(text))
	require.NoError(t, view.Close())
	require.ErrorIs(t, file.Close(), os.ErrClosed)
}

// A file that fails is not sent again, and neither is one that is closed. The
// end of a file is no failure.
func TestFileEnds(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte("text"), 0o600))
	file, err := os.Open(name)
	require.NoError(t, err)
	b := prepare(file, 0)
	assert.Equal(t, "text", readAll(t, b.Open(false)))
	require.NoError(t, b.Failure())
	require.True(t, rewind(b))
	b.Abort()
	assert.False(t, rewind(b))
	require.NoError(t, b.Failure())

	file, err = os.OpenFile(name, os.O_WRONLY, 0)
	require.NoError(t, err)
	b = prepare(file, 0)
	_, err = b.Open(false).Read(make([]byte, 1))
	require.Error(t, err)
	require.Equal(t, err, b.Failure())
	assert.False(t, rewind(b))
	b.Abort()
	require.Equal(t, err, b.Failure())
}

// If no later attempt can read from a source, it is closed with its view, and
// not only with the request.
func TestCloseOfAViewClosesTheSource(t *testing.T) {
	another := func() (io.ReadCloser, error) { return newText("text"), nil }
	for name, tt := range map[string]struct {
		getBody getBody
		limit   int64
		read    int
		want    int32
	}{
		"unread, with GetBody":          {another, 0, 0, 0},
		"read in part, with GetBody":    {another, 0, 1, 1},
		"unread":                        {nil, 2, 0, 0},
		"read in part":                  {nil, 2, 2, 0},
		"more than the record can keep": {nil, 2, 3, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, b := newText("text"), new(replay.Body)
			b.Prepare(request(s, tt.getBody), tt.limit)
			view := b.Open(false)
			readN(t, view, tt.read)
			require.NoError(t, view.Close())
			assert.Equal(t, tt.want, s.closes.Load())
			b.Abort()
			assert.EqualValues(t, 1, s.closes.Load())
		})
	}
}

// An earlier attempt may close its body late, while the current one reads.
func TestLateCloseOfAnEarlierView(t *testing.T) {
	for _, last := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newBlocked()
			b := prepare(s, 100)
			old := b.Open(false)
			go func() { s.data <- "some " }()
			readN(t, old, 5)
			require.True(t, rewind(b))
			view := b.Open(last)
			defer watch(t.Context(), b)()
			go func() {
				time.Sleep(time.Minute)
				assert.Zero(t, s.closes.Load(), "the Read is still under way")
				s.data <- "text"
				close(s.data)
			}()
			time.AfterFunc(time.Second, func() { assert.NoError(t, old.Close()) })
			assert.Equal(t, "some text", readAll(t, view))
		})
	}
}

// A pipe is an *os.File that cannot be read at an offset.
func TestPipe(t *testing.T) {
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	_, err = writer.WriteString("text")
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	b := prepare(reader, 100)
	view := b.Open(false)
	assert.Equal(t, "te", readN(t, view, 2))
	require.NoError(t, view.Close())
	require.True(t, rewind(b))
	assert.Equal(t, "text", readAll(t, b.Open(true)))
}

// The function of http.NewRequest may be the GetBody of another body. Its own
// bodies are sent as they are.
func TestGetBodyInMemory(t *testing.T) {
	first := newText("text")
	b := replaceable(first, newRequest(t, strings.NewReader("text")).GetBody)
	b.Open(false)
	assert.NotNil(t, b.Recorder())
	require.True(t, rewind(b))
	assert.Equal(t, "text", readAll(t, b.Open(false)))
	assert.Nil(t, b.Recorder())
	assert.EqualValues(t, 1, first.closes.Load())
	require.True(t, rewind(b))
	assert.Equal(t, "text", readAll(t, b.Open(false)))
	b.Abort()
}

// newSeekable returns a body of ten digits, and a GetBody that seeks in it and
// returns it again.
func newSeekable() (s *source, getBody getBody) {
	reader := strings.NewReader("0123456789")
	s = newSource(reader)
	return s, func() (io.ReadCloser, error) {
		_, err := reader.Seek(0, io.SeekStart)
		return s, err
	}
}

// sought lets an attempt read a part of a body, in which GetBody then seeks for
// another attempt.
func sought(t *testing.T) (b *replay.Body, s *source, view io.ReadCloser) {
	t.Helper()
	s, getBody := newSeekable()
	b = replaceable(s, getBody)
	view = b.Open(false)
	assert.Equal(t, "0123", readN(t, view, 4))
	require.True(t, rewind(b), "it is not inside Read")
	return b, s, view
}

// GetBody may move the position of the body that an attempt is sending. If no
// retry follows, the attempt gets an error instead of wrong bytes.
func TestGetBodySeeks(t *testing.T) {
	for _, follows := range []bool{false, true} {
		b, s, view := sought(t)
		if follows {
			assert.Equal(t, "0123456789", readAll(t, b.Open(true)))
		} else {
			b.Abort()
		}
		_, err := view.Read(make([]byte, 4))
		require.Error(t, err)
		b.Finish()
		assert.EqualValues(t, 1, s.closes.Load())
	}
}

// The base transport may close the body of an attempt after GetBody has made
// that body ready for the next one. It is closed once the next one has ended,
// or if there is none.
func TestGetBodySeeksBeforeLateClose(t *testing.T) {
	for name, use := range map[string]func(b *replay.Body, view io.Closer) (end func()){
		"before Open": func(b *replay.Body, view io.Closer) func() {
			_ = view.Close()
			b.Open(false)
			return b.Abort
		},
		"after Open": func(b *replay.Body, view io.Closer) func() {
			b.Open(false)
			_ = view.Close()
			return b.Abort
		},
		"no retry": func(b *replay.Body, view io.Closer) func() {
			_ = view.Close()
			return b.Finish
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, s, view := sought(t)
			end := use(b, view)
			assert.Zero(t, s.closes.Load())
			end()
			assert.EqualValues(t, 1, s.closes.Load())
		})
	}
}

// While a Read of the body blocks, GetBody must not return the same body. For
// another one, the Read is ended by closing its body.
func TestGetBodyOfABlockedBody(t *testing.T) {
	for _, same := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, next := newBlocked(), newText("text")
			b := replaceable(s, func() (io.ReadCloser, error) {
				if same {
					return s, nil
				}
				return next, nil
			})
			view, done := b.Open(false), make(chan error, 1)
			go func() { _, err := io.ReadAll(view); done <- err }()
			synctest.Wait()
			start := time.Now()
			assert.Equal(t, !same, rewind(b))
			assert.LessOrEqual(t, time.Since(start), 2*bounded.MaxTime)
			require.Error(t, <-done)
			assert.EqualValues(t, 1, s.closes.Load())
			if same {
				require.ErrorContains(t, b.Err(), "still being read")
				b.Abort()
			} else {
				assert.Equal(t, "text", readAll(t, b.Open(true)))
				b.Finish()
				assert.EqualValues(t, 1, next.closes.Load())
			}
		})
	}
}

// A body of a type that cannot be compared is never the same body.
func TestGetBodyIncomparable(t *testing.T) {
	type incomparable struct {
		io.ReadCloser
		_ []int
	}
	body := func() (io.ReadCloser, error) { return incomparable{ReadCloser: newText("text")}, nil }
	first, _ := body()
	b := replaceable(first, body)
	b.Open(false)
	require.True(t, rewind(b))
	assert.Equal(t, "text", readAll(t, b.Open(true)))
}

// net/http closes the body of a request that it cannot begin on a connection,
// and sends it on another. It does not close the body again, so the body closes
// itself at its end.
func TestReopen(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, b *replay.Body, view io.ReadCloser){
		"read to its end": func(t *testing.T, _ *replay.Body, view io.ReadCloser) {
			text, err := io.ReadAll(view)
			require.NoError(t, err)
			assert.Equal(t, "text", string(text))
		},
		"interrupted after the last attempt": func(_ *testing.T, b *replay.Body, _ io.ReadCloser) {
			b.Finish()
			b.Recorder().Interrupt()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newText("text")
			b := prepare(s, 100)
			view := b.Open(false)
			b.Recorder().Reopen() // does nothing to a view that is open
			require.NoError(t, view.Close())
			_, err := view.Read(make([]byte, 1))
			require.Error(t, err)
			require.NoError(t, view.Close())
			b.Recorder().Reopen()
			assert.Zero(t, s.closes.Load())
			end(t, b, view)
			assert.EqualValues(t, 1, s.closes.Load())
		})
	}
}

// A view that was read is not reopened.
func TestNoReopenAfterARead(t *testing.T) {
	b := prepare(newText("text"), 100)
	view := b.Open(false)
	readN(t, view, 2)
	require.NoError(t, view.Close())
	b.Recorder().Reopen()
	_, err := view.Read(make([]byte, 1))
	require.Error(t, err)
}

// A view that is reopened begins with the bytes that an earlier attempt has
// read, whether these are all bytes or not.
func TestReopenAfterAnEarlierAttempt(t *testing.T) {
	for _, all := range []bool{false, true} {
		for _, last := range []bool{false, true} {
			t.Run(fmt.Sprintf("all=%v/last=%v", all, last), func(t *testing.T) {
				s := newText("some text")
				b := prepare(s, 100)
				first := b.Open(false)
				assert.Equal(t, "some", readN(t, first, 4))
				if all {
					assert.Equal(t, " text", readAll(t, first))
				}
				require.True(t, rewind(b))
				view := b.Open(last)
				stop := watch(t.Context(), b)
				require.NoError(t, view.Close())
				b.Recorder().Reopen()
				assert.Equal(t, "some text", readAll(t, view))
				stop()
				b.Finish()
				assert.EqualValues(t, 1, s.closes.Load())
			})
		}
	}
}

// The base transport may close a body while its Read blocks and GetBody is
// called for a copy. Over HTTP/2, it then waits for the Read.
func TestCloseDuringAReadAndGetBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, called := newBlocked(), make(chan struct{})
		b := replaceable(s, func() (io.ReadCloser, error) { <-called; return newText("text"), nil })
		view := b.Open(false)
		stop := watch(t.Context(), b)
		done := make(chan error, 1)
		go func() { _, err := io.ReadAll(view); done <- err }()
		s.data <- "some "
		synctest.Wait()
		go func() { _, _ = b.GetBody()() }()
		time.Sleep(time.Second)
		require.NoError(t, view.Close())
		time.Sleep(time.Second)
		assert.EqualValues(t, 1, s.closes.Load())
		require.Error(t, <-done)
		close(called)
		synctest.Wait()
		stop()
		b.Abort()
	})
}

// A view that is interrupted leaves the source to the next attempt if it is not
// inside Read, also if it was reopened.
func TestInterruptedIsSentAgain(t *testing.T) {
	for _, reopened := range []bool{false, true} {
		s := newText("text")
		b := prepare(s, 100)
		view := b.Open(false)
		if reopened {
			require.NoError(t, view.Close())
			b.Recorder().Reopen()
		} else {
			readN(t, view, 2)
		}
		b.Recorder().Interrupt()
		_, err := view.Read(make([]byte, 1))
		require.Error(t, err)
		assert.Zero(t, s.closes.Load())
		require.True(t, rewind(b))
		assert.Equal(t, "text", readAll(t, b.Open(true)))
	}
}

// Interrupt of the last attempt leaves closing the source to the base
// transport, which still has the view.
func TestInterruptLeavesTheCloseToTheBase(t *testing.T) {
	s := newText("text")
	b := prepare(s, 100)
	view := b.Open(true)
	b.Recorder().Interrupt()
	_, err := view.Read(make([]byte, 1))
	require.Error(t, err)
	assert.Zero(t, s.closes.Load())
	require.NoError(t, view.Close())
	assert.EqualValues(t, 1, s.closes.Load())
}

// Interrupt and Abort end a Read that blocks, by closing the source. The result
// of that is not the failure of the source.
func TestInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			limit int64
			last  bool
			texts []string
		}{
			{100, false, nil},
			{100, true, nil},
			{100, true, []string{"some "}},
			{4, false, []string{"some text", "and more"}}, // more than the record can keep
		} {
			for _, end := range []func(*replay.Body){
				func(b *replay.Body) { b.Recorder().Interrupt() }, (*replay.Body).Abort} {
				b, s, _, done := blockedRead(tt.limit, tt.last, tt.texts...)
				end(b)
				require.Error(t, <-done)
				require.NoError(t, b.Failure())
				assert.EqualValues(t, 1, s.closes.Load())
				assert.False(t, rewind(b), "the rest is lost")
			}
		}
	})
}

// The end of the context ends a Read that blocks, while the base transport's
// RoundTrip runs.
func TestWatch(t *testing.T) {
	for _, canceled := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b, _, _, done := blockedRead(100, false)
			ctx, cancel := context.WithCancel(t.Context())
			stop := watch(ctx, b)
			if canceled {
				cancel()
				require.Error(t, <-done)
				stop()
				return
			}
			stop()
			cancel()
			synctest.Wait()
			assert.Empty(t, done, "RoundTrip has returned")
			b.Abort()
		})
	}
}

// net/http closes the body of an HTTP/2 stream that was reset, and waits for
// its Read. If RoundTrip does not return in a moment, the source is closed.
// Otherwise nothing waits for the Read, and the source stays open for the next
// attempt.
func TestCloseDuringARead(t *testing.T) {
	const before, soon, late = "before the close", "soon after it", "late"
	for _, returns := range []string{before, soon, late} {
		for _, last := range []bool{false, true} {
			contract.Bubble(t, fmt.Sprintf("%s/last=%v", returns, last), func(t *testing.T) {
				b, s, view, done := blockedRead(100, last)
				stop := watch(t.Context(), b)
				if returns == before {
					stop()
				}
				require.NoError(t, view.Close())
				if returns == soon {
					stop()
				}
				time.Sleep(time.Second)
				synctest.Wait()
				// With the last view, the source is closed at once.
				closed := returns == late || last
				assert.Equal(t, closed, len(done) == 1)
				assert.Equal(t, closed, s.closes.Load() == 1)
				if returns == late {
					stop()
				}
				b.Abort()
			})
		}
	}
}

// After its end or its failure, no Read of the source is under way. Then Close
// waits for the Close of the source, and returns its error.
func TestCloseAfterTheEndWaits(t *testing.T) {
	for name, read := range map[string]io.Reader{
		"end":     struct{ io.Reader }{strings.NewReader("text")},
		"failure": iotest.ErrReader(errors.New("boom")),
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			closeErr := errors.New("of Close")
			s := newSource(read)
			s.closeTakes, s.closeErr = time.Second, closeErr
			view := prepare(s, 100).Open(false)
			_, _ = io.ReadAll(view)
			require.ErrorIs(t, view.Close(), closeErr)
		})
	}
}

// If the Read ends by itself after the close, the next attempt gets its bytes.
func TestCloseDuringAReadThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s, view, _ := blockedRead(100, false)
		stop := watch(t.Context(), b)
		require.NoError(t, view.Close())
		s.data <- "some "
		time.Sleep(time.Second)
		assert.Zero(t, s.closes.Load())
		stop()
		require.True(t, rewind(b))
		go func() { s.data <- "text"; close(s.data) }()
		assert.Equal(t, "some text", readAll(t, b.Open(true)))
	})
}

// Nothing waits for a Close of the source that blocks for longer than a moment.
func TestCloseBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, end := range map[string]func(b *replay.Body){
			"Abort": func(b *replay.Body) { b.Abort() },
			"Finish": func(b *replay.Body) {
				_ = b.Open(false).Close()
				b.Finish()
			},
			"Abort of a retry": func(b *replay.Body) {
				require.True(t, rewind(b))
				b.Abort()
			},
			"Open": func(b *replay.Body) {
				require.True(t, rewind(b))
				b.Open(false)
			},
		} {
			slow := func() (io.ReadCloser, error) {
				s := newText("text")
				s.closeTakes = time.Hour
				return s, nil
			}
			first, _ := slow()
			b := replaceable(first, slow)
			view := b.Open(false)
			readN(t, view, 2)
			start := time.Now()
			end(b)
			limit := bounded.MaxTime
			if name == "Abort of a retry" {
				limit *= 2 // it closes two bodies
			}
			assert.LessOrEqual(t, time.Since(start), limit, name)
		}
		time.Sleep(2 * time.Hour)
	})
}

// If Read of the source panics, later Reads do not wait for it.
func TestSourcePanics(t *testing.T) {
	panics := func([]byte) (int, error) { panic("boom") }
	b := prepare(newSource(contract.ReaderFunc(panics)), 100)
	view := b.Open(false)
	assert.PanicsWithValue(t, "boom", func() { _, _ = view.Read(make([]byte, 1)) })
	_, err := view.Read(make([]byte, 1))
	require.Error(t, err)
	require.NoError(t, b.Failure())
	assert.False(t, rewind(b))
	b.Abort()
}

func TestClosedEarly(t *testing.T) {
	for read, want := range map[int]bool{0: true, 2: true, 4: true, 5: false} { // 5: and its end
		b := prepare(newText("text"), 100)
		view := b.Open(false)
		assert.False(t, b.ClosedEarly())
		_, _ = io.ReadFull(view, make([]byte, read))
		require.NoError(t, view.Close())
		assert.Equal(t, want, b.ClosedEarly(), read)
	}
}

// An empty Read reads nothing.
func TestEmptyRead(t *testing.T) {
	b := prepare(newSource(iotest.ErrReader(errors.New("boom"))), 100)
	n, err := b.Open(false).Read(nil)
	require.NoError(t, err)
	assert.Zero(t, n)
	require.NoError(t, b.Failure())
}
