package recipes_test

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

// pauseWithoutBudget waits if the request that ended with resp or err got no retry
// because the budget of its host is used up.
func pauseWithoutBudget(resp *http.Response, err error, pause time.Duration) {
	failed, ok := errors.AsType[*httpretry.Error](err)
	if ok && failed.Reason == httpretry.ReasonBudget ||
		httpretry.ResultOf(resp).Reason == httpretry.ReasonBudget {
		time.Sleep(pause)
	}
}

// Only a request that the budget has refused a retry makes the worker pause,
// whether it ended with a response or with an error.
func TestWorker(t *testing.T) {
	for name, tt := range map[string]struct {
		status int // 0: an error
		budget httpretry.Budget
		pause  time.Duration
	}{
		"503":              {503, &httpretry.HostBudget{Burst: -1}, time.Second},
		"error":            {0, &httpretry.HostBudget{Burst: -1}, time.Second},
		"503, with budget": {503, nil, 0},
		"200":              {200, &httpretry.HostBudget{Burst: -1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := roundTripFunc(func(req *http.Request) (*http.Response, error) {
					if tt.status == 0 {
						return nil, errors.New("no connection")
					}
					return respond(req, tt.status, nil), nil
				})
				transport, err := httpretry.New(httpretry.Config{
					Base: base, Policy: httpretry.Policy{Budget: tt.budget}})
				require.NoError(t, err)
				resp, err := (&http.Client{Transport: transport}).Do(request(t, "GET", ""))
				assert.Equal(t, tt.status == 0, err != nil)
				if err == nil {
					require.NoError(t, resp.Body.Close())
				}
				start := time.Now()
				pauseWithoutBudget(resp, err, time.Second)
				assert.Equal(t, tt.pause, time.Since(start))
			})
		})
	}
}
