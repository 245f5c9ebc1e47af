package sdks

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/elastic/elastic-transport-go/v8/elastictransport"
	"github.com/elastic/go-elasticsearch/v9"
	"github.com/elastic/go-elasticsearch/v9/esapi"
	"github.com/opensearch-project/opensearch-go/v4"
	"github.com/opensearch-project/opensearch-go/v4/opensearchapi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/policies"
)

// searchPolicy is for Elasticsearch and OpenSearch. It retries 429, by which a
// node rejects what its queues do not admit, and 502 to 504, as both clients
// do. The POSTs that only read are retried like GETs. A scroll is not, since
// each request moves it forward. A _bulk is not, because documents without an
// id would be added twice, and scripts would run twice.
func searchPolicy() httpretry.Policy {
	p := policies.Reads(httpretry.Policy{}, "/_search", "/_msearch", "/_count", "/_mget")
	// A 500 is as often an error of the request, such as one in a script, as an
	// error of the cluster.
	return policies.Statuses(p, httpretry.Final, http.StatusInternalServerError)
}

// documents are a _bulk that adds a document without an id.
const documents = "{\"index\":{}}\n{}\n"

// newElasticsearch returns a client for one node. With several addresses, all
// attempts of a request would go to the same one. Set certificates in
// httpretry.Config.Base, because the options for them need an *http.Transport.
func newElasticsearch(s setup) (*elasticsearch.Client, error) {
	// go-elasticsearch makes up to 4 attempts, without waits and for every POST.
	return elasticsearch.New(elasticsearch.WithAddresses(s.url), elasticsearch.WithAPIKey("a2V5"),
		elasticsearch.WithTransportOptions(options(s, elastictransport.WithDisableRetry(),
			elastictransport.WithTransport(s.client.Transport))...))
}

func esError(res *esapi.Response, err error) error {
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.IsError() {
		return errors.New(res.Status())
	}
	return nil
}

func esSearch(ctx context.Context, c *elasticsearch.Client) error {
	return esError(c.Search(c.Search.WithContext(ctx), c.Search.WithBody(strings.NewReader(`{}`))))
}

func esBulk(ctx context.Context, c *elasticsearch.Client) error {
	return esError(c.Bulk(strings.NewReader(documents), c.Bulk.WithContext(ctx)))
}

func esScroll(ctx context.Context, c *elasticsearch.Client) error {
	return esError(c.Scroll(c.Scroll.WithContext(ctx), c.Scroll.WithScrollID("s")))
}

func esIndex(id string) sdktest.Call[*elasticsearch.Client] {
	return func(ctx context.Context, c *elasticsearch.Client) error {
		return esError(c.Index("i", strings.NewReader(`{}`), c.Index.WithContext(ctx),
			c.Index.WithDocumentID(id)))
	}
}

// newOpensearch is like newElasticsearch. The client's health checks pass
// through the transport, too, until the context is done.
func newOpensearch(s setup) (*opensearchapi.Client, error) {
	client, err := opensearchapi.NewClient(opensearchapi.Config{Client: opensearch.Config{
		Addresses: []string{s.url}, Username: "user", Password: "secret",
		Transport: s.client.Transport, Context: s.Context,
		// opensearch-go makes up to 7 attempts, without waits and for every POST.
		DisableRetry: !s.retries,
	}})
	if err == nil {
		s.t.Cleanup(func() { _ = client.Close() })
	}
	return client, err
}

func osSearch(ctx context.Context, c *opensearchapi.Client) error {
	_, err := c.Search(ctx, &opensearchapi.SearchReq{Body: strings.NewReader(`{}`)})
	return err
}

func osBulk(ctx context.Context, c *opensearchapi.Client) error {
	_, err := c.Bulk(ctx, opensearchapi.BulkReq{Body: strings.NewReader(documents)})
	return err
}

func osScroll(ctx context.Context, c *opensearchapi.Client) error {
	_, err := c.Scroll.Get(ctx, opensearchapi.ScrollGetReq{ScrollID: "s"})
	return err
}

func osIndex(id string) sdktest.Call[*opensearchapi.Client] {
	return func(ctx context.Context, c *opensearchapi.Client) error {
		_, err := c.Index(ctx, opensearchapi.IndexReq{
			Index: "i", DocumentID: id, Body: strings.NewReader(`{}`)})
		return err
	}
}

