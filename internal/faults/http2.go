package faults

import (
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"testing"
)

// Frame types and flags of HTTP/2 (RFC 9113 section 6).
const (
	FrameData      = 0x0
	FrameHeaders   = 0x1
	FrameRSTStream = 0x3
	FrameSettings  = 0x4
	FramePing      = 0x6
	FrameGoAway    = 0x7
	FrameWindow    = 0x8

	FlagEndStream  = 0x1
	FlagAck        = 0x1
	FlagEndHeaders = 0x4
)

// Error codes of HTTP/2 (RFC 9113 section 7).
const (
	NoError         = 0x0
	ProtocolError   = 0x1
	InternalError   = 0x2
	RefusedStream   = 0x7
	Cancel          = 0x8
	EnhanceYourCalm = 0xb
	HTTP11Required  = 0xd
)

// HTTP2Server is a server that speaks just enough HTTP/2 to misbehave.
type HTTP2Server struct {
	*Server
	Received atomic.Int32  // bytes of request bodies
	Complete chan struct{} // gets a value for each request whose body has ended, up to 1000
	Pongs    chan struct{} // gets a value for each ping of ours that was answered, and connection that ended, up to 1000
}

func newHTTP2Server(s *Server) *HTTP2Server {
	return &HTTP2Server{Server: s, Complete: make(chan struct{}, 1000), Pongs: make(chan struct{}, 1000)}
}

// Stream is a request over HTTP/2 whose header has arrived, and the connection
// it came on.
type Stream struct {
	*Conn
	ID      uint32
	Request int // its number on the server, from 1
}

// HTTP2 serves HTTP/2 without TLS, with prior knowledge. It calls answer for
// each request's header; while answer runs, the connection is not read.
func HTTP2(t testing.TB, answer func(Stream)) *HTTP2Server {
	t.Helper()
	s := newHTTP2Server(nil)
	s.Server = Listen(t, func(c *Conn) { c.http2(s, answer) })
	return s
}

// HTTP2 serves one connection as the function HTTP2 does.
func (c *Conn) HTTP2(answer func(Stream)) {
	c.http2(newHTTP2Server(c.server), answer)
}

func (c *Conn) http2(s *HTTP2Server, answer func(Stream)) {
	defer signal(s.Pongs)
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	if _, err := io.CopyN(io.Discard, c.Reader, int64(len(preface))); err != nil {
		return
	}
	c.Frame(FrameSettings, 0, 0, nil)
	for {
		var head [9]byte
		if _, err := io.ReadFull(c.Reader, head[:]); err != nil {
			return
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(c.Reader, payload); err != nil {
			return
		}
		stream := binary.BigEndian.Uint32(head[5:]) & (1<<31 - 1)
		kind, ack, end := head[3], head[4]&FlagAck != 0, head[4]&FlagEndStream != 0
		switch {
		case kind == FrameSettings && !ack:
			c.Frame(FrameSettings, FlagAck, 0, nil)
		case kind == FramePing && !ack:
			c.Frame(FramePing, FlagAck, 0, payload)
		case kind == FramePing:
			signal(s.Pongs)
		case kind == FrameHeaders:
			answer(Stream{c, stream, int(s.arrive())})
		case kind == FrameData:
			s.Received.Add(int32(len(payload)))
			if len(payload) > 0 { // let the client send as much again
				window := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
				c.Frame(FrameWindow, 0, 0, window)
				if !end {
					c.Frame(FrameWindow, 0, stream, window)
				}
			}
		}
		if end && (kind == FrameHeaders || kind == FrameData) {
			signal(s.Complete)
		}
	}
}

// signal does not wait for anybody.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Frame sends one frame.
func (c *Conn) Frame(kind, flags byte, stream uint32, payload []byte) {
	b := make([]byte, 9, 9+len(payload))
	b[0], b[1], b[2] = byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload))
	b[3], b[4] = kind, flags
	binary.BigEndian.PutUint32(b[5:], stream)
	_, _ = c.Write(append(b, payload...))
}

// Ping asks for an answer, which comes after all that was sent before is taken
// in.
func (c *Conn) Ping() { c.Frame(FramePing, 0, 0, make([]byte, 8)) }

// GoAway announces that no stream after last will be processed.
func (c *Conn) GoAway(last, code uint32) {
	c.Frame(FrameGoAway, 0, 0, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, last), code))
}

// ResetStream ends the stream with an error.
func (s Stream) ResetStream(code uint32) {
	s.Frame(FrameRSTStream, 0, s.ID, binary.BigEndian.AppendUint32(nil, code))
}

// Header sends a header, or trailers: names in lower case and values, in
// turn, that are shorter than 127 bytes, each a literal of its own (RFC 7541
// section 6.2.2).
func (s Stream) Header(end bool, namesAndValues ...string) {
	flags := byte(FlagEndHeaders)
	if end {
		flags |= FlagEndStream
	}
	var block []byte
	for i, text := range namesAndValues {
		if i%2 == 0 {
			block = append(block, 0)
		}
		if len(text) >= 127 {
			panic(fmt.Sprintf("faults: too long for one byte of length: %q", text))
		}
		block = append(append(block, byte(len(text))), text...)
	}
	s.Frame(FrameHeaders, flags, s.ID, block)
}

// Respond sends a status without a body.
func (s Stream) Respond(status int, namesAndValues ...string) {
	s.Header(true, append([]string{":status", strconv.Itoa(status)}, namesAndValues...)...)
}

// Data sends a part of a body.
func (s Stream) Data(end bool, data string) {
	var flags byte
	if end {
		flags = FlagEndStream
	}
	s.Frame(FrameData, flags, s.ID, []byte(data))
}
