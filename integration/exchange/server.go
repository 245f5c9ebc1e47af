package main

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/seed421102f4/httpretry/internal/faults"
)

const (
	warmUpPath = "/before" // of the request before an exchange
	stepHeader = "Step"    // of a response: the number of the step that it is from
)

// server receives one exchange and follows its script.
type server struct {
	*faults.Server
	x    *exchange
	tls  *tls.Config
	host string // of its URL

	mu       sync.Mutex
	arrivals []*arrival
}

// arrival is a request whose header has arrived.
type arrival struct {
	number   int
	step     step
	scripted bool
	body     []byte
	whole    bool // all of the body has arrived
	unsent   bool // the client may send the request again, whatever it is
	acted    bool
	held     int // bytes of the window that the client has not got back
}

func newServer(t testing.TB, x *exchange, tls *tls.Config, host string) *server {
	s := &server{x: x, tls: tls, host: host}
	s.Server = faults.Listen(t, s.serve)
	return s
}

func (s *server) url(path string) string {
	if s.x.proto.isTLS() {
		return "https://" + s.host + path
	}
	return "http://" + s.host + path
}

func (s *server) serve(c *faults.Conn) {
	if s.x.proto.isTLS() && !c.StartTLS(s.tls) {
		return
	}
	if s.x.proto.isHTTP2() {
		(&conn2{server: s, Conn: c, open: map[uint32]*arrival{}}).serve()
		return
	}
	c.HTTP1(func(c *faults.Conn, req *http.Request) bool {
		if req.URL.Path == warmUpPath {
			c.Respond(200, "")
			return true
		}
		return s.answer(c, s.arrive(), req)
	})
}

// arrive draws the next step of the script.
func (s *server) arrive() *arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &arrival{number: len(s.arrivals), step: step{read: -1, act: answers, status: 200, after: answers}}
	if a.scripted = a.number < len(s.x.script); a.scripted {
		a.step = s.x.script[a.number]
	}
	// With the GOAWAY, the server says that it has not processed the request
	// (RFC 9113 section 6.8). A layer sends a request again after a 401, as it
	// would with credentials.
	isChallenge := a.step.status == 401 && slices.Contains([]act{answers, breaks, leavesSoon}, a.step.act)
	a.unsent = a.step.act == goesAway || isChallenge && s.x.base == challenges
	s.arrivals = append(s.arrivals, a)
	return a
}

// receive notes a part of the body.
func (s *server) receive(a *arrival, part []byte, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.body = append(a.body, part...)
	a.whole = a.whole || whole
}

// answer follows the script over HTTP/1, and reports whether another request
// may follow.
func (s *server) answer(c *faults.Conn, a *arrival, req *http.Request) bool {
	body := io.Reader(req.Body)
	if req.Header.Get("Expect") != "" && a.step.read != 0 {
		c.Send("HTTP/1.1 100 Continue\r\n\r\n")
	}
	if a.step.read >= 0 {
		body = io.LimitReader(body, int64(a.step.read))
	}
	if s.read(a, body, a.step.read < 0) != nil {
		return false
	}
	time.Sleep(a.step.stall)
	switch {
	case a.step.act == resets:
		c.Reset()
		return false
	case a.step.act == cuts:
		return false
	case a.step.act == breaks:
		c.Send(fmt.Sprintf("HTTP/1.1 %d \r\nContent-Length: %d\r\n\r\n%s", a.step.status, len(answerBody), halfAnswer))
		time.Sleep(a.step.stall)
		return false
	case a.step.after == answers:
		c.Respond(a.step.status, answerBody, fmt.Sprintf("%s: %d", stepHeader, a.number))
		return s.read(a, req.Body, true) == nil
	}
	c.Respond(a.step.status, answerBody, fmt.Sprintf("%s: %d", stepHeader, a.number), "Connection: close")
	if a.step.after == resets {
		c.Reset()
		return false
	}
	if a.number%2 == 0 { // the client ends the connection
		_ = s.read(a, req.Body, true) // fails then
	}
	return false
}

const (
	answerBody = "the body of a response"
	halfAnswer = "the body of"
)

