package integration

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"go/version"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/strategies"
)

const (
	idHeader = "Request-Id" // differs between the calls of RoundTrip
	payload  = "the body of a request"
)

// eager is a policy that retries often, at once and whatever it costs.
func eager() httpretry.Policy {
	return httpretry.Policy{
		MaxAttempts: 5,
		Backoff:     strategies.FullJitter{Base: 5 * time.Millisecond, Max: 50 * time.Millisecond},
		Budget:      httpretry.Unlimited{},
	}
}

// patient limits the waits of a test.
func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A bodyKind is a way to give a request its body, or none.
type bodyKind struct {
	name string
	set  func(*http.Request)
}

func bodyKinds() []bodyKind {
	return []bodyKind{
		{"no body", func(*http.Request) {}},
		{"body with GetBody", func(req *http.Request) {
			body := func() io.ReadCloser { return io.NopCloser(strings.NewReader(payload)) }
			req.Body, req.ContentLength = body(), int64(len(payload))
			req.GetBody = func() (io.ReadCloser, error) { return body(), nil }
		}},
		{"body without GetBody", func(req *http.Request) { req.Body = contract.Counted(payload) }},
	}
}

// newRequest returns a request whose body is set by kind.
func newRequest(ctx context.Context, t testing.TB, method, url string, kind bodyKind) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	require.NoError(t, err)
	kind.set(req)
	return req
}

// status sends a request, reads its response, and returns its status.
func status(rt http.RoundTripper, req *http.Request) (int, error) {
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, errors.Join(err, resp.Body.Close())
}

// hyphened makes a name part of a path.
func hyphened(name string) string { return strings.ReplaceAll(name, " ", "-") }

// A stack is a transport under test and those below it.
type stack struct {
	name string
	make func(t testing.TB, client *tls.Config, policy httpretry.Policy) http.RoundTripper
}

func stacks() []stack {
	return []stack{
		{"over net/http", func(t testing.TB, client *tls.Config, policy httpretry.Policy) http.RoundTripper {
			transport, err := httpretry.New(httpretry.Config{Base: faults.Base(t, client), Policy: policy})
			require.NoError(t, err)
			return transport
		}},
		{"over a layer", func(t testing.TB, client *tls.Config, policy httpretry.Policy) http.RoundTripper {
			return contract.New(t, httpretry.Config{Base: layer{faults.Base(t, client)}, Policy: policy})
		}},
	}
}

// layer sends a copy of each request, as one that adds credentials does.
type layer struct{ next http.RoundTripper }

func (l layer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer token")
	return l.next.RoundTrip(req)
}

func (l layer) CloseIdleConnections() { closeIdle(l.next) }

func closeIdle(rt http.RoundTripper) { (&http.Client{Transport: rt}).CloseIdleConnections() }

// assertArrivesOnce sends keyless POSTs to paths of url, and then asks how
// often each has arrived.
func assertArrivesOnce(t *testing.T, url string, client *tls.Config, arrivals func(testing.TB) map[string]int) {
	t.Helper()
	want := map[string]int{}
	for _, stack := range stacks() {
		transport := stack.make(t, client, eager())
		for _, kind := range bodyKinds() {
			path := hyphened("/" + stack.name + "/" + kind.name)
			code, err := status(transport, newRequest(patient(t), t, http.MethodPost, url+path, kind))
			t.Logf("%s: status %d, error %v", path, code, err)
			want[path] = 1
		}
		closeIdle(transport)
	}
	assert.Equal(t, want, arrivals(t), "how often each POST arrived")
}

// assertOnlySafeIsRetried sends GETs and keyless POSTs to paths of url and
// expects the status for each. Of each path, three GETs and one POST must have
// arrived.
func assertOnlySafeIsRetried(t *testing.T, url string, client *tls.Config, want int, arrivals func(testing.TB) map[string]int) {
	t.Helper()
	expected := map[string]int{}
	for _, path := range sendAll(t, url, client, want) {
		expected[path] = 1
		if strings.Contains(path, "/GET/") {
			expected[path+" retry 1"], expected[path+" retry 2"] = 1, 1
		}
	}
	assert.Equal(t, expected, arrivals(t))
}

// sendAll sends GETs and keyless POSTs with all kinds of bodies, each to a path
// of its own, which it returns. It expects the status for each, or for 0 an
// error.
func sendAll(t *testing.T, url string, client *tls.Config, want int) (paths []string) {
	t.Helper()
	policy := eager()
	policy.MaxAttempts = 3
	for _, stack := range stacks() {
		transport := stack.make(t, client, policy)
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			for _, kind := range bodyKinds() {
				path := hyphened("/" + stack.name + "/" + method + "/" + kind.name)
				code, err := status(transport, newRequest(patient(t), t, method, url+path, kind))
				assert.Equal(t, want, code, path)
				assert.Equal(t, want == 0, err != nil, "%s: %v", path, err)
				paths = append(paths, path)
			}
		}
		closeIdle(transport)
	}
	return paths
}

