package test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
)

const secret = "hunter2"

// controlBytes control terminals, end lines or hide text.
const controlBytes = "\x1b[31m\r\n\u2028\u2029\x7f\u0085\u009b\u202e\u200b\xff\xc0\x00\t"

// newLogs returns an observer that logs as text and as JSON, and a function
// that returns its output.
func newLogs() (observe func(context.Context, httpretry.Event), out func() string) {
	var mu sync.Mutex
	var logs bytes.Buffer
	options := &slog.HandlerOptions{Level: slog.LevelDebug}
	asText := httpretry.LogEvents(slog.New(slog.NewTextHandler(&logs, options)))
	asJSON := httpretry.LogEvents(slog.New(slog.NewJSONHandler(&logs, options)))
	return func(ctx context.Context, e httpretry.Event) {
			mu.Lock()
			defer mu.Unlock()
			asText(ctx, e)
			asJSON(ctx, e)
		}, func() string {
			mu.Lock()
			defer mu.Unlock()
			return logs.String()
		}
}

// logging returns a transport that logs, and a function that returns its output.
func logging(t *testing.T, base http.RoundTripper, policy httpretry.Policy,
) (transport http.RoundTripper, out func() string) {
	t.Helper()
	observe, out := newLogs()
	return contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: observe}), out
}

// newRefusingProxy starts a proxy that refuses each CONNECT with the status 503
// and reason, and returns it with a transport that uses it.
func newRefusingProxy(t *testing.T, reason string) (*faults.Server, *http.Transport) {
	t.Helper()
	proxy := faults.Proxy(t, "", func(c *faults.Conn, _ *http.Request) bool {
		c.Send("HTTP/1.1 503 " + reason + "\r\nRetry-After: \u2028\r\n\r\n")
		return false
	})
	base := faults.Base(t, nil)
	base.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy.Addr})
	return proxy, base
}

// assertPrintable fails if s contains unprintable characters, or a line that
// does not begin as a log entry does.
func assertPrintable(t *testing.T, s string) {
	t.Helper()
	require.NotEmpty(t, s)
	for line := range strings.SplitSeq(strings.TrimSuffix(s, "\n"), "\n") {
		assert.True(t, strings.HasPrefix(line, "time=") || strings.HasPrefix(line, `{"time":`),
			"%q", line)
		for i, r := range line {
			bad := r == utf8.RuneError && !strings.HasPrefix(line[i:], string(utf8.RuneError))
			if bad || !strconv.IsPrint(r) {
				t.Errorf("%q at %d of %q", r, i, line)
			}
		}
	}
}

// Hazard H6: control bytes in a response reach no log, and no error but that of
// net/http itself.
func TestControlsFromServer(t *testing.T) {
	const line = "HTTP/1.1 503 x\r\n"
	for name, answer := range map[string]string{
		"reason phrase":     "HTTP/1.1 503 \x1b[31m\u2028\u0085\x7f\xff\x00\tx" + emptyBody,
		"Retry-After":       line + "Retry-After: \x1b[31m\u2028\u0085\xff" + emptyBody,
		"header, printable": line + "X: \u2028\u202e\u0085\xff" + emptyBody,
		"header, controls":  line + "X: \x1b[31m\x7f\x00" + emptyBody,
		"header, a lone CR": line + "X: a\rlevel=ERROR" + emptyBody,
		"header name":       line + "X\x1b[31m\u2028: y" + emptyBody,
		"header, no colon":  line + "\x1b[31m\u2028\xff" + emptyBody,
		"status code":       "HTTP/1.1 \x1b[3\u2028 x" + emptyBody,
		"version":           "HTTP/\x1b[31m\u2028 503 x" + emptyBody,
		"garbage":           controlBytes + controlBytes + "\r\n",
		"length":            line + "Content-Length: \u2028\xff\r\n\r\n",
		"coding":            line + "Transfer-Encoding: \u2028\xff\r\n\r\n",
		"X-Should-Retry":    line + "X-Should-Retry: \u2028no" + emptyBody,
		"informational": "HTTP/1.1 103 \x1b[31m\u2028\r\nLink: \u2028\xff\r\n\r\n" +
			"HTTP/1.1 503 \x1b" + emptyBody,
		"body, then nothing": line + "Content-Length: 100\r\n\r\n" + controlBytes,
	} {
		t.Run(name, func(t *testing.T) {
			srv := faults.HTTP1(t,
				func(c *faults.Conn, _ *http.Request) bool { c.Send(answer); return false })
			transport, out := logging(t, faults.Base(t, nil), twoAttempts)
			resp, err := transport.RoundTrip(contract.Request(t, "GET", srv.URL(), ""))
			assertPrintable(t, out())
			assert.EqualValues(t, 2, srv.Requests.Load())
			if err == nil {
				_ = resp.Body.Close()
				return
			}
			plain := sendFails(t, faults.Base(t, nil), contract.Request(t, "GET", srv.URL(), ""))
			// net/http's own text is printable from Go 1.26.4 on.
			assertPrintable(t, "time="+strings.ReplaceAll(err.Error(), plain.Error(), ""))
		})
	}
}

