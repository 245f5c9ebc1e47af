package retrydebug_test

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
	"github.com/seed421102f4/httpretry/retrydebug"
)

// All responses have the headers that restrict their use.
func TestHeaders(t *testing.T) {
	broken := show(httpretry.OriginStatus{CooldownUntil: time.Unix(math.MaxInt32<<16, 0)})
	for name, tt := range map[string]struct {
		h             http.Handler
		method, query string
		status        int
		contentType   string
	}{
		"page":              {show(), "GET", "", 200, "text/html; charset=utf-8"},
		"HEAD":              {show(), "HEAD", "", 200, "text/html; charset=utf-8"},
		"JSON":              {show(), "GET", "?format=json", 200, "application/json"},
		"POST":              {show(), "POST", "", 405, "text/plain; charset=utf-8"},
		"DELETE":            {show(), "DELETE", "", 405, "text/plain; charset=utf-8"},
		"OPTIONS":           {show(), "OPTIONS", "", 405, "text/plain; charset=utf-8"},
		"unknown method":    {show(), "X", "", 405, "text/plain; charset=utf-8"},
		"unknown format":    {show(), "GET", "?format=xml", 400, "text/plain; charset=utf-8"},
		"cannot be encoded": {broken, "GET", "?format=json", 500, "text/plain; charset=utf-8"},
	} {
		t.Run(name, func(t *testing.T) {
			w := ask(tt.h, tt.method, tt.query)
			assert.Equal(t, tt.status, w.Code)
			header := w.Header()
			assert.Equal(t, tt.contentType, header.Get("Content-Type"))
			assert.Equal(t, "no-store", header.Get("Cache-Control"))
			assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
			policy := header.Get("Content-Security-Policy")
			for _, directive := range []string{"default-src 'none'", "base-uri 'none'",
				"form-action 'none'", "frame-ancestors 'none'"} {
				assert.Contains(t, strings.Split(policy, "; "), directive)
			}
			assert.NotContains(t, policy, "unsafe")
			assert.NotContains(t, policy, "script")
			if tt.status == http.StatusMethodNotAllowed {
				assert.Equal(t, "GET, HEAD", header.Get("Allow"))
				assert.NotContains(t, w.Body.String(), "<")
			}
		})
	}
}

// The response to HEAD is that to GET, but for the body.
func TestHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that both have the same time
		h := show(httpretry.OriginStatus{Origin: "http://a.test"})
		for _, query := range []string{"", "?format=json"} {
			get, head := ask(h, "GET", query), ask(h, "HEAD", query)
			assert.Equal(t, strconv.Itoa(get.Body.Len()), get.Header().Get("Content-Length"))
			assert.Equal(t, get.Header(), head.Header())
			assert.Zero(t, head.Body.Len())
		}
	})
}

// The query determines the format, whatever the client accepts.
func TestFormat(t *testing.T) {
	for query, json := range map[string]bool{
		"": false, "?": false, "?format=": false, "?format=html": false, "?format=json": true,
		"?refresh=0&format=json": true,
	} {
		for _, accept := range []string{"", "*/*", "text/html", "application/json"} {
			w := ask(show(), "GET", query, "Accept", accept)
			require.Equal(t, 200, w.Code)
			want := "text/html; charset=utf-8"
			if json {
				want = "application/json"
			}
			assert.Equal(t, want, w.Header().Get("Content-Type"), "%q, %q", query, accept)
			assert.Equal(t, json, strings.HasPrefix(w.Body.String(), "{"))
			assert.Empty(t, w.Header().Get("Vary"))
		}
	}
	assert.Equal(t, "retrydebug: format: \"<xml\": want html or json\n",
		ask(show(), "GET", "?format=<xml").Body.String())
}

// slowWriter is a client that does not read until a channel is closed.
type slowWriter struct {
	http.ResponseWriter
	read chan struct{}
}

