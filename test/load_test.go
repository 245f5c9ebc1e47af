package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/strategies"
)

// sendCrowd sends n concurrent requests to each URL. The first attempts return
// only when all have been answered, so that all requests ask for a retry at the
// same time.
func sendCrowd(t *testing.T, cfg httpretry.Config, n int, urls ...string) {
	var gate sync.WaitGroup
	gate.Add(n * len(urls))
	next := cfg.Base
	cfg.Base = contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if req.Header.Get("Retry-Attempt") == "" {
			gate.Done()
			gate.Wait()
		}
		return resp, err
	})
	transport := contract.New(t, cfg)
	var wg sync.WaitGroup
	for _, url := range urls {
		for range n {
			wg.Go(func() {
				assertStatus(t, transport, contract.Request(t, "GET", url, ""), 503)
			})
		}
	}
	wg.Wait()
}

// countRetries starts a server that counts the retries that arrive, by Host
// header.
func countRetries(t *testing.T,
	answer func(r *http.Request) int) (base *http.Transport, retries func(host string) int) {
	var mu sync.Mutex
	seen := map[string]int{}
	srv := contract.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Retry-Attempt") != "" {
			mu.Lock()
			seen[r.Host]++
			mu.Unlock()
		}
		w.WriteHeader(answer(r))
	})
	base = connectTo(t, strings.TrimPrefix(srv.URL, "http://"))
	base.MaxConnsPerHost, base.MaxIdleConns, base.MaxIdleConnsPerHost = 50, 0, 50
	return base, func(host string) int { mu.Lock(); defer mu.Unlock(); return seen[host] }
}

// Hazard I1, I5: of a thousand requests that fail at the same time, ten are
// retried. Retries to one host do not use up another host's budget.
func TestCrowdAtTheBudget(t *testing.T) {
	fails := func(r *http.Request) int {
		if r.URL.Path == "/ok" {
			return 200
		}
		return 503
	}
	for name, tt := range map[string]struct {
		successes int // before
		budget    *httpretry.HostBudget
		each      int // requests to each URL
		urls      []string
	}{
		"burst": {0, &httpretry.HostBudget{Burst: 10, Window: time.Hour}, 1000,
			[]string{"http://a.test/"}},
		"both": {100, &httpretry.HostBudget{Ratio: 0.05, Burst: 5, Window: time.Hour}, 1000,
			[]string{"http://a.test/"}},
		"several hosts": {0, &httpretry.HostBudget{Burst: 10, Window: time.Hour}, 200,
			[]string{"http://a.test/", "http://b.test/", "http://c.test:81/", "http://A.test./"}},
	} {
		t.Run(name, func(t *testing.T) {
			base, retries := countRetries(t, fails)
			policy := contract.RetryEvery(0)
			policy.Budget = tt.budget
			cfg := httpretry.Config{Base: base, Policy: policy}
			before := contract.New(t, cfg)
			for range tt.successes {
				contract.Send(t, before, contract.Request(t, "GET", "http://a.test/ok", ""))
			}
			sendCrowd(t, cfg, tt.each, tt.urls...)
			assert.Equal(t, 10, retries("a.test")+retries("A.test.")+retries("A.test"))
			assert.Zero(t, contract.Balance(tt.budget, "http://a.test"))
			if len(tt.urls) > 1 {
				assert.Equal(t, []int{10, 10}, []int{retries("b.test"), retries("c.test:81")})
				sendCrowd(t, cfg, 1, "http://d.test/")
				assert.Equal(t, 4, retries("d.test"), "which nobody has asked before")
			}
		})
	}
}

// Hazard I8, D5: thousands of requests wait. Each holds a goroutine and a few
// kilobytes, but no lock and no connection.
func TestManyWait(t *testing.T) {
	const each = 12 << 10
	requests := 10_000
	if contract.RaceEnabled {
		requests = 2_000 // to save time
	}
	synctest.Test(t, func(t *testing.T) {
		base := faults.Pipe(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Retry-Attempt") == "" && r.URL.Path != "/ok" {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, "not now") // holds the connection until it is read
			}
		})
		base.MaxConnsPerHost = 5
		budget := &httpretry.HostBudget{Burst: requests}
		policy := contract.RetryEvery(time.Hour)
		policy.Budget = budget
		transport := unchecked(t, base, policy)
		reqs := make([]*http.Request, requests)
		for i := range reqs {
			reqs[i] = newGet(t)
		}
		contract.Send(t, transport, contract.Request(t, "GET", "http://a.test/ok", ""))
		synctest.Wait()
		memory, goroutines := memoryInUse(), runtime.NumGoroutine()
		var wg sync.WaitGroup
		for _, req := range reqs {
			wg.Go(func() { assertStatus(t, transport, req, 200) })
		}
		synctest.Wait() // until all of them wait
		perRequest := (memoryInUse() - memory) / int64(requests)
		t.Logf("%d requests wait: %d bytes each, the caller's goroutine included",
			requests, perRequest)
		if !contract.RaceEnabled {
			assert.Less(t, perRequest, int64(each))
		}
		assert.LessOrEqual(t, runtime.NumGoroutine()-goroutines, requests+5*5,
			"and the connections' own")
		assert.Zero(t, contract.Balance(budget, "http://a.test"))
		contract.Send(t, transport, contract.Request(t, "GET", "http://a.test/ok", ""))
		wg.Wait()
	})
}

