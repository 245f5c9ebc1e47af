package httpretry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
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

// heap returns the bytes of live objects.
func heap() int64 {
	runtime.GC()
	runtime.GC() // for what the first one finalized, and what sync.Pool keeps
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Hazard H4, H7: whoever makes up hosts, as a redirecting attacker can, fills
// no memory.
func TestManyHosts(t *testing.T) {
	hosts := 200_000
	if raceEnabled {
		hosts = 2_000 // eviction takes a hundred times as long
	}
	shared := &httpretry.HostBudget{}
	for name, cfg := range map[string]httpretry.Config{
		"budget of its own": {},
		"shared budget":     {Policy: httpretry.Policy{Budget: shared}},
		"policies":          {Hosts: map[string]httpretry.Policy{"*.test": {MaxAttempts: 2}, "*.7.test": {MaxAttempts: 2, Budget: shared}}},
	} {
		t.Run(name, func(t *testing.T) {
			var sends atomic.Int64
			cfg.Base = baseFunc(func(req *http.Request) (*http.Response, error) {
				sends.Add(1)
				if req.URL.Path == "/flaky" && httpretry.Attempt(req.Context()) == 1 {
					return &http.Response{StatusCode: 503, Body: http.NoBody}, nil
				}
				return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
			})
			cfg.Policy.Backoff = strategies.Constant{}
			for pattern, p := range cfg.Hosts {
				p.Backoff = strategies.Constant{}
				cfg.Hosts[pattern] = p
			}
			transport := contractless(t, cfg) // the checks would keep the responses
			before := heap()
			visit(t, transport, hosts)
			grown := heap() - before
			t.Logf("%d hosts: %d KiB", hosts, grown>>10)
			assert.EqualValues(t, 3*hosts, sends.Load(), "each host has its own first retry")
			assert.Less(t, grown, int64(64<<20))
			runtime.KeepAlive(transport)
		})
	}
}

// visit sends two requests to each host: one that fails at first, and one that
// does not.
func visit(t *testing.T, transport http.RoundTripper, hosts int) {
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; i < hosts; i += 4 {
				for _, path := range []string{"/flaky", "/"} {
					u := &url.URL{Scheme: "http", Host: fmt.Sprintf("h%d.%d.test", i, i%10), Path: path}
					resp, err := transport.RoundTrip((&http.Request{Method: "GET", URL: u, Header: http.Header{}}).WithContext(t.Context()))
					if err != nil || resp.StatusCode != 200 {
						t.Errorf("%v: %v, %v", u, resp, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// crowd sends a request each from n goroutines to every URL. None of the first
// attempts returns before all have been answered, so that all ask for a retry
// at once.
func crowd(t *testing.T, cfg httpretry.Config, n int, urls ...string) {
	var gate sync.WaitGroup
	gate.Add(n * len(urls))
	next := cfg.Base
	cfg.Base = baseFunc(func(req *http.Request) (*http.Response, error) {
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
				resp, err := transport.RoundTrip(request(t, "GET", url, ""))
				if assert.NoError(t, err) {
					assert.Equal(t, 503, resp.StatusCode)
					assert.NoError(t, resp.Body.Close())
				}
			})
		}
	}
	wg.Wait()
}

// retriesCounted counts the retries that arrive, by the Host header.
func retriesCounted(t *testing.T, answer func(r *http.Request) int) (base *http.Transport, retries func(host string) int) {
	var mu sync.Mutex
	seen := map[string]int{}
	srv := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Retry-Attempt") != "" {
			mu.Lock()
			seen[r.Host]++
			mu.Unlock()
		}
		w.WriteHeader(answer(r))
	})
	base = allTo(t, strings.TrimPrefix(srv.URL, "http://"))
	base.MaxConnsPerHost, base.MaxIdleConns, base.MaxIdleConnsPerHost = 50, 0, 50
	return base, func(host string) int { mu.Lock(); defer mu.Unlock(); return seen[host] }
}

// Hazard I1, I5: a thousand requests that fail at once get ten retries between
// them, and one host's do not cost another's.
func TestCrowdAtTheBudget(t *testing.T) {
	fails := func(r *http.Request) int {
		if r.URL.Path == "/ok" {
			return 200
		}
		return 503
	}
	for name, budget := range map[string]*httpretry.HostBudget{
		"floor": {Floor: 10, Window: time.Hour},
		"ratio": {Ratio: 0.1, Floor: -1, Window: time.Hour},
		"both":  {Ratio: 0.05, Floor: 5, Window: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			base, retries := retriesCounted(t, fails)
			policy := every(0)
			policy.Budget = budget
			cfg := httpretry.Config{Base: base, Policy: policy}
			if name != "floor" {
				succeed(t, cfg, "http://a.test/ok", 100)
			}
			crowd(t, cfg, 1000, "http://a.test/")
			assert.Equal(t, 10, retries("a.test"))
			assert.Zero(t, budget.Balance("a.test"))
		})
	}
	t.Run("several hosts", func(t *testing.T) {
		base, retries := retriesCounted(t, fails)
		policy := every(0)
		policy.Budget = &httpretry.HostBudget{Floor: 10, Window: time.Hour}
		crowd(t, httpretry.Config{Base: base, Policy: policy}, 200, "http://a.test/", "http://b.test/", "http://c.test:81/", "http://A.test./")
		assert.Equal(t, []int{10, 10, 10}, []int{retries("a.test") + retries("A.test.") + retries("A.test"), retries("b.test"), retries("c.test:81")})
		crowd(t, httpretry.Config{Base: base, Policy: policy}, 1, "http://d.test/")
		assert.Equal(t, 4, retries("d.test"), "which nobody has asked before")
	})
}

