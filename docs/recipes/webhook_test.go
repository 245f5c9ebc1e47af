package recipes_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strconv"
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

// signed signs each attempt, because the signature contains its time.
type signed struct {
	next http.RoundTripper
	key  []byte
}

func (s signed) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	req.Body.Close()
	if err != nil {
		return nil, err
	}
	seconds := strconv.FormatInt(time.Now().Unix(), 10)
	mac := hmac.New(sha256.New, s.key)
	fmt.Fprintf(mac, "%s.%s.%s", req.Header.Get("Webhook-Id"), seconds, body)
	req = req.Clone(req.Context())
	req.Body = io.NopCloser(bytes.NewReader(body))
	req.Header.Set("Webhook-Timestamp", seconds)
	req.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return s.next.RoundTrip(req)
}

// TestWebhooks checks that all attempts have one ID, and each a signature of its
// own.
func TestWebhooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := play(500, 302, 404, 204)
		client := newClient(t, httpretry.Config{Base: signed{server, []byte("secret")}, Policy: webhooks()})
		req := request(t, "POST", `{"type":"paid"}`)
		req.Header.Set("Webhook-Id", "msg_1")
		assert.Equal(t, 204, status(t, client, req))
		assert.Equal(t, []string{"msg_1", "msg_1", "msg_1", "msg_1"}, server.headers("Webhook-Id"))
		times, signatures := server.headers("Webhook-Timestamp"), server.headers("Webhook-Signature")
		assert.NotEqual(t, times[0], times[3])
		for i, seconds := range times {
			mac := hmac.New(sha256.New, []byte("secret"))
			mac.Write([]byte("msg_1." + seconds + `.{"type":"paid"}`))
			assert.Equal(t, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)), signatures[i])
		}

		gone := play(410)
		assert.Equal(t, 410, status(t, newClient(t, httpretry.Config{Base: gone, Policy: webhooks()}), req))
		assert.Equal(t, 1, gone.count())
	})
}
