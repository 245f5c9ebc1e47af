// Vault reads a secret and stores its next version with Vault's api. httpretry
// retries instead of api:
//
//	VAULT_ADDR=https://vault.test VAULT_TOKEN=... go run ./vault -path app -value new
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/hashicorp/vault/api"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

// policy retries a 412 and a 429 of any request, a write included. A 412 means
// that the node does not have the data of an earlier write yet, and has not
// processed the request (developer.hashicorp.com/vault/api-docs, HTTP status
// codes). A rate limit quota refuses a request with a 429 before Vault
// processes it.
func policy() httpretry.Policy {
	p := policies.Statuses(httpretry.Policy{Idempotent: idempotent}, httpretry.Unprocessed,
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

// idempotent excludes writes, which api sends as PUT, whatever they do. A PUT
// may log in, wrap a secret or add a version of one. It also excludes the GETs
// that create credentials, such as those of the database engine. Each of them
// is a lease that nobody uses if its response is lost.
func idempotent(req *http.Request) bool {
	switch req.Method {
	case http.MethodPut:
		return false
	case http.MethodGet:
		return !strings.Contains(req.URL.Path, "/creds/")
	}
	return httpretry.Idempotent(req)
}

// newClient returns a client with the configuration of the environment, which
// api.DefaultConfig reads. The transport with its certificates is Base. The
// Timeout of the configuration, 60 s by default, covers all attempts.
func newClient(endpoint string, policy httpretry.Policy) (*api.Client, error) {
	config := api.DefaultConfig()
	if config.Error != nil {
		return nil, config.Error
	}
	base := config.HttpClient.Transport
	transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy})
	if err != nil {
		return nil, err
	}
	config.HttpClient.Transport = transport
	// api makes up to 3 attempts, for writes as well. With 3 attempts each
	// here, that would be 9. Set it here, since VAULT_MAX_RETRIES may be set.
	config.MaxRetries = 0
	if endpoint != "" {
		config.Address = endpoint
	}
	return api.NewClient(config)
}

func run(ctx context.Context, secrets *api.KVv2, path, value string, out io.Writer) error {
	secret, err := secrets.Get(ctx, path)
	if err != nil {
		return err
	}
	version := secret.VersionMetadata.Version
	fmt.Fprintf(out, "%s has version %d\n", path, version)

	// Without a response, the version may exist, so the request is not retried.
	// WithCheckAndSet makes it safe to run the program again.
	secret, err = secrets.Put(ctx, path, map[string]any{"value": value}, api.WithCheckAndSet(version))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "stored version %d\n", secret.VersionMetadata.Version)
	return nil
}

func main() {
	endpoint := flag.String("url", "", "URL of the server; empty means VAULT_ADDR")
	mount := flag.String("mount", "secret", "mount path of a KV engine, version 2")
	path := flag.String("path", "app", "path of the secret")
	value := flag.String("value", "new", "its next value")
	flag.Parse()

	client, err := newClient(*endpoint, policy())
	if err != nil {
		log.Fatal(err)
	}
	if err := run(context.Background(), client.KVv2(*mount), *path, *value, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
