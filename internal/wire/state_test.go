package wire

import (
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The tests of this file play events on a state. Each event is a hook, and the
// action that it has to return follows it after an arrow. Without an arrow, the
// event returns no action:
//
//	get(h)       GetConn for host h; get is get(a)
//	got(c)       GotConn with connection c; got is got(a)
//	host         WroteHeaderField, the first of HTTP/1
//	authority    WroteHeaderField, the first of HTTP/2
//	method(M)    WroteHeaderField, the method of HTTP/2
//	headers      WroteHeaders
//	wrote        WroteRequest
//	answer       GotFirstResponseByte
//	1xx          Got1xxResponse
//	read         a Read of the body
//	made         a call of GetBody
//	seal         a call of Seal
//	detach       a call of Detach
//
// The name of a connection is the address of its peer, and for TLS the protocol
// and the name of the server, as in got(a), got(a/h2/name) and got(a//). The
// address is not known if it is "?". Nothing is known of the connection "nil".
type player struct {
	state
	named map[string]net.Conn
}

func play(t *testing.T, options Options, events string) *player {
	t.Helper()
	p := &player{named: map[string]net.Conn{}}
	p.start(options)
	for token := range strings.FieldsSeq(events) {
		event, want, _ := strings.Cut(token, "→")
		assert.Equal(t, want, p.actionOf(p.event(event)), "%s of %s, %+v", event, events, options)
	}
	return p
}

func playAll(t *testing.T, options Options, all map[string]string) {
	t.Helper()
	for name, events := range all {
		t.Run(name, func(t *testing.T) { play(t, options, events) })
	}
}

func (p *player) event(event string) action {
	name, argument, ok := strings.Cut(strings.TrimSuffix(event, ")"), "(")
	if !ok {
		argument = "a"
	}
	switch name {
	case "get":
		p.getConn(argument)
	case "got":
		return p.gotConn(p.conn(argument))
	case "host":
		return p.wroteHeaderField("Host", nil)
	case "authority":
		return p.wroteHeaderField(":authority", nil)
	case "method":
		return p.wroteHeaderField(":method", []string{argument})
	case "headers":
		p.wroteHeaders()
	case "wrote":
		return p.wroteRequest()
	case "answer":
		p.gotFirstResponseByte()
	case "1xx":
		return action{stop: p.got1xxResponse(informationalBytes)}
	case "read":
		p.readBody()
	case "made":
		p.madeBody()
	case "seal":
		p.seal()
	case "detach":
		p.detached = true
	default:
		panic("no such event: " + event)
	}
	return action{}
}

// namedConn is a connection that nothing is done with.
type namedConn struct {
	net.Conn
	name string
}

// RemoteAddr returns the part of the name before a slash, or nil for "?".
func (c *namedConn) RemoteAddr() net.Addr {
	addr, _, _ := strings.Cut(c.name, "/")
	if addr == "?" {
		return nil
	}
	return &net.UnixAddr{Name: addr}
}

func (p *player) conn(name string) connInfo {
	if name == "nil" {
		return connInfo{}
	}
	if p.named[name] == nil {
		p.named[name] = &namedConn{name: name}
	}
	c := connInfo{conn: p.named[name]}
	parts := strings.Split(name, "/")
	if len(parts) == 3 {
		c.tls, c.http2, c.name = true, parts[1] == "h2", parts[2]
		c.http3 = parts[1] == "h3"
	}
	return c
}

// actionOf returns the text of an action, in the order in which it is done.
func (p *player) actionOf(do action) string {
	var text []string
	if do.restarted {
		text = append(text, "restarted")
	}
	switch do.stop {
	case nil:
	case ErrResent:
		text = append(text, "resent")
	case ErrTooManySends:
		text = append(text, "many")
	case ErrInformational:
		text = append(text, "informational")
	case ErrProtocol:
		text = append(text, "protocol")
	}
	for _, conn := range do.close {
		text = append(text, "close("+conn.(*namedConn).name+")")
	}
	if do.uploaded {
		text = append(text, "uploaded")
	}
	return strings.Join(text, "+")
}

const (
	send1 = "get got host headers wrote→uploaded "                   // over HTTP/1
	send2 = "get got authority method(GET) headers wrote→uploaded "  // over HTTP/2
	post2 = "get got authority method(POST) headers wrote→uploaded " // of the attempt's body
	other = "get(b) got(b) authority method(GET) wrote→uploaded "    // to another host
)

// The actions of each hook, by the hooks that precede it, and whether GetBody
// is refused afterward.
func TestTransitions(t *testing.T) {
	var (
		once       = Options{AtMostOnce: true}
		withBody   = Options{AtMostOnce: true, HasBody: true}
		noLayers   = Options{AtMostOnce: true, HasBody: true, NoLayers: true}
		resendable = Options{AtMostOnce: true, Resendable: true}
	)
	for _, tt := range []struct {
		name    string
		options Options
		events  string
		forbids bool
	}{
		{"one send", once, send2, true},
		{"one send over HTTP/1", once, send1, false},
		{"one send that is answered", once, send2 + "answer", false},
		{"resent over HTTP/2", once, send2 + "get got→resent", true},
		{"resent over a connection that nothing asked for", once, send2 + "got(b)→resent", true},
		{"resent after an answer", once, send2 + "answer get got", false},
		{"resent after a 1xx response", once, send2 + "answer 1xx get got→resent", true},
		{"resent after several 1xx responses", once, send2 + "answer 1xx 1xx 1xx get got→resent",
			true},
		{"resent before anything was written", once, "get got get got get got", false},
		{"resent to another protocol", resendable, send1 + "get got(a/h2/a)→resent", true},

		{"over HTTP/1, net/http has written nothing", once, send1 + "get got", false},
		{"over HTTP/1, but resendable", resendable, send1 + "get got→resent+close(a)", true},
		{"over HTTP/1, resendable, answered", resendable, send1 + "answer get got", false},

		{"a body is for GetBody to refuse", withBody, send2 + "get got", true},
		{"a body of a registered protocol", noLayers, send2 + "get got→resent", true},
		{"a body, answered", withBody, send2 + "answer get got", false},
		{"a body, read by net/http", withBody, send2 + "read get got", true},
		{"a body, read by a layer", withBody, "read " + send2 + "get got→resent", true},
		{"a body, read by a layer, answered", withBody, "read " + send2 + "answer get got", false},
		{"a body, read by a layer before GetBody was called", withBody,
			"read made " + send2 + "get got", true},
		{"a body from GetBody, read by a layer", withBody, "made read " + send2 + "get got→resent",
			true},
		{"a body, read by a layer during another request", withBody,
			other + "read " + post2 + "get got→resent", true},
		{"a body, read by net/http, and another request meanwhile", withBody,
			post2 + "read get got authority method(GET) answer get got", true},
		{"a body, and a HEAD request of a layer meanwhile", withBody,
			post2 + "read get got authority method(HEAD) answer get got", true},
		{"no body, read", once, "read " + send2, true},

		{"another host's request", once, send2 + "get(b) got(b)", true},
		{"another host's request, written", once, send2 + other + "get got→resent", true},
		{"another host's request, and a resend", once, send2 + "get(b) get got→resent", true},
		{"another host's request, and a resend to another address", once,
			send2 + "get(b) get got(c)→resent", true},
		{"another host's request first, and a resend", once,
			other + "answer " + send2 + "get got→resent", true},
		{"another host's request over HTTP/1 meanwhile, answered", once,
			"get(b) got(b) host wrote→uploaded " + send2 + "answer get got→resent", true},
		{"asked for twice, as net/http does to reuse a connection", once,
			"get " + send2 + "get(b) got(b)", true},
		{"two requests, one answered", once, "get " + send2 + "authority answer get got→resent",
			true},
		{"two requests, both answered", once, "get " + send2 + "authority answer answer get got",
			false},
		{"more answers than requests", once, "answer answer " + send2, true},

		{"detached", once, send2 + "detach get got", true},
		{"detached, and answered", once, send2 + "detach answer", true},
		{"detached, before a request", once, "detach " + send2 + "get got 1xx", false},
		{"detached after a stop", once, send2 + "get got(a/h2/a)→resent detach authority", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := play(t, tt.options, tt.events)
			assert.Equal(t, tt.forbids, p.forbidsResend(), "forbidsResend")
		})
	}
}

