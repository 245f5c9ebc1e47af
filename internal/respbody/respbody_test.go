package respbody_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/bounded"
	"github.com/seed421102f4/httpretry/internal/respbody"
)

// body counts the calls of its methods. Read and Close block for as long as the
// fields say.
type body struct {
	io.Reader
	readTakes, closeTakes time.Duration
	closeErr              error
	read, closes          atomic.Int64
	ended                 atomic.Bool // a Read returned io.EOF
}

func newBody(r io.Reader) *body { return &body{Reader: r} }

func (b *body) Read(p []byte) (int, error) {
	time.Sleep(b.readTakes)
	n, err := b.Reader.Read(p)
	b.read.Add(int64(n))
	b.ended.Store(err == io.EOF)
	return n, err
}

func (b *body) Close() error {
	b.closes.Add(1)
	time.Sleep(b.closeTakes)
	return b.closeErr
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type statelessBody struct{}

func (statelessBody) Read([]byte) (int, error) { return 0, io.EOF }
func (statelessBody) Close() error             { return nil }

// releases counts the calls of Release.
type releases struct{ n atomic.Int32 }

func (r *releases) Release() { r.n.Add(1) }

func TestIsEmpty(t *testing.T) {
	for name, tt := range map[string]struct {
		body io.ReadCloser
		want bool
	}{
		"none":      {nil, true},
		"NoBody":    {http.NoBody, true},
		"stateless": {statelessBody{}, true},
		"by value":  {io.NopCloser(strings.NewReader("")), false},
		"pointer":   {&statelessBody{}, false},
		"body":      {newBody(strings.NewReader("")), false},
	} {
		assert.Equal(t, tt.want, respbody.IsEmpty(&http.Response{Body: tt.body}), name)
	}
}

func discard(resp *http.Response, r respbody.Releaser) time.Duration {
	return respbody.Discard(resp, r, bounded.MaxTime, bounded.Signal{})
}

func TestDiscard(t *testing.T) {
	const forever = time.Hour
	for _, tt := range []struct {
		name    string
		body    *body
		length  int64
		read    int64         // at most
		takes   time.Duration // at most
		drained bool
	}{
		{"short", newBody(strings.NewReader("text")), 4, 4, 0, true},
		{"short, of unknown length", newBody(strings.NewReader("text")), -1, 4, 0, true},
		{"as long as is read", newBody(io.LimitReader(zeros{}, respbody.MaxBytes)),
			respbody.MaxBytes, respbody.MaxBytes, 0, true},
		{"longer", newBody(zeros{}), respbody.MaxBytes + 1, 0, 0, false},
		{"endless", newBody(zeros{}), -1, respbody.MaxBytes + 1, 0, false},
		{"broken",
			newBody(io.MultiReader(strings.NewReader("te"), iotest.ErrReader(errors.New("boom")))),
			4, 2, 0, false},
		{"slow", &body{Reader: strings.NewReader("text"), readTakes: bounded.MaxTime / 4}, 4, 4,
			bounded.MaxTime, true},
		{"stalled", &body{Reader: strings.NewReader("text"), readTakes: forever}, 4, 0,
			bounded.MaxTime, false},
		{"stuck in Close", &body{Reader: strings.NewReader("text"), closeTakes: forever}, 4, 4,
			bounded.MaxTime, true},
		{"stuck in both", &body{Reader: strings.NewReader("text"), readTakes: forever,
			closeTakes: forever}, 4, 0, 2 * bounded.MaxTime, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				released, start := new(releases), time.Now()
				took := discard(&http.Response{Body: tt.body, ContentLength: tt.length}, released)
				assert.Equal(t, time.Since(start), took)
				assert.LessOrEqual(t, took, tt.takes)
				assert.LessOrEqual(t, tt.body.read.Load(), tt.read)
				assert.EqualValues(t, 1, tt.body.closes.Load(), "closed")
				assert.Positive(t, released.n.Load(), "released")
				assert.Equal(t, tt.drained, tt.body.ended.Load(), "read to its end")
				time.Sleep(3 * forever) // goroutines that still run end
			})
		})
	}
}

// A Read that returns neither bytes nor an error is not called again once the
// body is closed, whether or not it has ended by then.
func TestDiscardWithoutProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *body
		late := 0
		b = newBody(readerFunc(func([]byte) (int, error) {
			time.Sleep(time.Millisecond)
			if b.closes.Load() == 0 {
				return 0, nil
			}
			if late++; late > 100 {
				return 0, io.EOF // so that the test ends
			}
			return 0, nil
		}))
		assert.Equal(t, bounded.MaxTime,
			discard(&http.Response{Body: b, ContentLength: -1}, new(releases)))
		time.Sleep(time.Second)
		synctest.Wait()
		assert.LessOrEqual(t, late, 1, "Reads after the body was closed")
		assert.EqualValues(t, 1, b.closes.Load())
	})
}

