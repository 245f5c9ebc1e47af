// Oauth2 reads from an API and writes to it with tokens that
// golang.org/x/oauth2 requests and renews. Requests to the API and for tokens
// are retried:
//
//	CLIENT_ID=... CLIENT_SECRET=... go run ./oauth2 -url https://api.test -tokens https://login.test/token
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/seed421102f4/httpretry"
)

// tokenPolicy is for the token endpoint. Its requests are POSTs without a key,
// but with client credentials a second token does no harm. With a refresh
// token, leave Idempotent nil. Where refresh tokens are rotated, one that is
// used twice counts as stolen (RFC 9700, section 4.14.2).
func tokenPolicy() httpretry.Policy {
	return httpretry.Policy{Idempotent: func(*http.Request) bool { return true }}
}

// apiPolicy is for the API itself.
func apiPolicy() httpretry.Policy { return httpretry.Policy{Classify: classify} }

// classify does not retry a failed request for a token, which has been retried
// already. Its error is a RetrieveError, or comes from the http.Client that
// sends it.
func classify(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
	_, refused := errors.AsType[*oauth2.RetrieveError](err)
	_, failed := errors.AsType[*url.Error](err)
	if refused || failed {
		return httpretry.Final
	}
	return httpretry.Classify(req, resp, err)
}

// newClient returns a client whose oauth2.Transport is below its
// RetryTransport, so that each attempt gets a valid token. In the other order,
// which config.Client and oauth2.NewClient create, all attempts have the token
// of the first.
func newClient(config clientcredentials.Config, tokens, api httpretry.Policy) (*http.Client, error) {
	// By default, oauth2 tries where the server expects the secret. It takes
	// any failure for a wrong place, and sends all attempts again with the
	// other one. For a server that expects the secret in the form, set
	// oauth2.AuthStyleInParams.
	config.AuthStyle = oauth2.AuthStyleInHeader

	inner, err := httpretry.New(httpretry.Config{Policy: tokens})
	if err != nil {
		return nil, err
	}
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Transport: inner})
	base := http.DefaultTransport
	layer := &oauth2.Transport{Source: config.TokenSource(ctx), Base: base}
	outer, err := httpretry.New(httpretry.Config{
		Base:   httpretry.Through(layer, base),
		Policy: api,
	})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: outer}, nil
}

func run(ctx context.Context, client *http.Client, api string, out io.Writer) error {
	for _, call := range []struct{ method, path, body string }{
		{http.MethodGet, "/items", ""},
		{http.MethodPost, "/items", `{"name":"new"}`},
	} {
		req, err := http.NewRequestWithContext(ctx, call.method, api+call.path, bytes.NewBufferString(call.body))
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		answer, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s %s: %s: %s\n", call.method, call.path, resp.Status, answer)
	}
	return nil
}

func main() {
	api := flag.String("url", "http://localhost:8080", "URL of the API")
	tokens := flag.String("tokens", "http://localhost:8080/token", "URL of the token endpoint")
	flag.Parse()

	client, err := newClient(clientcredentials.Config{
		ClientID: os.Getenv("CLIENT_ID"), ClientSecret: os.Getenv("CLIENT_SECRET"), TokenURL: *tokens,
	}, tokenPolicy(), apiPolicy())
	if err != nil {
		log.Fatal(err)
	}
	if err := run(context.Background(), client, *api, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
