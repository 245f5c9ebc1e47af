package test

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
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/errno"
	"github.com/seed421102f4/httpretry/internal/faults"
)

const (
	final       = httpretry.Final
	transient   = httpretry.Transient
	unprocessed = httpretry.Unprocessed
)

// Hazard C5: go127 reports whether the Go version is at least 1.27, where
// net/http does some of this differently.
var go127 = slices.Contains(build.Default.ReleaseTags, "go1.27")

// Texts of the system's errors. Those of Windows differ from those of Unix.
var (
	resetText   = connReset()
	brokenText  = errno.BrokenPipe.Error()
	refusedText = textOn("windows", "connectex", "connect") + ": " + errno.ConnRefused.Error()
	// Linux has no route to the broadcast address. Each other system has an error
	// of its own for it.
	unreachableText = textOn(
		"linux", "connect: network is unreachable", "dial tcp 255.255.255.255:80: ")
	// of a Unix socket that is not there; on Windows, it depends on the version
	noSocketText = textOn("windows", "dial unix ", "connect: no such file or directory")
)

// textOn returns text if the tests run on the system, and elsewhere if not.
func textOn(system, text, elsewhere string) string {
	if runtime.GOOS == system {
		return text
	}
	return elsewhere
}

// connReset returns the text of a reset. Wine, whose files are in WINEPREFIX, now
// and then reports it as the end of the connection. Windows does not.
func connReset() string {
	text := errno.ConnReset.Error()
	if os.Getenv("WINEPREFIX") != "" {
		return textOn("windows", text+" | EOF", text)
	}
	return text
}

// fault is something that goes wrong in or below net/http, or in the request.
type fault struct {
	name  string
	setUp setUp
	// of net/http's own error or status; " | " separates those that may win a
	// race
	text  string
	class httpretry.Outcome // of that
	want  wants
}

// wants is the verdict on each kind of request. The verdict on a kindPost is
// also that on the other kinds of POST without a key, unless they have their
// own.
type wants map[kind]verdict

type kind string

const (
	kindGet          kind = "GET"
	kindPut          kind = "PUT"
	kindDelete       kind = "DELETE"
	kindPost         kind = "POST"
	kindPostStreamed kind = "POST without GetBody"
	kindPostGetBody  kind = "POST with GetBody" // of a type that net/http does not know
	kindPostEmpty    kind = "POST without a body"
	kindPostKeyed    kind = "POST with a key"
)

func (w wants) all() wants {
	all := maps.Clone(w)
	if v, ok := w[kindPost]; ok {
		all[kindPostStreamed], all[kindPostEmpty] = v, v
		maps.Copy(all, w)
	}
	return all
}

// verdict is how a request ends. Deliveries are counted by the server.
type verdict struct {
	reason     httpretry.Reason
	attempts   int
	deliveries int32
	answered   bool // the request ends with a response
}

// exhausted is the verdict on a request that was retried as often as the policy
// allows.
func exhausted(deliveries int32) verdict {
	return verdict{httpretry.ReasonAttempts, 5, deliveries, false}
}

// oneAttempt is the verdict on a request that failed at once.
func oneAttempt(reason httpretry.Reason, deliveries int32) verdict {
	return verdict{reason, 1, deliveries, false}
}

func sentOnce(n int32) verdict         { return oneAttempt(httpretry.ReasonNotIdempotent, n) }
func permanentFailure(n int32) verdict { return oneAttempt(httpretry.ReasonPermanent, n) }
func canceled(n int32) verdict         { return oneAttempt(httpretry.ReasonCanceled, n) }
func late(n int32) verdict             { return oneAttempt(httpretry.ReasonDeadline, n) }

// succeeds is also the verdict on a success whose body breaks off.
func succeeds(attempts int, deliveries int32) verdict {
	return verdict{httpretry.ReasonSuccess, attempts, deliveries, true}
}

// scene is the setup of a fault for one request.
type scene struct {
	base      *http.Transport
	url       string
	server    *faults.Server // of the request; nil: none
	body      string         // of the request
	modify    func(*http.Request) *http.Request
	is        []error // errors.Is holds for each of them
	truncated bool    // the response's body ends too soon
	racing    bool    // a race decides which error is reported; only the deliveries are certain
	timeout   time.Duration
}

func newScene(t *testing.T, server *faults.Server) *scene {
	s := &scene{base: faults.Base(t, nil), server: server, url: "http://127.0.0.1/"}
	if server != nil {
		s.url = server.URL()
	}
	return s
}

// request returns a request of a kind without a scene.
func (k kind) request(t *testing.T, url string) *http.Request {
	return (&scene{url: url}).request(t, k)
}

func (s *scene) request(t *testing.T, k kind) *http.Request {
	var req *http.Request
	body := s.body
	if body == "" {
		body = "payload"
	}
	switch k {
	case kindGet, kindDelete:
		req = contract.Request(t, string(k), s.url, "")
	case kindPostEmpty:
		req = contract.Request(t, "POST", s.url, "")
	case kindPostGetBody:
		req = newUpload(t, uploadGetBody, s.url, []byte(body))
		req.Method = "POST"
	case kindPostStreamed:
		req = contract.Streamed(t, "POST", s.url, contract.Counted(body))
	case kindPut:
		req = contract.Request(t, "PUT", s.url, body)
	default:
		req = contract.Request(t, "POST", s.url, body)
	}
	if k == kindPostKeyed {
		req.Header.Set("Idempotency-Key", "k")
	}
	if s.modify != nil {
		req = s.modify(req)
	}
	return req
}

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

