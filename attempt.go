package httpretry

import (
	"context"
	"io"
	"net/http"
	"strconv"
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

	// Written by newAttempt, before Base gets the request. Base, the hooks and
	// the timer read them.
	req     http.Request
	rec     *replay.Recorder // that req's body is read through, or nil
	copies  *replay.Copies   // that req's GetBody makes, or nil
	hasBody bool
	cancel  context.CancelCauseFunc // nil if nothing has to end the attempt
	timer   *time.Timer             // nil without an AttemptTimeout
	prior   [1]string               // the value of the attempt header
	fields  [4]string               // the values of req's header, if it has at most four fields

	// Used by any goroutine, as are inRoundTrip, reason and resumes of
	// attemptContext.
	trace *wire.Trace // nil if nothing of the sending has to be known
	ended atomic.Bool // the response that was handed over has ended

	// Used by the goroutine of RoundTrip, after Base's RoundTrip has returned.
	readerFailed  bool // the error is that of the request body's own reader
	wrongProtocol bool // the attempt was stopped with wire.ErrProtocol

	// Written by handOver. The caller gets them with the response. They are here
	// to save allocations.
	respBody respbody.Followed
	shown    *http.Request // room for Response.Request, or nil
}

// roomyAttempt is an attempt with the room for Response.Request, which most
// retries need, and watchedAttempt one with a trace, too: in one allocation each.
type (
	roomyAttempt struct {
		attempt
		room http.Request
	}
	watchedAttempt struct {
		roomyAttempt
		watcher wire.Trace
	}
)

// send makes the next attempt. A first attempt that needs nothing of this
// package sends the caller's own request.
func (s *sending) send() (*http.Response, error) {
	s.attempts++
	if s.sendsOriginal() {
		s.begun = true
		resp, err := s.engine.base.RoundTrip(s.caller.req)
		return s.readAhead(s.caller.req, resp, s.engine.base.ownError(s.caller.req, nil, err))
	}
	return s.sendFramed()
}

// sendFramed sends a copy of the request. It sends another one if the framing
// turns out to be wrong. The server has not processed the first one then.
func (s *sending) sendFramed() (*http.Response, error) {
	f := s.framing()
	for sends := 1; ; sends++ {
		s.attempt = s.newAttempt(f)
		resp, err := s.sendCopy(s.attempt)
		// An outer attempt may be the one that was stopped, if a layer sends this
		// request in its context.
		wrong := s.attempt.wrongProtocol && !s.caller.hasEnded()
		switch {
		case wrong && f.emptyBody:
			s.protocol.learn(protocolUnknown)
			// A host that changes each time is not followed forever.
			if f = s.framing(); sends >= wire.MaxSends {
				f = framing{}
			}
		// The next connection may speak HTTP/1 again.
		case wrong:
			s.protocol.learn(protocolHTTP2)
			f = framing{emptyBody: true, expected: wire.HTTP2}
		// The empty body has no Content-Length (RFC 9110 section 15.5.12).
		case f.emptyBody && err == nil && statusIs(resp, http.StatusLengthRequired):
			s.protocol.learn(protocolNeedsLength)
			respbody.Close(resp) // no attempt depends on it
			f = framing{}
		default:
			return resp, err
		}
		s.attempt.Release()
	}
}

// sendsOriginal reports whether the attempt needs no copy of the request.
func (s *sending) sendsOriginal() bool {
	return s.attempts == 1 && s.idempotent && s.key == "" && s.policy.AttemptTimeout == 0 &&
		s.body.Recorder() == nil && !s.engine.base.nested &&
		s.caller.showsAttempt(s.engine.attemptHeader)
}

