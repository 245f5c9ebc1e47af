package policies_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/policies"
	"github.com/seed421102f4/httpretry/strategies"
)

// answer is how a service answers one request.
type answer struct {
	status int
	header map[string]string
	body   string
}

// withBody returns a with a body.
func (a answer) withBody(body string) answer { a.body = body; return a }

func say(status int, header ...string) answer {
	a := answer{status: status, header: map[string]string{}}
	for i := 0; i < len(header); i += 2 {
		a.header[header[i]] = header[i+1]
	}
	return a
}

// in returns a header's value for a reset after that time.
func in(wait time.Duration) string {
	return strconv.FormatInt(time.Now().Add(wait).Unix(), 10)
}

// outcome is the result of an exchange.
type outcome struct {
	status   int           // of the last response
	requests int           // that arrived
	keys     []string      // their idempotency keys
	took     time.Duration // until the last response
}

// exchange sends one request under a policy, in virtual time, to a service that
// gives the answers in turn and then 200.
func exchange(
	t *testing.T, policy httpretry.Policy, method, path string, answers ...answer) (o outcome) {
	t.Helper()
	base := faults.Pipe(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n := o.requests
		o.requests++
		o.keys = append(o.keys, r.Header.Get("Idempotency-Key"))
		if n < len(answers) {
			for name, value := range answers[n].header {
				w.Header().Set(name, value)
			}
			w.WriteHeader(answers[n].status)
			_, _ = io.WriteString(w, answers[n].body)
		}
	})
	req, err := http.NewRequestWithContext(
		t.Context(), method, "http://service.test"+path, strings.NewReader("{}"))
	require.NoError(t, err)
	transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy})
	require.NoError(t, err)
	start := time.Now()
	resp, err := transport.RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	o.status, o.took = resp.StatusCode, time.Since(start)
	return o
}

func TestGitHub(t *testing.T) {
	for _, tt := range []struct {
		name     string
		method   string
		answer   func() answer
		status   int
		requests int
		atLeast  time.Duration
	}{
		{"hourly limit, resets soon", "GET", func() answer {
			return say(403, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", in(30*time.Second))
		}, 200, 2, 30 * time.Second},
		{"hourly limit as 429", "GET", func() answer {
			return say(429, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", in(30*time.Second))
		}, 200, 2, 30 * time.Second},
		{"hourly limit, resets late", "GET", func() answer {
			return say(403, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", in(time.Hour))
		}, 403, 1, 0},
		{"secondary limit", "GET", func() answer {
			return say(403, "X-RateLimit-Remaining", "4000", "Retry-After", "60")
		}, 200, 2, time.Minute},
		{"secondary limit as 429", "GET", func() answer { return say(429, "Retry-After", "60") },
			200, 2, time.Minute},
		{"secondary limit, nothing said", "GET",
			func() answer { return say(429, "X-RateLimit-Remaining", "4000") }, 429, 1, 0},
		{"no permission", "GET", func() answer {
			return say(403, "X-RateLimit-Remaining", "4000", "X-RateLimit-Reset", in(time.Minute))
		}, 403, 1, 0},
		{"secondary limit, POST", "POST", func() answer { return say(403, "Retry-After", "60") },
			200, 2, time.Minute},
		{"bad gateway, POST", "POST", func() answer { return say(502) }, 502, 1, 0},
		{"bad gateway", "GET", func() answer { return say(502) }, 200, 2, 0},
		{"not found", "GET", func() answer { return say(404) }, 404, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := exchange(t, policies.GitHub(), tt.method, "/repos/a/b", tt.answer())
				assert.Equal(t, tt.status, got.status)
				assert.Equal(t, tt.requests, got.requests)
				assert.GreaterOrEqual(t, got.took, tt.atLeast-time.Second,
					"the reset counts in whole seconds")
			})
		})
	}
}

func TestStripe(t *testing.T) {
	for _, tt := range []struct {
		method   string
		answer   answer
		status   int
		requests int
	}{
		{"POST", say(503), 200, 2},
		{"POST", say(429), 200, 2},
		{"POST", say(409), 200, 2},
		{"POST", say(400, "Stripe-Should-Retry", "true"), 200, 2},
		{"POST", say(500, "Stripe-Should-Retry", "false"), 500, 1},
		{"POST", say(402), 402, 1},
		{"GET", say(400, "Stripe-Should-Retry", "true"), 200, 2},
		{"GET", say(409), 409, 1},
		{"DELETE", say(500), 200, 2},
	} {
		t.Run(fmt.Sprintf("%s/%v", tt.method, tt.answer), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := exchange(t, policies.Stripe(), tt.method, "/v1/charges", tt.answer)
				assert.Equal(t, tt.status, got.status)
				require.Equal(t, tt.requests, got.requests)
				for _, key := range got.keys {
					assert.Equal(t, got.keys[0], key)
					assert.Equal(t, tt.method == "POST", key != "")
				}
			})
		})
	}
}

// stream returns an answer that is a stream of events with data.
func stream(data string) answer {
	return say(200, "Content-Type", "text/event-stream").
		withBody(": ok\n\nevent: one\ndata: " + data + "\n\ndata: [DONE]\n\n")
}

