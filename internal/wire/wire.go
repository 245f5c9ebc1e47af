// Package wire watches what net/http sends for one attempt, by the hooks of
// net/http/httptrace, and stops what must not be sent.
//
// It knows connections, writes and answers. It does not know requests or
// responses, and it does not judge what an error means: it reports facts from
// which the caller can conclude that.
package wire

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// MaxSends bounds how often net/http sends a request by itself within one
	// attempt without an answer. Over HTTP/2 it has no bound of its own (Go
	// issue 52459).
	MaxSends = 10

	// defaultHeaderBytes is what net/http accepts by default, rounded.
	defaultHeaderBytes = 10 << 20

	// informationalBytes is what a 1xx response counts without its header.
	informationalBytes = 32
)

// The errors with which a Trace cancels an attempt. Test for them with
// errors.Is: net/http wraps some of them.
var (
	ErrResent        = errors.New("net/http was about to resend a request that is not idempotent, and was stopped")
	ErrTooManySends  = fmt.Errorf("net/http sent the request %d times in one attempt, and was stopped", MaxSends)
	ErrInformational = errors.New("too many 1xx responses to one request")
)

// Options describes the attempt that a Trace watches.
type Options struct {
	// AtMostOnce stops a second sending of the request before it is written.
	AtMostOnce bool

	// HasBody tells that the request has a body. net/http resends such a
	// request only with a body from GetBody, which has to ask ForbidsResend.
	// A request without a body is stopped here, and so is one whose body a
	// layer has read and replaced, because the layer's GetBody does not ask.
	HasBody bool

	// NoLayers tells that no layer above net/http is known. Then only a
	// protocol that was registered with net/http's Transport can send a body
	// again without asking ForbidsResend.
	NoLayers bool

	// Resendable tells that net/http may resend the request over HTTP/1 after
	// it was written (Request.isReplayable in net/http).
	Resendable bool

	// UnencryptedHTTP2 tells that a connection without TLS speaks HTTP/2.
	UnencryptedHTTP2 bool

	// MaxHeaderBytes bounds the headers of all 1xx responses together, as
	// net/http does without a Got1xxResponse hook, which AtMostOnce needs. 0
	// means 10 MiB.
	MaxHeaderBytes int64

	// Restarts asks for calls of Attempt.Restarted.
	Restarts bool
}

// Attempt is what a Trace calls, from goroutines of net/http.
type Attempt interface {
	// Stop cancels the attempt with one of the errors above.
	Stop(cause error)

	// Restarted is called when net/http starts the request again on another
	// connection without having written anything of it.
	Restarted()

	// Uploaded is called when a request with a body has been written, or when
	// net/http has given up writing it.
	Uploaded()

	// BodyWasRead reports whether something was read of the body that the
	// attempt, or its GetBody, returned last.
	BodyWasRead() bool
}

// Trace watches one attempt. Its zero value is ready for Start. A Trace must
// not be copied or used for a second attempt. Its methods are safe for
// concurrent use: net/http calls hooks from its own goroutines, some of them
// after RoundTrip has returned.
type Trace struct {
	attempt Attempt
	options Options
	hooks   httptrace.ClientTrace

	pending pending

	connections atomic.Int32 // that the request was given
	sends       atomic.Int32 // connections since the last answer
	unanswered  atomic.Int32 // requests written and not answered
	answered    atomic.Bool  // some request was answered
	replaced    atomic.Bool  // the body that is being sent may be that of a layer

	detached    atomic.Bool  // Detach was called
	reported    atomic.Bool  // a hook was called: Base is, or contains, net/http's Transport
	wrote       atomic.Bool  // some part of a request
	http2       atomic.Bool  // some of it over HTTP/2
	uploaded    atomic.Bool  // the whole request is written, or never will be
	headerBytes atomic.Int64 // of all 1xx responses

	// stopped is the HTTP/2 connection of a sending that was stopped, until
	// another one begins.
	stopped atomic.Pointer[net.Conn]
}

// pending counts the connections that net/http has requested and not yet got.
type pending struct {
	mu    sync.Mutex
	hosts []host      // for which a connection was requested
	first int         // hosts that wait for their first connection
	again bool        // a host waits for a further connection
	conns []net.Conn  // that requests were given, if AtMostOnce is set
	conn1 [1]net.Conn // of conns, as long as there is one; saves an allocation
}

// host is a host that a connection was asked for.
type host struct {
	hostPort    string
	connections int32 // that there had been before, to any host
}

