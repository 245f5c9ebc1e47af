// Package integration holds no code but tests. They put httpretry before
// haproxy and nginx, and count the requests that arrive at the far end. Others
// open the page of package retrydebug in Chromium. README.md says how to run
// them, the command exchange, whose servers misbehave at random, and the tests
// of net/http and of other modules, which the command nethttp runs.
package integration
