package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"
)

const (
	bodyOf200 = 64  // bytes
	bodyOf503 = 512 // bytes
)

// base is an http.RoundTripper that answers at once, and counts. Its responses
// and their bodies are reused, so that it allocates nothing.
type base struct {
	failures int    // attempts of the current request that it is to answer with 503
	size     int64  // of each request body
	content  []byte // of each request body, nil: only its size counts
	header   http.Header
	buffer   []byte
	slots    [16]slot
	next     int

	attempts, cutBodies int
	failed              int
	undrained, open     atomic.Int64 // bodies of responses with a 503
}

type slot struct {
	resp http.Response
	body responseBody
}

func newBase(size int64) *base {
	return &base{
		size:   size,
		header: http.Header{"Content-Type": {"application/json"}},
		buffer: make([]byte, 8<<10), // as that of io.Discard
	}
}

func (b *base) RoundTrip(req *http.Request) (*http.Response, error) {
	b.attempts++
	if err := b.receive(req.Body); err != nil {
		return nil, err
	}
	status, size := http.StatusOK, bodyOf200
	if b.failures > 0 {
		b.failures--
		status, size = http.StatusServiceUnavailable, bodyOf503
	}
	// A client may still be closing the response before.
	s := &b.slots[b.next%len(b.slots)]
	b.next++
	s.body = responseBody{left: size}
	if status != http.StatusOK {
		b.failed++
		b.open.Add(1)
		s.body.base = b
	}
	s.resp = http.Response{
		StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: b.header, Body: &s.body, ContentLength: int64(size), Request: req,
	}
	return &s.resp, nil
}

// receive reads a request's body, and closes it.
func (b *base) receive(body io.ReadCloser) error {
	if body == nil {
		body = http.NoBody
	}
	received, same := int64(0), true
	for {
		n, err := body.Read(b.buffer)
		same = same && (b.content == nil || bytes.HasPrefix(b.content[min(received, b.size):], b.buffer[:n]))
		received += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if received != b.size || !same {
		b.cutBodies++
	}
	return body.Close()
}

// responseBody is a body of bytes that are not worth reading.
type responseBody struct {
	left   int
	closed bool
	base   *base // that counts it, or nil
}

func (b *responseBody) Read(p []byte) (int, error) {
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	n := min(len(p), b.left)
	if b.left -= n; b.left == 0 {
		return n, io.EOF
	}
	return n, nil
}

func (b *responseBody) Close() error {
	if b.closed || b.base == nil {
		return nil
	}
	b.closed = true
	b.base.open.Add(-1)
	if b.left > 0 {
		b.base.undrained.Add(1)
	}
	return nil
}

// caller sends requests through a client to a base, one after the other.
type caller struct {
	do       func(*http.Request) (*http.Response, error)
	base     *base
	req      *http.Request
	stream   *stream // the body, unless req has GetBody
	failures int     // attempts of each request that fail
	buffer   []byte

	requests int
	problems map[string]int
}

func (c *caller) send(n int) {
	for range n {
		if problem := c.sendOne(); problem != "" {
			c.problems[problem]++
		}
	}
	c.requests += n
}

// sendOne returns the problem with the response, or "".
func (c *caller) sendOne() string {
	c.base.failures = c.failures
	switch { // the request is used again, with a new body
	case c.req.GetBody != nil:
		c.req.Body, _ = c.req.GetBody() // that of an http.NewRequest has no error
	case c.stream != nil:
		c.req.Body = c.stream.rewind()
	}
	resp, err := c.do(c.req)
	if err != nil {
		return "fails: " + err.Error()
	}
	// One buffer for all responses, so that reading allocates nothing.
	size := 0
	for err == nil {
		var n int
		n, err = resp.Body.Read(c.buffer)
		size += n
	}
	resp.Body.Close()
	switch {
	case resp.StatusCode != http.StatusOK:
		return fmt.Sprintf("ends with %d", resp.StatusCode)
	case size != bodyOf200 || err != io.EOF:
		return fmt.Sprintf("%d of %d bytes of the response: %v", size, bodyOf200, err)
	}
	return ""
}

// check returns the problems of all requests so far, each of which is to have
// so many attempts.
func (c *caller) check(attempts int) []string {
	var found shares
	for _, problem := range slices.Sorted(maps.Keys(c.problems)) {
		found.add(c.problems[problem], c.requests, problem)
	}
	if want := c.requests * attempts; c.base.attempts != want {
		found = append(found, fmt.Sprintf("%.2f attempts", float64(c.base.attempts)/float64(c.requests)))
	}
	found.add(c.base.cutBodies, c.base.attempts, "does not send the whole body")
	found.add(settled(&c.base.open), c.base.failed, "does not close the 503's body")
	found.add(int(c.base.undrained.Load()), c.base.failed, "does not drain the 503's body")
	if c.stream != nil {
		found.add(int(c.stream.open.Load()), c.requests, "does not close the request's body")
	}
	return found
}

// shares are problems, with the share of what has them.
type shares []string

func (s *shares) add(n, of int, problem string) {
	if n > 0 {
		*s = append(*s, share(n, of)+problem)
	}
}

// settled returns the number of open bodies. It waits a little, because a
// client may close a body in another goroutine.
func settled(open *atomic.Int64) int {
	for start := time.Now(); open.Load() > 0 && time.Since(start) < time.Second/10; {
		time.Sleep(time.Millisecond)
	}
	return int(open.Load())
}