// Hazard 1.1, K8: each row is an error of net/http that a real fault provokes. The
// test checks the error's text, its Outcome, and how often the request is
// delivered. A POST without a key that was processed is never said to be
// unprocessed, and hardly ever the other way round. TestErrorTexts in package
// httpretry relies on the texts in testdata/errortexts.txt, so each of them must
// occur in an error here.
func TestFaults(t *testing.T) {
	rows := faultTable()
	var texts, unsure []string
	ran, failed := 0, 0
	for _, f := range rows {
		t.Run(f.name, func(t *testing.T) {
			ran++
			all := f.want.all()
			t.Run("net/http", func(t *testing.T) { texts = append(texts, f.checkBase(t)) })
			for _, k := range slices.Sorted(maps.Keys(all)) {
				t.Run(string(k), func(t *testing.T) {
					err := f.check(t, k, all[k])
					if err == nil || !strings.HasPrefix(string(k), "POST") || k == kindPostKeyed {
						return
					}
					failed++
					delivered := all[k].deliveries > 0 && f.class != unprocessed
					if known := httpretry.IsUnprocessed(err); known {
						assert.False(t, delivered, "the server may have processed it")
					} else if !delivered {
						unsure = append(unsure, t.Name())
					}
				})
			}
		})
	}
	if ran < len(rows) {
		return // -run selected some of them
	}
	assert.LessOrEqual(t, 20*len(unsure), failed, "not processed, but not known to be: %q", unsure)
	known, err := os.ReadFile("testdata/errortexts.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(known)) {
		line = strings.TrimSuffix(line, "\n")
		occurs := func(text string) bool { return strings.Contains(text, line) }
		assert.True(t, slices.ContainsFunc(texts, occurs), "no fault provokes %q", line)
	}
}

// checkBase checks the result of net/http alone with the fault. It returns the
// text of the error, or the status.
func (f fault) checkBase(t *testing.T) string {
	for range 100 {
		s := f.setUp(t)
		resp, err := s.send(s.base, s.request(t, f.plain()))
		text := ""
		if err == nil {
			text = resp.Status
			if _, err := io.ReadAll(resp.Body); err != nil && !s.racing {
				text += ", " + err.Error()
			}
			require.NoError(t, resp.Body.Close())
		} else {
			text = err.Error()
		}
		if s.racing && !matches(f.text, text) {
			continue
		}
		assert.True(t, matches(f.text, text), "%q is not %q", text, f.text)
		assert.Equal(t, f.class, httpretry.Classify(nil, resp, err), "%T: %s", err, text)
		return text
	}
	t.Errorf("%q has never won its race", f.text)
	return ""
}

// plain returns the kind of request that net/http sends once if it can.
func (f fault) plain() kind {
	all := f.want.all()
	for _, k := range []kind{kindPostStreamed, kindGet, kindPut} {
		if _, ok := all[k]; ok {
			return k
		}
	}
	return kindPostKeyed
}

func matches(alternatives, text string) bool {
	return slices.ContainsFunc(strings.Split(alternatives, " | "), func(alternative string) bool {
		return strings.Contains(text, alternative)
	})
}

// check checks how a request through a RetryTransport ends. It returns the
// request's error.
func (f fault) check(t *testing.T, k kind, want verdict) error {
	var (
		s      *scene
		before int32
	)
	t.Cleanup(func() { // after the server has ended
		if s != nil { // not skipped
			assert.Equal(t, want.deliveries, s.requests()-before, "deliveries, in the end")
		}
	})
	s = f.setUp(t)
	before = s.requests()
	transport, events := recorded(t, s.base)
	resp, err := s.send(transport, s.request(t, k))
	text := ""
	switch {
	case err == nil:
		text = resp.Status
		_, readErr := io.ReadAll(resp.Body)
		assert.Equal(t, s.truncated, readErr != nil && !s.racing,
			"reading the response: %v", readErr)
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
	got := verdict{events.Reason(), len(events.Events), s.requests() - before, err == nil}
	if s.racing {
		got = verdict{want.reason, want.attempts, got.deliveries, want.answered}
	}
	assert.Equal(t, want, got, text)
	if !want.answered && !s.racing {
		assert.True(t, matches(f.text, text), "%q is not %q", text, f.text)
	}
	return err
}

func faultTable() []fault {
	return slices.Concat(dialFaults(), dnsFaults(), tlsFaults(), proxyFaults(), closeFaults(),
		answerFaults(),
		timeFaults(), uploadFaults(), idleFaults(), requestFaults(), callerFaults(), http2Faults(),
		http2GoAwayFaults())
}

// setUp makes the scene of a fault.
type setUp = func(*testing.T) *scene

// with returns a setUp that changes the scene of another one.
func with(before setUp, change func(*testing.T, *scene)) setUp {
	return func(t *testing.T) *scene {
		s := before(t)
		change(t, s)
		return s
	}
}

// racing marks a scene in which a race decides which error is reported.
func racing(before setUp) setUp {
	return with(before, func(_ *testing.T, s *scene) { s.racing = true })
}

func truncated(before setUp) setUp {
	return with(before, func(_ *testing.T, s *scene) { s.truncated = true })
}

func withoutServer(change func(*testing.T, *scene)) setUp {
	return with(func(t *testing.T) *scene { return newScene(t, nil) }, change)
}

// never and permanent are the verdicts on requests that were not sent.
var (
	never     = wants{kindGet: exhausted(0), kindPost: exhausted(0)}
	permanent = wants{kindGet: permanentFailure(0), kindPost: permanentFailure(0)}
)

func dialFaults() []fault {
	return []fault{
		{"dial refused", withoutServer(func(t *testing.T, s *scene) {
			s.url = "http://" + faults.Refused(t)
		}), refusedText, unprocessed, never},
		{"dial timeout", withoutServer(func(t *testing.T, s *scene) {
			s.url = "http://" + faults.Backlog(t)
			s.base.DialContext = (&net.Dialer{Timeout: 10 * time.Millisecond}).DialContext
		}), "i/o timeout", unprocessed, never},
		{"dial, caller's deadline", withoutServer(func(t *testing.T, s *scene) {
			s.url = "http://" + faults.Backlog(t)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			t.Cleanup(cancel)
			s.modify = func(r *http.Request) *http.Request { return r.WithContext(ctx) }
			s.is = []error{context.DeadlineExceeded}
		}), "context deadline exceeded | i/o timeout", transient,
			wants{kindGet: late(0), kindPost: late(0)}},
		// The kernel refuses a TCP connection to the broadcast address. An
		// EHOSTUNREACH cannot be provoked without a network.
		{"network unreachable", withoutServer(func(_ *testing.T, s *scene) {
			s.url = "http://255.255.255.255:80/"
		}), unreachableText, unprocessed, never},
		{"port out of range", withoutServer(func(_ *testing.T, s *scene) {
			s.url = "http://127.0.0.1:99999/"
		}), "address 99999: invalid port", final, permanent},
		{"no Unix socket", withoutServer(func(t *testing.T, s *scene) {
			path := filepath.Join(t.TempDir(), "none")
			s.base.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			}
		}), noSocketText, unprocessed, never},
		// The error proves nothing, but the trace shows that dialing failed.
		{"error of a dial function", withoutServer(func(_ *testing.T, s *scene) {
			s.base.DialContext = func(context.Context, string, string) (net.Conn, error) {
				return nil, errors.New("no luck")
			}
		}), "no luck", transient, never},
	}
}

