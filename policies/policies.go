// Package policies has policies for services whose rules are not those that
// [httpretry.Classify] and [httpretry.Idempotent] take from HTTP. Each function
// returns a value to start from: change a copy, or put it into
// [httpretry.Config.Hosts] as it is.
//
//	Hosts: map[string]httpretry.Policy{
//		"api.github.com": policies.GitHub(),
//		"api.stripe.com": policies.Stripe(),
//	}
//
// They go by statuses and headers alone. What a service says only in a body is
// out of reach of a transport, which must leave the body to the caller.
//
// The limits of GitHub, Stripe and OpenAI are those of a credential, so their
// policies have a CooldownKey: a limit that one Authorization header has reached
// holds no request with another, nor does a 503 that was meant for all. A credential that is added below, by Base, does
// not show; there the limit is taken for the host's. Set [httpretry.Policy.Cooldown]
// in the copy to hold first attempts as well, as GitHub asks its clients to.
package policies

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// GitHub is for GitHub's REST API. It answers 403 as well as 429 when a limit
// is reached: with X-RateLimit-Remaining: 0 and the time of the reset for the
// hourly limit, with Retry-After for a secondary one. Such a request was refused,
// and is repeated whatever its method, no earlier than that. Without either, the
// service asks for a wait of a minute or more without giving a number, and such
// an answer is returned; so is a 403 that is about permissions.
//
// The reset of the hourly limit can be up to an hour away. The default
// MaxRetryAfter returns such an answer at once; a batch job may set it to an
// hour.
//
// Source: docs.github.com, "Rate limits for the REST API" and "Best practices
// for using the REST API".
func GitHub() httpretry.Policy {
	return httpretry.Policy{CooldownKey: credential, Classify: func(resp *http.Response, err error) httpretry.Outcome {
		if err != nil || resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusTooManyRequests {
			return httpretry.Classify(resp, err)
		}
		if _, ok := httpretry.RetryAfter(resp.Header, time.Now()); ok {
			return httpretry.Unprocessed
		}
		return httpretry.Final
	}}
}

func credential(req *http.Request) string { return req.Header.Get("Authorization") }

// Stripe is for Stripe's API without its SDK, which makes keys of its own. Every
// POST without an Idempotency-Key is given one, so that it can be repeated; a
// 409, too, whose first copy is still at work. Stripe-Should-Retry needs nothing
// of this policy.
//
// Source: docs.stripe.com, "Idempotent requests" and "Advanced error handling".
func Stripe() httpretry.Policy {
	return httpretry.Policy{NewKey: httpretry.RandomKey, CooldownKey: credential}
}

// OpenAI is for OpenAI's API and those that copy it. They have no idempotency
// keys. A POST that only computes something (completions, embeddings,
// moderations, images, audio) is repeated like a GET: at worst it is paid for
// twice, and a chat completion that is stored is stored twice, which is what
// OpenAI's own libraries accept for every POST. All other POSTs are sent once,
// such as those that create files or jobs, and responses, which are stored unless
// told otherwise. A 429 refuses a request, so that any is repeated; one that is
// out of quota looks the same. A 409 is a lock that was not free, and is repeated
// where that is safe.
//
// X-Should-Retry and Retry-After-Ms need nothing of this policy.
//
// Source: openai-go, requestconfig.go; platform.openai.com, "Error codes".
func OpenAI() httpretry.Policy {
	return httpretry.Policy{
		Backoff:     strategies.DecorrelatedV2{Median: 500 * time.Millisecond, Max: 8 * time.Second},
		CooldownKey: credential,
		Idempotent: func(req *http.Request) bool {
			return httpretry.Idempotent(req) || req.Method == http.MethodPost && req.URL != nil && computes(req.URL.Path)
		},
		Classify: func(resp *http.Response, err error) httpretry.Outcome {
			outcome := httpretry.Classify(resp, err)
			switch {
			case err != nil:
			case resp.StatusCode == http.StatusTooManyRequests && outcome == httpretry.Transient:
				return httpretry.Unprocessed
			case resp.StatusCode == http.StatusConflict && !strings.EqualFold(resp.Header.Get("X-Should-Retry"), "false"):
				return httpretry.Transient
			}
			return outcome
		},
	}
}

// computes reports whether a POST to path leaves nothing behind that matters.
func computes(path string) bool {
	path = strings.TrimSuffix(path, "/")
	return slices.ContainsFunc([]string{
		"/completions", // and chat/completions
		"/embeddings",
		"/moderations",
		"/images/generations", "/images/edits", "/images/variations",
		"/audio/speech", "/audio/transcriptions", "/audio/translations",
	}, func(suffix string) bool { return strings.HasSuffix(path, suffix) })
}

// AWS is for services of AWS, and those that answer as they do, which are called
// without an SDK of AWS: its SDKs retry by themselves, better than a transport
// can. Many answer a throttled request with 400 and name the error in
// X-Amzn-ErrorType; that header is read, and the request repeated if that is
// safe, which a POST is not by itself. Others name it only in the body
// (DynamoDB and the other JSON protocols do, and S3's XML), which is out of
// reach: there, a throttled request is repeated only if its status says so, as
// S3's 503 does.
//
// Source: the reference guide of AWS's SDKs and tools, "Retry behavior"; the
// restJson1 protocol in Smithy's documentation.
func AWS() httpretry.Policy {
	return httpretry.Policy{Classify: func(resp *http.Response, err error) httpretry.Outcome {
		outcome := httpretry.Classify(resp, err)
		if err == nil && outcome == httpretry.Final && resp.StatusCode >= 400 && throttled(resp.Header.Get("X-Amzn-ErrorType")) {
			return httpretry.Transient
		}
		return outcome
	}}
}

// throttled takes the header's value, which may have a namespace before the
// name and a URL after it.
func throttled(errorType string) bool {
	name, _, _ := strings.Cut(errorType, ":")
	name = name[strings.LastIndexByte(name, '#')+1:]
	switch strings.TrimSpace(name) {
	case "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottledException", "RequestThrottled",
		"TooManyRequestsException", "ProvisionedThroughputExceededException", "TransactionInProgressException",
		"RequestLimitExceeded", "BandwidthLimitExceeded", "LimitExceededException", "SlowDown",
		"PriorRequestNotComplete", "EC2ThrottledException":
		return true
	}
	return false
}
