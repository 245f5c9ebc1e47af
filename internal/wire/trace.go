package wire

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"net/textproto"
	"sync"
)

// MaxSends bounds how often net/http sends a request by itself within one
// attempt without an answer. Over HTTP/2 it has no bound of its own (Go issue
// 52459).
const MaxSends = 10

// The errors with which a Trace cancels an attempt. Test for them with
// errors.Is: net/http wraps some of them.
var (
	ErrResent = errors.New(
		"the request is not idempotent, and was stopped when it was about to be sent again")
	ErrTooManySends = fmt.Errorf(
		"the request was sent %d times in one attempt, and was stopped", MaxSends)
	ErrInformational = errors.New("too many 1xx responses to one request")
	ErrProtocol      = errors.New("the connection speaks another protocol than expected")
)

// Protocol is a protocol that a connection may speak.
type Protocol uint8

// The versions of HTTP that frame a request without a body differently.
const (
	AnyProtocol Protocol = iota
	HTTP1
	HTTP2
)

// Options describes the attempt that a Trace watches.
type Options struct {
	// AtMostOnce stops a second send of the request before it is written.
	AtMostOnce bool

	// HasBody means that the request has a body. Once net/http has read some of
	// it, it resends the request only with a body from GetBody.
	HasBody bool

	// NoLayers means that Base is net/http's Transport itself. Then only a
	// protocol that was registered with that Transport can send a body again
	// without a call of GetBody.
	NoLayers bool

	// Resendable is the result of the function Resendable.
	Resendable bool

	// UnencryptedHTTP2 means that a connection without TLS may speak HTTP/2.
	UnencryptedHTTP2 bool

	// MaxHeaderBytes bounds the headers of all 1xx responses together, as
	// net/http does without a Got1xxResponse hook, which AtMostOnce needs. 0
	// means 10 MiB.
	MaxHeaderBytes int64

	// Restarts asks for calls of Attempt.Restarted.
	Restarts bool

	// Expected is the protocol for which the request is framed. If the first
	// connection speaks another one, the attempt is stopped with ErrProtocol
	// before anything is written. Towards HTTP/2, that is done only if the
	// connection is to HostPort, or if GetConn has named at most one host. With
	// NoLayers, the connections over HTTP/1 that follow are closed as well.
	Expected Protocol
	HostPort string
}

// Attempt is called by a Trace from goroutines of net/http, while the Trace
// holds no lock.
type Attempt interface {
	// Stop cancels the attempt with one of the errors above.
	Stop(cause error)

	// Restarted is called when net/http starts the request again on another
	// connection without having written anything of it.
	Restarted()

	// Uploaded is called when a request with a body has been written, or when
	// net/http has given up writing it.
	Uploaded()
}

// Trace watches one attempt. Its zero value is ready for Start. A Trace must
// not be copied or used for a second attempt. Its methods, but for Start and
// Body, are safe for concurrent use. A nil Trace watches nothing, and must not
// be started.
type Trace struct {
	// Written by Start and Body, before net/http knows the request.
	attempt Attempt
	hooks   httptrace.ClientTrace
	body    watchedBody // returned by Body

	// mu guards state, of which only options may be read without it. It is held
	// for one transition, which calls at most RemoteAddr of a connection.
	mu    sync.Mutex
	state state
}

// Start returns ctx with the hooks that t needs. The hooks that ctx has
// already are called, too.
//
// ctx must be the caller's own context, because net/http would call hooks
// inherited from an earlier attempt once more for each attempt.
func (t *Trace) Start(ctx context.Context, attempt Attempt, options Options) context.Context {
	t.attempt = attempt
	t.state.start(options)
	t.hooks.GotConn = t.gotConn
	t.hooks.GotFirstResponseByte = t.gotFirstResponseByte
	// Each hook costs an allocation, so only those that are needed are set.
	if options.HasBody {
		t.hooks.WroteRequest = t.wroteRequest
	}
	if options.Restarts || options.AtMostOnce {
		t.hooks.WroteHeaders = t.wroteHeaders
	}
	// These distinguish a resend, before it is written, from a first send.
	if options.AtMostOnce {
		t.hooks.GetConn = t.getConn
		t.hooks.WroteHeaderField = t.wroteHeaderField
		t.hooks.Got1xxResponse = t.got1xxResponse
	}
	return httptrace.WithClientTrace(ctx, &t.hooks)
}

