package httpretry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/internal/replay"
	"github.com/seed421102f4/httpretry/internal/respbody"
	"github.com/seed421102f4/httpretry/internal/wire"
)

// maxLinger is how long a request over HTTP/1 may still be sent after its
// response has ended. net/http itself waits 50ms for that
// (maxWriteWaitBeforeConnReuse).
const maxLinger = 100 * time.Millisecond

// attempt is the sending of a copy of the caller's request. A nil *attempt is
// one that sent the caller's own request.
type attempt struct {
	attemptContext

	req     http.Request
	rec     *replay.Recorder // that req's body is read through, or nil
	copies  *replay.Copies   // that req's GetBody makes, or nil
	hasBody bool
	cancel  context.CancelCauseFunc
	timer   *time.Timer // nil without an AttemptTimeout
	trace   wire.Trace
	prior   [1]string // the value of the attempt header
	fields  [4]string // the values of req's header, if it has at most four fields
	reads   bodyReads

	// Parts of the response that the caller gets. They are here to save
	// allocations.
	respReq  http.Request
	respBody respbody.Followed

	ended        atomic.Bool // the response that was handed over has ended
	readerFailed bool        // the error is that of the request body's own reader
}

// send makes the next attempt. A first attempt that needs nothing of this
// package sends the caller's own request.
func (c *call) send() (resp *http.Response, err error) {
	c.attempts++
	c.progress = progressAttempt
	c.cooldown.generation = c.settings.cooldowns.Generation()
	if c.sendsOriginal() {
		resp, err = c.settings.base.RoundTrip(c.req)
	} else {
		c.attempt = c.newAttempt()
		resp, err = c.sendCopy(c.attempt)
	}
	// A RoundTripper must return one or the other.
	switch {
	case err != nil && resp != nil:
		respbody.Close(resp)
		resp = nil
	case err == nil && resp == nil:
		err = errNoResponse
	}
	c.resp = resp
	return resp, err
}

// sendsOriginal reports whether the attempt needs no copy of the request.
func (c *call) sendsOriginal() bool {
	return c.attempts == 1 && c.idempotent && c.key == "" && c.policy.AttemptTimeout == 0 && c.body.Direct() &&
		!c.settings.nested && (c.values == nil || c.contextIsAsSent())
}

// contextIsAsSent reports whether Base may see the request's own context and
// header: Attempt and the attempt header are correct for it.
func (c *call) contextIsAsSent() bool {
	if c.outer() != nil {
		return true
	}
	return c.values.attempt == nil && c.attemptHeaderIsSet()
}

// attemptHeaderIsSet reports whether the request's own header tells which
// retry it is, before any was made here.
func (c *call) attemptHeaderIsSet() bool {
	prior, name := c.priorAttempts(), c.settings.attemptHeader
	return prior == 0 || name == "" || maxCount(c.req.Header[name]) == prior
}

// sendCopy sends an attempt's request, and returns the error that ended it if
// Base cannot know that.
func (c *call) sendCopy(a *attempt) (*http.Response, error) {
	resp, err := c.roundTrip(a)
	cause := context.Cause(a.req.Context())
	// The timeout counts even if its cancel is yet to run.
	if a.timer != nil && !a.timer.Stop() && c.req.Context().Err() == nil {
		cause = newAttemptTimeout(c.policy.AttemptTimeout)
	}
	failure := c.body.Failure()
	switch {
	case cause != nil && isOwnError(cause):
		respbody.Close(resp)
		return nil, withOutcomeOf(err, cause)
	// net/http cannot tell the error of a body's reader from one of its own
	// (transferWriter.doBodyCopy).
	case err != nil && failure != nil:
		a.readerFailed = true
		return resp, failure
	case err != nil:
		err, a.readerFailed = c.body.WithCloseFailure(err)
		return resp, err
	// The server took what was sent until the cancel for the whole request.
	case c.body.ClosedEarly() && c.callerCanceled():
		respbody.Close(resp)
		return nil, c.canceled(nil)
	}
	return resp, err
}

