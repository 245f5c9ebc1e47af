package httpretry_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"go/build"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// Hazard C5: go127 is where net/http may differ between the versions of Go that are
// supported: what differs is asked of it alone.
var go127 = slices.Contains(build.Default.ReleaseTags, "go1.27")

// fault is something that goes wrong under net/http, or in the request.
type fault struct {
	name  string
	setUp func(*testing.T) *scene
	text  string            // of net/http's own error or status; " | " separates what wins a race
	class httpretry.Outcome // of that
	want  wants
}

// wants says what becomes of each kind of request. What is wanted of a POST is
// wanted of all three kinds of it that have no key, unless they have a want of
// their own.
type wants map[kind]verdict

type kind string

const (
	aGet          kind = "GET"
	aPut          kind = "PUT"
	aDelete       kind = "DELETE"
	aPost         kind = "POST"
	postOfStream  kind = "POST without GetBody"
	postOfNothing kind = "POST without a body"
	postWithKey   kind = "POST with a key"
)

func (w wants) all() wants {
	all := maps.Clone(w)
	if v, ok := w[aPost]; ok {
		all[postOfStream], all[postOfNothing] = v, v
		maps.Copy(all, w)
	}
	return all
}

// verdict is how a request ends. Deliveries are counted at the server.
type verdict struct {
	reason     httpretry.Reason
	attempts   int
	deliveries int32
	answered   bool // the request ends with a response
}

func exhausted(deliveries int32) verdict {
	return verdict{httpretry.ReasonAttempts, 5, deliveries, false}
}
func once(deliveries int32) verdict {
	return verdict{httpretry.ReasonNotIdempotent, 1, deliveries, false}
}
func stands(deliveries int32) verdict { return verdict{httpretry.ReasonFinal, 1, deliveries, false} }
func canceled(deliveries int32) verdict {
	return verdict{httpretry.ReasonCanceled, 1, deliveries, false}
}

// succeeds is also how a response ends that is final, or whose body breaks.
func succeeds(attempts int, deliveries int32) verdict {
	return verdict{httpretry.ReasonFinal, attempts, deliveries, true}
}

// scene is a fault that is set up, for one request.
type scene struct {
	base      *http.Transport
	url       string
	server    *faults.Server // that the request is for; nil: there is none
	body      string         // of the request
	modify    func(*http.Request) *http.Request
	is        []error // what the error is
	truncated bool    // the response's body ends too soon
	racing    bool    // who notices first decides what is reported: only what is delivered is certain
	timeout   time.Duration
}

func newScene(t *testing.T, server *faults.Server) *scene {
	s := &scene{base: faults.Base(t, nil), server: server, url: "http://127.0.0.1/"}
	if server != nil {
		s.url = server.URL()
	}
	return s
}

func (s *scene) request(t *testing.T, k kind) *http.Request {
	var req *http.Request
	body := s.body
	if body == "" {
		body = "payload"
	}
	switch k {
	case aGet, aDelete:
		req = request(t, string(k), s.url, "")
	case postOfNothing:
		req = request(t, "POST", s.url, "")
	case postOfStream:
		req = streamed(t, "POST", s.url, contract.Counted(body))
	case aPut:
		req = request(t, "PUT", s.url, body)
	default:
		req = request(t, "POST", s.url, body)
	}
	if k == postWithKey {
		req.Header.Set("Idempotency-Key", "k")
	}
	if s.modify != nil {
		req = s.modify(req)
	}
	return req
}

// send is RoundTrip, or with a timeout http.Client's Do.
func (s *scene) send(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
	if s.timeout > 0 {
		return (&http.Client{Transport: rt, Timeout: s.timeout}).Do(req)
	}
	return rt.RoundTrip(req)
}

func (s *scene) requests() int32 {
	if s.server == nil {
		return 0
	}
	return s.server.Requests.Load()
}

// Hazard 1.1: every error of net/http, each of a real fault: how net/http
// itself words it, what it means, and how often the request is delivered.
func TestFaults(t *testing.T) {
	rows := faultTable()
	known := map[int]bool{}
	entries, ran := 0, 0
	for _, f := range rows {
		t.Run(f.name, func(t *testing.T) {
			ran++
			all := f.want.all()
			t.Run("net/http", func(t *testing.T) {
				var entry int
				entry, entries = f.checkBase(t)
				known[entry] = true
			})
			for _, k := range slices.Sorted(maps.Keys(all)) {
				t.Run(string(k), func(t *testing.T) { f.check(t, k, all[k]) })
			}
		})
	}
	if ran < len(rows) {
		return // not all of them were asked for
	}
	for entry := range entries {
		assert.True(t, known[entry], "no fault has the text of entry %d of errorTexts", entry)
	}
}

