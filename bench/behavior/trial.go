package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// row is a behavior, and how it is observed.
type row struct {
	name    string
	right   string // the right behavior, in words
	slow    bool   // takes longer than about ten seconds
	busy    bool   // uses the processors, so no other row runs
	serial  bool   // measures the process, so no other row and peer runs
	varies  bool   // depends on chance and on the machine
	options options
	run     func(*trial) cell
}

// cell is the behavior of one peer.
type cell struct {
	text string
	verdict
}

type verdict uint8

const (
	unjudged verdict = iota // the right behavior depends on the user
	right
	wrong
)

func (c cell) String() string {
	if c.verdict == wrong {
		return "✗ " + c.text
	}
	return c.text
}

// judge returns a cell that is right if ok is true, and wrong if not.
func judge(ok bool, format string, args ...any) cell {
	c := cell{fmt.Sprintf(format, args...), wrong}
	if ok {
		c.verdict = right
	}
	return c
}

// unjudgedUnless returns a cell that is right if ok is true. If not, the right
// behavior depends on the user.
func unjudgedUnless(ok bool, format string, args ...any) cell {
	c := cell{text: fmt.Sprintf(format, args...)}
	if ok {
		c.verdict = right
	}
	return c
}

// trial is one peer in one row. It has the methods of testing.TB that package
// faults needs to run servers.
type trial struct {
	testing.TB // nil
	peer       peers.Peer
	cleanups   []func()
}

// setupError is a panic of a trial that could not be carried out.
type setupError string

// runCell runs a row for a peer. An error means that the trial failed, not that
// the peer is wrong.
func runCell(r row, peer peers.Peer) (c cell, err error) {
	t := &trial{peer: peer}
	defer func() {
		for _, cleanup := range slices.Backward(t.cleanups) {
			cleanup()
		}
		if failure := recover(); failure != nil {
			text, ok := failure.(setupError)
			if !ok {
				panic(failure)
			}
			err = fmt.Errorf("%s: %s: %s", r.name, peer.Name, text)
		}
	}()
	return r.run(t), nil
}

func (t *trial) Helper() {}

func (t *trial) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

func (t *trial) Fatal(args ...any) { panic(setupError(fmt.Sprint(args...))) }

func (t *trial) Skipf(format string, args ...any) { t.Fatal(fmt.Sprintf(format, args...)) }

func (t *trial) must(err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// shortWait is the wait between attempts in rows that are not about it.
const shortWait = 10 * time.Millisecond

// client returns a client that makes three attempts. A zero wait means the
// peer's default.
func (t *trial) client(wait time.Duration) peers.Client {
	return t.peer.New(peers.Options{Base: faults.Base(t, nil), Attempts: 3, Wait: wait})
}

// request returns a request with a body, or without one if body is "".
func (t *trial) request(method, url, body string) *http.Request {
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, url, reader)
	t.must(err)
	return req
}

// serve starts an HTTP/1 server that calls answer with the number of each
// request, from 1, and the request's body. If answer returns false, the
// connection ends.
func (t *trial) serve(answer func(n int, c *faults.Conn, body string) bool) *faults.Server {
	var requests atomic.Int32
	return faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
		n := int(requests.Add(1))
		body, err := io.ReadAll(req.Body)
		return err == nil && answer(n, c, string(body))
	})
}

// answers starts a server that responds with the statuses one after another,
// each with a body. The last one remains.
func (t *trial) answers(body string, statuses ...int) *faults.Server {
	return t.serve(func(n int, c *faults.Conn, _ string) bool {
		c.Respond(statuses[min(n, len(statuses))-1], body)
		return true
	})
}

// reply is the result of a client's call.
type reply struct {
	status int
	body   string
	err    error         // of Do, else of the body
	took   time.Duration // until Do returned
	hung   bool          // nothing was returned in time
}

// send sends a request and reads the response. After limit, it cancels the
// request and does not wait for the client.
func (t *trial) send(client peers.Client, req *http.Request, limit time.Duration) reply {
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	r, ok := within(limit, func() (r reply) {
		start := time.Now()
		resp, err := client.Do(req.WithContext(ctx))
		r.took = time.Since(start)
		if r.err = err; err != nil {
			return r
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		r.status, r.body, r.err = resp.StatusCode, string(body), err
		return r
	})
	r.hung = !ok
	return r
}

// within returns the result of f, and whether f returned in time. If not, f
// continues.
func within[T any](limit time.Duration, f func() T) (result T, ok bool) {
	results := make(chan T, 1)
	go func() { results <- f() }()
	select {
	case result = <-results:
		return result, true
	case <-time.After(limit):
		return result, false
	}
}

// seconds returns a duration in words.
func seconds(d time.Duration) string {
	if d < 100*time.Millisecond {
		return "at once"
	}
	return fmt.Sprintf("after %.1f s", d.Seconds())
}
