// Gitlab reads a project and opens an issue in it with GitLab's client-go. It
// waits for GitLab's rate limits if that does not take long:
//
//	GITLAB_TOKEN=... go run ./gitlab -project group/name -title "An issue"
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	gitlab "gitlab.com/gitlab-org/api/client-go/v2"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

// policy retries a 429 of any request, a POST included, since GitLab blocks it
// before it processes the request. Retry-After is the time until the limit,
// which counts requests per minute, begins again. GitLab limits each user, so a
// limit that one token has reached does not delay requests with another.
func policy() httpretry.Policy {
	p := httpretry.Policy{
		MaxRetryAfter: 2 * time.Minute,
		CooldownKey: func(req *http.Request) string {
			return req.Header.Get(gitlab.AccessTokenHeaderName)
		},
	}
	return policies.Statuses(p, httpretry.Unprocessed, http.StatusTooManyRequests)
}

// newClient returns a client for GitLab or, if endpoint is not empty, for
// another instance.
func newClient(endpoint, token string, policy httpretry.Policy) (*gitlab.Client, error) {
	transport, err := httpretry.New(httpretry.Config{Policy: policy})
	if err != nil {
		return nil, err
	}
	options := []gitlab.ClientOptionFunc{
		gitlab.WithHTTPClient(&http.Client{Transport: transport}),
		// client-go makes up to 6 attempts, and also for a POST that got a 5xx.
		// With 3 attempts each here, that would be 18.
		gitlab.WithoutRetries(),
	}
	if endpoint != "" {
		options = append(options, gitlab.WithBaseURL(endpoint))
	}
	return gitlab.NewClient(token, options...) // a header, valid for all attempts
}

func run(ctx context.Context, client *gitlab.Client, project, title string, out io.Writer) error {
	found, _, err := client.Projects.GetProject(project, nil, gitlab.WithContext(ctx))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s has %d open issues\n", found.PathWithNamespace, found.OpenIssuesCount)

	// GitLab has no idempotency keys. After a 502, a 503 or no response at all,
	// the issue may exist, so the request is not retried.
	issue, _, err := client.Issues.CreateIssue(project,
		&gitlab.CreateIssueOptions{Title: &title}, gitlab.WithContext(ctx))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "opened #%d, %q\n", issue.IID, issue.Title)
	return nil
}

func main() {
	endpoint := flag.String("url", "", "URL of an instance of GitLab; empty means gitlab.com")
	project := flag.String("project", "", "path or number of the project")
	title := flag.String("title", "Hello", "title of the new issue")
	flag.Parse()

	client, err := newClient(*endpoint, os.Getenv("GITLAB_TOKEN"), policy())
	if err != nil {
		log.Fatal(err)
	}
	if err := run(context.Background(), client, *project, *title, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
