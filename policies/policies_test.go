package policies_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/policies"
	"github.com/seed421102f4/httpretry/retrytest"
	"github.com/seed421102f4/httpretry/strategies"
)

const (
	final, transient = httpretry.Final, httpretry.Transient
	notProcessed     = httpretry.Unprocessed
)

// say is how a service answers one request.
func say(status int, header ...string) contract.Step { return retrytest.Status(status, header...) }

// with returns an answer of status 200 with a body.
func with(body string) contract.Step { return contract.Step{Body: body} }

// refuse returns a 429 with a body.
func refuse(body string) contract.Step { return contract.Step{Status: 429, Body: body} }

// stream returns an answer that is a stream of events with data.
func stream(data string) contract.Step {
	s := say(200, "Content-Type", "text/event-stream")
	s.Body = ": ok\n\nevent: one\ndata: " + data + "\n\ndata: [DONE]\n\n"
	return s
}

// resetIn returns an X-RateLimit-Reset for a request that is sent when a bubble
// of testing/synctest begins.
func resetIn(wait time.Duration) string {
	begin := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	return strconv.FormatInt(begin.Add(wait).Unix(), 10)
}

func send(t *testing.T, policy httpretry.Policy, base http.RoundTripper, request string) int {
	method, path, _ := strings.Cut(request, " ")
	req := contract.Request(t, method, "http://service.test"+path, "{}")
	return contract.Send(t, contract.With(t, base, policy), req).StatusCode
}

func post(t *testing.T, path string) *http.Request {
	return contract.Request(t, "POST", "http://service.test"+path, "")
}

// row is a request to a service that answers it once, and then with 200.
type row struct {
	request string // the method and the path
	answer  contract.Step
	wait    time.Duration // that the answer asks for, or one of the constants
}

const (
	soon  time.Duration = 0  // a retry after the policy's backoff
	never time.Duration = -1 // no retry
)

// check sends the requests under a policy, in virtual time. All attempts of a
// POST have one key, if the policy makes keys.
func check(t *testing.T, policy httpretry.Policy, rows ...row) {
	for _, tt := range rows {
		name := fmt.Sprint(tt.request, " ", tt.answer.Status, tt.answer.Header, tt.answer.Body)
		contract.Bubble(t, name, func(t *testing.T) {
			service := contract.Play(tt.answer, say(200))
			status, requests := max(tt.answer.Status, 200), 1
			if tt.wait != never {
				status, requests = 200, 2
			}
			assert.Equal(t, status, send(t, policy, service, tt.request))
			require.Len(t, service.Attempts(), requests)
			hasKey := policy.NewIdempotencyKey != nil && strings.HasPrefix(tt.request, "POST ")
			first := service.Attempts()[0].Header.Get("Idempotency-Key")
			assert.Equal(t, hasKey, first != "")
			for _, wait := range service.Waits() {
				most := tt.wait + max(tt.wait/4, time.Second) // its jitter
				if tt.wait == soon {
					most = 5 * time.Second
				}
				assert.GreaterOrEqual(t, wait, tt.wait)
				assert.LessOrEqual(t, wait, most)
				assert.Equal(t, first, service.Attempts()[1].Header.Get("Idempotency-Key"))
			}
		})
	}
}

