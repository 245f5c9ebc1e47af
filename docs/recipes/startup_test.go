package recipes_test

import (
	"net"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

// TestStartBeforeTheUpstream checks that one request with policies.Background
// waits for an upstream that starts later, as in choosing.md, and that those
// after it do not fail.
func TestStartBeforeTheUpstream(t *testing.T) {
	const down = 5 * time.Second
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			start, sends := time.Now(), 0
			client := newClient(t, httpretry.Config{Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
				sends++
				if time.Since(start) < down {
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
				}
				return respond(req, http.StatusOK, nil), nil
			})})
			ctx := httpretry.WithPolicy(t.Context(), policies.Background(time.Minute))
			resp, err := client.Do(request(t, "GET", "").WithContext(ctx))
			require.NoError(t, err)
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			assert.LessOrEqual(t, sends, 5)
			// The waits before it are up to 1, 2, 4 and 8 seconds.
			assert.Less(t, time.Since(start), down+8*time.Second)
			assert.Equal(t, http.StatusOK, status(t, client, request(t, "GET", "")))
		})
	}
}