// read takes in a part of a body, to its end if all is true.
func (s *server) read(a *arrival, body io.Reader, all bool) error {
	part := make([]byte, 16<<10)
	for {
		n, err := body.Read(part)
		s.receive(a, part[:n], all && err == io.EOF)
		switch err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// conn2 is an HTTP/2 connection.
type conn2 struct {
	*server
	*faults.Conn
	open    map[uint32]*arrival
	streams int
}

func (c *conn2) serve() {
	c.ServeFrames(func(kind, flags byte, id uint32, payload []byte) bool {
		return c.frame(kind, flags, faults.Stream{Conn: c.Conn, ID: id}, payload)
	})
}

// frame handles a frame, and reports whether the connection remains open.
func (c *conn2) frame(kind, flags byte, s faults.Stream, payload []byte) bool {
	end := flags&faults.FlagEndStream != 0
	switch kind {
	case faults.FrameHeaders:
		return c.begin(s, end)
	case faults.FrameData:
		a := c.open[s.ID]
		c.receive(a, payload, end)
		a.held += len(payload)
		open := c.act(s, a)
		if a.acted || !a.step.stingy {
			c.widen(s.ID, a)
		}
		return open
	}
	return true
}

// widen lets the client send as much as it has sent.
func (c *conn2) widen(stream uint32, a *arrival) {
	if a.held > 0 {
		window := binary.BigEndian.AppendUint32(nil, uint32(a.held))
		c.Frame(faults.FrameWindow, 0, 0, window)
		c.Frame(faults.FrameWindow, 0, stream, window)
		a.held = 0
	}
}

// begin handles the header of a request.
func (c *conn2) begin(s faults.Stream, end bool) bool {
	c.streams++
	if c.x.reused && c.Number == 1 && c.streams == 1 {
		s.Respond(200)
		return true
	}
	a := c.arrive()
	c.open[s.ID] = a
	c.receive(a, nil, end)
	if c.x.expect && a.step.read != 0 {
		s.Header(false, ":status", "100")
	}
	return c.act(s, a)
}

// act follows the script once enough of the body has arrived.
func (c *conn2) act(s faults.Stream, a *arrival) bool {
	if a.acted || !a.whole && (a.step.read < 0 || len(a.body) < a.step.read) {
		return true
	}
	a.acted = true
	time.Sleep(a.step.stall)
	switch a.step.act {
	case cuts:
		return false
	case resets:
		c.Reset()
		return false
	case breaks:
		s.Header(false, ":status", strconv.Itoa(a.step.status), "content-length", strconv.Itoa(len(answerBody)))
		s.Data(false, halfAnswer)
		time.Sleep(a.step.stall)
		s.ResetStream(faults.InternalError)
		return true
	case refuses:
		s.ResetStream(a.step.code)
		return true
	case goesAway:
		c.GoAway(max(s.ID, 2)-2, faults.NoError)
		return true
	case leavesSoon:
		c.GoAway(s.ID, faults.NoError)
	}
	s.Header(false, ":status", strconv.Itoa(a.step.status), "step", strconv.Itoa(a.number))
	s.Data(true, answerBody)
	switch a.step.after {
	case refuses: // the rest of the body (RFC 9113 section 8.1)
		s.ResetStream(faults.NoError)
	case cuts:
		return false
	}
	return true
}

// check returns the problems of the requests that arrived.
//
// Two ways in which a request that is not safe to repeat may be sent twice are
// documented. Neither is drawn, since no layer records a body while it is sent,
// and there is no proxy.
func (s *server) check(want []byte) (problems []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := 0
	for _, a := range s.arrivals {
		// A timeout, or a body that is still being sent, may be why the client
		// has not seen the answer.
		if s.hasSuccessor(a) && !s.x.readsAhead() && s.x.body == noBody && s.x.policy.AttemptTimeout == 0 {
			problems = append(problems, fmt.Sprintf("request %d was sent again although its half answer was enough", a.number))
		}
		if a.whole && !bytes.Equal(a.body, want) {
			problems = append(problems, fmt.Sprintf("request %d arrived as if it were whole, with %s", a.number, difference(a.body, want)))
		}
		if !a.unsent {
			sent++
		}
	}
	if sent > 1 && !s.x.isSafe() {
		problems = append(problems, fmt.Sprintf("a request that is not safe to repeat arrived %d times", sent))
	}
	return problems
}

// hasSuccessor reports whether another request has followed one that got half
// of a 200. It is called with mu held.
func (s *server) hasSuccessor(a *arrival) bool {
	return a.step.act == breaks && a.step.status == 200 && a.number+1 < len(s.arrivals)
}

func difference(got, want []byte) string {
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	return fmt.Sprintf("%d of %d bytes, the first wrong one at %d", len(got), len(want), at)
}

// isClean reports whether the server has ended neither the connection nor the
// stream after the response of a step.
func (s *server) isClean(header string) bool {
	number, err := strconv.Atoi(header)
	s.mu.Lock()
	defer s.mu.Unlock()
	return err == nil && number < len(s.arrivals) && s.arrivals[number].step.after == answers
}

// outcomes returns the outcomes that the server has seen.
func (s *server) outcomes(attempts int) (outcomes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.arrivals) > attempts {
		outcomes = append(outcomes, resent)
	}
	if s.x.readsAhead() && slices.ContainsFunc(s.arrivals, s.hasSuccessor) {
		outcomes = append(outcomes, aheadRetry)
	}
	later := s.arrivals[min(1, len(s.arrivals)):]
	if s.x.size > 0 && slices.ContainsFunc(later, func(a *arrival) bool { return a.whole }) {
		outcomes = append(outcomes, wholeRetry)
	}
	return outcomes
}
