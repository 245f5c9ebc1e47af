package wire

import (
	"cmp"
	"net"
	"net/http"
	"slices"
)

const (
	// defaultHeaderBytes is the default of net/http for the size of a header,
	// rounded.
	defaultHeaderBytes = 10 << 20

	// informationalBytes is added for each 1xx response, whatever its header.
	informationalBytes = 32
)

// state has the facts that a Trace knows of its attempt. Its methods change
// only the state, and return the actions to perform. They take no lock, do not
// call the Attempt, and do no I/O. Those named after hooks are the transitions.
type state struct {
	// Written by start, before net/http knows the hooks.
	options Options

	// Written by Detach and Seal. After that, hooks change only uploaded and kept.
	detached bool
	sealed   bool // nothing may be written any more
	shared   bool // it has got a connection that seal cannot close

	// Written by getConn and gotConn. A response also resets sendsSinceAnswer,
	// and the first field of a header stopped.
	hosts            []host // for which a connection was requested
	pending          pending
	connCount        int         // calls of gotConn
	sendsSinceAnswer int         // calls of gotConn since the last answer
	kept             []connInfo  // the connections of gotConn, if AtMostOnce is set
	keptArray        [1]connInfo // holds kept while it has one element; saves an allocation
	reported         bool        // a hook was called, so Base is, or contains, net/http's Transport
	unexpected       bool        // stopped with ErrProtocol
	stopped          net.Conn    // of a send over HTTP/2 that was stopped, until another one begins
	lastHTTP2        bool        // the connection of the last gotConn speaks HTTP/2
	lastHTTP3        bool        // it speaks HTTP/3
	lastReused       bool        // it was used before

	// Written by the hooks for writing. gotConn takes uploaded back.
	wrote    bool // some part of a request
	http2    bool // some of it over HTTP/2
	uploaded bool // the whole request is written, or never will be

	// Written by the hooks for responses, and by the first field of a header.
	answered       bool  // some request was answered
	unanswered     int   // requests written and not answered, if AtMostOnce is set
	unansweredHere bool  // one of them is on the connection of the last gotConn
	headerBytes    int64 // of all 1xx responses

	// Written by readBody and madeBody, and before a header is written.
	body bodyUse
}

// host is a host for which a connection was requested.
type host struct {
	hostPort  string
	connCount int // state.connCount when the first connection was requested
}

// pending has the connections that net/http has requested and not yet got.
type pending struct {
	newHosts int  // hosts that wait for their first connection
	further  bool // a host waits for a further connection
}

// take takes back the count of getConn for one connection, and reports whether
// it is the first of its host. If several connections are pending, it is not
// known which host gets this one. Then it counts as a further connection if one
// of them is.
func (p *pending) take() (isFirst bool) {
	isFirst = !p.further && p.newHosts > 0
	if isFirst {
		p.newHosts--
	}
	p.further = false
	return isFirst
}

// bodyUse has the known uses of the request's body.
type bodyUse struct {
	begun          bool // some of a body was read since GetBody has returned one
	everRead       bool // some of any body was read
	needsNoGetBody bool // a further send is a resend, even without a call of GetBody
}

// action has the actions of a Trace after a transition, in the order of the
// fields.
type action struct {
	restarted bool       // calls Attempt.Restarted
	stop      error      // calls Attempt.Stop, if it is not nil
	close     []net.Conn // are closed
	uploaded  bool       // calls Attempt.Uploaded
}

func (s *state) start(options Options) {
	s.options = options
	// With NoLayers, no layer sends requests of its own, so a further send is a
	// resend. Reads are not watched then (watchesReads).
	s.body.needsNoGetBody = options.NoLayers
	s.kept = s.keptArray[:0]
}

// getConn records the host of each send. net/http resends only to the same
// host, so a send to a new host is a layer's own request, such as one for a
// token. Which host is the request's own is not known, because a layer may
// change it or use another one before.
//
// A second call for a host may be for a resend, or for the same send, because
// net/http may call GetConn twice to reuse an HTTP/2 connection. It is for the
// same send if connCount has not changed since the first call, because then no
// request has got a connection.
func (s *state) getConn(hostPort string) {
	if s.detached {
		return
	}
	s.reported = true
	i := slices.IndexFunc(s.hosts, func(h host) bool { return h.hostPort == hostPort })
	switch {
	case i < 0:
		s.hosts = append(s.hosts, host{hostPort, s.connCount})
		s.pending.newHosts++
	case s.hosts[i].connCount < s.connCount:
		s.pending.further = true
	}
}

