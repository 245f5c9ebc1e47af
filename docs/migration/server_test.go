package migration_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// server answers with one status after another. The last one remains.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	statuses []int
	requests []string
}

func newServer(statuses ...int) *server {
	s := &server{statuses: statuses}
	s.Server = httptest.NewServer(s)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	line := strings.Fields(r.Method + " " + r.Header.Get("Signature") + " " + string(body))
	s.requests = append(s.requests, strings.Join(line, " "))
	w.WriteHeader(s.statuses[0])
	if len(s.statuses) > 1 {
		s.statuses = s.statuses[1:]
	}
}

// log returns the requests so far: the method, the signature and the body.
func (s *server) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.requests, ", ")
}
