package httpretry

import (
	"io"
	"net/http"

	"github.com/seed421102f4/httpretry/internal/bounded"
	"github.com/seed421102f4/httpretry/internal/respbody"
)

// Peek returns a copy of the first bytes of the body of resp, as far as
// [Policy.ReadAhead] has read them, for a [Policy.Classify], a Policy.RetryAfter
// or a Config.Observe. It returns nil for a response that was not read ahead.
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
	limit := s.aheadLimit
	if limit <= 0 || err != nil || resp == nil || !s.mayReadAhead(req, resp) {
		return resp, err
	}
	s.resp = resp // for a panic
	b := respbody.NewAhead(resp, limit)
	ended := true
	stop := bounded.Signal{req.Context().Done(), cancelChannel(req)}
	// The context ends a Read of net/http. One of a layer may block.
	if s.engine.base.isNetHTTP(req.URL) || bounded.InMemory(resp.Body) ||
		stop == (bounded.Signal{}) {
		err = b.Fill(resp, limit)
	} else {
		ended, err = b.FillUntil(stop, resp, limit)
	}
	switch resp.Body = b; {
	case !ended:
		return nil, s.canceled(nil) // or sendCopy replaces it by the AttemptTimeout
	case err != nil:
		s.cut = resp
		return nil, err
	}
	return resp, nil
}

// mayReadAhead reports whether the body of resp may matter, and whether the caller
// would get the same response if it were read first.
func (s *sending) mayReadAhead(req *http.Request, resp *http.Response) bool {
	_, writes := resp.Body.(io.Writer)
	switch {
	case writes, isTunnel(req, resp), respbody.IsEmpty(resp), resp.ContentLength == 0,
		req.Method == http.MethodHead, resp.StatusCode == http.StatusNoContent,
		resp.StatusCode == http.StatusNotModified:
		return false // over HTTP/2, some of these may have trailers
	// The caller may wait for the response before it sends the rest of its body.
	case !s.body.IsRead():
		return false
	}
	// A response that has failed by its status may be retried at once, unless its
	// body is asked for more.
	p := s.policy
	return p.Classify != nil || p.RetryAfter != nil || p.Outcome(req, resp, nil) == Final
}

// resultOfCut returns the result of an attempt whose response broke off with err.
func (c *call) resultOfCut(err error) result {
	outcome := c.outcome(c.cut, nil)
	// The status shows that the attempt has failed, or the header that it must
	// not be retried. Both tell more than the error does.
	if outcome != Final || finalReason(c.cut) == ReasonDoNotRetry {
		return result{resp: c.cut, outcome: outcome}
	}
	// The server has answered, so the request is not Unprocessed.
	return result{err: err, cut: c.cut, outcome: min(c.outcome(nil, err), Transient)}
}

// takeCut returns the response of r, which broke off, if the caller is to get
// that instead of the error: the bytes that have arrived, and then err. An outer
// RetryTransport retries an error only.
func (c *call) takeCut(r result, err error) *http.Response {
	switch {
	case r.cut == nil:
		return nil
	case c.caller.left || c.caller.outer() != nil:
		respbody.Close(r.cut)
		return nil
	}
	r.cut.Body.(*respbody.Ahead).Break(err)
	return r.cut
}
