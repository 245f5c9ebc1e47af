package replay

import (
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// oneProcessor runs the test on one processor, because a pool hides some values
// from the others.
func oneProcessor(t *testing.T) {
	t.Helper()
	n := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(n) })
}

// emptyPools empties the pools, from which no piece is lost until the test
// ends.
func emptyPools(t *testing.T) {
	t.Helper()
	oneProcessor(t)
	percent := debug.SetGCPercent(-1) // it removes values from a pool
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	takePieces(t)
}

// takePieces takes all pieces out of the pools. Each of them is there once, is
// in the pool of its size, and has no bytes.
func takePieces(t *testing.T) (all []*piece) {
	t.Helper()
	for class := range pools {
		for p, ok := pools[class].Get().(*piece); ok; p, ok = pools[class].Get().(*piece) {
			require.False(t, slices.Contains(all, p), "recycled twice")
			require.Empty(t, p.data)
			require.Equal(t, 512<<class, cap(p.data))
			all = append(all, p)
		}
	}
	return all
}

// spoilPieces overwrites the pieces in the pools, as another record would do.
func spoilPieces(t *testing.T) {
	t.Helper()
	for _, p := range takePieces(t) {
		copy(p.data[:cap(p.data)], strings.Repeat("!", cap(p.data)))
		p.recycle()
	}
}

// skipIfLossy skips a test that counts recycled pieces. Under the race
// detector, a sync.Pool loses some values on purpose.
func skipIfLossy(t *testing.T) {
	t.Helper()
	var pool sync.Pool
	for range 100 {
		pool.Put(new(int))
	}
	for range 100 {
		if pool.Get() == nil {
			t.Skip("the pools lose pieces")
		}
	}
}

// A record has no more memory than if each piece doubled it, and none beyond
// its limit. So a body of a few bytes does not occupy a large piece.
func TestMemoryOfARecord(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		r := record{limit: random.Int64N(200_000)}
		most := 1 + random.IntN(20_000) // bytes of a Read
		for doubled := int64(0); r.room() > 0; {
			p := make([]byte, min(r.room(), 1+random.Int64N(int64(most))))
			for size := r.size + int64(len(p)); doubled < size; {
				doubled += min(max(size-doubled, doubled, 512), r.limit-doubled)
			}
			r.keep(p)
			var memory int64
			for _, size := range r.sizes() {
				memory += int64(size)
			}
			require.GreaterOrEqual(t, memory, r.size)
			require.LessOrEqual(t, memory, doubled, "with %d bytes", r.size)
		}
		// Each time that the record has doubled, there is at most one piece of
		// each size, one that is too small for a pool, and large ones.
		require.LessOrEqual(t, len(r.pieces), int(r.limit/8192)+bits.Len64(uint64(r.limit))*6)
	}
}

// When a record is not needed any more, each of its pieces is recycled, and
// once. Pieces that are too small for a pool are not. No further bytes are
// kept.
func TestPiecesAreRecycled(t *testing.T) {
	skipIfLossy(t)
	text := letters(30_100)
	for name, end := range map[string]func(r *Recorder, v io.ReadCloser){
		"the view is closed, then the response returned": func(r *Recorder, v io.ReadCloser) {
			_ = v.Close()
			r.finish()
			r.finish()
		},
		"the response is returned, then the view closed": func(r *Recorder, v io.ReadCloser) {
			r.finish()
			_ = v.Close()
			_ = v.Close()
		},
		"the response is returned, and the view read on": func(r *Recorder, v io.ReadCloser) {
			r.finish()
			_, _ = v.Read(make([]byte, 1))
		},
		"the request fails, and the view was closed": func(r *Recorder, v io.ReadCloser) {
			_ = v.Close()
			r.abort()
			r.abort()
		},
		"the request fails, and the view is closed later": func(r *Recorder, v io.ReadCloser) {
			r.abort()
			_ = v.Close()
		},
		"the last view reads past the record": func(r *Recorder, _ io.ReadCloser) {
			readN(t, r.open(true), len(text))
		},
		"the last view is closed": func(r *Recorder, _ io.ReadCloser) {
			last := r.open(true)
			readN(t, last, 20_000)
			_ = last.Close()
		},
		"the source has more bytes than the limit": func(_ *Recorder, v io.ReadCloser) {
			_, _ = io.Copy(io.Discard, v)
		},
	} {
		t.Run(name, func(t *testing.T) {
			emptyPools(t)
			r := newRecorder(io.NopCloser(iotest.HalfReader(strings.NewReader(text))), 30_050)
			v := r.open(false)
			readN(t, v, 30_000)
			require.Empty(t, takePieces(t))
			isSmall := func(p *piece) bool { return cap(p.data) < 512 }
			want := slices.DeleteFunc(slices.Clone(r.record.pieces), isSmall)
			require.Greater(t, len(want), 3)
			require.Less(t, len(want), len(r.record.pieces), "a small piece is among them")
			end(r, v)
			assert.Nil(t, r.record.pieces)
			got := takePieces(t)
			assert.Len(t, got, len(want))
			for _, p := range want {
				assert.True(t, slices.Contains(got, p), "a piece of %d bytes", cap(p.data))
			}
		})
	}
}

