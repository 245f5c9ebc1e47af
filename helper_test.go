package httpretry_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// step is what a scripted base does with one attempt.
type step struct {
	status int               // of the response; 0: err is returned
	header map[string]string // of the response
	body   string            // of the response
	err    error
	takes  time.Duration // until the response or error is there
	unread bool          // the request's body is closed unread
}

func status(code int, header ...string) step {
	s := step{status: code, header: map[string]string{}, body: fmt.Sprintf("body of %d", code)}
	for i := 0; i < len(header); i += 2 {
		s.header[header[i]] = header[i+1]
	}
	return s
}

func fails(err error) step { return step{err: err} }

// sent is one attempt as a scripted base saw it.
type sent struct {
	req    *http.Request
	header http.Header
	body   string
	at     time.Duration // since the script was made
	number int
}

// script is a base transport that plays its steps, one for each attempt, and
// the last one from then on.
type script struct {
	steps []step
	start time.Time

	mu   sync.Mutex
	sent []sent
}

func play(steps ...step) *script { return &script{steps: steps, start: time.Now()} }

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	n := len(s.sent)
	s.sent = append(s.sent, sent{
		req:    req,
		header: req.Header.Clone(),
		at:     time.Since(s.start),
		number: httpretry.Attempt(req.Context()),
	})
	s.mu.Unlock()
	st := s.steps[min(n, len(s.steps)-1)]

	if req.Body != nil {
		if !st.unread {
			body, err := io.ReadAll(req.Body)
			if err != nil {
				_ = req.Body.Close()
				return nil, err
			}
			s.mu.Lock()
			s.sent[n].body = string(body)
			s.mu.Unlock()
		}
		if err := req.Body.Close(); err != nil {
			return nil, err
		}
	}
	if st.takes > 0 {
		select {
		case <-time.After(st.takes):
		case <-req.Context().Done():
			return nil, context.Cause(req.Context()) // as net/http does over HTTP/1
		}
	}
	if st.status == 0 {
		return nil, st.err
	}
	resp := &http.Response{
		StatusCode:    st.status,
		Status:        fmt.Sprintf("%d %s", st.status, http.StatusText(st.status)),
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        http.Header{},
		Body:          io.NopCloser(strings.NewReader(st.body)),
		ContentLength: int64(len(st.body)),
		Request:       req,
	}
	for name, value := range st.header {
		resp.Header.Set(name, value)
	}
	return resp, nil
}

// attempts returns what was sent so far.
func (s *script) attempts() []sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]sent(nil), s.sent...)
}

// waits returns the time between the attempts.
func (s *script) waits() []time.Duration {
	var waits []time.Duration
	for i, a := range s.attempts() {
		if i > 0 {
			waits = append(waits, a.at-s.sent[i-1].at)
		}
	}
	return waits
}

// request returns a request; with a body it has GetBody, as from
// http.NewRequest.
func request(t testing.TB, method, url, body string) *http.Request {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, r)
	require.NoError(t, err)
	return req
}

// streamed returns a request whose body has no GetBody.
func streamed(t testing.TB, method, url string, body io.ReadCloser) *http.Request {
	t.Helper()
	req := request(t, method, url, "")
	req.Body = body
	return req
}

// every is a policy that retries often and after fixed waits.
func every(wait time.Duration) httpretry.Policy {
	return httpretry.Policy{
		MaxAttempts: 5,
		Backoff:     strategies.Constant{Wait: wait},
		Budget:      httpretry.Unlimited{},
	}
}

// usedUp is a budget that refuses every retry.
type usedUp struct{}

func (usedUp) Deposit(string)                        {}
func (usedUp) Withdraw(context.Context, string) bool { return false }

// record collects events.
type record struct {
	mu     sync.Mutex
	events []httpretry.Event
}

func (r *record) observe(_ context.Context, e httpretry.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// reason returns why the last request ended.
func (r *record) reason() httpretry.Reason {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) == 0 {
		return 0
	}
	return r.events[len(r.events)-1].Reason
}

// finish reads and closes a response.
func finish(t testing.TB, resp *http.Response) string {
	t.Helper()
	require.NotNil(t, resp)
	if resp.Body == nil {
		return ""
	}
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(body)
}

type baseFunc func(*http.Request) (*http.Response, error)

func (f baseFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// header returns a header as a server would send it.
func headerOf(pairs map[string]string) http.Header {
	h := http.Header{}
	for name, value := range pairs {
		h.Set(name, value)
	}
	return h
}

// newServer starts a server that ends with the test.
func newServer(t testing.TB, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return srv
}
