package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/bench/internal/child"
	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

// transportFunc is a client of which the test knows what is wrong.
type transportFunc func(req *http.Request, base http.RoundTripper) (*http.Response, error)

// peer returns a peer that calls f for each request.
func (f transportFunc) peer() peers.Peer {
	return peers.Peer{RoundTripper: func(o peers.Options) http.RoundTripper {
		return roundTripFunc(func(req *http.Request) (*http.Response, error) { return f(req, o.Base) })
	}}
}

func send(req *http.Request, base http.RoundTripper) (*http.Response, error) {
	return base.RoundTrip(req)
}

// again sends req with a new body.
func again(req *http.Request, base http.RoundTripper) (*http.Response, error) {
	if req.GetBody != nil {
		req.Body, _ = req.GetBody()
	}
	return base.RoundTrip(req)
}

// after503 does something with the response that is a 503, and calls next.
func after503(do func(*http.Response), next transportFunc) transportFunc {
	return func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
		resp, err := base.RoundTrip(req)
		if err != nil || resp.StatusCode == http.StatusOK {
			return resp, err
		}
		do(resp)
		return next(req, base)
	}
}

func leave(*http.Response)          {}
func closeBody(resp *http.Response) { resp.Body.Close() }
func drain(resp *http.Response)     { discard(resp, nil) }

// twoMore sends req two times.
func twoMore(req *http.Request, base http.RoundTripper) (*http.Response, error) {
	discard(again(req, base))
	return again(req, base)
}

// changed changes a copy of the request for next.
func changed(change func(*http.Request), next transportFunc) transportFunc {
	return func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
		req = req.Clone(req.Context())
		change(req)
		return next(req, base)
	}
}

func neverClosed(req *http.Request) { req.Body = io.NopCloser(req.Body) }

// cutOff cuts off the response of next.
func cutOff(next transportFunc) transportFunc {
	return func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
		resp, err := next(req, base)
		if err == nil {
			resp.Body = body{io.LimitReader(resp.Body, 10), resp.Body}
		}
		return resp, err
	}
}

type body struct {
	io.Reader
	io.Closer
}

// The checks notice each flaw that a client can have.
func TestChecks(t *testing.T) {
	keyed := row{method: "POST", keyed: true, size: 32}
	keyless := row{method: "POST", size: 32, unsafe: true}
	retry := after503(drain, again)
	for _, tt := range []struct {
		name string
		row  row
		do   transportFunc
		want []string
	}{
		{"no flaw", keyed, retry, nil},
		{"no retry", keyed, send, []string{"does not retry after a 503"}},
		{"no retry of an unsafe request", keyless, send, nil},
		{"a retry of an unsafe request", keyless, retry, []string{"sends it twice after a 503"}},
		{"three attempts", keyed, after503(drain, twoMore), []string{"after a 503: 3.00 attempts"}},
		{"a body that is not closed", keyed, after503(leave, again),
			[]string{"after a 503: does not close the 503's body"}},
		{"a body that is not drained", keyed, after503(closeBody, again),
			[]string{"after a 503: does not drain the 503's body"}},
		{"an empty body on the retry", keyed, after503(drain, send),
			[]string{"after a 503: 50 %: does not send the whole body"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			problems, _ := tt.row.probe(tt.do.peer(), levels()[1])
			assert.Equal(t, tt.want, problems)
		})
	}
}

// The checks of measured requests notice flaws in a success, too.
func TestChecksOfSuccess(t *testing.T) {
	r := row{method: "PUT", size: 32, streamed: true}
	for _, tt := range []struct {
		name string
		do   transportFunc
		want []string
	}{
		{"no flaw", send, nil},
		{"a stream that is not closed", changed(neverClosed, send),
			[]string{"does not close the request's body"}},
		{"a response that is cut off", cutOff(send),
			[]string{"10 of 64 bytes of the response: EOF"}},
		{"an error", func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
			_, _ = base.RoundTrip(req)
			return nil, io.ErrUnexpectedEOF
		}, []string{"fails: unexpected EOF"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := r.newCaller(tt.do.peer(), levels()[1], 0, false)
			c.send(4)
			assert.Equal(t, tt.want, c.check(1))
		})
	}
}

// client returns a peer whose New is f below an http.Client.
func (f transportFunc) client() peers.Peer {
	p := f.peer()
	p.Name = "flawed"
	p.New = func(o peers.Options) peers.Client { return &http.Client{Transport: p.RoundTripper(o)} }
	return p
}

// A failure of a table is one of httpretry.
func TestProblems(t *testing.T) {
	all := table{title: "T"}
	for _, name := range []string{ours, ours + ", more", naive} {
		all.add(name, nil, []string{"x", "y"})
	}
	all.add(ours, []string{"1 ns"}, nil)
	assert.Equal(t, []string{"T: httpretry: x", "T: httpretry: y", "T: httpretry, more: x", "T: httpretry, more: y"}, all.failures)
	assert.Equal(t, [][]string{{ours, "x; y"}, {ours + ", more", "x; y"}, {naive, "x; y"}, {ours, "1 ns", "ok"}}, all.rows)
}

// The README has all tables, in the order in which they are measured.
func TestReadmeHasAllTables(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	var want, got []string
	for _, r := range rows() {
		want = append(want, r.title)
	}
	for _, r := range loopbackRows() {
		want = append(want, r.title)
	}
	for _, e := range entries() {
		want = append(want, e.title)
	}
	for line := range strings.Lines(string(text)) {
		if title, found := strings.CutPrefix(line, "### "); found {
			got = append(got, strings.TrimSpace(title))
		}
	}
	assert.Equal(t, want, got)
}