// countRequests counts the lines "request METHOD PATH RETRY STATUS" of a log.
func countRequests(log []byte) map[string]int {
	counts := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^request \S+ (?:https://[^/]+)?(\S+) (\S+) \S+$`).FindAllSubmatch(log, -1) {
		entry := string(m[1])
		if retry := string(m[2]); retry != "-" {
			entry += " retry " + retry
		}
		counts[entry]++
	}
	return counts
}

// netHTTPAlone shows that the servers of a test make net/http resend requests,
// which httpretry has to prevent. Without it the same POST arrives more than
// once. fixed is the first version of Go of which that need not be true.
func netHTTPAlone(t *testing.T, url string, client *tls.Config, fixed string, arrivals func(testing.TB) map[string]int) {
	t.Helper()
	for _, kind := range bodyKinds()[:2] {
		n := 0
		// On a busy machine, a handshake takes long, and net/http waits ever
		// longer before it resends.
		for limit := 1500 * time.Millisecond; n < 2 && limit < time.Minute; limit *= 5 {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			path, base := fmt.Sprintf("/%s-%v", hyphened(kind.name), limit), faults.Base(t, client)
			_, err := status(base, newRequest(ctx, t, http.MethodPost, url+path, kind))
			base.CloseIdleConnections()
			cancel()
			n = arrivals(t)[path]
			t.Logf("%s alone sent %s %d times: %v", runtime.Version(), path, n, err)
		}
		if n < 2 && fixed != "" && version.Compare(runtime.Version(), fixed) >= 0 {
			t.Skipf("%s has nothing here to protect from", runtime.Version())
		}
		assert.Greater(t, n, 1, "the servers of this test do not make net/http resend")
	}
}

// counting is a server that works, and counts.
type counting struct {
	*httptest.Server
	mu       sync.Mutex
	executed map[string]int // by id
}

func newCounting(t testing.TB) *counting {
	t.Helper()
	o := &counting{executed: map[string]int{}}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return // not executed, for it is not all there
		}
		o.mu.Lock()
		o.executed[r.Header.Get(idHeader)]++
		o.mu.Unlock()
	}))
	t.Cleanup(o.Close)
	return o
}

// executions returns a copy of the counts.
func (o *counting) executions() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.executed)
}

// forget sets the counts to zero. No request may be on its way.
func (o *counting) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.executed)
}

// addr returns host and port.
func (o *counting) addr() string { return o.Listener.Addr().String() }

// A load is the requests of many clients at the same time.
type load struct {
	clients, requests int
	method, url, key  string
	kind              bodyKind
	pause             func()        // before each request
	limit             time.Duration // of the whole load; 0 means 2m, for a busy machine
}

// run sends the load, with an id for each request, and returns how many
// succeeded. The results of the others are logged.
func (l load) run(t testing.TB, rt http.RoundTripper) (succeeded int) {
	t.Helper()
	outcomes, _ := l.send(t, rt)
	logCounts(t, outcomes)
	return outcomes[succeededOutcome]
}

const succeededOutcome = "succeeded"

// send is run for tests that judge the results, and the slowest request, by
// themselves.
func (l load) send(t testing.TB, rt http.RoundTripper) (outcomes map[string]int, slowest time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(l.limit, 2*time.Minute))
	defer cancel()
	var (
		next atomic.Int64
		wg   sync.WaitGroup
		mu   sync.Mutex
	)
	outcomes = map[string]int{}
	for range l.clients {
		wg.Go(func() {
			for n := next.Add(1); n <= int64(l.requests); n = next.Add(1) {
				req := newRequest(ctx, t, l.method, l.url, l.kind)
				req.Header.Set(idHeader, strconv.FormatInt(n, 10))
				if l.key != "" {
					req.Header.Set("Idempotency-Key", fmt.Sprintf("%s-%d", l.key, n))
				}
				if l.pause != nil {
					l.pause()
				}
				outcome, start := succeededOutcome, time.Now()
				if code, err := status(rt, req); err != nil {
					outcome = withoutPorts(err)
				} else if code != http.StatusOK {
					outcome = fmt.Sprintf("status %d", code)
				}
				took := time.Since(start)
				mu.Lock()
				outcomes[outcome]++
				slowest = max(slowest, took)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return outcomes, slowest
}

func logCounts(t testing.TB, counts map[string]int) {
	t.Helper()
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%6d × %s", counts[what], what)
	}
}

// during calls do now and then while work is done.
func during(work func(), every time.Duration, do func()) {
	done := make(chan struct{})
	go func() { defer close(done); work() }()
	for {
		select {
		case <-done:
			return
		case <-time.After(every):
			do()
		}
	}
}

// withoutPorts makes equal errors look equal.
func withoutPorts(err error) string {
	words := strings.Fields(strings.ReplaceAll(err.Error(), "->", " -> "))
	for i, word := range words {
		if strings.HasPrefix(word, "127.0.0.1:") {
			words[i] = "ADDR"
		}
	}
	return strings.Join(words, " ")
}

// assertExecuted checks how often the requests of a load were executed.
func assertExecuted(t testing.TB, executions map[string]int, succeeded int, once bool) {
	t.Helper()
	assert.GreaterOrEqual(t, len(executions), succeeded, "requests that were executed")
	for id, n := range executions {
		if once {
			assert.Equal(t, 1, n, "executions of request %s", id)
		}
	}
}
