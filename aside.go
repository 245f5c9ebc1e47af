package httpretry

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"
)

// setAside lets go of the connection of a response that is to be handed over
// later, if the rest of its body is short enough to be kept, and arrives.
func setAside(resp *http.Response) {
	if resp.Body == nil || resp.Body == http.NoBody {
		return
	}
	b := &asideBody{ReadCloser: resp.Body, done: make(chan struct{})}
	go b.fill()
	resp.Body = b
}

// asideBody is a body whose beginning is read before anybody asks for it.
type asideBody struct {
	io.ReadCloser
	closed atomic.Bool

	done     chan struct{} // closed when what follows does not change any more but by Read
	begin    bytes.Buffer
	err      error // what comes after begin; nil: the rest of the body
	panicked any
}

func (b *asideBody) fill() {
	defer close(b.done)
	defer func() { b.panicked = recover() }()
	_, b.err = io.CopyN(&b.begin, b.ReadCloser, maxDrainBytes+1)
}

func (b *asideBody) Read(p []byte) (int, error) {
	<-b.done
	switch {
	case b.panicked != nil:
		panic(b.panicked)
	case b.closed.Load():
		return 0, http.ErrBodyReadAfterClose
	case b.begin.Len() > 0:
		return b.begin.Read(p)
	case b.err != nil:
		return 0, b.err
	}
	return b.ReadCloser.Read(p)
}

func (b *asideBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}
