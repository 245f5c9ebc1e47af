// Github reads a repository and opens an issue in it with go-github. It waits
// for GitHub's rate limits if that does not take long:
//
//	GITHUB_TOKEN=... go run ./github -owner me -repo mine -title "An issue"
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/google/go-github/v89/github"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

// policy waits longer than the default for the reset of the primary limit,
// which happens once an hour. A call that would have to wait even longer fails
// at once, with go-github's own error.
func policy() httpretry.Policy {
	p := policies.GitHub()
	p.MaxRetryAfter = 2 * time.Minute
	return p
}

// newClient returns a client for GitHub or, if endpoint is not empty, for a
// GitHub Enterprise Server.
func newClient(endpoint, token string, policy httpretry.Policy) (*github.Client, error) {
	transport, err := httpretry.New(httpretry.Config{Policy: policy})
	if err != nil {
		return nil, err
	}
	// go-github has no retries to turn off, except if a context has its
	// SleepUntilPrimaryRateLimitResetWhenRateLimited. Then it retries the
	// requests that were retried here, and does not rewind the body of a POST.
	options := []github.ClientOptionsFunc{
		github.WithTransport(transport),
		github.WithAuthToken(token), // a header, valid for all attempts
	}
	if endpoint != "" {
		options = append(options, github.WithEnterpriseURLs(endpoint, endpoint))
	}
	return github.NewClient(options...)
}

func run(ctx context.Context, client *github.Client, owner, name, title string, out io.Writer) error {
	repo, _, err := client.Repositories.Get(ctx, owner, name)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s has %d open issues\n", repo.GetFullName(), repo.GetOpenIssuesCount())

	// GitHub has no idempotency keys. After a 502, a 503 or no response at all,
	// the issue may exist, so the request is not retried.
	issue, _, err := client.Issues.Create(ctx, owner, name, &github.IssueRequest{Title: &title})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "opened #%d, %q\n", issue.GetNumber(), issue.GetTitle())
	return nil
}

func main() {
	endpoint := flag.String("url", "", "URL of a GitHub Enterprise Server; empty means GitHub")
	owner := flag.String("owner", "", "owner of the repository")
	name := flag.String("repo", "", "name of the repository")
	title := flag.String("title", "Hello", "title of the new issue")
	flag.Parse()

	client, err := newClient(*endpoint, os.Getenv("GITHUB_TOKEN"), policy())
	if err != nil {
		log.Fatal(err)
	}
	if err := run(context.Background(), client, *owner, *name, *title, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
