// Googlestorage stores an object in Google Cloud Storage, and reads it back,
// with the retries of httpretry in place of the client library's.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
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

// policy is for 408, 429 and 5xx (cloud.google.com/storage/docs/retry-strategy),
// which are repeated by default.
func policy() httpretry.Policy {
	return httpretry.Policy{MaxAttempts: 5, Idempotent: idempotent}
}

// idempotent adds what Cloud Storage lists as idempotent under a condition, and
// the chunks of a resumable upload, of which it ignores bytes that it has
// (cloud.google.com/storage/docs/performing-resumable-uploads). Each condition is
// good for its own methods: every generation that an insert makes begins with
// metageneration 1, so ifMetagenerationMatch=1 lets its copy in too. The
// library's X-Goog-Gcs-Idempotency-Token is not documented to prevent a second
// insert, so it is no KeyHeader.
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

func newClient(ctx context.Context, endpoint string, tokens oauth2.TokenSource, p httpretry.Policy) (*storage.Service, error) {
	transport, err := httpretry.New(httpretry.Config{
		Policy:  p,
		Observe: httpretry.LogEvents(slog.Default()),
		// Below, so that each attempt has a token that is still good, and a
		// token that cannot be had is asked for again.
		Base: &oauth2.Transport{Source: tokens},
	})
	if err != nil {
		return nil, err
	}
	// With a client of yours the library leaves out all that it would do to a
	// request on its way: credentials, a quota project, telemetry.
	options := []option.ClientOption{option.WithHTTPClient(&http.Client{Transport: transport})}
	if endpoint != "" {
		options = append(options, option.WithEndpoint(endpoint))
	}
	return storage.NewService(ctx, options...)
}

// insert is the upload of an object that is not there yet.
func insert(service *storage.Service, bucket, name string) *storage.ObjectsInsertCall {
	return service.Objects.Insert(bucket, &storage.Object{Name: name}).
		IfGenerationMatch(0).
		// This turns the library's own retries off, which are those of chunks: for
		// 32 s each, where every attempt would be 5 here. No other call has any.
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
	// A 412 means that it is there: stored before, or by an attempt whose answer
	// was lost.
	text := strings.NewReader("Stored once, however often it was sent.\n")
	stored, err := insert(service, *bucket, "hello.txt").Media(text).Context(ctx).Do()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("stored %s, generation %d\n", stored.Name, stored.Generation)
	object, err := service.Objects.Get(*bucket, "hello.txt").Context(ctx).Download()
	if err != nil {
		log.Fatal(err)
	}
	defer object.Body.Close()
	content, err := io.ReadAll(object.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("read %s", content)
}