// checkBase checks what net/http makes of the fault by itself, and returns
// which of the texts that are known that is, and of how many.
func (f fault) checkBase(t *testing.T) (entry, entries int) {
	for range 100 {
		s := f.setUp(t)
		resp, err := s.send(s.base, s.request(t, f.plain()))
		text := ""
		if err == nil {
			text = resp.Status
			require.NoError(t, resp.Body.Close())
		} else {
			text = err.Error()
			entry, entries = httpretry.KnownText(err)
		}
		if s.racing && !matches(f.text, text) {
			continue
		}
		assert.True(t, matches(f.text, text), "%q is not %q", text, f.text)
		assert.Equal(t, f.class, httpretry.Classify(resp, err), "%T: %s", err, text)
		return entry, entries
	}
	t.Errorf("%q has never won its race", f.text)
	return entry, entries
}

// plain is the kind of request that net/http sends once if it can.
func (f fault) plain() kind {
	all := f.want.all()
	for _, k := range []kind{postOfStream, aGet, aPut} {
		if _, ok := all[k]; ok {
			return k
		}
	}
	return postWithKey
}

func matches(alternatives, text string) bool {
	return slices.ContainsFunc(strings.Split(alternatives, " | "), func(alternative string) bool {
		return strings.Contains(text, alternative)
	})
}

// check checks what becomes of a request through a RetryTransport.
func (f fault) check(t *testing.T, k kind, want verdict) {
	var (
		s      *scene
		before int32
	)
	t.Cleanup(func() { // after the server has ended
		assert.Equal(t, want.deliveries, s.requests()-before, "deliveries, in the end")
	})
	s = f.setUp(t)
	before = s.requests()
	events := new(record)
	transport := contract.New(t, httpretry.Config{Base: s.base, Policy: every(0), Observe: events.observe})
	resp, err := s.send(transport, s.request(t, k))
	text := ""
	switch {
	case err == nil:
		text = resp.Status
		_, readErr := io.ReadAll(resp.Body)
		assert.Equal(t, s.truncated, readErr != nil && !s.racing, "reading the response: %v", readErr)
		assert.NoError(t, resp.Body.Close())
	default:
		text = err.Error()
		for _, target := range s.is {
			assert.ErrorIs(t, err, target)
		}
	}
	if s.server != nil {
		s.server.Await(t, before+want.deliveries)
	}
	got := verdict{events.reason(), len(events.events), s.requests() - before, err == nil}
	if s.racing {
		got = verdict{want.reason, want.attempts, got.deliveries, want.answered}
	}
	assert.Equal(t, want, got, text)
	if !want.answered && !s.racing {
		assert.True(t, matches(f.text, text), "%q is not %q", text, f.text)
	}
}

func faultTable() []fault {
	return slices.Concat(dialFaults(), dnsFaults(), tlsFaults(), proxyFaults(), closeFaults(), answerFaults(),
		timeFaults(), uploadFaults(), idleFaults(), requestFaults(), callerFaults(), http2Faults(), http2GoAwayFaults())
}

func racing(setUp func(*testing.T) *scene) func(*testing.T) *scene {
	return func(t *testing.T) *scene {
		s := setUp(t)
		s.racing = true
		return s
	}
}

// nowhere is a scene without a server.
func nowhere(modify func(*scene)) func(*testing.T) *scene {
	return func(t *testing.T) *scene {
		s := newScene(t, nil)
		modify(s)
		return s
	}
}

func dialFaults() []fault {
	never := wants{aGet: exhausted(0), aPost: exhausted(0)}
	return []fault{
		{"dial refused", func(t *testing.T) *scene {
			s := newScene(t, nil)
			s.url = "http://" + faults.Refused(t)
			return s
		}, "connect: connection refused", unprocessed, never},
		{"dial timeout", func(t *testing.T) *scene {
			s := newScene(t, nil)
			s.url = "http://" + faults.Backlog(t)
			s.base.DialContext = (&net.Dialer{Timeout: 10 * time.Millisecond}).DialContext
			return s
		}, "i/o timeout", unprocessed, never},
		{"dial, caller's deadline", func(t *testing.T) *scene {
			s := newScene(t, nil)
			s.url = "http://" + faults.Backlog(t)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			t.Cleanup(cancel)
			s.modify = func(r *http.Request) *http.Request { return r.WithContext(ctx) }
			s.is = []error{context.DeadlineExceeded}
			return s
		}, "context deadline exceeded | i/o timeout", transient, wants{aGet: canceled(0), aPost: canceled(0)}},
		// Refused before a packet is sent: TCP knows no broadcasts. No route
		// to a host, EHOSTUNREACH, takes a network to provoke.
		{"network unreachable", nowhere(func(s *scene) { s.url = "http://255.255.255.255:80/" }), "connect: network is unreachable", unprocessed, never},
		{"port out of range", nowhere(func(s *scene) { s.url = "http://127.0.0.1:99999/" }), "address 99999: invalid port", final, wants{aGet: stands(0), aPost: stands(0)}},
		{"no Unix socket", func(t *testing.T) *scene {
			s, path := newScene(t, nil), filepath.Join(t.TempDir(), "none")
			s.base.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			}
			return s
		}, "connect: no such file or directory", unprocessed, never},
		// It says nothing, but that it was the dialing that failed shows.
		{"error of a dial function", nowhere(func(s *scene) {
			s.base.DialContext = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no luck") }
		}), "no luck", transient, never},
	}
}