func dnsFaults() []fault {
	asking := func(code int, timeout time.Duration) setUp {
		return withoutServer(func(t *testing.T, s *scene) {
			s.url = "http://host.test.:80/" // the final dot prevents a search in other domains
			s.base.DialContext = (&net.Dialer{Resolver: faults.DNS(t, code), Timeout: timeout}).
				DialContext
		})
	}
	return []fault{
		{"DNS, no such name", asking(faults.DNSNameError, time.Minute), "no such host",
			final, permanent},
		{"DNS, no records", asking(faults.DNSNoError, time.Minute), "no such host",
			final, permanent},
		{"DNS, server failure", asking(faults.DNSServerFailure, time.Minute), "server misbehaving",
			unprocessed, never},
		{"DNS, query refused", asking(faults.DNSQueryRefused, time.Minute), "server misbehaving",
			unprocessed, never},
		{"DNS, lame referral", asking(faults.DNSLame, time.Minute), "lame referral",
			unprocessed, never},
		{"DNS, timeout", asking(faults.DNSSilent, 20*time.Millisecond), "i/o timeout",
			unprocessed, never},
	}
}

// overTLS returns a scene whose server uses TLS. If the handshake fails, the
// server reads on, so that no reset hides the TLS alert.
func overTLS(change func(server, client *tls.Config)) setUp {
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

// withoutTLS returns a scene in which the client uses TLS and the server runs
// raw on the connection.
func withoutTLS(raw func(*faults.Conn)) setUp {
	return func(t *testing.T) *scene {
		s := newScene(t, faults.Listen(t, raw))
		s.url = "https://" + s.server.Addr
		return s
	}
}

func alert(code byte) func(*faults.Conn) {
	return func(c *faults.Conn) {
		c.Send("\x15\x03\x01\x00\x02\x02" + string(rune(code)))
		c.CloseWrite()
		c.Drain()
	}
}

func plainAnswer(c *faults.Conn) {
	_, _ = c.Reader.Peek(1)
	c.Respond(400, "")
	c.Drain()
}

func tlsFaults() []fault {
	rejected := verdict{httpretry.ReasonPermanent, 1, 0, true}
	return []fault{
		{"TLS, unknown authority", overTLS(func(_, client *tls.Config) { client.RootCAs = nil }),
			"certificate signed by unknown authority", final, permanent},
		{"TLS, wrong host",
			overTLS(func(_, client *tls.Config) { client.ServerName = "other.test" }),
			"certificate is valid for example.com", final, permanent},
		{"TLS, expired", overTLS(func(_, client *tls.Config) {
			client.Time = func() time.Time { return time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC) }
		}), "certificate has expired", final, permanent},
		{"TLS, alert", overTLS(func(server, client *tls.Config) {
			server.MinVersion, client.MaxVersion = tls.VersionTLS13, tls.VersionTLS12
		}), "remote error: tls: protocol version not supported", final, permanent},
		// A server that says that it failed, or that bytes were damaged.
		{"TLS, alert of an internal error", withoutTLS(alert(80)),
			"remote error: tls: internal error", transient, never},
		{"TLS, alert of damage", withoutTLS(alert(20)),
			"remote error: tls: bad record MAC", transient, never},
		{"TLS, alert of a handshake failure", withoutTLS(alert(40)),
			"remote error: tls: handshake failure", final, permanent},
		{"TLS 1.2, client certificate wanted", overTLS(func(server, _ *tls.Config) {
			server.MaxVersion, server.ClientAuth = tls.VersionTLS12, tls.RequireAnyClientCert
		}), "remote error: tls: ", final, permanent},
		// The alert arrives after the client has finished the handshake.
		{"TLS 1.3, client certificate wanted", racing(overTLS(func(server, _ *tls.Config) {
			server.ClientAuth = tls.RequireAnyClientCert
		})), "remote error: tls: certificate required", final, permanent},
		{"TLS, plain answer", withoutTLS(plainAnswer),
			"tls: first record does not look like a TLS handshake", final, permanent},
		{"TLS, plain answer to a client", with(withoutTLS(plainAnswer),
			func(_ *testing.T, s *scene) {
				s.timeout = time.Minute
				s.is = []error{http.ErrSchemeMismatch}
			}), "http: server gave HTTP response to HTTPS client", final, permanent},
		{"no TLS, server wants it", racing(withoutServer(func(t *testing.T, s *scene) {
			srv := httptest.NewUnstartedServer(
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("delivered") }))
			srv.Config.ErrorLog = log.New(io.Discard, "", 0)
			srv.StartTLS()
			t.Cleanup(srv.Close)
			s.url = strings.Replace(srv.URL, "https:", "http:", 1)
		})), "400 Bad Request", final, wants{kindGet: rejected, kindPost: rejected}},
		{"no TLS, alert",
			answerHTTP1(func(c *faults.Conn) { c.Send("\x15\x03\x01\x00\x02\x02\x46") }),
			"malformed HTTP response", transient,
			wants{kindGet: exhausted(5), kindPost: sentOnce(1)}},
		{"TLS, handshake timeout", with(withoutTLS((*faults.Conn).Drain),
			func(_ *testing.T, s *scene) { s.base.TLSHandshakeTimeout = 10 * time.Millisecond },
		), "net/http: TLS handshake timeout", unprocessed, never},
		{"TLS, end during the handshake", withoutTLS(func(c *faults.Conn) {
			_, _ = c.Reader.Peek(1)
			c.CloseWrite()
			c.Drain()
		}), "EOF", transient, never},
		{"TLS, reset during the handshake", withoutTLS(func(c *faults.Conn) {
			_, _ = c.Reader.Peek(1)
			c.Reset()
		}), resetText, transient, never},
	}
}

