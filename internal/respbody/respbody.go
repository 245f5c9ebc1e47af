// Package respbody discards and follows response bodies.
//
// It knows responses, and how net/http's bodies are read and closed. It does
// not know attempts. Discard and Close wait for a Read or a Close for a moment at
// most. Over HTTP/2, both wait for their turn to write on the connection, and
// another request may block that. A body that unpacks or measures another one may
// hold the same lock in Read and in Close.
package respbody

import (
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
	t := reflect.TypeOf(resp.Body) // nil if there is no body
	return t == nil || t.Kind() == reflect.Struct && t.Size() == 0
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