// succeed makes n requests that succeed.
func succeed(t *testing.T, cfg httpretry.Config, url string, n int) {
	transport := contract.New(t, cfg)
	for range n {
		resp, err := transport.RoundTrip(request(t, "GET", url, ""))
		require.NoError(t, err)
		finish(t, resp)
	}
}

// Hazard I7: without budget the result is what it is without a retrier, at
// once.
func TestBudgetExhaustedOnTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := strings.Repeat("x", 1<<20)
		attempts := 0
		base := faults.Pipe(t, func(w http.ResponseWriter, r *http.Request) {
			attempts++
			if r.URL.Path == "/drop" {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("X-Header", "kept")
			w.Header().Set("Retry-After", "30")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, body)
		})
		policy := every(time.Minute)
		policy.Budget = &httpretry.HostBudget{Floor: -1}
		events := new(record)
		transport := contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: events.observe})
		start := time.Now()

		resp, err := transport.RoundTrip(request(t, "GET", "http://a.test/", ""))
		require.NoError(t, err)
		assert.Equal(t, httpretry.ReasonBudget, events.reason())
		assert.Equal(t, []string{"kept"}, resp.Header["X-Header"])
		assert.Equal(t, body, finish(t, resp))

		_, err = transport.RoundTrip(request(t, "PUT", "http://a.test/drop", ""))
		require.ErrorIs(t, err, io.EOF)
		assert.Equal(t, httpretry.ReasonBudget, events.reason())
		assert.Zero(t, time.Since(start))
		assert.Equal(t, 2, attempts)
	})
}

