// Package sdktest provides a server that fails as real services do, and then
// calls a handler that supports enough of a service's API.
package sdktest

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Request is a request that arrived complete at a Server.
type Request struct {
	*http.Request        // its Body is spent
	Content       []byte // of the body
	Executed      bool   // it got as far as the handler
}

// Part returns a part of a multipart request.
func (r *Request) Part(t testing.TB, name string) []byte {
	t.Helper()
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	reader := multipart.NewReader(bytes.NewReader(r.Content), params["boundary"])
	for {
		part, err := reader.NextPart()
		if err != nil {
			t.Fatalf("no part %q: %v", name, err)
		}
		if part.FormName() == name {
			content, err := io.ReadAll(part)
			if err != nil {
				t.Fatal(err)
			}
			return content
		}
	}
}

// Random returns n bytes without a pattern, the same in each call.
func Random(n int) []byte {
	content := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content) // it never fails
	return content
}

// File returns a file to upload, which is closed at the end of the test.
func File(t testing.TB, name string, content []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

// Server counts the requests that arrive.
type Server struct {
	*httptest.Server

	handler http.Handler
	faults  []Fault

	mu       sync.Mutex
	requests []*Request
	seen     map[string]int // requests by operation
}

// Fault handles a request in another way than the handler.
type Fault func(s *Server, w http.ResponseWriter, r *Request)

// New returns a server that ends with the test. The first requests of each
// operation, which is a method and a request URI, get the faults in turn. Later
// requests are passed to the handler.
func New(t testing.TB, handler http.Handler, faults ...Fault) *Server {
	t.Helper()
	s := &Server{handler: handler, faults: faults, seen: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	content, err := io.ReadAll(r.Body)
	if err != nil {
		return // it did not arrive whole
	}
	req := &Request{Request: r, Content: content}
	operation := r.Method + " " + r.RequestURI
	s.mu.Lock()
	n := s.seen[operation]
	s.seen[operation]++
	s.requests = append(s.requests, req)
	s.mu.Unlock()
	if n < len(s.faults) {
		s.faults[n](s, w, req)
		return
	}
	s.execute(w, req)
}

// execute calls the handler with a copy of the body.
func (s *Server) execute(w http.ResponseWriter, r *Request) {
	s.mu.Lock()
	r.Executed = true
	s.mu.Unlock()
	r.Body = io.NopCloser(bytes.NewReader(r.Content))
	s.handler.ServeHTTP(w, r.Request)
}

// Requests returns the requests so far, in their order.
func (s *Server) Requests() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Request(nil), s.requests...)
}

// Executed returns the number of requests with a method that were passed to the
// handler. "" means any method.
func (s *Server) Executed(method string) int {
	n := 0
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if r.Executed && (method == "" || r.Method == method) {
			n++
		}
	}
	return n
}

// Summary returns one line with method, URI and Retry-Attempt for each request.
func (s *Server) Summary() string {
	var b bytes.Buffer
	for _, r := range s.Requests() {
		fmt.Fprintf(&b, "%s %s %q\n", r.Method, r.RequestURI, r.Header.Get("Retry-Attempt"))
	}
	return b.String()
}

// Answer responds with a status, a body and headers, given as names and values
// in turn, and does not call the handler.
func Answer(status int, body string, header ...string) Fault {
	return func(_ *Server, w http.ResponseWriter, _ *Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Add(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body) // the client may be gone
	}
}

// Reset resets the connection without a response.
func Reset() Fault {
	return func(_ *Server, w http.ResponseWriter, _ *Request) { reset(w) }
}

// Lost calls the handler and then resets the connection without a response, so
// the client cannot know that the request was executed.
func Lost() Fault {
	return func(s *Server, w http.ResponseWriter, r *Request) {
		s.execute(httptest.NewRecorder(), r)
		reset(w)
	}
}

// Cut calls the handler, and closes the connection after n bytes of the
// response's body.
func Cut(n int) Fault {
	return func(s *Server, w http.ResponseWriter, r *Request) { s.execute(&cutWriter{w, n}, r) }
}

type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p[:min(len(p), w.left)])
	w.left -= n
	if w.left > 0 || err != nil {
		return n, err
	}
	_ = http.NewResponseController(w.ResponseWriter).Flush() // the client may be gone
	panic(http.ErrAbortHandler)
}

func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2: resets the stream
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
