package integration

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/integration/internal/leaks"
	"github.com/seed421102f4/httpretry/internal/faults"
)

const (
	exchangeCount   = 800
	exchangeClients = 8
	exchangeLimit   = 5 * time.Second  // of the context of an exchange
	exchangeHang    = 10 * time.Second // how much later it must be over, on a busy machine
)

// TestExchanges sends requests of all kinds, with bodies of all kinds, to
// servers that answer early, cut, reset, refuse and send GOAWAY. It checks at
// the server that each body that arrives to its end has the right bytes, and
// that a request that is not safe to repeat is sent once. It checks at the
// client that each body is read by one reader at a time and closed, that
// RoundTrip returns, and that nothing is left.
//
// INTEGRATION_EXCHANGES is the number of exchanges. INTEGRATION_EXCHANGE_SEED
// is the seed of the first, which a failure prints; alone, it repeats that
// exchange, but not the interleaving, so -count may be needed.
func TestExchanges(t *testing.T) {
	first, count := uint64(1), uint64(exchangeCount)
	if text := os.Getenv("INTEGRATION_EXCHANGE_SEED"); text != "" {
		var err error
		first, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		count = 1
	}
	if text := os.Getenv("INTEGRATION_EXCHANGES"); text != "" {
		var err error
		count, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	certificates := newExchangeCertificates(t)
	faults.Refused(t) // the runtime's own descriptors are there from now on
	before := leaks.Now()
	var (
		next  atomic.Uint64
		wg    sync.WaitGroup
		tally exchangeTally
	)
	for range exchangeClients {
		wg.Go(func() {
			for n := next.Add(1); n <= count; n = next.Add(1) {
				x := newExchange(first + n - 1)
				t.Run(strconv.FormatUint(x.seed, 10), func(t *testing.T) {
					tally.add(runExchange(t, x, certificates))
				})
			}
		})
	}
	wg.Wait()
	assertNothingLeft(t, before)
	tally.check(t, count)
}

// exchangeTally counts the results of the exchanges.
type exchangeTally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (y *exchangeTally) add(outcomes []string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.counts == nil {
		y.counts = map[string]int{}
	}
	for _, outcome := range outcomes {
		y.counts[outcome]++
	}
}

// check asks whether the exchanges met all situations that they are to test.
func (y *exchangeTally) check(t *testing.T, count uint64) {
	logCounts(t, y.counts)
	if count < exchangeCount {
		return
	}
	for _, outcome := range []string{succeeded, failed, canceled, retried, resent, rewound, wholeRetry} {
		assert.NotZero(t, y.counts[outcome], outcome)
	}
}

// The results of an exchange.
const (
	succeeded  = "answered 200"
	refused    = "answered another status"
	failed     = "failed"
	canceled   = "failed after its context ended"
	retried    = "retried"
	resent     = "sent more often than there were attempts"
	rewound    = "GetBody called"
	wholeRetry = "whole bodies that arrived after others"
)

type exchangeCertificates struct{ server, client *tls.Config }

func newExchangeCertificates(t *testing.T) exchangeCertificates {
	server, client := faults.Certificates(t)
	return exchangeCertificates{server, client}
}

// forProtocol returns copies for x.
func (c exchangeCertificates) forProtocol(p protocol) (server, client *tls.Config) {
	server = c.server.Clone()
	server.NextProtos = []string{"http/1.1"}
	if p.isHTTP2() {
		server.NextProtos = []string{"h2"}
	}
	return server, c.client.Clone()
}

// exchangeRun is an exchange on its way.
type exchangeRun struct {
	*testing.T
	x         *exchange
	server    *exchangeServer
	bodies    *bodies
	base      *http.Transport
	transport *httpretry.RetryTransport
	attempts  atomic.Int32
	problems  []string
}

func (r *exchangeRun) report(format string, values ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, values...))
}