func (w slowWriter) Write(p []byte) (int, error) {
	<-w.read
	return w.ResponseWriter.Write(p)
}

// A client that does not read its response delays no other, and does not see
// what happens meanwhile.
func TestSlowClient(t *testing.T) {
	for _, query := range []string{"", "?format=json"} {
		synctest.Test(t, func(t *testing.T) {
			transport := answers(t, httpretry.Config{}, nil)
			h := retrydebug.Handler(transport)
			get(t, transport, "http://before.test/")
			recorder, read := httptest.NewRecorder(), make(chan struct{})
			var shown bool
			go func() {
				h.ServeHTTP(slowWriter{recorder, read},
					httptest.NewRequest("GET", "/"+query, nil))
				shown = true
			}()
			synctest.Wait()
			start := time.Now()
			for i := range 3 {
				get(t, transport, fmt.Sprintf("http://after%d.test/", i))
			}
			assert.Len(t, readOrigins(t, h), 4)
			assert.Equal(t, start, time.Now())
			assert.False(t, shown)

			close(read)
			synctest.Wait()
			assert.True(t, shown)
			assert.Contains(t, recorder.Body.String(), "before.test")
			assert.NotContains(t, recorder.Body.String(), "after")
		})
	}
}

func TestNilTransport(t *testing.T) {
	assert.PanicsWithValue(t, "retrydebug: Handler: nil: want a RetryTransport",
		func() { retrydebug.Handler(nil) })
	// The zero RetryTransport is usable.
	assert.Contains(t, page(t, retrydebug.Handler(new(httpretry.RetryTransport)), ""),
		"No requests yet.")
}

func TestNewErrors(t *testing.T) {
	type transports = map[string]*httpretry.RetryTransport
	a, other := new(httpretry.RetryTransport), new(httpretry.RetryTransport)
	ofA := &policyfile.Reloader{Transport: a}
	const reloaders = "retrydebug: Config.Reloaders"
	const want = ": want a Reloader of one of Transports\n"
	for _, tt := range []struct {
		cfg  retrydebug.Config
		want string
	}{
		{retrydebug.Config{},
			`retrydebug: Config.Transports: none: want at least one RetryTransport`},
		{retrydebug.Config{Transports: transports{"": a}},
			`retrydebug: Config.Transports[""]: want a name that is not empty`},
		{retrydebug.Config{Transports: transports{"a\"b": nil}},
			`retrydebug: Config.Transports["a\"b"]: nil: want a RetryTransport`},
		{retrydebug.Config{Transports: transports{"": nil, "b": a, "c": nil}},
			"retrydebug: Config.Transports[\"\"]: want a name that is not empty\n" +
				"retrydebug: Config.Transports[\"\"]: nil: want a RetryTransport\n" +
				"retrydebug: Config.Transports[\"c\"]: nil: want a RetryTransport"},
		{retrydebug.Config{Transports: transports{"a": a, "b": nil},
			Reloaders: []*policyfile.Reloader{nil, {}, {Transport: other}, ofA, ofA}},
			reloaders + "[0]" + want + reloaders + "[1]" + want + reloaders + "[2]" + want +
				reloaders + "[4]: want one for each of Transports\n" +
				`retrydebug: Config.Transports["b"]: nil: want a RetryTransport`},
	} {
		h, err := retrydebug.New(tt.cfg)
		assert.EqualError(t, err, tt.want)
		assert.Nil(t, h)
	}
}

// A handler does not change with the map that it was made from.
func TestNewCopiesTransports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transports := map[string]*httpretry.RetryTransport{"a": answers(t, httpretry.Config{}, nil)}
		h, err := retrydebug.New(retrydebug.Config{Transports: transports})
		require.NoError(t, err)
		get(t, transports["a"], "http://a.test/")
		transports["a"], transports["b"] = nil, nil
		assert.Len(t, readOrigins(t, h), 1)
	})
}
