package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/bench/internal/child"
	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

const (
	clients      = 64
	loopbackWait = time.Millisecond

	needsConnections = "needs new connections"
)

// loopbackRow is a request that many clients send over the loopback interface
// at once.
type loopbackRow struct {
	title    string
	method   string
	size     int  // of its body
	streamed bool // its body has no GetBody
	failEach int  // each such request gets a 503 first; 0: none
	unsafe   bool // it must not be sent again after a 503
}

// start starts the server, which ends with this process.
var start = sync.OnceValues(child.Start)

func TestMain(m *testing.M) {
	child.ServeIfStarted(newHandler)
	os.Exit(m.Run())
}

// BenchmarkLoopback sends requests to another process, from many clients at
// once.
func BenchmarkLoopback(b *testing.B) {
	s, err := start()
	require.NoError(b, err)
	for _, r := range loopbackRows() {
		for _, p := range contenders() {
			b.Run(fmt.Sprintf("request=%s/client=%s", r.title, p.Name),
				func(b *testing.B) { r.bench(b, s, p) })
		}
	}
}

func (r loopbackRow) bench(b *testing.B, s *child.Server, p peers.Peer) {
	l, err := newLoopback(s, p, r)
	require.NoError(b, err)
	b.ReportAllocs()
	b.ResetTimer()
	start := cpuTime()
	for left := b.N; left > 0; left -= batch {
		l.send(min(left, batch))
		l.closeLost()
	}
	reportCPU(b, start)
	b.ReportMetric(l.newConnections(), "conns/1000")
	report(b, p, l.check())
}

// batch is the number of requests after which the connections that a client has
// lost are closed.
const batch = 10 * clients

func loopbackRows() []loopbackRow {
	return []loopbackRow{
		{title: "Loopback: GET from 64 clients, a tenth get a 503 with 2 KiB first", method: "GET", failEach: 10},
		{title: "Loopback: GET from 64 clients, each gets a 503 with 2 KiB first", method: "GET", failEach: 1},
		{title: "Loopback: POST without a key from 64 clients, 1 KiB with GetBody", method: "POST", size: 1 << 10, unsafe: true},
		{title: "Loopback: PUT from 64 clients of a stream of 64 KiB without GetBody", method: "PUT", size: 64 << 10, streamed: true},
	}
}

// loopback sends the requests of a row through one client.
type loopback struct {
	row       loopbackRow
	server    *child.Server
	client    peers.Client
	path      string
	content   []byte // of each request body
	sent      int
	ids       atomic.Int64 // the last one of a request that gets a 503
	dialed    atomic.Int64
	failOnce  atomic.Int64
	notOK     atomic.Int64
	cut       atomic.Int64
	uploads   atomic.Int64 // request bodies without GetBody
	open      atomic.Int64 // those that are not closed
	warmUp    int          // requests that do not count
	attempted int          // by the warm-up
	probed    []string     // problems of a request that gets a 503

	ctx    context.Context // of the requests until closeLost
	cancel func()          // of ctx
}

// loopbacks is the number of calls of newLoopback.
var loopbacks atomic.Int64

