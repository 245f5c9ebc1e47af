package policies

import (
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/retryafter"
	"github.com/seed421102f4/httpretry/strategies"
)

// readAhead is long enough for the errors that services send in a body.
const readAhead = 4 << 10

// withBody returns p, which has a Classify, changed so that classify decides about
// a response by the bytes that were read ahead, if it returns true. It is called
// for the statuses from 200 to 299, and for 429. If a header forbids a retry, p
// decides.
func withBody(p httpretry.Policy, classify func(*http.Request, *http.Response,
	[]byte) (httpretry.Outcome, bool)) httpretry.Policy {
	other := p.Classify
	p.ReadAhead = readAhead
	p.Classify = func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
		switch status := statusOf(resp); {
		case status < 200 || status >= 300 && status != http.StatusTooManyRequests,
			retryafter.Forbids(resp.Header):
		default:
			if outcome, ok := classify(req, resp, httpretry.Peek(resp)); ok {
				return outcome
			}
		}
		return other(req, resp, err)
	}
	return p
}

// apiError is an error in a body of JSON, or in the first event of a stream. An
// object of the API that has failed has an ID, too, and is no error.
type apiError struct {
	ID, Object string
	Error      struct {
		Type string
		Code any // a string, or a status
	}
}

// parseError returns the error in the first bytes of a body, or false if there is
// none.
func parseError(resp *http.Response, body []byte) (e apiError, ok bool) {
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		body = firstData(body)
	}
	// Most bodies have none. A part of a longer one is no JSON.
	if !bytes.Contains(body, []byte(`"error"`)) || json.Unmarshal(body, &e) != nil {
		return e, false
	}
	return e, e.ID == "" && e.Object == "" && (e.Error.Type != "" || e.Error.Code != nil)
}

// firstData returns the data of the first event of a stream that has some.
func firstData(stream []byte) []byte {
	var data []byte
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(stream))
	for line := range strings.SplitSeq(text, "\n") {
		value, isData := strings.CutPrefix(line, "data:")
		switch {
		case isData:
			data = append(append(data, value...), '\n')
		case line == "" && data != nil:
			return data
		}
	}
	return data
}

// GitHub returns a policy for GitHub's REST API.
//
// GitHub answers 403 or 429 when a limit is reached. The hourly limit has
// X-RateLimit-Remaining: 0 and the time of the reset, a secondary limit has
// Retry-After. Both refuse a request before it is processed, so it is retried
// whatever its method, and not before the time that the response names. A 403
// or 429 that names no time is final, since GitHub then asks for a wait of at
// least one minute, or the 403 is about permissions.
//
// The reset of the hourly limit can be an hour away. With the default
// MaxRetryAfter such a response is returned at once. A batch job may set
// MaxRetryAfter to an hour. GitHub asks clients to send no requests at all
// until a limit is reset. Set [httpretry.Policy.Cooldown] to delay first
// attempts as well.
//
// Checked in November 2026: docs.github.com, "Rate limits for the REST API" and
// "Troubleshooting the REST API".
func GitHub() httpretry.Policy {
	return httpretry.Policy{CooldownKey: authorization, Classify: classifyGitHub}
}

func classifyGitHub(
	req *http.Request, resp *http.Response, err error,
) httpretry.Outcome {
	switch statusOf(resp) {
	case http.StatusForbidden, http.StatusTooManyRequests:
		// Only limits name a time.
		if namesTime(resp) {
			return unprocessed(req, resp)
		}
		return httpretry.Final
	}
	return httpretry.Classify(req, resp, err)
}

// namesTime reports whether a response says when a limit is over.
func namesTime(resp *http.Response) bool {
	_, ok := httpretry.RetryAfter(resp.Header, time.Now())
	return ok
}

// Stripe returns a policy for Stripe's API v1 without Stripe's SDK, which makes
// idempotency keys of its own.
//
// Every POST without an Idempotency-Key gets one, so it may be retried. A 409
// means that a request with the same key is still in progress, and is retried
// too. The default classification already follows Stripe-Should-Retry.
//
// Once Stripe has begun to execute a request, it stores the response under the
// key, a 500 included, and answers retries with the stored response.
//
// Checked in November 2026: docs.stripe.com, "Idempotent requests" and
// "Advanced error handling".
func Stripe() httpretry.Policy {
	return httpretry.Policy{
		NewIdempotencyKey: httpretry.RandomKey,
		CooldownKey:       authorization,
	}
}