// Hazard H6, 1.1: net/http's error has the status line of a proxy's response to
// CONNECT in it. Logs quote it.
func TestControlsFromProxy(t *testing.T) {
	const reason = "\x1b[31mgo away\u2028level=ERROR msg=forged\u0085\x7f\xff\r"
	proxy, base := newRefusingProxy(t, reason)
	plain := sendFails(t, base, contract.Request(t, "POST", "https://a.test/", ""))
	require.ErrorContains(t, plain, "\x1b", "or this test shows nothing")
	transport, out := logging(t, base, contract.RetryEvery(0))
	err := sendFails(t, transport, contract.Request(t, "POST", "https://a.test/", ""))
	assertPrintable(t, out())
	assert.EqualValues(t, 1+5, proxy.Requests.Load(), "of which none reached the server")
	assertPrintable(t, "time="+strings.ReplaceAll(err.Error(), plain.Error(), ""))
}

// Hazard H6: control bytes that a caller takes from its own callers.
func TestControlsFromCaller(t *testing.T) {
	for name, spoil := range map[string]func(*http.Request){
		"path": func(r *http.Request) { r.URL.Path = "/" + controlBytes },
		"raw path": func(r *http.Request) {
			r.URL.Path, r.URL.RawPath = "/"+controlBytes, "/"+controlBytes
		},
		"no slash": func(r *http.Request) { r.URL.Path = controlBytes },
		"opaque":   func(r *http.Request) { r.URL.Opaque = "//" + controlBytes },
		"host":     func(r *http.Request) { r.URL.Host = controlBytes },
		"scheme":   func(r *http.Request) { r.URL.Scheme = "http" + controlBytes },
		"query":    func(r *http.Request) { r.URL.RawQuery = controlBytes },
		"fragment": func(r *http.Request) { r.URL.Fragment = controlBytes },
		"user": func(r *http.Request) {
			r.URL.User = url.UserPassword(controlBytes, controlBytes)
		},
		"method":       func(r *http.Request) { r.Method = "PUT" + controlBytes },
		"header name":  func(r *http.Request) { r.Header["X"+controlBytes] = []string{"x"} },
		"header value": func(r *http.Request) { r.Header.Set("X", controlBytes) },
		"key":          func(r *http.Request) { r.Header.Set("Idempotency-Key", controlBytes) },
		"Host":         func(r *http.Request) { r.Host = controlBytes },
	} {
		t.Run(name, func(t *testing.T) {
			srv := faults.HTTP1(t,
				func(c *faults.Conn, _ *http.Request) bool { c.Respond(503, ""); return true })
			policy := twoAttempts
			policy.Classify = func(*http.Request, *http.Response, error) httpretry.Outcome {
				return httpretry.Transient
			}
			req := contract.Request(t, "GET", srv.URL(), "")
			spoil(req)
			base := connectTo(t, srv.Addr)
			_, plain := base.RoundTrip(req) // of net/http alone
			transport, out := logging(t, base, policy)
			resp, err := transport.RoundTrip(req)
			assertPrintable(t, out())
			if err == nil {
				_ = resp.Body.Close()
			} else {
				assertPrintable(t, "time="+strings.ReplaceAll(err.Error(), fmt.Sprint(plain), ""))
			}
		})
	}
}

