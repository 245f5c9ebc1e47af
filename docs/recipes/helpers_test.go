package recipes_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// script answers requests with one status after another. The last one remains.
// It records when each request arrived, its header and its body.
type script struct {
	statuses []int

	mu    sync.Mutex
	sent  []sent
	start time.Time
}

// sent is a request that arrived.
type sent struct {
	at     time.Duration // since the first request
	header http.Header
	body   string
}

func play(statuses ...int) *script { return &script{statuses: statuses} }

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		defer req.Body.Close()
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	return s.answer(req, string(body)), nil
}

func (s *script) answer(req *http.Request, body string) *http.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sent) == 0 {
		s.start = time.Now()
	}
	status := s.statuses[min(len(s.sent), len(s.statuses)-1)]
	s.sent = append(s.sent, sent{time.Since(s.start), req.Header.Clone(), body})
	return respond(req, status, nil)
}

func respond(req *http.Request, status int, header http.Header) *http.Response {
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{
		StatusCode: status, Status: fmt.Sprint(status, " ", http.StatusText(status)),
		Header: header.Clone(),
		Proto:  "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody, Request: req,
	}
}

// ServeHTTP makes a script the handler of a real server, too.
func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(s.answer(r, string(body)).StatusCode)
}

// bodies returns the bodies that arrived.
func (s *script) bodies() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var bodies []string
	for _, request := range s.sent {
		bodies = append(bodies, request.body)
	}
	return bodies
}

// headers returns a header of all requests that arrived.
func (s *script) headers(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var values []string
	for _, request := range s.sent {
		values = append(values, request.header.Get(name))
	}
	return values
}

// count returns the number of requests that arrived.
func (s *script) count() int { return len(s.bodies()) }

func newClient(t *testing.T, cfg httpretry.Config) *http.Client {
	t.Helper()
	transport, err := httpretry.New(cfg)
	require.NoError(t, err)
	return &http.Client{Transport: transport}
}

// request makes a request for an address that no test connects to.
func request(t *testing.T, method, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(
		t.Context(), method, "https://api.example.com/", strings.NewReader(body))
	require.NoError(t, err)
	return req
}

// status sends a request and returns the response's status.
func status(t *testing.T, client *http.Client, req *http.Request) int {
	t.Helper()
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}