// GetConn may get two names for one server: its own and that of a proxy. The
// connections tell whether it may be the same server. Without a layer, a second
// connection is for a resend, unless TLS shows that it is for another server,
// because the address may be that of another proxy.
func TestTransitionsUnderAnotherName(t *testing.T) {
	for _, tt := range []struct{ name, first, next, resent, sansLayers string }{
		{"another address", "a", "b", "", "→resent"},
		{"the same address", "a", "a", "→resent", "→resent"},
		{"an unknown address", "a", "?", "→resent", "→resent"},
		{"an unknown address before", "?", "a", "→resent", "→resent"},
		{"an unknown connection", "a", "nil", "", ""},
		{"an unknown connection before", "nil", "a", "", ""},
		{"the same address, another name", "a/h2/a", "a/h2/b", "", ""},
		{"another address, the same name", "a/h2/a", "b/h2/a", "→resent", "→resent"},
		{"the same address, one name", "a/h2/a", "a/h2/", "→resent", "→resent"},
		{"another address, one name", "a/h2/a", "b/h2/", "", "→resent"},
		{"another address, no names", "a/h2/", "b/h2/", "", "→resent"},
		{"another address, other names", "a/h2/a", "b/h2/b", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			events := "get got(" + tt.first + ") authority get(b) got(" + tt.next + ")"
			play(t, Options{AtMostOnce: true}, events+tt.resent)
			play(t, Options{AtMostOnce: true, NoLayers: true}, events+tt.sansLayers)
		})
	}
}

