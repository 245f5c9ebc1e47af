package migration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// A wish is a row of switching.md. Its functions return the behavior of both
// libraries in the row's situation. A nil function is a cell that is not run.
type wish struct {
	issues       string // the numbers of issues of go-retryablehttp
	ours, theirs func() string
	network      bool // with a real server, and so outside of a synctest bubble
}

// TestSwitching checks each cell of switching.md that describes a behavior, and
// that the page has a row for each wish and no other.
func TestSwitching(t *testing.T) {
	text, err := os.ReadFile("../switching.md")
	require.NoError(t, err)
	rows, link := map[string][]string{}, regexp.MustCompile(`\[#(\d+)\]\(\S+/(\d+)\)`)
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		var issues []string
		for _, found := range link.FindAllStringSubmatch(cells[0], -1) {
			assert.Equal(t, found[1], found[2], "a link to another issue")
			issues = append(issues, found[1])
		}
		if strings.HasPrefix(line, "| [#") && assert.Len(t, cells, 4, line) {
			rows[strings.Join(issues, ", ")] = cells[2:]
		}
	}
	for _, w := range wishes() {
		t.Run(w.issues, func(t *testing.T) {
			cells := rows[w.issues]
			delete(rows, w.issues)
			require.Len(t, cells, 2, "want a row in switching.md")
			for i, happens := range []func() string{w.ours, w.theirs} {
				got := "–"
				switch {
				case happens == nil:
				case w.network:
					got = happens()
				default:
					synctest.Test(t, func(*testing.T) { got = happens() })
				}
				assert.Equal(t, cells[i], got, []string{"httpretry", "go-retryablehttp"}[i])
			}
		})
	}
	assert.Empty(t, rows, "rows of switching.md that no test runs")
}

func wishes() []wish {
	return []wish{
		{issues: "236", ours: func() string {
			return fate(with(httpretry.Policy{MaxAttempts: 100, MaxElapsed: 5 * time.Second}), nil, status(503))
		}, theirs: func() string {
			return fate(changed(func(c *retryablehttp.Client) { c.RetryMax = 99 }), nil, status(503))
		}},
		{issues: "272, 129", ours: beforeDeadline(with(httpretry.Policy{})), theirs: beforeDeadline(unchanged)},
		{issues: "247, 295", ours: longRetryAfter(with(httpretry.Policy{})), theirs: longRetryAfter(unchanged)},
		{issues: "20, 99", ours: tooMany(with(httpretry.Policy{})), theirs: tooMany(unchanged)},
		{issues: "127, 167, 61", ours: hangsOnce(with(timeoutOfASecond())), theirs: hangsOnce(withTimeout)},
		{issues: "96", ours: slowBody(with(timeoutOfASecond())), theirs: slowBody(withTimeout)},
		{issues: "256", ours: firstWaits(jittered), theirs: firstWaits(unchanged)},
		{issues: "46, 212", ours: lastBody(with(httpretry.Policy{})), theirs: lastBody(unchanged)},
		{issues: "159", ours: attemptsKnown},
		{issues: "235", ours: elapsedKnown},
		{issues: "169", ours: posts(with(httpretry.Policy{})), theirs: posts(unchanged)},
		{issues: "176", network: true, ours: untrusted(with(httpretry.Policy{})), theirs: untrusted(unchanged)},
		{issues: "104", ours: policyOfARequest},
		{issues: "118", ours: onceMore},
		{issues: "215", ours: waitInBody, theirs: bodyInBackoff},
		{issues: "145, 244", ours: reads(with(httpretry.Policy{})), theirs: reads(unchanged)},
		{issues: "31, 68, 154", ours: func() string { return lines(logOf(status(200))) },
			theirs: func() string { return lines(theirLogOf(status(200))) }},
		{issues: "206, 41", ours: func() string { return secretIn(logOf(status(503), status(200))) },
			theirs: func() string { return secretIn(theirLogOf(status(503), status(200))) }},
		{issues: "237, 98", ours: closesIdle(with(httpretry.Policy{})), theirs: closesIdle(unchanged)},
	}
}

// A maker makes a sender that sends with base.
type maker func(base http.RoundTripper) sender

// with is httpretry with a policy. The waits are a second each, and no budget
// ends a request.
func with(p httpretry.Policy) maker {
	p.Budget = httpretry.Unlimited{}
	return func(base http.RoundTripper) sender { return policySender(base, 0, p) }
}

// changed is retryablehttp, with waits of a second.
func changed(change func(*retryablehttp.Client)) maker {
	return func(base http.RoundTripper) sender {
		client := retryablehttp.NewClient()
		client.HTTPClient = &http.Client{Transport: base}
		client.RetryMax, client.RetryWaitMax, client.Logger = 2, time.Second, nil
		change(client)
		return func(req *http.Request) (*http.Response, error) {
			wrapped, err := retryablehttp.FromRequest(req)
			if err != nil {
				return nil, err
			}
			return client.Do(wrapped)
		}
	}
}

func unchanged(base http.RoundTripper) sender {
	return changed(func(*retryablehttp.Client) {})(base)
}

