package respbody

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/internal/bounded"
)

// Ahead is a body whose first bytes have been read. One goroutine may call Read
// and another one Close.
type Ahead struct {
	bytes  []byte // those that were read ahead and that Read has not returned
	pooled *room  // that has bytes, or nil
	err    error  // that follows bytes, io.EOF included, or nil if the rest does
	rest   io.ReadCloser
	events eventScanner

	filling <-chan struct{} // until it is closed, another goroutine has bytes and err; or nil
	closed  atomic.Bool     // Close was called
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
	b.events.isNeeded = mediaType(resp) == "text/event-stream"
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

var errPanicked = errors.New("httpretry: reading the response's body ahead panicked")

// Fill reads ahead at most limit bytes. A stream of events is read up to the end
// of its first event, so that it starts without delay. If Fill returns an error,
// it broke the body. A Read that returns nothing ends Fill, because the body may
// never return more.
func (b *Ahead) Fill(limit int64) error {
	b.err = errPanicked
	n, err := 1, error(nil)
	for n > 0 && err == nil && int64(len(b.bytes)) < limit && !b.events.found(b.bytes) {
		if len(b.bytes) == cap(b.bytes) {
			b.bytes = slices.Grow(b.bytes, 1)
			b.release()
		}
		free := b.bytes[len(b.bytes):min(int64(cap(b.bytes)), limit)]
		n, err = b.rest.Read(free)
		// A body that returns a number beyond free panics here. It must not get bytes
		// that another one has left in the room.
		b.bytes = b.bytes[:len(b.bytes)+len(free[:n:len(free)])]
	}
	b.err = err
	return b.broken()
}

// FillUntil is Fill for a body whose Read may block. If Fill does not return
// within wait, it goes on, and Read waits for it. If it does not return after
// stop either, FillUntil closes the body and returns false.
func (b *Ahead) FillUntil(
	stop bounded.Signal, wait time.Duration, limit int64) (usable bool, err error) {
	filled := make(chan struct{})
	fill := func() {
		defer close(filled)
		_ = b.Fill(limit) // broken returns it
	}
	switch {
	case bounded.RunUntil(stop, wait, fill):
		return true, b.broken()
	case !stop.IsSet():
		b.filling = filled
		return true, nil
	// Most bodies return an error after stop.
	case bounded.Run(bounded.MaxTime, func() { <-filled }):
		return true, b.broken()
	}
	_ = bounded.Close(bounded.MaxTime, b.rest) // nobody reads it
	return false, nil
}

// eventScanner looks for the end of the first event of a stream.
type eventScanner struct {
	isNeeded bool
	at       int // the first byte that was not looked at
	line     int // the begin of its line
	hasData  bool
}

// found reports whether b, the begin of the stream, has a whole event. That is a
// block of lines which ends with an empty one and has data (HTML, section 9.2.6).
// Servers send other blocks to keep a connection open.
func (s *eventScanner) found(b []byte) bool {
	for ; s.isNeeded && s.at < len(b); s.at++ {
		switch c := b[s.at]; {
		case c != '\n' && c != '\r':
			continue
		case c == '\n' && s.at > 0 && b[s.at-1] == '\r': // the second half of the end of a line
		case s.at > s.line:
			name, _, _ := bytes.Cut(bytes.TrimPrefix(b[s.line:s.at], []byte("\ufeff")), []byte(":"))
			s.hasData = s.hasData || string(name) == "data"
		case s.hasData:
			return true
		}
		s.line = s.at + 1
	}
	return false
}

func mediaType(resp *http.Response) string {
	values := resp.Header["Content-Type"] // without the cost of Get
	if len(values) == 0 {
		return ""
	}
	mediaType, _, _ := strings.Cut(values[0], ";")
	return strings.ToLower(strings.TrimSpace(mediaType))
}

// IsStream reports whether the body of resp may go on for hours, and is not one
// of events as text.
func IsStream(resp *http.Response) bool {
	switch t := mediaType(resp); t {
	case "application/vnd.amazon.eventstream", "application/x-ndjson", "multipart/x-mixed-replace":
		return true
	default:
		return strings.HasPrefix(t, "application/grpc")
	}
}

// isFilled reports whether no other goroutine has bytes and err.
func (b *Ahead) isFilled() bool {
	select {
	case <-b.filling:
		return true
	default:
		return b.filling == nil
	}
}

// Bytes returns a copy of the bytes that were read ahead and that Read has not
// returned.
func (b *Ahead) Bytes() []byte {
	if !b.isFilled() {
		return nil
	}
	return slices.Clone(b.bytes)
}

// broken returns the error that broke the body, or nil.
func (b *Ahead) broken() error {
	if b.err == io.EOF {
		return nil
	}
	return b.err
}

// Break makes err the error that follows the bytes.
func (b *Ahead) Break(err error) { b.err = err }

// IsWhole reports whether the body of resp, if any, was read ahead to its end, so
// that it holds no connection.
func IsWhole(resp *http.Response) bool { return IsAhead(resp) && resp.Body.(*Ahead).err == io.EOF }

// IsAhead reports whether the body of resp, if any, is an Ahead for which no other
// goroutine reads any more.
func IsAhead(resp *http.Response) bool {
	if resp == nil {
		return false
	}
	b, ok := resp.Body.(*Ahead)
	return ok && b.isFilled()
}

// Read implements io.Reader.
func (b *Ahead) Read(p []byte) (n int, err error) {
	if b.filling != nil {
		<-b.filling
		b.filling = nil
	}
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
