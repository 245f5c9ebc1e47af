package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/storage/v1"

	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/strategies"
)

const key = "X-Goog-Gcs-Idempotency-Token"

// gcs responds to the requests of the tests. A resumable upload goes to a URL
// in the response to its first request.
func gcs(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case query.Get("uploadType") == "resumable" && !query.Has("upload_id"):
		w.Header().Set("Location", "http://"+r.Host+r.URL.Path+"?upload_id=u1")
	case strings.HasSuffix(r.Header.Get("Content-Range"), "/*"):
		// The library requests this instead of a 308, which clients follow.
		w.Header().Set("X-Http-Status-Code-Override", "308")
	case r.Method == http.MethodPost:
		_, _ = io.WriteString(w, `{"name": "object", "generation": "1"}`)
	default:
		_, _ = io.WriteString(w, "content")
	}
}

var unavailable = sdktest.Answer(http.StatusServiceUnavailable,
	`{"error": {"code": 503, "message": "Service Unavailable"}}`, "X-Guploader-Uploadid", "some", "Retry-After", "0")

// tokens returns a new token each time.
type tokens struct{ issued atomic.Int32 }

func (s *tokens) Token() (*oauth2.Token, error) {
	return &oauth2.Token{AccessToken: fmt.Sprint("token-", s.issued.Add(1))}, nil
}

func connect(t *testing.T, s *sdktest.Server, attempts int) *storage.Service {
	t.Helper()
	p := policy()
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	if attempts > 0 {
		p.MaxAttempts = attempts
	}
	service, err := newClient(t.Context(), s.URL+"/storage/v1/", new(tokens), p)
	require.NoError(t, err)
	return service
}

// authorized checks that each request had a token of its own.
func authorized(t *testing.T, s *sdktest.Server) {
	t.Helper()
	for i, r := range s.Requests() {
		assert.Equal(t, fmt.Sprint("Bearer token-", i+1), r.Header.Get("Authorization"))
	}
}

func TestReadIsRetriedWithAFreshToken(t *testing.T) {
	s := sdktest.New(t, http.HandlerFunc(gcs), sdktest.Reset(), unavailable,
		sdktest.Answer(http.StatusTooManyRequests, `{"error": {"code": 429}}`, "Retry-After", "0"))
	object, err := connect(t, s, 0).Objects.Get("bucket", "object").Context(t.Context()).Download()
	require.NoError(t, err)
	defer object.Body.Close()
	content, err := io.ReadAll(object.Body)
	require.NoError(t, err)
	assert.Equal(t, "content", string(content))
	assert.Len(t, s.Requests(), 4, s.Summary())
	authorized(t, s)
}

// media returns the object's part of a multipart upload.
func media(t *testing.T, r *sdktest.Request) []byte {
	t.Helper()
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	require.NoError(t, err)
	parts := multipart.NewReader(bytes.NewReader(r.Content), params["boundary"])
	_, err = parts.NextPart() // the metadata
	require.NoError(t, err)
	part, err := parts.NextPart()
	require.NoError(t, err)
	content, err := io.ReadAll(part)
	require.NoError(t, err)
	return content
}

// bodies returns the same content from memory, from a file and as a stream. The
// library copies each into chunks, which can be sent again.
func bodies(t *testing.T, content []byte) map[string]io.Reader {
	t.Helper()
	file := sdktest.File(t, "upload", content)
	return map[string]io.Reader{
		"memory": bytes.NewReader(content),
		"file":   file,
		"stream": io.MultiReader(bytes.NewReader(content)),
	}
}

func TestUploadsArriveWhole(t *testing.T) {
	content := sdktest.Random(3 << 20)
	for name, body := range bodies(t, content) {
		t.Run(name, func(t *testing.T) {
			s := sdktest.New(t, http.HandlerFunc(gcs), unavailable, sdktest.Reset())
			_, err := insert(connect(t, s, 0), "bucket", "object").Media(body).Context(t.Context()).Do()
			require.NoError(t, err)
			requests := s.Requests()
			require.Len(t, requests, 3, s.Summary())
			for _, r := range requests {
				assert.Equal(t, sha256.Sum256(content), sha256.Sum256(media(t, r)))
				assert.NotEmpty(t, r.Header.Get(key))
				assert.Equal(t, requests[0].Header.Get(key), r.Header.Get(key))
			}
			authorized(t, s)
			assert.Equal(t, 1, s.Executed(http.MethodPost))
		})
	}
}