func dnsFaults() []fault {
	asking := func(code int, timeout time.Duration) func(*testing.T) *scene {
		return func(t *testing.T) *scene {
			s := newScene(t, nil)
			s.url = "http://host.test.:80/" // with a dot, no other domain is searched
			s.base.DialContext = (&net.Dialer{Resolver: faults.DNS(t, code), Timeout: timeout}).DialContext
			return s
		}
	}
	never, permanent := wants{aGet: exhausted(0), aPost: exhausted(0)}, wants{aGet: stands(0), aPost: stands(0)}
	return []fault{
		{"DNS, no such name", asking(faults.DNSNameError, time.Minute), "no such host", final, permanent},
		{"DNS, no records", asking(faults.DNSNoError, time.Minute), "no such host", final, permanent},
		{"DNS, server failure", asking(faults.DNSServerFailure, time.Minute), "server misbehaving", unprocessed, never},
		{"DNS, query refused", asking(faults.DNSQueryRefused, time.Minute), "server misbehaving", unprocessed, never},
		{"DNS, lame referral", asking(faults.DNSLame, time.Minute), "lame referral", unprocessed, never},
		{"DNS, timeout", asking(faults.DNSSilent, 20*time.Millisecond), "i/o timeout", unprocessed, never},
	}
}

// overTLS is a server whose connections are served once TLS is up, and
// otherwise read on, so that no reset hides what TLS had to say.
func overTLS(change func(server, client *tls.Config)) func(*testing.T) *scene {
	return func(t *testing.T) *scene {
		server, client := faults.Certificates(t)
		change(server, client)
		s := newScene(t, faults.Listen(t, func(c *faults.Conn) {
			raw := c.Conn
			if !c.StartTLS(server) {
				_, _ = io.Copy(io.Discard, raw)
				return
			}
			c.HTTP1(func(c *faults.Conn, _ *http.Request) bool { c.Respond(200, ""); return true })
		}))
		s.base.TLSClientConfig = client
		s.url = "https://" + s.server.Addr
		return s
	}
}

// insecurely is a client of TLS whose connections are served by raw.
func insecurely(raw func(*faults.Conn)) func(*testing.T) *scene {
	return func(t *testing.T) *scene {
		s := newScene(t, faults.Listen(t, raw))
		s.url = "https://" + s.server.Addr
		return s
	}
}

func tlsFaults() []fault {
	never, permanent := wants{aGet: exhausted(0), aPost: exhausted(0)}, wants{aGet: stands(0), aPost: stands(0)}
	return []fault{
		{"TLS, unknown authority", overTLS(func(_, client *tls.Config) { client.RootCAs = nil }), "certificate signed by unknown authority", final, permanent},
		{"TLS, wrong host", overTLS(func(_, client *tls.Config) { client.ServerName = "other.test" }), "certificate is valid for example.com", final, permanent},
		{"TLS, expired", overTLS(func(_, client *tls.Config) {
			client.Time = func() time.Time { return time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC) }
		}), "certificate has expired", final, permanent},
		{"TLS, alert", overTLS(func(server, client *tls.Config) {
			server.MinVersion, client.MaxVersion = tls.VersionTLS13, tls.VersionTLS12
		}), "remote error: tls: protocol version not supported", final, permanent},
		{"TLS 1.2, client certificate wanted", overTLS(func(server, _ *tls.Config) {
			server.MaxVersion, server.ClientAuth = tls.VersionTLS12, tls.RequireAnyClientCert
		}), "remote error: tls: ", final, permanent},
		// Here it comes after the client holds the handshake for done.
		{"TLS 1.3, client certificate wanted", racing(overTLS(func(server, _ *tls.Config) {
			server.ClientAuth = tls.RequireAnyClientCert
		})), "remote error: tls: certificate required", final, permanent},
		{"TLS, plain answer", insecurely(func(c *faults.Conn) {
			_, _ = c.Reader.Peek(1)
			c.Respond(400, "")
			c.Drain()
		}), "tls: first record does not look like a TLS handshake", final, permanent},
		{"no TLS, server wants it", racing(func(t *testing.T) *scene {
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("delivered") }))
			srv.Config.ErrorLog = log.New(io.Discard, "", 0)
			srv.StartTLS()
			t.Cleanup(srv.Close)
			s := newScene(t, nil)
			s.url = strings.Replace(srv.URL, "https:", "http:", 1)
			return s
		}), "400 Bad Request", final, wants{aGet: succeeds(1, 0), aPost: succeeds(1, 0)}},
		{"no TLS, alert", answering1(func(c *faults.Conn) { c.Send("\x15\x03\x01\x00\x02\x02\x46") }),
			"malformed HTTP response", transient, wants{aGet: exhausted(5), aPost: once(1)}},
		{"TLS, handshake timeout", func(t *testing.T) *scene {
			s := insecurely((*faults.Conn).Drain)(t)
			s.base.TLSHandshakeTimeout = 10 * time.Millisecond
			return s
		}, "net/http: TLS handshake timeout", unprocessed, never},
		{"TLS, end during the handshake", insecurely(func(c *faults.Conn) {
			_, _ = c.Reader.Peek(1)
			c.CloseWrite()
			c.Drain()
		}), "EOF", transient, never},
		{"TLS, reset during the handshake", insecurely(func(c *faults.Conn) {
			_, _ = c.Reader.Peek(1)
			c.Reset()
		}), "connection reset by peer", transient, never},
	}
}

