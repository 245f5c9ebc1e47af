// Package leaks counts goroutines, file descriptors, and request bodies that
// nobody closed. None of them may remain after the last request.
package leaks

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"time"
)

// Held has counts that must not be larger at the end than before.
type Held struct{ Goroutines, Descriptors int }

// Now returns the present counts.
func Now() Held {
	descriptors, _ := os.ReadDir("/proc/self/fd") // includes that of the directory, each time
	return Held{runtime.NumGoroutine(), len(descriptors)}
}

// AwaitNone waits until the counts are at most those of before. Meanwhile, it
// calls release to close idle connections. Once is not enough, because net/http
// may use a connection for a moment after its last request. AwaitNone returns
// the last counts, and an error with the stacks of all goroutines if the counts
// remain larger for ten seconds.
func AwaitNone(before Held, release func()) (Held, error) {
	var now Held
	for range 500 {
		release()
		now = Now()
		if now.Goroutines <= before.Goroutines && now.Descriptors <= before.Descriptors {
			return now, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	var stacks strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1) // to memory
	return now, fmt.Errorf("goroutines and descriptors: %v before, %v after\n%s", before, now, stacks.String())
}

// Bodies counts request bodies. Its size does not depend on their number.
type Bodies struct{ opened, closed, again atomic.Int64 }

// New returns a body that reads from src. net/http does not know its type.
func (b *Bodies) New(src io.Reader) *Body {
	b.opened.Add(1)
	return &Body{src: src, all: b}
}

// Check returns an error if there was no body, or unless each was closed once.
// It waits a little, because net/http may close a body after RoundTrip has
// returned.
func (b *Bodies) Check() error {
	for polls := 0; b.closed.Load() < b.opened.Load() && polls < 100; polls++ {
		time.Sleep(10 * time.Millisecond)
	}
	opened, closed, again := b.opened.Load(), b.closed.Load(), b.again.Load()
	if opened == 0 || closed != opened || again > 0 {
		return fmt.Errorf("%d request bodies: %d were closed, and there were %d more calls of Close", opened, closed, again)
	}
	return nil
}

// Body is a body that counts how often it is closed.
type Body struct {
	Pause time.Duration // before each Read

	src    io.Reader
	all    *Bodies
	closed atomic.Bool
}

func (b *Body) Read(p []byte) (int, error) {
	if b.Pause > 0 {
		time.Sleep(b.Pause)
	}
	return b.src.Read(p)
}

// Close implements io.Closer.
func (b *Body) Close() error {
	if b.closed.Swap(true) {
		b.all.again.Add(1)
	} else {
		b.all.closed.Add(1)
	}
	return nil
}