// throughProxy returns a scene with an HTTPS server behind a proxy that
// responds to CONNECT with answer.
func throughProxy(answer func(*faults.Conn)) setUp {
	return throughProxyAt("http", func(t *testing.T, server string) string {
		return faults.Proxy(t, server,
			func(c *faults.Conn, _ *http.Request) bool { answer(c); return false }).Addr
	})
}

func throughProxyAt(scheme string, start func(t *testing.T, server string) string) setUp {
	return with(overTLS(func(_, _ *tls.Config) {}), func(t *testing.T, s *scene) {
		s.base.Proxy = http.ProxyURL(&url.URL{Scheme: scheme, Host: start(t, s.server.Addr)})
	})
}

func proxyFaults() []fault {
	refuses := func(status int) setUp {
		return throughProxy(func(c *faults.Conn) { c.Respond(status, "") })
	}
	return []fault{
		{"proxy refuses to be dialed",
			throughProxyAt(
				"http", func(t *testing.T, _ string) string { return faults.Refused(t) }),
			"proxyconnect tcp: dial tcp", unprocessed, never},
		{"CONNECT, 407", refuses(407), "Proxy Authentication Required", final, permanent},
		{"CancelRequest", withoutServer(func(t *testing.T, s *scene) {
			s.url = "http://" + faults.Refused(t)
			// The transport keys its cancels by the request that it was given,
			// which is the one that Proxy gets if there is no body to rewind.
			s.base.Proxy = func(req *http.Request) (*url.URL, error) {
				//nolint:staticcheck // its error must be classified
				s.base.CancelRequest(req)
				return nil, nil
			}
		}), "net/http: request canceled", final, wants{kindGet: permanentFailure(0)}},
		{"CONNECT, 429", refuses(429), "Too Many Requests", transient, never},
		{"CONNECT, 502", refuses(502), "Bad Gateway", transient, never},
		{"CONNECT, 503", refuses(503), "Service Unavailable", transient, never},
		{"CONNECT, control bytes",
			throughProxy(func(c *faults.Conn) {
				c.Send("HTTP/1.1 503 red \x1b[31m\x07\r\nContent-Length: 0\r\n\r\n")
			}), "red \x1b[31m\x07", transient, never},
		// The proxy's text is one by which errors are classified.
		{"CONNECT, words of net/http", throughProxy(func(c *faults.Conn) {
			c.Send("HTTP/1.1 503 http: server closed idle connection\r\nContent-Length: 0\r\n\r\n")
		}), "http: server closed idle connection", unprocessed, never},
		{"CONNECT, end", throughProxy(func(*faults.Conn) {}), "unexpected EOF", transient, never},
		{"CONNECT, reset", throughProxy((*faults.Conn).Reset), resetText, transient, never},
		{"SOCKS, refused", throughProxyAt("socks5", func(t *testing.T, server string) string {
			return faults.SOCKS(t, server, 5).Addr
		}), "socks connect tcp", unprocessed, never},
	}
}

// answerHTTP1 returns a scene with an HTTP/1 server that reads a request, calls
// answer, and closes the connection.
func answerHTTP1(answer func(*faults.Conn)) setUp {
	return func(t *testing.T) *scene {
		return newScene(t, faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
			_, _ = io.Copy(io.Discard, req.Body)
			answer(c)
			return false
		}))
	}
}

