package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-github/v89/github"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

var suite = sdktest.Suite[*github.Client]{
	Service: sdktest.API(map[string]string{
		"GET /api/v3/repos/o/r":                         `{"full_name":"o/r","open_issues_count":7}`,
		"POST /api/v3/repos/o/r/issues":                 `{"number":8,"title":"T"}`,
		"POST /api/uploads/repos/o/r/releases/1/assets": `{"id":9}`,
	}),
	Client: func(_ testing.TB, s *sdktest.Server, p httpretry.Policy) (*github.Client, error) {
		return newClient(s.URL, "ghp_test", p)
	},
	Policy: policy(),
	Check:  sdktest.Has("Authorization", "Bearer ghp_test"),
}

// primary is the response when the hourly limit is reached.
func primary(status int, reset time.Time) sdktest.Fault {
	return sdktest.Answer(status, `{"message":"API rate limit exceeded for user ID 1."}`,
		"X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "0",
		"X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
}

// secondary is the response to too many requests at once.
func secondary(status int) sdktest.Fault {
	return sdktest.Answer(status,
		`{"message":"You have exceeded a secondary rate limit.",`+
			`"documentation_url":"https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"}`,
		"X-RateLimit-Remaining", "4000", "Retry-After", "0")
}

func get(ctx context.Context, client *github.Client) error {
	_, _, err := client.Repositories.Get(ctx, "o", "r")
	return err
}

func create(ctx context.Context, client *github.Client) error {
	_, _, err := client.Issues.Create(ctx, "o", "r", &github.IssueRequest{Title: new("T")})
	return err
}

func TestRun(t *testing.T) {
	suite.Run(t, secondary(403), "o/r has 7 open issues\nopened #8, \"T\"\n",
		func(ctx context.Context, client *github.Client, out io.Writer) error {
			return run(ctx, client, "o", "r", "T", out)
		})
}

func TestFailures(t *testing.T) {
	past := time.Now()
	suite.Failures(t, []sdktest.Call[*github.Client]{get, create}, map[string]sdktest.Row{
		"primary limit, 403":     sdktest.Once(primary(403, past), 2, 2),
		"primary limit, 429":     sdktest.Once(primary(429, past), 2, 2),
		"secondary limit, 403":   sdktest.Once(secondary(403), 2, 2),
		"secondary limit, 429":   sdktest.Once(secondary(429), 2, 2),
		"429 that says nothing":  sdktest.Once(sdktest.Answer(429, `{"message":"slow down"}`), 1, 1),
		"403 without permission": sdktest.Once(sdktest.Answer(403, `{}`, "X-RateLimit-Remaining", "4000"), 1, 1),
		"503":                    sdktest.Once(sdktest.Answer(503, `{"message":"No server is currently available"}`), 2, 1),
		"reset":                  sdktest.Once(sdktest.Reset, 2, 1),
		"executed, reset":        sdktest.Once(sdktest.Lost, 2, 1),
	})
}

func TestWaitsUntilTheReset(t *testing.T) {
	server, client := suite.Start(t, func(s *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
		primary(403, time.Now().Add(time.Second))(s, w, r)
	})
	began := time.Now()
	require.NoError(t, create(t.Context(), client))
	assert.GreaterOrEqual(t, time.Since(began), time.Second)
	assert.Len(t, server.Requests(), 2)
}

// A distant reset ends the call at once. go-github refuses the next calls
// itself, so they do not reach the transport.
func TestLongLimit(t *testing.T) {
	server, client := suite.Start(t, primary(403, time.Now().Add(time.Hour)))
	for range 3 {
		limit, ok := errors.AsType[*github.RateLimitError](get(t.Context(), client))
		require.True(t, ok)
		assert.Greater(t, time.Until(limit.Rate.Reset.Time), 50*time.Minute)
	}
	assert.Len(t, server.Requests(), 1)
}

// The POST of an upload that was refused is retried with the complete file.
func TestUpload(t *testing.T) {
	content := sdktest.Random(320_000)
	server, client := suite.Start(t, secondary(403))
	file := sdktest.Bodies(t, content)["file"].(*os.File)
	_, _, err := client.Repositories.UploadReleaseAsset(
		t.Context(), "o", "r", 1, &github.UploadOptions{Name: "asset.bin"}, file)
	require.NoError(t, err)
	server.Whole(t, 2, content, nil)
}

// With the option that newClient warns of, go-github does not rewind the body
// of a POST that it retries. The POST fails, unless net/http rewinds the body,
// which it does on a connection that it reuses.
func TestSleepUntilReset(t *testing.T) {
	limited := primary(403, time.Now().Add(-time.Minute))
	suite.Down(t, limited, get, 3)

	s := suite
	s.Policy.Budget = httpretry.Unlimited{}                 // the default would end this earlier
	server, client := s.Start(t, limited, limited, limited) // the fourth request would succeed
	ctx := context.WithValue(t.Context(), github.SleepUntilPrimaryRateLimitResetWhenRateLimited, true)
	err := create(ctx, client)
	switch got := len(server.Requests()); {
	case err == nil && got == 4:
	case err != nil && strings.Contains(err.Error(), "with Body length 0") && got == 3:
	default:
		t.Errorf("%d requests and error %v, want 4 and none, or 3 and one about the body", got, err)
	}
}
