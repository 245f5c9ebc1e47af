package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// lastResponse gets a 503 on every attempt. Its status, headers and body say
// why the request failed, so the caller must get them.
func lastResponse(t *trial) cell {
	const why = `{"error": "maintenance until 14:00"}`
	r := t.send(t.client(shortWait), t.request("GET", t.answers(why, 503).URL(), ""), 5*time.Second)
	switch {
	case r.status == 0:
		return judge(false, "error, no response")
	case r.err != nil:
		return judge(false, "503, body not readable")
	}
	return judge(r.status == 503 && r.body == why, "%d, body readable", r.status)
}

// discardedBodies gets two 503 with an error page of 2 KiB, then a 200. The
// body of each discarded response must be closed, and read before, so that all
// attempts use one connection.
func discardedBodies(t *trial) cell {
	srv := t.answers(strings.Repeat("x", 2<<10), 503, 503, 200)
	base := &closeCounter{base: faults.Base(t, nil)}
	c := t.peer.New(peers.Options{Base: base, Attempts: 3, Wait: shortWait})
	r := t.send(c, t.request("GET", srv.URL(), ""), 5*time.Second)
	if srv.Requests.Load() == 1 {
		return cell{text: "not retried"}
	}
	connections := fmt.Sprintf("%d connections", srv.Conns.Load())
	if srv.Conns.Load() == 1 {
		connections = "1 connection"
	}
	// A goroutine of the peer may still be closing one.
	for deadline := time.Now().Add(time.Second); base.open.Load() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if open := base.open.Load(); open > 0 {
		return judge(false, "%d not closed, %s", open, connections)
	}
	return judge(r.status == 200 && srv.Conns.Load() == 1, "closed, %s", connections)
}

// closeCounter counts the response bodies that are not closed.
type closeCounter struct {
	base http.RoundTripper
	open atomic.Int32
}

func (b *closeCounter) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.base.RoundTrip(req)
	if err == nil {
		b.open.Add(1)
		resp.Body = &countedBody{ReadCloser: resp.Body, open: &b.open}
	}
	return resp, err
}

type countedBody struct {
	io.ReadCloser
	once sync.Once
	open *atomic.Int32
}

func (b *countedBody) Close() error {
	b.once.Do(func() { b.open.Add(-1) })
	return b.ReadCloser.Close()
}

// drippingBody gets a 503 whose body has a byte every 10 ms and no end, then a
// 200. The body of a discarded response has no value, so reading it must not
// delay the retry for long.
func drippingBody(t *trial) cell {
	srv := t.serve(func(n int, c *faults.Conn, _ string) bool {
		if n > 1 {
			c.Respond(200, "")
			return true
		}
		ok := c.Send("HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n")
		for ok {
			time.Sleep(10 * time.Millisecond)
			ok = c.Send("1\r\nx\r\n")
		}
		return false
	})
	const limit = 3 * time.Second
	r := t.send(t.client(shortWait), t.request("GET", srv.URL(), ""), limit)
	switch {
	case srv.Requests.Load() > 1:
		return judge(r.status == 200 && r.took < time.Second, "retried %s", seconds(r.took))
	case r.hung && t.peer.Name == "http.Client":
		return cell{text: "not retried"}
	}
	return judge(false, "none within %v", limit)
}
