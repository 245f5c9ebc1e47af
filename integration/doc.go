// Package integration holds no code but tests. They put httpretry before
// programs that others wrote and many run: haproxy, nginx and toxiproxy, and
// count the requests that arrive at the far end. TestExchanges does the same
// with servers that misbehave at random. TestDebugPageLooks opens the page of
// package retrydebug in Chromium. README.md says how to run them, the
// command soak, which looks for leaks, and the tests of net/http and of other
// modules, which the command nethttp runs.
package integration
