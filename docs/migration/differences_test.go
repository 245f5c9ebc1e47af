package migration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDifferences checks each cell of the guide's table of differences.
func TestDifferences(t *testing.T) {
	rows := tableOfDifferences(t)
	for _, s := range situations() {
		t.Run(s.name, func(t *testing.T) {
			if s.leavesBody && !strings.HasPrefix(runtime.Version(), "go1.26") {
				t.Skip("since Go 1.27, Close drains a body")
			}
			cells := rows[s.name]
			delete(rows, s.name)
			require.Len(t, cells, len(libraries()), "want a row of the table in migration.md")
			for i, l := range libraries() {
				t.Run(l.name, func(t *testing.T) {
					if cells[i] == "your code" {
						t.Skip("there is no such code in the loop")
					}
					if s.network {
						t.Parallel() // the waits are real
					}
					assert.Equal(t, cells[i], s.run(t, l))
				})
			}
		})
	}
	assert.Empty(t, rows, "rows of migration.md that are not tested")
}

// tableOfDifferences reads the table, whose first column is the situation.
func tableOfDifferences(t *testing.T) map[string][]string {
	t.Helper()
	var header []string
	for _, l := range libraries() {
		header = append(header, l.name)
	}
	rows := map[string][]string{}
	_, table, ok := strings.Cut(guide(t), "| "+strings.Join(header, " | ")+" |\n")
	require.True(t, ok, "migration.md has no table of differences")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if !strings.HasPrefix(line, "|") {
			break
		}
		if name := strings.ReplaceAll(cells[0], "`", ""); !strings.HasPrefix(name, "---") {
			rows[name] = cells[1:]
		}
	}
	return rows
}

// A situation is a test of a library. Its function returns the library's
// behavior.
type situation struct {
	name    string
	happens func(library) string
	network bool // with a real server, and so outside of a synctest bubble

	leavesBody bool // closes a response without reading it
}

func (s situation) run(t *testing.T, l library) (got string) {
	if s.network {
		return s.happens(l)
	}
	synctest.Test(t, func(*testing.T) { got = s.happens(l) })
	return got
}

func situations() []situation {
	now := func() time.Time { return time.Now().UTC() }
	return []situation{
		{name: "POST, always 503: requests", happens: requests("POST", status(503))},
		{name: "POST, connection reset: requests", happens: requests("POST", fails(reset()))},
		{name: "POST, connection refused: requests", happens: requests("POST", fails(refused()))},
		{name: "GET, unknown host: requests", happens: requests("GET", fails(unknownHost()))},
		{name: "GET, 429, then 200: requests", happens: requests("GET", status(429), status(200))},
		{name: "GET, always 503: result", happens: func(l library) string {
			return result(l, context.Background(), 0, status(503))
		}},
		{name: "1000 GETs, always 503: requests", happens: outage},
		{name: "wait after Retry-After: 86400", happens: waitAfter(func() string { return "86400" })},
		{name: "wait after Retry-After: 9223372037", happens: waitAfter(func() string { return "9223372037" })},
		{name: "wait after Retry-After: a date in 20 s", happens: waitAfter(func() string {
			return now().Add(20 * time.Second).Format(http.TimeFormat)
		})},
		{name: "deadline after 0.5 s, always 503", happens: deadline},
		{name: "cancel after 0.5 s, always 503", happens: cancelWait},
		{name: "client's Timeout 1.5 s; 503, 503, 200", happens: func(l library) string {
			return result(l, context.Background(), 3*time.Second/2, status(503), status(503), status(200))
		}},
		{name: "503 with 1 byte/s: first wait", happens: func(l library) string {
			b := &base{answers: []answer{dripping, status(200)}}
			send(l.sender(b, 0), newRequest(context.Background(), "GET"))
			return b.firstWait()
		}},
		{name: "bytes read ahead of a PUT of 1 MiB without GetBody", happens: readAhead},
		{name: "connections for 3 requests", happens: connections, network: true, leavesBody: true},
	}
}

func newRequest(ctx context.Context, method string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, "http://a.test/", nil)
	if err != nil {
		panic(err)
	}
	return req
}

// send describes what a caller gets.
func send(s sender, req *http.Request) string {
	resp, err := s(req)
	switch {
	case err != nil && resp == nil:
		return "error"
	case err != nil:
		return fmt.Sprint(resp.StatusCode, " and an error")
	}
	resp.Body.Close()
	return fmt.Sprint(resp.StatusCode)
}

func requests(method string, answers ...answer) func(library) string {
	return func(l library) string {
		b := &base{answers: answers}
		send(l.sender(b, 0), newRequest(context.Background(), method))
		return fmt.Sprint(len(b.times))
	}
}