func (c *call) roundTrip(a *attempt) (*http.Response, error) {
	defer c.body.Watch(a.req.Context())()
	a.inRoundTrip.Store(true)
	defer a.inRoundTrip.Store(false)
	return c.settings.base.RoundTrip(&a.req)
}

// newAttempt makes the copy of the caller's request that is sent next. It is
// not one of Request.Clone, which copies the trailers: their values are set in
// the caller's map while the body is read.
func (c *call) newAttempt() *attempt {
	a := &attempt{hasBody: replay.Has(c.req)}
	a.init(c.callerContext(), c.values, c.attempts)
	prior := c.priorAttempts() + c.attempts - 1
	// The outer RetryTransport has set the attempt header.
	if outer := c.outer(); outer != nil {
		a.number, prior = outer.number, 0
	}

	body := c.body.Open(c.attempts >= c.maxAttempts())
	// Open may have replaced the Recorder.
	a.rec, a.copies = c.body.Recorder(), c.body.Copies()
	header, bare := c.headerFor(a, prior), c.settings.isNetHTTP(c.req.URL)
	a.req = *c.req.WithContext(a.watch(c.settings, wire.Options{
		AtMostOnce: !c.idempotent,
		HasBody:    a.hasBody,
		NoLayers:   bare,
		Resendable: isResendable(c.req.Method, header),
		Restarts:   a.rec != nil,
	}))
	a.req.Header = header
	a.req.Body = body
	if !bare && !c.idempotent && a.hasBody {
		a.req.Body = a.reads.watch(&a.reads.first, body)
	}
	a.req.GetBody = c.getBodyFor(a)
	if timeout := c.policy.AttemptTimeout; timeout > 0 {
		a.timer = time.AfterFunc(timeout, func() { a.cancel(newAttemptTimeout(timeout)) })
	}
	return a
}

// watch returns the context of a's request, which ends with the attempt.
func (a *attempt) watch(settings *settings, options wire.Options) context.Context {
	ctx, cancel := context.WithCancelCause(&a.attemptContext)
	a.cancel = cancel
	options.UnencryptedHTTP2 = settings.unencryptedHTTP2()
	options.MaxHeaderBytes = settings.maxHeaderBytes()
	return a.trace.Start(ctx, a, options)
}

// headerFor returns the header of a's request.
func (c *call) headerFor(a *attempt, prior int) http.Header {
	// net/http fails a request without a header map. If the copy had one,
	// net/http would send it.
	if c.req.Header == nil {
		return nil
	}
	// Even if nothing is changed, a layer in Base may add to its header, which
	// then would be in the caller's, and in that of each further attempt.
	header := a.cloneHeader(c.req.Header)
	if c.key != "" {
		header = setHeader(header, c.policy.IdempotencyHeader, []string{c.key})
	}
	if prior > 0 && c.settings.attemptHeader != "" {
		a.prior[0] = strconv.Itoa(prior)
		header = setHeader(header, c.settings.attemptHeader, a.prior[:])
	}
	if !c.idempotent {
		hideEmptyKey(header, "Idempotency-Key")
		hideEmptyKey(header, "X-Idempotency-Key")
	}
	return header
}

// cloneHeader is http.Header.Clone with room for one more field. For the few
// fields of most requests, it takes an allocation and 60 of 200 ns less.
func (a *attempt) cloneHeader(h http.Header) http.Header {
	clone, all := make(http.Header, len(h)+1), a.fields[:0]
	if len(h) > len(a.fields) {
		all = make([]string, 0, len(h))
	}
	for name, values := range h {
		first := len(all)
		all = append(all, values...)
		clone[name] = all[first:len(all):len(all)]
		// httputil.ReverseProxy distinguishes nil from no values.
		if values == nil {
			clone[name] = nil
		}
	}
	return clone
}

// setHeader replaces a header field in whatever spelling it has: a map may be
// filled past the methods of http.Header.
func setHeader(h http.Header, name string, values []string) http.Header {
	if h == nil {
		h = make(http.Header, 1)
	}
	for other := range h {
		if len(other) == len(name) && strings.EqualFold(other, name) {
			delete(h, other)
		}
	}
	h[name] = values
	return h
}

