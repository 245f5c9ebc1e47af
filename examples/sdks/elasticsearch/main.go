// Elasticsearch searches an index and adds documents to it with
// go-elasticsearch. httpretry retries instead of go-elasticsearch:
//
//	ELASTIC_API_KEY=... go run ./elasticsearch -url https://search.test -index items
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

	"github.com/elastic/elastic-transport-go/v8/elastictransport"
	"github.com/elastic/go-elasticsearch/v9"
	"github.com/elastic/go-elasticsearch/v9/esapi"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

// policy retries 429, as elastic.co/docs/troubleshoot/elasticsearch describes
// in "Rejected requests", and 502 to 504, as go-elasticsearch does. The POSTs
// that only read are retried like GETs. A scroll is not, since each request
// moves it forward. A _bulk is not, because documents without an id would be
// added twice, and scripts would run twice.
func policy() httpretry.Policy {
	p := policies.Reads(httpretry.Policy{}, "/_search", "/_msearch", "/_count", "/_mget")
	// A 500 is as often an error of the request, such as one in a script, as an
	// error of the cluster.
	return policies.Statuses(p, httpretry.Final, http.StatusInternalServerError)
}

// newClient returns a client for a cluster. With several endpoints, all
// attempts of a request would go to the same one. Set certificates in
// Config.Base, because the options for them, also those in more, need an
// *http.Transport.
func newClient(
	endpoint, key string, policy httpretry.Policy, more ...elasticsearch.Option,
) (*elasticsearch.Client, error) {
	transport, err := httpretry.New(httpretry.Config{Policy: policy})
	if err != nil {
		return nil, err
	}
	return elasticsearch.New(append(more,
		elasticsearch.WithAddresses(endpoint),
		elasticsearch.WithAPIKey(key), // a header, valid for all attempts
		elasticsearch.WithTransportOptions(
			elastictransport.WithTransport(transport),
			// go-elasticsearch makes up to 4 attempts, without waits and for
			// every POST. With 3 attempts each here, that would be 12.
			elastictransport.WithDisableRetry(),
		))...)
}

func show(out io.Writer, what string, res *esapi.Response, err error) error {
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.IsError() {
		return fmt.Errorf("%s: %s", what, res)
	}
	fmt.Fprintf(out, "%s: %s\n", what, res)
	return nil
}

func run(ctx context.Context, client *elasticsearch.Client, index string, out io.Writer) error {
	res, err := client.Search(client.Search.WithContext(ctx), client.Search.WithIndex(index),
		client.Search.WithBody(strings.NewReader(`{"query":{"match_all":{}}}`)))
	if err := show(out, "search", res, err); err != nil {
		return err
	}
	actions := `{"index":{"_id":"1"}}` + "\n" + `{"name":"One"}` + "\n" + `{"delete":{"_id":"2"}}` + "\n"
	// A _bulk that indexes and deletes documents by their ids has the same
	// effect if it is processed twice. One that creates documents has, too, but
	// reports 409 for those that exist.
	res, err = client.Bulk(strings.NewReader(actions),
		client.Bulk.WithContext(httpretry.WithIdempotent(ctx)), client.Bulk.WithIndex(index))
	return show(out, "bulk", res, err)
}

func main() {
	endpoint := flag.String("url", "http://localhost:9200", "URL of the cluster")
	index := flag.String("index", "items", "name of the index")
	flag.Parse()

	client, err := newClient(*endpoint, os.Getenv("ELASTIC_API_KEY"), policy())
	if err != nil {
		log.Fatal(err)
	}
	if err := run(context.Background(), client, *index, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