// proxied is a request to an HTTPS server through a proxy that gives answer
// each CONNECT.
func proxied(answer func(*faults.Conn)) func(*testing.T) *scene {
	return func(t *testing.T) *scene {
		s := overTLS(func(_, _ *tls.Config) {})(t)
		proxy := faults.Proxy(t, s.server.Addr, func(c *faults.Conn, _ *http.Request) bool { answer(c); return false })
		s.base.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy.Addr})
		return s
	}
}

func proxyFaults() []fault {
	never := wants{aGet: exhausted(0), aPost: exhausted(0)}
	refuses := func(status int) func(*testing.T) *scene {
		return proxied(func(c *faults.Conn) { c.Respond(status, "") })
	}
	return []fault{
		{"proxy refuses to be dialed", func(t *testing.T) *scene {
			s := overTLS(func(_, _ *tls.Config) {})(t)
			s.base.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: faults.Refused(t)})
			return s
		}, "proxyconnect tcp: dial tcp", unprocessed, never},
		{"CONNECT, 407", refuses(407), "Proxy Authentication Required", transient, never},
		{"CONNECT, 429", refuses(429), "Too Many Requests", transient, never},
		{"CONNECT, 502", refuses(502), "Bad Gateway", transient, never},
		{"CONNECT, 503", refuses(503), "Service Unavailable", transient, never},
		{"CONNECT, control bytes", proxied(func(c *faults.Conn) { c.Send("HTTP/1.1 503 red \x1b[31m\x07\r\nContent-Length: 0\r\n\r\n") }), "red \x1b[31m\x07", transient, never},
		// Words of a stranger, which are some of ours.
		{"CONNECT, words of net/http", proxied(func(c *faults.Conn) {
			c.Send("HTTP/1.1 503 http: server closed idle connection\r\nContent-Length: 0\r\n\r\n")
		}), "http: server closed idle connection", unprocessed, never},
		{"CONNECT, end", proxied(func(*faults.Conn) {}), "unexpected EOF", transient, never},
		{"CONNECT, reset", proxied((*faults.Conn).Reset), "connection reset by peer", transient, never},
		{"SOCKS, refused", func(t *testing.T) *scene {
			s := overTLS(func(_, _ *tls.Config) {})(t)
			proxy := faults.SOCKS(t, s.server.Addr, 5)
			s.base.Proxy = http.ProxyURL(&url.URL{Scheme: "socks5", Host: proxy.Addr})
			return s
		}, "socks connect tcp", unprocessed, never},
	}
}

// answering1 is a server of HTTP/1 that ends each connection after answer has
// seen the header of a request.
func answering1(answer func(*faults.Conn)) func(*testing.T) *scene {
	return func(t *testing.T) *scene {
		return newScene(t, faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
			_, _ = io.Copy(io.Discard, req.Body)
			answer(c)
			return false
		}))
	}
}

