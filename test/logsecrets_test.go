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
	"github.com/seed421102f4/httpretry/strategies"
)

// controlBytes control terminals, end lines or hide text.
const controlBytes = "\x1b[31m\r\n\u2028\u2029\x7f\u0085\u009b\u202e\u200b\xff\xc0\x00\t"

// newLogs returns an observer that logs as text and as JSON, and a function
// that returns its output.
func newLogs() (observe func(context.Context, httpretry.Event), out func() string) {
	var mu sync.Mutex
	var text, json bytes.Buffer
	options := &slog.HandlerOptions{Level: slog.LevelDebug}
	asText := httpretry.LogEvents(slog.New(slog.NewTextHandler(&text, options)))
	asJSON := httpretry.LogEvents(slog.New(slog.NewJSONHandler(&json, options)))
	return func(ctx context.Context, e httpretry.Event) {
			mu.Lock()
			defer mu.Unlock()
			asText(ctx, e)
			asJSON(ctx, e)
		}, func() string {
			mu.Lock()
			defer mu.Unlock()
			return text.String() + json.String()
		}
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
	for name, answer := range map[string]string{
		"reason phrase": "HTTP/1.1 503 \x1b[31m\u2028\u0085\x7f\xff\x00\tx\r\nContent-Length: " +
			"0\r\n\r\n",
		"Retry-After": "HTTP/1.1 503 x\r\nRetry-After: " +
			"\x1b[31m\u2028\u0085\xff\r\nContent-Length: 0\r\n\r\n",
		"header, printable": "HTTP/1.1 503 x\r\nX: \u2028\u202e\u0085\xff\r\nContent-Length: " +
			"0\r\n\r\n",
		"header, controls":  "HTTP/1.1 503 x\r\nX: \x1b[31m\x7f\x00\r\nContent-Length: 0\r\n\r\n",
		"header, a lone CR": "HTTP/1.1 503 x\r\nX: a\rlevel=ERROR\r\nContent-Length: 0\r\n\r\n",
		"header name":       "HTTP/1.1 503 x\r\nX\x1b[31m\u2028: y\r\nContent-Length: 0\r\n\r\n",
		"header, no colon":  "HTTP/1.1 503 x\r\n\x1b[31m\u2028\xff\r\nContent-Length: 0\r\n\r\n",
		"status code":       "HTTP/1.1 \x1b[3\u2028 x\r\nContent-Length: 0\r\n\r\n",
		"version":           "HTTP/\x1b[31m\u2028 503 x\r\nContent-Length: 0\r\n\r\n",
		"garbage":           controlBytes + controlBytes + "\r\n",
		"length":            "HTTP/1.1 503 x\r\nContent-Length: \u2028\xff\r\n\r\n",
		"coding":            "HTTP/1.1 503 x\r\nTransfer-Encoding: \u2028\xff\r\n\r\n",
		"X-Should-Retry": "HTTP/1.1 503 x\r\nX-Should-Retry: \u2028no\r\nContent-Length: " +
			"0\r\n\r\n",
		"informational": "HTTP/1.1 103 \x1b[31m\u2028\r\nLink: \u2028\xff\r\n\r\nHTTP/1.1 " +
			"503 \x1b\r\nContent-Length: 0\r\n\r\n",
		"body, then nothing": "HTTP/1.1 503 x\r\nContent-Length: 100\r\n\r\n" + controlBytes,
	} {
		t.Run(name, func(t *testing.T) {
			srv := faults.HTTP1(t,
				func(c *faults.Conn, _ *http.Request) bool { c.Send(answer); return false })
			observe, out := newLogs()
			policy := contract.RetryEvery(0)
			policy.MaxAttempts = 2
			resp, err := contract.New(t,
				httpretry.Config{Base: faults.Base(t, nil), Policy: policy, Observe: observe}).
				RoundTrip(contract.Request(t, "GET", srv.URL(), ""))
			assertPrintable(t, out())
			assert.EqualValues(t, 2, srv.Requests.Load())
			if err == nil {
				_ = resp.Body.Close()
				return
			}
			_, plain := faults.Base(t, nil).RoundTrip(contract.Request(t, "GET", srv.URL(), ""))
			require.Error(t, plain)
			// net/http's own text is printable from Go 1.26.4 on.
			assertPrintable(t, "time="+strings.ReplaceAll(err.Error(), plain.Error(), ""))
		})
	}
}

