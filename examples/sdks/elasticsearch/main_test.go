package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic/elastic-transport-go/v8/elastictransport"
	"github.com/elastic/go-elasticsearch/v9"
	"github.com/elastic/go-elasticsearch/v9/esapi"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/strategies"
)

const apiKey = "a2V5"

// quick is the recommended policy without waits.
func quick() httpretry.Policy {
	p := policy()
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	return p
}

// listen starts a server that accepts all requests. At the end it
// checks that every attempt was authorized.
func listen(t *testing.T, faults ...sdktest.Fault) *sdktest.Server {
	t.Helper()
	server := sdktest.New(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"errors":false}`)
	}), faults...)
	t.Cleanup(func() {
		for _, r := range server.Requests() {
			if got := r.Header.Get("Authorization"); got != "APIKey "+apiKey {
				t.Errorf("%s %s: Authorization %q", r.Method, r.RequestURI, got)
			}
		}
	})
	return server
}

// start returns a server and a client for it.
func start(t *testing.T, p httpretry.Policy, faults ...sdktest.Fault) (*sdktest.Server, *elasticsearch.Client) {
	t.Helper()
	server := listen(t, faults...)
	client, err := newClient(server.URL, apiKey, p)
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// rejected is the response of a cluster with full queues.
func rejected() sdktest.Fault {
	return sdktest.Answer(429, `{"error":{"type":"es_rejected_execution_exception"},"status":429}`,
		"X-Elastic-Product", "Elasticsearch", "Content-Type", "application/json")
}

// call sends a request, which succeeds if res is not an error.
type call func(ctx context.Context, client *elasticsearch.Client) (*esapi.Response, error)

func search(ctx context.Context, client *elasticsearch.Client) (*esapi.Response, error) {
	return client.Search(client.Search.WithContext(ctx), client.Search.WithIndex("i"),
		client.Search.WithBody(strings.NewReader(`{}`)))
}

func bulk(ctx context.Context, client *elasticsearch.Client) (*esapi.Response, error) {
	return client.Bulk(strings.NewReader("{\"index\":{}}\n{}\n"), client.Bulk.WithContext(ctx), client.Bulk.WithIndex("i"))
}

func bulkByID(ctx context.Context, client *elasticsearch.Client) (*esapi.Response, error) {
	return bulk(httpretry.WithIdempotent(ctx), client)
}

func scroll(ctx context.Context, client *elasticsearch.Client) (*esapi.Response, error) {
	return client.Scroll(client.Scroll.WithContext(ctx), client.Scroll.WithBody(strings.NewReader(`{"scroll_id":"s"}`)))
}

func index(ctx context.Context, client *elasticsearch.Client) (*esapi.Response, error) {
	return client.Index("i", strings.NewReader(`{}`), client.Index.WithContext(ctx))
}

func indexByID(ctx context.Context, client *elasticsearch.Client) (*esapi.Response, error) {
	return client.Index("i", strings.NewReader(`{}`), client.Index.WithContext(ctx), client.Index.WithDocumentID("1"))
}

// ok makes a call and reports whether it succeeded.
func (c call) ok(t *testing.T, ctx context.Context, client *elasticsearch.Client) bool {
	t.Helper()
	res, err := c(ctx, client)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return !res.IsError()
}

func TestRun(t *testing.T) {
	server, client := start(t, quick(), sdktest.Answer(503, "no node"))
	var out bytes.Buffer
	if err := run(t.Context(), client, "i", &out); err != nil {
		t.Fatal(err)
	}
	if want := "search: [200 OK] {\"errors\":false}\nbulk: [200 OK] {\"errors\":false}\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
	want := "POST /i/_search \"\"\nPOST /i/_search \"1\"\nPOST /i/_bulk \"\"\nPOST /i/_bulk \"1\"\n"
	if got := server.Summary(); got != want {
		t.Errorf("the server saw\n%swant\n%s", got, want)
	}
}

func TestFailures(t *testing.T) {
	passing := map[string]sdktest.Fault{
		"rejected":                     rejected(),
		"a balancer without the nodes": sdktest.Answer(503, "<html>"), // nor X-Elastic-Product
		"502":                          sdktest.Answer(502, ""),
		"504":                          sdktest.Answer(504, ""),
		"reset":                        sdktest.Reset(),
	}
	final := map[string]sdktest.Fault{
		"a script's error":   sdktest.Answer(500, `{"error":{"type":"script_exception"}}`),
		"a version conflict": sdktest.Answer(409, `{"error":{"type":"version_conflict_engine_exception"}}`),
		"a bad query":        sdktest.Answer(400, `{"error":{"type":"parsing_exception"}}`),
	}
	for name, test := range map[string]struct {
		do         call
		repeatable bool
	}{
		"search":       {search, true},
		"bulk":         {bulk, false},
		"bulk, by id":  {bulkByID, true},
		"scroll":       {scroll, false},
		"index, no id": {index, false},
		"index, by id": {indexByID, true},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(fault string, f sdktest.Fault, want int) {
				server, client := start(t, quick(), f)
				ok := test.do.ok(t, t.Context(), client)
				if got := len(server.Requests()); got != want || ok != (want == 2) {
					t.Errorf("%s: %d requests, want %d; success %v", fault, got, want, ok)
				}
			}
			for fault, f := range passing {
				want := 1
				if test.repeatable {
					want = 2
				}
				check(fault, f, want)
			}
			for fault, f := range final {
				check(fault, f, 1)
			}
		})
	}
}

func TestLostAnswerIsNotDoubled(t *testing.T) {
	server, client := start(t, quick(), sdktest.Lost())
	if call(bulk).ok(t, t.Context(), client) || server.Executed("POST") != 1 {
		t.Errorf("executed %d times, want 1, and an error", server.Executed("POST"))
	}
}

// go-elasticsearch checks the product after the retries, so a response that
// fails the check is not retried.
func TestProductCheck(t *testing.T) {
	server, client := start(t, quick(), sdktest.Answer(503, ""), sdktest.Answer(200, `{}`))
	if call(search).ok(t, t.Context(), client) || len(server.Requests()) != 2 {
		t.Errorf("%d requests, want 2, and an error", len(server.Requests()))
	}
}

// Bodies arrive complete. A file is not read into memory, as go-elasticsearch
// does for retries of its own. A long stream is sent once, unless
// Policy.ReplayBuffer is large enough, or it is compressed, in memory.
func TestUpload(t *testing.T) {
	content := bytes.Repeat([]byte("{\"index\":{\"_id\":\"1\"}}\n{}\n"), 20_000)
	file := sdktest.File(t, "bulk.ndjson", content)
	for name, test := range map[string]struct {
		body    io.Reader
		options []elasticsearch.Option
		want    int
	}{
		"memory":             {bytes.NewReader(content), nil, 3},
		"file":               {file, nil, 3},
		"stream":             {io.MultiReader(bytes.NewReader(content)), nil, 1},
		"stream, compressed": {io.MultiReader(bytes.NewReader(content)), []elasticsearch.Option{elasticsearch.WithCompression()}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			server := listen(t, sdktest.Answer(503, ""), sdktest.Reset())
			client, err := newClient(server.URL, apiKey, quick(), test.options...)
			if err != nil {
				t.Fatal(err)
			}
			ok := call(func(ctx context.Context, client *elasticsearch.Client) (*esapi.Response, error) {
				return client.Bulk(test.body, client.Bulk.WithContext(httpretry.WithIdempotent(ctx)))
			}).ok(t, t.Context(), client)
			if got := len(server.Requests()); got != test.want || ok != (test.want == 3) {
				t.Errorf("%d requests, want %d; success %v", got, test.want, ok)
			}
			for _, r := range server.Requests() {
				if got := plain(t, r); sha256.Sum256(got) != sha256.Sum256(content) {
					t.Errorf("the server got %d bytes, which are not the %d that were sent", len(got), len(content))
				}
			}
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
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Without WithDisableRetry, attempts multiply, and go-elasticsearch sends a
// _bulk again that was executed.
func TestRetriesMultiply(t *testing.T) {
	p := quick()
	p.Budget = httpretry.Unlimited{} // the default would end this earlier
	lost := slices.Repeat([]sdktest.Fault{sdktest.Lost()}, 20)
	for name, test := range map[string]struct {
		do            call
		with, without int // with and without that option
	}{"search": {search, 3, 12}, "bulk": {bulk, 1, 4}} {
		server, client := start(t, p, lost...)
		if test.do.ok(t, t.Context(), client) || server.Executed("") != test.with {
			t.Errorf("%s: executed %d times, want %d, and an error", name, server.Executed(""), test.with)
		}

		transport, err := httpretry.New(httpretry.Config{Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		server = listen(t, lost...)
		client, err = elasticsearch.New(elasticsearch.WithAddresses(server.URL), elasticsearch.WithAPIKey(apiKey),
			elasticsearch.WithTransportOptions(elastictransport.WithTransport(transport)))
		if err != nil {
			t.Fatal(err)
		}
		if test.do.ok(t, t.Context(), client) || server.Executed("") != test.without {
			t.Errorf("%s without the line: executed %d times, want %d, and an error", name, server.Executed(""), test.without)
		}
	}
}