// Start returns ctx with the hooks that t needs. The hooks that ctx has
// already are called, too.
//
// ctx must be the caller's own context: net/http would call hooks inherited
// from an earlier attempt once more for each attempt.
func (t *Trace) Start(ctx context.Context, attempt Attempt, options Options) context.Context {
	t.attempt, t.options = attempt, options
	// Without a known layer, nothing tells whether the body is replaced.
	t.replaced.Store(options.NoLayers)
	t.hooks.GotConn = t.gotConn
	t.hooks.GotFirstResponseByte = t.gotFirstResponseByte
	// Each hook costs an allocation, so only those are set that are needed.
	if options.HasBody {
		t.hooks.WroteRequest = t.wroteRequest
	}
	if options.Restarts || options.AtMostOnce {
		t.hooks.WroteHeaders = t.wroteHeaders
	}
	// These distinguish a resend, before it is written, from a first sending.
	if options.AtMostOnce {
		t.hooks.GetConn = t.getConn
		t.hooks.WroteHeaderField = t.wroteHeaderField
		t.hooks.Got1xxResponse = t.got1xxResponse
		t.pending.conns = t.pending.conn1[:0]
	}
	return httptrace.WithClientTrace(ctx, &t.hooks)
}

// Detach ends the watch: what is sent in the context from now on is not the
// attempt's. Only Attempt.Uploaded is still called.
func (t *Trace) Detach() { t.detached.Store(true) }

// ProvesUnsent reports whether it is certain that no part of a request was
// written so far. That takes AtMostOnce, and a base transport that reports
// what it does.
func (t *Trace) ProvesUnsent() bool {
	return t.options.AtMostOnce && t.reported.Load() && !t.wrote.Load()
}

// Wrote reports whether some part of a request was written.
func (t *Trace) Wrote() bool { return t.wrote.Load() }

// Answered reports whether some request has been answered, if only by a 1xx
// response.
func (t *Trace) Answered() bool { return t.answered.Load() }

// Connecting reports whether a connection was asked for that is not there yet.
func (t *Trace) Connecting() bool {
	t.pending.mu.Lock()
	defer t.pending.mu.Unlock()
	return t.pending.first > 0 || t.pending.again
}

// Connections returns how many connections requests were given.
func (t *Trace) Connections() int { return int(t.connections.Load()) }

// ForbidsResend reports whether a request was written that the server may be
// processing, so that net/http must not send it again. While it does, GetBody
// must not return a body. What net/http does not consider replayable, it starts
// again over HTTP/1 only if it has written nothing of it
// (persistConn.shouldRetryRequest).
//
// Requests are counted, because a layer above net/http may send others of its
// own in the same context while the first one is on its way.
func (t *Trace) ForbidsResend() bool {
	return t.unanswered.Load() > 0 && (t.http2.Load() || t.options.Resendable)
}

// Uploaded reports whether the request has been written to its end, or never
// will be.
func (t *Trace) Uploaded() bool { return t.uploaded.Load() }

// getConn tells apart what a layer above net/http sends to hosts of its own,
// such as a request for a token: net/http resends a request to the same host
// only. Which host is the request's own is not known, because a layer may
// change it or use another one before.
//
// For an HTTP/2 connection that is reused, net/http may call it twice.
func (t *Trace) getConn(hostPort string) {
	if t.detached.Load() {
		return
	}
	t.reported.Store(true)
	connections := t.connections.Load()
	t.pending.mu.Lock()
	defer t.pending.mu.Unlock()
	i := slices.IndexFunc(t.pending.hosts, func(h host) bool { return h.hostPort == hostPort })
	switch {
	case i < 0:
		t.pending.hosts = append(t.pending.hosts, host{hostPort, connections})
		t.pending.first++
	case t.pending.hosts[i].connections < connections:
		t.pending.again = true
	}
}

// gotConn is called before each sending.
func (t *Trace) gotConn(info httptrace.GotConnInfo) {
	if t.detached.Load() {
		return
	}
	t.reported.Store(true)
	t.connections.Add(1)
	sends := t.sends.Add(1)
	t.uploaded.Store(false)
	t.stopped.Store(nil)
	// net/http closed the body without having read it, and sends it again
	// (http2shouldRetryRequest).
	if t.options.Restarts && sends > 1 && !t.wrote.Load() {
		t.attempt.Restarted()
	}
	mayResend := t.connected(info.Conn)
	switch {
	// Over HTTP/1, net/http resends only what failed on a reused connection,
	// and a layer may well send ten requests of its own at the same time.
	case !t.options.AtMostOnce:
		if sends > MaxSends && speaksHTTP2(info.Conn, t.options.UnencryptedHTTP2) {
			t.attempt.Stop(ErrTooManySends)
		}
	// A request with a body cannot be sent again without GetBody, unless the
	// body is that of a layer. One without a body looks the same as another
	// request that a layer sends to the same host meanwhile, so such a request
	// over HTTP/2 ends the attempt, too.
	case mayResend && (!t.options.HasBody || t.replaced.Load()) && t.ForbidsResend():
		t.stop(info.Conn)
	}
}

// connected takes back what getConn counted, and reports whether conn may be
// for a request that was sent before. While several connections are
// outstanding, that is not known: then it may be.
func (t *Trace) connected(conn net.Conn) (mayResend bool) {
	t.pending.mu.Lock()
	first := !t.pending.again && t.pending.first > 0
	if first {
		t.pending.first--
	}
	t.pending.again = false
	before := t.pending.conns
	if conn != nil && t.options.AtMostOnce {
		t.pending.conns = append(t.pending.conns, conn)
	}
	t.pending.mu.Unlock()
	// Through a proxy, GetConn gets the name of the proxy for a new connection,
	// and that of the server for an HTTP/2 connection that is open already.
	return !first || conn != nil && slices.ContainsFunc(before, func(c net.Conn) bool { return t.maySharePeer(c, conn) })
}

