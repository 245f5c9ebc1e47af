package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/child"
	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

const (
	loopbackTitle = "Loopback: GET from 64 clients, a tenth get a 503 with 2 KiB first"

	clients      = 64
	loopbackWait = time.Millisecond
)

// loopback sends GETs over the loopback interface from many clients at once. A
// tenth of them get a 503 first.
type loopback struct {
	server    *child.Server
	client    peers.Client
	path      string // of the peer
	sent      int
	dialed    atomic.Int64
	failOnce  atomic.Int64
	notOK     atomic.Int64
	cut       atomic.Int64
	warmUp    int // requests that do not count
	attempted int // by the warm-up
}

func newLoopback(s *child.Server, p peers.Peer) (*loopback, error) {
	l := &loopback{server: s, path: "/" + strings.ReplaceAll(p.Name, " ", "-")}
	l.client = p.New(peers.Options{Base: l.transport(), Attempts: attempts, Wait: loopbackWait})
	// The first requests make the connections that the others are to use, and
	// the successes that httpretry's budget needs to retry more than a few
	// requests at once.
	l.send(20 * clients)
	l.warmUp = l.sent
	for _, n := range []*atomic.Int64{&l.dialed, &l.failOnce, &l.notOK, &l.cut} {
		n.Store(0)
	}
	var err error
	l.attempted, err = requestCount(s, l.path)
	return l, err
}

// transport returns http.DefaultTransport with enough idle connections, and
// counts those that it makes.
func (l *loopback) transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = clients
	dial := t.DialContext
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		l.dialed.Add(1)
		return dial(ctx, network, addr)
	}
	return t
}

func (l *loopback) send(n int) {
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for i := client; i < n; i += clients {
				l.sendOne(l.sent + i)
			}
		})
	}
	wg.Wait()
	l.sent += n
}

// check returns the problems of all requests so far.
func (l *loopback) check() []string {
	var found []string
	attempts, err := requestCount(l.server, l.path)
	if err != nil {
		found = append(found, err.Error())
	}
	sent := l.sent - l.warmUp
	if n := int(l.notOK.Load()); n > 0 {
		found = append(found, share(n, sent)+"no status 200")
	}
	if n := int(l.cut.Load()); n > 0 {
		found = append(found, share(n, sent)+"response body not whole")
	}
	if made := attempts - l.attempted; made != sent+int(l.failOnce.Load()) {
		found = append(found, fmt.Sprintf("%.3f attempts", float64(made)/float64(sent)))
	}
	// A few are made when all clients happen to wait for a connection. If each
	// 503 costs its connection, there are a hundred.
	if l.newConnections() > 10 {
		found = append(found, "needs new connections")
	}
	return found
}

func (l *loopback) sendOne(i int) {
	req, err := http.NewRequest(http.MethodGet, l.server.URL+l.path, nil)
	if err != nil {
		panic(err) // the URL is the server's
	}
	if i%10 == 0 {
		req.Header.Set(failOnce, l.path+strconv.Itoa(i))
		l.failOnce.Add(1)
	}
	resp, err := l.client.Do(req)
	if err != nil {
		l.notOK.Add(1)
		return
	}
	defer resp.Body.Close()
	size, err := io.Copy(io.Discard, resp.Body)
	switch {
	case resp.StatusCode != http.StatusOK:
		l.notOK.Add(1)
	case err != nil || size != serverBody:
		l.cut.Add(1)
	}
}

// newConnections returns how many were made for 1,000 requests.
func (l *loopback) newConnections() float64 {
	return 1000 * float64(l.dialed.Load()) / float64(l.sent-l.warmUp)
}

// runLoopback returns the table, and the problems of httpretry.
func runLoopback(s *child.Server, p plan, rng *rand.Rand) (table, []string) {
	var all []*contestant
	var ends []*loopback
	var reference *contestant
	for _, peer := range contenders() {
		l, err := newLoopback(s, peer)
		if err != nil {
			return table{title: loopbackTitle}, []string{loopbackTitle + ": " + err.Error()}
		}
		c := &contestant{name: peer.Name, send: l.send, check: l.check, perRun: 10 * clients}
		all, ends = append(all, c), append(ends, l)
		if peer.Name == naive {
			reference = c
		}
	}
	measure(all, p.loopbackRounds, p.loopbackLength, rng)
	t := table{
		title: loopbackTitle,
		head:  []string{"client", "CPU ratio to " + naive, "allocations", "wall clock", "new connections per 1,000 requests", "check"},
	}
	var failures []string
	for i, c := range all {
		t.rows = append(t.rows, []string{
			c.name,
			compare(c, reference, true, cpuOf),
			allocations(c, nil),
			compare(c, reference, true, wallOf),
			fmt.Sprintf("%.1f", ends[i].newConnections()),
			verdict(c.problems),
		})
		failures = append(failures, failuresOf(t.title, c.name, c.problems)...)
	}
	return t, failures
}
