package faults

import (
	"encoding/binary"
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
	FrameContinue  = 0x9

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
	Stingy   atomic.Bool   // does not let clients send more than the 65535 bytes they begin with
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
			if len(payload) > 0 && !s.Stingy.Load() { // let the client send as much again
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

// Frame sends one frame, and reports whether it could.
func (c *Conn) Frame(kind, flags byte, stream uint32, payload []byte) bool {
	b := make([]byte, 9, 9+len(payload))
	b[0], b[1], b[2] = byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload))
	b[3], b[4] = kind, flags
	binary.BigEndian.PutUint32(b[5:], stream)
	_, err := c.Write(append(b, payload...))
	return err == nil
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
// turn, each a literal of its own (RFC 7541 section 6.2.2).
func (s Stream) Header(end bool, namesAndValues ...string) {
	var block []byte
	for i, text := range namesAndValues {
		if i%2 == 0 {
			block = append(block, 0)
		}
		block = append(appendLength(block, len(text)), text...)
	}
	s.HeaderBlock(end, block)
}

// HeaderBlock sends a header that is encoded already, in as many frames as it
// takes.
func (s Stream) HeaderBlock(end bool, block []byte) {
	const most = 16 << 10 // of a frame's payload, unless agreed otherwise
	kind, flags := byte(FrameHeaders), byte(0)
	if end {
		flags = FlagEndStream
	}
	for len(block) > most {
		s.Frame(kind, flags, s.ID, block[:most])
		kind, flags, block = FrameContinue, 0, block[most:]
	}
	s.Frame(kind, flags|FlagEndHeaders, s.ID, block)
}

// appendLength appends n with a prefix of seven bits (RFC 7541 section 5.1).
func appendLength(b []byte, n int) []byte {
	const prefix = 1<<7 - 1
	if n < prefix {
		return append(b, byte(n))
	}
	return binary.AppendUvarint(append(b, prefix), uint64(n-prefix))
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
