// Resty reads an item from an API and adds another with resty, and repeats what
// fails in passing:
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

// policy is for an API of which no more is known than that it honours the
// Idempotency-Key. An attempt may take ten seconds until its answer begins;
// resty's SetTimeout would bound all attempts and waits together.
func policy() httpretry.Policy {
	return httpretry.Policy{AttemptTimeout: 10 * time.Second}
}

// newClient returns a client whose transport retries. What resty would set up
// in its own transport, a proxy or TLS, has to be set in Config.Base: resty's
// methods for it only log that they cannot.
func newClient(endpoint, token string, policy httpretry.Policy) (*resty.Client, error) {
	transport, err := httpretry.New(httpretry.Config{Policy: policy})
	if err != nil {
		return nil, err
	}
	return resty.New().
		SetTransport(transport).
		// That is its default, here to be seen: a count of two and three
		// attempts here would make nine, and POSTs are no exception.
		SetRetryCount(0).
		SetBaseURL(endpoint).
		SetAuthToken(token), nil
}

type item struct {
	ID   int    `json:"id,omitempty"`
	Name string `json:"name"`
}

// describe counts attempts as the response knows them: resty's own
// Request.Attempt is always 1 now.
func describe(resp *resty.Response) string {
	return fmt.Sprintf("%s %s: %s after %d attempts", resp.Request.Method, resp.Request.URL, resp.Status(),
		httpretry.Attempt(resp.RawResponse.Request.Context()))
}

func run(ctx context.Context, client *resty.Client, name, key string, out io.Writer) error {
	var first, added item
	resp, err := client.R().SetContext(ctx).SetResult(&first).Get("/items/1")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %q\n", describe(resp), first.Name)

	// Without the key, this is sent once, unless it cannot have arrived.
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
	key := flag.String("key", rand.Text(), "idempotency key: the same one for the same item, should this be run again")
	flag.Parse()

	client, err := newClient(*endpoint, os.Getenv("API_TOKEN"), policy())
	if err != nil {
		log.Fatal(err)
	}
	if err := run(context.Background(), client, *name, *key, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
