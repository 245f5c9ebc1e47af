package httpretry

import (
	"io"
	"net/http"
	"sync/atomic"

	"github.com/seed421102f4/httpretry/internal/wire"
)

// framing is how an attempt frames a request that has no body and must be sent
// at most once.
//
// After a GOAWAY, net/http sends a request without a body again, and does not
// tell why. One whose body it cannot get again it returns with the error that
// proves that the server has not processed it. So over HTTP/2, the request gets
// an empty body. Over HTTP/1, that would change the framing. The body must be
// there before net/http chooses a connection, because it panics at one that is
// set in a hook. So what is known of the host decides, and the attempt is
// stopped if its connection speaks another protocol.
type framing struct {
	emptyBody bool
	expected  wire.Protocol
	hostPort  string
}

// hostProtocol is what is known of the protocol of a host.
type hostProtocol struct{ atomic.Uint32 }

const (
	protocolUnknown uint32 = iota
	protocolHTTP1
	protocolHTTP2
	protocolNeedsLength // HTTP/2, but an empty body needs a Content-Length
)

// learn records what protocol a connection has spoken. All requests to a host
// share p, so it is written only if it changes.
func (p *hostProtocol) learn(is uint32) {
	if old := p.Load(); old != is && old != protocolNeedsLength {
		p.Store(is)
	}
}

// learnFrom records the protocol of resp, which is a response of the host. One
// over HTTP/1 does not show that a host no longer speaks HTTP/2, because a
// WebSocket has a connection of its own.
func (p *hostProtocol) learnFrom(resp *http.Response) {
	switch {
	case resp.ProtoMajor == 2:
		p.learn(protocolHTTP2)
	case resp.ProtoMajor == 1 && p.Load() == protocolUnknown:
		p.learn(protocolHTTP1)
	}
}

// isHTTP1 reports whether the host has spoken HTTP/1 only.
func (p *hostProtocol) isHTTP1() bool { return p != nil && p.Load() == protocolHTTP1 }

// framing returns the framing of the next attempt.
func (s *sending) framing() framing {
	req, b := s.caller.req, &s.engine.base
	switch {
	case s.idempotent, s.body.Has(), b.transport == nil, !b.maySpeakHTTP2(req.URL),
		req.ContentLength != 0, len(req.Trailer) > 0, req.Header["Expect"] != nil,
		req.Method == http.MethodConnect:
		return framing{}
	case s.protocol.Load() == protocolNeedsLength:
		return framing{}
	case b.unencryptedHTTP2() && req.URL.Scheme == "http":
		return framing{emptyBody: true}
	case s.protocol.Load() == protocolHTTP2:
		return framing{emptyBody: true, expected: wire.HTTP2}
	// A layer would see an attempt that is stopped. So below layers, requests
	// have no protection until the host has answered one.
	case b.isNetHTTP(req.URL):
		return framing{expected: wire.HTTP1, hostPort: hostPort(req.URL)}
	}
	return framing{}
}

// emptyBody is a body that net/http does not take for http.NoBody.
type emptyBody struct{}

func (emptyBody) Read([]byte) (int, error) { return 0, io.EOF }
func (emptyBody) Close() error             { return nil }
