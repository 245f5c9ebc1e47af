package integration

import (
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// haproxy is a running haproxy that speaks HTTP/2 with its clients.
type haproxy struct {
	*process
	identity
	url    string
	config func(ready string) string
}

// startHaproxy starts one with rules for its frontend, in front of a server
// at upstream.
func startHaproxy(t testing.TB, upstream string, rules ...string) *haproxy {
	t.Helper()
	id, addr := newIdentity(t), freeAddr(t)
	certificate := writeFile(t, "haproxy.pem", id.certificate+id.key)
	h := &haproxy{identity: id, url: "https://" + addr}
	h.config = func(ready string) string {
		return fmt.Sprintf(`
global
	log stdout format raw daemon
	maxconn 1000
	hard-stop-after 10s
defaults
	mode http
	log-format "request %%HM %%HU %%[capture.req.hdr(0)] %%ST"
	timeout connect 2s
	timeout client 10s
	timeout server 10s
	retries 0
frontend tls
	bind %s ssl crt %s alpn h2
	log global
	http-request capture req.hdr(Retry-Attempt) len 8
	%s
	default_backend upstream
frontend ready
	bind %s
backend upstream
	server only %s
`, addr, certificate, strings.Join(rules, "\n\t"), ready, upstream)
	}
	h.process = h.launch(t)
	return h
}

// launch starts a process that listens beside those that do already.
func (h *haproxy) launch(t testing.TB, args ...string) *process {
	t.Helper()
	ready := freeAddr(t)
	config := writeFile(t, "haproxy.cfg", h.config(ready))
	return start(t, ready, program(t, "haproxy"), append([]string{"-db", "-f", config}, args...)...)
}

// reload replaces the process by a new one, which tells the old one to stop.
func (h *haproxy) reload(t testing.TB) {
	t.Helper()
	h.process = h.launch(t, "-sf", strconv.Itoa(h.Process.Pid))
}

// arrivals stops haproxy and returns how often each path was asked for,
// together with the retry that each said it was.
func (h *haproxy) arrivals(t testing.TB) map[string]int {
	t.Helper()
	h.settleLog()
	h.finish(t, syscall.SIGTERM)
	log, err := os.ReadFile(h.log)
	require.NoError(t, err)
	return countRequests(log)
}

// settleLog waits until nothing more is logged, because haproxy may answer a
// request before it logs it.
func (h *haproxy) settleLog() {
	size, same := int64(-1), 0
	for polls := 0; same < 20 && polls < 500; polls++ {
		time.Sleep(10 * time.Millisecond)
		if info, err := os.Stat(h.log); err == nil && info.Size() != size {
			size, same = info.Size(), 0
		} else {
			same++
		}
	}
}

// fatal is a server that dies of every request, once it has read it whole.
type fatal struct {
	*faults.Server
	mu       sync.Mutex
	executed map[string]int
}

// newFatal starts one whose connections end with a reset, or without. With
// sparesRetries, it answers requests that are retries.
func newFatal(t testing.TB, reset, sparesRetries bool) *fatal {
	f := &fatal{executed: map[string]int{}}
	f.Server = faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return false
		}
		retry := req.Header.Get("Retry-Attempt")
		entry := req.URL.Path
		if retry != "" {
			entry += " retry " + retry
		}
		f.mu.Lock()
		f.executed[entry]++
		f.mu.Unlock()
		if sparesRetries && retry != "" {
			c.Respond(http.StatusOK, "")
			return true
		}
		if reset {
			c.Reset()
		}
		return false
	})
	return f
}

func (f *fatal) executions(testing.TB) map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.executed)
}

// haproxy tells its client that a stream was refused when its own server died
// of the request, and net/http believes it (hazards 0.2, C2).
func TestHaproxyRefusedStream(t *testing.T) {
	t.Parallel()
	for _, end := range []struct {
		name  string
		reset bool
	}{{"reset", true}, {"close", false}} {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			t.Run("a keyless POST arrives once", func(t *testing.T) {
				upstream := newFatal(t, end.reset, false)
				h := startHaproxy(t, upstream.Addr)
				assertArrivesOnce(t, h.url, h.client, upstream.executions)
			})
			t.Run("a GET is retried until it succeeds", func(t *testing.T) {
				upstream := newFatal(t, end.reset, true)
				h := startHaproxy(t, upstream.Addr)
				assertGETSucceeds(t, h, upstream)
			})
			t.Run("net/http alone", func(t *testing.T) {
				upstream := newFatal(t, end.reset, false)
				h := startHaproxy(t, upstream.Addr)
				netHTTPAlone(t, h.url, h.client, "", upstream.executions)
			})
		})
	}
}

func assertGETSucceeds(t *testing.T, h *haproxy, upstream *fatal) {
	t.Helper()
	policy := eager()
	// net/http waits ever longer before it resends. The first send needs a
	// handshake, which takes long on a busy machine.
	policy.AttemptTimeout = 2 * time.Second
	for _, stack := range stacks() {
		path := "/" + hyphened(stack.name)
		req := newRequest(patient(t), t, http.MethodGet, h.url+path, bodyKinds()[0])
		code, err := status(stack.make(t, h.client, policy), req)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, code)
		sends := upstream.executions(t)
		assert.GreaterOrEqual(t, sends[path], 1)
		assert.LessOrEqual(t, sends[path], 10, "sends of one attempt")
		assert.Equal(t, 1, sends[path+" retry 1"])
	}
}

