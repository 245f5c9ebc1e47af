package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/faults"
)

const (
	limit = 5 * time.Second  // of the context of an exchange
	hang  = 10 * time.Second // how much later it must be over, on a busy machine
)

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
	aheadRetry = "retried after half of a 200"
)

// host has the methods of testing.TB that package faults needs.
type host struct {
	testing.TB
	cleanups []func()
}

func (*host) Helper()            {}
func (h *host) Cleanup(f func()) { h.cleanups = append(h.cleanups, f) }
func (*host) Fatal(v ...any)     { panic(fmt.Sprint(v...)) }

func (h *host) close() {
	for _, f := range h.cleanups {
		f()
	}
}

// client sends one exchange after another. Those with the same protocol and
// layer have the same RetryTransport.
type client struct {
	host

	tlsServer, tlsClient *tls.Config
	dir                  string
	lanes                map[lane]transports
	sent                 int
	addr                 atomic.Value // a string: the server's of the exchange that is under way
}

type lane struct {
	protocol
	layering
}

type transports struct {
	base  *http.Transport
	retry *httpretry.RetryTransport
}

func newClient() *client {
	c := &client{lanes: map[lane]transports{}}
	c.tlsServer, c.tlsClient = faults.Certificates(c)
	dir, err := os.MkdirTemp("", "exchange")
	if err != nil {
		c.Fatal(err)
	}
	c.dir = dir
	c.Cleanup(func() { _ = os.RemoveAll(dir) })
	return c
}

// transports returns those of x.
func (c *client) transports(x *exchange) transports {
	of := lane{x.proto, x.base}
	if c.lanes[of].retry == nil {
		base := faults.Base(c, c.tlsClient.Clone())
		// net/http keeps a lost HTTP/2 connection in memory for this long.
		base.IdleConnTimeout = 2 * time.Second
		base.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, c.addr.Load().(string))
		}
		base.Protocols = new(http.Protocols)
		base.Protocols.SetHTTP1(!x.proto.isHTTP2())
		base.Protocols.SetHTTP2(x.proto == http2TLS)
		base.Protocols.SetUnencryptedHTTP2(x.proto == http2Bare)
		retry, err := httpretry.New(httpretry.Config{Base: newLayer(x.base, base), Observe: observe})
		if err != nil {
			c.Fatal(err)
		}
		c.lanes[of] = transports{base, retry}
	}
	return c.lanes[of]
}

// run is an exchange on its way.
type run struct {
	host
	transports

	x        *exchange
	server   *server
	bodies   *bodies
	attempts atomic.Int32
	ends     atomic.Int32 // events with a Reason
	problems []string
}

// runKey is that of the run in a context.
type runKey struct{}

// observe counts the attempts. A cancel of a wait is an event, too, of the
// attempt before.
func observe(ctx context.Context, e httpretry.Event) {
	r := ctx.Value(runKey{}).(*run)
	r.attempts.Store(int32(e.Attempt.Number))
	if e.Reason != httpretry.ReasonNone {
		r.ends.Add(1)
	}
}

func (r *run) report(format string, values ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, values...))
}

// run returns the results of x, and what is wrong.
func (c *client) run(x *exchange) (outcomes, problems []string) {
	tlsServer := c.tlsServer.Clone()
	tlsServer.NextProtos = []string{"http/1.1"}
	if x.proto.isHTTP2() {
		tlsServer.NextProtos = []string{"h2"}
	}
	r := &run{x: x, transports: c.transports(x)}
	defer r.close()
	// Few hosts, so that their tables do not grow, and enough of them that no
	// connection to the server before is left.
	c.sent++
	r.server = newServer(r, x, tlsServer, fmt.Sprintf("example.com:%d", 1+c.sent%16))
	c.addr.Store(r.server.Addr)
	var err error
	if r.bodies, err = newBodies(x, c.dir); err != nil {
		r.Fatal(err)
	}
	if x.reused {
		resp, err := r.base.RoundTrip(r.request(context.Background(), http.MethodGet, warmUpPath))
		if err != nil {
			r.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	outcomes = r.send()
	r.problems = append(r.problems, r.server.check(r.bodies.data)...)
	if len(r.problems) > 0 && r.bodies.haveOverlapped() {
		r.report("GetBody was called during a long Read")
	}
	return append(outcomes, r.server.outcomes(int(r.attempts.Load()))...), r.problems
}

func (r *run) request(ctx context.Context, method, path string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, r.server.url(path), nil)
	if err != nil {
		r.Fatal(err)
	}
	return req
}

var errLeft = errors.New("the caller left")

// send sends the request and handles the response as a caller does.
func (r *run) send() (outcomes []string) {
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), runKey{}, r), limit)
	defer cancel()
	ctx, leave := context.WithCancelCause(httpretry.WithPolicy(ctx, r.x.policy))
	defer leave(nil)
	req := r.request(ctx, r.x.method, "/")
	if r.x.key == hasKey {
		req.Header.Set("Idempotency-Key", "a")
	}
	if r.x.expect {
		req.Header.Set("Expect", "100-continue")
	}
	if err := r.bodies.set(req); err != nil {
		r.Fatal(err)
	}
	if r.x.cancel > 0 {
		defer time.AfterFunc(r.x.cancel, func() { leave(errLeft) }).Stop()
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
	// A request whose context has ended before has no event.
	if n := r.ends.Load(); n > 1 || n == 0 && (ctx.Err() == nil || r.attempts.Load() > 0) {
		r.report("there were %d events with a Reason", n)
	}
	if r.attempts.Load() > 1 {
		outcomes = append(outcomes, retried)
	}
	// The caller's context usually ends when the caller is done.
	leave(nil)
	r.base.CloseIdleConnections()
	r.problems = append(r.problems, r.bodies.check()...)
	if r.bodies.made() > 1 {
		outcomes = append(outcomes, rewound)
	}
	return outcomes
}