// sendCopy sends an attempt's request. If a timeout, the Trace, the body's
// reader or the caller ended the attempt, it returns that error and not Base's.
func (s *sending) sendCopy(a *attempt) (*http.Response, error) {
	s.begun = true
	resp, err := s.roundTrip(a)
	resp, err = s.readAhead(&a.req, resp, err)
	cause := context.Cause(a.req.Context())
	switch {
	case a.timer == nil || a.timer.Stop() || s.caller.req.Context().Err() != nil:
	// A body that was read whole has come in time.
	case respbody.IsWhole(resp):
		cause = nil
	// The timeout counts even if its cancel is yet to run.
	default:
		cause = newAttemptTimeout(s.policy.AttemptTimeout)
	}
	failure := s.body.Failure()
	switch {
	// The AttemptTimeout or the Trace has canceled the attempt.
	case cause != nil && isOwnError(cause):
		a.wrongProtocol = cause == wire.ErrProtocol
		// What was read ahead has come in time.
		if respbody.IsAhead(resp) {
			s.cut = resp
		} else {
			respbody.Close(resp)
		}
		return nil, withOutcomeOf(err, cause)
	// net/http cannot tell the error of a body's reader from one of its own
	// (transferWriter.doBodyCopy).
	case err != nil && failure != nil:
		a.readerFailed = true
		return resp, failure
	// The server has answered to the whole body, so its Close does not matter.
	case s.cut != nil:
		return nil, err
	case err != nil:
		err, a.readerFailed = s.body.WithCloseFailure(err)
		return resp, err
	// The cancel cut the body off, and the server answered as if it were
	// complete.
	case s.body.ClosedEarly() && s.caller.hasEnded():
		respbody.Close(resp)
		return nil, s.canceled(nil)
	}
	return resp, err
}

func (s *sending) roundTrip(a *attempt) (*http.Response, error) {
	defer s.body.Watch(a.req.Context())()
	a.inRoundTrip.Store(true)
	defer a.inRoundTrip.Store(false)
	resp, err := s.engine.base.RoundTrip(&a.req)
	// From now on, its Facts do not change.
	if err != nil {
		a.trace.Seal()
	}
	return resp, s.engine.base.ownError(&a.req, a.trace, err)
}

// newAttempt makes the copy of the caller's request that is sent next. It does
// not use Request.Clone, because the copy must share the map of trailers. The
// caller's reader sets their values in that map.
func (s *sending) newAttempt(f framing) *attempt {
	body := s.body.Open(s.last)
	a := s.allocateAttempt()
	a.hasBody = s.body.Has() || f.emptyBody
	a.init(s.caller.attemptContext(), &s.caller.values, s.attempts)
	prior := s.caller.priorAttempts() + s.attempts - 1 - s.resends
	// An outer RetryTransport counts the attempts, and has set the attempt
	// header.
	if outer := s.caller.outer(); outer != nil {
		a.number, prior = outer.number, 0
	}

	a.rec = s.body.Recorder() // Open may have replaced it
	if f.emptyBody {
		body = emptyBody{}
	}
	header := s.headerFor(a, prior)
	ctx := context.Context(&a.attemptContext)
	if a.trace != nil {
		ctx = a.watch(s.engine, wire.Options{
			AtMostOnce: !s.idempotent,
			HasBody:    a.hasBody,
			NoLayers:   s.engine.base.isNetHTTP(s.caller.req.URL),
			Resendable: wire.Resendable(s.caller.req.Method, header),
			Restarts:   a.rec != nil,
			Expected:   f.expected,
			HostPort:   f.hostPort,
		})
	}
	a.req = *s.caller.req.WithContext(ctx)
	a.req.Header = header
	a.req.Body = a.trace.Body(body)
	a.req.GetBody = s.getBodyFor(a)
	a.copies = s.body.Copies()
	if timeout := s.policy.AttemptTimeout; timeout > 0 {
		a.timer = time.AfterFunc(timeout, func() { a.cancel(newAttemptTimeout(timeout)) })
	}
	return a
}

// allocateAttempt returns a new attempt, with a trace if that is needed. A first
// attempt that is not watched most likely succeeds, and then needs no more room.
func (s *sending) allocateAttempt() *attempt {
	if !s.needsNoWatch() {
		a := new(watchedAttempt)
		a.shown, a.trace = &a.room, &a.watcher
		return &a.attempt
	}
	if s.attempts == 1 {
		return new(attempt)
	}
	a := new(roomyAttempt)
	a.shown = &a.room
	return &a.attempt
}

// needsNoWatch reports whether nothing has to be known of the sending of the
// attempt, and nothing but the end of its response has to end it. A first attempt
// is then like one that sends the caller's own request. After a retry, a layer
// might wait for the end of the context.
func (s *sending) needsNoWatch() bool {
	u, b := s.caller.req.URL, &s.engine.base
	return s.idempotent && s.body.IsInMemory() && s.policy.AttemptTimeout == 0 &&
		(s.attempts == 1 || b.isNetHTTP(u) && !b.maySpeakHTTP2(u)) &&
		s.caller.outer() == nil && s.caller.priorAttempts() == 0
}