func closeFaults() []fault {
	maybe := wants{kindGet: exhausted(5), kindPost: sentOnce(1), kindPut: exhausted(5),
		kindDelete: exhausted(5), kindPostKeyed: exhausted(5)}
	var rows []fault
	for _, said := range []struct{ name, text, err string }{
		{"the request", "", "EOF"},
		{"a part of the status line", "HTT", `malformed HTTP response "HTT"`},
		{"a part of the status", "HTTP/1.1 20", `malformed HTTP status code "20"`},
		{"the status line", "HTTP/1.1 200 OK\r\n", "unexpected EOF"},
		{"a part of the header", "HTTP/1.1 200 OK\r\nContent-Le",
			`malformed MIME header: missing colon: "Content-Le"`},
		{"a header line", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", "unexpected EOF"},
		{"a 103", "HTTP/1.1 103 Early Hints\r\n\r\n", "unexpected EOF"},
	} {
		resetErr := resetText
		if said.text != "" {
			resetErr += " | " + said.err
		}
		rows = append(rows,
			fault{"end after " + said.name, answerHTTP1(func(c *faults.Conn) { c.Send(said.text) }),
				said.err, transient, maybe},
			fault{
				"reset after " + said.name,
				answerHTTP1(func(c *faults.Conn) { c.Send(said.text); c.Reset() }), resetErr,
				transient, maybe})
	}
	return rows
}

func answerFaults() []fault {
	maybe := wants{kindGet: exhausted(5), kindPost: sentOnce(1), kindPut: exhausted(5)}
	say := func(text string) setUp {
		return answerHTTP1(func(c *faults.Conn) { c.Send(text + "\r\n\r\n") })
	}
	const ok = "HTTP/1.1 200 OK\r\n"
	cut := wants{kindGet: succeeds(1, 1), kindPost: succeeds(1, 1), kindPut: succeeds(1, 1)}
	var rows []fault
	for _, status := range []string{"", " ", "99", "1000", "2 0", "abc", "-10", "0x1", "٢٠٠",
		"\x00\x00\x00", "5030", "503\x00"} {
		rows = append(rows, fault{fmt.Sprintf("status %q", status), say("HTTP/1.1 " + status),
			"malformed HTTP", transient, wants{kindGet: exhausted(5), kindPostEmpty: sentOnce(1)}})
	}
	answered := func(sends int) wants {
		v := verdict{httpretry.ReasonPermanent, sends, int32(sends), true}
		return wants{kindGet: v, kindPost: v}
	}
	return append(rows, []fault{
		// It is retried once, on another connection, and only if its own closes.
		{"421, closing", say("HTTP/1.1 421 Misdirected Request\r\nConnection: close" + emptyBody),
			"421", unprocessed, answered(2)},
		{"421", say("HTTP/1.1 421 Misdirected Request" + emptyBody), "421", final, answered(1)},
		{"garbage", say("SSH-2.0-OpenSSH"), "malformed HTTP response", transient, maybe},
		{"bad version", say("HTTP/x.y 200 OK"), "malformed HTTP version", transient, maybe},
		{"bad Content-Length", say(ok + "Content-Length: ten"), "bad Content-Length",
			transient, maybe},
		{"two Content-Lengths", say(ok + "Content-Length: 1\r\nContent-Length: 2"),
			"multiple Content-Length headers", transient, maybe},
		{"bad Transfer-Encoding", say(ok + "Transfer-Encoding: zip"),
			"unsupported transfer encoding", transient, maybe},
		{"large response header", with(say(ok+"A: "+strings.Repeat("a", 10<<10)),
			func(_ *testing.T, s *scene) { s.base.MaxResponseHeaderBytes = 1000 },
		), "net/http: server response headers exceeded 1000 bytes; aborted", final,
			wants{kindGet: permanentFailure(1), kindPost: permanentFailure(1)}},
		{"truncated body", truncated(say(ok + "Content-Length: 10\r\n\r\nten?")),
			"200 OK", final, cut},
		{"truncated chunk", truncated(say(ok + "Transfer-Encoding: chunked\r\n\r\na\r\nten?")),
			"200 OK", final, cut},
		{"reset in the body", truncated(answerHTTP1(func(c *faults.Conn) {
			c.Send(ok + "Content-Length: 10\r\n\r\nten?")
			c.Reset()
		})), "200 OK", final, cut},
	}...)
}

func timeFaults() []fault {
	maybe := wants{kindGet: exhausted(5), kindPost: sentOnce(1)}
	silent := answerHTTP1((*faults.Conn).Drain)
	impatient := func(_ *testing.T, s *scene) {
		s.base.ResponseHeaderTimeout = 10 * time.Millisecond
	}
	return []fault{
		{"response header timeout", with(silent, impatient),
			"net/http: timeout awaiting response headers", transient, maybe},
		{"HTTP/2, response header timeout", with(answerHTTP2(func(faults.Stream) {}), impatient),
			"http2: timeout awaiting response headers", transient, maybe},
		{"http.Client's Timeout", with(silent, func(_ *testing.T, s *scene) {
			s.timeout = 250 * time.Millisecond
			s.is = []error{context.DeadlineExceeded}
		}), "Client.Timeout exceeded | context deadline exceeded", transient,
			wants{kindGet: late(1), kindPost: late(1)}},
		{"HTTP/2, lost ping", with(answerHTTP2(func(c faults.Stream) { c.Drain() }),
			func(_ *testing.T, s *scene) {
				s.base.HTTP2 = &http.HTTP2Config{
					SendPingTimeout: 10 * time.Millisecond, PingTimeout: 10 * time.Millisecond}
			}), "http2: client connection lost", transient, maybe},
	}
}

func uploadFaults() []fault {
	large := func(answer func(*faults.Conn)) setUp {
		return func(t *testing.T) *scene {
			s := newScene(t, faults.HTTP1(t,
				func(c *faults.Conn, _ *http.Request) bool { answer(c); return false }))
			s.body = strings.Repeat("x", 8<<20)
			return s
		}
	}
	broken := resetText + " | " + brokenText + " | use of closed network connection | EOF"
	return []fault{
		{"reset in the upload", large((*faults.Conn).Reset), broken, transient,
			wants{kindPost: sentOnce(1), kindPostEmpty: sentOnce(1), kindPut: exhausted(5),
				kindPostKeyed: exhausted(5)}},
		// Either the response or the reset after it arrives first.
		{"early answer and close in the upload",
			racing(large(func(c *faults.Conn) { c.Respond(503, "", "Connection: close") })),
			broken + " | 503 Service Unavailable", transient,
			wants{kindPut: exhausted(5), kindPostKeyed: exhausted(5), kindPost: sentOnce(1)}},
	}
}

// reusedConn returns a scene in which the request uses a connection for the
// second time. The server ends the connection after that request.
func reusedConn(end func(*faults.Conn)) setUp {
	return idle(func(t *testing.T) *scene {
		return newScene(t, faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
			if req.URL.Path == "/first" {
				c.Respond(200, "")
				return true
			}
			_, _ = io.Copy(io.Discard, req.Body)
			end(c)
			return false
		}))
	})
}

// idle returns inner, followed by a request that leaves a connection to be
// reused. Over HTTP/1, net/http closes a connection if its goroutine that wrote
// the request is 50 ms later than the response (maxWriteWaitBeforeConnReuse),
// which happens on a busy machine. Then idle begins again.
func idle(inner setUp) setUp {
	return func(t *testing.T) *scene {
		for {
			if s := inner(t); s.first(t) {
				return s
			}
		}
	}
}

