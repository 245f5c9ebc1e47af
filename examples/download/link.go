package main

import (
	"bytes"
	"crypto/sha256"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"
)

const fileSize = 32 << 20

// link is a server with one file. The connection to it breaks after 3 to 9 MiB
// of each response.
type link struct {
	*httptest.Server
	sum  [sha256.Size]byte // of the file
	sent atomic.Int64      // bytes of responses
}

func startLink() *link {
	data := make([]byte, fileSize)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data) // it never fails
	l := &link{sum: sha256.Sum256(data)}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"1"`)
		http.ServeContent(&breaking{w, l, 3<<20 + rand.IntN(6<<20)}, r, "file.bin",
			time.Time{}, bytes.NewReader(data))
	}))
	return l
}

// breaking is a response that breaks off.
type breaking struct {
	http.ResponseWriter
	link *link
	left int // bytes until then
}

func (b *breaking) Write(p []byte) (int, error) {
	n, err := b.ResponseWriter.Write(p[:min(len(p), b.left)])
	b.link.sent.Add(int64(n))
	if b.left -= n; b.left > 0 {
		return n, err
	}
	_ = http.NewResponseController(b.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}