func TestOpenAI(t *testing.T) {
	for _, tt := range []struct {
		name     string
		path     string
		answer   answer
		status   int
		requests int
		atMost   time.Duration
	}{
		{"overloaded", "/v1/chat/completions", say(503), 200, 2, 10 * time.Second},
		{"told when", "/v1/embeddings", say(429, "Retry-After-Ms", "20", "Retry-After", "1"), 200,
			2, 30 * time.Second},
		{"told not to", "/v1/chat/completions", say(429, "X-Should-Retry", "false"), 429, 1, 0},
		{"told to", "/v1/embeddings", say(400, "X-Should-Retry", "true"), 200, 2, 10 * time.Second},
		{"locked", "/v1/moderations", say(409), 200, 2, 10 * time.Second},
		{"locked, told not to", "/v1/moderations", say(409, "X-Should-Retry", "false"), 409, 1, 0},
		{"a gateway's path", "/openai/deployments/gpt/chat/completions", say(500), 200, 2,
			10 * time.Second},
		{"a job", "/v1/fine_tuning/jobs", say(503), 503, 1, 0},
		{"a file", "/v1/files", say(503), 503, 1, 0},
		{"a batch that is refused", "/v1/batches", say(429), 200, 2, 30 * time.Second},
		{"a batch that is locked", "/v1/batches", say(409), 409, 1, 0},
		{"a response that is stored", "/v1/responses", say(503), 503, 1, 0},
		{"a job, told to", "/v1/batches", say(500, "X-Should-Retry", "true"), 500, 1, 0},
		{"bad request", "/v1/embeddings", say(400), 400, 1, 0},
		{"without a chat", "/v1/completions/", say(503), 200, 2, 10 * time.Second},
		{"an image", "/v1/images/generations", say(503), 200, 2, 10 * time.Second},
		{"an edited image", "/v1/images/edits", say(503), 200, 2, 10 * time.Second},
		{"another image", "/v1/images/variations", say(503), 200, 2, 10 * time.Second},
		{"speech", "/v1/audio/speech", say(503), 200, 2, 10 * time.Second},
		{"a transcription", "/v1/audio/transcriptions", say(503), 200, 2, 10 * time.Second},
		{"a translation", "/v1/audio/translations", say(503), 200, 2, 10 * time.Second},
		{"no quota", "/v1/embeddings", say(429).withBody(
			`{"error": {"type": "insufficient_quota", "code": "insufficient_quota"}}`), 429, 1, 0},
		{"a limit", "/v1/embeddings", say(429).withBody(
			`{"error": {"type": "requests", "code": "rate_limit_exceeded"}}`), 200, 2, time.Minute},
		{"an error first", "/v1/chat/completions", stream(`{"error": {"type": "server_error"}}`),
			200, 2, time.Minute},
		{"an error's status first", "/v1/chat/completions", stream(`{"error": {"code": 502}}`),
			200, 2, time.Minute},
		{"a status as a limit", "/v1/completions",
			say(200).withBody(`{"error": {"code": 429}}`), 200, 2, time.Minute},
		{"a limit in 200", "/v1/completions",
			say(200).withBody(`{"error": {"code": "rate_limit_exceeded"}}`), 200, 2, time.Minute},
		{"overloaded first", "/v1/completions",
			say(200).withBody(`{"error": {"type": "overloaded_error"}}`), 200, 2, time.Minute},
		{"no error", "/v1/completions", say(200).withBody(`{"error": {}}`), 200, 1, 0},
		{"an object that has failed", "/v1/completions",
			say(200).withBody(`{"id": "r", "error": {"code": "server_error"}}`), 200, 1, 0},
		{"a refused batch, of a server", "/v1/batches",
			say(429).withBody(`{"error": {"type": "server_error"}}`), 200, 2, time.Minute},
		{"data after a comment", "/v1/completions", say(200, "Content-Type", "text/event-stream").
			withBody(": no data: yet\r\n\r\ndata: {\"error\":\r\ndata: {\"code\": 500}}\r\n\r\n"),
			200, 2, time.Minute},
		{"an error of the request first", "/v1/chat/completions",
			stream(`{"error": {"type": "invalid_request_error"}}`), 200, 1, 0},
		{"an error of a job", "/v1/batches", stream(`{"error": {"type": "server_error"}}`), 200, 1, 0},
		{"a token first", "/v1/chat/completions",
			stream(`{"choices": [{"delta": {"content": "\"error\""}}]}`), 200, 1, 0},
		{"an error in 200", "/v1/completions",
			say(200).withBody(`{"error": {"code": "server_error"}}`), 200, 2, time.Minute},
		{"a stored completion that is changed", "/v1/chat/completions/c", say(503), 503, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := exchange(t, policies.OpenAI(), "POST", tt.path, tt.answer)
				assert.Equal(t, tt.status, got.status)
				assert.Equal(t, tt.requests, got.requests)
				assert.LessOrEqual(t, got.took, tt.atMost)
			})
		})
	}
}