// first sends a request, and reports whether its connection can be reused.
func (s *scene) first(t *testing.T) (kept bool) {
	ctx := httptrace.WithClientTrace(
		t.Context(), &httptrace.ClientTrace{PutIdleConn: func(err error) { kept = err == nil }})
	resp := contract.Send(t, s.base,
		contract.Request(t, "GET", s.url+"/first", "").WithContext(ctx))
	return kept || resp.ProtoMajor == 2 // for which the hook is not called
}

// staleConn returns a scene with a server that closes a connection just before
// it is used again.
func staleConn(end func(*faults.Conn)) setUp {
	return idle(func(t *testing.T) *scene {
		server := faults.Stale(t, end)
		s := newScene(t, server.Server)
		s.base = server.Base
		s.modify = func(r *http.Request) *http.Request { return r.WithContext(server.Context) }
		return s
	})
}

func idleFaults() []fault {
	// net/http resends a GET once by itself, and a POST with a key that it can
	// rewind, but no PUT or DELETE (isReplayable in its request.go).
	maybe := wants{kindGet: exhausted(6), kindPostKeyed: exhausted(6), kindPut: exhausted(5),
		kindDelete: exhausted(5), kindPost: sentOnce(1)}
	// Nothing was written. Whether net/http resends it depends on the request.
	ended := wants{kindGet: succeeds(1, 1), kindPostKeyed: succeeds(1, 1), kindPut: succeeds(2, 1),
		kindDelete: succeeds(2, 1), kindPost: succeeds(2, 1)}
	reset := wants{kindGet: succeeds(1, 1), kindPostKeyed: succeeds(1, 1), kindPut: succeeds(1, 1),
		kindDelete: succeeds(1, 1), kindPost: succeeds(1, 1), kindPostStreamed: succeeds(2, 1),
		kindPostEmpty: succeeds(1, 1)}
	return []fault{
		{"reused connection, end after the request", reusedConn(func(*faults.Conn) {}), "EOF",
			transient, maybe},
		{"reused connection, reset after the request", reusedConn((*faults.Conn).Reset),
			resetText, transient, maybe},
		{"idle connection, end", staleConn(func(*faults.Conn) {}),
			"http: server closed idle connection", unprocessed, ended},
		{"idle connection, 408", staleConn(func(c *faults.Conn) { c.Respond(408, "") }),
			"http: server closed idle connection", unprocessed, ended},
		{"idle connection, garbage", func(t *testing.T) *scene {
			writer := log.Writer()
			log.SetOutput(io.Discard) // net/http logs it
			t.Cleanup(func() { log.SetOutput(writer) })
			return staleConn(func(c *faults.Conn) { c.Send("garbage") })(t)
		}, "readLoopPeekFailLocked: %!w(<nil>)", unprocessed, reset},
		{"idle connection, reset", staleConn((*faults.Conn).Reset), "readLoopPeekFailLocked: ",
			unprocessed, reset},
	}
}

func changed(before setUp, change func(*http.Request)) setUp {
	return with(before, func(_ *testing.T, s *scene) {
		s.modify = func(r *http.Request) *http.Request { change(r); return r }
	})
}

// badRequest returns a scene with an invalid request. The server waits for the
// part of it that may be sent.
func badRequest(change func(*http.Request)) setUp {
	return changed(func(t *testing.T) *scene {
		return newScene(t, faults.HTTP1(t,
			func(c *faults.Conn, _ *http.Request) bool { c.Drain(); return false }))
	}, change)
}

func requestFaults() []fault {
	all := wants{
		kindGet: permanentFailure(0), kindPost: permanentFailure(0), kindPut: permanentFailure(0)}
	// If the body is not in memory, its header is sent first.
	withBody := wants{kindPostStreamed: permanentFailure(1), kindPut: permanentFailure(0),
		kindPostKeyed: permanentFailure(0)}
	overHTTP2 := func(change func(*http.Request)) setUp {
		return changed(answerHTTP2(func(s faults.Stream) { s.Respond(200) }), change)
	}
	badTrailer := func(r *http.Request) { r.Trailer = http.Header{"Content-Length": nil} }
	return []fault{
		{"scheme", badRequest(func(r *http.Request) { r.URL.Scheme = "ftp" }),
			`unsupported protocol scheme "ftp"`, final, all},
		{"no host", badRequest(func(r *http.Request) { r.URL.Host = "" }),
			"http: no Host in request URL", final, all},
		{"no URL", badRequest(func(r *http.Request) { r.URL = nil }),
			"http: nil Request.URL", final, all},
		{"no header", badRequest(func(r *http.Request) { r.Header = nil }),
			"http: nil Request.Header", final, all},
		{"method", badRequest(func(r *http.Request) { r.Method = "A B" }),
			`net/http: invalid method "A B"`, final, all},
		{"header name", badRequest(func(r *http.Request) { r.Header["A B"] = []string{"c"} }),
			`net/http: invalid header field name "A B"`, final, all},
		{"header value", badRequest(func(r *http.Request) { r.Header["A"] = []string{"\n"} }),
			`net/http: invalid header field value for "A"`, final, all},
		{"trailer", badRequest(func(r *http.Request) { r.Trailer = http.Header{"A B": nil} }),
			`net/http: invalid trailer field name "A B"`, final, all},
		{"URL", racing(badRequest(func(r *http.Request) { r.URL.Opaque = "\n" })),
			"net/http: can't write control character in Request.URL", final, all},
		{"length of a body that is not there", racing(badRequest(func(r *http.Request) {
			r.ContentLength = 5
			r.Body, r.GetBody = nil, nil
		})), "http: Request.ContentLength=5 with nil Body", final, all},
		{"short body", racing(badRequest(func(r *http.Request) { r.ContentLength = 10 })),
			"http: ContentLength=10 with Body length 7", final, withBody},
		{"long body", racing(badRequest(func(r *http.Request) { r.ContentLength = 1 })),
			"http: ContentLength=1 with Body length 7", final, withBody},
		{"trailer that is not allowed", racing(badRequest(badTrailer)),
			`invalid Trailer key "Content-Length"`, final,
			wants{kindPostStreamed: permanentFailure(0)}},
		{"HTTP/2, trailer that is not allowed", overHTTP2(badTrailer),
			`http2: invalid Trailer key "Content-Length"`, final, all},
		{"HTTP/2, host", overHTTP2(func(r *http.Request) { r.Host = "a b" }),
			"http2: invalid Host header", final, all},
		{"HTTP/2, path", overHTTP2(func(r *http.Request) { r.URL.Opaque = "a" }),
			`http2: invalid request :path "a" from URL.Opaque = "a"`, final, all},
		{"HTTP/2, header of a connection",
			overHTTP2(func(r *http.Request) { r.Header.Set("Connection", "x") }),
			`http2: invalid Connection request header: ["x"]`, final, all},
		{"HTTP/2, long body", changed(answerHTTP2(func(faults.Stream) {}),
			func(r *http.Request) { r.ContentLength = 1 }),
			"http2: request body larger than specified content length", final,
			wants{kindPostStreamed: permanentFailure(1), kindPut: permanentFailure(1)}},
		{"HTTP/2, large header", changed(idle(answerHTTP2(func(c faults.Stream) {
			// SETTINGS_MAX_HEADER_LIST_SIZE: 1024
			c.Frame(faults.FrameSettings, 0, 0, []byte{0, 6, 0, 0, 4, 0})
			c.Respond(200)
		})), func(r *http.Request) { r.Header.Set("A", strings.Repeat("a", 2000)) }),
			"http2: request header list larger than peer's advertised limit", final, all},
	}
}