// result describes what the caller gets and when.
func result(l library, ctx context.Context, timeout time.Duration, answers ...answer) string {
	start := time.Now()
	got := send(l.sender(&base{answers: answers}, timeout), newRequest(ctx, "GET"))
	return got + ", " + short(time.Since(start))
}

func outage(l library) string {
	b := &base{answers: []answer{status(503)}}
	s := l.sender(b, 0)
	for range 1000 {
		send(s, newRequest(context.Background(), "GET"))
	}
	return fmt.Sprint(len(b.times))
}

// waitAfter makes a server ask for a wait that is computed in the bubble.
func waitAfter(retryAfter func() string) func(library) string {
	return func(l library) string {
		b := &base{answers: []answer{status(503, "Retry-After", retryAfter()), status(200)}}
		send(l.sender(b, 0), newRequest(context.Background(), "GET"))
		// httpretry spreads clients over a quarter of the wait.
		if len(b.times) > 1 && l.name == "httpretry" {
			if wait := b.times[1].Sub(b.times[0]); wait >= 20*time.Second && wait <= 25*time.Second {
				return "20s to 25s"
			}
		}
		return b.firstWait()
	}
}

func deadline(l library) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
	defer cancel()
	return result(l, ctx, 0, status(503))
}

func cancelWait(l library) string {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	time.AfterFunc(time.Second/2, cancel)
	start := time.Now()
	resp, err := l.sender(&base{answers: []answer{status(503)}}, 0)(newRequest(ctx, "GET"))
	switch {
	case err == nil:
		resp.Body.Close()
		return resp.Status
	case errors.Is(err, context.Canceled):
		return "Canceled, " + short(time.Since(start))
	}
	return "other error, " + short(time.Since(start))
}

// readAhead returns how much of a body is read before it is sent, and how many
// times it is sent if the server answers 503.
func readAhead(l library) string {
	upload := &countingReader{Reader: bytes.NewReader(make([]byte, 1<<20))}
	ahead := -1
	b := &base{answers: []answer{status(503)}}
	s := l.sender(roundTripFunc(func(req *http.Request) (*http.Response, error) {
		if ahead < 0 {
			ahead = upload.n
		}
		return b.RoundTrip(req)
	}), 0)
	req := newRequest(context.Background(), "PUT")
	req.Body = io.NopCloser(upload)
	send(s, req)
	switch ahead {
	case 0:
		return fmt.Sprintf("none, sent %d×", len(b.times))
	case 1 << 20:
		return fmt.Sprintf("all, sent %d×", len(b.times))
	}
	return fmt.Sprint(ahead, " bytes")
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

type countingReader struct {
	io.Reader
	n int
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.n += n
	return n, err
}

// connections returns how many connections three attempts need if two of them
// get a 503 with a body. On a busy machine, a body may arrive too late to be
// drained, which costs its connection, so the best of several runs counts.
func connections(l library) string {
	return min(connectionsOnce(l), connectionsOnce(l), connectionsOnce(l))
}

func connectionsOnce(l library) string {
	var opened, received atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if received.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, strings.Repeat("x", 2048))
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	// Connections that a library has not closed would delay Close.
	defer server.CloseClientConnections()
	req, err := http.NewRequest("GET", server.URL, nil)
	if err != nil {
		panic(err)
	}
	send(l.sender(server.Client().Transport, 0), req)
	if n := received.Load(); n != 3 {
		return fmt.Sprint(n, " requests")
	}
	return fmt.Sprint(opened.Load())
}

// TestOldPolicy checks that the guide's policy brings the old behavior back.
func TestOldPolicy(t *testing.T) {
	old := oldPolicy()
	like := library{"old", func(base http.RoundTripper, timeout time.Duration) sender {
		return policySender(base, timeout, old)
	}}
	want := map[string]string{
		"POST, always 503: requests":                         "4",
		"POST, connection reset: requests":                   "4",
		"1000 GETs, always 503: requests":                    "4000",
		"bytes read ahead of a PUT of 1 MiB without GetBody": "none, sent 4×",
	}
	for _, s := range situations() {
		if w, ok := want[s.name]; ok {
			assert.Equal(t, w, s.run(t, like), s.name)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		b := &base{answers: []answer{status(503, "Retry-After", "86400"), status(200)}}
		send(like.sender(b, 0), newRequest(t.Context(), "GET"))
		require.Len(t, b.times, 2)
		assert.GreaterOrEqual(t, b.times[1].Sub(b.times[0]), 24*time.Hour)
	})
}
