package main

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

// transportFunc is a client of which the test knows what is wrong.
type transportFunc func(req *http.Request, base http.RoundTripper) (*http.Response, error)

// peer returns a peer that calls f for each request.
func (f transportFunc) peer() peers.Peer {
	return peers.Peer{RoundTripper: func(o peers.Options) http.RoundTripper {
		return roundTripFunc(func(req *http.Request) (*http.Response, error) { return f(req, o.Base) })
	}}
}

// again sends req with a new body.
func again(req *http.Request, base http.RoundTripper) (*http.Response, error) {
	if req.GetBody != nil {
		req.Body, _ = req.GetBody()
	}
	return base.RoundTrip(req)
}

// The checks notice each flaw that a client can have.
func TestChecks(t *testing.T) {
	keyed := row{method: "POST", keyed: true, size: 32, reference: bare}
	keyless := row{method: "POST", size: 32, unsafe: true, reference: bare}
	for _, tt := range []struct {
		name string
		row  row
		do   transportFunc
		want []string
	}{
		{"no flaw", keyed, func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
			resp, _ := base.RoundTrip(req)
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			return again(req, base)
		}, nil},
		{"no retry", keyed, func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
			return base.RoundTrip(req)
		}, []string{"does not retry after a 503"}},
		{"no retry of an unsafe request", keyless, func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
			return base.RoundTrip(req)
		}, nil},
		{"a retry of an unsafe request", keyless, func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
			resp, _ := base.RoundTrip(req)
			resp.Body.Close()
			return again(req, base)
		}, []string{"sends it twice after a 503"}},
		{"three attempts", keyed, func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
			resp, _ := base.RoundTrip(req)
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			again(req, base)
			return again(req, base)
		}, []string{"after a 503: 3.00 attempts"}},
		{"a body that is not closed", keyed, func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
			base.RoundTrip(req)
			return again(req, base)
		}, []string{"after a 503: does not close the 503's body"}},
		{"a body that is not drained", keyed, func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
			resp, _ := base.RoundTrip(req)
			resp.Body.Close()
			return again(req, base)
		}, []string{"after a 503: does not drain the 503's body"}},
		{"an empty body on the retry", keyed, func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
			resp, _ := base.RoundTrip(req)
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			return base.RoundTrip(req)
		}, []string{"after a 503: 50 %: does not send the whole body"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			problems, _ := tt.row.probe(tt.do.peer(), levels()[1])
			assert.Equal(t, tt.want, problems)
		})
	}
}

// The checks of measured requests notice flaws in a success, too.
func TestChecksOfSuccess(t *testing.T) {
	r := row{method: "PUT", size: 32, streamed: true, reference: bare}
	for _, tt := range []struct {
		name string
		do   transportFunc
		want []string
	}{
		{"no flaw", func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
			return base.RoundTrip(req)
		}, nil},
		{"a stream that is not closed", func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
			req.Body = io.NopCloser(req.Body)
			return base.RoundTrip(req)
		}, []string{"does not close the request's body"}},
		{"a response that is cut off", func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
			resp, err := base.RoundTrip(req)
			resp.Body = io.NopCloser(io.LimitReader(resp.Body, 10))
			return resp, err
		}, []string{"10 of 64 bytes of the response: EOF"}},
		{"an error", func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
			base.RoundTrip(req)
			return nil, io.ErrUnexpectedEOF
		}, []string{"fails: unexpected EOF"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := r.newCaller(tt.do.peer(), levels()[1], 0, false)
			c.send(4)
			assert.Equal(t, tt.want, c.check(1))
		})
	}
}

// A table has the peer's problems once, and a failure is one of httpretry.
func TestProblems(t *testing.T) {
	found := entrants{
		"Do":        {"p": {problems: []string{"after a 503: x", "y"}}},
		"RoundTrip": {"p": {problems: []string{"x", "y"}}},
	}
	assert.Equal(t, []string{"x", "y"}, found.problems("p"))
	assert.Empty(t, found.problems("q"))
	assert.Equal(t, []string{"T: httpretry: x"}, failuresOf("T", ours, []string{"x"}))
	assert.Equal(t, []string{"T: httpretry, more: x"}, failuresOf("T", ours+", more", []string{"x"}))
	assert.Empty(t, failuresOf("T", bare, []string{"x"}))
}
