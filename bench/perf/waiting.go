package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/child"
	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

// maxMemory is the most memory that a waiting request may need, as a ratio to
// the naive loop's. Stacks double, so one call too deep exceeds it.
const maxMemory = 1.5

// waitingFor is long enough for all requests to get their first response.
const waitingFor = 3 * time.Second

// waitingRow is a request of which many wait for their retry.
type waitingRow struct {
	title string
	size  int // of its body, which has no GetBody; 0: a GET
}

func waitingRows() []waitingRow {
	return []waitingRow{
		{title: "Waiting: many requests wait for their retry after a 503 with 2 KiB"},
		{title: "Waiting: PUT of a stream of 4 KiB without GetBody, after a 503 with 2 KiB", size: 4 << 10},
	}
}

// held has the resources that each of many waiting requests holds.
type held struct{ memory, goroutines, sockets float64 }

// crowd sends many requests that get a 503, and wait for their retry.
type crowd struct {
	row      waitingRow
	url      string
	content  []byte // of each request body
	client   peers.Client
	answered func() (int, error) // requests that got a response, so far
	cut      func() (int, error) // those whose body was not whole
	sockets  func() int          // that are open and not idle
	done     atomic.Int64
	running  sync.WaitGroup
}

// newCrowd returns a crowd that sends to a server.
func newCrowd(s *child.Server, p peers.Peer, row waitingRow) *crowd {
	path := fmt.Sprintf("/waiting/%d", row.size)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	open := new(atomic.Int64)
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		open.Add(1)
		return &countedConn{Conn: conn, open: open}, nil
	}
	c := &crowd{
		row:      row,
		content:  []byte(uploadContent(row.size)),
		url:      s.URL + path,
		answered: func() (int, error) { return requestCount(s, path) },
		cut:      func() (int, error) { return requestCount(s, path+wrongPath) },
		sockets: func() int {
			transport.CloseIdleConnections()
			return int(open.Load())
		},
	}
	c.client = p.New(peers.Options{Base: transport, Attempts: 2, Wait: waitingFor, NoBudget: true})
	return c
}

