package main

import (
	"bytes"
	"context"
	"crypto/sha256"
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
	case r.Method == http.MethodPost:
		_, _ = io.WriteString(w, `{"name": "object", "generation": "1"}`)
	default:
		_, _ = io.WriteString(w, "content")
	}
}

var suite = sdktest.Suite[*storage.Service]{
	Service: gcs,
	Client: func(t testing.TB, s *sdktest.Server, p httpretry.Policy) (*storage.Service, error) {
		t.Cleanup(func() { // each attempt had a token of its own
			for i, r := range s.Requests() {
				assert.Equal(t, fmt.Sprint("Bearer token-", i+1), r.Header.Get("Authorization"))
			}
		})
		return newClient(t.Context(), s.URL+"/storage/v1/", new(tokens), p)
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
	object, err := service.Objects.Get("bucket", "object").Context(ctx).Download()
	if err == nil {
		defer object.Body.Close()
		_, err = io.ReadAll(object.Body)
	}
	return err
}

func insertOnce(ctx context.Context, service *storage.Service) error {
	_, err := insert(service, "bucket", "object").Media(strings.NewReader("content")).Context(ctx).Do()
	return err
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
		"reset":           sdktest.Once(sdktest.Reset, 2, 2, 1),
		"executed, reset": sdktest.Once(sdktest.Lost, 2, 2, 1),
	})
}

// The library copies each body into chunks, which can be sent again.
func TestUploadsArriveWhole(t *testing.T) {
	content := sdktest.Random(3 << 20)
	for name, body := range sdktest.Bodies(t, content) {
		t.Run(name, func(t *testing.T) {
			server, service := suite.Start(t, unavailable, sdktest.Reset)
			_, err := insert(service, "bucket", "object").Media(body).Context(t.Context()).Do()
			require.NoError(t, err)
			server.Whole(t, 3, content, func(r *sdktest.Request) []byte { return r.Parts(t)[1] })
		})
	}
}

func TestChunksOfAResumableUploadAreRetried(t *testing.T) {
	const chunk = 256 << 10
	content := sdktest.Random(3*chunk + 5)
	for name, body := range sdktest.Bodies(t, content) {
		t.Run(name, func(t *testing.T) {
			// The response to each chunk is lost once. All chunks have one URL,
			// so the faults are here.
			lost := map[string]bool{}
			received := make([]byte, len(content))
			server, service := suite.Start(t, sdktest.Always(func(s *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
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
				sdktest.Lost(s, w, r)
			})...)
			// These successes let the default budget allow the four retries of
			// the upload.
			for range 10 {
				require.NoError(t, get(t.Context(), service))
			}
			_, err := insert(service, "bucket", "object").Media(body, googleapi.ChunkSize(chunk)).Context(t.Context()).Do()
			require.NoError(t, err, server.Summary())
			assert.Equal(t, sha256.Sum256(content), sha256.Sum256(received))
			assert.Len(t, server.Requests(), 10+1+2*4, server.Summary())
		})
	}
}

// insert turns off the retries of the library, which are of chunks only.
func TestDown(t *testing.T) {
	down := func(s *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
		if r.Header.Get("Content-Range") == "" {
			gcs(w, r.Request) // the request that begins the upload
			return
		}
		unavailable(s, w, r)
	}
	content := sdktest.Random(256<<10 + 1)
	suite.Down(t, down, func(ctx context.Context, service *storage.Service) error {
		media := insert(service, "bucket", "object").Media(bytes.NewReader(content), googleapi.ChunkSize(256<<10))
		_, err := media.Context(ctx).Do()
		return err
	}, 1+5)
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