func closeFaults() []fault {
	maybe := wants{aGet: exhausted(5), aPost: once(1), aPut: exhausted(5), aDelete: exhausted(5), postWithKey: exhausted(5)}
	var rows []fault
	for _, said := range []struct{ name, text, endErr, resetErr string }{
		{"the request", "", "EOF", "connection reset by peer"},
		{"a part of the status line", "HTT", `malformed HTTP response "HTT"`, `malformed HTTP response "HTT" | connection reset by peer`},
		{"a part of the status", "HTTP/1.1 20", `malformed HTTP status code "20"`, `malformed HTTP status code "20" | connection reset by peer`},
		{"the status line", "HTTP/1.1 200 OK\r\n", "unexpected EOF", "unexpected EOF | connection reset by peer"},
		{"a part of the header", "HTTP/1.1 200 OK\r\nContent-Le", `malformed MIME header: missing colon: "Content-Le"`, `malformed MIME header: missing colon: "Content-Le" | connection reset by peer`},
		{"a header line", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", "unexpected EOF", "unexpected EOF | connection reset by peer"},
		{"a 103", "HTTP/1.1 103 Early Hints\r\n\r\n", "unexpected EOF", "unexpected EOF | connection reset by peer"},
	} {
		rows = append(rows,
			fault{"end after " + said.name, answering1(func(c *faults.Conn) { c.Send(said.text) }), said.endErr, transient, maybe},
			fault{"reset after " + said.name, answering1(func(c *faults.Conn) { c.Send(said.text); c.Reset() }), said.resetErr, transient, maybe})
	}
	return rows
}

func answerFaults() []fault {
	maybe := wants{aGet: exhausted(5), aPost: once(1), aPut: exhausted(5)}
	say := func(text string) func(*testing.T) *scene {
		return answering1(func(c *faults.Conn) { c.Send(text + "\r\n\r\n") })
	}
	const ok = "HTTP/1.1 200 OK\r\n"
	truncated := func(serve func(*testing.T) *scene) func(*testing.T) *scene {
		return func(t *testing.T) *scene {
			s := serve(t)
			s.truncated = true
			return s
		}
	}
	cut := wants{aGet: succeeds(1, 1), aPost: succeeds(1, 1), aPut: succeeds(1, 1)}
	return []fault{
		{"garbage", say("SSH-2.0-OpenSSH"), "malformed HTTP response", transient, maybe},
		{"bad version", say("HTTP/x.y 200 OK"), "malformed HTTP version", transient, maybe},
		{"bad Content-Length", say(ok + "Content-Length: ten"), "bad Content-Length", transient, maybe},
		{"two Content-Lengths", say(ok + "Content-Length: 1\r\nContent-Length: 2"), "multiple Content-Length headers", transient, maybe},
		{"bad Transfer-Encoding", say(ok + "Transfer-Encoding: zip"), "unsupported transfer encoding", transient, maybe},
		{"large response header", func(t *testing.T) *scene {
			s := say(ok + "A: " + strings.Repeat("a", 10<<10))(t)
			s.base.MaxResponseHeaderBytes = 1000
			return s
		}, "net/http: server response headers exceeded 1000 bytes; aborted", final, wants{aGet: stands(1), aPost: stands(1)}},
		{"truncated body", truncated(say(ok + "Content-Length: 10\r\n\r\nten?")), "200 OK", final, cut},
		{"truncated chunk", truncated(say(ok + "Transfer-Encoding: chunked\r\n\r\na\r\nten?")), "200 OK", final, cut},
		{"reset in the body", truncated(answering1(func(c *faults.Conn) {
			c.Send(ok + "Content-Length: 10\r\n\r\nten?")
			c.Reset()
		})), "200 OK", final, cut},
	}
}

func timeFaults() []fault {
	maybe := wants{aGet: exhausted(5), aPost: once(1)}
	return []fault{
		{"response header timeout", func(t *testing.T) *scene {
			s := answering1((*faults.Conn).Drain)(t)
			s.base.ResponseHeaderTimeout = 10 * time.Millisecond
			return s
		}, "net/http: timeout awaiting response headers", transient, maybe},
		{"HTTP/2, response header timeout", func(t *testing.T) *scene {
			s := answering2(func(faults.Stream) {})(t)
			s.base.ResponseHeaderTimeout = 10 * time.Millisecond
			return s
		}, "http2: timeout awaiting response headers", transient, maybe},
		{"http.Client's Timeout", func(t *testing.T) *scene {
			s := answering1((*faults.Conn).Drain)(t)
			s.timeout = 250 * time.Millisecond
			s.is = []error{context.DeadlineExceeded}
			return s
		}, "Client.Timeout exceeded | context deadline exceeded", transient, wants{aGet: canceled(1), aPost: canceled(1)}},
		{"HTTP/2, lost ping", func(t *testing.T) *scene {
			s := answering2(func(c faults.Stream) { c.Drain() })(t)
			s.base.HTTP2 = &http.HTTP2Config{SendPingTimeout: 10 * time.Millisecond, PingTimeout: 10 * time.Millisecond}
			return s
		}, "http2: client connection lost", transient, maybe},
	}
}

func uploadFaults() []fault {
	large := func(answer func(*faults.Conn)) func(*testing.T) *scene {
		return func(t *testing.T) *scene {
			s := newScene(t, faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool { answer(c); return false }))
			s.body = strings.Repeat("x", 8<<20)
			return s
		}
	}
	const broken = "connection reset by peer | broken pipe | use of closed network connection | EOF"
	return []fault{
		{"reset in the upload", large((*faults.Conn).Reset), broken, transient,
			wants{aPost: once(1), postOfNothing: once(1), aPut: exhausted(5), postWithKey: exhausted(5)}},
		// Either the answer wins or the reset that follows it.
		{"early answer and close in the upload", racing(large(func(c *faults.Conn) { c.Respond(503, "", "Connection: close") })), broken + " | 503 Service Unavailable", transient,
			wants{aPut: exhausted(5), postWithKey: exhausted(5), aPost: once(1)}},
	}
}

