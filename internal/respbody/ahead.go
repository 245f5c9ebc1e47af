package respbody

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/seed421102f4/httpretry/internal/bounded"
)

// Ahead is a body whose first bytes have been read. One goroutine may call Read
// and another one Close.
type Ahead struct {
	bytes  []byte // those that were read ahead and that Read has not returned
	pooled *room  // that has bytes, or nil
	err    error  // that follows bytes, io.EOF included, or nil if the rest does
	rest   io.ReadCloser

	closed atomic.Bool // Close was called
}

// room has place for most bodies. A request allocates as many bytes otherwise, so
// the rooms of bodies that were read to their end are used again.
type room [4<<10 + 256]byte

var rooms = sync.Pool{New: func() any { return new(room) }}

// NewAhead returns an Ahead for the body of resp, of which at most limit bytes
// are to be read ahead. A server may state any length, so it gets room for
// MaxBytes at first.
func NewAhead(resp *http.Response, limit int64) *Ahead {
	b := &Ahead{rest: resp.Body}
	// A byte more than the length, because only a Read with room shows the end.
	if size := min(limit, resp.ContentLength+1, MaxBytes); size > int64(len(room{})) {
		b.bytes = make([]byte, 0, size)
	} else {
		b.pooled = rooms.Get().(*room)
		b.bytes = b.pooled[:0]
	}
	return b
}

// release lets another Ahead use the room, of which no byte is used any more.
func (b *Ahead) release() {
	if b.pooled != nil {
		rooms.Put(b.pooled)
		b.pooled = nil
	}
}

// Fill reads ahead in the body of resp, at most limit bytes. A stream of events
// is read up to the end of its first event, so that it starts without delay. If
// Fill returns an error, it broke the body. A Read that returns nothing ends
// Fill, because the body may never return more.
func (b *Ahead) Fill(resp *http.Response, limit int64) error {
	isStream := strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	for n := 1; n > 0 && b.err == nil && int64(len(b.bytes)) < limit; {
		if isStream && hasEvent(b.bytes) {
			break
		}
		if len(b.bytes) == cap(b.bytes) {
			b.bytes = slices.Grow(b.bytes, 1)
			b.release()
		}
		n, b.err = b.rest.Read(b.bytes[len(b.bytes):min(int64(cap(b.bytes)), limit)])
		b.bytes = b.bytes[:len(b.bytes)+n]
	}
	if b.err == io.EOF {
		return nil
	}
	return b.err
}

// FillUntil is Fill for a body whose Read may block, also after stop. Then it
// closes the body, and returns false.
func (b *Ahead) FillUntil(stop bounded.Signal, resp *http.Response, limit int64) (bool, error) {
	var err error
	filled := make(chan struct{})
	fill := func() {
		defer close(filled)
		err = b.Fill(resp, limit)
	}
	// After stop, most bodies return an error.
	if !bounded.RunUntil(stop, bounded.NoLimit, fill) &&
		!bounded.Run(bounded.MaxTime, func() { <-filled }) {
		_ = bounded.Close(bounded.MaxTime, b.rest) // nobody reads it
		return false, nil
	}
	return true, err
}

// hasEvent reports whether b, the begin of a stream of events, has a whole event.
// That is a block of lines which ends with an empty one and has data
// (HTML, section 9.2.6). Servers send others to keep a connection open.
func hasEvent(b []byte) bool {
	hasData, start := false, 0
	for i, c := range b {
		switch {
		case c != '\n' && c != '\r':
			continue
		case c == '\n' && i > 0 && b[i-1] == '\r': // the second half of the end of a line
		case i > start:
			hasData = hasData || strings.HasPrefix(string(b[start:i]), "data")
		case hasData:
			return true
		}
		start = i + 1
	}
	return false
}

// Bytes returns a copy of the bytes that were read ahead and that Read has not
// returned.
func (b *Ahead) Bytes() []byte { return slices.Clone(b.bytes) }

// Break makes err the error that follows the bytes.
func (b *Ahead) Break(err error) { b.err = err }

// IsWhole reports whether body was read ahead to its end, so that it holds no
// connection.
func IsWhole(body io.ReadCloser) bool {
	b, ok := body.(*Ahead)
	return ok && b.err == io.EOF
}

// Read implements io.Reader.
func (b *Ahead) Read(p []byte) (n int, err error) {
	// Most bodies must not be read after they were closed. One that may be has no
	// other error than its end.
	if b.closed.Load() {
		if _, err := b.rest.Read(nil); err != nil && err != io.EOF {
			return 0, err
		}
	}
	if len(b.bytes) == 0 && b.err == nil {
		return b.rest.Read(p)
	}
	n = copy(p, b.bytes)
	if b.bytes = b.bytes[n:]; len(b.bytes) > 0 {
		return n, nil
	}
	b.bytes = nil
	b.release()
	return n, b.err
}

// Close implements io.Closer.
func (b *Ahead) Close() error {
	b.closed.Store(true)
	return b.rest.Close()
}
