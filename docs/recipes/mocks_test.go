package recipes_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/h2non/gock"
	"github.com/jarcoal/httpmock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gopkg.in/dnaeon/go-vcr.v4/pkg/recorder"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

func TestHTTPMock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := httpmock.NewMockTransport()
		mock.RegisterResponder("GET", "https://api.example.com/items",
			httpmock.NewStringResponder(503, "").Then(httpmock.NewStringResponder(200, "ok")))
		transport, err := httpretry.New(httpretry.Config{Base: mock})
		require.NoError(t, err)
		client := &http.Client{Transport: transport}

		resp, err := client.Get("https://api.example.com/items") // waits in virtual time
		require.NoError(t, err)
		defer resp.Body.Close()
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, 2, mock.GetTotalCallCount())
	})
}

// TestGock checks that gock.InterceptClient answers requests before they reach
// the transport, so none is retried, and that gock works as Base.
func TestGock(t *testing.T) {
	for _, above := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			defer gock.Off()
			gock.New("https://api.example.com").Reply(503)
			gock.New("https://api.example.com").Reply(200)
			client := newClient(t, httpretry.Config{Base: gock.NewTransport()})
			if above {
				gock.InterceptClient(client)
			}
			assert.Equal(t, above, status(t, client, request(t, "GET", "")) == 503)
			assert.Equal(t, above, gock.IsPending())
		})
	}
}

// TestMockedDefaultTransport checks that a nil Base does not use a mock in
// http.DefaultTransport.
func TestMockedDefaultTransport(t *testing.T) {
	srv := httptest.NewServer(play(200))
	defer srv.Close()
	httpmock.Activate(t)
	httpmock.RegisterNoResponder(httpmock.NewStringResponder(404, "the mock"))
	for _, tt := range []struct {
		base http.RoundTripper
		want int
	}{{nil, 200}, {http.DefaultTransport, 404}} {
		client := newClient(t, httpretry.Config{Base: tt.base})
		resp, err := client.Get(srv.URL)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, tt.want, resp.StatusCode)
	}
}

// newRecorded returns a client that records responses in a cassette, or plays
// them if the cassette exists.
func newRecorded(cassette string) (*http.Client, *recorder.Recorder, error) {
	vcr, err := recorder.New(cassette, recorder.WithSkipRequestLatency(true))
	if err != nil {
		return nil, nil, err
	}
	transport, err := httpretry.New(httpretry.Config{
		Base:   vcr,
		Policy: httpretry.Policy{Backoff: strategies.Constant{}}, // no waits
	})
	if err != nil {
		return nil, nil, err
	}
	return &http.Client{Transport: transport}, vcr, nil
}

// TestVCR records a retry, and plays it when the server is gone.
func TestVCR(t *testing.T) {
	server := play(503, 200)
	srv := httptest.NewServer(server)
	defer srv.Close()
	cassette := filepath.Join(t.TempDir(), "cassette")
	for range 2 {
		client, vcr, err := newRecorded(cassette)
		require.NoError(t, err)
		resp, err := client.Get(srv.URL)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, 1, httpretry.ResultOf(resp).Attempts, "the response has a Request of the recorder")
		require.NoError(t, vcr.Stop())
		assert.Equal(t, 2, server.count())
		srv.Close()
	}
}