type failingBody struct {
	io.Reader
	closeErr error
}

func (b *failingBody) Close() error { return b.closeErr }

func callerFaults() []fault {
	var rows []fault
	for _, failure := range []error{errors.New("disk"), errno.ConnReset, io.ErrUnexpectedEOF,
		context.DeadlineExceeded, &net.OpError{Op: "dial", Err: errno.ConnRefused}} {
		rows = append(
			rows, fault{"body fails: " + failure.Error(), badRequest(func(r *http.Request) {
				r.Body, r.GetBody = &failingBody{
					io.MultiReader(strings.NewReader("pay"), iotest.ErrReader(failure)), nil}, nil
				r.ContentLength = 7
			}), failure.Error(), transient,
				wants{kindPostStreamed: permanentFailure(1), kindPut: permanentFailure(1),
					kindPostKeyed: permanentFailure(1)}})
	}
	rows = append(rows, fault{"body fails to close", racing(changed(func(t *testing.T) *scene {
		return newScene(t, faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool {
			if c.Number > 1 {
				c.Respond(200, "")
			}
			c.Drain()
			return false
		}))
	}, func(r *http.Request) {
		r.Body, r.GetBody = &failingBody{
			strings.NewReader("payload"), errors.New("close failed")}, nil
		r.ContentLength = 7
	})), "close failed", transient,
		wants{kindPostStreamed: permanentFailure(1), kindPut: permanentFailure(1)}})
	errCause := errors.New("my cause")
	cancelsInFlight := func(serve func(cancel func()) setUp) setUp {
		return func(t *testing.T) *scene {
			ctx, cancel := context.WithCancelCause(t.Context())
			s := serve(func() { cancel(errCause) })(t)
			s.modify = func(r *http.Request) *http.Request { return r.WithContext(ctx) }
			s.is = []error{context.Canceled, errCause}
			return s
		}
	}
	left := wants{kindGet: canceled(1), kindPost: canceled(1)}
	rows = append(rows,
		fault{"HTTP/1, canceled", cancelsInFlight(func(cancel func()) setUp {
			return answerHTTP1(func(c *faults.Conn) { cancel(); c.Drain() })
		}), "my cause", transient, left},
		fault{"HTTP/2, canceled", cancelsInFlight(func(cancel func()) setUp {
			return answerHTTP2(func(faults.Stream) { cancel() })
		}), "context canceled", final, left})
	return append(rows, fault{"Request.Cancel", func(t *testing.T) *scene {
		cancel := make(chan struct{})
		s := answerHTTP1(func(c *faults.Conn) { close(cancel); c.Drain() })(t)
		//nolint:staticcheck // old code sets it
		s.modify = func(r *http.Request) *http.Request { r.Cancel = cancel; return r }
		return s
	}, "request canceled", final, left})
}

func answerHTTP2(answer func(faults.Stream)) setUp {
	return func(t *testing.T) *scene {
		s := newScene(t, faults.HTTP2(t, answer).Server)
		s.base = faults.HTTP2Base(t)
		return s
	}
}

// largeHeader returns a scene with an HTTP/2 server whose response header has
// about 14 KB as the client counts them.
func largeHeader(limit int64) setUp {
	return with(answerHTTP2(func(s faults.Stream) {
		header := []string{":status", "200"}
		for i := range 100 {
			header = append(header, fmt.Sprintf("a%d", i), strings.Repeat("a", 100))
		}
		s.Header(true, header...)
	}), func(_ *testing.T, s *scene) { s.base.MaxResponseHeaderBytes = limit })
}

