package main

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/strategies"
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
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, md5.Sum([]byte("content"))))
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "content")
	}
}

// slowDown is how S3 and MinIO refuse a request if there are too many. MinIO
// adds a Retry-After, which is 0 in these tests.
func slowDown() sdktest.Fault {
	return sdktest.Answer(http.StatusServiceUnavailable,
		`<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`,
		"Content-Type", "application/xml", "Retry-After", "0")
}

func quick() httpretry.Policy {
	p := policy()
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	return p
}

func connect(t *testing.T, s *sdktest.Server, p httpretry.Policy) *minio.Client {
	t.Helper()
	client, err := newClient(s.URL, credentials.NewStaticV4("key", secret, ""), p)
	require.NoError(t, err)
	return client
}

// signed checks the signatures of all requests, and returns their payloads.
func signed(t *testing.T, s *sdktest.Server) [][]byte {
	t.Helper()
	var payloads [][]byte
	for _, r := range s.Requests() {
		payload, _, err := sdktest.SigV4(r, secret)
		require.NoError(t, err, "attempt %s", r.Header.Get("Retry-Attempt"))
		payloads = append(payloads, payload)
	}
	return payloads
}

func TestReadIsRetriedWithTheSameSignature(t *testing.T) {
	// The reset is first, because net/http itself retries after a reset on a
	// connection that was used before.
	s := sdktest.New(t, http.HandlerFunc(s3), sdktest.Reset(), slowDown())
	info, err := connect(t, s, quick()).StatObject(t.Context(), "bucket", "key", minio.StatObjectOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, 7, info.Size)

	signed(t, s)
	requests := s.Requests()
	require.Len(t, requests, 3, s.Summary())
	for i, r := range requests {
		assert.Equal(t, requests[0].Header["Authorization"], r.Header["Authorization"])
		assert.Equal(t, []string{"", "1", "2"}[i], r.Header.Get("Retry-Attempt"))
	}
}

// A large object survives connections that break in the middle of it.
func TestGetObjectIsResumed(t *testing.T) {
	content := sdktest.Random(3 << 20)
	s := sdktest.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"e"`)
		http.ServeContent(w, r, "", time.Unix(1e9, 0), bytes.NewReader(content))
	}), sdktest.Cut(1<<20), sdktest.Reset(), slowDown(), sdktest.Cut(100_000))
	object, err := connect(t, s, quick()).GetObject(t.Context(), "bucket", "key", minio.GetObjectOptions{})
	require.NoError(t, err)
	defer object.Close()
	got, err := io.ReadAll(object)
	require.NoError(t, err)
	assert.Equal(t, sha256.Sum256(content), sha256.Sum256(got))

	signed(t, s)
	require.Len(t, s.Requests(), 5, s.Summary())
	assert.Equal(t, "bytes=1048576-3145727", s.Requests()[1].Header.Get("Range"))
}

func TestUploadsArriveWhole(t *testing.T) {
	content := sdktest.Random(3 << 20)
	file := sdktest.File(t, "upload", content)

	for name, body := range map[string]io.Reader{
		"memory": bytes.NewReader(content),
		"file":   file,
		"stream": io.MultiReader(bytes.NewReader(content)), // it cannot seek
	} {
		t.Run(name, func(t *testing.T) {
			s := sdktest.New(t, http.HandlerFunc(s3), slowDown(), sdktest.Reset())
			_, err := connect(t, s, quick()).PutObject(t.Context(), "bucket", "key", body, int64(len(content)), minio.PutObjectOptions{})
			require.NoError(t, err)
			payloads := signed(t, s)
			require.Len(t, payloads, 3, s.Summary())
			for _, payload := range payloads {
				assert.Equal(t, sha256.Sum256(content), sha256.Sum256(payload))
			}
			assert.Equal(t, 1, s.Executed(http.MethodPut))
		})
	}
}

// An upload that is longer than the ReplayBuffer is sent once, because bodies
// of the SDK have no GetBody, not even those from memory and from files.
func TestUploadBeyondTheBufferIsSentOnce(t *testing.T) {
	p := quick()
	p.ReplayBuffer = 1 << 20
	content := sdktest.Random(2 << 20)
	s := sdktest.New(t, http.HandlerFunc(s3), slowDown())
	_, err := connect(t, s, p).PutObject(t.Context(), "bucket", "key", bytes.NewReader(content), int64(len(content)), minio.PutObjectOptions{})
	assert.Equal(t, "SlowDown", minio.ToErrorResponse(err).Code)
	assert.Len(t, s.Requests(), 1)
}

func TestMultipartUpload(t *testing.T) {
	content := sdktest.Random(11 << 20)
	upload := func(s *sdktest.Server) error {
		_, err := connect(t, s, quick()).PutObject(t.Context(), "bucket", "key", bytes.NewReader(content), int64(len(content)),
			minio.PutObjectOptions{PartSize: 8 << 20, NumThreads: 1})
		return err
	}

	// Only the POST that begins the upload is not safe to retry.
	s := sdktest.New(t, http.HandlerFunc(s3), func(s *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
		if r.URL.Query().Has("uploads") {
			s3(w, r.Request)
			return
		}
		slowDown()(s, w, r)
	})
	require.NoError(t, upload(s), s.Summary())
	payloads := signed(t, s)
	require.Len(t, payloads, 7, s.Summary()) // 1, two parts and the end twice
	assert.Equal(t, sha256.Sum256(content), sha256.Sum256(append(payloads[2], payloads[4]...)))

	for _, fault := range []sdktest.Fault{slowDown(), sdktest.Lost()} {
		s = sdktest.New(t, http.HandlerFunc(s3), fault)
		require.Error(t, upload(s))
		assert.Len(t, s.Requests(), 1, s.Summary())
		assert.LessOrEqual(t, s.Executed(http.MethodPost), 1)
	}
}

// With the default of MaxRetries, attempts multiply.
func TestRetriesMultiply(t *testing.T) {
	for attempts, want := range map[int]int{1: 2, 3: 6} {
		s := sdktest.New(t, http.HandlerFunc(s3), slices.Repeat([]sdktest.Fault{slowDown()}, 10)...)
		p := quick()
		p.MaxAttempts, p.Budget = 2, httpretry.Unlimited{}
		transport, err := httpretry.New(httpretry.Config{Policy: p})
		require.NoError(t, err)
		client, err := minio.New(strings.TrimPrefix(s.URL, "http://"), &minio.Options{
			Creds: credentials.NewStaticV4("key", secret, ""), Transport: transport, MaxRetries: attempts, Region: "us-east-1",
		})
		require.NoError(t, err)
		_, err = client.StatObject(t.Context(), "bucket", "key", minio.StatObjectOptions{})
		require.Error(t, err)
		assert.Len(t, s.Requests(), want, "MaxRetries: %d", attempts)
	}
}