// newLocalCrowd returns a crowd that sends to a function, so that its memory is
// the client's and not the connections'.
func newLocalCrowd(p peers.Peer, row waitingRow) *crowd {
	answered, cut, body := new(atomic.Int64), new(atomic.Int64), strings.Repeat("b", serverBad)
	c := &crowd{
		row:      row,
		content:  []byte(uploadContent(row.size)),
		url:      "http://api.example.com/",
		answered: func() (int, error) { return int(answered.Load()), nil },
		cut:      func() (int, error) { return int(cut.Load()), nil },
		sockets:  func() int { return 0 },
	}
	c.client = p.New(peers.Options{Attempts: 2, Wait: waitingFor, NoBudget: true, Base: roundTripFunc(
		func(req *http.Request) (*http.Response, error) {
			if err := req.Context().Err(); err != nil {
				return nil, err
			}
			if req.Body != nil {
				size, err := io.Copy(io.Discard, req.Body)
				if err = errors.Join(err, req.Body.Close()); err != nil {
					return nil, err
				}
				if size != int64(row.size) {
					cut.Add(1)
				}
			}
			answered.Add(1)
			return &http.Response{
				StatusCode: http.StatusServiceUnavailable, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
				Header: make(http.Header), Body: io.NopCloser(strings.NewReader(body)), Request: req,
			}, nil
		})})
	return c
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// measure returns the resources that each of n requests holds while all of them
// wait.
func (c *crowd) measure(n int) (held, error) {
	answered, err := c.answered()
	if err != nil {
		return held{}, err
	}
	cutBefore, err := c.cut()
	if err != nil {
		return held{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer c.running.Wait()
	defer cancel()
	before, start := footprint(), time.Now()
	for range n {
		c.running.Go(func() { c.send(ctx) })
	}
	if err := await(c.answered, answered+n); err != nil {
		return held{}, err
	}
	// The last responses are being drained.
	time.Sleep(100 * time.Millisecond)
	sockets, after := c.sockets(), footprint()
	if time.Since(start) > waitingFor {
		return held{}, fmt.Errorf("%s requests take longer than %v here", formatCount(n), waitingFor)
	}
	if done := c.done.Load(); done > 0 {
		return held{}, fmt.Errorf("%s of %s requests do not wait", formatCount(int(done)), formatCount(n))
	}
	if cut, err := c.cut(); err != nil || cut > cutBefore {
		return held{}, cmp.Or(err, fmt.Errorf("%s of %s requests do not send the whole body", formatCount(cut-cutBefore), formatCount(n)))
	}
	return held{
		(after.memory - before.memory) / float64(n),
		(after.goroutines - before.goroutines) / float64(n),
		float64(sockets) / float64(n),
	}, nil
}

// await waits until so many requests are answered.
func await(answered func() (int, error), requests int) error {
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		n, err := answered()
		if err != nil || n >= requests {
			return err
		}
		if time.Since(start) > waitingFor {
			return fmt.Errorf("%d of %d requests answered after %v", n, requests, waitingFor)
		}
	}
}

func (c *crowd) send(ctx context.Context) {
	defer c.done.Add(1)
	method, body := http.MethodGet, io.Reader(nil)
	if size := c.row.size; size > 0 {
		method, body = http.MethodPut, &stream{size: int64(size), left: int64(size), content: c.content}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url, body)
	if err != nil {
		panic(err) // the URLs are valid
	}
	req.Header.Set(failAlways, "1")
	if body != nil {
		req.ContentLength = int64(c.row.size)
		req.Header.Set(bodySize, strconv.Itoa(c.row.size))
	}
	if resp, err := c.client.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// footprint returns the resources that this process holds.
func footprint() held {
	// The second collection empties the caches of sync.Pool, and each of them
	// halves the stacks of which a quarter suffices.
	for range 6 {
		runtime.GC()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return held{memory: float64(stats.HeapAlloc + stats.StackInuse), goroutines: float64(runtime.NumGoroutine())}
}

// countedConn is a connection that is counted while it is open.
type countedConn struct {
	net.Conn
	open   *atomic.Int64
	closed sync.Once
}

func (c *countedConn) Close() error {
	c.closed.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

// run measures and returns the table.
func (r waitingRow) run(s *child.Server, p plan, rng *rand.Rand) table {
	all := contenders()
	// The runtime keeps the memory that it allocates for the first goroutines.
	if _, err := newLocalCrowd(all[0], r).measure(p.waiting); err != nil {
		return table{title: r.title, failures: []string{r.title + ": " + err.Error()}}
	}
	results, problems := make(map[string][]held), make(map[string][]string)
	for range p.waitingRounds {
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, peer := range all {
			local, err1 := newLocalCrowd(peer, r).measure(p.waiting)
			h, err2 := newCrowd(s, peer, r).measure(p.connected)
			if err := cmp.Or(err1, err2); err != nil {
				problems[peer.Name] = []string{err.Error()}
				continue
			}
			h.memory = local.memory
			results[peer.Name] = append(results[peer.Name], h)
		}
	}
	t := table{
		title: r.title,
		head:  []string{"client", "memory per request, of " + formatCount(p.waiting), "goroutines", "sockets", "check"},
	}
	for _, peer := range contenders() {
		cells := heldCells(results[peer.Name])
		found := problems[peer.Name]
		if sockets := cells[2]; sockets != "0.00" && sockets != none {
			found = append(found, "holds connections")
		}
		if medianOf(results[peer.Name], memory) > maxMemory*medianOf(results[naive], memory) {
			found = append(found, "needs a larger stack")
		}
		t.add(peer.Name, cells, found)
	}
	return t
}

// heldCells returns the medians as cells.
func heldCells(results []held) []string {
	if len(results) == 0 {
		return []string{none, none, none}
	}
	return []string{
		formatSize(medianOf(results, memory)),
		fmt.Sprintf("%.2f", medianOf(results, func(h held) float64 { return h.goroutines })),
		fmt.Sprintf("%.2f", medianOf(results, func(h held) float64 { return h.sockets })),
	}
}

// medianOf returns the median of a field, or NaN without results.
func medianOf(results []held, field func(held) float64) float64 {
	values := make([]float64, len(results))
	for i, h := range results {
		values[i] = field(h)
	}
	if len(values) == 0 {
		return math.NaN()
	}
	return math.Abs(summarize(values).median) // no -0.00
}

func memory(h held) float64 { return h.memory }
