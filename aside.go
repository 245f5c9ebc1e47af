package httpretry

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"sync"
)

// setAside lets go of the connection of a response that is to be handed over
// later, if the rest of its body is short enough to be kept, and arrives. It
// returns the response to hand over: another one, since reading to the end sets
// the trailers of resp, which nobody expects before having done so.
//
// Two kinds of bodies are left alone: tunnels, and those that net/http unpacks,
// whose Close may wait for a Read (Go 1.26).
func setAside(resp *http.Response) *http.Response {
	if resp.Body == nil || resp.Body == http.NoBody || resp.Uncompressed {
		return resp
	}
	if _, tunnel := resp.Body.(io.Writer); tunnel {
		return resp
	}
	kept := *resp
	kept.Trailer = maps.Clone(resp.Trailer)
	b := &asideBody{ReadCloser: resp.Body, from: resp, to: &kept, ahead: true}
	b.changed.L = &b.mu
	kept.Body = b
	go b.fill()
	return &kept
}

// asideBody is a body whose beginning is read before anybody asks for it.
type asideBody struct {
	io.ReadCloser
	from, to *http.Response

	mu       sync.Mutex
	changed  sync.Cond
	ahead    bool // fill is reading, and nobody else
	wanted   bool // by Read, or not at all any more
	closed   bool
	begin    bytes.Buffer
	err      error // what comes after begin; nil: the rest of the body
	panicked any   // by the body, after begin
}

// fill reads ahead until the caller reads.
func (b *asideBody) fill() {
	defer func() {
		p := recover()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.ahead, b.panicked = false, p
		b.changed.Broadcast()
	}()
	buf := make([]byte, 4<<10)
	for more := true; more; {
		n, err := b.ReadCloser.Read(buf)
		more = b.keep(buf[:n], err)
	}
}

// keep takes in what a Read returned, and reports whether another may follow:
// beyond what is kept, one byte may tell that nothing does.
func (b *asideBody) keep(p []byte, err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = b.begin.Write(p)
	b.err = err
	return err == nil && !b.wanted && b.begin.Len() <= maxDrainBytes
}

func (b *asideBody) Read(p []byte) (int, error) {
	n, err, kept := b.read(p)
	if !kept {
		n, err = b.ReadCloser.Read(p)
	}
	if err == io.EOF {
		b.setTrailers()
	}
	return n, err
}

// read serves a Read of what was read ahead. If that is over, kept is false.
func (b *asideBody) read(p []byte) (n int, err error, kept bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wanted = true
	for b.ahead && b.begin.Len() == 0 {
		b.changed.Wait()
	}
	switch {
	case b.closed:
		return 0, http.ErrBodyReadAfterClose, true
	case b.begin.Len() > 0:
		n, err = b.begin.Read(p)
		return n, err, true
	case b.panicked != nil:
		panic(b.panicked)
	}
	return 0, b.err, b.err != nil
}

func (b *asideBody) setTrailers() {
	if b.to.Trailer == nil {
		b.to.Trailer = b.from.Trailer
		return
	}
	maps.Copy(b.to.Trailer, b.from.Trailer)
}

func (b *asideBody) Close() error {
	b.mu.Lock()
	b.wanted, b.closed = true, true
	b.mu.Unlock()
	return b.ReadCloser.Close()
}