func TestGitHub(t *testing.T) {
	hourly := func(status int, reset time.Duration) contract.Step {
		return say(status, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", resetIn(reset))
	}
	check(t, policies.GitHub(),
		row{"GET /", hourly(403, 30*time.Second), 30 * time.Second},
		row{"GET /", hourly(429, 30*time.Second), 30 * time.Second},
		row{"GET /", hourly(403, time.Hour), never},
		// secondary limits
		row{"GET /", say(403, "X-RateLimit-Remaining", "4000", "Retry-After", "60"), time.Minute},
		row{"POST /", say(403, "Retry-After", "60"), time.Minute},
		row{"GET /", say(429, "Retry-After", "60"), time.Minute},
		row{"GET /", say(429, "X-RateLimit-Remaining", "4000"), never},
		// no permission
		row{"GET /", say(403, "X-RateLimit-Remaining", "4000",
			"X-RateLimit-Reset", resetIn(time.Minute)), never},
		row{"GET /", say(502), soon},
		row{"POST /", say(502), never},
	)
}

func TestStripe(t *testing.T) {
	check(t, policies.Stripe(),
		row{"POST /", say(503), soon},
		row{"POST /", say(409), soon},
		row{"POST /", say(500, "Stripe-Should-Retry", "false"), never},
		row{"POST /", say(402), never},
		row{"GET /", say(409), never},
	)
}

func TestOpenAI(t *testing.T) {
	reset := func(name, value string) []string {
		return []string{"X-Ratelimit-Reset-" + name, value}
	}
	used := func(name, value string) []string {
		return append(reset(name, value), "X-Ratelimit-Remaining-"+name, "0")
	}
	crlf := say(200, "Content-Type", "text/event-stream")
	crlf.Body = ": no data: yet\r\n\r\ndata: {\"error\":\r\ndata: {\"code\": 500}}\r\n\r\n" +
		"data: [DONE]\r\n\r\n"
	check(t, policies.OpenAI(),
		row{"POST /v1/chat/completions", say(503), soon},
		row{"POST /v1/chat/completions", say(429, "X-Should-Retry", "false"), never},
		row{"POST /v1/embeddings", say(400, "X-Should-Retry", "true"), soon},
		row{"POST /v1/moderations", say(409), soon},
		row{"POST /v1/moderations", say(409, "X-Should-Retry", "false"), never},
		row{"POST /v1/batches", say(429), soon},
		row{"POST /v1/batches", say(409), never},
		row{"POST /v1/batches", say(500, "X-Should-Retry", "true"), never},

		// limits
		row{"GET /", say(429, used("Requests", "6m0s")...), never},
		row{"GET /", say(429, used("Requests", "20s")...), 20 * time.Second},
		row{"GET /", say(429, append(used("Tokens", "8s"), reset("Requests", "50s")...)...),
			8 * time.Second},
		row{"GET /", say(429, append(used("Tokens", "8s"), used("Requests", "12s")...)...),
			12 * time.Second},
		row{"GET /", say(429, append(reset("Tokens", "30s"), reset("Requests", "50s")...)...),
			30 * time.Second},
		row{"GET /", say(429, append(used("Requests", "6m0s"), "Retry-After", "10")...),
			10 * time.Second},
		row{"GET /", say(503, reset("Tokens", "6m0s")...), soon},
		row{"GET /", say(429, used("Requests", "soon")...), soon},

		// errors in bodies
		row{"POST /v1/embeddings", refuse(
			`{"error": {"type": "insufficient_quota", "code": "insufficient_quota"}}`), never},
		row{"POST /v1/embeddings", refuse(
			`{"error": {"type": "requests", "code": "rate_limit_exceeded"}}`), soon},
		row{"POST /v1/batches", refuse(`{"error": {"type": "server_error"}}`), soon},
		row{"POST /v1/completions", with(`{"error": {"code": "server_error"}}`), soon},
		row{"POST /v1/completions", with(`{"error": {"code": 429}}`), soon},
		row{"POST /v1/completions", with(`{"error": {"code": "rate_limit_exceeded"}}`), soon},
		row{"POST /v1/completions", with(`{"error": {"type": "overloaded_error"}}`), soon},
		row{"POST /v1/completions", with(`{"error": {}}`), never},
		row{"POST /v1/completions", with(`{"id": "r", "error": {"code": "server_error"}}`), never},

		// errors in streams
		row{"POST /v1/completions", crlf, soon},
		row{"POST /v1/completions", stream(`{"error": {"type": "server_error"}}`), soon},
		row{"POST /v1/completions", stream(`{"error": {"code": 502}}`), soon},
		row{"POST /v1/completions", stream(`{"error": {"type": "invalid_request_error"}}`), never},
		row{"POST /v1/completions", stream(`{"choices": [{"text": "\"error\""}]}`), never},
		row{"POST /v1/batches", stream(`{"error": {"type": "server_error"}}`), never},
	)
}

func TestAWS(t *testing.T) {
	failed := func(name string) contract.Step { return say(400, "X-Amzn-ErrorType", name) }
	forbidden := say(200, "X-Should-Retry", "false")
	forbidden.Body = "<Error/>"
	check(t, policies.AWS(),
		row{"GET /", failed("ThrottlingException"), soon},
		row{"GET /", failed("ThrottlingException:http://internal.amazon.com/coral/"), soon},
		row{"GET /", failed("aws.protocoltests.restjson#TooManyRequestsException"), soon},
		row{"GET /", failed("ValidationException"), never},
		row{"GET /", say(400), never},
		row{"POST /", failed("ThrottlingException"), never},
		row{"PUT /", failed("SlowDown"), soon},

		row{"PUT /", with(" \n <?xml version=\"1.0\"?>\n<Error><Code>"), soon},
		row{"POST /", with("<Error/>"), never},
		row{"PUT /", with("<CopyObjectResult><Error/></CopyObjectResult>"), never},
		row{"GET /", with("<Error/>"), never},
		row{"PUT /", with("text with <Error>"), never},
		row{"PUT /", forbidden, never},

		row{"GET /", say(503, "X-Amz-Retry-After", "9000"), 9 * time.Second},
		row{"GET /", say(503, "X-Amz-Retry-After", "70000"), never},
		row{"GET /", say(400, "X-Amz-Retry-After", "9000", "X-Amzn-Errortype", "SlowDown"),
			9 * time.Second},
		row{"GET /", say(503, "X-Amz-Retry-After", "-1", "Retry-After", "7"), 7 * time.Second},
		row{"GET /", say(503, "X-Amz-Retry-After", "1e3"), soon},
	)
}

func TestAnthropic(t *testing.T) {
	const overloaded = `{"type": "error", "error": {"type": "overloaded_error"}}`
	const limited = `{"type": "error", "error": {"type": "rate_limit_error"}}`
	check(t, policies.Anthropic(),
		row{"POST /v1/messages", say(529), soon},
		row{"POST /v1/messages", say(429, "Retry-After", "7"), 7 * time.Second},
		row{"POST /v1/messages", say(429), never}, // the monthly spend limit
		row{"POST /v1/messages", refuse(limited), never},
		row{"POST /v1/messages", say(500, "X-Should-Retry", "false"), never},
		row{"POST /v1/messages", say(429, "Retry-After", "1", "X-Should-Retry", "false"), never},
		row{"POST /v1/messages", say(400), never},
		row{"POST /v1/messages", stream(overloaded), soon},
		row{"POST /v1/messages", stream(`{"error": {"type": "api_error"}}`), soon},
		row{"POST /v1/messages", stream(`{"error": {"type": "timeout_error"}}`), soon},
		row{"POST /v1/messages", stream(limited), soon},
		row{"POST /v1/messages", stream(`{"error": {"type": "not_found_error"}}`), never},
		row{"POST /v1/messages/batches", stream(overloaded), never},
		row{"POST /v1/messages/batches", say(529), never},
		row{"POST /v1/messages/batches", say(429, "Retry-After", "7"), 7 * time.Second},
	)
}

func TestSlack(t *testing.T) {
	const reads, writes = "POST /api/users.info", "POST /api/chat.postMessage"
	redirect := say(302)
	redirect.Body = `{"ok": false, "error": "ratelimited"}`
	check(t, policies.Slack(),
		row{reads, say(503), soon},
		row{writes, say(503), never},
		row{writes, say(429, "Retry-After", "30"), 30 * time.Second},
		row{reads, say(429, "Retry-After", "3600"), never},
		row{writes, with(`{"ok": false, "error": "ratelimited"}`), soon},
		row{writes, with(`{"ok": false, "error": "internal_error"}`), never},
		row{reads, with(`{"ok": false, "error": "internal_error"}`), soon},
		row{reads, with(`{"ok": false, "error": "service_unavailable"}`), soon},
		row{reads, with(`{"ok": false, "error": "user_not_found"}`), never},
		row{writes, with(`{"ok": true, "error": "ratelimited"}`), never},
		row{writes, redirect, never},
		row{reads, with(`{"ok": true, "user": "ratelimited"}`), never},
	)
}

// TestReads checks which POSTs are idempotent. A call must be in the README of
// examples/sdks.
func TestReads(t *testing.T) {
	content, err := os.ReadFile("../examples/sdks/README.md")
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		patterns      string
		policy        httpretry.Policy // if there are no patterns
		call          string           // %s stands for the patterns
		reads, writes string
	}{
		"a segment": {
			patterns: "/_search",
			reads: "/_search /books/_search /books/_search/ /books/_search?routing=a/b " +
				"/%5Fsearch",
			writes: "/books/_search// /books/my_search /_search/template /_SEARCH " +
				"/records/x%2F_search /",
		},
		"a star": {
			patterns: "/elsewhere /indexes/*/search",
			reads:    "/indexes/books/search /v1/indexes/books/search /indexes/my%20books/search",
			writes: "/indexes/search /indexes/a/b/search /indexes/a%2Fb/search " +
				"/indexes/books/documents",
		},
		"a range": {patterns: "/v[12]/read", reads: "/v2/read", writes: "/v3/read"},

		"OpenSearch": {
			patterns: "/_search /_msearch /_count /_mget",
			call:     "policies.Reads(p, %s)",
			reads:    "/_search /a,b/_search /a/_msearch /a/_count /_mget",
			writes: "/_bulk /a/_update/1 /a/_doc /_search/scroll /a/_search/point_in_time " +
				"/_reindex",
		},
		"Meilisearch": {
			patterns: "/indexes/*/search /multi-search /indexes/*/facet-search " +
				"/indexes/*/similar /indexes/*/documents/fetch",
			call: "policies.Reads(p, %s)",
			reads: "/indexes/books/search /multi-search /indexes/books/facet-search " +
				"/indexes/books/similar /indexes/books/documents/fetch",
			writes: "/indexes /indexes/books/documents /swap-indexes /keys " +
				"/indexes/books/documents/delete /indexes/books/documents/delete-batch",
		},
		"Notion": {
			patterns: "/search /databases/*/query /data_sources/*/query",
			call:     "policies.Statuses(policies.Reads(p, %s), httpretry.Unprocessed, 429)",
			reads:    "/v1/search /v1/databases/d1/query /v1/data_sources/d1/query",
			writes:   "/v1/pages /v1/databases /v1/comments /v1/data_sources",
		},
		"GraphQL": {
			patterns: "/graphql",
			call:     "policies.Reads(p, %s)",
			reads:    "/graphql /api/graphql",
			writes:   "/graphql/upload",
		},

		"OpenAI": {
			policy: policies.OpenAI(),
			reads: "/v1/completions/ /openai/deployments/gpt/chat/completions /v1/embeddings " +
				"/v1/moderations /v1/images/generations /v1/images/edits /v1/images/variations " +
				"/v1/audio/speech /v1/audio/transcriptions /v1/audio/translations",
			writes: "/v1/fine_tuning/jobs /v1/files /v1/responses /v1/chat/completions/c",
		},
		"Anthropic": {
			policy: policies.Anthropic(),
			reads: "/v1/messages /v1/messages/count_tokens?beta=true /anthropic/v1/messages " +
				"/v1/complete",
			writes: "/v1/messages/batches /v1/messages/batches/b/cancel /v1/files",
		},
		"Slack": {
			policy: policies.Slack(),
			reads: "/api/conversations.list /api/conversations.history /api/users.info " +
				"/api/users.profile.get /api/auth.test /api/chat.getPermalink",
			writes: "/api/chat.postMessage /api/users.profile.set /api/conversations.listen " +
				"/services/T0/B0/secret",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if patterns := strings.Fields(tt.patterns); len(patterns) > 0 {
				tt.policy = policies.Reads(httpretry.Policy{}, patterns...)
				quoted := `"` + strings.Join(patterns, `", "`) + `"`
				if tt.call != "" {
					assert.Contains(t, string(content), "| `"+fmt.Sprintf(tt.call, quoted)+"` |")
				}
			}
			for path := range strings.FieldsSeq(tt.reads) {
				assert.True(t, tt.policy.Idempotent(post(t, path)), path)
			}
			for path := range strings.FieldsSeq(tt.writes) {
				req := post(t, path)
				assert.False(t, tt.policy.Idempotent(req), path)
				req.Header.Set("Idempotency-Key", "k")
				assert.True(t, tt.policy.Idempotent(req), "%s with a key", path)
			}
		})
	}
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
	req := post(t, "/_search")
	assert.True(t, policy.Idempotent(req))
	assert.False(t, policy.Idempotent(&http.Request{Method: "POST"}))
	assert.True(t, policy.Idempotent(contract.Request(t, "PUT", req.URL.String(), "")))
	assert.False(t, policy.Idempotent(contract.Request(t, "PATCH", req.URL.String(), "")))
	assert.Zero(t, testing.AllocsPerRun(100, func() { policy.Idempotent(req) }))
}

