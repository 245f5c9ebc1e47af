package recipes_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/retrytest"
)

type roundTripFunc = contract.BaseFunc

// script is a base transport that plays answers. The last one remains.
type script struct{ *contract.Script }

// play returns a script that answers with one status after another.
func play(statuses ...int) script {
	var steps []contract.Step
	for _, status := range statuses {
		steps = append(steps, retrytest.Status(status))
	}
	return script{contract.Play(steps...)}
}

// bodies returns the bodies of the requests that arrived.
func (s script) bodies() (bodies []string) {
	for _, request := range s.Attempts() {
		bodies = append(bodies, request.Body)
	}
	return bodies
}

// headers returns a header of all requests that arrived.
func (s script) headers(name string) (values []string) {
	for _, request := range s.Attempts() {
		values = append(values, request.Header.Get(name))
	}
	return values
}

// count returns the number of requests that arrived.
func (s script) count() int { return len(s.Attempts()) }

// respond answers with a status, and a header as names and values in turn.
func respond(req *http.Request, status int, header ...string) (*http.Response, error) {
	return contract.Play(retrytest.Status(status, header...)).RoundTrip(req)
}

// proxy returns a handler that sends all requests to a server, by transport. It
// also makes a script the handler of a real server.
func proxy(server string, transport http.RoundTripper) http.Handler {
	return &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", strings.TrimPrefix(server, "http://")
	}}
}

// serve returns the URL of a handler.
func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return srv.URL
}

func newClient(t *testing.T, cfg httpretry.Config) *http.Client {
	t.Helper()
	return &http.Client{Transport: contract.Unchecked(t, cfg)}
}

// request makes a request for an address that no test connects to.
func request(t *testing.T, method, body string) *http.Request {
	t.Helper()
	return contract.Request(t, method, "https://api.example.com/", body)
}

// status sends a request and returns the response's status.
func status(t *testing.T, client *http.Client, req *http.Request) int {
	t.Helper()
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}
