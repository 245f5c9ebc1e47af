// Package resume helps to continue a transfer of a response's body that broke
// off. It makes the headers of a request for the rest, and checks the response
// to it (RFC 9110 sections 8.8, 13.1.5, 14 and 15.3.7).
//
// Source reads the body of that response. The package does not send requests or
// decide whether to resume.
package resume

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"
)

// MaxSkip is the maximum number of bytes of a 200 that are read and discarded
// before the position where a body broke off. A link that breaks again and
// again would otherwise transfer the square of the length.
const MaxSkip = 1 << 20

// minAge is the time that has to lie between Last-Modified and Date for
// Last-Modified to be a strong validator. A client does not know whether both
// are from the same clock, so one second is not enough (RFC 9110 section
// 8.8.2.2). The 60 seconds are from RFC 7232 section 2.2.2.
const minAge = 60 * time.Second

// Part is the part of a representation that a response transfers. A 200
// transfers all of it, and a 206 a range.
type Part struct {
	Obstacle Obstacle // why the part cannot be resumed, or ""

	first, last  int64  // positions of the first and the last byte
	complete     int64  // length of the representation, -1 if unknown
	etag         string // if it is strong
	lastModified string // if it is strong and there is no entity tag
	unverified   Obstacle
	encoding     string
}

// An Obstacle is why a response cannot be resumed, as an error.
type Obstacle string

// The obstacles. "" means that there is none.
const (
	OtherRequest Obstacle = "it is not that of a GET without a body"
	Unpacked     Obstacle = "net/http unpacked its body; Accept-Encoding: identity prevents that"
	NoLength     Obstacle = "it has no Content-Length"
	Trailers     Obstacle = "it has trailers"
	NoBody       Obstacle = "it has no body, or that of a tunnel"
	EventStream  Obstacle = "it is an event stream"
	Multipart    Obstacle = "it has several ranges"
	NotWhole     Obstacle = "its status is neither 200 nor 206"
	RangeOf200   Obstacle = "its status is 200, but it has a Content-Range"
	BadRange     Obstacle = "its Content-Range is not that of one range of bytes that was requested"
	WeakTag      Obstacle = "its ETag is weak"
	BadTag       Obstacle = "its ETag is not valid"
	NoValidator  Obstacle = "it has neither an ETag nor a Last-Modified"
	Young        Obstacle = "it has no ETag, and its Last-Modified is not 60s before its Date"
)

// Error implements error.
func (o Obstacle) Error() string { return "the response cannot be resumed: " + string(o) }

// PartOf returns the part that resp, the response to req, transfers. If the
// rest of it cannot be requested, the part has an Obstacle. So that it can be,
// req must be a GET without a body, and the body of resp must have a known
// length and be transferred as it is, in one part. It does not need a validator
// (see Unverified).
func PartOf(req *http.Request, resp *http.Response) Part {
	p := Part{last: resp.ContentLength - 1, complete: resp.ContentLength}
	if p.Obstacle = obstacleOf(req, resp); p.Obstacle != "" {
		return p
	}
	if r, isRange := contentRange(resp.Header); isRange {
		p.first, p.last, p.complete = r.first, r.last, r.complete
	}
	p.etag, p.lastModified, p.unverified = validators(resp.Header)
	p.encoding = contentEncoding(resp.Header)
	return p
}

func isPlainGet(req *http.Request) bool {
	return (req.Method == "" || req.Method == http.MethodGet) &&
		(req.Body == nil || req.Body == http.NoBody)
}

// obstacleOf returns why the rest of resp, the response to req, cannot be
// requested, or "".
func obstacleOf(req *http.Request, resp *http.Response) Obstacle {
	// A layer may have sent another request than req.
	if !isPlainGet(req) || resp.Request != nil && !isPlainGet(resp.Request) {
		return OtherRequest
	}
	_, tunnel := resp.Body.(io.Writer)
	kind := mediaType(resp.Header)
	switch {
	case resp.Body == nil || tunnel:
		return NoBody
	// An event stream has no end, and the parts of a multipart body have ranges
	// of their own.
	case kind == "text/event-stream":
		return EventStream
	case kind == "multipart/byteranges":
		return Multipart
	// The length of an unpacked body is unknown.
	case resp.Uncompressed:
		return Unpacked
	// The trailers of another response are not the ones that this response has
	// announced.
	case len(resp.Trailer) > 0:
		return Trailers
	case resp.ContentLength <= 0:
		return NoLength
	// Some servers send a range with a 200.
	case resp.StatusCode == http.StatusOK && len(resp.Header["Content-Range"]) > 0:
		return RangeOf200
	case resp.StatusCode == http.StatusPartialContent && !isOneRange(req, resp):
		return BadRange
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent:
		return NotWhole
	}
	return ""
}

// isOneRange reports whether resp has the range that its header states, and req
// asks for a single one.
func isOneRange(req *http.Request, resp *http.Response) bool {
	r, valid := contentRange(resp.Header)
	return valid && asksForOneRange(req.Header) && r.length() == resp.ContentLength
}

func mediaType(h http.Header) string {
	t, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.ToLower(strings.Trim(t, " \t"))
}

// asksForOneRange reports whether a request has a Range with a single range of
// bytes.
func asksForOneRange(h http.Header) bool {
	lines := h["Range"]
	if len(lines) != 1 {
		return false
	}
	unit, ranges, found := strings.Cut(lines[0], "=")
	return found && strings.EqualFold(unit, "bytes") && !strings.Contains(ranges, ",")
}

