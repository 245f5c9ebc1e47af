package replay

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/internal/bounded"
)

var (
	errStillRead   = errors.New("GetBody returned a body that is still being read")
	errUnended     = errors.New("a Read of the body is under way, and closing the body does not end it")
	errStillCalled = errors.New("a call of GetBody has not returned")
	errNeither     = errors.New("GetBody returned neither a body nor an error")
	errOver        = errors.New("httpretry: GetBody was called after its attempt")
)

// Copies are the bodies of one attempt whose request has GetBody. These are the
// body that the attempt begins with, and a copy for each call of GetBody by the
// base transport. net/http calls GetBody to send the request once more, and
// layers do, too.
//
// GetBody may seek in the reader of a body that it has returned before. So the
// attempt's readers are pinned while it runs, and no reader is read for two
// sends. net/http does not close every body that it gets. Over HTTP/2, it calls
// GetBody before it knows whether there is a connection
// (http2Transport.RoundTripOpt, then Transport.roundTrip with rewindBody). So
// bodies that are still open are closed with the attempt.
//
// Copies are safe for concurrent use. A nil *Copies has no bodies.
type Copies struct {
	// newCopies sets it. From then on, it is only read.
	getBody func() (io.ReadCloser, error)

	// mu guards the fields below.
	mu    sync.Mutex
	turns chan struct{}   // made by turn
	ctx   context.Context // of the attempt while RoundTrip is running, else nil
	recs  []*Recorder     // of the body that the attempt begins with, then of the copies
	first [1]*Recorder    // holds recs while it has one element; saves an allocation
	late  interrupt       // if the body that the attempt begins with is in memory
}

func newCopies(getBody func() (io.ReadCloser, error), first *Recorder) *Copies {
	c := &Copies{getBody: getBody, first: [1]*Recorder{first}}
	c.recs = c.first[:]
	return c
}

// turn returns a channel that contains a value while GetBody is called. A mutex
// would let a GetBody that blocks delay the end of the attempt.
func (c *Copies) turn() chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Most attempts do not call GetBody.
	if c.turns == nil {
		c.turns = make(chan struct{}, 1)
	}
	return c.turns
}

// Get is GetBody for the attempt's request. It works until the base transport's
// RoundTrip returns or its context ends. It does not wait any longer for a
// GetBody that blocks.
func (c *Copies) Get() (io.ReadCloser, error) {
	ctx, err := c.running()
	if err != nil {
		return nil, err
	}
	select {
	case c.turn() <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var body io.ReadCloser
	err = errNeither // if GetBody ends its goroutine
	if !c.inTurn(bounded.Signal{ctx.Done()}, bounded.NoLimit, func() { body, err = c.copy() }) {
		return nil, context.Cause(ctx)
	}
	return body, err
}

// inTurn calls f, which calls GetBody, and waits for it as bounded.RunUntil
// does. The turn, which has been taken, ends when f returns.
func (c *Copies) inTurn(stop bounded.Signal, limit time.Duration, f func()) (inTime bool) {
	return bounded.RunUntil(stop, limit, func() {
		defer func() { <-c.turn() }()
		f()
	})
}

// copy returns a further body for the attempt.
func (c *Copies) copy() (io.ReadCloser, error) {
	// RoundTrip may have returned while this call waited for its turn. Then rewind
	// may have pinned the readers, which must stay so.
	if _, err := c.running(); err != nil {
		return nil, err
	}
	recs, idle := c.pinAll()
	defer unpinAll(recs)
	// RoundTrip may also have returned while this call waited for a Read. Then
	// rewind waits for the turn. If the context has ended, no send needs the body.
	if _, err := c.running(); err != nil {
		return nil, err
	}
	next, err := callGetBody(c.getBody)
	if err != nil || next == http.NoBody {
		return next, err
	}
	for i, r := range recs {
		if !sameBody(r.source, next) {
			continue
		}
		// GetBody has moved the position of the reader.
		r.endView()
		if !idle[i] {
			return nil, errStillRead
		}
		r.leaveSource()
	}
	return c.add(next)
}

// running returns the attempt's context, or an error if the attempt is over.
func (c *Copies) running() (context.Context, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ctx == nil:
		return nil, errOver
	case c.ctx.Err() != nil:
		return nil, context.Cause(c.ctx)
	// While GetBody is called, a Read of a body in memory may block, too. The
	// copies need not be in memory.
	case c.first[0].inMemory && c.late.stop == nil:
		c.late = interruptAfter(c.ctx, c.Interrupt)
	}
	return c.ctx, nil
}

// add makes a copy that is read from source.
func (c *Copies) add(source io.ReadCloser) (io.ReadCloser, error) {
	r := newUnrecorded(source)
	body := r.open(true)
	c.mu.Lock()
	// If GetBody returns after the end of the attempt, the copy is closed here.
	over := c.ctx == nil || c.ctx.Err() != nil
	if !over {
		c.recs = append(c.recs, r)
	}
	c.mu.Unlock()
	if over {
		_ = r.closeSource() // the caller gets errOver
		return nil, errOver
	}
	return body, nil
}

