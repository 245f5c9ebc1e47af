package integration

import (
	"fmt"
	"go/version"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// nginx is a running nginx.
type nginx struct {
	*process
	identity
	url string
	dir string
}

const (
	overHTTP1 = "http"
	overHTTP2 = "https" // the only protocol that a client of net/http and the server agree on
)

// startNginx starts one that has rules for all requests.
func startNginx(t testing.TB, scheme string, rules ...string) *nginx {
	t.Helper()
	path, dir, addr, id := program(t, "nginx"), t.TempDir(), freeAddr(t), newIdentity(t)
	listen := addr
	if scheme == overHTTP2 {
		listen = fmt.Sprintf("%s ssl http2; ssl_certificate %s; ssl_certificate_key %s",
			addr, writeFile(t, "nginx.crt", id.certificate), writeFile(t, "nginx.key", id.key))
	}
	user := ""
	if os.Geteuid() == 0 {
		user = "user root;" // its default is a user that Debian does not have
	}
	config := fmt.Sprintf(`
daemon off;
%s
pid nginx.pid;
error_log stderr notice;
worker_processes 1;
events { worker_connections 2048; }
http {
	log_format request "request $request_method $request_uri $http_retry_attempt $status";
	access_log access.log request;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	server {
		listen %s;
		%s
	}
}
`, user, listen, strings.Join(rules, "\n\t\t"))
	p := start(t, addr, path, "-e", "stderr", "-p", dir, "-c", writeFile(t, "nginx.conf", config))
	return &nginx{process: p, identity: id, url: scheme + "://" + addr, dir: dir}
}

// arrivals stops nginx and returns how often each path was asked for, together
// with the retry that each said it was.
func (n *nginx) arrivals(t testing.TB) map[string]int {
	t.Helper()
	n.finish(t, syscall.SIGQUIT) // requests at work are logged before
	return n.logged(t)
}

// logged returns the requests that are logged so far.
func (n *nginx) logged(t testing.TB) map[string]int {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(n.dir, "access.log"))
	require.NoError(t, err)
	return countRequests(log)
}

func proxyTo(addr string) string { return "location / { proxy_pass http://" + addr + "; }" }

// nginx's status 444 closes a request without an answer; over HTTP/2 net/http
// takes that for a stream that may be resent, at once and without end
// (hazards 0.1, C3, C4).
func TestNginxReturn444(t *testing.T) {
	t.Parallel()
	t.Run("a keyless POST arrives once", func(t *testing.T) {
		n := startNginx(t, overHTTP2, "return 444;")
		assertArrivesOnce(t, n.url, n.client, n.arrivals)
	})
	t.Run("a GET arrives at most ten times", func(t *testing.T) {
		n := startNginx(t, overHTTP2, "return 444;")
		policy := eager()
		policy.AttemptTimeout = 10 * time.Second
		for _, stack := range stacks() {
			transport := stack.make(t, n.client, policy)
			_, err := status(transport, newRequest(patient(t), t, http.MethodGet, n.url+"/"+hyphened(stack.name), bodyKinds()[0]))
			assert.Error(t, err)
			closeIdle(transport)
		}
		arrived := n.arrivals(t)
		// From Go 1.27 on, net/http does not resend it, so the policy's retries do.
		if version.Compare(runtime.Version(), "go1.27") < 0 {
			assert.Len(t, arrived, len(stacks()), "an attempt that reaches the bound is the last")
		}
		for path, sends := range arrived {
			assert.LessOrEqual(t, sends, 10, path)
		}
	})
	t.Run("net/http alone", func(t *testing.T) {
		n := startNginx(t, overHTTP2, "return 444;")
		netHTTPAlone(t, n.url, n.client, "go1.27", n.logged)
	})
}

// nginx ends an HTTP/2 connection after so many requests, while more are on
// their way. Those it has not begun are unprocessed, the others are not
// (hazards C2, K9).
func TestNginxGoAwayChurn(t *testing.T) {
	t.Parallel()
	kinds := bodyKinds()
	for _, tt := range []struct {
		perConnection int
		requests      int
		method, key   string
		kind          bodyKind
		atLeast       int // percent
		once          bool
	}{
		{100, 1000, http.MethodPost, "", kinds[1], 99, true},
		{100, 1000, http.MethodPost, "", kinds[2], 99, true},
		{100, 1000, http.MethodPost, "", kinds[0], 99, true},
		{100, 1000, http.MethodPost, "key", kinds[1], 100, false},
		{100, 1000, http.MethodGet, "", kinds[0], 100, false},
		{5, 400, http.MethodPost, "", kinds[1], 99, true},
		{5, 400, http.MethodPost, "", kinds[0], 80, true}, // the first of them find an unknown host
		{5, 400, http.MethodPost, "key", kinds[1], 100, false},
		{5, 400, http.MethodGet, "", kinds[0], 100, false},
	} {
		name := fmt.Sprintf("%d a connection/%s/%s/key=%t", tt.perConnection, tt.method, tt.kind.name, tt.key != "")
		t.Run(name, func(t *testing.T) {
			upstream := newCounting(t)
			n := startNginx(t, overHTTP2, fmt.Sprintf("keepalive_requests %d;", tt.perConnection), proxyTo(upstream.addr()))
			transport := contract.New(t, httpretry.Config{Base: faults.Base(t, n.client), Policy: eager()})

			l := load{clients: 20, requests: tt.requests, method: tt.method, url: n.url, key: tt.key, kind: tt.kind}
			succeeded := l.run(t, transport)
			assert.GreaterOrEqual(t, succeeded, tt.requests*tt.atLeast/100)
			assertExecuted(t, upstream.executions(), succeeded, tt.once)
		})
	}
}