func assertStatus(t *testing.T, transport http.RoundTripper, req *http.Request, status int) {
	resp, err := transport.RoundTrip(req)
	if assert.NoError(t, err) {
		assert.Equal(t, status, resp.StatusCode)
		assert.NoError(t, resp.Body.Close())
	}
}

// memoryInUse returns the number of bytes in live objects and in stacks.
func memoryInUse() int64 {
	live := contract.HeapInUse()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return live + int64(m.StackInuse)
}

// leftoverGoroutines counts the goroutines that may outlive their requests:
// those of package httpretry, of contexts that were not canceled, and of
// connections.
func leftoverGoroutines() int {
	buf := make([]byte, 1<<20)
	for n := runtime.Stack(buf, true); n == len(buf); n = runtime.Stack(buf, true) {
		buf = make([]byte, 2*len(buf))
	}
	count := 0
	for stack := range strings.SplitSeq(strings.TrimRight(string(buf), "\x00"), "\n\n") {
		for _, mark := range []string{"/httpretry.(", "context.(*cancelCtx).propagateCancel",
			"net/http.(*persistConn)", "net/http.(*http2ClientConn)",
			"net/http.(*conn).serve", "net/http.(*http2serverConn)"} {
			if strings.Contains(stack, mark) {
				count++
				break
			}
		}
	}
	return count
}

func openFiles(t *testing.T) int {
	// For the first connection of a process, the runtime opens files that stay.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no way to count open files here: ", err)
	}
	return len(entries)
}

// requireSettled fails the test unless the goroutines and connections of its
// requests end.
func requireSettled(t *testing.T, goroutines int, base *http.Transport, open *atomic.Int32) {
	t.Helper()
	nothing := func() bool {
		base.CloseIdleConnections()
		return leftoverGoroutines() <= goroutines && open.Load() == 0
	}
	if !assert.Eventually(t, nothing, waitLimit, 10*time.Millisecond) {
		buf := make([]byte, 1<<20)
		t.Fatalf("%d goroutines, %d before; %d connections:\n%s", leftoverGoroutines(), goroutines,
			open.Load(), buf[:runtime.Stack(buf, true)])
	}
}

// countOpen makes srv, which must not be started yet, count its open
// connections.
func countOpen(srv *httptest.Server) *atomic.Int32 {
	open := new(atomic.Int32)
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		}
	}
	return open
}

// panicTrap panics in every method while it is armed.
type panicTrap struct {
	armed atomic.Bool
	slog.Handler
}

func (p *panicTrap) spring() {
	if p != nil && p.armed.Load() {
		panic("boom")
	}
}

func (p *panicTrap) Start() strategies.Sequence { p.spring(); return strategies.Constant{}.Start() }

func (p *panicTrap) Enabled(context.Context, slog.Level) bool { return true }

func (p *panicTrap) Handle(context.Context, slog.Record) error { p.spring(); return nil }

type trapBudget struct {
	httpretry.Unlimited
	withdraw, record *panicTrap
}

func (b trapBudget) Withdraw(context.Context, httpretry.AttemptResult) bool {
	b.withdraw.spring()
	return true
}

func (b trapBudget) Record(_, _ httpretry.AttemptResult) { b.record.spring() }

