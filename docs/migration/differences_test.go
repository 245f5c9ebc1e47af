package migration_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDifferences checks each cell of the guide's table of differences.
func TestDifferences(t *testing.T) {
	var names []string
	for _, l := range libraries() {
		names = append(names, l.name)
	}
	rows := tableAfter(t, "../migration.md", "| | "+strings.Join(names, " | ")+" |")
	all := situations()
	require.Len(t, rows, len(all))
	for i, row := range rows {
		require.Len(t, row, 1+len(libraries()))
		require.Equal(t, all[i].name, strings.ReplaceAll(row[0], "`", ""))
		for j, l := range libraries() {
			if cell := row[1+j]; cell != "your code" {
				synctest.Test(t, func(t *testing.T) {
					assert.Equal(t, cell, all[i].happens(l), "%s: %s", row[0], l.name)
				})
			}
		}
	}
}

// A situation is a test of a library. Its function returns the library's
// behavior.
type situation struct {
	name    string
	happens func(library) string
}

func situations() []situation {
	return []situation{
		{"GET, unknown host: requests", requests("GET", fails(unknownHost()))},
		{"GET, 429, then 200: requests", requests("GET", status(429), status(200))},
		{"wait after Retry-After: a date in 20 s", func(l library) string {
			at := time.Now().UTC().Add(20 * time.Second)
			b := &base{answers: []answer{status(503, "Retry-After", at.Format(http.TimeFormat)), status(200)}}
			send(l.sender(b, 0), newRequest(context.Background(), "GET"))
			return b.firstWait(20 * time.Second)
		}},
		{"client's Timeout 1.5 s; 503, 503, 200", func(l library) string {
			return result(l, context.Background(), 3*time.Second/2, status(503), status(503), status(200))
		}},
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
	return got + ", " + time.Since(start).String()
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestOldPolicy checks that the guide's policy brings the old behavior back.
func TestOldPolicy(t *testing.T) {
	old := with(oldPolicy())
	synctest.Test(t, func(t *testing.T) {
		assert.Equal(t, "4", requests("POST", status(503))(old))
		assert.Equal(t, "4", requests("POST", fails(reset()))(old))

		b := &base{answers: []answer{status(503)}}
		s := old.sender(b, 0)
		for range 1000 {
			send(s, newRequest(t.Context(), "GET"))
		}
		assert.Len(t, b.times, 4000, "each GET of an outage")

		b = &base{answers: []answer{status(503)}}
		req := newRequest(t.Context(), "PUT")
		req.Body = io.NopCloser(bytes.NewReader(make([]byte, 1<<20)))
		send(old.sender(b, 0), req)
		assert.Len(t, b.times, 4, "a long upload without GetBody")

		b = &base{answers: []answer{status(503, "Retry-After", "86400"), status(200)}}
		send(old.sender(b, 0), newRequest(t.Context(), "GET"))
		require.Len(t, b.times, 2)
		assert.GreaterOrEqual(t, b.times[1].Sub(b.times[0]), 24*time.Hour)
	})
}