// Unverified returns why the response has no strong validator, which identifies
// one version of the representation, or "".
func (p Part) Unverified() Obstacle { return p.unverified }

// Length returns the number of bytes of the part, or the largest int64 if it is
// unknown.
func (p Part) Length() int64 {
	if p.last < p.first {
		return math.MaxInt64
	}
	return p.last - p.first + 1
}

// Headers returns the values of Range and If-Range of a request for the rest
// of the part from offset, which is less than its length. ifRange is "" if
// there is no validator. The range is closed, because some servers answer 416
// to an open one.
func (p Part) Headers(offset int64) (byteRange, ifRange string) {
	byteRange = fmt.Sprintf("bytes=%d-%d", p.first+offset, p.last)
	if p.etag != "" {
		return byteRange, p.etag
	}
	return byteRange, p.lastModified
}

// A Verdict says whether a response is the requested rest, and if not, why.
type Verdict uint8

const (
	Rest          Verdict = iota // the requested rest
	OtherStatus                  // neither a 206 nor a 200
	OtherVersion                 // of another version, or of an unknown one
	OtherEncoding                // in another content coding
	OtherRange                   // of another range
	OtherLength                  // not as long as the rest, or the whole
	TooLong                      // a 200 with more than MaxSkip bytes before the rest
)

// A Mismatch is the error for a response that is not the rest.
type Mismatch struct {
	Verdict      Verdict // not Rest
	Status       int
	ContentRange string // of a response with OtherRange
	Skip         int64  // of a response with TooLong
}

// Error returns the status, and how the response differs from the rest.
func (e *Mismatch) Error() string {
	switch e.Verdict {
	case OtherVersion:
		return fmt.Sprintf("status %d without the validator of the first response", e.Status)
	case OtherEncoding:
		return fmt.Sprintf("status %d in another content coding", e.Status)
	case OtherRange:
		return fmt.Sprintf("status %d with Content-Range %.100q", e.Status, e.ContentRange)
	case OtherLength:
		return fmt.Sprintf("status %d with another length", e.Status)
	case TooLong:
		return fmt.Sprintf(
			"status %d, of which %d bytes would have to be discarded", e.Status, e.Skip)
	default:
		return fmt.Sprintf("status %d", e.Status)
	}
}

// Check decides whether resp is the rest of the part from offset. If so, it
// returns the number of bytes that precede it in the body of resp. Otherwise it
// returns a *Mismatch. If resp has no equal validator, same decides, unless it
// is nil.
func (p Part) Check(resp *http.Response, offset int64, same func() bool) (skip int64, err error) {
	position := p.first + offset
	mismatch := &Mismatch{Status: resp.StatusCode}
	switch {
	case resp.StatusCode != http.StatusPartialContent && resp.StatusCode != http.StatusOK:
		mismatch.Verdict = OtherStatus
	case !p.hasValidator(resp.Header) && (same == nil || !same()):
		mismatch.Verdict = OtherVersion
	case !p.hasEncoding(resp):
		mismatch.Verdict = OtherEncoding
	case resp.StatusCode == http.StatusOK:
		mismatch.Verdict = p.checkWhole(resp)
		if mismatch.Verdict == Rest && position > MaxSkip {
			mismatch.Verdict, mismatch.Skip = TooLong, position
		}
		skip = position
	default:
		mismatch.Verdict = p.checkRange(resp, position)
		mismatch.ContentRange = strings.Join(resp.Header["Content-Range"], ", ")
	}
	if mismatch.Verdict != Rest {
		return 0, mismatch
	}
	return skip, nil
}

// hasValidator reports whether h has the validator of the part.
func (p Part) hasValidator(h http.Header) bool {
	if p.etag != "" {
		return len(h["Etag"]) == 1 && h["Etag"][0] == p.etag
	}
	lines := h["Last-Modified"]
	return p.lastModified != "" && len(lines) == 1 && lines[0] == p.lastModified
}

// hasEncoding reports whether resp is in the content coding of the part. A 206
// with the validator that If-Range has may omit it (RFC 9110 section 15.3.7).
func (p Part) hasEncoding(resp *http.Response) bool {
	omitted := resp.StatusCode == http.StatusPartialContent && p.hasValidator(resp.Header) &&
		len(resp.Header["Content-Encoding"]) == 0
	return !resp.Uncompressed && (omitted || contentEncoding(resp.Header) == p.encoding)
}

// checkWhole checks a 200. Some servers send a range with a 200. With another
// length, it is another representation.
func (p Part) checkWhole(resp *http.Response) Verdict {
	switch {
	case len(resp.Header["Content-Range"]) > 0:
		return OtherRange
	case resp.ContentLength <= p.last || p.complete >= 0 && resp.ContentLength != p.complete ||
		resp.Body == nil:
		return OtherLength
	}
	return Rest
}

// checkRange checks a 206. Content-Range and Content-Length must both have the
// length of the rest.
func (p Part) checkRange(resp *http.Response, position int64) Verdict {
	r, valid := contentRange(resp.Header)
	switch {
	case !valid || r.first != position || r.last != p.last || p.complete >= 0 &&
		r.complete != p.complete:
		return OtherRange
	// A single range is not sent as multipart (RFC 9110 section 15.3.7.2).
	case mediaType(resp.Header) == "multipart/byteranges":
		return OtherRange
	case resp.ContentLength != r.length() || resp.Body == nil:
		return OtherLength
	}
	return Rest
}
