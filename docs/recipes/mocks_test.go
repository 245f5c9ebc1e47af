package recipes_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/h2non/gock"
	"github.com/jarcoal/httpmock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gopkg.in/dnaeon/go-vcr.v4/pkg/recorder"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/retrytest"
	"github.com/seed421102f4/httpretry/strategies"
)

func TestRetrytest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := retrytest.Base(t,
			retrytest.Status(503),
			retrytest.RetryAfter("2"),
			retrytest.Reset(),
			retrytest.Status(200),
		)
		policy := httpretry.Policy{MaxAttempts: 4}
		transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy})
		require.NoError(t, err)
		client := &http.Client{Transport: transport}
		resp, err := client.Get("https://api.example.com/") // waits in virtual time
		require.NoError(t, err)
		defer resp.Body.Close()
		assert.Equal(t, 200, resp.StatusCode)
		assert.GreaterOrEqual(t, base.Waits()[1], 2*time.Second)
	})
}

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
	url := serve(t, proxy("", play(200)))
	httpmock.Activate(t)
	httpmock.RegisterNoResponder(httpmock.NewStringResponder(404, "the mock"))
	own := newClient(t, httpretry.Config{})
	assert.Equal(t, 200, status(t, own, contract.Request(t, "GET", url, "")))
	mocked := newClient(t, httpretry.Config{Base: http.DefaultTransport})
	assert.Equal(t, 404, status(t, mocked, contract.Request(t, "GET", url, "")))
}

// TestVCR records a retry, and plays it when the server is gone.
func TestVCR(t *testing.T) {
	server := play(503, 200)
	srv := httptest.NewServer(proxy("", server))
	defer srv.Close()
	cassette := filepath.Join(t.TempDir(), "cassette")
	for range 2 {
		vcr, err := recorder.New(cassette, recorder.WithSkipRequestLatency(true))
		require.NoError(t, err)
		transport, err := httpretry.New(httpretry.Config{
			Base:   vcr,
			Policy: httpretry.Policy{Backoff: strategies.Constant{}}, // no waits
		})
		require.NoError(t, err)

		resp := contract.Send(t, transport, contract.Request(t, "GET", srv.URL, ""))
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, 1, httpretry.ResultOf(resp).Attempts, "the response has a Request of the recorder")
		require.NoError(t, vcr.Stop())
		assert.Equal(t, 2, server.count())
		srv.Close()
	}
}