// Hazard I8, D5: thousands of requests wait. They hold a goroutine and some
// kilobytes each, no lock and no connection.
func TestManyWait(t *testing.T) {
	const each = 12 << 10
	requests := 10_000
	if raceEnabled {
		requests = 2_000 // to save time
	}
	synctest.Test(t, func(t *testing.T) {
		base := faults.Pipe(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Retry-Attempt") == "" && r.URL.Path != "/ok" {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, "not now") // what holds a connection until it is read
			}
		})
		base.MaxConnsPerHost = 5
		budget := &httpretry.HostBudget{Floor: requests}
		policy := every(time.Hour)
		policy.Budget = budget
		transport := contractless(t, httpretry.Config{Base: base, Policy: policy})
		reqs := make([]*http.Request, requests)
		for i := range reqs {
			reqs[i] = request(t, "GET", "http://a.test/", "")
		}
		succeed(t, httpretry.Config{Base: base, Policy: policy}, "http://a.test/ok", 1)
		synctest.Wait()
		memory, goroutines := inUse(), runtime.NumGoroutine()
		var wg sync.WaitGroup
		for _, req := range reqs {
			wg.Go(func() { assertSuccess(t, transport, req) })
		}
		synctest.Wait() // all of them wait
		perRequest := (inUse() - memory) / int64(requests)
		t.Logf("%d requests wait: %d bytes each, the caller's goroutine included", requests, perRequest)
		if !raceEnabled {
			assert.Less(t, perRequest, int64(each))
		}
		assert.LessOrEqual(t, runtime.NumGoroutine()-goroutines, requests+5*5, "and the connections' own")
		assert.Zero(t, budget.Balance("a.test"))
		resp, err := transport.RoundTrip(request(t, "GET", "http://a.test/ok", ""))
		require.NoError(t, err)
		finish(t, resp)
		wg.Wait()
	})
}

func assertSuccess(t *testing.T, transport http.RoundTripper, req *http.Request) {
	resp, err := transport.RoundTrip(req)
	if assert.NoError(t, err) {
		assert.Equal(t, 200, resp.StatusCode)
		assert.NoError(t, resp.Body.Close())
	}
}

// inUse returns the bytes of live objects and of stacks.
func inUse() int64 {
	live := heap()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return live + int64(m.StackInuse)
}

