// Package frametest has what the tests of the example programs share.
package frametest

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// LeavesNothing fails the test if f leaves a goroutine behind.
func LeavesNothing(t *testing.T, f func()) {
	t.Helper()
	before := runtime.NumGoroutine()
	f()
	for range 500 { // not with assert.Eventually, which has a goroutine of its own
		if runtime.NumGoroutine() <= before {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	assert.LessOrEqual(t, runtime.NumGoroutine(), before, "goroutines are left")
}