// panicPlaces returns the places at which code of the caller runs.
func panicPlaces(p *panicTrap) map[string]func(*httpretry.Config, *http.Request) {
	type cfg = *httpretry.Config
	type req = *http.Request
	keyless := func(r req) { r.Header.Del("Idempotency-Key") }
	observe := func(context.Context, httpretry.Event) { p.spring() }
	return map[string]func(cfg, req){
		"Base": func(c cfg, _ req) {
			next := c.Base
			c.Base = contract.BaseFunc(
				func(r req) (*http.Response, error) { p.spring(); return next.RoundTrip(r) })
		},
		"read ahead": func(c cfg, _ req) {
			next := c.Base
			c.Policy.ReadAhead = 1 << 10
			c.Base = contract.BaseFunc(func(r req) (*http.Response, error) {
				resp, err := next.RoundTrip(r)
				if err == nil {
					resp.Body = readHook{resp.Body, p.spring}
				}
				return resp, err
			})
		},
		"Classify": func(c cfg, _ req) {
			c.Policy.Classify = func(r req, resp *http.Response, err error) httpretry.Outcome {
				p.spring()
				return httpretry.Classify(r, resp, err)
			}
		},
		"RetryAfter": func(c cfg, _ req) {
			c.Policy.RetryAfter = func(*http.Response) (time.Duration, bool) {
				p.spring()
				return 0, false
			}
		},
		"Idempotent": func(c cfg, r req) {
			keyless(r)
			c.Policy.Idempotent = func(req) bool { p.spring(); return true }
		},
		"NewIdempotencyKey": func(c cfg, r req) {
			keyless(r)
			c.Policy.NewIdempotencyKey = func(req) string { p.spring(); return "k" }
		},
		"Observe":            func(c cfg, _ req) { c.Observe = observe },
		"slog handler":       func(c cfg, _ req) { c.Observe = httpretry.LogEvents(slog.New(p)) },
		"Backoff":            func(c cfg, _ req) { c.Policy.Backoff = p },
		"Backoff, after 429": func(c cfg, r req) { r.URL.Path = "/429"; c.Policy.Backoff = p },
		"sequence": func(c cfg, _ req) {
			c.Policy.Backoff = strategies.Func(func(int) time.Duration { p.spring(); return 0 })
		},
		"Withdraw": func(c cfg, _ req) { c.Policy.Budget = trapBudget{withdraw: p} },
		"Record":   func(c cfg, _ req) { c.Policy.Budget = trapBudget{record: p} },
		"Record, after a success": func(c cfg, r req) {
			r.URL.Path = "/404"
			c.Policy.Budget = trapBudget{record: p}
		},
		"GetBody": func(_ cfg, r req) {
			next := r.GetBody
			r.GetBody = func() (io.ReadCloser, error) { p.spring(); return next() }
		},
		"Observe, after a drop": func(c cfg, r req) { r.URL.Path = "/drop"; c.Observe = observe },
		"second attempt": func(c cfg, _ req) {
			c.Observe = func(_ context.Context, e httpretry.Event) {
				if e.Attempt.Number == 2 {
					p.spring()
				}
			}
		},
	}
}

// Hazard K4: a panic in the caller's code affects only its own request. The
// next request can use the only connection of the same transport. The budget gets
// each attempt that was sent, and each charge is recorded or refunded.
func TestPanicsLeaveNothingBehind(t *testing.T) {
	srv := httptest.NewUnstartedServer(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			code, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(code)
			_, _ = w.Write(make([]byte, 200<<10)) // too much to be drained
		}))
	open := countOpen(srv)
	srv.Start()
	t.Cleanup(srv.Close)
	for name := range panicPlaces(nil) {
		for _, timeout := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprintf("%s/timeout %v", name, timeout), func(t *testing.T) {
				goroutines := leftoverGoroutines()
				base := faults.Base(t, nil)
				base.MaxConnsPerHost = 1
				p := new(panicTrap)
				policy := withTimeout(timeout)
				cfg := httpretry.Config{Policy: policy, Base: base}
				body := contract.Body{ReadCloser: io.NopCloser(strings.NewReader("payload"))}
				req := contract.Request(t, "POST", srv.URL+"/503", "payload")
				req = req.WithContext(hiddenContext{req.Context()})
				if timeout > 0 { // otherwise the first attempt is the caller's own request
					req.Body = &body
				}
				req.Header.Set("Idempotency-Key", "k")
				panicPlaces(p)[name](&cfg, req)
				sent, next := 0, cfg.Base
				cfg.Base = contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					sent++
					return next.RoundTrip(req)
				})
				budget := contract.Audit{Budget: cfg.Policy.Budget}
				if timeout > 0 { // with another budget, no request is plain
					cfg.Policy.Budget = &budget
				}
				transport := contract.Unchecked(t, cfg) // the checks do not expect a panic

				p.armed.Store(true)
				assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(req) })
				p.armed.Store(false)
				if timeout > 0 {
					budget.Check(t, sent)
				}
				assert.Eventually(t, func() bool { return timeout == 0 || body.Closes() == 1 },
					waitLimit, time.Millisecond, "closes of the request's body")

				waitFor(t, "the next request", func() {
					resp, err := transport.RoundTrip(contract.Request(t, "GET", srv.URL+"/200", ""))
					if assert.NoError(t, err) {
						assert.Len(t, contract.ReadBody(t, resp), 200<<10)
					}
				})
				requireSettled(t, goroutines, base, open)
			})
		}
	}
}

