package sdktest

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// NewTLS is New with TLS, and HTTP/2 for clients that support it, as the
// transport of its Client does. With HTTP/2, Reset resets the stream.
func NewTLS(t testing.TB, handler http.Handler, faults ...Fault) *Server {
	t.Helper()
	s := &Server{handler: handler, faults: faults, seen: map[string]int{}}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}
