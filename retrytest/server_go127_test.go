//go:build go1.27

package retrytest_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// The server of httptest.NewTestServer works in a bubble, as the package's
// documentation says.
func TestServerInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var arrivals []time.Time
		server := httptest.NewTestServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			arrivals = append(arrivals, time.Now())
			if len(arrivals) < 3 {
				w.Header().Set("Retry-After", "20")
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		transport, err := httpretry.New(httpretry.Config{Base: server.Client().Transport})
		require.NoError(t, err)
		resp, err := (&http.Client{Transport: transport}).Get("https://api.example.com/")
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		require.Len(t, arrivals, 3)
		for i := range 2 {
			assert.GreaterOrEqual(t, arrivals[i+1].Sub(arrivals[i]), 20*time.Second)
		}
	})
}
