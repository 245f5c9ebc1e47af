// Package test holds the black-box tests of package httpretry. Each file tests
// one thing against servers that misbehave on purpose (internal/faults), with
// the helpers of internal/retrytest. The tests of a single source file of the
// root are next to that file.
package test
