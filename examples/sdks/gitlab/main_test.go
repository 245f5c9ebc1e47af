package main

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	gitlab "gitlab.com/gitlab-org/api/client-go/v2"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

var suite = sdktest.Suite[*gitlab.Client]{
	Service: sdktest.API(map[string]string{
		"GET /api/v4/projects/{id}":          `{"path_with_namespace":"g/p","open_issues_count":7}`,
		"POST /api/v4/projects/{id}/issues":  `{"iid":8,"title":"T"}`,
		"PUT /api/v4/projects/{id}/issues/8": `{"iid":8,"title":"U"}`,
	}),
	Client: func(_ testing.TB, s *sdktest.Server, p httpretry.Policy) (*gitlab.Client, error) {
		return newClient(s.URL, "glpat-test", p)
	},
	Policy: policy(),
	Check:  sdktest.Has("Private-Token", "glpat-test"),
}

// limited is the response when a user has sent too many requests in a minute.
func limited(retryAfter string) sdktest.Fault {
	return sdktest.Answer(429, "Retry later\n", "RateLimit-Limit", "60", "RateLimit-Remaining", "0",
		"RateLimit-Name", "throttle_authenticated_api", "Retry-After", retryAfter)
}

func get(ctx context.Context, client *gitlab.Client) error {
	_, _, err := client.Projects.GetProject("g/p", nil, gitlab.WithContext(ctx))
	return err
}

func create(ctx context.Context, client *gitlab.Client) error {
	_, _, err := client.Issues.CreateIssue("g/p",
		&gitlab.CreateIssueOptions{Title: new("T")}, gitlab.WithContext(ctx))
	return err
}

func update(ctx context.Context, client *gitlab.Client) error {
	_, _, err := client.Issues.UpdateIssue("g/p", 8,
		&gitlab.UpdateIssueOptions{Title: new("U")}, gitlab.WithContext(ctx))
	return err
}

func TestRun(t *testing.T) {
	suite.Run(t, limited("0"), "g/p has 7 open issues\nopened #8, \"T\"\n",
		func(ctx context.Context, client *gitlab.Client, out io.Writer) error {
			return run(ctx, client, "g/p", "T", out)
		})
}

func TestFailures(t *testing.T) {
	suite.Failures(t, []sdktest.Call[*gitlab.Client]{get, create, update}, map[string]sdktest.Row{
		"429":             sdktest.Once(limited("0"), 2, 2, 2),
		"429, for long":   sdktest.Once(limited("3600"), 1, 1, 1),
		"a deployment":    sdktest.Once(sdktest.Answer(502, "<html>"), 2, 1, 2),
		"503":             sdktest.Once(sdktest.Answer(503, `{"message":"503 Service Unavailable"}`), 2, 1, 2),
		"500":             sdktest.Once(sdktest.Answer(500, `{"message":"500 Internal Server Error"}`), 2, 1, 2),
		"reset":           sdktest.Once(sdktest.Reset, 2, 1, 2),
		"a conflict":      sdktest.Once(sdktest.Answer(409, `{"message":"409 Conflict"}`), 1, 1, 1),
		"not found":       sdktest.Once(sdktest.Answer(404, `{"message":"404 Project Not Found"}`), 1, 1, 1),
		"an old token":    sdktest.Once(sdktest.Answer(401, `{"message":"401 Unauthorized"}`), 1, 1, 1),
		"executed, reset": sdktest.Once(sdktest.Lost, 2, 1, 2),
	})
}

func TestDown(t *testing.T) { suite.Down(t, sdktest.Answer(502, "<html>"), get, 3) }

// A limit that one token has reached does not delay requests with another.
func TestEachTokenHasItsLimit(t *testing.T) {
	key := func(token string) string {
		return policy().CooldownKey(&http.Request{Header: http.Header{"Private-Token": {token}}})
	}
	assert.Equal(t, key("a"), key("a"))
	assert.NotEqual(t, key("a"), key("b"))
}
