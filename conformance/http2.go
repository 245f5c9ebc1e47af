package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// conn2 is an HTTP/2 connection. It has as much of the protocol as the cases
// need, so that they can break it at any frame.
type conn2 struct {
	*session
	tcp    *net.TCPConn
	number int

	mu      sync.Mutex // of writes
	framer  *http2.Framer
	closing bool // after a GOAWAY
	streams map[uint32]*stream2
}

// stream2 is one send.
type stream2 struct {
	id     uint32
	send   *Send
	step   Step
	key    string
	ended  chan struct{} // closed when the client has reset it
	closed bool
}

func (s *session) serveHTTP2(conn net.Conn, tcp *net.TCPConn, number int) {
	if _, err := io.CopyN(io.Discard, conn, int64(len(http2.ClientPreface))); err != nil {
		return
	}
	c := &conn2{
		session: s, tcp: tcp, number: number,
		framer: http2.NewFramer(conn, conn), streams: map[uint32]*stream2{},
	}
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.write(func(f *http2.Framer) error { return f.WriteSettings() })
	for {
		frame, err := c.framer.ReadFrame()
		var streamError http2.StreamError
		if errors.As(err, &streamError) {
			continue
		}
		if err != nil {
			break
		}
		c.read(frame)
	}
	for _, stream := range c.streams {
		stream.reset()
		s.end(stream.send)
	}
}

// reset means that the client is not interested any more.
func (s *stream2) reset() {
	if !s.closed {
		s.closed = true
		close(s.ended)
	}
}

func (c *conn2) write(f func(*http2.Framer) error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return f(c.framer) == nil
}

func (c *conn2) read(frame http2.Frame) {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			c.write(func(f *http2.Framer) error { return f.WriteSettingsAck() })
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			c.write(func(w *http2.Framer) error { return w.WritePing(true, f.Data) })
		}
	case *http2.MetaHeadersFrame:
		send, step := c.arrive(c.number, f.PseudoValue("method"), f.PseudoValue("path"))
		stream := &stream2{id: f.StreamID, send: send, step: step, ended: make(chan struct{})}
		for _, field := range f.RegularFields() {
			if field.Name == "idempotency-key" {
				stream.key = field.Value
			}
		}
		c.streams[f.StreamID] = stream
		if c.closing {
			c.stale(send)
		}
		// What comes after a GOAWAY, which precedes the response, is stale.
		c.closing = c.closing || step.After == "goaway" || step.Fault == "goaway-unprocessed"
		if step.Early || f.StreamEnded() {
			c.complete(stream, f.StreamEnded())
		}
	case *http2.DataFrame:
		stream := c.streams[f.StreamID]
		if stream == nil {
			return
		}
		n := uint32(len(f.Data()))
		c.received(stream.send, int(n), f.StreamEnded() && !stream.step.Early)
		if n > 0 {
			c.write(func(w *http2.Framer) error {
				if !f.StreamEnded() && !stream.closed {
					_ = w.WriteWindowUpdate(f.StreamID, n)
				}
				return w.WriteWindowUpdate(0, n)
			})
		}
		if f.StreamEnded() && !stream.step.Early {
			c.complete(stream, true)
		}
	case *http2.RSTStreamFrame:
		if stream := c.streams[f.StreamID]; stream != nil {
			stream.reset()
		}
	}
}

// complete answers a stream whose request the server has, or does not want.
func (c *conn2) complete(stream *stream2, whole bool) {
	if whole {
		c.execute(stream.send, stream.step, stream.key)
	}
	c.running.Go(func() {
		c.respond(stream)
		c.end(stream.send)
	})
}

func (c *conn2) respond(s *stream2) {
	rst := func(code http2.ErrCode) {
		c.write(func(f *http2.Framer) error { return f.WriteRSTStream(s.id, code) })
	}
	goAway := func(last uint32) {
		c.write(func(f *http2.Framer) error { return f.WriteGoAway(last, http2.ErrCodeNo, nil) })
	}
	if s.step.Delay > 0 && !c.sleep(s.step.Delay) {
		return
	}
	switch s.step.Fault {
	case "goaway": // it may have been processed
		goAway(s.id)
		_ = c.tcp.CloseWrite()
	case "goaway-unprocessed":
		goAway(0)
	case "refused-stream":
		rst(http2.ErrCodeRefusedStream)
	case "internal-error":
		rst(http2.ErrCodeInternal)
	case "cancel":
		rst(http2.ErrCodeCancel)
	case "reset":
		reset(c.tcp)
	case "close":
		_ = c.tcp.Close()
	case "stall":
		select {
		case <-s.ended:
		case <-c.stop:
		}
	case "":
		if s.step.After == "goaway" {
			goAway(s.id)
		}
		c.send(s)
		if s.step.After == "no-error" {
			rst(http2.ErrCodeNo)
		}
	}
}

// send sends the response, or a part of it.
func (c *conn2) send(s *stream2) {
	body := s.step.content()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	field := func(name, value string) {
		_ = encoder.WriteField(hpack.HeaderField{Name: strings.ToLower(name), Value: value})
	}
	field(":status", strconv.Itoa(s.step.Status))
	field("content-length", strconv.Itoa(len(body)))
	for _, pair := range s.step.header() {
		field(pair[0], pair[1])
	}
	if s.step.Cut != "" {
		body = body[:len(body)/2]
	}
	c.write(func(f *http2.Framer) error {
		_ = f.WriteHeaders(http2.HeadersFrameParam{
			StreamID: s.id, BlockFragment: block.Bytes(), EndHeaders: true,
		})
		return f.WriteData(s.id, s.step.Cut == "" || s.step.Cut == "short", body)
	})
	if s.step.Cut == "reset" {
		c.write(func(f *http2.Framer) error { return f.WriteRSTStream(s.id, http2.ErrCodeInternal) })
	}
}
