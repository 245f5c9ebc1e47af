package httpretry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxSends bounds what net/http sends by itself in one attempt of a
	// request that is safe to repeat.
	maxSends = 10

	// maxInformational bounds the 1xx responses of one attempt that must not
	// be repeated: watching them switches off net/http's own bound.
	maxInformational = 32

	// A response that is dropped is read to its end, so that its connection
	// can be used again, but no further and no longer than this.
	maxDrainBytes = 64 << 10
	maxDrainTime  = 50 * time.Millisecond

	// maxLinger is how long a request over HTTP/1 may still be sent after its
	// response has ended. net/http itself waits 50ms for that.
	maxLinger = 100 * time.Millisecond

	// maxEmpty is how long a response without a body, which callers may leave
	// open, is kept for what may still come of it.
	maxEmpty = time.Second
)

// Attempt returns the number, from 1, of the attempt that ctx belongs to: the
// context of a request that Base is given, or of a Response's Request. For
// any other context it returns 1.
func Attempt(ctx context.Context) int {
	if a := marksOf(ctx).attempt; a != nil {
		return a.number
	}
	return 1
}

// attempt is the sending of a copy of the caller's request. As a context it is
// the caller's, marked with the attempt; the request has one derived from it
// that ends with the attempt.
type attempt struct {
	context.Context
	marks   marks
	number  int
	before  int // copies of the request that were sent before this one
	req     *http.Request
	path    string // of req's URL, which is the caller's to change after the attempt
	hasBody bool
	rec     *recorder // what req's body is read through, or nil
	cancel  context.CancelCauseFunc
	timer   *time.Timer // nil without a timeout
	header  [1]string
	over    atomic.Bool // the response that was handed over has ended

	// What a RetryTransport below has to know.
	above    *attempt // of one above this
	policy   *policy
	sending  atomic.Bool // Base is at work
	repeated atomic.Bool // the one below has sent the request more than once
	refused  atomic.Bool // the one below has not sent it, since the host is cooling down

	// What net/http tells about this attempt, from its own goroutines.
	hooks         httptrace.ClientTrace
	once          bool         // the request must not be sent twice
	replayable    bool         // to net/http, which may repeat it over HTTP/1 after writing it
	reported      atomic.Bool  // Base tells about its doings at all
	everWrote     atomic.Bool  // a part of the request
	wrote         atomic.Bool  // a part of the request, and nothing was answered since
	http2         atomic.Bool  // some of it over HTTP/2
	connecting    atomic.Bool  // a connection was asked for, and is not there
	sends         atomic.Int32 // connections that the request was given
	uploaded      atomic.Bool  // the whole request is written, or never will be
	informational atomic.Int32 // 1xx responses
}

// Value implements context.Context.
func (a *attempt) Value(key any) any {
	if key == (marksKey{}) {
		return &a.marks
	}
	return a.Context.Value(key)
}

// send makes the next attempt. A first one that needs nothing of ours is the
// caller's own request.
func (c *call) send() (resp *http.Response, err error) {
	if c.attempts++; c.attempts > 1 {
		c.above.startOver()
	}
	c.turn = c.settings.cooldowns.turn()
	if c.plain() {
		resp, err = c.settings.base.RoundTrip(c.req)
	} else {
		c.attempt = c.newAttempt()
		resp, err = c.sendCopy(c.attempt)
	}
	switch {
	case err != nil && resp != nil:
		closeResponse(resp)
		resp = nil
	case err == nil && resp == nil:
		err = errNoResponse
	}
	c.resp = resp
	return resp, err
}

// plain reports whether the attempt needs nothing of ours.
func (c *call) plain() bool {
	return c.attempts == 1 && c.safe && c.key == "" && c.policy.AttemptTimeout == 0 && c.body.direct() &&
		!c.foreign && !(c.settings.nested && c.policy.mayRepeat()) && c.announced()
}

// sendCopy sends an attempt's request and says what ended it where Base
// cannot know.
func (c *call) sendCopy(a *attempt) (*http.Response, error) {
	resp, err := c.roundTrip(a)
	cause := context.Cause(a.req.Context())
	if a.timer != nil && !a.timer.Stop() && c.req.Context().Err() == nil {
		cause = &attemptTimeout{c.policy.AttemptTimeout} // even if its cancel is yet to run
	}
	switch failure := c.body.failure(); {
	case ours(cause):
		closeNow(resp)
		return nil, cause
	case err != nil && failure != nil:
		c.bodyFailed = true
		return resp, failure
	case err != nil:
		err, c.bodyFailed = c.body.withCloseFailure(err)
		return resp, err
	case c.body.cut() && c.gone():
		closeNow(resp) // to what the server took for the request
		return nil, c.canceled(nil)
	}
	return resp, err
}