func TestAWS(t *testing.T) {
	for _, tt := range []struct {
		method   string
		answer   answer
		status   int
		requests int
	}{
		{"GET", say(400, "X-Amzn-ErrorType", "ThrottlingException"), 200, 2},
		{"GET",
			say(
				400, "X-Amzn-ErrorType",
				"ThrottlingException:http://internal.amazon.com/coral/com.amazon.coral.availability/"), 200, 2},
		{"GET", say(400, "X-Amzn-ErrorType", "aws.protocoltests.restjson#TooManyRequestsException"),
			200, 2},
		{"GET", say(400, "X-Amzn-ErrorType", "ValidationException"), 400, 1},
		{"GET", say(400), 400, 1},
		{"GET", say(503), 200, 2},
		{"POST", say(400, "X-Amzn-ErrorType", "ThrottlingException"), 400, 1},
		{"PUT", say(400, "X-Amzn-ErrorType", "SlowDown"), 200, 2},
		{"PUT", say(200).withBody(" \n <?xml version=\"1.0\"?>\n<Error><Code>"), 200, 2},
		{"POST", say(200).withBody("<Error/>"), 200, 1},
		{"PUT", say(200).withBody("<CopyObjectResult><Error/></CopyObjectResult>"), 200, 1},
		{"GET", say(200).withBody("<Error/>"), 200, 1},
		{"PUT", say(200).withBody("text with <Error>"), 200, 1},
		{"PUT", say(200, "X-Should-Retry", "false").withBody("<Error/>"), 200, 1},
	} {
		t.Run(fmt.Sprintf("%s/%v", tt.method, tt.answer), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := exchange(t, policies.AWS(), tt.method, "/", tt.answer)
				assert.Equal(t, tt.status, got.status)
				assert.Equal(t, tt.requests, got.requests)
			})
		})
	}
}

// Services whose headers the function RetryAfter does not read. A wait of more
// than MaxRetryAfter ends the request.
func TestWaitsOfServices(t *testing.T) {
	openAI, aws := policies.OpenAI(), policies.AWS()
	reset := func(name, value string) []string {
		return []string{"X-Ratelimit-Reset-" + name, value}
	}
	used := func(name, value string) []string {
		return append(reset(name, value), "X-Ratelimit-Remaining-"+name, "0")
	}
	for _, tt := range []struct {
		policy   httpretry.Policy
		status   int
		header   []string
		least    time.Duration // of the wait; the jitter is less than a third of it
		requests int
	}{
		{openAI, 429, used("Requests", "6m0s"), 0, 1},
		{openAI, 429, used("Requests", "20s"), 20 * time.Second, 2},
		{openAI, 429, append(used("Tokens", "8s"), reset("Requests", "50s")...),
			8 * time.Second, 2},
		{openAI, 429, append(used("Tokens", "8s"), used("Requests", "12s")...),
			12 * time.Second, 2},
		{openAI, 429, append(reset("Tokens", "30s"), reset("Requests", "50s")...),
			30 * time.Second, 2},
		{openAI, 429, append(used("Requests", "6m0s"), "Retry-After", "10"), 10 * time.Second, 2},
		{openAI, 503, reset("Tokens", "6m0s"), 0, 2},
		{openAI, 429, used("Requests", "soon"), 0, 2},
		{aws, 503, []string{"X-Amz-Retry-After", "9000"}, 9 * time.Second, 2},
		{aws, 503, []string{"X-Amz-Retry-After", "70000"}, 0, 1},
		{aws, 400, []string{"X-Amz-Retry-After", "9000", "X-Amzn-Errortype", "SlowDown"},
			9 * time.Second, 2},
		{aws, 503, []string{"X-Amz-Retry-After", "-1", "Retry-After", "7"}, 7 * time.Second, 2},
		{aws, 503, []string{"X-Amz-Retry-After", "1e3"}, 0, 2},
	} {
		t.Run(fmt.Sprint(tt.status, tt.header), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := exchange(t, tt.policy, "GET", "/", say(tt.status, tt.header...))
				assert.Equal(t, tt.requests, got.requests)
				assert.GreaterOrEqual(t, got.took, tt.least)
				assert.Less(t, got.took, max(tt.least+tt.least/3, 5*time.Second))
			})
		})
	}
}

func TestAnthropic(t *testing.T) {
	for _, tt := range []struct {
		name     string
		path     string
		answer   answer
		status   int
		requests int
		atLeast  time.Duration
	}{
		{"overloaded", "/v1/messages", say(529), 200, 2, 0},
		{"error of the API", "/v1/messages", say(500), 200, 2, 0},
		{"timeout", "/v1/messages", say(504), 200, 2, 0},
		{"rate limit", "/v1/messages", say(429, "Retry-After", "7"), 200, 2, 7 * time.Second},
		{"monthly spend limit", "/v1/messages", say(429), 429, 1, 0},
		{"count tokens", "/v1/messages/count_tokens?beta=true", say(529), 200, 2, 0},
		{"behind a gateway", "/anthropic/v1/messages", say(529), 200, 2, 0},
		{"X-Should-Retry: false", "/v1/messages", say(500, "X-Should-Retry", "false"), 500, 1, 0},
		{"X-Should-Retry: false on 429", "/v1/messages",
			say(429, "Retry-After", "1", "X-Should-Retry", "false"), 429, 1, 0},
		{"X-Should-Retry: true", "/v1/messages", say(400, "X-Should-Retry", "true"), 200, 2, 0},
		{"bad request", "/v1/messages", say(400), 400, 1, 0},
		{"too large", "/v1/messages", say(413), 413, 1, 0},
		{"overloaded stream", "/v1/messages",
			stream(`{"type": "error", "error": {"type": "overloaded_error"}}`), 200, 2, 0},
		{"stream of an API error", "/v1/messages",
			stream(`{"type": "error", "error": {"type": "api_error"}}`), 200, 2, 0},
		{"stream of a timeout", "/v1/messages",
			stream(`{"type": "error", "error": {"type": "timeout_error"}}`), 200, 2, 0},
		{"stream of a limit", "/v1/messages",
			stream(`{"type": "error", "error": {"type": "rate_limit_error"}}`), 200, 2, 0},
		{"spend limit with a body", "/v1/messages",
			say(429).withBody(`{"type": "error", "error": {"type": "rate_limit_error"}}`), 429, 1, 0},
		{"stream of the wrong model", "/v1/messages",
			stream(`{"type": "error", "error": {"type": "not_found_error"}}`), 200, 1, 0},
		{"overloaded batch", "/v1/messages/batches",
			stream(`{"type": "error", "error": {"type": "overloaded_error"}}`), 200, 1, 0},
		{"batch, overloaded", "/v1/messages/batches", say(529), 529, 1, 0},
		{"batch, rate limit", "/v1/messages/batches", say(429, "Retry-After", "7"), 200, 2,
			7 * time.Second},
		{"batch that is canceled", "/v1/messages/batches/b/cancel", say(500), 500, 1, 0},
		{"file", "/v1/files", say(529), 529, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := exchange(t, policies.Anthropic(), "POST", tt.path, tt.answer)
				assert.Equal(t, tt.status, got.status)
				assert.Equal(t, tt.requests, got.requests)
				assert.GreaterOrEqual(t, got.took, tt.atLeast)
			})
		})
	}
}

