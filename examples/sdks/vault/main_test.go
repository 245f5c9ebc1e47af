package main

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/hashicorp/vault/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

const metadata = `"created_time":"2026-11-01T00:00:00Z","deletion_time":"","destroyed":false`

var suite = sdktest.Suite[*api.Client]{
	Service: sdktest.API(map[string]string{
		"GET /v1/secret/data/app":     `{"data":{"data":{"value":"old"},"metadata":{"version":1,` + metadata + `}}}`,
		"PUT /v1/secret/data/app":     `{"data":{"version":2,` + metadata + `}}`,
		"GET /v1/database/creds/role": `{"lease_id":"l","data":{"username":"u","password":"p"}}`,
		"GET /v1/sys/health":          `{"initialized":true}`,
	}),
	Client: func(_ testing.TB, s *sdktest.Server, p httpretry.Policy) (*api.Client, error) {
		client, err := newClient(s.URL, p)
		if err == nil {
			client.SetToken("hvs.test")
		}
		return client, err
	},
	Policy: policy(),
	Check:  sdktest.Has("X-Vault-Token", "hvs.test"),
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
	second := suite.Run(t, failed(429, "request path quota exceeded"), "app has version 1\nstored version 2\n",
		func(ctx context.Context, client *api.Client, out io.Writer) error {
			return run(ctx, client.KVv2("secret"), "app", "new", out)
		})
	assert.JSONEq(t, `{"data":{"value":"new"},"options":{"cas":1}}`, string(second.Content))
}

func TestFailures(t *testing.T) {
	suite.Failures(t, []sdktest.Call[*api.Client]{get, put, credentials}, map[string]sdktest.Row{
		"a quota":         sdktest.Once(failed(429, "request path quota exceeded"), 2, 2, 2),
		"not replicated":  sdktest.Once(failed(412, "required index state not present"), 2, 2, 2),
		"sealed":          sdktest.Once(failed(503, "Vault is sealed"), 2, 1, 1),
		"500":             sdktest.Once(failed(500, "internal error"), 2, 1, 1),
		"502":             sdktest.Once(failed(502, "error of a third party"), 2, 1, 1),
		"reset":           sdktest.Once(sdktest.Reset, 2, 1, 1),
		"executed, reset": sdktest.Once(sdktest.Lost, 2, 1, 1),
		"forbidden":       sdktest.Once(failed(403, "permission denied"), 1, 1, 1),
		"not the version": sdktest.Once(failed(400, "check-and-set parameter did not match"), 1, 1, 1),
	})
}

// VAULT_MAX_RETRIES does not turn the retries of api on again.
func TestDown(t *testing.T) {
	t.Setenv("VAULT_MAX_RETRIES", "5")
	suite.Down(t, failed(503, "Vault is sealed"), get, 3)
}

// The status of a node's health is an answer, whatever it means elsewhere.
func TestHealth(t *testing.T) {
	for _, status := range []int{429, 472, 473, 501, 503} {
		server, client := suite.Start(t, sdktest.Answer(status, `{"initialized":true,"standby":true}`))
		resp, err := client.Logical().ReadRawWithContext(t.Context(), "sys/health")
		assert.Equal(t, status != 429, err != nil, "api takes only a 429 for a success: %v", err)
		assert.Len(t, server.Requests(), 1, status)
		require.NotNil(t, resp)
		assert.Equal(t, status, resp.StatusCode)
		assert.NoError(t, resp.Body.Close())
	}
	server, client := suite.Start(t, sdktest.Reset)
	_, err := client.Sys().HealthWithContext(t.Context())
	require.NoError(t, err)
	assert.Len(t, server.Requests(), 2, "a connection that broke is not an answer")
}

// A standby redirects to the active node. api follows that itself.
func TestRedirect(t *testing.T) {
	active, _ := suite.Start(t)
	redirect := func(_ *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
		http.Redirect(w, r.Request, active.URL+r.RequestURI, http.StatusTemporaryRedirect)
	}
	standby, client := suite.Start(t, redirect)
	require.NoError(t, put(t.Context(), client))
	assert.Len(t, standby.Requests(), 1)
	assert.Len(t, active.Requests(), 1)
}