// A connection of HTTP/1 is this request's alone. It is closed, because
// net/http would write on it. One of HTTP/2 stays open for the requests that
// share it, unless this request is written on it although it was stopped.
func TestTransitionsCloseConnections(t *testing.T) {
	playAll(t, Options{AtMostOnce: true, Resendable: true}, map[string]string{
		"HTTP/1":            send1 + "get got→resent+close(a)",
		"HTTP/2":            send2 + "get got→resent",
		"TLS, HTTP/1":       send2 + "get got(a/h1/)→resent+close(a/h1/)",
		"TLS, no agreement": send2 + "get got(a//)→resent+close(a//)",
		"TLS, HTTP/2":       send1 + "get got(a/h2/)→resent",
		"unknown":           send1 + "get got(nil)→resent",
		"written although stopped": send2 +
			"get got(a/h2/a)→resent authority→close(a/h2/a) authority",
		"another request is written": send2 + "get got(a/h2/a)→resent get(b) got(b/h2/b) authority",
	})
}

// After Base has returned an error, the first field of a further header closes the
// connections over HTTP/1, and those that were got since then. Nothing else changes.
func TestTransitionsAfterSeal(t *testing.T) {
	for name, tt := range map[string]struct {
		events           string
		unsent, canceled bool // by provesUnsent
	}{
		"HTTP/1":                    {"get got seal host→close(a) method(POST) wrote→uploaded", true, true},
		"HTTP/2":                    {"get got(a/h2/a) seal authority method(POST)", true, false},
		"HTTP/3":                    {"get got(a/h3/) seal authority", true, false},
		"not shown":                 {"get got(nil) seal host", true, false},
		"a dial":                    {"get seal got host→close(a)", true, true},
		"a dial of HTTP/2":          {"get seal got(a/h2/a) authority→close(a/h2/a)", true, true},
		"a dial that shows nothing": {"get seal got(nil) host", true, true},
		"net/http resends": {"get got seal host→close(a) get got(b) host→close(a)+close(b)",
			true, true},
		"while it is written": {"get got host seal method(POST) headers wrote→uploaded",
			false, false},
		"after it was written": {send1 + "seal answer 1xx get got(b) host→close(a)+close(b)",
			false, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := play(t, Options{AtMostOnce: true}, tt.events)
			assert.Equal(t, tt.unsent, p.provesUnsent(false))
			assert.Equal(t, tt.canceled, p.provesUnsent(true))
		})
	}
}