// Hazard H6, 1.1: net/http's error has the status line of a proxy's response to
// CONNECT in it. Logs quote it.
func TestControlsFromProxy(t *testing.T) {
	const reason = "\x1b[31mgo away\u2028level=ERROR msg=forged\u0085\x7f\xff\r"
	proxy := faults.Proxy(t, "", func(c *faults.Conn, _ *http.Request) bool {
		c.Send("HTTP/1.1 503 " + reason + "\r\nRetry-After: \u2028\r\n\r\n")
		return false
	})
	base := faults.Base(t, nil)
	base.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy.Addr})
	observe, out := newLogs()
	_, plain := base.RoundTrip(contract.Request(t, "POST", "https://a.test/", ""))
	require.Error(t, plain)
	require.Contains(t, plain.Error(), "\x1b", "or this test shows nothing")
	_, err := contract.New(t,
		httpretry.Config{Base: base, Policy: contract.RetryEvery(0), Observe: observe}).
		RoundTrip(contract.Request(t, "POST", "https://a.test/", ""))
	require.Error(t, err)
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
			observe, out := newLogs()
			policy := contract.RetryEvery(0)
			policy.MaxAttempts = 2
			policy.Classify = func(*http.Request, *http.Response, error) httpretry.Outcome {
				return httpretry.Transient
			}
			req := contract.Request(t, "GET", srv.URL(), "")
			spoil(req)
			base := connectTo(t, srv.Addr)
			plain := func() string { // the error of net/http alone
				_, err := base.RoundTrip(req)
				return fmt.Sprint(err)
			}()
			resp, err := contract.New(t,
				httpretry.Config{Base: base, Policy: policy, Observe: observe}).RoundTrip(req)
			assertPrintable(t, out())
			if err == nil {
				_ = resp.Body.Close()
			} else {
				assertPrintable(t, "time="+strings.ReplaceAll(err.Error(), plain, ""))
			}
		})
	}
}

// Hazard H6: the target of a redirect becomes the URL of the client's next
// request.
func TestControlsFromRedirect(t *testing.T) {
	for _, location := range []string{"/%1b%5B31m%0d%0a%e2%80%a8%ff%00",
		"/\u2028\u202e\xff?\u2028#\u2028", "//a.test\u2028/", "?x=\u0085", "/%"} {
		srv := faults.HTTP1(t, func(c *faults.Conn, req *http.Request) bool {
			if req.URL.Path == "/" && req.URL.RawQuery == "" {
				c.Respond(307, "", "Location: "+location)
			} else {
				c.Respond(503, "")
			}
			return true
		})
		observe, out := newLogs()
		policy := contract.RetryEvery(0)
		policy.MaxAttempts = 2
		base := connectTo(t, srv.Addr)
		client := &http.Client{
			Transport: contract.New(t,
				httpretry.Config{Base: base, Policy: policy, Observe: observe})}
		resp, err := client.Get(srv.URL() + "/")
		if err == nil {
			_ = resp.Body.Close()
		}
		if out() != "" { // otherwise the client did not follow the redirect
			assertPrintable(t, out())
		}
	}
}

// Hazard H5: however a request ends, logs contain none of its secrets, and an
// error contains none that the error of Base does not.
func TestSecretsStaySecret(t *testing.T) {
	const secret = "hunter2"
	answers := map[string]func(c *faults.Conn) bool{
		"response": func(c *faults.Conn) bool {
			c.Respond(503, secret, "Set-Cookie: session="+secret, "X-Secret: "+secret,
				"Location: /?"+secret, "WWW-Authenticate: "+secret)
			return true
		},
		"error": func(*faults.Conn) bool { return false },
	}
	refuse := func(c *faults.Conn) bool {
		c.Respond(503, secret, "X-Should-Retry: false", "Set-Cookie: "+secret)
		return true
	}
	later := func(c *faults.Conn) bool {
		c.Respond(503, secret, "Retry-After: 3600", "X-Secret: "+secret)
		return true
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
		httpretry.ReasonDoNotRetry: func(r *secretRequest) { r.answer = refuse },
		httpretry.ReasonRetryAfter: func(r *secretRequest) { r.answer = later },
		httpretry.ReasonDeadline: func(r *secretRequest) {
			r.policy.Backoff, r.policy.MaxElapsed = strategies.Constant{Wait: time.Hour},
				time.Minute
		},
		httpretry.ReasonBudget: func(r *secretRequest) {
			r.policy.Budget = &httpretry.HostBudget{Burst: -1}
		},
	}
	for reason, set := range exits {
		for kind, answer := range answers {
			for _, layer := range []string{"plain", "client", "wrapped"} {
				t.Run(fmt.Sprintf("%v/%s/%s", reason, kind, layer), func(t *testing.T) {
					r := &secretRequest{secret: secret, answer: answer,
						policy: contract.RetryEvery(0), layer: layer, reason: reason}
					r.send(t, set)
				})
			}
		}
	}
}