func timeoutOfASecond() httpretry.Policy { return httpretry.Policy{AttemptTimeout: time.Second} }

func withTimeout(base http.RoundTripper) sender {
	return changed(func(c *retryablehttp.Client) { c.HTTPClient.Timeout = time.Second })(base)
}

// fate describes what the caller of a GET gets and when.
func fate(of maker, ctx context.Context, answers ...answer) string {
	if ctx == nil {
		ctx = context.Background()
	}
	start := time.Now()
	got := send(of(&base{answers: answers}), newRequest(ctx, "GET"))
	return got + " after " + short(time.Since(start))
}

// beforeDeadline has a deadline before the end of the first wait.
func beforeDeadline(of maker) func() string {
	return func() string {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
		defer cancel()
		return fate(of, ctx, status(503))
	}
}

func longRetryAfter(of maker) func() string {
	return func() string { return fate(of, nil, status(429, "Retry-After", "3600"), status(200)) }
}

// tooMany rounds the wait down, because httpretry spreads clients over a
// quarter of it.
func tooMany(of maker) func() string {
	return func() string {
		b := &base{answers: []answer{status(429, "Retry-After", "4"), status(200)}}
		got := send(of(b), newRequest(context.Background(), "GET"))
		return fmt.Sprintf("%s after %s", got, b.times[1].Sub(b.times[0]).Truncate(4*time.Second))
	}
}

// hangsOnce does not answer the first attempt.
func hangsOnce(of maker) func() string {
	hang := func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	return func() string { return fate(of, nil, hang, status(200)) }
}

// slowBody answers at once, and has a body that takes ten seconds.
func slowBody(of maker) func() string {
	slow := func(req *http.Request) (*http.Response, error) {
		resp, err := status(200)(req)
		ctx, cancel := context.WithCancel(req.Context())
		resp.ContentLength, resp.Body = 10, &drip{ctx: ctx, cancel: cancel, left: 10}
		return resp, err
	}
	return func() string {
		resp, err := of(roundTripFunc(slow))(newRequest(context.Background(), "GET"))
		if err != nil {
			return "error"
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return fmt.Sprintf("%d of 10 bytes", len(body))
		}
		return fmt.Sprintf("all %d bytes", len(body))
	}
}

// firstWaits counts the different waits of 100 clients before their first
// retry.
func firstWaits(of maker) func() string {
	return func() string {
		waits := map[time.Duration]bool{}
		for range 100 {
			b := &base{answers: []answer{status(503), status(200)}}
			send(of(b), newRequest(context.Background(), "GET"))
			waits[b.times[1].Sub(b.times[0])] = true
		}
		return fmt.Sprint(len(waits), " different")
	}
}

// jittered is httpretry with its default backoff.
func jittered(base http.RoundTripper) sender {
	transport, err := httpretry.New(httpretry.Config{Base: base})
	if err != nil {
		panic(err)
	}
	return transport.RoundTrip
}

// lastBody reads the body of the last response.
func lastBody(of maker) func() string {
	fails := func(req *http.Request) (*http.Response, error) {
		resp, err := status(503)(req)
		resp.Body = io.NopCloser(strings.NewReader("maintenance"))
		return resp, err
	}
	return func() string {
		resp, err := of(roundTripFunc(fails))(newRequest(context.Background(), "GET"))
		if err != nil {
			return "error"
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return "no body"
		}
		return fmt.Sprint(resp.StatusCode, ", body readable: ", len(body) > 0)
	}
}

func attemptsKnown() string {
	resp, err := with(httpretry.Policy{})(&base{answers: []answer{status(503), status(200)}})(
		newRequest(context.Background(), "GET"))
	if err != nil {
		return "error"
	}
	defer resp.Body.Close()
	attempts, reason := httpretry.Result(resp)
	return fmt.Sprint(attempts, " attempts, ", reason)
}

func elapsedKnown() string {
	var got []string
	transport, err := httpretry.New(httpretry.Config{
		Base:    &base{answers: []answer{status(503), status(200)}},
		Policy:  httpretry.Policy{Backoff: strategies.Constant{Wait: time.Second}},
		Observe: func(_ context.Context, e httpretry.Event) { got = append(got, e.Elapsed.String()) },
	})
	if err != nil {
		panic(err)
	}
	send(transport.RoundTrip, newRequest(context.Background(), "GET"))
	return strings.Join(got, ", ")
}

func posts(of maker) func() string {
	return func() string {
		b := &base{answers: []answer{status(503)}}
		send(of(b), newRequest(context.Background(), "POST"))
		return fmt.Sprintf("sent %d×", len(b.times))
	}
}

// untrusted counts the connections to a server with an unknown certificate.
func untrusted(of maker) func() string {
	return func() string {
		server := httptest.NewUnstartedServer(nil)
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.StartTLS()
		defer server.Close()
		var attempts atomic.Int64
		transport := http.DefaultTransport.(*http.Transport).Clone()
		defer transport.CloseIdleConnections()
		counting := roundTripFunc(func(req *http.Request) (*http.Response, error) {
			attempts.Add(1)
			return transport.RoundTrip(req)
		})
		req, err := http.NewRequest("GET", server.URL, nil)
		if err != nil {
			panic(err)
		}
		send(of(counting), req)
		return fmt.Sprintf("sent %d×", attempts.Load())
	}
}