func newLoopback(s *child.Server, p peers.Peer, row loopbackRow) (*loopback, error) {
	l := &loopback{
		row: row, server: s, content: []byte(uploadContent(row.size)),
		// The server counts by path, and remembers the values of failOnce, which
		// contain it.
		path: fmt.Sprintf("/loopback/%d", loopbacks.Add(1)),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.client = p.New(peers.Options{Base: l.transport(), Attempts: attempts, Wait: loopbackWait})
	// The first requests make the connections that the others are to use, and
	// the successes that httpretry's budget needs to retry more than a few
	// requests at once.
	l.sendEach(20*clients, 0)
	var err error
	// Where requests fail, check sees what happens then.
	if row.failEach == 0 {
		l.probed, err = l.probe()
	}
	l.warmUp = l.sent
	for _, n := range []*atomic.Int64{&l.dialed, &l.failOnce, &l.notOK, &l.cut} {
		n.Store(0)
	}
	attempted, countErr := requestCount(s, l.path)
	l.attempted = attempted
	return l, errors.Join(err, countErr)
}

// probe sends one request that gets a 503 first, and returns the problems.
func (l *loopback) probe() ([]string, error) {
	path := l.path + "/probe"
	l.sendOne(path, true)
	made, err1 := requestCount(l.server, path)
	wrong, err2 := requestCount(l.server, path+wrongPath)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if problem := wrongRetries(made, l.row.unsafe); problem != "" {
		return []string{problem}, nil
	}
	if wrong > 0 {
		return []string{afterFailure + "does not send the whole body"}, nil
	}
	return nil, nil
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

// closeLost closes the connections that a client has lost because it does not
// close responses. There are hundreds in each batch, with two goroutines
// each. For that, the contexts of its requests have an end. Those of other
// clients have none, because it costs time.
func (l *loopback) closeLost() {
	l.cancel()
	l.ctx, l.cancel = context.Background(), func() {}
	if l.dialed.Load() > 2*clients {
		l.ctx, l.cancel = context.WithCancel(l.ctx)
	}
}

func (l *loopback) send(n int) { l.sendEach(n, l.row.failEach) }

// sendEach sends n requests, of which each failEach-th gets a 503 first; 0:
// none.
func (l *loopback) sendEach(n, failEach int) {
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for i := client; i < n; i += clients {
				l.sendOne(l.path, failEach > 0 && (l.sent+i)%failEach == 0)
			}
		})
	}
	wg.Wait()
	l.sent += n
}

// check returns the problems of all requests so far.
func (l *loopback) check() []string {
	found := shares(slices.Clone(l.probed))
	attempts, err1 := requestCount(l.server, l.path)
	wrong, err2 := requestCount(l.server, l.path+wrongPath)
	if err := errors.Join(err1, err2); err != nil {
		found = append(found, err.Error())
	}
	sent := l.sent - l.warmUp
	found.add(int(l.notOK.Load()), sent, "no status 200")
	found.add(int(l.cut.Load()), sent, "response body not whole")
	found.add(wrong, attempts, "does not send the whole body")
	if made := attempts - l.attempted; made != sent+int(l.failOnce.Load()) {
		found = append(found, fmt.Sprintf("%.3f attempts", float64(made)/float64(sent)))
	}
	found.add(settled(&l.open), int(l.uploads.Load()), "does not close the request's body")
	// A few are made when all clients happen to wait for a connection. If each
	// 503 costs its connection, there are a hundred.
	if l.row.failEach > 0 && l.newConnections() > 10 {
		found = append(found, needsConnections)
	}
	return withoutRepeats(found)
}

// sendOne sends a request that gets a 503 first if fails is set.
func (l *loopback) sendOne(path string, fails bool) {
	req := l.newRequest(l.server.URL + path)
	if fails {
		l.failOnce.Add(1)
		req.Header.Set(failOnce, path+"/"+strconv.FormatInt(l.ids.Add(1), 10))
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

func (l *loopback) newRequest(url string) *http.Request {
	var body io.Reader
	switch {
	case l.row.streamed:
		l.uploads.Add(1)
		l.open.Add(1)
		body = &upload{stream: stream{size: int64(l.row.size), left: int64(l.row.size), content: l.content}, open: &l.open}
	case l.row.size > 0:
		body = bytes.NewReader(l.content)
	}
	req, err := http.NewRequestWithContext(l.ctx, l.row.method, url, body)
	if err != nil {
		panic(err) // the URL is the server's
	}
	if l.row.size > 0 {
		req.ContentLength = int64(l.row.size)
		req.Header.Set(bodySize, strconv.Itoa(l.row.size))
	}
	return req
}

// upload is a stream that counts as open until it is closed for the first time.
type upload struct {
	stream
	open   *atomic.Int64
	closed atomic.Bool
}

func (u *upload) Close() error {
	if !u.closed.Swap(true) {
		u.open.Add(-1)
	}
	return nil
}

// newConnections returns how many were made for 1,000 requests.
func (l *loopback) newConnections() float64 {
	return 1000 * float64(l.dialed.Load()) / float64(l.sent-l.warmUp)
}
