package redisbudget_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/redisbudget"
	"github.com/seed421102f4/httpretry/strategies"
)

// patient is a timeout that ends no test on a busy machine.
const patient = 4 * time.Second

// year is a Window of which no slot ends during a test.
const year = 365 * 24 * time.Hour

// quiet is the Config of a Budget that seldom sends a report.
var quiet = redisbudget.Config{Window: year, FlushInterval: time.Minute}

func newBudget(t testing.TB, cfg redisbudget.Config) *redisbudget.Budget {
	t.Helper()
	b, err := redisbudget.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() }) // tests that look at its error close it before
	return b
}

// closing closes c at the end of the test.
func closing[C io.Closer](t testing.TB, c C) C {
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

func newClient(t testing.TB, addr string) *redis.Client {
	return closing(t, redis.NewClient(&redis.Options{Addr: addr}))
}

// newTransport returns a transport with the budget b and retries after a
// millisecond.
func newTransport(
	t testing.TB, b httpretry.Budget, base http.RoundTripper,
) *httpretry.RetryTransport {
	t.Helper()
	transport, err := httpretry.New(httpretry.Config{Base: base, Policy: httpretry.Policy{
		Budget: b, Backoff: strategies.Constant{Wait: time.Millisecond}}})
	require.NoError(t, err)
	return transport
}

func newRequest(t testing.TB, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	return req
}

// A fake is a Redis that counts scripts, and fails on demand.
type fake struct {
	*miniredis.Miniredis
	withdrawals, reports, commands atomic.Int64
	failure                        atomic.Pointer[func(*server.Peer)]
}

func newFake(t testing.TB) *fake {
	t.Helper()
	return fakeOf(miniredis.RunT(t))
}

func fakeOf(m *miniredis.Miniredis) *fake {
	f := &fake{Miniredis: m}
	f.Server().SetPreHook(func(p *server.Peer, name string, args ...string) bool {
		f.commands.Add(1)
		if fail := f.failure.Load(); fail != nil && strings.HasPrefix(name, "EVAL") {
			(*fail)(p)
			return true
		}
		// A script that is not known yet is sent twice, but executed once.
		if name == "EVALSHA" {
			if args[len(args)-3] == "0" {
				f.reports.Add(1)
			} else {
				f.withdrawals.Add(1)
			}
		}
		return false
	})
	return f
}

// budget returns a Budget that has the timeout patient.
func (f *fake) budget(t testing.TB, cfg redisbudget.Config) *redisbudget.Budget {
	t.Helper()
	cfg.Client, cfg.Timeout = newClient(t, f.Addr()), patient
	return newBudget(t, cfg)
}

// loading is a failure of a fake.
func loading(p *server.Peer) { p.WriteError("LOADING Redis is loading the dataset in memory") }

// fail lets the server answer to all scripts as answer does. Nil means as it
// should.
func (f *fake) fail(answer func(*server.Peer)) {
	if answer == nil {
		f.failure.Store(nil)
		return
	}
	f.failure.Store(&answer)
}

// A logBuffer has the lines of a log.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logBuffer) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.FieldsFunc(l.text.String(), func(r rune) bool { return r == '\n' })
}

// requireLines waits for n lines, and requires that there are not more. The
// goroutine that changes the state of a budget logs it later.
func (l *logBuffer) requireLines(t testing.TB, n int) []string {
	t.Helper()
	require.Eventually(t, func() bool { return len(l.lines()) >= n }, time.Minute, 5*time.Millisecond)
	lines := l.lines()
	require.Len(t, lines, n, "%q", lines)
	return lines
}

// withdrawn returns how many of n retries b allows.
func withdrawn(t testing.TB, b httpretry.Budget, host string, n int) (allowed int) {
	t.Helper()
	for range n {
		if b.Withdraw(t.Context(), failed(host)) {
			allowed++
		}
	}
	return allowed
}

// failed returns an attempt that got a 503.
func failed(origin string) httpretry.AttemptResult {
	return httpretry.AttemptResult{
		Origin: origin, Number: 1, Status: http.StatusServiceUnavailable, Outcome: httpretry.Transient}
}

// timedOut returns an attempt after which a retry costs 2.
func timedOut(origin string) httpretry.AttemptResult {
	return httpretry.AttemptResult{Origin: origin, Number: 1, Outcome: httpretry.Transient, Timeout: true}
}

// throttled returns an attempt after which a retry is free.
func throttled(origin string) httpretry.AttemptResult {
	a := failed(origin)
	a.Status, a.Throttled = http.StatusTooManyRequests, true
	return a
}

// succeed records n successes of first attempts.
func succeed(b httpretry.Budget, origin string, n int) {
	ok := httpretry.AttemptResult{Origin: origin, Number: 1, Status: http.StatusOK}
	for range n {
		b.Record(ok, httpretry.AttemptResult{})
	}
}

// succeedAfter records the success of a retry.
func succeedAfter(b httpretry.Budget, charged httpretry.AttemptResult) {
	b.Record(httpretry.AttemptResult{
		Origin: charged.Origin, Number: charged.Number + 1, Status: http.StatusOK}, charged)
}

// failAfter records the failure of a retry.
func failAfter(b httpretry.Budget, charged httpretry.AttemptResult) {
	ended := failed(charged.Origin)
	ended.Number = charged.Number + 1
	b.Record(ended, charged)
}

// counts returns the counts of a key in the last Window.
func counts(t *testing.T, client redis.UniversalClient, key string) (successes, charges int) {
	t.Helper()
	for slot := range strings.FieldsSeq(client.HGet(context.Background(), key, "slots").Val()) {
		var n, s, c int
		_, err := fmt.Sscanf(slot, "%d:%d:%d", &n, &s, &c)
		assert.NoError(t, err)
		successes += s
		charges += c
	}
	return successes, charges
}
