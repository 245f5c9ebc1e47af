// Package sdktest has a server that fails as real services do, and the checks
// that each SDK has to pass.
package sdktest

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Request is a request that arrived complete at a Server.
type Request struct {
	*http.Request        // its Body is spent
	Content       []byte // of the body
	Executed      bool   // it got as far as the handler
}

func (r *Request) operation() string { return r.Method + " " + r.RequestURI }

// chunkHead is the length, and the signature, of a chunk in the encoding
// aws-chunked.
var chunkHead = regexp.MustCompile(`(^|\r\n)[0-9a-f]+(;chunk-signature=[0-9a-f]{64})?\r\n`)

// Payload returns the content without the framing of the encoding aws-chunked.
func (r *Request) Payload() []byte {
	if strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return bytes.TrimSuffix(chunkHead.ReplaceAll(r.Content, nil), []byte("\r\n"))
	}
	return r.Content
}

// Random returns n bytes without a pattern, the same in each call.
func Random(n int) []byte {
	content := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content) // it never fails
	return content
}

// Bodies returns readers of the same content: from memory, from a file, which
// is closed at the end of the test, and as a stream, which cannot seek.
func Bodies(t testing.TB, content []byte) map[string]io.Reader {
	t.Helper()
	path := filepath.Join(t.TempDir(), "upload")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	file, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return map[string]io.Reader{
		"memory": bytes.NewReader(content),
		"file":   file,
		"stream": io.MultiReader(bytes.NewReader(content)),
	}
}

// Server counts the requests that arrive.
type Server struct {
	*httptest.Server

	handler http.HandlerFunc
	faults  []Fault
	early   func(http.ResponseWriter, *http.Request) bool // see Suite.Early

	mu       sync.Mutex
	requests []*Request
	seen     map[string]int // requests by operation
}

// Fault handles a request in another way than the handler.
type Fault func(s *Server, w http.ResponseWriter, r *Request)

// newServer returns a server that does not listen yet, and ends with the test.
// The first requests of each operation, which is a method and a request URI, get
// the faults in turn. Later requests are passed to the handler.
func newServer(t testing.TB, handler http.HandlerFunc, faults []Fault) *Server {
	s := &Server{handler: handler, faults: faults, seen: map[string]int{}}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

// New returns a server that listens.
func New(t testing.TB, handler http.HandlerFunc, faults ...Fault) *Server {
	s := newServer(t, handler, faults)
	s.Start()
	return s
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if s.early != nil && s.early(w, r) {
		return
	}
	content, err := io.ReadAll(r.Body)
	if err != nil {
		return // it did not arrive whole
	}
	req := &Request{Request: r, Content: content}
	s.mu.Lock()
	n := s.seen[req.operation()]
	s.seen[req.operation()]++
	s.requests = append(s.requests, req)
	s.mu.Unlock()
	if n < len(s.faults) {
		s.faults[n](s, w, req)
		return
	}
	s.execute(w, req)
}

// execute calls the handler with a copy of the request, since the handler may
// still change it while the test reads the original.
func (s *Server) execute(w http.ResponseWriter, r *Request) {
	s.mu.Lock()
	r.Executed = true
	s.mu.Unlock()
	request := r.WithContext(r.Context())
	request.Body = io.NopCloser(bytes.NewReader(r.Content))
	s.handler(w, request)
}

// Requests returns the requests so far, in their order.
func (s *Server) Requests() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Executed returns the number of requests that were passed to the handler.
func (s *Server) Executed() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if r.Executed {
			n++
		}
	}
	return n
}

// Whole checks that there were n requests, one of which was executed, and that
// each had the content, alone or as a part of a form.
func (s *Server) Whole(t testing.TB, n int, content []byte) {
	t.Helper()
	assert.Len(t, s.Requests(), n, s.Summary())
	assert.Equal(t, 1, s.Executed(), s.Summary())
	for _, r := range s.Requests() {
		assert.True(t, bytes.Contains(r.Payload(), content), "%d bytes arrived without those that were sent",
			len(r.Content))
	}
}

// Summary returns one line with method, URI and Retry-Attempt for each request.
func (s *Server) Summary() string {
	var b bytes.Buffer
	for _, r := range s.Requests() {
		fmt.Fprintf(&b, "%s %q\n", r.operation(), r.Header.Get("Retry-Attempt"))
	}
	return b.String()
}

// API returns a handler that responds with the JSON for a pattern of
// http.ServeMux.
func API(responses map[string]string) http.HandlerFunc {
	mux := http.NewServeMux()
	for pattern, body := range responses {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body) // the client may be gone
		})
	}
	return mux.ServeHTTP
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
func Reset(_ *Server, w http.ResponseWriter, _ *Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2: resets the stream
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// Lost calls the handler and then resets the connection without a response, so
// the client cannot know that the request was executed.
func Lost(s *Server, w http.ResponseWriter, r *Request) {
	s.execute(httptest.NewRecorder(), r)
	Reset(s, w, r)
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

// Always returns a fault for each request of a test.
func Always(f Fault) []Fault { return slices.Repeat([]Fault{f}, 50) }