// reused is a server that answers the first request on a connection, which is
// sent, and ends the connection after the next.
func reused(end func(*faults.Conn)) func(*testing.T) *scene {
	return func(t *testing.T) *scene {
		s := newScene(t, faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
			if req.URL.Path == "/first" {
				c.Respond(200, "")
				return true
			}
			_, _ = io.Copy(io.Discard, req.Body)
			end(c)
			return false
		}))
		s.first(t)
		return s
	}
}

// first sends a request that leaves a connection to be reused.
func (s *scene) first(t *testing.T) {
	resp, err := s.base.RoundTrip(request(t, "GET", s.url+"/first", ""))
	require.NoError(t, err)
	finish(t, resp)
}

// stale is a server that closes a connection just before it is used again.
func stale(end func(*faults.Conn)) func(*testing.T) *scene {
	return func(t *testing.T) *scene {
		server := faults.StaleWith(t, end)
		s := newScene(t, server.Server)
		s.base = server.Base
		s.first(t)
		s.modify = func(r *http.Request) *http.Request { return r.WithContext(server.Context) }
		return s
	}
}

func idleFaults() []fault {
	// net/http sends a GET once more by itself, and with a key a POST that it
	// can rewind; PUT and DELETE it does not hold for safe.
	maybe := wants{aGet: exhausted(6), postWithKey: exhausted(6), aPut: exhausted(5), aDelete: exhausted(5), aPost: once(1)}
	// Nothing was written. What net/http itself makes of that depends.
	ended := wants{aGet: succeeds(1, 1), postWithKey: succeeds(1, 1), aPut: succeeds(2, 1), aDelete: succeeds(2, 1), aPost: succeeds(2, 1)}
	reset := wants{aGet: succeeds(1, 1), postWithKey: succeeds(1, 1), aPut: succeeds(1, 1), aDelete: succeeds(1, 1), aPost: succeeds(2, 1), postOfNothing: succeeds(1, 1)}
	return []fault{
		{"reused connection, end after the request", reused(func(*faults.Conn) {}), "EOF", transient, maybe},
		{"reused connection, reset after the request", reused((*faults.Conn).Reset), "connection reset by peer", transient, maybe},
		{"idle connection, end", stale(func(*faults.Conn) {}), "http: server closed idle connection", unprocessed, ended},
		{"idle connection, 408", stale(func(c *faults.Conn) { c.Respond(408, "") }), "http: server closed idle connection", unprocessed, ended},
		{"idle connection, garbage", func(t *testing.T) *scene {
			writer := log.Writer()
			log.SetOutput(io.Discard) // where net/http tells of it
			t.Cleanup(func() { log.SetOutput(writer) })
			return stale(func(c *faults.Conn) { c.Send("garbage") })(t)
		}, "readLoopPeekFailLocked: %!w(<nil>)", unprocessed, reset},
		{"idle connection, reset", stale((*faults.Conn).Reset), "readLoopPeekFailLocked: ", unprocessed, reset},
	}
}

// changed is a request with something wrong in it, to a server that waits for
// what it may have done right.
func changed(modify func(*http.Request)) func(*testing.T) *scene {
	return func(t *testing.T) *scene {
		s := newScene(t, faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool { c.Drain(); return false }))
		s.modify = func(r *http.Request) *http.Request { modify(r); return r }
		return s
	}
}