// gotConn is called before each send.
func (s *state) gotConn(c connInfo) (do action) {
	if s.sealed && c.conn != nil {
		s.kept = append(s.kept, c)
	}
	if s.detached {
		return do
	}
	s.reported = true
	s.connCount++
	s.sendsSinceAnswer++
	isFirst := s.pending.take()
	// The send before was rejected, because the transport sends nothing else
	// again.
	if c.http3 && s.lastHTTP3 && !isFirst && s.unansweredHere {
		s.unanswered--
	}
	s.uploaded, s.unansweredHere = false, false
	s.stopped = nil
	s.lastHTTP2, s.lastHTTP3 = c.speaksHTTP2(s.options.UnencryptedHTTP2), c.http3
	s.lastReused = c.reused
	// net/http closed the body without having read it, and sends it again
	// (http2shouldRetryRequest).
	do.restarted = s.options.Restarts && s.sendsSinceAnswer > 1 && !s.wrote
	mayResend := !isFirst || s.mayShareKeptPeer(c)
	if c.conn != nil && s.options.AtMostOnce {
		s.kept = append(s.kept, c)
	}
	switch {
	// Only sends over HTTP/2 are limited. Over HTTP/1, net/http resends a
	// request only if it failed on a reused connection. After a restart of the
	// host, all idle connections are broken, and a limit would fail the request
	// before it gets a new one. A layer may also send ten requests of its own at
	// the same time.
	case !s.options.AtMostOnce:
		if s.sendsSinceAnswer > MaxSends && s.lastHTTP2 {
			do.stop = ErrTooManySends
		}
	// The stopped request may be one of net/http's Proxy function. If that
	// ignores the error, net/http may go on with an idle connection of HTTP/1.
	// The POST must not be sent on it, because the next attempt sends it. With
	// layers, the connection may be for a layer's own request.
	case s.connCount == 1 && s.isUnexpected(c),
		s.unexpected && s.options.NoLayers && !s.lastHTTP2:
		s.unexpected = true
		s.halt(c, ErrProtocol, &do)
	// A request with a body cannot be sent again without GetBody, unless the
	// body is that of a layer. The resend of a request without a body looks the
	// same as another request that a layer sends to the same host. So over
	// HTTP/2, such a request of a layer ends the attempt, too.
	case mayResend && (!s.options.HasBody || s.body.needsNoGetBody) && s.forbidsResend():
		s.halt(c, ErrResent, &do)
	}
	return do
}

// halt stops the send on c. Over HTTP/1, net/http writes the request although it
// is canceled. The connection is this request's alone. Others share one of
// HTTP/2. That of HTTP/3 is only shown.
func (s *state) halt(c connInfo, cause error, do *action) {
	do.stop = cause
	switch {
	case c.http3:
	case c.speaksHTTP2(s.http2):
		s.stopped = c.conn
	case c.conn != nil:
		do.close = []net.Conn{c.conn}
	}
}

// isUnexpected reports whether c, the first connection, does not speak
// Options.Expected. A dial may send requests of its own first, such as to look
// up the host. Those must not be stopped. Through a proxy, GetConn may have got
// the name of the proxy, and then that of the host. GetConn is not called for
// the first request on a connection that net/http has made for another one
// (clientConnPool.getConnCalled). That is no request of a dial, because GetConn
// comes before the dial. HTTP/3 frames an empty body as HTTP/2 does.
func (s *state) isUnexpected(c connInfo) bool {
	switch s.options.Expected {
	case HTTP1:
		last := len(s.hosts) - 1
		return s.lastHTTP2 && (last <= 0 || s.hosts[last].hostPort == s.options.HostPort)
	case HTTP2:
		return c.conn != nil && !s.lastHTTP2 && !c.http3
	}
	return false
}

// mayShareKeptPeer reports whether c may lead to the same server as an earlier
// connection, although GetConn got another name. Through a proxy, GetConn gets
// the name of the proxy for a new connection, and that of the server for an
// HTTP/2 connection that is open already.
func (s *state) mayShareKeptPeer(c connInfo) bool {
	return c.conn != nil && slices.ContainsFunc(s.kept, func(before connInfo) bool {
		return before.maySharePeer(c, s.options.NoLayers)
	})
}

// wroteHeaderField is called before the header block can have been written.
// The header of HTTP/2 begins with pseudo-header fields (RFC 9113 section
// 8.3), that of HTTP/1 with Host.
func (s *state) wroteHeaderField(name string, values []string) (do action) {
	// The field does not tell its connection.
	if s.sealed && (name == ":authority" || name == "Host") {
		for _, c := range s.kept {
			do.close = append(do.close, c.conn)
		}
	}
	if s.detached {
		return do
	}
	switch name {
	case ":authority":
		// The send goes on although it was stopped, because a layer has
		// detached it from the attempt's context (context.WithoutCancel). Other
		// requests may lose the connection, too.
		if s.stopped != nil {
			do.close, s.stopped = []net.Conn{s.stopped}, nil
		}
		s.http2 = true
		s.beginRequest()
	case "Host":
		s.beginRequest()
	// A GET or HEAD may be a layer's own request, which does not send the
	// attempt's body.
	case ":method":
		if !slices.Contains(values, http.MethodGet) && !slices.Contains(values, http.MethodHead) {
			s.noteBody()
		}
	}
	s.wrote = true
	return do
}

