package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/examples/internal/frametest"
)

// launch runs the program and fails the test if it leaves a goroutine behind.
func launch(
	t *testing.T, ctx context.Context, stdout io.Writer, args ...string) (code int, stderr string) {
	t.Helper()
	var errs bytes.Buffer
	frametest.LeavesNothing(t, func() { code = program.Run(ctx, args, stdout, &errs) })
	return code, errs.String()
}

func TestRetriesAddUp(t *testing.T) {
	var outputs [2]bytes.Buffer
	for i := range outputs {
		code, stderr := launch(t, t.Context(), &outputs[i])
		require.Equal(t, 0, code, "%s%s", outputs[i].String(), stderr)
		assert.Empty(t, stderr)
	}
	stdout := outputs[0].String()
	assert.Equal(t, stdout, outputs[1].String(), "the output depends on chance")

	for _, line := range []string{
		`3 services
  without Middleware +27 +1 → 3 → 9 → 27
  with Middleware +7 +1 → 3 → 5 → 7
5 services
  without Middleware +243 +1 → 3 → 9 → 27 → 81 → 243
  with Middleware +11 +1 → 3 → 5 → 7 → 9 → 11
`,
		`fails only once:
200 after 2 calls without Middleware, 200 after 2 calls with it\.`,
	} {
		assert.Regexp(t, line, stdout)
	}
	for line := range strings.Lines(stdout) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
	}
	assert.LessOrEqual(t, strings.Count(stdout, "\n"), 24, "more than a screen")
}

func TestUnexpectedNumbersAreAnError(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*experiment)
		want   string
	}{
		{"multiplying", func(e *experiment) { e.wrap = without },
			"3 services with Middleware: got status 502 and 1 → 3 → 9 → 27 requests, " +
				"expected 502 and 1 → 3 → 5 → 7"},
		{"a last server that recovers", func(e *experiment) { e.failures = 2 },
			"3 services with Middleware: got status 200 and 1 → 1 → 1 → 3 requests, " +
				"expected 502 and 1 → 3 → 5 → 7"},
	} {
		for _, control := range []bool{false, true} {
			e := outages()[1]
			c.change(&e)
			table, recovered := []experiment{e}, []experiment(nil)
			if control {
				table, recovered = nil, table
			}
			frametest.LeavesNothing(t, func() {
				err := show(t.Context(), io.Discard, table, recovered)
				assert.EqualError(t, err, c.want, c.name)
			})
		}
	}
}

// 121 requests reach the five services, 80 of them retries. If retries did not
// keep their connections, each would have its own. On a busy machine, a few
// responses arrive too late to be drained, which costs their connections.
func TestConnectionsAreKept(t *testing.T) {
	var mu sync.Mutex
	clients := make(map[string]map[string]bool) // by server
	e := outages()[2]
	e.wrap = func(handler http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			if clients[r.Host] == nil {
				clients[r.Host] = make(map[string]bool)
			}
			clients[r.Host][r.RemoteAddr] = true
			mu.Unlock()
			handler.ServeHTTP(w, r)
		})
	}
	_, _, err := e.run(t.Context())
	require.NoError(t, err)
	assert.Len(t, clients, 5)
	connections := 0
	for _, addrs := range clients {
		connections += len(addrs)
	}
	assert.LessOrEqual(t, connections, 20)
}

func TestArgumentsAreRefused(t *testing.T) {
	for _, args := range [][]string{{"5"}, {"-n", "5"}} {
		var stdout bytes.Buffer
		code, stderr := launch(t, t.Context(), &stdout, args...)
		assert.Equal(t, 2, code)
		assert.Empty(t, stdout.String())
		assert.Contains(t, stderr, "chain -h for help")
	}
	var stdout bytes.Buffer
	code, stderr := launch(t, t.Context(), &stdout, "-h")
	assert.Equal(t, 0, code)
	assert.Contains(t, stdout.String(), "Usage:")
	assert.Empty(t, stderr)
}

// tripwire cancels a context as soon as a text was printed.
type tripwire struct {
	bytes.Buffer
	text   string
	cancel context.CancelFunc
}

func (w *tripwire) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if strings.Contains(w.String(), w.text) {
		w.cancel()
	}
	return n, err
}

func TestInterrupted(t *testing.T) {
	for _, c := range []struct{ name, when, last string }{
		{"before it begins", "", "LAST SERVER"},
		{"during the table", "1 → 3 → 5 → 7\n", "1 → 3 → 5 → 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stdout := &tripwire{text: c.when, cancel: cancel}
			if c.when == "" {
				cancel()
			}
			code, stderr := launch(t, ctx, stdout)
			assert.Equal(t, 130, code)
			assert.Empty(t, stderr)
			assert.Regexp(t, c.last+`.*\nInterrupted\.\n$`, stdout.String())
		})
	}
}

// The request is canceled when it has reached the last service, which the
// others wait for.
func TestInterruptedRequest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e := outages()[0]
	services, reached := 0, 0
	e.wrap = func(handler http.Handler) http.Handler {
		if services++; services > 1 { // the last service is created first
			return handler
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			reached++
			cancel()
			<-r.Context().Done() // canceled through all services
			handler.ServeHTTP(w, r)
		})
	}
	frametest.LeavesNothing(t, func() {
		_, _, err := e.run(ctx)
		assert.ErrorIs(t, err, context.Canceled)
	})
	assert.Equal(t, 1, reached)
}
