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
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// An issue is a row of the guide's table of issues of go-retryablehttp. Its
// functions return the behavior of both libraries in the row's situation.
type issue struct {
	numbers      string
	ours, theirs func() string
}

// TestIssues checks each cell of the table of issues.
func TestIssues(t *testing.T) {
	all := issues()
	rows := tableAfter(t, "../migration.md", "| issue | situation | httpretry | retryablehttp |")
	require.Len(t, rows, len(all))
	for i, row := range rows {
		numbers, _, _ := strings.Cut(row[0], ":")
		require.Equal(t, all[i].numbers, numbers)
		for j, happens := range []func() string{all[i].ours, all[i].theirs} {
			synctest.Test(t, func(t *testing.T) { assert.Equal(t, row[2+j], happens(), row[0]) })
		}
	}
}

func issues() []issue {
	always503 := func(l library) func() string {
		return func() string { return result(l, context.Background(), 0, status(503)) }
	}
	var logged strings.Builder
	return []issue{
		{"236",
			always503(with(httpretry.Policy{
				MaxAttempts: 100, MaxElapsed: 5 * time.Second, Budget: httpretry.Unlimited{},
			})),
			always503(changed(func(c *retryablehttp.Client) { c.RetryMax = 99 }))},
		{"96",
			slowBody(with(httpretry.Policy{AttemptTimeout: time.Second})),
			slowBody(changed(func(c *retryablehttp.Client) { c.HTTPClient.Timeout = time.Second }))},
		{"256",
			firstWaits(configured(func(*httpretry.Config) {})),
			firstWaits(changed(func(*retryablehttp.Client) {}))},
		{"215",
			waitInBody(configured(func(c *httpretry.Config) { c.Base = retryAfterOfBody{c.Base} })),
			waitInBody(changed(func(c *retryablehttp.Client) { c.Backoff = backoffOfBody }))},
		{"31, 68, 154",
			lines(&logged, configured(func(c *httpretry.Config) {
				c.Observe = httpretry.LogEvents(slog.New(slog.NewTextHandler(&logged, nil)))
			})),
			lines(&logged, changed(func(c *retryablehttp.Client) { c.Logger = log.New(&logged, "", 0) }))},
	}
}

// configured is httpretry with its default policy.
func configured(change func(*httpretry.Config)) library {
	return library{"httpretry", func(base http.RoundTripper, _ time.Duration) sender {
		cfg := httpretry.Config{Base: base}
		change(&cfg)
		transport, err := httpretry.New(cfg)
		if err != nil {
			panic(err)
		}
		return transport.RoundTrip
	}}
}

// slowBody returns how much of a body that takes ten seconds can be read.
func slowBody(l library) func() string {
	return func() string {
		resp, err := l.sender(roundTripFunc(dripping), 0)(newRequest(context.Background(), "GET"))
		if err != nil {
			return "error"
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body) // the timeout is an error here
		return fmt.Sprintf("%d of 10 bytes", len(body))
	}
}

// firstWaits counts the different waits of 100 clients before their first
// retry.
func firstWaits(l library) func() string {
	return func() string {
		waits := map[string]bool{}
		for range 100 {
			b := &base{answers: []answer{status(503), status(200)}}
			send(l.sender(b, 0), newRequest(context.Background(), "GET"))
			waits[b.firstWait(0)] = true
		}
		return fmt.Sprint(len(waits), " different")
	}
}

// waitInBody answers 429 with a wait in its body, which cannot be read after
// Close, and then 200.
func waitInBody(l library) func() string {
	return func() string {
		b := &base{answers: []answer{func(req *http.Request) (*http.Response, error) {
			resp, err := status(429)(req)
			resp.Body = &closable{Reader: strings.NewReader(`{"retry_after": 8}`)}
			return resp, err
		}, status(200)}}
		got := send(l.sender(b, 0), newRequest(context.Background(), "GET"))
		return got + " after " + b.firstWait(8*time.Second)
	}
}

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

// waitOfBody returns the seconds that a body asks for, or 0.
func waitOfBody(body []byte) int {
	var limit struct {
		RetryAfter int `json:"retry_after"`
	}
	if json.Unmarshal(body, &limit) != nil {
		return 0
	}
	return limit.RetryAfter
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
	if seconds := waitOfBody(body); seconds > 0 {
		resp.Header.Set("Retry-After", strconv.Itoa(seconds))
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// backoffOfBody would do the same, but the body is closed.
func backoffOfBody(least, _ time.Duration, _ int, resp *http.Response) time.Duration {
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return least
	}
	return time.Duration(waitOfBody(body)) * time.Second
}

// lines counts the lines in the log of a GET that succeeds.
func lines(logged *strings.Builder, l library) func() string {
	return func() string {
		logged.Reset()
		send(l.sender(&base{answers: []answer{status(200)}}, 0), newRequest(context.Background(), "GET"))
		if n := strings.Count(logged.String(), "\n"); n != 1 {
			return fmt.Sprint(n, " lines")
		}
		return "1 line"
	}
}