// leftovers counts the goroutines that requests may leave behind: this
// package's, those of contexts that were not canceled, and of connections.
func leftovers() int {
	buf := make([]byte, 1<<20)
	for n := runtime.Stack(buf, true); n == len(buf); n = runtime.Stack(buf, true) {
		buf = make([]byte, 2*len(buf))
	}
	count := 0
	for stack := range strings.SplitSeq(strings.TrimRight(string(buf), "\x00"), "\n\n") {
		for _, mark := range []string{"/httpretry.(", "context.(*cancelCtx).propagateCancel", "net/http.(*persistConn)", "net/http.(*http2ClientConn)",
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
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no way to count open files here: ", err)
	}
	return len(entries)
}

// settles fails unless nothing is left behind that was not there before.
func settles(t *testing.T, goroutines int, base *http.Transport, open *atomic.Int32) {
	t.Helper()
	nothing := func() bool {
		base.CloseIdleConnections()
		return leftovers() <= goroutines && open.Load() == 0
	}
	if !assert.Eventually(t, nothing, 30*time.Second, 10*time.Millisecond) {
		buf := make([]byte, 1<<20)
		t.Fatalf("%d goroutines, %d before; %d connections:\n%s", leftovers(), goroutines, open.Load(), buf[:runtime.Stack(buf, true)])
	}
}

// countOpen has srv, which is not started, count its open connections.
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

// trap panics while it is armed.
type trap struct {
	armed atomic.Bool
	slog.Handler
}

func (p *trap) spring() {
	if p.armed.Load() {
		panic("boom")
	}
}

func (p *trap) Deposit(string) { p.spring() }

func (p *trap) Withdraw(context.Context, string) bool { p.spring(); return true }

func (p *trap) Start() strategies.Sequence { p.spring(); return strategies.Constant{}.Start() }

func (p *trap) Enabled(context.Context, slog.Level) bool { return true }

func (p *trap) Handle(context.Context, slog.Record) error { p.spring(); return nil }

// panics are the places where a caller's code runs.
func panics(p *trap) map[string]func(*httpretry.Config, *http.Request) {
	type cfg = *httpretry.Config
	type req = *http.Request
	keyless := func(r req) { r.Header.Del("Idempotency-Key") }
	return map[string]func(cfg, req){
		"Base": func(c cfg, _ req) {
			next := c.Base
			c.Base = baseFunc(func(r req) (*http.Response, error) { p.spring(); return next.RoundTrip(r) })
		},
		"Classify": func(c cfg, _ req) {
			c.Policy.Classify = func(r *http.Response, err error) httpretry.Outcome { p.spring(); return httpretry.Classify(r, err) }
		},
		"Idempotent": func(c cfg, r req) {
			keyless(r)
			c.Policy.Idempotent = func(req) bool { p.spring(); return true }
		},
		"NewKey": func(c cfg, r req) { keyless(r); c.Policy.NewKey = func(req) string { p.spring(); return "k" } },
		"Observe": func(c cfg, _ req) {
			c.Observe = func(context.Context, httpretry.Event) { p.spring() }
		},
		"slog handler": func(c cfg, _ req) { c.Observe = httpretry.LogEvents(slog.New(p)) },
		"Backoff":      func(c cfg, _ req) { c.Policy.Backoff = p },
		"Throttled":    func(c cfg, r req) { r.URL.Path = "/429"; c.Policy.Throttled = p },
		"sequence": func(c cfg, _ req) {
			c.Policy.Backoff = strategies.Func(func(int) time.Duration { p.spring(); return 0 })
		},
		"Withdraw": func(c cfg, _ req) { c.Policy.Budget = p },
		"Deposit":  func(c cfg, r req) { r.URL.Path = "/404"; c.Policy.Budget = p },
		"GetBody": func(_ cfg, r req) {
			next := r.GetBody
			r.GetBody = func() (io.ReadCloser, error) { p.spring(); return next() }
		},
		"Observe, after a drop": func(c cfg, r req) {
			r.URL.Path = "/drop"
			c.Observe = func(context.Context, httpretry.Event) { p.spring() }
		},
		"second attempt": func(c cfg, _ req) {
			c.Observe = func(_ context.Context, e httpretry.Event) {
				if e.Attempt == 2 {
					p.spring()
				}
			}
		},
	}
}

// Hazard K4: a panic in the caller's code costs nothing but its request: the
// next one goes over the same transport, whose only connection is free.
func TestPanicsLeaveNothingBehind(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	for name := range panics(nil) {
		for _, timeout := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprintf("%s/timeout %v", name, timeout), func(t *testing.T) {
				goroutines := leftovers()
				base := faults.Base(t, nil)
				base.MaxConnsPerHost = 1
				parent := &opaque{done: make(chan struct{})}
				p := new(trap)
				policy := every(0)
				policy.AttemptTimeout = timeout
				policy.Throttled = strategies.Constant{}
				cfg := httpretry.Config{Policy: policy, Base: base}
				body := contract.Body{ReadCloser: io.NopCloser(strings.NewReader("payload"))}
				req := request(t, "POST", srv.URL+"/503", "payload").WithContext(parent)
				if timeout > 0 { // else the first attempt is the caller's own request
					req.Body = &body
				}
				req.Header.Set("Idempotency-Key", "k")
				panics(p)[name](&cfg, req)
				transport := contractless(t, cfg) // the checks do not expect a panic

				p.armed.Store(true)
				assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(req) })
				p.armed.Store(false)
				assert.Eventually(t, func() bool { return timeout == 0 || body.Closes() == 1 }, 5*time.Second, time.Millisecond, "closes of the request's body")

				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				resp, err := transport.RoundTrip(request(t, "GET", srv.URL+"/200", "").WithContext(ctx))
				require.NoError(t, err)
				assert.Len(t, finish(t, resp), 200<<10)
				settles(t, goroutines, base, open)
			})
		}
	}
}

// opaque is a context that package context knows nothing about: of each one
// that is derived from it, a goroutine waits for its end.
type opaque struct{ done chan struct{} }

