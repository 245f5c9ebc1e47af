package sdks

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

// minioPolicy is for S3 and compatible servers. It retries 500 InternalError
// and 503 SlowDown (docs.aws.amazon.com/AmazonS3/latest/userguide, Best
// practices for Amazon S3 errors), as the default does.
func minioPolicy() httpretry.Policy {
	return httpretry.Policy{
		MaxAttempts: 5,
		Idempotent:  minioIdempotent,
		// S3 sends no Retry-After. MinIO sends one with each 429 and 503, of
		// 60 s, or 120 s in older versions.
		MaxRetryAfter: 2 * time.Minute,
		// The SDK's bodies have no GetBody, not even those from memory and from
		// files, so the transport keeps a copy to send again. This is enough for
		// a part of 16 MiB with the signatures of its chunks, and takes as much
		// memory for each concurrent upload. A longer body, by PartSize or
		// DisableMultipart, is sent once.
		ReplayBuffer: 17 << 20,
		// An object whose transfer breaks off is continued where it broke off,
		// as long as the signature is valid.
		Resume: true,
	}
}

// minioIdempotent accepts two POSTs as well: CompleteMultipartUpload, which
// applications should be prepared to retry
// (docs.aws.amazon.com/AmazonS3/latest/API, CompleteMultipartUpload), and
// DeleteObjects. The POST that begins an upload may not be retried, since each
// one begins another upload, which costs money until it is aborted.
func minioIdempotent(req *http.Request) bool {
	if req.Method == http.MethodPost {
		query := req.URL.Query()
		return query.Has("uploadId") || query.Has("delete")
	}
	return httpretry.Idempotent(req)
}

// newMinio returns a client that signs a request before it reaches the
// transport, so all attempts have the same signature. It is valid for 15
// minutes, so keep the waits of a request shorter. Retry-Attempt is not signed.
func newMinio(s setup) (*minio.Client, error) {
	options := &minio.Options{
		Creds:     credentials.NewStaticV4("key", "secret", ""),
		Transport: s.client.Transport,
		// Without a region the SDK requests the bucket's, and needs a retry of
		// its own if that is out of date.
		Region: "us-east-1",
	}
	if !s.retries {
		// 1 turns the SDK's retries off. By default it makes up to 10 attempts,
		// and ignores Retry-After.
		options.MaxRetries = 1
	}
	return minio.New(strings.TrimPrefix(s.url, "http://"), options)
}

func statObject(ctx context.Context, client *minio.Client) error {
	_, err := client.StatObject(ctx, "bucket", "key", minio.StatObjectOptions{})
	return err
}

func putObject(ctx context.Context, client *minio.Client, body io.Reader, size int) error {
	_, err := client.PutObject(ctx, "bucket", "key", body, int64(size),
		minio.PutObjectOptions{PartSize: 8 << 20, NumThreads: 1})
	return err
}

func putShort(ctx context.Context, client *minio.Client) error {
	return putObject(ctx, client, strings.NewReader("content"), 7)
}

// beginUpload sends a POST, and each one begins another upload.
func beginUpload(ctx context.Context, client *minio.Client) error {
	_, err := minio.Core{Client: client}.NewMultipartUpload(ctx, "bucket", "key", minio.PutObjectOptions{})
	return err
}

// minioServer responds to the operations of the tests. It has one object.
func minioServer(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case query.Has("uploads"):
		fmt.Fprint(w, `<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>`)
	case r.Method == http.MethodPost:
		fmt.Fprint(w, `<CompleteMultipartUploadResult><Bucket>bucket</Bucket><Key>key</Key><ETag>"e"</ETag></CompleteMultipartUploadResult>`)
	default:
		w.Header().Set("ETag", `"e"`)
		http.ServeContent(w, r, "", time.Unix(1e9, 0), bytes.NewReader(sdktest.Random(3<<20)))
	}
}

func TestMinio(t *testing.T) {
	// MinIO adds a Retry-After, which is 0 in this test.
	slowDown := sdktest.Answer(503, `<Error><Code>SlowDown</Code></Error>`,
		"Content-Type", "application/xml", "Retry-After", "0")
	suite := sdktest.Suite[*minio.Client]{
		Service: minioServer,
		Client:  connect(newMinio),
		Policy:  minioPolicy(),
		Check: func(t testing.TB, r *sdktest.Request) {
			assert.Contains(t, r.Header.Get("Authorization"), "Signature=")
		},
		Fresh: []string{"Accept-Encoding"}, // net/http adds it only to a request without Range
	}
	suite.Failures(t, []sdktest.Call[*minio.Client]{statObject, putShort, beginUpload}, map[string]sdktest.Row{
		"slow down":       sdktest.Once(slowDown, 2, 2, 1),
		"executed, reset": sdktest.Once(sdktest.Lost, 2, 2, 1),
	})
	t.Run("resume", func(t *testing.T) {
		server, client := suite.Start(t, sdktest.Cut(1<<20), sdktest.Reset, slowDown, sdktest.Cut(100_000))
		object, err := client.GetObject(t.Context(), "bucket", "key", minio.GetObjectOptions{})
		require.NoError(t, err)
		defer object.Close()
		got, err := io.ReadAll(object)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(sdktest.Random(3<<20), got))
		require.Len(t, server.Requests(), 5, server.Summary())
		assert.Equal(t, "bytes=1048576-3145727", server.Requests()[1].Header.Get("Range"))
	})
	suite.Uploads(t, 3<<20, []sdktest.Fault{slowDown, sdktest.Reset},
		func(ctx context.Context, client *minio.Client, body io.Reader) error {
			return putObject(ctx, client, body, 3<<20)
		})
	// All requests of an upload are retried but the POST that begins it.
	t.Run("multipart", func(t *testing.T) {
		content := sdktest.Random(11 << 20)
		server, client := suite.Start(t, func(s *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
			if r.URL.Query().Has("uploads") {
				minioServer(w, r.Request)
				return
			}
			slowDown(s, w, r)
		})
		require.NoError(t, putObject(t.Context(), client, bytes.NewReader(content), len(content)))
		requests := server.Requests()
		require.Len(t, requests, 7, server.Summary()) // 1, two parts and the end twice
		got := append(requests[2].Payload(), requests[4].Payload()...)
		assert.True(t, bytes.Equal(content, got))
	})
}
