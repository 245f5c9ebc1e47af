package multiply

import (
	"errors"
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

// TestNotes checks the notes below the table: requests of other calls, or for
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
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, tt.requests(t, true, httpretry.Unlimited{}))
		})
	}
}

func callRestyErrors(s sdk) error {
	client := resty.New().SetTransport(s.client.Transport).SetRetryCount(2)
	resp, err := client.R().SetContext(s).Get(server)
	if err == nil && resp.IsError() {
		return errors.New(resp.Status())
	}
	return err
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