// runExchange returns the result of x.
func runExchange(t *testing.T, x *exchange, certificates exchangeCertificates) []string {
	t.Helper()
	server, client := certificates.forProtocol(x.proto)
	r := &exchangeRun{T: t, x: x, server: newExchangeServer(t, x, server), base: newExchangeBase(t, x.proto, client)}
	var err error
	r.bodies, err = newBodies(x, t.TempDir())
	require.NoError(t, err)
	r.transport, err = httpretry.New(httpretry.Config{
		Base:   newExchangeLayer(x.base, r.base),
		Policy: x.policy,
		// A cancel of a wait is an event, too, of the attempt before.
		Observe: func(_ context.Context, e httpretry.Event) { r.attempts.Store(int32(e.Attempt.Number)) },
	})
	require.NoError(t, err)
	if x.reused {
		resp, err := r.base.RoundTrip(r.request(t.Context(), http.MethodGet, warmUpPath))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	outcomes := r.run()
	r.problems = append(r.problems, r.server.check(r.bodies.data)...)
	r.problems = append(r.problems, r.bodies.check()...)
	for _, problem := range r.problems {
		t.Error(problem)
	}
	if len(r.problems) > 0 {
		if r.bodies.overlaps > 0 {
			t.Logf("GetBody was called during a long Read")
		}
		t.Logf("INTEGRATION_EXCHANGE_SEED=%d: %v", x.seed, x)
	}
	return append(outcomes, r.server.outcomes(int(r.attempts.Load()))...)
}

func newExchangeBase(t *testing.T, p protocol, client *tls.Config) *http.Transport {
	base := faults.Base(t, client)
	base.Protocols = new(http.Protocols)
	base.Protocols.SetHTTP1(!p.isHTTP2())
	base.Protocols.SetHTTP2(p == http2TLS)
	base.Protocols.SetUnencryptedHTTP2(p == http2Bare)
	return base
}

func (r *exchangeRun) request(ctx context.Context, method, path string) *http.Request {
	r.Helper()
	req, err := http.NewRequestWithContext(ctx, method, r.server.url(path), nil)
	require.NoError(r, err)
	return req
}

// run sends the request and handles the response as a caller does.
func (r *exchangeRun) run() (outcomes []string) {
	ctx, cancel := context.WithTimeout(r.Context(), exchangeLimit)
	defer cancel()
	req := r.request(ctx, r.x.method, "/")
	if r.x.key == hasKey {
		req.Header.Set("Idempotency-Key", "a")
	}
	if r.x.expect {
		req.Header.Set("Expect", "100-continue")
	}
	require.NoError(r, r.bodies.set(req))
	if r.x.cancel > 0 {
		defer time.AfterFunc(r.x.cancel, cancel).Stop()
	}
	resp, err := r.roundTrip(req)
	if (resp == nil) == (err == nil) {
		r.report("RoundTrip returned %v and %v", resp, err)
	}
	if resp != nil {
		outcomes = append(outcomes, r.read(resp))
	}
	if err != nil {
		outcomes = append(outcomes, r.checkError(ctx, err))
	}
	if r.attempts.Load() > 1 {
		outcomes = append(outcomes, retried)
	}
	// The caller's context usually ends when the caller is done.
	cancel()
	r.base.CloseIdleConnections()
	for late := time.Now().Add(exchangeHang); !r.bodies.isClosed() && time.Now().Before(late); {
		time.Sleep(time.Millisecond)
	}
	if r.bodies.made() > 1 {
		outcomes = append(outcomes, rewound)
	}
	return outcomes
}

// roundTrip fails the test if RoundTrip does not return after its context has
// ended. The exchange then cannot go on.
func (r *exchangeRun) roundTrip(req *http.Request) (resp *http.Response, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		resp, err = r.transport.RoundTrip(req)
	}()
	select {
	case <-done:
		return resp, err
	case <-req.Context().Done():
	}
	select {
	case <-done:
		return resp, err
	case <-time.After(exchangeHang):
		r.bodies.release()
		<-done
		r.report("RoundTrip did not return for %v after its context had ended", exchangeHang)
		return resp, err
	}
}

