// Package retrydebug shows the present state of a RetryTransport, as a page and
// as JSON: its origins with their budgets, cool-downs and waiting requests.
// Mount a [Handler] beside those of net/http/pprof and expvar:
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
// The page has a row for each [httpretry.OriginStatus], and uses no script. It
// refreshes itself every five seconds, except with the query "?refresh=0". Rows
// are in this order:
//
//  1. origins that cool down
//  2. origins whose budget allows no retry now
//  3. origins with waiting requests, those with the most first
//  4. origins with failed retries, those with the most first
//  5. all others
//
// Rows that are equal by one of these rules are ordered by the next ones, and
// in the end by origin and key.
//
// # JSON
//
// With the query "?format=json", or if the Accept header prefers
// application/json to text/html, the response is JSON with the same values in
// the same order. "?format=html" is the page, whatever the Accept header. Any
// other format gets a 400 (Bad Request).
//
//	{
//	  "time": "2000-01-01T00:00:00Z",
//	  "origins": [
//	    {
//	      "origin": "https://api.example.com",
//	      "key": "*.example.com",
//	      "balance": 4,
//	      "successes": 1,
//	      "failedRetries": 1,
//	      "cooldownUntil": "2000-01-01T00:00:30Z",
//	      "waiting": 1
//	    }
//	  ]
//	}
//
// The time is when the response was made. All times are in UTC. The key is that
// of the policy in [httpretry.Config.Policies], or "" for
// [httpretry.Config.Policy]. The balance is null if the policy's Budget has
// none, and cooldownUntil is null if the origin does not cool down. Later
// versions may add fields.
package retrydebug