// beginRequest counts a request that is about to be written. It calls noteBody
// only if no other request is unanswered. Otherwise a layer may be sending a
// request of its own, such as a GET, which does not replace the attempt's body.
func (s *state) beginRequest() {
	s.unansweredHere = true
	if s.unanswered++; s.unanswered == 1 {
		s.noteBody()
	}
}

// noteBody notes, before a header is written, whether the attempt's body has
// been read. net/http reads a body after the header. If it was read before, a
// layer has read it, and sends a body of its own.
func (s *state) noteBody() {
	s.body.needsNoGetBody = s.body.needsNoGetBody || s.options.HasBody && s.body.begun
}

// wroteHeaders is for attempts without AtMostOnce, which have no hook for
// fields, and for transports that do not report fields.
func (s *state) wroteHeaders() { s.wrote = s.wrote || !s.detached }

func (s *state) wroteRequest() action {
	s.uploaded = true
	return action{uploaded: true}
}

func (s *state) gotFirstResponseByte() {
	if s.detached {
		return
	}
	s.answered = true
	// Only resends without an answer in between are limited.
	s.sendsSinceAnswer = 0
	s.unanswered, s.unansweredHere = max(s.unanswered-1, 0), false
}

// got1xxResponse is called with the size of a response that net/http does not
// count. The first 1xx response was reported as an answer. But net/http may
// still resend the request, so it counts as unanswered again. The final
// response is not reported, so whatever a layer sends after that is stopped.
func (s *state) got1xxResponse(size int64) error {
	if s.detached {
		return nil
	}
	if s.headerBytes == 0 {
		s.unanswered++
		s.unansweredHere = true
	}
	s.headerBytes += size
	if s.headerBytes > cmp.Or(s.options.MaxHeaderBytes, defaultHeaderBytes) {
		return ErrInformational
	}
	return nil
}

// readBody is called for each Read of a body that the Trace has returned.
func (s *state) readBody() { s.body.begun, s.body.everRead = true, true }

// madeBody is called for each body that GetBody returns.
func (s *state) madeBody() { s.body.begun = false }

// watchesReads reports whether readBody and madeBody are called. A layer that
// has read the body may send a copy, with a GetBody that does not ask
// forbidsResend.
func (s *state) watchesReads() bool {
	return s.options.AtMostOnce && s.options.HasBody && !s.options.NoLayers
}

// forbidsResend reports whether the server may be processing a request that was
// written, so that net/http must not send it again. Over HTTP/1, if net/http
// does not consider a request replayable, it sends the request again only if it
// has written nothing of it (persistConn.shouldRetryRequest). Over HTTP/3, the
// transport sends it again only if the server has not begun it.
//
// Requests are counted, because a layer above net/http may send others of its
// own in the same context while the first one is on its way.
func (s *state) forbidsResend() bool {
	open := s.unanswered
	if s.lastHTTP3 && s.unansweredHere {
		open--
	}
	return open > 0 && (s.http2 || s.options.Resendable)
}

// seal keeps the connections of HTTP/1. Those of HTTP/2 are shared with other
// requests, which would lose them, and that of HTTP/3 is only shown.
func (s *state) seal() {
	s.detached, s.sealed = true, true
	s.kept = slices.DeleteFunc(s.kept, func(c connInfo) bool {
		return c.http3 || c.speaksHTTP2(s.options.UnencryptedHTTP2)
	})
	s.shared = len(s.kept) < s.connCount
}

// provesUnsent is documented at Trace. A layer that has read a body may have
// sent it without net/http.
func (s *state) provesUnsent(canceled bool) bool {
	return s.options.AtMostOnce && s.reported && !s.wrote && !s.body.everRead &&
		!(s.shared && canceled)
}

// facts returns the Facts of the Trace.
func (s *state) facts() Facts {
	elsewhere := s.unanswered
	if s.unansweredHere {
		elsewhere--
	}
	connecting := s.pending.newHosts > 0 || s.pending.further
	return Facts{
		Wrote:               s.wrote,
		Answered:            s.answered,
		Connecting:          connecting,
		LastHTTP2:           s.lastHTTP2,
		LastReused:          s.lastReused,
		Shared:              s.answered || s.lastReused && !connecting,
		UnansweredHere:      s.unansweredHere,
		UnansweredElsewhere: elsewhere > 0,
	}
}

// awaitsUpload is documented at Trace. A base transport that reports no answer
// does not report uploads either. http.ClientConn reports both, and no
// connections.
func (s *state) awaitsUpload() bool {
	return s.options.HasBody && !s.uploaded && (s.connCount > 0 || s.answered)
}