// read reads and closes the response.
func (r *exchangeRun) read(resp *http.Response) (outcome string) {
	outcome = refused
	if resp.StatusCode == 200 {
		outcome = succeeded
	}
	if !r.x.unread {
		body, err := io.ReadAll(resp.Body)
		ended := resp.Request.Context().Err() != nil
		if !ended && r.server.isClean(resp.Header.Get(stepHeader)) && (err != nil || string(body) != answerBody) {
			r.report("the body of the response, %d, is %q: %v", resp.StatusCode, body, err)
		}
	}
	if err := resp.Body.Close(); err != nil {
		r.report("close of the response's body: %v", err)
	}
	return outcome
}

// checkError returns which error it is.
func (r *exchangeRun) checkError(ctx context.Context, err error) (outcome string) {
	var own *httpretry.Error
	isOwn := errors.As(err, &own)
	// The error of a single attempt is that of the attempt.
	if made := int(r.attempts.Load()); made > 1 && !isOwn {
		r.report("the error after %d attempts is a %T: %v", made, err, err)
	} else if isOwn && own.Attempts != made {
		r.report("%d attempts were made, but the error says %d: %v", made, own.Attempts, err)
	}
	if ctx.Err() != nil {
		return canceled
	}
	if errors.Is(err, context.Canceled) {
		r.report("nobody has canceled the request: %v", err)
	}
	return failed
}

// newExchangeLayer returns base, or a layer over it.
func newExchangeLayer(kind layering, base *http.Transport) http.RoundTripper {
	switch kind {
	case unwraps:
		return unwrappingLayer{layer{base}, base}
	case hides:
		return layer{base}
	case signs:
		return signingLayer{base}
	case challenges:
		return challengedLayer{base}
	}
	return base
}

type unwrappingLayer struct {
	layer
	next http.RoundTripper
}

func (l unwrappingLayer) Unwrap() http.RoundTripper { return l.next }

// signingLayer reads the body before it sends the request, as one does that
// signs requests.
type signingLayer struct{ next http.RoundTripper }

func (l signingLayer) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body == nil || req.GetBody == nil {
		return l.next.RoundTrip(req)
	}
	_, err := io.Copy(io.Discard, req.Body)
	err = errors.Join(err, req.Body.Close())
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	if req.Body, err = req.GetBody(); err != nil {
		return nil, err
	}
	return l.next.RoundTrip(req)
}

// challengedLayer answers a 401 with a second request, as one does for digest
// authentication.
type challengedLayer struct{ next http.RoundTripper }

func (l challengedLayer) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	hasBody := req.Body != nil && req.Body != http.NoBody
	if err != nil || resp.StatusCode != http.StatusUnauthorized || hasBody && req.GetBody == nil {
		return resp, err
	}
	again := req.Clone(req.Context())
	if hasBody {
		if again.Body, err = req.GetBody(); err != nil {
			return resp, nil
		}
	}
	_, _ = io.Copy(io.Discard, resp.Body) // the connection may be used again if this succeeds
	_ = resp.Body.Close()
	return l.next.RoundTrip(again)
}

// outcomes returns the outcomes that the server has seen.
func (s *exchangeServer) outcomes(attempts int) (outcomes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.arrivals) > attempts {
		outcomes = append(outcomes, resent)
	}
	later := s.arrivals[min(1, len(s.arrivals)):]
	if s.x.size > 0 && slices.ContainsFunc(later, func(a *arrival) bool { return a.whole }) {
		outcomes = append(outcomes, wholeRetry)
	}
	return outcomes
}

// made returns how many bodies there were.
func (b *bodies) made() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.all) + len(b.files)
}

// release ends the Reads that block.
func (b *bodies) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, body := range b.all {
		body.once.Do(func() { close(body.closed) })
	}
}