// A view whose record was forgotten is not reopened. It would end too early.
func TestNoReopenAfterTheEnd(t *testing.T) {
	for name, end := range map[string]func(*Recorder){
		"finish": (*Recorder).finish, "abort": (*Recorder).abort,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecorder(io.NopCloser(strings.NewReader("text")), 100)
			readAll(t, r.open(false))
			require.True(t, r.pin())
			v := r.open(false)
			require.NoError(t, v.Close())
			end(r)
			r.Reopen()
			n, err := v.Read(make([]byte, 10))
			assert.Zero(t, n)
			assert.Equal(t, errClosed, err)
		})
	}
}

// walk sends a few bodies at once, in steps that are chosen at random. After
// each step, all pieces in the pools are spoiled.
type walk struct {
	*testing.T
	random *rand.Rand
	sent   [4]*sending
}

// sending is the sending of one body.
type sending struct {
	w       *walk
	body    Body
	content string
	source  int // bytes that were read of the source
	reading bool
	last    bool // no attempt follows
	ended   bool // with Finish or Abort
	view    io.ReadCloser
	earlier []io.ReadCloser
	got     int // bytes that view has returned
}

// Read is that of the source. While it is under way, other steps are taken.
func (s *sending) Read(p []byte) (n int, err error) {
	s.reading = true
	for s.w.random.IntN(3) == 0 {
		s.w.step()
	}
	s.reading = false
	if s.source == len(s.content) {
		return 0, io.EOF
	}
	n = copy(p[:min(len(p), 1+s.w.random.IntN(9000))], s.content[s.source:])
	s.source += n
	return n, nil
}

func (s *sending) Close() error { return nil }

func (w *walk) step() {
	i := w.random.IntN(len(w.sent))
	if s := w.sent[i]; s == nil || s.ended && !s.reading && w.random.IntN(10) == 0 {
		w.sent[i] = w.begin(byte('A' + w.random.IntN(26)))
	}
	s := w.sent[i]
	switch n := w.random.IntN(40); {
	case n < 30:
		s.read()
	case n < 34 && !s.last && !s.ended && s.body.Pin():
		s.last = w.random.IntN(3) == 0
		s.earlier, s.got = append(s.earlier, s.view), 0
		s.view = s.body.Open(s.last)
	case n == 34:
		_ = s.view.Close()
	case n == 35:
		s.body.Finish()
		s.ended = true
	case n == 36:
		s.body.Abort()
		s.ended = true
	case n == 37:
		s.body.Recorder().Reopen()
	default:
		for _, v := range s.earlier {
			_, err := v.Read(make([]byte, 1))
			require.Error(w, err)
			_ = v.Close() // net/http may close it late
		}
	}
	spoilPieces(w.T)
}

// begin begins to send a body whose bytes tell where they belong.
func (w *walk) begin(letter byte) *sending {
	s := &sending{w: w}
	var content strings.Builder
	for size := w.random.IntN(30_000); content.Len() < size; {
		fmt.Fprintf(&content, "%c%d ", letter, content.Len())
	}
	s.content = content.String()
	s.body.Prepare(&http.Request{Method: "PUT", Body: s}, w.random.Int64N(40_000))
	s.view = s.body.Open(false)
	return s
}

// read reads from the current view, unless it would wait for the Read that is
// under way.
func (s *sending) read() {
	if s.reading && s.got >= s.source {
		return
	}
	p := make([]byte, 1+s.w.random.IntN(12_000))
	view, got := s.view, s.got
	n, err := view.Read(p)
	want := s.content[got:]
	require.LessOrEqual(s.w, n, len(want))
	require.True(s.w, want[:n] == string(p[:n]), "bytes of another body, or in the wrong place")
	if view == s.view {
		s.got += n
		if err == io.EOF {
			require.Len(s.w, s.content, s.got, "the body ends too early")
		}
	}
}

// However bodies are sent, each view returns the bytes of its own body, also
// after the request has failed, and no end that comes too early.
func TestViewsReturnTheirOwnBytes(t *testing.T) {
	oneProcessor(t)
	for seed := range uint64(60) {
		w := &walk{T: t, random: rand.New(rand.NewPCG(seed, 0))}
		for range 60 {
			w.step()
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
