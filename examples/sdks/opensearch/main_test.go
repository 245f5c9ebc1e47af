package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opensearch-project/opensearch-go/v4"
	"github.com/opensearch-project/opensearch-go/v4/opensearchapi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/strategies"
)

// quick is the recommended policy without waits.
func quick() httpretry.Policy {
	p := policy()
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	return p
}

// cluster is a server that supports enough of OpenSearch's API. It answers the
// health checks of opensearch-go without counting them.
type cluster struct{ *sdktest.Server }

// calls returns the requests that are no health checks, with their paths and
// Retry-Attempt.
func (c cluster) calls() (all []string) {
	for _, r := range c.Requests() {
		if r.Method == http.MethodPost || r.Method == http.MethodPut {
			call := r.Method + " " + r.URL.Path + " " + r.Header.Get("Retry-Attempt")
			all = append(all, strings.TrimSpace(call))
		}
	}
	return all
}

// listen starts a cluster. At the end it checks that every attempt was
// authorized.
func listen(t *testing.T, faults ...sdktest.Fault) cluster {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(pattern string, status int, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
	answer("POST /i/_search", 200, `{"hits":{"total":{"value":3,"relation":"eq"}}}`)
	answer("POST /i/_bulk", 200, `{"errors":false,"items":[{"index":{}},{"delete":{}}]}`)
	answer("POST /_search/scroll", 200, `{"_scroll_id":"s"}`)
	answer("POST /i/_doc", 201, `{"_id":"1"}`)
	answer("PUT /i/_doc/1", 201, `{"_id":"1"}`)
	answer("GET /", 200, `{"version":{"number":"3.0.0"}}`)
	server := cluster{sdktest.New(t, mux, faults...)}
	t.Cleanup(func() {
		for _, r := range server.Requests() {
			user, password, _ := r.BasicAuth()
			assert.Equal(t, "user secret", user+" "+password, "%s %s", r.Method, r.RequestURI)
		}
	})
	return server
}

// start returns a cluster and a client for it.
func start(
	t *testing.T, p httpretry.Policy, faults ...sdktest.Fault,
) (cluster, *opensearchapi.Client) {
	t.Helper()
	server := listen(t, faults...)
	client, err := newClient(t.Context(), server.URL, "user", "secret", p)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return server, client
}

// rejected is the response of a cluster with full queues.
func rejected() sdktest.Fault {
	return sdktest.Answer(429, `{"error":{"type":"rejected_execution_exception"},"status":429}`,
		"Content-Type", "application/json")
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
	server, client := start(t, quick(), sdktest.Answer(503, "no node"))
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), client, "i", &out))
	assert.Equal(t, "found 3 documents\nsent 2 actions, errors: false\n", out.String())
	assert.Equal(t, []string{
		"POST /i/_search", "POST /i/_search 1", "POST /i/_bulk", "POST /i/_bulk 1"}, server.calls())
}

func TestFailures(t *testing.T) {
	passing := map[string]sdktest.Fault{
		"rejected":                     rejected(),
		"a balancer without the nodes": sdktest.Answer(503, "<html>"),
		"502":                          sdktest.Answer(502, ""),
		"504":                          sdktest.Answer(504, ""),
		"reset":                        sdktest.Reset(),
	}
	final := map[string]sdktest.Fault{
		"a script's error": sdktest.Answer(500, `{"error":{"type":"script_exception"},"status":500}`),
		"a version conflict": sdktest.Answer(409,
			`{"error":{"type":"version_conflict_engine_exception"},"status":409}`),
		"a bad query": sdktest.Answer(400, `{"error":{"type":"parsing_exception"},"status":400}`),
	}
	for name, tt := range map[string]struct {
		do         func(context.Context, *opensearchapi.Client) error
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
				err := tt.do(t.Context(), client)
				assert.Len(t, server.calls(), want, fault)
				assert.Equal(t, want == 2, err == nil, "%s: %v", fault, err)
			}
			for fault, f := range passing {
				want := 1
				if tt.repeatable {
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
	require.Error(t, bulk(t.Context(), client))
	assert.Equal(t, 1, server.Executed(http.MethodPost))
}

// Without DisableRetry, attempts multiply, and opensearch-go sends a _bulk
// again that may have been executed.
func TestRetriesMultiply(t *testing.T) {
	p := quick()
	p.Budget = httpretry.Unlimited{} // the default would end this earlier
	down := slices.Repeat([]sdktest.Fault{sdktest.Answer(503, "no node")}, 30)
	for name, tt := range map[string]struct {
		do            func(context.Context, *opensearchapi.Client) error
		with, without int // with and without that line
	}{"search": {search, 3, 21}, "bulk": {bulk, 1, 7}} {
		server, client := start(t, p, down...)
		require.Error(t, tt.do(t.Context(), client), name)
		assert.Len(t, server.calls(), tt.with, name)

		transport, err := httpretry.New(httpretry.Config{Policy: p})
		require.NoError(t, err)
		server = listen(t, down...)
		client, err = opensearchapi.NewClient(opensearchapi.Config{Client: opensearch.Config{
			Addresses: []string{server.URL}, Username: "user", Password: "secret",
			Transport: transport, Context: t.Context(),
		}})
		require.NoError(t, err)
		require.Error(t, tt.do(t.Context(), client), name)
		assert.Len(t, server.calls(), tt.without, name)
		require.NoError(t, client.Close())
	}
}