// A request that may be sent more than once is stopped after MaxSends sends
// over HTTP/2 without an answer.
func TestTransitionsOfManySends(t *testing.T) {
	const send, secure = "got ", "got(a/h2/a) "
	most := strings.Repeat(send, MaxSends)
	playAll(t, Options{UnencryptedHTTP2: true}, map[string]string{
		"as often as it may":         most,
		"too often":                  most + "got→many",
		"often, over HTTP/1 and TLS": strings.Repeat("got(a//) ", MaxSends+1),
		"answered each time":         strings.Repeat(send+"answer ", 5*MaxSends),
		"answered late":              most + "answer " + most,
		"answered late, too often":   most + "answer " + most + "got→many",
	})
	playAll(t, Options{}, map[string]string{
		"too often, with TLS": strings.Repeat(secure, MaxSends) + "got(a/h2/a)→many",
		"often, over HTTP/1":  most + send,
	})
}

// A request that is framed for one protocol is stopped if its first connection
// speaks another. One of another host is that of a dial.
func TestTransitionsOfAnotherProtocol(t *testing.T) {
	framedFor := func(expected Protocol) Options {
		return Options{AtMostOnce: true, Expected: expected, HostPort: "a"}
	}
	playAll(t, framedFor(HTTP1), map[string]string{
		"HTTP/1":                          "get got",
		"HTTP/1 with TLS":                 "get got(a/http/a)",
		"HTTP/2, not HTTP/1":              "get got(a/h2/a)→protocol",
		"HTTP/2, of another's dial":       "got(a/h2/a)→protocol",
		"HTTP/2, and then HTTP/1":         "get got(a/h2/a)→protocol get(b) got(b/http/b)",
		"HTTP/2, detached":                "get got(a/h2/a)→protocol authority→close(a/h2/a)",
		"HTTP/2, of another host":         "get get(b) got(b/h2/b)",
		"HTTP/2, by a proxy":              "get(b) got(b/h2/b)→protocol",
		"HTTP/2, by a proxy, used before": "get(b) get got(a/h2/a)→protocol",
		"HTTP/2, later":                   "get got(a/http/a) get got(a/h2/a)",
	})
	alone := framedFor(HTTP1)
	alone.NoLayers = true
	playAll(t, alone, map[string]string{
		"without layers, HTTP/1 next": "get got(a/h2/a)→protocol " +
			"get(b) got(b/http/b)→protocol+close(b/http/b)",
		"without layers, HTTP/2 next": "get got(a/h2/a)→protocol get(b) got(b/h2/b)",
	})
	playAll(t, framedFor(HTTP2), map[string]string{
		"HTTP/2":                "get got(a/h2/a)",
		"HTTP/1, not HTTP/2":    "get got(a/http/a)→protocol+close(a/http/a)",
		"HTTP/3, not HTTP/2":    "get got(a/h3/)",
		"an unknown connection": "get got(nil)",
	})
	playAll(t, framedFor(AnyProtocol), map[string]string{"any": "get got(a/h2/a)"})
}

// Over HTTP/3, the transport sends a request again only if the server has not
// begun it. So it is not stopped, and the send before was answered.
func TestTransitionsOverHTTP3(t *testing.T) {
	const send, toAnother = "get got(a/h3/) authority ", "get(b) got(b/h3/) authority "
	for _, tt := range []struct {
		events                   string
		here, elsewhere, forbids bool
	}{
		{send, true, false, false},
		{send + send, true, false, false},
		{send + toAnother, true, true, true},
		{send + "answer " + send, true, false, false},
		{"get got(a/h2/) authority " + "get got(a/h3/)→resent", false, true, true},
	} {
		p := play(t, Options{AtMostOnce: true}, tt.events)
		assert.Equal(t, tt.forbids, p.forbidsResend(), tt.events)
		sent := p.facts()
		assert.Equal(t, []bool{tt.here, tt.elsewhere},
			[]bool{sent.UnansweredHere, sent.UnansweredElsewhere}, tt.events)
	}
}