func TestReadsPanics(t *testing.T) {
	const empty = ` has an empty segment: want segments such as "search" or "*"`
	for pattern, want := range map[string]string{
		"":        `"": want a slash at the beginning`,
		"_search": `"_search": want a slash at the beginning`,
		"/":       `"/"` + empty,
		"/a//b":   `"/a//b"` + empty,
		"/indexes/[a/b": `"/indexes/[a/b" has the segment "[a": syntax error in pattern: ` +
			"want the syntax of path.Match",
	} {
		assert.PanicsWithError(t, "policies: Reads: patterns[1]: "+want, func() {
			policies.Reads(httpretry.Policy{}, "/ok", pattern)
		})
	}
	assert.PanicsWithError(t, "policies: Reads: no patterns: want at least one",
		func() { policies.Reads(httpretry.Policy{}) })
}

// Reads adds POSTs to the requests that a policy considers idempotent.
func TestReadsAdds(t *testing.T) {
	own := httpretry.Policy{Idempotent: func(req *http.Request) bool {
		return req.Method == "PATCH"
	}}
	twice := policies.Reads(policies.Reads(own, "/_search"), "/_count")
	own.Idempotent = nil
	for request, idempotent := range map[string]bool{
		"PATCH /a": true, "POST /_search": true, "POST /_count": true, "POST /a": false,
		"GET /a": false, // the policy has a function of its own
	} {
		method, path, _ := strings.Cut(request, " ")
		req := contract.Request(t, method, "http://service.test"+path, "")
		assert.Equal(t, idempotent, twice.Idempotent(req), request)
	}
	openai := policies.Reads(policies.OpenAI(), "/responses")
	assert.True(t, openai.Idempotent(post(t, "/v1/responses")))
	assert.True(t, openai.Idempotent(post(t, "/v1/embeddings")))
	assert.False(t, openai.Idempotent(post(t, "/v1/files")))
}

