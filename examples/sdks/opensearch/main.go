// Opensearch searches an index and adds documents to it with opensearch-go.
// httpretry retries instead of opensearch-go:
//
//	go run ./opensearch -url https://search.test -index items
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

	"github.com/opensearch-project/opensearch-go/v4"
	"github.com/opensearch-project/opensearch-go/v4/opensearchapi"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

// policy retries 429, by which a node rejects requests that its queues and
// backpressure do not admit, and 502 to 504, as opensearch-go does. The POSTs
// that only read are retried like GETs. A scroll is not, since each request
// moves it forward. A _bulk is not, because documents without an id would be
// added twice, and scripts would run twice.
func policy() httpretry.Policy {
	p := policies.Reads(httpretry.Policy{}, "/_search", "/_msearch", "/_count", "/_mget")
	// A 500 is as often an error of the request, such as one in a script, as an
	// error of the cluster.
	return policies.Statuses(p, httpretry.Final, http.StatusInternalServerError)
}

// newClient returns a client for a cluster, which ctx ends. With several
// addresses, all attempts of a request would go to the same one. Set
// certificates in httpretry.Config.Base, since the settings for them here need
// an *http.Transport.
func newClient(
	ctx context.Context, endpoint, user, password string, policy httpretry.Policy,
) (*opensearchapi.Client, error) {
	transport, err := httpretry.New(httpretry.Config{Policy: policy})
	if err != nil {
		return nil, err
	}
	return opensearchapi.NewClient(opensearchapi.Config{Client: opensearch.Config{
		Addresses: []string{endpoint},
		Username:  user,
		Password:  password, // a header, valid for all attempts
		Transport: transport,
		Context:   ctx,
		// opensearch-go makes up to 7 attempts, without waits and for every
		// POST. With 3 attempts each here, that would be 21.
		DisableRetry: true,
	}})
}

func run(ctx context.Context, client *opensearchapi.Client, index string, out io.Writer) error {
	found, err := client.Search(ctx, &opensearchapi.SearchReq{
		Indices: []string{index}, Body: strings.NewReader(`{"query":{"match_all":{}}}`),
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "found %d documents\n", found.Hits.Total.Value)

	actions := `{"index":{"_id":"1"}}` + "\n" + `{"name":"One"}` + "\n" +
		`{"delete":{"_id":"2"}}` + "\n"
	// A _bulk that indexes and deletes documents by their ids has the same
	// effect if it is processed twice. One that creates documents has, too, but
	// reports 409 for those that exist.
	done, err := client.Bulk(httpretry.WithIdempotent(ctx), opensearchapi.BulkReq{
		Index: index, Body: strings.NewReader(actions),
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "sent %d actions, errors: %v\n", len(done.Items), done.Errors)
	return nil
}

func main() {
	endpoint := flag.String("url", "http://localhost:9200", "URL of the cluster")
	index := flag.String("index", "items", "name of the index")
	flag.Parse()

	ctx := context.Background()
	user, password := os.Getenv("OPENSEARCH_USER"), os.Getenv("OPENSEARCH_PASSWORD")
	client, err := newClient(ctx, *endpoint, user, password, policy())
	if err != nil {
		log.Fatal(err)
	}
	if err := run(ctx, client, *index, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