func (*opaque) Deadline() (time.Time, bool) { return time.Time{}, false }
func (c *opaque) Done() <-chan struct{}     { return c.done }
func (*opaque) Value(any) any               { return nil }
func (c *opaque) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// mixed are requests and what callers do with their responses.
var mixed = []struct {
	method, path string
	use          func(*http.Response)
	cancel       bool // while it waits
	http1        bool // only
}{
	{method: "GET", path: "/200", use: readAll},
	{method: "GET", path: "/200", use: closeUnread},
	{method: "PUT", path: "/200", use: readAll},
	{method: "POST", path: "/200", use: closeUnread}, // not repeated
	{method: "GET", path: "/always", use: closeUnread},
	{method: "GET", path: "/404", use: readAll},
	{method: "HEAD", path: "/200"},
	{method: "GET", path: "/204"},
	{method: "GET", path: "/304"},
	{method: "GET", path: "/drop", use: readAll},
	{method: "POST", path: "/drop"},
	{method: "GET", path: "/slow", use: readAll},
	{method: "POST", path: "/slow"},
	{method: "PUT", path: "/big", use: closeUnread},
	{method: "GET", path: "/big", use: readAll},
	{method: "GET", path: "/200", cancel: true},
	{method: "PUT", path: "/big", cancel: true},
	{method: "GET", path: "/101", use: closeUnread, http1: true},
}

func readAll(resp *http.Response)     { _, _ = io.Copy(io.Discard, resp.Body); _ = resp.Body.Close() }
func closeUnread(resp *http.Response) { _ = resp.Body.Close() }

// serveMixed fails the first attempt of each request in one way or another.
func serveMixed(w http.ResponseWriter, r *http.Request) {
	first := r.Header.Get("Retry-Attempt") == ""
	switch path := strings.TrimPrefix(r.URL.Path, "/"); {
	case path == "drop" && first:
		panic(http.ErrAbortHandler)
	case path == "slow" && first:
		_, _ = io.Copy(io.Discard, r.Body) // only then does net/http watch the connection
		<-r.Context().Done()
	case path == "101" && !first:
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
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

// Hazard E6, E7, K6, D6: whatever happens to requests, in the end nothing is
// left of them: no goroutine, no context, no connection, no file.
func TestNothingIsLeft(t *testing.T) {
	for _, protocol := range []string{"HTTP/1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			goroutines, files := leftovers(), openFiles(t)
			srv := httptest.NewUnstartedServer(http.HandlerFunc(serveMixed))
			open, base := countOpen(srv), faults.Base(t, nil)
			if protocol == "HTTP/2" {
				base = faults.HTTP2Base(t)
				srv.Config.Protocols = base.Protocols
			}
			srv.Start()
			parent := &opaque{done: make(chan struct{})} // nothing cancels it
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for i, m := range mixed {
						if !m.http1 || protocol == "HTTP/1" {
							sendMixed(t, base, srv.URL, parent, i)
						}
					}
				})
			}
			wg.Wait()
			settles(t, goroutines, base, open)
			srv.Close()
			assert.Eventually(t, func() bool { return openFiles(t) <= files }, 5*time.Second, 10*time.Millisecond, "open files")
		})
	}
}

func sendMixed(t *testing.T, base http.RoundTripper, url string, parent context.Context, i int) {
	m := mixed[i]
	policy := every(0)
	policy.MaxAttempts = 2
	policy.AttemptTimeout = 5 * time.Second
	if m.path == "/slow" {
		policy.AttemptTimeout = 20 * time.Millisecond
	}
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	use := ctx
	if m.cancel {
		policy.Backoff = strategies.Constant{Wait: time.Hour}
	} else {
		use = parent
	}
	body := ""
	if m.method == "PUT" || m.method == "POST" {
		body = strings.Repeat("x", 10<<10)
	}
	req := request(t, m.method, url+m.path, body).WithContext(use)
	if i%2 == 0 && body != "" {
		req.GetBody = nil
		req.Body = io.NopCloser(struct{ io.Reader }{strings.NewReader(body)})
	}
	if m.path == "/101" {
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
	}
	resp, err := contractless(t, httpretry.Config{Base: base, Policy: policy, Observe: func(context.Context, httpretry.Event) {
		if m.cancel {
			cancel()
		}
	}}).RoundTrip(req)
	if m.cancel && !errors.Is(err, context.Canceled) {
		t.Errorf("%v: %v", m, err)
	}
	if err == nil && m.use != nil {
		m.use(resp)
	}
}