// always returns a Classify with the same result for all attempts.
func always(outcome httpretry.Outcome) httpretry.Policy {
	return httpretry.Policy{
		Classify: func(*http.Request, *http.Response, error) httpretry.Outcome { return outcome },
	}
}

// outcomeOf returns the Outcome that p gives to a response to a POST.
func outcomeOf(t *testing.T, p httpretry.Policy, answer contract.Step) httpretry.Outcome {
	t.Helper()
	resp, err := contract.Play(answer).RoundTrip(post(t, "/"))
	require.NoError(t, err)
	return p.Classify(post(t, "/"), resp, nil)
}

// Each call changes the policy that the one before returns.
func TestStatuses(t *testing.T) {
	var none httpretry.Policy
	listed := func(p httpretry.Policy, outcome httpretry.Outcome) httpretry.Policy {
		return policies.Statuses(p, outcome, 503, 404, 202, 999)
	}
	limits := policies.Statuses(none, notProcessed, 429)
	both := policies.Statuses(limits, final, 500)
	openAI := policies.Statuses(policies.OpenAI(), final, 409)
	for i, tt := range []struct {
		policy httpretry.Policy
		answer contract.Step
		want   httpretry.Outcome
	}{
		// whatever the policy and most headers say
		{listed(none, final), say(503), final},
		{listed(none, final), say(503, "X-Should-Retry", "true"), final},
		{listed(always(notProcessed), final), say(503), final},
		{listed(none, transient), say(503), transient},
		{listed(always(final), transient), say(503), transient},
		{listed(none, notProcessed), say(503), notProcessed},
		{listed(always(final), notProcessed), say(503), notProcessed},
		{listed(none, notProcessed), say(404), notProcessed},
		{listed(none, notProcessed), say(503, "Retry-After", "1"), notProcessed},
		{listed(none, transient), say(404), transient},
		{listed(none, transient), say(202), transient},
		{listed(none, transient), say(999), transient},
		// but for headers that forbid a retry
		{listed(none, notProcessed), say(503, "X-Should-Retry", "false"), final},
		{listed(always(transient), transient),
			say(404, "Stripe-Should-Retry", "False, true"), final},
		{listed(none, transient), say(202, "X-Should-Retry", "false"), final},
		{listed(none, transient), say(503, "Idempotent-Replayed", "true"), final},
		// Other statuses have the outcome of the policy before.
		{listed(none, notProcessed), say(500), transient},
		{both, say(429), notProcessed},
		{both, say(500), final},
		{both, say(502), transient},
		{policies.Statuses(listed(none, final), transient, 404), say(404), transient},
		{openAI, say(409), final},
		{openAI, say(429), notProcessed},
		{policies.Statuses(policies.GitHub(), transient, 404), say(404), transient},
		{policies.Statuses(policies.GitHub(), notProcessed, 503), say(429), final},
		{policies.Statuses(policies.Anthropic(), notProcessed, 503), say(429), final},
	} {
		assert.Equal(t, tt.want, outcomeOf(t, tt.policy, tt.answer), "%d: %v", i, tt.answer)
	}
	check(t, listed(none, transient), row{"POST /", say(503), never}, row{"GET /", say(202), soon})
	check(t, limits, row{"POST /", say(429), soon})
}