func (c *call) roundTrip(a *attempt) (*http.Response, error) {
	defer c.body.watch(a.req)()
	a.sending.Store(true)
	defer a.sending.Store(false)
	return c.settings.base.RoundTrip(a.req)
}

// newAttempt makes the copy of the caller's request that is sent next. It is
// not Request.Clone's, which copies the trailers: their values are set in the
// caller's map while the body is read.
func (c *call) newAttempt() *attempt {
	a := &attempt{
		Context:    c.req.Context(),
		marks:      c.marks,
		number:     c.attempts,
		before:     c.before + c.attempts - 1,
		path:       pathOf(c.req.URL),
		above:      c.above,
		policy:     c.policy,
		hasBody:    hasBody(c.req),
		once:       !c.safe,
		replayable: replayable(c.req),
	}
	a.marks.attempt = a
	if c.above != nil {
		a.number += c.above.number - 1
	}
	body := c.body.open()
	a.rec = c.body.rec
	ctx, cancel := context.WithCancelCause(a)
	a.cancel = cancel
	a.req = c.req.WithContext(a.watched(ctx))
	a.req.Header = c.req.Header.Clone()
	a.req.Body = body
	if a.once || !c.body.direct() {
		a.req.GetBody = nil // with it net/http repeats by itself, past our own eyes
	}
	if a.once {
		a.hideKey("Idempotency-Key")
		a.hideKey("X-Idempotency-Key")
	}
	if c.key != "" {
		a.setHeader(c.policy.KeyHeader, []string{c.key})
	}
	if a.before > 0 && c.settings.header != "" {
		a.header[0] = strconv.Itoa(a.before)
		a.setHeader(c.settings.header, a.header[:])
	}
	if timeout := c.policy.AttemptTimeout; timeout > 0 {
		a.timer = time.AfterFunc(timeout, func() { cancel(&attemptTimeout{timeout}) })
	}
	return a
}

// hideKey keeps net/http from repeating a request for the sake of a key that
// the policy does not take for one: the header's presence is enough for it. An
// empty one is no loss; a request with any other is watched more closely.
func (a *attempt) hideKey(name string) {
	if values, ok := a.req.Header[name]; ok && isKey(values) {
		a.replayable = true
	}
	if !a.replayable {
		delete(a.req.Header, name)
	}
}

func (a *attempt) setHeader(name string, values []string) {
	if a.req.Header == nil {
		a.req.Header = make(http.Header, 1)
	}
	a.req.Header[name] = values
}

// watched returns ctx with the hooks by which net/http tells what it does: a
// new set for each attempt, below the caller's own context, since hooks that
// were inherited from the attempt before would be called again.
//
// net/http repeats what was not answered. A layer of Base, or a dial function,
// may send requests of its own with this context, and the same one again after
// an answer such as a 401: so what follows an answer is left alone.
func (a *attempt) watched(ctx context.Context) context.Context {
	a.hooks.GotConn = a.gotConn
	if a.hasBody {
		a.hooks.WroteRequest = a.wroteRequest
	}
	if a.once || a.rec != nil {
		a.hooks.WroteHeaders = a.wroteHeaders
	}
	if a.once {
		a.hooks.GetConn = a.getConn
		a.hooks.WroteHeaderField = a.wroteHeaderField
		a.hooks.GotFirstResponseByte = a.answered
		a.hooks.Got1xxResponse = a.informed
	}
	return httptrace.WithClientTrace(ctx, &a.hooks)
}

func (a *attempt) getConn(string) {
	a.reported.Store(true)
	a.connecting.Store(true)
}

