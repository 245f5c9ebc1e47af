package wrap_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/integration/nethttp/wrap"
)

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestEachModeSends(t *testing.T) {
	for _, mode := range wrap.Modes() {
		t.Run(mode, func(t *testing.T) {
			count := filepath.Join(t.TempDir(), "count")
			w, err := wrap.New(mode, count)
			require.NoError(t, err)
			want := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}
			// A func is no map key.
			base := roundTripFunc(func(req *http.Request) (*http.Response, error) {
				want.Request = req
				return want, nil
			})

			resp, err := w.Transport(base).RoundTrip(httptest.NewRequest(http.MethodGet, "http://example.test/", nil))
			require.NoError(t, err)
			defer func() { assert.NoError(t, resp.Body.Close()) }()
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			counted, err := os.ReadFile(count)
			require.NoError(t, err)
			assert.Len(t, counted, 1)
		})
	}
}

// Requests through one transport share a wrapper, and so the state of a host,
// as in a program.
func TestOneWrapperPerTransport(t *testing.T) {
	w, err := wrap.New("zero", filepath.Join(t.TempDir(), "count"))
	require.NoError(t, err)
	a, b := new(http.Transport), new(http.Transport)
	assert.Same(t, w.Transport(a), w.Transport(a))
	assert.NotSame(t, w.Transport(a), w.Transport(b))
}

func TestUnknownMode(t *testing.T) {
	_, err := wrap.New("other", "")
	assert.ErrorContains(t, err, `mode "other": want one of`)
}