// roundTrip reports if RoundTrip does not return after its context has ended.
func (r *run) roundTrip(req *http.Request) (resp *http.Response, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		resp, err = r.retry.RoundTrip(req)
	}()
	select {
	case <-done:
		return resp, err
	case <-req.Context().Done():
	}
	select {
	case <-done:
	case <-time.After(hang):
		r.bodies.release()
		<-done
		r.report("RoundTrip did not return for %v after its context had ended", hang)
	}
	return resp, err
}

// read reads and closes the response.
func (r *run) read(resp *http.Response) (outcome string) {
	outcome = refused
	if resp.StatusCode == 200 {
		outcome = succeeded
	}
	if !r.x.unread {
		body, err := io.ReadAll(resp.Body)
		ended := resp.Request.Context().Err() != nil
		isWhole := err == nil && string(body) == answerBody
		isPart := err != nil && strings.HasPrefix(answerBody, string(body))
		// What is read ahead may come too late for the AttemptTimeout.
		isLate := r.x.policy.ReadAhead > 0 && errors.Is(err, context.DeadlineExceeded)
		if !isWhole && !isPart ||
			!ended && !isWhole && !isLate && r.server.isClean(resp.Header.Get(stepHeader)) {
			r.report("the body of the response, %d, is %q: %v", resp.StatusCode, body, err)
		}
		p := r.x.policy
		mayRetry := r.x.readsAhead() && r.x.isSafe() && r.x.body == noBody &&
			p.Budget == httpretry.Budget(httpretry.Unlimited{}) && int(r.attempts.Load()) < p.MaxAttempts
		if isPart && !isWhole && !ended && outcome == succeeded && mayRetry {
			r.report("half of a 200 was returned after %d of %d attempts: %v", r.attempts.Load(), p.MaxAttempts, err)
		}
	}
	if err := resp.Body.Close(); err != nil {
		r.report("close of the response's body: %v", err)
	}
	return outcome
}

// checkError returns which error it is.
func (r *run) checkError(ctx context.Context, err error) (outcome string) {
	var own *httpretry.Error
	isOwn := errors.As(err, &own)
	// The error of a single attempt is that of the attempt.
	if made := int(r.attempts.Load()); made > 1 && !isOwn {
		r.report("the error after %d attempts is a %T: %v", made, err, err)
	} else if isOwn && own.Attempts != made {
		r.report("%d attempts were made, but the error says %d: %v", made, own.Attempts, err)
	}
	isCanceled := errors.Is(err, context.Canceled)
	switch {
	case isCanceled && !errors.Is(err, errLeft):
		r.report("the error has no cause, or nobody has canceled the request: %v", err)
	case ctx.Err() != nil:
		return canceled
	}
	return failed
}

// newLayer returns base, or a layer over it.
func newLayer(kind layering, base *http.Transport) http.RoundTripper {
	switch kind {
	case unwraps:
		return unwrappingLayer{hidingLayer{base}}
	case hides:
		return hidingLayer{base}
	case signs:
		return signingLayer{base}
	case challenges:
		return challengedLayer{base}
	}
	return base
}

// hidingLayer sends a copy of each request, as one that adds credentials does.
type hidingLayer struct{ next http.RoundTripper }

func (l hidingLayer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer token")
	return l.next.RoundTrip(req)
}

type unwrappingLayer struct{ hidingLayer }

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