func TestSlack(t *testing.T) {
	for _, tt := range []struct {
		path     string
		answer   answer
		status   int
		requests int
	}{
		{"/api/conversations.list", say(503), 200, 2},
		{"/api/conversations.history", say(500), 200, 2},
		{"/api/users.info", say(503), 200, 2},
		{"/api/users.profile.get", say(503), 200, 2},
		{"/api/auth.test", say(503), 200, 2},
		{"/api/chat.getPermalink", say(503), 200, 2},
		{"/api/chat.postMessage", say(503), 503, 1},
		{"/api/users.profile.set", say(503), 503, 1},
		{"/api/conversations.listen", say(503), 503, 1},
		{"/api/chat.postMessage", say(429, "Retry-After", "30"), 200, 2},
		{"/api/conversations.list", say(429, "Retry-After", "30"), 200, 2},
		{"/api/conversations.list", say(429, "Retry-After", "3600"), 429, 1},
		{"/services/T0/B0/secret", say(429, "Retry-After", "1"), 200, 2},
		{"/services/T0/B0/secret", say(500), 500, 1},
		{"/api/chat.postMessage", say(200).withBody(`{"ok": false, "error": "ratelimited"}`), 200, 2},
		{"/api/chat.postMessage", say(200).withBody(`{"ok": false, "error": "internal_error"}`), 200, 1},
		{"/api/users.info", say(200).withBody(`{"ok": false, "error": "internal_error"}`), 200, 2},
		{"/api/users.info", say(200).withBody(`{"ok": false, "error": "user_not_found"}`), 200, 1},
		{"/api/users.info", say(200).withBody(`{"ok": false, "error": "service_unavailable"}`),
			200, 2},
		{"/api/chat.postMessage", say(200).withBody(`{"ok": true, "error": "ratelimited"}`), 200, 1},
		{"/api/chat.postMessage", say(302).withBody(`{"ok": false, "error": "ratelimited"}`), 302, 1},
		{"/api/users.info", say(200).withBody(`{"ok": true, "user": "ratelimited"}`), 200, 1},
	} {
		t.Run(fmt.Sprintf("%s/%v", tt.path, tt.answer), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := exchange(t, policies.Slack(), "POST", tt.path, tt.answer)
				assert.Equal(t, tt.status, got.status)
				assert.Equal(t, tt.requests, got.requests)
			})
		})
	}
}

func TestReads(t *testing.T) {
	for _, tt := range []struct {
		pattern, method, path string
		idempotent            bool
	}{
		{"/_search", "POST", "/_search", true},
		{"/_search", "POST", "/books/_search", true},
		{"/_search", "POST", "/books/_search/", true},
		{"/_search", "POST", "/books/_search?routing=a/b", true},
		{"/_search", "POST", "/books/_search//", false},
		{"/_search", "POST", "/books/my_search", false},
		{"/_search", "POST", "/_search/template", false},
		{"/_search", "POST", "/_SEARCH", false},
		{"/_search", "POST", "/records/x%2F_search", false},
		{"/_search", "POST", "/%5Fsearch", true},
		{"/_search", "PATCH", "/_search", false},
		{"/_search", "PUT", "/books/1", true},
		{"/_search", "POST", "/", false},
		{"/indexes/*/search", "POST", "/indexes/books/search", true},
		{"/indexes/*/search", "POST", "/v1/indexes/books/search", true},
		{"/indexes/*/search", "POST", "/indexes/my%20books/search", true},
		{"/indexes/*/search", "POST", "/indexes/search", false},
		{"/indexes/*/search", "POST", "/indexes/a/b/search", false},
		{"/indexes/*/search", "POST", "/indexes/a%2Fb/search", false},
		{"/indexes/*/search", "POST", "/indexes/books/documents", false},
		{"/v[12]/read", "POST", "/v2/read", true},
		{"/v[12]/read", "POST", "/v3/read", false},
	} {
		t.Run(fmt.Sprintf("%s/%s %s", tt.pattern, tt.method, tt.path), func(t *testing.T) {
			policy := policies.Reads(httpretry.Policy{}, "/elsewhere", tt.pattern)
			req, err := http.NewRequestWithContext(
				t.Context(), tt.method, "http://service.test"+tt.path, nil)
			require.NoError(t, err)
			assert.Equal(t, tt.idempotent, policy.Idempotent(req))
			req.Header.Set("Idempotency-Key", "k")
			assert.True(t, policy.Idempotent(req), "with a key")
		})
	}
	synctest.Test(t, func(t *testing.T) {
		policy := policies.Reads(httpretry.Policy{}, "/graphql")
		got := exchange(t, policy, "POST", "/graphql", say(503))
		assert.Equal(t, 200, got.status)
		assert.Equal(t, 2, got.requests)
	})
}

