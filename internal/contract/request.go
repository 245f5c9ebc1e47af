package contract

import (
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Request returns a request. If body is not empty, the request has a GetBody,
// as from http.NewRequest.
func Request(t testing.TB, method, url, body string) *http.Request {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, r)
	require.NoError(t, err)
	return req
}

// Streamed returns a request whose body has no GetBody.
func Streamed(t testing.TB, method, url string, body io.ReadCloser) *http.Request {
	t.Helper()
	req := Request(t, method, url, "")
	req.Body = body
	return req
}

// ReadBody reads and closes the body of a response.
func ReadBody(t testing.TB, resp *http.Response) string {
	t.Helper()
	require.NotNil(t, resp)
	if resp.Body == nil {
		return ""
	}
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(body)
}

// Send sends req and requires a response. It returns that after it has read and
// closed the body.
func Send(t testing.TB, transport http.RoundTripper, req *http.Request) *http.Response {
	t.Helper()
	resp, err := transport.RoundTrip(req)
	require.NoError(t, err)
	ReadBody(t, resp)
	return resp
}

// ReaderFunc is a function as an io.Reader.
type ReaderFunc func([]byte) (int, error)

func (f ReaderFunc) Read(p []byte) (int, error) { return f(p) }

// Zeros is an endless stream of zeros. Reading it costs as much as a copy.
type Zeros struct{}

func (Zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// HeapInUse returns the number of bytes in live objects.
func HeapInUse() int64 {
	runtime.GC()
	runtime.GC() // for objects that the first one finalized, and for those that a sync.Pool keeps
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