// Hazard A1, A8: goroutines share a request, and what a request is made of.
func TestSharedRequests(t *testing.T) {
	srv := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, map[string]string{"GET": "", "PUT": "payload", "POST": "payload"}[r.Method], string(body))
		assert.Equal(t, "1", r.Header.Get("X-Shared"))
		if r.Header.Get("Retry-Attempt") == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	policy := every(0)
	policy.AttemptTimeout = time.Minute
	policy.NewKey = httpretry.RandomKey
	base := faults.Base(t, nil)
	base.MaxConnsPerHost = 20
	transport := contract.New(t, httpretry.Config{Base: base, Policy: policy})
	for method, body := range map[string]string{"GET": "", "PUT": "payload", "POST": "payload"} {
		shared := request(t, method, srv.URL, body)
		shared.Header.Set("X-Shared", "1")
		header := shared.Header.Clone()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				req := shared
				if body != "" { // a body is read once; all the rest is shared
					req = shared.WithContext(shared.Context())
					req.Body, _ = shared.GetBody()
				}
				assertSuccess(t, transport, req)
			})
		}
		wg.Wait()
		assert.Equal(t, header, shared.Header)
	}
}

// Hazard K5: a hundred attempts, and no wait that has wrapped around.
func TestHundredAttempts(t *testing.T) {
	const least, most = 100 * time.Millisecond, 30 * time.Second
	for name, s := range map[string]strategies.Strategy{
		"Exponential":        strategies.Exponential{},
		"Exponential by 10":  strategies.Exponential{Factor: 10},
		"Exponential by 1e9": strategies.Exponential{Factor: 1e9},
		"long":               strategies.Exponential{Max: 1<<63 - 1},
		"FullJitter":         strategies.FullJitter{Factor: 10},
		"EqualJitter":        strategies.EqualJitter{Factor: 10},
		"DecorrelatedV2":     strategies.DecorrelatedV2{},
		"naive":              strategies.Func(func(k int) time.Duration { return time.Second << k }), // negative from 34 on, 0 from 55 on
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var seen []time.Duration
				start := time.Now()
				pipe := faults.Pipe(t, func(w http.ResponseWriter, _ *http.Request) {
					seen = append(seen, time.Since(start))
					w.WriteHeader(http.StatusServiceUnavailable)
				})
				policy := every(0)
				policy.MaxAttempts, policy.Backoff = 100, s
				ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
				defer cancel()
				resp, err := contract.New(t, httpretry.Config{Base: pipe, Policy: policy}).
					RoundTrip(request(t, "GET", "http://a.test/", "").WithContext(ctx))
				require.NoError(t, err)
				finish(t, resp)
				if name == "long" || name == "naive" {
					assert.Less(t, len(seen), 30, "the deadline, not a wait that has wrapped around")
					return
				}
				require.Len(t, seen, 100)
				for i := range seen[1:] {
					wait := seen[i+1] - seen[i]
					assert.LessOrEqual(t, wait, most)
					assert.GreaterOrEqual(t, wait, time.Duration(0))
					if strings.HasPrefix(name, "Exponential") {
						assert.GreaterOrEqual(t, wait, least)
						assert.True(t, i == 0 || wait >= seen[i]-seen[i-1], "waits only grow")
					}
				}
			})
		})
	}
}