func requestFaults() []fault {
	all := wants{aGet: stands(0), aPost: stands(0), aPut: stands(0)}
	// The header of a body that is not in memory is not kept back.
	withBody := wants{postOfStream: stands(1), aPut: stands(0), postWithKey: stands(0)}
	return []fault{
		{"scheme", changed(func(r *http.Request) { r.URL.Scheme = "ftp" }), `unsupported protocol scheme "ftp"`, final, all},
		{"no host", changed(func(r *http.Request) { r.URL.Host = "" }), "http: no Host in request URL", final, all},
		{"no URL", changed(func(r *http.Request) { r.URL = nil }), "http: nil Request.URL", final, all},
		{"no header", changed(func(r *http.Request) { r.Header = nil }), "http: nil Request.Header", final, all},
		{"method", changed(func(r *http.Request) { r.Method = "A B" }), `net/http: invalid method "A B"`, final, all},
		{"header name", changed(func(r *http.Request) { r.Header["A B"] = []string{"c"} }), `net/http: invalid header field name "A B"`, final, all},
		{"header value", changed(func(r *http.Request) { r.Header["A"] = []string{"\n"} }), `net/http: invalid header field value for "A"`, final, all},
		{"trailer", changed(func(r *http.Request) { r.Trailer = http.Header{"A B": nil} }), `net/http: invalid trailer field name "A B"`, final, all},
		{"URL", racing(changed(func(r *http.Request) { r.URL.Opaque = "\n" })), "net/http: can't write control character in Request.URL", final, all},
		{"length of a body that is not there", racing(changed(func(r *http.Request) { r.ContentLength = 5; r.Body, r.GetBody = nil, nil })), "http: Request.ContentLength=5 with nil Body", final, all},
		{"short body", racing(changed(func(r *http.Request) { r.ContentLength = 10 })), "http: ContentLength=10 with Body length 7", final, withBody},
		{"long body", racing(changed(func(r *http.Request) { r.ContentLength = 1 })), "http: ContentLength=1 with Body length 7", final, withBody},
		{"HTTP/2, long body", func(t *testing.T) *scene {
			s := answering2(func(faults.Stream) {})(t)
			s.modify = func(r *http.Request) *http.Request { r.ContentLength = 1; return r }
			return s
		}, "http2: request body larger than specified content length", final, wants{postOfStream: stands(1), aPut: stands(1)}},
		{"HTTP/2, large header", func(t *testing.T) *scene {
			s := answering2(func(c faults.Stream) {
				c.Frame(faults.FrameSettings, 0, 0, []byte{0, 6, 0, 0, 4, 0}) // SETTINGS_MAX_HEADER_LIST_SIZE: 1024
				c.Respond(200)
			})(t)
			s.first(t)
			s.modify = func(r *http.Request) *http.Request { r.Header.Set("A", strings.Repeat("a", 2000)); return r }
			return s
		}, "http2: request header list larger than peer's advertised limit", final, all},
	}
}

// failing is a request body that fails while it is read, or when it is closed.
type failing struct {
	io.Reader
	closeErr error
}

func (b *failing) Close() error { return b.closeErr }

func callerFaults() []fault {
	var rows []fault
	for _, failure := range []error{errors.New("disk"), syscall.ECONNRESET, io.ErrUnexpectedEOF, context.DeadlineExceeded, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}} {
		rows = append(rows, fault{"body fails: " + failure.Error(), changed(func(r *http.Request) {
			r.Body, r.GetBody = &failing{io.MultiReader(strings.NewReader("pay"), iotest.ErrReader(failure)), nil}, nil
			r.ContentLength = 7
		}), failure.Error(), transient, wants{postOfStream: stands(1), aPut: stands(1), postWithKey: stands(1)}})
	}
	rows = append(rows, fault{"body fails to close", racing(func(t *testing.T) *scene {
		s := newScene(t, faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool {
			if c.Number > 1 {
				c.Respond(200, "")
			}
			c.Drain()
			return false
		}))
		s.modify = func(r *http.Request) *http.Request {
			r.Body, r.GetBody = &failing{strings.NewReader("payload"), errors.New("close failed")}, nil
			r.ContentLength = 7
			return r
		}
		return s
	}), "close failed", transient, wants{postOfStream: stands(1), aPut: stands(1)}})
	errCause := errors.New("my cause")
	for _, protocol := range []string{"HTTP/1", "HTTP/2"} {
		rows = append(rows, fault{protocol + ", canceled", func(t *testing.T) *scene {
			ctx, cancel := context.WithCancelCause(t.Context())
			s := answering1(func(c *faults.Conn) { cancel(errCause); c.Drain() })
			if protocol == "HTTP/2" {
				s = answering2(func(faults.Stream) { cancel(errCause) })
			}
			sc := s(t)
			sc.modify = func(r *http.Request) *http.Request { return r.WithContext(ctx) }
			sc.is = []error{context.Canceled, errCause}
			return sc
		}, map[string]string{"HTTP/1": "my cause", "HTTP/2": "context canceled"}[protocol],
			map[string]httpretry.Outcome{"HTTP/1": transient, "HTTP/2": final}[protocol], wants{aGet: canceled(1), aPost: canceled(1)}})
	}
	return append(rows, fault{"Request.Cancel", func(t *testing.T) *scene {
		cancel := make(chan struct{})
		s := answering1(func(c *faults.Conn) { close(cancel); c.Drain() })(t)
		//lint:ignore SA1019 old code sets it
		s.modify = func(r *http.Request) *http.Request { r.Cancel = cancel; return r }
		return s
	}, "request canceled", transient, wants{aGet: canceled(1), aPost: canceled(1)}})
}

// answering2 is a server of HTTP/2.
func answering2(answer func(faults.Stream)) func(*testing.T) *scene {
	return func(t *testing.T) *scene {
		s := newScene(t, faults.HTTP2(t, answer).Server)
		s.base = faults.HTTP2Base(t)
		return s
	}
}

