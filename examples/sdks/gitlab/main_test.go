package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gitlab "gitlab.com/gitlab-org/api/client-go/v2"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/strategies"
)

const token = "glpat-test"

// quick is the recommended policy without waits.
func quick() httpretry.Policy {
	p := policy()
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	return p
}

// listen starts a server that supports enough of GitLab's API. At the end it
// checks that every attempt was authorized.
func listen(t *testing.T, faults ...sdktest.Fault) *sdktest.Server {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(pattern string, status int, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
	answer("GET /api/v4/projects/{id}", 200, `{"path_with_namespace":"g/p","open_issues_count":7}`)
	answer("POST /api/v4/projects/{id}/issues", 201, `{"iid":8,"title":"T"}`)
	answer("PUT /api/v4/projects/{id}/issues/8", 200, `{"iid":8,"title":"U"}`)
	server := sdktest.New(t, mux, faults...)
	t.Cleanup(func() {
		for _, r := range server.Requests() {
			assert.Equal(t, token, r.Header.Get("Private-Token"), "%s %s", r.Method, r.RequestURI)
		}
	})
	return server
}

// start returns a server and a client for it.
func start(
	t *testing.T, p httpretry.Policy, faults ...sdktest.Fault,
) (*sdktest.Server, *gitlab.Client) {
	t.Helper()
	server := listen(t, faults...)
	client, err := newClient(server.URL, token, p)
	require.NoError(t, err)
	return server, client
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
	server, client := start(t, quick(), limited("0"))
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), client, "g/p", "T", &out))
	assert.Equal(t, "g/p has 7 open issues\nopened #8, \"T\"\n", out.String())
	assert.Equal(t, `GET /api/v4/projects/g%2Fp ""
GET /api/v4/projects/g%2Fp "1"
POST /api/v4/projects/g%2Fp/issues ""
POST /api/v4/projects/g%2Fp/issues "1"
`, server.Summary())
	for _, r := range server.Requests() {
		if r.Method == http.MethodPost {
			assert.Equal(t, "T", title(r.Content), "each attempt has the body")
		}
	}
}

// title returns the title in the body of a request.
func title(body []byte) string {
	_, rest, _ := strings.Cut(string(body), `"title":"`)
	title, _, _ := strings.Cut(rest, `"`)
	return title
}

func TestFailures(t *testing.T) {
	for name, tt := range map[string]struct {
		fault               sdktest.Fault
		get, create, update int // requests; the call succeeds if there are two
	}{
		"429":             {limited("0"), 2, 2, 2},
		"429, for long":   {limited("3600"), 1, 1, 1},
		"a deployment":    {sdktest.Answer(502, "<html>"), 2, 1, 2},
		"503":             {sdktest.Answer(503, `{"message":"503 Service Unavailable"}`), 2, 1, 2},
		"500":             {sdktest.Answer(500, `{"message":"500 Internal Server Error"}`), 2, 1, 2},
		"reset":           {sdktest.Reset(), 2, 1, 2},
		"a conflict":      {sdktest.Answer(409, `{"message":"409 Conflict"}`), 1, 1, 1},
		"not found":       {sdktest.Answer(404, `{"message":"404 Project Not Found"}`), 1, 1, 1},
		"an old token":    {sdktest.Answer(401, `{"message":"401 Unauthorized"}`), 1, 1, 1},
		"executed, reset": {sdktest.Lost(), 2, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			for call, do := range map[string]struct {
				call func(context.Context, *gitlab.Client) error
				want int
			}{"get": {get, tt.get}, "create": {create, tt.create}, "update": {update, tt.update}} {
				server, client := start(t, quick(), tt.fault)
				err := do.call(t.Context(), client)
				assert.Len(t, server.Requests(), do.want, call)
				assert.Equal(t, do.want == 2, err == nil, "%s: %v", call, err)
			}
		})
	}
}

// A limit that one token has reached does not delay requests with another.
func TestEachTokenHasItsLimit(t *testing.T) {
	key := func(token string) string {
		return policy().CooldownKey(&http.Request{Header: http.Header{"Private-Token": {token}}})
	}
	assert.Equal(t, key("a"), key("a"))
	assert.NotEqual(t, key("a"), key("b"))
}

// Without WithoutRetries, attempts multiply, and client-go opens the issue
// again after a 502.
func TestRetriesMultiply(t *testing.T) {
	p := quick()
	p.Budget = httpretry.Unlimited{} // the default would end this earlier
	down := slices.Repeat([]sdktest.Fault{sdktest.Answer(502, "<html>")}, 30)
	for _, tt := range []struct {
		do            func(context.Context, *gitlab.Client) error
		with, without int // with and without that option
	}{{get, 3, 18}, {create, 1, 6}} {
		server, client := start(t, p, down...)
		require.Error(t, tt.do(t.Context(), client))
		assert.Len(t, server.Requests(), tt.with)

		server = listen(t, down...)
		require.Error(t, tt.do(t.Context(), withRetries(t, server.URL, p)))
		assert.Len(t, server.Requests(), tt.without)
	}
}

// withRetries returns newClient's client without WithoutRetries, and without
// client-go's waits.
func withRetries(t *testing.T, endpoint string, p httpretry.Policy) *gitlab.Client {
	t.Helper()
	transport, err := httpretry.New(httpretry.Config{Policy: p})
	require.NoError(t, err)
	client, err := gitlab.NewClient(token, gitlab.WithBaseURL(endpoint),
		gitlab.WithHTTPClient(&http.Client{Transport: transport}),
		gitlab.WithCustomBackoff(
			func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return 0 }))
	require.NoError(t, err)
	return client
}
