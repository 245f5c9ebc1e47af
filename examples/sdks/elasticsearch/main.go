// Elasticsearch searches an index and adds documents to it with
// go-elasticsearch, and repeats what fails in passing and may be repeated:
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
	"path"
	"strings"

	"github.com/elastic/elastic-transport-go/v8/elastictransport"
	"github.com/elastic/go-elasticsearch/v9"
	"github.com/elastic/go-elasticsearch/v9/esapi"

	"github.com/seed421102f4/httpretry"
)

// policy is for elastic.co/docs/troubleshoot/elasticsearch/rejected-requests,
// which is about 429, and what else go-elasticsearch would repeat: 502 to 504.
func policy() httpretry.Policy {
	return httpretry.Policy{Classify: classify, Idempotent: idempotent}
}

// classify leaves 500 alone: it is an error of the request's, such as one in a
// script, as often as one of the cluster.
func classify(resp *http.Response, err error) httpretry.Outcome {
	if err == nil && resp.StatusCode == http.StatusInternalServerError {
		return httpretry.Final
	}
	return httpretry.Classify(resp, err)
}

// idempotent knows the POSTs that only read. A scroll is not among them: it
// moves on each time. Nor is _bulk: documents without an id would be added
// twice, and scripts run twice.
func idempotent(req *http.Request) bool {
	switch path.Base(req.URL.Path) {
	case "_search", "_msearch", "_count", "_mget":
		return true
	}
	return httpretry.Idempotent(req)
}

// newClient returns a client of a cluster. Of several endpoints, all attempts of
// a request would go to the same. Certificates belong into Config.Base: options
// for them, those of more too, need an *http.Transport.
func newClient(endpoint, key string, policy httpretry.Policy, more ...elasticsearch.Option) (*elasticsearch.Client, error) {
	transport, err := httpretry.New(httpretry.Config{Policy: policy})
	if err != nil {
		return nil, err
	}
	return elasticsearch.New(append(more,
		elasticsearch.WithAddresses(endpoint),
		elasticsearch.WithAPIKey(key), // a header that is good for every attempt
		elasticsearch.WithTransportOptions(
			elastictransport.WithTransport(transport),
			// go-elasticsearch makes up to four attempts itself, without a
			// wait, and of any POST: of three each, that would be twelve.
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
	// A _bulk that indexes and deletes documents by their ids ends the same
	// however often it is sent. One that creates them does, too, but answers 409
	// for what it has created before.
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