// Hazard H5: however a request ends, logs contain none of its secrets, and an
// error contains none that the error of Base does not.
func TestSecretsStaySecret(t *testing.T) {
	respond := func(header ...string) func(*faults.Conn) bool {
		return func(c *faults.Conn) bool { c.Respond(503, secret, header...); return true }
	}
	answers := map[string]func(c *faults.Conn) bool{
		"response": respond("Set-Cookie: session="+secret, "X-Secret: "+secret,
			"Location: /?"+secret, "WWW-Authenticate: "+secret),
		"error": func(*faults.Conn) bool { return false },
	}
	exits := map[httpretry.Reason]func(*secretRequest){
		httpretry.ReasonSuccess: func(r *secretRequest) {
			r.policy.Classify = func(*http.Request, *http.Response, error) httpretry.Outcome {
				return 0
			}
		},
		httpretry.ReasonCanceled: func(r *secretRequest) {
			r.policy = contract.RetryEvery(time.Hour)
			r.cancel = true
		},
		httpretry.ReasonAttempts: func(*secretRequest) {},
		httpretry.ReasonNotIdempotent: func(r *secretRequest) {
			r.policy.NewIdempotencyKey = nil
			r.req.Header.Del("Idempotency-Key")
		},
		httpretry.ReasonNotReplayable: func(r *secretRequest) {
			r.req.GetBody = nil
			r.policy.ReplayBuffer = -1
		},
		httpretry.ReasonDoNotRetry: func(r *secretRequest) {
			r.answer = respond("X-Should-Retry: false", "Set-Cookie: "+secret)
		},
		httpretry.ReasonRetryAfter: func(r *secretRequest) {
			r.answer = respond("Retry-After: 3600", "X-Secret: "+secret)
		},
		httpretry.ReasonDeadline: func(r *secretRequest) {
			r.policy = contract.RetryEvery(time.Hour)
			r.policy.MaxElapsed = time.Minute
		},
		httpretry.ReasonBudget: func(r *secretRequest) {
			r.policy.Budget = &httpretry.HostBudget{Burst: -1}
		},
	}
	for reason, set := range exits {
		for kind, answer := range answers {
			for _, layer := range []string{"plain", "client", "wrapped"} {
				t.Run(fmt.Sprintf("%v/%s/%s", reason, kind, layer), func(t *testing.T) {
					r := &secretRequest{answer: answer,
						policy: contract.RetryEvery(0), layer: layer, reason: reason}
					r.send(t, set)
				})
			}
		}
	}
}

// secretRequest is a request with secrets wherever there may be some.
type secretRequest struct {
	layer  string // around the transport in Base
	answer func(*faults.Conn) bool
	policy httpretry.Policy
	reason httpretry.Reason
	cancel bool // while it waits
	req    *http.Request
}

