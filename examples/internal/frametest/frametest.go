// Package frametest is shared by the tests of the example programs.
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
	// Not with assert.Eventually, which starts a goroutine.
	for range 3000 {
		if runtime.NumGoroutine() <= before {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	assert.LessOrEqual(t, runtime.NumGoroutine(), before, "goroutines are left")
}
