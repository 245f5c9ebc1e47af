package sdks

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/vault/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/policies"
)

// vaultPolicy retries a 412 and a 429 of any request, a write included. A 412
// means that the node does not have the data of an earlier write yet, and has
// not processed the request (developer.hashicorp.com/vault/api-docs, HTTP
// status codes). A rate limit quota refuses a request with a 429 before Vault
// processes it.
func vaultPolicy() httpretry.Policy {
	p := policies.Statuses(httpretry.Policy{Idempotent: vaultIdempotent}, httpretry.Unprocessed,
		http.StatusPreconditionFailed, http.StatusTooManyRequests)
	refused := p.Classify
	p.Classify = func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
		// Each status of sys/health is the health of the node, such as 429 for a
		// standby, and not a failure.
		if err == nil && strings.HasSuffix(req.URL.Path, "/sys/health") {
			return httpretry.Final
		}
		return refused(req, resp, err)
	}
	return p
}

// vaultIdempotent excludes writes, which api sends as PUT, whatever they do. It
// also excludes the GETs that create credentials, such as those of the database
// engine. Each of them is a lease that nobody uses if its response is lost.
func vaultIdempotent(req *http.Request) bool {
	switch req.Method {
	case http.MethodPut:
		return false
	case http.MethodGet:
		return !strings.Contains(req.URL.Path, "/creds/")
	}
	return httpretry.Idempotent(req)
}

// newVault uses the configuration of the environment, which api.DefaultConfig
// reads. In a program, the transport of that configuration is
// httpretry.Config.Base, for its certificates.
func newVault(s setup) (*api.Client, error) {
	config := api.DefaultConfig()
	config.Address, config.HttpClient.Transport = s.url, s.client.Transport
	if !s.retries {
		// Set it here, since VAULT_MAX_RETRIES may be set. Otherwise api makes
		// up to 3 attempts, for writes as well.
		config.MaxRetries = 0
	}
	client, err := api.NewClient(config)
	if err == nil {
		client.SetToken("hvs.test")
	}
	return client, err
}

func getSecret(ctx context.Context, client *api.Client) error {
	_, err := client.KVv2("secret").Get(ctx, "app")
	return err
}

func putSecret(ctx context.Context, client *api.Client) error {
	_, err := client.KVv2("secret").Put(ctx, "app", map[string]any{"value": "new"})
	return err
}

// createCredentials creates an account of a database, by GET.
func createCredentials(ctx context.Context, client *api.Client) error {
	_, err := client.Logical().ReadWithContext(ctx, "database/creds/role")
	return err
}

func TestVault(t *testing.T) {
	t.Setenv("VAULT_MAX_RETRIES", "5") // it has no effect
	const metadata = `"created_time":"2026-11-01T00:00:00Z","deletion_time":"","destroyed":false`
	suite := sdktest.Suite[*api.Client]{
		Service: sdktest.API(map[string]string{
			"GET /v1/secret/data/app":     `{"data":{"data":{},"metadata":{"version":1,` + metadata + `}}}`,
			"PUT /v1/secret/data/app":     `{"data":{"version":2,` + metadata + `}}`,
			"GET /v1/database/creds/role": `{"lease_id":"l","data":{"username":"u"}}`,
			"GET /v1/sys/health":          `{"initialized":true}`,
		}),
		Client: connect(newVault),
		Policy: vaultPolicy(),
		Check:  sdktest.Has("X-Vault-Token", "hvs.test"),
	}
	suite.Failures(t, []sdktest.Call[*api.Client]{getSecret, putSecret, createCredentials}, map[string]sdktest.Row{
		"a quota":         sdktest.Once(sdktest.Answer(429, `{}`), 2, 2, 2),
		"not replicated":  sdktest.Once(sdktest.Answer(412, `{}`), 2, 2, 2),
		"sealed":          sdktest.Once(sdktest.Answer(503, `{}`), 2, 1, 1),
		"executed, reset": sdktest.Once(sdktest.Lost, 2, 1, 1),
		"not the version": sdktest.Once(sdktest.Answer(400, `{}`), 1, 1, 1),
	})
	t.Run("health", func(t *testing.T) {
		for _, status := range []int{429, 472, 501, 503} {
			server, client := suite.Start(t, sdktest.Answer(status, `{}`))
			resp, err := client.Logical().ReadRawWithContext(t.Context(), "sys/health")
			assert.Equal(t, status != 429, err != nil, "api takes only a 429 for a success: %v", err)
			assert.Len(t, server.Requests(), 1, status)
			assert.NoError(t, resp.Body.Close())
		}
		server, client := suite.Start(t, sdktest.Reset)
		_, err := client.Sys().HealthWithContext(t.Context())
		require.NoError(t, err)
		assert.Len(t, server.Requests(), 2, "a connection that broke is not an answer")
	})
}
