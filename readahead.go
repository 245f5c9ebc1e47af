package httpretry

import (
	"io"
	"net/http"

	"github.com/seed421102f4/httpretry/internal/bounded"
	"github.com/seed421102f4/httpretry/internal/respbody"
	"github.com/seed421102f4/httpretry/internal/retryafter"
)

// Peek returns a copy of the first bytes of the body of resp, as far as
// [Policy.ReadAhead] has read them, for a [Policy.Classify], a Policy.RetryAfter
// or a Config.Observe. They may end in the middle of a value, and are
// compressed if the caller has set Accept-Encoding. It returns nil if none were
// read, and may do so once RoundTrip has returned.
func Peek(resp *http.Response) []byte {
	if resp != nil {
		if b, ok := resp.Body.(*respbody.Ahead); ok {
			return b.Bytes()
		}
	}
	return nil
}

// readAhead reads the first bytes of the body of resp, which Base has returned
// for req. If the body breaks off, it keeps resp in s.cut, and returns the error.
func (s *sending) readAhead(
	req *http.Request, resp *http.Response, err error) (*http.Response, error) {
	limit, wait := s.aheadLimit, bounded.NoLimit
	if limit <= 0 || err != nil || resp == nil || !s.mayReadAhead(req, resp) {
		return resp, err
	}
	// A response that has failed by its status may be retried at once, unless its
	// body is asked for more. Then it is waited for no longer than a drain.
	if p := s.policy; p.Outcome(req, resp, nil) != Final {
		if p.Classify == nil && p.RetryAfter == nil {
			return resp, nil
		}
		wait = bounded.MaxTime
	}
	s.resp = resp // for a panic
	b, usable := respbody.NewAhead(resp, limit), true
	stop := cancelSignal(req)
	// The context ends a Read of net/http. One of a layer may block.
	isInline := s.engine.base.isNetHTTP(req.URL) || stop == (bounded.Signal{})
	if isInline && wait == bounded.NoLimit || bounded.InMemory(resp.Body) {
		err = b.Fill(limit)
	} else {
		usable, err = b.FillUntil(stop, wait, limit)
	}
	switch resp.Body = b; {
	case !usable:
		return nil, s.canceled(nil) // or sendCopy replaces it by the AttemptTimeout
	case err != nil:
		s.cut = resp
		return nil, err
	}
	return resp, nil
}

// mayReadAhead reports whether the caller would get the same response if its body
// were read first.
func (s *sending) mayReadAhead(req *http.Request, resp *http.Response) bool {
	_, writes := resp.Body.(io.Writer)
	switch {
	case writes, respbody.IsEmpty(resp), resp.ContentLength == 0, respbody.IsStream(resp),
		req.Method == http.MethodHead, req.Method == http.MethodConnect:
		return false
	}
	switch resp.StatusCode {
	case http.StatusSwitchingProtocols, http.StatusLengthRequired: // which sendFramed may want
		return false
	// Over HTTP/2, these may have trailers.
	case http.StatusNoContent, http.StatusNotModified:
		return false
	}
	// The caller may wait for the response before it sends the rest of its body.
	return s.body.IsRead()
}

// resultOfCut returns the result of an attempt whose response broke off with err.
func (c *call) resultOfCut(err error) result {
	cut := c.cut
	outcome := c.outcome(cut, nil)
	// The status shows that the attempt has failed, or the header that it must not
	// be retried. Both tell more than the error does.
	if !c.caller.hasEnded() && (outcome != Final || retryafter.Forbids(cut.Header)) {
		c.cut = nil
		breakOff(cut, err)
		return result{resp: cut, outcome: outcome}
	}
	// The server has answered, so the request is not Unprocessed.
	return result{err: err, outcome: min(c.outcome(nil, err), Transient)}
}

// breakOff makes err the error that follows the bytes that have arrived of resp.
func breakOff(resp *http.Response, err error) { resp.Body.(*respbody.Ahead).Break(err) }

// takeCut returns the response that broke off, if there is one and the caller is
// to get that instead of the error: the bytes that have arrived, and then err. An
// outer RetryTransport retries an error only.
func (c *call) takeCut(err error) *http.Response {
	switch {
	case c.cut == nil:
		return nil
	case c.caller.left || c.caller.outer() != nil:
		respbody.Close(c.cut)
		return nil
	}
	breakOff(c.cut, err)
	return c.cut
}
