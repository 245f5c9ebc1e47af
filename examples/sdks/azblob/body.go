package main

import (
	"io"
	"net/http"
	"sync"
)

// transporter makes the SDK's bodies fit to be sent again. Their GetBody seeks
// in the one body there is, which an attempt that was answered early may still
// be sending, and hands it out to be closed. Here each attempt reads by itself.
type transporter struct{ client *http.Client }

func (t transporter) Do(req *http.Request) (*http.Response, error) {
	if source, ok := req.Body.(io.ReadSeeker); ok {
		mu := new(sync.Mutex)
		req = req.WithContext(req.Context()) // a copy
		req.Body = &reader{mu: mu, source: source}
		req.GetBody = func() (io.ReadCloser, error) { return &reader{mu: mu, source: source}, nil }
	}
	return t.client.Do(req)
}

// reader reads a source, which is not its alone, from the beginning.
type reader struct {
	mu     *sync.Mutex
	source io.ReadSeeker // guarded by mu
	offset int64
}

func (r *reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.source.Seek(r.offset, io.SeekStart); err != nil {
		return 0, err
	}
	n, err := r.source.Read(p)
	r.offset += int64(n)
	return n, err
}

// Close leaves the source open. The SDK closes it after the last attempt.
func (r *reader) Close() error { return nil }