// The README of examples/sdks has these policies for APIs that read by POST.
func TestReadsOfServices(t *testing.T) {
	content, err := os.ReadFile("../examples/sdks/README.md")
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		patterns []string
		wrap     string // the call around Reads, if there is one
		reads    []string
		writes   []string
	}{
		"OpenSearch": {
			patterns: []string{"/_search", "/_msearch", "/_count", "/_mget"},
			reads:    []string{"/_search", "/a,b/_search", "/a/_msearch", "/a/_count", "/_mget"},
			writes: []string{"/_bulk", "/a/_update/1", "/a/_doc", "/_search/scroll",
				"/a/_search/point_in_time", "/_reindex"},
		},
		"Meilisearch": {
			patterns: []string{"/indexes/*/search", "/multi-search", "/indexes/*/facet-search",
				"/indexes/*/similar", "/indexes/*/documents/fetch"},
			reads: []string{"/indexes/books/search", "/multi-search", "/indexes/books/facet-search",
				"/indexes/books/similar", "/indexes/books/documents/fetch"},
			writes: []string{"/indexes", "/indexes/books/documents", "/swap-indexes", "/keys",
				"/indexes/books/documents/delete", "/indexes/books/documents/delete-batch"},
		},
		"Notion": {
			patterns: []string{"/search", "/databases/*/query", "/data_sources/*/query"},
			wrap:     "policies.Statuses(%s, httpretry.Unprocessed, 429)",
			reads:    []string{"/v1/search", "/v1/databases/d1/query", "/v1/data_sources/d1/query"},
			writes:   []string{"/v1/pages", "/v1/databases", "/v1/comments", "/v1/data_sources"},
		},
		"GraphQL": {
			patterns: []string{"/graphql"},
			reads:    []string{"/graphql", "/api/graphql"},
			writes:   []string{"/graphql/upload"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			call := "policies.Reads(p, " + strings.Join(quoted(tt.patterns), ", ") + ")"
			if tt.wrap != "" {
				call = fmt.Sprintf(tt.wrap, call)
			}
			assert.Contains(t, string(content), "| `"+call+"` |")
			idempotent := policies.Reads(httpretry.Policy{}, tt.patterns...).Idempotent
			for _, path := range tt.reads {
				assert.True(t, idempotent(post(t, path)), path)
			}
			for _, path := range tt.writes {
				assert.False(t, idempotent(post(t, path)), path)
			}
		})
	}
}

func quoted(texts []string) (all []string) {
	for _, text := range texts {
		all = append(all, strconv.Quote(text))
	}
	return all
}

func post(t *testing.T, path string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://service.test"+path, nil)
	require.NoError(t, err)
	return req
}

// Reads keeps no reference to its arguments, and matches no request without a
// URL.
func TestReadsIsIndependent(t *testing.T) {
	patterns := []string{"/_search"}
	before := httpretry.Policy{MaxAttempts: 7}
	policy := policies.Reads(before, patterns...)
	patterns[0] = "/_bulk"
	assert.Nil(t, before.Idempotent, "the argument is not changed")
	assert.Equal(t, 7, policy.MaxAttempts)
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://service.test/_search", nil)
	require.NoError(t, err)
	assert.True(t, policy.Idempotent(req))
	assert.False(t, policy.Idempotent(&http.Request{Method: "POST"}))
	assert.Zero(t, testing.AllocsPerRun(100, func() { policy.Idempotent(req) }))
}

func TestReadsPanics(t *testing.T) {
	for pattern, want := range map[string]string{
		"":              `policies: Reads: patterns[1]: "": want a slash at the beginning`,
		"_search":       `policies: Reads: patterns[1]: "_search": want a slash at the beginning`,
		"/":             `policies: Reads: patterns[1]: "/" has an empty segment: want segments such as "search" or "*"`,
		"/a//b":         `policies: Reads: patterns[1]: "/a//b" has an empty segment: want segments such as "search" or "*"`,
		"/indexes/[a/b": `policies: Reads: patterns[1]: "/indexes/[a/b" has the segment "[a": syntax error in pattern: want the syntax of path.Match`,
	} {
		assert.PanicsWithError(t, want, func() {
			policies.Reads(httpretry.Policy{}, "/ok", pattern)
		})
	}
	assert.PanicsWithError(t, "policies: Reads: no patterns: want at least one",
		func() { policies.Reads(httpretry.Policy{}) })
}

// Reads adds to the requests that a policy considers idempotent.
func TestReadsAdds(t *testing.T) {
	own := httpretry.Policy{Idempotent: func(req *http.Request) bool {
		return req.Method == "PATCH"
	}}
	twice := policies.Reads(policies.Reads(own, "/_search"), "/_count")
	own.Idempotent = nil
	for _, tt := range []struct {
		method, path string
		idempotent   bool
	}{
		{"PATCH", "/a", true},
		{"POST", "/_search", true},
		{"POST", "/_count", true},
		{"POST", "/a", false},
		{"GET", "/a", false}, // the policy has a function of its own
	} {
		req, err := http.NewRequestWithContext(
			t.Context(), tt.method, "http://service.test"+tt.path, nil)
		require.NoError(t, err)
		assert.Equal(t, tt.idempotent, twice.Idempotent(req), "%s %s", tt.method, tt.path)
	}
	openai := policies.Reads(policies.OpenAI(), "/responses")
	assert.True(t, openai.Idempotent(post(t, "/v1/responses")))
	assert.True(t, openai.Idempotent(post(t, "/v1/embeddings")))
	assert.False(t, openai.Idempotent(post(t, "/v1/files")))
}