// A restart is reported for each connection but the first, until something of
// the request was written.
func TestTransitionsOfRestarts(t *testing.T) {
	for _, events := range []string{
		"got",
		"got got→restarted",
		"got got→restarted got→restarted",
		"got headers got",
		"got got→restarted headers got",
		"got answer got",
	} {
		for _, atMostOnce := range []bool{false, true} {
			play(t, Options{Restarts: true, HasBody: true, AtMostOnce: atMostOnce}, events)
		}
	}
	play(t, Options{}, "got got") // not asked for
}

// The conclusions from the hooks that were called.
func TestFacts(t *testing.T) {
	const unsent, wrote, answered = "unsent", "wrote", "answered"
	const uploaded, awaits, connecting = "uploaded", "awaits", "connecting"
	for _, tt := range []struct {
		name, events string
		facts        []string
	}{
		{"nothing", "", nil},
		{"connecting", "get", []string{unsent, connecting}},
		{"connected", "get got", []string{unsent, awaits}},
		{"connected, by a pool that does not ask", "got", []string{unsent, awaits}},
		{"connected, and asked for twice", "get get got", []string{unsent, awaits}},
		{"connecting elsewhere", "get get(b)", []string{unsent, connecting}},
		{"connecting elsewhere, in the end", "get got get(b)",
			[]string{unsent, awaits, connecting}},
		{"connected elsewhere", "get got get(b) got(b)", []string{unsent, awaits}},
		{"a field of HTTP/1", "get got host", []string{wrote, awaits}},
		{"a field of HTTP/2", "get got authority", []string{wrote, awaits}},
		{"a field whose name does not matter", "get got method(POST)", []string{wrote, awaits}},
		{"headers alone", "get got headers", []string{wrote, awaits}},
		{"all of it", send1, []string{wrote, uploaded}},
		{"all of it, and answered", send2 + "answer", []string{wrote, answered, uploaded}},
		{"answered by a transport that reports no connection", "answer",
			[]string{answered, awaits}},
		{"all of it, by such a transport", "answer wrote→uploaded", []string{answered, uploaded}},
		{"sent again", send2 + "get got", []string{wrote, awaits}},
		{"connecting again", send2 + "get", []string{wrote, uploaded, connecting}},
		{"read by a layer", "get read", []string{connecting}},
		{"read by a layer, and made anew", "get read made", []string{connecting}},
		{"detached", "detach " + send2 + "answer", []string{uploaded}},
		{"detached, without the fields", "get detach headers", []string{unsent, connecting}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := play(t, Options{AtMostOnce: true, HasBody: true}, tt.events)
			for fact, holds := range map[string]bool{
				unsent: p.provesUnsent(false), wrote: p.wrote, answered: p.answered,
				uploaded: p.uploaded, awaits: p.awaitsUpload(), connecting: p.facts().Connecting,
			} {
				assert.Equal(t, slices.Contains(tt.facts, fact), holds, fact)
			}
		})
	}
}

// Without AtMostOnce, too few hooks are set for a proof, and connections are
// not kept. Without a body, there is no upload to wait for.
func TestFactsOfOthers(t *testing.T) {
	p := play(t, Options{HasBody: true}, "get got")
	assert.False(t, p.provesUnsent(false))
	assert.Empty(t, p.kept)
	p = play(t, Options{AtMostOnce: true}, "get got")
	assert.False(t, p.awaitsUpload())
}

// secureConn is a connection with a TLS state.
type secureConn struct {
	net.Conn
	state tls.ConnectionState
}

func (c secureConn) ConnectionState() tls.ConnectionState { return c.state }

func TestInspect(t *testing.T) {
	plain, other := net.Pipe()
	t.Cleanup(func() { _, _ = plain.Close(), other.Close() })
	http2 := secureConn{plain, tls.ConnectionState{NegotiatedProtocol: "h2", ServerName: "a.test"}}
	http1 := secureConn{plain, tls.ConnectionState{NegotiatedProtocol: "http/1.1"}}
	for _, tt := range []struct {
		conn net.Conn
		want connInfo
	}{
		{nil, connInfo{}},
		{plain, connInfo{conn: plain}},
		{http2, connInfo{conn: http2, tls: true, http2: true, name: "a.test"}},
		{http1, connInfo{conn: http1, tls: true}},
	} {
		assert.Equal(t, tt.want, inspect(tt.conn))
	}
}
