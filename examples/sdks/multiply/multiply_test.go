// Package multiply counts the requests of SDKs whose own retries are on while
// httpretry retries below them. The table in the README of the folder above has
// these figures.
package multiply

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// server is the URL of a server that never recovers.
const server = "http://service.test"

// row is a row of the table: an SDK and a call that always fails.
type row struct {
	sdk     string // with the version that go.mod requires
	module  string
	policy  httpretry.Policy
	answer  http.HandlerFunc // nil means down
	counted string           // only requests whose URI contains it
	call    func(sdk) error
	write   bool // see sdk

	off    int // requests without the SDK's retries
	on     int // requests with them
	budget int // the same, with the default budget of a client that has sent nothing before

	// more means that on and budget are lower bounds. The SDK retries for a
	// time, and its waits and those of httpretry are random.
	more bool
}

// figures returns the last cells of the row in the README.
func (r row) figures() []string {
	sign := ""
	if r.more {
		sign = "≥ "
	}
	return []string{strconv.Itoa(r.off), sign + strconv.Itoa(r.on), sign + strconv.Itoa(r.budget)}
}

// sdk is how a row makes its client.
type sdk struct {
	context.Context
	t       testing.TB
	client  *http.Client // its transport is a RetryTransport
	retries bool         // those of the SDK
	write   bool         // the call is one that is not idempotent
}

// down is the response of a gateway whose servers are down. Some SDKs do not
// retry errors in JSON.
func down(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write([]byte("<html>"))
}

// TestRequests makes each call in virtual time, so that the waits are those of
// the defaults.
func TestRequests(t *testing.T) {
	for _, r := range rows() {
		t.Run(r.sdk, func(t *testing.T) {
			assert.Equal(t, r.off, r.requests(t, false, httpretry.Unlimited{}), "off")
			check := func(want, got int, what string) { assert.Equal(t, want, got, what) }
			if r.more {
				check = func(want, got int, what string) { assert.GreaterOrEqual(t, got, want, what) }
			}
			check(r.on, r.requests(t, true, httpretry.Unlimited{}), "on")
			check(r.budget, r.requests(t, true, nil), "on, with the default budget")
		})
	}
}

// requests returns the number of requests that the server gets for one call. A
// call that succeeds fails the test.
func (r row) requests(t *testing.T, retries bool, budget httpretry.Budget) int {
	t.Helper()
	var n atomic.Int64
	answer := r.answer
	if answer == nil {
		answer = down
	}
	synctest.Test(t, func(t *testing.T) {
		// A bubble begins in 2000, when the numbers in X-RateLimit-Reset were
		// too small for a Unix time.
		time.Sleep(time.Until(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)))
		base := faults.Pipe(t, func(w http.ResponseWriter, req *http.Request) {
			if strings.Contains(req.RequestURI, r.counted) {
				n.Add(1)
			}
			_, err := io.Copy(io.Discard, req.Body)
			assert.NoError(t, err)
			answer(w, req)
		})
		// Also for SDKs whose URL is that of the service.
		base.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return base.DialContext(ctx, network, addr)
		}
		policy := r.policy
		policy.Budget = budget
		transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy})
		require.NoError(t, err)
		assert.Error(t, r.call(sdk{t.Context(), t, &http.Client{Transport: transport}, retries, r.write}))
	})
	return int(n.Load())
}
