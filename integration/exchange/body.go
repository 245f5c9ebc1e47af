package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// bodies are those of one exchange: the request's own, and those from GetBody.
// They notice uses that no base transport may make of a body.
type bodies struct {
	x    *exchange
	data []byte
	path string // of a file with data

	mu       sync.Mutex
	all      []*watchedBody
	files    []*os.File
	shared   int  // position in the one reader of a source that is shared
	seeking  bool // GetBody is running
	overlaps int  // calls of GetBody during a Read that took long
	problems []string
}

// longRead is how long a Read has to last before GetBody may be called during
// it. The RetryTransport waits 50 ms for the Read, and then calls GetBody all
// the same, because it may return another body. If it returns the one that is
// being read, that is not sent.
const longRead = 45 * time.Millisecond

// newBodies makes the body of x's request, with bytes of which no two pieces
// are equal.
func newBodies(x *exchange, dir string) (*bodies, error) {
	b := &bodies{x: x, data: make([]byte, x.size)}
	for i := range b.data {
		// The number of the group of four, and which of them it is.
		b.data[i] = byte(i / 4 >> (8 * (i % 4)) * 31)
	}
	if x.body != file && x.body != opensFiles {
		return b, nil
	}
	b.path = filepath.Join(dir, "body")
	return b, os.WriteFile(b.path, b.data, 0o600)
}

// set gives req its body.
func (b *bodies) set(req *http.Request) error {
	var err error
	switch b.x.body {
	case noBody:
		return nil
	case inMemory:
		fresh, err := http.NewRequest(req.Method, req.URL.String(), bytes.NewReader(b.data))
		if err != nil {
			return err
		}
		req.Body, req.GetBody = fresh.Body, fresh.GetBody
	case file, opensFiles:
		req.Body, err = b.open()
	default:
		req.Body = b.add(b.x.manner.first)
	}
	req.ContentLength = -1
	if b.x.length {
		req.ContentLength = int64(b.x.size)
	}
	if b.x.hasGetBody() {
		req.GetBody = b.getBody
	}
	return err
}

func (b *bodies) open() (io.ReadCloser, error) {
	f, err := os.Open(b.path)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.files = append(b.files, f)
	return f, nil
}

// add is called with b.mu held, or before the request is sent.
func (b *bodies) add(ill bool) *watchedBody {
	body := &watchedBody{of: b, number: len(b.all), ill: ill, closed: make(chan struct{})}
	b.all = append(b.all, body)
	return body
}

func (b *bodies) getBody() (io.ReadCloser, error) {
	if b.x.body == opensFiles {
		return b.open()
	}
	b.mu.Lock()
	b.checkSeek()
	b.seeking = true
	b.mu.Unlock()

	time.Sleep(b.x.manner.pause / 4) // seeking takes time, too

	b.mu.Lock()
	defer b.mu.Unlock()
	b.seeking = false
	b.shared = 0
	if b.x.body == seeksItself {
		return b.all[0], nil
	}
	return b.add(b.x.manner.later), nil
}

// checkSeek is called with b.mu held.
func (b *bodies) checkSeek() {
	if b.seeking {
		b.report("GetBody is called while it is running")
	}
	for _, body := range b.all {
		switch {
		case body.begun.IsZero():
		case time.Since(body.begun) >= longRead:
			b.overlaps++
		default:
			b.report("GetBody is called during a Read of body %d, which began %v ago", body.number, time.Since(body.begun))
		}
	}
}

// report is called with b.mu held.
func (b *bodies) report(format string, values ...any) {
	b.problems = append(b.problems, fmt.Sprintf(format, values...))
}

// isClosed reports whether all bodies have been closed, and GetBody is not making
// one. It is called with b.mu held.
func (b *bodies) isClosed() bool {
	if b.seeking {
		return false
	}
	for _, body := range b.all {
		if body.closes == 0 {
			return false
		}
	}
	for _, f := range b.files {
		if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
			return false
		}
	}
	return true
}

// check waits until all bodies are closed, or for hang, and returns the problems.
func (b *bodies) check() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	// GetBody may be called once more, until the attempt is known to have ended. A
	// body that it makes after the loop is not judged.
	late := time.Now().Add(hang)
	for !b.isClosed() && time.Now().Before(late) {
		b.mu.Unlock()
		time.Sleep(time.Millisecond)
		b.mu.Lock()
	}
	for _, body := range b.all {
		// Each attempt closes a body that GetBody returned again.
		once := body.number == 0 && b.x.body != seeksItself
		if body.closes == 0 || once && body.closes > 1 {
			b.report("body %d of %d was closed %d times", body.number, len(b.all), body.closes)
		}
	}
	if !b.isClosed() && len(b.files) > 0 {
		b.report("not all of %d files were closed", len(b.files))
	}
	return b.problems
}

// watchedBody is a body that is no file.
type watchedBody struct {
	of     *bodies
	number int
	ill    bool // it blocks or fails where its manner says so

	// These are guarded by of.mu.
	position int
	begun    time.Time // of the Read that is running
	closes   int

	closed chan struct{}
	once   sync.Once
}

var errIll = errors.New("the body's own reader failed")

func (b *watchedBody) Read(p []byte) (int, error) {
	at := b.begin()
	defer b.end()
	m := b.of.x.manner
	time.Sleep(m.pause)
	stop := len(b.of.data)
	if b.ill && m.blockAt >= 0 {
		stop = min(stop, m.blockAt)
	}
	if b.ill && m.failAt >= 0 {
		stop = min(stop, m.failAt)
	}
	switch {
	case at < stop:
		return b.take(p[:min(len(p), m.piece, stop-at)])
	case b.ill && stop == m.failAt:
		return 0, errIll
	case b.ill && stop == m.blockAt:
		<-b.closed
		return 0, errors.New("read of a closed body")
	}
	return 0, io.EOF
}

// begin notes that a Read begins, and returns its position.
func (b *watchedBody) begin() int {
	o := b.of
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seeking && o.x.body.isShared() {
		o.report("a Read of body %d begins during GetBody", b.number)
	}
	for _, other := range o.all {
		if (other == b || o.x.body.isShared()) && !other.begun.IsZero() {
			o.report("a Read of body %d begins during one of body %d", b.number, other.number)
		}
	}
	b.begun = time.Now()
	return *b.pos()
}

func (b *watchedBody) end() {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.begun = time.Time{}
}

// take copies the bytes at the present position, which another Read may have
// moved.
func (b *watchedBody) take(p []byte) (int, error) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	n := copy(p, b.of.data[*b.pos():])
	*b.pos() += n
	return n, nil
}

// pos is called with of.mu held.
func (b *watchedBody) pos() *int {
	if b.of.x.body.isShared() {
		return &b.of.shared
	}
	return &b.position
}

func (b *watchedBody) Close() error {
	b.of.mu.Lock()
	b.closes++
	b.of.mu.Unlock()
	b.once.Do(func() { close(b.closed) })
	return nil
}

// made returns how many bodies there were.
func (b *bodies) made() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.all) + len(b.files)
}

// haveOverlapped reports whether GetBody was called during a long Read.
func (b *bodies) haveOverlapped() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.overlaps > 0
}

// release ends the Reads that block.
func (b *bodies) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, body := range b.all {
		body.once.Do(func() { close(body.closed) })
	}
}
