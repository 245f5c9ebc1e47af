package main

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Send is a request whose header has arrived at the server.
type Send struct {
	Request  int // its number in the case, from 1
	At       time.Duration
	Ended    time.Duration // 0: not yet
	Method   string
	Executed bool
	Body     int  // bytes that were read
	Read     bool // all of the body was to be read
	Stale    bool // on a connection after its announced end
}

// session is the server of one case for one client, at an address of its own.
type session struct {
	c    *Case
	tls  *tls.Config
	addr string

	mu       sync.Mutex
	listener net.Listener
	begun    time.Time // of the first request
	conns    map[net.Conn]bool
	accepted int
	ended    bool
	err      error // the server could not start again
	arrived  int   // sends in all
	tokens   float64
	filled   time.Duration
	perCall  map[int]int // sends of a request
	sends    []*Send
	keys     map[string]bool // of executed requests

	stop    chan struct{}
	running sync.WaitGroup
}

// certificate returns the configuration of a server for 127.0.0.1 whose
// certificate is its own root, and that certificate.
func certificate() (*tls.Config, []byte) {
	srv := httptest.NewTLSServer(nil)
	defer srv.Close()
	return &tls.Config{
		Certificates: srv.TLS.Certificates, NextProtos: []string{"h2"},
	}, srv.Certificate().Raw
}

// lastPort counts sessions. Each has a port of its own, so that none takes the
// port of another one whose server is down. All are outside the range of ports
// that systems give to clients, so that no client takes one.
var lastPort atomic.Uint32

func init() { lastPort.Store(rand.Uint32N(10000)) }

func newSession(c *Case, cfg *tls.Config) (*session, error) {
	s := &session{
		c: c, tls: cfg, tokens: burst, stop: make(chan struct{}),
		conns: map[net.Conn]bool{}, perCall: map[int]int{}, keys: map[string]bool{},
	}
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+lastPort.Add(1)%10000))
		if err != nil {
			continue
		}
		s.addr = l.Addr().String()
		s.serve(l)
		return s, nil
	}
	return nil, errors.New("no port is free between 20000 and 30000")
}

func (s *session) serve(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener = l; s.ended {
		_ = l.Close()
		return
	}
	s.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.running.Go(func() { s.accept(conn.(*net.TCPConn)) })
		}
	})
}

// begin starts the time of the windows.
func (s *session) begin() {
	s.mu.Lock()
	s.begun, s.filled = time.Now(), 0
	s.mu.Unlock()
	for _, w := range s.c.Server.Windows {
		if w.Step.Fault != "refuse" {
			continue
		}
		if w.From == 0 {
			s.down()
		}
		s.running.Go(func() {
			if w.From > 0 && s.sleep(w.From) {
				s.down()
			}
			if s.sleep(w.To - w.From) {
				s.up()
			}
		})
	}
}

// down closes the port and all connections.
func (s *session) down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.listener.Close()
	for conn := range s.conns {
		_ = conn.Close()
	}
}

func (s *session) up() {
	l, err := net.Listen("tcp", s.addr)
	if err != nil { // another program has taken the port
		s.mu.Lock()
		defer s.mu.Unlock()
		s.err = err
		return
	}
	s.serve(l)
}

// sleep reports whether the session has not ended before.
func (s *session) sleep(seconds float64) bool {
	timer := time.NewTimer(duration(seconds))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.stop:
		return false
	}
}

// close ends the session and returns all sends.
func (s *session) close() ([]*Send, error) {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	close(s.stop)
	s.down()
	s.running.Wait()
	return s.sends, s.err
}

// accept serves one connection.
func (s *session) accept(tcp *net.TCPConn) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		_ = tcp.Close()
		return
	}
	s.accepted++
	number := s.accepted
	s.conns[tcp] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, tcp)
		s.mu.Unlock()
		_ = tcp.Close()
	}()
	if n := s.c.Server.ResetEvery; n > 0 && number%n == 1 {
		reset(tcp)
		return
	}
	if s.c.Server.NoTLS {
		<-s.stop
		return
	}
	if !s.c.Request.HTTP2 {
		s.serveHTTP1(tcp, number)
		return
	}
	conn := tls.Server(tcp, s.tls)
	if conn.Handshake() == nil {
		s.serveHTTP2(conn, tcp, number)
	}
}

// reset closes the connection with a reset. Close would end it in good order.
func reset(tcp *net.TCPConn) {
	_ = tcp.SetLinger(0)
	_ = tcp.Close()
}