// hideEmptyKey removes a key header without a value, which net/http does not
// send, but takes for permission to resend the request
// (Request.isReplayable). The policy does not.
func hideEmptyKey(h http.Header, name string) {
	if values, ok := h[name]; ok && !slices.ContainsFunc(values, func(v string) bool { return v != "" }) {
		delete(h, name)
	}
}

// isResendable reports whether net/http resends a request over HTTP/1 after it
// was written (Request.isReplayable).
func isResendable(method string, h http.Header) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	_, standard := h["Idempotency-Key"]
	_, other := h["X-Idempotency-Key"]
	return standard || other
}

// getBodyFor returns GetBody for a's request. Layers in Base may need it: a
// signer, or digest authentication after a 401. net/http uses it to resend a
// request over HTTP/2 (http2shouldRetryRequest).
func (c *call) getBodyFor(a *attempt) func() (io.ReadCloser, error) {
	getBody := c.body.GetBody()
	switch {
	case getBody == nil || c.idempotent && c.body.Direct():
		return getBody
	// If nothing else can use GetBody, it is hidden. Then the error of net/http
	// says whether the server processed the request, and the failure of the
	// caller's reader is known for what it is.
	// On the last attempt, this transport does not retry, whatever the error
	// says. So GetBody is kept: net/http needs it to resend a request of which
	// it has written nothing.
	case c.settings.hidesGetBody(c.req.URL) && c.attempts < c.maxAttempts():
		return nil
	case c.idempotent:
		return getBody
	}
	return func() (io.ReadCloser, error) {
		if a.trace.ForbidsResend() {
			return nil, wire.ErrResent
		}
		body, err := getBody()
		if err != nil || body == nil || a.reads.first.reads == nil {
			return body, err
		}
		return a.reads.watch(new(watchedBody), body), nil
	}
}

// bodyReads notes whether the body of a request that must not be sent twice is
// read, if there are layers in Base: a layer that has read it sends one of its
// own, which net/http could resend.
type bodyReads struct {
	first watchedBody // the zero value if reads are not watched
	begun atomic.Bool // something was read of the body that was made last
	ever  atomic.Bool // something was read of any of them
}

type watchedBody struct {
	io.ReadCloser
	reads *bodyReads
}

func (r *bodyReads) watch(w *watchedBody, body io.ReadCloser) io.ReadCloser {
	r.begun.Store(false)
	w.ReadCloser, w.reads = body, r
	return w
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.reads.begun.Store(true)
	b.reads.ever.Store(true)
	return b.ReadCloser.Read(p)
}

// BodyWasRead implements wire.Attempt.
func (a *attempt) BodyWasRead() bool { return a.reads.begun.Load() }

// bodyFailed reports whether the attempt's error is that of the request body's
// own reader.
func (a *attempt) bodyFailed() bool { return a != nil && a.readerFailed }