// watch returns the context of a's request, which ends with the attempt.
func (a *attempt) watch(e *engine, options wire.Options) context.Context {
	ctx, cancel := context.WithCancelCause(&a.attemptContext)
	a.cancel = cancel
	options.UnencryptedHTTP2 = e.base.unencryptedHTTP2()
	options.MaxHeaderBytes = e.base.maxHeaderBytes()
	return a.trace.Start(ctx, a, options)
}

// headerFor returns the header of a's request.
func (s *sending) headerFor(a *attempt, prior int) http.Header {
	// net/http fails a request without a header map. If the copy had one,
	// net/http would send the request.
	if s.caller.req.Header == nil {
		return nil
	}
	// A first attempt that is like one that sends the caller's own request has
	// the caller's header, too, with all that a layer does to it.
	if s.attempts == 1 && s.key == "" && a.trace == nil {
		return s.caller.req.Header
	}
	// A layer in Base may add fields to the header. They must not get into the
	// header of the caller or of another attempt, so it is copied.
	header := a.cloneHeader(s.caller.req.Header)
	if s.key != "" {
		header = setHeader(header, s.policy.IdempotencyHeader, []string{s.key})
	}
	if prior > 0 && s.engine.attemptHeader != "" {
		a.prior[0] = strconv.Itoa(prior)
		header = setHeader(header, s.engine.attemptHeader, a.prior[:])
	}
	if !s.idempotent {
		wire.HideEmptyKeys(header) // the policy does not take them for keys either
	}
	return header
}

// cloneHeader is http.Header.Clone with room for one more field. For the few
// fields of most requests, it makes one allocation less.
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

// getBodyFor returns GetBody for a's request. Over HTTP/2, net/http uses it to
// send the request again (http2shouldRetryRequest). Without it, net/http returns
// the error that ended the send, from which the Outcome follows. Over HTTP/1, it
// needs it after a send of which nothing was written. Layers that are not known
// may need it, too: a signer, or digest authentication after a 401.
func (s *sending) getBodyFor(a *attempt) func() (io.ReadCloser, error) {
	b := &s.engine.base
	switch {
	case s.idempotent && s.body.Recorder() == nil:
		return s.body.GetBody()
	// After its last attempt, a request that is safe to send twice can only be
	// sent again by net/http. If a host speaks HTTP/1, only net/http knows that it
	// has written nothing of a request (Transport.roundTrip).
	case b.transport != nil && b.maySpeakHTTP2(s.caller.req.URL) &&
		(!s.idempotent || !s.last) && !s.protocol.isHTTP1():
		return nil
	}
	return a.trace.GetBody(s.body.GetBody())
}

// Stop implements wire.Attempt.
func (a *attempt) Stop(cause error) { a.cancel(cause) }

// Restarted implements wire.Attempt.
func (a *attempt) Restarted() { a.rec.Reopen() }

// Uploaded implements wire.Attempt. If the response has ended before, that did
// not end the attempt (ResponseEnded).
func (a *attempt) Uploaded() {
	if a.ended.Load() {
		a.releaseLast()
	}
}

// Release ends the attempt's context, and with it whatever Base still does.
func (a *attempt) Release() {
	if a == nil || a.cancel == nil {
		return
	}
	if a.timer != nil {
		a.timer.Stop()
	}
	a.cancel(nil)
}

// releaseLast releases the last attempt of a request after its response has
// ended. Base may be waiting in a Read of the request's body that nothing else
// would end.
func (a *attempt) releaseLast() {
	a.Release()
	switch {
	case a.copies != nil:
		a.copies.Close()
	case a.rec != nil:
		a.rec.Interrupt()
	}
}

// ResponseEnded implements respbody.Follower. It ends the attempt if its
// request has been sent. Otherwise Uploaded does, because over HTTP/2 a server
// may answer and continue to read the request. Over HTTP/1, it waits no longer
// than maxLinger.
func (a *attempt) ResponseEnded(protoMajor int) {
	if a.ended.Swap(true) {
		return
	}
	switch {
	case !a.trace.AwaitsUpload():
		a.releaseLast()
	case protoMajor < 2:
		time.AfterFunc(maxLinger, a.releaseLast)
	}
}