// changed returns how a function of package policies changes a policy.
type changed func(httpretry.Policy) httpretry.Policy

func statuses(outcome httpretry.Outcome, statuses ...int) changed {
	return func(p httpretry.Policy) httpretry.Policy {
		return policies.Statuses(p, outcome, statuses...)
	}
}

// apply returns p with several changes, one after another.
func apply(p httpretry.Policy, changes ...changed) httpretry.Policy {
	for _, change := range changes {
		p = change(p)
	}
	return p
}

const (
	final, transient = httpretry.Final, httpretry.Transient
	notProcessed     = httpretry.Unprocessed
)

// always returns a Classify with the same result for all attempts.
func always(outcome httpretry.Outcome) httpretry.Policy {
	return httpretry.Policy{
		Classify: func(*http.Request, *http.Response, error) httpretry.Outcome { return outcome },
	}
}

func TestStatuses(t *testing.T) {
	for _, tt := range []struct {
		name     string
		policy   httpretry.Policy
		outcome  httpretry.Outcome
		method   string
		answer   answer
		status   int
		requests int
	}{
		{"final", httpretry.Policy{}, final, "GET", say(503), 503, 1},
		{"final, told to", httpretry.Policy{}, final, "GET", say(503, "X-Should-Retry", "true"),
			503, 1},
		{"final, whatever the policy says", always(notProcessed), final, "GET", say(503), 503, 1},
		{"transient", httpretry.Policy{}, transient, "GET", say(503), 200, 2},
		{"transient, POST", httpretry.Policy{}, transient, "POST", say(503), 503, 1},
		{"transient, whatever the policy says", always(final), transient, "GET", say(503), 200, 2},
		{"unprocessed", httpretry.Policy{}, notProcessed, "POST", say(503), 200, 2},
		{"unprocessed, whatever the policy says", always(final), notProcessed, "POST", say(503),
			200, 2},
		{"unprocessed, final by default", httpretry.Policy{}, notProcessed, "POST", say(404),
			200, 2},
		{"unprocessed, a wait that is asked for", httpretry.Policy{}, notProcessed, "POST",
			say(503, "Retry-After", "1"), 200, 2},
		{"404", httpretry.Policy{}, transient, "GET", say(404), 200, 2},
		{"202", httpretry.Policy{}, transient, "GET", say(202), 200, 2},
		{"999", httpretry.Policy{}, transient, "GET", say(999), 200, 2},
		{"another", httpretry.Policy{}, notProcessed, "POST", say(500), 500, 1},
		{"another of the policy", policies.Statuses(httpretry.Policy{}, notProcessed, 500), final,
			"POST", say(500), 200, 2},
		{"forbidden", httpretry.Policy{}, notProcessed, "GET", say(503, "X-Should-Retry", "false"),
			503, 1},
		{"forbidden by Stripe", always(transient), transient, "GET",
			say(404, "Stripe-Should-Retry", "False, true"), 404, 1},
		{"202, no retry", httpretry.Policy{}, transient, "GET", say(202, "X-Should-Retry", "false"),
			202, 1},
		{"stored for a key", httpretry.Policy{}, transient, "GET",
			say(503, "Idempotent-Replayed", "true"), 503, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := policies.Statuses(tt.policy, tt.outcome, 503, 404, 202, 999)
				got := exchange(t, policy, tt.method, "/", tt.answer)
				assert.Equal(t, tt.status, got.status)
				assert.Equal(t, tt.requests, got.requests)
			})
		})
	}
}

// outcomeOf returns the Outcome that p gives to a response to a POST.
func outcomeOf(t *testing.T, p httpretry.Policy, status int, header ...string) httpretry.Outcome {
	t.Helper()
	resp := &http.Response{StatusCode: status, Header: http.Header{}}
	for i := 0; i < len(header); i += 2 {
		resp.Header.Set(header[i], header[i+1])
	}
	return p.Classify(post(t, "/"), resp, nil)
}

// Each change is made to the policy that those before it return.
func TestChangesCompose(t *testing.T) {
	for _, tt := range []struct {
		name    string
		policy  httpretry.Policy
		changes []changed
		status  int
		want    httpretry.Outcome
	}{
		{"both", httpretry.Policy{}, []changed{statuses(notProcessed, 429), statuses(final, 500)},
			429, notProcessed},
		{"both, the other", httpretry.Policy{},
			[]changed{statuses(notProcessed, 429), statuses(final, 500)}, 500, final},
		{"neither", httpretry.Policy{}, []changed{statuses(notProcessed, 429), statuses(final, 500)},
			502, transient},
		{"the last decides", httpretry.Policy{},
			[]changed{statuses(final, 404), statuses(transient, 404)}, 404, transient},
		{"OpenAI", policies.OpenAI(), []changed{statuses(final, 409)}, 409, final},
		{"OpenAI's own", policies.OpenAI(), []changed{statuses(final, 409)}, 429, notProcessed},
		{"GitHub", policies.GitHub(), []changed{statuses(transient, 404)}, 404, transient},
		{"GitHub's own", policies.GitHub(), []changed{statuses(notProcessed, 503)}, 429, final},
		{"Anthropic's own", policies.Anthropic(), []changed{statuses(notProcessed, 503)}, 429, final},
	} {
		assert.Equal(t, tt.want, outcomeOf(t, apply(tt.policy, tt.changes...), tt.status), tt.name)
	}
}