// neverSent reports whether the current attempt, which failed with err,
// provably ended before a byte of its request was written. If a context ended
// the attempt, its own or one of a layer, this is certain only if it had no
// connection: over HTTP/2, net/http may write the request after RoundTrip has
// returned.
func (c *call) neverSent(err error) bool {
	a := c.attempt
	switch {
	case a == nil || !a.trace.ProvesUnsent():
		return false
	// A layer in Base that has read a body may have sent it without net/http.
	// Without a body, nothing shows whether a layer has sent the request.
	case a.reads.ever.Load(), !a.hasBody && (c.settings.transport == nil || !isOfNetHTTP(c.req.URL)):
		return false
	case c.settings.hasOtherProtocols():
		return false
	}
	timedOut := a.req.Context().Err() != nil || isTimeout(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	return a.trace.Connections() == 0 || !timedOut
}

// failedToReconnect reports whether err means that a connection failed to open
// after the request had been written on another. While a connection is being
// opened, any error counts, because the texts of proxies differ.
func (a *attempt) failedToReconnect(err error) bool {
	if a == nil || !a.trace.Wrote() {
		return false
	}
	var op *net.OpError
	return a.trace.Connecting() || errors.As(err, &op) && isDial(op) || strings.HasPrefix(err.Error(), handshakeTimeout)
}

// isOfAnother reports whether the result of an attempt is that of a request
// which a layer in Base sent after another one was answered: the attempt's own,
// which was processed then, or one before it. A layer that follows a redirect
// or polls for a result does so.
func (a *attempt) isOfAnother(resp *http.Response, err error) bool {
	switch {
	case a == nil:
		return false
	case err != nil:
		return a.trace.Answered()
	}
	return resp.Request != nil && cmp.Or(resp.Request.Method, http.MethodGet) != cmp.Or(a.req.Method, http.MethodGet)
}

// uploadIsOver reports whether it is known that Base does not read the
// attempt's body any more. Without a copy, nothing is known of a first attempt,
// unless it never had a connection.
func (c *call) uploadIsOver(err error, outcome Outcome) bool {
	if err != nil && outcome == Unprocessed {
		return true
	}
	return c.attempt != nil && c.attempt.trace.Uploaded()
}

// Stop implements wire.Attempt.
func (a *attempt) Stop(cause error) { a.cancel(cause) }

// Restarted implements wire.Attempt.
func (a *attempt) Restarted() { a.rec.Reopen() }

// Uploaded implements wire.Attempt. The response may have ended before.
func (a *attempt) Uploaded() {
	if a.ended.Load() {
		a.end()
	}
}

// Release ends the attempt's context, and with it whatever Base still does.
func (a *attempt) Release() {
	if a == nil {
		return
	}
	if a.timer != nil {
		a.timer.Stop()
	}
	a.cancel(nil)
}

// end releases an attempt that was the last. Base may be waiting in a Read of
// its body that nothing else would end.
func (a *attempt) end() {
	a.Release()
	switch {
	case a.copies != nil:
		a.copies.End()
	case a.rec != nil:
		a.rec.Interrupt()
	}
}

// ResponseEnded ends the attempt once its request has been sent, too: over
// HTTP/2, a server may answer and continue to read the request.
func (a *attempt) ResponseEnded(protoMajor int) {
	if a.ended.Swap(true) {
		return
	}
	switch {
	// A Base that does not report answers does not report uploads either.
	// http.ClientConn reports both, and no connections.
	case !a.hasBody || a.trace.Uploaded() || a.trace.Connections() == 0 && !a.trace.Answered():
		a.end()
	case protoMajor < 2:
		time.AfterFunc(maxLinger, a.end)
	}
}

// handOver makes resp, of the last attempt, the caller's. It returns the
// context that Result looks for, or nil.
func (c *call) handOver(resp *http.Response, reason Reason, resumable bool) (end *attemptContext) {
	a := c.attempt
	isDefault := c.attempts == 1 && (reason == ReasonSuccess || reason == ReasonPermanent) && !resumable
	// Result returns the default anyway, unless the request's context is that
	// of an earlier response. An outer RetryTransport sets Response.Request
	// itself, once it has decided how the request ended.
	records := c.outer() == nil && (!isDefault || c.values.hasAttempt())
	if records {
		end = c.endContext()
	}
	switch {
	case resp.Request == nil, c.isOwn(resp.Request):
		resp.Request = c.req
		if records {
			resp.Request = c.requestWith(end)
		}
	// Base may have followed a redirect: then the request is its own. Its
	// context must not end with the attempt.
	case a != nil && a.isIn(resp.Request.Context()):
		var ctx context.Context
		ctx, end = c.detach(resp.Request.Context())
		resp.Request = resp.Request.WithContext(ctx)
	// A layer, such as a tracer, has cloned the caller's own request. A context
	// of an attempt would be that of another request: Base may return the same
	// Response several times.
	case records && a == nil && !fromContext(resp.Request.Context()).hasAttempt():
		ctx := resp.Request.Context()
		end.init(ctx, fromContext(ctx), c.attempts)
		resp.Request = resp.Request.WithContext(end)
	}
	if end != nil {
		end.reason.Store(uint32(reason))
	}
	if a != nil {
		a.followBody(resp)
	}
	return end
}

// isOwn reports whether req is the request that the last attempt sent, or the
// copy that net/http makes of one with a body (setupRewindBody). That copy is
// the Response.Request if an HTTP/2 connection was open already.
func (c *call) isOwn(req *http.Request) bool {
	sent := c.sentRequest()
	return req == sent || req == c.req ||
		req.URL == sent.URL && req.Method == sent.Method && req.Host == sent.Host &&
			reflect.ValueOf(req.Header).Pointer() == reflect.ValueOf(sent.Header).Pointer() &&
			sameContext(req.Context(), sent.Context())
}

// followBody ends the attempt with the body of its response. Until then, the
// attempt's context must live: it is that of the body, too.
func (a *attempt) followBody(resp *http.Response) {
	switch {
	// The body of a tunnel also writes, and net/http does not need its context
	// any more (RFC 9110 sections 9.3.6 and 15.2.2).
	case isTunnel(&a.req, resp):
		a.ResponseEnded(resp.ProtoMajor)
	// Callers often leave these open. A layer may have wrapped http.NoBody.
	// Over HTTP/2, a response without a body may still have trailers, which
	// end it.
	case respbody.IsEmpty(resp),
		resp.ProtoMajor == 1 && (resp.ContentLength == 0 || a.req.Method == http.MethodHead):
		a.ResponseEnded(resp.ProtoMajor)
	default:
		a.respBody.Follow(resp, a)
	}
}

// isTunnel reports whether resp is a tunnel whose body also writes. net/http
// has none for CONNECT: what is sent is the request's body.
func isTunnel(req *http.Request, resp *http.Response) bool {
	_, writes := resp.Body.(io.Writer)
	return resp.StatusCode == http.StatusSwitchingProtocols ||
		writes && req.Method == http.MethodConnect && resp.StatusCode >= 200 && resp.StatusCode < 300
}

var errNoResponse = errors.New("the base transport returned neither a response nor an error")

// attemptTimeout is the error of an attempt that took longer than the policy's
// AttemptTimeout, or of a body that took longer than its ResumeIdle.
type attemptTimeout struct {
	what  string
	after time.Duration
	layer error // of a layer in Base that states an Outcome, or nil
}

func newAttemptTimeout(after time.Duration) *attemptTimeout {
	return &attemptTimeout{what: "attempt timed out after", after: after}
}

// withOutcomeOf returns cause, which ended an attempt whose own error is err.
// If cause is a timeout and err states an Outcome, such as that of a limiter
// that has sent nothing, the result states that Outcome, too.
func withOutcomeOf(err, cause error) error {
	timeout, ok := cause.(*attemptTimeout)
	if !ok || err == nil || !statesOutcome(err) {
		return cause
	}
	return &attemptTimeout{timeout.what, timeout.after, err}
}

func (e *attemptTimeout) Error() string {
	text := fmt.Sprintf("%s %v", e.what, e.after)
	if e.layer != nil {
		text += ": " + e.layer.Error()
	}
	return text
}

func (e *attemptTimeout) Timeout() bool   { return true }
func (e *attemptTimeout) Temporary() bool { return true } // as net.Error has it

// Is reports whether target is context.DeadlineExceeded, as for a timeout of
// net/http, or in the tree of the layer's error. A context.Canceled in that
// tree is the cancel of the attempt, not the caller's.
func (e *attemptTimeout) Is(target error) bool {
	return target == context.DeadlineExceeded ||
		e.layer != nil && target != context.Canceled && errors.Is(e.layer, target)
}

// As looks for target in the tree of the layer's error.
func (e *attemptTimeout) As(target any) bool { return e.layer != nil && errors.As(e.layer, target) }

// isOwnError reports whether err was made here, not by Base. net/http wraps
// some of the errors that it gets from hooks.
func isOwnError(err error) bool {
	// A timeout that Base has wrapped may be that of a nested RetryTransport.
	if _, timeout := err.(*attemptTimeout); timeout {
		return true
	}
	for _, own := range []error{errNoResponse, errRequestCanceled, wire.ErrResent, wire.ErrTooManySends, wire.ErrInformational} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}