// maySharePeer reports whether two connections may lead to the same server.
// Those through a proxy have the proxy's address, whatever the server, and
// net/http chooses a proxy again for each resend.
func (t *Trace) maySharePeer(a, b net.Conn) bool {
	if nameA, nameB := serverName(a), serverName(b); nameA != "" && nameB != "" {
		return nameA == nameB
	}
	// Without layers, hardly anything but a resend takes another connection.
	if t.options.NoLayers {
		return true
	}
	addrA, addrB := a.RemoteAddr(), b.RemoteAddr()
	return addrA == nil || addrB == nil || addrA.String() == addrB.String()
}

// serverName returns the name that a client has sent to the server in the TLS
// handshake. It is "" for an IP address.
func serverName(conn net.Conn) string {
	if c, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
		return c.ConnectionState().ServerName
	}
	return ""
}

// stop ends a sending before it is written. Over HTTP/2, net/http looks at the
// context before it writes (clientStream.encodeAndWriteHeaders). Over HTTP/1
// it writes regardless, so the connection, which is this request's alone, has
// to be closed.
func (t *Trace) stop(conn net.Conn) {
	t.attempt.Stop(ErrResent)
	switch {
	case conn == nil:
	case speaksHTTP2(conn, t.http2.Load()):
		t.stopped.Store(&conn)
	default:
		_ = conn.Close() // nothing was written on it that could be lost
	}
}

// enforceStop closes the connection of a sending that goes on although it was
// stopped: a layer has detached it from the attempt's context
// (context.WithoutCancel). Other requests may lose the connection, too.
func (t *Trace) enforceStop() {
	if conn := t.stopped.Swap(nil); conn != nil {
		_ = (*conn).Close()
	}
}

// speaksHTTP2 reports what TLS has negotiated for a connection, or without TLS
// what was spoken before. Other requests share an HTTP/2 connection.
func speaksHTTP2(conn net.Conn, before bool) bool {
	if c, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
		return c.ConnectionState().NegotiatedProtocol == "h2"
	}
	return before
}

// wroteHeaderField is called before the header block can have been written.
// The header of HTTP/2 begins with pseudo-header fields (RFC 9113 section
// 8.3), that of HTTP/1 with Host.
func (t *Trace) wroteHeaderField(name string, values []string) {
	if t.detached.Load() {
		return
	}
	switch name {
	case ":authority":
		t.enforceStop()
		t.http2.Store(true)
		t.beginRequest()
	case "Host":
		t.beginRequest()
	case ":method":
		if !slices.Contains(values, http.MethodGet) && !slices.Contains(values, http.MethodHead) {
			t.noteBody()
		}
	}
	t.wrote.Store(true)
}

// beginRequest counts a request that is about to be written. It calls noteBody
// only if no other request is unanswered. Otherwise a layer may be sending a
// request of its own, such as a GET, which does not replace the attempt's body.
func (t *Trace) beginRequest() {
	if t.unanswered.Add(1) == 1 {
		t.noteBody()
	}
}

// noteBody notes, before a header is written, whether the attempt's body has
// been read. net/http reads a body after the header. So a layer has read it,
// and sends a body of its own.
func (t *Trace) noteBody() {
	if t.options.HasBody && t.attempt.BodyWasRead() {
		t.replaced.Store(true)
	}
}

// wroteHeaders is for transports that do not report each field.
func (t *Trace) wroteHeaders() { t.wrote.Store(true) }

func (t *Trace) gotFirstResponseByte() {
	if t.detached.Load() {
		return
	}
	t.answered.Store(true)
	// Only resends without an answer in between are limited.
	t.sends.Store(0)
	// Without AtMostOnce, requests are not counted: unanswered stays at 0.
	for {
		n := t.unanswered.Load()
		if n == 0 || t.unanswered.CompareAndSwap(n, n-1) {
			return
		}
	}
}

// got1xxResponse takes an answer back: net/http resends after a 1xx response,
// too. The final response that follows is not reported, so whatever a layer
// sends after that is stopped.
func (t *Trace) got1xxResponse(_ int, header textproto.MIMEHeader) error {
	if t.detached.Load() {
		return nil
	}
	size := int64(informationalBytes)
	for name, values := range header {
		for _, value := range values {
			size += int64(len(name) + len(value))
		}
	}
	total := t.headerBytes.Add(size)
	if total == size { // it is the first
		t.unanswered.Add(1)
	}
	if total > cmp.Or(t.options.MaxHeaderBytes, defaultHeaderBytes) {
		return ErrInformational
	}
	return nil
}

func (t *Trace) wroteRequest(httptrace.WroteRequestInfo) {
	t.uploaded.Store(true)
	t.attempt.Uploaded()
}
