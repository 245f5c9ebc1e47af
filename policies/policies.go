// Package policies provides an [httpretry.Policy] for well-known services and
// for common kinds of work. Each function returns a new value, to be used as it
// is or changed first:
//
//	Policies: map[string]httpretry.Policy{
//		"api.github.com": policies.GitHub(),
//		"api.stripe.com": policies.Stripe(),
//	}
//
// [Reads] and [Statuses] return a policy that is changed for an API, and leave
// their argument as it is. They can be combined with each other and with all
// policies:
//
//	p := policies.Reads(policies.AWS(), "/_search")
//	p = policies.Statuses(p, httpretry.Final, http.StatusInternalServerError)
//	p = policies.Statuses(p, httpretry.Unprocessed, http.StatusTooManyRequests)
//
// They panic if an argument is not valid, as [net/http.ServeMux] does for
// patterns, because the arguments are part of a program. For statuses from a
// configuration, use package policyfile.
//
// The policies for services differ from the defaults only where a service
// documents rules of its own. Where a service reports errors in the body of a
// 200, its policy has a ReadAhead, and says so.
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
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/retryafter"
	"github.com/seed421102f4/httpretry/strategies"
)

// Background returns a policy for jobs that nobody waits for. A request is
// retried until it succeeds, a retry cannot change its result, or maxElapsed
// has passed since its start. Zero means no limit but the context of the
// request. [httpretry.New] reports a negative maxElapsed.
//
// There is no limit on the number of attempts or on Retry-After, and no retry
// budget. The rules for which requests may be retried do not change. A POST
// without an idempotency key is still sent once, unless it is certain that the
// server did not process it.
//
// The waits grow from between 0.5 and 1 seconds to between 5 and 10 seconds. So
// a request continues within ten seconds after its host is up again, unless the
// host has asked for a longer wait. 50 waiting requests send 7 times a second to
// a host that is down. If thousands wait, set a Backoff with longer waits.
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
		Backoff: strategies.EqualJitter{Base: time.Second, Max: 10 * time.Second},
	}
}

// Reads returns p changed for an API in which some POST requests only read,
// such as searches. A POST whose path matches one of the patterns is
// idempotent, in addition to the requests that p considers idempotent.
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
// Reads(p, "/graphql") only for a client that sends queries and nothing else.
// For others, mark the queries with [httpretry.WithIdempotent].
//
// Reads panics if there is no pattern or if one is malformed.
func Reads(p httpretry.Policy, patterns ...string) httpretry.Policy {
	if len(patterns) == 0 {
		panic(errors.New("policies: Reads: no patterns: want at least one"))
	}
	for i, pattern := range patterns {
		if err := checkPattern(pattern); err != nil {
			panic(fmt.Errorf("policies: Reads: patterns[%d]: %w", i, err))
		}
	}
	patterns = slices.Clone(patterns)
	idempotent := p.Idempotent
	if idempotent == nil {
		idempotent = httpretry.Idempotent
	}
	p.Idempotent = func(req *http.Request) bool { return idempotent(req) || postsTo(req, patterns) }
	return p
}

// Statuses returns p changed so that a response with one of the statuses has
// the outcome, whatever p says of it. If several calls name a status, the last
// call decides. For an API that answers with a status before it processes a
// request, such as 429 (Too Many Requests), the outcome is
// [httpretry.Unprocessed]. Every request that gets it may then be retried, a
// POST without an idempotency key included.
//
// A response whose header forbids a retry remains final, as [httpretry.Classify]
// describes it. A status below 400 may be named, too, such as 202 (Accepted)
// for a result that is not complete. Attempts that get it count as failures,
// and the last response is returned, as after other failures. A host that
// answers with a final status counts as working, in its budget and in
// [httpretry.RetryTransport.Origins].
//
// For other responses, a nil p.Classify means p.Outcome, so set
// p.IdempotencyHeader before the call.
//
// Statuses panics if there is no status, if one is not from 200 to 999, or if
// outcome is not Final, Transient or Unprocessed.
func Statuses(p httpretry.Policy, outcome httpretry.Outcome, statuses ...int) httpretry.Policy {
	if outcome > httpretry.Unprocessed {
		panic(fmt.Errorf("policies: Statuses: %v: want Final, Transient or Unprocessed", outcome))
	}
	if err := checkStatuses(statuses); err != nil {
		panic(fmt.Errorf("policies: Statuses: %w", err))
	}
	statuses = slices.Clone(statuses)
	classify := p.Classify
	if classify == nil {
		classify = p.Outcome
	}
	p.Classify = func(
		req *http.Request, resp *http.Response, err error,
	) httpretry.Outcome {
		switch {
		case !slices.Contains(statuses, statusOf(resp)):
			return classify(req, resp, err)
		case retryafter.Forbids(resp.Header), retryafter.IsStored(resp.Header):
			return httpretry.Final
		case outcome == httpretry.Unprocessed:
			return unprocessed(req, resp)
		}
		return outcome
	}
	return p
}

// checkStatuses returns an error if a list of statuses is empty, or if one is
// not a status that the response to a request can have.
func checkStatuses(statuses []int) error {
	if len(statuses) == 0 {
		return errors.New("no statuses: want at least one")
	}
	for i, status := range statuses {
		// A response with a status below 200 is not the last one, but for 101,
		// after which the connection is no longer one for HTTP. Statuses have
		// three digits, and those from 600 are in use (RFC 9110 section 15).
		if status < 200 || status > 999 {
			return fmt.Errorf("statuses[%d]: %d: want a status from 200 to 999", i, status)
		}
	}
	return nil
}

// unprocessed returns the Outcome of a response by which a server refuses to
// process req. A layer in Base may follow a redirect, for example, and return
// the response to another request, whose method differs. Then, req itself has
// been processed.
func unprocessed(req *http.Request, resp *http.Response) httpretry.Outcome {
	if req != nil && resp.Request != nil &&
		cmp.Or(req.Method, http.MethodGet) != cmp.Or(resp.Request.Method, http.MethodGet) {
		return httpretry.Transient
	}
	return httpretry.Unprocessed
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
