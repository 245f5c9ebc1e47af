package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/storage/v1"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

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
	default:
		_, _ = io.WriteString(w, `{"name": "object", "generation": "1"}`)
	}
}

func Example() {
	main()
	// Output:
	// attempt 1: POST /upload/storage/v1/b/bucket/o: 503 Service Unavailable
	// attempt 2: POST /upload/storage/v1/b/bucket/o: 200 OK
	// stored hello.txt, generation 1
}

var suite = sdktest.Suite[*storage.Service]{
	Service: gcs,
	Client: func(t testing.TB, s *sdktest.Server, p httpretry.Policy) (*storage.Service, error) {
		t.Cleanup(func() { // each attempt had a token of its own
			for i, r := range s.Requests() {
				assert.Equal(t, fmt.Sprint("Bearer token-", i+1), r.Header.Get("Authorization"))
			}
		})
		return newClient(t.Context(), s.URL+"/storage/v1/", new(tokens), httpretry.Config{Policy: p})
	},
	Policy: policy(),
	Fresh:  []string{"Authorization"},
}

// tokens returns a new token each time.
type tokens struct{ issued atomic.Int32 }

func (s *tokens) Token() (*oauth2.Token, error) {
	return &oauth2.Token{AccessToken: fmt.Sprint("token-", s.issued.Add(1))}, nil
}

var unavailable = sdktest.Answer(http.StatusServiceUnavailable,
	`{"error": {"code": 503, "message": "Service Unavailable"}}`, "X-Guploader-Uploadid", "some", "Retry-After", "0")

func get(ctx context.Context, service *storage.Service) error {
	_, err := service.Objects.Get("bucket", "object").Context(ctx).Do()
	return err
}

func upload(ctx context.Context, service *storage.Service, body io.Reader) error {
	_, err := insert(service, "bucket", "object").Media(body).Context(ctx).Do()
	return err
}

func insertOnce(ctx context.Context, service *storage.Service) error {
	return upload(ctx, service, strings.NewReader("content"))
}

func insertAlways(ctx context.Context, service *storage.Service) error {
	_, err := service.Objects.Insert("bucket", &storage.Object{Name: "object"}).
		Media(strings.NewReader("content")).Context(ctx).Do()
	return err
}

func TestFailures(t *testing.T) {
	calls := []sdktest.Call[*storage.Service]{get, insertOnce, insertAlways}
	suite.Failures(t, calls, map[string]sdktest.Row{
		"429":             sdktest.Once(sdktest.Answer(429, `{"error": {"code": 429}}`, "Retry-After", "0"), 2, 2, 1),
		"503":             sdktest.Once(unavailable, 2, 2, 1),
		"executed, reset": sdktest.Once(sdktest.Lost, 2, 2, 1),
	})
	// The library copies each body into chunks, which can be sent again.
	suite.Uploads(t, 3<<20, []sdktest.Fault{unavailable, sdktest.Reset}, upload)
}

// The response to each chunk is lost once. All chunks have one URL, so the
// faults are here.
func TestChunksOfAResumableUploadAreRetried(t *testing.T) {
	const chunk = 256 << 10
	content := sdktest.Random(3*chunk + 5)
	received, lost := make([]byte, len(content)), map[string]bool{}
	server, service := suite.Start(t, sdktest.Always(func(s *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
		part := r.Header.Get("Content-Range")
		if part == "" {
			gcs(w, r.Request)
			return
		}
		var from, to int
		_, err := fmt.Sscanf(part, "bytes %d-%d/", &from, &to)
		assert.NoError(t, err)
		copy(received[from:to+1], r.Content)
		if lost[part] {
			gcs(w, r.Request)
			return
		}
		lost[part] = true
		sdktest.Lost(s, w, r)
	})...)
	// These successes let the default budget allow the four retries.
	for range 10 {
		require.NoError(t, get(t.Context(), service))
	}
	stream := io.MultiReader(bytes.NewReader(content))
	_, err := insert(service, "bucket", "object").Media(stream, googleapi.ChunkSize(chunk)).Context(t.Context()).Do()
	require.NoError(t, err, server.Summary())
	assert.True(t, bytes.Equal(content, received))
	assert.Len(t, server.Requests(), 10+1+2*4, server.Summary())
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
	} {
		method, uri, _ := strings.Cut(request, " ")
		assert.Equal(t, want, idempotent(httptest.NewRequest(method, uri, nil)), request)
	}
}
