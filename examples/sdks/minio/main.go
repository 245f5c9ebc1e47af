// Minio stores an object in a server with S3's API. httpretry retries instead
// of the SDK.
package main

import (
	"context"
	"flag"
	"fmt"
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

// policy is for S3 and compatible servers. It retries 500 InternalError and 503
// SlowDown (docs.aws.amazon.com/AmazonS3/latest/userguide, Best practices for
// Amazon S3 errors), as the default does.
func policy() httpretry.Policy {
	return httpretry.Policy{
		MaxAttempts: 5,
		Idempotent:  idempotent,
		// S3 sends no Retry-After. MinIO sends one with each 429 and 503, of
		// 60 s, or 120 s in older versions.
		MaxRetryAfter: 2 * time.Minute,
		// The SDK's bodies have no GetBody, so the transport keeps a copy to
		// send again. This is enough for a part of 16 MiB with the signatures
		// of its chunks, and takes as much memory for each concurrent upload. A
		// longer body, by PartSize or DisableMultipart, is sent once.
		ReplayBuffer: 17 << 20,
		// An object whose transfer breaks off is continued where it broke off,
		// as long as the signature is valid.
		Resume: true,
	}
}

// idempotent accepts two POSTs as well: CompleteMultipartUpload, which
// applications should be prepared to retry
// (docs.aws.amazon.com/AmazonS3/latest/API, CompleteMultipartUpload), and
// DeleteObjects. The POST that begins an upload may not be retried, since each
// one begins another upload, which costs money until it is aborted.
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
		// The SDK signs a request before it reaches the transport, so all
		// attempts have the same signature. It is valid for 15 minutes, so keep
		// the waits of a request shorter. Retry-Attempt is not signed.
		Transport: transport,
		// 1 turns the SDK's retries off. By default it makes up to 10 attempts,
		// each of which would be up to 5 here, and ignores Retry-After.
		MaxRetries: 1,
		// Without a region the SDK requests the bucket's, and needs a retry of
		// its own if that is out of date.
		Region: "us-east-1",
	})
}

func main() {
	endpoint := flag.String("endpoint", "http://localhost:9000", "`URL` of the server")
	bucket := flag.String("bucket", "example", "`name` of a bucket to write to")
	flag.Parse()
	// The credentials are in MINIO_ACCESS_KEY and MINIO_SECRET_KEY.
	client, err := newClient(*endpoint, credentials.NewEnvMinio(), policy())
	if err != nil {
		log.Fatal(err)
	}
	text := strings.NewReader("Stored once, even if it was sent twice.\n")
	stored, err := client.PutObject(context.Background(), *bucket, "hello.txt", text, text.Size(), minio.PutObjectOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("stored %s, %d bytes\n", stored.Key, stored.Size)
}
