// Googlestorage stores an object in Google Cloud Storage. httpretry retries
// instead of the client library.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"strings"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/option"
	"google.golang.org/api/storage/v1"

	"github.com/seed421102f4/httpretry"
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

func newClient(
	ctx context.Context, endpoint string, tokens oauth2.TokenSource, p httpretry.Policy,
) (*storage.Service, error) {
	transport, err := httpretry.New(httpretry.Config{
		Policy:  p,
		Observe: httpretry.LogEvents(slog.Default()),
		// In Base, so that each attempt has a valid token, and a failed request
		// for a token is retried.
		Base: &oauth2.Transport{Source: tokens},
	})
	if err != nil {
		return nil, err
	}
	// With WithHTTPClient, the library does not add credentials, a quota
	// project or telemetry to requests.
	options := []option.ClientOption{option.WithHTTPClient(&http.Client{Transport: transport})}
	if endpoint != "" {
		options = append(options, option.WithEndpoint(endpoint))
	}
	return storage.NewService(ctx, options...)
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
	bucket := flag.String("bucket", "example", "`name` of a bucket to write to")
	endpoint := flag.String("endpoint", "", "`URL` of the service, if not Google's")
	flag.Parse()
	ctx := context.Background()
	tokens, err := google.DefaultTokenSource(ctx, storage.DevstorageReadWriteScope)
	if err != nil {
		log.Fatal(err)
	}
	service, err := newClient(ctx, *endpoint, tokens, policy())
	if err != nil {
		log.Fatal(err)
	}
	// A 412 means that the object was stored before, or by an attempt whose
	// response was lost.
	text := strings.NewReader("Stored once, even if it was sent twice.\n")
	stored, err := insert(service, *bucket, "hello.txt").Media(text).Context(ctx).Do()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("stored %s, generation %d\n", stored.Name, stored.Generation)
}
