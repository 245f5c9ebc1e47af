// Package retrydebug shows the present state of a RetryTransport, as a page and
// as JSON: its origins with their failures, budgets, cool-downs and waiting
// requests. Mount a [Handler] beside those of net/http/pprof and expvar:
//
//	mux.Handle("/debug/httpretry", retrydebug.Handler(transport))
//
// A program with several RetryTransports shows them on one page, each under its
// name:
//
//	page, err := retrydebug.New(retrydebug.Config{
//		Transports: map[string]*httpretry.RetryTransport{
//			"billing": billing,
//			"search":  search,
//		},
//	})
//	...
//	mux.Handle("/debug/httpretry", page)
//
// Like the handlers of those packages, it must not be public. It shows the
// hosts that a program sends requests to, and the keys of its policies. Serve
// it on an internal address, or behind authentication. It shows no query, no
// header, no credential, and no path but those in the keys of policies.
//
// A handler answers GET and HEAD. It costs nothing between requests. It holds
// no lock while it makes or sends a response, so neither a large page nor a
// slow reader delays requests.
//
// # The page
//
// The page has a table for each transport, with a row for each origin, and uses
// no script. It refreshes itself every five seconds, except with the query
// "?refresh=0" or "?policies". The origins of a transport are in this order:
//
//  1. those that cool down
//  2. those for which a budget allows no retry now
//  3. those with waiting requests, those with the most first
//  4. those that fail: at least half of the attempts of the last minute, or an
//     unknown share, even if nothing was retried
//  5. those with another attempt that failed in the last minute
//  6. all others
//
// Among equal ones, those that failed later come first. Transports with an error
// in their file come first, then they are ordered by the first of their origins,
// then by name. A table has at most 200 rows, and the JSON has all origins.
//
// # Policies
//
// For a transport in Config.Reloaders, the page shows when the contents of its
// file changed, and the error if they are not in effect. With the query
// "?policies", it also shows the policies in effect, as "retrylab check" does:
// the value of each field, and where it is from. The JSON has them with the
// query "?format=json&policies".
//
// # JSON
//
// With the query "?format=json", the response is JSON with the same values in
// the same order. Without a format, or with "?format=html", it is the page. Any
// other format gets a 400 (Bad Request). The Accept header does not matter.
//
//	{
//	  "time": "2000-01-01T00:00:00Z",
//	  "transports": [
//	    {
//	      "name": "",
//	      "origins": [
//	        {
//	          "origin": "https://api.example.com",
//	          "waiting": 1,
//	          "cooldownUntil": "2000-01-01T00:00:30Z",
//	          "lastFailure": "503 Service Unavailable",
//	          "lastFailureAt": "2000-01-01T00:00:00Z",
//	          "failedWithoutRetry": 0,
//	          "budgets": [
//	            {
//	              "key": "*.example.com",
//	              "balance": 4,
//	              "successes": 1,
//	              "failedRetries": 1,
//	              "recentSuccesses": 1,
//	              "recentFailures": 1
//	            }
//	          ]
//	        }
//	      ]
//	    }
//	  ]
//	}
//
// Every field but file and policies is always there. Times are text as in RFC
// 3339, in UTC, with up to nine digits after the second. Numbers are integers.
//
//	time                when the response was made
//	transports          one for Handler; for New, those of Config.Transports
//	  name              the key in Config.Transports; "" for Handler
//	  file              of its Reloader in Config.Reloaders
//	    path            the Path of the Reloader
//	    changedAt       when the Reloader read the last change; null before
//	    error           why that change is not in effect; "" if it is
//	  policies          those in effect, if they are asked for and from a file
//	    key             in the file; "" for its default
//	    fields          those of policyfile.File.Fields
//	      name          of the field
//	      value         JSON, or a description
//	      from          where the value is set; "" for the default of httpretry
//	  origins           all that RetryTransport.Origins returns
//	    origin          scheme and host, and the port if it is not the default
//	                    of the scheme
//	    waiting         requests that wait for a retry or a cool-down now
//	    cooldownUntil   when the last of its cool-downs ends; null if there
//	                    is none
//	    lastFailure     status or kind of error of the last attempt that
//	                    failed; "" if none has failed
//	    lastFailureAt   when it failed; null if none has failed
//	    failedWithoutRetry
//	                    requests that failed without a retry, since the origin
//	                    was first used
//	    budgets         that of the host's policy, and others that are in use
//	      key           of its first policy in Config.Policies; "" for
//	                    Config.Policy
//	      balance       retries that the Budget would allow now; null if it is
//	                    not a Balancer of httpretry
//	      successes     requests that succeeded, in the Window of a HostBudget,
//	                    which stands still while the origin fails; 0 for another
//	                    Budget
//	      failedRetries the cost of retries that failed, or have not ended, in
//	                    the same Window: 2 after a timeout, else 1; 0 for another
//	                    Budget
//	      recentSuccesses
//	                    attempts of the last minute; 0 for another Budget
//	      recentFailures
//	                    those that failed; 0 for another Budget
//
// [httpretry.OriginStatus] and [httpretry.BudgetStatus] describe the values in
// detail. Later versions may add fields, so a program must ignore those that it
// does not know. docs/stability.md in the repository has the rules for later
// versions.
package retrydebug
