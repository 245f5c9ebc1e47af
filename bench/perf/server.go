package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/child"
)

const (
	failOnce   = "Fail-Once" // header: the first request with its value gets a 503
	failAlways = "Fail-Always"
	stallOnce  = "Stall-Once" // header: the first gets a 503 whose body stalls
	waited     = "Waited"     // header of the response to the second: nanoseconds since the first
	bodySize   = "Body-Size"  // header: of the request
	countPath  = "/count"     // before a path: how many requests to it
	wrongPath  = "/wrong"     // after a path, to count requests whose body was wrong
	serverBody = 512
	serverBad  = 2 << 10 // body of a 503
)

// server answers the requests of the measurements.
type server struct {
	requests, failed, stalled sync.Map // by path, failOnce and stallOnce
	contents                  sync.Map // of request bodies, by bodySize
	ok, bad                   []byte
}

func newHandler() http.Handler {
	return &server{
		ok:  []byte(strings.Repeat("k", serverBody)),
		bad: []byte(strings.Repeat("b", serverBad)),
	}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, asked := strings.CutPrefix(r.URL.Path, countPath)
	if asked {
		fmt.Fprint(w, s.counter(path).Load())
		return
	}
	if framing, ok := strings.CutPrefix(path, pagePath); ok {
		servePage(w, framing)
		return
	}
	s.counter(path).Add(1)
	if !s.isWhole(r) {
		s.counter(path + wrongPath).Add(1)
	}
	fails := r.Header.Get(failAlways) != ""
	if id := r.Header.Get(failOnce); id != "" {
		_, seen := s.failed.LoadOrStore(id, true)
		fails = !seen
	}
	if id := r.Header.Get(stallOnce); id != "" {
		since, seen := s.stalled.LoadOrStore(id, time.Now())
		if !seen {
			s.stall(w, r)
			return
		}
		w.Header().Set(waited, strconv.FormatInt(int64(time.Since(since.(time.Time))), 10))
	}
	if fails {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write(s.bad)
		return
	}
	_, _ = w.Write(s.ok)
}

func (s *server) counter(path string) *atomic.Int64 {
	n, _ := s.requests.LoadOrStore(path, new(atomic.Int64))
	return n.(*atomic.Int64)
}

// stall sends half of a 503, and nothing else until the client closes the
// connection.
func (s *server) stall(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Length", strconv.Itoa(serverBad))
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write(s.bad[:serverBad/2])
	if http.NewResponseController(w).Flush() == nil {
		<-r.Context().Done()
	}
}

// isWhole reads the request's body, and reports whether all of it is there.
func (s *server) isWhole(r *http.Request) bool {
	header := r.Header.Get(bodySize)
	want, found := s.contents.Load(header)
	if !found {
		size, _ := strconv.Atoi(header) // without the header, there is no body
		want, _ = s.contents.LoadOrStore(header, []byte(uploadContent(size)))
	}
	received, err := io.ReadAll(r.Body)
	return err == nil && bytes.Equal(received, want.([]byte))
}

// uploadContent returns the content of a request body.
func uploadContent(size int) string { return strings.Repeat("0123456789abcdef", size/16) }

// requestCount returns how many requests to a path the server has got.
func requestCount(s *child.Server, path string) (int, error) {
	resp, err := http.Get(s.URL + countPath + path)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}
