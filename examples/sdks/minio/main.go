// Minio stores an object in a server that speaks S3, and reads it back, with
// the retries of httpretry in place of the SDK's.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/seed421102f4/httpretry"
)

// policy is for S3 and what speaks like it. 500 InternalError and
// 503 SlowDown are to be repeated (docs.aws.amazon.com/AmazonS3/latest/userguide,
// Best practices for Amazon S3 errors), which is the default.
func policy() httpretry.Policy {
	return httpretry.Policy{
		MaxAttempts: 5,
		Idempotent:  idempotent,
		// S3 sends no Retry-After. MinIO does with each 429 and 503: 60 s, or
		// 120 s in older versions.
		MaxRetryAfter: 2 * time.Minute,
		// The SDK's bodies have no GetBody, so what is to be sent again is
		// kept: up to a part of 16 MiB with the signatures of its chunks. It
		// costs that much memory for each upload under way. What is longer,
		// by PartSize or DisableMultipart, is sent once.
		ReplayBuffer: 17 << 20,
	}
}

// idempotent adds the two POSTs that may be repeated: the end of a multipart
// upload ("applications should be prepared to retry",
// docs.aws.amazon.com/AmazonS3/latest/API, CompleteMultipartUpload) and
// DeleteObjects. The POST that begins an upload may not: each that arrives
// begins another, which is paid for until it is aborted.
func idempotent(req *http.Request) bool {
	if req.Method == http.MethodPost {
		query := req.URL.Query()
		return query.Has("uploadId") || query.Has("delete")
	}
	return httpretry.Idempotent(req)
}

func newClient(endpoint string, creds *credentials.Credentials, p httpretry.Policy) (*minio.Client, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	transport, err := httpretry.New(httpretry.Config{Policy: p, Observe: httpretry.LogEvents(slog.Default())})
	if err != nil {
		return nil, err
	}
	return minio.New(u.Host, &minio.Options{
		Creds:  creds,
		Secure: u.Scheme == "https",
		// The SDK signs above the transport, so each attempt has the same
		// signature. S3 takes it for 15 minutes, so keep all the waits of a
		// request shorter than that. The signature does not cover Retry-Attempt.
		Transport: transport,
		// 1 turns the SDK's own retries off. By default it makes 10 attempts,
		// each of which would be 5 here, and does not look at Retry-After.
		MaxRetries: 1,
		// Without a region the SDK asks for the bucket's, and needs a retry of
		// its own if it was wrong.
		Region: "us-east-1",
	})
}

func main() {
	endpoint := flag.String("endpoint", "http://localhost:9000", "`URL` of the server")
	bucket := flag.String("bucket", "example", "`name` of a bucket to write to")
	flag.Parse()
	// MINIO_ACCESS_KEY and MINIO_SECRET_KEY have the credentials.
	client, err := newClient(*endpoint, credentials.NewEnvMinio(), policy())
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	text := strings.NewReader("Stored once, however often it was sent.\n")
	stored, err := client.PutObject(ctx, *bucket, "hello.txt", text, text.Size(), minio.PutObjectOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("stored %s, %d bytes\n", stored.Key, stored.Size)
	object, err := client.GetObject(ctx, *bucket, "hello.txt", minio.GetObjectOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer object.Close()
	content, err := io.ReadAll(object)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("read %s", content)
}
