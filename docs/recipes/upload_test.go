package recipes_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
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

// newUploader returns a transport for uploads that may take long. The server has
// ten seconds for its answer, from the end of the upload on.
func newUploader() (*httpretry.RetryTransport, error) {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.ResponseHeaderTimeout = 10 * time.Second
	return httpretry.New(httpretry.Config{Base: base})
}

// TestUploader checks that an upload may take longer than the answer, that a
// missing answer ends an attempt, and that AttemptTimeout includes the upload.
// The server takes a minute to read a body, and does not answer the first silent
// requests.
func TestUploader(t *testing.T) {
	for name, tt := range map[string]struct {
		policy httpretry.Policy
		silent int64
		want   int64 // requests
		ok     bool
	}{
		"slow upload":    {httpretry.Policy{}, 0, 1, true},
		"no answer":      {httpretry.Policy{}, 2, 3, true},
		"AttemptTimeout": {httpretry.Policy{AttemptTimeout: 10 * time.Second}, 0, 3, false},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			transport, err := newUploader()
			require.NoError(t, err)
			defer transport.CloseIdleConnections()
			t.Cleanup(func() { time.Sleep(time.Second) }) // until the server's connections end
			var requests atomic.Int64
			server := faults.Pipe(t, func(_ http.ResponseWriter, r *http.Request) {
				answers := requests.Add(1) > tt.silent
				time.Sleep(time.Minute)
				if _, err := io.Copy(io.Discard, r.Body); err == nil && !answers {
					<-r.Context().Done()
				}
			})
			base := transport.Unwrap().(*http.Transport)
			base.DialContext, base.Proxy = server.DialContext, nil

			req := contract.Request(t, "PUT", "http://api.example.com/", strings.Repeat("x", 1<<20))
			resp, err := transport.RoundTrip(
				req.WithContext(httpretry.WithPolicy(t.Context(), tt.policy)))
			assert.Equal(t, tt.ok, err == nil, "%v", err)
			if err == nil {
				assert.NoError(t, resp.Body.Close())
			}
			assert.Equal(t, tt.want, requests.Load())
		})
	}
}

// TestUpload checks that each attempt has the whole file and its length, also
// after a redirect. Without ContentLength, the upload is chunked.
func TestUpload(t *testing.T) {
	name, content := filepath.Join(t.TempDir(), "file"), strings.Repeat("0123456789", 100_000)
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	for _, chunked := range []bool{false, true} {
		statuses := []int{503, 307, 503, 200}
		var lengths []int64
		url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			lengths = append(lengths, r.ContentLength)
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.True(t, content == string(body), "got %d bytes", len(body))
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(statuses[len(lengths)-1])
		}))
		client := newClient(t, httpretry.Config{Policy: httpretry.Policy{
			Backoff: strategies.Constant{Wait: time.Millisecond},
		}})
		req, err := newUpload(t.Context(), url, name)
		require.NoError(t, err)
		length := req.ContentLength
		if chunked {
			req.ContentLength, length = 0, -1
		}
		assert.Equal(t, 200, status(t, client, req))
		assert.Equal(t, []int64{length, length, length, length}, lengths)
	}
}
