package resume

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

// ErrIdle is the error of a Read that got no byte for Source.Idle.
var ErrIdle = errors.New("no byte of the body arrived in time")

// Source reads the rest of a body from the body of a response. Close may be
// called concurrently with Read.
type Source struct {
	Body io.ReadCloser
	Skip int64         // bytes to discard first
	Rest int64         // bytes to deliver; negative: until EOF
	More bool          // bytes of something else follow the rest
	Idle time.Duration // longest Read; 0: no limit

	timer   *time.Timer // of Idle, running during Read
	closing atomic.Bool
}

// Read implements io.Reader.
func (s *Source) Read(p []byte) (int, error) {
	if s.Rest < 0 {
		return s.readOnce(p)
	}
	if s.Skip > 0 {
		// io.CopyN would drop an error that comes with the last of the bytes.
		skipped, err := io.Copy(io.Discard, io.LimitReader(onceReader{s}, s.Skip))
		s.Skip -= skipped
		switch {
		case err != nil:
			return 0, err
		case s.Skip > 0:
			return 0, io.ErrUnexpectedEOF
		}
	}
	if s.Rest == 0 {
		return s.readEnd()
	}
	n, err := s.readOnce(p[:min(int64(len(p)), s.Rest)])
	s.Rest -= int64(n)
	switch {
	case s.Rest > 0 && err == io.EOF:
		return n, io.ErrUnexpectedEOF
	case s.Rest == 0 && s.More:
		return n, io.EOF
	}
	return n, err
}

// readEnd reads the end of the body after the rest. That is EOF, or the error
// of a layer that has checked the bytes. Another byte does not belong to this
// body.
func (s *Source) readEnd() (int, error) {
	n, err := s.readOnce(make([]byte, 1))
	if n > 0 {
		return 0, io.EOF
	}
	return 0, err
}

// readOnce reads for at most Idle.
func (s *Source) readOnce(p []byte) (int, error) {
	if s.Idle <= 0 {
		return s.Body.Read(p)
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(s.Idle, s.interrupt)
	} else {
		s.timer.Reset(s.Idle)
	}
	n, err := s.Body.Read(p)
	if !s.timer.Stop() {
		err = ErrIdle
	}
	return n, err
}

// interrupt ends a Read that waits, by closing the body. With net/http's bodies
// that works over HTTP/1 and HTTP/2.
func (s *Source) interrupt() {
	_ = s.Close() // the Read returns another error
}

// Close closes the body once.
func (s *Source) Close() error {
	if s.closing.Swap(true) {
		return nil
	}
	return s.Body.Close()
}

// onceReader reads the body of a Source, and neither skips bytes nor stops
// after the rest.
type onceReader struct{ source *Source }

func (r onceReader) Read(p []byte) (int, error) { return r.source.readOnce(p) }
