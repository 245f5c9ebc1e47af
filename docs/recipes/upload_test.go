package recipes_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

// newUploader returns a client for uploads that may take long. The server has
// ten seconds for its answer, from the end of the upload on.
func newUploader() (*http.Client, error) {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.ResponseHeaderTimeout = 10 * time.Second
	transport, err := httpretry.New(httpretry.Config{Base: base})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}

// slowReader is a server that takes a minute to read a body. It does not answer
// the first silent requests.
type slowReader struct {
	silent, requests int
	sync.WaitGroup
}

func (s *slowReader) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	s.requests++
	answers := s.requests > s.silent
	s.Go(func() {
		defer server.Close()
		reader := bufio.NewReader(server)
		req, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		time.Sleep(time.Minute)
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		if answers {
			_, _ = io.WriteString(server, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		}
		_, _ = reader.ReadByte() // until the client has closed the connection
	})
	return client, nil
}

// TestUploader checks that an upload may take longer than the answer, that a
// missing answer ends an attempt, and that AttemptTimeout includes the upload.
func TestUploader(t *testing.T) {
	for _, tt := range []struct {
		name   string
		policy httpretry.Policy
		silent int
		want   int // requests
		ok     bool
	}{
		{"slow upload", httpretry.Policy{}, 0, 1, true},
		{"no answer", httpretry.Policy{}, 2, 3, true},
		{"AttemptTimeout", httpretry.Policy{AttemptTimeout: 10 * time.Second}, 0, 3, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, err := newUploader()
				require.NoError(t, err)
				defer client.CloseIdleConnections()
				server := &slowReader{silent: tt.silent}
				base := client.Transport.(*httpretry.RetryTransport).Unwrap().(*http.Transport)
				base.DialContext, base.Proxy = server.dial, nil

				ctx := httpretry.WithPolicy(t.Context(), tt.policy)
				req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://api.example.com/",
					strings.NewReader(strings.Repeat("x", 1<<20)))
				require.NoError(t, err)
				resp, err := client.Do(req)
				assert.Equal(t, tt.ok, err == nil, "%v", err)
				if err == nil {
					assert.NoError(t, resp.Body.Close())
				}
				assert.Equal(t, tt.want, server.requests)
				server.Wait()
			})
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
