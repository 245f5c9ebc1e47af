//go:build !unix

package faults

import (
	"runtime"
	"testing"
)

// Backlog returns an address at which connections are neither accepted nor
// refused, because its queue is full. Where the system refuses connections in
// that case, Backlog skips the test.
func Backlog(t testing.TB) string {
	t.Helper()
	t.Skipf("faults: on %s, a queue that is full refuses connections", runtime.GOOS)
	return ""
}