func policyOfARequest() string {
	var sent []string
	for _, ctx := range []context.Context{
		context.Background(),
		httpretry.WithoutRetries(context.Background()),
		httpretry.WithPolicyFunc(context.Background(), func(p httpretry.Policy) httpretry.Policy {
			p.MaxAttempts = 5
			return p
		}),
	} {
		b := &base{answers: []answer{status(503)}}
		send(with(httpretry.Policy{})(b), newRequest(ctx, "GET"))
		sent = append(sent, strconv.Itoa(len(b.times)))
	}
	return "sent " + strings.Join(sent, "×, ") + "×"
}

// onceMore retries a 401 after the first attempt only.
func onceMore() string {
	b := &base{answers: []answer{status(401)}}
	send(with(httpretry.Policy{
		MaxAttempts: 5,
		Classify: func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
			if resp != nil && resp.StatusCode == http.StatusUnauthorized && httpretry.Attempt(req.Context()) == 1 {
				return httpretry.Transient
			}
			return httpretry.Classify(req, resp, err)
		},
	})(b), newRequest(context.Background(), "GET"))
	return fmt.Sprintf("sent %d×", len(b.times))
}

// asksInBody answers 429 with a wait in its body, and then 200.
func asksInBody() *base {
	return &base{answers: []answer{func(req *http.Request) (*http.Response, error) {
		resp, err := status(429)(req)
		resp.Body = &closable{Reader: strings.NewReader(`{"retry_after": 8}`)}
		return resp, err
	}, status(200)}}
}

// closable is a body that cannot be read after Close.
type closable struct {
	io.Reader
	closed bool
}

func (c *closable) Read(p []byte) (int, error) {
	if c.closed {
		return 0, errors.New("the body is closed")
	}
	return c.Reader.Read(p)
}

func (c *closable) Close() error {
	c.closed = true
	return nil
}

// retryAfterOfBody is a layer in Base.
type retryAfterOfBody struct{ next http.RoundTripper }

func (l retryAfterOfBody) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests {
		return resp, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(http.MaxBytesReader(nil, resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	var limit struct {
		RetryAfter int `json:"retry_after"`
	}
	if json.Unmarshal(body, &limit) == nil && limit.RetryAfter > 0 {
		resp.Header.Set("Retry-After", strconv.Itoa(limit.RetryAfter))
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

func waitInBody() string {
	b := asksInBody()
	got := send(with(httpretry.Policy{})(retryAfterOfBody{b}), newRequest(context.Background(), "GET"))
	return fmt.Sprintf("%s after %s", got, b.times[1].Sub(b.times[0]).Truncate(4*time.Second))
}

func bodyInBackoff() string {
	got := ""
	send(changed(func(c *retryablehttp.Client) {
		c.Backoff = func(_, wait time.Duration, _ int, resp *http.Response) time.Duration {
			_, err := io.ReadAll(resp.Body)
			got = fmt.Sprint(err)
			return wait
		}
	})(asksInBody()), newRequest(context.Background(), "GET"))
	return got
}

func reads(of maker) func() string {
	return func() string {
		return readAhead(library{sender: func(base http.RoundTripper, _ time.Duration) sender { return of(base) }})
	}
}

// logOf returns the log of a GET whose URL has a secret.
func logOf(answers ...answer) string {
	var logged strings.Builder
	transport, err := httpretry.New(httpretry.Config{
		Base:    &base{answers: answers},
		Observe: httpretry.LogEvents(slog.New(slog.NewTextHandler(&logged, nil))),
	})
	if err != nil {
		panic(err)
	}
	send(transport.RoundTrip, secretRequest())
	return logged.String()
}

func theirLogOf(answers ...answer) string {
	var logged strings.Builder
	send(changed(func(c *retryablehttp.Client) {
		c.Logger = log.New(&logged, "", 0) // the default writes to standard error
	})(&base{answers: answers}), secretRequest())
	return logged.String()
}

func secretRequest() *http.Request {
	req := newRequest(context.Background(), "GET")
	req.URL.RawQuery = "token=secret"
	return req
}

// lines counts the lines of a log.
func lines(logged string) string {
	if n := strings.Count(logged, "\n"); n != 1 {
		return fmt.Sprint(n, " lines")
	}
	return "1 line"
}

func secretIn(logged string) string {
	if strings.Contains(logged, "secret") {
		return "in the log"
	}
	return "not in the log, of " + lines(logged)
}

// closesIdle counts the calls of CloseIdleConnections of a request that gives
// up. It closes the idle connections to all hosts.
func closesIdle(of maker) func() string {
	return func() string {
		base := &closes{RoundTripper: &base{answers: []answer{status(503)}}}
		send(of(base), newRequest(context.Background(), "GET"))
		return fmt.Sprintf("closed %d×", base.n)
	}
}