// rewind calls GetBody for the next attempt. It pins all readers, and they stay
// pinned. It does not wait for GetBody after stop, or longer than limit.
func (c *Copies) rewind(stop bounded.Signal, limit time.Duration) (io.ReadCloser, error) {
	if !c.takeTurn() {
		return nil, errStillCalled
	}
	recs, idle := c.pinAll()
	ended := true
	for i, r := range recs {
		if !idle[i] {
			_ = r.closeSource() // the Read gets the error
			ended = r.pinAndWait() && ended
		}
	}
	next, err := c.replacement(recs, stop, limit)
	if err != nil {
		return nil, err
	}
	for i, r := range recs {
		// A reader that was not idle is closed, or its Read is still under way.
		if !idle[i] && sameBody(r.source, next) {
			return nil, errStillRead
		}
	}
	// Another body may read from the same source, and the Read that is under
	// way would take bytes of it. A body in memory cannot, because no Read in
	// memory takes that long.
	if !ended && !bounded.InMemory(next) {
		_ = bounded.Close(bounded.MaxTime, next) // the caller gets errUnended
		return nil, errUnended
	}
	return next, nil
}

// takeTurn waits for the turn, because a goroutine of a layer may be in GetBody
// after RoundTrip has returned. It reports whether it got the turn.
func (c *Copies) takeTurn() bool {
	// A busy machine may take longer than the timer to reach the next select,
	// which then chooses at random.
	select {
	case c.turn() <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(bounded.MaxTime)
	defer timer.Stop()
	select {
	case c.turn() <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

// replacement returns the body that GetBody returns in time. It closes one that
// comes later. The turn has been taken.
func (c *Copies) replacement(
	recs []*Recorder, stop bounded.Signal, limit time.Duration,
) (io.ReadCloser, error) {
	var settled atomic.Bool // GetBody has returned, or is not waited for
	var next io.ReadCloser
	err := errNeither // if GetBody ends its goroutine
	inTime := c.inTurn(stop, limit, func() {
		next, err = callGetBody(c.getBody)
		if settled.Swap(true) && err == nil {
			closeUnused(next, recs)
		}
	})
	if !inTime && !settled.Swap(true) {
		return nil, errStillCalled
	}
	return next, err
}

// closeUnused closes next, which no attempt is going to read, unless it is a
// body that its Recorder is going to close.
func closeUnused(next io.ReadCloser, recs []*Recorder) {
	for _, r := range recs {
		if sameBody(r.source, next) && !r.isClosed() {
			return
		}
	}
	_ = next.Close() // nobody is left who could get the error
}

// inGetBody reports whether a call of GetBody has not returned.
func (c *Copies) inGetBody() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.turns) > 0
}

// begin records that the base transport's RoundTrip begins, with the context of
// the attempt.
func (c *Copies) begin(ctx context.Context) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ctx = ctx
}

// returned records that the base transport's RoundTrip has returned.
func (c *Copies) returned() {
	if c == nil {
		return
	}
	c.mu.Lock()
	late := c.late
	c.ctx, c.late = nil, interrupt{}
	c.mu.Unlock()
	late.end()
}

// pinAll pins all readers, and reports which of them are idle.
func (c *Copies) pinAll() (recs []*Recorder, idle []bool) {
	recs = c.all()
	idle = make([]bool, len(recs))
	for i, r := range recs {
		idle[i] = r.pinAndWait()
	}
	return recs, idle
}

func unpinAll(recs []*Recorder) {
	for _, r := range recs {
		r.unpin()
	}
}

// all returns the Recorders of all bodies.
func (c *Copies) all() []*Recorder {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recs[:len(c.recs):len(c.recs)] // its elements do not change
}

// HasMore reports whether GetBody has returned some of the bodies.
func (c *Copies) HasMore() bool { return len(c.all()) > 1 }

// Interrupt ends all bodies, as Recorder.Interrupt ends one.
func (c *Copies) Interrupt() {
	for _, r := range c.all() {
		r.Interrupt()
	}
}

// Close closes all bodies, and thereby ends their Reads.
func (c *Copies) Close() {
	for _, r := range c.all() {
		_ = r.closeSource() // the attempt has ended and cannot return the error
	}
}

// callGetBody calls GetBody, which must return a body or an error.
func callGetBody(getBody func() (io.ReadCloser, error)) (io.ReadCloser, error) {
	next, err := getBody()
	switch {
	case err != nil:
		return nil, err
	case next == nil:
		return nil, errNeither
	}
	return next, nil
}

// sameBody reports whether next, which GetBody returned, is the body source.
func sameBody(source, next io.ReadCloser) bool {
	// Bodies in memory contain pointers, which can be compared.
	if bounded.InMemory(next) {
		return source == next
	}
	v := reflect.ValueOf(source)
	return v.IsValid() && v.Comparable() && v.Type() == reflect.TypeOf(next) && source == next
}
