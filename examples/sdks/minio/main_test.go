package main

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
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

const secret = "a secret of the tests"

// s3 responds to the operations of the tests. It has one object.
func s3(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case r.Method == http.MethodPost && query.Has("uploads"):
		fmt.Fprint(w, `<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>`)
	case r.Method == http.MethodPost && query.Has("uploadId"):
		fmt.Fprint(w, `<CompleteMultipartUploadResult><Bucket>bucket</Bucket><Key>key</Key><ETag>"e"</ETag></CompleteMultipartUploadResult>`)
	case r.Method == http.MethodPut:
		w.Header().Set("ETag", `"e"`)
	default:
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, md5.Sum([]byte("content"))))
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "content")
	}
}

// suite checks that all attempts of a request have one valid signature.
var suite = sdktest.Suite[*minio.Client]{
	Service: s3,
	Client: func(_ testing.TB, s *sdktest.Server, p httpretry.Policy) (*minio.Client, error) {
		return newClient(s.URL, credentials.NewStaticV4("key", secret, ""), p)
	},
	Policy: policy(),
	Check:  func(t testing.TB, r *sdktest.Request) { payload(t, r) },
}

// payload checks the signature of a request, and returns its payload.
func payload(t testing.TB, r *sdktest.Request) []byte {
	t.Helper()
	payload, _, err := sdktest.SigV4(r, secret)
	assert.NoError(t, err, "attempt %s", r.Header.Get("Retry-Attempt"))
	return payload
}

// slowDown is how S3 and MinIO refuse a request if there are too many. MinIO
// adds a Retry-After, which is 0 in these tests.
var slowDown = sdktest.Answer(http.StatusServiceUnavailable,
	`<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`,
	"Content-Type", "application/xml", "Retry-After", "0")

func stat(ctx context.Context, client *minio.Client) error {
	_, err := client.StatObject(ctx, "bucket", "key", minio.StatObjectOptions{})
	return err
}

func put(ctx context.Context, client *minio.Client, body io.Reader, size int) error {
	_, err := client.PutObject(ctx, "bucket", "key", body, int64(size),
		minio.PutObjectOptions{PartSize: 8 << 20, NumThreads: 1})
	return err
}

func putObject(ctx context.Context, client *minio.Client) error {
	return put(ctx, client, strings.NewReader("content"), 7)
}

// beginUpload sends a POST, and each one begins another upload.
func beginUpload(ctx context.Context, client *minio.Client) error {
	_, err := minio.Core{Client: client}.NewMultipartUpload(ctx, "bucket", "key", minio.PutObjectOptions{})
	return err
}

func TestFailures(t *testing.T) {
	suite.Failures(t, []sdktest.Call[*minio.Client]{stat, putObject, beginUpload}, map[string]sdktest.Row{
		"slow down":       sdktest.Once(slowDown, 2, 2, 1),
		"reset":           sdktest.Once(sdktest.Reset, 2, 2, 1),
		"executed, reset": sdktest.Once(sdktest.Lost, 2, 2, 1),
	})
}

func TestDown(t *testing.T) { suite.Down(t, slowDown, stat, 5) }

// A large object survives connections that break in the middle of it.
func TestGetObjectIsResumed(t *testing.T) {
	content := sdktest.Random(3 << 20)
	s := suite
	s.Service = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"e"`)
		http.ServeContent(w, r, "", time.Unix(1e9, 0), bytes.NewReader(content))
	}
	s.Fresh = []string{"Accept-Encoding"} // net/http adds it only to a request without Range
	server, client := s.Start(t, sdktest.Cut(1<<20), sdktest.Reset, slowDown, sdktest.Cut(100_000))
	object, err := client.GetObject(t.Context(), "bucket", "key", minio.GetObjectOptions{})
	require.NoError(t, err)
	defer object.Close()
	got, err := io.ReadAll(object)
	require.NoError(t, err)
	assert.Equal(t, sha256.Sum256(content), sha256.Sum256(got))
	require.Len(t, server.Requests(), 5, server.Summary())
	assert.Equal(t, "bytes=1048576-3145727", server.Requests()[1].Header.Get("Range"))
}

func TestUploadsArriveWhole(t *testing.T) {
	content := sdktest.Random(3 << 20)
	for name, body := range sdktest.Bodies(t, content) {
		t.Run(name, func(t *testing.T) {
			server, client := suite.Start(t, slowDown, sdktest.Reset)
			require.NoError(t, put(t.Context(), client, body, len(content)))
			server.Whole(t, 3, content, func(r *sdktest.Request) []byte { return payload(t, r) })
		})
	}
}

// An upload that is longer than the ReplayBuffer is sent once, because bodies
// of the SDK have no GetBody, not even those from memory and from files.
func TestUploadBeyondTheBufferIsSentOnce(t *testing.T) {
	s := suite
	s.Policy.ReplayBuffer = 1 << 20
	server, client := s.Start(t, slowDown)
	err := put(t.Context(), client, bytes.NewReader(sdktest.Random(2<<20)), 2<<20)
	assert.Equal(t, "SlowDown", minio.ToErrorResponse(err).Code)
	assert.Len(t, server.Requests(), 1)
}

// All requests of an upload are retried but the POST that begins it.
func TestMultipartUpload(t *testing.T) {
	content := sdktest.Random(11 << 20)
	server, client := suite.Start(t, func(s *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
		if r.URL.Query().Has("uploads") {
			s3(w, r.Request)
			return
		}
		slowDown(s, w, r)
	})
	require.NoError(t, put(t.Context(), client, bytes.NewReader(content), len(content)))
	requests := server.Requests()
	require.Len(t, requests, 7, server.Summary()) // 1, two parts and the end twice
	got := append(payload(t, requests[2]), payload(t, requests[4])...)
	assert.Equal(t, sha256.Sum256(content), sha256.Sum256(got))
}