// Other responses have the Outcome of the policy, whose IdempotencyHeader
// matters for a 409.
func TestStatusesKeepTheIdempotencyHeader(t *testing.T) {
	p := policies.Statuses(
		httpretry.Policy{IdempotencyHeader: "x-line-retry-key"}, final, 500)
	for name, want := range map[string]httpretry.Outcome{
		"X-Line-Retry-Key": transient, "Idempotency-Key": transient, "X-Other": final,
	} {
		req := post(t, "/")
		req.Header.Set(name, "k")
		resp := &http.Response{StatusCode: 409, Header: http.Header{}}
		assert.Equal(t, want, p.Classify(req, resp, nil), name)
	}
	synctest.Test(t, func(t *testing.T) {
		// The same with a RetryTransport, which makes the key.
		p.NewIdempotencyKey = httpretry.RandomKey
		assert.Equal(t, 200, send(t, p, contract.Play(say(409), say(200)), "POST /"))
	})
}

// Statuses keeps no reference to its arguments.
func TestStatusesIsIndependent(t *testing.T) {
	before, list := httpretry.Policy{MaxAttempts: 7}, []int{429}
	after := policies.Statuses(before, notProcessed, list...)
	assert.Nil(t, before.Classify, "the argument is not changed")
	list[0], before.Classify = 503, always(final).Classify
	assert.Equal(t, 7, after.MaxAttempts)
	assert.Equal(t, notProcessed, outcomeOf(t, after, say(429)))
	assert.Equal(t, transient, outcomeOf(t, after, say(503)))

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
				contract.Send(t, inner, req)
				return nil, errors.New("http2: Transport received Server's graceful shutdown GOAWAY")
			})
			p.Backoff = strategies.Constant{}
			_, err := contract.With(t, base, p).RoundTrip(
				contract.Request(t, "POST", srv.URL, "payload"))
			require.Error(t, err)
			assert.Equal(t, 1, posts)
		})
	}
}