const (
	warmPath = "/warm"
	burst    = 10 // of sends where PerSecond limits them
)

// arrive counts a send, and returns its step. A request that warms a connection
// is not counted.
func (s *session) arrive(conn int, method, path string) (*Send, Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Since(s.begun)
	if path == warmPath {
		return &Send{}, Step{Status: http.StatusOK}
	}
	// The path ends with the number of the request, and so does a Location.
	path, _, _ = strings.Cut(path, "?")
	number, _ := strconv.Atoi(path[strings.LastIndexByte(path, '/')+1:])
	send := &Send{Request: number, At: now, Method: method}
	s.sends = append(s.sends, send)
	s.arrived++
	return send, s.step(now, conn, number)
}

// step returns the step for a send.
func (s *session) step(now time.Duration, conn, number int) Step {
	for _, w := range s.c.Server.Windows {
		if now >= duration(w.From) && now < duration(w.To) &&
			(w.Replica == 0 || w.Replica == 2-conn%2) {
			return w.Step
		}
	}
	if n := s.c.Server.FailEvery; n > 0 && s.arrived%n == 0 {
		return Step{Status: http.StatusServiceUnavailable}
	}
	if rate := s.c.Server.PerSecond; rate > 0 {
		s.tokens = min(burst, s.tokens+rate*(now-s.filled).Seconds())
		s.filled = now
		if s.tokens < 1 {
			return Step{
				Status: http.StatusTooManyRequests, Header: map[string]string{"Retry-After": "1"},
			}
		}
		s.tokens--
	}
	step := s.c.Server.Sends[min(s.perCall[number], len(s.c.Server.Sends)-1)]
	s.perCall[number]++
	return step
}

// execute records that the server does the work of a send. A second request
// with the same key is answered and does nothing, and so is one with an
// idempotent method.
func (s *session) execute(send *Send, step Step, key string) {
	if step.Status/100 != 2 && !step.Executes {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := key
	if send.Method != http.MethodPost && send.Method != http.MethodPatch {
		id = fmt.Sprint("request ", send.Request)
	}
	send.Executed = id == "" || !s.keys[id]
	s.keys[id] = true
}

// change changes a send with the lock.
func (s *session) change(send *Send, f func(*Send)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(send)
}

// end records when the server has nothing more to do for a send.
func (s *session) end(send *Send) {
	s.change(send, func(send *Send) { setDefault(&send.Ended, time.Since(s.begun)) })
}

// received records n bytes of a body. whole means that the server reads all.
func (s *session) received(send *Send, n int, whole bool) {
	s.change(send, func(send *Send) { send.Body, send.Read = send.Body+n, whole })
}

func (s *session) stale(send *Send) { s.change(send, func(send *Send) { send.Stale = true }) }

var dates = regexp.MustCompile(`\{date([+-]\d+)\}`)

// header returns the names and values of a step's header, in a stable order.
func (step Step) header() (pairs [][2]string) {
	for name, value := range step.Header {
		value = dates.ReplaceAllStringFunc(value, func(text string) string {
			seconds, _ := strconv.Atoi(dates.FindStringSubmatch(text)[1])
			return time.Now().Add(time.Duration(seconds) * time.Second).UTC().Format(http.TimeFormat)
		})
		pairs = append(pairs, [2]string{name, value})
	}
	if step.Ranges {
		pairs = append(pairs, [2]string{"Etag", fmt.Sprintf(`"%d"`, step.Version)})
	}
	slices.SortFunc(pairs, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return pairs
}

// content returns the body of a step's response. Each version differs, and so
// do all parts of one.
func (step Step) content() []byte {
	if step.Text != "" || step.Status == http.StatusNoContent {
		return []byte(step.Text)
	}
	setDefault(&step.Body, 64)
	random := rand.New(rand.NewPCG(uint64(step.Version), uint64(step.Status)))
	body := make([]byte, step.Body)
	for i := range body {
		body[i] = byte('a' + random.IntN(26))
	}
	return body
}

// part returns the part of the content that a Range asks for, and the
// Content-Range of it, or all of it and "".
func (step Step) part(ranges, ifRange string) (part []byte, contentRange string) {
	body := step.content()
	var from int
	same := ifRange == "" || ifRange == fmt.Sprintf(`"%d"`, step.Version)
	if n, _ := fmt.Sscanf(ranges, "bytes=%d-", &from); !step.Ranges || n == 0 || !same || from >= len(body) {
		return body, ""
	}
	return body[from:], fmt.Sprintf("bytes %d-%d/%d", from, len(body)-1, len(body))
}

func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
