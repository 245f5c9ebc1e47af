package main

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/internal/faults"
)

// conn2 is an HTTP/2 connection. It does not decode the headers of requests.
type conn2 struct {
	*server
	*faults.Conn
	open  map[uint32]*stream2
	limit uint32 // after a GOAWAY, streams from here on are not processed
}

// stream2 is a request that is not answered yet.
type stream2 struct {
	faults.Stream
	fault fault
	body  []byte
	id    uint64
}

func (c *conn2) serve() {
	c.limit = math.MaxUint32
	c.ServeFrames(func(kind, flags byte, id uint32, payload []byte) bool {
		end := flags&faults.FlagEndStream != 0
		switch {
		case kind == faults.FrameRSTStream:
			delete(c.open, id)
		case kind == faults.FrameHeaders && id < c.limit:
			c.begin(id, end)
		case kind == faults.FrameData:
			c.receiveData(id, payload, end)
		}
		return true
	})
}

// begin handles the header of a request.
func (c *conn2) begin(id uint32, end bool) {
	s := &stream2{Stream: faults.Stream{Conn: c.Conn, ID: id}, fault: c.server.begin(!end, true)}
	if s.fault == leaves {
		switch {
		case half(): // it has not processed the request, and says so
			c.limit = id
			c.GoAway(max(id, 2)-2, faults.NoError)
			// Like net/http's server, it does not wait for the client for long.
			time.AfterFunc(time.Second, func() { _ = c.Close() })
			return
		case half():
			s.ResetStream(faults.RefusedStream)
			return
		}
		// It refuses the stream after it has executed the request, as haproxy
		// does.
	}
	if end {
		c.answer(s)
		return
	}
	c.open[id] = s
}

// receiveData handles a part of a body.
func (c *conn2) receiveData(id uint32, part []byte, end bool) {
	s := c.open[id]
	// Data of streams that ended counts for the connection's window, too.
	if window := binary.BigEndian.AppendUint32(nil, uint32(len(part))); len(part) > 0 {
		c.Frame(faults.FrameWindow, 0, 0, window)
		if s != nil && !end {
			c.Frame(faults.FrameWindow, 0, id, window)
		}
	}
	if s == nil {
		return
	}
	before := len(s.body)
	s.body = append(s.body, part...)
	if before < headLen && len(s.body) >= headLen {
		s.id = c.receiveHead(s.body).id
	}
	switch {
	case s.fault == early && len(s.body) >= headLen:
		delete(c.open, id)
		refuse2(s)
		if half() { // the client need not send the rest (RFC 9113 section 8.1)
			s.ResetStream(faults.NoError)
		}
	case end:
		delete(c.open, id)
		c.receive(s.body)
		c.answer(s)
	}
}

// answer handles a request that has arrived to its end.
func (c *conn2) answer(s *stream2) {
	switch s.fault {
	case unavailable, early:
		refuse2(s)
	case resets:
		s.ResetStream(faults.InternalError)
	case leaves:
		s.ResetStream(faults.RefusedStream)
	case cuts:
		respondHalf2(s, half())
		s.ResetStream(faults.InternalError)
	case stalls:
		if half() {
			respondHalf2(s, false)
		}
	default:
		s.Header(false, ":status", "200")
		send2(s, response(s.id).bytes(), true)
	}
}

func refuse2(s *stream2) {
	header := []string{":status", "503"}
	if name, value := retryAfter(); name != "" {
		header = append(header, name, value)
	}
	s.Header(false, header...)
	s.Data(true, strings.Repeat("b", badBody))
}

func respondHalf2(s *stream2, ok bool) {
	status, body := halfResponse(s.id, ok)
	s.Header(false, ":status", status, "content-length", strconv.Itoa(2*len(body)))
	send2(s, body, false)
}

// send2 sends a body in frames of the size that each client accepts.
func send2(s *stream2, body []byte, end bool) {
	const most = 16 << 10
	for len(body) > most {
		s.Data(false, string(body[:most]))
		body = body[most:]
	}
	s.Data(end, string(body))
}