func TestStatusesPanics(t *testing.T) {
	for want, statuses := range map[string][]int{
		"no statuses: want at least one":                   {},
		"statuses[1]: 42: want a status from 200 to 999":   {503, 42},
		"statuses[0]: 199: want a status from 200 to 999":  {199},
		"statuses[0]: 1000: want a status from 200 to 999": {1000},
	} {
		assert.PanicsWithError(t, "policies: Statuses: "+want, func() {
			policies.Statuses(httpretry.Policy{}, transient, statuses...)
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
		start, late := time.Now(), contract.Play(say(503, "Retry-After", "7200"), say(200))
		service := contract.Play(retrytest.Func(func(req *http.Request) (*http.Response, error) {
			if time.Since(start) < down {
				return contract.Play(say(503)).RoundTrip(req)
			}
			return late.RoundTrip(req)
		}))
		assert.Equal(t, 200, send(t, policies.Background(0), service, "GET /"))

		waits := service.Waits()
		last := len(waits) - 1
		assert.InDelta(t, down/(7500*time.Millisecond), last, 100, "one attempt in 5 to 10 s")
		assert.GreaterOrEqual(t, waits[last], 2*time.Hour)
		for i, wait := range waits[:last] {
			longest := min(time.Second<<min(i, 4), 10*time.Second)
			assert.GreaterOrEqual(t, wait, longest/2, "wait %d", i)
			assert.LessOrEqual(t, wait, longest, "wait %d", i)
		}
	})
}

// MaxElapsed ends a request that would otherwise be retried without end.
func TestBackgroundEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, service := time.Now(), contract.Play(say(503))
		assert.Equal(t, 503, send(t, policies.Background(10*time.Minute), service, "GET /"))
		assert.LessOrEqual(t, time.Since(start), 10*time.Minute)
		assert.Greater(t, time.Since(start), 9*time.Minute, "and not much earlier")
		assert.Greater(t, len(service.Attempts()), 10)
	})
	// A POST is not made safe by waiting.
	check(t, policies.Background(10*time.Minute), row{"POST /", say(503), never})
	_, err := httpretry.New(httpretry.Config{Policy: policies.Background(-time.Second)})
	assert.ErrorContains(t, err, "Config.Policy.MaxElapsed: -1s")
}