func http2Faults() []fault {
	maybe := wants{kindGet: exhausted(5), kindPost: sentOnce(1), kindPut: exhausted(5),
		kindPostKeyed: exhausted(5)}
	reset := func(code uint32) setUp {
		return answerHTTP2(func(s faults.Stream) { s.ResetStream(code) })
	}
	breaksOff := func(end func(faults.Stream)) setUp {
		return truncated(answerHTTP2(func(s faults.Stream) {
			s.Header(false, ":status", "200", "content-length", "10")
			s.Data(false, "ten?")
			end(s)
		}))
	}
	cut := wants{kindGet: succeeds(1, 1), kindPost: succeeds(1, 1)}
	// Before Go 1.27, net/http resends a request that was reset with
	// PROTOCOL_ERROR any number of times, unless it cannot rewind the body.
	protocolError := wants{kindPostStreamed: sentOnce(1)}
	if go127 {
		protocolError = maybe
	}
	var rows []fault
	for code, name := range map[uint32]string{
		faults.InternalError: "INTERNAL_ERROR", faults.Cancel: "CANCEL",
		faults.EnhanceYourCalm: "ENHANCE_YOUR_CALM",
		faults.HTTP11Required:  "HTTP_1_1_REQUIRED", faults.NoError: "NO_ERROR",
		0x3: "FLOW_CONTROL_ERROR", 0xc: "INADEQUATE_SECURITY",
	} {
		rows = append(rows, fault{
			"RST_STREAM, " + name, reset(code), name + "; received from peer", transient, maybe})
	}
	return append(rows,
		fault{"RST_STREAM, PROTOCOL_ERROR, not rewindable", reset(faults.ProtocolError),
			"PROTOCOL_ERROR; received from peer", transient, protocolError},
		fault{"RST_STREAM, REFUSED_STREAM, not rewindable", reset(faults.RefusedStream),
			"REFUSED_STREAM; received from peer] after Request.Body was written", transient,
			wants{kindPostStreamed: sentOnce(1)}},
		// The connection may end after the header was written and before the
		// body is. For a moment, net/http then has closed the connection, but
		// not yet aborted the stream.
		fault{"HTTP/2, end", answerHTTP2(func(s faults.Stream) { s.CloseWrite(); s.Drain() }),
			"unexpected EOF | http2: client conn is closed", transient, maybe},
		fault{"HTTP/2, reset", answerHTTP2(func(s faults.Stream) { s.Reset() }),
			"unexpected EOF | http2: client conn is closed | " + resetText, transient, maybe},
		fault{"HTTP/2, large response header", largeHeader(10000),
			"http2: response header list larger than advertised limit", transient, maybe},
		fault{"HTTP/2, larger response header", largeHeader(1000),
			"connection error: PROTOCOL_ERROR", transient, maybe},
		// resume.go relies on the beginnings of the errors of these bodies. As above,
		// net/http may have closed the connection before it aborts the stream.
		fault{"HTTP/2, body, end of the stream",
			breaksOff(func(s faults.Stream) { s.ResetStream(faults.InternalError) }),
			"200 OK, stream error: ", final, cut},
		fault{"HTTP/2, body, broken connection",
			breaksOff(func(s faults.Stream) { s.Frame(faults.FramePing, 0, 1, make([]byte, 8)) }),
			"200 OK, connection error: | 200 OK, http2: client conn is closed", final, cut},
		fault{"HTTP/2, body, GOAWAY and end", breaksOff(func(s faults.Stream) {
			s.GoAway(s.ID, faults.NoError)
			s.CloseWrite()
			s.Drain()
		}), "200 OK, http2: server sent GOAWAY | 200 OK, http2: client conn is closed", final, cut},
	)
}

func http2GoAwayFaults() []fault {
	away := func(last, code uint32) setUp {
		return answerHTTP2(func(s faults.Stream) { s.GoAway(last, code) })
	}
	return []fault{
		{"GOAWAY, not rewindable", away(0, faults.NoError),
			"http2: Transport: cannot retry err [http2: Transport received Server's graceful " +
				"shutdown GOAWAY]", unprocessed, wants{kindPostStreamed: {httpretry.ReasonAttempts, 35, 35, false}}},
		{"GOAWAY, error on the first stream", away(0, faults.EnhanceYourCalm),
			"http2: Transport received GOAWAY from server ErrCode:ENHANCE_YOUR_CALM", unprocessed,
			wants{kindGet: exhausted(5), kindPost: exhausted(5)}},
		{"GOAWAY after the stream, and end", answerHTTP2(
			func(s faults.Stream) { s.GoAway(s.ID, faults.NoError); s.CloseWrite(); s.Drain() }),
			"http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR",
			transient, wants{kindGet: exhausted(5), kindPost: sentOnce(1)}},
		// GOAWAY arrives when the request already has its connection.
		{"GOAWAY just before the request", idle(func(t *testing.T) *scene {
			var conn *faults.Conn
			server := faults.HTTP2(t, func(s faults.Stream) {
				if conn == nil {
					conn = s.Conn
				}
				s.Respond(200)
			})
			s := newScene(t, server.Server)
			s.base = faults.HTTP2Base(t)
			ctx := httptrace.WithClientTrace(
				t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
					if info.Reused {
						conn.GoAway(1<<31-1, faults.NoError)
						conn.Ping()
						<-server.Pongs
					}
				}})
			s.modify = func(r *http.Request) *http.Request { return r.WithContext(ctx) }
			s.racing = true // net/http may look at the body before it closes it
			return s
		}), "net/http: cannot rewind body after connection loss", unprocessed,
			wants{kindPostStreamed: succeeds(2, 1)}},
	}
}

// Transport.CancelRequest cancels a request without its context. The request is
// not retried.
func TestTransportCancelRequest(t *testing.T) {
	for name, timeout := range map[string]time.Duration{
		"direct": 0, "below a layer": 0, "with an AttemptTimeout": time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			arrived := make(chan struct{}, 5)
			s := answerHTTP1(func(c *faults.Conn) { arrived <- struct{}{}; c.Drain() })(t)
			cancel := func(req *http.Request) {
				<-arrived
				//nolint:staticcheck // old code calls it
				s.base.CancelRequest(req)
			}
			req, base := s.request(t, kindGet), http.RoundTripper(s.base)
			if name == "direct" {
				go cancel(req)
			} else {
				base = contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
					go cancel(req)
					return s.base.RoundTrip(req)
				})
			}
			events := new(contract.Record)
			err := sendFails(t, contract.Unchecked(t, httpretry.Config{
				Base: base, Policy: withTimeout(timeout), Observe: events.Observe}), req)
			require.ErrorContains(t, err, "request canceled")
			assert.Equal(t, httpretry.ReasonPermanent, events.Reason())
			assert.EqualValues(t, 1, s.requests())
		})
	}
}
