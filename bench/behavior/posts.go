package main

import (
	"fmt"
	"io"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
	"github.com/seed421102f4/httpretry/internal/faults"
)

const payment = "amount=100"

// sentOnce judges how often a request that is not idempotent arrived.
func sentOnce(requests int32) cell {
	if requests == 1 {
		return judge(true, "sent once")
	}
	return judge(false, "sent %d times", requests)
}

// postUnavailable sends a POST without an idempotency key to a server that
// reads it and responds with 503. The server may have processed it (RFC 9110
// section 9.2.2), so it must be sent once.
func postUnavailable(t *trial) cell {
	srv := t.answers("busy", 503)
	t.send(t.client(shortWait), t.request("POST", srv.URL(), payment), 5*time.Second)
	return sentOnce(srv.Requests.Load())
}

// postReset is the same for a server that resets the connection instead.
func postReset(t *trial) cell {
	srv := t.serve(func(_ int, c *faults.Conn, _ string) bool {
		c.Reset()
		return false
	})
	t.send(t.client(shortWait), t.request("POST", srv.URL(), payment), 5*time.Second)
	return sentOnce(srv.Requests.Load())
}

// postGoAway is the same over HTTP/2 and TLS. The server reads the request,
// sends a GOAWAY that says that it may have processed it (RFC 9113 section
// 6.8), and closes the connection.
func postGoAway(t *trial) cell {
	r, requests := t.overHTTP2(func(s faults.Stream) {
		if readStream(s) == nil {
			s.GoAway(s.ID, faults.NoError)
		}
		_ = s.Close()
	})
	if r.err == nil {
		t.Fatal(fmt.Sprintf("status %d from a server that sends none", r.status))
	}
	return sentOnce(requests)
}

// postUnprocessed is the same with a GOAWAY that says that the server has not
// processed the request. So it is safe to send again, on another connection.
func postUnprocessed(t *trial) cell {
	r, _ := t.overHTTP2(func(s faults.Stream) {
		if s.Request == 1 {
			s.GoAway(0, faults.NoError)
		} else {
			s.Respond(200)
		}
	})
	return succeeded(r)
}

// overHTTP2 sends a POST over TLS to a server that calls answer. It returns how
// many requests arrived.
func (t *trial) overHTTP2(answer func(faults.Stream)) (reply, int32) {
	server, client := faults.Certificates(t)
	server.NextProtos = []string{"h2"}
	srv := faults.Listen(t, func(c *faults.Conn) {
		if !c.StartTLS(server) {
			return
		}
		c.HTTP2(answer)
	})
	base := faults.Base(t, client)
	base.ForceAttemptHTTP2 = true
	c := t.peer.New(peers.Options{Base: base, Attempts: 3, Wait: shortWait})
	r := t.send(c, t.request("POST", "https://"+srv.Addr, payment), 5*time.Second)
	return r, srv.Requests.Load()
}

// succeeded judges a request that must be retried.
func succeeded(r reply) cell {
	if r.err != nil {
		return judge(false, "error")
	}
	return judge(r.status == 200, "%d", r.status)
}

// postWithKey sends a POST with an idempotency key to a server that responds
// with 503, then with 200. The key makes a second sending safe.
func postWithKey(t *trial) cell {
	srv := t.answers("", 503, 200)
	req := t.request("POST", srv.URL(), payment)
	req.Header.Set("Idempotency-Key", "8e03978e-40d5-43dd-bc93-6894a57f9324")
	return succeeded(t.send(t.client(shortWait), req, 5*time.Second))
}

// getReset sends a GET to a server that resets the connection, then responds
// with 200. A GET is safe to send again.
func getReset(t *trial) cell {
	srv := t.serve(func(n int, c *faults.Conn, _ string) bool {
		if n == 1 {
			c.Reset()
			return false
		}
		c.Respond(200, "")
		return true
	})
	return succeeded(t.send(t.client(shortWait), t.request("GET", srv.URL(), ""), 5*time.Second))
}

// readStream reads frames until the end of the request's body.
func readStream(s faults.Stream) error {
	for {
		var head [9]byte
		if _, err := io.ReadFull(s.Reader, head[:]); err != nil {
			return err
		}
		length := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		if _, err := io.CopyN(io.Discard, s.Reader, length); err != nil {
			return err
		}
		if head[3] == faults.FrameData && head[4]&faults.FlagEndStream != 0 {
			return nil
		}
	}
}
