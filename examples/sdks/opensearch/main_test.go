package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/opensearch-project/opensearch-go/v4/opensearchapi"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

// suite does not count the health checks of opensearch-go, which are GETs.
var suite = sdktest.Suite[*opensearchapi.Client]{
	Service: sdktest.API(map[string]string{
		"POST /i/_search":      `{"hits":{"total":{"value":3,"relation":"eq"}}}`,
		"POST /i/_bulk":        `{"errors":false,"items":[{"index":{}},{"delete":{}}]}`,
		"POST /_search/scroll": `{"_scroll_id":"s"}`,
		"POST /i/_doc":         `{"_id":"1"}`,
		"PUT /i/_doc/1":        `{"_id":"1"}`,
	}),
	Early: func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"version":{"number":"3.0.0"}}`)
		}
		return r.Method == http.MethodGet
	},
	Client: func(t testing.TB, s *sdktest.Server, p httpretry.Policy) (*opensearchapi.Client, error) {
		client, err := newClient(t.Context(), s.URL, "user", "secret", p)
		if err == nil {
			t.Cleanup(func() { _ = client.Close() })
		}
		return client, err
	},
	Policy: policy(),
	Check:  sdktest.Has("Authorization", "Basic dXNlcjpzZWNyZXQ="),
}

func search(ctx context.Context, client *opensearchapi.Client) error {
	_, err := client.Search(ctx, &opensearchapi.SearchReq{
		Indices: []string{"i"}, Body: strings.NewReader(`{}`)})
	return err
}

func bulk(ctx context.Context, client *opensearchapi.Client) error {
	_, err := client.Bulk(ctx, opensearchapi.BulkReq{
		Index: "i", Body: strings.NewReader("{\"index\":{}}\n{}\n")})
	return err
}

func bulkByID(ctx context.Context, client *opensearchapi.Client) error {
	return bulk(httpretry.WithIdempotent(ctx), client)
}

func scroll(ctx context.Context, client *opensearchapi.Client) error {
	_, err := client.Scroll.Get(ctx, opensearchapi.ScrollGetReq{ScrollID: "s"})
	return err
}

func index(ctx context.Context, client *opensearchapi.Client) error {
	_, err := client.Index(ctx, opensearchapi.IndexReq{Index: "i", Body: strings.NewReader(`{}`)})
	return err
}

func indexByID(ctx context.Context, client *opensearchapi.Client) error {
	_, err := client.Index(ctx, opensearchapi.IndexReq{
		Index: "i", DocumentID: "1", Body: strings.NewReader(`{}`)})
	return err
}

func TestRun(t *testing.T) {
	suite.Run(t, sdktest.Answer(503, "no node"), "found 3 documents\nsent 2 actions, errors: false\n",
		func(ctx context.Context, client *opensearchapi.Client, out io.Writer) error {
			return run(ctx, client, "i", out)
		})
}

func TestFailures(t *testing.T) {
	suite.SearchFailures(t, search, bulk, bulkByID, scroll, index, indexByID)
}

func TestDown(t *testing.T) { suite.Down(t, sdktest.Answer(503, "no node"), search, 3) }
