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

// body counts the calls of its methods. Close blocks for closeTakes.
type body struct {
	io.Reader
	closeTakes   time.Duration
	closeErr     error
	read, closes atomic.Int64
	ended        atomic.Bool // a Read returned io.EOF
}

func newBody(r io.Reader) *body { return &body{Reader: r} }

func (b *body) Read(p []byte) (int, error) {
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

// An empty body holds no connection, but its context is released.
func TestDiscardEmpty(t *testing.T) {
	for _, empty := range []io.ReadCloser{
		nil, http.NoBody, io.NopCloser(strings.NewReader("text"))} {
		released := new(releases)
		assert.Zero(t, discard(&http.Response{Body: empty}, released))
		assert.EqualValues(t, 1, released.n.Load())
	}
}

// TestDrainIsPartOfTheWait and TestCancelDuringDrain, in ../../test, have bodies
// that block.
func TestDiscard(t *testing.T) {
	for _, tt := range []struct {
		name    string
		body    *body
		length  int64
		read    int64 // at most
		drained bool
	}{
		{"as long as is read", newBody(io.LimitReader(zeros{}, respbody.MaxBytes)),
			respbody.MaxBytes, respbody.MaxBytes, true},
		{"longer", newBody(zeros{}), respbody.MaxBytes + 1, 0, false},
		{"endless", newBody(zeros{}), -1, respbody.MaxBytes + 1, false},
		{"broken",
			newBody(io.MultiReader(strings.NewReader("te"), iotest.ErrReader(errors.New("boom")))),
			4, 2, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				released := new(releases)
				took := discard(&http.Response{Body: tt.body, ContentLength: tt.length}, released)
				assert.Zero(t, took)
				assert.LessOrEqual(t, tt.body.read.Load(), tt.read)
				assert.EqualValues(t, 1, tt.body.closes.Load(), "closed")
				assert.Positive(t, released.n.Load(), "released")
				assert.Equal(t, tt.drained, tt.body.ended.Load(), "read to its end")
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
	boom, text := errors.New("boom"), strings.NewReader
	readAll := func(body io.ReadCloser) error {
		_, err := io.ReadAll(body)
		return err
	}
	for name, tt := range map[string]struct {
		reader io.Reader
		use    func(io.ReadCloser) error
		want   error
		ended  bool
	}{
		"read in part": {text("text"), func(body io.ReadCloser) error {
			_, err := io.ReadFull(body, make([]byte, 4))
			return err
		}, nil, false},
		"read to its end": {text("text"), readAll, nil, true},
		"broken":          {iotest.ErrReader(boom), readAll, boom, true},
		"closed":          {text("text"), io.ReadCloser.Close, boom, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBody(tt.reader)
			b.closeErr = boom
			f, resp := new(follower), &http.Response{ProtoMajor: 2, Body: b}
			new(respbody.Followed).Follow(resp, f)
			require.ErrorIs(t, tt.use(resp.Body), tt.want)
			require.Equal(t, tt.ended, len(f.ended) > 0)
			for _, ended := range f.ended {
				assert.Equal(t, 2, ended)
			}
		})
	}
}
