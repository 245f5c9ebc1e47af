package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/elastic/go-elasticsearch/v9"
	"github.com/elastic/go-elasticsearch/v9/esapi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

var suite = sdktest.Suite[*elasticsearch.Client]{
	Service: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"errors":false}`)
	},
	Client: func(_ testing.TB, s *sdktest.Server, p httpretry.Policy) (*elasticsearch.Client, error) {
		return newClient(s.URL, "a2V5", p)
	},
	Policy: policy(),
	Check:  sdktest.Has("Authorization", "APIKey a2V5"),
}

func failure(res *esapi.Response, err error) error {
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.IsError() {
		return errors.New(res.Status())
	}
	return nil
}

func search(ctx context.Context, client *elasticsearch.Client) error {
	return failure(client.Search(client.Search.WithContext(ctx), client.Search.WithIndex("i"),
		client.Search.WithBody(strings.NewReader(`{}`))))
}

func bulk(ctx context.Context, client *elasticsearch.Client) error {
	return failure(client.Bulk(strings.NewReader("{\"index\":{}}\n{}\n"), client.Bulk.WithContext(ctx)))
}

func bulkByID(ctx context.Context, client *elasticsearch.Client) error {
	return bulk(httpretry.WithIdempotent(ctx), client)
}

func scroll(ctx context.Context, client *elasticsearch.Client) error {
	return failure(client.Scroll(client.Scroll.WithContext(ctx),
		client.Scroll.WithBody(strings.NewReader(`{"scroll_id":"s"}`))))
}

func index(ctx context.Context, client *elasticsearch.Client) error {
	return failure(client.Index("i", strings.NewReader(`{}`), client.Index.WithContext(ctx)))
}

func indexByID(ctx context.Context, client *elasticsearch.Client) error {
	return failure(client.Index("i", strings.NewReader(`{}`), client.Index.WithContext(ctx),
		client.Index.WithDocumentID("1")))
}

func TestRun(t *testing.T) {
	suite.Run(t, sdktest.Answer(503, "no node"), "search: [200 OK] {\"errors\":false}\nbulk: [200 OK] {\"errors\":false}\n",
		func(ctx context.Context, client *elasticsearch.Client, out io.Writer) error {
			return run(ctx, client, "i", out)
		})
}

func TestFailures(t *testing.T) {
	suite.SearchFailures(t, search, bulk, bulkByID, scroll, index, indexByID)
}

func TestDown(t *testing.T) { suite.Down(t, sdktest.Answer(503, ""), search, 3) }

// go-elasticsearch checks the product after the retries, so a response that
// fails the check is not retried.
func TestProductCheck(t *testing.T) {
	server, client := suite.Start(t, sdktest.Answer(503, ""), sdktest.Answer(200, `{}`))
	require.Error(t, search(t.Context(), client))
	assert.Len(t, server.Requests(), 2)
}

// Bodies arrive complete. A file is not read into memory, as go-elasticsearch
// does for retries of its own. A long stream is sent once, unless
// Policy.ReplayBuffer is large enough, or it is compressed, in memory.
func TestUpload(t *testing.T) {
	content := bytes.Repeat([]byte("{\"index\":{\"_id\":\"1\"}}\n{}\n"), 20_000)
	compressed := suite
	compressed.Client = func(_ testing.TB, s *sdktest.Server, p httpretry.Policy) (*elasticsearch.Client, error) {
		return newClient(s.URL, "a2V5", p, elasticsearch.WithCompression())
	}
	for name, body := range sdktest.Bodies(t, content) {
		t.Run(name, func(t *testing.T) {
			s := suite
			if _, seekable := body.(io.Seeker); !seekable {
				server, client := s.Start(t, sdktest.Answer(503, ""))
				require.Error(t, failure(client.Bulk(body, client.Bulk.WithContext(httpretry.WithIdempotent(t.Context())))))
				assert.Len(t, server.Requests(), 1)
				s, body = compressed, io.MultiReader(bytes.NewReader(content))
			}
			server, client := s.Start(t, sdktest.Answer(503, ""), sdktest.Reset)
			require.NoError(t, failure(client.Bulk(body, client.Bulk.WithContext(httpretry.WithIdempotent(t.Context())))))
			server.Whole(t, 3, content, func(r *sdktest.Request) []byte { return plain(t, r) })
		})
	}
}

// plain returns the content of a request that may be compressed.
func plain(t *testing.T, r *sdktest.Request) []byte {
	t.Helper()
	if r.Header.Get("Content-Encoding") != "gzip" {
		return r.Content
	}
	reader, err := gzip.NewReader(bytes.NewReader(r.Content))
	require.NoError(t, err)
	content, err := io.ReadAll(reader)
	require.NoError(t, err)
	return content
}
