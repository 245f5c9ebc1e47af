package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
)

const (
	successBytes = 512
	failureBytes = 2048
)

// newHandler returns the server of the measurements. /ok succeeds, /down fails,
// and /flaky fails for each tenth request. /served returns the number of all
// requests to these, so that the client knows how many attempts arrived.
// /meet?n=64 answers when it has 64 requests, so that as many connections are
// open.
func newHandler() http.Handler {
	success, failure := bytes.Repeat([]byte("s"), successBytes), bytes.Repeat([]byte("f"), failureBytes)
	var served, flaky atomic.Int64
	succeed := func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		_, _ = w.Write(success)
	}
	fail := func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write(failure)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", succeed)
	mux.HandleFunc("/down", fail)
	mux.HandleFunc("/flaky", func(w http.ResponseWriter, r *http.Request) {
		if flaky.Add(1)%10 == 0 {
			fail(w, r)
		} else {
			succeed(w, r)
		}
	})
	mux.Handle("/meet", new(meeting))
	mux.HandleFunc("/served", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, served.Load())
	})
	return mux
}

// A meeting answers requests together.
type meeting struct {
	mu       sync.Mutex
	waiting  int
	complete chan struct{}
}

func (m *meeting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.FormValue("n"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case <-m.join(n):
		_, _ = w.Write(make([]byte, successBytes))
	case <-r.Context().Done():
	}
}

// join returns a channel that is closed when n requests have joined.
func (m *meeting) join(n int) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting == 0 {
		m.complete = make(chan struct{})
	}
	complete := m.complete
	if m.waiting++; m.waiting == n {
		m.waiting = 0
		close(complete)
	}
	return complete
}

// served returns the number of requests that the server at url has had.
func served(url string) (int64, error) {
	// This connection must not count among those of the clients.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url + "/served")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}
