package peers_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

// whole fits, with the header, in the 4 KiB of net/http's write buffer. A longer
// body has been sent before net/http reads its end, and heimdall rewinds its
// copy as soon as there is a response: a data race.
var whole = strings.Repeat("body ", 400)

// send sends a request through a new client of peer to a handler, and returns
// the response with its body.
func send(
	t *testing.T, peer peers.Peer, handler http.HandlerFunc, method string, body io.Reader,
) (*http.Response, string) {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	client := peer.New(peers.Options{Base: server.Client().Transport, Attempts: 2, Wait: time.Millisecond})
	req, err := http.NewRequestWithContext(t.Context(), method, server.URL, body)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	received, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp, string(received)
}

// Each peer but a bare client retries a GET and returns the whole body.
func TestPeersRetryGET(t *testing.T) {
	for _, peer := range peers.All() {
		t.Run(peer.Name, func(t *testing.T) {
			var requests atomic.Int32
			resp, body := send(t, peer, func(w http.ResponseWriter, r *http.Request) {
				if requests.Add(1) == 1 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				_, _ = io.WriteString(w, whole)
			}, http.MethodGet, nil)
			assert.Equal(t, whole, body)
			want, status := 2, http.StatusOK
			if peer.Name == "http.Client" {
				want, status = 1, http.StatusServiceUnavailable
			}
			assert.EqualValues(t, want, requests.Load())
			assert.Equal(t, status, resp.StatusCode)
		})
	}
}

// Each peer sends the body of a request that succeeds as a whole.
func TestPeersSendBody(t *testing.T) {
	for _, peer := range peers.All() {
		for name, body := range map[string]io.Reader{
			"in memory": strings.NewReader(whole),
			"a stream":  io.MultiReader(strings.NewReader(whole)),
		} {
			t.Run(peer.Name+"/"+name, func(t *testing.T) {
				resp, received := send(t, peer, func(w http.ResponseWriter, r *http.Request) {
					received, _ := io.ReadAll(r.Body)
					_, _ = w.Write(received)
				}, http.MethodPost, body)
				assert.Equal(t, http.StatusOK, resp.StatusCode)
				assert.Equal(t, whole, received)
			})
		}
	}
}

// README.md has these figures, the allocations of go-retryablehttp's own Client
// and Request beyond those of a plain http.Client. The peer is its
// StandardClient, which has an http.Client around it.
func TestRetryablehttpOwnClient(t *testing.T) {
	data := make([]byte, 1024)
	base := roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.Body != nil {
			_, _ = io.Copy(io.Discard, req.Body)
			_ = req.Body.Close()
		}
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
	})
	plain := &http.Client{Transport: base}
	own := retryablehttp.NewClient()
	own.HTTPClient, own.Logger = plain, nil

	get := addedAllocs(func() (*http.Response, error) {
		req, err := http.NewRequest(http.MethodGet, "http://a.test/", nil)
		require.NoError(t, err)
		return plain.Do(req)
	}, func() (*http.Response, error) {
		req, err := retryablehttp.NewRequest(http.MethodGet, "http://a.test/", nil)
		require.NoError(t, err)
		return own.Do(req)
	})
	assert.Equal(t, 1.0, get)
	post := addedAllocs(func() (*http.Response, error) {
		req, err := http.NewRequest(http.MethodPost, "http://a.test/", bytes.NewReader(data))
		require.NoError(t, err)
		return plain.Do(req)
	}, func() (*http.Response, error) {
		req, err := retryablehttp.NewRequest(http.MethodPost, "http://a.test/", data)
		require.NoError(t, err)
		return own.Do(req)
	})
	assert.Equal(t, 3.0, post)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// addedAllocs returns how many more allocations own takes than plain.
func addedAllocs(plain, own func() (*http.Response, error)) float64 {
	allocs := func(send func() (*http.Response, error)) float64 {
		return testing.AllocsPerRun(100, func() { _, _ = send() })
	}
	return allocs(own) - allocs(plain)
}