func TestChunksOfAResumableUploadAreRetried(t *testing.T) {
	const chunk = 256 << 10
	content := sdktest.Random(3*chunk + 5)
	for name, body := range bodies(t, content) {
		t.Run(name, func(t *testing.T) {
			// The response to each chunk is lost once. All chunks have one URL,
			// so the faults are here.
			lost := map[string]bool{}
			received := make([]byte, len(content))
			fault := func(s *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
				part := r.Header.Get("Content-Range")
				if part != "" {
					var from, to int
					_, err := fmt.Sscanf(part, "bytes %d-%d/", &from, &to)
					assert.NoError(t, err)
					copy(received[from:to+1], r.Content)
				}
				if part == "" || lost[part] {
					gcs(w, r.Request)
					return
				}
				lost[part] = true
				sdktest.Lost()(s, w, r)
			}
			s := sdktest.New(t, http.HandlerFunc(gcs), slices.Repeat([]sdktest.Fault{fault}, 20)...)
			service := connect(t, s, 0)
			// These successes let the default budget allow the four retries of
			// the upload.
			for range 10 {
				_, err := service.Objects.Get("bucket", "object").Context(t.Context()).Do()
				require.Error(t, err) // the content is not JSON
			}
			_, err := insert(service, "bucket", "object").Media(body, googleapi.ChunkSize(chunk)).Context(t.Context()).Do()
			require.NoError(t, err, s.Summary())
			assert.Equal(t, sha256.Sum256(content), sha256.Sum256(received))
			assert.Len(t, s.Requests(), 10+1+2*4, s.Summary())
			authorized(t, s)
		})
	}
}

func TestInsertWithoutAConditionIsSentOnce(t *testing.T) {
	for _, fault := range []sdktest.Fault{unavailable, sdktest.Lost()} {
		s := sdktest.New(t, http.HandlerFunc(gcs), fault)
		_, err := connect(t, s, 0).Objects.Insert("bucket", &storage.Object{Name: "object"}).
			Media(strings.NewReader("content")).Context(t.Context()).Do()
		require.Error(t, err)
		assert.Len(t, s.Requests(), 1, s.Summary())
		assert.LessOrEqual(t, s.Executed(http.MethodPost), 1)
	}
}

// A condition only makes the methods idempotent that change its subject.
func TestConditions(t *testing.T) {
	for request, want := range map[string]bool{
		"POST /upload/storage/v1/b/bucket/o?ifGenerationMatch=0":                         true,
		"POST /upload/storage/v1/b/bucket/o?ifMetagenerationMatch=1":                     false,
		"POST /upload/storage/v1/b/bucket/o?uploadType=resumable":                        false,
		"POST /upload/storage/v1/b/bucket/o?uploadType=resumable&upload_id=u":            true,
		"POST /storage/v1/b/bucket/o/a/rewriteTo/b/bucket/o/b?ifSourceGenerationMatch=1": false,
		"PATCH /storage/v1/b/bucket/o/a?ifMetagenerationMatch=1":                         true,
		"PATCH /storage/v1/b/bucket/o/a":                                                 false,
		"DELETE /storage/v1/b/bucket/o/a":                                                true,
		"PUT /storage/v1/b/bucket/o/a":                                                   true,
	} {
		method, uri, _ := strings.Cut(request, " ")
		assert.Equal(t, want, idempotent(httptest.NewRequest(method, uri, nil)), request)
	}
}

// Without the line in insert that turns the library's retries off, attempts
// multiply. With it, three failures of a chunk end the upload, since the policy
// has two attempts.
func TestRetriesMultiply(t *testing.T) {
	upload := func(off bool) (chunks int, err error) {
		fault := func(s *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
			if r.Header.Get("Content-Range") == "" {
				gcs(w, r.Request)
				return
			}
			chunks++
			if chunks > 3 {
				gcs(w, r.Request)
				return
			}
			unavailable(s, w, r)
		}
		s := sdktest.New(t, http.HandlerFunc(gcs), slices.Repeat([]sdktest.Fault{fault}, 10)...)
		service := connect(t, s, 2)
		call := service.Objects.Insert("bucket", &storage.Object{Name: "object"}).IfGenerationMatch(0)
		if off {
			call = insert(service, "bucket", "object")
		}
		_, err = call.Media(bytes.NewReader(sdktest.Random(256<<10+1)), googleapi.ChunkSize(256<<10)).Context(t.Context()).Do()
		return chunks, err
	}
	chunks, err := upload(true)
	require.Error(t, err)
	assert.Equal(t, 2, chunks)
	chunks, err = upload(false)
	require.NoError(t, err)
	assert.Equal(t, 5, chunks) // 4 for the first, as two attempts of two, and one for the second
}