// OpenAI returns a policy for OpenAI's API and for compatible ones. They have
// no idempotency keys.
//
// A POST that only computes is retried like a GET: completions, embeddings,
// moderations, images, audio. At worst it is billed twice, and a chat
// completion with "store" is stored twice. All other POSTs are sent once, such
// as those that create files, jobs or responses. (OpenAI's own SDKs retry every
// POST.)
//
// A 429 refuses a request before it is processed, so any request is retried. An
// exhausted quota is a 429 too, with the code insufficient_quota in the body,
// and is final. An error in a 200, or in the first event of a stream, is retried
// like a 500 if its type or code is that of a server or of a limit. A stream that
// breaks off before its first event is retried, too. For that, RoundTrip waits for
// the first event, or for up to 4 KiB of another body (ReadAhead), which
// AttemptTimeout bounds. A 409
// reports a lock that was not free, and is retried where that is safe. The
// default classification already follows X-Should-Retry and Retry-After-Ms.
// Without a Retry-After, a 429 asks for the time until its limit is reset, in
// X-Ratelimit-Reset-Requests or -Tokens. That is often longer than MaxRetryAfter,
// so that the 429 is returned at once.
//
// Checked in November 2026: openai-go v3.95.0, requestconfig.go and ssestream.go.
func OpenAI() httpretry.Policy {
	p := httpretry.Policy{
		Backoff: sdkBackoff(), CooldownKey: authorization, RetryAfter: openAIWait}
	p = Reads(p,
		"/completions", // and /chat/completions
		"/embeddings",
		"/moderations",
		"/images/generations", "/images/edits", "/images/variations",
		"/audio/speech", "/audio/transcriptions", "/audio/translations",
	)
	p = Statuses(p, httpretry.Transient, http.StatusConflict)
	p = Statuses(p, httpretry.Unprocessed, http.StatusTooManyRequests)
	return withBody(p, classifyOpenAI)
}

func classifyOpenAI(
	_ *http.Request, resp *http.Response, body []byte) (httpretry.Outcome, bool) {
	e, ok := parseError(resp, body)
	code, _ := e.Error.Code.(string)
	status, _ := e.Error.Code.(float64) // of compatible APIs
	is := func(text string) bool { return e.Error.Type == text || code == text }
	switch {
	case !ok:
	case is("insufficient_quota"):
		return httpretry.Final, true
	case resp.StatusCode != http.StatusTooManyRequests &&
		(is("server_error") || is("overloaded_error") || is("rate_limit_exceeded") ||
			status >= 500 || status == http.StatusTooManyRequests):
		return httpretry.Transient, true
	}
	return 0, false
}

// openAIWait returns the longest wait until a limit is reset of which nothing
// remains. A request that needs more tokens than remain gets a 429, too.
func openAIWait(resp *http.Response) (wait time.Duration, ok bool) {
	if wait, ok = httpretry.RetryAfter(resp.Header, time.Now()); ok {
		return wait, true
	}
	if resp.StatusCode != http.StatusTooManyRequests {
		return 0, false
	}
	for _, limit := range []string{"Requests", "Tokens"} {
		if resp.Header.Get("X-Ratelimit-Remaining-"+limit) == "0" {
			wait = max(wait, resetOf(resp, limit))
		}
	}
	if wait == 0 {
		wait = resetOf(resp, "Tokens")
	}
	return wait, wait > 0
}

// resetOf returns the time until a limit is reset, such as "6m0s", or 0.
func resetOf(resp *http.Response, limit string) time.Duration {
	wait, err := time.ParseDuration(resp.Header.Get("X-Ratelimit-Reset-" + limit))
	if err != nil {
		return 0 // the header asks for no wait
	}
	return wait
}