// gotConn is called before each sending. It stops what would be a second one:
// over HTTP/2 the request notices its canceled context before it is written;
// over HTTP/1, where the connection is this request's alone, it is written
// regardless, so the connection has to go. A request that net/http does not
// hold for replayable is given a second connection after one of HTTP/1 only if
// nothing at all was written on that.
func (a *attempt) gotConn(info httptrace.GotConnInfo) {
	sends := a.sends.Add(1)
	a.connecting.Store(false)
	a.uploaded.Store(false)
	if a.rec != nil && sends > 1 && !a.everWrote.Load() {
		a.rec.reopen()
	}
	switch {
	case a.once && a.wrote.Load() && (a.http2.Load() || a.replayable):
		a.cancel(errResent)
		if !speaksHTTP2(info.Conn, a.http2.Load()) {
			_ = info.Conn.Close() // nothing was written on it that could be lost
		}
	case !a.once && sends > maxSends:
		a.cancel(errTooManySends)
	}
}

// speaksHTTP2 reports what TLS has settled on for a connection, or without TLS
// what was spoken before. An HTTP/2 connection is not for us to close.
func speaksHTTP2(conn net.Conn, before bool) bool {
	if c, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
		return c.ConnectionState().NegotiatedProtocol == "h2"
	}
	return before
}

// wroteHeaderField is called before a whole header can have gone out. HTTP/2's
// begins with pseudo-headers (RFC 9113 section 8.3).
func (a *attempt) wroteHeaderField(name string, _ []string) {
	if name[0] == ':' {
		a.http2.Store(true)
	}
	if !a.wrote.Load() {
		a.wrote.Store(true)
		a.everWrote.Store(true)
	}
}

// wroteHeaders is for transports that do not report each field.
func (a *attempt) wroteHeaders() { a.everWrote.Store(true) }

func (a *attempt) answered() { a.wrote.Store(false) }

// informed takes an answer back: net/http repeats after a 1xx too. The answer
// that follows it is not told of, so what a layer sends after that is stopped.
func (a *attempt) informed(int, textproto.MIMEHeader) error {
	a.wrote.Store(true)
	if a.informational.Add(1) > maxInformational {
		return errInformational
	}
	return nil
}

// neverSent reports whether the attempt, which failed with err, provably ended
// before a byte of its request was written. If a context ended it, its own or
// one of a layer of Base, that shows only while it had no connection: an HTTP/2
// stream may go on to be written after RoundTrip returned.
func (a *attempt) neverSent(err error) bool {
	if a == nil || !a.once || !a.reported.Load() || a.everWrote.Load() {
		return false
	}
	gaveUp := a.req.Context().Err() != nil || isTimeout(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	return a.sends.Load() == 0 || !gaveUp
}

// repeatedBelow reports whether the attempt was more than one: what its result
// says of the last of them, the others may not share.
func (a *attempt) repeatedBelow() bool { return a != nil && a.repeated.Load() }

// refusedBelow reports whether the attempt was not sent by the RetryTransport
// below this one. A layer between may have sent it all the same, and then
// another request that was refused.
func (a *attempt) refusedBelow() bool {
	return a != nil && a.refused.Load() && !a.everWrote.Load() && !a.repeated.Load()
}

// dialedAgain reports whether err is of a connection that could not be made
// after the request had been written on another. While one is being made, any
// error is: a proxy words its own.
func (a *attempt) dialedAgain(err error) bool {
	if a == nil || !a.everWrote.Load() {
		return false
	}
	var op *net.OpError
	return a.connecting.Load() || errors.As(err, &op) && isDial(op) || strings.HasPrefix(err.Error(), handshakeTimeout)
}

func (a *attempt) wroteRequest(httptrace.WroteRequestInfo) {
	a.uploaded.Store(true)
	if a.over.Load() {
		a.end()
	}
}

// release ends the attempt's context, and with it whatever Base still does.
func (a *attempt) release() {
	if a == nil {
		return
	}
	if a.timer != nil {
		a.timer.Stop()
	}
	a.cancel(nil)
}

// end releases an attempt that was the last. Its body may be waiting in a Read
// that nothing else would end.
func (a *attempt) end() {
	a.release()
	if a.rec != nil {
		a.rec.interrupt()
	}
}

// responseEnded ends the attempt once its request has been sent, too: over
// HTTP/2 a server may answer, and go on to read what it answered to.
func (a *attempt) responseEnded(resp *http.Response) {
	if a.over.Swap(true) {
		return
	}
	switch {
	case !a.hasBody || a.uploaded.Load() || a.sends.Load() == 0: // Base may not tell
		a.end()
	case resp.ProtoMajor < 2:
		time.AfterFunc(maxLinger, a.end)
	}
}

// replayable reports whether net/http holds a request without a key for
// replayable by its method (Request.isReplayable).
func replayable(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// handOver makes resp, an attempt's, the caller's. Its body keeps the
// attempt's context alive until it ends or is closed; one that callers may leave
// open ends it at once, or soon.
func (c *call) handOver(resp *http.Response) {
	a := c.attempt
	if a == nil {
		return
	}
	resp.Request = c.req
	if a.number > 1 {
		resp.Request = c.req.WithContext(a)
	}
	_, tunnel := resp.Body.(io.Writer)
	empty := resp.ContentLength == 0 || c.req.Method == http.MethodHead ||
		resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified
	if tunnel || resp.Body == nil || resp.Body == http.NoBody || empty && resp.ProtoMajor < 2 {
		a.responseEnded(resp)
		return
	}
	resp.Body = &heldBody{resp.Body, a, resp}
	if empty { // over HTTP/2 its end, and trailers, may come after its header
		time.AfterFunc(maxEmpty, func() { a.responseEnded(resp) })
	}
}

// heldBody ends an attempt with the body of its response.
type heldBody struct {
	io.ReadCloser
	attempt *attempt
	resp    *http.Response
}

func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.attempt.responseEnded(b.resp)
	}
	return n, err
}

