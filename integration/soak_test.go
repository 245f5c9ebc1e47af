package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mccutchen/go-httpbin/v2/httpbin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/integration/internal/leaks"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

const (
	soakClients  = 64
	sumHeader    = "Body-Sum"   // SHA-256 of the request's body
	busyHeader   = "Busy-After" // bytes of the body, after which an attempt is answered 503
	untilHeader  = "Busy-Until" // the first attempt that is not
	soakPatience = 3 * time.Second
)

// TestSoak has many clients send requests of all kinds through a network that
// breaks in all ways. Nothing may be corrupted, be executed twice without
// permission, or leak (hazards A8, K6).
//
// INTEGRATION_SOAK is how long it lasts. INTEGRATION_SEED repeats its random
// choices.
func TestSoak(t *testing.T) {
	duration, seed := 10*time.Second, mathrand.Uint64()
	if text := os.Getenv("INTEGRATION_SOAK"); text != "" {
		var err error
		duration, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	if text := os.Getenv("INTEGRATION_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("INTEGRATION_SOAK=%v INTEGRATION_SEED=%d", duration, seed)

	binary := buildToxiproxy(t)
	faults.Refused(t) // the runtime's own descriptors are there from now on
	before := leaks.Now()

	s := newSoak(t)
	tox := startToxiproxy(t, binary, s.upstream.Listener.Addr().String(), seed)
	s.dial = tox.dial
	s.run(duration, seed, tox)

	closeIdle(s.transport)
	tox.finish(t)
	s.upstream.CloseClientConnections()
	s.upstream.Close()
	s.check(duration)
	assertNothingLeft(t, before)
}

// soak is the state of one run.
type soak struct {
	t         *testing.T
	transport http.RoundTripper
	dial      func(context.Context) (net.Conn, error)
	upstream  *httptest.Server
	handler   *verifier
	download  map[string][]byte // the body of a path's GET
	uploads   [][]byte          // the body of a PUT

	requests atomic.Int64
	reasons  atomic.Int64 // events that end a request
	bodies   leaks.Bodies

	mu       sync.Mutex
	outcomes map[string]int
}

func newSoak(t *testing.T) *soak {
	s := &soak{
		t:        t,
		handler:  &verifier{next: httpbin.New(), arrivals: map[string]int{}},
		download: map[string][]byte{},
		outcomes: map[string]int{},
	}
	for seed, size := range []int{0, 1, 1000, 20_000, 64 << 10, 200_000} {
		path := fmt.Sprintf("/bytes/%d?seed=%d", size, seed)
		direct := httptest.NewRecorder()
		s.handler.ServeHTTP(direct, httptest.NewRequest(http.MethodGet, path, nil))
		require.Len(t, direct.Body.Bytes(), size)
		s.download[path] = direct.Body.Bytes()
	}
	for n := range 8 {
		s.uploads = append(s.uploads, make([]byte, 1<<20))
		_, _ = mathrand.NewChaCha8([32]byte{byte(n)}).Read(s.uploads[n]) // never fails
	}
	s.upstream = httptest.NewUnstartedServer(s.handler)
	s.upstream.Config.ErrorLog = log.New(io.Discard, "", 0) // httpbin panics when it cannot answer
	s.upstream.Start()

	base := faults.Base(t, nil)
	base.MaxIdleConnsPerHost = soakClients
	base.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return s.dial(ctx) }
	s.transport = contract.New(t, httpretry.Config{Base: base, Policy: eager(), Observe: func(_ context.Context, e httpretry.Event) {
		if e.Reason != 0 {
			s.reasons.Add(1)
		}
	}})
	return s
}

// run has the clients send requests while the network changes.
func (s *soak) run(duration time.Duration, seed uint64, tox *toxiproxy) {
	over := time.Now().Add(duration)
	kinds := s.kinds()
	var wg sync.WaitGroup
	for client := range uint64(soakClients) {
		rnd := mathrand.New(mathrand.NewPCG(seed, client))
		wg.Go(func() {
			for n := 0; time.Now().Before(over); n++ {
				kind := kinds[rnd.IntN(len(kinds))]
				if strings.Contains(kind.name, "PUT") && rnd.IntN(4) > 0 {
					continue // they take long
				}
				c := &soakCall{soak: s, rnd: rnd, kind: kind.name, id: fmt.Sprintf("%d-%d", client, n)}
				s.count(kind.name + ": " + kind.send(c))
			}
		})
	}
	chaos := mathrand.New(mathrand.NewPCG(seed, soakClients))
	during(wg.Wait, 25*time.Millisecond, func() { tox.change(s.t, chaos) })
}

func (s *soak) count(outcome string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outcomes[outcome]++
}

// check checks all requests, after the last one.
func (s *soak) check(duration time.Duration) {
	logCounts(s.t, s.outcomes)
	h := s.handler
	s.t.Logf("%d requests, %.0f a second; %d arrivals, %d of them retries; %d bodies arrived whole, %d of them in retries",
		s.requests.Load(), float64(s.requests.Load())/duration.Seconds(), h.total.Load(), h.retries.Load(), h.whole.Load(), h.replayed.Load())

	assert.Equal(s.t, s.requests.Load(), s.reasons.Load(), "each request ends with one event that has a reason")
	assert.Zero(s.t, h.corrupted.Load(), "request bodies that arrived whole, but wrong")
	assert.NotZero(s.t, h.replayed.Load(), "request bodies that arrived whole in a retry")
	for _, kind := range s.kinds() {
		assert.NotZero(s.t, s.outcomes[kind.name+": "+kind.good], "%s: %s", kind.name, kind.good)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	assert.NotEmpty(s.t, h.arrivals)
	for id, n := range h.arrivals {
		assert.Equal(s.t, 1, n, "arrivals of the keyless POST %s", id)
	}
	assert.NoError(s.t, s.bodies.Check())
}

// verifier checks and counts the requests that reach httpbin.
type verifier struct {
	next                                       http.Handler
	total, retries, whole, replayed, corrupted atomic.Int64

	mu       sync.Mutex
	arrivals map[string]int // of keyless POSTs, by id
}

func (v *verifier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.total.Add(1)
	retry := r.Header.Get("Retry-Attempt") != ""
	if retry {
		v.retries.Add(1)
	}
	if r.Method == http.MethodPost && r.Header.Get("Idempotency-Key") == "" {
		v.mu.Lock()
		v.arrivals[r.Header.Get(idHeader)]++
		v.mu.Unlock()
	}
	if busy(r.Header) {
		after, _ := strconv.ParseInt(r.Header.Get(busyHeader), 10, 64) // as meetBusy has it
		_, _ = io.CopyN(io.Discard, r.Body, after)                     // how it ends is the client's to see
		http.Error(w, strings.Repeat("busy ", 200), http.StatusServiceUnavailable)
		return
	}
	if want := r.Header.Get(sumHeader); want != "" {
		var echo bytes.Buffer
		got := sha256.New()
		to := io.Writer(got)
		if r.URL.Path == "/anything" {
			to = io.MultiWriter(got, &echo)
		}
		if _, err := io.Copy(to, r.Body); err != nil {
			return // the network broke it, and the client gets an error
		}
		v.whole.Add(1)
		if retry {
			v.replayed.Add(1)
		}
		if hex.EncodeToString(got.Sum(nil)) != want {
			v.corrupted.Add(1)
		}
		r.Body = io.NopCloser(&echo)
	}
	v.next.ServeHTTP(w, r)
}

func busy(h http.Header) bool {
	retry, _ := strconv.Atoi(h.Get("Retry-Attempt")) // none is the first attempt
	until, err := strconv.Atoi(h.Get(untilHeader))
	return err == nil && retry+1 < until
}

func sum(body []byte) string {
	digest := sha256.Sum256(body)
	return hex.EncodeToString(digest[:])
}

func assertNothingLeft(t testing.TB, before leaks.Held) {
	t.Helper()
	now, err := leaks.AwaitNone(before, func() {})
	assert.NoError(t, err)
	t.Logf("goroutines and descriptors: %v before, %v after", before, now)
}

// soakCall is one request of a soak.
type soakCall struct {
	*soak
	rnd  *mathrand.Rand
	kind string
	id   string
}

// A soakKind is a kind of request. Its send returns the result of one, which
// must be good at least once.
type soakKind struct {
	name, good string
	send       func(*soakCall) string
}

func (s *soak) kinds() []soakKind {
	return []soakKind{
		{"GET", "ok", (*soakCall).get},
		{"GET with an attempt timeout", "ok", (*soakCall).getImpatiently},
		{"HEAD", "ok", (*soakCall).head},
		{"GET of a 503", "status 503", (*soakCall).unavailable},
		{"GET of slow bytes", "ok", (*soakCall).drip},
		{"GET of events", "ok", (*soakCall).events},
		{"keyless POST", "ok", (*soakCall).post},
		{"keyed POST", "ok", (*soakCall).postKeyed},
		{"PUT of 1 MB", "ok", (*soakCall).put},
		{"canceled GET", "canceled", (*soakCall).cancelGet},
		{"canceled PUT", "canceled", (*soakCall).cancelPut},
	}
}

// request returns a request, and a function that ends its context.
func (c *soakCall) request(method, path string, body []byte) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(c.t.Context(), soakPatience)
	req, err := http.NewRequestWithContext(ctx, method, c.upstream.URL+path, nil)
	if err != nil {
		panic(err)
	}
	req.Header.Set(idHeader, c.id)
	if body != nil {
		req.Header.Set(sumHeader, sum(body))
		c.setBody(req, body)
	}
	return req, cancel
}

// setBody draws how the body is given.
func (c *soakCall) setBody(req *http.Request, body []byte) {
	req.ContentLength = int64(len(body))
	switch c.rnd.IntN(4) {
	case 0: // as http.NewRequest does
		fresh, err := http.NewRequest(req.Method, req.URL.String(), bytes.NewReader(body))
		if err != nil {
			panic(err)
		}
		req.Body, req.GetBody = fresh.Body, fresh.GetBody
	case 1: // a reader of the caller's, which can be had again
		req.Body = c.bodies.New(bytes.NewReader(body))
		req.GetBody = func() (io.ReadCloser, error) { return c.bodies.New(bytes.NewReader(body)), nil }
	case 2: // which cannot
		req.Body = c.bodies.New(bytes.NewReader(body))
	case 3: // and of which nobody knows the length, and that comes slowly
		slow := c.bodies.New(bytes.NewReader(body))
		slow.Pause = 10 * time.Millisecond
		req.Body, req.ContentLength = slow, -1
	}
}

// send returns the response's status and body, or the outcome of a request that
// failed.
func (c *soakCall) send(req *http.Request) (status int, body []byte, outcome string) {
	c.requests.Add(1)
	ctx := req.Context()
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return 0, nil, c.failed(ctx, err)
	}
	body, err = io.ReadAll(resp.Body)
	if closeErr := resp.Body.Close(); closeErr != nil && err == nil {
		c.t.Errorf("%s %s: close: %v", c.kind, c.id, closeErr)
	}
	if err != nil {
		ours := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
		if ours && ctx.Err() == nil {
			c.t.Errorf("%s %s: the body of a response was cut short: %v", c.kind, c.id, err)
		}
		return resp.StatusCode, body, "truncated"
	}
	return resp.StatusCode, body, ""
}