// Detach ends the watch. Requests that are sent in the context from now on are
// not the attempt's. Only Attempt.Uploaded is still called.
func (t *Trace) Detach() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.detached = true
}

// Seal ends the watch, because Base has returned an error. A layer may not have
// waited for the end of its request. If that would be written later, its connection
// is closed before, unless it is one of HTTP/2 or HTTP/3 that the request had got.
func (t *Trace) Seal() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.seal()
}

// ProvesUnsent reports whether the server cannot have got the request of an
// attempt that has failed and was sealed. The proof requires AtMostOnce, and a
// base transport that calls the hooks.
//
// If canceled is true, a context may have ended the attempt. Then the result is
// true only if it had no connection that Seal cannot close: over HTTP/2, net/http
// may write the request after RoundTrip has returned.
func (t *Trace) ProvesUnsent(canceled bool) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.provesUnsent(canceled)
}

// Facts are what a Trace knows of what its attempt has sent.
type Facts struct {
	Wrote      bool // some part of a request was written
	Answered   bool // some request was answered, if only by a 1xx response
	Connecting bool // net/http waits for a connection; known with AtMostOnce only

	LastHTTP2  bool // the connection that was got last speaks HTTP/2
	LastReused bool // it has been used before

	// Over HTTP/1, net/http gives a connection to the next request before it hands
	// over a response without a body. Shared means that the request may have had its
	// last connection together with the request before, or with the next one.
	Shared bool

	// A request was written and not answered, on the last connection or on
	// another. They require AtMostOnce. A request of which net/http has written
	// nothing may count, too.
	UnansweredHere, UnansweredElsewhere bool
}

// Facts returns what t knows now.
func (t *Trace) Facts() Facts {
	if t == nil {
		return Facts{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.facts()
}

// AwaitsUpload reports whether a call of Attempt.Uploaded is yet to come.
func (t *Trace) AwaitsUpload() bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.awaitsUpload()
}

// perform performs the actions of a transition. t.mu is not held.
func (t *Trace) perform(do action) {
	if do.restarted {
		t.attempt.Restarted()
	}
	if do.stop != nil {
		t.attempt.Stop(do.stop)
	}
	for _, conn := range do.close {
		_ = conn.Close() // its error would be about a request that must not be sent
	}
	if do.uploaded {
		t.attempt.Uploaded()
	}
}

func (t *Trace) getConn(hostPort string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.getConn(hostPort)
}

func (t *Trace) gotConn(info httptrace.GotConnInfo) {
	c := inspect(info.Conn)
	c.reused = info.Reused
	t.mu.Lock()
	do := t.state.gotConn(c)
	t.mu.Unlock()
	t.perform(do)
}

func (t *Trace) wroteHeaderField(name string, values []string) {
	t.mu.Lock()
	do := t.state.wroteHeaderField(name, values)
	t.mu.Unlock()
	t.perform(do)
}

func (t *Trace) wroteHeaders() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.wroteHeaders()
}

func (t *Trace) wroteRequest(httptrace.WroteRequestInfo) {
	t.mu.Lock()
	do := t.state.wroteRequest()
	t.mu.Unlock()
	t.perform(do)
}

func (t *Trace) gotFirstResponseByte() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.gotFirstResponseByte()
}

func (t *Trace) got1xxResponse(_ int, header textproto.MIMEHeader) error {
	size := int64(informationalBytes)
	for name, values := range header {
		for _, value := range values {
			size += int64(len(name) + len(value))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.got1xxResponse(size)
}
