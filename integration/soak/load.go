package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/integration/internal/leaks"
	"github.com/seed421102f4/httpretry/strategies"
)

// hosts are more names than httpretry remembers. Now and then, a GET goes to
// one of them.
const hosts = 1500

// lane is a client of the server of one protocol.
type lane struct {
	addr    string
	isHTTP2 bool
	base    *http.Transport
	client  *http.Client
}

func newLane(addr string, isHTTP2 bool, clients int) (*lane, error) {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.Proxy = nil
	base.MaxIdleConns, base.MaxIdleConnsPerHost = 2*clients, clients
	// net/http keeps a lost HTTP/2 connection in memory for this long.
	base.IdleConnTimeout = 5 * time.Second
	base.Protocols = new(http.Protocols)
	base.Protocols.SetHTTP1(!isHTTP2)
	base.Protocols.SetUnencryptedHTTP2(isHTTP2)
	// All names of hosts lead to the server.
	base.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	transport, err := httpretry.New(httpretry.Config{Base: base, Policy: httpretry.Policy{
		MaxAttempts:    4,
		AttemptTimeout: time.Second,
		Backoff:        strategies.FullJitter{Base: 5 * time.Millisecond, Max: 50 * time.Millisecond},
		ReplayBuffer:   maxPayload,
	}})
	if err != nil {
		return nil, err
	}
	return &lane{addr, isHTTP2, base, &http.Client{Transport: transport, Timeout: 20 * time.Second}}, nil
}

// load sends requests of all kinds and checks their responses.
type load struct {
	lanes    [2]*lane
	bodies   leaks.Bodies
	ids      atomic.Uint64
	requests atomic.Int64
	wrong    atomic.Int64 // response bodies

	mu       sync.Mutex
	outcomes map[outcome]int
}

type outcome struct{ kind, result string }

const (
	succeeded = "200"
	brokeOff  = "200, then the body broke off"
)

func newLoad(addr1, addr2 string, clients int) (*load, error) {
	one, err1 := newLane(addr1, false, clients)
	two, err2 := newLane(addr2, true, clients)
	return &load{lanes: [2]*lane{one, two}, outcomes: map[outcome]int{}}, errors.Join(err1, err2)
}

func (l *load) closeIdle() {
	for _, lane := range l.lanes {
		lane.client.CloseIdleConnections()
	}
}

// kind is a kind of request.
type kind struct {
	name, method string
	share        int // of all requests
	keyed        bool
	streamed     bool // its body has no GetBody
}

// kinds returns all kinds. A keyless POST is one that must not arrive twice.
func kinds() []kind {
	return []kind{
		{name: "GET", method: http.MethodGet, share: 4},
		{name: "keyed POST", method: http.MethodPost, share: 2, keyed: true},
		{name: "keyless POST", method: http.MethodPost, share: 1},
		{name: "keyless POST of a stream", method: http.MethodPost, share: 1, streamed: true},
		{name: "PUT of a stream", method: http.MethodPut, share: 2, streamed: true},
	}
}

func drawKind(rnd *rand.Rand) kind {
	n := rnd.IntN(10) // the sum of the shares
	for _, k := range kinds() {
		if n -= k.share; n < 0 {
			return k
		}
	}
	panic("the shares have another sum")
}

// knowHosts sends a GET to each name of a host, so that the tables of hosts do
// not fill up while they are observed.
func (l *load) knowHosts(clients int) {
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for n := client; n < hosts; n += clients {
				l.sendOne(kinds()[0], l.lanes[0], n, headLen)
			}
		})
	}
	wg.Wait()
}

// run sends requests from many clients until the context ends. Requests that
// were sent before then run to their ends.
func (l *load) run(ctx context.Context, clients int, seed uint64) {
	var wg sync.WaitGroup
	for client := range uint64(clients) {
		rnd := rand.New(rand.NewPCG(seed, client))
		wg.Go(func() {
			for ctx.Err() == nil {
				host := -1
				if rnd.IntN(100) == 0 {
					host = rnd.IntN(hosts)
				}
				l.sendOne(drawKind(rnd), l.lanes[client%2], host, drawSize(rnd))
			}
		})
	}
	wg.Wait()
}

// drawSize returns the size of a payload. Most are small, so that the memory of
// the requests on their way varies little. Some are larger than httpretry's
// pieces.
func drawSize(rnd *rand.Rand) int {
	return headLen + rnd.IntN(maxPayload-headLen)>>rnd.IntN(12)
}

// sendOne sends a request, to the host with a number if that is not negative,
// and counts its outcome.
func (l *load) sendOne(k kind, lane *lane, host, size int) {
	id := l.ids.Add(1)
	req, err := l.newRequest(k, lane, host, payload{id, size, k.method == http.MethodPost && !k.keyed})
	if err != nil {
		panic(err) // the URLs are valid
	}
	l.requests.Add(1)
	if k.method == http.MethodGet && lane.isHTTP2 {
		id = 0 // the server does not decode the path
	}
	result := l.send(lane, req, id)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcomes[outcome{k.name, result}]++
}

func (l *load) newRequest(k kind, lane *lane, host int, p payload) (*http.Request, error) {
	url := "http://" + lane.addr + "/" + strconv.FormatUint(p.id, 10)
	if host >= 0 && !lane.isHTTP2 {
		url = fmt.Sprintf("http://host-%d.test/%d", host, p.id)
	}
	var body io.Reader
	switch {
	case k.streamed:
		body = l.bodies.New(bytes.NewReader(p.bytes()))
	case k.method != http.MethodGet:
		body = bytes.NewReader(p.bytes())
	}
	req, err := http.NewRequest(k.method, url, body)
	if err != nil {
		return nil, err
	}
	req.Close = host >= 0 && !lane.isHTTP2 // no idle connection to each of them
	if k.streamed && p.id%2 == 0 {
		req.ContentLength = int64(p.size) // else it is not known
	}
	if k.keyed {
		req.Header.Set("Idempotency-Key", strconv.FormatUint(p.id, 10))
	}
	return req, nil
}

// send returns the result of a request whose response has an id.
func (l *load) send(lane *lane, req *http.Request, id uint64) string {
	resp, err := lane.client.Do(req)
	if err != nil {
		return "error"
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return strconv.Itoa(resp.StatusCode)
	}
	// The first part of a body that broke off has to be right, too.
	want := response(id).bytes()
	if !bytes.HasPrefix(want, body) || err == nil && len(body) != len(want) {
		l.wrong.Add(1)
		return "200 with a wrong body"
	}
	if err != nil {
		return brokeOff
	}
	return succeeded
}
