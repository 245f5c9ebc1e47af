package multiply

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/go-resty/resty/v2"
	"github.com/slack-go/slack"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/api/storage/v1"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

// TestNotes checks the notes in the tables: requests of other calls, or for
// other failures, with the SDK's own retries on.
func TestNotes(t *testing.T) {
	for name, tt := range map[string]struct {
		row
		want int
	}{
		"1: go-github retries no 503":              {row{call: callGithub, policy: policies.GitHub()}, 3},
		"2: resty retries errors only":             {row{call: callRestyErrors}, 3},
		"3: storage/v1 retries nothing but chunks": {row{call: callGoogleStorageGet}, 3},
		"4: client-go needs a Retry-After":         {row{call: callKubernetes}, 3},
		"5: hcloud-go retries no 503":              {row{call: callHcloud}, 3},
		"6: slack-go's OptionRetry, for a 429": {
			row{call: callSlackLimited, policy: policies.Slack(), answer: limited}, 12},
		"stripe-go retries few errors in JSON": {row{call: callStripe, answer: inJSON}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, tt.requests(t, true, httpretry.Unlimited{}))
		})
	}
}

// TestWrites counts the requests of a call that is not idempotent. httpretry
// sends it once. The SDKs send it again if their own retries are on.
func TestWrites(t *testing.T) {
	for name, tt := range map[string]struct {
		row
		want int
	}{
		"azblob":           {row{call: callAzblob, policy: appends()}, 4},
		"client-go":        {row{call: callKubernetes, answer: later}, 11},
		"gitlab":           {row{call: callGitLab}, 6},
		"go-elasticsearch": {row{call: callElasticsearch}, 4},
		"openai-go":        {row{call: callOpenAI}, 3},
		"opensearch-go":    {row{call: callOpenSearch, counted: "/_bulk"}, 7},
		"resty":            {row{call: callResty}, 3},
		"vault/api":        {row{call: callVault, policy: appends()}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			tt.write = true
			assert.Equal(t, tt.want, tt.requests(t, true, httpretry.Unlimited{}))
		})
	}
}

// appends is a policy for an API whose PUTs are not idempotent.
func appends() httpretry.Policy {
	return httpretry.Policy{Idempotent: func(*http.Request) bool { return false }}
}

func callRestyErrors(s sdk) error {
	client := resty.New().SetTransport(s.client.Transport).SetRetryCount(2)
	resp, err := client.R().SetContext(s).Get(server)
	if err == nil && resp.IsError() {
		return errors.New(resp.Status())
	}
	return err
}

// inJSON is an error of Stripe itself.
func inJSON(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `{"error":{"type":"api_error","message":"m"}}`)
}

func callGoogleStorageGet(s sdk) error {
	service, err := storage.NewService(s, option.WithHTTPClient(s.client), option.WithEndpoint(server))
	require.NoError(s.t, err)
	_, err = service.Objects.Get("bucket", "object").Context(s).Do()
	return err
}

func callSlackLimited(s sdk) error {
	client := slack.New("xoxb-test", slack.OptionAPIURL(server+"/api/"),
		slack.OptionHTTPClient(s.client), slack.OptionRetry(3))
	_, err := client.AuthTestContext(s)
	return err
}

// limited is Slack's response when a limit is reached.
func limited(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", "30")
	w.WriteHeader(http.StatusTooManyRequests)
}