// Other responses have the Outcome of the policy, whose IdempotencyHeader
// matters for a 409.
func TestStatusesKeepTheIdempotencyHeader(t *testing.T) {
	p := statuses(final, 500)(httpretry.Policy{IdempotencyHeader: "x-line-retry-key"})
	for name, want := range map[string]httpretry.Outcome{
		"X-Line-Retry-Key": transient, "Idempotency-Key": transient, "X-Other": final,
	} {
		req := post(t, "/")
		req.Header.Set(name, "k")
		resp := &http.Response{StatusCode: 409, Header: http.Header{}}
		assert.Equal(t, want, p.Classify(req, resp, nil), name)
	}
	assert.Equal(t, transient, outcomeOf(t, p, 503))
	synctest.Test(t, func(t *testing.T) {
		// The same with a RetryTransport, which makes the key.
		p.NewIdempotencyKey = httpretry.RandomKey
		assert.Equal(t, 2, exchange(t, p, "POST", "/", say(409)).requests)
	})
}

// Statuses keeps no reference to its arguments.
func TestStatusesIsIndependent(t *testing.T) {
	before, list := httpretry.Policy{MaxAttempts: 7}, []int{429}
	after := policies.Statuses(before, notProcessed, list...)
	assert.Nil(t, before.Classify, "the argument is not changed")
	list[0], before.Classify = 503, always(final).Classify
	assert.Equal(t, 7, after.MaxAttempts)
	assert.Equal(t, notProcessed, outcomeOf(t, after, 429))
	assert.Equal(t, transient, outcomeOf(t, after, 503))

	own := policies.Statuses(always(notProcessed), transient, 503)
	assert.Equal(t, notProcessed, own.Classify(nil, nil, io.ErrUnexpectedEOF), "errors")
	assert.Equal(t, transient, after.Classify(nil, nil, io.ErrUnexpectedEOF), "errors")
	assert.Equal(t, notProcessed, after.Classify(nil, &http.Response{StatusCode: 429}, nil),
		"no request")
	req, resp := post(t, "/"), &http.Response{StatusCode: 503}
	assert.Zero(t, testing.AllocsPerRun(100, func() { after.Classify(req, resp, nil) }))
}

// A layer in Base that follows a redirect returns the response to another
// request. A refusal of that one does not prove that the first was refused.
func TestUnprocessedRequestOfALayer(t *testing.T) {
	for name, p := range map[string]httpretry.Policy{
		"Statuses": policies.Statuses(httpretry.Policy{}, notProcessed, 429),
		"GitHub":   policies.GitHub(),
	} {
		for method, want := range map[string]httpretry.Outcome{
			"GET": transient, "": transient, "POST": notProcessed,
		} {
			resp := &http.Response{
				StatusCode: 429, Header: http.Header{"Retry-After": {"1"}},
				Request: &http.Request{Method: method},
			}
			assert.Equal(t, want, p.Classify(post(t, "/"), resp, nil), "%s: %q", name, method)
			// Without a request, nothing shows that there was another one.
			assert.Equal(t, notProcessed, p.Classify(nil, resp, nil), "%s: %q", name, method)
			// An empty method means GET.
			get := &http.Request{Method: strings.TrimPrefix(method, "GET")}
			assert.Equal(t, notProcessed, p.Classify(get, resp, nil), "%s: %q", name, method)
		}
	}
}

// The same for an error after an answer, which only a RetryTransport notices.
// All policies here classify errors as httpretry does.
func TestUnprocessedErrorOfALayer(t *testing.T) {
	for name, p := range map[string]httpretry.Policy{
		"default":  {},
		"Statuses": policies.Statuses(httpretry.Policy{}, final, 500),
		"GitHub":   policies.GitHub(),
		"AWS":      policies.AWS(),
	} {
		t.Run(name, func(t *testing.T) {
			posts := 0
			inner, srv := contract.Serve(t, contract.HTTP1,
				func(w http.ResponseWriter, _ *http.Request) { posts++ })
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				resp, err := inner.RoundTrip(req)
				if err != nil {
					return nil, err
				}
				contract.ReadBody(t, resp)
				return nil, errors.New("http2: Transport received Server's graceful shutdown GOAWAY")
			})
			p.Backoff = strategies.Constant{}
			transport := contract.New(t, httpretry.Config{Base: base, Policy: p})
			_, err := transport.RoundTrip(contract.Request(t, "POST", srv.URL, "payload"))
			require.Error(t, err)
			assert.Equal(t, 1, posts)
		})
	}
}

