package main

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"
)

const fileSize = 32 << 20

// link is a TCP proxy before a server with one file. Each of its connections
// breaks after 3 to 9 MiB.
type link struct {
	listener net.Listener
	server   *httptest.Server
	sum      [sha256.Size]byte // of the file
	received atomic.Int64      // bytes from the server

	mu    sync.Mutex
	conns []net.Conn
	done  sync.WaitGroup
}

func startLink() (*link, error) {
	data := make([]byte, fileSize)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data) // it never fails
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{listener: listener, sum: sha256.Sum256(data)}
	l.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"1"`)
		http.ServeContent(w, r, "file.bin", time.Time{}, bytes.NewReader(data))
	}))
	l.done.Go(l.serve)
	return l, nil
}

func (l *link) url() string { return "http://" + l.listener.Addr().String() + "/file.bin" }

func (l *link) stop() {
	_ = l.listener.Close()
	l.mu.Lock()
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.mu.Unlock()
	l.done.Wait()
	l.server.Close()
}

func (l *link) serve() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		upstream, err := net.Dial("tcp", l.server.Listener.Addr().String())
		if err != nil {
			_ = client.Close()
			continue
		}
		l.mu.Lock()
		l.conns = append(l.conns, client, upstream)
		l.mu.Unlock()
		end := func() { _, _ = client.Close(), upstream.Close() }
		// An error means that a side has closed the connection.
		l.done.Go(func() { defer end(); _, _ = io.Copy(upstream, client) })
		l.done.Go(func() {
			defer end()
			_, _ = io.CopyN(client, counted{upstream, &l.received}, 3<<20+rand.Int64N(6<<20))
		})
	}
}

// counted is a reader that counts the bytes read.
type counted struct {
	io.Reader
	bytes *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}