// An empty body is neither read nor closed.
func TestDiscardEmpty(t *testing.T) {
	for _, empty := range []io.ReadCloser{
		nil, http.NoBody, statelessBody{}, io.NopCloser(strings.NewReader("text"))} {
		released := new(releases)
		assert.Zero(t, discard(&http.Response{Body: empty}, released))
		assert.EqualValues(t, 1, released.n.Load())
	}
}

// A body is drained before its Releaser is called, because a release during the
// transfer closes the connection.
func TestDiscardReleasesAfterTheEnd(t *testing.T) {
	b := newBody(strings.NewReader("text"))
	discard(&http.Response{Body: b, ContentLength: 4},
		releaser(func() { assert.EqualValues(t, 4, b.read.Load()) }))
}

type releaser func()

func (r releaser) Release() { r() }

func TestDiscardPanics(t *testing.T) {
	boom := readerFunc(func([]byte) (int, error) { panic("boom") })
	assert.PanicsWithValue(t, "boom",
		func() { discard(&http.Response{Body: newBody(boom)}, new(releases)) })
}

// A cancel ends the wait for a Read, which goes on. Then the body is closed.
func TestDiscardCanceled(t *testing.T) {
	for i := range len(bounded.Signal{}) {
		synctest.Test(t, func(t *testing.T) {
			var canceled bounded.Signal
			channel := make(chan struct{})
			canceled[i] = channel
			const after = bounded.MaxTime / 2
			time.AfterFunc(after, func() { close(channel) })
			b := &body{Reader: strings.NewReader("text"), readTakes: time.Hour}
			resp, released, start := &http.Response{Body: b}, new(releases), time.Now()
			assert.Equal(t, after, respbody.Discard(resp, released, bounded.MaxTime, canceled))
			assert.Equal(t, after, time.Since(start))
			assert.EqualValues(t, 1, b.closes.Load(), "closed")
			assert.Positive(t, released.n.Load(), "released")
			time.Sleep(2 * time.Hour)
		})
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		respbody.Close(nil)
		respbody.Close(&http.Response{})
		respbody.Close(&http.Response{Body: http.NoBody})

		b := newBody(strings.NewReader("text"))
		respbody.Close(&http.Response{Body: b})
		assert.EqualValues(t, 1, b.closes.Load())
		assert.Zero(t, b.read.Load())

		start := time.Now()
		respbody.Close(&http.Response{Body: &body{closeTakes: time.Hour}})
		assert.Equal(t, bounded.MaxTime, time.Since(start))
		time.Sleep(2 * time.Hour)
	})
}

// follower records the ProtoMajor of the responses that have ended.
type follower struct{ ended []int }

func (f *follower) ResponseEnded(protoMajor int) { f.ended = append(f.ended, protoMajor) }

func TestFollow(t *testing.T) {
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		reader   io.Reader
		closeErr error
		use      func(*testing.T, *http.Response)
		ended    bool
	}{
		"left open": {strings.NewReader("text"), nil, func(*testing.T, *http.Response) {}, false},
		"read in part": {strings.NewReader("text"), nil, func(t *testing.T, resp *http.Response) {
			n, err := resp.Body.Read(make([]byte, 4))
			require.NoError(t, err)
			assert.Equal(t, 4, n)
		}, false},
		"read to its end": {
			strings.NewReader("text"), nil, func(t *testing.T, resp *http.Response) {
				text, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				assert.Equal(t, "text", string(text))
			}, true},
		"broken": {iotest.ErrReader(boom), nil, func(t *testing.T, resp *http.Response) {
			_, err := io.ReadAll(resp.Body)
			require.Equal(t, boom, err)
		}, true},
		"closed": {strings.NewReader("text"), boom, func(t *testing.T, resp *http.Response) {
			require.Equal(t, boom, resp.Body.Close())
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBody(tt.reader)
			b.closeErr = tt.closeErr
			f, resp := new(follower), &http.Response{ProtoMajor: 2, Body: b}
			new(respbody.Followed).Follow(resp, f)
			tt.use(t, resp)
			require.Equal(t, tt.ended, len(f.ended) > 0)
			for _, ended := range f.ended {
				assert.Equal(t, 2, ended)
			}
		})
	}
}
