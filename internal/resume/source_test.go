package resume_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/resume"
)

// body is a response's body. Its Read takes a while, and ends with its Close.
type body struct {
	io.Reader
	takes  time.Duration
	closed chan struct{}
	closes atomic.Int32
}

func newBody(r io.Reader) *body { return &body{Reader: r, closed: make(chan struct{})} }

func (b *body) Read(p []byte) (int, error) {
	select {
	case <-time.After(b.takes):
		return b.Reader.Read(p)
	case <-b.closed:
		return 0, errors.New("read of a closed body")
	}
}

func (b *body) Close() error {
	b.closes.Add(1)
	close(b.closed)
	return errors.New("of Close")
}

// restarting is a body that goes on after its end.
type restarting struct{ parts []string }

func (b *restarting) Read(p []byte) (n int, err error) {
	if n = copy(p, b.parts[0]); n == 0 {
		err = io.EOF
	}
	b.parts = b.parts[1:]
	return n, err
}

func TestSource(t *testing.T) {
	broken := errors.New("broken")
	text := strings.NewReader
	for _, tt := range []struct {
		name       string
		body       io.Reader
		skip, rest int64
		more       bool
		want       string
		err        error
	}{
		{"all", text("text"), 0, -1, false, "text", nil},
		{"all, broken", io.MultiReader(text("te"), iotest.ErrReader(broken)), 0, -1, false,
			"te", broken},
		{"rest", text("xt"), 0, 2, false, "xt", nil},
		{"rest of more", text("xt and more"), 0, 2, true, "xt", nil},
		{"rest, then a byte too many", text("xt!"), 0, 2, false, "xt", nil},
		{"rest, then an error", io.MultiReader(text("xt"), iotest.ErrReader(broken)), 0, 2, false,
			"xt", broken},
		{"rest of more, then an error", io.MultiReader(text("xt"), iotest.ErrReader(broken)), 0, 2,
			true, "xt", nil},
		{"too short", text("x"), 0, 2, false, "x", io.ErrUnexpectedEOF},
		{"too short, of more", text("x"), 0, 2, true, "x", io.ErrUnexpectedEOF},
		{"skip", text("text"), 2, 2, false, "xt", nil},
		{"skip all", text("text"), 4, 0, false, "", nil},
		{"skip more than there is, and then more", &restarting{[]string{"te", "", "text"}}, 3, 1,
			false, "", io.ErrUnexpectedEOF},
		{"broken in the skipped bytes", io.MultiReader(text("t"), iotest.ErrReader(broken)), 2, 2,
			false, "", broken},
		{"broken with the last byte that is skipped", iotest.DataErrReader(
			io.MultiReader(text("te"), iotest.ErrReader(broken))), 2, 2, false, "", broken},
		{"no rest", text(""), 0, 0, false, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &resume.Source{Body: newBody(tt.body), Skip: tt.skip, Rest: tt.rest, More: tt.more}
			got, err := io.ReadAll(s)
			assert.Equal(t, tt.want, string(got))
			assert.Equal(t, tt.err, err)
		})
	}
}

// Idle limits each Read, even of bytes that are skipped. It does not limit the
// time between Reads.
func TestSourceIdle(t *testing.T) {
	for _, takes := range []time.Duration{time.Second - 1, time.Second + 1} {
		for _, skip := range []int64{0, 2} {
			t.Run(fmt.Sprintf("%v, skipping %d", takes, skip), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBody(iotest.OneByteReader(strings.NewReader("text")))
					b.takes = takes
					s := &resume.Source{Body: b, Skip: skip, Rest: 4 - skip, Idle: time.Second}
					for range 4 - skip {
						start := time.Now()
						n, err := s.Read(make([]byte, 10))
						if takes > time.Second {
							assert.Zero(t, n)
							assert.Equal(t, resume.ErrIdle, err)
							assert.Equal(t, time.Second, time.Since(start))
							assert.EqualValues(t, 1, b.closes.Load())
							return
						}
						require.NoError(t, err)
						assert.Equal(t, 1, n)
						time.Sleep(time.Hour)
					}
					assert.Zero(t, b.closes.Load())
				})
			})
		}
	}
}