// mixedRequests are requests, and functions by which callers use their
// responses.
var mixedRequests = []struct {
	method, path string
	use          func(*http.Response)
	cancel       bool // while it waits
	http1        bool // only
}{
	{method: "GET", path: "/200", use: readAll},
	{method: "GET", path: "/200", use: closeUnread},
	{method: "PUT", path: "/200", use: readAll},
	{method: "POST", path: "/200", use: closeUnread}, // not retried
	{method: "GET", path: "/always", use: closeUnread},
	{method: "GET", path: "/404", use: readAll},
	{method: "HEAD", path: "/200"},
	{method: "GET", path: "/204"},
	{method: "GET", path: "/304"},
	{method: "GET", path: "/drop", use: readAll},
	{method: "POST", path: "/drop", use: readAll},
	{method: "GET", path: "/slow", use: readAll},
	// retried if its first attempt ends before it is sent
	{method: "POST", path: "/slow", use: readAll},
	{method: "PUT", path: "/big", use: closeUnread},
	{method: "GET", path: "/big", use: readAll},
	{method: "GET", path: "/200", cancel: true},
	{method: "PUT", path: "/big", cancel: true},
	{method: "GET", path: "/101", use: closeUnread, http1: true},
}

func readAll(resp *http.Response) {
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
}
func closeUnread(resp *http.Response) { _ = resp.Body.Close() }

// serveMixed fails the first attempt of each request, in different ways.
func serveMixed(w http.ResponseWriter, r *http.Request) {
	first := r.Header.Get("Retry-Attempt") == ""
	switch path := strings.TrimPrefix(r.URL.Path, "/"); {
	case path == "drop" && first:
		panic(http.ErrAbortHandler)
	case path == "slow" && first:
		_, _ = io.Copy(io.Discard, r.Body) // before, net/http does not watch the connection
		<-r.Context().Done()
	case path == "101" && !first:
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = rw.WriteString(
				"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_ = rw.Flush()
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	case first || path == "always":
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "not now")
	default:
		_, _ = io.Copy(io.Discard, r.Body)
		if code, err := strconv.Atoi(path); err == nil {
			w.WriteHeader(code)
		}
		if path == "big" {
			_, _ = w.Write(make([]byte, 1<<20))
		} else if path != "204" && path != "304" {
			_, _ = io.WriteString(w, "the body")
		}
	}
}

// Hazard E6, E7, K6, D6: however requests end, no goroutine, context,
// connection or file of theirs remains.
func TestNothingIsLeft(t *testing.T) {
	for _, protocol := range []string{contract.HTTP1, contract.HTTP2} {
		t.Run(protocol, func(t *testing.T) {
			goroutines, files := leftoverGoroutines(), openFiles(t)
			srv := httptest.NewUnstartedServer(http.HandlerFunc(serveMixed))
			open, base := countOpen(srv), faults.Base(t, nil)
			if protocol == contract.HTTP2 {
				base = faults.HTTP2Base(t)
				srv.Config.Protocols = base.Protocols
			}
			srv.Start()
			parent := hiddenContext{t.Context()} // nothing cancels it
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for i, m := range mixedRequests {
						if !m.http1 || protocol == contract.HTTP1 {
							sendMixed(t, base, srv.URL, parent, i)
						}
					}
				})
			}
			wg.Wait()
			requireSettled(t, goroutines, base, open)
			srv.Close()
			assert.Eventually(t, func() bool { return openFiles(t) <= files }, waitLimit,
				10*time.Millisecond, "open files")
		})
	}
}

func sendMixed(t *testing.T, base http.RoundTripper, url string, parent context.Context, i int) {
	m := mixedRequests[i]
	policy := twoAttempts
	policy.AttemptTimeout = 5 * time.Second
	if m.path == "/slow" {
		policy.AttemptTimeout = 20 * time.Millisecond
	}
	ctx, cancel := parent, func() {}
	if m.cancel {
		policy.Backoff = strategies.Constant{Wait: time.Hour}
		ctx, cancel = context.WithCancel(parent)
	}
	defer cancel()
	body := ""
	if m.method == "PUT" || m.method == "POST" {
		body = strings.Repeat("x", 10<<10)
	}
	req := contract.Request(t, m.method, url+m.path, body).WithContext(ctx)
	if i%2 == 0 && body != "" {
		req.GetBody = nil
		req.Body = io.NopCloser(struct{ io.Reader }{strings.NewReader(body)})
	}
	if m.path == "/101" {
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
	}
	resp, err := contract.Unchecked(t, httpretry.Config{
		Base: base, Policy: policy,
		Observe: func(context.Context, httpretry.Event) { cancel() }}).RoundTrip(req)
	if m.cancel && !errors.Is(err, context.Canceled) {
		t.Errorf("%v: %v", m, err)
	}
	if err == nil && m.use != nil {
		m.use(resp)
	}
}
