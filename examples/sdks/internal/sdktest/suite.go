package sdktest

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// Suite checks the client of a program, whose type is C.
type Suite[C any] struct {
	Service http.HandlerFunc // supports enough of the service's API
	Client  func(t testing.TB, s *Server, p httpretry.Policy) (C, error)
	Policy  httpretry.Policy // the program's, but for its waits

	// TLS turns TLS on, and HTTP/2 for clients that support it, as the
	// transport of the server's Client does. Then Reset resets the stream.
	TLS bool
	// Early may respond to a request before its body is read. If it reports
	// true, the request has no fault and is not counted.
	Early func(w http.ResponseWriter, r *http.Request) bool

	// Check checks a request. It is called for all of them at the end.
	Check func(t testing.TB, r *Request)
	// Counter is the header with the number of the attempt. "" means
	// Retry-Attempt.
	Counter string
	// Fresh are the headers in which attempts of a request may differ.
	Fresh []string
}

// Call makes a call of an SDK.
type Call[C any] func(ctx context.Context, client C) error

// Row has a failure of a server, and the numbers of requests that follow.
type Row struct {
	fault    Fault
	requests []int // of each call
}

// Once is a row for a server that fails the first request. requests has a
// number for each call: 2 if the call succeeds with a retry, or 1 if it fails
// without one.
func Once(fault Fault, requests ...int) Row { return Row{fault, requests} }

// Start returns a server with these faults and a client for it. At the end it
// checks all requests. Each retry has to have the headers and the body of the
// attempt before.
func (s Suite[C]) Start(t *testing.T, faults ...Fault) (*Server, C) {
	t.Helper()
	server := newServer(t, s.Service, faults)
	server.early, server.EnableHTTP2 = s.Early, s.TLS
	if s.TLS {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(func() { s.check(t, server) })
	p := s.Policy
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	client, err := s.Client(t, server, p)
	require.NoError(t, err)
	return server, client
}

func (s Suite[C]) check(t testing.TB, server *Server) {
	before := map[string]*Request{} // by operation
	for _, r := range server.Requests() {
		if s.Check != nil {
			s.Check(t, r)
		}
		earlier := before[r.operation()]
		if s.isRetry(r) && earlier != nil { // nil after Early
			assert.Equal(t, s.lasting(earlier), s.lasting(r), "the headers of %s", r.operation())
			assert.True(t, bytes.Equal(earlier.Content, r.Content), "the bodies of %s", r.operation())
		}
		before[r.operation()] = r
	}
}

func (s Suite[C]) counter() string { return cmp.Or(s.Counter, "Retry-Attempt") }

func (s Suite[C]) isRetry(r *Request) bool { return strings.Trim(r.Header.Get(s.counter()), "0") != "" }

// lasting returns the headers that all attempts of a request have, also those
// that continue a response.
func (s Suite[C]) lasting(r *Request) http.Header {
	h := r.Header.Clone()
	for _, name := range append(s.Fresh, s.counter(), "Range", "If-Range") {
		h.Del(name)
	}
	return h
}

// Uploads uploads n bytes from each of Bodies. The server fails the first
// requests.
func (s Suite[C]) Uploads(
	t *testing.T, n int, faults []Fault, upload func(context.Context, C, io.Reader) error,
) {
	content := Random(n)
	for name, body := range Bodies(t, content) {
		t.Run(name, func(t *testing.T) {
			server, client := s.Start(t, faults...)
			require.NoError(t, upload(t.Context(), client, body))
			server.Whole(t, 1+len(faults), content)
		})
	}
}

// Failures makes each call to a server that fails once.
func (s Suite[C]) Failures(t *testing.T, calls []Call[C], rows map[string]Row) {
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			require.Len(t, row.requests, len(calls))
			for i, want := range row.requests {
				server, client := s.Start(t, row.fault)
				err := calls[i](t.Context(), client)
				assert.Len(t, server.Requests(), want, "call %d: %s", i, server.Summary())
				assert.Equal(t, want == 2, err == nil, "call %d: %v", i, err)
			}
		})
	}
}

// Down makes a call to a server that is down. More requests than the policy has
// attempts would be retries of the SDK.
func (s Suite[C]) Down(t *testing.T, fault Fault, call Call[C], want int) {
	t.Helper()
	server, client := s.Start(t, Always(fault)...)
	require.Error(t, call(t.Context(), client))
	assert.Len(t, server.Requests(), want, server.Summary())
}

// Has returns a check for a header that each request has to have.
func Has(name, value string) func(testing.TB, *Request) {
	return func(t testing.TB, r *Request) {
		assert.Equal(t, value, r.Header.Get(name), "%s of %s", name, r.operation())
	}
}
