// Package respbody discards, buffers and follows response bodies.
//
// It knows responses, and how net/http's bodies are read and closed. It does
// not know attempts. Discard, Close and Buffer wait for a Read or a Close for a
// moment at most. Over HTTP/2, both wait for their turn to write on the
// connection, and another request may block that. A body that unpacks or
// measures another one may hold the same lock in Read and in Close.
package respbody

import (
	"bytes"
	"io"
	"net/http"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/internal/bounded"
)

// MaxBytes is the length of the longest body that is read to its end, so that
// its connection can be used again.
const MaxBytes = 64 << 10

// IsEmpty reports whether body has no bytes, no trailers and nothing to close.
// A body whose type has no state is empty. Such bodies are http.NoBody and,
// over HTTP/2, the body of a response that ended with its header.
func IsEmpty(resp *http.Response) bool {
	return resp.Body == nil || resp.Body == http.NoBody || isStateless(resp.Body)
}

func isStateless(body io.ReadCloser) bool {
	t := reflect.TypeOf(body)
	return t.Kind() == reflect.Struct && t.Size() == 0
}

// Releaser ends the use of a response's connection, for example by canceling
// the context of its request. Release may be called several times.
type Releaser interface{ Release() }

// Discard drains and closes the body of resp, and calls r.Release. If the body
// is too long, or does not end within limit or before canceled, it is closed
// before its end, which costs the connection. A Read or Close that still blocks
// continues in another goroutine. Discard returns how long it took.
func Discard(
	resp *http.Response, r Releaser, limit time.Duration, canceled bounded.Signal,
) (took time.Duration) {
	// A body in memory holds no connection and needs no Close.
	if IsEmpty(resp) || bounded.InMemory(resp.Body) {
		r.Release()
		return 0
	}
	begun := time.Now()
	d := &discard{body: resp.Body, length: resp.ContentLength, releaser: r}
	if !bounded.RunUntil(canceled, limit, d.drain) {
		bounded.Run(bounded.MaxTime, d.close) // this ends a Read that is still waiting
	}
	return time.Since(begun)
}

type discard struct {
	body     io.ReadCloser
	limited  io.LimitedReader // of the discard itself
	length   int64
	releaser Releaser
	closing  atomic.Bool
}

func (d *discard) drain() {
	// If the length is known and too long, nothing is read. It is -1 if
	// unknown.
	if d.length <= MaxBytes {
		d.limited = io.LimitedReader{R: d, N: MaxBytes + 1}
		// An error closes the connection, as not reading would.
		_, _ = io.Copy(io.Discard, &d.limited)
	}
	d.close()
}

// Read reads the body until close is called. A body may return neither bytes
// nor an error, even after it was closed.
func (d *discard) Read(p []byte) (int, error) {
	if d.closing.Load() {
		return 0, io.EOF
	}
	return d.body.Read(p)
}

func (d *discard) close() {
	// A sync.Once would wait for a Close that blocks. In a bubble of
	// testing/synctest, a wait for a mutex stops the time.
	if d.closing.Swap(true) {
		return
	}
	d.releaser.Release()
	_ = d.body.Close() // nobody reads it
}

// Close closes the body of resp, if there is one. A Close that blocks continues
// in another goroutine.
func Close(resp *http.Response) {
	if resp == nil || IsEmpty(resp) {
		return
	}
	_ = bounded.Close(bounded.MaxTime, resp.Body) // nobody reads it
}

// Buffer reads ahead of the caller, but not after canceled. It returns how long
// it took. A body that is short and arrives at once then holds no connection,
// even if the caller reads it late. If a body is too long or too slow for that,
// the caller's Read continues where Buffer stopped. If a Read panics in time,
// Buffer panics with the same value; if it panics later, so does the caller's
// Read.
func Buffer(resp *http.Response, canceled bounded.Signal) time.Duration {
	if IsEmpty(resp) {
		return 0
	}
	begun := time.Now()
	b := &buffered{ReadCloser: resp.Body, idle: make(chan struct{})}
	resp.Body = b
	if !bounded.RunUntil(canceled, bounded.MaxTime, b.fill) {
		b.late.Store(true)
	}
	return time.Since(begun)
}

// buffered is a body whose beginning has been read.
type buffered struct {
	io.ReadCloser
	idle chan struct{} // closed when fill has returned

	// Written by fill. The caller's Read uses them once idle is closed.
	start    bytes.Buffer
	err      error // that follows start; nil: the rest of the body follows
	panicked any   // the value with which fill panicked, or nil

	// Used by any goroutine.
	late   atomic.Bool // fill must return after its current Read
	closed atomic.Bool
}

func (b *buffered) fill() {
	defer close(b.idle)
	defer func() {
		// Buffer may have returned, so the caller's Read panics with it.
		if b.panicked = recover(); b.panicked != nil {
			panic(b.panicked)
		}
	}()
	chunk := make([]byte, 4<<10)
	// A body of MaxBytes may need one more Read to show that it has ended. Once
	// it is late, the caller reads the rest.
	for b.err == nil && b.start.Len() <= MaxBytes && !b.late.Load() {
		var n int
		n, b.err = b.ReadCloser.Read(chunk)
		b.start.Write(chunk[:n])
	}
}

// Read waits for a Read of Buffer that is still running.
func (b *buffered) Read(p []byte) (int, error) {
	<-b.idle
	switch {
	case b.closed.Load():
		return 0, http.ErrBodyReadAfterClose
	case b.start.Len() > 0:
		return b.start.Read(p)
	case b.panicked != nil:
		panic(b.panicked)
	case b.err != nil:
		return 0, b.err
	}
	return b.ReadCloser.Read(p)
}

// Close does not wait for a Read of Buffer that is still running, which may
// hold a lock that Close takes.
func (b *buffered) Close() error {
	b.closed.Store(true)
	select {
	case <-b.idle:
		return b.ReadCloser.Close()
	default:
	}
	return bounded.Close(bounded.MaxTime, b.ReadCloser)
}

// Follower is called when the body of a response ends, with the ProtoMajor of
// the response.
type Follower interface{ ResponseEnded(protoMajor int) }

// Followed makes a response call a Follower once its body has ended. Its zero
// value is ready for Follow.
type Followed struct {
	io.ReadCloser
	protoMajor int // not the response, whose body may contain this one
	follower   Follower
}

// Follow replaces the body of resp with b, which calls f.ResponseEnded when a
// Read returns an error, and when Close returns. b may call it several times,
// from the goroutines of Read and Close.
func (b *Followed) Follow(resp *http.Response, f Follower) {
	b.ReadCloser, b.protoMajor, b.follower = resp.Body, resp.ProtoMajor, f
	resp.Body = b
}

// Read implements io.Reader.
func (b *Followed) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.follower.ResponseEnded(b.protoMajor)
	}
	return n, err
}

// Close implements io.Closer.
func (b *Followed) Close() error {
	err := b.ReadCloser.Close()
	b.follower.ResponseEnded(b.protoMajor)
	return err
}
