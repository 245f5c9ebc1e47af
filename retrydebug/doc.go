// Package retrydebug shows the present state of a RetryTransport, as a page and
// as JSON: its origins with their failures, budgets, cool-downs and waiting
// requests. Mount a [Handler] beside those of net/http/pprof and expvar:
//
//	mux.Handle("/debug/httpretry", retrydebug.Handler(transport))
//
// Like those, it must not be public. It shows the hosts that a program sends
// requests to, and the keys of its policies. Serve it on an internal address,
// or behind authentication. It shows no query, no header, no credential, and no
// path but those in the keys of policies.
//
// A Handler shows one RetryTransport. A program with several of them mounts
// several Handlers, such as /debug/httpretry/search and
// /debug/httpretry/billing.
//
// A Handler costs nothing between requests. It holds no lock while it makes
// or sends a response, so neither a large page nor a slow reader delays
// requests.
//
// # The page
//
// The page has a row for each [httpretry.PolicyStatus], and uses no script. The
// fields of [httpretry.OriginStatus] are in the first row of the origin only.
// The page refreshes itself every five seconds, except with the query
// "?refresh=0". Origins are in this order:
//
//  1. those that cool down
//  2. those for which a budget allows no retry now
//  3. those with waiting requests, those with the most first
//  4. those with failed retries, or with an attempt that failed in the last
//     minute, even if nothing was retried
//  5. all others
//
// The next rule orders origins that are equal by one. Among the rest, those
// with more failed retries come first, then those that failed later, then by
// name. The page has at most 2048 rows. If there are more, it has those of the
// first origins, and says how many origins are left out.
//
// # JSON
//
// With the query "?format=json", the response is JSON with the same values in
// the same order. Without a format, or with "?format=html", it is the page. Any
// other format gets a 400 (Bad Request). The Accept header does not matter.
//
//	{
//	  "time": "2000-01-01T00:00:00Z",
//	  "origins": [
//	    {
//	      "origin": "https://api.example.com",
//	      "waiting": 1,
//	      "cooldownUntil": "2000-01-01T00:00:30Z",
//	      "lastFailure": "503 Service Unavailable",
//	      "lastFailureAt": "2000-01-01T00:00:00Z",
//	      "failedWithoutRetry": 0,
//	      "policies": [
//	        {
//	          "key": "*.example.com",
//	          "balance": 4,
//	          "successes": 1,
//	          "failedRetries": 1
//	        }
//	      ],
//	      "morePolicies": 0
//	    }
//	  ]
//	}
//
// The time is when the response was made. All times are in UTC. cooldownUntil
// is null if the origin does not cool down, and lastFailureAt if no attempt has
// failed. The key is that of the policy in [httpretry.Config.Policies], or ""
// for [httpretry.Config.Policy]. The balance is null if the policy's Budget has
// none. The JSON has all origins, and each has at most 16 policies. Later
// versions may add fields.
package retrydebug
