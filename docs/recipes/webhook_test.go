package recipes_test

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

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
