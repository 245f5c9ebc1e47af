package recipes_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// newUpload returns a request that uploads a file. Each attempt, and each
// redirect, opens the file again.
func newUpload(ctx context.Context, url, name string) (*http.Request, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	req.ContentLength = info.Size() // net/http sets it for bodies in memory only
	req.GetBody = func() (io.ReadCloser, error) { return os.Open(name) }
	return req, nil
}

// TestUpload checks that each attempt has the whole file and its length, also
// after a redirect. Without ContentLength, the upload is chunked.
func TestUpload(t *testing.T) {
	name, content := filepath.Join(t.TempDir(), "file"), strings.Repeat("0123456789", 100_000)
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	for _, chunked := range []bool{false, true} {
		statuses := []int{503, 307, 503, 200}
		var lengths []int64
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			lengths = append(lengths, r.ContentLength)
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.True(t, content == string(body), "got %d bytes", len(body))
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(statuses[0])
			statuses = statuses[1:]
		}))
		defer srv.Close()
		client := newClient(t, httpretry.Config{Policy: httpretry.Policy{
			Backoff: strategies.Constant{Wait: time.Millisecond},
		}})
		req, err := newUpload(t.Context(), srv.URL, name)
		require.NoError(t, err)
		length := req.ContentLength
		if chunked {
			req.ContentLength, length = 0, -1
		}
		assert.Equal(t, 200, status(t, client, req))
		assert.Equal(t, []int64{length, length, length, length}, lengths)
	}
}

// TestUploadOfAnOpenFile checks that a file needs no GetBody to be retried.
func TestUploadOfAnOpenFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte(strings.Repeat("x", 100_000)), 0o600))
	server := play(503, 200)
	client := newClient(t, httpretry.Config{
		Base: server, Policy: httpretry.Policy{Backoff: strategies.Constant{Wait: time.Millisecond}},
	})
	req, err := newUpload(t.Context(), "https://api.example.com/", name)
	require.NoError(t, err)
	req.GetBody = nil
	assert.Equal(t, 200, status(t, client, req))
	for _, body := range server.bodies() {
		assert.Len(t, body, 100_000)
	}
}