func TestValid(t *testing.T) {
	for name, policy := range map[string]httpretry.Policy{
		"GitHub": policies.GitHub(), "Stripe": policies.Stripe(), "OpenAI": policies.OpenAI(),
		"Anthropic": policies.Anthropic(), "Slack": policies.Slack(), "AWS": policies.AWS(),
		"Reads":      policies.Reads(httpretry.Policy{}, "/_search"),
		"Background": policies.Background(0),
		"Statuses":   policies.Statuses(policies.Background(time.Hour), final, 429),
	} {
		require.NoError(t, policy.Validate(), name)
	}
}

// A limit that one credential has reached does not delay requests with another,
// nor requests without one.
func TestCooldownKeys(t *testing.T) {
	for name, tt := range map[string]struct {
		policy httpretry.Policy
		header string
	}{
		"GitHub":    {policies.GitHub(), "Authorization"},
		"Stripe":    {policies.Stripe(), "Authorization"},
		"OpenAI":    {policies.OpenAI(), "Authorization"},
		"Slack":     {policies.Slack(), "Authorization"},
		"Anthropic": {policies.Anthropic(), "X-Api-Key"},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				if req.Header.Get(tt.header) == "Bearer spent" {
					return contract.Play(retrytest.RetryAfter("3600")).RoundTrip(req)
				}
				return contract.Play(say(200)).RoundTrip(req)
			})
			tt.policy.Cooldown = httpretry.CooldownFail
			transport := contract.With(t, base, tt.policy)
			request := func(credential string) *http.Request {
				req := contract.Request(t, "GET", "http://service.test/one", "")
				req.Header.Set(tt.header, credential)
				return req
			}
			assert.Equal(t, 429, contract.Send(t, transport, request("Bearer spent")).StatusCode)
			assert.Equal(t, 200, contract.Send(t, transport, request("Bearer other")).StatusCode)
			assert.Equal(t, 200, contract.Send(t, transport, request("")).StatusCode)
			_, err := transport.RoundTrip(request("Bearer spent"))
			var cooling *httpretry.CooldownError
			require.ErrorAs(t, err, &cooling)
			assert.NotContains(t, err.Error(), "spent", "the key is a secret")
		})
	}
}

// Slack's limits are those of a method.
func TestSlackLimitsAMethod(t *testing.T) {
	key := func(path string) string {
		req := post(t, path)
		req.Header.Set("Authorization", "Bearer t")
		return policies.Slack().CooldownKey(req)
	}
	assert.Equal(t, key("/api/users.list"), key("/api/users.list?cursor=c"))
	assert.NotEqual(t, key("/api/users.list"), key("/api/users.info"))
	assert.NotPanics(t, func() { policies.Slack().CooldownKey(&http.Request{}) })
}
