package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// serveHTTP1 serves one connection until it ends.
func (s *session) serveHTTP1(tcp *net.TCPConn, number int) {
	reader, closing := bufio.NewReader(tcp), false
	for {
		req, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		send, step := s.arrive(number, req.Method, req.URL.Path)
		if closing {
			s.stale(send)
		}
		a := answer{session: s, tcp: tcp, reader: reader, req: req, send: send, step: step}
		keep := a.run()
		s.end(send)
		if !keep {
			return
		}
		if req.URL.Path == warmPath && s.c.Request.Warm == "close" {
			return
		}
		closing = closing || strings.EqualFold(step.Header["Connection"], "close")
	}
}

// answer is one send over HTTP/1 and its answer.
type answer struct {
	*session
	tcp    *net.TCPConn
	reader *bufio.Reader
	req    *http.Request
	send   *Send
	step   Step
}

// run reports whether the connection remains.
func (a *answer) run() (keep bool) {
	if !a.step.Early {
		n, err := io.Copy(io.Discard, a.req.Body)
		a.received(a.send, int(n), err == nil)
		if err != nil {
			return false
		}
		a.execute(a.send, a.step, a.req.Header.Get("Idempotency-Key"))
	}
	if a.step.Delay > 0 && !a.delay() {
		return false
	}
	switch a.step.Fault {
	case "reset":
		reset(a.tcp)
		return false
	case "half-header":
		a.write("HTTP/1.1 200 OK\r\nContent-Le")
		return false
	case "stall":
		a.drain()
		return false
	case "":
		return a.respond()
	}
	return false // close
}

// delay reports whether the client still waits after the delay.
func (a *answer) delay() bool {
	gone := make(chan struct{})
	go func() {
		_, _ = a.reader.Peek(1)
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(duration(a.step.Delay)):
		return true
	}
	return false
}

// respond sends the response, or a part of it.
func (a *answer) respond() (keep bool) {
	step := a.step
	for _, status := range step.Informational {
		a.write(fmt.Sprintf("HTTP/1.1 %d %s\r\n\r\n", status, http.StatusText(status)))
	}
	body, contentRange := step.part(a.req.Header.Get("Range"), a.req.Header.Get("If-Range"))
	head := []string{fmt.Sprintf("HTTP/1.1 %d %s", step.Status, http.StatusText(step.Status))}
	if contentRange != "" {
		head = []string{"HTTP/1.1 206 Partial Content", "Content-Range: " + contentRange}
	}
	for _, pair := range step.header() {
		head = append(head, pair[0]+": "+pair[1])
	}
	chunked := step.Chunked || step.Cut == "drip"
	switch {
	case step.Status == http.StatusSwitchingProtocols:
		body = nil
	case chunked:
		head = append(head, "Transfer-Encoding: chunked")
	case step.Status != http.StatusNoContent:
		head = append(head, fmt.Sprintf("Content-Length: %d", len(body)))
	}
	if a.req.Method == http.MethodHead {
		body = nil
	}
	length := len(body)
	if step.Cut != "" {
		body = body[:length/2]
	}
	text := string(body)
	if chunked && length > 0 {
		text = fmt.Sprintf("%x\r\n%s\r\n", len(body), body)
		if step.Cut == "" {
			text += "0\r\n\r\n"
		}
	}
	a.write(strings.Join(head, "\r\n") + "\r\n\r\n" + text)
	return a.finish()
}

// finish does what follows after the response, or after a part of it.
func (a *answer) finish() (keep bool) {
	switch a.step.Cut {
	case "reset":
		// A reset at once would discard what the client has not read.
		time.Sleep(20 * time.Millisecond)
		reset(a.tcp)
		return false
	case "stall":
		a.drain()
		return false
	case "drip":
		for a.write("1\r\nx\r\n") && a.sleep(0.01) {
		}
		return false
	case "close", "short":
		return false
	}
	if a.step.Status == http.StatusSwitchingProtocols {
		_, _ = io.Copy(a.tcp, a.reader) // echoes
		return false
	}
	if a.step.After == "close" {
		_ = a.tcp.CloseWrite() // a close with unread bytes would be a reset
		a.drain()
		return false
	}
	if !a.step.Early {
		return a.step.Delay == 0 // delay may still read
	}
	n, err := io.Copy(io.Discard, a.req.Body)
	a.received(a.send, int(n), false)
	return err == nil
}

func (a *answer) write(text string) bool {
	_, err := io.WriteString(a.tcp, text)
	return err == nil
}

// drain reads until the client ends the connection.
func (a *answer) drain() { _, _ = io.Copy(io.Discard, a.reader) }