// largeHeader is a server of HTTP/2 whose answer's header is of about 14 KB,
// counted as the client counts it.
func largeHeader(limit int64) func(*testing.T) *scene {
	return func(t *testing.T) *scene {
		s := answering2(func(s faults.Stream) {
			header := []string{":status", "200"}
			for i := range 100 {
				header = append(header, fmt.Sprintf("a%d", i), strings.Repeat("a", 100))
			}
			s.Header(true, header...)
		})(t)
		s.base.MaxResponseHeaderBytes = limit
		return s
	}
}

func http2Faults() []fault {
	maybe := wants{aGet: exhausted(5), aPost: once(1), aPut: exhausted(5), postWithKey: exhausted(5)}
	reset := func(code uint32) func(*testing.T) *scene {
		return answering2(func(s faults.Stream) { s.ResetStream(code) })
	}
	// Before Go 1.27, net/http repeats what was reset with PROTOCOL_ERROR, for
	// ever, unless it has a body that cannot be had again.
	protocolError := wants{postOfStream: once(1)}
	if go127 {
		protocolError = maybe
	}
	var rows []fault
	for code, name := range map[uint32]string{
		faults.InternalError: "INTERNAL_ERROR", faults.Cancel: "CANCEL", faults.EnhanceYourCalm: "ENHANCE_YOUR_CALM",
		faults.HTTP11Required: "HTTP_1_1_REQUIRED", faults.NoError: "NO_ERROR", 0x3: "FLOW_CONTROL_ERROR", 0xc: "INADEQUATE_SECURITY",
	} {
		rows = append(rows, fault{"RST_STREAM, " + name, reset(code), name + "; received from peer", transient, maybe})
	}
	return append(rows,
		fault{"RST_STREAM, PROTOCOL_ERROR, not rewindable", reset(faults.ProtocolError),
			"PROTOCOL_ERROR; received from peer", transient, protocolError},
		fault{"RST_STREAM, REFUSED_STREAM, not rewindable", reset(faults.RefusedStream),
			"REFUSED_STREAM; received from peer] after Request.Body was written", transient, wants{postOfStream: once(1)}},
		fault{"HTTP/2, end", answering2(func(s faults.Stream) { s.CloseWrite(); s.Drain() }), "unexpected EOF", transient, maybe},
		fault{"HTTP/2, reset", answering2(func(s faults.Stream) { s.Reset() }), "unexpected EOF | connection reset by peer", transient, maybe},
		fault{"HTTP/2, large response header", largeHeader(10000), "http2: response header list larger than advertised limit", transient, maybe},
		fault{"HTTP/2, larger response header", largeHeader(1000), "connection error: PROTOCOL_ERROR", transient, maybe},
		fault{"HTTP/2, truncated body", func(t *testing.T) *scene {
			s := answering2(func(s faults.Stream) {
				s.Header(false, ":status", "200", "content-length", "10")
				s.Data(false, "ten?")
				s.ResetStream(faults.InternalError)
			})(t)
			s.truncated = true
			return s
		}, "200", final, wants{aGet: succeeds(1, 1), aPost: succeeds(1, 1)}},
	)
}

func http2GoAwayFaults() []fault {
	away := func(last, code uint32) func(*testing.T) *scene {
		return answering2(func(s faults.Stream) { s.GoAway(last, code) })
	}
	return []fault{
		{"GOAWAY, not rewindable", away(0, faults.NoError),
			"http2: Transport: cannot retry err [http2: Transport received Server's graceful shutdown GOAWAY]", unprocessed, wants{postOfStream: exhausted(5)}},
		{"GOAWAY, error on the first stream", away(0, faults.EnhanceYourCalm),
			"http2: Transport received GOAWAY from server ErrCode:ENHANCE_YOUR_CALM", unprocessed, wants{aGet: exhausted(5), aPost: exhausted(5)}},
		{"GOAWAY after the stream, and end", answering2(func(s faults.Stream) { s.GoAway(s.ID, faults.NoError); s.CloseWrite(); s.Drain() }),
			"http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR", transient, wants{aGet: exhausted(5), aPost: once(1)}},
		// The connection is announced to end when the request already has it.
		{"GOAWAY just before the request", func(t *testing.T) *scene {
			var conn *faults.Conn
			server := faults.HTTP2(t, func(s faults.Stream) {
				if conn == nil {
					conn = s.Conn
				}
				s.Respond(200)
			})
			s := newScene(t, server.Server)
			s.base = faults.HTTP2Base(t)
			s.first(t)
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
				if info.Reused {
					conn.GoAway(1<<31-1, faults.NoError)
					conn.Ping()
					<-server.Pongs
				}
			}})
			s.modify = func(r *http.Request) *http.Request { return r.WithContext(ctx) }
			return s
		}, "net/http: cannot rewind body after connection loss", unprocessed, wants{postOfStream: succeeds(2, 1)}},
	}
}
