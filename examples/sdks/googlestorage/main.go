// Googlestorage stores an object in Google Cloud Storage. Its first request
// fails, and httpretry retries instead of the client library.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"strings"

	"golang.org/x/oauth2"
	"google.golang.org/api/option"
	"google.golang.org/api/storage/v1"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/flaky"
)

// policy retries 408, 429 and 5xx, as the default does and
// cloud.google.com/storage/docs/retry-strategy recommends.
func policy() httpretry.Policy {
	return httpretry.Policy{MaxAttempts: 5, Idempotent: idempotent}
}

// idempotent also accepts the methods that Cloud Storage documents as
// idempotent with a condition, and the chunks of a resumable upload, where it
// ignores bytes that it has
// (cloud.google.com/storage/docs/performing-resumable-uploads). The condition
// has to fit the method. Each insert creates a generation with metageneration
// 1, so ifMetagenerationMatch=1 does not prevent a second insert. The library's
// X-Goog-Gcs-Idempotency-Token is not documented to prevent one either, so it
// is not used as IdempotencyHeader.
func idempotent(req *http.Request) bool {
	query := req.URL.Query()
	switch req.Method {
	case http.MethodPost:
		return query.Has("upload_id") || query.Has("ifGenerationMatch")
	case http.MethodPatch:
		return query.Has("ifMetagenerationMatch")
	}
	return httpretry.Idempotent(req)
}

// newClient returns a client for url. Without it, the library uses Google's.
// Elsewhere, tokens is the result of google.DefaultTokenSource.
func newClient(
	ctx context.Context, url string, tokens oauth2.TokenSource, config httpretry.Config,
) (*storage.Service, error) {
	// In Base, so that each attempt has a valid token, and a failed request for
	// a token is retried.
	config.Base = &oauth2.Transport{Source: tokens}
	transport, err := httpretry.New(config)
	if err != nil {
		return nil, err
	}
	// With WithHTTPClient, the library does not add credentials, a quota
	// project or telemetry to requests.
	return storage.NewService(ctx, option.WithEndpoint(url),
		option.WithHTTPClient(&http.Client{Transport: transport}))
}

// insert returns the upload of an object that does not exist yet.
func insert(service *storage.Service, bucket, name string) *storage.ObjectsInsertCall {
	return service.Objects.Insert(bucket, &storage.Object{Name: name}).
		IfGenerationMatch(0).
		// Turns the library's retries off. It only retries chunks, each for up
		// to 32 s, where every attempt would be up to 5 here.
		WithRetry(nil, func(error) bool { return false })
}

func main() {
	server := flaky.Server(`{"name": "hello.txt", "generation": "1"}`)
	defer server.Close()
	ctx := context.Background()
	service, err := newClient(ctx, server.URL+"/", oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "a"}),
		httpretry.Config{Policy: policy(), Observe: flaky.Print})
	if err != nil {
		log.Fatal(err)
	}
	// A 412 would mean that the object was stored before, or by an attempt
	// whose response was lost.
	stored, err := insert(service, "bucket", "hello.txt").Media(strings.NewReader("content")).Context(ctx).Do()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("stored %s, generation %d\n", stored.Name, stored.Generation)
}