// Anthropic returns a policy for Anthropic's Claude API, which has no
// idempotency keys.
//
// A POST that creates a message or counts tokens is retried like a GET. At
// worst it is billed twice. If a message lets the server call tools that change
// something, such as those of an MCP server, send it with
// [httpretry.WithoutRetries]. All other POSTs are sent once, such as those that
// create batches or files.
//
// A 429 with Retry-After refuses a request before it is processed, so any
// request is retried. A 429 without Retry-After is final. The organization has
// then reached its monthly spend limit, and retries fail until the next month.
// A 529 means that the API is overloaded, and is retried like any other 5xx. So
// is a stream whose first event is an overloaded_error, an api_error, a
// timeout_error or a rate_limit_error, or that breaks off before it. For that,
// RoundTrip waits for the first event, or for up to 4 KiB of another body
// (ReadAhead), which AttemptTimeout bounds.
// The default classification already follows X-Should-Retry. The
// anthropic-ratelimit headers are not used, since Retry-After says how long to
// wait.
//
// Limits count for each model. The model is in the body, so a limit that one
// model has reached delays the retries for other models with the same key.
//
// Checked in November 2026: platform.claude.com, "Claude API errors", "Streaming
// messages" and "Rate limits".
func Anthropic() httpretry.Policy {
	p := Statuses(httpretry.Policy{Backoff: sdkBackoff()},
		httpretry.Unprocessed, http.StatusTooManyRequests)
	limited := p.Classify
	p.Classify = func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
		// The monthly limit is the only one without a time.
		if statusOf(resp) == http.StatusTooManyRequests && !namesTime(resp) {
			return httpretry.Final
		}
		return limited(req, resp, err)
	}
	// There are two kinds of credentials.
	p.CooldownKey = func(req *http.Request) string {
		return req.Header.Get("X-Api-Key") + " " + authorization(req)
	}
	p = Reads(p, "/messages", "/messages/count_tokens", "/complete")
	return withBody(p, classifyAnthropic)
}

func classifyAnthropic(
	_ *http.Request, resp *http.Response, body []byte) (httpretry.Outcome, bool) {
	e, ok := parseError(resp, body)
	types := []string{"overloaded_error", "api_error", "timeout_error", "rate_limit_error"}
	return httpretry.Transient, ok && resp.StatusCode != http.StatusTooManyRequests &&
		slices.Contains(types, e.Error.Type)
}

// Slack returns a policy for Slack's Web API and incoming webhooks, which have
// no idempotency keys.
//
// Most methods of the Web API accept POST, those that only read included. A
// POST to a method that reads, such as conversations.list or users.info, is
// retried like a GET. All others are sent once, such as chat.postMessage. A 429
// refuses a request before it is processed, so any request is retried.
//
// Slack limits each method for each workspace and app, so the CooldownKey is
// the path and the Authorization header. If the token is in the body, one limit
// counts for all workspaces.
//
// Slack answers most errors with status 200 and "ok": false in the body. Such a
// response counts as a 429 if its error is ratelimited, and as a 500 if it is
// internal_error or service_unavailable. Others are final. A body of up to 4 KiB
// that breaks off is a failed attempt. For that, RoundTrip waits for up to 4 KiB of
// a body (ReadAhead), which AttemptTimeout bounds.
//
// Checked in November 2026: docs.slack.dev, "Rate limits" and the errors of
// chat.postMessage; the names of the methods in the request types of @slack/web-api 7.9.3.
func Slack() httpretry.Policy {
	p := httpretry.Policy{CooldownKey: func(req *http.Request) string {
		if req.URL == nil {
			return authorization(req)
		}
		return req.URL.Path + " " + authorization(req)
	}}
	p = Reads(p,
		"/*.list", "/*.info", "/*.get", "/*.test",
		"/conversations.history", "/conversations.replies", "/conversations.members",
		"/users.conversations", "/users.identity", "/users.lookupByEmail",
		"/users.getPresence", "/chat.getPermalink", "/dnd.teamInfo",
		"/search.all", "/search.files", "/search.messages",
		"/team.accessLogs", "/team.billableInfo", "/team.integrationLogs",
	)
	p = Statuses(p, httpretry.Unprocessed, http.StatusTooManyRequests)
	return withBody(p, classifySlack)
}

func classifySlack(_ *http.Request, _ *http.Response, body []byte) (httpretry.Outcome, bool) {
	var answer struct {
		OK    *bool
		Error string
	}
	if !bytes.Contains(body, []byte(`"error"`)) || json.Unmarshal(body, &answer) != nil ||
		answer.OK == nil || *answer.OK {
		return 0, false
	}
	switch answer.Error {
	case "ratelimited":
		return httpretry.Unprocessed, true
	case "internal_error", "service_unavailable":
		return httpretry.Transient, true
	}
	return 0, false
}

