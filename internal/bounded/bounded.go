// Package bounded runs functions that may block for longer than their caller
// can wait, and knows bodies that cannot block.
package bounded

import (
	"bytes"
	"io"
	"math"
	"reflect"
	"strings"
	"time"
)

// MaxTime is how long a request waits for a Read or a Close that blocks.
const MaxTime = 50 * time.Millisecond

// NoLimit is the limit of a wait that only the function or a Signal ends.
const NoLimit time.Duration = math.MaxInt64

// Run calls f in a new goroutine, and waits for at most limit until f returns.
// It reports whether f returned in time. If f panics in time, Run panics with
// the same value. A later panic is discarded, because Run has returned.
func Run(limit time.Duration, f func()) bool { return RunUntil(Signal{}, limit, f) }

// Signal ends a wait when one of its channels is closed. The zero Signal ends
// none.
type Signal [2]<-chan struct{}

// IsSet reports whether s ends waits now.
func (s Signal) IsSet() bool {
	select {
	case <-s[0]:
	case <-s[1]:
	default:
		return false
	}
	return true
}

// RunUntil is Run, but does not wait for f any longer once stop ends the wait.
func RunUntil(stop Signal, limit time.Duration, f func()) bool {
	r := &run{f: f, done: make(chan bool, 2)}
	go r.work(limit)
	select {
	case inTime := <-r.done:
		if inTime && r.panicked != nil {
			panic(r.panicked)
		}
		return inTime
	case <-stop[0]:
	case <-stop[1]:
	}
	return false
}

type run struct {
	f        func()
	done     chan bool // true: f returned or panicked; false: the limit is over
	panicked any       // set before true is sent
}

func (r *run) work(limit time.Duration) {
	// The limit counts from the start of f, because a busy machine may take
	// longer than that to start a goroutine.
	timer := time.AfterFunc(limit, r.expire)
	defer func() {
		timer.Stop()
		r.panicked = recover()
		r.done <- true
	}()
	r.f()
}

func (r *run) expire() { r.done <- false }

// Close calls c.Close as Run calls f. It returns the error of a Close that
// returned in time, and nil otherwise.
func Close(limit time.Duration, c io.Closer) error {
	var err error
	if !Run(limit, func() { err = c.Close() }) {
		return nil // err may be written later
	}
	return err
}

// InMemory reports whether body is io.NopCloser of a *bytes.Reader,
// *bytes.Buffer or *strings.Reader. For these, http.NewRequest sets GetBody.
// Such a body does not block.
func InMemory(body io.ReadCloser) bool {
	if t := reflect.TypeOf(body); t != nopCloserWriterTo && t != nopCloser {
		return false
	}
	switch reflect.ValueOf(body).Field(0).Interface().(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader:
		return true
	}
	return false
}

// The types of io.NopCloser's results.
var (
	nopCloser         = reflect.TypeOf(io.NopCloser(nil))
	nopCloserWriterTo = reflect.TypeOf(io.NopCloser(new(bytes.Buffer)))
)