// discard drains and closes the body of a response.
func discard(resp *http.Response, err error) {
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// twice is a loop that sends each request again after a 503, with body as its
// content.
func twice(body string) transportFunc {
	return after503(drain, changed(func(req *http.Request) {
		if req.Body != nil {
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		}
	}, send))
}

func newServer(t *testing.T) *child.Server {
	s := httptest.NewServer(newHandler())
	t.Cleanup(s.Close)
	return &child.Server{URL: s.URL}
}

// The checks of requests over loopback notice each flaw that a client can have.
func TestChecksOverLoopback(t *testing.T) {
	rows := loopbackRows()
	gets, keyless, streams := rows[0], rows[2], rows[3]
	keyless.size, streams.size = 1<<10, 1<<10
	content := uploadContent(1 << 10)
	for _, tt := range []struct {
		name string
		row  loopbackRow
		do   transportFunc
		want []string
	}{
		{"no flaw in a GET", gets, twice(""), nil},
		{"no retry of a GET", gets, send, []string{"10 %: no status 200", "1.000 attempts"}},
		{"a GET that is sent twice", gets, twoMore, []string{"2.000 attempts"}},
		{"a connection that is not used again", rows[1], after503(closeBody, send),
			[]string{needsConnections}},
		{"a response that is cut off", gets, cutOff(twice("")),
			[]string{"response body not whole", needsConnections}},
		{"no flaw in a POST without a key", keyless, send, nil},
		{"a POST without a key that is sent twice", keyless, twice(content), []string{"sends it twice after a 503"}},
		{"no flaw in a stream", streams, twice(content), nil},
		{"no retry of a stream", streams, send, []string{"does not retry after a 503"}},
		{"an empty body on the retry", streams, twice(""), []string{"after a 503: does not send the whole body"}},
		{"a wrong body", streams, changed(func(req *http.Request) {
			req.Body = body{io.MultiReader(strings.NewReader("wrong"), req.Body), req.Body}
			req.ContentLength += 5
		}, twice(content)), []string{"does not send the whole body"}},
		{"a stream that is not closed", streams, changed(neverClosed, twice(content)),
			[]string{"does not close the request's body"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := newLoopback(newServer(t), tt.do.client(), tt.row)
			require.NoError(t, err)
			l.send(200)
			got := l.check()
			// On a busy machine, net/http makes a few by itself.
			if !slices.Contains(tt.want, needsConnections) {
				got = slices.DeleteFunc(got, func(problem string) bool { return problem == needsConnections })
			}
			assert.ElementsMatch(t, tt.want, got)
		})
	}
}

// A client that does not close responses does not use up the sockets.
func TestLostConnectionsAreClosed(t *testing.T) {
	var open atomic.Int64
	s := httptest.NewUnstartedServer(newHandler())
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	leaking := after503(leave, send).client()
	l, err := newLoopback(&child.Server{URL: s.URL}, leaking, loopbackRows()[1])
	require.NoError(t, err)
	for range 3 {
		l.send(300)
		require.Greater(t, open.Load(), int64(4*clients))
		l.closeLost()
	}
	assert.Eventually(t, func() bool { return open.Load() < 3*clients }, 10*time.Second, time.Millisecond)
	// The next requests succeed.
	l.send(200)
	assert.Equal(t, []string{needsConnections}, l.check())
}

// The check of a retry after a body that stalls notices a retry that is too
// early, one too many, and none.
func TestChecksOfStalling(t *testing.T) {
	wait := func(resp *http.Response) {
		closeBody(resp)
		time.Sleep(stallingWait)
	}
	for _, tt := range []struct {
		name string
		do   transportFunc
		want string
	}{
		{"no flaw", after503(wait, send), ""},
		{"no retry", send, "does not retry after a 503"},
		{"no wait", after503(closeBody, send), "retries after "},
		{"two retries", after503(wait, twoMore), "3.00 attempts"},
		{"a wait for the body", twice(""), "waits for the body, for more than 2s"},
		{"an error", func(*http.Request, http.RoundTripper) (*http.Response, error) {
			return nil, io.ErrUnexpectedEOF
		}, "fails: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStalling(newServer(t), tt.do.client())
			s.measure()
			if tt.want == "" {
				assert.Empty(t, s.problems)
				assert.Len(t, s.retried, 1)
				return
			}
			require.Len(t, s.problems, 1)
			assert.Contains(t, s.problems[0], tt.want)
			assert.Empty(t, s.retried)
		})
	}
}

// A crowd whose requests do not wait, or lose their bodies, is not measured.
func TestChecksOfWaiting(t *testing.T) {
	row := waitingRows()[1]
	wait := func(req *http.Request, base http.RoundTripper) (*http.Response, error) {
		discard(base.RoundTrip(req))
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	for _, tt := range []struct {
		name, want string
		do         transportFunc
	}{
		{"no flaw", "", wait},
		{"no wait", "20 of 20 requests do not wait", send},
		{"an empty body", "20 of 20 requests do not send the whole body",
			changed(func(r *http.Request) { r.Body, r.ContentLength = http.NoBody, 0 }, wait)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, c := range []*crowd{newLocalCrowd(tt.do.client(), row), newCrowd(newServer(t), tt.do.client(), row)} {
				_, err := c.measure(20)
				if tt.want == "" {
					assert.NoError(t, err)
				} else {
					assert.ErrorContains(t, err, tt.want)
				}
			}
		})
	}
}