var errLeft = errors.New("the caller left")

// failed returns the kind of an error. It checks the error of a request that
// its caller canceled.
func (c *soakCall) failed(ctx context.Context, err error) string {
	switch {
	case errors.Is(err, context.Canceled):
		if ctx.Err() == nil || !errors.Is(err, ctx.Err()) || !errors.Is(err, context.Cause(ctx)) {
			c.t.Errorf("%s %s: canceled with %v, error: %v", c.kind, c.id, context.Cause(ctx), err)
		}
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "error"
}

// expect sends a request and checks the response's body with want, whose whole
// tells whether all of the body arrived.
func (c *soakCall) expect(req *http.Request, want func(body []byte, whole bool) bool) string {
	status, body, outcome := c.send(req)
	if status == 0 {
		return outcome
	}
	if status != http.StatusOK {
		return fmt.Sprintf("status %d", status)
	}
	if !want(body, outcome == "") {
		c.t.Errorf("%s %s: a corrupt response of %d bytes (%s)", c.kind, c.id, len(body), outcome)
	}
	if outcome == "" {
		return "ok"
	}
	return outcome
}

// fetch sends a GET whose body is known.
func (c *soakCall) fetch(req *http.Request) string {
	want := c.download[req.URL.RequestURI()]
	return c.expect(req, func(body []byte, whole bool) bool {
		return bytes.HasPrefix(want, body) && (!whole || len(body) == len(want))
	})
}

// path draws a path whose content is known.
func (c *soakCall) path() string {
	n := c.rnd.IntN(len(c.download))
	for path := range c.download {
		if strings.HasSuffix(path, "seed="+strconv.Itoa(n)) {
			return path
		}
	}
	panic("no such path")
}

func (c *soakCall) get() string {
	req, cancel := c.request(http.MethodGet, c.path(), nil)
	defer cancel()
	return c.fetch(req)
}

// impatient gives a request an attempt timeout.
func impatient(req *http.Request, timeout time.Duration) *http.Request {
	policy := eager()
	policy.AttemptTimeout = timeout
	return req.WithContext(httpretry.WithPolicy(req.Context(), policy))
}

func (c *soakCall) getImpatiently() string {
	req, cancel := c.request(http.MethodGet, c.path(), nil)
	defer cancel()
	return c.fetch(impatient(req, time.Duration(1+c.rnd.IntN(300))*time.Millisecond))
}

func (c *soakCall) head() string {
	req, cancel := c.request(http.MethodHead, c.path(), nil)
	defer cancel()
	return c.expect(req, func(body []byte, _ bool) bool { return len(body) == 0 })
}

func (c *soakCall) unavailable() string {
	req, cancel := c.request(http.MethodGet, "/drip?code=503&duration=0s&delay=0s&numbytes=1000", nil)
	defer cancel()
	return c.expect(req, func([]byte, bool) bool { return false })
}

// A response that takes longer than the attempt timeout is not cut short.
func (c *soakCall) drip() string {
	req, cancel := c.request(http.MethodGet, "/drip?duration=400ms&delay=0s&numbytes=20", nil)
	defer cancel()
	return c.expect(impatient(req, 300*time.Millisecond), func(body []byte, whole bool) bool {
		return bytes.HasPrefix(bytes.Repeat([]byte("*"), 20), body) && (!whole || len(body) == 20)
	})
}

func (c *soakCall) events() string {
	req, cancel := c.request(http.MethodGet, "/sse?count=4&duration=400ms&delay=0s", nil)
	defer cancel()
	return c.expect(impatient(req, 300*time.Millisecond), func(body []byte, whole bool) bool {
		// go-httpbin ends a response in order, but early, if the network has
		// cut the way to it. There may be less than four events, but no halves.
		events := bytes.Count(body, []byte("event: ping"))
		return !whole || events <= 4 && events == bytes.Count(body, []byte("\n\n")) && (len(body) == 0 || bytes.HasSuffix(body, []byte("\n\n")))
	})
}

// echo sends a body and expects it back.
func (c *soakCall) echo(req *http.Request, body []byte) string {
	return c.expect(req, func(echoed []byte, whole bool) bool { return !whole || bytes.Contains(echoed, body) })
}

// text is a body that JSON does not change, and no other call sends.
func (c *soakCall) text() []byte {
	return []byte(strings.Repeat("body of "+c.id+", ", 1+c.rnd.IntN(500)))
}

func (c *soakCall) post() string {
	body := c.text()
	req, cancel := c.request(http.MethodPost, "/anything", body)
	defer cancel()
	req.Header.Set("Content-Type", "text/plain")
	if c.rnd.IntN(2) == 0 {
		req = impatient(req, time.Duration(1+c.rnd.IntN(300))*time.Millisecond)
	}
	return c.echo(req, body)
}

func (c *soakCall) postKeyed() string {
	body := c.text()
	req, cancel := c.request(http.MethodPost, "/anything", body)
	defer cancel()
	req.Header.Set("Content-Type", "text/plain")
	req.Header.Set("Idempotency-Key", c.id)
	c.meetBusy(req, len(body))
	return c.echo(req, body)
}

func (c *soakCall) put() string {
	req, cancel := c.putRequest()
	defer cancel()
	return c.expect(req, func([]byte, bool) bool { return true })
}

// putRequest draws whether a body that can be read once is kept.
func (c *soakCall) putRequest() (*http.Request, context.CancelFunc) {
	body := c.uploads[c.rnd.IntN(len(c.uploads))]
	req, cancel := c.request(http.MethodPut, "/upload", body)
	c.meetBusy(req, len(body))
	if c.rnd.IntN(2) == 0 {
		policy := eager()
		policy.ReplayBuffer = 2 << 20
		req = req.WithContext(httpretry.WithPolicy(req.Context(), policy))
	}
	return req, cancel
}

// meetBusy has the server answer every third request, once or until it gives
// up, before it has read all of the body, whose length is size. The body may
// still be on its way when it is sent again.
func (c *soakCall) meetBusy(req *http.Request, size int) {
	if c.rnd.IntN(3) == 0 {
		req.Header.Set(busyHeader, strconv.Itoa(c.rnd.IntN(size+1)))
		req.Header.Set(untilHeader, strconv.Itoa(2+c.rnd.IntN(eager().MaxAttempts)))
	}
}

func (c *soakCall) cancelGet() string {
	req, cancel := c.request(http.MethodGet, "/drip?duration=300ms&delay=100ms&numbytes=20", nil)
	defer cancel()
	return c.leave(req)
}

func (c *soakCall) cancelPut() string {
	req, cancel := c.putRequest()
	defer cancel()
	return c.leave(req)
}

// leave cancels a request soon, for a reason of its own.
func (c *soakCall) leave(req *http.Request) string {
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	timer := time.AfterFunc(time.Duration(c.rnd.IntN(100))*time.Millisecond, func() { cancel(errLeft) })
	defer timer.Stop()
	return c.expect(req.WithContext(ctx), func([]byte, bool) bool { return true })
}
