// Package multiply counts the requests of SDKs whose own retries are on while
// httpretry retries below them. The table in the README of the folder above has
// these figures.
package multiply

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

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

	off    int // requests without the SDK's retries
	on     int // requests with them
	budget int // the same, with the default budget of a client that has sent nothing before
}

// figures returns the last cells of the row in the README.
func (r row) figures() []string {
	return []string{strconv.Itoa(r.off), strconv.Itoa(r.on), strconv.Itoa(r.budget)}
}

// sdk is how a row makes its client.
type sdk struct {
	context.Context
	t       testing.TB
	client  *http.Client // its transport is a RetryTransport
	retries bool         // those of the SDK
}

// down is the response of a gateway whose servers are down. Some SDKs retry
// only what is not their service's own error.
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
			assert.Equal(t, r.on, r.requests(t, true, httpretry.Unlimited{}), "on")
			assert.Equal(t, r.budget, r.requests(t, true, nil), "on, with the default budget")
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
		base := faults.Pipe(t, func(w http.ResponseWriter, req *http.Request) {
			if strings.Contains(req.RequestURI, r.counted) {
				n.Add(1)
			}
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
		assert.Error(t, r.call(sdk{t.Context(), t, &http.Client{Transport: transport}, retries}))
	})
	return int(n.Load())
}