// Over HTTP/1 a client cannot know that a connection is about to be closed. A
// request that is written just then may have been read (hazard K9).
func TestNginxIdleClose(t *testing.T) {
	t.Parallel()
	kinds := bodyKinds()
	for _, rule := range []string{"keepalive_requests 3;", "keepalive_timeout 10ms;"} {
		for _, tt := range []struct {
			method, key string
			kind        bodyKind
			atLeast     int // of five hundred
			once        bool
		}{
			{http.MethodPost, "", kinds[1], 250, true},
			{http.MethodPost, "", kinds[2], 250, true},
			{http.MethodPost, "", kinds[0], 250, true},
			{http.MethodPost, "key", kinds[1], 500, false},
			{http.MethodGet, "", kinds[0], 500, false},
		} {
			t.Run(fmt.Sprintf("%s/%s/%s/key=%t", rule, tt.method, tt.kind.name, tt.key != ""), func(t *testing.T) {
				upstream := newCounting(t)
				n := startNginx(t, overHTTP1, rule, proxyTo(upstream.addr()))
				transport := contract.New(t, httpretry.Config{Base: faults.Base(t, nil), Policy: eager()})

				l := load{clients: 20, requests: 500, method: tt.method, url: n.url, key: tt.key, kind: tt.kind}
				if strings.Contains(rule, "timeout") { // meet the moment of the close
					l.pause = func() { time.Sleep(9*time.Millisecond + mathrand.N(2*time.Millisecond)) }
				}
				succeeded := l.run(t, transport)
				assert.GreaterOrEqual(t, succeeded, tt.atLeast)
				assertExecuted(t, upstream.executions(), succeeded, tt.once)
			})
		}
	}
}

// nginx answers for a server that is down, or too slow, and may have executed
// the request.
func TestNginxDeadUpstream(t *testing.T) {
	t.Parallel()
	silent := faults.Listen(t, func(c *faults.Conn) { _, _ = io.Copy(io.Discard, c.Reader) })
	for _, tt := range []struct {
		status   int
		upstream string
	}{
		{http.StatusBadGateway, faults.Refused(t)},
		{http.StatusGatewayTimeout, silent.Addr},
	} {
		for _, scheme := range []string{overHTTP1, overHTTP2} {
			t.Run(fmt.Sprintf("%d over %s", tt.status, scheme), func(t *testing.T) {
				n := startNginx(t, scheme, "proxy_read_timeout 30ms;", proxyTo(tt.upstream))
				assertOnlySafeIsRetried(t, n.url, n.client, tt.status, n.arrivals)
			})
		}
	}
}

// A reload replaces nginx's workers while requests are under way.
func TestNginxReload(t *testing.T) {
	t.Parallel()
	kinds := bodyKinds()
	for _, scheme := range []string{overHTTP1, overHTTP2} {
		for _, tt := range []struct {
			method  string
			kind    bodyKind
			atLeast int // of five hundred
			once    bool
		}{
			{http.MethodPost, kinds[1], 350, true},
			{http.MethodGet, kinds[0], 500, false},
		} {
			t.Run(scheme+"/"+tt.method, func(t *testing.T) {
				upstream := newCounting(t)
				n := startNginx(t, scheme, proxyTo(upstream.addr()))
				transport := contract.New(t, httpretry.Config{Base: faults.Base(t, n.client), Policy: eager()})

				l := load{clients: 20, requests: 500, method: tt.method, url: n.url, kind: tt.kind}
				var succeeded, reloads int
				during(func() { succeeded = l.run(t, transport) }, 50*time.Millisecond, func() {
					assert.NoError(t, n.Process.Signal(syscall.SIGHUP))
					reloads++
				})
				t.Logf("%d reloads", reloads)
				assert.NotZero(t, reloads)
				assert.GreaterOrEqual(t, succeeded, tt.atLeast)
				assertExecuted(t, upstream.executions(), succeeded, tt.once)
			})
		}
	}
}