// A server that is down makes haproxy answer 503. Safe requests are retried,
// and no others.
func TestHaproxyBackendDown(t *testing.T) {
	t.Parallel()
	h := startHaproxy(t, faults.Refused(t))
	assertOnlySafeIsRetried(t, h.url, h.client, http.StatusServiceUnavailable, h.arrivals)
}

// haproxy's rejections reset the stream, with a code that does not show
// what was executed.
func TestHaproxyReject(t *testing.T) {
	t.Parallel()
	h := startHaproxy(t, faults.Refused(t), "http-request reject")
	sent := sendAll(t, h.url, h.client, 0)
	arrived := h.arrivals(t)
	for _, path := range sent {
		// haproxy closes the connection, too, so the next request may not
		// arrive.
		assert.LessOrEqual(t, arrived[path], 1, path)
		assert.LessOrEqual(t, arrived[path+" retry 1"], 1, path)
		if strings.Contains(path, "/GET/") {
			assert.NotZero(t, arrived[path+" retry 1"]+arrived[path+" retry 2"], "%s is retried", path)
		} else {
			assert.Zero(t, arrived[path+" retry 1"], "%s is not retried", path)
		}
	}
}

// A reload starts a new haproxy, and the old one closes its connections.
func TestHaproxyReload(t *testing.T) {
	t.Parallel()
	kinds := bodyKinds()
	for _, tt := range []struct {
		method  string
		kind    bodyKind
		atLeast int // of five hundred
		once    bool
	}{
		{http.MethodPost, kinds[1], 490, true},
		{http.MethodPost, kinds[0], 490, true},
		{http.MethodGet, kinds[0], 500, false},
	} {
		t.Run(tt.method+"/"+tt.kind.name, func(t *testing.T) {
			upstream := newCounting(t)
			h := startHaproxy(t, upstream.addr())
			transport := contract.New(t, httpretry.Config{Base: faults.Base(t, h.client), Policy: eager()})

			l := load{clients: 20, requests: 500, method: tt.method, url: h.url, kind: tt.kind}
			l.pause = func() { time.Sleep(mathrand.N(20 * time.Millisecond)) } // so that it lasts some reloads
			var succeeded, reloads int
			during(func() { succeeded = l.run(t, transport) }, 100*time.Millisecond, func() { h.reload(t); reloads++ })
			t.Logf("%d reloads", reloads)
			assert.NotZero(t, reloads)
			assert.GreaterOrEqual(t, succeeded, tt.atLeast)
			assertExecuted(t, upstream.executions(), succeeded, tt.once)
		})
	}
}

// mortal is a server that answers no request until it dies, which closes the
// connections of all that it has got. Later ones are answered.
type mortal struct {
	*faults.Server
	dies     chan struct{}
	mu       sync.Mutex
	executed map[string]int
}

func newMortal(t testing.TB) *mortal {
	m := &mortal{dies: make(chan struct{}), executed: map[string]int{}}
	m.Server = faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return false
		}
		m.mu.Lock()
		m.executed[req.Header.Get(idHeader)]++
		m.mu.Unlock()
		select {
		case <-m.dies:
			c.Respond(http.StatusOK, "")
			return true
		default:
			<-m.dies
			return false
		}
	})
	return m
}

func (m *mortal) executions() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.executed)
}

// haproxy is reloaded while 200 requests are in progress, so its clients open new
// connections. Then the server of the old process dies with those requests, and
// haproxy says that their streams were refused. None is executed twice, although
// all of them would now be sent on another connection.
func TestHaproxyReloadBeforeServerDies(t *testing.T) {
	t.Parallel()
	for _, kind := range bodyKinds()[:2] {
		for _, stack := range churnedStacks() {
			t.Run(kind.name+"/"+stack.name, func(t *testing.T) {
				upstream := newMortal(t)
				h := startHaproxy(t, upstream.Addr)
				l := load{clients: 200, requests: 200, method: http.MethodPost, url: h.url, kind: kind}
				var reload sync.WaitGroup
				reload.Go(func() {
					upstream.Await(t, int32(l.requests))
					h.reload(t)
					time.Sleep(100 * time.Millisecond) // until the clients know
					close(upstream.dies)
				})
				_, _ = l.send(t, stack.over(faults.Base(t, h.client)))
				reload.Wait()
				twice := 0
				for _, n := range upstream.executions() {
					twice += min(n-1, 1)
				}
				t.Logf("%s: executed twice %d of %d", t.Name(), twice, l.requests)
				if stack.name == netHTTPOnly {
					assert.NotZero(t, twice, "net/http sends none again")
				} else {
					assert.Zero(t, twice)
				}
			})
		}
	}
}