// searchFailures makes the calls to a server that fails once: a search, a bulk
// without and with ids, a scroll, and an index without and with an id. A bulk
// that indexes and deletes by ids has the same effect if it is processed twice.
func searchFailures[C any](
	t *testing.T, suite sdktest.Suite[C], search, bulk, scroll, index, indexByID sdktest.Call[C],
) {
	t.Helper()
	bulkByID := func(ctx context.Context, c C) error { return bulk(httpretry.WithIdempotent(ctx), c) }
	row := func(fault sdktest.Fault, retried bool) sdktest.Row {
		if retried {
			return sdktest.Once(fault, 2, 1, 2, 1, 1, 2)
		}
		return sdktest.Once(fault, 1, 1, 1, 1, 1, 1)
	}
	suite.Failures(t, []sdktest.Call[C]{search, bulk, bulkByID, scroll, index, indexByID},
		map[string]sdktest.Row{
			"rejected":           row(sdktest.Answer(429, `{"error":{}}`), true),
			"a balancer alone":   row(sdktest.Answer(503, "<html>"), true),
			"executed, reset":    row(sdktest.Lost, true),
			"a script's error":   row(sdktest.Answer(500, `{"error":{}}`), false),
			"a version conflict": row(sdktest.Answer(409, `{"error":{}}`), false),
		})
}

func TestElasticsearch(t *testing.T) {
	suite := sdktest.Suite[*elasticsearch.Client]{
		Service: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Elastic-Product", "Elasticsearch")
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"errors":false}`)
		},
		Client: connect(newElasticsearch),
		Policy: searchPolicy(),
		Check:  sdktest.Has("Authorization", "APIKey a2V5"),
	}
	searchFailures(t, suite, esSearch, esBulk, esScroll, esIndex(""), esIndex("1"))
	// go-elasticsearch checks the product after the retries, so a response that
	// fails the check is not retried.
	t.Run("product check", func(t *testing.T) {
		server, client := suite.Start(t, sdktest.Answer(503, ""), sdktest.Answer(200, `{}`))
		require.Error(t, esSearch(t.Context(), client))
		assert.Len(t, server.Requests(), 2)
	})
	// A long stream is sent once, unless Policy.ReplayBuffer is large enough or
	// go-elasticsearch compresses it into memory. A file is not read into memory,
	// as go-elasticsearch does for retries of its own.
	content := bytes.Repeat([]byte(documents), 40_000)
	for name, body := range sdktest.Bodies(t, content) {
		t.Run(name, func(t *testing.T) {
			server, client := suite.Start(t, sdktest.Answer(503, ""))
			err := esError(client.Bulk(body, client.Bulk.WithContext(httpretry.WithIdempotent(t.Context()))))
			if _, seekable := body.(io.Seeker); !seekable {
				require.Error(t, err)
				assert.Len(t, server.Requests(), 1)
				return
			}
			require.NoError(t, err)
			server.Whole(t, 2, content)
		})
	}
	t.Run("compressed", func(t *testing.T) {
		server, _ := suite.Start(t, sdktest.Answer(503, ""))
		transport, err := httpretry.New(httpretry.Config{})
		require.NoError(t, err)
		client, err := elasticsearch.New(elasticsearch.WithAddresses(server.URL), elasticsearch.WithAPIKey("a2V5"),
			elasticsearch.WithCompression(), elasticsearch.WithTransportOptions(
				elastictransport.WithTransport(transport), elastictransport.WithDisableRetry()))
		require.NoError(t, err)
		require.NoError(t, esError(client.Bulk(io.MultiReader(bytes.NewReader(content)),
			client.Bulk.WithContext(httpretry.WithIdempotent(t.Context())))))
		assert.Len(t, server.Requests(), 2) // with the same body, as suite checks
	})
}

func TestOpensearch(t *testing.T) {
	searchFailures(t, sdktest.Suite[*opensearchapi.Client]{
		Service: sdktest.API(map[string]string{
			"POST /_search":        `{"hits":{"total":{"value":3,"relation":"eq"}}}`,
			"POST /_bulk":          `{"errors":false,"items":[]}`,
			"POST /_search/scroll": `{"_scroll_id":"s"}`,
			"POST /i/_doc":         `{"_id":"1"}`,
			"PUT /i/_doc/1":        `{"_id":"1"}`,
		}),
		// It does not count the health checks, which are GETs.
		Early: func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodGet {
				_, _ = io.WriteString(w, `{"version":{"number":"3.0.0"}}`)
			}
			return r.Method == http.MethodGet
		},
		Client: connect(newOpensearch),
		Policy: searchPolicy(),
		Check:  sdktest.Has("Authorization", "Basic dXNlcjpzZWNyZXQ="),
	}, osSearch, osBulk, osScroll, osIndex(""), osIndex("1"))
}