// sdkBackoff returns waits with the bounds of OpenAI's and Anthropic's own
// SDKs.
func sdkBackoff() strategies.Strategy {
	return strategies.DecorrelatedV2{Median: 500 * time.Millisecond, Max: 8 * time.Second}
}

func authorization(req *http.Request) string { return req.Header.Get("Authorization") }

// AWS returns a policy for services of AWS, and compatible ones, that are
// called without an AWS SDK. The SDKs have retries of their own, for the errors
// of each service.
//
// Many services answer a throttled request with 400 and name the error in the
// header X-Amzn-ErrorType. Such a request is retried if it is safe to send
// twice. A POST is not, unless its context is from [httpretry.WithIdempotent].
// If a service names the error only in the body, the status decides. S3 answers
// 503, which is retried, and DynamoDB answers 400, which is not. The header
// X-Amz-Retry-After asks for a wait, in milliseconds.
//
// S3 may answer 200 to a copy, or to the completion of a multipart upload, and
// then send an <Error> in the body. It is retried like a 500, as the SDK does: a
// PUT always, and a POST, such as CompleteMultipartUpload, only in a context from
// WithIdempotent. The spaces that S3 sends while it works count toward ReadAhead,
// which is 4 KiB. So a RoundTrip waits for up to 4 KiB of a body, which
// AttemptTimeout bounds, and retries one that breaks off within them.
//
// Checked in November 2026: aws-sdk-go-v2 v1.47.6, aws/retry/standard.go and
// service/s3/internal/customizations/handle_200_error.go, and smithy-go v1.28.8,
// restjson1.go.
func AWS() httpretry.Policy {
	return withBody(httpretry.Policy{RetryAfter: awsWait, Classify: func(
		req *http.Request, resp *http.Response, err error,
	) httpretry.Outcome {
		outcome := httpretry.Classify(req, resp, err)
		if outcome == httpretry.Final && statusOf(resp) >= 400 &&
			isThrottling(resp.Header.Get("X-Amzn-ErrorType")) {
			return httpretry.Transient
		}
		return outcome
	}}, classifyAWS)
}

func classifyAWS(
	req *http.Request, _ *http.Response, body []byte) (httpretry.Outcome, bool) {
	// The body of a GET is an object, which may be any XML. S3 sends spaces while it
	// works.
	isGet := req == nil || cmp.Or(req.Method, http.MethodGet) == http.MethodGet
	isError := !isGet && bytes.Contains(body, []byte("<Error")) &&
		bytes.HasPrefix(bytes.TrimSpace(body), []byte("<")) && rootOf(body) == "Error"
	return httpretry.Transient, isError
}

// rootOf returns the name of the first element of XML, or "".
func rootOf(body []byte) string {
	for d := xml.NewDecoder(bytes.NewReader(body)); ; {
		token, err := d.Token()
		if err != nil {
			return "" // it is no XML, or has no element
		}
		if start, ok := token.(xml.StartElement); ok {
			return start.Name.Local
		}
	}
}

// awsWait returns the wait that X-Amz-Retry-After asks for, or else the usual one.
func awsWait(resp *http.Response) (wait time.Duration, ok bool) {
	millis, err := strconv.ParseUint(resp.Header.Get("X-Amz-Retry-After"), 10, 32)
	if err != nil {
		return httpretry.RetryAfter(resp.Header, time.Now())
	}
	return time.Duration(millis) * time.Millisecond, true
}

// isThrottling reports whether the value of X-Amzn-ErrorType names an error of
// a throttled request. A namespace may precede the name, and a URL may follow.
func isThrottling(errorType string) bool {
	name, _, _ := strings.Cut(errorType, ":")
	name = name[strings.LastIndexByte(name, '#')+1:]
	switch strings.TrimSpace(name) {
	case "Throttling", "ThrottlingException", "ThrottledException",
		"RequestThrottled", "RequestThrottledException",
		"TooManyRequestsException", "ProvisionedThroughputExceededException",
		"TransactionInProgressException", "RequestLimitExceeded",
		"BandwidthLimitExceeded", "LimitExceededException", "SlowDown",
		"PriorRequestNotComplete", "EC2ThrottledException":
		return true
	}
	return false
}