func TestStatusesPanics(t *testing.T) {
	for _, tt := range []struct {
		statuses []int
		want     string
	}{
		{nil, "no statuses: want at least one"},
		{[]int{503, 42}, "statuses[1]: 42: want a status from 200 to 999"},
		{[]int{199}, "statuses[0]: 199: want a status from 200 to 999"},
		{[]int{1000}, "statuses[0]: 1000: want a status from 200 to 999"},
	} {
		assert.PanicsWithError(t, "policies: Statuses: "+tt.want, func() {
			policies.Statuses(httpretry.Policy{}, transient, tt.statuses...)
		})
	}
	assert.PanicsWithError(t, "policies: Statuses: Outcome(3): want Final, Transient or Unprocessed",
		func() { policies.Statuses(httpretry.Policy{}, 3, 503) })
	assert.NotPanics(t, func() { policies.Statuses(httpretry.Policy{}, final, 200, 999) })
}

// An outage of six hours is survived, and the last wait is obeyed although it
// is much longer than the default limit.
func TestBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const down = 6 * time.Hour
		var arrivals []time.Duration
		start := time.Now()
		base := faults.Pipe(t, func(w http.ResponseWriter, _ *http.Request) {
			arrivals = append(arrivals, time.Since(start))
			switch since := time.Since(start); {
			case since < down:
				w.WriteHeader(http.StatusServiceUnavailable)
			case since < down+time.Minute+time.Second:
				w.Header().Set("Retry-After", "7200")
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		transport, err := httpretry.New(
			httpretry.Config{Base: base, Policy: policies.Background(0)})
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://service.test/", nil)
		require.NoError(t, err)
		resp, err := transport.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, 200, resp.StatusCode)

		last := len(arrivals) - 1
		assert.InDelta(t, down/(7500*time.Millisecond), last, 100, "one attempt in 5 to 10 s")
		assert.GreaterOrEqual(t, arrivals[last]-arrivals[last-1], 2*time.Hour)
		for i := 1; i < last; i++ {
			wait := arrivals[i] - arrivals[i-1]
			longest := min(time.Second<<min(i-1, 4), 10*time.Second)
			assert.GreaterOrEqual(t, wait, longest/2, "wait %d", i)
			assert.LessOrEqual(t, wait, longest, "wait %d", i)
		}
	})
}

// MaxElapsed ends a request that would otherwise be retried without end.
func TestBackgroundEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := slices.Repeat([]answer{say(503)}, 100)
		got := exchange(t, policies.Background(10*time.Minute), "GET", "/", answers...)
		assert.Equal(t, 503, got.status)
		assert.LessOrEqual(t, got.took, 10*time.Minute)
		assert.Greater(t, got.took, 9*time.Minute, "and not much earlier")
		assert.Greater(t, got.requests, 10)
	})
	synctest.Test(t, func(t *testing.T) {
		got := exchange(t, policies.Background(10*time.Minute), "POST", "/", say(503))
		assert.Equal(t, 503, got.status)
		assert.Equal(t, 1, got.requests, "a POST is not made safe by waiting")
	})
	_, err := httpretry.New(httpretry.Config{Policy: policies.Background(-time.Second)})
	assert.ErrorContains(t, err, "Config.Policy.MaxElapsed: -1s")
}

// services are the policies that are complete as they are.
func services() map[string]httpretry.Policy {
	return map[string]httpretry.Policy{
		"GitHub": policies.GitHub(), "Stripe": policies.Stripe(), "OpenAI": policies.OpenAI(),
		"Anthropic": policies.Anthropic(), "Slack": policies.Slack(), "AWS": policies.AWS(),
	}
}

func TestValid(t *testing.T) {
	for name, policy := range services() {
		require.NoError(t, policy.Validate(), name)
	}
	require.NoError(t, policies.Reads(httpretry.Policy{}, "/_search").Validate())
	require.NoError(t, policies.Background(0).Validate())
	require.NoError(t, policies.Statuses(policies.Background(time.Hour), final, 429).Validate())
}

// A limit that one credential has reached does not delay requests with another,
// nor requests without one.
func TestCooldownKeys(t *testing.T) {
	for name, header := range map[string]string{
		"GitHub": "Authorization", "Stripe": "Authorization", "OpenAI": "Authorization",
		"Slack": "Authorization", "Anthropic": "X-Api-Key",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				checkCooldownKey(t, services()[name], header)
			})
		})
	}
}

func checkCooldownKey(t *testing.T, policy httpretry.Policy, header string) {
	base := faults.Pipe(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(header) == "Bearer spent" && r.URL.Path == "/one" {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	policy.Cooldown = httpretry.CooldownFail
	transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy})
	require.NoError(t, err)
	send := func(path, credential string) (int, error) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://service.test"+path, nil)
		require.NoError(t, err)
		req.Header.Set(header, credential)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	for _, token := range []string{"Bearer spent", "Bearer other", ""} {
		status, err := send("/one", token)
		require.NoError(t, err)
		assert.Equal(t, token == "Bearer spent", status == http.StatusTooManyRequests, token)
	}
	_, err = send("/one", "Bearer spent")
	var cooling *httpretry.CooldownError
	require.ErrorAs(t, err, &cooling)
	assert.NotContains(t, err.Error(), "spent", "the key is a secret")
}

// Slack's limits are those of a method.
func TestSlackLimitsAMethod(t *testing.T) {
	key := policies.Slack().CooldownKey
	post := func(path string) *http.Request {
		req, err := http.NewRequestWithContext(t.Context(), "POST", "https://slack.com"+path, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer t")
		return req
	}
	assert.Equal(t, key(post("/api/users.list")), key(post("/api/users.list?cursor=c")))
	assert.NotEqual(t, key(post("/api/users.list")), key(post("/api/users.info")))
	assert.NotPanics(t, func() { key(&http.Request{}) })
}
