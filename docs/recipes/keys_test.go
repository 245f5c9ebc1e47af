package recipes_test

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/policies"
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

// TestKeys sends two POSTs to each service, which fails the first attempt of each.
// Both attempts of a request have one key, and two requests have two. A 409 of
// LINE ends a request, because a request with that key was accepted.
func TestKeys(t *testing.T) {
	for host, tt := range map[string]struct {
		second  int // the status of the second attempts
		headers []string
	}{
		"api.line.me": {409, []string{"X-Line-Retry-Key"}},
		"a.communication.azure.com": {
			200, []string{"Repeatability-Request-Id", "Repeatability-First-Sent"}},
	} {
		contract.Bubble(t, host, func(t *testing.T) {
			server := play(503, tt.second, 503, tt.second)
			client, err := newKeys(server)
			require.NoError(t, err)
			for range 2 {
				req := request(t, "POST", "data")
				req.URL.Host = host
				assert.Equal(t, tt.second, status(t, client, req))
				time.Sleep(time.Second) // the unit of Repeatability-First-Sent
			}
			for _, header := range tt.headers {
				values := server.headers(header)
				require.Len(t, values, 4)
				assert.Equal(t, values[0], values[1], header)
				assert.Equal(t, values[2], values[3], header)
				assert.NotEqual(t, values[0], values[2], header)
			}
			_, err = uuid.Parse(server.headers(tt.headers[0])[0])
			assert.NoError(t, err)
		})
	}
}

// webhooks is the policy of a sender of webhooks.
func webhooks() httpretry.Policy {
	policy := policies.Background(24 * time.Hour)
	policy.AttemptTimeout = 15 * time.Second
	policy.IdempotencyHeader = "Webhook-Id" // a receiver ignores an ID that it knows
	policy.Classify = func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
		// A receiver that is being deployed may answer with any status.
		if resp != nil && resp.StatusCode >= 300 && resp.StatusCode != http.StatusGone {
			return httpretry.Transient
		}
		return policy.Outcome(req, resp, err)
	}
	return policy
}

// TestWebhooks checks which answers of a receiver are retried, with the same ID.
func TestWebhooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, answers := range [][]int{{500, 302, 404, 204}, {410}} {
			receiver := play(answers...)
			client := newClient(t, httpretry.Config{Base: receiver, Policy: webhooks()})
			req := request(t, "POST", `{"type":"paid"}`)
			req.Header.Set("Webhook-Id", "msg_1")
			assert.Equal(t, answers[len(answers)-1], status(t, client, req))
			assert.Equal(t, slices.Repeat([]string{"msg_1"}, len(answers)), receiver.headers("Webhook-Id"))
		}
	})
}
