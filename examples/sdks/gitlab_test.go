package sdks

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	gitlab "gitlab.com/gitlab-org/api/client-go/v2"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/policies"
)

// gitlabPolicy retries a 429 of any request, a POST included, since GitLab
// blocks it before it processes the request. Retry-After is the time until the
// limit, which counts requests per minute, begins again. GitLab limits each
// user, so a limit that one token has reached does not delay requests with
// another.
func gitlabPolicy() httpretry.Policy {
	p := httpretry.Policy{
		MaxRetryAfter: 2 * time.Minute,
		CooldownKey: func(req *http.Request) string {
			return req.Header.Get(gitlab.AccessTokenHeaderName)
		},
	}
	return policies.Statuses(p, httpretry.Unprocessed, http.StatusTooManyRequests)
}

func newGitlab(s setup) (*gitlab.Client, error) {
	// client-go makes up to 6 attempts, and also for a POST that got a 5xx. The
	// token is in a header, and valid for all attempts.
	return gitlab.NewClient("glpat-test", options(s, gitlab.WithoutRetries(),
		gitlab.WithBaseURL(s.url), gitlab.WithHTTPClient(s.client))...)
}

func getProject(ctx context.Context, client *gitlab.Client) error {
	_, _, err := client.Projects.GetProject("g/p", nil, gitlab.WithContext(ctx))
	return err
}

// GitLab has no idempotency keys either.
func createGitlabIssue(ctx context.Context, client *gitlab.Client) error {
	_, _, err := client.Issues.CreateIssue("g/p",
		&gitlab.CreateIssueOptions{Title: new("T")}, gitlab.WithContext(ctx))
	return err
}

func TestGitlab(t *testing.T) {
	suite := sdktest.Suite[*gitlab.Client]{
		Service: sdktest.API(map[string]string{
			"GET /api/v4/projects/{id}":          `{"path_with_namespace":"g/p"}`,
			"POST /api/v4/projects/{id}/issues":  `{"iid":8}`,
			"PUT /api/v4/projects/{id}/issues/8": `{"iid":8}`,
		}),
		Client: connect(newGitlab),
		Policy: gitlabPolicy(),
		Check:  sdktest.Has("Private-Token", "glpat-test"),
	}
	limited := func(retryAfter string) sdktest.Fault {
		return sdktest.Answer(429, "Retry later\n", "Retry-After", retryAfter)
	}
	update := func(ctx context.Context, client *gitlab.Client) error {
		_, _, err := client.Issues.UpdateIssue("g/p", 8, &gitlab.UpdateIssueOptions{}, gitlab.WithContext(ctx))
		return err
	}
	suite.Failures(t, []sdktest.Call[*gitlab.Client]{getProject, createGitlabIssue, update},
		map[string]sdktest.Row{
			"429":             sdktest.Once(limited("0"), 2, 2, 2),
			"429, for long":   sdktest.Once(limited("3600"), 1, 1, 1),
			"a deployment":    sdktest.Once(sdktest.Answer(502, "<html>"), 2, 1, 2),
			"a conflict":      sdktest.Once(sdktest.Answer(409, `{}`), 1, 1, 1),
			"executed, reset": sdktest.Once(sdktest.Lost, 2, 1, 2),
		})
	key := func(token string) string {
		return gitlabPolicy().CooldownKey(&http.Request{Header: http.Header{"Private-Token": {token}}})
	}
	assert.Equal(t, key("a"), key("a"))
	assert.NotEqual(t, key("a"), key("b"))
}