// secretRequest is a request with secrets wherever there may be some.
type secretRequest struct {
	secret string
	layer  string // around the transport in Base
	answer func(*faults.Conn) bool
	policy httpretry.Policy
	reason httpretry.Reason
	cancel bool // while it waits
	req    *http.Request
}

func (r *secretRequest) send(t *testing.T, set func(*secretRequest)) {
	srv := faults.HTTP1(t, func(c *faults.Conn, _ *http.Request) bool { return r.answer(c) })
	r.policy.MaxAttempts, r.policy.AttemptTimeout = 2, time.Hour
	r.req = contract.Request(t, "POST", srv.URL()+"/path", r.secret)
	r.req.URL.User = url.UserPassword(r.secret, r.secret)
	r.req.URL.RawQuery, r.req.URL.Fragment = "token="+r.secret, r.secret
	for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie",
		"Idempotency-Key", "X-Api-Key", "Referer"} {
		r.req.Header.Set(name, r.secret)
	}
	set(r)
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
			assert.NotContains(t, e.Status(), r.secret)
			if e.Wait > 0 && r.cancel {
				cancel()
			}
		},
	})
	resp, err := transport.RoundTrip(r.req.WithContext(ctx))
	switch {
	case err == nil:
		assert.Equal(t, r.secret, contract.ReadBody(t, resp))
	case last != nil:
		assert.NotContains(t, strings.ReplaceAll(err.Error(), last.Error(), ""), r.secret)
	default:
		assert.NotContains(t, err.Error(), r.secret)
	}
	assert.NotContains(t, out(), r.secret)
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
		client := &http.Client{Transport: transport}
		return contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
			resp, err := client.Do(req)
			return resp, err
		})
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
	const secret = "hunter2"
	slow := contract.Step{Status: 200, Takes: time.Hour}
	timeout, badKey := contract.RetryEvery(0), contract.RetryEvery(0)
	timeout.AttemptTimeout = time.Millisecond
	badKey.NewIdempotencyKey = func(*http.Request) string { return secret + "\x1b\r\n" }
	for method, policy := range map[string]httpretry.Policy{"POST": badKey, "GET": timeout} {
		url := "http://" + secret + ":" + secret + "@a.test/?" + secret + "#" + secret
		observe, out := newLogs()
		_, err := contract.New(t, httpretry.Config{
			Base: contract.Play(slow), Policy: policy, Observe: observe}).
			RoundTrip(contract.Request(t, method, url, secret))
		require.Error(t, err)
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
		proxy := faults.Proxy(t, "", func(c *faults.Conn, _ *http.Request) bool {
			c.Send("HTTP/1.1 503 " + text + "\r\n\r\n")
			return false
		})
		base := faults.Base(t, nil)
		base.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy.Addr})
		observe, out := newLogs()
		policy := contract.RetryEvery(0)
		policy.MaxAttempts = 2
		transport := contract.New(t, httpretry.Config{Base: base, Policy: policy, Observe: observe})
		req := contract.Request(t, "GET", "https://a.test/"+times(10*kilo, "\u2028"), "")
		failed := make(chan error, 1)
		go func() {
			_, err := transport.RoundTrip(req)
			failed <- err
		}()
		select {
		case err := <-failed:
			require.Error(t, err)
			require.Greater(t, len(err.Error()), kilo*kilo, "or this test shows nothing")
		case <-time.After(waitLimit): // milliseconds are enough
			t.Fatal("still logging ", name)
		}
		assertPrintable(t, out())
		for line := range strings.SplitSeq(out(), "\n") {
			assert.Less(t, len(line), 4*kilo)
		}
	}
}
