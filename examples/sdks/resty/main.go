// Resty reads an item from an API and adds another one with resty. httpretry
// retries instead of resty:
//
//	API_TOKEN=... go run ./resty -url https://api.test -name "Another"
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/go-resty/resty/v2"

	"github.com/seed421102f4/httpretry"
)

// policy is for an API that supports the Idempotency-Key. An attempt may take
// ten seconds until its response begins. resty's SetTimeout would bound all
// attempts and waits together.
func policy() httpretry.Policy {
	return httpretry.Policy{AttemptTimeout: 10 * time.Second}
}

// newClient returns a client whose transport retries. Set a proxy or TLS in
// Config.Base. Resty's methods for them need its own transport, and only log an
// error otherwise.
func newClient(endpoint, token string, policy httpretry.Policy) (*resty.Client, error) {
	transport, err := httpretry.New(httpretry.Config{Policy: policy})
	if err != nil {
		return nil, err
	}
	return resty.New().
		SetTransport(transport).
		// This default is set so that readers see it. With 2 retries in resty
		// and 3 attempts here there would be 9 attempts, for POSTs as well.
		SetRetryCount(0).
		SetBaseURL(endpoint).
		SetAuthToken(token), nil
}

type item struct {
	ID   int    `json:"id,omitempty"`
	Name string `json:"name"`
}

// describe returns the result of a call, with the number of attempts from the
// context of the response, because resty's Request.Attempt is always 1.
func describe(resp *resty.Response) string {
	attempts := httpretry.Attempt(resp.RawResponse.Request.Context())
	return fmt.Sprintf("%s %s: %s after %d attempts",
		resp.Request.Method, resp.Request.URL, resp.Status(), attempts)
}

func run(ctx context.Context, client *resty.Client, name, key string, out io.Writer) error {
	var first, added item
	resp, err := client.R().SetContext(ctx).SetResult(&first).Get("/items/1")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %q\n", describe(resp), first.Name)

	// Without the key, this would be sent once, unless it certainly did not
	// arrive.
	resp, err = client.R().SetContext(ctx).SetHeader("Idempotency-Key", key).
		SetBody(item{Name: name}).SetResult(&added).Post("/items")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: item %d\n", describe(resp), added.ID)
	return nil
}

func main() {
	endpoint := flag.String("url", "http://localhost:8080", "URL of the API")
	name := flag.String("name", "Another", "name of the new item")
	key := flag.String("key", rand.Text(), "idempotency key; use the same one to run this again for the same item")
	flag.Parse()

	client, err := newClient(*endpoint, os.Getenv("API_TOKEN"), policy())
	if err != nil {
		log.Fatal(err)
	}
	if err := run(context.Background(), client, *name, *key, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
