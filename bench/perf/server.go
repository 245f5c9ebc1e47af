package main

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/seed421102f4/httpretry/bench/internal/child"
)

const (
	failOnce   = "Fail-Once" // header: the first request with its value gets a 503
	failAlways = "Fail-Always"
	countPath  = "/count" // before a path: how many requests to it
	serverBody = 512
	serverBad  = 2 << 10 // body of a 503
)

// newHandler returns the server of the measurements.
func newHandler() http.Handler {
	var requests, failed sync.Map // by path, and those of failOnce
	ok, bad := []byte(strings.Repeat("k", serverBody)), []byte(strings.Repeat("b", serverBad))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, asked := strings.CutPrefix(r.URL.Path, countPath)
		n, _ := requests.LoadOrStore(path, new(atomic.Int64))
		if asked {
			fmt.Fprint(w, n.(*atomic.Int64).Load())
			return
		}
		n.(*atomic.Int64).Add(1)
		fails := r.Header.Get(failAlways) != ""
		if id := r.Header.Get(failOnce); id != "" {
			_, seen := failed.LoadOrStore(id, true)
			fails = !seen
		}
		if fails {
			w.WriteHeader(http.StatusServiceUnavailable)
			w.Write(bad)
			return
		}
		w.Write(ok)
	})
}

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
