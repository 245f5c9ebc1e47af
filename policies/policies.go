// Package policies provides an [httpretry.Policy] for well-known services and
// for common kinds of work. Each function returns a new value, to be used as it
// is or changed first:
//
//	Policies: map[string]httpretry.Policy{
//		"api.github.com": policies.GitHub(),
//		"api.stripe.com": policies.Stripe(),
//	}
//
// The policies for services differ from the defaults only where a service
// documents rules of its own. They use statuses and headers. Errors that a
// service reports only in a response body are not visible to a RoundTripper,
// which must leave the body to its caller.
//
// Where a service limits each credential, its policy has a CooldownKey, so that
// a limit that one credential has reached does not delay requests with another.
// This works for credentials in a header of the request that RetryTransport
// gets. If Base adds the credential, the limit counts for the whole host.
//
// The documentation of each function says when its rules were last checked, and
// against which pages.
package policies

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// Background returns a policy for jobs that nobody waits for. A request is
// retried until it succeeds, a retry cannot change its result, or maxElapsed
// has passed since its start. Zero means no limit but the context of the
// request. [httpretry.New] reports a negative maxElapsed.
//
// There is no limit on the number of attempts or on Retry-After, and no retry
// budget. The waits grow from between 0.5 and 1 seconds to between 30 and 60
// seconds. Each request to the host that succeeds ends such a long wait of
// another one within ten seconds. The rules for which requests may be retried
// do not change. A POST without an idempotency key is still sent once, unless
// it is certain that the server did not process it.
//
// Set AttemptTimeout as well, since an attempt without an answer would
// otherwise wait until the context is done. Leave http.Client.Timeout at 0. It
// limits all attempts and waits together.
func Background(maxElapsed time.Duration) httpretry.Policy {
	return httpretry.Policy{
		MaxAttempts:   -1,
		MaxRetryAfter: -1,
		MaxElapsed:    maxElapsed,
		Budget:        httpretry.Unlimited{},
		// Not FullJitter, whose waits may be near zero. Without a budget, only
		// the waits protect a host that is down.
		Backoff: strategies.EqualJitter{Base: time.Second, Max: time.Minute},
	}
}

// Reads returns a policy for APIs in which some POST requests only read, such
// as searches. A POST whose path matches one of the patterns is idempotent, in
// addition to the requests that [httpretry.Idempotent] accepts.
//
// A pattern begins with a slash and has one or more segments, each in the
// syntax of [path.Match]. It is compared with the last segments of the
// request's path, so that a prefix such as a version does not matter:
//
//	"/_search"           matches /_search and /books/_search
//	"/indexes/*/search"  matches /indexes/books/search and
//	                     /v1/indexes/books/search, but not /indexes/search
//
// A star does not match a slash, not even an escaped one. One slash at the end
// of the request's path is ignored.
//
// A GraphQL endpoint takes queries and mutations at the same path. Use
// Reads("/graphql") only for a client that sends queries and nothing else. For
// others, mark the queries with [httpretry.WithIdempotent].
//
// Reads panics if a pattern is malformed, as [net/http.ServeMux] does. Patterns
// are part of a program, and a function with a second result could not be used
// in a map of policies.
//
// To add reads to another policy, copy the field Idempotent.
func Reads(patterns ...string) httpretry.Policy {
	for i, pattern := range patterns {
		if err := checkPattern(pattern); err != nil {
			panic(fmt.Errorf("policies: Reads: patterns[%d]: %w", i, err))
		}
	}
	patterns = slices.Clone(patterns)
	return httpretry.Policy{Idempotent: func(req *http.Request) bool {
		return httpretry.Idempotent(req) || postsTo(req, patterns)
	}}
}

// Unprocessed429 returns p changed for an API that answers 429 (Too Many
// Requests) before it processes a request. Every request that gets a 429 may
// then be retried, a POST without an idempotency key included.
//
// A 429 that p classifies as [httpretry.Final] remains final.
func Unprocessed429(p httpretry.Policy) httpretry.Policy {
	classify := p.Classify
	if classify == nil {
		classify = httpretry.Classify
	}
	p.Classify = func(
		req *http.Request, resp *http.Response, err error,
	) httpretry.Outcome {
		outcome := classify(req, resp, err)
		if outcome == httpretry.Transient && statusOf(resp) == http.StatusTooManyRequests {
			return httpretry.Unprocessed
		}
		return outcome
	}
	return p
}

// statusOf returns the status of a response, and 0 for an error.
func statusOf(resp *http.Response) int {
	if resp == nil {
		return 0
	}
	return resp.StatusCode
}

// checkPattern returns an error that says what is wrong with a pattern of
// [Reads].
func checkPattern(pattern string) error {
	rest, ok := strings.CutPrefix(pattern, "/")
	if !ok {
		return fmt.Errorf("%q: want a slash at the beginning", pattern)
	}
	for segment := range strings.SplitSeq(rest, "/") {
		if segment == "" {
			return fmt.Errorf("%q has an empty segment: want segments "+
				`such as "search" or "*"`, pattern)
		}
		if _, err := path.Match(segment, ""); err != nil {
			return fmt.Errorf(
				"%q has the segment %q: %w: want the syntax of path.Match", pattern, segment, err)
		}
	}
	return nil
}

// postsTo reports whether a request is a POST whose path ends with one of the
// patterns.
func postsTo(req *http.Request, patterns []string) bool {
	if req.Method != http.MethodPost || req.URL == nil {
		return false
	}
	// Escaped, since %2F is part of a segment. A record that is called
	// "x/_search" is not a search.
	escaped := strings.TrimSuffix(req.URL.EscapedPath(), "/")
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		return endsWith(escaped, pattern)
	})
}

// endsWith reports whether the last segments of an escaped path match pattern,
// which checkPattern accepts.
func endsWith(escaped, pattern string) bool {
	for pattern != "" {
		at, slash := strings.LastIndexByte(escaped, '/'), strings.LastIndexByte(pattern, '/')
		if at < 0 {
			return false
		}
		segment, err := url.PathUnescape(escaped[at+1:])
		if err != nil {
			return false
		}
		if ok, err := path.Match(pattern[slash+1:], segment); err != nil || !ok {
			return false
		}
		escaped, pattern = escaped[:at], pattern[:slash]
	}
	return true
}
