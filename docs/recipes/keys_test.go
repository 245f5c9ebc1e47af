package recipes_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
)

func newKeys(base http.RoundTripper) (*http.Client, error) {
	transport, err := httpretry.New(httpretry.Config{
		Base: base,
		Policies: map[string]httpretry.Policy{
			"api.line.me": {
				IdempotencyHeader: "X-Line-Retry-Key",
				NewIdempotencyKey: func(*http.Request) string { return uuid.NewString() },
				Classify: func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
					if resp != nil && resp.StatusCode == http.StatusConflict {
						return httpretry.Final // LINE has accepted a request with this key
					}
					return httpretry.Classify(req, resp, err)
				},
			},
			"*.communication.azure.com": {
				IdempotencyHeader: "Repeatability-Request-Id", // see repeatable
			},
		},
	})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: repeatable{transport}}, nil
}

// repeatable adds the headers of Azure's repeatable requests. It is above the
// transport, so that all attempts have the same.
type repeatable struct{ next http.RoundTripper }

func (r repeatable) RoundTrip(req *http.Request) (*http.Response, error) {
	if !httpretry.Idempotent(req) {
		req = req.Clone(req.Context())
		req.Header.Set("Repeatability-Request-Id", uuid.NewString())
		req.Header.Set("Repeatability-First-Sent", time.Now().UTC().Format(http.TimeFormat))
	}
	return r.next.RoundTrip(req)
}

// TestKeys sends two POSTs to each service, which answers 503 to the first
// attempt. Both attempts of a request have one key, and two requests have two.
func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for host, headers := range map[string][]string{
			"api.line.me":               {"X-Line-Retry-Key"},
			"a.communication.azure.com": {"Repeatability-Request-Id", "Repeatability-First-Sent"},
		} {
			server := play(503, 200, 503, 200)
			client, err := newKeys(server)
			require.NoError(t, err)
			for range 2 {
				req := request(t, "POST", "data")
				req.URL.Host = host
				assert.Equal(t, 200, status(t, client, req))
				time.Sleep(time.Second) // the unit of Repeatability-First-Sent
			}
			for _, header := range headers {
				values := server.headers(header)
				require.Len(t, values, 4)
				assert.Equal(t, values[0], values[1], header)
				assert.Equal(t, values[2], values[3], header)
				assert.NotEqual(t, values[0], values[2], header)
			}
			_, err = uuid.Parse(server.headers(headers[0])[0])
			assert.NoError(t, err)
		}
	})
}

// TestLineConflict checks that a 409 of LINE ends a request, because a request
// with that key was accepted.
func TestLineConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := play(500, 409)
		client, err := newKeys(server)
		require.NoError(t, err)
		req := request(t, "POST", "data")
		req.URL.Host = "api.line.me"
		assert.Equal(t, 409, status(t, client, req))
		assert.Equal(t, 2, server.count())
	})
}
