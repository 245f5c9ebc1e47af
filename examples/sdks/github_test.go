package sdks

import (
	"context"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-github/v89/github"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/policies"
)

// githubPolicy waits longer than the default for the reset of the primary
// limit, which happens once an hour. A call that would have to wait even longer
// fails at once, with go-github's own error.
func githubPolicy() httpretry.Policy {
	p := policies.GitHub()
	p.MaxRetryAfter = 2 * time.Minute
	return p
}

// newGithub has no retries to turn off. Only a context turns them on, with
// SleepUntilPrimaryRateLimitResetWhenRateLimited. Then go-github sends a
// request again that was retried here, a POST with its body as well.
func newGithub(s setup) (*github.Client, error) {
	return github.NewClient(github.WithTransport(s.client.Transport),
		github.WithAuthToken("ghp_test"), // a header, valid for all attempts
		github.WithEnterpriseURLs(s.url, s.url))
}

func getRepository(ctx context.Context, client *github.Client) error {
	_, _, err := client.Repositories.Get(ctx, "o", "r")
	return err
}

// GitHub has no idempotency keys. After a 502, a 503 or no response at all, the
// issue may exist, so the request is not retried.
func createIssue(ctx context.Context, client *github.Client) error {
	_, _, err := client.Issues.Create(ctx, "o", "r", &github.IssueRequest{Title: new("T")})
	return err
}

func callGithub(s setup) error {
	if s.retries {
		s.Context = context.WithValue(s.Context,
			github.SleepUntilPrimaryRateLimitResetWhenRateLimited, true)
	}
	return calls(newGithub, getRepository, createIssue)(s)
}

// primary is the response when the hourly limit is reached.
func primary(status int, reset time.Time) sdktest.Fault {
	return sdktest.Answer(status, `{"message":"API rate limit exceeded for user ID 1."}`,
		"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
}

// secondary is the response to too many requests at once.
func secondary(status int) sdktest.Fault {
	return sdktest.Answer(status, `{"message":"You have exceeded a secondary rate limit."}`,
		"X-RateLimit-Remaining", "4000", "Retry-After", "0")
}

func TestGithub(t *testing.T) {
	suite := sdktest.Suite[*github.Client]{
		Service: sdktest.API(map[string]string{
			"GET /api/v3/repos/o/r":                         `{"full_name":"o/r"}`,
			"POST /api/v3/repos/o/r/issues":                 `{"number":8}`,
			"POST /api/uploads/repos/o/r/releases/1/assets": `{"id":9}`,
		}),
		Client: connect(newGithub),
		Policy: githubPolicy(),
		Check:  sdktest.Has("Authorization", "Bearer ghp_test"),
	}
	past := time.Now()
	suite.Failures(t, []sdktest.Call[*github.Client]{getRepository, createIssue}, map[string]sdktest.Row{
		"primary limit, 403":     sdktest.Once(primary(403, past), 2, 2),
		"secondary limit, 403":   sdktest.Once(secondary(403), 2, 2),
		"403 without permission": sdktest.Once(sdktest.Answer(403, `{}`, "X-RateLimit-Remaining", "4000"), 1, 1),
		"503":                    sdktest.Once(sdktest.Answer(503, `{}`), 2, 1),
		"executed, reset":        sdktest.Once(sdktest.Lost, 2, 1),
	})
	// A distant reset ends the call at once. go-github refuses the next calls
	// itself, so they do not reach the transport.
	t.Run("a distant reset", func(t *testing.T) {
		server, client := suite.Start(t, primary(403, time.Now().Add(time.Hour)))
		for range 3 {
			limit, ok := errors.AsType[*github.RateLimitError](getRepository(t.Context(), client))
			require.True(t, ok)
			assert.Greater(t, time.Until(limit.Rate.Reset.Time), 50*time.Minute)
		}
		assert.Len(t, server.Requests(), 1)
	})
	// The POST of an upload that was refused is retried with the complete file.
	t.Run("upload", func(t *testing.T) {
		content := sdktest.Random(320_000)
		server, client := suite.Start(t, secondary(403))
		file := sdktest.Bodies(t, content)["file"].(*os.File)
		_, _, err := client.Repositories.UploadReleaseAsset(
			t.Context(), "o", "r", 1, &github.UploadOptions{Name: "asset.bin"}, file)
		require.NoError(t, err)
		server.Whole(t, 2, content)
	})
}
