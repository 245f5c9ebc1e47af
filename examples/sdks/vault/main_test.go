package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/strategies"
)

const token = "hvs.test"

// quick is the recommended policy without waits.
func quick() httpretry.Policy {
	p := policy()
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	return p
}

// listen starts a server that supports enough of Vault's API. At the end it
// checks that every attempt was authorized.
func listen(t *testing.T, faults ...sdktest.Fault) *sdktest.Server {
	t.Helper()
	t.Setenv("VAULT_TOKEN", token)
	mux := http.NewServeMux()
	answer := func(pattern, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, body)
		})
	}
	const metadata = `"created_time":"2026-11-01T00:00:00Z","deletion_time":"","destroyed":false`
	answer("GET /v1/secret/data/app",
		`{"data":{"data":{"value":"old"},"metadata":{"version":1,`+metadata+`}}}`)
	answer("PUT /v1/secret/data/app", `{"data":{"version":2,`+metadata+`}}`)
	answer("GET /v1/database/creds/role", `{"lease_id":"l","data":{"username":"u","password":"p"}}`)
	answer("GET /v1/sys/health", `{"initialized":true}`)
	server := sdktest.New(t, mux, faults...)
	t.Cleanup(func() {
		for _, r := range server.Requests() {
			assert.Equal(t, token, r.Header.Get("X-Vault-Token"), "%s %s", r.Method, r.RequestURI)
		}
	})
	return server
}

// start returns a server and a client for it.
func start(
	t *testing.T, p httpretry.Policy, faults ...sdktest.Fault,
) (*sdktest.Server, *api.Client) {
	t.Helper()
	server := listen(t, faults...)
	client, err := newClient(server.URL, p)
	require.NoError(t, err)
	return server, client
}

// failed is a response like Vault's.
func failed(status int, text string, header ...string) sdktest.Fault {
	return sdktest.Answer(status, `{"errors":["`+text+`"]}`, header...)
}

func get(ctx context.Context, client *api.Client) error {
	_, err := client.KVv2("secret").Get(ctx, "app")
	return err
}

func put(ctx context.Context, client *api.Client) error {
	_, err := client.KVv2("secret").Put(ctx, "app", map[string]any{"value": "new"})
	return err
}

// credentials creates an account of a database, by GET.
func credentials(ctx context.Context, client *api.Client) error {
	_, err := client.Logical().ReadWithContext(ctx, "database/creds/role")
	return err
}

func TestRun(t *testing.T) {
	server, client := start(t, quick(), failed(429, "request path quota exceeded", "Retry-After", "0"))
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), client.KVv2("secret"), "app", "new", &out))
	assert.Equal(t, "app has version 1\nstored version 2\n", out.String())
	assert.Equal(t, `GET /v1/secret/data/app ""
GET /v1/secret/data/app "1"
PUT /v1/secret/data/app ""
PUT /v1/secret/data/app "1"
`, server.Summary())
	for _, r := range server.Requests()[2:] {
		assert.JSONEq(t, `{"data":{"value":"new"},"options":{"cas":1}}`, string(r.Content))
	}
}

func TestFailures(t *testing.T) {
	for name, tt := range map[string]struct {
		fault            sdktest.Fault
		get, put, create int // requests; the call succeeds if there are two
	}{
		"a quota":         {failed(429, "request path quota exceeded"), 2, 2, 2},
		"not replicated":  {failed(412, "required index state not present"), 2, 2, 2},
		"sealed":          {failed(503, "Vault is sealed"), 2, 1, 1},
		"500":             {failed(500, "internal error"), 2, 1, 1},
		"502":             {failed(502, "error of a third party"), 2, 1, 1},
		"reset":           {sdktest.Reset(), 2, 1, 1},
		"executed, reset": {sdktest.Lost(), 2, 1, 1},
		"forbidden":       {failed(403, "permission denied"), 1, 1, 1},
		"not the version": {failed(400, "check-and-set parameter did not match"), 1, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			for call, do := range map[string]struct {
				call func(context.Context, *api.Client) error
				want int
			}{"get": {get, tt.get}, "put": {put, tt.put}, "credentials": {credentials, tt.create}} {
				server, client := start(t, quick(), tt.fault)
				err := do.call(t.Context(), client)
				assert.Len(t, server.Requests(), do.want, call)
				assert.Equal(t, do.want == 2, err == nil, "%s: %v", call, err)
			}
		})
	}
}

// The status of a node's health is an answer, whatever it means elsewhere.
func TestHealth(t *testing.T) {
	for _, status := range []int{429, 472, 473, 501, 503} {
		server, client := start(t, quick(), sdktest.Answer(status, `{"initialized":true,"standby":true}`))
		resp, err := client.Logical().ReadRawWithContext(t.Context(), "sys/health")
		assert.Equal(t, status != 429, err != nil, "api takes only a 429 for a success: %v", err)
		assert.Len(t, server.Requests(), 1, status)
		require.NotNil(t, resp)
		assert.Equal(t, status, resp.StatusCode)
		assert.NoError(t, resp.Body.Close())
	}
	server, client := start(t, quick(), sdktest.Reset())
	_, err := client.Sys().HealthWithContext(t.Context())
	require.NoError(t, err)
	assert.Len(t, server.Requests(), 2, "a connection that broke is not an answer")
}

// A standby redirects to the active node. api follows that itself.
func TestRedirect(t *testing.T) {
	active := listen(t)
	redirect := func(_ *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
		http.Redirect(w, r.Request, active.URL+r.RequestURI, http.StatusTemporaryRedirect)
	}
	standby, client := start(t, quick(), redirect)
	require.NoError(t, put(t.Context(), client))
	assert.Len(t, standby.Requests(), 1)
	assert.Len(t, active.Requests(), 1)
}

// VAULT_MAX_RETRIES does not turn the retries of api on again.
func TestEnvironment(t *testing.T) {
	t.Setenv("VAULT_MAX_RETRIES", "5")
	sealed := slices.Repeat([]sdktest.Fault{failed(503, "Vault is sealed")}, 30)
	server, client := start(t, quick(), sealed...)
	require.Error(t, get(t.Context(), client))
	assert.Len(t, server.Requests(), 3)
}

// Without MaxRetries, attempts multiply, and api writes again after a 503.
func TestRetriesMultiply(t *testing.T) {
	p := quick()
	p.Budget = httpretry.Unlimited{} // the default would end this earlier
	down := slices.Repeat([]sdktest.Fault{failed(500, "internal error")}, 30)
	for _, tt := range []struct {
		do            func(context.Context, *api.Client) error
		with, without int // with and without that line
	}{{get, 3, 9}, {put, 1, 3}, {credentials, 1, 3}} {
		server, client := start(t, p, down...)
		require.Error(t, tt.do(t.Context(), client))
		assert.Len(t, server.Requests(), tt.with)

		server, client = start(t, p, down...)
		client.SetMaxRetries(2) // the default
		client.SetMinRetryWait(time.Nanosecond)
		client.SetMaxRetryWait(time.Nanosecond)
		require.Error(t, tt.do(t.Context(), client))
		assert.Len(t, server.Requests(), tt.without)
	}
}