func (b *heldBody) Close() error {
	err := b.ReadCloser.Close()
	b.attempt.responseEnded(b.resp)
	return err
}

// discard lets go of a response that is dropped, and of its attempt. A small
// rest of it is read, so that its connection can be used again. Errors do not
// matter: they cost the connection, which is the alternative anyway.
func (c *call) discard(resp *http.Response) {
	if resp.Body == nil || resp.Body == http.NoBody {
		c.attempt.release()
		return
	}
	attempt := c.attempt // c does not outlive its RoundTrip
	drop := sync.OnceFunc(func() { attempt.release(); closeResponse(resp) })
	drain := func() {
		late := time.AfterFunc(maxDrainTime, drop)
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxDrainBytes+1))
		late.Stop()
		drop()
	}
	if resp.ContentLength > maxDrainBytes {
		drain = drop
	}
	if resp.ProtoMajor < 2 && (c.attempt != nil || !resp.Uncompressed) {
		drain()
		return
	}
	orLeave(drain)
}

// closeNow closes a response whose attempt's context has ended.
func closeNow(resp *http.Response) {
	if resp != nil && resp.ProtoMajor >= 2 {
		orLeave(func() { closeResponse(resp) })
		return
	}
	closeResponse(resp)
}

// orLeave runs f, and leaves it behind if it takes too long. Over HTTP/2, Read
// and Close wait for their turn to write on the connection, where another
// request may be stuck, and Close for the writing of its own; net/http's
// decompression holds Close up while it reads. Nothing can cut that short.
func orLeave(f func()) {
	done := make(chan any, 1)
	go func() {
		defer func() { done <- recover() }()
		f()
	}()
	timer := time.NewTimer(maxDrainTime)
	defer timer.Stop()
	select {
	case p := <-done:
		if p != nil {
			panic(p)
		}
	case <-timer.C:
	}
}

func closeResponse(resp *http.Response) {
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close() // nobody reads it
	}
}

var (
	errNoResponse    = errors.New("the base transport returned neither a response nor an error")
	errResent        = errors.New("net/http was about to send again a request that is not safe to repeat, and was stopped")
	errTooManySends  = fmt.Errorf("net/http sent the request %d times in one attempt, and was stopped", maxSends)
	errInformational = fmt.Errorf("more than %d informational responses to one request", maxInformational)
)

// attemptTimeout is the error of an attempt that took longer than the policy's
// AttemptTimeout.
type attemptTimeout struct{ after time.Duration }

func (e *attemptTimeout) Error() string   { return fmt.Sprintf("attempt timed out after %v", e.after) }
func (e *attemptTimeout) Timeout() bool   { return true }
func (e *attemptTimeout) Temporary() bool { return true }

// Is makes it what net/http's own timeouts are.
func (e *attemptTimeout) Is(target error) bool { return target == context.DeadlineExceeded }

// ours reports whether err is of this package's making.
func ours(err error) bool {
	switch err {
	case errNoResponse, errResent, errTooManySends, errRequestCanceled:
		return true
	}
	_, timeout := err.(*attemptTimeout)
	return timeout || errors.Is(err, errInformational) // which net/http wraps
}
