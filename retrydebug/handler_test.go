package retrydebug_test

import (
	"fmt"
	"io"
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
	"github.com/seed421102f4/httpretry/retrydebug"
)

func TestMethods(t *testing.T) {
	h := show()
	for method, want := range map[string]int{
		"GET": 200, "HEAD": 200,
		"POST": 405, "PUT": 405, "DELETE": 405, "OPTIONS": 405, "TRACE": 405, "X": 405,
	} {
		t.Run(method, func(t *testing.T) {
			w := ask(h, method, "")
			assert.Equal(t, want, w.Code)
			if want == http.StatusMethodNotAllowed {
				assert.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
				assert.NotContains(t, w.Body.String(), "<")
			}
		})
	}
}

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
			if tt.status == http.StatusOK {
				assert.Equal(t, "Accept", header.Get("Vary"))
			}
		})
	}
}

func TestUnknownFormat(t *testing.T) {
	assert.Equal(t, "retrydebug: format: \"<xml\": want html or json\n",
		ask(show(), "GET", "?format=<xml").Body.String())
}

// The response to HEAD is that to GET, but for the body.
func TestHead(t *testing.T) {
	server := httptest.NewServer(show(httpretry.OriginStatus{Origin: "http://a.test"}))
	defer server.Close()
	for _, query := range []string{"", "?format=json"} {
		var lengths [2]int64
		for i, method := range []string{"GET", "HEAD"} {
			req, err := http.NewRequestWithContext(t.Context(), method, server.URL+query, nil)
			require.NoError(t, err)
			resp, err := server.Client().Do(req)
			require.NoError(t, err)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			lengths[i] = resp.ContentLength
			assert.Equal(t, method == "GET", len(body) > 0)
		}
		assert.Positive(t, lengths[0])
		// The time of the response has more or fewer digits.
		assert.InDelta(t, lengths[0], lengths[1], 10)
	}
	w := ask(show(), "HEAD", "")
	assert.Zero(t, w.Body.Len())
	length, err := strconv.Atoi(w.Header().Get("Content-Length"))
	require.NoError(t, err)
	assert.Positive(t, length)
}

func TestFormat(t *testing.T) {
	const firefox = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	const chromium = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif," +
		"image/webp,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7"
	for _, tt := range []struct {
		query  string
		accept []string
		json   bool
	}{
		{"", nil, false},
		{"", []string{firefox}, false},
		{"", []string{chromium}, false},
		{"", []string{"*/*"}, false}, // curl
		{"", []string{"application/json"}, true},
		{"", []string{"Application/JSON; charset=utf-8"}, true},
		{"", []string{"application/json, text/plain, */*"}, true},
		{"", []string{"application/*"}, true},
		{"", []string{"application/*, */*"}, true},
		{"", []string{"text/html, application/json"}, false},
		{"", []string{"application/json", "text/html;q=0.5"}, true},
		{"", []string{"application/json;q=0.5", "text/html"}, false},
		{"", []string{"application/json;q=0.5, */*;q=0.4"}, true},
		{"", []string{"application/json;q=0"}, false},
		{"", []string{"application/json;q=0, */*"}, false},
		{"", []string{"text/html;q=0, */*;q=0.1"}, true},
		{"", []string{"text/*;q=0.2, application/json;q=0.1"}, false},
		{"", []string{"application/json;q=2"}, false},
		{"", []string{"application/json;q=-1, */*;q=0.5, text/html;q=0.1"}, true},
		{"", []string{"application/json;q=NaN"}, false},
		{"", []string{"application/json;q=x"}, false},
		{"", []string{"application/json;q"}, false},
		{"", []string{";,/,application/json"}, true},
		{"", []string{"image/png"}, false},
		{"?format=json", nil, true},
		{"?format=json", []string{firefox}, true},
		{"?refresh=0&format=json", nil, true},
		{"?format=html", []string{"application/json"}, false},
		{"?format=", []string{"application/json"}, true},
	} {
		t.Run(tt.query+strings.Join(tt.accept, " and "), func(t *testing.T) {
			var header []string
			for _, value := range tt.accept {
				header = append(header, "Accept", value)
			}
			w := ask(show(), "GET", tt.query, header...)
			require.Equal(t, 200, w.Code)
			want := "text/html; charset=utf-8"
			if tt.json {
				want = "application/json"
			}
			assert.Equal(t, want, w.Header().Get("Content-Type"))
			assert.Equal(t, tt.json, strings.HasPrefix(w.Body.String(), "{"))
		})
	}
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
			assert.Len(t, readJSON(t, h).Origins, 4)
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
	assert.PanicsWithValue(t, "retrydebug: Handler: nil RetryTransport",
		func() { retrydebug.Handler(nil) })
	// The zero RetryTransport is usable.
	assert.Contains(t, page(t, retrydebug.Handler(new(httpretry.RetryTransport)), ""),
		"No requests yet.")
}
