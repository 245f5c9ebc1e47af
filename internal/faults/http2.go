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

// HTTP2Server implements the part of HTTP/2 that the faults need.
type HTTP2Server struct {
	*Server

	// Received is the number of bytes of request bodies.
	Received atomic.Int32

	// Complete receives a value for each request whose body has ended. It holds
	// 1000 values.
	Complete chan struct{}

	// Stingy keeps the flow-control window at the initial 65535 bytes.
	Stingy atomic.Bool

	// Pongs receives a value for each answer to a ping of the server, and for
	// each connection that ended. It holds 1000 values.
	Pongs chan struct{}
}

func newHTTP2Server(s *Server) *HTTP2Server {
	return &HTTP2Server{
		Server: s, Complete: make(chan struct{}, 1000), Pongs: make(chan struct{}, 1000)}
}

// Stream is an HTTP/2 request whose header has arrived, and its connection.
type Stream struct {
	*Conn
	ID      uint32
	Request int // its number on the server, from 1
}

// HTTP2 starts an HTTP/2 server without TLS, for clients with prior knowledge.
// It calls answer for the header of each request. While answer runs, the server
// does not read from the connection.
func HTTP2(t testing.TB, answer func(Stream)) *HTTP2Server {
	t.Helper()
	s := newHTTP2Server(nil)
	s.Server = Listen(t, func(c *Conn) { c.http2(s, answer) })
	return s
}

// HTTP2 serves one connection like the function HTTP2.
func (c *Conn) HTTP2(answer func(Stream)) {
	c.http2(newHTTP2Server(c.server), answer)
}

func (c *Conn) http2(s *HTTP2Server, answer func(Stream)) {
	defer signal(s.Pongs)
	c.ServeFrames(func(kind, flags byte, stream uint32, payload []byte) bool {
		end := flags&FlagEndStream != 0
		switch kind {
		case FramePing: // the client's answer
			signal(s.Pongs)
			return true
		case FrameHeaders:
			answer(Stream{c, stream, int(s.arrive())})
		case FrameData:
			s.Received.Add(int32(len(payload)))
			if len(payload) > 0 && !s.Stingy.Load() {
				c.widenWindows(stream, len(payload), end)
			}
		default:
			return true
		}
		if end {
			signal(s.Complete)
		}
		return true
	})
}

// ServeFrames reads the frames of an HTTP/2 connection until it ends or handle
// returns false. It answers the client's settings and pings. handle gets all
// other frames.
func (c *Conn) ServeFrames(handle func(kind, flags byte, stream uint32, payload []byte) bool) {
	if c.readPreface() != nil {
		return
	}
	c.Frame(FrameSettings, 0, 0, nil)
	for {
		kind, flags, stream, payload, err := c.readFrame()
		if err != nil {
			return
		}
		ack := flags&FlagAck != 0
		switch {
		case kind == FrameSettings && !ack:
			c.Frame(FrameSettings, FlagAck, 0, nil)
		case kind == FramePing && !ack:
			c.Frame(FramePing, FlagAck, 0, payload)
		default:
			if !handle(kind, flags, stream, payload) {
				return
			}
		}
	}
}

func (c *Conn) readPreface() error {
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	_, err := io.CopyN(io.Discard, c.Reader, int64(len(preface)))
	return err
}

func (c *Conn) readFrame() (kind, flags byte, stream uint32, payload []byte, err error) {
	var head [9]byte
	if _, err := io.ReadFull(c.Reader, head[:]); err != nil {
		return 0, 0, 0, nil, err
	}
	payload = make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	if _, err := io.ReadFull(c.Reader, payload); err != nil {
		return 0, 0, 0, nil, err
	}
	// The highest bit of the number is reserved (RFC 9113 section 4.1).
	return head[3], head[4], binary.BigEndian.Uint32(head[5:]) & (1<<31 - 1), payload, nil
}

// widenWindows lets the client send n more bytes on the connection, and on the
// stream unless that has ended.
func (c *Conn) widenWindows(stream uint32, n int, ended bool) {
	window := binary.BigEndian.AppendUint32(nil, uint32(n))
	c.Frame(FrameWindow, 0, 0, window)
	if !ended {
		c.Frame(FrameWindow, 0, stream, window)
	}
}

// signal sends a value to c unless c is full.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Frame sends one frame, and reports whether that succeeded.
func (c *Conn) Frame(kind, flags byte, stream uint32, payload []byte) bool {
	b := make([]byte, 9, 9+len(payload))
	b[0], b[1], b[2] = byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload))
	b[3], b[4] = kind, flags
	binary.BigEndian.PutUint32(b[5:], stream)
	_, err := c.Write(append(b, payload...))
	return err == nil
}

// Ping sends a ping. The client answers when it has processed all frames
// before.
func (c *Conn) Ping() { c.Frame(FramePing, 0, 0, make([]byte, 8)) }

// GoAway announces that no stream after last will be processed.
func (c *Conn) GoAway(last, code uint32) {
	c.Frame(FrameGoAway, 0, 0,
		binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, last), code))
}

// ResetStream ends the stream with an error.
func (s Stream) ResetStream(code uint32) {
	s.Frame(FrameRSTStream, 0, s.ID, binary.BigEndian.AppendUint32(nil, code))
}

// Header sends a header, or trailers, given as pairs of a name in lower case
// and a value. Each is encoded as a literal (RFC 7541 section 6.2.2).
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

// HeaderBlock sends an encoded header, in as many frames as it needs.
func (s Stream) HeaderBlock(end bool, block []byte) {
	const most = 16 << 10 // the default of SETTINGS_MAX_FRAME_SIZE
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

// Respond sends a response without a body.
func (s Stream) Respond(status int, namesAndValues ...string) {
	s.Header(true, append([]string{":status", strconv.Itoa(status)}, namesAndValues...)...)
}

// Data sends a part of the body.
func (s Stream) Data(end bool, data string) {
	var flags byte
	if end {
		flags = FlagEndStream
	}
	s.Frame(FrameData, flags, s.ID, []byte(data))
}