func (r *secretRequest) send(t *testing.T, set func(*secretRequest)) {
	srv := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool { return r.answer(c) })
	r.req = contract.Request(t, "POST", srv.URL()+"/path", secret)
	r.req.URL.User = url.UserPassword(secret, secret)
	r.req.URL.RawQuery, r.req.URL.Fragment = "token="+secret, secret
	for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie",
		"Idempotency-Key", "X-Api-Key", "Referer"} {
		r.req.Header.Set(name, secret)
	}
	set(r)
	r.policy.MaxAttempts, r.policy.AttemptTimeout = 2, time.Hour
	ctx, cancel := context.WithCancel(r.req.Context())
	defer cancel()
	observe, out := newLogs()
	var last error // as Base returned it
	base := r.base(t)
	transport := contract.New(t, httpretry.Config{
		Base: contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			resp, err := base.RoundTrip(req)
			last = err
			return resp, err
		}),
		Policy: r.policy,
		Observe: func(ctx context.Context, e httpretry.Event) {
			observe(ctx, e)
			assert.NotContains(t, e.Status(), secret)
			if e.Wait > 0 && r.cancel {
				cancel()
			}
		},
	})
	resp, err := transport.RoundTrip(r.req.WithContext(ctx))
	switch {
	case err == nil:
		assert.Equal(t, secret, contract.ReadBody(t, resp))
	case last != nil:
		assert.NotContains(t, strings.ReplaceAll(err.Error(), last.Error(), ""), secret)
	default:
		assert.NotContains(t, err.Error(), secret)
	}
	assert.NotContains(t, out(), secret)
	if r.reason != httpretry.ReasonSuccess { // which is not logged
		assert.Contains(t, out(), "reason")
	}
	if r.reason == httpretry.ReasonCanceled {
		require.Error(t, err)
	}
}

func (r *secretRequest) base(t *testing.T) http.RoundTripper {
	transport := faults.Base(t, nil)
	switch r.layer {
	case "client": // its errors contain the URL
		return contract.BaseFunc((&http.Client{Transport: transport}).Do)
	case "wrapped":
		return contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			resp, err := transport.RoundTrip(req)
			if err != nil {
				err = fmt.Errorf("calling %s through %s@proxy:3128: %w", req.URL, req.URL.User, err)
			}
			return resp, err
		})
	}
	return transport
}

// Hazard J7: an error does not contain a key that cannot be sent, nor does that
// of an attempt that times out contain a part of the request.
func TestSecretsOfRequestsNotSent(t *testing.T) {
	slow := contract.Step{Status: 200, Takes: time.Hour}
	timeout, badKey := contract.RetryEvery(0), contract.RetryEvery(0)
	timeout.AttemptTimeout = time.Millisecond
	badKey.NewIdempotencyKey = func(*http.Request) string { return secret + "\x1b\r\n" }
	for method, policy := range map[string]httpretry.Policy{"POST": badKey, "GET": timeout} {
		url := "http://" + secret + ":" + secret + "@a.test/?" + secret + "#" + secret
		transport, out := logging(t, contract.Play(slow), policy)
		err := sendFails(t, transport, contract.Request(t, method, url, secret))
		assert.NotContains(t, err.Error()+out(), secret)
		assertPrintable(t, "time="+err.Error())
		assertPrintable(t, out())
	}
}

// Hazard H6: an error may contain megabytes from a server or a proxy. A log
// entry is short, and writing it is fast.
func TestLogsAreBounded(t *testing.T) {
	for name, text := range map[string]string{
		"controls": times(kilo*kilo, "\x1b"),
		"quotes":   `"` + times(2*kilo*kilo, `\"`),
		"words":    times(kilo*kilo, `" "`),
	} {
		_, base := newRefusingProxy(t, text)
		transport, out := logging(t, base, twoAttempts)
		req := contract.Request(t, "GET", "https://a.test/"+times(10*kilo, "\u2028"), "")
		waitFor(t, "logging "+name, func() { // milliseconds are enough
			_, err := transport.RoundTrip(req)
			if assert.Error(t, err) {
				assert.Greater(t, len(err.Error()), kilo*kilo, "or this test shows nothing")
			}
		})
		assertPrintable(t, out())
		for line := range strings.SplitSeq(out(), "\n") {
			assert.Less(t, len(line), 4*kilo)
		}
	}
}
