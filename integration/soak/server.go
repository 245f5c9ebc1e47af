package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed421102f4/httpretry/internal/faults"
)

const (
	statsPath = "/stats"
	badBody   = 2 << 10 // bytes of the body of a 503
)

// maxOnce limits the requests that must not arrive twice, so that the server
// remembers all of them in a table that does not grow.
const maxOnce = 1 << 27

// A stats has the counts of a server.
type stats struct {
	Requests, Whole int64          // requests, and request bodies that arrived to their ends
	Once, Twice     int64          // requests that must not arrive twice, and those that did
	Wrong           int64          // request bodies with wrong bytes
	Faults          map[string]int // by name
}

// server answers over HTTP/1 and HTTP/2, and counts.
type server struct {
	http1, http2                        *faults.Server
	draw                                func(isUpload, isHTTP2 bool) fault
	requests, whole, once, twice, wrong atomic.Int64
	faults                              [faultCount]atomic.Int64
	seen                                []atomic.Uint64 // a bit for each id that must not arrive twice
}

func newServer(t testing.TB, draw func(isUpload, isHTTP2 bool) fault) *server {
	s := &server{draw: draw, seen: make([]atomic.Uint64, maxOnce/64)}
	s.http1 = faults.Listen(t, func(c *faults.Conn) { c.HTTP1(s.answer) })
	s.http2 = faults.Listen(t, func(c *faults.Conn) { (&conn2{server: s, Conn: c, open: map[uint32]*stream2{}}).serve() })
	return s
}

func (s *server) stats() stats {
	st := stats{
		Requests: s.requests.Load(), Whole: s.whole.Load(), Once: s.once.Load(), Twice: s.twice.Load(),
		Wrong: s.wrong.Load(), Faults: map[string]int{},
	}
	for f := unavailable; f < faultCount; f++ {
		st.Faults[faultNames[f]] = int(s.faults[f].Load())
	}
	return st
}

// begin draws the fault of a request.
func (s *server) begin(isUpload, isHTTP2 bool) fault {
	f := s.draw(isUpload, isHTTP2)
	s.requests.Add(1)
	s.faults[f].Add(1)
	return f
}

// receiveHead counts a request whose body begins with head. From now on, it may
// have been executed.
func (s *server) receiveHead(head []byte) payload {
	p, ok := parseHead(head)
	switch {
	case !ok || p.once && p.id >= maxOnce:
		s.wrong.Add(1)
	case p.once:
		s.once.Add(1)
		bit := uint64(1) << (p.id % 64)
		if s.seen[p.id/64].Or(bit)&bit != 0 {
			s.twice.Add(1)
		}
	}
	return p
}

// receive checks a body that has arrived to its end.
func (s *server) receive(body []byte) {
	if _, ok := parse(body); ok {
		s.whole.Add(1)
	} else {
		s.wrong.Add(1)
	}
}

// answer handles a request over HTTP/1, and reports whether another one may
// follow on the connection.
func (s *server) answer(c *faults.Conn, req *http.Request) bool {
	if req.URL.Path == statsPath {
		text, err := json.Marshal(s.stats())
		c.Respond(http.StatusOK, string(text))
		return err == nil
	}
	f := s.begin(req.ContentLength != 0, false)
	id, _ := strconv.ParseUint(strings.TrimPrefix(req.URL.Path, "/"), 10, 64) // of a GET
	if req.ContentLength != 0 {
		var ok bool
		if id, ok = s.readBody(req.Body, f == early); !ok {
			return false
		}
	}
	switch f {
	case unavailable:
		refuse(c)
		return true
	case early:
		refuse(c)
		return half() // it reads the rest, or closes the connection
	case resets:
		c.Reset()
		return false
	case cuts:
		respondHalf(c, id, half())
		c.Reset()
		return false
	case stalls:
		// If the body of a 200 stalled, its caller would have to end the wait.
		if half() {
			respondHalf(c, id, false)
		}
		c.Drain() // until the client closes the connection
		return false
	}
	c.Respond(http.StatusOK, string(response(id).bytes()))
	return true
}

// readBody reads a body, or only its beginning, and returns its id. ok reports
// whether the connection is still of use.
func (s *server) readBody(body io.Reader, onlyHead bool) (id uint64, ok bool) {
	all := make([]byte, headLen, 4<<10)
	if _, err := io.ReadFull(body, all); err != nil {
		return 0, false // the client has canceled the request
	}
	p := s.receiveHead(all)
	if onlyHead {
		return p.id, true
	}
	rest, err := io.ReadAll(body)
	if err != nil {
		return p.id, false
	}
	s.receive(append(all, rest...))
	return p.id, true
}

// response returns the body of a 200. The client knows its size and content.
func response(id uint64) payload {
	return payload{id: id, size: headLen + int(id*7919%(32<<10))}
}

func refuse(c *faults.Conn) {
	var header []string
	if name, value := retryAfter(); name != "" {
		header = []string{name + ": " + value}
	}
	c.Respond(http.StatusServiceUnavailable, strings.Repeat("b", badBody), header...)
}

// respondHalf sends the header of a 200 or a 503, and half of the body.
func respondHalf(c *faults.Conn, id uint64, ok bool) {
	status, body := halfResponse(id, ok)
	c.Send("HTTP/1.1 " + status + " \r\nContent-Length: " + strconv.Itoa(2*len(body)) + "\r\n\r\n" + string(body))
}

// halfResponse returns half of the body of a 200 or a 503.
func halfResponse(id uint64, ok bool) (status string, body []byte) {
	if !ok {
		return "503", []byte(strings.Repeat("b", badBody/2))
	}
	body = response(id).bytes()
	return "200", body[:len(body)/2]
}
