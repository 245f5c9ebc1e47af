package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/icholy/digest"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// switchingProtocols upgrades to a protocol that echoes. The body of a 101 is
// the connection, an io.ReadWriteCloser, as [http.Response] documents.
func switchingProtocols(t *trial) cell {
	srv := t.serve(func(_ int, c *faults.Conn, _ string) bool {
		c.Respond(101, "", "Connection: Upgrade", "Upgrade: echo")
		_, _ = io.Copy(c, c.Reader)
		return false
	})
	req := t.request("GET", srv.URL(), "")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	client := t.client(shortWait)
	const limit = 2 * time.Second
	c, ok := within(limit, func() cell {
		resp, err := client.Do(req)
		if err != nil {
			return judge(false, "error")
		}
		defer resp.Body.Close()
		conn, ok := resp.Body.(io.ReadWriteCloser)
		if !ok {
			return judge(false, "%d, body cannot be written", resp.StatusCode)
		}
		echo := make([]byte, 4)
		if _, err = io.WriteString(conn, "ping"); err == nil {
			_, err = io.ReadFull(conn, echo)
		}
		return judge(resp.StatusCode == 101 && err == nil && string(echo) == "ping", "101, echoes")
	})
	if !ok {
		return judge(false, "hangs (stopped after %v)", limit)
	}
	return c
}

// brokenDownload gets a response whose connection ends in the middle of the
// body. The server has an ETag and serves ranges, so a client can get the rest.
// No client has to, since its user may do that.
func brokenDownload(t *trial) cell {
	content := strings.Repeat("0123456789abcdef", 16<<10)
	var requests atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		if requests.Add(1) > 1 {
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(content))
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = io.WriteString(w, content[:len(content)/2])
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(srv.Close)
	r := t.send(t.client(shortWait), t.request("GET", srv.URL, ""), 5*time.Second)
	switch {
	case r.err != nil:
		return cell{text: "error"}
	case r.body != content:
		return judge(false, "%d of %d bytes", len(r.body), len(content))
	}
	return judge(true, "whole after %d requests", requests.Load())
}

// streamedUpload sends 64 MB from a reader that cannot be read again, and
// succeeds. The body must arrive whole, and must not be kept in memory.
func streamedUpload(t *trial) cell {
	const size, most = 64 << 20, 8 << 20
	var received atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		received.Store(n)
	}))
	t.Cleanup(srv.Close)
	// PUT is idempotent, so that nothing but the body forbids a retry.
	req := t.request("PUT", srv.URL, "")
	req.Body = struct{ io.ReadCloser }{io.NopCloser(io.LimitReader(zeros{}, size))}
	req.ContentLength = -1
	client := t.client(shortWait)

	peak := peakHeap()
	r := t.send(client, req, 30*time.Second)
	grown := peak()
	whole, memory := "whole", "< 1 MB"
	if grown >= 1<<20 {
		memory = fmt.Sprintf("%d MB", grown>>20)
	}
	if received.Load() != size || r.err != nil || r.status != 200 {
		whole = fmt.Sprintf("%d MB arrive", received.Load()>>20)
	}
	return judge(whole == "whole" && grown <= most, "%s, %s", whole, memory)
}

// failedUpload sends 1 MB from such a reader. The server reads it and responds
// with 503, then with 200. A client that keeps the body in memory can send it
// again. How much it should keep depends on the user's memory. No client should
// send a part of it.
func failedUpload(t *trial) cell {
	const size = 1 << 20
	var requests, parts atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, _ := io.Copy(io.Discard, r.Body); n != size {
			parts.Add(1)
		}
		if requests.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(srv.Close)
	req := t.request("PUT", srv.URL, "")
	req.Body = io.NopCloser(io.LimitReader(zeros{}, size))
	req.ContentLength = -1
	r := t.send(t.client(shortWait), req, 5*time.Second)
	switch {
	case parts.Load() > 0:
		return judge(false, "sends a part of it")
	case r.err != nil:
		return cell{text: "error"}
	}
	return unjudgedUnless(r.status == 200, "%d", r.status)
}

// zeros is an endless stream.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// peakHeap begins to watch the heap, garbage included. The result ends that and
// returns by how many bytes the heap has grown at most.
func peakHeap() func() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	heap := func() int64 {
		metrics.Read(sample)
		return int64(sample[0].Value.Uint64())
	}
	runtime.GC()
	before, stop, peak := heap(), make(chan struct{}), make(chan int64)
	go func() {
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		most := before
		for {
			select {
			case <-ticker.C:
				most = max(most, heap())
			case <-stop:
				peak <- max(most, heap()) - before
				return
			}
		}
	}()
	return func() int64 {
		close(stop)
		return <-peak
	}
}

// digestBelow sends a POST with a body, over a base that answers the 401 of a
// server with digest authentication (RFC 7616) by sending the request again.
// That second sending is not a retry, and must get through with its body.
func digestBelow(t *trial) cell {
	var authorized atomic.Pointer[string]
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", `Digest realm="r", nonce="n", qop="auth", algorithm=SHA-256`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		text := string(body)
		authorized.Store(&text)
	}))
	t.Cleanup(srv.Close)
	base := &digest.Transport{Username: "user", Password: "password", Transport: faults.Base(t, nil)}
	c := t.peer.New(peers.Options{Base: base, Attempts: 3, Wait: shortWait})
	r := t.send(c, t.request("POST", srv.URL, payment), 5*time.Second)
	body := authorized.Load()
	switch {
	case body == nil:
		return judge(false, "not authorized")
	case *body != payment:
		return judge(false, "%d bytes of the body arrive", len(*body))
	}
	return judge(r.err == nil && r.status == 200, "%d, body whole", r.status)
}
